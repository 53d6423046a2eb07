"""`infer` and `iterate`: from a model and data to a result, at once or step by step.

The loop itself is in `loop.py`.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from .._runtime import tiers
from .._runtime.compilation import compiled, wait_for
from .._runtime.double import in_double, to_host
from ..inputs import memory
from ..inputs.data import read_sites, with_weights
from ..methods.rule import Method
from ..model import Model, from_formulas
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.size_classes import first_rows
from ..numerics.small import smallest_eigenvalue
from ..priors.base import Prior, Workspace
from ..results.result import History, InferenceError, Result
from ..results.status import ConvergenceWarning, Status
from ..validation.arguments import as_key, flag, tolerance, whole
from .compatibility import check_choices, starts_from_sweep
from .loop import Loop, Report, Trail, at_many_nodes, report_of, run_slice, start_loop, work_of
from .own_sizes import Use, in_own_size
from .problem import Setup
from .starts import HOPELESS, START_PRECISIONS, bound_nearby, inside_support, swept_sites
from .steps.base import Step
from .steps.double_loop import CLOSE, DoubleLoop


@in_double
def posterior_of(prior: Prior, workspace: Workspace, sites: Sites, rows: int) -> Any:
    """q(f) with everything that prediction needs, for data with this many rows."""
    posterior, refined = to_host((_condition(prior, workspace, sites), workspace.refined(sites)))
    if refined is None and sites.linear.shape[0] == rows:
        return posterior
    marginals = posterior.marginals if refined is None else workspace.at_rows(refined)
    return eqx.tree_at(lambda posterior: posterior.marginals, posterior, first_rows(marginals, rows))


@in_double
def _posterior_in_class(setup: Setup, sites: Sites) -> Any:
    """`posterior_of` for the sites of a setup, filled up to its size class."""
    in_class = setup.with_size(setup.size_class)
    sites = in_class.sites_from(setup, sites)
    return posterior_of(setup.model.prior, in_class.problem.workspace, sites, setup.rows)


def start_compiling_posterior(setup: Setup, workspace: Any) -> Any:
    """Start compiling what makes the posterior, given the shapes of a workspace; returns its own shapes."""
    rows, latents = setup.bound.observed.shape[0], setup.model.prior.num_latents
    return _condition.start(setup.model.prior, workspace, Sites.constant(rows, latents, 0.0))


@compiled
def _condition(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    return prior.condition(workspace, sites)


_SLICE = 1.0
"""The intended duration of a slice of the loop, in seconds. A slice cannot be interrupted."""
_CAPACITY = 128
"""The largest number of steps per slice."""
_FIRST_TRIALS = 16
"""The number of trials in the first slice of a small problem; 1 for others."""
_SMALL = 1e7
"""The largest memory of a small problem, in bytes, and its largest number of nodes."""


class _Track:
    """The history of a loop that runs in slices, and the number of trials in the next slice."""

    def __init__(self, trials: int):
        self.trials = trials
        self._parts: list[tuple[np.ndarray, ...]] = []

    def note(self, loop: Loop, before: int, remaining: int, seconds: float) -> None:
        """Record the steps of the last slice, and its duration, which includes compilation the first time."""
        per_trial = max(seconds, 1e-6) / (self.trials - remaining)
        self.trials = int(np.clip(_SLICE / per_trial, 1, min(8 * self.trials, 2**20)))
        steps = np.arange(before, int(loop.steps))
        if steps.size:
            columns = jax.tree.leaves(loop.history)
            self._parts.append(tuple(np.asarray(column)[steps % len(column)] for column in columns))

    def history(self) -> Trail:
        """One entry per accepted step."""
        columns = zip(*self._parts, strict=True) if self._parts else [[np.zeros(0)]] * 3
        return Trail(*map(np.concatenate, columns))


def _is_nowhere(loop: Loop) -> bool:
    """Whether a start has no finite energy or no acceptable step, as when the prior is too wide for the likelihood."""
    nowhere = int(loop.steps) < 0 or (int(loop.steps) == 0 and float(loop.point.largest) > 1e-3)
    return nowhere and int(loop.status) in (Status.NON_FINITE.value, Status.STEP_TOO_SMALL.value)


def _energy(loop: Loop) -> float:
    return float(loop.point.energy) if int(loop.steps) >= 0 else np.inf


class Run:
    """One call of `infer` or `iterate`: the problem, the method, the step, and the start."""

    def __init__(self, setup: Setup, method, step, sites, tol, use: Use | None = None):
        self.setup, self.method, self.step, self.use = setup, method, step, use
        self.model, self.order, self.problem, self.data = setup.model, setup.order, setup.problem, setup.data
        self.columns = setup.columns
        self.tol = tolerance(tol)
        rows, latents = setup.data.x.shape[0], self.model.prior.num_latents
        memory.require_nodes(method.cubature, rows, latents)
        nodes = 1 if method.cubature is None else len(method.cubature.rule(latents)[1])
        self.work, self.matrix = work_of(setup, method), self.model.prior.matrix_size(setup.data.x)
        self.takes_long = max(setup.memory, rows * nodes) > _SMALL
        self.given = None
        if sites is not None:
            self.given = read_sites(sites, self.data.x.shape[0], self.model.prior.num_latents)
            self._check_start(self.given, self.data.observed)

    def _starts(self) -> Iterator[Sites]:
        """Sites to start from, in the order in which they are tried.

        A wide prior can put so much mass where the likelihood overflows that nothing is finite. The next starts are
        sites that hold f near the prior mean, as loosely as possible. If the density is zero at the prior mean, they
        hold f near a point where it is positive.
        """
        if self.given is not None:
            yield self.order.sites(self.given)
            return
        rows, latents = self.problem.workspace.mean.shape
        at_prior = Sites.constant(rows, latents, self.method.initial_precision)
        if starts_from_sweep(self.method, self.problem.likelihood):
            sites = swept_sites(self.setup)
            if self._energy_at(sites) < self._energy_at(at_prior):
                yield sites
        if self.model.prior.is_proper:
            yield at_prior
        yield from self._held()
        yield from inside_support(self.problem)

    def _held(self) -> Iterator[Sites]:
        """Sites that hold f near the prior mean, with increasing precisions."""
        mean = np.asarray(self.problem.workspace.mean)
        rows, latents = mean.shape
        for precision in START_PRECISIONS:
            if precision > self.method.initial_precision:
                yield Sites(precision * mean, Sites.constant(rows, latents, precision).precision)

    def _energy_at(self, sites: Sites) -> float:
        """The energy of a start; infinite if it is unusable."""
        return _energy(self._follow(sites, 0)[0])

    def _at_first(self, sites: Sites) -> tuple[Loop, "_Track"]:
        """The loop before the first step, from these sites, or from sites that hold f if their energy is far lower.

        Under a prior that is far too wide, the first proposals are absurdly precise and then hardly move. Of the sites
        that hold f, those with the lowest energy are used.
        """
        loop, track = self._follow(sites, 0)
        if self.given is not None or _energy(loop) <= HOPELESS * np.sum(self.data.observed):
            return loop, track
        lowest, best = min(((self._energy_at(held), held) for held in self._held()), key=lambda pair: pair[0])
        return self._follow(best, 0) if lowest < 1e-3 * _energy(loop) else (loop, track)

    def _check_start(self, sites: Sites, observed: np.ndarray) -> None:
        """Raise ValueError if Λ has no inverse, which Adam's parameters and the Riemannian term need."""
        inverts = self.method.initial_precision > 0.0
        if inverts and np.any(np.asarray(_smallest_eigenvalues(sites.precision))[observed] <= 0.0):
            raise ValueError(
                "sites must have positive definite precisions for this method: start from "
                f"Sites.constant({sites.linear.shape[0]}, {sites.linear.shape[1]}, 0.01)"
            )

    def advance(self, loop: Loop, until: int, track: "_Track") -> Loop:
        """Continue until `until` steps have been accepted or inference has ended."""
        while int(loop.status) == Status.RUNNING.value and int(loop.steps) < until:
            before, started = max(0, int(loop.steps)), time.perf_counter()
            arguments = self._arguments(loop, min(until, before + _CAPACITY), track)
            full, again = at_many_nodes(self.problem, self.method), self.use is None or not self.use.is_last
            effort: dict[str, Any] = {"work": self.work, "matrix": self.matrix, "full": full, "again": again}
            loop, remaining = wait_for(run_slice(*arguments, **effort))
            elapsed = time.perf_counter() - started
            track.note(loop, before, int(remaining), elapsed)
            if self.use is not None:
                self.use.note(elapsed)
        return loop

    def _arguments(self, loop: Loop, until: int, track: "_Track") -> tuple:
        return self.problem, self.method, self.step, loop, until, self.tol, track.trials

    def prepare(self) -> tiers.Use | None:
        """Start compiling the loop in the background."""
        rows, latents = self.problem.workspace.mean.shape
        loop, track = self._start(Sites.constant(rows, latents, self.method.initial_precision))
        return run_slice.prepare(*self._arguments(loop, 0, track))

    def finish(self, until: int) -> Report:
        """Run from the start, for at most `until` steps."""
        return self.report(*self.begin(until))

    def report(self, loop: Loop, track: "_Track") -> Report:
        """The report of a loop, with the history of all slices."""
        return report_of(self.problem, loop, track.history())

    def _follow(self, sites: Sites, until: int) -> tuple[Loop, "_Track"]:
        """Run from these sites, for at most `until` steps."""
        start, track = self._start(sites)
        return self.advance(start, until, track), track

    def _start(self, sites: Sites) -> tuple[Loop, "_Track"]:
        start = start_loop(self.problem, self.method, self.step, sites, _CAPACITY)
        return start, _Track(1 if self.takes_long else _FIRST_TRIALS)

    def _descended(self, sites: Sites) -> Sites:
        """The result of the double loop from these sites, if the step is one; otherwise the sites themselves."""
        if not isinstance(self.step, DoubleLoop):
            return sites
        from .double_loop import descend

        remaining = self.step.most
        while remaining > 0:
            most = min(remaining, _CAPACITY)
            # Close to the fixed point, damped steps are reliable as well, and far quicker.
            sites, trials = descend(self.problem, self.method, sites, max(float(self.tol), CLOSE), most)
            remaining = remaining - most if int(trials) == most else 0
        return sites

    def begin(self, until: int) -> tuple[Loop, "_Track"]:
        """The loop after at most `until` steps from the first start that makes progress."""
        starts = (self._descended(sites) for sites in self._starts())
        first, track = self._at_first(next(starts))
        reached = self.advance(first, until, track)
        while _is_nowhere(reached):
            sites = next(starts, None)
            if sites is None:
                break
            reached, track = self._follow(sites, until)
        if int(reached.steps) <= 0 and Status(int(reached.status)).failed:
            from .prior_check import check_prior

            check_prior(self.model.prior, self.data.x, self.problem.workspace)
        if self.given is not None and int(reached.steps) < 0:
            rows, latents = self.given.linear.shape
            raise ValueError(
                f"inference cannot start from these sites ({Status(int(reached.status)).name.lower()}): start from "
                f"Sites.constant({rows}, {latents}, 0.01), or leave sites out"
            )
        return reached, track

    def bound(self, result: Result) -> str | None:
        """Which row's density is zero within reach of the posterior, if that has stopped the run."""
        stuck = result.status is Status.STEP_TOO_SMALL and result.residual > 1e-3
        # Power EP integrates the density itself, which may be zero.
        if not (stuck or result.status is Status.NON_FINITE) or self.method.target.power > 0.0:
            return None
        marginals = result.marginals
        bound = bound_nearby(
            self.problem, Gaussian(self.order.positions(marginals.mean), self.order.positions(marginals.covariance))
        )
        if bound is None:
            return None
        if bound.edge.size == 1:
            where = f"{'below' if bound.below else 'above'} f = {bound.edge[0]:.4g}"
        else:
            where = f"beyond about f = {np.array2string(bound.edge, precision=4)}"
        return f"In row {self.order.row_at(bound.row)} the density is zero {where}."

    def condition(self, sites: Sites) -> Callable[[], Any]:
        """A function that returns q(f) given the sites of all positions."""
        if self.setup.size != self.setup.size_class:
            return functools.partial(_posterior_in_class, self.setup, sites)
        return functools.partial(posterior_of, self.model.prior, self.problem.workspace, sites, self.data.x.shape[0])

    def result(self, report: Report) -> Result:
        """The result that users receive."""
        status, steps = Status(int(report.status)), max(0, int(report.steps))
        refined = self.problem.workspace.refined(report.sites)
        return Result(
            model=self.model,
            method=self.method,
            data=self.data,
            status=Status.MAX_STEPS if status is Status.RUNNING else status,
            energy=float(report.energy),
            residual=float(report.residual),
            steps=steps,
            history=History(*(np.asarray(column)[:steps] for column in jax.tree.leaves(report.history))),
            sites=self.order.rows(to_host(report.sites)),
            marginals=self.order.rows(to_host(report.marginals if refined is None else refined)),
            site_marginals=self.order.rows(to_host(report.site_marginals)),
            condition=self.condition(report.sites),
            columns=self.columns,
        )


