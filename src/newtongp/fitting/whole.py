"""Hyperparameter learning around the loop: the energy at each fixed point of inference, made as low as possible.

One evaluation is inference to convergence from the sites of the last one, and the gradient of its energy
(`objective.py`). SciPy's L-BFGS-B does the rest, in free coordinates (`constraints.py`), from guesses made of the data.
It asks for nothing but values and gradients, so that a record of these is all of its state: a run that was killed is
gone through again from its record, without computing anything, until the record ends.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from ..choices import check_choices
from ..data import read_inputs
from ..fitted import FitResult
from ..gaussian import Sites
from ..guesses import guess, scales_of
from ..infer import START_PRECISIONS, Run
from ..loop import MOST_STEPS
from ..model import Model
from ..parameters import choose, with_values
from ..precision import in_double, parameter, to_host
from ..predict import as_key
from ..priors.by_name import for_columns
from ..priors.sparse import SparseGP
from ..problem import Setup
from ..results import Status
from ..steps import DoubleLoop
from . import objective
from .checkpoint import Checkpoint, fingerprint
from .errors import curvature, standard_errors
from .space import Space, report_failure

_INNER_TOLERANCE = 1e-7


class _Enough(Exception):
    """The search is over for a reason of its own."""


class _Entry(NamedTuple):
    """One evaluation, as it is recorded."""

    free: np.ndarray
    energy: float
    gradient: np.ndarray
    status: int
    steps: int


class _Evaluator:
    """Energies and gradients, one after the other, each from the sites of the last; and the record of them all."""

    def __init__(self, setup: Setup, method: Any, step: Any, space: Space, max_steps: int, keeper: Any, tell: Any):
        self.setup, self.method, self.step, self.space = setup, method, step, space
        self.template = objective.Template.of(setup)
        self.max_steps = max_steps
        self.keeper, self.tell = keeper, tell
        self.record: list[_Entry] = []
        self.replay: list[_Entry] = []
        positions = setup.problem.observed.shape[0]
        initial = getattr(method, "initial_precision", 0.01)
        self.sites = Sites.constant(positions, setup.model.prior.num_latents, initial)
        self.precisions = (np.nan, initial, *(precision for precision in START_PRECISIONS if precision > initial))
        self.best: tuple[float, np.ndarray, Any] | None = None
        self.last: Any = None
        """The report of the last evaluation."""
        if keeper is not None:
            self.replay, sites = keeper.read()
            self.sites = self.sites if sites is None else sites

    def __call__(self, free: np.ndarray) -> tuple[float, np.ndarray]:
        """The energy plus minus the log prior density, and its gradient; infinite where inference breaks down."""
        entry = self._next(np.array(free, dtype=float))
        penalty, slope = self.space.penalty(free)
        total = entry.energy + penalty
        if np.isfinite(total) and (self.best is None or total < self.best[0]):
            self.best = total, entry.free, self.sites
        self.tell(len(self.record), total if self.best is None else self.best[0])
        return total, entry.gradient + slope

    def _next(self, free: np.ndarray) -> _Entry:
        number = len(self.record)
        if number < len(self.replay):
            entry = self.replay[number]
            if not np.array_equal(entry.free, free):
                raise ValueError(
                    f"checkpoint {str(self.keeper.file.path)!r} is of another fit: its evaluation {number} was "
                    "elsewhere. Give the same model, data and options as before, or another file"
                )
            self.record.append(entry)
            return entry
        entry = self._evaluate(free)
        self.record.append(entry)
        if self.keeper is not None:
            self.keeper.write(self.record, self.sites)
        return entry

    def report_at(self, free: np.ndarray, sites: Sites) -> Any:
        """What inference finds with these hyperparameters, from these sites."""
        self.sites = sites
        self._evaluate(free)
        return self.last

    @in_double
    def _evaluate(self, free: np.ndarray) -> _Entry:
        found = None
        # From the last sites, and where that fails from none, or from such as hold f near the prior mean.
        for precision in self.precisions:
            found = objective.evaluate(
                self.space.slots,
                self.template,
                free,
                self.method,
                self.step,
                self.sites,
                precision,
                self.max_steps,
                _INNER_TOLERANCE,
            )
            if found.usable:
                self.sites = to_host(found.report.sites)
                break
        assert found is not None
        self.last = found.report
        status, steps = int(found.report.status), int(found.report.steps)
        if not found.usable:
            return _Entry(free, np.inf, np.zeros_like(free), status, steps)
        return _Entry(free, float(found.report.energy), np.asarray(found.gradient), status, steps)


class _Search(NamedTuple):
    """Where a search from one start ended, and why."""

    total: float
    free: np.ndarray
    status: Status
    iterations: int


def _search(evaluator: _Evaluator, start: np.ndarray, max_steps: int, tol: float, trace: list[float]) -> _Search:
    """L-BFGS-B from one start."""
    lowest: list[Any] = [np.inf, start]
    if max_steps == 0:
        return _Search(evaluator(start)[0], start, Status.MAX_STEPS, 0)
    units = evaluator.space.units

    def bounded(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        free = scaled * units
        total, slope = evaluator(free)
        if np.isfinite(total):
            if total < lowest[0]:
                lowest[:] = [total, free]
            return total, slope * units
        if not np.isfinite(lowest[0]):
            raise _Enough
        # A wall: uphill from the best point, so that the line search turns back.
        away = scaled - lowest[1] / units
        height = 1e3 * (1.0 + abs(lowest[0]))
        return lowest[0] + height, height * away / max(float(away @ away), 1e-12)

    def note(_: Any) -> None:
        trace.append(lowest[0])

    bounds = [(low / unit, high / unit) for (low, high), unit in zip(evaluator.space.bounds(start), units, strict=True)]
    try:
        found = scipy.optimize.minimize(
            bounded,
            start / units,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            callback=note,
            options={"maxiter": max_steps, "maxfun": 20 * max_steps + 20, "ftol": 1e-12, "gtol": tol, "maxls": 30},
        )
    except _Enough:
        return _Search(np.inf, start, Status.NON_FINITE, 0)
    if found.status == 0:
        status = Status.CONVERGED
    elif found.status == 1:
        status = Status.MAX_STEPS
    else:
        # The line search found nothing lower: at the bottom that is rounding, elsewhere it is not.
        status = Status.CONVERGED if _slope_left(found, bounds) < 1e2 * tol else Status.STEP_TOO_SMALL
    return _Search(float(lowest[0]), lowest[1], status, int(found.nit))


def _slope_left(found: Any, bounds: list[tuple[float, float]]) -> float:
    """The largest slope in a direction that the bounds leave open."""
    low, high = np.asarray(bounds).T
    moved = np.clip(found.x - found.jac, low, high) - found.x
    return float(np.max(np.abs(moved), initial=0.0))


@in_double
def fit(
    model: Model,
    x: Any,
    y: Any = None,
    method: Any = None,
    step: Any = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    max_steps: int = 100,
    tol: float = 1e-5,
    restarts: int = 0,
    key: Any = 0,
    weak_priors: bool = True,
    standard_errors: bool = True,
    inference_steps: int = 200,
    progress: bool = False,
    checkpoint: Any = None,
    throw: bool = True,
    batch_size: int | None = None,
    learning_rate: float = 0.05,
) -> FitResult:
    """Learn the hyperparameters of the model from data, and infer the posterior with them.

    Every hyperparameter of kernel, mean and likelihood is learned unless `parameters` says otherwise, a mapping from
    names (see `newtongp.parameters`) to `Fixed()`, `Free(lower, upper, prior, start)` or `Tied(name)`. The method's own
    energy is made as low as possible, by L-BFGS with exact gradients, until they are below `tol` in the logarithms of
    positive parameters and in others by their units; with priors on parameters, the energy minus their log density is
    (a MAP estimate). The search starts from the model's own values or from guesses made of the data, whichever have the
    lower energy, and again from `restarts` random places, which `key` decides.

    With `weak_priors`, parameters that the data may leave undecided do not run away: see
    `newtongp.parameters.Plausible`. `checkpoint` is a file to write what was found so far to, and to resume from. The
    result is that of `infer` with learned hyperparameters in `result.model`, and has a `summary()`.

    With `batch_size`, a `SparseGP` learns from so many rows at a time, by Adam with `learning_rate` in the logarithms
    of positive parameters. x and y may then be all that `infer` takes in batches, `key` decides the order of rows, and
    `max_steps` counts passes over the data; it ends when the energy no longer falls by more than its own noise.

    >>> import numpy as np
    >>> import newtongp as ng
    >>> x = np.linspace(0.0, 10.0, 40)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(x)))
    >>> result = ng.fit(ng.Model(ng.MarkovGP("matern52"), "poisson"), x, y)
    >>> result.status.name, bool(0.5 < result.parameters["kernel.lengthscale"] < 10.0)
    ('CONVERGED', True)
    """
    _check_counts(max_steps=(max_steps, 0), restarts=(restarts, 0), inference_steps=(inference_steps, 1))
    if inference_steps > MOST_STEPS:
        raise ValueError(f"inference_steps must be at most {MOST_STEPS}, got {inference_steps}")
    tol = float(parameter(tol, "tol", lower=0.0))
    key = as_key(key)
    if batch_size is not None or getattr(getattr(model, "prior", None), "storage", "full") == "tied":
        from .batches import fit_in_batches

        return fit_in_batches(
            model,
            x,
            y,
            method,
            step,
            batch_size=batch_size,
            learning_rate=learning_rate,
            parameters=parameters,
            max_steps=int(max_steps),
            tol=tol,
            restarts=int(restarts),
            key=key,
            weak_priors=weak_priors,
            inference_steps=int(inference_steps),
            progress=progress,
            checkpoint=checkpoint,
            throw=throw,
        )
    method, step = check_choices(model, method, step)
    if isinstance(step, DoubleLoop):
        raise ValueError("step=DoubleLoop() is for infer: leave step out of fit")
    setup = _set_up(model, x, y)
    space = Space(setup.model, scales_of(setup.model, setup.data), parameters, weak_priors)
    keeper = None
    if checkpoint is not None:
        keeper = _Keeper(checkpoint, setup, (method, step, space.priors), space, int(inference_steps))
    started = time.perf_counter()
    with _progress(progress) as tell:
        evaluator = _Evaluator(setup, method, step, space, int(inference_steps), keeper, tell)
        searches, trace, interrupted, bend = [], [], False, None
        try:
            for start in _starts(evaluator, int(restarts), key):
                searches.append(_search(evaluator, start, int(max_steps), tol, trace))
            if standard_errors and searches:
                bend = curvature(evaluator, min(searches, key=_total).free, space.units)
        except KeyboardInterrupt:
            interrupted = True
    if keeper is not None and len(evaluator.record) >= len(evaluator.replay):
        keeper.write(evaluator.record, evaluator.sites, now=True)
    return _finish(evaluator, searches, trace, interrupted, bend, started, throw)


def _check_counts(**counts: tuple[Any, int]) -> None:
    for name, (value, least) in counts.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def _set_up(model: Model, x: Any, y: Any) -> Setup:
    """The model at its data, with one lengthscale a column where it leaves that open, and inducing inputs chosen."""
    columns = read_inputs(x, model).shape[1]
    model = Model(for_columns(model.prior, columns), model.likelihood)
    setup = Setup(model, x, y)
    if isinstance(model.prior, SparseGP) and model.prior.inducing is None:
        # They stay where they are while the kernel changes: energies are then those of one and the same model.
        scales = scales_of(model, setup.data)
        free = choose(model, None)
        start = with_values(tuple(each.slot for each in free), model, guess(model, scales, free))
        chosen = start.prior.place(setup.data.x).inputs.inducing
        setup = Setup(Model(model.prior.with_inducing(chosen), model.likelihood), x, y)
    return setup


def _total(search: _Search) -> float:
    return search.total


def _starts(evaluator: _Evaluator, restarts: int, key: Any) -> Iterator[np.ndarray]:
    """Where to search from: the best of a first look, then random places."""
    space = evaluator.space
    if space.size == 0:
        evaluator(space.middle)
        return
    for free in space.starts():
        evaluator(free)
    yield space.middle if evaluator.best is None else evaluator.best[1]
    if restarts == 0:
        return
    keys = jax.random.split(key, restarts)
    low, high = np.asarray(space.bounds(space.middle)).T
    for number in range(restarts):
        noise = np.asarray(jax.random.normal(keys[number], (space.size,)))
        yield np.clip(space.middle + 1.5 * noise * space.units, low, high)


def _finish(evaluator, searches, trace, interrupted, bend, started, throw) -> FitResult:
    """Infer with what was learned, and put everything together."""
    space, setup = evaluator.space, evaluator.setup
    if evaluator.best is None and interrupted:
        raise KeyboardInterrupt
    if evaluator.best is None:
        raise RuntimeError(
            "no hyperparameters were found with which inference works: try infer with fixed ones first, to see why"
        )
    _, free, sites = evaluator.best
    if interrupted:
        status = Status.INTERRUPTED
    elif space.size == 0:
        status = Status.CONVERGED
    else:
        lowest = min(searches, key=_total)
        status = lowest.status
        # The curvature's own evaluations may have found something lower, by rounding: the search's point is kept.
        free = lowest.free if np.isfinite(lowest.total) else free
    model = with_values(space.slots, setup.model, space.values_at(free))
    run = Run(setup.with_model(model), evaluator.method, evaluator.step, None, _INNER_TOLERANCE)
    result = run.result(evaluator.report_at(free, sites))
    errors = standard_errors(space, free, bend)
    found = space.finish(free, result, status, trace, len(evaluator.record), started, errors)
    report_failure(found, throw, stacklevel=4)
    return found


class _Keeper:
    """A checkpoint with the record of all evaluations and the last sites."""

    def __init__(self, path: Any, setup: Setup, choices: Any, space: Space, inference_steps: int):
        data = setup.data
        arrays = data.x, data.y, data.observed, space.wishes[0]
        mark = fingerprint((setup.model, choices), arrays, (space.slots, inference_steps))
        self.file = Checkpoint(path, "newtongp fit checkpoint", mark)

    def read(self) -> tuple[list[_Entry], Sites | None]:
        """What an earlier run has left; nothing if there was none."""
        kept = self.file.read()
        if kept is None:
            return [], None
        rows = zip(kept["free"], kept["energy"], kept["gradient"], kept["status"], kept["steps"], strict=True)
        entries = [_Entry(free, float(e), slope, int(status), int(steps)) for free, e, slope, status, steps in rows]
        return entries, Sites(kept["linear"], kept["precision"])

    def write(self, record: list[_Entry], sites: Sites, now: bool = False) -> None:
        """Replace the file by what is known by now."""
        if not record or not (now or self.file.due):
            return
        self.file.write(
            {
                "free": np.stack([entry.free for entry in record]),
                "energy": np.array([entry.energy for entry in record]),
                "gradient": np.stack([entry.gradient for entry in record]),
                "status": np.array([entry.status for entry in record]),
                "steps": np.array([entry.steps for entry in record]),
                "linear": np.asarray(sites.linear),
                "precision": np.asarray(sites.precision),
            }
        )


@contextlib.contextmanager
def _progress(wanted: bool) -> Iterator[Any]:
    if not wanted:
        yield lambda evaluations, lowest: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as bar:
        task = bar.add_task("fit", total=None)

        def tell(evaluations: int, lowest: float) -> None:
            bar.update(task, description=f"fit, {evaluations} evaluations, energy {lowest:.6g}")

        yield tell
