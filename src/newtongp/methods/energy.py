"""Each method's approximation of −log p(y), from sums over rows and the prior's log normaliser.

With log Z = log ∫ p(f) ∏ tₙ(fₙ) df, no site normaliser occurs:
VFE `eq:vfe`, the Laplace energy `eq:laplace-energy` and the power EP energy `eq:pep-energy`.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..cubature import Cubature
from ..gaussian import Gaussian, Sites, cavity, expected_log_site, log_expected_site_power, log_site
from ..likelihoods.base import Likelihood, row_log_prob
from .expectation import expected_log_density, log_expected_density


class RowEnergy(NamedTuple):
    """One row's share of the energy, and whether the cavity it may need is proper."""

    value: Float[Array, "*rows"]
    proper: Bool[Array, "*rows"]


def variational(expected_log_p: Float[Array, ""], marginal: Gaussian, site: Sites) -> Float[Array, ""]:
    """−E_q[log p] + E_q[log t]."""
    return -expected_log_p + expected_log_site(marginal, site)


def laplace(log_p: Float[Array, ""], marginal: Gaussian, site: Sites) -> Float[Array, ""]:
    """−log p(y | m) + log t(m)."""
    return -log_p + log_site(marginal.mean, site)


def row_energy(
    kind: str,
    power: float,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    marginal: Gaussian,
    site: Sites,
    cubature: Cubature | None,
) -> RowEnergy:
    """One row's share of the energy of this kind ("vfe", "laplace" or "pep")."""
    always = jnp.ones((), dtype=bool)
    if kind == "vfe":
        expected = expected_log_density(likelihood, y, marginal, cubature).value
        return RowEnergy(variational(expected, marginal, site), always)
    if kind == "laplace":
        return RowEnergy(laplace(row_log_prob(likelihood, y, marginal.mean), marginal, site), always)
    without = cavity(marginal, site, power)
    log_p = log_expected_density(likelihood, y, without.gaussian, cubature, power)
    log_t = log_expected_site_power(without, marginal, site, power)
    return RowEnergy((log_t - log_p) / power, without.proper)


def row_log_joint(likelihood: Likelihood, y: Float[Array, " P"], marginal: Gaussian) -> Float[Array, ""]:
    """−log p(y | m): the likelihood's share of minus the log joint at the mean."""
    return -row_log_prob(likelihood, y, marginal.mean)
