"""The search for the lowest energy: L-BFGS from several starts, and the release of weak priors."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from .._runtime.compilation import blas_threads_for
from ..results.status import Status
from ..validation.arguments import as_key
from .descent import descend
from .evaluator import Candidate, Evaluator
from .standard_errors import Spread, curvature


class Search(NamedTuple):
    """Where a search from one start ended, and why."""

    total: float
    unconstrained: np.ndarray
    status: Status
    iterations: int


def search(
    evaluator: Evaluator,
    start: np.ndarray,
    max_steps: int,
    tol: float,
    trace: list[float],
    expected_curvature: float = 1.0,
    bounds: np.ndarray | None = None,
) -> Search:
    """L-BFGS from one start, repeated from its end point while that is not an optimum and the energy falls.

    `bounds`, (n, 2), are those of the space if they are not given.
    """
    if max_steps == 0:
        return Search(evaluator.at(start, np.inf)[0], start, Status.MAX_STEPS, 0)
    bounds = np.asarray(evaluator.space.bounds(start)) if bounds is None else bounds
    lowest, iterations, status = _Lowest(evaluator, start, tol, bounds), 0, Status.NON_FINITE
    if not np.isfinite(lowest.total):
        return Search(np.inf, start, status, 0)
    for number in range(_ROUNDS):
        before = lowest.total
        # A descent that ended early may have expected too much curvature.
        expected = expected_curvature if number == 0 else 1.0
        status, taken = _descend(lowest, max_steps - iterations, tol, trace, expected)
        iterations += taken
        if status is Status.CONVERGED:
            break
        falls = lowest.total < before - _DECREASE * max(1.0, abs(before))
        if iterations >= max_steps or not (falls or expected > 1.0):
            break
    return Search(lowest.total, lowest.unconstrained, status, iterations)


_ROUNDS = 5
_DECREASE = 1e-12
"""The smallest relative decrease of the energy with which a descent continues."""
_IDLE, _SAME = 4, 1e-10
"""A descent ends after this many evaluations in a row that differ from the lowest energy by less than this, relatively.

