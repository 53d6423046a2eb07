"""The loop: the one place where priors and methods meet.

One pass of the loop is one trial: propose sites, condition the prior on them, look at every row's likelihood
around its new marginal, and let the step judge. A trial that is accepted at once costs one conditioning,
because its posterior and its view of the likelihood are the next step's.
"""

import functools
import warnings
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import data as data_room
from .choices import check_choices, local_rule
from .compilation import compiled
from .gaussian import Gaussian, Sites
from .likelihoods.base import over_rows
from .linalg import smallest_eigenvalue
from .methods import first_order
from .methods.curvature import guarded_hessian, rows_of
from .methods.presets import FirstOrderVI
from .methods.rule import Method, RowNumbers, evaluate, propose, residual
from .methods.view import RowView
from .model import Model
from .precision import give_back_memory, in_double, parameter, to_host
from .priors.base import Conditioned, Prior, Workspace
from .problem import Problem, Setup
from .results import ConvergenceWarning, History, InferenceError, Result, Status
from .steps import Constant, Move, Outcome, Step, unless

_MANY = 2**18
"""Rows from which on memory is worth a thought."""
_MANY_NODES = 2**14
"""Rows from which on nodes for all of them at once do not fit in any cache."""

_LARGEST_SHARE = 1e6

START_PRECISIONS = (0.0, 1e-2, 1.0, 1e2, 1e4, 1e6)


class Trail(eqx.Module):
    """What is noted down of every accepted step."""

    energy: Float[Array, " T"]
    objective: Float[Array, " T"]
    step_size: Float[Array, " T"]


class _Point(eqx.Module):
    """One accepted point: sites, posterior marginals, the view of every row's likelihood, and the numbers."""

    sites: Sites
    memory: Any
    """What the method carries: quasi-Newton's matrices, Adam's moments, or nothing."""
    marginals: Gaussian
    views: RowView
    """Without the points that they were expanded at, where those are the marginals."""
    largest: Float[Array, ""]
    """The largest entry of any row's fixed-point residual."""
    energy: Float[Array, ""]
    outcome: Outcome
    failure: Any
    """Which status to end with if this point is not sound."""


class _Loop(eqx.Module):
    """The point, the step's state, and the bookkeeping."""

    point: _Point
    step_state: Any
    steps: Any
    """Accepted steps; −1 until the starting point itself has been looked at."""
    status: Any
    history: Trail


def look(problem: Problem, method: Method, sites: Sites) -> tuple[Conditioned, RowView, RowNumbers]:
    """Condition on the sites and look at every row's likelihood around its marginal."""
    conditioned = problem.workspace.marginals(sites, method.expects_psd(problem.likelihood))
    views, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        problem.likelihood,
        (problem.y, problem.observed, conditioned.marginals, sites, conditioned.extra),
        _in_blocks(problem, method),
    )
    return conditioned, views, numbers


def _in_blocks(problem: Problem, method: Method) -> bool:
    """Whether rows are worth looking at in blocks: where there are many, and each is looked at from many nodes."""
    return problem.y.shape[0] >= _MANY_NODES and method.target.integrates(problem.likelihood, method.cubature)


def total_energy(conditioned: Conditioned, numbers: RowNumbers) -> Float[Array, ""]:
    """The energy, from the prior's share of it and the rows'."""
    return jnp.sum(numbers.energy) + 0.5 * (conditioned.distance + conditioned.log_det)


def _propose(
    problem: Problem,
    method: Method | FirstOrderVI,
    point: _Point,
    step_size: Float[Array, ""],
    guarded: Bool[Array, ""] | None = None,
) -> tuple[Sites, Any]:
    """Every row's proposal, and the memory to carry if it is accepted; `guarded`, without negative curvature."""
    if isinstance(method, FirstOrderVI):
        local = local_rule(method)

        def free_energy(sites: Sites) -> Float[Array, ""]:
            conditioned, _, numbers = look(problem, local, _mask(problem, sites))
            return total_energy(conditioned, numbers)

        proposal, memory = first_order.advance(free_energy, point.memory, method.learning_rate)
        return _mask(problem, proposal), memory
    views = point.views
    if views.point is None:
        views = eqx.tree_at(lambda view: view.point, views, point.marginals, is_leaf=lambda leaf: leaf is None)
    if guarded is not None:
        hessian = jax.lax.cond(guarded, lambda: _guarded_hessians(problem, method, point), lambda: views.hessian)
        views = eqx.tree_at(lambda view: view.hessian, views, hessian)
    return propose_rows(problem, method, views, point.sites, point.memory, step_size)


