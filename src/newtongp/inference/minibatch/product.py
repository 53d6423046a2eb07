"""The product of all sites as a function of the inducing variables, the posterior it gives, and marginals of rows."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._runtime.devices import spread
from ...inputs.chunks import Batch
from ...likelihoods.base import Likelihood, map_row_parameters
from ...methods.energy import Energy
from ...methods.rule import Method
from ...numerics.gaussian import Gaussian, Sites
from ...priors import weight_space
from ...priors.sparse import Projection, SparseGP


class Shared(eqx.Module):
    """The constants of all batches."""

    prior: SparseGP
    projection: Projection
    method: Method

    @property
    def energy(self) -> Energy:
        """The energy of the method."""
        return added_energy(self.method)


def added_energy(method: Method) -> Energy:
    """The energy that batches sum, of a method that has passed `check_batches`."""
    energy = method.energy
    assert energy is not None
    return energy


class DeviceRows(eqx.Module):
    """A batch on its devices."""

    index: Any
    x: Any
    y: Any
    observed: Any
    likelihood: Likelihood
    count: Any
    mesh: Any = eqx.field(static=True)
    """The devices that share the rows; None if there is only one."""


def on_devices(batch: Batch, whole: Likelihood, mesh: Any) -> DeviceRows:
    """A batch, with its rows distributed over the devices."""
    data = batch.data
    likelihood = map_row_parameters(lambda values: spread(values, mesh), batch.likelihood(whole))
    index, x, y, observed = (spread(array, mesh) for array in (batch.index, data.x, data.y, data.observed))
    return DeviceRows(index, x, y, observed, likelihood, batch.count, mesh)


class Product(eqx.Module):
    """The product of all sites as a function of v, exp(λᵀv − ½ vᵀΛv): `linear` (D, M), `precision` (D·M, D·M)."""

    linear: Float[Array, "D M"]
    precision: Float[Array, "DM DM"]

    def __add__(self, other: "Product") -> "Product":
        return Product(self.linear + other.linear, self.precision + other.precision)

    def times(self, factor: Any) -> "Product":
        """To the power of `factor`."""
        return Product(factor * self.linear, factor * self.precision)


def nothing(prior: SparseGP, projection: Projection) -> Product:
    """The product of no sites."""
    latents, size = prior.num_latents, projection.size
    return Product(jnp.zeros((latents, size)), jnp.zeros((latents * size, latents * size)))


class Belief(eqx.Module):
    """q(v) ∝ N(0, I) t(v): its mean (D, M) and the half of its covariance (D·M, D, M)."""

    mean: Float[Array, "D M"]
    half: Float[Array, "DM D M"]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    @classmethod
    def given(cls, product: Product) -> "Belief":
        factor = weight_space.factor_of_gram(product.precision)
        mean = factor.inverse.T @ (factor.inverse @ product.linear.reshape(-1))
        half = factor.inverse.reshape(-1, *product.linear.shape)
        return cls(mean.reshape(product.linear.shape), half, factor.log_det, factor.proper)

    def marginals(self, prior_mean: Float[Array, "B D"], features: Float[Array, "D B M"]) -> Gaussian:
        """The marginals of g at some rows."""
        mean = prior_mean + weight_space.times(features, self.mean)
        return Gaussian(mean, weight_space.covariances(self.half, features, triangular=True))

    @property
    def distance(self) -> Float[Array, ""]:
        return jnp.sum(self.mean**2)


def look_up(shared: Shared, rows: DeviceRows) -> tuple[Any, Any, Any]:
    """Features, Var e and the prior mean of a batch."""
    features, residual_covariance = shared.projection.at(shared.prior.kernel, rows.x)
    return features, residual_covariance, shared.prior.mean.means(rows.x)


def product_of(features: Any, prior_mean: Any, sites: Sites) -> Product:
    """The product of these rows' sites."""
    centred = sites.centred_linear(prior_mean)
    return Product(weight_space.transposed_times(features, centred), weight_space.gram(features, sites.precision))


def is_finite(tree: Any) -> Any:
    """Whether all numbers of a tree are finite."""
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])
