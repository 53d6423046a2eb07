"""Kernels over integer codes: one independent effect per level."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .base import Kernel, check_one_column, hyperparameter

LARGEST = 2.0**53
"""The largest code: larger integers are not all different as floating point numbers."""


class Category(Kernel):
    """One independent effect per level of a column of integer codes: k(a, b) = variance if a = b, else 0.

    Rows with the same code share their effect, new rows too; a code that the data do not have gets an effect of its
    own, with this variance. The covariance is that of `White` on one column, which takes any numbers: codes here must
    be whole numbers, so that a measurement is not taken for a group by mistake.

    >>> k = Category(0.5).on(1)
    >>> round(float(k.evaluate(jnp.array([0.3, 2.0]), jnp.array([0.7, 2.0]))), 4)
    0.5
    """

    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        return jnp.where(x1[0] == x2[0], self.variance, 0.0)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("Category", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are whole numbers."""
        check_codes("Category", x)


def check_codes(kernel: str, x: np.ndarray) -> None:
    """Raise ValueError, naming row and value, unless all inputs are whole numbers."""
    codes = x[:, 0]
    wrong = np.flatnonzero((codes != np.round(codes)) | (np.abs(codes) > LARGEST))
    if wrong.size:
        row = wrong[0]
        what = "of at most 2^53 in size" if codes[row] == np.round(codes[row]) else "such as 0, 1, 2"
        raise ValueError(
            f"{kernel} works on integer codes, but row {row} of its column is {codes[row]:.17g}: give whole numbers "
            f"{what}, as from `np.unique(labels, return_inverse=True)[1]`, or choose another column with `on(...)`"
        )
