"""The double loop of power EP: slow, but every step increases a concave function.

Fixed points of power EP are saddle points of its energy, which is why plain updates may cycle. If the marginals from
which cavities are computed are held at θ, the sites λ maximise

    G(λ) = −log ∫ p ∏ tₙ − (1/α) Σ log ∫ p(yₙ | fₙ)^α exp((θₙ − αλₙ)ᵀ s(fₙ)) dfₙ,    s(f) = (f, −½ ffᵀ),

which is concave. An inner loop maximises it along the difference between the natural parameters of the tilted density
and the marginal, which is an ascent direction. The outer loop replaces θ by the marginals of q (Heskes and Zoeter,
2002; Opper and Winther, 2005). When θ no longer changes, the sites are a fixed point of power EP.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..likelihoods.base import over_rows
from ..methods.rule import Method, expand_around, propose, residual
from ..methods.weights import copies_of, divided, times
from ..numerics.gaussian import Gaussian, Sites, cavity
from ..numerics.small import small_solve_psd, symmetrise
from ..numerics.trees import select
from .problem import Problem
from .steps.base import SHORTEST
from .steps.endings import is_sound

_INNER = 0.5
"""An inner loop ends when its residual has fallen by this factor; a smaller factor takes more trials in total."""


class _Point(eqx.Module):
    """One point of the inner loop."""

    sites: Sites
    direction: Sites
    """The direction in which each row's site moves."""
    marginals: Gaussian
    value: Float[Array, ""]
    rounding: Float[Array, ""]
    largest: Float[Array, ""]
    sound: Bool[Array, ""]


class _State(eqx.Module):
    point: _Point
    theta: Gaussian
    size: Float[Array, ""]
    goal: Float[Array, ""]
    renew: Bool[Array, ""]
    """Whether the next trial replaces θ and keeps the sites."""
    done: Bool[Array, ""]
    trials: Any


def _natural(gaussian: Gaussian) -> Sites:
    identity = jnp.eye(gaussian.mean.shape[0])
    precision = symmetrise(small_solve_psd(gaussian.covariance, identity))
    return Sites(precision @ gaussian.mean, precision)


def _expand(problem: Problem, method: Method, theta: Gaussian, sites: Sites) -> _Point:
    power = method.target.power
    conditioned = problem.workspace.marginals(sites, False)

    def row(likelihood, y, observed, theta, marginal, site, residual_covariance):
        number = copies_of(likelihood).number
        own = divided(site, number)
        without = cavity(theta, own, power)
        expansion, value = expand_around(method, likelihood, y, observed, theta, without.gaussian, residual_covariance)
        proposed, _ = propose(method, expansion, observed, site, None, jnp.zeros(()))
        held, now = _natural(theta), _natural(marginal)
        mean = without.gaussian.mean
        square = 0.5 * mean @ (held.precision - power * own.precision) @ mean
        share = times(value + (square - 0.5 * without.log_det_ratio) / power, number)
        # The natural parameters of the tilted density are θ + α(λ* − λ), with the sites of one copy of the row.
        goal = divided(proposed, number)
        moved = jax.tree.map(lambda h, p, s, n: (h + power * (p - s) - n) / power, held, goal, own, now)
        moved = times(moved, number)
        moved = jax.tree.map(lambda leaf: jnp.where(observed, leaf, 0.0), moved)
        there = Sites(site.linear + moved.linear, site.precision + moved.precision)
        gap = jnp.max(jnp.abs(residual(marginal, site, there)))
        return jnp.where(observed, share, 0.0), moved, jnp.where(observed, gap, 0.0), without.proper | ~observed

    rows = (problem.y, problem.observed, theta, conditioned.marginals, sites, conditioned.residual_covariance)
    shares, direction, gaps, proper = over_rows(row, problem.likelihood, rows)
    mean = conditioned.marginals.mean
    exponent = jnp.sum(sites.linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, sites.precision, mean)
    log_integral = exponent - 0.5 * (conditioned.distance + conditioned.log_det)
    value = -log_integral - jnp.sum(shares)
    largest = jnp.max(gaps, initial=0.0)
    rounding = 1e-12 * (jnp.abs(log_integral) + jnp.sum(jnp.abs(shares)) + 1.0)
    sound = is_sound(conditioned.proper, jnp.all(proper), value, largest)
    return _Point(sites, direction, conditioned.marginals, value, rounding, largest, sound)


@jax.jit
def descend(problem: Problem, method: Method, sites: Sites, tol: Any, most: Any) -> tuple[Sites, Array]:
    """The fixed point of power EP that is reached from these sites, and the number of trials, at most `most`."""

    def continues(state: _State):
        return ~state.done & (state.trials < most)

    def attempt(state: _State) -> _State:
        point = state.point
        theta = select(state.renew, point.marginals, state.theta)
        size = jnp.where(state.renew, 0.0, state.size)
        trial = jax.tree.map(lambda site, direction: site + size * direction, point.sites, point.direction)
        tried = _expand(problem, method, theta, trial)
        risen = tried.value >= point.value - point.rounding
        accept = tried.sound & (state.renew | risen)
        # With an improper cavity at θ = q itself, the loop cannot continue.
        lost = state.renew & ~tried.sound
        shorter = 0.5 * state.size
        exhausted = ~accept & ~state.renew & (shorter < SHORTEST)
        goal = jnp.where(state.renew, _INNER * tried.largest, state.goal)
        at_rest = accept & (tried.largest <= jnp.maximum(goal, 0.1 * tol))
        return _State(
            select(accept, tried, point),
            theta,
            jnp.where(state.renew, 1.0, jnp.where(accept, jnp.minimum(1.0, 2.0 * state.size), shorter)),
            goal,
            (~state.renew & at_rest) | exhausted,
            lost | (state.renew & accept & (tried.largest <= tol)),
            state.trials + 1,
        )

    prior = problem.workspace.marginals(sites, False).marginals
    first = _expand(problem, method, prior, sites)
    one = jnp.ones(())
    begin = _State(first, prior, one, one, jnp.ones((), dtype=bool), ~first.sound, jnp.zeros((), dtype=int))
    end = jax.lax.while_loop(continues, attempt, begin)
    return end.point.sites, end.trials
