"""Random walks over whole numbers: of a level, of a slope, and of a season."""

import itertools
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .base import Kernel, check_one_column, hyperparameter, whole_number
from .statespace import Block


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
        _check_steps(x)


def _check_steps(x: np.ndarray) -> None:
    wrong = np.flatnonzero((x[:, 0] < 0.0) | (x[:, 0] != np.round(x[:, 0])))
    if wrong.size:
        raise ValueError(
            f"a random walk is over whole steps from its start, but row {wrong[0]} is {x[wrong[0], 0]:g} steps after "
            "it: use equally spaced levels, or a Trend, which may have any"
        )


class SeasonalWalk(Kernel):
    """A season that changes from step to step, over 0, 1, 2, …: sums over a whole period have this variance.

    f(t) + f(t − 1) + … + f(t − period + 1) ~ N(0, variance), independent for all t > 0, from f = 0 up to 0. This is the
    dummy season of structural time series (Harvey, 1989) and R-INLA's model "seasonal". Its start is a pattern of
    `period` values that sum to zero: add it as effects of the season, `terms.Linear(terms.Factor("quarter",
    coding="sum"))`.

    >>> quarters = SeasonalWalk(period=4, variance=2.0)
    >>> [float(quarters.evaluate(jnp.full(1, 5.0), jnp.full(1, t))) for t in (4.0, 5.0, 6.0, 9.0)]
    [-2.0, 6.0, -4.0, 6.0]
    """

    period: int = whole_number("period", 12, lower=2, upper=1000)
    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        first, gap = jnp.minimum(x1[0], x2[0]), jnp.abs(x1[0] - x2[0])
        # A step moves f by 1, then by −1 at the next one, and so again after every period. With k the number of steps
        # since, k and k + gap are summed over k < first, where k must be 0 or 1 up to multiples of the period.
        size = self.period
        zeros, ones = jnp.floor((first + size - 1.0) / size), jnp.floor((first + size - 2.0) / size)
        return self.variance * (zeros * self._response(gap) - ones * self._response(gap + 1.0))

    def _response(self, steps):
        place = jnp.mod(steps, self.period)
        return jnp.where(place == 0.0, 1.0, jnp.where(place == 1.0, -1.0, 0.0))

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("SeasonalWalk", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are whole numbers from 0."""
        _check_steps(x)

    def blocks(self) -> tuple[Block, ...]:
        """The season now and in the steps before, period − 1 in all."""
        return (SeasonalWalkBlock(self.variance, self.period),)


class SeasonalWalkBlock(Block):
    """x = (f(t), f(t − 1), …, f(t − period + 2)): one step moves x by a matrix T with T^period = I."""

    variance: Any
    period: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.period - 1

    def covariance(self, time):
        return self.noise(0.0, time)

    def transition(self, start, end):
        return jnp.asarray(_powers(self.period))[_steps(start, end) % self.period]

    def noise(self, start, end):
        # Whole periods, and the rest of one.
        powers, steps = _powers(self.period), _steps(start, end)
        first = powers[:, :, 0]
        sums = np.cumsum(
            np.concatenate([np.zeros((1, *powers.shape[1:])), first[:, :, None] * first[:, None, :]]), axis=0
        )
        return self.variance * ((steps // self.period) * sums[-1] + jnp.asarray(sums)[steps % self.period])


def _powers(period: int) -> np.ndarray:
    """I, T, …, T^(period − 1)."""
    step = np.eye(period - 1, k=-1)
    step[0] = -1.0
    powers = itertools.accumulate([step] * (period - 1), np.matmul, initial=np.eye(period - 1))
    return np.stack(list(powers))


def _steps(start, end):
    """The number of whole steps between times."""
    return (jnp.floor(jnp.asarray(end)) - jnp.floor(jnp.asarray(start))).astype(int)
