"""The loop: the one place where priors and methods meet.

One iteration is one trial: propose sites, condition the prior on them, expand every row's likelihood around its new
marginal, and let the step accept or reject. A step whose first trial is accepted costs one conditioning, because its
posterior and expansions are reused by the next step. All of this is traced; `infer.py` runs it.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from ..likelihoods.base import over_rows
from ..methods import first_order
from ..methods.curvature import FirstOrder, guarded_hessian, rows_of
from ..methods.local_expansion import LocalExpansion
from ..methods.nodes import numbers_per_row
from ..methods.rule import Method, RowNumbers, evaluate, propose, residual
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.small import smallest_eigenvalue
from ..numerics.trees import select
from ..priors.base import Conditioned
from ..results.status import Status
from .problem import Problem, Setup
from .steps.base import Move, Outcome, Step
from .steps.endings import failure_of, is_sound, rounding_of, status_after

_MANY_ROWS, _BLOCK = 2**12, 2**10
"""The number of rows from which the nodes of all rows do not fit in a cache, and of rows with one latent that do."""
_CACHED_NUMBERS = 2**16
"""The number of second derivatives at the nodes of several latents that fit in a cache."""

_LARGEST_SHARE = 1e6
_DEFAULT_NODES, _GAIN_AT_NODES = 20, 8.0


class Trail(eqx.Module):
    """The history: one entry per accepted step."""

    energy: Float[Array, " T"] | Float[np.ndarray, " T"]
    objective: Float[Array, " T"] | Float[np.ndarray, " T"]
    step_size: Float[Array, " T"] | Float[np.ndarray, " T"]


class Point(eqx.Module):
    """One accepted point: sites, posterior marginals, the expansion of every row, and the numbers."""

    sites: Sites
    memory: Any
    """The state of the method: quasi-Newton's matrices, Adam's moments, or nothing."""
    marginals: Gaussian
    expansions: LocalExpansion
    """Without their points, if these are the marginals."""
    largest: Float[Array, ""]
    """The largest entry of any row's fixed-point residual."""
    energy: Float[Array, ""]
    outcome: Outcome
    failure: Any
    """The status to end with if this point is not sound."""


class Loop(eqx.Module):
    """The point, the step's state, and the bookkeeping."""

    point: Point
    step_state: Any
    steps: Any
    """Accepted steps; −1 until the starting point has been evaluated."""
    status: Any
    history: Trail


def expand_rows(problem: Problem, method: Method, sites: Sites) -> tuple[Conditioned, LocalExpansion, RowNumbers]:
    """Condition on the sites and expand every row's likelihood around its marginal."""
    conditioned = problem.workspace.marginals(sites, method.expects_psd(problem.likelihood))
    expansions, numbers = over_rows(
        lambda likelihood, *row: evaluate(method, likelihood, *row),
        problem.likelihood,
        (problem.y, problem.observed, conditioned.marginals, sites, conditioned.residual_covariance),
        block_of(problem, method),
    )
    return conditioned, expansions, numbers


def at_many_nodes(problem: Problem, method: Method) -> bool:
    """Whether most of a step is spent at nodes, so that the longest compilation is worthwhile."""
    return problem.y.shape[0] >= _MANY_ROWS and method.target.integrates(problem.likelihood, method.cubature)


def work_of(setup: Setup, method: Method) -> float:
    """The approximate number of array elements that one step processes, which decides how the loop is compiled.

    Nodes count more than other elements, since loops over nodes gain most from optimisation.
    """
    rows, latents = setup.bound.y.shape[0], setup.model.prior.num_latents
    nodes = 0
    if method.target.integrates(setup.bound.likelihood, method.cubature):
        nodes = _DEFAULT_NODES if method.cubature is None else len(method.cubature.rule(latents)[1])
    return setup.elements + _GAIN_AT_NODES * rows * latents * nodes


