"""Hyperparameter learning in batches of rows, for sparse GPs: `fit` for data larger than memory.

What is known of f is kept as the product t of all sites, whatever the prior stores, and every batch does two things.
Its proposals are an estimate of the next t, as in `minibatch.py`; and its rows, as many times as they fit into the
data, give an unbiased estimate of the gradient of the energy of q ∝ p t in the hyperparameters at a fixed t, for one
step of Adam. Where t is at its fixed point, and the method's energy stationary there (`sec:gp`), that is the gradient
of the energy itself. The prior's part of it is exact, and so the larger its part is, the less noise there is.

That depends on what t is a function of, since something must stay as it is while hyperparameters change. Whitened
values v are a poor choice: with another variance or mean they stand for another f, and it takes the data to say that
f is where it was. The values u of f at the inducing inputs are the right one wherever they can be told from each
other (Adam, Chang, Khan and Solin, *Dual parameterization of sparse variational Gaussian processes*, 2021).

How long a run takes is decided by the energy. Once it falls by no more than its own noise, the learning rate does,
from the mean of the last iterates on; after the smallest rate that mean is the answer.
"""

import functools
import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import linalg
from .choices import check_choices
from .data import Data
from .devices import everywhere, kept_everywhere, mesh_of_rows, whole_share
from .fitted import FitResult, tied_names
from .fitting import _RATIOS, _at_bound, _kept_inside, _Space
from .guesses import guess, plausible, scales_of, unit_of
from .infer import infer
from .kernels import gram, latent_kernels
from .likelihoods.base import over_rows
from .likelihoods.partial import PartlyObserved
from .methods.curvature import QuasiNewton
from .methods.energy import tied_row_energy
from .methods.rule import Method
from .methods.safeguard import Riemannian
from .minibatch import (
    SHORTEST,
    WHOLE_PASS,
    DeviceRows,
    Product,
    RowProgress,
    Shared,
    Tied,
    check_batches,
    explained,
    global_energy,
    is_finite,
    look_up,
    nothing,
    on_devices,
    proposals,
    select,
    towards,
)
from .model import Model
from .parameters import Slot, choose, values_of, with_values
from .precision import parameter, to_host
from .predict import as_key
from .priors.by_name import for_columns
from .priors.inducing import MOST_ROWS, Sample
from .priors.sparse import Projection, SparseGP
from .results import ConvergenceWarning, InferenceError, Result, Status
from .rows import Batch, Rows

_PHASES = 5
_SLOWER = 0.5
"""How much smaller the learning rate is from phase to phase."""
_STRETCH = 200
"""Batches over which an energy is taken, where a pass has far more than that."""
_SMALL = 1e-3
"""The ε below which eigenvalues of a correlation matrix count as small."""
_WINDOW = 8
"""Stretches in which the energy must have come to rest."""
_FEWEST_STEPS = 30
"""In a window: Adam swings about for a while after the rate has changed."""
_MEMORY = 100
"""Batches that t(v) is an average of, at most, as long as hyperparameters still move a lot."""
_LOOKED_AT = 2**11
"""Rows of a first look at several starts."""
_ROUNDS = 12
_SETTLING = 0.7
"""Steps towards t(v) in a first look, and their size."""
_ALL_AT_ONCE = 20_000
"""Up to so many rows in memory, the last inference is without batches."""
_FEWEST_ROWS = 128
_BATCHES = 16
"""A batch that nobody chose has at least so many rows, and a pass this number of batches."""


# Coordinates that hyperparameters leave in place -----------------------------------------------------------------


class _Coordinates(eqx.Module):
    """Between whitened values v and z = μ(Z) + S (C + ε)^(½) v, for K(Z, Z) = SCS with C of unit diagonal.

    u = μ(Z) + S C^(½) v: where C is not small, z is u, of which data speak whatever the hyperparameters are. Where it
    is, u would be magnified out of all proportion on the way to v, and z is v in other units.
    """

    means: Float[Array, "D M"]
    to_z: Float[Array, "D M M"]
    to_v: Float[Array, "D M M"]

    def product_of_v(self, product: Product) -> Product:
        """A product as a function of z → as one of v."""
        return _substituted(_moved(product, -self.means), self.to_z)

    def product_of_z(self, product: Product) -> Product:
        """A product as a function of v → as one of z."""
        return _moved(_substituted(product, self.to_v), self.means)


