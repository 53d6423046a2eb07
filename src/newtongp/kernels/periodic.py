"""Kernels that repeat."""

from typing import Any

import jax.numpy as jnp

from .base import Kernel, hyperparameter


class Periodic(Kernel):
    """Smooth functions that repeat exactly.

    k = variance · exp(−2 Σ_p sin²(π (x_p − x'_p)/period) / lengthscale²), summed over the columns of x.
    The lengthscale is relative to the period. For a pattern that changes slowly, multiply by a
    stationary kernel.

    >>> k = Periodic(period=2.0)
    >>> round(float(k.evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.1353
    >>> round(float(k.evaluate(jnp.zeros(1), 2.0 * jnp.ones(1))), 4)
    1.0
    """

    period: Any = hyperparameter("period", 1.0)
    lengthscale: Any = hyperparameter("lengthscale", 1.0)
    variance: Any = hyperparameter("variance", 1.0)

    def evaluate(self, x1, x2):
        """k(x1, x2) for one pair of inputs."""
        sines = jnp.sin(jnp.pi * (x1 - x2) / self.period) / self.lengthscale
        return self.variance * jnp.exp(-2.0 * jnp.sum(sines**2))


class Cosine(Kernel):
    """A sinusoid of random amplitude and phase, in one column: k = variance · cos(2π (x − x')/period).

    >>> round(float(Cosine(period=2.0).evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    -1.0
    """

    period: Any = hyperparameter("period", 1.0)
    variance: Any = hyperparameter("variance", 1.0)

    def evaluate(self, x1, x2):
        """k(x1, x2) for one pair of inputs."""
        # The cosine is even, so the signed difference serves as the distance and has a derivative at 0.
        return self.variance * jnp.cos(2.0 * jnp.pi * (x1[0] - x2[0]) / self.period)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column: cos(r) is not a covariance in every dimension."""
        if dimension != 1:
            raise ValueError(
                f"Cosine works on one column of x, but x has {dimension}: choose one, as in `Cosine(...).on(0)`"
            )
