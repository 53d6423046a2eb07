"""Hyperparameter learning in batches of rows, for sparse GPs: `fit` for data larger than memory.

The product t of all sites is stored, whatever the `storage` of the prior, and every batch has two purposes. Its
proposals are an estimate of the next t, as in `inference/minibatch/`. Its rows, scaled to the number of all rows, give
an unbiased estimate of the gradient of the energy of q ∝ p t in the hyperparameters at a fixed t, for one step of Adam.
If t is at its fixed point and the method's energy is stationary there (`sec:gp`), this is the gradient of the energy
itself. The prior's part of it is exact: the larger that part, the less noise.

The size of that part depends on the variables of which t is a function, because these are held fixed while the
hyperparameters change. Whitened values v are a poor choice: with another variance or mean they represent another f. The
values u of f at the inducing inputs are the right choice wherever they can be distinguished from each other (Adam,
Chang, Khan and Solin, *Dual parameterization of sparse variational Gaussian processes*, 2021).

The energy determines the length of a run. When it falls by no more than its own noise, the learning rate is reduced and
the run continues from the mean of the last iterates. After the smallest rate, that mean is the result.
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
from ..inference.minibatch.batching import WHOLE_PASS, Batching, batch_class
from ..inference.minibatch.checks import check_batches, state_per_row
from ..inference.minibatch.product import DeviceRows, added_energy, on_devices
from ..inference.minibatch.progress import RowProgress, explained
from ..inputs.chunks import Batch
from ..likelihoods.weighted import weights_of
from ..methods.rule import Method
from ..model import Model, weighted_model
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP
from ..results.fit_result import FitResult
from ..results.result import Result
from ..results.status import Status
from ..validation.arguments import as_key, generator
from ..validation.numbers import parameter
from .checkpoint import Checkpoint, fingerprint
from .learned import with_values
from .minibatch_start import FitStart, read_start, take_rows
from .minibatch_step import Constants, State, advance, begin, settle, sums
from .space import report_failure

_PHASES = 5
_SLOWER = 0.5
"""The factor of the learning rate from phase to phase."""
_STRETCH = 200
"""Batches over which energies are averaged, if a pass has far more."""
_WINDOW = 8
"""The smallest number of stretches over which the energy must be level."""
_FEWEST_STEPS = 30
"""The smallest number of steps in a window: Adam oscillates for a while after the rate has changed."""
_MEMORY = 100
"""The largest number of batches over which t(v) is averaged while hyperparameters still change much."""
_FIRST_ROWS = 2**11
"""Rows with which several starts are compared."""
_ALL_AT_ONCE = 20_000
"""The largest number of rows in memory with which the last inference runs without batches."""
_FEWEST_ROWS = 128
_BATCHES = 16
"""The smallest number of rows of a batch, and the number of batches per pass, if `batch_size` is not given."""


class _Schedule(NamedTuple):
    """Choices that stay fixed during a run: batches, stretches, and the sizes of steps."""

    batching: Batching
    method: Method
    fixed: float | None
    """The size of every step towards a batch's t(v); None for a decreasing one."""
    rate: float
    """Adam's learning rate in the first phase."""
    seed: list[int]
    stretch: int
    """Batches per stretch, over which energies are averaged."""
    window: int
    """Stretches over which the energy must be level."""

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
        """Random numbers that depend only on the key and a number, so that a resumed run uses the same rows."""
        return np.random.default_rng([*self.seed, number])

    def learning_rate(self, phase: int) -> float:
        return self.rate * _SLOWER**phase

    def step_size(self, phase: int, batches_seen: float) -> float:
        """The step towards a batch's t(v): all rows have equal weights at first, recent ones larger weights later."""
        if self.fixed is not None:
            return self.fixed
        forgetting = 0.5**phase / min(self.batching.per_pass, _MEMORY)
        return max(2.0 / (batches_seen + 3.0), min(forgetting, 1.0))