def _moved(product: Product, by: Float[Array, "D M"]) -> Product:
    """A product of something, as a function of that plus a constant."""
    return Product(product.linear + (product.precision @ by.reshape(-1)).reshape(by.shape), product.precision)


def _substituted(product: Product, matrices: Float[Array, "D M M"]) -> Product:
    """A product of the matrices times something, as a function of that."""
    latents, size = product.linear.shape
    linear = jnp.einsum("dai,da->di", matrices, product.linear)
    precision = product.precision.reshape(latents, size, latents, size)
    precision = jnp.einsum("dai,daej->diej", matrices, jnp.einsum("daeb,ebj->daej", precision, matrices))
    return Product(linear, linalg.symmetrise(precision.reshape(latents * size, latents * size)))


def _whitened(prior: SparseGP) -> tuple[Projection, _Coordinates]:
    """The projection on the inducing inputs, and the coordinates that go with it."""
    inducing = prior.inducing_for(None)
    size = max(each.shape[0] for each in inducing)
    whitening, columns = [], []
    for latent, (kernel, inputs) in enumerate(zip(latent_kernels(prior.kernel), inducing, strict=True)):
        matrix = gram(kernel, inputs, inputs)
        squares = jnp.diagonal(matrix)
        scales = jnp.sqrt(jnp.where(squares > 0.0, squares, 1.0))
        inverse = jnp.where(squares > 0.0, 1.0 / scales, 0.0)
        inverse_root, root, inverse_of_root = _roots(inverse[:, None] * matrix * inverse[None, :])
        whitening.append(inverse_root * inverse[None, :])
        # Latents with fewer inducing inputs get zeros, as they do in their features.
        rest = (0, size - inputs.shape[0])
        columns.append(
            (
                jnp.pad(prior.mean.means(inputs)[:, latent], rest),
                jnp.pad(scales[:, None] * root, (rest, rest)),
                jnp.pad(inverse_of_root / scales[None, :], (rest, rest)),
            )
        )
    return Projection(inducing, tuple(whitening)), _Coordinates(*map(jnp.stack, zip(*columns, strict=True)))


@jax.custom_jvp
def _roots(matrix: Float[Array, "M M"]) -> tuple[Any, Any, Any]:
    """C^(−½), (C + ε)^(½) and (C + ε)^(−½), the first zero in directions in which C is no more than rounding."""
    weights, vectors = _spectrum(matrix)
    return _of_eigenvalues(weights, vectors)


def _spectrum(matrix: Float[Array, "M M"]) -> tuple[Float[Array, " M"], Float[Array, "M M"]]:
    """One over the roots of the eigenvalues, and the eigenvectors, one a row; zero for those that are left out."""
    rows = linalg.whitening(matrix)
    weights = jnp.sqrt(jnp.sum(rows**2, axis=1))
    return weights, rows / jnp.where(weights > 0.0, weights, 1.0)[:, None]


def _widened_roots(weights: Float[Array, " M"]) -> Float[Array, " M"]:
    """√(λ + ε)."""
    kept = weights > 0.0
    return jnp.sqrt(jnp.where(kept, 1.0 / jnp.where(kept, weights, 1.0) ** 2, 0.0) + _SMALL)


def _of_eigenvalues(weights: Float[Array, " M"], vectors: Float[Array, "M M"]) -> tuple[Any, Any, Any]:
    roots, small = _widened_roots(weights), jnp.sqrt(_SMALL)
    identity = jnp.eye(weights.shape[0])
    return (
        vectors.T @ (weights[:, None] * vectors),
        small * identity + vectors.T @ ((roots - small)[:, None] * vectors),
        identity / small + vectors.T @ ((1.0 / roots - 1.0 / small)[:, None] * vectors),
    )


@_roots.defjvp
def _roots_jvp(primals, tangents):
    # Divided differences of functions of λ: no eigenvalue is subtracted from another, so they may be equal.
    (matrix,), (change,) = primals, tangents
    weights, vectors = _spectrum(matrix)
    inner = vectors @ change @ vectors.T

    def moved(ratios):
        return vectors.T @ (ratios * inner) @ vectors

    sums, products = weights[:, None] + weights[None, :], weights[:, None] * weights[None, :]
    roots = _widened_roots(weights)
    of_roots = 1.0 / (roots[:, None] + roots[None, :])
    slopes = (
        moved(-(products**2) / jnp.where(sums > 0.0, sums, 1.0)),
        moved(of_roots),
        moved(-of_roots / (roots[:, None] * roots[None, :])),
    )
    return _of_eigenvalues(weights, vectors), slopes


