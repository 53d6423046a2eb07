"""Inference as users call it: from a model and data to a result, at once or step by step.

The loop itself is in `loop.py`.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from . import data as data_room
from .arguments import as_key, flag, tolerance, whole
from .choices import check_choices, local_rule, starts_from_sweep
from .compilation import compiled
from .gaussian import Gaussian, Sites
from .linalg import smallest_eigenvalue
from .loop import Loop, Report, begin_loop, in_blocks, report_of, run_at_once, run_loop
from .methods.presets import FirstOrderVI
from .methods.rule import Method
from .model import Model
from .precision import give_back_memory, in_double, to_host
from .priors.base import Prior, Workspace
from .problem import Setup
from .results import ConvergenceWarning, History, InferenceError, Result, Status
from .starts import HOPELESS, START_PRECISIONS, bound_nearby, inside_support, swept
from .steps import Step

_MANY = 2**18
"""Rows from which on memory is worth a thought."""


@in_double
def posterior_of(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    """q(f) with all that prediction needs."""
    return to_host(_condition(prior, workspace, sites))


@compiled
def _condition(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    return prior.condition(workspace, sites)


def _residual(reached: Any) -> Any:
    return reached.residual if isinstance(reached, Report) else reached.point.largest


def _energy(reached: Any) -> float:
    """The energy, infinite where it cannot be started from."""
    energy = reached.energy if isinstance(reached, Report) else reached.point.energy
    return float(energy) if int(reached.steps) >= 0 else np.inf


def _is_nowhere(reached: Any) -> bool:
    """Whether a start leads nowhere: to no finite energy, or to one from which no step leads on."""
    still = int(reached.steps) < 0 or (int(reached.steps) == 0 and float(_residual(reached)) > 1e-3)
    return still and int(reached.status) in (Status.NON_FINITE.value, Status.STEP_TOO_SMALL.value)


def _rank(reached: Any) -> tuple[bool, float]:
    return int(reached.status) != Status.CONVERGED.value, _energy(reached)


class Run:
    """One call of `infer` or `iterate`: the problem, the method and the step, and from where to start."""

    def __init__(self, setup: Setup, method, step, sites, tol):
        self.method, self.step = method, step
        self.model, self.order, self.problem, self.data = setup.model, setup.order, setup.problem, setup.data
        self.tol = tolerance(tol)
        self.given = None
        if sites is not None:
            self.given = data_room.read_sites(sites, self.data.x.shape[0], self.model.prior.num_latents)
            self._check_start(self.given, self.data.observed)

    def _starts(self, at: Callable[[Sites], Any]) -> Iterator[Sites]:
        """Sites to start from, the next ones for the case that nothing is finite at those before.

        A wide prior can put so much mass where the likelihood overflows that nothing is finite there. Then start from
        sites that hold f near the prior mean, as loosely as is possible; or, where the density is zero at the prior
        mean, near a point where it is not. `at` looks at some sites.
        """
        if self.given is not None:
            yield self.order.sites(self.given)
            return
        at_prior = self._at_prior()
        if starts_from_sweep(self.method, self.problem.likelihood):
            sites = to_host(swept(self.problem, self.data.x))
            if _energy(at(sites)) < _energy(at(at_prior)):
                yield sites
        yield at_prior
        yield from self._held()
        yield from inside_support(self.problem)

    @property
    def _initial_precision(self) -> float:
        return 0.01 if isinstance(self.method, FirstOrderVI) else self.method.initial_precision

    def _at_prior(self) -> Sites:
        rows, latents = self.problem.workspace.mean.shape
        return Sites.constant(rows, latents, self._initial_precision)

    def _held(self) -> Iterator[Sites]:
        """Sites that hold f near the prior mean, ever more firmly."""
        mean = np.asarray(self.problem.workspace.mean)
        rows, latents = mean.shape
        for precision in START_PRECISIONS:
            if precision > self._initial_precision:
                yield Sites(precision * mean, Sites.constant(rows, latents, precision).precision)

    def _best_held(self, at: Callable[[Sites], Any]) -> Sites | None:
        """Those of them with the lowest energy, where the prior is far too wide: its own energy is far higher."""
        if self.given is not None:
            return None
        highest = _energy(at(self._at_prior()))
        if highest <= HOPELESS * np.sum(self.data.observed):
            return None
        lowest, best = min(((_energy(at(sites)), sites) for sites in self._held()), key=lambda pair: pair[0])
        return best if lowest < 1e-3 * highest else None

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

        def attempt(sites: Sites, until: int) -> Loop:
            return self.advance(begin_loop(self.problem, self.method, self.step, sites, capacity), until)

        held = self._best_held(lambda sites: attempt(sites, 0))
        reached = None if held is None else attempt(held, until)
        return self._first_sound(attempt, until) if reached is None or _is_nowhere(reached) else reached

    def advance(self, loop: Loop, until: int) -> Loop:
        """Go on until `until` steps have been accepted, or inference has ended."""
        return run_loop(self.problem, self.method, self.step, loop, until, self.tol)

    def finish(self, capacity: int, until: int) -> Report:
        """From the start to the end at once."""
        blocks = in_blocks(self.problem, local_rule(self.method))

        def attempt(sites: Sites, until: int) -> Report:
            return run_at_once(
                self.problem, self.method, self.step, sites, capacity, until, self.tol, quickly=not blocks
            )

        if self.problem.observed.shape[0] > _MANY:
            give_back_memory()
        reached = self._first_sound(attempt, until)
        if until == 0 or int(reached.status) == Status.CONVERGED.value or float(reached.residual) <= 1e-3:
            return reached
        # Far from the end: from a prior that is far too wide, sites may have become so precise that they hardly move.
        held = self._best_held(lambda sites: attempt(sites, 0))
        again = reached if held is None else attempt(held, until)
        return min(reached, again, key=_rank)

    def _first_sound(self, attempt: Callable[[Sites, int], Any], until: int) -> Any:
        """What the first start leads to that leads anywhere; `attempt` goes from sites so many steps."""
        reached = None
        for sites in self._starts(lambda sites: attempt(sites, 0)):
            reached = attempt(sites, until)
            if not _is_nowhere(reached):
                break
        if reached is not None and int(reached.steps) <= 0 and Status(int(reached.status)).failed:
            from .diagnosis import check_prior

            check_prior(self.model.prior, self.data.x, self.problem.workspace)
        if self.given is not None and reached is not None and int(reached.steps) < 0:
            rows, latents = self.given.linear.shape
            raise ValueError(
                f"sites cannot be started from ({Status(int(reached.status)).name.lower()}): start from "
                f"Sites.constant({rows}, {latents}, 0.01), or leave sites out"
            )
        return reached

    def bound(self, result: Result) -> str | None:
        """Which row's density is zero for some f that the posterior reaches, where that has stopped the method."""
        stuck = result.status is Status.STEP_TOO_SMALL and result.residual > 1e-3
        # Power EP integrates the density itself, and zeros are no matter.
        if not (stuck or result.status is Status.NON_FINITE) or local_rule(self.method).target.power > 0.0:
            return None
        marginals = result.marginals
        found = bound_nearby(
            self.problem, Gaussian(self.order.positions(marginals.mean), self.order.positions(marginals.covariance))
        )
        if found is None:
            return None
        if found.edge.size == 1:
            where = f"{'below' if found.below else 'above'} f = {found.edge[0]:.4g}"
        else:
            where = f"from about f = {np.array2string(found.edge, precision=4)} on"
        return f"In row {self.order.row_at(found.row)} the density is zero {where}."

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
    whole(max_steps, "max_steps", 0, such_as=100)
    throw, progress = flag(throw, "throw"), flag(progress, "progress")
    key = None if key is None else as_key(key)
    detail = None
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
        detail = run.bound(result)
        if detail is not None:
            result.status = Status.BOUNDED_SUPPORT
    if result.status.failed and throw:
        raise InferenceError(result, detail)
    if not result.status.ok and throw:
        _warn(result.status, result.residual, stacklevel=4)
    return result


def _in_batches(model, x, y, method, step, max_steps, tol, sites, progress, batch_size, key) -> Result:
    if sites is not None:
        raise ValueError("inference in batches starts without sites: leave sites out")
    from .minibatch import BatchRun

    result = BatchRun(model, x, y, method, step, batch_size, key, tol).run(max_steps, progress)
    if result.status.failed and result.data is not None:
        from .diagnosis import check_prior

        check_prior(model.prior, result.data.x)
    return result


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
