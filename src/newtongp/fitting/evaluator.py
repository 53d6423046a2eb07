"""The energy as a function of the hyperparameters, and a record of its evaluations.

L-BFGS uses only energies and gradients, so this record is its whole state. A run that was killed is repeated from the
record, which takes no computation until the record ends.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from .._runtime import tiers
from .._runtime.double import in_double, to_host
from ..inference.compatibility import starts_from_sweep
from ..inference.infer import start_compiling_posterior
from ..inference.loop import work_of
from ..inference.own_sizes import Use
from ..inference.problem import Setup
from ..inference.starts import HOPELESS, START_PRECISIONS, inside_support, swept_sites
from ..kernels.definite import find_indefinite, is_own
from ..numerics.gaussian import Sites
from ..results.status import Status
from . import objective
from .checkpoint import Checkpoint, fingerprint
from .known_sites import KnownSites
from .learned import choose, with_values
from .space import Space

FINEST, _COARSEST, _SHARE = 1e-7, 1e-4, 1e-3
"""Limits of the tolerance of inference in evaluations with a gradient, and its share of the tolerance of the search.

The result has the finest.
"""
_SHARE_OF_SLOPE = 1e-4
"""The same relative to the slope, while the search is far from its end: errors of the slope remain far below it."""
_SAME_POINT = 1e-3
"""The largest distance, in units of the free numbers, of points that need not be compared."""
_ROUGH_TOLERANCE = 1e-2
"""The same without a gradient: energies are then exact to some hundredths, since their errors are of second order."""
_started: set[Any] = set()
"""Models and sizes for which compilations were started."""


def inner_tolerance(tol: float, method: Any, likelihood: Any) -> float:
    """The tolerance of inference in every evaluation with a gradient, in a search that ends at the slope `tol`.

    Where the energy does not change with the sites to first order, sites within this tolerance change its slope by less
    than `tol`. Other energies need sites as close as possible.
    """
    return min(max(_SHARE * tol, FINEST), _COARSEST) if objective.is_stationary(method, likelihood) else FINEST


def start_compiling(
    setup: Setup, specifications: Any, method: Any, step: Any, max_steps: int, tol: float
) -> tuple[Any, Any]:
    """Start compiling evaluations, which takes as long as everything else that comes before the first of them.

    The programs that prepare the prior and make the posterior of the result come first: they are compiled while
    evaluations are traced. The shapes of their values are returned, if they were started.
    """
    try:
        shapes = setup.size, setup.data.x.shape[1], tuple(specifications or ())
        known = jax.tree.structure((setup.model, method, step)), shapes
        if known in _started:
            return None, None
        _started.add(known)
    except TypeError:  # a static value that cannot be hashed
        return None, None
    workspace = setup.start_compiling()
    posterior = None if workspace is None else start_compiling_posterior(setup, workspace)
    slots = tuple(item.slot for item in choose(setup.model, specifications))
    sites = Sites.constant(setup.bound.observed.shape[0], setup.model.prior.num_latents, 0.01)
    unconstrained = np.zeros(sum(slot.size for slot in slots))
    problem = slots, setup.bound, unconstrained, method, step
    objective.evaluate.start(*problem, sites, -1.0, max_steps, tol, True, work=work_of(setup, method))
    return workspace, posterior


class Entry(NamedTuple):
    """One evaluation in the record."""

    unconstrained: np.ndarray
    energy: float
    gradient: np.ndarray
    """NaN if it was not computed."""
    status: int
    steps: int
    tol: float = 0.0
    """The tolerance of inference, which a record does not need: the same search asks for the same again."""

    @property
    def is_rough(self) -> bool:
        """Whether the energy is approximate, and without a gradient."""
        return any(map(math.isnan, self.gradient.tolist()))


class Candidate(NamedTuple):
    """A point at which a search may start: its rough energy minus the log prior density, and the sites found there."""

    total: float
    unconstrained: np.ndarray
    sites: Sites


class Evaluator:
    """Energies and gradients, each from inference that starts at the last sites; and the record of all of them."""

    def __init__(
        self,
        setup: Setup,
        method: Any,
        step: Any,
        space: Space,
        max_steps: int,
        tol: float,
        record_file: "RecordFile | None",
        report_progress: Callable[[int, float], None],
        use: Use | None = None,
    ):
        self.setup, self.method, self.step, self.space, self.use = setup, method, step, space, use
        self.max_steps, self.tol = max_steps, tol
        self.adapts = objective.is_stationary(method, setup.bound.likelihood)
        """Whether evaluations far from an optimum need not be as exact as those close to it."""
        self.record_file, self.report_progress = record_file, report_progress
        self.record: list[Entry] = []
        self.replay: list[Entry] = []
        self.work, self.matrix = work_of(setup, method), setup.model.prior.matrix_size(setup.data.x)
        positions = setup.bound.observed.shape[0]
        initial = getattr(method, "initial_precision", 0.01)
        self.sites = Sites.constant(positions, setup.model.prior.num_latents, initial)
        if starts_from_sweep(method, setup.bound.likelihood):
            self.sites = swept_sites(setup)
        self.precisions = (-1.0, initial, *(precision for precision in START_PRECISIONS if precision > initial))
        self.known = KnownSites(space.units)
        self.works = False
        """Whether inference has worked in any evaluation."""
        self.best: tuple[float, np.ndarray, Any] | None = None
        self.candidate: tuple[float, np.ndarray, Any] | None = None
        """The best rough evaluation."""
        self.last: Any = None
        """The report of the last evaluation; None if that was read from the record of an earlier run."""
        self.best_report: Any = None
        """The report of the best evaluation."""
        self.best_tolerance = 0.0
        """The tolerance of inference in the best evaluation."""
        self.undefined = np.zeros(space.size, dtype=bool)
        """Which free numbers had no finite derivative at some point with a finite energy."""
        if record_file is not None:
            self.replay, sites = record_file.read(space.size, self.sites)
            self.sites = self.sites if sites is None else sites

    def __call__(self, unconstrained: np.ndarray, steepest: float = 0.0) -> tuple[float, np.ndarray]:
        """The energy minus the log prior density, and its gradient; infinite where inference fails.

        It is as exact as the next step of a search needs where the largest slope is `steepest`.
        """
        entry = self._next(np.array(unconstrained, dtype=float), self.tolerance_at(steepest))
        penalty, slope = self.space.penalty(unconstrained)
        return self._note(entry, penalty), entry.gradient + slope

    def _note(self, entry: Entry, penalty: float) -> float:
        """The energy minus the log prior density; keeps the best evaluation, and reports."""
        total = entry.energy + penalty
        if entry.is_rough:
            if total < (np.inf if self.candidate is None else self.candidate[0]):
                self.candidate = total, entry.unconstrained, self.sites
        elif np.isfinite(total) and (self.best is None or total < self.best[0] or self._refines_best(entry)):
            self.best, self.best_report = (total, entry.unconstrained, self.sites), self.last
            self.best_tolerance = entry.tol
        lowest = self.candidate if self.best is None else self.best
        self.report_progress(len(self.record), total if lowest is None else lowest[0])
        return total

    def _refines_best(self, entry: Entry) -> bool:
        """Whether an evaluation repeats the best one with a smaller tolerance."""
        assert self.best is not None
        return entry.tol < self.best_tolerance and np.array_equal(entry.unconstrained, self.best[1])

    def tolerance_at(self, steepest: float) -> float:
        """The tolerance of inference where the largest slope of a search is `steepest`."""
        return min(max(_SHARE_OF_SLOPE * steepest, self.tol), max(_COARSEST, self.tol)) if self.adapts else self.tol

    def at(self, unconstrained: np.ndarray, steepest: float = 0.0) -> tuple[float, np.ndarray]:
        """As `__call__`, from the record if it contains this point, as exact as that."""
        for entry in reversed(self.record):
            is_exact = not entry.is_rough and entry.tol <= self.tolerance_at(steepest)
            if is_exact and np.array_equal(entry.unconstrained, unconstrained):
                penalty, slope = self.space.penalty(unconstrained)
                return entry.energy + penalty, entry.gradient + slope
        return self(unconstrained, steepest)

    @property
    def slopes(self) -> list[tuple[float, np.ndarray]]:
        """All energies, without prior densities, and their gradients."""
        return [(entry.energy, entry.gradient) for entry in self.record]

    def ranked(self, points: Iterable[np.ndarray]) -> list["Candidate"]:
        """The points at which inference works, in the order of rough energies; nearly equal points once."""
        found: list[Candidate] = []
        for unconstrained in points:
            away = [np.abs(entry.unconstrained - unconstrained) / self.space.units for entry in self.record]
            if any(np.all(distance < _SAME_POINT) for distance in away):
                continue
            entry = self._next(np.array(unconstrained, dtype=float), _ROUGH_TOLERANCE, rough=True)
            total = self._note(entry, self.space.penalty(unconstrained)[0])
            if np.isfinite(total):
                found.append(Candidate(total, unconstrained, self.sites))
        return sorted(found, key=lambda candidate: candidate.total)

    def _next(self, unconstrained: np.ndarray, tol: float, rough: bool = False) -> Entry:
        number = len(self.record)
        if number < len(self.replay):
            entry = self.replay[number]._replace(tol=tol)
            if not np.array_equal(entry.unconstrained, unconstrained):
                assert self.record_file is not None
                raise self.record_file.file.of_another_fit(f": its evaluation {number} was at another point")
            self.record.append(entry)
            self.last = None
            return entry
        entry = self._evaluate(unconstrained, tol, rough)
        self.record.append(entry)
        if self.record_file is not None:
            self.record_file.write(self.record, self.sites)
        return entry

    def report_at(self, unconstrained: np.ndarray, sites: Sites) -> Any:
        """The report of inference with these hyperparameters, from these sites."""
        self.sites = sites
        self._evaluate(unconstrained, FINEST)
        return self.last

    @in_double
    def _evaluate(self, unconstrained: np.ndarray, tol: float, rough: bool = False) -> Entry:
        nothing = np.full_like(unconstrained, np.nan if rough else 0.0)
        if not self._is_definite(unconstrained):
            return Entry(unconstrained, np.inf, nothing, Status.IMPROPER_POSTERIOR.value, 0, tol)
        evaluation, usable = None, False
        # From the last sites; if that fails, from the prior, or from sites that hold f near the prior mean.
        # A run that goes on from a checkpoint knows the last sites alone.
        first = self.sites if self.record_file is not None else self.known.at(unconstrained, self.sites)
        for precision in self.precisions:
            evaluation = self._from(unconstrained, first, precision, tol, rough)
            usable = evaluation.usable
            if usable:
                break
        assert evaluation is not None
        if not self.works and not (usable and self._has_settled(evaluation)):
            for precision in self._held_at_first(unconstrained):
                held = self._from(unconstrained, first, precision, tol, rough)
                if held.usable and not (usable and evaluation.report.energy <= held.report.energy):
                    evaluation, usable = held, True
        if not usable and not self.works:
            # No evaluation has succeeded yet: the density may be zero at the prior mean.
            model = with_values(self.space.slots, self.setup.model, self.space.values_at(unconstrained))
            for sites in inside_support(self.setup.with_model(model).problem):
                evaluation = self._from(unconstrained, sites, -1.0, tol, rough)
                usable = evaluation.usable
                if usable:
                    break
        self.last = report = evaluation.report
        status, steps, energy = int(report.status), int(report.steps), float(report.energy)
        if not usable:
            self.undefined |= ~np.isfinite(evaluation.gradient) & np.isfinite(energy)
            return Entry(unconstrained, np.inf, nothing, status, steps, tol)
        self.sites, self.works = report.sites, True
        if not rough:
            self.known.add(unconstrained, self.sites)
        gradient = nothing if rough and not evaluation.is_conjugate else np.asarray(evaluation.gradient)
        if report.residual <= self.tol:
            tol = min(tol, self.tol)  # it is as exact as if that had been asked for
        return Entry(unconstrained, energy, gradient, status, steps, tol)

    def _has_settled(self, evaluation: objective.Evaluation) -> bool:
        """Whether inference has converged, and not where proposals are absurdly precise: see `_held_at_first`."""
        if evaluation.is_conjugate:
            return True
        ordinary = 1e-3 * HOPELESS * np.sum(self.setup.data.observed)
        return int(evaluation.report.status) == Status.CONVERGED.value and float(evaluation.report.energy) <= ordinary

    def _held_at_first(self, unconstrained: np.ndarray) -> list[float]:
        """The precision of sites that hold f, if their energy is far lower than that of the first sites.

        As in `infer`: under a prior that is far too wide, first proposals are absurdly precise and then hardly move.
        """
        at_first = self._energy_at_start(unconstrained, -1.0)
        if at_first <= HOPELESS * np.sum(self.setup.data.observed):
            return []
        energies: dict[float, float] = {}
        for precision in self.precisions[2:]:
            energies[precision] = self._energy_at_start(unconstrained, precision)
            if np.isfinite(energies[precision]) and energies[precision] > min(energies.values()):
                break  # sites that hold f more firmly only add to the energy
        lowest = min(energies, key=lambda precision: energies[precision])
        return [lowest] if energies[lowest] < 1e-3 * at_first else []

    def _energy_at_start(self, unconstrained: np.ndarray, precision: float) -> float:
        """The energy before the first step; infinite if it is not a number."""
        arguments = self._arguments(unconstrained, self.sites, precision, 0, _ROUGH_TOLERANCE, rough=True)
        report = to_host(objective.evaluate(*arguments, work=self.work, matrix=self.matrix, again=False)).report
        return float(report.energy) if np.isfinite(report.energy) else np.inf

    def _from(
        self, unconstrained: np.ndarray, sites: Sites, precision: float, tol: float, rough: bool
    ) -> objective.Evaluation:
        """Inference from these sites, or from sites of this precision at the prior mean."""
        started = time.perf_counter()
        arguments = self._arguments(unconstrained, sites, precision, self.max_steps, tol, rough)
        again = self.use is None or not self.use.is_last
        evaluation = to_host(objective.evaluate(*arguments, work=self.work, matrix=self.matrix, again=again))
        if self.use is not None:
            self.use.note(time.perf_counter() - started)
        return evaluation

    def _arguments(
        self, unconstrained: np.ndarray, sites: Sites, precision: float, until: int, tol: float, rough: bool = False
    ) -> tuple:
        problem = self.space.slots, self.setup.bound, unconstrained, self.method, self.step
        return *problem, sites, precision, until, tol, not rough

    def prepare(self) -> tiers.Use | None:
        """Start compiling evaluations in the background."""
        arguments = self._arguments(self.space.middle, self.sites, -1.0, self.max_steps, self.tol)
        return objective.evaluate.prepare(*arguments)

    @functools.cached_property
    def _has_own_kernels(self) -> bool:
        setup = self.setup
        return any(is_own(kernel) for kernel, _, _ in setup.model.prior.kernels_at(setup.data.x))

    def _is_definite(self, unconstrained: np.ndarray) -> bool:
        """Whether the kernel is positive semi-definite at these values; only users' own kernels are checked."""
        setup = self.setup
        if not self._has_own_kernels:
            return True
        prior = with_values(self.space.slots, setup.model, self.space.values_at(unconstrained)).prior
        return all(find_indefinite(*checked) is None for checked in prior.kernels_at(setup.data.x))


