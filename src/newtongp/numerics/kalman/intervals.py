"""A chain of intervals with one factor each, which is a function of the states at both of its ends.

sₖ₊₁ = Aₖ sₖ + Lₖ wₖ with wₖ ~ N(0, I) and s₀ = 0; the factor of interval k is exp(λᵀx − ½ xᵀΛx) of x = (sₖ, wₖ). All
of the prior is in the independent w, so that the posterior precision is I + Λ with the s eliminated. Going backwards,
the w of one interval after the other are integrated out: what is left is a function of s, exp(νᵀs − ½ sᵀJs). The
posterior is proper exactly if all the matrices Π that are inverted there are positive definite, whatever the signs of
Λ. Going forwards, covariances are sums of PSD matrices: nothing is subtracted.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..small import small_pivots_and_root, small_pseudo_solve_lower
from . import loops
from .roots import Forward

_LARGEST_WHOLE = 4
"""Loops over smaller states are compiled as one kernel."""


class Intervals(eqx.Module):
    """(A, L) of every interval, (T, d, 2d); zero in the last one, after which there is no state."""

    step: Float[Array, "T d E"]

    @property
    def states(self) -> int:
        return self.step.shape[1]


class Factors(NamedTuple):
    """The factor of every interval."""

    linear: Float[Array, "T E"]
    precision: Float[Array, "T E E"]


class _Backward(NamedTuple):
    """The result of integrating out w: RRᵀ = Π, its pivots, and w given s, N(Π⁻¹(y − Y s), Π⁻¹), as R⁻¹(Y, y)."""

    root: Any
    pivots: Any
    slope: Any
    value: Any
    later: tuple[Any, Any]
    """(ν, J) of the state at the end of the interval."""


class Moments(NamedTuple):
    """The posterior of x of every interval, (mᵀK⁻¹m) and log det(I + ΛK), and whether it is proper."""

    mean: Float[Array, "T E"]
    covariance: Float[Array, "T E E"]
    distance: Float[Array, ""]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]


def _matmul(a: Any, b: Any) -> Any:
    """a b, without the library of matrix products, which loops compiled as one kernel cannot call."""
    return jnp.sum(a[:, :, None] * b[None, :, :], axis=1)


def _apply(a: Any, vector: Any) -> Any:
    return jnp.sum(a * vector[None, :], axis=1)


def _scan(body: Any, start: Any, steps: Any, states: int, reverse: bool = False) -> tuple[Any, Any]:
    return loops.scan(body, start, steps, reverse=reverse, whole=states <= _LARGEST_WHOLE)


def _backward(chain: Intervals, factors: Factors) -> _Backward:
    states = chain.states

    def body(later, interval):
        step, linear, precision = interval
        vector, matrix = later
        precision = precision + _matmul(step.T, _matmul(matrix, step))
        linear = linear + _apply(step.T, vector)
        pivots, root = small_pivots_and_root(jnp.eye(states) + precision[states:, states:])
        right = jnp.concatenate([precision[states:, :states], linear[states:, None]], axis=1)
        solved = small_pseudo_solve_lower(root, right)
        slope, value = solved[:, :states], solved[:, states]
        matrix = precision[:states, :states] - _matmul(slope.T, slope)
        vector = linear[:states] - _apply(slope.T, value)
        return (vector, 0.5 * (matrix + matrix.T)), _Backward(root, pivots, slope, value, later)

    nothing = jnp.zeros(states), jnp.zeros((states, states))
    return _scan(body, nothing, (chain.step, *factors), states, reverse=True)[1]


class Conditionals(NamedTuple):
    """The posterior forward in time: w = c + G s + R⁻ᵀε in every interval."""

    offset: Float[Array, "T d"]
    gain: Float[Array, "T d d"]
    root: Float[Array, "T d d"]


def _conditionals(back: _Backward) -> Conditionals:
    states = back.root.shape[1]
    inverse = jax.vmap(lambda root: small_pseudo_solve_lower(root, jnp.eye(states)))(back.root)
    gain = -jnp.sum(inverse[:, :, :, None] * back.slope[:, :, None, :], axis=1)
    offset = jnp.sum(inverse * back.value[:, :, None], axis=1)
    return Conditionals(offset, gain, jnp.swapaxes(inverse, 1, 2))


def conditionals(chain: Intervals, factors: Factors) -> Conditionals:
    """w of every interval given the state before it and all factors."""
    return _conditionals(_backward(chain, factors))


def condition_intervals(chain: Intervals, factors: Factors) -> Moments:
    """The posterior of x of every interval: one loop backwards and one forwards."""
    return _moments(chain, _backward(chain, factors))


def _moments(chain: Intervals, back: _Backward) -> Moments:
    states, (offset, gain, root) = chain.states, _conditionals(back)
    first, second = chain.step[:, :, :states], chain.step[:, :, states:]
    moved = first + jnp.sum(second[:, :, :, None] * gain[:, None, :, :], axis=2)
    kick = jnp.sum(second * offset[:, None, :], axis=2)
    spread = jnp.sum(second[:, :, :, None] * root[:, None, :, :], axis=2)
    noise = jnp.sum(spread[:, :, None, :] * spread[:, None, :, :], axis=3)

    def body(state, interval):
        mean, covariance = state
        moved, kick, noise = interval
        after = _apply(moved, mean) + kick, _matmul(_matmul(moved, covariance), moved.T) + noise
        return after, state

    nothing = jnp.zeros(states), jnp.zeros((states, states))
    _, (mean, covariance) = _scan(body, nothing, (moved, kick, noise), states)
    inner = offset + jnp.sum(gain * mean[:, None, :], axis=2)
    across = jnp.sum(gain[:, :, :, None] * covariance[:, None, :, :], axis=2)
    own = jnp.sum(across[:, :, None, :] * gain[:, None, :, :], axis=3)
    own = own + jnp.sum(root[:, :, None, :] * root[:, None, :, :], axis=3)
    top = jnp.concatenate([covariance, jnp.swapaxes(across, 1, 2)], axis=2)
    whole = jnp.concatenate([top, jnp.concatenate([across, own], axis=2)], axis=1)
    return Moments(
        jnp.concatenate([mean, inner], axis=1),
        0.5 * (whole + jnp.swapaxes(whole, 1, 2)),
        jnp.sum(inner**2),
        _log_det(back),
        jnp.all(back.pivots > 0.0),
    )


def _log_det(back: _Backward) -> Float[Array, ""]:
    return jnp.sum(jnp.log(jnp.abs(back.pivots)))


@jax.custom_jvp
def log_integral(chain: Intervals, factors: Factors) -> Float[Array, ""]:
    """log ∫ p(w) ∏ exp(λᵀx − ½ xᵀΛx)."""
    back = _backward(chain, factors)
    return 0.5 * (jnp.sum(back.value**2) - _log_det(back))


@log_integral.defjvp
def _derivative(primals, tangents):
    # What comes after an interval is exp(νᵀs − ½ sᵀJs) of the state at its end: no loop is differentiated.
    (chain, factors), (moved, changed) = primals, tangents
    back = _backward(chain, factors)
    moments = _moments(chain, back)
    second = moments.covariance + moments.mean[:, :, None] * moments.mean[:, None, :]
    vector, matrix = back.later
    carried = jnp.sum(chain.step[:, :, :, None] * second[:, None, :, :], axis=2)
    slope = vector[:, :, None] * moments.mean[:, None, :] - jnp.sum(
        matrix[:, :, :, None] * carried[:, None, :, :], axis=2
    )
    change = (
        jnp.sum(slope * moved.step) + jnp.sum(moments.mean * changed.linear) - 0.5 * jnp.sum(second * changed.precision)
    )
    return 0.5 * (jnp.sum(back.value**2) - _log_det(back)), change


def draw_intervals(chain: Intervals, given: Conditionals, key: Any, n: int) -> Float[Array, "T E n"]:
    """n draws of x of all intervals."""
    states = chain.states
    noise = jax.random.normal(key, (*given.offset.shape, n))
    kicks = given.offset[:, :, None] + jnp.einsum("tij,tjn->tin", given.root, noise)

    def body(state, interval):
        step, gain, kick = interval
        both = jnp.concatenate([state, kick + _matmul(gain, state)])
        return _matmul(step, both), both

    start = jnp.zeros((states, n))
    return jax.lax.scan(body, start, (chain.step, given.gain, kicks))[1]


def forward_intervals(chain: Intervals, given: Conditionals) -> Forward:
    """The posterior of x as a Markov chain forward in time, without its means and its noise."""
    length, states = given.offset.shape
    before = jnp.concatenate([jnp.zeros((1, *chain.step.shape[1:])), chain.step[:-1]])
    transition = jnp.concatenate([before, jnp.einsum("tij,tjk->tik", given.gain, before)], axis=1)
    nothing = jnp.zeros((length, 2 * states))
    empty = jnp.zeros((length, 2 * states, 0))
    return Forward(transition, nothing, empty, nothing[0], empty[0])
