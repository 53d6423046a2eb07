"""Hyperparameter learning in batches of rows, for sparse GPs: `fit` for data larger than memory.

What is known of f is stored as the product t of all sites, whatever the prior stores, and every batch does two things.
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

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.devices import everywhere, whole_share
from .._runtime.double import to_host
from ..inference.compatibility import check_choices
from ..inference.infer import infer
from ..inference.minibatch.batching import WHOLE_PASS, Batching
from ..inference.minibatch.checks import check_batches
from ..inference.minibatch.product import DeviceRows, added_energy, on_devices
from ..inference.minibatch.progress import RowProgress, explained
from ..inputs.chunks import Batch
from ..methods.curvature import QuasiNewton
from ..methods.rule import Method
from ..methods.safeguard import Riemannian
from ..model import Model
from ..priors.sparse import SparseGP
from ..results.fit_result import FitResult
from ..results.result import Result
from ..results.status import Status
from ..validation.arguments import as_key
from ..validation.numbers import parameter
from .checkpoint import Checkpoint, fingerprint
from .learned import with_values
from .minibatch_start import FitStart, read_start, take_rows
from .minibatch_step import Constants, State, advance, begin, settle, sums
from .space import report_failure

_PHASES = 5
_SLOWER = 0.5
"""How much smaller the learning rate is from phase to phase."""
_STRETCH = 200
"""Batches over which an energy is taken, where a pass has far more than that."""
_WINDOW = 8
"""Stretches in which the energy must have come to rest, at least."""
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


class _Schedule(NamedTuple):
    """What is chosen once and for all: batches, stretches of them, and the sizes of steps."""

    batching: Batching
    method: Method
    fixed: float | None
    """The size of every step towards a batch's t(v); None for one that falls."""
    rate: float
    """Adam's learning rate in the first phase."""
    seed: list[int]
    stretch: int
    """Batches per stretch, over which an energy is taken."""
    window: int
    """Stretches in which the energy must have come to rest."""

    @classmethod
    def of(
        cls, start: FitStart, method: Method, step: Any, batch_size: int | None, rate: float, key: Any
    ) -> "_Schedule":
        rows = start.rows
        by_default = min(max(-(-rows.count // _BATCHES), _FEWEST_ROWS), WHOLE_PASS)
        batching = Batching.of(rows, start.model.likelihood, by_default if batch_size is None else batch_size)
        stretch = -(-batching.per_pass // max(1, round(batching.per_pass / _STRETCH)))
        return cls(
            batching,
            method,
            None if step is None else float(np.asarray(step.rho)),
            rate,
            np.asarray(jax.random.key_data(as_key(key))).tolist(),
            stretch,
            max(_WINDOW, -(-_FEWEST_STEPS // stretch)),
        )

    def generator(self, number: int) -> np.random.Generator:
        """Nothing but the key and a number decides what is random: a run that is resumed sees the same rows."""
        return np.random.default_rng([*self.seed, number])

    def learning_rate(self, phase: int) -> float:
        return self.rate * _SLOWER**phase

    def step_size(self, phase: int, batches_seen: float) -> float:
        """Of the step towards a batch's t(v): all rows count the same at first, later ones for more in the end."""
        if self.fixed is not None:
            return self.fixed
        forgetting = 0.5**phase / min(self.batching.per_pass, _MEMORY)
        return max(2.0 / (batches_seen + 3.0), min(forgetting, 1.0))


@dataclasses.dataclass
class _Progress:
    """Where a run is: all that a checkpoint has to store."""

    state: State
    safe: State
    """At the end of the last stretch with a finite energy."""
    passes: int = 0
    done: int = 0
    """Batches of the present pass."""
    steps: int = 0
    phase: int = 0
    status: Status = Status.RUNNING
    trace: list[float] = dataclasses.field(default_factory=list)
    """The energies of all stretches."""
    energies: list[float] = dataclasses.field(default_factory=list)
    iterates: list[np.ndarray] = dataclasses.field(default_factory=list)
    """The energies and mean iterates of the stretches of this phase."""

    def next_phase(self, ending: Status) -> None:
        """Go on with smaller steps, or end where they are the smallest."""
        if self.phase + 1 >= _PHASES:
            self.status = ending
            return
        self.phase += 1
        self.energies, self.iterates = [], []

    def averaged(self, window: int) -> np.ndarray:
        """The mean of the iterates of the last stretches, over their units; the last one where none is complete."""
        last = self.iterates[-window:]
        return np.mean(last, axis=0) if last else np.asarray(self.state.scaled)


class _BatchFit:
    """One call of `fit` in batches, from its first look at the rows."""

    def __init__(self, start: FitStart, schedule: _Schedule):
        self.start, self.space, self.schedule = start, start.space, schedule
        self.constants, self.progress, looked_at = self._first_look()
        self.head_start = looked_at / schedule.batching.size
        """What the first look has told of t(v), in batches."""

    def _first_look(self) -> tuple[Constants, _Progress, int]:
        """Look at several starts with some of the rows, and begin with the best."""
        drawn, batching = self.start.drawn, self.schedule.batching
        chosen = np.sort(self.schedule.generator(0).permutation(drawn.count)[:_LOOKED_AT])
        filled = whole_share(len(chosen), batching.mesh)
        rows = np.append(chosen, np.zeros(filled - len(chosen), dtype=int))
        data = take_rows(drawn.data, rows)
        data = data._replace(observed=data.observed & (np.arange(filled) < len(chosen)))
        batch = on_devices(Batch(drawn.index[rows], data, len(chosen)), batching.likelihood, batching.mesh)
        constants = constants_at(self.start, self.schedule, self.space.middle)
        lowest, best, product = np.inf, self.space.middle, None
        for unconstrained in self.space.starts():
            energy, found = settle(self.space.slots, constants, batch, unconstrained)
            total = float(energy) + self.space.penalty(unconstrained)[0]
            total = total if np.isfinite(total) else np.inf
            if product is None or total < lowest:
                lowest, best, product = total, unconstrained, found
        assert product is not None
        constants = everywhere(constants_at(self.start, self.schedule, best), batching.mesh)
        state = everywhere(begin(best / self.space.units, product), batching.mesh)
        return constants, _Progress(state, state), len(chosen)

    def run(self, max_steps: int, tol: float, checkpoint_writer: "_CheckpointWriter | None", bar: RowProgress) -> None:
        """Passes over the data, until the energy has come to rest or their number runs out."""
        progress, schedule, batching = self.progress, self.schedule, self.schedule.batching
        while progress.passes < max_steps and progress.status is Status.RUNNING:
            for batch, rows in batching.batches(schedule.generator(progress.passes + 1), skip=progress.done):
                self._take(rows)
                bar.saw(batch.count)
                if progress.done % schedule.stretch != 0 and progress.done != batching.per_pass:
                    continue
                self._close(tol)
                if progress.done == batching.per_pass:
                    progress.passes, progress.done = progress.passes + 1, 0
                if checkpoint_writer is not None:
                    checkpoint_writer.write(progress)
                if progress.status is not Status.RUNNING:
                    break
            bar.passed(progress.trace[-1] if progress.trace else np.nan)

    def _take(self, rows: DeviceRows) -> None:
        """One batch: a step of Adam, and one of t(v)."""
        progress, schedule = self.progress, self.schedule
        _, pull = self.space.penalty(np.asarray(progress.state.scaled) * self.space.units)
        progress.state = advance(
            self.space.slots,
            self.constants,
            rows,
            progress.state,
            pull,
            schedule.learning_rate(progress.phase),
            schedule.step_size(progress.phase, progress.steps + self.head_start),
            float(schedule.batching.size),
        )
        progress.steps, progress.done = progress.steps + 1, progress.done + 1

    def _close(self, tol: float) -> None:
        """The end of a stretch: its energy, and whether that still falls."""
        progress, window = self.progress, self.schedule.window
        found = to_host(sums(progress.state))
        iterates, energies, shared_energies, rows, steps, refused = found
        mean = iterates / steps
        total = float(energies * self.start.rows.count / rows + shared_energies / rows)
        total += self.space.penalty(mean * self.space.units)[0]
        self._replace(sums, jax.tree.map(np.zeros_like, found))
        if not np.isfinite(total) or refused == steps:
            # Back to where it worked, with smaller steps.
            progress.state = progress.safe
            progress.next_phase(Status.STEP_TOO_SMALL)
            return
        progress.safe = progress.state
        progress.trace.append(total)
        progress.energies.append(total)
        progress.iterates.append(mean)
        if len(progress.energies) >= window and is_level(np.array(progress.energies[-window:]), tol):
            self._replace(lambda state: state.scaled, progress.averaged(window))
            progress.next_phase(Status.CONVERGED)

    def _replace(self, where: Callable[[State], Any], by: Any) -> None:
        replacement = everywhere(by, self.schedule.batching.mesh)
        self.progress.state = eqx.tree_at(where, self.progress.state, replacement)

    @property
    def unconstrained(self) -> np.ndarray:
        """The best unconstrained numbers so far."""
        return self.progress.averaged(self.schedule.window) * self.space.units


def constants_at(start: FitStart, schedule: _Schedule, unconstrained: np.ndarray) -> Constants:
    """What stays the same from batch to batch in a search that begins here."""
    low, high = np.asarray(start.space.bounds(unconstrained)).reshape(-1, 2).T
    units, rows = start.space.units, schedule.batching.rows
    prior = start.model.prior
    assert isinstance(prior, SparseGP)
    observed = schedule.batching.observed
    return Constants(prior, schedule.method, units, low / units, high / units, float(rows.count), observed)


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

    def __init__(self, path: Any, fit: _BatchFit, tol: float):
        start, schedule = fit.start, fit.schedule
        batching = schedule.batching
        options = batching.rows.count, batching.size, schedule.rate, schedule.fixed, schedule.seed, tol
        specified, priors = fit.space.specifications
        objects = start.model, schedule.method, priors
        mark = fingerprint(objects, (start.drawn, specified), (fit.space.slots, options))
        self.file = Checkpoint(path, "newtongp fit checkpoint in batches", mark)

    def read(self, fit: _BatchFit) -> None:
        """Put a fit where an earlier run has been."""
        written = self.file.read()
        if written is None:
            return
        progress, mesh = fit.progress, fit.schedule.batching.mesh
        progress.state, progress.safe = (
            everywhere(self._restored(getattr(progress, name), written, name), mesh) for name in ("state", "safe")
        )
        counters = self.file.array(written, "counters", "i", 5)
        if np.any(counters < 0) or counters[4] not in list(Status):
            raise self.file.unusable("counters must be counts, and the last one an ending of inference")
        progress.passes, progress.done, progress.steps, progress.phase, status = counters.tolist()
        progress.status = Status(status)
        progress.trace = self.file.array(written, "trace", "f", None).tolist()
        progress.energies = self.file.array(written, "energies", "f", None).tolist()
        progress.iterates = list(self.file.array(written, "iterates", "f", None, fit.space.size))

    def write(self, progress: _Progress, now: bool = False) -> None:
        """Replace the file by what is known by now."""
        if not (now or self.file.is_due()):
            return
        counters = [progress.passes, progress.done, progress.steps, progress.phase, progress.status.value]
        payload = {
            "counters": np.array(counters),
            "trace": np.array(progress.trace, dtype=float),
            "energies": np.array(progress.energies, dtype=float),
            "iterates": np.array(progress.iterates, dtype=float).reshape(-1, progress.state.scaled.shape[0]),
        }
        for name in ("state", "safe"):
            leaves = jax.tree.leaves(to_host(getattr(progress, name)))
            payload |= {f"{name}{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)}
        self.file.write(payload)

    def _restored(self, state: State, written: dict[str, Any], name: str) -> State:
        leaves, structure = jax.tree.flatten(state)
        arrays = [self.file.array(written, f"{name}{i}", leaf.dtype.kind, *leaf.shape) for i, leaf in enumerate(leaves)]
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
    start = read_start(model, x, y, parameters, weak_priors, rng)
    schedule = _Schedule.of(start, chosen, step, batch_size, rate, key)

    def infer_with(learnt: Model) -> Result:
        return _infer(start, chosen, learnt, x, y, step, batch_size, key, inference_steps)

    if not start.space.size:
        return _finish(start, infer_with, np.zeros(0), Status.CONVERGED, [], 0, started, throw)
    fit = _BatchFit(start, schedule)
    reached = fit.progress
    checkpoint_writer = None if checkpoint is None else _CheckpointWriter(checkpoint, fit, tol)
    if checkpoint_writer is not None:
        checkpoint_writer.read(fit)
    unfinished = Status.MAX_STEPS
    with RowProgress(progress, start.rows.count, max_steps) as bar, explained():
        try:
            fit.run(max_steps, tol, checkpoint_writer, bar)
        except KeyboardInterrupt:
            unfinished = Status.INTERRUPTED
    if checkpoint_writer is not None:
        checkpoint_writer.write(reached, now=True)
    if not reached.trace and reached.steps and unfinished is not Status.INTERRUPTED:
        raise RuntimeError(
            "no hyperparameters were found with which inference works: try infer with fixed ones first, to see why"
        )
    status = unfinished if reached.status is Status.RUNNING else reached.status
    trace, steps = reached.trace, reached.steps
    return _finish(start, infer_with, fit.unconstrained, status, trace, steps, started, throw)


def _infer(start: FitStart, method: Method, learnt: Model, x, y, step, batch_size, key, inference_steps: int) -> Result:
    """With what was learned: without batches, where the rows are few and in memory."""
    few = start.rows.held is not None and start.rows.count <= _ALL_AT_ONCE
    at_once = few and step is None and start.model.prior.storage == "full"  # pyright: ignore
    return infer(
        learnt,
        x,
        y,
        method,
        step,
        max_steps=max(100, inference_steps),
        throw=False,
        batch_size=None if at_once else batch_size,
        key=None if at_once else key,
    )


def _finish(
    start: FitStart,
    inferred: Callable[[Model], Result],
    unconstrained: np.ndarray,
    status: Status,
    trace: list[float],
    steps: int,
    started: float,
    throw: bool,
) -> FitResult:
    """Infer with what was learned, and put everything together."""
    space = start.space
    result = inferred(with_values(space.slots, start.model, space.values_at(unconstrained)))
    found = space.finish(unconstrained, result, status, trace, steps, started)
    report_failure(found, throw, stacklevel=5)
    return found
