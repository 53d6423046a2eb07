"""The update of one batch with full storage: its new sites replace its old ones in the product."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._runtime.devices import kept_everywhere
from ...likelihoods.base import over_rows
from ...methods.curvature import rows_of
from ...methods.rule import Method, evaluate, residual
from ...numerics.gaussian import Gaussian, Sites, add_covariance, interpolate
from ...numerics.trees import select
from ..loop import propose_rows
from ..steps.backtracking import first_accepted
from ..steps.base import Outcome
from ..steps.endings import is_sound, rounding_of
from .belief import Belief, ChainBelief, Product
from .product import DeviceRows, Shared, is_finite, look_up, nothing


def _expand_rows(shared: Shared, rows: DeviceRows, marginals: Gaussian, sites: Sites, residual_covariance: Any) -> Any:
    """Every row's expansion, and its numbers."""
    return over_rows(
        lambda likelihood, *row: evaluate(shared.method, likelihood, *row),
        rows.likelihood,
        (rows.y, rows.observed, marginals, sites, residual_covariance),
    )


def _at(index: Any, tree: Any) -> Any:
    """The stored entries of these rows; zero for padding."""
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="fill", fill_value=0), tree)


class PassTotals(eqx.Module):
    """Totals over the batches of one pass, each at the q of its update."""

    largest: Float[Array, ""]
    """The largest entry of any row's fixed-point residual."""
    squares: Float[Array, ""]
    """The sum of the squares of all entries."""
    energies: Float[Array, ""]
    """The sum of the batches' estimates of the total energy."""
    batches: Any
    refused: Any
    """The number of batches in which some row could not be updated."""


class StoredSites(eqx.Module):
    """Between two batches: every row's site and memory, their product, q, and the totals of this pass."""

    sites: Sites
    memory: Any
    product: Product
    belief: Belief | ChainBelief
    totals: PassTotals


@functools.partial(jax.jit, static_argnums=1)
def no_sites(shared: Shared, count: int) -> StoredSites:
    """The state before the first batch: all sites are zero."""
    method, latents = shared.method, shared.prior.num_latents
    sites = jax.tree.map(jnp.asarray, Sites.constant(count, latents, 0.0))
    memory = rows_of(method.curvature.initial_state(method.target, latents), count)
    product = nothing(shared.prior, shared.projection)
    real, whole = jnp.zeros(()), jnp.zeros((), dtype=int)
    return StoredSites(sites, memory, product, shared.belief(product), PassTotals(real, real, real, whole, whole))


@functools.partial(jax.jit, donate_argnums=2)
def update_batch(shared: Shared, rows: DeviceRows, stored: StoredSites, step_size: Any, total: Any) -> StoredSites:
    """Update the sites of one batch and the product."""
    method = shared.method
    features, residual_covariance, prior_mean = look_up(shared, rows)
    marginals = stored.belief.marginals(prior_mean, features)
    before, memory = _at(rows.index, stored.sites), _at(rows.index, stored.memory)
    sites, start = before, stored.product
    if method.initial_precision > 0.0:
        # Rows that are updated for the first time: add the initial sites of such methods to the product.
        sites = _started(method, before, rows.observed)
        start = start + shared.product_of(features, prior_mean, jax.tree.map(jnp.subtract, sites, before))
    expansions, numbers = _expand_rows(shared, rows, marginals, sites, residual_covariance)
    proposal, new_memory = propose_rows(rows, method, expansions, sites, memory, step_size)
    usable = numbers.proper & jax.vmap(is_finite)(proposal)
    proposal = jax.vmap(select)(usable, proposal, sites)
    fixed_point = proposal
    if not method.is_stationary:
        # At ρ = 0 the Riemannian term vanishes, and the proposal is the fixed-point map itself.
        fixed_point, _ = propose_rows(rows, method, expansions, sites, memory, jnp.zeros(()))
        fixed_point = jax.vmap(select)(usable, fixed_point, sites)
    residuals = jax.vmap(residual)(marginals, sites, fixed_point)
    change = shared.product_of(features, prior_mean, jax.tree.map(jnp.subtract, proposal, sites))
    outcome = _outcome_of_batch(shared, rows, start, sites)

    def attempt(size):
        product = start + change.times(size)
        belief = shared.belief(product)
        return (product, belief), outcome(belief)

    size, (product, belief), accepted = first_accepted(
        attempt, outcome(stored.belief), jnp.asarray(step_size, dtype=float)
    )
    new = interpolate(sites, proposal, size)
    energy = total / rows.count * jnp.sum(numbers.energy) + 0.5 * (stored.belief.distance + stored.belief.log_det)

    def put(old, changed):
        return old.at[rows.index].set(jnp.where(accepted, changed, _at(rows.index, old)), mode="drop")

    totals = stored.totals
    after = StoredSites(
        jax.tree.map(put, stored.sites, new),
        jax.tree.map(put, stored.memory, method.curvature.carry(memory, new_memory, size)),
        select(accepted, product, stored.product),
        select(accepted, belief, stored.belief),
        PassTotals(
            jnp.maximum(totals.largest, jnp.max(jnp.abs(residuals))),
            totals.squares + jnp.sum(residuals**2),
            totals.energies + energy,
            totals.batches + 1,
            totals.refused + jnp.where(accepted & jnp.all(usable), 0, 1),
        ),
    )
    return kept_everywhere(after, rows.mesh)