def block_of(problem: Problem, method: Method) -> int | None:
    """The number of rows per block, so that a block fits in the processor's cache; None for all rows at once.

    It divides the number of rows, because a remainder would need a second compiled program.
    """
    rows, likelihood, target = problem.y.shape[0], problem.likelihood, method.target
    integrates = target.integrates(likelihood, method.cubature)
    if likelihood.num_latents == 1 or not integrates:
        # What is not in blocks may be computed again wherever it is used.
        worth_it = rows >= _MANY_ROWS and (integrates or (likelihood.long_formulas and target.uses_covariance))
        divisors = (size for size in (_BLOCK, _BLOCK // 2, _BLOCK // 4) if rows % size == 0)
        return next(divisors, None) if worth_it else None
    numbers = numbers_per_row(likelihood, method.cubature, target.power > 0.0)
    most = min(max(1, _CACHED_NUMBERS // numbers), rows)
    block = next(size for size in range(most, 0, -1) if rows % size == 0)
    worth_it = rows * numbers > 4 * _CACHED_NUMBERS and block * numbers > _CACHED_NUMBERS // 16
    return block if worth_it else None


def total_energy(conditioned: Conditioned, numbers: RowNumbers) -> Float[Array, ""]:
    """The energy: the sum of the rows' shares and the prior's."""
    return jnp.sum(numbers.energy) + 0.5 * (conditioned.distance + conditioned.log_det)


def _propose(
    problem: Problem,
    method: Method,
    point: Point,
    step_size: Float[Array, ""],
    guarded: Bool[Array, ""] | None = None,
) -> tuple[Sites, Any]:
    """Every row's proposal, without negative curvature if `guarded`, and the memory to keep if it is accepted."""
    if isinstance(method.curvature, FirstOrder):

        def free_energy(sites: Sites) -> Float[Array, ""]:
            conditioned, _, numbers = expand_rows(problem, method, _mask(problem, sites))
            return total_energy(conditioned, numbers)

        proposal, memory = first_order.advance(free_energy, point.memory, method.curvature.learning_rate)
        return _mask(problem, proposal), memory
    expansions = point.expansions
    if expansions.point is None:
        expansions = eqx.tree_at(
            lambda expansion: expansion.point, expansions, point.marginals, is_leaf=lambda leaf: leaf is None
        )
    if guarded is not None:
        hessian = jax.lax.cond(guarded, lambda: _guarded_hessians(problem, method, point), lambda: expansions.hessian)
        expansions = eqx.tree_at(lambda expansion: expansion.hessian, expansions, hessian)
    return propose_rows(problem, method, expansions, point.sites, point.memory, step_size)


@jax.jit
def propose_rows(problem: Any, method: Method, expansions, sites, memory, step_size) -> tuple[Sites, Any]:
    """Every row's proposal from its expansion, and the memory to keep; only `observed` is used of the problem."""
    return jax.vmap(
        lambda expansion, observed, site, memory: propose(method, expansion, observed, site, memory, step_size)
    )(expansions, problem.observed, sites, memory)


def _guarded_hessians(problem: Problem, method: Method, point: Point) -> Float[Array, "N D D"]:
    """Every row's Hessian without negative curvature."""
    target, cubature = method.target, method.cubature
    return over_rows(
        lambda likelihood, y, marginal, hessian: guarded_hessian(target, likelihood, y, marginal, cubature, hessian),
        problem.likelihood,
        (problem.y, problem.workspace.marginals_of_f(point.marginals), point.expansions.hessian),
        block_of(problem, method),
    )


def _allows_psd_fallback(problem: Problem, method: Method) -> bool:
    """Whether the method's own precisions may be negative, so that guarded proposals differ."""
    return method.objective is not None and not method.expects_psd(problem.likelihood)


def _mask(problem: Problem, sites: Sites) -> Sites:
    """Missing rows have no influence: their sites are zero."""
    observed = problem.observed
    return Sites(
        jnp.where(observed[:, None], sites.linear, 0.0),
        jnp.where(observed[:, None, None], sites.precision, 0.0),
    )


@jax.jit
def _measure(problem: Problem, method, sites: Sites, memory: Any) -> Point:
    """Everything about one point. Wrapped in `jit` only so that it is traced once."""
    conditioned, expansions, numbers = expand_rows(problem, method, sites)
    energy = total_energy(conditioned, numbers)
    objective = energy
    if method.objective == "log_joint":
        # The rows' share of the Laplace energy is −log p(y | m): without the log determinant, the log joint.
        objective = energy - 0.5 * conditioned.log_det
    # At ρ = 0 the Riemannian term is gone, and the proposal is the fixed-point map itself.
    row_memory = None if method.curvature.moves_all_rows else memory
    proposal, _ = propose_rows(problem, method, expansions, sites, row_memory, jnp.zeros(()))
    residuals = jax.vmap(residual)(conditioned.marginals, sites, proposal)
    # Missing rows are at rest, and their number must not matter.
    entries = jnp.maximum(jnp.sum(problem.observed), 1) * residuals.shape[1]
    size, largest = jnp.sqrt(jnp.sum(residuals**2) / entries), jnp.max(jnp.abs(residuals), initial=0.0)
    # Λₙ Cₙ is of order 1, unless a site is so precise that its marginal is rounding error.
    shares = jnp.sum(sites.precision * conditioned.marginals.covariance, axis=(1, 2))
    cavities = jnp.all(numbers.proper)
    sound = is_sound(conditioned.proper, cavities, energy, objective, size)
    sound = sound & jnp.all(jnp.abs(shares) < _LARGEST_SHARE)
    failure = failure_of(conditioned.proper, cavities)
    rounding = rounding_of(objective, jnp.sum(jnp.abs(numbers.energy)))
    if conditioned.rounding is not None:
        rounding = rounding + conditioned.rounding
    outcome = Outcome(sound, objective, rounding, size)
    if method.target.power == 0.0:
        expansions = eqx.tree_at(lambda expansion: expansion.point, expansions, None)
    return Point(sites, memory, conditioned.marginals, expansions, largest, energy, outcome, failure)


def _is_psd(method, sites: Sites) -> Bool[Array, ""]:
    """Whether a trial's precisions are PSD, if the method guarantees that."""
    if not method.keeps_psd:
        return jnp.ones((), dtype=bool)
    rounding = 1e-12 * jnp.max(jnp.abs(sites.precision), initial=1.0)
    return jnp.all(jax.vmap(smallest_eigenvalue)(sites.precision) >= -rounding)


def _keep_if_initial(first: Bool[Array, ""], before: Any, after: Any) -> Any:
    """The step's state after a trial; unchanged if the trial was the starting point itself.

    The matrices of the acceleration are not copied, because it counts the entries that can be used.
    """
    return jax.tree.map(lambda old, new: new if new.ndim == 2 else jnp.where(first, old, new), before, after)


def _attempt_step(problem: Problem, method, step: Step, tol, loop: Loop) -> Loop:
    """One trial, which is accepted, rejected, or ends the loop."""
    first = loop.steps < 0
    point = loop.point
    size = step.size(loop.step_state)
    proposal, memory = _propose(problem, method, point, size, step.guards(loop.step_state))
    move = Move(point.sites, proposal, jax.vmap(residual)(point.marginals, point.sites, proposal))
    trial, state = step.trial(loop.step_state, move)
    trial = select(first, point.sites, trial)
    memory = method.curvature.carry(point.memory, memory, size)
    memory = select(first, point.memory, memory)
    tried = _measure(problem, method, trial, memory)

    verdict = step.judge(state, move, point.outcome, tried.outcome, _is_psd(method, trial))
    may_stall = method.target.power > 0.0
    accept, status = status_after(step, verdict, first, tried.outcome, tried.largest, tried.failure, tol, may_stall)
    no_start = first & ~tried.outcome.sound

    monitored = tried.outcome.objective if step.monitors == "objective" else tried.outcome.residual
    slot = jnp.where(accept & ~first, loop.steps % loop.history.energy.shape[0], -1)
    written = [
        jnp.where(jnp.arange(old.shape[0]) == slot, new, old)
        for old, new in zip(jax.tree.leaves(loop.history), (tried.energy, monitored, size), strict=True)
    ]
    return Loop(
        select(accept, tried, point),
        _keep_if_initial(first, loop.step_state, verdict.state),
        jnp.where(accept & ~no_start, loop.steps + 1, loop.steps),
        jnp.asarray(status, dtype=loop.status.dtype),
        Trail(*written),
    )


def run_loop(
    problem: Problem, method, step: Step, loop: Loop, until: Any, tol: Any, trials: Any = None
) -> tuple[Loop, Any]:
    """Run until `until` steps have been accepted or inference has ended, with at most `trials` trials if given.

    Returns the loop and the number of remaining trials.
    """

    def continues(state: tuple[Loop, Any]):
        loop, remaining = state
        runs = (loop.status == Status.RUNNING.value) & (loop.steps < until)
        return runs if remaining is None else runs & (remaining > 0)

    def body(state: tuple[Loop, Any]):
        loop, remaining = state
        return _attempt_step(problem, method, step, tol, loop), None if remaining is None else remaining - 1

    return jax.lax.while_loop(continues, body, (loop, trials))


MOST_STEPS = 1024
"""The longest history that `converge` keeps."""


def converge(problem: Problem, method, step: Step, sites: Sites, until: Any, tol: Any) -> tuple[Point, "Report"]:
    """Run from these sites; returns the last accepted point and the report."""
    loop, _ = run_loop(problem, method, step, begin_loop(problem, method, step, sites, MOST_STEPS), until, tol)
    return loop.point, report_of(problem, loop)


class Report(eqx.Module):
    """The outcome of a loop."""

    sites: Sites
    marginals: Gaussian
    site_marginals: Gaussian | None
    """Marginals of the variable that sites act on; None if that is f."""
    energy: Float[Array, ""]
    residual: Float[Array, ""]
    steps: Any
    status: Any
    history: Trail


def report_of(problem: Problem, loop: Loop, history: Trail | None = None) -> Report:
    """The report of a loop, with its own history or another one."""
    point = loop.point
    marginals = problem.workspace.marginals_of_f(point.marginals)
    site_marginals = None if marginals is point.marginals else point.marginals
    history = loop.history if history is None else history
    numbers = point.energy, point.largest, loop.steps, loop.status
    return Report(point.sites, marginals, site_marginals, *numbers, history)


@functools.partial(compiled, donate_argnums=3)
def run_slice(problem: Problem, method, step: Step, loop: Loop, until: Any, tol: Any, trials: Any) -> Any:
    """Continue a loop for at most `trials` trials. The result is identical, bit for bit, to that of a single run.

    Returns the loop and the number of remaining trials.
    """
    loop, remaining = run_loop(problem, method, step, loop, until, tol, trials)
    return loop, jnp.asarray(remaining, dtype=remaining.dtype)


@functools.partial(compiled, static_argnums=4)
def start_loop(problem: Problem, method, step: Step, sites: Sites, capacity: int) -> Loop:
    """`begin_loop`, compiled: it does little, but traces a whole step to find the shapes of its result."""
    return begin_loop(problem, method, step, sites, capacity)


def begin_loop(problem: Problem, method, step: Step, sites: Sites, capacity: int) -> Loop:
    """The loop before its starting point has been evaluated."""
    rows, latents = sites.linear.shape
    sites = _mask(problem, Sites(jnp.asarray(sites.linear), jnp.asarray(sites.precision)))
    if isinstance(method.curvature, FirstOrder):
        safe = Sites(
            sites.linear,
            jnp.where(problem.observed[:, None, None], sites.precision, jnp.eye(latents)[None]),
        )
        memory, stationary = first_order.start(safe, method.curvature.learning_rate), False
    else:
        memory = rows_of(method.curvature.initial_state(method.target, latents), rows)
        stationary = method.is_stationary
    shapes = jax.eval_shape(_measure, problem, method, sites, memory)
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    point = eqx.tree_at(lambda p: (p.sites, p.memory), blank, (sites, memory), is_leaf=lambda leaf: leaf is None)
    empty = jnp.zeros(capacity)
    loop = Loop(
        point,
        step.start(sites, stationary, _allows_psd_fallback(problem, method)),
        jnp.asarray(-1),
        jnp.asarray(Status.RUNNING.value),
        Trail(empty, empty, empty),
    )
    # A weakly typed leaf would come back strongly typed, and the loop would be compiled again.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=leaf.dtype), loop)
