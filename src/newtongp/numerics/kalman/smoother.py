"""The posterior marginals of a chain and all its sites: the global update of Markovian priors (`sec:markov-gp`)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import small
from . import loops
from .algebra import ROUNDING
from .chain import Chain, flatten, lay_out, observation_rows
from .chunks import elements_of, ends, starts
from .information import is_proper
from .recursions import Element, Filtered, Step, directions, filter_step, predict_step, smoother_step, update_step
from .scalar_sites import scalar_sites


class Smoothed(NamedTuple):
    """One entry per position: deviation of the mean from the prior's, covariance, and K⁻¹ times that deviation."""

    mean: Float[Array, "T D"]
    covariance: Float[Array, "T D D"]
    weights: Float[Array, "T D"]
    lost: Bool[Array, "T D"]
    """Whether a variance was lost to rounding and replaced by a bound on its rounding error."""
    log_det: Float[Array, ""]
    """log det(I + ΛK)."""
    proper: Bool[Array, ""]


class States(NamedTuple):
    """Filtered states after each position, and the smoother's (r, L), the position's own sites included."""

    mean: Float[Array, "T d"]
    covariance: Float[Array, "T d d"]
    vector: Float[Array, "T d"]
    matrix: Float[Array, "T d d"]


def steps_of(chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]) -> Step:
    """The inputs of the loops."""
    rotation, scalar, centred_linear = scalar_sites(precision, linear)

    def entries(array):
        return tuple(lay_out(array[:, k], chain.pieces) for k in range(array.shape[1]))

    turned = None if rotation is None else tuple(entries(rotation[:, :, k]) for k in range(rotation.shape[2]))
    return Step(chain.transition, chain.noise, chain.weights, turned, entries(scalar), entries(centred_linear))


def marginals(
    chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"], psd: bool = False
) -> Smoothed:
    """Condition on sites exp(τᵀf − ½ fᵀΛf) of the deviations f: one filter and one smoother.

    Arrays are in the order of the loops. `precision` may be zero, singular or indefinite; with `psd`, an indefinite one
    makes the result improper by definition.
    """
    steps = steps_of(chain, precision, linear)
    elements = elements_of(chain, steps)
    last, filtered = run_filter(chain, steps, elements)
    smoothed, _ = run_smoother(chain, steps, elements, last, filtered, states=False)
    return collect(chain, steps, filtered, smoothed, psd)


class ChainPosterior(NamedTuple):
    """Marginals and states of a chain given its sites, and whether the square root form would have more digits."""

    smoothed: Smoothed
    states: States
    spread: Float[Array, ""]
    """The largest variance of f at any position given the sites before it."""
    lossy: Bool[Array, ""]


def marginals_and_states(chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]) -> ChainPosterior:
    """Like `marginals`, with the states that prediction between positions needs."""
    form = chain.form
    steps = steps_of(chain, precision, linear)
    elements = elements_of(chain, steps)
    last, (filtered, (mean, covariance)) = run_filter(chain, steps, elements, states=True)
    marginal, (vector, matrix) = run_smoother(chain, steps, elements, last, filtered, states=True)
    joined = States(form.join_vector(mean), form.join(covariance), form.join_vector(vector), form.join(matrix))
    states = jax.tree.map(lambda leaf: flatten(leaf, chain.pieces), joined)
    smoothed = collect(chain, steps, filtered, marginal)
    rows = observation_rows(chain)
    rows = rows if chain.weights is None else flatten(rows, chain.pieces)
    rows = jnp.broadcast_to(rows, (*linear.shape, form.dimension))
    columns = jnp.sum(states.covariance[:, None, :, :] * rows[:, :, None, :], axis=3)
    pairs = zip(directions(form, steps)[1], filtered.updates, strict=True)
    spread = jnp.max(jnp.stack([jnp.max(jnp.abs(form.dot(direction, update.column))) for direction, update in pairs]))
    errors = rounding_errors(columns, spread, largest(states.matrix))
    negative = is_negative(steps.precision)
    nothing = jnp.zeros_like(errors)
    raised, lost = not_below_rounding(smoothed.covariance, nothing, jnp.where(negative, errors, nothing))
    smoothed = smoothed._replace(covariance=raised, lost=smoothed.lost | lost)
    return ChainPosterior(smoothed, states, spread, ~negative & jnp.any(is_lossy(raised, errors)))