# One batch -------------------------------------------------------------------------------------------------------


class _Constants(eqx.Module):
    """What stays the same from batch to batch."""

    prior: SparseGP
    method: Method
    units: Any
    low: Any
    high: Any
    """Bounds of the free numbers over their units."""
    total: Any
    """The number of rows."""
    observed: Any
    """The number of those with some y."""


class _State(eqx.Module):
    """Between two batches: the free numbers over their units, Adam's moments, t(v), and sums over this stretch."""

    scaled: Float[Array, " K"]
    moments: Any
    product: Product
    iterates: Float[Array, " K"]
    energies: Float[Array, ""]
    """Of rows."""
    shared_energies: Float[Array, ""]
    """What t(v) adds, times rows."""
    rows: Float[Array, ""]
    steps: Float[Array, ""]
    refused: Float[Array, ""]
    """Batches whose gradient was not finite."""


def _adam() -> Any:
    # Imported here, since it takes a tenth of a second and few need it.
    import optax

    return optax.scale_by_adam(b2=0.99)


def _begin(scaled: Any, product: Product) -> _State:
    """The state before the first batch."""
    zeros, zero = jnp.zeros(scaled.shape), jnp.zeros(())
    return _State(jnp.asarray(scaled), _adam().init(zeros), product, zeros, zero, zero, zero, zero, zero)


def _sums(state: _State) -> Any:
    return state.iterates, state.energies, state.shared_energies, state.rows, state.steps, state.refused


class _Holder(eqx.Module):
    """What has the paths of a model, and no checks."""

    prior: Any
    likelihood: Any


def _at(
    slots: tuple[Slot, ...], constants: _Constants, rows: DeviceRows, free: Any
) -> tuple[Shared, DeviceRows, _Coordinates]:
    """The model and a batch with these hyperparameters, and the coordinates in which t is kept."""
    partly = isinstance(rows.likelihood, PartlyObserved)
    bare = rows.likelihood.whole if isinstance(rows.likelihood, PartlyObserved) else rows.likelihood
    holder = with_values(slots, _Holder(constants.prior, bare), values_of(slots, free))
    likelihood = eqx.tree_at(lambda outer: outer.whole, rows.likelihood, holder.likelihood) if partly else None
    likelihood = holder.likelihood if likelihood is None else likelihood
    projection, coordinates = _whitened(holder.prior)
    here = eqx.tree_at(lambda batch: batch.likelihood, rows, likelihood)
    return Shared(holder.prior, projection, constants.method), here, coordinates


def _energy_of_rows(shared: Shared, rows: DeviceRows, tied: Tied) -> Float[Array, ""]:
    """The rows' share of the energy."""
    method = shared.method
    features, extra, prior_mean = look_up(shared, rows)
    marginals = tied.belief.marginals(prior_mean, features)
    without = tied.cavity.marginals(prior_mean, features) if method.target.energy == "pep" else marginals

    def row(likelihood, y, observed, marginal, cavity, extra):
        kind, power = method.target.energy, method.energy_power
        energy = tied_row_energy(kind, power, likelihood, y, marginal, cavity, method.cubature, extra)
        return jnp.where(observed, energy, 0.0)

    return jnp.sum(over_rows(row, rows.likelihood, (rows.y, rows.observed, marginals, without, extra)))


def _energy_of_product(method: Method, tied: Tied, rows: Any) -> Float[Array, ""]:
    """What t(v) adds, with the N-th part of it for every row: what the gradient at a fixed q belongs to."""
    if method.target.energy != "pep":
        return global_energy(method, tied)

    def log_integral(belief, share):
        return 0.5 * (share * jnp.sum(tied.product.linear * belief.mean) - belief.log_det)

    share = method.energy_power / rows
    whole, left = log_integral(tied.belief, 1.0), log_integral(tied.cavity, 1.0 - share)
    return (whole - left) / share - whole


@functools.partial(jax.jit, static_argnums=0)
def energy_and_gradient(
    slots: tuple[Slot, ...], constants: _Constants, rows: DeviceRows, free: Any, kept: Product, share: Any
) -> tuple[tuple[Float[Array, ""], Float[Array, ""]], Float[Array, " K"]]:
    """The energies of some rows and of t, and the gradient of an estimate of the whole energy in the free numbers.

    The estimate has `share` of the rows' energy for those of all rows.
    """

    def energy(free):
        shared, here, coordinates = _at(slots, constants, rows, free)
        tied = Tied.given(constants.method, coordinates.product_of_v(kept), constants.observed)
        parts = _energy_of_rows(shared, here, tied), _energy_of_product(constants.method, tied, constants.observed)
        return parts[0] / share + parts[1], parts

    (_, parts), gradient = jax.value_and_grad(energy, has_aux=True)(free)
    return parts, gradient


