"""Anderson acceleration: the last few points, and the extrapolation that is made of them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.gaussian import Sites, interpolate
from ...numerics.linalg import solve_few
from .base import Move, Outcome

_POINTS = 6
"""How many points are remembered, the present one included."""


_LARGEST_MEMORY = 2**23
"""Numbers that the acceleration may remember, 64 MB: for more rows it remembers fewer points, or does without."""


_SLOW = 0.3
"""Acceleration is worth a trial where a step leaves more than this fraction of the residual."""


class Acceleration(eqx.Module):
    """The last few points with their moves and residuals, from which Anderson's extrapolation is made."""

    points: Float[Array, "M V"]
    moves: Float[Array, "M V"]
    residuals: Float[Array, "M V"]
    filled: Any
    """How many entries can be used."""
    slot: Any
    """Where the next one goes: the oldest is overwritten, and nothing is moved."""
    next: Bool[Array, ""]
    """Whether the next trial is an accelerated one."""


def start(sites: Sites | None, wanted: bool) -> Acceleration:
    """An empty memory; one that can hold nothing if acceleration is not wanted, or would take too much space."""
    rows, latents = (0, 0) if sites is None else sites.linear.shape
    size = rows * (latents + latents**2)
    count = min(_POINTS, _LARGEST_MEMORY // (3 * size)) if wanted and size > 0 else 0
    count = count if count >= 3 else 0
    empty = jnp.zeros((count, size))
    zero = jnp.zeros((), dtype=int)
    return Acceleration(empty, empty, empty, zero, zero, jnp.zeros((), dtype=bool))


def trial(memory: Acceleration, size: Float[Array, ""], move: Move) -> tuple[Sites, Acceleration]:
    """The plain step (1 − ρ) site + ρ proposal, or the extrapolation where it is due; and the memory with the move."""
    plain = interpolate(move.sites, move.proposal, size)
    if memory.points.shape[0] == 0:
        return plain, memory
    vectors = _as_vectors(move)
    # What was remembered is written first and only then read, in a loop that runs once or not at all: in any other
    # order, or with `cond`, XLA copies all of it at every step.
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
    """Keep the point that an accepted step started from; forget everything after a refusal.

    Where the step left much of the residual, the next trial is an accelerated one.
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
    """The combination of remembered points whose linearised residual is smallest, one step further."""
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
    """A move's point, its direction and its residuals, each as one vector."""
    point = _flatten(move.sites)
    return point, _flatten(move.proposal) - point, jnp.ravel(move.residuals)


def _flatten(sites: Sites) -> Float[Array, " V"]:
    return jnp.concatenate([jnp.ravel(sites.linear), jnp.ravel(sites.precision)])


def _unflatten(vector: Float[Array, " V"], like: Sites) -> Sites:
    cut = like.linear.size
    return Sites(vector[:cut].reshape(like.linear.shape), vector[cut:].reshape(like.precision.shape))


def forget(memory: Acceleration, when: Bool[Array, ""]) -> Acceleration:
    """An empty memory where what was remembered no longer applies."""
    filled, due = jnp.where(when, 0, memory.filled), memory.next & ~when
    return Acceleration(memory.points, memory.moves, memory.residuals, filled, memory.slot, due)
