"""Hyperparameter learning in batches of rows, for sparse GPs: `fit` for data larger than memory.

What is known of f is kept as the product t of all sites, whatever the prior stores, and every batch does two things.
Its proposals are an estimate of the next t, as in `minibatch/`; and its rows, as many times as they fit into the
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

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.devices import everywhere, mesh_of_rows, whole_share
from .._runtime.double import to_host
from ..inference.compatibility import check_choices
from ..inference.infer import infer
from ..inference.minibatch.product import added_energy, on_devices
from ..inference.minibatch.run import WHOLE_PASS, RowProgress, check_batches, explained
from ..inputs.chunks import Batch, Rows
from ..inputs.data import Data
from ..methods.curvature import QuasiNewton
from ..methods.rule import Method
from ..methods.safeguard import Riemannian
from ..model import Model
from ..priors.by_name import for_columns
from ..priors.inducing import MOST_ROWS, Sample
from ..priors.sparse import SparseGP
from ..results.fit_result import FitResult
from ..results.result import Result
from ..results.status import Status
from ..validation.arguments import as_key
from ..validation.numbers import parameter
from .checkpoint import Checkpoint, fingerprint
from .initial_values import guess, scales_of
from .learned import choose, with_values
from .minibatch_step import Constants, State, advance, begin, settle, sums
from .space import Space, report_failure

_PHASES = 5
_SLOWER = 0.5
"""How much smaller the learning rate is from phase to phase."""
_STRETCH = 200
"""Batches over which an energy is taken, where a pass has far more than that."""
_WINDOW = 8
"""Stretches in which the energy must have come to rest."""
_FEWEST_STEPS = 30
"""In a window: Adam swings about for a while after the rate has changed."""
_MEMORY = 100
"""Batches that t(v) is an average of, at most, as long as hyperparameters still move a lot."""
_LOOKED_AT = 2**11
"""Rows of a first look at several starts."""
_ALL_AT_ONCE = 20_000
"""Up to so many rows in memory, the last inference is without batches."""
_FEWEST_ROWS = 128
_BATCHES = 16
"""A batch that nobody chose has at least so many rows, and a pass this number of batches."""


# What is known before the first batch ----------------------------------------------------------------------------


class _Start(NamedTuple):
    """The model with its inducing inputs chosen, what is learned of it, and rows drawn from the data."""

    model: Model
    rows: Rows
    space: Space
    drawn: Batch


def _read(
    model: Model, x: Any, y: Any, specifications: Mapping[str, Any] | None, weak_priors: bool, rng: np.random.Generator
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
        unconstrained = choose(model, None)
        start = with_values(tuple(each.slot for each in unconstrained), model, guess(model, scales, unconstrained))
        chosen = start.prior.inducing_for(sample)
        model = Model(model.prior.with_inducing(chosen), model.likelihood)  # pyright: ignore[reportAttributeAccessIssue]
    return _Start(model, rows, Space(model, scales, specifications, weak_priors), drawn)


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
        self.state: State
        self.safe: State
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
        constants = self._constants(self.space.middle)
        lowest, best, product = np.inf, self.space.middle, None
        for unconstrained in self.space.starts():
            energy, found = settle(self.space.slots, constants, batch, unconstrained)
            total = float(energy) + self.space.penalty(unconstrained)[0]
            total = total if np.isfinite(total) else np.inf
            if product is None or total < lowest:
                lowest, best, product = total, unconstrained, found
        assert product is not None
        self.constants = everywhere(self._constants(best), self.mesh)
        self.head_start = len(chosen) / self.size
        self.state = self.safe = everywhere(begin(best / self.space.units, product), self.mesh)

    def _constants(self, start: np.ndarray) -> Constants:
        low, high = np.asarray(self.space.bounds(start)).reshape(-1, 2).T
        units = self.space.units
        count, observed = float(self.rows.count), float(max(1, self.rows.observed))
        prior = self.start.model.prior
        assert isinstance(prior, SparseGP)
        return Constants(prior, self.method, units, low / units, high / units, count, observed)

    def _generator(self, number: int) -> np.random.Generator:
        """Nothing but the key and a number decides what is random: a run that is resumed sees the same rows."""
        return np.random.default_rng([*self.seed, number])

    # Batch by batch

    def run(self, max_steps: int, tol: float, checkpoint_writer: "_CheckpointWriter | None", bar: RowProgress) -> None:
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
                if checkpoint_writer is not None:
                    checkpoint_writer.write(self)
                if self.status is not Status.RUNNING:
                    break
            bar.passed(self.trace[-1] if self.trace else np.nan)

    def _take(self, batch: Batch) -> None:
        rows = on_devices(batch, self.start.model.likelihood, self.mesh)
        _, pull = self.space.penalty(np.asarray(self.state.scaled) * self.space.units)
        size = float(self.size)
        self.state = advance(
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
        found = to_host(sums(self.state))
        iterates, energies, shared_energies, rows, steps, refused = found
        mean = iterates / steps
        total = float(energies * self.rows.count / rows + shared_energies / rows)
        total += self.space.penalty(mean * self.space.units)[0]
        self._replace(sums, jax.tree.map(np.zeros_like, found))
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

    def _replace(self, where: Callable[[State], Any], by: Any) -> None:
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
    def unconstrained(self) -> np.ndarray:
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


class _CheckpointWriter:
    """A checkpoint with all that decides how a run goes on."""

    def __init__(self, path: Any, learner: _Learner, tol: float):
        start = learner.start
        options = learner.rows.count, learner.size, learner.rate, learner.fixed, learner.seed, tol
        specified, priors = learner.space.specifications
        objects = start.model, learner.method, priors
        mark = fingerprint(objects, (start.drawn, specified), (learner.space.slots, options))
        self.file = Checkpoint(path, "newtongp fit checkpoint in batches", mark)

    def read(self, learner: _Learner) -> None:
        """Put a learner where an earlier run has been."""
        kept = self.file.read()
        if kept is None:
            return
        learner.state, learner.safe = (
            everywhere(self._restored(getattr(learner, name), kept, name), learner.mesh) for name in ("state", "safe")
        )
        counters = self.file.array(kept, "counters", "i", 5)
        if np.any(counters < 0) or counters[4] not in list(Status):
            raise self.file.unusable("counters must be counts, and the last one an ending of inference")
        learner.passes, learner.done, learner.steps, learner.phase, status = counters.tolist()
        learner.status = Status(status)
        learner.trace = self.file.array(kept, "trace", "f", None).tolist()
        learner.energies = self.file.array(kept, "energies", "f", None).tolist()
        learner.iterates = list(self.file.array(kept, "iterates", "f", None, learner.space.size))

    def write(self, learner: _Learner, now: bool = False) -> None:
        """Replace the file by what is known by now."""
        if not (now or self.file.is_due()):
            return
        counters = [learner.passes, learner.done, learner.steps, learner.phase, learner.status.value]
        payload = {
            "counters": np.array(counters),
            "trace": np.array(learner.trace, dtype=float),
            "energies": np.array(learner.energies, dtype=float),
            "iterates": np.array(learner.iterates, dtype=float).reshape(-1, learner.space.size),
        }
        for name in ("state", "safe"):
            leaves = jax.tree.leaves(to_host(getattr(learner, name)))
            payload |= {f"{name}{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        self.file.write(payload)

    def _restored(self, state: State, kept: dict[str, Any], name: str) -> State:
        leaves, structure = jax.tree.flatten(state)
        arrays = [self.file.array(kept, f"{name}{i}", leaf.dtype.kind, *leaf.shape) for i, leaf in enumerate(leaves)]
        restored = jax.tree.unflatten(structure, list(map(jnp.asarray, arrays)))
        if not np.all(np.isfinite(np.asarray(restored.scaled))):
            raise self.file.unusable(f"the parameters of {name} must be finite")
        return restored


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
    if not added_energy(chosen).integrates:
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
        checkpoint_writer = None if checkpoint is None else _CheckpointWriter(checkpoint, learner, tol)
        if checkpoint_writer is not None:
            checkpoint_writer.read(learner)
        with RowProgress(progress, start.rows.count, max_steps) as bar, explained():
            try:
                learner.run(max_steps, tol, checkpoint_writer, bar)
            except KeyboardInterrupt:
                interrupted = True
        if checkpoint_writer is not None:
            checkpoint_writer.write(learner, now=True)
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
    unconstrained = learner.unconstrained if space.size else np.zeros(0)
    status = learner.status if space.size else Status.CONVERGED
    if status is Status.RUNNING:
        status = Status.INTERRUPTED if interrupted else Status.MAX_STEPS
    result = inferred(with_values(space.slots, learner.start.model, space.values_at(unconstrained)))
    found = space.finish(unconstrained, result, status, learner.trace, learner.steps, started)
    report_failure(found, throw, stacklevel=5)
    return found
