"""The log normaliser of a separable chain and its sites, with derivatives from one filter and one smoother.

With r and N, the information in all sites from a step on, the derivatives of log Z in the mean and in the covariance of
the state that is predicted there are r and ½(r rᵀ − N); those in the matrices of the chain follow by the chain rule.
Derivatives in features and sites are expectations under the posterior: that in H is E[(λ − Λf) zᵀ].
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from .separable import (
    Adjoint,
    Marginal,
    SeparableChain,
    State,
    Step,
    Totals,
    Update,
    absorb,
    by_sign,
    congruence,
    cut,
    has_negative,
    joined,
    moved,
    nothing_later,
    predict,
    pulled_back,
    segment_starts,
    smooth,
    steps_of,
    update,
)


class Slopes(NamedTuple):
    """Derivatives of the log normaliser."""

    transition: Float[Array, "T q q"]
    noise: Float[Array, "T q q"]
    initial: Float[Array, "q q"]
    features: Float[Array, "P D BM"]
    precision: Float[Array, "T R D D"]
    linear: Float[Array, "T R D"]


class _Form(NamedTuple):
    """The parts of a chain that are not arrays."""

    observed: int
    segments: int
    stores: bool
    psd: bool


def log_normaliser(
    chain: SeparableChain, precision: Float[Array, "T R D D"], linear: Float[Array, "T R D"], psd: bool = False
) -> Float[Array, ""]:
    """log ∫ p ∏ t of the deviations from the prior mean, differentiable in all arrays."""
    form = _Form(chain.observed, chain.segments, chain.stores, psd)
    arrays = chain.transition, chain.noise, chain.initial, chain.features
    return _log_normaliser(form, *arrays, precision, linear, chain.places)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _log_normaliser(form: _Form, transition, noise, initial, features, precision, linear, places):
    chain = SeparableChain(transition, noise, initial, features, places, form.observed, form.segments, form.stores)

    def run(psd: bool):
        return _value(*smooth(chain, steps_of(chain, precision, linear[..., None], psd), psd), precision, linear)

    return by_sign(run, has_negative(precision), form.psd)


def _value(found: Marginal, totals: Totals, precision, linear) -> Float[Array, ""]:
    mean = found.mean[..., 0]
    exponent = jnp.sum(linear * mean) - 0.5 * jnp.einsum("trd,trde,tre->", mean, precision, mean)
    return exponent - 0.5 * (jnp.sum(mean * found.weights[..., 0]) + totals.log_det)


def _derivative(form: _Form, primals, tangents):
    transition, noise, initial, features, precision, linear, places = primals
    chain = SeparableChain(transition, noise, initial, features, places, form.observed, form.segments, form.stores)

    def run(psd: bool):
        return _slopes(chain, steps_of(chain, precision, linear[..., None], psd), psd)

    value, slopes = by_sign(run, has_negative(precision), form.psd)
    change = jnp.zeros(())
    for slope, tangent in zip(slopes, tangents[:-1], strict=True):
        if not isinstance(tangent, SymbolicZero):
            change = change + jnp.sum(slope * tangent)
    return value, change


_log_normaliser.defjvp(_derivative, symbolic_zeros=True)


class _Local(NamedTuple):
    """Derivatives in what belongs to one step."""

    transition: Any
    noise: Any
    marginal: Marginal


def _slopes(chain: SeparableChain, steps: Step, psd: bool) -> tuple[Float[Array, ""], Slopes]:
    """The value and all derivatives; the filter is computed again in every segment."""
    starts, totals = segment_starts(chain, steps, psd)

    def forward(state, step):
        after, found = update(chain, predict(chain, state, step), step, psd)
        return after, (state, after, found)

    def backward(carry, step):
        adjoint, features = carry
        step, (before, after, found) = step
        adjoint = pulled_back(step, adjoint)
        features = _add_features(features, step, _features_slope(chain, adjoint, step, after, found))
        adjoint, marginal = absorb(chain, adjoint, step, found)
        return (adjoint, features), _Local(*_chain_slopes(adjoint, step, before), marginal)

    @jax.checkpoint
    def segment(carry, segment):
        state, steps = segment
        _, stored = jax.lax.scan(forward, state, steps)
        return jax.lax.scan(backward, carry, (steps, stored), reverse=True)

    start = nothing_later(chain), jnp.zeros_like(chain.features)
    (adjoint, features), local = jax.lax.scan(segment, start, (starts, cut(steps, chain.segments)), reverse=True)
    local = joined(local)
    mean, covariance = local.marginal.mean[..., 0], local.marginal.covariance
    initial = _over_places(congruence(steps.transition[0].T, _of_covariance(adjoint)), chain.initial.shape[0])
    squares = mean[..., :, None] * mean[..., None, :] + covariance
    value = _value(local.marginal, totals, steps.precision, steps.linear[..., 0])
    return value, Slopes(local.transition, local.noise, initial, features, -0.5 * squares, mean)


def _of_covariance(adjoint: Adjoint) -> Float[Array, "n n"]:
    return 0.5 * (adjoint.vector @ adjoint.vector.T - adjoint.matrix)


def _over_places(matrix: Float[Array, "n n"], states: int) -> Float[Array, "q q"]:
    """The sum over columns of the state of the entries that belong to one column."""
    width = matrix.shape[0] // states
    return jnp.einsum("imjm->ij", matrix.reshape(states, width, states, width))


def _chain_slopes(adjoint: Adjoint, step: Step, before: State) -> tuple[Float[Array, "q q"], Float[Array, "q q"]]:
    """The derivatives in A and Q of a step, from the information in its sites and all later ones."""
    states, slope = step.noise.shape[0], _of_covariance(adjoint)

    def flat(array):
        return array.reshape(states, -1)

    transition = flat(adjoint.vector) @ flat(before.mean).T
    transition = transition + 2.0 * flat(slope) @ flat(moved(step.transition, before.covariance).T).T
    return transition, _over_places(slope, states)


def _features_slope(chain: SeparableChain, adjoint: Adjoint, step: Step, after: State, found: Update):
    """E[(λ − Λf) zᵀ] of every slot, from the information after a step."""
    seen, size = chain.seen, found.middle.shape[0]
    shape = *step.signs.shape, -1
    cross = found.gains[:, size:]
    mean = after.mean[:seen] + after.covariance[:seen] @ adjoint.vector
    spread = cross[:seen] - after.covariance[:seen] @ (adjoint.matrix @ cross)
    latents = (found.mean + cross.T @ adjoint.vector).reshape(shape)
    slope = step.linear - jnp.einsum("rde,rec->rdc", step.precision, latents)
    return slope * mean[:, 0][None, None, :] - jnp.einsum("rde,rez->rdz", step.precision, spread.T.reshape(shape))


def _add_features(total: Float[Array, "P D BM"], step: Step, slope: Float[Array, "R D BM"]) -> Float[Array, "P D BM"]:
    return total + slope if step.places is None else total.at[step.places].add(slope)
