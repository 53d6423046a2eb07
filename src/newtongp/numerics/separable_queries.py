"""Queries of the posterior of a separable chain: states at any time, responses to linear terms, paths of the prior.

The posterior keeps one state before and one information after every segment of the chain; a query computes the
segments that it needs again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import small
from .separable import (
    Adjoint,
    SeparableChain,
    State,
    Step,
    absorb,
    blocks,
    congruence,
    cut,
    kronecker,
    moved,
    nothing_later,
    over_segments,
    predict,
    pulled_back,
    segment_starts,
    update,
)


class Ends(NamedTuple):
    """The states before the segments of a chain, and the information at the first step after each of them."""

    states: State
    adjoints: Adjoint


def ends_of(chain: SeparableChain, steps: Step, psd: bool) -> Ends:
    """What a query needs to compute single segments."""
    starts, _ = segment_starts(chain, steps, psd)

    def segment(adjoint, segment):
        state, steps = segment
        earlier, _ = run_segment(chain, state, adjoint, steps, psd)
        return jax.tree.map(lambda leaf: leaf[0], earlier), adjoint

    _, adjoints = jax.lax.scan(segment, nothing_later(chain), (starts, cut(steps, chain.segments)), reverse=True)
    return Ends(starts, adjoints)


def run_segment(chain: SeparableChain, state: State, later: Adjoint, steps: Step, psd: bool) -> tuple[Adjoint, State]:
    """For every step of a segment: the information in its sites and all later ones, and the filtered state."""

    def forward(state, step):
        state, found = update(chain, predict(chain, state, step), step, psd)
        return state, (state, found)

    def backward(adjoint, step):
        step, found = step
        adjoint, _ = absorb(chain, pulled_back(step, adjoint), step, found)
        return adjoint, adjoint

    _, (states, updates) = jax.lax.scan(forward, state, steps)
    _, adjoints = jax.lax.scan(backward, later, (steps, updates), reverse=True)
    return adjoints, states


class Between(NamedTuple):
    """The matrices around a time between two steps."""

    transition: Float[Array, "q q"]
    noise: Float[Array, "q q"]
    onward: Float[Array, "q q"]
    prior: Float[Array, "q q"]
    """The prior covariance there."""
    is_first: Any
    """Whether it is before the first step."""


def state_at(state: State, later: Adjoint, between: Between) -> State:
    """The posterior of the state at a time, from the filtered state before it and the information after it."""
    width = state.mean.shape[0] // between.noise.shape[0]
    ahead = congruence(between.transition, state.covariance) + kronecker(between.noise, width)
    covariance = jnp.where(between.is_first, kronecker(between.prior, width), ahead)
    mean = jnp.where(between.is_first, 0.0, moved(between.transition, state.mean))
    vector = moved(between.onward.T, later.vector)
    matrix = congruence(between.onward.T, later.matrix)
    return State(mean + covariance @ vector, small.symmetrise(covariance - covariance @ matrix @ covariance))


def predicted(chain: SeparableChain, steps: Step, psd: bool) -> tuple[Float[Array, "T R D"], Float[Array, "T R D D"]]:
    """Mean and covariance of every slot's latents given the sites of earlier steps."""

    def body(state, step):
        state = predict(chain, state, step)
        rows = chain.rows(step.places)
        slots = step.signs.shape
        mean = (rows @ state.mean[: chain.seen, 0]).reshape(slots)
        covariance = blocks(rows @ state.covariance[: chain.seen, : chain.seen] @ rows.T, slots[0])
        return update(chain, state, step, psd)[0], (mean, covariance)

    return over_segments(chain, body, chain.start(), steps)[0]


# Linear terms with several columns ----------------------------------------------------------------


class Points(NamedTuple):
    """Points at which a response is read: the points of every step, and what each sees of the observed numbers."""

    numbers: Any
    """(T, Q) numbers of points, K where there are none."""
    features: Float[Array, "K D BM"]

    def at(self, numbers: Any) -> Float[Array, "QD BM"]:
        """The features of some points; zero where there are none."""
        known = (numbers < self.features.shape[0])[:, None, None]
        chosen = jnp.where(known, self.features[jnp.minimum(numbers, self.features.shape[0] - 1)], 0.0)
        return chosen.reshape(-1, self.features.shape[2])


def respond(
    chain: SeparableChain, steps: Step, points: Points, psd: bool, push: Callable | None = None
) -> Float[Array, "K D C"]:
    """The posterior mean at points, for every column of the linear terms of the sites.

    `push(numbers)` returns further linear terms of the observed numbers (BM, C) at a step with these points, which must
    have no sites of its own.
    """
    steps = steps._replace(extra=points.numbers)

    def pushed(state, step):
        state = predict(chain, state, step)
        if push is None:
            return state
        return State(state.mean + state.covariance[:, : chain.seen] @ push(step.extra), state.covariance)

    def forward(state, step):
        state, found = update(chain, pushed(state, step), step, psd)
        return state, (state, found)

    def backward(carry, step):
        adjoint, total = carry
        step, (state, found) = step
        adjoint = pulled_back(step, adjoint)
        mean = state.mean[: chain.seen] + state.covariance[: chain.seen] @ adjoint.vector
        values = points.at(step.extra) @ mean
        total = total.at[step.extra].add(values.reshape(step.extra.shape[0], *total.shape[1:]), mode="drop")
        adjoint, _ = absorb(chain, adjoint, step, found)
        if push is not None:
            adjoint = adjoint._replace(vector=adjoint.vector.at[: chain.seen].add(push(step.extra)))
        return (adjoint, total), None

    columns = steps.linear.shape[3]
    _, starts = over_segments(chain, lambda state, step: (forward(state, step)[0], None), chain.start(columns), steps)

    def segment(carry, segment):
        state, steps = segment
        _, stored = jax.lax.scan(forward, state, steps)
        return jax.lax.scan(backward, carry, (steps, stored), reverse=True)

    total = jnp.zeros((points.features.shape[0], points.features.shape[1], columns))
    start = nothing_later(chain, columns), total
    (_, total), _ = jax.lax.scan(segment, start, (starts, cut(steps, chain.segments)), reverse=True)
    return total


def prior_paths(
    chain: SeparableChain, points: Points, key: Any, slots: int, draws: int
) -> tuple[Float[Array, "T R D C"], Float[Array, "K D C"]]:
    """Draws of f from the prior, as deviations from its mean: at all slots, and at points."""
    roots = jax.vmap(small.small_root)(chain.noise)
    keys = jax.random.split(key, chain.noise.shape[0] + 1)
    latents = chain.features.shape[1]

    def normal(key):
        return jax.random.normal(key, (chain.size, draws), dtype=chain.noise.dtype)

    def body(carry, step):
        path, total = carry
        transition, root, key, places, numbers = step
        path = moved(transition, path) + moved(root, normal(key))
        seen = path[: chain.seen]
        values = (points.at(numbers) @ seen).reshape(numbers.shape[0], latents, draws)
        total = total.at[numbers].add(values, mode="drop")
        return (path, total), (chain.rows(places) @ seen).reshape(slots, latents, draws)

    start = moved(small.small_root(chain.initial), normal(keys[0]))
    total = jnp.zeros((points.features.shape[0], latents, draws))
    steps = chain.transition, roots, keys[1:], chain.places, points.numbers
    (_, total), values = jax.lax.scan(body, (start, total), steps)
    return values, total