def is_negative(precision: Any) -> Bool[Array, ""]:
    """Whether a scalar site is negative, so that the square root form cannot be used."""
    return jnp.any(jnp.stack([jnp.min(values) for values in precision]) < 0.0)


def largest(matrices: Float[Array, "T d d"]) -> Float[Array, " d"]:
    """The largest absolute values of the diagonal entries over time."""
    return jnp.max(jnp.abs(jnp.diagonal(matrices, axis1=1, axis2=2)), axis=0)


def rounding_errors(
    columns: Float[Array, "*T D d"], spread: Any, information: Float[Array, " d"]
) -> Float[Array, "*T D"]:
    """Bounds on the errors of variances H P Hᵀ − H P L P Hᵀ, from the columns P Hᵀ.

    Rounding errors of P are relative to the largest variance over time, and those of L to its own largest diagonal:
    an error made at one position persists at others.
    """
    explained = jnp.sum(jnp.abs(columns) * jnp.sqrt(information)[(None,) * (columns.ndim - 1)], axis=-1) ** 2
    return ROUNDING * (explained + spread)


_TRUSTED = 1e-7


def is_lossy(covariance: Float[Array, "*T D D"], errors: Float[Array, "*T D"]) -> Bool[Array, "*T"]:
    """Whether a variance with this error may have fewer than seven correct digits."""
    return ~jnp.all(errors <= _TRUSTED * jnp.diagonal(covariance, axis1=-2, axis2=-1), axis=-1)


def predicted(
    chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]
) -> tuple[Float[Array, "T D"], Float[Array, "T D D"]]:
    """Mean and covariance of every position's latents given the sites before it, in a chain of one piece."""
    form = chain.form

    def body(state, step):
        (mean, covariance), rows = predict_step(form, state, step)
        columns = [form.times(covariance, row) for row in rows]
        means = [form.dot(row, mean) for row in rows]
        covariances = [[form.dot(row, column) for column in columns] for row in rows]
        return update_step(form, (mean, covariance), step)[0], (means, covariances)

    start = form.split_vector(jnp.zeros(form.dimension)), form.split(chain.initial)
    _, (means, covariances) = loops.scan(body, start, steps_of(chain, precision, linear), whole=chain.is_whole)
    return jnp.stack(means, axis=-1), jnp.stack([jnp.stack(row, axis=-1) for row in covariances], axis=-2)


def smoothed_states(
    chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]
) -> tuple[Float[Array, "T d"], Float[Array, "T d d"], ChainPosterior]:
    """Mean and covariance of every state of a chain of one piece given all sites, as deviations from the prior mean."""
    posterior = marginals_and_states(chain, precision, linear)
    states = posterior.states
    onward = chain.form.full(chain.transition)[1:]
    vector = jnp.einsum("tji,tj->ti", onward, states.vector[1:])
    matrix = jnp.einsum("tji,tjk,tkl->til", onward, states.matrix[1:], onward)
    last = jnp.zeros_like(states.vector[:1]), jnp.zeros_like(states.matrix[:1])
    vector, matrix = jnp.concatenate([vector, last[0]]), jnp.concatenate([matrix, last[1]])
    return *jax.vmap(seen_from_later)(states.mean, states.covariance, vector, matrix), posterior


