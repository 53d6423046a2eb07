"""Inference as users call it: from a model and data to a result, at once or step by step.

The loop itself is in `loop.py`.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from . import data as data_room
from .choices import check_choices, local_rule
from .compilation import compiled
from .double_loop import descend
from .gaussian import Sites
from .linalg import smallest_eigenvalue
from .loop import Loop, Report, begin_loop, in_blocks, report_of, run_at_once, run_loop
from .methods.presets import FirstOrderVI
from .methods.rule import Method
from .model import Model
from .precision import give_back_memory, in_double, parameter, to_host
from .priors.base import Prior, Workspace
from .problem import Setup
from .results import ConvergenceWarning, History, InferenceError, Result, Status
from .steps import DoubleLoop, Step

_MANY = 2**18
"""Rows from which on memory is worth a thought."""

START_PRECISIONS = (0.0, 1e-2, 1.0, 1e2, 1e4, 1e6)
"""Of sites at the prior mean: where one leads nowhere, the next holds f more firmly there."""


@in_double
def posterior_of(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    """q(f) with all that prediction needs."""
    return to_host(_condition(prior, workspace, sites))


@compiled
def _condition(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    return prior.condition(workspace, sites)


def _residual(reached: Any) -> Any:
    return reached.residual if isinstance(reached, Report) else reached.point.largest


class Run:
    """One call of `infer` or `iterate`: the problem, the method and the step, and from where to start."""

    def __init__(self, setup: Setup, method, step, sites, tol):
        self.method, self.step = method, step
        self.model, self.order, self.problem, self.data = setup.model, setup.order, setup.problem, setup.data
        self.tol = float(parameter(tol, "tol", lower=0.0, strict=False))
        self.given = None
        if sites is not None:
            self.given = data_room.read_sites(sites, self.data.x.shape[0], self.model.prior.num_latents)
            self._check_start(self.given, self.data.observed)

    def _starts(self) -> Iterator[Sites]:
        """Sites to start from, the next ones for the case that nothing is finite at those before.

        A wide prior can put so much mass where the likelihood overflows that nothing is finite there. Then start from
        sites that hold f near the prior mean, as loosely as is possible.
        """
        if self.given is not None:
            yield self.order.sites(self.given)
            return
        latents = self.model.prior.num_latents
        initial = 0.01 if isinstance(self.method, FirstOrderVI) else self.method.initial_precision
        positions = self.problem.observed.shape[0]
        yield Sites.constant(positions, latents, initial)
        mean = np.asarray(self.problem.workspace.mean)
        for precision in START_PRECISIONS:
            if precision > initial:
                yield Sites(precision * mean, Sites.constant(positions, latents, precision).precision)

    def _check_start(self, sites: Sites, observed: np.ndarray) -> None:
        """Adam's parameters and the Riemannian term both need the inverse of Λ."""
        inverts = isinstance(self.method, FirstOrderVI) or self.method.initial_precision > 0.0
        if inverts and np.any(np.asarray(_smallest_eigenvalues(sites.precision))[observed] <= 0.0):
            raise ValueError(
                "sites must have positive definite precisions for this method: start from "
                f"Sites.constant({sites.linear.shape[0]}, {sites.linear.shape[1]}, 0.01)"
            )

    def begin(self, capacity: int, until: int = 1) -> Loop:
        """The loop after its first step, where it can be seen whether a start leads anywhere; before it for 0."""
        return self._first_sound(
            lambda sites: self.advance(begin_loop(self.problem, self.method, self.step, sites, capacity), until)
        )

    def advance(self, loop: Loop, until: int) -> Loop:
        """Go on until `until` steps have been accepted, or inference has ended."""
        return run_loop(self.problem, self.method, self.step, loop, until, self.tol)

    def finish(self, capacity: int, until: int) -> Report:
        """From the start to the end at once."""
        blocks = in_blocks(self.problem, local_rule(self.method))

        def attempt(sites: Sites) -> Report:
            return run_at_once(
                self.problem, self.method, self.step, sites, capacity, until, self.tol, quickly=not blocks
            )

        if self.problem.observed.shape[0] > _MANY:
            give_back_memory()
        return self._first_sound(attempt)

    def _first_sound(self, attempt: Any) -> Any:
        """What the first start leads to that leads anywhere."""
        reached = None
        for sites in self._starts():
            if isinstance(self.step, DoubleLoop):
                sites, _ = descend(self.problem, self.method, sites, self.tol, self.step.most)
            reached = attempt(sites)
            # A prior that is too wide for the likelihood gives no finite energy, or one from which no step leads on.
            nowhere = int(reached.steps) < 0 or (int(reached.steps) == 0 and float(_residual(reached)) > 1e-3)
            if not (nowhere and int(reached.status) in (Status.NON_FINITE.value, Status.STEP_TOO_SMALL.value)):
                break
        if self.given is not None and reached is not None and int(reached.steps) < 0:
            rows, latents = self.given.linear.shape
            raise ValueError(
                f"sites cannot be started from ({Status(int(reached.status)).name.lower()}): start from "
                f"Sites.constant({rows}, {latents}, 0.01), or leave sites out"
            )
        return reached

    def result(self, report: Report) -> Result:
        """What a user gets."""
        status, steps = Status(int(report.status)), max(0, int(report.steps))
        kept = report.history
        return Result(
            model=self.model,
            method=self.method,
            data=self.data,
            status=Status.MAX_STEPS if status is Status.RUNNING else status,
            energy=float(report.energy),
            residual=float(report.residual),
            steps=steps,
            history=History(*(np.asarray(column)[:steps] for column in (kept.energy, kept.objective, kept.step_size))),
            sites=self.order.rows(to_host(report.sites)),
            marginals=self.order.rows(to_host(report.marginals)),
            site_marginals=self.order.rows(to_host(report.site_marginals)),
            condition=functools.partial(posterior_of, self.model.prior, self.problem.workspace, report.sites),
        )