def _updated(constants: _Constants, tied: Tied, proposal: Product, step_size: Any) -> Product:
    """A step towards a proposal, shorter where the posterior or a cavity would not be a distribution."""
    goal = select(is_finite(proposal), proposal, tied.product)

    def attempt(size):
        product = towards(tied.product, goal, size)
        trial = Tied.given(constants.method, product, constants.observed)
        return size, product, trial.belief.proper & trial.cavity.proper

    def wrong(trial):
        size, _, proper = trial
        return ~proper & (size > SHORTEST)

    first = attempt(jnp.asarray(step_size, dtype=float))
    _, product, proper = jax.lax.while_loop(wrong, lambda trial: attempt(0.5 * trial[0]), first)
    return select(proper, product, tied.product)


@functools.partial(jax.jit, static_argnums=0)
def _advance(
    slots: tuple[Slot, ...],
    constants: _Constants,
    rows: DeviceRows,
    state: _State,
    pull: Float[Array, " K"],
    rate: Any,
    step_size: Any,
    size: Any,
) -> _State:
    """One step of Adam, of a batch of so many rows when it is whole, and one towards its proposals.

    `pull` is the gradient of minus the log prior density of the hyperparameters.
    """
    free = state.scaled * constants.units
    shared, here, coordinates = _at(slots, constants, rows, free)
    tied = Tied.given(constants.method, coordinates.product_of_v(state.product), constants.observed)
    # The gradient is at the t of earlier batches: one that has seen these very rows would fit them too well.
    share = rows.count / constants.total
    (energy, energy_of_product), slope = energy_and_gradient(slots, constants, rows, free, state.product, share)
    # The last batch of a pass may be a small one: it counts for as much as it has rows.
    weight = rows.count / size
    gradient = weight * (slope + pull) * constants.units
    fine = jnp.isfinite(energy) & jnp.all(jnp.isfinite(gradient))
    moves, moments = _adam().update(jnp.where(fine, gradient, 0.0), state.moments)
    scaled = jnp.clip(state.scaled - rate * moves, constants.low, constants.high)
    scaled, moments = select(fine, (scaled, moments), (state.scaled, state.moments))
    proposal, _ = proposals(shared, here, tied)
    product = _updated(constants, tied, proposal.times(1.0 / share), weight * step_size)
    after = _State(
        scaled,
        moments,
        coordinates.product_of_z(product),
        state.iterates + scaled,
        state.energies + energy,
        state.shared_energies + rows.count * energy_of_product,
        state.rows + rows.count,
        state.steps + 1.0,
        state.refused + jnp.where(fine, 0.0, 1.0),
    )
    return kept_everywhere(after, rows.mesh)


@functools.partial(jax.jit, static_argnums=0)
def _settle(slots: tuple[Slot, ...], constants: _Constants, rows: DeviceRows, free: Any) -> tuple[Any, Product]:
    """The lowest energy that some steps with these rows alone lead to, as if they were all, and its t(v)."""
    shared, here, coordinates = _at(slots, constants, rows, free)
    scale = constants.total / rows.count
    start = nothing(shared.prior, shared.projection)

    def step(_, carried):
        product, lowest, best = carried
        tied = Tied.given(constants.method, product, constants.observed)
        proposal, energy = proposals(shared, here, tied)
        total = scale * energy + _energy_of_product(constants.method, tied, constants.observed)
        lower = total < lowest
        lowest, best = jnp.where(lower, total, lowest), select(lower, product, best)
        return _updated(constants, tied, proposal.times(scale), _SETTLING), lowest, best

    _, lowest, best = jax.lax.fori_loop(0, _ROUNDS + 1, step, (start, jnp.asarray(jnp.inf, dtype=float), start))
    return kept_everywhere((lowest, coordinates.product_of_z(best)), rows.mesh)


# What is known before the first batch ----------------------------------------------------------------------------


class _Start(NamedTuple):
    """The model with its inducing inputs chosen, what is learned of it, and rows drawn from the data."""

    model: Model
    rows: Rows
    space: _Space
    guessed: list[np.ndarray]
    drawn: Batch