@jax.jit
def propose_rows(problem, method: Method, views, sites, memory, step_size) -> tuple[Sites, Any]:
    """Every row's proposal from its view, and the memory to carry."""
    return jax.vmap(lambda view, observed, site, memory: propose(method, view, observed, site, memory, step_size))(
        views, problem.observed, sites, memory
    )


def _guarded_hessians(problem: Problem, method: Method, point: _Point) -> Float[Array, "N D D"]:
    """Every row's Hessian without negative curvature."""
    target, cubature = method.target, method.cubature
    return over_rows(
        lambda likelihood, y, marginal, hessian: guarded_hessian(target, likelihood, y, marginal, cubature, hessian),
        problem.likelihood,
        (problem.y, problem.workspace.whole(point.marginals), point.views.hessian),
        _in_blocks(problem, method),
    )


def _guardable(problem: Problem, method: Method | FirstOrderVI) -> bool:
    """Whether the method's own precisions may be negative, so that proposals without are something else."""
    return isinstance(method, Method) and method.objective is not None and not method.expects_psd(problem.likelihood)


def _mask(problem: Problem, sites: Sites) -> Sites:
    """Missing rows have no influence: their sites are zero."""
    observed = problem.observed
    return Sites(
        jnp.where(observed[:, None], sites.linear, 0.0),
        jnp.where(observed[:, None, None], sites.precision, 0.0),
    )


@jax.jit
def _measure(problem: Problem, method, sites: Sites, memory: Any) -> _Point:
    """Everything about one point. (Compiled by itself only in name: that way it is traced once.)"""
    local = local_rule(method)
    conditioned, views, numbers = look(problem, local, sites)
    energy = total_energy(conditioned, numbers)
    objective = energy
    if local.objective == "log_joint":
        # The rows' share of the Laplace energy is −log p(y | m): without the log determinant, the log joint.
        objective = energy - 0.5 * conditioned.log_det
    # At ρ = 0 the Riemannian term is gone, and the proposal is the fixed-point map itself.
    row_memory = None if isinstance(method, FirstOrderVI) else memory
    proposal, _ = propose_rows(problem, local, views, sites, row_memory, jnp.zeros(()))
    residuals = jax.vmap(residual)(conditioned.marginals, sites, proposal)
    size, largest = jnp.sqrt(jnp.mean(residuals**2)), jnp.max(jnp.abs(residuals), initial=0.0)
    finite = jnp.isfinite(energy) & jnp.isfinite(objective) & jnp.isfinite(size)
    # Λₙ Cₙ is of the size of 1, unless a site is so precise that its marginal is rounding error.
    shares = jnp.sum(sites.precision * conditioned.marginals.covariance, axis=(1, 2))
    finite = finite & jnp.all(jnp.abs(shares) < _LARGEST_SHARE)
    cavities = jnp.all(numbers.proper)
    failure = jnp.where(cavities, Status.NON_FINITE.value, Status.IMPROPER_CAVITY.value)
    failure = jnp.where(conditioned.proper, failure, Status.IMPROPER_POSTERIOR.value)
    rounding = 1e-13 * (jnp.abs(objective) + jnp.sum(jnp.abs(numbers.energy)) + 1.0)
    outcome = Outcome(conditioned.proper & cavities & finite, objective, rounding, size)
    if local.target.power == 0.0:
        views = eqx.tree_at(lambda view: view.point, views, None)
    return _Point(sites, memory, conditioned.marginals, views, largest, energy, outcome, failure)


