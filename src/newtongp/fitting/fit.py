"""Hyperparameter learning around the loop: the energy at each fixed point of inference, made as low as possible.

One evaluation is inference to convergence from the sites of the last one, and the gradient of its energy
(`objective.py`). SciPy's L-BFGS-B does the rest, in free coordinates (`constraints.py`), from guesses made of the data.
It asks for nothing but values and gradients, so that a record of these is all of its state: a run that was killed is
gone through again from its record, without computing anything, until the record ends.
"""

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.optimize

from .._runtime.double import in_double, to_host
from ..inference.compatibility import check_choices, starts_from_sweep
from ..inference.infer import Run
from ..inference.loop import MOST_STEPS
from ..inference.prior_check import check_prior
from ..inference.problem import Setup
from ..inference.starts import START_PRECISIONS, inside_support, swept
from ..inference.steps.double_loop import DoubleLoop
from ..inputs import memory
from ..inputs.data import read_inputs
from ..kernels.definite import find_indefinite, is_own
from ..model import Model
from ..numerics.gaussian import Sites
from ..priors.by_name import for_columns
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP
from ..results.fit_result import FitResult
from ..results.status import Status
from ..validation.arguments import as_key, file_name, flag, tolerance, whole
from . import objective
from .checkpoint import Checkpoint, fingerprint
from .initial_values import guess, scales_of
from .learned import choose, with_values
from .space import Space, report_failure
from .standard_errors import Spread, curvature, standard_errors

_INNER_TOLERANCE = 1e-7
_GRADIENTS = 4.0
"""How many times the memory of inference its gradient takes."""


class _Entry(NamedTuple):
    """One evaluation, as it is recorded."""

    unconstrained: np.ndarray
    energy: float
    gradient: np.ndarray
    status: int
    steps: int