Rounding errors of energies are smaller, unless a covariance is nearly singular.
"""


class _Lowest:
    """The energy as a function of the free numbers divided by their units, and its lowest point so far.

    Far from an optimum it is less exact; where its slope is below `tol`, the search may end, and it is exact.
    """

    def __init__(self, evaluator: Evaluator, start: np.ndarray, tol: float, bounds: np.ndarray):
        self.evaluator, self.units, self.tol = evaluator, evaluator.space.units, tol
        low, high = bounds.T
        self.low, self.high = low / self.units, high / self.units
        self.scaled = np.clip(start / self.units, self.low, self.high)
        inside = np.array_equal(self.scaled, start / self.units)
        self.unconstrained = start if inside else self.scaled * self.units
        self.total, self.slope = self._evaluate(self.unconstrained, np.inf)
        self.idle = 0
        """The number of evaluations since the last energy that differs."""

    def __call__(self, scaled: np.ndarray) -> tuple[float, np.ndarray]:
        """The energy and its slope; a wall that stops a line search where the energy is far too high or not finite."""
        if np.array_equal(scaled, self.scaled):
            return self.total, self.slope
        unconstrained = scaled * self.units
        total, slope = self._evaluate(unconstrained, self.steepest)
        height = 1e3 * (1.0 + abs(self.total))
        # An energy of 1e20 and its slope would tell a line search nothing: rounding hides how far to turn back.
        if np.isfinite(total) and total < self.total + height:
            size, change = max(1.0, abs(self.total)), total - self.total
            self.idle = self.idle + 1 if abs(change) <= _SAME * size else 0
            flatter = self._steepest(scaled, slope) < self.steepest
            if change < 0.0 if abs(change) > _DECREASE * size else flatter:
                self.total, self.unconstrained = total, unconstrained
                self.scaled, self.slope = np.array(scaled), slope
            return total, slope
        away = scaled - self.scaled
        return self.total + height, height * away / max(float(away @ away), 1e-12)

    def _evaluate(self, unconstrained: np.ndarray, steepest: float) -> tuple[float, np.ndarray]:
        """The energy and its slope, as exact as they have to be where the largest slope is `steepest`, or if small."""
        total, slope = self.evaluator.at(unconstrained, steepest)
        if np.isfinite(total) and self._steepest(unconstrained / self.units, slope * self.units) < self.tol:
            total, slope = self.evaluator.at(unconstrained)
        return total, slope * self.units

    @property
    def open_slope(self) -> np.ndarray:
        """The slope in the directions that the bounds allow."""
        return self._open(self.scaled, self.slope)

    @property
    def steepest(self) -> float:
        """The largest entry of that slope."""
        return self._steepest(self.scaled, self.slope)

    def _open(self, scaled: np.ndarray, slope: np.ndarray) -> np.ndarray:
        return scaled - np.clip(scaled - slope, self.low, self.high)

    def _steepest(self, scaled: np.ndarray, slope: np.ndarray) -> float:
        return float(np.max(np.abs(self._open(scaled, slope)), initial=0.0))


def _descend(
    lowest: _Lowest, max_steps: int, tol: float, trace: list[float], expected_curvature: float
) -> tuple[Status, int]:
    """L-BFGS from the lowest point; returns how it ended and the number of iterations."""
    lowest.idle = 0
    evaluator = lowest.evaluator
    with blas_threads_for(evaluator.work if evaluator.matrix is None else evaluator.matrix):
        descent = descend(
            lowest,
            lowest.scaled,
            (lowest.low, lowest.high),
            max_steps=max_steps,
            smallest_slope=tol,
            smallest_decrease=_DECREASE,
            expected_curvature=expected_curvature,
            report=lambda: trace.append(lowest.total),
            # A line search among energies that differ by rounding alone would take dozens of evaluations.
            stop=lambda: lowest.idle >= _IDLE,
        )
    # A step may have changed nothing for whatever reason. The slope must be small as well, or the curvature along the
    # last steps must show that nothing is left to gain.
    slope, steepest, allowed = lowest.open_slope, lowest.steepest, 1e2 * tol
    if descent.ended == "steps":
        return Status.CONVERGED if steepest < tol else Status.MAX_STEPS, descent.iterations
    gain = float(slope @ descent.curvature.apply(slope)) if len(descent.curvature) else np.inf
    ended = steepest < allowed or 0.0 <= gain < allowed**2
    return Status.CONVERGED if ended else Status.STEP_TOO_SMALL, descent.iterations


def lowest_of(searches: list[Search]) -> Search:
    """The search with the lowest energy."""
    return min(searches, key=lambda search: search.total)


def starts_of(evaluator: Evaluator, restarts: int, key: Any) -> Iterator[tuple[np.ndarray, float]]:
    """Starting points of searches, the best of several candidates and then random points, and curvatures to expect."""
    space = evaluator.space
    if space.size == 0:
        evaluator(space.middle)
        return
    best, curvature = space.middle, 1.0
    candidates = evaluator.ranked(space.starts())
    for candidate in candidates:
        evaluator.sites = candidate.sites
        if np.isfinite(evaluator.at(candidate.unconstrained, np.inf)[0]):  # with a gradient
            best, curvature = candidate.unconstrained, _curvature_around(candidate, candidates, space.units)
            break
    yield best, curvature
    if restarts == 0:
        return
    keys = jax.random.split(as_key(key), restarts)
    low, high = np.asarray(space.bounds(space.middle)).T
    for number in range(restarts):
        noise = np.asarray(jax.random.normal(keys[number], (space.size,)))
        yield np.clip(space.middle + 1.5 * noise * space.units, low, high), 1.0


def _curvature_around(middle: Candidate, candidates: list[Candidate], units: np.ndarray) -> float:
    """The curvature of the energy between two candidates on a line through `middle`; 1 if there are none.

    What the data say determines the curvature in other directions as well: it is of the same size there.
    """
    others = [((other.unconstrained - middle.unconstrained) / units, other.total) for other in candidates]
    lengths = [float(np.sqrt(away @ away)) for away, _ in others]
    around = sorted(zip(lengths, others, strict=True), key=lambda item: item[0])
    for (left, (one, below)), (right, (other, above)) in itertools.combinations(around, 2):
        if left > _APART and one @ other < -_OPPOSITE * left * right:
            slopes = (below - middle.total) / left + (above - middle.total) / right
            curvature = 2.0 * slopes / (left + right)
            return curvature if np.isfinite(curvature) and curvature > 0.0 else 1.0
    return 1.0


_APART = 0.1
"""The smallest distance at which a difference of rough energies says anything about the curvature."""
_OPPOSITE = 1.0 - 1e-6
"""Minus the cosine of the angle between two directions that are opposite up to rounding."""
_KNOWN = 2.0
"""The largest standard error, of a logarithm, with which the data determine a value."""
_STEEP = 0.5
"""A slope of the weak prior above which the data may determine the value elsewhere."""


def release_weak_priors(
    evaluator: Evaluator, lowest: Search, max_steps: int, tol: float, trace: list[float]
) -> tuple[Search, np.ndarray | None]:
    """The optimum without the weak priors that pull at what the data determine, and its curvature if known.

    A weak prior is for parameters that the data leave open. Where it has an influence, the search continues without it.
    If that reaches an optimum with a curvature of its own, the data determine the parameter; otherwise the weak prior
    is restored.
    """
    hessian = None
    for _ in range(_ROUNDS):
        space = evaluator.space
        _, pull = space.pull(lowest.unconstrained)
        held = pull != 0.0
        if lowest.status is not Status.CONVERGED or not np.any(held):
            break
        if hessian is None:
            hessian = curvature(evaluator, lowest.unconstrained, space.units)
        if hessian is None:
            break
        released = held & (_is_known(evaluator, lowest.unconstrained, hessian) | (np.abs(pull) > _STEEP))
        if np.any(released):
            evaluator.space = space.release(released)
            further = search(evaluator, lowest.unconstrained, max_steps, tol, trace)
            beyond = (
                curvature(evaluator, further.unconstrained, space.units) if further.status is Status.CONVERGED else None
            )
            if beyond is not None and np.all(_is_known(evaluator, further.unconstrained, beyond)[released]):
                lowest, hessian = further, beyond
                evaluator.best, evaluator.best_report = (further.total, further.unconstrained, evaluator.sites), None
                continue
            evaluator.space = space
        space.note_undetermined(held)
        break
    return lowest, hessian


def _is_known(evaluator: Evaluator, unconstrained: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Which free numbers are determined without weak priors, by the data and the priors that a user gave."""
    units = evaluator.space.units
    weak = curvature(evaluator.space.pull, unconstrained, units)
    if weak is None:
        return np.zeros(unconstrained.shape, dtype=bool)
    return Spread.of(hessian - weak, units).errors < _KNOWN
