"""How well the data determine what was learned: standard errors from the curvature of the energy."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..linalg import eigen_given
from ..parameters import Slot, values_of
from ..precision import in_double
from .space import Space

_MOST_CURVATURES = 40
_DIFFERENCE = 1e-3


def curvature(
    evaluate: Callable[[np.ndarray], tuple[float, np.ndarray]], free: np.ndarray, units: np.ndarray
) -> np.ndarray | None:
    """The second derivatives of the energy in the free numbers, from differences of gradients; None for many."""
    size = free.shape[0]
    if size == 0 or size > _MOST_CURVATURES:
        return None
    rows = []
    for move in np.diag(_DIFFERENCE * units):
        (above, up), (below, down) = evaluate(free + move), evaluate(free - move)
        if not (np.isfinite(above) and np.isfinite(below)):
            return None
        rows.append((up - down) / (2.0 * np.max(move)))
    matrix = np.stack(rows)
    return 0.5 * (matrix + matrix.T)


def standard_errors(space: Space, free: np.ndarray, curvature: np.ndarray | None) -> dict[str, np.ndarray]:
    """Of every value, by the curvature of the energy; infinite where it has none."""
    if curvature is None or not np.all(np.isfinite(curvature)):
        return {}
    sizes, directions = eigen_given(curvature)
    flat = sizes <= 1e-6 * max(1.0, float(np.max(sizes)))
    spread = directions * np.where(flat, 0.0, 1.0 / np.sqrt(np.where(flat, 1.0, sizes)))
    loose = np.sum(directions[:, flat] ** 2, axis=1) > 1e-6
    slopes = in_double(_slopes)(space.slots, free)
    found, begin = {}, 0
    for slot, of_all in zip(space.slots, slopes, strict=True):
        part = slice(begin, begin + slot.size)
        slope = np.asarray(of_all)[:, part]
        error = np.sqrt(np.sum((slope @ spread[part]) ** 2, axis=1))
        undetermined = np.any((slope != 0.0) & loose[part][None, :], axis=1)
        found[slot.name] = np.where(undetermined, np.inf, error).reshape(slot.shape)
        begin += slot.size
    return found


@functools.partial(jax.jit, static_argnums=0)
def _slopes(slots: tuple[Slot, ...], free: Any) -> list[Any]:
    """The derivatives of every slot's value, flat, in the free numbers."""
    return jax.jacfwd(lambda f: [jnp.ravel(value) for value in values_of(slots, f)])(free)