@jax.jit
def _smallest_eigenvalues(precisions: Float[Array, "N D D"]) -> Float[Array, " N"]:
    return jax.vmap(smallest_eigenvalue)(precisions)


@in_double
def infer(
    model: Model,
    x: Any,
    y: Any = None,
    method: Method | FirstOrderVI | None = None,
    step: Step | None = None,
    max_steps: int = 100,
    tol: float = 1e-6,
    sites: Sites | None = None,
    throw: bool = True,
    progress: bool = False,
    batch_size: int | None = None,
    key: Any = None,
) -> Result:
    """The Gaussian posterior of the model given data, for fixed hyperparameters.

    `method` is VI by default, and `step` whatever is safe for the method. It ends when no row's own update would
    still move its marginal by more than `tol` posterior standard deviations. NaN in `y` is a missing row. `sites` are
    where to start. A run that breaks down raises `InferenceError` unless `throw=False`; one that only ran
    out of steps warns.

    With `batch_size`, a `SparseGP` is updated by so many rows at a time, in a random order that `key` decides, and
    `max_steps` counts passes over the data. x and y may then be arrays that are not in memory, such as memory maps, or
    x chunks `(x, y)` of the data, with no y.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=2.0)), ng.likelihoods.Bernoulli())
    >>> result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1], method=ng.PowerEP(0.5))
    >>> result.status.name, result.posterior.marginals.mean.shape
    ('CONVERGED', (4, 1))
    """
    if not isinstance(max_steps, (int, np.integer)) or isinstance(max_steps, bool) or max_steps < 0:
        raise ValueError(f"max_steps must be an integer of at least 0, got {max_steps!r}")
    # Buffers of a few sizes, so that changing max_steps a little compiles nothing anew.
    capacity = 128
    while capacity < max_steps:
        capacity *= 4
    if batch_size is not None or getattr(getattr(model, "prior", None), "storage", "full") == "tied":
        result = _in_batches(model, x, y, method, step, int(max_steps), tol, sites, progress, batch_size, key)
    else:
        method, step = check_choices(model, method, step)
        run = Run(Setup(model, x, y), method, step, sites, tol)
        report = _with_progress(run, capacity, int(max_steps)) if progress else run.finish(capacity, int(max_steps))
        result = run.result(report)
    if result.status.failed and throw:
        raise InferenceError(result)
    if not result.status.ok and throw:
        _warn(result.status, result.residual, stacklevel=4)
    return result


