"""Inference in batches of rows, for sparse GPs: data larger than memory, and rows by the million.

A sparse posterior is that of the whitened inducing variables v, given the product t(v) of all sites (`alg:sgp`). A
batch needs no more than that and its own rows. There are two ways to go on from it.

- All sites kept: the sites of a batch take the place of their former selves in the product. Nothing is random about
  that but the order, so it comes to rest at the fixed point of `infer`, and its residuals are those of `infer`.
- Tied: only t(v) is kept. A batch's proposals, times N over its size, are an unbiased estimate of the next t(v), and ρ
  falls from step to step. Once the energy falls by no more than its own noise, passes over all rows at a fixed q take
  over: their energies and residuals are exact, so that no noise can end a run early, nor keep it from ending.
"""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .choices import check_choices
from .devices import everywhere, kept_everywhere, mesh_of_rows, spread, whole_share
from .gaussian import Gaussian, Sites, interpolate, widened
from .likelihoods.base import Likelihood, over_rows, rows_given
from .methods.curvature import QuasiNewton, rows_of
from .methods.energy import tied_row_energy
from .methods.presets import FirstOrderVI
from .methods.rule import Method, evaluate, propose, residual, view_around
from .methods.safeguard import Riemannian
from .model import Model
from .precision import parameter, to_host
from .predict import as_key
from .priors import weight_space
from .priors.sparse import Projection, SparseGP, SparsePosterior
from .results import History, Result, Status
from .rows import Batch, Rows
from .steps import Constant, Step

SHORTEST = 1e-9
_PATIENT = 0.05
"""At this step size a growing residual is put up with, as in `steps.Damped`."""
_RIEMANNIAN = 0.3
"""The Riemannian term is of second order in the step size, and far too large at 1 where a site is still far off."""
WHOLE_PASS = 2**13
"""Rows taken at a time where no batch size is given."""


class Shared(eqx.Module):
    """What stays the same from batch to batch."""

    prior: SparseGP
    projection: Projection
    method: Method


class DeviceRows(eqx.Module):
    """A batch, on the device."""

    index: Any
    x: Any
    y: Any
    observed: Any
    likelihood: Likelihood
    count: Any
    mesh: Any = eqx.field(static=True)
    """The devices that share the rows; None if there is only one."""


def on_devices(batch: Batch, whole: Likelihood, mesh: Any) -> DeviceRows:
    """A batch where it is computed with: every device gets its share of the rows."""
    data, likelihood = batch.data, batch.likelihood(whole)
    for name in rows_given(likelihood):
        own = spread(likelihood.row_parameter(name), mesh)
        likelihood = eqx.tree_at(lambda lik, n=name: lik.row_parameter(n), likelihood, own)
    index, x, y, observed = (spread(each, mesh) for each in (batch.index, data.x, data.y, data.observed))
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
        """Of g at some rows."""
        mean = prior_mean + weight_space.times(features, self.mean)
        return Gaussian(mean, weight_space.covariances(self.half, features, triangular=True))

    @property
    def distance(self) -> Float[Array, ""]:
        return jnp.sum(self.mean**2)


def look_up(shared: Shared, rows: DeviceRows) -> tuple[Any, Any, Any]:
    """Features, Var e and the prior mean of a batch."""
    features, extra = shared.projection.at(shared.prior.kernel, rows.x)
    return features, extra, shared.prior.mean.means(rows.x)


def _product_of(features: Any, prior_mean: Any, sites: Sites) -> Product:
    """The product of these rows' sites."""
    asked = weight_space.tilt(prior_mean, sites)
    return Product(weight_space.transposed_times(features, asked), weight_space.gram(features, sites.precision))


def _over_sites(method: Method, step_size: Any) -> Any:
    """`propose` for every row."""
    return jax.vmap(lambda view, observed, site, memory: propose(method, view, observed, site, memory, step_size))


def _at(index: Any, tree: Any) -> Any:
    """What is kept of these rows; zero for those that were only filled in."""
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="fill", fill_value=0), tree)


# All sites kept -----------------------------------------------------------------------------------


class _Kept(eqx.Module):
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


