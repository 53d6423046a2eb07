"""A method's energy as a function of hyperparameters, with its gradient: the inner half of `fit`.

For given hyperparameters inference runs to its fixed point, from the sites of the last time. There the energy of exact
VI, of power EP and of everything that minimises the VFE does not change with the sites (`sec:gp`), so that its gradient
is that of the prior's log normaliser at fixed sites and of the rows' terms at fixed marginals. Other energies do
change: of the Laplace energy the log determinant, for one. Then the change of the sites with the hyperparameters is
part of the gradient. With the sites' fixed-point map s = F(θ, s) it is wᵀ∂F/∂θ for the w that solves w = ∂E/∂s +
wᵀ∂F/∂s. The same w gives the energy at the fixed point up to second order, E + wᵀ(F(θ, s) − s). A search needs that,
since sites that are only as close as the tolerance make such energies jump by more than a last step lowers them.
"""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from ..inference.loop import Report, block_of, converge, expand_rows, propose_rows, total_energy
from ..inference.problem import BoundModel, Problem
from ..inference.steps.base import Step
from ..likelihoods.base import Likelihood, over_rows
from ..likelihoods.partial import PartlyObserved
from ..likelihoods.weighted import unweighted
from ..methods.rule import constant_unless
from ..numerics.gaussian import Sites
from ..numerics.linalg import solve_by_products
from ..results.status import Status
from .conjugate import exact_energy, is_conjugate
from .learned import Slot, values_of, with_values


class _Holder(eqx.Module):
    """What has the paths of a model, and no checks."""

    prior: Any
    likelihood: Any


def replaced(
    slots: tuple[Slot, ...], prior: Any, likelihood: Likelihood, unconstrained: Float[Array, " K"]
) -> tuple[Any, Any]:
    """A prior and a likelihood (of rows that may have weights, or be partly observed) with these hyperparameters."""
    holder = with_values(slots, _Holder(prior, _bare(likelihood)), values_of(slots, unconstrained))
    return holder.prior, eqx.tree_at(_bare, likelihood, holder.likelihood)


def _bare(likelihood: Likelihood) -> Likelihood:
    """The likelihood of the model, without what data add to it: weights, and which outputs are observed."""
    likelihood = unweighted(likelihood)
    return likelihood.whole if isinstance(likelihood, PartlyObserved) else likelihood


def problem_at(bound: BoundModel, slots: tuple[Slot, ...], unconstrained: Float[Array, " K"]) -> Problem:
    """The problem with these hyperparameters."""
    prior, likelihood = replaced(slots, bound.prior, bound.likelihood, unconstrained)
    return BoundModel(prior, likelihood, bound.inputs, bound.y, bound.observed).problem()


Slope = tuple[Any, Float[Array, ""]]
"""A gradient in the numbers of a problem, and the first-order difference of the energy at the fixed point and here."""


class Evaluation(eqx.Module):
    """The energy at the fixed point for some hyperparameters, its gradient in the free numbers, and the way there."""

    gradient: Float[Array, " K"]
    report: Report
    """What inference found: sites, marginals, the energy, how many steps it took and how it ended."""
    is_conjugate: bool = eqx.field(static=True, default=False)
    """Whether nothing iterates: there is always a gradient."""

    @property
    def usable(self) -> bool:
        """Whether there is an energy and a gradient at all, and inference got anywhere."""
        report = self.report
        status, steps = Status(int(report.status)), int(report.steps)
        started = steps > 0 or (steps == 0 and status is not Status.STEP_TOO_SMALL)
        finite = math.isfinite(report.energy) and all(map(math.isfinite, self.gradient.tolist()))
        return started and not status.failed and finite


@functools.partial(compiled, static_argnums=0)
def evaluate(
    slots: tuple[Slot, ...],
    bound: BoundModel,
    unconstrained: Float[Array, " K"],
    method: Any,
    step: Step,
    sites: Sites,
    precision: Any,
    until: Any,
    tol: Any,
    slopes: Any = True,
) -> Evaluation:
    """Inference with these hyperparameters, and the gradient of its energy in them, or zeros without `slopes`.

    It starts from these sites, or, if `precision` is not negative, from sites of this precision at the prior mean.
    """
    numbers, pull_back, rest = jax.vjp(
        lambda at: _split(slots, problem_at(bound, slots, at)), unconstrained, has_aux=True
    )
    problem = eqx.combine(numbers, rest.tree)
    if is_conjugate(problem, method):
        of_numbers = jax.value_and_grad(lambda numbers: exact_energy(eqx.combine(numbers, rest.tree)), has_aux=True)
        (_, report), slope = of_numbers(numbers)
        (gradient,) = pull_back(slope)
        return Evaluation(gradient, report, is_conjugate=True)
    held = precision * jnp.eye(sites.linear.shape[1])[None]
    start = Sites(precision * problem.workspace.mean, jnp.broadcast_to(held, sites.precision.shape))
    sites = jax.tree.map(lambda given, new: jnp.where(precision < 0.0, given, new), sites, start)
    point, report = converge(problem, method, step, sites, until, tol)
    # Where f is known, every site is at rest, also one that says nothing about how the energy depends on the mean.
    stationary = is_stationary(method, problem.likelihood) and not problem.workspace.is_known
    slope_of = _at_fixed_sites if stationary else _with_sites

    def gradient_at(sites: Sites) -> Slope:
        slope, correction = slope_of(numbers, rest.tree, method, eqx.tree_at(lambda point: point.sites, point, sites))
        return pull_back(slope)[0], correction

    gradient, correction = _if_wanted(slopes, gradient_at, point.sites, unconstrained)
    # It is valid only close to the fixed point, and only if the equations for the weights were solved.
    close = (report.status == Status.CONVERGED.value) & (jnp.abs(correction) <= _CLOSE * (1.0 + jnp.abs(report.energy)))
    correction = jnp.where(close, correction, 0.0)
    return Evaluation(gradient, eqx.tree_at(lambda report: report.energy, report, report.energy + correction))


