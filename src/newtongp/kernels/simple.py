"""Kernels that do not depend on a distance: linear, white."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .base import Kernel, check_length, hyperparameter, one_column
from .statespace import Block, LinearBlock, WhiteBlock


class Linear(Kernel):
    """Linear functions that are zero at the centre: k = Σ_p variance_p (x_p − centre_p)(x'_p − centre_p).

    Add a `Constant` for an unknown level at the centre.

    >>> round(float(Linear(variance=2.0, centre=1.0).evaluate(jnp.zeros(1), 3.0 * jnp.ones(1))), 4)
    -4.0
    """

    variance: Any = hyperparameter("variance", 1.0, max_ndim=1, unit="f2/x2")
    centre: Any = hyperparameter("centre", 0.0, lower=-np.inf, max_ndim=1, learned_by_default=False)

    def evaluate(self, x1, x2):
        return jnp.sum(self.variance * (x1 - self.centre) * (x2 - self.centre))

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless variance and centre have one value, or one per column."""
        check_length(self.variance, "variance", dimension)
        check_length(self.centre, "centre", dimension)

    def blocks(self) -> tuple[Block, ...]:
        """Two states, f and its slope."""
        return (LinearBlock(one_column(self.variance, "variance"), one_column(self.centre, "centre")),)


class White(Kernel):
    """Independent values at distinct inputs: k = variance if x = x' in every column, else 0.

    It is part of the latent function, not measurement noise: equal inputs share one value. `White().on(2)` is a random
    effect: rows with the same number in column 2 share one value, and values of different numbers are independent.

    >>> round(float(White(0.5).evaluate(jnp.zeros(2), jnp.zeros(2))), 4)
    0.5
    >>> round(float(White(0.5).evaluate(jnp.zeros(2), jnp.array([0.0, 1.0]))), 4)
    0.0
    """

    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        return jnp.where(jnp.all(x1 == x2), self.variance, 0.0)

    def blocks(self) -> tuple[Block, ...]:
        """One state, which is independent at every new time."""
        return (WhiteBlock(self.variance),)