def _read(
    model: Model, x: Any, y: Any, wishes: Mapping[str, Any] | None, weak_priors: bool, rng: np.random.Generator
) -> _Start:
    prior = model.prior
    assert isinstance(prior, SparseGP)
    # Made even where inducing inputs are given: it knows how many columns there are.
    sample = Sample(prior.seed)
    rows = Rows(x, y, model, sample.see)
    model = Model(for_columns(prior, sample.rows.shape[1]), model.likelihood)
    drawn = _draw(rows, MOST_ROWS, rng)
    # Scales are those of outputs as they are, with the row parameters of the rows that were drawn.
    bare = drawn._replace(data=drawn.data._replace(seen=None)).likelihood(model.likelihood)
    scales = scales_of(Model(model.prior, bare), drawn.data)
    if prior.inducing is None:
        free = choose(model, None)
        start = with_values(tuple(each.slot for each in free), model, guess(model, scales, free))
        chosen = start.prior.inducing_for(sample)
        model = Model(model.prior.with_inducing(chosen), model.likelihood)  # pyright: ignore[reportAttributeAccessIssue]
    learned = choose(model, wishes)
    guessed = guess(model, scales, learned)
    priors = [
        each.prior if each.prior is not None or not weak_priors else plausible(model, scales, each, start)
        for each, start in zip(learned, guessed, strict=True)
    ]
    space = _Space(learned, priors, [unit_of(model, scales, each) for each in learned])
    return _Start(model, rows, space, guessed, drawn)


def _draw(rows: Rows, most: int, rng: np.random.Generator) -> Batch:
    """At most so many rows at random, in the order of the data."""
    keys, kept = np.zeros(0), None
    for batch in rows.batches(min(rows.count, WHOLE_PASS)):
        here = _columns(batch.data, slice(0, batch.count))
        index = batch.index[: batch.count] if kept is None else np.append(kept[0], batch.index[: batch.count])
        data = here if kept is None else _joined(kept[1], here)
        keys = np.append(keys, rng.random(batch.count))
        first = np.sort(np.argsort(keys)[:most])
        keys, kept = keys[first], (index[first], _columns(data, first))
    assert kept is not None
    order = np.argsort(kept[0])
    return Batch(kept[0][order], _columns(kept[1], order), len(order))


def _columns(data: Data, rows: Any) -> Data:
    return Data(*(None if leaf is None else leaf[rows] for leaf in data))  # pyright: ignore[reportArgumentType]


def _joined(first: Data, second: Data) -> Data:
    pairs = zip(first, second, strict=True)
    return Data(*(None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs))  # pyright: ignore


# The run ---------------------------------------------------------------------------------------------------------


