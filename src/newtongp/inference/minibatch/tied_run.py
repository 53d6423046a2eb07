"""A run with tied storage.

It takes steps from batch to batch while the energy falls by more than its noise, and then passes over all rows at a
fixed q, which are judged as the steps of `infer` are.
"""

import functools

import jax
import numpy as np

from ..._runtime.devices import everywhere
from ...results.result import Result
from ...results.status import Status
from ..steps.backtracking import Backtracking
from ..steps.base import Step
from ..steps.constant import Constant
from ..steps.damped import Damped
from .belief import Product
from .control import StepControl
from .problem import BatchedProblem, Ending, add
from .product import nothing
from .progress import RowProgress
from .tied import Tied, TiedPoint, factor_energy, log_integral, measure, propose_batch, step_towards, towards

step_once = jax.jit(step_towards)


def run_tied(
    problem: BatchedProblem, step: Constant | None, batched: bool, max_steps: int, tol: float, bar: RowProgress
) -> Result:
    """Inference with t(v) alone; `batched` is whether a pass has more than one batch."""
    start = everywhere(nothing(problem.prior, problem.shared.projection), problem.batching.mesh)
    first = problem.first_batch(bar)
    energy = propose_batch(problem.shared, first, problem.tied(start)).energy
    if problem.is_hopeless(float(problem.rows.count / first.count * energy)):
        start, _ = problem.hold(bar)
    history: list[tuple[float, float, float]] = []
    if batched:
        start = _by_batches(problem, step, start, max_steps, history, bar)
    ending, tied = _by_passes(problem, step, start, max_steps, tol, history, bar)
    return problem.result(ending, tied.product, tied.belief, float(log_integral(problem.shared, tied.product, 1.0)))


def _by_batches(
    problem: BatchedProblem, step: Constant | None, start: Product, max_steps: int, history: list, bar: RowProgress
) -> Product:
    """Steps from one batch to the next, until the energy falls by no more than its own noise over two passes.

    The steps are not judged as those of `infer` are: a batch's energy is mostly noise, and steps have to become smaller
    for it to average out.
    """
    tied, steps, previous = problem.tied(start), 0, None
    batching = problem.batching
    for _ in range(max_steps - 1):
        energies, step_size = [], 0.0
        for batch, rows in problem.batches(True, bar):
            proposal = propose_batch(problem.shared, rows, tied)
            scale = problem.rows.count / batch.count
            energies.append(scale * proposal.energy + factor_energy(problem.shared, tied))
            # ρ falls as one over the number of passes, so that all rows get the same weight.
            step_size = 2.0 / (batching.per_pass + steps + 2.0) if step is None else float(np.asarray(step.rho))
            size = step_size * batch.count / batching.size
            tied = step_once(problem.shared, tied, proposal.product.times(scale), size, batching.observed)
            steps += 1
        values = np.array([float(energy) for energy in energies])
        mean, error = float(np.mean(values)), float(np.std(values) / np.sqrt(max(1, len(values) - 1)))
        history.append((mean, np.nan, step_size))
        bar.passed(mean)
        if not np.isfinite(mean) or (previous is not None and previous[0] - mean < 2.0 * np.hypot(error, previous[1])):
            break
        previous = mean, error
    return tied.product


def _by_passes(
    problem: BatchedProblem,
    step: Constant | None,
    start: Product,
    max_steps: int,
    tol: float,
    history: list[tuple[float, float, float]],
    bar: RowProgress,
) -> tuple[Ending, Tied]:
    """Steps from one pass over all rows to the next, as in `infer`, without sites of rows."""
    control, may_stall = StepControl(_default(problem) if step is None else step), problem.method.target.power > 0.0
    best, tied = None, problem.tied(start)
    while True:
        size, tried = control.size, _measure(problem, tied, bar)
        before = None if best is None else best.outcome
        accept, status = control.judge_trial(
            before, tried.outcome, float(tried.largest), int(tried.failure), tol, may_stall
        )
        if accept:
            if best is not None:
                history.append((float(tried.energy), float(tried.largest), size))
                bar.passed(float(tried.energy))
            best = tried
        assert best is not None
        if status is Status.RUNNING and accept and len(history) >= max_steps:
            status = Status.MAX_STEPS
        if status is not Status.RUNNING:
            return Ending(status, float(best.energy), float(best.largest), len(history), history), best.tied
        tied = problem.tied(towards(best.tied.product, best.proposal, control.size))


def _default(problem: BatchedProblem) -> Step:
    return Damped(accelerate=False) if problem.method.objective is None else Backtracking(accelerate=False)


def _measure(problem: BatchedProblem, tied: Tied, bar: RowProgress) -> TiedPoint:
    """One pass over all rows at a fixed q."""
    proposals = (propose_batch(problem.shared, rows, tied) for _, rows in problem.batches(False, bar))
    return measure(problem.shared, tied, functools.reduce(add, proposals))
