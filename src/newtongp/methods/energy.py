"""Each method's approximation of −log p(y), from sums over rows and the prior's log normaliser.

The VFE `eq:vfe`, the Laplace energy `eq:laplace-energy` and the power EP energy `eq:pep-energy` all have the part
Σ log tₙ(mₙ) − log ∫ p ∏ tₙ = ½ (m − μ)ᵀK⁻¹(m − μ) + ½ log det(I + ΛK), which is the prior's to give, without any
site normaliser and without cancellation. What is left for each row is here.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..likelihoods.base import Likelihood, row_log_prob
from ..numerics.cubature import Cubature
from ..numerics.gaussian import Gaussian, Sites, add_covariance, cavity, relative_log_expected_site_power
from .expectation import expected_log_density, log_expected_density


class RowEnergy(NamedTuple):
    """One row's share of the energy, and whether the cavity it may need is proper."""

    value: Float[Array, "*rows"]
    proper: Bool[Array, "*rows"]


def row_energy(
    kind: str,
    power: float,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    marginal: Gaussian,
    site: Sites,
    cubature: Cubature | None,
    residual_covariance: Float[Array, "D D"] | None = None,
    known: Float[Array, ""] | None = None,
) -> RowEnergy:
    """One row's share of the energy of this kind ("vfe", "laplace" or "pep").

    `known` is what the likelihood adds to it, E_q[log p], log p(y | m) or (1/α) log E_cav[p^α], if that has already
    been computed. With `residual_covariance`, the covariance of e, the site and the marginal are those of g, and y
    depends on f = g + e (`eq:sparse-vfe`): expectations of the likelihood are over f, all else is about g.
    """
    always = jnp.ones((), dtype=bool)
    if kind == "vfe":
        if known is None:
            known = expected_log_density(likelihood, y, add_covariance(marginal, residual_covariance), cubature).value
        return RowEnergy(share_of_divergence(marginal, site) - known, always)
    if kind == "laplace":
        return RowEnergy(-row_log_prob(likelihood, y, marginal.mean) if known is None else -known, always)
    without = cavity(marginal, site, power)
    if known is None:
        known = (
            log_expected_density(likelihood, y, add_covariance(without.gaussian, residual_covariance), cubature, power)
            / power
        )
    return RowEnergy(relative_log_expected_site_power(without, marginal, site, power) - known, without.proper)


def share_of_divergence(marginal: Gaussian, site: Sites) -> Float[Array, ""]:
    """−½ tr(ΛC), one row's share of KL[q‖p]: the sum over rows and the prior's part of the energy make up the rest."""
    return -0.5 * jnp.sum(site.precision * marginal.covariance)


def tied_row_energy(
    kind: str | None,
    power: float,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    marginal: Gaussian,
    cavity: Gaussian,
    cubature: Cubature | None,
    residual_covariance: Float[Array, "D D"] | None = None,
) -> Float[Array, ""]:
    """One row's share of the energy where rows have no sites of their own, but share one factor.

    `cavity` is the marginal without the row's share of it. What the factor adds is not the rows' (`eq:sparse-vfe`,
    `eq:sparse-pep-energy`).
    """
    if kind == "vfe":
        return -expected_log_density(likelihood, y, add_covariance(marginal, residual_covariance), cubature).value
    if kind == "laplace":
        return -row_log_prob(likelihood, y, marginal.mean)
    return -log_expected_density(likelihood, y, add_covariance(cavity, residual_covariance), cubature, power) / power
