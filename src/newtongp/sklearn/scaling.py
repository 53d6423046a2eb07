"""Columns in units of their standard deviations, and back."""

from typing import Any, NamedTuple

import numpy as np


class Scaling(NamedTuple):
    """(values − shift)/scale, column by column.

    >>> scaling = Scaling.of(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> scaling.apply(np.array([[3.0, 6.0]])).tolist()
    [[1.0, 1.0]]
    """

    shift: Any
    scale: Any

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None = None) -> "Scaling":
        """The scaling to mean 0 and variance 1; a constant column is only shifted.

        A row with weight 2 counts as two rows.
        """
        shift = np.average(values, axis=0, weights=weights)
        # Divided by the largest deviation first: squares of tiny or huge deviations would not be numbers.
        deviations = values - shift
        largest = np.max(np.abs(deviations), axis=0)
        usable = largest > _ROUNDING * np.maximum(np.max(np.abs(values), axis=0), np.finfo(float).tiny)
        largest = np.where(usable, largest, 1.0)
        scale = largest * np.sqrt(np.average((deviations / largest) ** 2, axis=0, weights=weights))
        return cls(shift, np.where(usable, scale, 1.0))

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Values in the scaled units."""
        return (values - self.shift) / self.scale

    def undo(self, values: np.ndarray) -> np.ndarray:
        """Values in the original units."""
        return self.shift + self.scale * values


_ROUNDING = 1e-14
"""Deviations that are smaller, relative to the values, are rounding: the column is constant."""

UNCHANGED = Scaling(0.0, 1.0)