@jax.jit
def _smallest_eigenvalues(precisions: Float[Array, "N D D"]) -> Float[Array, " N"]:
    return jax.vmap(smallest_eigenvalue)(precisions)


@in_double
def infer(
    model: Any,
    x: Any,
    y: Any = None,
    method: Method | None = None,
    step: Step | None = None,
    max_steps: int = 100,
    tol: float = 1e-6,
    sites: Sites | None = None,
    throw: bool = True,
    progress: bool = False,
    batch_size: int | None = None,
    key: Any = None,
    check_memory: bool = True,
    effects: Any = None,
    weights: Any = None,
) -> Result:
    """The Gaussian posterior of the model given data, for fixed hyperparameters.

    `method` is VI by default, and `step` one that is safe for the method. Inference has converged when no row's own
    update would move its marginal by more than `tol` posterior standard deviations. NaN in `y` is a missing row.
    `sites` is the start. A run that fails raises `InferenceError`, and one that does not converge warns, unless
    `throw=False`.

    A problem that would not fit in memory raises MemoryError before it starts, unless `check_memory=False`. Ctrl-C ends
    the run within about a second, or after the current step if that takes longer.

    A formula may be given instead of a model, followed by the table and a likelihood, as for `fit`.

    `weights` are at least 0, one per row or the name of a column of the table. A row of weight w contributes
    p(y | f)^w: with weight 2 it counts as if it were in the data twice, and with weight 0 as if its y were missing.
    Predictions of y have no weights. `likelihoods.Weighted` does the same.

    With `batch_size`, a `SparseGP`, or a `MarkovGP` with inducing times, is updated by that many rows at a time, in a
    random order determined by `key`, and `max_steps` counts passes over the data. x and y may then be arrays that are
    not in memory, such as memory maps. Alternatively, x provides chunks `(x, y)` of the data, and y is omitted.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=2.0)), ng.likelihoods.Bernoulli())
    >>> result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1], method=ng.PowerEP(0.5))
    >>> result.status.name, result.posterior.marginals.mean.shape
    ('CONVERGED', (4, 1))
    """
    model, y = from_formulas(model, y, effects)
    model = with_weights(model, x, weights)
    whole(max_steps, "max_steps", 0, such_as=100)
    throw, progress = flag(throw, "throw"), flag(progress, "progress")
    key = None if key is None else as_key(key)
    detail = None
    if batch_size is not None or getattr(getattr(model, "prior", None), "storage", "full") == "tied":
        result = _in_batches(model, x, y, method, step, int(max_steps), tol, sites, progress, batch_size, key)
    else:
        method, step = check_choices(model, method, step)
        with memory.checked(check_memory):
            run = _run(Setup(model, x, y), method, step, sites, tol)
        result = run.result(_with_progress(run, int(max_steps)) if progress else run.finish(int(max_steps)))
        detail = run.bound(result)
        if detail is not None:
            result.status = Status.BOUNDED_SUPPORT
    if result.status.failed and throw:
        raise InferenceError(result, detail)
    if not result.status.ok and throw:
        _warn(result.status, result.residual, stacklevel=4)
    return result


