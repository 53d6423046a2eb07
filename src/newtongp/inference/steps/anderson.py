"""Anderson acceleration: extrapolation from the last few points."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.gaussian import Sites, interpolate
from ...numerics.linalg import solve_few
from .base import Move, Outcome

_POINTS = 6
"""The number of stored points, including the current one."""

_LARGEST_MEMORY = 2**23
"""The largest number of stored floats (64 MB). With more rows, fewer points are stored, or there is no acceleration."""

_SLOW = 0.3
"""Acceleration is tried if a step leaves more than this fraction of the residual."""


class Acceleration(eqx.Module):
    """The last few points with their moves and residuals."""

    points: Float[Array, "M V"]
    moves: Float[Array, "M V"]
    residuals: Float[Array, "M V"]
    filled: Any
    """The number of usable entries."""
    slot: Any
    """The index of the next entry, which overwrites the oldest."""
    next: Bool[Array, ""]
    """Whether the next trial is accelerated."""


def start(sites: Sites | None, wanted: bool) -> Acceleration:
    """An empty memory, of size zero if acceleration is not `wanted` or would take too much space."""
    rows, latents = (0, 0) if sites is None else sites.linear.shape
    size = rows * (latents + latents**2)
    count = min(_POINTS, _LARGEST_MEMORY // (3 * size)) if wanted and size > 0 else 0
    count = count if count >= 3 else 0
    empty = jnp.zeros((count, size))
    zero = jnp.zeros((), dtype=int)
    return Acceleration(empty, empty, empty, zero, zero, jnp.zeros((), dtype=bool))


def trial(memory: Acceleration, size: Float[Array, ""], move: Move) -> tuple[Sites, Acceleration]:
    """The plain step (1 − ρ) site + ρ proposal, or the extrapolation if it is due; and the memory with the move."""
    plain = interpolate(move.sites, move.proposal, size)
    if memory.points.shape[0] == 0:
        return plain, memory
    vectors = _as_vectors(move)
    # The memory is first written and then read, in a loop that runs once or not at all. In any other order, or with
    # `cond`, XLA copies all of it in every step.
    written = tuple(
        jax.lax.dynamic_update_index_in_dim(old, new, memory.slot, 0)
        for old, new in zip(_arrays(memory), vectors, strict=True)
    )
    memory = eqx.tree_at(_arrays, memory, written)

    def extrapolate(_):
        return _unflatten(_anderson(memory, size, *vectors), move.sites), jnp.zeros((), dtype=bool)

    sites, _ = jax.lax.while_loop(lambda carry: carry[1], extrapolate, (plain, memory.next))
    return sites, memory


def remember(memory: Acceleration, accept: Bool[Array, ""], before: Outcome, after: Outcome) -> Acceleration:
    """Keep the point from which an accepted step started; forget all points after a rejection.

    If the step left much of the residual, the next trial is accelerated.
    """
    count = memory.points.shape[0]
    if count == 0:
        return memory
    filled = jnp.where(accept, jnp.minimum(memory.filled + 1, count - 1), 0)
    return Acceleration(
        memory.points,
        memory.moves,
        memory.residuals,
        filled,
        (memory.slot + 1) % count,
        accept & (after.residual > _SLOW * before.residual) & (filled >= 2),
    )


def _arrays(memory: Any) -> Any:
    return memory.points, memory.moves, memory.residuals


def _anderson(memory: Acceleration, size, point, move, residual) -> Float[Array, " V"]:
    """The combination of stored points with the smallest linearised residual, one step further."""
    count = memory.points.shape[0]
    age = (memory.slot - jnp.arange(count)) % count
    usable = ((age >= 1) & (age <= memory.filled))[:, None]
    residuals = jnp.where(usable, residual[None, :] - memory.residuals, 0.0)
    points = jnp.where(usable, point[None, :] - memory.points, 0.0)
    moves = jnp.where(usable, move[None, :] - memory.moves, 0.0)
    normal = residuals @ residuals.T
    ridge = 1e-12 * jnp.trace(normal) + jnp.where(usable[:, 0], 1e-300, 1.0)
    mix = solve_few(normal + jnp.diag(ridge), residuals @ residual)
    return point + size * move - mix @ (points + size * moves)


def _as_vectors(move: Move) -> tuple[Array, Array, Array]:
    """A move's point, direction and residuals, each as one vector."""
    point = _flatten(move.sites)
    return point, _flatten(move.proposal) - point, jnp.ravel(move.residuals)


def _flatten(sites: Sites) -> Float[Array, " V"]:
    return jnp.concatenate([jnp.ravel(sites.linear), jnp.ravel(sites.precision)])


def _unflatten(vector: Float[Array, " V"], like: Sites) -> Sites:
    cut = like.linear.size
    return Sites(vector[:cut].reshape(like.linear.shape), vector[cut:].reshape(like.precision.shape))


def forget(memory: Acceleration, when: Bool[Array, ""]) -> Acceleration:
    """The memory, emptied if the stored points no longer apply."""
    filled, due = jnp.where(when, 0, memory.filled), memory.next & ~when
    return Acceleration(memory.points, memory.moves, memory.residuals, filled, memory.slot, due)
