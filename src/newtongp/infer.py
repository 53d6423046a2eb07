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
from .gaussian import Gaussian, Sites
from .likelihoods.base import row_axes
from .linalg import smallest_eigenvalue
from .methods import first_order
from .methods.curvature import rows_of
from .methods.presets import FirstOrderVI
from .methods.rule import Method, RowNumbers, evaluate, propose, residual
from .methods.view import RowView
from .model import Model
from .precision import in_double, parameter, to_host
from .priors.base import Conditioned, Prior, Workspace
from .problem import Problem, Setup
from .results import ConvergenceWarning, History, InferenceError, Result, Status
from .steps import Constant, Move, Outcome, Step, unless

_START_PRECISIONS = (0.0, 1e-2, 1.0, 1e2, 1e4, 1e6)


class _History(eqx.Module):
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
    residuals: Float[Array, "N K"]
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
    history: _History


def _look(problem: Problem, method: Method, sites: Sites) -> tuple[Conditioned, RowView, RowNumbers]:
    """Condition on the sites and look at every row's likelihood around its marginal."""
    conditioned = problem.workspace.marginals(sites)
    views, numbers = jax.vmap(
        lambda likelihood, y, observed, marginal, site: evaluate(method, likelihood, y, observed, marginal, site),
        in_axes=(row_axes(problem.likelihood), 0, 0, 0, 0),
    )(problem.likelihood, problem.y, problem.observed, conditioned.marginals, sites)
    return conditioned, views, numbers


def _energy(conditioned: Conditioned, numbers: RowNumbers) -> Float[Array, ""]:
    return jnp.sum(numbers.energy) + 0.5 * (conditioned.distance + conditioned.log_det)


def _propose(
    problem: Problem, method: Method | FirstOrderVI, point: _Point, step_size: Float[Array, ""]
) -> tuple[Sites, Any]:
    """Every row's proposal, and the memory to carry if it is accepted."""
    if isinstance(method, FirstOrderVI):
        local = local_rule(method)

        def free_energy(sites: Sites) -> Float[Array, ""]:
            conditioned, _, numbers = _look(problem, local, _mask(problem, sites))
            return _energy(conditioned, numbers)

        proposal, memory = first_order.advance(free_energy, point.memory, method.learning_rate)
        return _mask(problem, proposal), memory
    return _propose_rows(problem, method, point.views, point.sites, point.memory, step_size)


@jax.jit
def _propose_rows(problem, method: Method, views, sites, memory, step_size) -> tuple[Sites, Any]:
    return jax.vmap(lambda view, observed, site, memory: propose(method, view, observed, site, memory, step_size))(
        views, problem.observed, sites, memory
    )


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
    conditioned, views, numbers = _look(problem, local, sites)
    energy = _energy(conditioned, numbers)
    objective = energy
    if local.objective == "log_joint":
        # The rows' share of the Laplace energy is −log p(y | m): without the log determinant, the log joint.
        objective = energy - 0.5 * conditioned.log_det
    # At ρ = 0 the Riemannian term is gone, and the proposal is the fixed-point map itself.
    row_memory = None if isinstance(method, FirstOrderVI) else memory
    proposal, _ = _propose_rows(problem, local, views, sites, row_memory, jnp.zeros(()))
    residuals = jax.vmap(residual)(conditioned.marginals, sites, proposal)
    size = jnp.sqrt(jnp.mean(residuals**2))
    finite = jnp.isfinite(energy) & jnp.isfinite(objective) & jnp.isfinite(size)
    cavities = jnp.all(numbers.proper)
    failure = jnp.where(cavities, Status.NON_FINITE.value, Status.IMPROPER_CAVITY.value)
    failure = jnp.where(conditioned.proper, failure, Status.IMPROPER_POSTERIOR.value)
    rounding = 1e-13 * (jnp.abs(objective) + jnp.sum(jnp.abs(numbers.energy)) + 1.0)
    outcome = Outcome(conditioned.proper & cavities & finite, objective, rounding, size)
    return _Point(sites, memory, conditioned.marginals, views, residuals, energy, outcome, failure)


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
    proposal, memory = _propose(problem, method, point, size)
    move = Move(point.sites, proposal, point.residuals)
    trial, state = step.trial(loop.step_state, move)
    trial = _select(first, point.sites, trial)
    if isinstance(method, Method):
        memory = method.curvature.carry(point.memory, memory, size)
    memory = _select(first, point.memory, memory)
    tried = _measure(problem, method, trial, memory)

    verdict = step.judge(state, move, point.outcome, tried.outcome, _is_psd(method, trial))
    accept = jnp.where(first, True, verdict.accept)
    largest = jnp.max(jnp.abs(tried.residuals), initial=0.0)
    converged = accept & (tol > 0.0) & (largest <= tol)
    status = jnp.where(converged, Status.CONVERGED.value, Status.RUNNING.value)
    broken = isinstance(step, Constant)
    ending = tried.failure if broken else Status.STEP_TOO_SMALL.value
    status = jnp.where(~accept & verdict.give_up, ending, status)
    status = jnp.where(first & ~tried.outcome.sound, tried.failure, status)

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
        jnp.where(accept, loop.steps + 1, loop.steps),
        jnp.asarray(status, dtype=loop.status.dtype),
        _History(*written),
    )


