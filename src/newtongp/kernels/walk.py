"""Random walks over whole numbers: the discrete counterparts of Brownian motion and its integral."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .base import Kernel, check_one_column, hyperparameter, whole_number


class Walk(Kernel):
    """A random walk over 0, 1, 2, …: independent steps of this variance, from zero at 0.

    With order 1 the steps change f, k(i, j) = variance · min(i, j). With order 2 they change its slope: second
    differences of f are independent, and f and its slope are zero at 0.

    >>> round(float(Walk(1, 2.0).evaluate(jnp.full(1, 3.0), jnp.full(1, 5.0))), 4)
    6.0
    """

    order: int = whole_number("order", 1, lower=1, upper=2)
    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        first, last = jnp.minimum(x1[0], x2[0]), jnp.maximum(x1[0], x2[0])
        if self.order == 1:
            return self.variance * first
        # Step m < first moves f by (i − m) at i: Σ (i − m)(j − m) over m = 1, …, first − 1.
        gap = last - first
        n = jnp.maximum(first - 1.0, 0.0)
        return self.variance * (n * (n + 1.0) * (2.0 * n + 1.0) / 6.0 + gap * n * (n + 1.0) / 2.0)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("Walk", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are whole numbers from 0."""
        wrong = np.flatnonzero((x[:, 0] < 0.0) | (x[:, 0] != np.round(x[:, 0])))
        if wrong.size:
            raise ValueError(
                f"a random walk is over whole steps from its start, but row {wrong[0]} is {x[wrong[0], 0]:g} steps "
                "after it: use equally spaced levels, or a Trend, which may have any"
            )
