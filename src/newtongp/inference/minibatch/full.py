"""One batch where all sites are kept: they take the place of their former selves in the product."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._runtime.devices import kept_everywhere
from ...likelihoods.base import over_rows
from ...methods.curvature import rows_of
from ...methods.rule import Method, evaluate, propose, residual
from ...numerics.gaussian import Gaussian, Sites, add_covariance, interpolate
from ...numerics.trees import select
from .product import SHORTEST, Belief, DeviceRows, Product, Shared, is_finite, look_up, nothing, product_of


def _over_sites(method: Method, step_size: Any) -> Any:
    """`propose` for every row."""
    return jax.vmap(
        lambda expansion, observed, site, memory: propose(method, expansion, observed, site, memory, step_size)
    )


def _at(index: Any, tree: Any) -> Any:
    """What is kept of these rows; zero for those that were only filled in."""
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="fill", fill_value=0), tree)


class Kept(eqx.Module):
    """Between two batches: every row's site and memory, their product, q, and what this pass has seen so far."""

    sites: Sites
    memory: Any
    product: Product
    belief: Belief
    largest: Float[Array, ""]
    squares: Float[Array, ""]
    energies: Float[Array, ""]
    batches: Any
    refused: Any
    """Batches in which some row could not be updated."""


def begin_kept(shared: Shared, count: int) -> Kept:
    """Before the first batch: no site says anything."""
    method, latents = shared.method, shared.prior.num_latents
    sites = jax.tree.map(jnp.asarray, Sites.constant(count, latents, 0.0))
    memory = rows_of(method.curvature.initial_state(method.target, latents), count)
    product = nothing(shared.prior, shared.projection)
    # A tree whose arrays are to be given up must not hold any of them twice.
    real, whole = jnp.zeros(()), jnp.zeros((), dtype=int)
    kept = Kept(sites, memory, product, Belief.given(product), real, real, real, whole, whole)
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype), kept)


@functools.partial(jax.jit, donate_argnums=2)
def visit(shared: Shared, rows: DeviceRows, kept: Kept, step_size: Any, total: Any) -> Kept:
    """Update the sites of one batch, and the product with them."""
    method = shared.method
    features, residual_covariance, prior_mean = look_up(shared, rows)
    marginals = kept.belief.marginals(prior_mean, features)
    sites, memory = _at(rows.index, kept.sites), _at(rows.index, kept.memory)
    if method.initial_precision > 0.0:
        # Rows that have not been seen yet: what such methods start from has to be in the product once it is used.
        sites = _started(method, sites, rows.observed)
    expansions, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        rows.likelihood,
        (rows.y, rows.observed, marginals, sites, residual_covariance),
    )
    proposal, new_memory = _over_sites(method, step_size)(expansions, rows.observed, sites, memory)
    fine = numbers.proper & jax.vmap(is_finite)(proposal)
    proposal = jax.vmap(select)(fine, proposal, sites)
    fixed_point = proposal
    if not method.is_stationary:
        # At ρ = 0 the Riemannian term is gone, and the proposal is the fixed-point map itself.
        fixed_point, _ = _over_sites(method, jnp.zeros(()))(expansions, rows.observed, sites, memory)
        fixed_point = jax.vmap(select)(fine, fixed_point, sites)
    residuals = jax.vmap(residual)(marginals, sites, fixed_point)
    change = product_of(features, prior_mean, jax.tree.map(jnp.subtract, proposal, sites))
    start = kept.product
    if method.initial_precision > 0.0:
        start = start + product_of(features, prior_mean, jax.tree.map(jnp.subtract, sites, _at(rows.index, kept.sites)))
    # Where precisions are PSD every posterior is proper; elsewhere a step has to lower what the method minimises too.
    guarded = method.objective is not None and not method.expects_psd(rows.likelihood)
    objective = _objective_of_batch(shared, rows, start, sites) if guarded else lambda belief: jnp.zeros(())
    highest = objective(kept.belief)
    highest = highest + 1e-10 * (jnp.abs(highest) + 1.0)

    def attempt(size):
        product = start + change.times(size)
        return size, product, Belief.given(product)

    def wrong(trial):
        size, _, belief = trial
        return ~(belief.proper & (objective(belief) <= highest)) & (size > SHORTEST)

    size, product, belief = jax.lax.while_loop(
        wrong, lambda trial: attempt(0.5 * trial[0]), attempt(jnp.asarray(step_size, dtype=float))
    )
    new, sound = interpolate(sites, proposal, size), belief.proper & (size > SHORTEST)
    energy = total / rows.count * jnp.sum(numbers.energy) + 0.5 * (kept.belief.distance + kept.belief.log_det)

    def put(old, changed):
        return old.at[rows.index].set(jnp.where(sound, changed, _at(rows.index, old)), mode="drop")

    after = Kept(
        jax.tree.map(put, kept.sites, new),
        jax.tree.map(put, kept.memory, method.curvature.carry(memory, new_memory, size)),
        select(sound, product, kept.product),
        select(sound, belief, kept.belief),
        jnp.maximum(kept.largest, jnp.max(jnp.abs(residuals))),
        kept.squares + jnp.sum(residuals**2),
        kept.energies + energy,
        kept.batches + 1,
        kept.refused + jnp.where(sound & jnp.all(fine), 0, 1),
    )
    return kept_everywhere(after, rows.mesh)