def _is_psd(method, sites: Sites) -> Bool[Array, ""]:
    """Whether a trial's precisions are PSD, where the method promises that they are."""
    if not local_rule(method).keeps_psd:
        return jnp.ones((), dtype=bool)
    rounding = 1e-12 * jnp.max(jnp.abs(sites.precision), initial=1.0)
    return jnp.all(jax.vmap(smallest_eigenvalue)(sites.precision) >= -rounding)


def _select(choice: Bool[Array, ""], yes: Any, no: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(choice, a, b), yes, no)


def _try(problem: Problem, method, step: Step, tol, loop: _Loop) -> _Loop:
    """One trial: accepted, refused, or the last."""
    first = loop.steps < 0
    point = loop.point
    size = step.size(loop.step_state)
    proposal, memory = _propose(problem, method, point, size, step.guards(loop.step_state))
    move = Move(point.sites, proposal, jax.vmap(residual)(point.marginals, point.sites, proposal))
    trial, state = step.trial(loop.step_state, move)
    trial = _select(first, point.sites, trial)
    if isinstance(method, Method):
        memory = method.curvature.carry(point.memory, memory, size)
    memory = _select(first, point.memory, memory)
    tried = _measure(problem, method, trial, memory)

    verdict = step.judge(state, move, point.outcome, tried.outcome, _is_psd(method, trial))
    accept = jnp.where(first, True, verdict.accept)
    converged = accept & (tol > 0.0) & (tried.largest <= tol)
    status = jnp.where(converged, Status.CONVERGED.value, Status.RUNNING.value)
    broken = isinstance(step, Constant)
    ending = tried.failure if broken else Status.STEP_TOO_SMALL.value
    status = jnp.where(~accept & verdict.give_up, ending, status)
    no_start = first & ~tried.outcome.sound
    status = jnp.where(no_start, tried.failure, status)

    monitored = tried.outcome.objective if step.monitors == "objective" else tried.outcome.residual
    slot = jnp.where(accept & ~first, loop.steps % loop.history.energy.shape[0], -1)
    written = [
        jnp.where(jnp.arange(old.shape[0]) == slot, new, old)
        for old, new in zip(
            (loop.history.energy, loop.history.objective, loop.history.step_size),
            (tried.energy, monitored, size),
            strict=True,
        )
    ]
    return _Loop(
        _select(accept, tried, point),
        unless(first, loop.step_state, verdict.state),
        jnp.where(accept & ~no_start, loop.steps + 1, loop.steps),
        jnp.asarray(status, dtype=loop.status.dtype),
        Trail(*written),
    )


@jax.jit
def _run(problem: Problem, method, step: Step, loop: _Loop, until: Any, tol: Any) -> _Loop:
    """Trials until `until` steps have been accepted, or inference has ended."""

    def goes_on(loop: _Loop):
        return (loop.status == Status.RUNNING.value) & (loop.steps < until)

    return jax.lax.while_loop(goes_on, lambda loop: _try(problem, method, step, tol, loop), loop)


MOST_STEPS = 1024
"""Of `converge`: it keeps no longer history."""


def converge(problem: Problem, method, step: Step, sites: Sites, until: Any, tol: Any) -> tuple[_Point, "Report"]:
    """The last accepted point from these sites, and the report on the way there."""
    loop = _run(problem, method, step, _begin(problem, method, step, sites, MOST_STEPS), until, tol)
    return loop.point, report_of(problem, loop)


class Report(eqx.Module):
    """What is wanted of a loop in the end."""

    sites: Sites
    marginals: Gaussian
    site_marginals: Gaussian | None
    """Only where sites act on something else than f."""
    energy: Float[Array, ""]
    residual: Float[Array, ""]
    steps: Any
    status: Any
    history: Trail


def report_of(problem: Problem, loop: _Loop) -> Report:
    """What is wanted of this loop."""
    point = loop.point
    whole = problem.workspace.whole(point.marginals)
    seen = None if whole is point.marginals else point.marginals
    return Report(point.sites, whole, seen, point.energy, point.largest, loop.steps, loop.status, loop.history)