@dataclasses.dataclass
class _Progress:
    """The progress of a run, as stored in a checkpoint."""

    state: State
    safe: State
    """The state at the end of the last stretch with a finite energy."""
    passes: int = 0
    done: int = 0
    """Completed batches of the current pass."""
    steps: int = 0
    phase: int = 0
    status: Status = Status.RUNNING
    trace: list[float] = dataclasses.field(default_factory=list)
    """The energies of all stretches."""
    energies: list[float] = dataclasses.field(default_factory=list)
    iterates: list[np.ndarray] = dataclasses.field(default_factory=list)
    """The energies and mean iterates of the stretches of this phase."""

    def next_phase(self, ending: Status) -> None:
        """Continue with smaller steps, or end if they are the smallest."""
        if self.phase + 1 >= _PHASES:
            self.status = ending
            return
        self.phase += 1
        self.energies, self.iterates = [], []

    def averaged(self, window: int) -> np.ndarray:
        """The mean of the last stretches' iterates over their units; the last iterate if no stretch is complete."""
        last = self.iterates[-window:]
        return np.mean(last, axis=0) if last else np.asarray(self.state.scaled)


class _BatchFit:
    """One call of `fit` in batches."""

    def __init__(self, start: FitStart, schedule: _Schedule):
        self.start, self.space, self.schedule = start, start.space, schedule
        self.constants, self.progress, rows_used = self._choose_start()
        self.head_start = rows_used / schedule.batching.size
        """The rows that t(v) is already based on, as a number of batches."""

    def _choose_start(self) -> tuple[Constants, _Progress, int]:
        """Compare several starts on some of the rows, and begin with the best."""
        drawn, batching = self.start.drawn, self.schedule.batching
        chosen = np.sort(self.schedule.generator(0).permutation(drawn.count)[:_FIRST_ROWS])
        filled = whole_share(batch_class(len(chosen)), batching.mesh)
        rows = np.append(chosen, np.zeros(filled - len(chosen), dtype=int))
        data = take_rows(drawn.data, rows)
        data = data._replace(observed=data.observed & (np.arange(filled) < len(chosen)))
        batch = on_devices(Batch(drawn.index[rows], data, len(chosen)), batching.likelihood, batching.mesh)
        constants = constants_at(self.start, self.schedule, self.space.middle)
        lowest, best, product = np.inf, self.space.middle, None
        for unconstrained in self.space.starts():
            energy, settled = settle(self.space.slots, constants, batch, unconstrained)
            total = float(energy) + self.space.penalty(unconstrained)[0]
            total = total if np.isfinite(total) else np.inf
            if product is None or total < lowest:
                lowest, best, product = total, unconstrained, settled
        assert product is not None
        constants = everywhere(constants_at(self.start, self.schedule, best), batching.mesh)
        state = everywhere(begin(best / self.space.units, product), batching.mesh)
        return constants, _Progress(state, state), len(chosen)

    def run(self, max_steps: int, tol: float, checkpoint_writer: "_CheckpointWriter | None", bar: RowProgress) -> None:
        """Passes over the data, until the energy is level or `max_steps` is reached."""
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
        """One batch: a step of Adam and a step of t(v)."""
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
        """The end of a stretch: record its energy, and test whether it still falls."""
        progress, window = self.progress, self.schedule.window
        stretch = to_host(sums(progress.state))
        iterates, energies, shared_energies, rows, steps, refused = stretch
        mean = iterates / steps
        total = float(energies * self.start.rows.count / rows + shared_energies / rows)
        total += self.space.penalty(mean * self.space.units)[0]
        self._replace(sums, jax.tree.map(np.zeros_like, stretch))
        if not np.isfinite(total) or refused == steps:
            # Return to the last usable state, and continue with smaller steps.
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
    """The constants of a search that starts here."""
    low, high = np.asarray(start.space.bounds(unconstrained)).reshape(-1, 2).T
    units, rows = start.space.units, schedule.batching.rows
    prior = start.model.prior
    assert isinstance(prior, SparseGP | MarkovGP)
    observed = schedule.batching.observed
    return Constants(prior, schedule.method, units, low / units, high / units, float(rows.count), observed)