@jax.jit
def _run(problem: Problem, method, step: Step, loop: _Loop, until: Any, tol: Any) -> _Loop:
    """Trials until `until` steps have been accepted, or inference has ended."""

    def goes_on(loop: _Loop):
        return (loop.status == Status.RUNNING.value) & (loop.steps < until)

    return jax.lax.while_loop(goes_on, lambda loop: _try(problem, method, step, tol, loop), loop)


@in_double
def _posterior(prior: Prior, workspace: Workspace, sites: Sites) -> Any:
    """q(f) with all that prediction needs."""
    return to_host(_condition(prior, workspace, sites))


@jax.jit
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
        step.start(sites, stationary),
        jnp.asarray(-1),
        jnp.asarray(Status.RUNNING.value),
        _History(empty, empty, empty),
    )
    # A weakly typed leaf would come back strongly typed, and the loop be compiled a second time for that.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=leaf.dtype), loop)


class Run:
    """One call of `infer` or `iterate`: the problem, and the loop as far as it has gone."""

    def __init__(self, setup: Setup, method, step, sites, capacity, tol):
        self.method, self.step = method, step
        self.model, self.order, self.problem, self.data = setup.model, setup.order, setup.problem, setup.data
        self.tol = float(parameter(tol, "tol", lower=0.0, strict=False))
        self.loop = self._start(sites, capacity)

    def _start(self, sites, capacity) -> _Loop:
        rows, latents = self.data.x.shape[0], self.model.prior.num_latents
        if sites is not None:
            given = data_room.read_sites(sites, rows, latents)
            self._check_start(given, self.data.observed)
            loop = self._begin(self.order.sites(given), capacity)
            if Status(int(loop.status)).failed:
                raise ValueError(
                    f"sites cannot be started from ({Status(int(loop.status)).name.lower()}): start from "
                    f"Sites.constant({rows}, {latents}, 0.01), or leave sites out"
                )
            return loop
        initial = 0.01 if isinstance(self.method, FirstOrderVI) else self.method.initial_precision
        positions = self.problem.observed.shape[0]
        loop = self._begin(Sites.constant(positions, latents, initial), capacity)
        # A wide prior can put so much mass where the likelihood overflows that nothing is finite there.
        # Then start from sites that hold f near the prior mean, as loosely as is possible.
        mean = np.asarray(self.problem.workspace.mean)
        for precision in _START_PRECISIONS:
            if loop.status != Status.NON_FINITE.value or precision <= initial:
                continue
            held = Sites.constant(positions, latents, precision)
            loop = self._begin(Sites(precision * mean, held.precision), capacity)
        return loop

    def _check_start(self, sites: Sites, observed: np.ndarray) -> None:
        """Adam's parameters and the Riemannian term both need the inverse of Λ."""
        inverts = isinstance(self.method, FirstOrderVI) or self.method.initial_precision > 0.0
        smallest = np.asarray(jax.vmap(smallest_eigenvalue)(jnp.asarray(sites.precision)))
        if inverts and np.any(smallest[observed] <= 0.0):
            raise ValueError(
                "sites must have positive definite precisions for this method: start from "
                f"Sites.constant({sites.linear.shape[0]}, {sites.linear.shape[1]}, 0.01)"
            )

    def _begin(self, sites: Sites, capacity: int) -> _Loop:
        loop = _begin(self.problem, self.method, self.step, sites, capacity)
        return self._advance(loop, 0)

    def _advance(self, loop: _Loop, until: int) -> _Loop:
        return _run(self.problem, self.method, self.step, loop, until, self.tol)

    def advance(self, until: int) -> None:
        """Go on until `until` steps have been accepted, or inference has ended."""
        self.loop = self._advance(self.loop, until)

    @property
    def status(self) -> Status:
        return Status(int(self.loop.status))

    @property
    def steps(self) -> int:
        return int(self.loop.steps)

    @property
    def residual(self) -> float:
        """The largest entry of any row's fixed-point residual."""
        return float(np.max(np.abs(np.asarray(self.loop.point.residuals)), initial=0.0))

    def result(self) -> Result:
        point, steps = self.loop.point, self.steps
        kept = self.loop.history
        status = Status.MAX_STEPS if self.status is Status.RUNNING else self.status
        return Result(
            model=self.model,
            method=self.method,
            data=self.data,
            status=status,
            energy=float(point.energy),
            residual=self.residual,
            steps=steps,
            history=History(*(np.asarray(column)[:steps] for column in (kept.energy, kept.objective, kept.step_size))),
            sites=self.order.rows(to_host(point.sites)),
            marginals=self.order.rows(to_host(point.marginals)),
            condition=functools.partial(_posterior, self.model.prior, self.problem.workspace, point.sites),
        )