@functools.partial(compiled, static_argnums=4, donate_argnums=3)
def _infer(problem: Problem, method, step: Step, sites: Sites, capacity: int, until: Any, tol: Any) -> Report:
    """From sites to the end in one program, which keeps nothing that is not asked for."""
    return report_of(problem, _run(problem, method, step, _begin(problem, method, step, sites, capacity), until, tol))


@in_double
def posterior_of(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    """q(f) with all that prediction needs."""
    return to_host(_condition(prior, workspace, sites))


@compiled
def _condition(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    return prior.condition(workspace, sites)


@functools.partial(jax.jit, static_argnums=4)
def _begin(problem: Problem, method, step: Step, sites: Sites, capacity: int) -> _Loop:
    """The loop before anything has been looked at."""
    rows, latents = sites.linear.shape
    sites = _mask(problem, Sites(jnp.asarray(sites.linear), jnp.asarray(sites.precision)))
    if isinstance(method, FirstOrderVI):
        safe = Sites(
            sites.linear,
            jnp.where(problem.observed[:, None, None], sites.precision, jnp.eye(latents)[None]),
        )
        memory, stationary = first_order.start(safe, method.learning_rate), False
    else:
        memory = rows_of(method.curvature.initial_state(method.target, latents), rows)
        stationary = method.is_stationary
    shapes = jax.eval_shape(_measure, problem, method, sites, memory)
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    point = eqx.tree_at(lambda p: (p.sites, p.memory), blank, (sites, memory), is_leaf=lambda leaf: leaf is None)
    empty = jnp.full(capacity, jnp.nan)
    loop = _Loop(
        point,
        step.start(sites, stationary, _guardable(problem, method)),
        jnp.asarray(-1),
        jnp.asarray(Status.RUNNING.value),
        Trail(empty, empty, empty),
    )
    # A weakly typed leaf would come back strongly typed, and the loop be compiled a second time for that.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=leaf.dtype), loop)


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

    def begin(self, capacity: int) -> _Loop:
        """The loop at its starting point."""
        return self._first_sound(
            lambda sites: self.advance(_begin(self.problem, self.method, self.step, sites, capacity), 0)
        )

    def advance(self, loop: _Loop, until: int) -> _Loop:
        """Go on until `until` steps have been accepted, or inference has ended."""
        return _run(self.problem, self.method, self.step, loop, until, self.tol)

    def finish(self, capacity: int, until: int) -> Report:
        """From the start to the end at once."""
        in_blocks = _in_blocks(self.problem, local_rule(self.method))

        def attempt(sites: Sites) -> Report:
            return _infer(self.problem, self.method, self.step, sites, capacity, until, self.tol, quickly=not in_blocks)

        if self.problem.observed.shape[0] > _MANY:
            give_back_memory()
        return self._first_sound(attempt)

    def _first_sound(self, attempt: Any) -> Any:
        """What the first start leads to that leads anywhere."""
        reached = None
        for sites in self._starts():
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
        loop = run.begin(capacity)
        while int(loop.status) == Status.RUNNING.value and int(loop.steps) < max_steps:
            loop = run.advance(loop, min(int(loop.steps) + max(1, max_steps // 50), max_steps))
            energy = float(loop.point.energy)
            bar.update(task, completed=int(loop.steps), description=f"inference, energy {energy:.4g}")
    return report_of(run.problem, loop)


class State:
    """One step of `iterate`: `.energy`, `.objective`, `.step_size`, `.residual`, `.steps`, `.sites`, `.posterior`."""

    def __init__(self, run: Run, loop: _Loop):
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


def _start(model, x, y, method, step, sites, tol) -> tuple[Run, _Loop]:
    run = Run(Setup(model, x, y), method, step, sites, tol)
    return run, run.begin(1)


def _states(run: Run, loop: _Loop) -> Iterator[State]:
    advance = in_double(run.advance)
    while int(loop.status) == Status.RUNNING.value:
        before = int(loop.steps)
        loop = advance(loop, before + 1)
        if int(loop.steps) > before:
            yield in_double(State)(run, loop)
    status = Status(int(loop.status))
    if status is not Status.CONVERGED:
        _warn(status, float(loop.point.largest), stacklevel=3)