def is_level(energies: np.ndarray, tol: float) -> bool:
    """Whether energies fall by less than `tol` times their size per entry, or by less than the standard error.

    The slope and its standard error are those of linear regression.

    >>> bool(is_level(np.array([5.0, 4.0, 3.1, 2.0, 1.0]), 1e-5)), bool(is_level(np.array([5.0, 4.0, 5.0]), 1e-5))
    (False, True)
    """
    count = len(energies)
    places = np.arange(count) - 0.5 * (count - 1)
    spread = float(places @ places)
    slope = float(places @ energies) / spread
    residuals = energies - np.mean(energies) - slope * places
    error = np.sqrt(float(residuals @ residuals) / (count - 2) / spread)
    return -slope <= max(float(error), tol * abs(float(np.mean(energies))))


class _CheckpointWriter:
    """A checkpoint that contains the progress of a run."""

    def __init__(self, path: Any, fit: _BatchFit, tol: float):
        start, schedule = fit.start, fit.schedule
        batching = schedule.batching
        options = batching.rows.count, batching.size, schedule.rate, schedule.fixed, schedule.seed, tol
        specified, priors = fit.space.specifications
        objects = start.model, schedule.method, priors
        mark = fingerprint(objects, (start.drawn, specified), (fit.space.slots, options))
        self.file = Checkpoint(path, "newtongp fit checkpoint in batches", mark)

    def read(self, fit: _BatchFit) -> None:
        """Restore the progress of an earlier run, if there was one."""
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
        """Replace the file, if that is due or `now` is set."""
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
    name = state_per_row(chosen)
    if name is not None:
        raise ValueError(
            f"{name} methods keep a state per row, which learning in batches does not store: use Exact() or "
            "GaussNewton() curvature without a Riemannian safeguard, or leave batch_size out"
        )
    chosen = check_batches(model, chosen, step, batch_size)
    if not added_energy(chosen).integrates:
        raise ValueError(
            f"method={chosen.target.name!r} has an energy that changes with its sites, which batches do not store: use "
            "VI() or PowerEP(0.5), or leave batch_size out"
        )
    if restarts:
        raise ValueError(f"restarts must be 0 in batches, got {restarts!r}: start several runs with different keys")
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
    """`fit` with a batch size."""
    chosen = _check(model, method, step, batch_size, restarts)
    rate = float(parameter(learning_rate, "learning_rate", lower=0.0))
    rng = generator(key)
    started = time.perf_counter()
    start = read_start(model, x, y, parameters, weak_priors, rng)
    schedule = _Schedule.of(start, chosen, step, batch_size, rate, key)

    def infer_with(learned_model: Model) -> Result:
        learned_model = weighted_model(learned_model, weights_of(model.likelihood))
        return _infer(start, chosen, learned_model, x, y, step, batch_size, key, inference_steps)

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


def _infer(
    start: FitStart, method: Method, learned_model: Model, x, y, step, batch_size, key, inference_steps: int
) -> Result:
    """Inference with the learned model, without batches if the rows are few and in memory."""
    few = start.rows.held is not None and start.rows.count <= _ALL_AT_ONCE
    at_once = few and step is None and start.model.prior.storage == "full"  # pyright: ignore
    return infer(
        learned_model,
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
    """Run inference with the learned hyperparameters, and assemble the result."""
    space = start.space
    result = inferred(with_values(space.slots, start.model, space.values_at(unconstrained)))
    fit_result = space.finish(unconstrained, result, status, trace, steps, started)
    report_failure(fit_result, throw, stacklevel=5)
    return fit_result