def _run(setup: Setup, method, step, sites, tol) -> Run:
    """A run in the size class, or in the size of its own that this number of rows has."""
    # What a double loop does before the loop over steps has no program of another size.
    if isinstance(step, DoubleLoop):
        return Run(setup, method, step, sites, tol)
    work = work_of(setup, method)
    setup, use = in_own_size(
        setup, (method, step), "infer", work, lambda own: Run(own, method, step, None, tol).prepare()
    )
    return Run(setup, method, step, sites, tol, use)


def _in_batches(model, x, y, method, step, max_steps, tol, sites, progress, batch_size, key) -> Result:
    if sites is not None:
        raise ValueError("inference in batches starts without sites: leave sites out")
    from .minibatch import BatchRun

    result = BatchRun(model, x, y, method, step, batch_size, key, tol).run(max_steps, progress)
    if result.status.failed and result.data is not None:
        from .prior_check import check_prior

        check_prior(model.prior, result.data.x)
    return result


def _warn(status: Status, residual: float, stacklevel: int) -> None:
    message = f"{status.name.lower()} (residual {residual:.1e}): {status.sentence}"
    warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)


def _with_progress(run: Run, max_steps: int) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("inference", total=max_steps)
        loop, track = run.begin(min(1, max_steps))
        while int(loop.status) == Status.RUNNING.value and int(loop.steps) < max_steps:
            loop = run.advance(loop, min(int(loop.steps) + max(1, max_steps // 50), max_steps), track)
            energy = float(loop.point.energy)
            bar.update(task, completed=int(loop.steps), description=f"inference, energy {energy:.4g}")
    return run.report(loop, track)


class State:
    """One step of `iterate`: `.energy`, `.objective`, `.step_size`, `.residual`, `.steps`, `.sites`, `.posterior`."""

    def __init__(self, run: Run, loop: Loop):
        point, last = loop.point, (int(loop.steps) - 1) % _CAPACITY
        self.energy = float(point.energy)
        self.objective = float(loop.history.objective[last])
        self.residual = float(point.largest)
        self.step_size = float(loop.history.step_size[last])
        self.steps = int(loop.steps)
        self.status = Status(int(loop.status))
        sites = to_host(point.sites)
        self.sites = run.order.rows(sites)
        self._condition = run.condition(sites)

    @functools.cached_property
    def posterior(self) -> Any:
        """q(f) after this step."""
        return self._condition()


def iterate(
    model: Model,
    x: Any,
    y: Any,
    method: Method | None = None,
    step: Step | None = None,
    sites: Sites | None = None,
    tol: float = 0.0,
    check_memory: bool = True,
) -> Iterator[State]:
    """The loop of `infer` as an iterator, with one state per step.

    It ends when inference does: with convergence to `tol` (never, for the default 0), or with a warning if a step
    fails.

    >>> import itertools
    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> states = ng.iterate(model, [0.0, 1.0], [2, 3], ng.VI(), ng.Constant(0.5))
    >>> energies = [state.energy for state in itertools.islice(states, 3)]
    >>> energies[2] < energies[0]
    True
    """
    method, step = check_choices(model, method, step)
    with memory.checked(check_memory):
        return _states(*in_double(_start)(model, x, y, method, step, sites, tol))


def _start(model, x, y, method, step, sites, tol) -> tuple[Run, Loop, _Track]:
    run = Run(Setup(model, x, y), method, step, sites, tol)
    return run, *run.begin(1)


def _states(run: Run, loop: Loop, track: _Track) -> Iterator[State]:
    advance = in_double(run.advance)
    if int(loop.steps) > 0:
        yield in_double(State)(run, loop)
    while int(loop.status) == Status.RUNNING.value:
        before = int(loop.steps)
        loop = advance(loop, before + 1, track)
        if int(loop.steps) > before:
            yield in_double(State)(run, loop)
    status = Status(int(loop.status))
    if status is not Status.CONVERGED:
        _warn(status, float(loop.point.largest), stacklevel=3)