def _begin_kept(shared: Shared, count: int) -> _Kept:
    method, latents = shared.method, shared.prior.num_latents
    sites = jax.tree.map(jnp.asarray, Sites.constant(count, latents, 0.0))
    memory = rows_of(method.curvature.initial_state(method.target, latents), count)
    product = nothing(shared.prior, shared.projection)
    # A tree whose arrays are to be given up must not hold any of them twice.
    real, whole = jnp.zeros(()), jnp.zeros((), dtype=int)
    kept = _Kept(sites, memory, product, Belief.given(product), real, real, real, whole, whole)
    return jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype), kept)


@functools.partial(jax.jit, donate_argnums=2)
def _visit(shared: Shared, rows: DeviceRows, kept: _Kept, step_size: Any, total: Any) -> _Kept:
    """Update the sites of one batch, and the product with them."""
    method = shared.method
    features, extra, prior_mean = look_up(shared, rows)
    marginals = kept.belief.marginals(prior_mean, features)
    sites, memory = _at(rows.index, kept.sites), _at(rows.index, kept.memory)
    if method.initial_precision > 0.0:
        # Rows that have not been seen yet: what such methods start from has to be in the product once it is used.
        sites = _started(method, sites, rows.observed)
    views, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        rows.likelihood,
        (rows.y, rows.observed, marginals, sites, extra),
    )
    proposal, new_memory = _over_sites(method, step_size)(views, rows.observed, sites, memory)
    fine = numbers.proper & jax.vmap(is_finite)(proposal)
    proposal = jax.vmap(select)(fine, proposal, sites)
    fixed_point = proposal
    if not method.is_stationary:
        # At ρ = 0 the Riemannian term is gone, and the proposal is the fixed-point map itself.
        fixed_point, _ = _over_sites(method, jnp.zeros(()))(views, rows.observed, sites, memory)
        fixed_point = jax.vmap(select)(fine, fixed_point, sites)
    residuals = jax.vmap(residual)(marginals, sites, fixed_point)
    change = _product_of(features, prior_mean, jax.tree.map(jnp.subtract, proposal, sites))
    start = kept.product
    if method.initial_precision > 0.0:
        start = start + _product_of(
            features, prior_mean, jax.tree.map(jnp.subtract, sites, _at(rows.index, kept.sites))
        )
    # Where precisions are PSD every step is safe; elsewhere it has to lower what the method minimises.
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

    after = _Kept(
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
    method = shared.method
    features, extra, prior_mean = look_up(shared, rows)
    others = product + _product_of(features, prior_mean, sites).times(-1.0)

    def row(likelihood, y, observed, marginal, extra):
        energy = tied_row_energy(method.target.energy, 1.0, likelihood, y, marginal, marginal, method.cubature, extra)
        return jnp.where(observed, energy, 0.0)

    def objective(belief: Belief) -> Float[Array, ""]:
        marginals = belief.marginals(prior_mean, features)
        energies = over_rows(row, rows.likelihood, (rows.y, rows.observed, marginals, extra))
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


def is_finite(tree: Any) -> Any:
    """Whether all numbers of a tree are."""
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)])


def select(choice: Any, yes: Any, no: Any) -> Any:
    """One of two trees."""
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)


class _Seen(eqx.Module):
    """A batch at a fixed q: its marginals, its share of the energy, and how far it is from its fixed point."""

    marginals: Gaussian
    whole: Gaussian
    energy: Float[Array, ""]
    largest: Float[Array, ""]
    proper: Bool[Array, ""]
    constant: Float[Array, ""]
    """Σ λᵀμ − ½ μᵀΛμ: what t(v) leaves out of the sites' product."""


@jax.jit
def _inspect(shared: Shared, rows: DeviceRows, kept: _Kept) -> _Seen:
    method = shared.method
    features, extra, prior_mean = look_up(shared, rows)
    marginals = kept.belief.marginals(prior_mean, features)
    inside = rows.index < kept.sites.linear.shape[0]
    sites = jax.vmap(select)(
        inside, _at(rows.index, kept.sites), jax.tree.map(jnp.zeros_like, _at(rows.index, kept.sites))
    )
    views, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        rows.likelihood,
        (rows.y, rows.observed, marginals, sites, extra),
    )
    proposal, _ = _over_sites(method, jnp.zeros(()))(views, rows.observed, sites, _at(rows.index, kept.memory))
    asked = weight_space.tilt(prior_mean, sites)
    seen = _Seen(
        marginals,
        widened(marginals, extra),
        jnp.sum(numbers.energy),
        jnp.max(jnp.abs(jax.vmap(residual)(marginals, sites, proposal))),
        jnp.all(numbers.proper),
        0.5 * jnp.sum((sites.linear + asked) * prior_mean),
    )
    return kept_everywhere(seen, rows.mesh)