def _if_wanted(wanted: Any, gradient_at: Any, sites: Sites, unconstrained: Float[Array, " K"]) -> Slope:
    """A gradient and a correction, or zeros.

    It is a loop of one round or none, because a condition around Kalman recursions cannot always be compiled. The sites
    are part of its state: what does not change in a loop would be computed before it.
    """

    def body(state):
        _, sites, _ = state
        return False, jax.tree.map(jnp.zeros_like, sites), gradient_at(sites)

    nothing = jnp.zeros_like(unconstrained), jnp.zeros(())
    return jax.lax.while_loop(lambda state: state[0], body, (jnp.asarray(wanted), sites, nothing))[2]


class _Rest(eqx.Module):
    """The part of a problem that does not depend on hyperparameters."""

    tree: Any


def _split(slots: tuple[Slot, ...], problem: Problem) -> tuple[Problem, _Rest]:
    """The numbers in a problem that depend on hyperparameters, and the rest."""
    learns_likelihood = any(path[0] == "likelihood" for slot in slots for path in slot.paths)
    moves = Problem(
        jax.tree.map(eqx.is_inexact_array, problem.workspace),
        jax.tree.map(lambda leaf: learns_likelihood and eqx.is_inexact_array(leaf), problem.likelihood),
        jax.tree.map(lambda leaf: False, problem.y),
        jax.tree.map(lambda leaf: False, problem.observed),
    )
    numbers, rest = eqx.partition(problem, moves)
    return numbers, _Rest(rest)


def is_stationary(method: Any, likelihood: Likelihood) -> bool:
    """Whether the energy does not change with the sites, to first order, where the method has come to rest."""
    if method.curvature.remembers:
        # The sites of a quasi-Newton method depend on the way there: nothing is known of how they would change.
        return True
    if method.curvature.name != "exact" or method.safeguard is not None:
        return False
    # Sums over nodes are exact enough for power EP's fixed points to be stationary points of its energy only where
    # what is summed has no corners: for log-concave likelihoods. Those of VI are made from the sum's own derivative.
    return method.objective == "vfe" or (method.target.name == "power_ep" and method.expects_psd(likelihood))


def _at_fixed_sites(numbers, rest, method, point) -> Slope:
    """The gradient of −log ∫ p ∏ tₙ at fixed sites, and of the rows' energies at fixed marginals."""

    def surrogate(numbers):
        problem = eqx.combine(numbers, rest)
        workspace, residual_covariance = problem.workspace, problem.workspace.residual_covariance()
        log_normaliser = workspace.log_normaliser(point.sites, method.expects_psd(problem.likelihood))
        if residual_covariance is None and not jax.tree.leaves(numbers.likelihood):
            return -log_normaliser  # the rows' energies are constants

        def row(likelihood, y, observed, marginal, site, residual_covariance):
            likelihood, residual_covariance = constant_unless(observed, (likelihood, residual_covariance))
            energy = method.row_energy(likelihood, y, marginal, site, residual_covariance)
            return jnp.where(observed, energy.value, 0.0)

        rows = (problem.y, problem.observed, point.marginals, point.sites, residual_covariance)
        return jnp.sum(over_rows(row, problem.likelihood, rows, block_of(problem, method))) - log_normaliser

    return jax.grad(surrogate)(numbers), jnp.zeros(())


_MOST_ITERATIONS = 40
_CLOSE = 1e-6
"""The largest correction of an energy, relative to it: sites within the tolerance are not further away."""


def _with_sites(numbers, rest, method, point) -> Slope:
    """The gradient of the energy along the curve of fixed points, and wᵀ(F(θ, s) − s)."""

    def energy_and_next(numbers, sites):
        problem = eqx.combine(numbers, rest)
        conditioned, expansions, energies = expand_rows(problem, method, sites)
        proposal, _ = propose_rows(problem, method, expansions, sites, None, jnp.zeros(()))
        return total_energy(conditioned, energies), proposal

    (_, proposal), pull_back = jax.vjp(energy_and_next, numbers, point.sites)
    one, nothing = jnp.ones(()), jax.tree.map(jnp.zeros_like, point.sites)
    _, slope = pull_back((one, nothing))

    def minus_carried(weights):
        _, carried = pull_back((jnp.zeros(()), weights))
        return jax.tree.map(jnp.subtract, weights, carried)

    weights = solve_by_products(minus_carried, slope, _MOST_ITERATIONS)
    gradient, _ = pull_back((one, weights))
    gaps = jax.tree.map(lambda weight, new, old: jnp.sum(weight * (new - old)), weights, proposal, point.sites)
    return gradient, gaps.linear + gaps.precision
