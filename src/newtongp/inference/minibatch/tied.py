"""The update of one batch with tied storage: every row has an equal share of the product of all sites."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._runtime.devices import kept_everywhere
from ...likelihoods.base import over_rows
from ...methods.rule import expansion_around, propose
from ...methods.weights import copies_of, times
from ...numerics.gaussian import Gaussian, Sites
from ...numerics.trees import select
from ..steps.backtracking import first_accepted
from ..steps.base import Outcome
from ..steps.endings import failure_of, is_sound, rounding_of
from .belief import Belief, ChainBelief, Product
from .product import DeviceRows, Shared, is_finite, look_up


class Tied(eqx.Module):
    """t(v), q(v), and the cavity: q without a row's share of t, or q itself if the energy has no cavities."""

    product: Product
    belief: Belief | ChainBelief
    cavity: Belief | ChainBelief

    @classmethod
    def given(cls, shared: Shared, product: Product, rows: Any) -> "Tied":
        """From t(v), which `rows` rows share."""
        belief, power = shared.belief(product), shared.energy.power
        if power is None:
            return cls(product, belief, belief)
        # tₙ = t^{1/N}: the cavity of every row is q / t^{α/N}.
        return cls(product, belief, shared.belief(product.times(1.0 - power / rows)))

    @property
    def proper(self) -> Bool[Array, ""]:
        """Whether q(v) and the cavities are proper."""
        return self.belief.proper & self.cavity.proper


tied_given = jax.jit(Tied.given)


class _BatchAround(eqx.Module):
    """The features of a batch, and the marginals of its rows with and without their shares of t."""

    features: Any
    residual_covariance: Any
    prior_mean: Any
    marginals: Gaussian
    cavities: Gaussian
    """Equal to the marginals if the energy has no cavities."""

    @classmethod
    def of(cls, shared: Shared, rows: DeviceRows, tied: Tied) -> "_BatchAround":
        features, residual_covariance, prior_mean = look_up(shared, rows)
        marginals = tied.belief.marginals(prior_mean, features)
        cavities = tied.cavity.marginals(prior_mean, features) if shared.energy.uses_cavities else marginals
        return cls(features, residual_covariance, prior_mean, marginals, cavities)


def _row_energy(shared: Shared) -> Callable:
    """One row's share of the energy; zero if nothing is observed."""
    energy, cubature = shared.energy, shared.method.cubature

    def row(likelihood, y, observed, marginal, cavity, residual_covariance):
        copies = copies_of(likelihood)
        share = energy.tied_row(copies.likelihood, y, marginal, cavity, cubature, residual_covariance)
        return jnp.where(observed, times(share, copies.number), 0.0)

    return row


def energy_of_rows(shared: Shared, rows: DeviceRows, tied: Tied) -> Float[Array, ""]:
    """A batch's share of the energy."""
    batch = _BatchAround.of(shared, rows, tied)
    of_rows = (rows.y, rows.observed, batch.marginals, batch.cavities, batch.residual_covariance)
    return jnp.sum(over_rows(_row_energy(shared), rows.likelihood, of_rows))


class BatchProposal(eqx.Module):
    """The proposal of a batch for its share of t(v), and its share of the energy."""

    product: Product
    energy: Float[Array, ""]
    magnitude: Float[Array, ""]
    """The sum of the absolute values of the rows' energies."""


@jax.jit
def propose_batch(shared: Shared, rows: DeviceRows, tied: Tied) -> BatchProposal:
    """The product of a batch's proposed sites, and its share of the energy."""
    method, energy_of_row = shared.method, _row_energy(shared)
    batch = _BatchAround.of(shared, rows, tied)
    marginals = batch.marginals
    points = batch.cavities if method.target.power > 0.0 else marginals
    no_sites = Sites(jnp.zeros_like(marginals.mean), jnp.zeros_like(marginals.covariance))

    def row(likelihood, y, observed, marginal, cavity, point, residual_covariance, site):
        expansion = expansion_around(method, likelihood, y, observed, marginal, point, residual_covariance)
        proposal, _ = propose(method, expansion, observed, site, None, jnp.ones(()))
        return proposal, energy_of_row(likelihood, y, observed, marginal, cavity, residual_covariance)

    of_rows = (rows.y, rows.observed, marginals, batch.cavities, points, batch.residual_covariance, no_sites)
    proposed, energies = over_rows(row, rows.likelihood, of_rows)
    product = shared.product_of(batch.features, batch.prior_mean, proposed)
    return kept_everywhere(BatchProposal(product, jnp.sum(energies), jnp.sum(jnp.abs(energies))), rows.mesh)