# Tied ---------------------------------------------------------------------------------------------


class Tied(eqx.Module):
    """t(v), q(v), and q without a row's share of t, where a row is looked at or judged from there."""

    product: Product
    belief: Belief
    cavity: Belief

    @classmethod
    def given(cls, method: Method, product: Product, rows: Any) -> "Tied":
        belief = Belief.given(product)
        if method.target.energy != "pep":
            return cls(product, belief, belief)
        # tₙ = t^{1/N}: the cavity of every row is q / t^{α/N}.
        return cls(product, belief, Belief.given(product.times(1.0 - method.energy_power / rows)))


_given = jax.jit(Tied.given)


@jax.jit
def proposals(shared: Shared, rows: DeviceRows, tied: Tied) -> tuple[Product, Float[Array, ""]]:
    """The product of a batch's proposed sites, and its share of the energy."""
    method = shared.method
    features, extra, prior_mean = look_up(shared, rows)
    marginals = tied.belief.marginals(prior_mean, features)
    without = tied.cavity.marginals(prior_mean, features) if method.target.energy == "pep" else marginals
    points = without if method.target.power > 0.0 else marginals
    no_sites = Sites(jnp.zeros_like(marginals.mean), jnp.zeros_like(marginals.covariance))

    def row(likelihood, y, observed, marginal, cavity, point, extra, site):
        view = view_around(method, likelihood, y, observed, marginal, point, extra)
        proposal, _ = propose(method, view, observed, site, None, jnp.ones(()))
        energy = tied_row_energy(
            method.target.energy, method.energy_power, likelihood, y, marginal, cavity, method.cubature, extra
        )
        return proposal, jnp.where(observed, energy, 0.0)

    proposed, energies = over_rows(
        row, rows.likelihood, (rows.y, rows.observed, marginals, without, points, extra, no_sites)
    )
    return kept_everywhere((_product_of(features, prior_mean, proposed), jnp.sum(energies)), rows.mesh)


@jax.jit
def global_energy(method: Method, tied: Tied) -> Float[Array, ""]:
    """What t(v) adds to the rows' energies."""
    belief = tied.belief
    if method.target.energy == "vfe":
        size = belief.mean.size
        return 0.5 * (jnp.sum(belief.half**2) - size + belief.distance + belief.log_det)
    if method.target.energy == "laplace":
        return 0.5 * (belief.distance + belief.log_det)
    power = method.energy_power
    whole, left = _log_integral(tied.product, 1.0), _log_integral(tied.product, 1.0 - power)
    return (whole - left) / power - whole


def _log_integral(product: Product, share: Any) -> Float[Array, ""]:
    """log ∫ N(v | 0, I) t(v)^share."""
    part = product.times(share)
    belief = Belief.given(part)
    return 0.5 * (jnp.sum(part.linear * belief.mean) - belief.log_det)


@jax.jit
def _distance_to(tied: Tied, proposal: Product) -> Float[Array, ""]:
    """How far t is from the proposal, in posterior standard deviations of v and relative changes of its precision."""
    half = tied.belief.half.reshape(tied.belief.half.shape[0], -1)
    gap = proposal.precision - tied.product.precision
    move = (proposal.linear - tied.product.linear).reshape(-1) - gap @ tied.belief.mean.reshape(-1)
    return jnp.maximum(jnp.max(jnp.abs(half @ move)), jnp.max(jnp.abs(half @ gap @ half.T)))


@jax.jit
def towards(product: Product, proposal: Product, step_size: Any) -> Product:
    """A part of the way from one product to another."""
    return product.times(1.0 - step_size) + proposal.times(step_size)


# The runs -----------------------------------------------------------------------------------------


class _Ending(NamedTuple):
    status: Status
    energy: float
    residual: float
    steps: int
    history: list[tuple[float, float, float]]