class _Evaluator:
    """Energies and gradients, one after the other, each from the sites of the last; and the record of them all."""

    def __init__(
        self,
        setup: Setup,
        method: Any,
        step: Any,
        space: Space,
        max_steps: int,
        checkpoint_writer: Any,
        report_progress: Any,
    ):
        self.setup, self.method, self.step, self.space = setup, method, step, space
        self.bound = setup.bound
        self.max_steps = max_steps
        self.checkpoint_writer, self.report_progress = checkpoint_writer, report_progress
        self.record: list[_Entry] = []
        self.replay: list[_Entry] = []
        positions = setup.bound.observed.shape[0]
        initial = getattr(method, "initial_precision", 0.01)
        self.sites = Sites.constant(positions, setup.model.prior.num_latents, initial)
        if starts_from_sweep(method, setup.bound.likelihood):
            self.sites = to_host(swept(setup.problem, setup.data.x))
        self.precisions = (-1.0, initial, *(precision for precision in START_PRECISIONS if precision > initial))
        self.best: tuple[float, np.ndarray, Any] | None = None
        self.last: Any = None
        """The report of the last evaluation; None if it is from the record of an earlier run."""
        self.best_report: Any = None
        """That of the best one."""
        self.undefined = np.zeros(space.size, dtype=bool)
        """Which free numbers had no finite slope somewhere, although there was an energy."""
        if checkpoint_writer is not None:
            self.replay, sites = checkpoint_writer.read(space.size, self.sites)
            self.sites = self.sites if sites is None else sites

    def __call__(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """The energy plus minus the log prior density, and its gradient; infinite where inference breaks down."""
        entry = self._next(np.array(unconstrained, dtype=float))
        penalty, slope = self.space.penalty(unconstrained)
        total = entry.energy + penalty
        if np.isfinite(total) and (self.best is None or total < self.best[0]):
            self.best, self.best_report = (total, entry.unconstrained, self.sites), self.last
        self.report_progress(len(self.record), total if self.best is None else self.best[0])
        return total, entry.gradient + slope

    def at(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """The same, from the record where it has just that point."""
        for entry in reversed(self.record):
            if np.array_equal(entry.unconstrained, unconstrained):
                penalty, slope = self.space.penalty(unconstrained)
                return entry.energy + penalty, entry.gradient + slope
        return self(unconstrained)

    def _next(self, unconstrained: np.ndarray) -> _Entry:
        number = len(self.record)
        if number < len(self.replay):
            entry = self.replay[number]
            if not np.array_equal(entry.unconstrained, unconstrained):
                raise ValueError(
                    f"checkpoint {str(self.checkpoint_writer.file.path)!r} is of another fit: its evaluation {number} "
                    "was elsewhere. Give the same model, data and options as before, or another file"
                )
            self.record.append(entry)
            self.last = None
            return entry
        entry = self._evaluate(unconstrained)
        self.record.append(entry)
        if self.checkpoint_writer is not None:
            self.checkpoint_writer.write(self.record, self.sites)
        return entry

    def report_at(self, unconstrained: np.ndarray, sites: Sites) -> Any:
        """What inference finds with these hyperparameters, from these sites."""
        self.sites = sites
        self._evaluate(unconstrained)
        return self.last

    @in_double
    def _evaluate(self, unconstrained: np.ndarray) -> _Entry:
        if not self._is_definite(unconstrained):
            return _Entry(unconstrained, np.inf, np.zeros_like(unconstrained), Status.IMPROPER_POSTERIOR.value, 0)
        found = None
        # From the last sites, and where that fails from none, or from such as hold f near the prior mean.
        for precision in self.precisions:
            found = self._from(unconstrained, self.sites, precision)
            if found.usable:
                break
        assert found is not None
        if not found.usable and self.best is None:
            # Nothing has worked yet: the density may be zero at the prior mean.
            model = with_values(self.space.slots, self.setup.model, self.space.values_at(unconstrained))
            for sites in inside_support(self.setup.with_model(model).problem):
                found = self._from(unconstrained, sites, -1.0)
                if found.usable:
                    break
        self.last = found.report
        status, steps = int(found.report.status), int(found.report.steps)
        if not found.usable:
            self.undefined |= ~np.isfinite(np.asarray(found.gradient)) & np.isfinite(float(found.report.energy))
            return _Entry(unconstrained, np.inf, np.zeros_like(unconstrained), status, steps)
        self.sites = to_host(found.report.sites)
        return _Entry(unconstrained, float(found.report.energy), np.asarray(found.gradient), status, steps)

    def _from(self, unconstrained: np.ndarray, sites: Sites, precision: float) -> objective.Evaluation:
        """Inference from these sites, or from sites of this precision at the prior mean."""
        return objective.evaluate(
            self.space.slots,
            self.bound,
            unconstrained,
            self.method,
            self.step,
            sites,
            precision,
            self.max_steps,
            _INNER_TOLERANCE,
        )

    def _is_definite(self, unconstrained: np.ndarray) -> bool:
        """Whether the kernel is one with these hyperparameters; only those that a user has written need not be."""
        setup = self.setup
        kernel = getattr(setup.model.prior, "kernel", None)
        if kernel is None or not is_own(kernel):
            return True
        prior = with_values(self.space.slots, setup.model, self.space.values_at(unconstrained)).prior
        return find_indefinite(prior.kernel, setup.data.x, isinstance(prior, MarkovGP)) is None


class _Search(NamedTuple):
    """Where a search from one start ended, and why."""

    total: float
    unconstrained: np.ndarray
    status: Status
    iterations: int


def _search(evaluator: _Evaluator, start: np.ndarray, max_steps: int, tol: float, trace: list[float]) -> _Search:
    """L-BFGS-B from one start, and again from where it stops as long as that is no optimum and it gets lower."""
    if max_steps == 0:
        return _Search(evaluator.at(start)[0], start, Status.MAX_STEPS, 0)
    lowest, iterations, status = _Lowest(evaluator, start), 0, Status.NON_FINITE
    if not np.isfinite(lowest.total):
        return _Search(np.inf, start, status, 0)
    for _ in range(_ROUNDS):
        before = lowest.total
        status, taken = _descend(lowest, max_steps - iterations, tol, trace)
        iterations += taken
        if status is Status.CONVERGED:
            break
        if iterations >= max_steps or not lowest.total < before - _DECREASE * max(1.0, abs(before)):
            break
    return _Search(lowest.total, lowest.unconstrained, status, iterations)


_ROUNDS = 5
_DECREASE = 1e-12
"""Of the energy: a smaller one ends a descent."""


class _Lowest:
    """The energy as a function of free numbers over their units, and the lowest point that was seen of it."""

    def __init__(self, evaluator: _Evaluator, start: np.ndarray):
        self.evaluator, self.units = evaluator, evaluator.space.units
        low, high = np.asarray(evaluator.space.bounds(start)).T
        self.low, self.high = low / self.units, high / self.units
        self.scaled = np.clip(start / self.units, self.low, self.high)
        inside = np.array_equal(self.scaled, start / self.units)
        self.unconstrained = start if inside else self.scaled * self.units
        self.total, slope = evaluator.at(self.unconstrained)
        self.slope = slope * self.units

    def __call__(self, scaled: np.ndarray) -> tuple[float, np.ndarray]:
        """The energy and its slope; where it is far too high or none, a wall that a line search turns back from."""
        if np.array_equal(scaled, self.scaled):
            return self.total, self.slope
        unconstrained = scaled * self.units
        total, slope = self.evaluator(unconstrained)
        height = 1e3 * (1.0 + abs(self.total))
        # What an energy of 1e20 and its slope say of how far to turn back is lost to rounding.
        if np.isfinite(total) and total < self.total + height:
            if total < self.total:
                self.total, self.unconstrained, self.scaled, self.slope = (
                    total,
                    unconstrained,
                    np.array(scaled),
                    slope * self.units,
                )
            return total, slope * self.units
        away = scaled - self.scaled
        return self.total + height, height * away / max(float(away @ away), 1e-12)

    @property
    def open_slope(self) -> np.ndarray:
        """The slope in directions that the bounds leave open."""
        return self.scaled - np.clip(self.scaled - self.slope, self.low, self.high)


def _descend(lowest: _Lowest, max_steps: int, tol: float, trace: list[float]) -> tuple[Status, int]:
    """L-BFGS-B from the lowest point: how it ended, and how many iterations it took.

    Within bounds SciPy tries the whole gradient as its first step, however long. So energies are measured in the length
    of the first gradient, which makes the step one of length 1 at most, and the tolerances with them.
    """
    scale = 1.0 / max(1.0, float(np.sqrt(np.sum(lowest.open_slope**2))))
    size = max(1.0, abs(lowest.total))

    def measured(scaled: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = lowest(scaled)
        return scale * total, scale * slope

    found = scipy.optimize.minimize(
        measured,
        lowest.scaled,
        jac=True,
        method="L-BFGS-B",
        bounds=list(zip(lowest.low.tolist(), lowest.high.tolist(), strict=True)),
        callback=lambda _: trace.append(lowest.total),
        options={
            "maxiter": max_steps,
            "maxfun": 20 * max_steps + 20,
            "ftol": _DECREASE * size * scale / max(1.0, size * scale),
            "gtol": tol * scale,
            "maxls": 30,
        },
    )
    # SciPy ends with success too where a step has changed nothing, for whatever reason. The slope must be small as
    # well, or the curvature that the last steps have seen must say that there is nothing left to gain.
    slope = lowest.open_slope
    steepest, allowed = float(np.max(np.abs(slope), initial=0.0)), 1e2 * tol
    if found.status == 1:
        return Status.CONVERGED if steepest < tol else Status.MAX_STEPS, int(found.nit)
    gain = scale * float(slope @ found.hess_inv(slope)) if found.hess_inv.n_corrs > 0 else np.inf
    ended = steepest < allowed or 0.0 <= gain < allowed**2
    return Status.CONVERGED if ended else Status.STEP_TOO_SMALL, int(found.nit)


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
    check_memory: bool = True,
) -> FitResult:
    """Learn the hyperparameters of the model from data, and infer the posterior with them.

    Every hyperparameter that kernel, mean and likelihood declare (see `newtongp.learned`) is learned unless
    `parameters` says otherwise, a mapping from names (see `newtongp.parameters`) to `Fixed()`, `Free(lower, upper,
    prior, start)` or `Tied(name)`; a `FitWarning` names numbers that are not declared. The method's own
    energy is made as low as possible, by L-BFGS with exact gradients, until they are below `tol` in the logarithms of
    positive parameters and in others by their units; with priors on parameters, the energy minus their log density is
    (a MAP estimate). The search starts from the model's own values or from guesses made of the data, whichever have the
    lower energy, and again from `restarts` random places, which `key` decides.

    With `weak_priors`, parameters that the data leave undecided do not run away: see `newtongp.parameters.Plausible`.
    They do not move what the data determine. What would not fit in memory raises MemoryError before it starts, unless
    `check_memory=False`. Ctrl-C ends the search with what was found until then (`Status.INTERRUPTED`), as soon as the
    evaluation that is under way is over: inference and the gradient of its energy are one program, which takes seconds
    for 10⁶ rows of a `MarkovGP`, and minutes for 4000 rows of a `GP`. `checkpoint` is a file to write what was found so
    far to, and to resume from. The result is that of `infer` with learned hyperparameters in `result.model`, and has a
    `summary()`.

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
    whole(max_steps, "max_steps", 0, such_as=100)
    whole(restarts, "restarts", 0)
    whole(inference_steps, "inference_steps", 1, MOST_STEPS, such_as=200)
    tol = tolerance(tol, strict=True)
    key = as_key(key)
    flags = {"weak_priors": weak_priors, "standard_errors": standard_errors, "progress": progress, "throw": throw}
    for name, value in flags.items():
        flag(value, name)
    checkpoint = None if checkpoint is None else file_name(checkpoint, "checkpoint", "fit.checkpoint")
    if batch_size is not None or getattr(getattr(model, "prior", None), "storage", "full") == "tied":
        from .minibatch import fit_in_batches

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
    with memory.checked(check_memory):
        setup = _set_up(model, x, y)
        memory.require_nodes(method.cubature, setup.data.x.shape[0], model.prior.num_latents)
    space = Space(setup.model, scales_of(setup.model, setup.data), parameters, weak_priors)
    checkpoint_writer = None
    if checkpoint is not None:
        checkpoint_writer = _CheckpointWriter(
            checkpoint, setup, (method, step, space.priors), space, int(inference_steps)
        )
    started = time.perf_counter()
    with _progress(progress) as report_progress:
        evaluator = _Evaluator(setup, method, step, space, int(inference_steps), checkpoint_writer, report_progress)
        searches, trace, interrupted, hessian = [], [], False, None
        try:
            for start in _starts(evaluator, int(restarts), key):
                searches.append(_search(evaluator, start, int(max_steps), tol, trace))
            if searches:
                lowest, hessian = _without_pull(evaluator, min(searches, key=_total), int(max_steps), tol, trace)
                searches.append(lowest)
            if not standard_errors:
                hessian = None
            elif hessian is None and searches:
                hessian = curvature(evaluator, min(searches, key=_total).unconstrained, space.units)
        except KeyboardInterrupt:
            interrupted = True
    if checkpoint_writer is not None and len(evaluator.record) >= len(evaluator.replay):
        checkpoint_writer.write(evaluator.record, evaluator.sites, now=True)
    return _finish(evaluator, searches, trace, interrupted, hessian, started, throw)


_KNOWN = 2.0
"""A standard error, of a logarithm, with which the data determine a value."""
_STEEP = 0.5
"""A slope against which the data may determine it elsewhere."""


def _without_pull(
    evaluator: _Evaluator, lowest: _Search, max_steps: int, tol: float, trace: list[float]
) -> tuple[_Search, np.ndarray | None]:
    """The optimum without those weak priors that pull at what the data determine, and the curvature there if known.

    A weak prior is for what the data leave open. Where it acts, the search goes on without it. What ends in an optimum
    with a curvature of its own is determined, and stays there; for the rest the weak prior is back.
    """
    hessian = None
    for _ in range(_ROUNDS):
        space = evaluator.space
        _, pull = space.pull(lowest.unconstrained)
        held = pull != 0.0
        if lowest.status is not Status.CONVERGED or not np.any(held):
            break
        if hessian is None:
            hessian = curvature(evaluator, lowest.unconstrained, space.units)
        if hessian is None:
            break
        released = held & (_is_known(evaluator, lowest.unconstrained, hessian) | (np.abs(pull) > _STEEP))
        if np.any(released):
            evaluator.space = space.release(released)
            found = _search(evaluator, lowest.unconstrained, max_steps, tol, trace)
            beyond = (
                curvature(evaluator, found.unconstrained, space.units) if found.status is Status.CONVERGED else None
            )
            if beyond is not None and np.all(_is_known(evaluator, found.unconstrained, beyond)[released]):
                lowest, hessian = found, beyond
                evaluator.best, evaluator.best_report = (found.total, found.unconstrained, evaluator.sites), None
                continue
            evaluator.space = space
        evaluator.space.undetermined = space.names_of(held)
        break
    return lowest, hessian


def _is_known(evaluator: _Evaluator, unconstrained: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Which free numbers the data, and what a user knows of them, determine without weak priors."""
    weak = curvature(evaluator.space.pull, unconstrained, evaluator.space.units)
    return Spread.of(hessian - weak).errors < _KNOWN if weak is not None else np.zeros(unconstrained.shape, dtype=bool)


def _set_up(model: Model, x: Any, y: Any) -> Setup:
    """The model at its data, with one lengthscale a column where it leaves that open, and inducing inputs chosen."""
    inputs = read_inputs(x, model)
    memory.require_rows(model.prior, inputs, times=_GRADIENTS)
    model = Model(for_columns(model.prior, inputs.shape[1]), model.likelihood)
    setup = Setup(model, x, y)
    if isinstance(model.prior, SparseGP) and model.prior.inducing is None:
        # They stay where they are while the kernel changes: energies are then those of one and the same model.
        scales = scales_of(model, setup.data)
        unconstrained = choose(model, None)
        start = with_values(tuple(each.slot for each in unconstrained), model, guess(model, scales, unconstrained))
        chosen = start.prior.layout(setup.data.x).inputs.inducing
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
    for unconstrained in space.starts():
        evaluator.at(unconstrained)
    yield space.middle if evaluator.best is None else evaluator.best[1]
    if restarts == 0:
        return
    keys = jax.random.split(key, restarts)
    low, high = np.asarray(space.bounds(space.middle)).T
    for number in range(restarts):
        noise = np.asarray(jax.random.normal(keys[number], (space.size,)))
        yield np.clip(space.middle + 1.5 * noise * space.units, low, high)


def _finish(evaluator, searches, trace, interrupted, hessian, started, throw) -> FitResult:
    """Infer with what was learned, and put everything together."""
    space, setup = evaluator.space, evaluator.setup
    if evaluator.best is None and interrupted:
        raise KeyboardInterrupt
    if evaluator.best is None:
        check_prior(setup.model.prior, setup.data.x, setup.problem.workspace)
        if np.any(evaluator.undefined):
            names = ", ".join(space.names_of(evaluator.undefined))
            raise RuntimeError(
                f"the energy has no finite derivative in {names}: a function in the model has none where it is used, "
                "such as the square root of a distance at 0. Rewrite it there (jnp.where on both its argument and its "
                "value), or say Fixed() of these parameters"
            )
        raise RuntimeError(
            "no hyperparameters were found with which inference works: try infer with fixed ones first, to see why"
        )
    _, unconstrained, sites = evaluator.best
    if interrupted:
        status = Status.INTERRUPTED
    elif space.size == 0:
        status = Status.CONVERGED
    else:
        lowest = min(searches, key=_total)
        status = lowest.status
        # The curvature's own evaluations may have found something lower, by rounding: the search's point is kept.
        unconstrained = lowest.unconstrained if np.isfinite(lowest.total) else unconstrained
    model = with_values(space.slots, setup.model, space.values_at(unconstrained))
    run = Run(setup.with_model(model), evaluator.method, evaluator.step, None, _INNER_TOLERANCE)
    # Whoever has interrupted it is not to wait for one more evaluation.
    known = evaluator.best_report if interrupted else None
    result = run.result(evaluator.report_at(unconstrained, sites) if known is None else known)
    spread = None if hessian is None or not np.all(np.isfinite(hessian)) else Spread.of(hessian)
    errors = standard_errors(space, unconstrained, spread)
    space.note_without_influence([(entry.energy, entry.gradient) for entry in evaluator.record])
    found = space.finish(unconstrained, result, status, trace, len(evaluator.record), started, errors)
    found.spread = None if spread is None else spread.matrix
    report_failure(found, throw, stacklevel=4)
    return found


class _CheckpointWriter:
    """A checkpoint with the record of all evaluations and the last sites."""

    def __init__(self, path: Any, setup: Setup, choices: Any, space: Space, inference_steps: int):
        data = setup.data
        arrays = data.x, data.y, data.observed, space.specifications[0]
        mark = fingerprint((setup.model, choices), arrays, (space.slots, inference_steps))
        self.file = Checkpoint(path, "newtongp fit checkpoint", mark)

    def read(self, size: int, like: Sites) -> tuple[list[_Entry], Sites | None]:
        """What an earlier run has left, for so many free numbers and such sites; nothing if there was none."""
        kept = self.file.read()
        if kept is None:
            return [], None
        array = functools.partial(self.file.array, kept)
        unconstrained = array("free", "f", None, size)
        count = len(unconstrained)
        energy, gradient = array("energy", "f", count), array("gradient", "f", count, size)
        status, steps = array("status", "i", count), array("steps", "i", count)
        sites = Sites(array("linear", "f", *like.linear.shape), array("precision", "f", *like.precision.shape))
        if np.any(np.isnan(energy) | (energy == -np.inf)):
            raise self.file.unusable("energies must be numbers, or infinite where inference broke down")
        if not all(np.all(np.isfinite(each)) for each in (unconstrained, gradient, sites.linear, sites.precision)):
            raise self.file.unusable("free, gradient, linear and precision must be finite")
        if not np.all(np.isin(status, list(Status))):
            raise self.file.unusable("status must hold endings of inference")
        rows = zip(unconstrained, energy.tolist(), gradient, status.tolist(), steps.tolist(), strict=True)
        return [_Entry(*row) for row in rows], sites

    def write(self, record: list[_Entry], sites: Sites, now: bool = False) -> None:
        """Replace the file by what is known by now."""
        if not record or not (now or self.file.is_due()):
            return
        self.file.write(
            {
                "free": np.stack([entry.unconstrained for entry in record]),
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

        def report_progress(evaluations: int, lowest: float) -> None:
            bar.update(task, description=f"fit, {evaluations} evaluations, energy {lowest:.6g}")

        yield report_progress
