"""Passes over the data in batches, from the first to the last."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..._runtime.devices import everywhere, mesh_of_rows, whole_share
from ..._runtime.double import to_host
from ...inputs.chunks import Batch, Rows
from ...methods.curvature import QuasiNewton
from ...methods.rule import Method
from ...methods.safeguard import Riemannian
from ...model import Model
from ...numerics.gaussian import Gaussian, Sites
from ...priors.sparse import Projection, SparseGP, SparsePosterior
from ...results.result import History, Result
from ...results.status import Status
from ...validation.arguments import as_key, tolerance, whole
from ..compatibility import check_choices
from ..starts import HOPELESS, START_PRECISIONS
from ..steps.base import Step
from ..steps.constant import Constant
from .full import Kept, begin_kept, inspect, product_of_batch, visit
from .product import SHORTEST, Belief, DeviceRows, Product, Shared, nothing, on_devices
from .tied import Tied, distance_to, global_energy, holding, log_integral, proposals, tied_given, towards

_PATIENT = 0.05
"""At this step size a growing residual is put up with, as in `steps.Damped`."""
_RIEMANNIAN = 0.3
"""The Riemannian term is of second order in the step size, and far too large at 1 where a site is still far off."""
_CANCELLED = 1e4
"""Sites that were so much more precise in some earlier pass have left rounding errors that are worth removing."""
WHOLE_PASS = 2**13
"""Rows taken at a time where no batch size is given."""


class _Ending(NamedTuple):
    status: Status
    energy: float
    residual: float
    steps: int
    history: list[tuple[float, float, float]]


class BatchRun:
    """One call of `infer` in batches."""

    def __init__(
        self, model: Model, x: Any, y: Any, method: Any, step: Step | None, batch_size: int | None, key: Any, tol: float
    ):
        chosen, _ = check_choices(model, method, None)
        self.model, self.method = model, check_batches(model, chosen, step, batch_size)
        self.fixed = None if step is None else float(np.asarray(step.rho))  # pyright: ignore[reportAttributeAccessIssue]
        self.tol = tolerance(tol)
        prior = model.prior
        assert isinstance(prior, SparseGP)
        self.prior = prior
        sample = prior.new_sample()
        self.rows = Rows(x, y, model, None if sample is None else sample.see)
        # Only what is looked at in batches is ever traced with the prior: the inducing inputs are in the projection.
        projection = to_host(_project(prior, prior.inducing_for(sample)))
        self.shared = Shared(prior, projection, self.method)
        self.mesh = mesh_of_rows()
        self.size = min(self.rows.count, WHOLE_PASS if batch_size is None else batch_size)
        self.filled = whole_share(self.size, self.mesh)
        self.batched = batch_size is not None and batch_size < self.rows.count
        self.rng = np.random.default_rng(np.asarray(jax.random.key_data(as_key(0 if key is None else key))))

    def run(self, max_steps: int, progress: bool) -> Result:
        with RowProgress(progress, self.rows.count, max_steps) as bar, explained():
            if self.prior.storage == "tied":
                return self._run_tied(max_steps, bar)
            return self._run_kept(max_steps, bar)

    def _batches(self, shuffled: bool, bar: "RowProgress") -> Iterator[tuple[Batch, DeviceRows]]:
        for batch in self.rows.batches(self.size, self.rng if shuffled else None, self.filled):
            yield batch, on_devices(batch, self.model.likelihood, self.mesh)
            bar.saw(batch.count)

    # All sites kept

    def _run_kept(self, max_steps: int, bar: "RowProgress") -> Result:
        kept = self._no_sites()
        first = visit(self.shared, self._first_batch(bar), self._no_sites(), self._first_step(), self.rows.count)
        if self._is_hopeless(float(first.energies)):
            product, sites = self._hold(bar)
            belief = self._given(product).belief
            kept = eqx.tree_at(lambda k: (k.sites, k.product, k.belief), kept, (sites, product, belief))
        step_size = self._first_step()
        status, history, before = Status.MAX_STEPS, [], np.inf
        seen, peak = None, 0.0
        for _ in range(max_steps):
            kept = eqx.tree_at(_of_this_pass, kept, replace_fn=jnp.zeros_like)
            for _, rows in self._batches(True, bar):
                kept = visit(self.shared, rows, kept, step_size, self.rows.count)
            largest, squares = float(kept.largest), float(kept.squares)
            history.append((float(kept.energies) / max(1, int(kept.batches)), largest, step_size))
            bar.passed(history[-1][0])
            # The first pass may have started where the energy was infinite; a second such pass is a failure.
            infinite = not np.any(np.isfinite([energy for energy, _, _ in history[-2:]]))
            if not np.isfinite(largest) or (infinite and len(history) > 1):
                break
            seen, size = None, float(jnp.trace(kept.product.precision))
            peak = max(peak, size)
            if self.tol > 0.0 and largest <= self.tol and int(kept.refused) == 0:
                if peak > _CANCELLED * size:
                    kept, peak = self._sum_anew(kept, bar), size
                    continue
                seen = self._inspect(kept, bar)
                if seen.residual <= self.tol:
                    status = Status.CONVERGED
                    break
            if self.fixed is None:
                longer = min(1.5 * step_size, self._first_step())
                step_size = max(0.5 * step_size, _PATIENT) if squares > before else longer
            before = squares
        if seen is None:
            if peak > _CANCELLED * float(jnp.trace(kept.product.precision)):
                kept = self._sum_anew(kept, bar)
            seen = self._inspect(kept, bar)
        if not np.isfinite(seen.energy) or not np.isfinite(seen.residual):
            status = Status.IMPROPER_CAVITY if not seen.proper else Status.NON_FINITE
        ending = _Ending(status, seen.energy, seen.residual, len(history), history)
        belief = kept.belief
        log_normaliser = float(seen.constant + 0.5 * jnp.sum(kept.product.linear * belief.mean) - 0.5 * belief.log_det)
        return self._result(ending, belief, log_normaliser, to_host(kept.sites), seen.marginals, seen.whole)

    def _sum_anew(self, kept: Kept, bar: "RowProgress") -> Kept:
        """The product from the sites themselves: as a sum of changes it has the rounding errors of all former sites."""
        product = None
        for _, rows in self._batches(False, bar):
            part = product_of_batch(self.shared, rows, kept)
            product = part if product is None else _add(product, part)
        assert product is not None
        return eqx.tree_at(lambda k: (k.product, k.belief), kept, (product, self._given(product).belief))

    # Where to start

    def _no_sites(self) -> Kept:
        return everywhere(begin_kept(self.shared, self.rows.count), self.mesh)

    def _first_batch(self, bar: "RowProgress") -> DeviceRows:
        return next(rows for _, rows in self._batches(False, bar))

    def _is_hopeless(self, energy: float) -> bool:
        """Whether the energy at the prior says that nothing is to be learned there."""
        return not energy <= HOPELESS * self.rows.count

    def _hold(self, bar: "RowProgress") -> tuple[Product, Sites]:
        """The product of sites that hold f near the prior mean, and the sites, of the precision with the lowest energy.

        A prior that is far too wide for the likelihood puts so much mass where it overflows that rows would ask for
        absurd sites.
        """
        latents, count = self.prior.num_latents, self.rows.count
        linear, precision = np.zeros((count, latents)), np.zeros((count, latents, latents))
        whole = None
        for batch, rows in self._batches(False, bar):
            product, sites = holding(self.shared, rows)
            whole = product if whole is None else _add(whole, product)
            inside = np.arange(self.filled) < batch.count
            linear[batch.index[inside]], precision[batch.index[inside]] = (
                np.asarray(part)[inside] for part in to_host((sites.linear, sites.precision))
            )
        assert whole is not None
        first = self._first_batch(bar)

        def energy(hold: float) -> float:
            tied = self._given(whole.times(hold))
            found = float(self.rows.count / first.count * proposals(self.shared, first, tied)[1])
            found += float(global_energy(self.method, tied))
            return found if np.isfinite(found) else np.inf

        hold = min((each for each in START_PRECISIONS if each > 0.0), key=energy)
        sites = jax.tree.map(jnp.asarray, Sites(hold * linear, hold * precision))
        return whole.times(hold), everywhere(sites, self.mesh)

    def _first_step(self) -> float:
        if self.fixed is not None:
            return self.fixed
        return _RIEMANNIAN if isinstance(self.method.safeguard, Riemannian) else 1.0

    def _inspect(self, kept: Kept, bar: "RowProgress") -> "_Inspected":
        latents, count = self.prior.num_latents, self.rows.count
        blank = Gaussian(np.zeros((count, latents)), np.zeros((count, latents, latents)))
        marginals, whole = blank, jax.tree.map(np.copy, blank)
        energy, largest, constant, proper = 0.5 * float(kept.belief.distance + kept.belief.log_det), 0.0, 0.0, True
        for batch, rows in self._batches(False, bar):
            seen = to_host(inspect(self.shared, rows, kept))
            energy, constant = energy + float(seen.energy), constant + float(seen.constant)
            # NaN has to stay: with `max` it would be lost.
            largest, proper = float(np.maximum(largest, seen.largest)), proper and bool(seen.proper)
            inside = np.arange(self.filled) < batch.count
            for into, found in ((marginals, seen.marginals), (whole, seen.whole)):
                jax.tree.map(lambda a, b, r=batch.index[inside], i=inside: a.__setitem__(r, b[i]), into, found)
        return _Inspected(energy, largest, constant, proper, marginals, whole)

    # Tied

    def _run_tied(self, max_steps: int, bar: "RowProgress") -> Result:
        product = everywhere(nothing(self.prior, self.shared.projection), self.mesh)
        first, tied = self._first_batch(bar), self._given(product)
        scaled = float(self.rows.count / first.count * proposals(self.shared, first, tied)[1])
        if self._is_hopeless(scaled):
            product, _ = self._hold(bar)
        history: list[tuple[float, float, float]] = []
        if self.batched:
            product = self._stochastic(product, max_steps, history, bar)
        ending, tied = self._passes(product, max_steps, history, bar)
        log_normaliser = float(log_integral(tied.product, 1.0))
        return self._result(ending, tied.belief, log_normaliser, None, None, None)

    def _given(self, product: Product) -> Tied:
        return tied_given(self.method, product, float(max(1, self.rows.observed)))

    def _stochastic(self, product: Product, max_steps: int, history: list, bar: "RowProgress") -> Product:
        """Steps from one batch to the next, until the energy falls no more than its own noise over two passes."""
        tied, steps, previous = self._given(product), 0, None
        batches = -(-self.rows.count // self.size)
        for _ in range(max_steps - 1):
            energies = []
            step_size = 0.0
            for batch, rows in self._batches(True, bar):
                proposal, energy = proposals(self.shared, rows, tied)
                scale = self.rows.count / batch.count
                energies.append(scale * energy + global_energy(self.method, tied))
                # ρ falls as one over the number of passes, so that all rows come to have the same weight.
                step_size = 2.0 / (batches + steps + 2.0) if self.fixed is None else self.fixed
                tied = self._step(tied, proposal.times(scale), step_size * batch.count / self.size)
                steps += 1
            values = np.array([float(each) for each in energies])
            mean, error = float(np.mean(values)), float(np.std(values) / np.sqrt(max(1, len(values) - 1)))
            history.append((mean, np.nan, step_size))
            bar.passed(mean)
            if not np.isfinite(mean) or (
                previous is not None and previous[0] - mean < 2.0 * np.hypot(error, previous[1])
            ):
                break
            previous = mean, error
        return tied.product

    def _step(self, tied: Tied, proposal: Product, step_size: float) -> Tied:
        """A step towards the proposal, shorter where the posterior would not be a distribution."""
        while step_size > SHORTEST:
            trial = self._given(towards(tied.product, proposal, step_size))
            if bool(trial.belief.proper):
                return trial
            step_size *= 0.5
        return tied

    def _passes(self, product: Product, max_steps: int, history: list, bar: "RowProgress") -> tuple[_Ending, Tied]:
        """Steps from one pass over all rows to the next: what `infer` does, without a site for any row."""
        step_size, best, tied = 1.0 if self.fixed is None else self.fixed, None, self._given(product)
        status, steps = Status.MAX_STEPS, len(history)
        while True:
            point = self._pass(tied, bar)
            if best is not None and not self._is_better(point, best, step_size):
                if self.fixed is not None:
                    status = Status.NON_FINITE if bool(tied.belief.proper) else Status.IMPROPER_POSTERIOR
                    break
                step_size *= 0.5
                if step_size < SHORTEST:
                    status = Status.STEP_TOO_SMALL
                    break
            else:
                if best is not None:
                    steps += 1
                    history.append((point.energy, point.residual, step_size))
                    bar.passed(point.energy)
                    if self.fixed is None:
                        step_size = min(1.0, 2.0 * step_size)
                elif not np.isfinite(point.energy) or not np.isfinite(point.residual):
                    return _Ending(Status.NON_FINITE, point.energy, point.residual, steps, history), tied
                best = point
                if self.tol > 0.0 and point.residual <= self.tol:
                    status = Status.CONVERGED
                    break
                if steps >= max_steps:
                    break
            tied = self._given(towards(best.tied.product, best.proposal, step_size))
        return _Ending(status, best.energy, best.residual, steps, history), best.tied

    def _pass(self, tied: Tied, bar: "RowProgress") -> "_Point":
        """The energy at a fixed q, and the proposal of all rows together."""
        totals = None
        for _, rows in self._batches(False, bar):
            found = proposals(self.shared, rows, tied)
            totals = found if totals is None else _add(totals, found)
        assert totals is not None
        proposal, energy = totals
        whole = float(energy + global_energy(self.method, tied))
        objective = whole - (0.5 * float(tied.belief.log_det) if self.method.objective == "log_joint" else 0.0)
        return _Point(tied, proposal, whole, objective, float(distance_to(tied, proposal)))

    def _is_better(self, point: "_Point", best: "_Point", step_size: float) -> bool:
        sound = bool(point.tied.belief.proper) and np.isfinite(point.energy) and np.isfinite(point.residual)
        if not sound or self.fixed is not None:
            return sound
        if self.method.objective is None:
            return point.residual <= best.residual or step_size <= _PATIENT
        change = point.objective - best.objective
        if abs(change) <= 1e-13 * (abs(point.objective) + self.rows.count):
            return point.residual <= best.residual
        return change < 0.0

    def _result(self, ending: _Ending, belief: Belief, log_normaliser, sites, marginals, whole) -> Result:
        columns = [np.array(column, dtype=float) for column in zip(*ending.history, strict=True)] or [np.zeros(0)] * 3
        posterior = SparsePosterior(
            whole, log_normaliser, self.prior, to_host(self.shared.projection), *to_host((belief.mean, belief.half))
        )
        return Result(
            model=self.model,
            method=self.method,
            data=self.rows.held,
            status=ending.status,
            energy=ending.energy,
            residual=ending.residual,
            steps=ending.steps,
            history=History(*columns),
            sites=sites,
            marginals=whole,
            site_marginals=marginals,
            condition=lambda: posterior,
            columns=self.rows.columns,
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Among several processes, what the runtime says when one is gone is about sockets."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise RuntimeError(
            f"inference on {jax.process_count()} processes has ended in process {jax.process_index()}, most likely "
            "because another one is gone: see what that one said last, and start all of them again"
        ) from error


class _Inspected(NamedTuple):
    energy: float
    residual: float
    constant: float
    proper: bool
    marginals: Gaussian
    whole: Gaussian


class _Point(NamedTuple):
    tied: Tied
    proposal: Product
    energy: float
    objective: float
    residual: float


@jax.jit
def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


@jax.jit
def _project(prior: SparseGP, inducing: tuple[Any, ...]) -> Projection:
    return Projection.to(prior.kernel, inducing)


def _of_this_pass(kept: Kept) -> Any:
    return kept.largest, kept.squares, kept.energies, kept.batches, kept.refused


def check_batches(model: Model, method: Any, step: Any, batch_size: Any) -> Method:
    """The method; ValueError if it cannot be used in batches."""
    if not isinstance(model.prior, SparseGP):
        raise ValueError(
            f"batch_size needs a prior that can be updated by a few rows, SparseGP, got {type(model.prior).__name__}"
        )
    if batch_size is not None:
        whole(batch_size, "batch_size", such_as=1000)
    if method.curvature.moves_all_rows:
        raise ValueError("FirstOrderVI moves the sites of all rows at once: use VI() in batches")
    if step is not None and not isinstance(step, Constant):
        raise ValueError(
            f"in batches the step is Constant(rho), or left out for one that adapts itself, got {step!r}: the "
            "energy of a few rows cannot tell whether to backtrack"
        )
    if method.energy is None:
        raise ValueError(
            f"batches know how to add up the built-in energies alone, and the target {type(method.target).__name__} "
            "brings its own: leave batch_size out"
        )
    remembers = isinstance(method.curvature, QuasiNewton) or isinstance(method.safeguard, Riemannian)
    if remembers and model.prior.storage == "tied":
        name = "quasi-Newton" if isinstance(method.curvature, QuasiNewton) else "Riemannian"
        raise ValueError(
            f'{name} methods remember something of every row, and storage="tied" keeps nothing of any: use '
            'storage="full", or Exact() or GaussNewton() curvature without a Riemannian safeguard'
        )
    return method


class RowProgress:
    """A progress bar with the rows per second, or nothing at all."""

    def __init__(self, wanted: bool, rows: int, passes: int):
        self.wanted, self.rows, self.passes = wanted, rows, passes
        self.seen, self.done, self.start = 0, 0, time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> "RowProgress":
        if self.wanted:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.task = self.bar.add_task("inference", total=self.rows * self.passes)
            self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def saw(self, rows: int) -> None:
        self.seen += rows
        if self.bar is not None:
            self.bar.update(self.task, completed=min(self.seen, self.rows * self.passes))

    def passed(self, energy: float) -> None:
        self.done += 1
        if self.bar is not None:
            rate = self.seen / (time.perf_counter() - self.start)
            self.bar.update(self.task, description=f"pass {self.done}, energy {energy:.6g}, {rate:,.0f} rows/s")
