"""Penalised complexity priors (Simpson et al., 2017): the distance from a simpler model has an exponential density.

The distance is √(2 KLD) from the simpler model, in which an effect is absent. The rate follows from one statement about
the size of the parameter. All of these are densities of the distance. `fit` maximises them as such, so that the optimum
does not depend on whether a standard deviation or a variance is learned. (As a density of the variance the prior is
infinite at 0, and as a density of a share at 1: it would hold the optimum there.)
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..validation.numbers import parameter


def _probability() -> Any:
    return eqx.field(converter=lambda value: parameter(value, "probability", lower=0.0, upper=1.0))


class PenalisedComplexity(eqx.Module):
    """A prior with density rate · exp(−rate · d) of the distance d from the simpler model."""

    @abc.abstractmethod
    def distance(self, value) -> Any:
        """The distance d of the model with this value from the simpler one, up to a constant factor."""

    @abc.abstractmethod
    def rate(self) -> Any:
        """The rate of the exponential density."""

    def __call__(self, value):
        """The log density, with respect to the distance."""
        return jnp.log(self.rate()) - self.rate() * self.distance(value)

    def log_density(self, value):
        """The log density with respect to the value itself, for integrals over it."""
        slopes = jax.grad(lambda values: jnp.sum(self.distance(values)))(jnp.asarray(value, jnp.result_type(float)))
        return self(value) + jnp.log(jnp.abs(slopes))


class PCStandardDeviation(PenalisedComplexity):
    """A prior for standard deviations and scales: P(value > bound) = probability.

    The simpler model has the standard deviation 0. R-INLA calls it `pc.prec`, with bound = u and probability = alpha.

    >>> round(float(PCStandardDeviation(1.0, 0.01)(0.0)), 4) == round(float(jnp.log(-jnp.log(0.01))), 4)
    True
    """

    bound: Any = eqx.field(converter=lambda value: parameter(value, "bound", lower=0.0))
    probability: Any = _probability()

    def distance(self, value):
        """The standard deviation."""
        return value

    def rate(self):
        """−log(probability) / bound."""
        return -jnp.log(self.probability) / self.bound


class PCVariance(PenalisedComplexity):
    """The same prior for variances, stated for their square root: P(√value > bound) = probability.

    >>> bool(PCVariance(1.0, 0.01)(4.0) == PCStandardDeviation(1.0, 0.01)(2.0))
    True
    """

    bound: Any = eqx.field(converter=lambda value: parameter(value, "bound", lower=0.0))
    probability: Any = _probability()

    def distance(self, value):
        """The standard deviation."""
        return jnp.sqrt(value)

    def rate(self):
        """−log(probability) / bound."""
        return -jnp.log(self.probability) / self.bound


class PCMixing(PenalisedComplexity):
    """A prior for the share phi of a structured effect with covariance Σ: P(phi < bound) = probability.

    The covariance is (1 − phi) I + phi Σ, as in `kernels.Graph(..., kind="bym2")`, whose `phi_prior` creates this
    prior. The simpler model is phi = 0. With the eigenvalues γ of Σ, d(phi)² = Σᵢ zᵢ − log(1 + zᵢ), zᵢ = phi (γᵢ − 1)
    (Riebler et al., 2016). R-INLA calls it `pc`, with bound = u and probability = alpha.

    >>> prior = PCMixing([0.0, 0.5, 2.5], 0.5, 2 / 3)
    >>> round(float(1.0 - jnp.exp(-prior.rate() * prior.distance(0.5))), 4)
    0.6667
    """

    eigenvalues: Any = eqx.field(
        converter=lambda value: parameter(value, "eigenvalues", lower=0.0, strict=False, max_ndim=1)
    )
    bound: Any = eqx.field(converter=lambda value: parameter(value, "bound", lower=0.0, upper=1.0))
    probability: Any = _probability()

    def __check_init__(self):
        if isinstance(self.eigenvalues, Tracer):
            return
        if np.min(self.eigenvalues) > 0.0:
            raise ValueError(
                "eigenvalues must contain 0, as those of effects with a sum of zero do: otherwise phi = 1 is at a "
                "finite distance, and the exponential density does not integrate to 1"
            )

    def distance(self, value):
        """√Σᵢ (zᵢ − log(1 + zᵢ)), zᵢ = phi (γᵢ − 1)."""
        shape = (1,) * jnp.ndim(value) + (-1,)
        z = jnp.asarray(value)[..., None] * (jnp.reshape(self.eigenvalues, shape) - 1.0)
        return jnp.sqrt(jnp.sum(_log_excess(z), axis=-1))

    def rate(self):
        """−log(1 − probability) / d(bound)."""
        return -jnp.log1p(-self.probability) / self.distance(self.bound)


def _log_excess(z):
    """z − log(1 + z), without cancellation for small z."""
    small = jnp.abs(z) < 0.01
    near, far = jnp.where(small, z, 0.0), jnp.where(small, 0.5, z)
    series = jnp.zeros_like(near)
    for power in range(9, 1, -1):
        series = (1.0 / power if power % 2 == 0 else -1.0 / power) + near * series
    return jnp.where(small, near**2 * series, far - jnp.log1p(far))
