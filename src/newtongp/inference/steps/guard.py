"""When proposals leave out negative curvature, and for how long."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Guard(eqx.Module):
    """Whether negative curvature is left out at present, and for how long."""

    on: Bool[Array, ""]
    left: Any
    """Accepted steps until the other way is tried again."""
    pause: Any
    """How many of them there will be next time with the guard on."""


_GUARD_BELOW = 0.2
"""Steps shorter than this suggest that negative curvature is not useful here."""


_UNGUARD_BELOW = 0.01


_PAUSE, _LONGEST_PAUSE = 5, 40


def advance(
    guard: Guard, accept: Bool[Array, ""], refused: Bool[Array, ""], size: Float[Array, ""]
) -> tuple[Guard, Float[Array, ""], Bool[Array, ""]]:
    """The guard after a trial, the ρ to go on with, and whether the guard has changed.

    `size` is what ρ would be without it.
    """
    left = jnp.where(accept, jnp.maximum(guard.left - 1, 0), guard.left)
    put_on = refused & ~guard.on & (left == 0) & (size < _GUARD_BELOW)
    useless = refused & guard.on & (size < _UNGUARD_BELOW)
    take_off = accept & guard.on & (left == 0)
    helped = accept & ~guard.on & (size >= 1.0)
    on = jnp.where(put_on, True, jnp.where(useless | take_off, False, guard.on))
    size = jnp.where(put_on | take_off, 1.0, jnp.where(useless, 0.5 * _GUARD_BELOW, size))
    pause = jnp.where(take_off, jnp.minimum(2 * guard.pause, _LONGEST_PAUSE), jnp.where(helped, _PAUSE, guard.pause))
    left = jnp.where(put_on, guard.pause, jnp.where(useless, _PAUSE, left))
    return Guard(on, left, pause), size, put_on | useless | take_off


def start() -> Guard:
    """Negative curvature is allowed at first."""
    return Guard(jnp.zeros((), dtype=bool), jnp.zeros((), dtype=int), jnp.asarray(_PAUSE))
