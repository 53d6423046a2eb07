"""Periodic kernels."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from .base import Kernel, check_one_column, hyperparameter, whole_number
from .bessel import scaled_bessel
from .statespace import Block, ConstantBlock, OscillationBlock

MOST_HARMONICS = 1000
"""The largest number of harmonics. Each has two states, and a filter uses matrices of all states."""


class Periodic(Kernel):
    """Smooth functions that repeat exactly.

    k = variance · exp(−2 Σ_p sin²(π (x_p − x'_p)/period) / lengthscale²), summed over the columns of x. The lengthscale
    is relative to the period. For a pattern that changes slowly, multiply by a stationary kernel.

    The state space form (on one column) is the Fourier series of k, truncated after `harmonics` sinusoids; nothing else
    uses that number. The error is largest at distance zero, where it is `truncation_error()`. With ten harmonics it is
    1e-11 of the variance for lengthscale 1, 3e-6 for 0.5 and 9e-3 for 0.25. Five times 1 / lengthscale harmonics are
    enough for an error below 2e-5, if the lengthscale is at most 1.

    >>> k = Periodic(period=2.0)
    >>> round(float(k.evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.1353
    >>> round(float(k.evaluate(jnp.zeros(1), 2.0 * jnp.ones(1))), 4)
    1.0
    >>> print(f"{Periodic(lengthscale=0.5, harmonics=10).truncation_error():.0e}")
    3e-06
    """

    period: Any = hyperparameter("period", 1.0)
    lengthscale: Any = hyperparameter("lengthscale", 1.0)
    variance: Any = hyperparameter("variance", 1.0, unit="f2")
    harmonics: int = whole_number("harmonics", 10, lower=0, upper=MOST_HARMONICS)

    def evaluate(self, x1, x2):
        sines = jnp.sin(jnp.pi * (x1 - x2) / self.period) / self.lengthscale
        return self.variance * jnp.exp(-2.0 * jnp.sum(sines**2))

    def blocks(self) -> tuple[Block, ...]:
        """A level, and two states per harmonic: the kernel up to `truncation_error()`."""
        level, *variances = self.variance * self.fractions()
        return (
            ConstantBlock(level),
            *(OscillationBlock(variance, self.period, j) for j, variance in enumerate(variances, start=1)),
        )

    @in_double
    def truncation_error(self) -> float:
        """The largest difference between the covariance of the state space form and the kernel's, over all lags."""
        return float(self.variance * np.maximum(1.0 - np.sum(self.fractions()), 0.0))

    def fractions(self):
        """The shares of the level and the harmonics in the variance: exp(−z) (I₀, 2 I₁, …)(z), z = 1/lengthscale²."""
        weights = np.where(np.arange(self.harmonics + 1) == 0, 1.0, 2.0)
        return weights * scaled_bessel(self.harmonics + 1, 1.0 / self.lengthscale**2)


class Cosine(Kernel):
    """A sinusoid of random amplitude and phase, in one column: k = variance · cos(2π (x − x')/period).

    >>> round(float(Cosine(period=2.0).evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    -1.0
    """

    period: Any = hyperparameter("period", 1.0)
    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        # The cosine is even, so the signed difference can replace the distance, and is differentiable at 0.
        return self.variance * jnp.cos(2.0 * jnp.pi * (x1[0] - x2[0]) / self.period)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column: cos(r) is not a covariance in every dimension."""
        check_one_column("Cosine", dimension)

    def blocks(self) -> tuple[Block, ...]:
        """Two states: f, and f a quarter of a period later."""
        return (OscillationBlock(self.variance, self.period),)
