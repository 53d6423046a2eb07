"""Trees of arrays, taken as one value."""

from typing import Any

import jax
import jax.numpy as jnp


def select(choice: Any, yes: Any, no: Any) -> Any:
    """One of two trees of arrays of equal shapes; `choice` is one truth value."""
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)