class _Learner:
    """One call of `fit` in batches: where it is, and what decides that it goes on."""

    def __init__(self, start: _Start, method: Method, step: Any, batch_size: int | None, rate: float, key: Any):
        self.start, self.space, self.rows = start, start.space, start.rows
        self.method = method
        self.fixed = None if step is None else float(np.asarray(step.rho))
        self.rate = rate
        self.seed = np.asarray(jax.random.key_data(as_key(key))).tolist()
        self.mesh = mesh_of_rows()
        by_default = min(max(-(-self.rows.count // _BATCHES), _FEWEST_ROWS), WHOLE_PASS)
        self.size = min(self.rows.count, by_default if batch_size is None else batch_size)
        self.filled = whole_share(self.size, self.mesh)
        self.batches = -(-self.rows.count // self.size)
        self.stretch = -(-self.batches // max(1, round(self.batches / _STRETCH)))
        self.window = max(_WINDOW, -(-_FEWEST_STEPS // self.stretch))
        # Where it is now
        self.state: _State
        self.safe: _State
        """At the end of the last stretch with a finite energy."""
        self.passes, self.done, self.steps, self.phase = 0, 0, 0, 0
        self.head_start = 0.0
        """What a first look has told of t(v), in batches."""
        self.status = Status.RUNNING
        self.trace: list[float] = []
        self.energies: list[float] = []
        self.iterates: list[np.ndarray] = []
        """Of the stretches of this phase."""

    # Before the first batch

    def begin(self) -> None:
        """Look at several starts with some of the rows, and begin with the best."""
        drawn = self.start.drawn
        rng = self._generator(0)
        chosen = np.sort(rng.permutation(drawn.count)[:_LOOKED_AT])
        filled = whole_share(len(chosen), self.mesh)
        rows = np.append(chosen, np.zeros(filled - len(chosen), dtype=int))
        data = _columns(drawn.data, rows)
        data = data._replace(observed=data.observed & (np.arange(filled) < len(chosen)))
        batch = on_devices(Batch(drawn.index[rows], data, len(chosen)), self.start.model.likelihood, self.mesh)
        middle = self.space.free_of(self.start.guessed)
        constants = self._constants(middle)
        lowest, best, product = np.inf, middle, None
        for free in self._candidates(middle):
            energy, found = _settle(self.space.slots, constants, batch, free)
            total = float(energy) + self.space.penalty(free)[0]
            if product is None or total < lowest:
                lowest, best, product = total, free, found
        assert product is not None
        self.constants = everywhere(self._constants(best), self.mesh)
        self.head_start = len(chosen) / self.size
        self.state = self.safe = everywhere(_begin(best / self.space.units, product), self.mesh)

    def _candidates(self, middle: np.ndarray) -> Iterator[np.ndarray]:
        yield middle
        yield self.space.free_of([each.start for each in self.space.learned])
        for ratio in _RATIOS:
            pairs = zip(self.space.learned, self.start.guessed, strict=True)
            yield self.space.free_of(
                [
                    _kept_inside(value * ratio, each) if each.unit == "x" and not each.given_start else value
                    for each, value in pairs
                ]
            )

    def _constants(self, start: np.ndarray) -> _Constants:
        low, high = np.asarray(self.space.bounds(start)).reshape(-1, 2).T
        units = self.space.units
        count, observed = float(self.rows.count), float(max(1, self.rows.observed))
        prior = self.start.model.prior
        assert isinstance(prior, SparseGP)
        return _Constants(prior, self.method, units, low / units, high / units, count, observed)

    def _generator(self, number: int) -> np.random.Generator:
        """Nothing but the key and a number decides what is random: a run that is resumed sees the same rows."""
        return np.random.default_rng([*self.seed, number])

    # Batch by batch

    def run(self, max_steps: int, tol: float, keeper: "_Keeper | None", bar: RowProgress) -> None:
        """Passes over the data, until the energy has come to rest or their number runs out."""
        while self.passes < max_steps and self.status is Status.RUNNING:
            batches = self.rows.batches(self.size, self._generator(self.passes + 1), self.filled)
            for number, batch in enumerate(batches):
                if number < self.done:
                    continue
                self._take(batch)
                bar.saw(batch.count)
                if self.done % self.stretch != 0 and self.done != self.batches:
                    continue
                self._close(tol)
                if self.done == self.batches:
                    self.passes, self.done = self.passes + 1, 0
                if keeper is not None:
                    keeper.write(self)
                if self.status is not Status.RUNNING:
                    break
            bar.passed(self.trace[-1] if self.trace else np.nan)

    def _take(self, batch: Batch) -> None:
        rows = on_devices(batch, self.start.model.likelihood, self.mesh)
        _, pull = self.space.penalty(np.asarray(self.state.scaled) * self.space.units)
        size = float(self.size)
        self.state = _advance(
            self.space.slots, self.constants, rows, self.state, pull, self.current_rate, self._step_size(), size
        )
        self.steps, self.done = self.steps + 1, self.done + 1

    @property
    def current_rate(self) -> float:
        """The learning rate in this phase."""
        return self.rate * _SLOWER**self.phase

    def _step_size(self) -> float:
        """Of the step towards a batch's t(v): all rows count the same at first, later ones for more in the end."""
        if self.fixed is not None:
            return self.fixed
        forgetting = 0.5**self.phase / min(self.batches, _MEMORY)
        return max(2.0 / (self.steps + self.head_start + 3.0), min(forgetting, 1.0))

    def _close(self, tol: float) -> None:
        """The end of a stretch: its energy, and whether that still falls."""
        sums = to_host(_sums(self.state))
        iterates, energies, shared_energies, rows, steps, refused = sums
        mean = iterates / steps
        total = float(energies * self.rows.count / rows + shared_energies / rows)
        total += self.space.penalty(mean * self.space.units)[0]
        self._replace(_sums, jax.tree.map(np.zeros_like, sums))
        if not np.isfinite(total) or refused == steps:
            # Back to where it worked, with smaller steps.
            self.state = self.safe
            self._next_phase(Status.STEP_TOO_SMALL)
            return
        self.safe = self.state
        self.trace.append(total)
        self.energies.append(total)
        self.iterates.append(mean)
        if len(self.energies) >= self.window and is_level(np.array(self.energies[-self.window :]), tol):
            self._replace(lambda state: state.scaled, self.averaged)
            self._next_phase(Status.CONVERGED)

    def _replace(self, where: Callable[[_State], Any], by: Any) -> None:
        self.state = eqx.tree_at(where, self.state, everywhere(by, self.mesh))

    def _next_phase(self, ending: Status) -> None:
        if self.phase + 1 >= _PHASES:
            self.status = ending
            return
        self.phase += 1
        self.energies, self.iterates = [], []

    @property
    def averaged(self) -> np.ndarray:
        """The mean of the iterates of the last stretches, over their units; the last one where none is complete."""
        kept = self.iterates[-self.window :]
        return np.mean(kept, axis=0) if kept else np.asarray(self.state.scaled)

    @property
    def free(self) -> np.ndarray:
        """The best free numbers so far."""
        return self.averaged * self.space.units


def is_level(energies: np.ndarray, tol: float) -> bool:
    """Whether energies do not fall by more than `tol` of their size from one to the next, or not for certain.

    A line is laid through them, and the standard error of its slope is that of what it leaves unexplained.

    >>> bool(is_level(np.array([5.0, 4.0, 3.1, 2.0, 1.0]), 1e-5)), bool(is_level(np.array([5.0, 4.0, 5.0]), 1e-5))
    (False, True)
    """
    count = len(energies)
    places = np.arange(count) - 0.5 * (count - 1)
    spread = float(places @ places)
    slope = float(places @ energies) / spread
    left = energies - np.mean(energies) - slope * places
    error = np.sqrt(float(left @ left) / (count - 2) / spread)
    return -slope <= max(float(error), tol * abs(float(np.mean(energies))))


class _Keeper:
    """A file to resume from, with all that decides how a run goes on."""

    KIND = "newtongp fit checkpoint in batches"
    EVERY = 2.0
    """Seconds between two writings, at least."""

    def __init__(self, path: Any, learner: _Learner):
        self.path, self.written = Path(path), -np.inf
        self.mark = _fingerprint(learner)

    def read(self, learner: _Learner) -> None:
        """Put a learner where an earlier run has been."""
        if not self.path.exists():
            return
        from .storage import read_file

        kept = read_file(self.path, self.KIND)
        if kept.get("mark") != self.mark:
            raise ValueError(
                f"checkpoint {str(self.path)!r} is of another fit: give the same model, data and options as before, or "
                "another file"
            )
        learner.state, learner.safe = (
            everywhere(_restored(getattr(learner, name), kept, name), learner.mesh) for name in ("state", "safe")
        )
        learner.passes, learner.done, learner.steps, learner.phase, status = kept["counters"].tolist()
        learner.status = Status(status)
        learner.trace, learner.energies = kept["trace"].tolist(), kept["energies"].tolist()
        learner.iterates = list(kept["iterates"])

    def write(self, learner: _Learner, now: bool = False) -> None:
        """Replace the file by what is known by now."""
        if not now and time.monotonic() - self.written < self.EVERY:
            return
        from .storage import write_file

        counters = [learner.passes, learner.done, learner.steps, learner.phase, learner.status.value]
        payload = {
            "mark": self.mark,
            "counters": np.array(counters),
            "trace": np.array(learner.trace, dtype=float),
            "energies": np.array(learner.energies, dtype=float),
            "iterates": np.array(learner.iterates, dtype=float).reshape(-1, learner.space.size),
        }
        for name in ("state", "safe"):
            leaves = jax.tree.leaves(to_host(getattr(learner, name)))
            payload |= {f"{name}{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        write_file(self.path, self.KIND, payload)
        self.written = time.monotonic()


def _restored(state: _State, kept: dict[str, Any], name: str) -> _State:
    structure = jax.tree.structure(state)
    return jax.tree.unflatten(structure, [jnp.asarray(kept[f"{name}{i}"]) for i in range(structure.num_leaves)])


def _fingerprint(learner: _Learner) -> str:
    """A text that differs for other data, models and options."""
    digest = hashlib.sha256()
    start = learner.start
    for leaf in jax.tree.leaves((start.model, start.drawn, learner.method)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    options = learner.rows.count, learner.size, learner.rate, learner.fixed, learner.seed
    digest.update(repr((jax.tree.structure((start.model, learner.method)), learner.space.slots, options)).encode())
    return digest.hexdigest()


# The call --------------------------------------------------------------------------------------------------------


def _check(model: Any, method: Any, step: Any, batch_size: Any, restarts: int) -> Method:
    """The method; ValueError if hyperparameters cannot be learned with it in batches."""
    chosen, _ = check_choices(model, method, None)
    if isinstance(chosen, Method):
        remembers = {"quasi-Newton": isinstance(chosen.curvature, QuasiNewton)}
        remembers["Riemannian"] = isinstance(chosen.safeguard, Riemannian)
        for name in (name for name, found in remembers.items() if found):
            raise ValueError(
                f"{name} methods remember something of every row, and learning in batches keeps nothing of any: use "
                "Exact() or GaussNewton() curvature without a Riemannian safeguard, or leave batch_size out"
            )
    chosen = check_batches(model, chosen, step, batch_size)
    if chosen.target.energy == "laplace":
        raise ValueError(
            f"method={chosen.target.name!r} has an energy that changes with its sites, of which batches keep too "
            "little: use VI() or PowerEP(0.5), or leave batch_size out"
        )
    if restarts:
        raise ValueError(f"restarts must be 0 in batches, got {restarts!r}: start several runs with keys of their own")
    return chosen


def fit_in_batches(
    model: Model,
    x: Any,
    y: Any,
    method: Any,
    step: Any,
    *,
    batch_size: int | None,
    learning_rate: float,
    parameters: Mapping[str, Any] | None,
    max_steps: int,
    tol: float,
    restarts: int,
    key: Any,
    weak_priors: bool,
    inference_steps: int,
    progress: bool,
    checkpoint: Any,
    throw: bool,
) -> FitResult:
    """What `fit` does when it is given a batch size."""
    chosen = _check(model, method, step, batch_size, restarts)
    rate = float(parameter(learning_rate, "learning_rate", lower=0.0))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))
    started = time.perf_counter()
    start = _read(model, x, y, parameters, weak_priors, rng)
    learner = _Learner(start, chosen, step, batch_size, rate, key)
    interrupted = False
    if start.space.size:
        learner.begin()
        keeper = None if checkpoint is None else _Keeper(checkpoint, learner)
        if keeper is not None:
            keeper.read(learner)
        with RowProgress(progress, start.rows.count, max_steps) as bar, explained():
            try:
                learner.run(max_steps, tol, keeper, bar)
            except KeyboardInterrupt:
                interrupted = True
        if keeper is not None:
            keeper.write(learner, now=True)
        if not learner.trace and learner.steps and not interrupted:
            raise RuntimeError(
                "no hyperparameters were found with which inference works: try infer with fixed ones first, to see why"
            )
    return _finish(
        learner,
        lambda learnt: _infer(learner, learnt, x, y, step, batch_size, key, inference_steps),
        interrupted,
        started,
        throw,
    )


def _infer(learner: _Learner, model: Model, x, y, step, batch_size, key, inference_steps: int) -> Result:
    """With what was learned: without batches, where the rows are few and in memory."""
    few = learner.rows.held is not None and learner.rows.count <= _ALL_AT_ONCE
    at_once = few and step is None and learner.start.model.prior.storage == "full"  # pyright: ignore
    return infer(
        model,
        x,
        y,
        learner.method,
        step,
        max_steps=max(100, inference_steps),
        throw=False,
        batch_size=None if at_once else batch_size,
        key=None if at_once else key,
    )


def _finish(
    learner: _Learner, inferred: Callable[[Model], Result], interrupted: bool, started: float, throw: bool
) -> FitResult:
    """Infer with what was learned, and put everything together."""
    space = learner.space
    free = learner.free if space.size else np.zeros(0)
    status = learner.status if space.size else Status.CONVERGED
    if status is Status.RUNNING:
        status = Status.INTERRUPTED if interrupted else Status.MAX_STEPS
    values = space.values_at(free)
    result = inferred(with_values(space.slots, learner.start.model, values))
    found = FitResult(
        result,
        status=status,
        learned={slot.name: value for slot, value in zip(space.slots, values, strict=True)},
        priors={slot.name: prior for slot, prior in zip(space.slots, space.priors, strict=True) if prior is not None},
        standard_errors={},
        at_bound=_at_bound(space, free),
        penalty=space.penalty(free)[0],
        fit_history=np.asarray(learner.trace),
        evaluations=learner.steps,
        seconds=time.perf_counter() - started,
        tied=tied_names(space.slots, learner.start.model),
    )
    if result.status.failed and throw:
        raise InferenceError(found)
    if not status.ok and throw:
        warnings.warn(f"{status.name.lower()}: {status.sentence}", ConvergenceWarning, stacklevel=5)
    return found