def _in_batches(model, x, y, method, step, max_steps, tol, sites, progress, batch_size, key) -> Result:
    if sites is not None:
        raise ValueError("inference in batches starts without sites: leave sites out")
    from .minibatch import BatchRun

    return BatchRun(model, x, y, method, step, batch_size, key, tol).run(max_steps, progress)


def _warn(status: Status, residual: float, stacklevel: int) -> None:
    message = f"{status.name.lower()} (residual {residual:.1e}): {status.sentence}"
    warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)


def _with_progress(run: Run, capacity: int, max_steps: int) -> Report:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("inference", total=max_steps)
        loop = run.begin(capacity, min(1, max_steps))
        while int(loop.status) == Status.RUNNING.value and int(loop.steps) < max_steps:
            loop = run.advance(loop, min(int(loop.steps) + max(1, max_steps // 50), max_steps))
            energy = float(loop.point.energy)
            bar.update(task, completed=int(loop.steps), description=f"inference, energy {energy:.4g}")
    return report_of(run.problem, loop)


class State:
    """One step of `iterate`: `.energy`, `.objective`, `.step_size`, `.residual`, `.steps`, `.sites`, `.posterior`."""

    def __init__(self, run: Run, loop: Loop):
        point = loop.point
        self.energy = float(point.energy)
        self.objective = float(loop.history.objective[0])
        self.residual = float(point.largest)
        self.step_size = float(loop.history.step_size[0])
        self.steps = int(loop.steps)
        self.status = Status(int(loop.status))
        sites = to_host(point.sites)
        self.sites = run.order.rows(sites)
        self._condition = functools.partial(posterior_of, run.model.prior, run.problem.workspace, sites)

    @functools.cached_property
    def posterior(self) -> Any:
        """q(f) after this step."""
        return self._condition()


def iterate(
    model: Model,
    x: Any,
    y: Any,
    method: Method | FirstOrderVI | None = None,
    step: Step | None = None,
    sites: Sites | None = None,
    tol: float = 0.0,
) -> Iterator[State]:
    """The loop of `infer`, one state a step, for as long as it is asked.

    It ends by itself only when inference has: at `tol` (never, for the default 0), or with a warning when a
    step fails.

    >>> import itertools
    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> states = ng.iterate(model, [0.0, 1.0], [2, 3], ng.VI(), ng.Constant(0.5))
    >>> energies = [state.energy for state in itertools.islice(states, 3)]
    >>> energies[2] < energies[0]
    True
    """
    method, step = check_choices(model, method, step)
    return _states(*in_double(_start)(model, x, y, method, step, sites, tol))


def _start(model, x, y, method, step, sites, tol) -> tuple[Run, Loop]:
    run = Run(Setup(model, x, y), method, step, sites, tol)
    return run, run.begin(1)


def _states(run: Run, loop: Loop) -> Iterator[State]:
    advance = in_double(run.advance)
    if int(loop.steps) > 0:
        yield in_double(State)(run, loop)
    while int(loop.status) == Status.RUNNING.value:
        before = int(loop.steps)
        loop = advance(loop, before + 1)
        if int(loop.steps) > before:
            yield in_double(State)(run, loop)
    status = Status(int(loop.status))
    if status is not Status.CONVERGED:
        _warn(status, float(loop.point.largest), stacklevel=3)
