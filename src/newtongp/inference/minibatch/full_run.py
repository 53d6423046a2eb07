"""A run with full storage: passes over the data in a random order, until no row's update would move its marginal."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._runtime.devices import everywhere
from ..._runtime.double import to_host
from ...methods.safeguard import Riemannian
from ...numerics.gaussian import Gaussian
from ...numerics.size_classes import first_rows
from ...results.result import Result
from ...results.status import Status
from ..steps.base import Outcome
from ..steps.constant import Constant
from ..steps.damped import Damped
from ..steps.endings import failure_of, has_converged, is_sound
from .control import StepControl
from .full import StoredSites, no_sites, product_of_batch, report_batch, update_batch
from .problem import BatchedProblem, Ending, add
from .progress import RowProgress

_RIEMANNIAN = 0.3
"""The step size of Riemannian methods: their term is quadratic in ρ, and far too large at ρ = 1 in the first passes."""
_CANCELLED = 1e4
"""If the precisions were larger by this factor in an earlier pass, the product is summed again to remove rounding."""


def run_full(problem: BatchedProblem, step: Constant | None, max_steps: int, tol: float, bar: RowProgress) -> Result:
    """Inference with a site for every row."""
    control = _control(problem, step)
    stored = _start(problem, control.size, bar)
    status, history, report, peak = Status.MAX_STEPS, [], None, 0.0
    before = _outcome(problem, np.inf)
    for _ in range(max_steps):
        step_size = control.size
        stored = eqx.tree_at(lambda s: s.totals, stored, replace_fn=lambda totals: jax.tree.map(jnp.zeros_like, totals))
        for _, rows in problem.batches(True, bar):
            stored = update_batch(problem.shared, rows, stored, step_size, problem.rows.count)
        totals = to_host(stored.totals)
        largest = float(totals.largest)
        history.append((float(totals.energies) / max(1, int(totals.batches)), largest, step_size))
        bar.passed(history[-1][0])
        # The first pass may have started where the energy was infinite; a second such pass is a failure.
        infinite = not np.any(np.isfinite([energy for energy, _, _ in history[-2:]]))
        if not np.isfinite(largest) or (infinite and len(history) > 1):
            break
        report, size = None, float(stored.product.trace)
        peak = max(peak, size)
        if has_converged(largest, tol) and int(totals.refused) == 0:
            if peak > _CANCELLED * size:
                stored, peak = _sum_anew(problem, stored, bar), size
                continue
            # Each batch was evaluated at the q of its update: convergence is tested for all of them at the last q.
            report = _report(problem, stored, bar)
            if has_converged(report.residual, tol):
                status = Status.CONVERGED
                break
        after = _outcome(problem, float(totals.squares))
        verdict = control.judge(before, after)
        if verdict.stalled is not None and bool(verdict.stalled) and problem.method.target.power > 0.0:
            status = Status.STALLED
            break
        before = after
    if report is None:
        if peak > _CANCELLED * float(stored.product.trace):
            stored = _sum_anew(problem, stored, bar)
        report = _report(problem, stored, bar)
    if not is_sound(True, True, report.energy, report.residual):
        status = Status(int(failure_of(True, report.proper)))
    ending = Ending(status, report.energy, report.residual, len(history), history)
    belief = stored.belief
    exponent = 0.5 * jnp.sum(stored.product.linear * belief.mean) - 0.5 * belief.log_det
    log_normaliser = float(report.constant + exponent)
    sites = first_rows(to_host(stored.sites), problem.rows.count)
    return problem.result(
        ending, stored.product, belief, log_normaliser, sites, report.site_marginals, report.marginals
    )


def _control(problem: BatchedProblem, step: Constant | None) -> StepControl:
    """The step between passes: `Damped` even with an objective, because no pass computes its value at a single q.

    A pass cannot be undone: if it is rejected, the next one starts from it with a shorter step.
    """
    if step is not None:
        return StepControl(step)
    longest = _RIEMANNIAN if isinstance(problem.method.safeguard, Riemannian) else 1.0
    return StepControl(Damped(accelerate=False), longest)


def _outcome(problem: BatchedProblem, squares: float) -> Outcome:
    """The outcome of a pass; batches whose posterior would be improper have already been rejected."""
    latents = problem.prior.num_latents
    size = jnp.asarray(np.sqrt(squares / (problem.rows.count * (latents + latents**2))))
    return Outcome(jnp.isfinite(size), jnp.zeros(()), jnp.zeros(()), size)


def _start(problem: BatchedProblem, step_size: float, bar: RowProgress) -> StoredSites:
    """Sites that are zero or, if the prior is a hopeless start, sites that hold f near its mean."""

    def blank() -> StoredSites:
        return everywhere(no_sites(problem.shared, problem.stored_rows), problem.batching.mesh)

    first = update_batch(problem.shared, problem.first_batch(bar), blank(), step_size, problem.rows.count)
    if not problem.is_hopeless(float(first.totals.energies)):
        return blank()
    product, sites = problem.hold(bar)
    return eqx.tree_at(
        lambda s: (s.sites, s.product, s.belief), blank(), (sites, product, problem.tied(product).belief)
    )


def _sum_anew(problem: BatchedProblem, stored: StoredSites, bar: RowProgress) -> StoredSites:
    """The product, summed from the sites: the sum of changes has the rounding errors of all earlier sites."""
    product = None
    for _, rows in problem.batches(False, bar):
        product = add(product, product_of_batch(problem.shared, rows, stored))
    assert product is not None
    return eqx.tree_at(lambda s: (s.product, s.belief), stored, (product, problem.tied(product).belief))


class _Report(NamedTuple):
    """All rows at a fixed q."""

    energy: float
    residual: float
    constant: float
    proper: bool
    site_marginals: Gaussian
    marginals: Gaussian


def _report(problem: BatchedProblem, stored: StoredSites, bar: RowProgress) -> _Report:
    """All rows at the q of the stored sites, without an update."""
    latents, count = problem.prior.num_latents, problem.rows.count
    site_marginals, marginals = (
        Gaussian(np.zeros((count, latents)), np.zeros((count, latents, latents))) for _ in range(2)
    )
    belief = stored.belief
    energy, largest, constant, proper = 0.5 * float(belief.distance + belief.log_det), 0.0, 0.0, True
    for batch, rows in problem.batches(False, bar):
        batch_report = to_host(report_batch(problem.shared, rows, stored))
        energy, constant = energy + float(batch_report.energy), constant + float(batch_report.constant)
        # np.maximum keeps NaN, and `max` would not.
        largest, proper = float(np.maximum(largest, batch_report.largest)), proper and bool(batch_report.proper)
        problem.put_rows(batch, (site_marginals, marginals), (batch_report.site_marginals, batch_report.marginals))
    return _Report(energy, largest, constant, proper, site_marginals, marginals)