def _outcome_of_batch(shared: Shared, rows: DeviceRows, product: Product, sites: Sites) -> Callable[[Any], Outcome]:
    """The outcome of an update of these rows' sites, as a function of the new q.

    The objective is the rows' share of the energy, with all other sites as part of the prior: −Σ E_q[log p] + KL[q‖p ∏
    of the others], or its value at the mean, up to a constant. The residuals at the new q are not computed, because
    that would take as long as the update itself.
    """
    method, energy = shared.method, shared.energy
    if method.objective is None or method.expects_psd(rows.likelihood):
        # With PSD precisions every posterior is proper; without an objective, only that is required.
        return lambda belief: Outcome.of_soundness(belief.proper)
    features, residual_covariance, prior_mean = look_up(shared, rows)
    others = product + shared.product_of(features, prior_mean, sites).times(-1.0)

    def row(likelihood, y, observed, marginal, residual_covariance):
        share = energy.tied_row(likelihood, y, marginal, marginal, method.cubature, residual_covariance)
        return jnp.where(observed, share, 0.0)

    def outcome(belief: Any) -> Outcome:
        marginals = belief.marginals(prior_mean, features)
        energies = over_rows(row, rows.likelihood, (rows.y, rows.observed, marginals, residual_covariance))
        spread, at_mean = belief.expected(others)
        terms = [*at_mean, -jnp.sum(others.linear * belief.mean)]
        if method.objective != "log_joint":
            terms += [0.5 * belief.log_det, spread]
        objective = jnp.sum(energies) + sum(terms)
        magnitude = jnp.sum(jnp.abs(energies)) + sum(map(jnp.abs, terms))
        sound = is_sound(belief.proper, True, objective)
        return Outcome(sound, objective, rounding_of(objective, magnitude), jnp.zeros(()))

    return outcome


def _started(method: Method, sites: Sites, observed: Any) -> Sites:
    """Sites, of which those that are still zero get the initial precision of the method."""
    fresh = jnp.all(sites.precision == 0.0, axis=(1, 2)) & observed
    initial = method.initial_precision * jnp.eye(sites.linear.shape[1])[None]
    return Sites(sites.linear, jnp.where(fresh[:, None, None], initial, sites.precision))


@jax.jit
def product_of_batch(shared: Shared, rows: DeviceRows, stored: StoredSites) -> Product:
    """The product of a batch's stored sites."""
    features, _, prior_mean = look_up(shared, rows)
    return kept_everywhere(shared.product_of(features, prior_mean, _at(rows.index, stored.sites)), rows.mesh)


class BatchReport(eqx.Module):
    """A batch at a fixed q: its marginals, its share of the energy, and its largest fixed-point residual."""

    site_marginals: Gaussian
    """Marginals of what the sites act on."""
    marginals: Gaussian
    """Marginals of f."""
    energy: Float[Array, ""]
    largest: Float[Array, ""]
    proper: Bool[Array, ""]
    """Whether all cavities are proper."""
    constant: Float[Array, ""]
    """Σ λᵀμ − ½ μᵀΛμ: the log of the factor between the sites' product and t(v)."""


@jax.jit
def report_batch(shared: Shared, rows: DeviceRows, stored: StoredSites) -> BatchReport:
    """A batch at the q of all stored sites, without an update."""
    method = shared.method
    features, residual_covariance, prior_mean = look_up(shared, rows)
    marginals = stored.belief.marginals(prior_mean, features)
    sites = _at(rows.index, stored.sites)
    expansions, numbers = _expand_rows(shared, rows, marginals, sites, residual_covariance)
    memory = _at(rows.index, stored.memory)
    proposal, _ = propose_rows(rows, method, expansions, sites, memory, jnp.zeros(()))
    centred = sites.centred_linear(prior_mean)
    report = BatchReport(
        marginals,
        add_covariance(marginals, residual_covariance),
        jnp.sum(numbers.energy),
        jnp.max(jnp.abs(jax.vmap(residual)(marginals, sites, proposal))),
        jnp.all(numbers.proper),
        0.5 * jnp.sum((sites.linear + centred) * prior_mean),
    )
    return kept_everywhere(report, rows.mesh)
