"""Trees of arrays as single values."""

from typing import Any

import jax
import jax.numpy as jnp


def select(choice: Any, yes: Any, no: Any) -> Any:
    """`yes` if `choice`, a scalar, is true, else `no`: trees of arrays of equal shapes."""
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)
