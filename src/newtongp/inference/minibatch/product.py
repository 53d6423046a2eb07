"""What all batches share, batches on their devices, and what is known of their rows."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..._runtime.devices import spread
from ...inputs.chunks import Batch
from ...likelihoods.base import Likelihood, map_row_parameters
from ...methods.energy import Energy
from ...methods.rule import Method
from ...numerics.gaussian import Sites
from ...priors import weight_space
from ...priors.markov import MarkovGP
from ...priors.sparse import Projection, SparseGP
from ...priors.sparse_chain import ChainProjection, factors_of_rows
from .belief import Belief, ChainBelief, Product


class Shared(eqx.Module):
    """The constants of all batches."""

    prior: SparseGP | MarkovGP
    projection: Projection | ChainProjection
    method: Method

    @property
    def energy(self) -> Energy:
        """The energy of the method."""
        return added_energy(self.method)

    def belief(self, product: Product) -> Belief | ChainBelief:
        """The posterior of the inducing variables given t."""
        if isinstance(self.projection, ChainProjection):
            return ChainBelief.given(self.projection.chain, product)
        return Belief.given(product)

    def product_of(self, features: Any, prior_mean: Any, sites: Sites) -> Product:
        """The product of these rows' sites."""
        if isinstance(self.projection, ChainProjection):
            return Product(*factors_of_rows(features, sites, prior_mean, self.projection.size[0]))
        centred = sites.centred_linear(prior_mean)
        return Product(weight_space.transposed_times(features, centred), weight_space.gram(features, sites.precision))


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


def nothing(prior: SparseGP | MarkovGP, projection: Projection | ChainProjection) -> Product:
    """The product of no sites."""
    if isinstance(projection, ChainProjection):
        length, size = projection.size
        return Product(jnp.zeros((length, size)), jnp.zeros((length, size, size)))
    latents, size = prior.num_latents, projection.size
    return Product(jnp.zeros((latents, size)), jnp.zeros((latents * size, latents * size)))


def look_up(shared: Shared, rows: DeviceRows) -> tuple[Any, Any, Any]:
    """Features, Var e and the prior mean of a batch."""
    features, residual_covariance = shared.projection.at(shared.prior.kernel, rows.x)
    return features, residual_covariance, shared.prior.mean.means(rows.x)


def is_finite(tree: Any) -> Any:
    """Whether all numbers of a tree are finite."""
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])
