"""log ∫ p ∏ tₙ of a chain and its sites, with derivatives that cost no more than a smoother.

The smoother's (r, L) is also the derivative of the log normaliser: r with respect to a state's predicted mean, and
½ (r rᵀ − L) with respect to its predicted covariance. One filter and one smoother thus give the gradient in all
matrices of the chain, and no loop is differentiated.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import loops
from .chain import Chain
from .chunks import elements_of, starts
from .recursions import condition, directions, predict_step, settle
from .smoother import collect, run_filter, run_smoother, steps_of


def log_normaliser(chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]) -> Float[Array, ""]:
    """log ∫ p(f) ∏ exp(τᵀf − ½ fᵀΛf) for deviations f of prior mean zero: one filter."""
    # The derivative in observation weights is not implemented below: the loop itself is differentiated.
    return _filter(chain, precision, linear) if chain.weights is not None else _by_adjoint(chain, precision, linear)


@jax.custom_jvp
def _by_adjoint(chain, precision, linear):
    return _filter(chain, precision, linear)


def _filter(chain, precision, linear):
    form = chain.form
    steps = steps_of(chain, precision, linear)

    def body(carry, step):
        state, total = carry
        (mean, covariance), _ = predict_step(form, state, step)
        updates = []
        for direction, weight, centred_linear in zip(
            directions(form, step)[1], step.precision, step.linear, strict=True
        ):
            at = form.dot(direction, mean)
            spread, _ = form.spread(covariance, direction, form.times(covariance, direction))
            mean, covariance, update = condition(form, mean, covariance, direction, weight, centred_linear)
            gap = centred_linear - weight * at
            total = total + at * (centred_linear - 0.5 * weight * at) + 0.5 * spread * gap * update.innovation
            updates.append(update)
        covariance, _ = settle(form, covariance, step, updates)
        return ((mean, covariance), total), tuple(update.shrink for update in updates)

    begin = starts(chain, elements_of(chain, steps))
    nothing = jnp.zeros(()) if chain.pieces == 1 else jnp.zeros(chain.pieces)
    (_, total), shrinks = loops.scan(body, (begin, nothing), steps, whole=chain.is_whole)
    return jnp.sum(total) + 0.5 * sum(jnp.sum(jnp.log(jnp.abs(shrink))) for shrink in shrinks)


@_by_adjoint.defjvp
def _derivative(primals, tangents):
    chain, precision, linear = primals
    chain_change, precision_change, linear_change = tangents
    form = chain.form
    steps = steps_of(chain, precision, linear)
    elements = elements_of(chain, steps)
    begin = starts(chain, elements)
    last, (filtered, states) = run_filter(chain, steps, elements, states=True)
    marginals, (vector, matrix) = run_smoother(chain, steps, elements, last, filtered, states=True)
    smoothed = collect(chain, steps, filtered, marginals, psd=True)
    value = 0.5 * (jnp.sum(linear * smoothed.mean) - smoothed.log_det)
    mean, covariance = (_before(now, first) for now, first in zip(states, begin, strict=True))
    twice = form.rank_one(jax.tree.map(jnp.negative, matrix), 1.0, vector)
    carried = form.product(twice, form.propagate(form.matrix(chain.transition), covariance))
    slope = form.rank_one_general(carried, 1.0, vector, mean)
    second = smoothed.covariance + smoothed.mean[:, :, None] * smoothed.mean[:, None, :]
    change = (
        jnp.sum(form.pair(slope, chain_change.transition))
        + 0.5 * jnp.sum(form.pair_symmetric(twice, chain_change.noise))
        + 0.5 * jnp.sum(_at_start(form.join(twice), chain.pieces) * chain_change.initial)
        + jnp.sum(smoothed.mean * linear_change)
        - 0.5 * jnp.sum(second * precision_change)
    )
    return value, change


def _before(now: Any, first: Any) -> Any:
    """States before each step, from those after it and those before the first of each piece."""
    return jax.tree.map(lambda a, b: jnp.concatenate([b[None], a[:-1]]), now, first)


def _at_start(array: Any, pieces: int) -> Any:
    return array[0] if pieces == 1 else array[0, 0]
