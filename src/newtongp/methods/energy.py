"""Each method's approximation of −log p(y), from sums over rows and the prior's log normaliser.

The VFE `eq:vfe`, the Laplace energy `eq:laplace-energy` and the power EP energy `eq:pep-energy` all have the part
Σ log tₙ(mₙ) − log ∫ p ∏ tₙ = ½ (m − μ)ᵀK⁻¹(m − μ) + ½ log det(I + ΛK), which is the prior's to give, without any
site normaliser and without cancellation. What is left for each row is here.

Where rows have no sites of their own, but share one factor t of whitened variables v, the energy has two parts
(`eq:sparse-vfe`, `eq:sparse-pep-energy`): one per row, and one of the factor.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..likelihoods.base import Likelihood, row_log_prob
from ..numerics.cubature import Cubature
from ..numerics.gaussian import Gaussian, Sites, add_covariance, relative_log_expected_site_power
from ..numerics.gaussian import cavity as cavity_of
from .expectation import expected_log_value, log_expected_density


class RowEnergy(NamedTuple):
    """One row's share of the energy, and whether the cavity it may need is proper."""

    value: Float[Array, "*rows"]
    proper: Bool[Array, "*rows"]


@runtime_checkable
class WhitenedPosterior(Protocol):
    """What an energy asks of q(v) ∝ N(v | 0, I) t(v)."""

    log_det: Any
    """Log det of the precision of v."""

    @property
    def distance(self) -> Any:
        """The squared norm of the mean."""
        ...

    @property
    def excess(self) -> Any:
        """The trace of the covariance of v, minus that of the prior."""
        ...


LogIntegrals = Callable[[Any], tuple[Float[Array, ""], Float[Array, ""]]]
"""From a share α to log ∫ N(v | 0, I) t(v) and log ∫ N(v | 0, I) t(v)^(1 − α)."""


class Energy(eqx.Module):
    """One of the approximations of −log p(y) that methods come with."""

    description: ClassVar[str]
    """What the summary of a result calls it."""
    uses_cavities: ClassVar[bool] = False
    """Whether expectations are over cavities in place of marginals."""
    integrates: ClassVar[bool] = True
    """Whether there are expectations over f, and not only values at its mean."""
    is_free_energy: ClassVar[bool] = False
    """Whether it is the variational free energy."""

    @classmethod
    def with_power(cls, power: float) -> "Energy":
        """The energy of this kind that goes with cavities of this power."""
        return cls()

    @property
    def power(self) -> float | None:
        """The α of log E_cav[p^α]; None where nothing is taken to a power."""
        return None

    @abc.abstractmethod
    def row(
        self,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        marginal: Gaussian,
        site: Sites,
        cubature: Cubature | None,
        residual_covariance: Float[Array, "D D"] | None = None,
        known: Float[Array, ""] | None = None,
    ) -> RowEnergy:
        """One row's share.

        `known` is what the likelihood adds to it, E_q[log p], log p(y | m) or (1/α) log E_cav[p^α], if that has already
        been computed. With `residual_covariance`, the covariance of e, the site and the marginal are those of g, and y
        depends on f = g + e (`eq:sparse-vfe`): expectations of the likelihood are over f, all else is about g.
        """

    @abc.abstractmethod
    def tied_row(
        self,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        marginal: Gaussian,
        cavity: Gaussian,
        cubature: Cubature | None,
        residual_covariance: Float[Array, "D D"] | None = None,
    ) -> Float[Array, ""]:
        """One row's share where rows share one factor; `cavity` is the marginal without the row's part of that."""

    @abc.abstractmethod
    def tied_factor(self, posterior: WhitenedPosterior, log_integrals: LogIntegrals, rows: Any = 1) -> Float[Array, ""]:
        """What the factor that rows share adds to their energies; cavities leave out α/`rows` of it."""


class VariationalFreeEnergy(Energy):
    """−Σ E_q[log p] + KL[q‖p], minus the evidence lower bound (`eq:vfe`)."""

    description = "variational free energy, −ELBO"
    is_free_energy = True

    def row(self, likelihood, y, marginal, site, cubature, residual_covariance=None, known=None):
        if known is None:
            known = expected_log_value(likelihood, y, add_covariance(marginal, residual_covariance), cubature)
        return RowEnergy(share_of_divergence(marginal, site) - known, _always())

    def tied_row(self, likelihood, y, marginal, cavity, cubature, residual_covariance=None):
        return -expected_log_value(likelihood, y, add_covariance(marginal, residual_covariance), cubature)

    def tied_factor(self, posterior, log_integrals, rows=1):
        return 0.5 * (posterior.excess + posterior.distance + posterior.log_det)


class LaplaceEnergy(Energy):
    """−Σ log p(yₙ | mₙ) + Σ log tₙ(mₙ) − log ∫ p ∏ tₙ (`eq:laplace-energy`)."""

    description = "Laplace approximation of −log p(y)"
    integrates = False

    def row(self, likelihood, y, marginal, site, cubature, residual_covariance=None, known=None):
        return RowEnergy(-row_log_prob(likelihood, y, marginal.mean) if known is None else -known, _always())

    def tied_row(self, likelihood, y, marginal, cavity, cubature, residual_covariance=None):
        return -row_log_prob(likelihood, y, marginal.mean)

    def tied_factor(self, posterior, log_integrals, rows=1):
        return 0.5 * (posterior.distance + posterior.log_det)


class PowerEPEnergy(Energy):
    """−(1/α) Σ log E_cav[p^α] + (1/α) Σ log E_cav[tₙ^α] − log ∫ p ∏ tₙ (`eq:pep-energy`)."""

    description = "power EP energy, an approximation of −log p(y)"
    uses_cavities = True
    alpha: float = eqx.field(static=True, default=1.0)

    @classmethod
    def with_power(cls, power):
        return cls(power)

    @property
    def power(self) -> float:
        return self.alpha

    def row(self, likelihood, y, marginal, site, cubature, residual_covariance=None, known=None):
        power, without = self.alpha, cavity_of(marginal, site, self.alpha)
        if known is None:
            around = add_covariance(without.gaussian, residual_covariance)
            known = log_expected_density(likelihood, y, around, cubature, power) / power
        return RowEnergy(relative_log_expected_site_power(without, marginal, site, power) - known, without.proper)

    def tied_row(self, likelihood, y, marginal, cavity, cubature, residual_covariance=None):
        around = add_covariance(cavity, residual_covariance)
        return -log_expected_density(likelihood, y, around, cubature, self.alpha) / self.alpha

    def tied_factor(self, posterior, log_integrals, rows=1):
        share = self.alpha / rows
        whole, left = log_integrals(share)
        return (whole - left) / share - whole


NAMED: dict[str, type[Energy]] = {"vfe": VariationalFreeEnergy, "laplace": LaplaceEnergy, "pep": PowerEPEnergy}
"""Energies by the names that a target may declare."""


def declared_energy(declared: Any) -> type[Energy] | None:
    """The energy that a target declares, as a class or by its name; None if it is neither."""
    if isinstance(declared, str):
        return NAMED.get(declared)
    is_energy = isinstance(declared, type) and issubclass(declared, Energy) and declared is not Energy
    return declared if is_energy else None


def share_of_divergence(marginal: Gaussian, site: Sites) -> Float[Array, ""]:
    """−½ tr(ΛC), one row's share of KL[q‖p]: the sum over rows and the prior's part of the energy make up the rest."""
    return -0.5 * jnp.sum(site.precision * marginal.covariance)


def _always() -> Bool[Array, ""]:
    return jnp.ones((), dtype=bool)