@jax.jit
def hold_batch(shared: Shared, rows: DeviceRows) -> tuple[Product, Sites]:
    """Sites of precision 1 at the prior mean of a batch, and their product."""
    features, _, prior_mean = look_up(shared, rows)
    observed = jnp.asarray(rows.observed, dtype=prior_mean.dtype)
    sites = Sites(observed[:, None] * prior_mean, observed[:, None, None] * jnp.eye(prior_mean.shape[1])[None])
    return kept_everywhere((shared.product_of(features, prior_mean, sites), sites), rows.mesh)


# The energy of t(v) ---------------------------------------------------------------------------


@jax.jit
def factor_energy(shared: Shared, tied: Tied) -> Float[Array, ""]:
    """The energy of t(v) with the global cavity q/t^α (`eq:sparse-pep-energy`)."""

    def log_integrals(share):
        return log_integral(shared, tied.product, 1.0), log_integral(shared, tied.product, 1.0 - share)

    return shared.energy.tied_factor(tied.belief, log_integrals)


def shared_factor_energy(shared: Shared, tied: Tied, rows: Any) -> Float[Array, ""]:
    """The energy of t(v) with one cavity q/t^(α/N) per row, whose gradient is used at a fixed q."""

    def log_integral(belief, share):
        return 0.5 * (share * jnp.sum(tied.product.linear * belief.mean) - belief.log_det)

    def log_integrals(share):
        return log_integral(tied.belief, 1.0), log_integral(tied.cavity, 1.0 - share)

    return shared.energy.tied_factor(tied.belief, log_integrals, rows)


def log_integral(shared: Shared, product: Product, share: Any) -> Float[Array, ""]:
    """log ∫ N(v | 0, I) t(v)^share."""
    part = product.times(share)
    belief = shared.belief(part)
    return 0.5 * (jnp.sum(part.linear * belief.mean) - belief.log_det)


# Steps of t(v) --------------------------------------------------------------------------------------------------


class TiedPoint(eqx.Module):
    """t(v), the proposal of all rows for it, and the numbers by which a step is judged."""

    tied: Tied
    proposal: Product
    energy: Float[Array, ""]
    largest: Float[Array, ""]
    """The largest entry of the fixed-point residual, in posterior standard deviations and relative precisions of v."""
    outcome: Outcome
    failure: Any
    """The status to end with if this point is not sound."""


@jax.jit
def measure(shared: Shared, tied: Tied, proposal: BatchProposal) -> TiedPoint:
    """The point with this t(v), given the proposal of all rows."""
    belief, method = tied.belief, shared.method
    energy = proposal.energy + factor_energy(shared, tied)
    objective = energy - 0.5 * belief.log_det if method.objective == "log_joint" else energy
    residuals = belief.residuals(tied.product, proposal.product)
    size, largest = jnp.sqrt(jnp.mean(residuals**2)), jnp.max(jnp.abs(residuals))
    sound = is_sound(belief.proper, tied.cavity.proper, energy, objective, size)
    outcome = Outcome(sound, objective, rounding_of(objective, proposal.magnitude), size)
    failure = failure_of(belief.proper, tied.cavity.proper)
    return TiedPoint(tied, proposal.product, energy, largest, outcome, failure)


@jax.jit
def towards(product: Product, proposal: Product, step_size: Any) -> Product:
    """Interpolate between two products."""
    return product.times(1.0 - step_size) + proposal.times(step_size)


def step_towards(shared: Shared, tied: Tied, proposal: Product, step_size: Any, rows: Any) -> Tied:
    """A step towards a noisy proposal, shortened if the posterior or a cavity would be improper.

    A batch's energy is too noisy to compare points, so only soundness is required.
    """
    goal = select(is_finite(proposal), proposal, tied.product)

    def attempt(size):
        trial = Tied.given(shared, towards(tied.product, goal, size), rows)
        return trial, Outcome.of_soundness(trial.proper)

    _, trial, accepted = first_accepted(attempt, Outcome.of_soundness(tied.proper), jnp.asarray(step_size, dtype=float))
    return select(accepted, trial, tied)
