"""Prior densities of hyperparameters."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.small import LOG_2PI
from ..validation.numbers import parameter


class LogNormal(eqx.Module):
    """A prior for positive parameters: log value ~ N(log median, spread²).

    >>> round(float(LogNormal(2.0, 0.5)(2.0)), 4)
    -0.9189
    """

    median: Any = eqx.field(converter=lambda value: parameter(value, "median", lower=0.0, max_ndim=1))
    spread: Any = eqx.field(converter=lambda value: parameter(value, "spread", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """The log density, with respect to the value itself."""
        gap = (jnp.log(value) - jnp.log(self.median)) / self.spread
        return -0.5 * gap**2 - jnp.log(value * self.spread) - 0.5 * LOG_2PI

    def with_slope(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log density and its derivative, in NumPy."""
        gap = (np.log(value) - np.log(self.median)) / self.spread
        density = -0.5 * gap**2 - np.log(value * self.spread) - 0.5 * LOG_2PI
        return density, -(gap / self.spread + 1.0) / value


class Normal(eqx.Module):
    """A prior for real parameters: value ~ N(mean, deviation²).

    >>> round(float(Normal(0.0, 1.0)(0.0)), 4)
    -0.9189
    """

    mean: Any = eqx.field(converter=lambda value: parameter(value, "mean", max_ndim=1))
    deviation: Any = eqx.field(converter=lambda value: parameter(value, "deviation", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """The log density."""
        gap = (value - self.mean) / self.deviation
        return -0.5 * gap**2 - jnp.log(self.deviation) - 0.5 * LOG_2PI


class Gamma(eqx.Module):
    """A prior for positive parameters, with density ∝ value^(shape − 1) exp(−rate · value).

    >>> round(float(Gamma(1.0, 2.0)(0.0)), 4)
    0.6931
    """

    shape: Any = eqx.field(converter=lambda value: parameter(value, "shape", lower=0.0))
    rate: Any = eqx.field(converter=lambda value: parameter(value, "rate", lower=0.0))

    def __call__(self, value):
        """The log density."""
        powers = jax.scipy.special.xlogy(self.shape - 1.0, value)
        return powers - self.rate * value + self.shape * jnp.log(self.rate) - jax.scipy.special.gammaln(self.shape)


class Plausible(eqx.Module):
    """A weak prior: flat between two positive numbers, and decreasing with the logarithm outside.

    This is the default for parameters that data do not always determine, such as a lengthscale far larger than the
    range of x. `fit` drops it if the data determine the value: an optimum outside the range that has a curvature of its
    own is not moved.

    >>> bool(Plausible(0.1, 10.0)(1.0) == 0.0), round(float(Plausible(0.1, 1.0)(jnp.e)), 6)
    (True, -0.5)
    """

    lower: Any = eqx.field(converter=lambda value: parameter(value, "lower", lower=0.0, max_ndim=1))
    upper: Any = eqx.field(converter=lambda value: parameter(value, "upper", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """Zero inside; minus half the square of the log ratio to the nearest bound outside."""
        return -0.5 * self._log_ratio(value, jnp) ** 2

    def with_slope(self, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log density and its derivative, in NumPy."""
        beyond = self._log_ratio(value, np)
        return -0.5 * beyond**2, -beyond / value

    def _log_ratio(self, value, arrays):
        """The logarithm of the ratio to the nearest bound, positive above the range, negative below it."""
        return arrays.maximum(arrays.log(value / self.upper), 0.0) - arrays.maximum(arrays.log(self.lower / value), 0.0)