class RecordFile:
    """A checkpoint that contains the record of all evaluations, and the last sites."""

    def __init__(self, path: Any, setup: Setup, choices: Any, space: Space, inference_steps: int):
        data = setup.data
        arrays = data.x, data.y, data.observed, data.weights, space.specifications[0]
        mark = fingerprint((setup.model, choices), arrays, (space.slots, inference_steps, setup.bound.y.shape[0]))
        self.file = Checkpoint(path, "newtongp fit checkpoint", mark)

    def read(self, size: int, like: Sites) -> tuple[list[Entry], Sites | None]:
        """The record and sites of an earlier run, if any, with `size` free numbers and sites shaped as `like`."""
        written = self.file.read()
        if written is None:
            return [], None
        array = functools.partial(self.file.array, written)
        unconstrained = array("free", "f", None, size)
        count = len(unconstrained)
        energy, gradient = array("energy", "f", count), array("gradient", "f", count, size)
        status, steps = array("status", "i", count), array("steps", "i", count)
        sites = Sites(array("linear", "f", *like.linear.shape), array("precision", "f", *like.precision.shape))
        if np.any(np.isnan(energy) | (energy == -np.inf)):
            raise self.file.unusable("energies must be numbers, or infinite where inference broke down")
        if not all(np.all(np.isfinite(part)) for part in (unconstrained, sites.linear, sites.precision)):
            raise self.file.unusable("free, linear and precision must be finite")
        if np.any(np.isinf(gradient)):
            raise self.file.unusable("gradient must be finite, or NaN where it was not computed")
        if not np.all(np.isin(status, list(Status))):
            raise self.file.unusable("status must hold endings of inference")
        rows = zip(unconstrained, energy.tolist(), gradient, status.tolist(), steps.tolist(), strict=True)
        return [Entry(*row) for row in rows], sites

    def write(self, record: list[Entry], sites: Sites, now: bool = False) -> None:
        """Replace the file, if that is due or `now` is set."""
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