def seen_from_later(
    mean: Float[Array, " d"], covariance: Float[Array, "d d"], vector: Float[Array, " d"], matrix: Float[Array, "d d"]
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """N(m + P r, P − P L P): a state with mean m and covariance P, given (r, L) of later sites."""
    smoothed = small.symmetrise(covariance - covariance @ matrix @ covariance)
    least = ROUNDING * jnp.abs(jnp.diagonal(covariance))
    variances = jnp.diagonal(smoothed)
    raised = smoothed + jnp.diag(jnp.where(variances < least, least - variances, 0.0))
    return mean + covariance @ vector, small.small_covariance(raised)


def run_filter(chain: Chain, steps: Step, elements: Element | None, states: bool = False) -> tuple[Any, Any]:
    """The state at the end of every piece, and the inputs of the smoother (with all states if `states`)."""
    form = chain.form

    def body(state, step):
        state, filtered = filter_step(form, state, step)
        return state, (filtered, state) if states else filtered

    return loops.scan(body, starts(chain, elements), steps, whole=chain.is_whole)


def run_smoother(
    chain: Chain, steps: Step, elements: Element | None, last: Any, filtered: Filtered, states: bool
) -> tuple[Any, Any]:
    """The marginal of every position, and its (r, L) if `states`."""
    form = chain.form

    def body(adjoint, step):
        earlier, here, marginal = smoother_step(form, adjoint, *step)
        return earlier, (marginal, here if states else None)

    start = ends(chain, elements, last)
    # Unused arguments are removed: XLA crashes if a loop compiled as one kernel ignores an argument.
    needed = steps._replace(noise=None)
    filtered = filtered._replace(updates=tuple(update._replace(rounding=None) for update in filtered.updates))
    return loops.scan(body, start, (needed, filtered), reverse=True, whole=chain.is_whole)[1]


def collect(chain: Chain, steps: Step, filtered: Filtered, smoothed: Any, psd: bool = False) -> Smoothed:
    """The results of the loops, one entry per position."""

    def stack(entries):
        return jnp.stack([flatten(entry, chain.pieces) for entry in entries], axis=-1)

    log_det = -sum(jnp.sum(jnp.log(jnp.abs(update.shrink))) for update in filtered.updates)
    covariance = jnp.stack([stack(row) for row in smoothed.covariance], axis=-2)
    covariance, lost = not_below_rounding(covariance, stack(_sizes(chain, steps, filtered)))
    return Smoothed(
        stack(smoothed.mean),
        covariance,
        stack(smoothed.weight),
        lost,
        jnp.asarray(log_det),
        is_proper(chain, steps, filtered, psd),
    )


def _sizes(chain: Chain, steps: Step, filtered: Filtered) -> list[Any]:
    """The sizes of the numbers whose difference is a latent's variance: its variance given all sites so far.

    If a latent is a sum of states, the sizes of the numbers whose difference is that variance are added.
    """
    form, updates = chain.form, filtered.updates
    rows = form.observation(chain.weights)
    if filtered.columns is None:
        sizes = [updates[0].shrink * form.dot(rows[0], updates[0].column)]
    else:
        sizes = [form.dot(row, column) for row, column in zip(rows, filtered.columns, strict=True)]
    rounding = [update.rounding / ROUNDING for update in updates if update.rounding is not None]
    if not rounding:
        return sizes
    if steps.rotation is None:
        return [jnp.abs(sizes[0]) + rounding[0]]
    return [
        jnp.abs(size) + sum(share[j] ** 2 * error for share, error in zip(steps.rotation, rounding, strict=True))
        for j, size in enumerate(sizes)
    ]


def not_below_rounding(
    covariance: Float[Array, "T D D"], sizes: Float[Array, "T D"], errors: Any = 0.0
) -> tuple[Float[Array, "T D D"], Bool[Array, "T D"]]:
    """PSD covariances with variances raised to their rounding errors, and which of them were lost to rounding.

    Variances are differences of numbers of these `sizes`; `errors` are further bounds on their errors.
    """
    least = jnp.maximum(ROUNDING * jnp.abs(jax.lax.stop_gradient(sizes)), jax.lax.stop_gradient(errors))
    variances = jnp.diagonal(covariance, axis1=1, axis2=2)
    lost = variances < least
    raised = small.symmetrise(covariance) + jax.vmap(jnp.diag)(jnp.where(lost, least - variances, 0.0))
    return jax.vmap(small.small_covariance)(raised), lost