@in_double
def infer(
    model: Model,
    x: Any,
    y: Any,
    method: Method | FirstOrderVI | None = None,
    step: Step | None = None,
    max_steps: int = 100,
    tol: float = 1e-6,
    sites: Sites | None = None,
    throw: bool = True,
    progress: bool = False,
) -> Result:
    """The Gaussian posterior of the model given data, for fixed hyperparameters.

    `method` is VI by default, and `step` whatever is safe for the method. It ends when no row's own update would
    still move its marginal by more than `tol` posterior standard deviations. NaN in `y` is a missing row. `sites` are
    where to start. A run that breaks down raises `InferenceError` unless `throw=False`; one that only ran
    out of steps warns.

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
    method, step = check_choices(model, method, step)
    run = Run(Setup(model, x, y), method, step, sites, capacity, tol)
    if progress:
        _with_progress(run, int(max_steps))
    else:
        run.advance(int(max_steps))
    result = run.result()
    if result.status.failed and throw:
        raise InferenceError(result)
    if not result.status.ok and throw:
        _warn(result.status, result.residual, stacklevel=4)
    return result


def _warn(status: Status, residual: float, stacklevel: int) -> None:
    message = f"{status.name.lower()} (residual {residual:.1e}): {status.sentence}"
    warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel)


def _with_progress(run: Run, max_steps: int) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("inference", total=max_steps)
        while run.status is Status.RUNNING and run.steps < max_steps:
            run.advance(min(run.steps + max(1, max_steps // 50), max_steps))
            energy = float(run.loop.point.energy)
            bar.update(task, completed=run.steps, description=f"inference, energy {energy:.4g}")


class State:
    """One step of `iterate`: `.energy`, `.objective`, `.step_size`, `.residual`, `.steps`, `.sites`, `.posterior`."""

    def __init__(self, run: Run):
        point = run.loop.point
        self.energy = float(point.energy)
        self.objective = float(run.loop.history.objective[0])
        self.residual = run.residual
        self.step_size = float(run.loop.history.step_size[0])
        self.steps = run.steps
        self.status = run.status
        sites = to_host(point.sites)
        self.sites = run.order.rows(sites)
        self._condition = functools.partial(_posterior, run.model.prior, run.problem.workspace, sites)

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
    return _states(in_double(_start)(model, x, y, method, step, sites, tol))


def _start(model, x, y, method, step, sites, tol) -> Run:
    return Run(Setup(model, x, y), method, step, sites, 1, tol)


def _states(run: Run) -> Iterator[State]:
    advance = in_double(run.advance)
    while run.status is Status.RUNNING:
        before = run.steps
        advance(before + 1)
        if run.steps > before:
            yield in_double(State)(run)
    if run.status is not Status.CONVERGED:
        _warn(run.status, run.residual, stacklevel=3)