class BatchRun:
    """One call of `infer` in batches."""

    def __init__(
        self, model: Model, x: Any, y: Any, method: Any, step: Step | None, batch_size: int | None, key: Any, tol: float
    ):
        chosen, _ = check_choices(model, method, None)
        self.model, self.method = model, check_batches(model, chosen, step, batch_size)
        self.fixed = None if step is None else float(np.asarray(step.rho))  # pyright: ignore[reportAttributeAccessIssue]
        self.tol = float(parameter(tol, "tol", lower=0.0, strict=False))
        prior = model.prior
        assert isinstance(prior, SparseGP)
        self.prior = prior
        sample = prior.new_sample()
        self.rows = Rows(x, y, model, None if sample is None else sample.see)
        # Only what is looked at in batches is ever traced with the prior: the inducing inputs are in the projection.
        projection = to_host(_project(prior, prior.inducing_for(sample)))
        self.shared = Shared(prior, projection, self.method)
        self.mesh = mesh_of_rows()
        self.size = min(self.rows.count, WHOLE_PASS if batch_size is None else batch_size)
        self.filled = whole_share(self.size, self.mesh)
        self.batched = batch_size is not None and batch_size < self.rows.count
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(0 if key is None else key))))

    def run(self, max_steps: int, progress: bool) -> Result:
        with RowProgress(progress, self.rows.count, max_steps) as bar, explained():
            if self.prior.storage == "tied":
                return self._run_tied(max_steps, bar)
            return self._run_kept(max_steps, bar)

    def _batches(self, shuffled: bool, bar: "RowProgress") -> Iterator[tuple[Batch, DeviceRows]]:
        for batch in self.rows.batches(self.size, self.rng if shuffled else None, self.filled):
            yield batch, on_devices(batch, self.model.likelihood, self.mesh)
            bar.saw(batch.count)

    # All sites kept

    def _run_kept(self, max_steps: int, bar: "RowProgress") -> Result:
        kept = everywhere(_begin_kept(self.shared, self.rows.count), self.mesh)
        step_size = self._first_step()
        status, history, before = Status.MAX_STEPS, [], np.inf
        seen = None
        for _ in range(max_steps):
            kept = eqx.tree_at(_of_this_pass, kept, replace_fn=jnp.zeros_like)
            for _, rows in self._batches(True, bar):
                kept = _visit(self.shared, rows, kept, step_size, self.rows.count)
            largest, squares = float(kept.largest), float(kept.squares)
            history.append((float(kept.energies) / max(1, int(kept.batches)), largest, step_size))
            bar.passed(history[-1][0])
            if not np.isfinite(largest):
                break
            seen = None
            if self.tol > 0.0 and largest <= self.tol and int(kept.refused) == 0:
                seen = self._inspect(kept, bar)
                if seen.residual <= self.tol:
                    status = Status.CONVERGED
                    break
            if self.fixed is None:
                longer = min(1.5 * step_size, self._first_step())
                step_size = max(0.5 * step_size, _PATIENT) if squares > before else longer
            before = squares
        seen = self._inspect(kept, bar) if seen is None else seen
        if not np.isfinite(seen.energy):
            status = Status.IMPROPER_CAVITY if not seen.proper else Status.NON_FINITE
        ending = _Ending(status, seen.energy, seen.residual, len(history), history)
        belief = kept.belief
        log_normaliser = float(seen.constant + 0.5 * jnp.sum(kept.product.linear * belief.mean) - 0.5 * belief.log_det)
        return self._result(ending, belief, log_normaliser, to_host(kept.sites), seen.marginals, seen.whole)

    def _first_step(self) -> float:
        if self.fixed is not None:
            return self.fixed
        return _RIEMANNIAN if isinstance(self.method.safeguard, Riemannian) else 1.0

    def _inspect(self, kept: _Kept, bar: "RowProgress") -> "_Inspected":
        latents, count = self.prior.num_latents, self.rows.count
        blank = Gaussian(np.zeros((count, latents)), np.zeros((count, latents, latents)))
        marginals, whole = blank, jax.tree.map(np.copy, blank)
        energy, largest, constant, proper = 0.5 * float(kept.belief.distance + kept.belief.log_det), 0.0, 0.0, True
        for batch, rows in self._batches(False, bar):
            seen = to_host(_inspect(self.shared, rows, kept))
            energy, constant = energy + float(seen.energy), constant + float(seen.constant)
            largest, proper = max(largest, float(seen.largest)), proper and bool(seen.proper)
            inside = np.arange(self.filled) < batch.count
            for into, found in ((marginals, seen.marginals), (whole, seen.whole)):
                jax.tree.map(lambda a, b, r=batch.index[inside], i=inside: a.__setitem__(r, b[i]), into, found)
        return _Inspected(energy, largest, constant, proper, marginals, whole)

    # Tied

    def _run_tied(self, max_steps: int, bar: "RowProgress") -> Result:
        product = everywhere(nothing(self.prior, self.shared.projection), self.mesh)
        history: list[tuple[float, float, float]] = []
        if self.batched:
            product = self._stochastic(product, max_steps, history, bar)
        ending, tied = self._passes(product, max_steps, history, bar)
        log_normaliser = float(_log_integral(tied.product, 1.0))
        return self._result(ending, tied.belief, log_normaliser, None, None, None)

    def _given(self, product: Product) -> Tied:
        return _given(self.method, product, float(max(1, self.rows.observed)))

    def _stochastic(self, product: Product, max_steps: int, history: list, bar: "RowProgress") -> Product:
        """Steps from one batch to the next, until the energy falls no more than its own noise over two passes."""
        tied, steps, previous = self._given(product), 0, None
        batches = -(-self.rows.count // self.size)
        for _ in range(max_steps - 1):
            energies = []
            step_size = 0.0
            for batch, rows in self._batches(True, bar):
                proposal, energy = proposals(self.shared, rows, tied)
                scale = self.rows.count / batch.count
                energies.append(scale * energy + global_energy(self.method, tied))
                # ρ falls as one over the number of passes, so that all rows come to have the same weight.
                step_size = 2.0 / (batches + steps + 2.0) if self.fixed is None else self.fixed
                tied = self._step(tied, proposal.times(scale), step_size * batch.count / self.size)
                steps += 1
            values = np.array([float(each) for each in energies])
            mean, error = float(np.mean(values)), float(np.std(values) / np.sqrt(max(1, len(values) - 1)))
            history.append((mean, np.nan, step_size))
            bar.passed(mean)
            if not np.isfinite(mean) or (
                previous is not None and previous[0] - mean < 2.0 * np.hypot(error, previous[1])
            ):
                break
            previous = mean, error
        return tied.product

    def _step(self, tied: Tied, proposal: Product, step_size: float) -> Tied:
        """A step towards the proposal, shorter where the posterior would not be a distribution."""
        while step_size > SHORTEST:
            trial = self._given(towards(tied.product, proposal, step_size))
            if bool(trial.belief.proper):
                return trial
            step_size *= 0.5
        return tied

    def _passes(self, product: Product, max_steps: int, history: list, bar: "RowProgress") -> tuple[_Ending, Tied]:
        """Steps from one pass over all rows to the next: what `infer` does, without a site for any row."""
        step_size, best, tied = 1.0 if self.fixed is None else self.fixed, None, self._given(product)
        status, steps = Status.MAX_STEPS, len(history)
        while True:
            point = self._pass(tied, bar)
            if best is not None and not self._is_better(point, best, step_size):
                if self.fixed is not None:
                    status = Status.NON_FINITE if bool(tied.belief.proper) else Status.IMPROPER_POSTERIOR
                    break
                step_size *= 0.5
                if step_size < SHORTEST:
                    status = Status.STEP_TOO_SMALL
                    break
            else:
                if best is not None:
                    steps += 1
                    history.append((point.energy, point.residual, step_size))
                    bar.passed(point.energy)
                    if self.fixed is None:
                        step_size = min(1.0, 2.0 * step_size)
                elif not np.isfinite(point.energy):
                    return _Ending(Status.NON_FINITE, point.energy, point.residual, steps, history), tied
                best = point
                if self.tol > 0.0 and point.residual <= self.tol:
                    status = Status.CONVERGED
                    break
                if steps >= max_steps:
                    break
            tied = self._given(towards(best.tied.product, best.proposal, step_size))
        return _Ending(status, best.energy, best.residual, steps, history), best.tied

    def _pass(self, tied: Tied, bar: "RowProgress") -> "_Point":
        """The energy at a fixed q, and the proposal of all rows together."""
        totals = None
        for _, rows in self._batches(False, bar):
            found = proposals(self.shared, rows, tied)
            totals = found if totals is None else _add(totals, found)
        assert totals is not None
        proposal, energy = totals
        whole = float(energy + global_energy(self.method, tied))
        objective = whole - (0.5 * float(tied.belief.log_det) if self.method.objective == "log_joint" else 0.0)
        return _Point(tied, proposal, whole, objective, float(_distance_to(tied, proposal)))

    def _is_better(self, point: "_Point", best: "_Point", step_size: float) -> bool:
        sound = bool(point.tied.belief.proper) and np.isfinite(point.energy) and np.isfinite(point.residual)
        if not sound or self.fixed is not None:
            return sound
        if self.method.objective is None:
            return point.residual <= best.residual or step_size <= _PATIENT
        change = point.objective - best.objective
        if abs(change) <= 1e-13 * (abs(point.objective) + self.rows.count):
            return point.residual <= best.residual
        return change < 0.0

    def _result(self, ending: _Ending, belief: Belief, log_normaliser, sites, marginals, whole) -> Result:
        columns = [np.array(column, dtype=float) for column in zip(*ending.history, strict=True)] or [np.zeros(0)] * 3
        posterior = SparsePosterior(
            whole, log_normaliser, self.prior, to_host(self.shared.projection), *to_host((belief.mean, belief.half))
        )
        return Result(
            model=self.model,
            method=self.method,
            data=self.rows.held,
            status=ending.status,
            energy=ending.energy,
            residual=ending.residual,
            steps=ending.steps,
            history=History(*columns),
            sites=sites,
            marginals=whole,
            site_marginals=marginals,
            condition=lambda: posterior,
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Among several processes, what the runtime says when one is gone is about sockets."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise RuntimeError(
            f"inference on {jax.process_count()} processes has ended in process {jax.process_index()}, most likely "
            "because another one is gone: see what that one said last, and start all of them again"
        ) from error


class _Inspected(NamedTuple):
    energy: float
    residual: float
    constant: float
    proper: bool
    marginals: Gaussian
    whole: Gaussian


class _Point(NamedTuple):
    tied: Tied
    proposal: Product
    energy: float
    objective: float
    residual: float


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _project(prior: SparseGP, inducing: tuple[Any, ...]) -> Projection:
    return Projection.to(prior.kernel, inducing)


def _of_this_pass(kept: _Kept) -> Any:
    return kept.largest, kept.squares, kept.energies, kept.batches, kept.refused


def check_batches(model: Model, method: Any, step: Any, batch_size: Any) -> Method:
    """The method; ValueError if it cannot be used in batches."""
    if not isinstance(model.prior, SparseGP):
        raise ValueError(
            f"batch_size needs a prior that can be updated by a few rows, SparseGP, got {type(model.prior).__name__}"
        )
    if batch_size is not None and (
        not isinstance(batch_size, (int, np.integer)) or isinstance(batch_size, bool) or batch_size < 1
    ):
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")
    if isinstance(method, FirstOrderVI):
        raise ValueError("FirstOrderVI moves the sites of all rows at once: use VI() in batches")
    if step is not None and not isinstance(step, Constant):
        raise ValueError(
            f"in batches the step is Constant(rho), or left out for one that adapts itself, got {step!r}: the "
            "energy of a few rows cannot tell whether to backtrack"
        )
    remembers = isinstance(method.curvature, QuasiNewton) or isinstance(method.safeguard, Riemannian)
    if remembers and model.prior.storage == "tied":
        name = "quasi-Newton" if isinstance(method.curvature, QuasiNewton) else "Riemannian"
        raise ValueError(
            f'{name} methods remember something of every row, and storage="tied" keeps nothing of any: use '
            'storage="full", or Exact() or GaussNewton() curvature without a Riemannian safeguard'
        )
    return method


class RowProgress:
    """A progress bar with the rows per second, or nothing at all."""

    def __init__(self, wanted: bool, rows: int, passes: int):
        self.wanted, self.rows, self.passes = wanted, rows, passes
        self.seen, self.done, self.start = 0, 0, time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> "RowProgress":
        if self.wanted:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.task = self.bar.add_task("inference", total=self.rows * self.passes)
            self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def saw(self, rows: int) -> None:
        self.seen += rows
        if self.bar is not None:
            self.bar.update(self.task, completed=min(self.seen, self.rows * self.passes))

    def passed(self, energy: float) -> None:
        self.done += 1
        if self.bar is not None:
            rate = self.seen / (time.perf_counter() - self.start)
            self.bar.update(self.task, description=f"pass {self.done}, energy {energy:.6g}, {rate:,.0f} rows/s")