def _objective_of_batch(shared: Shared, rows: DeviceRows, product: Product, sites: Sites) -> Any:
    """What an update of these rows' sites minimises: their share of the energy, with all other sites for a prior.

    −Σ E_q[log p] + KL[q‖p ∏ of the others], or at the mean alone, up to what does not depend on q.
    """
    method, energy = shared.method, shared.energy
    features, residual_covariance, prior_mean = look_up(shared, rows)
    others = product + product_of(features, prior_mean, sites).times(-1.0)

    def row(likelihood, y, observed, marginal, residual_covariance):
        share = energy.tied_row(likelihood, y, marginal, marginal, method.cubature, residual_covariance)
        return jnp.where(observed, share, 0.0)

    def objective(belief: Belief) -> Float[Array, ""]:
        marginals = belief.marginals(prior_mean, features)
        energies = over_rows(row, rows.likelihood, (rows.y, rows.observed, marginals, residual_covariance))
        mean = belief.mean.reshape(-1)
        total = jnp.sum(energies) + 0.5 * (mean @ mean + mean @ others.precision @ mean)
        total = total - jnp.sum(others.linear * belief.mean)
        if method.objective == "log_joint":
            return total
        half = belief.half.reshape(belief.half.shape[0], -1)
        spread = jnp.sum(half**2) + jnp.sum((half @ others.precision) * half)
        return total + 0.5 * (belief.log_det + spread)

    return objective


def _started(method: Method, sites: Sites, observed: Any) -> Sites:
    """Sites, with those that are still zero at the precision that the method starts from."""
    fresh = jnp.all(sites.precision == 0.0, axis=(1, 2)) & observed
    initial = method.initial_precision * jnp.eye(sites.linear.shape[1])[None]
    return Sites(sites.linear, jnp.where(fresh[:, None, None], initial, sites.precision))


@jax.jit
def product_of_batch(shared: Shared, rows: DeviceRows, kept: Kept) -> Product:
    """The product of a batch's sites as they are kept."""
    features, _, prior_mean = look_up(shared, rows)
    return kept_everywhere(product_of(features, prior_mean, _at(rows.index, kept.sites)), rows.mesh)


class Seen(eqx.Module):
    """A batch at a fixed q: its marginals, its share of the energy, and how far it is from its fixed point."""

    marginals: Gaussian
    whole: Gaussian
    energy: Float[Array, ""]
    largest: Float[Array, ""]
    proper: Bool[Array, ""]
    constant: Float[Array, ""]
    """Σ λᵀμ − ½ μᵀΛμ: what t(v) leaves out of the sites' product."""


@jax.jit
def inspect(shared: Shared, rows: DeviceRows, kept: Kept) -> Seen:
    """A batch at the q of all sites, which stay as they are."""
    method = shared.method
    features, residual_covariance, prior_mean = look_up(shared, rows)
    marginals = kept.belief.marginals(prior_mean, features)
    inside = rows.index < kept.sites.linear.shape[0]
    sites = jax.vmap(select)(
        inside, _at(rows.index, kept.sites), jax.tree.map(jnp.zeros_like, _at(rows.index, kept.sites))
    )
    expansions, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        rows.likelihood,
        (rows.y, rows.observed, marginals, sites, residual_covariance),
    )
    proposal, _ = _over_sites(method, jnp.zeros(()))(expansions, rows.observed, sites, _at(rows.index, kept.memory))
    centred = sites.centred_linear(prior_mean)
    seen = Seen(
        marginals,
        add_covariance(marginals, residual_covariance),
        jnp.sum(numbers.energy),
        jnp.max(jnp.abs(jax.vmap(residual)(marginals, sites, proposal))),
        jnp.all(numbers.proper),
        0.5 * jnp.sum((sites.linear + centred) * prior_mean),
    )
    return kept_everywhere(seen, rows.mesh)
