"""The guard: when proposals leave out negative curvature, and for how long."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Guard(eqx.Module):
    """Whether negative curvature is currently left out, and for how long."""

    on: Bool[Array, ""]
    remaining: Any
    """Accepted steps until the guard may change again."""
    pause: Any
    """The value of `remaining` when the guard is next switched on."""


_GUARD_BELOW = 0.2
"""Steps shorter than this suggest that negative curvature is not useful here."""
_UNGUARD_BELOW = 0.01
_PAUSE, _LONGEST_PAUSE = 5, 40


def advance(
    guard: Guard, accept: Bool[Array, ""], refused: Bool[Array, ""], size: Float[Array, ""]
) -> tuple[Guard, Float[Array, ""], Bool[Array, ""]]:
    """The guard after a trial, the next ρ (`size` would be it without a guard), and whether the guard has changed."""
    remaining = jnp.where(accept, jnp.maximum(guard.remaining - 1, 0), guard.remaining)
    put_on = refused & ~guard.on & (remaining == 0) & (size < _GUARD_BELOW)
    useless = refused & guard.on & (size < _UNGUARD_BELOW)
    take_off = accept & guard.on & (remaining == 0)
    helped = accept & ~guard.on & (size >= 1.0)
    on = jnp.where(put_on, True, jnp.where(useless | take_off, False, guard.on))
    size = jnp.where(put_on | take_off, 1.0, jnp.where(useless, 0.5 * _GUARD_BELOW, size))
    pause = jnp.where(take_off, jnp.minimum(2 * guard.pause, _LONGEST_PAUSE), jnp.where(helped, _PAUSE, guard.pause))
    remaining = jnp.where(put_on, guard.pause, jnp.where(useless, _PAUSE, remaining))
    return Guard(on, remaining, pause), size, put_on | useless | take_off


def start() -> Guard:
    """The initial guard, which allows negative curvature."""
    return Guard(jnp.zeros((), dtype=bool), jnp.zeros((), dtype=int), jnp.asarray(_PAUSE))
