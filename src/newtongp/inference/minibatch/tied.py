"""One batch where only the product of all sites is kept, and every row has an equal share of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..._runtime.devices import kept_everywhere
from ...likelihoods.base import over_rows
from ...methods.energy import Energy
from ...methods.rule import Method, expansion_around, propose
from ...numerics.gaussian import Gaussian, Sites
from .product import Belief, DeviceRows, Product, Shared, added_energy, look_up, product_of


class Tied(eqx.Module):
    """t(v), q(v), and q without a row's share of t, where a row is looked at or judged from there."""

    product: Product
    belief: Belief
    cavity: Belief

    @classmethod
    def given(cls, method: Method, product: Product, rows: Any) -> "Tied":
        belief, energy = Belief.given(product), added_energy(method)
        if energy.power is None:
            return cls(product, belief, belief)
        # tₙ = t^{1/N}: the cavity of every row is q / t^{α/N}.
        return cls(product, belief, Belief.given(product.times(1.0 - energy.power / rows)))

    def cavities(self, marginals: Gaussian, prior_mean: Any, features: Any, energy: Energy) -> Gaussian:
        """The marginals of some rows without their shares, where the energy asks for them."""
        return self.cavity.marginals(prior_mean, features) if energy.uses_cavities else marginals


tied_given = jax.jit(Tied.given)


@jax.jit
def proposals(shared: Shared, rows: DeviceRows, tied: Tied) -> tuple[Product, Float[Array, ""]]:
    """The product of a batch's proposed sites, and its share of the energy."""
    method, energy = shared.method, shared.energy
    features, residual_covariance, prior_mean = look_up(shared, rows)
    marginals = tied.belief.marginals(prior_mean, features)
    without = tied.cavities(marginals, prior_mean, features, energy)
    points = without if method.target.power > 0.0 else marginals
    no_sites = Sites(jnp.zeros_like(marginals.mean), jnp.zeros_like(marginals.covariance))

    def row(likelihood, y, observed, marginal, cavity, point, residual_covariance, site):
        expansion = expansion_around(method, likelihood, y, observed, marginal, point, residual_covariance)
        proposal, _ = propose(method, expansion, observed, site, None, jnp.ones(()))
        share = energy.tied_row(likelihood, y, marginal, cavity, method.cubature, residual_covariance)
        return proposal, jnp.where(observed, share, 0.0)

    proposed, energies = over_rows(
        row, rows.likelihood, (rows.y, rows.observed, marginals, without, points, residual_covariance, no_sites)
    )
    return kept_everywhere((product_of(features, prior_mean, proposed), jnp.sum(energies)), rows.mesh)


@jax.jit
def holding(shared: Shared, rows: DeviceRows) -> tuple[Product, Sites]:
    """Sites of precision 1 at the prior mean of a batch, and their product."""
    features, _, prior_mean = look_up(shared, rows)
    seen = jnp.asarray(rows.observed, dtype=prior_mean.dtype)
    sites = Sites(seen[:, None] * prior_mean, seen[:, None, None] * jnp.eye(prior_mean.shape[1])[None])
    return kept_everywhere((product_of(features, prior_mean, sites), sites), rows.mesh)


@jax.jit
def global_energy(method: Method, tied: Tied) -> Float[Array, ""]:
    """What t(v) adds to the rows' energies."""

    def log_integrals(share):
        return log_integral(tied.product, 1.0), log_integral(tied.product, 1.0 - share)

    return added_energy(method).tied_factor(tied.belief, log_integrals)


def log_integral(product: Product, share: Any) -> Float[Array, ""]:
    """log ∫ N(v | 0, I) t(v)^share."""
    part = product.times(share)
    belief = Belief.given(part)
    return 0.5 * (jnp.sum(part.linear * belief.mean) - belief.log_det)


@jax.jit
def distance_to(tied: Tied, proposal: Product) -> Float[Array, ""]:
    """How far t is from the proposal, in posterior standard deviations of v and relative changes of its precision."""
    half = tied.belief.half.reshape(tied.belief.half.shape[0], -1)
    gap = proposal.precision - tied.product.precision
    move = (proposal.linear - tied.product.linear).reshape(-1) - gap @ tied.belief.mean.reshape(-1)
    return jnp.maximum(jnp.max(jnp.abs(half @ move)), jnp.max(jnp.abs(half @ gap @ half.T)))


@jax.jit
def towards(product: Product, proposal: Product, step_size: Any) -> Product:
    """A part of the way from one product to another."""
    return product.times(1.0 - step_size) + proposal.times(step_size)
