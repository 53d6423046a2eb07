"""Minimising a function of a few numbers within bounds: L-BFGS with an active set and a line search.

SciPy's L-BFGS-B does the same. Importing it takes as long as a fit of a thousand rows, which is why `fit` does not use
it. Functions may be expensive, so that every evaluation counts, and may differ by rounding close to the minimum.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

Function = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A value and its slope at a point."""

_CORRECTIONS = 50
"""The number of steps that the approximate curvature is made from: with fewer, flat valleys take twice as many."""
_DECREASE, _FLATTER = 1e-4, 0.9
"""The constants of Wolfe's conditions: the share of the expected decrease, and of the slope that may remain."""
_ROUNDING = 1e-10
"""Values that differ by less than this, relatively, are compared by their slopes (approximate Wolfe conditions)."""
_MOST_TRIALS = 30
_LONGER, _LONGEST = 1.5, 5.0
"""By how much a step grows, at least and at most, while the minimum along the line is not bracketed."""
_NEAR = 0.05
"""The largest distance from a bound at which a number is moved to it."""
_MARGIN = 0.1
"""The share of a bracket next to its ends that is not tried."""


class Descent(NamedTuple):
    """Where a descent ended, and why."""

    x: np.ndarray
    value: float
    slope: np.ndarray
    iterations: int
    ended: Literal["slope", "decrease", "steps", "stopped", "stuck"]
    """The slope is small; the value fell too little; `max_steps`; `stop`; or no lower value was found."""
    curvature: "Curvature"


class Curvature:
    """The inverse Hessian, approximately, from the last steps and the changes of the slope along them.

    Before the first step it is that of a function whose curvature is `expected` in all directions.
    """

    def __init__(self, expected: float = 1.0):
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self._expected = expected

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, step: np.ndarray, change: np.ndarray) -> None:
        """Note how the slope has changed along a step, unless that shows no positive curvature."""
        if step @ change > 1e-12 * np.sqrt((step @ step) * (change @ change)):
            self._pairs = [*self._pairs[-_CORRECTIONS + 1 :], (step, change)]

    def apply(self, slope: np.ndarray, free: np.ndarray | None = None) -> np.ndarray:
        """The inverse Hessian times a vector, in the subspace of the numbers that are `free`.

        >>> curvature = Curvature()
        >>> curvature.add(np.array([1.0, 0.0]), np.array([4.0, 0.0]))
        >>> curvature.apply(np.array([8.0, 4.0])).tolist()
        [2.0, 1.0]
        """
        chosen = slice(None) if free is None else free
        pairs = [(step[chosen], change[chosen]) for step, change in self._pairs]
        pairs = [(step, change, step @ change) for step, change in pairs if step @ change > 1e-12 * (change @ change)]
        rest, shares = np.array(slope[chosen]), []
        for step, change, product in reversed(pairs):
            shares.append(step @ rest / product)
            rest -= shares[-1] * change
        if pairs:
            _, change, product = pairs[-1]
            rest *= product / (change @ change)
        else:
            rest /= self._expected
        for (step, change, product), share in zip(pairs, reversed(shares), strict=True):
            rest += (share - change @ rest / product) * step
        answer = np.zeros_like(slope)
        answer[chosen] = rest
        return answer


def descend(
    function: Function,
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    max_steps: int,
    smallest_slope: float,
    smallest_decrease: float,
    expected_curvature: float = 1.0,
    report: Callable[[], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Descent:
    """Minimise a function from `start`, within a lower and an upper bound of every number.

    It ends when all slopes that the bounds leave open are below `smallest_slope`, when a step lowers the value by less
    than `smallest_decrease`, relative to it (or to 1), or after `max_steps` steps. `expected_curvature` determines how
    long the first step is. `report` is called after every step, and `stop` after every evaluation.

    >>> valley = lambda x: (float(x[0] ** 2 + 10.0 * x[1] ** 2), np.array([2.0 * x[0], 20.0 * x[1]]))
    >>> found = descend(valley, np.ones(2), max_steps=50, smallest_slope=1e-9, smallest_decrease=0.0)
    >>> found.ended, bool(np.all(np.abs(found.x) < 1e-9))
    ('slope', True)
    """
    low, high = (np.full(start.shape, -np.inf), np.full(start.shape, np.inf)) if bounds is None else bounds
    x = np.clip(start, low, high)
    value, slope = function(x)
    curvature, iterations = Curvature(expected_curvature), 0

    def ended(why: Literal["slope", "decrease", "steps", "stopped", "stuck"]) -> Descent:
        return Descent(x, value, slope, iterations, why, curvature)

    while True:
        if np.max(np.abs(x - np.clip(x - slope, low, high)), initial=0.0) < smallest_slope:
            return ended("slope")
        if iterations >= max_steps:
            return ended("steps")
        if stop():
            return ended("stopped")
        direction = _direction(x, slope, low, high, curvature)
        # The first step has length 1 at most; those that follow have the length of a Newton step.
        first = 1.0 if len(curvature) else 1.0 / max(1.0, float(np.sqrt(direction @ direction)))
        found = _search_path(function, _Path(x, direction, low, high), value, slope, first, stop)
        if found is None:
            if len(curvature) and not stop():
                curvature = Curvature()
                continue
            return ended("stopped" if stop() else "stuck")
        new, new_value, new_slope = found
        decrease = value - new_value
        curvature.add(new - x, new_slope - slope)
        x, value, slope, iterations = new, new_value, new_slope, iterations + 1
        if report is not None:
            report()
        if decrease <= smallest_decrease * max(1.0, abs(value)):
            at_rest = np.max(np.abs(x - np.clip(x - slope, low, high)), initial=0.0) < smallest_slope
            return ended("slope" if at_rest else "decrease")


def _direction(x, slope, low, high, curvature: Curvature) -> np.ndarray:
    """A Newton step in the numbers that are not held by a bound.

    Numbers that it would take beyond a bound nearby go to that bound, and the step is computed anew for the others:
    otherwise steps would become ever shorter close to a bound. What is nearby shrinks with the slope (Bertsekas, 1982).
    """
    open_slope = float(np.max(np.abs(x - np.clip(x - slope, low, high)), initial=0.0))
    near = min(_NEAR, open_slope) if len(curvature) else 0.0
    free = ~(((x <= low) & (slope > 0.0)) | ((x >= high) & (slope < 0.0)))
    to_bound, direction = np.zeros_like(x), -slope
    for _ in range(x.size):
        direction = np.where(free, -curvature.apply(slope, None if np.all(free) else free), to_bound)
        below = (x - low <= near) & (x + direction < low) & ((slope > 0.0) | (x <= low))
        above = (high - x <= near) & (x + direction > high) & ((slope < 0.0) | (x >= high))
        if not np.any(free & (below | above)):
            break
        to_bound = np.where(free & below, low - x, np.where(free & above, high - x, to_bound))
        free &= ~(below | above)
    steepest = np.where(free, -slope, to_bound)
    size = np.sqrt((steepest @ steepest) * (direction @ direction))
    return direction if -(direction @ slope) > 1e-10 * size else steepest


class _Path(NamedTuple):
    """A straight line from x that stays within bounds: a number that reaches its bound stays there."""

    x: np.ndarray
    direction: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def point(self, at: float) -> np.ndarray:
        """The point after `at` times the direction."""
        return np.clip(self.x + at * self.direction, self.low, self.high)

    def velocity(self, at: float) -> np.ndarray:
        """The direction without the numbers that have reached a bound there."""
        straight = self.x + at * self.direction
        return np.where((straight > self.high) | (straight < self.low), 0.0, self.direction)

    @property
    def end(self) -> float:
        """Where the last number reaches its bound."""
        moves = self.direction != 0.0
        bound = np.where(self.direction > 0.0, self.high, self.low)
        with np.errstate(over="ignore"):
            return float(np.max(((bound - self.x)[moves]) / self.direction[moves], initial=0.0))


class _Trial(NamedTuple):
    """A point of a path: how far it is from the start, its value, and the slope along the path."""

    at: float
    value: float
    slope: float


def _search_path(function: Function, path: _Path, value: float, slope: np.ndarray, first: float, stop):
    """A point of the path that satisfies Wolfe's conditions, with its value and slope; None if none is lower.

    If the path ends before, its last point will do, as will the lowest one after too many trials.
    """
    start, end = _Trial(0.0, value, float(slope @ path.direction)), path.end
    if not (start.slope < 0.0 and end > 0.0):
        return None
    low, high, lowest, at = start, None, None, min(first, end)
    same = _ROUNDING * max(1.0, abs(value))
    for _ in range(_MOST_TRIALS):
        point = path.point(at)
        if np.array_equal(point, path.x):
            break
        new_value, new_slope = function(point)
        trial = _Trial(at, new_value, float(new_slope @ path.velocity(at)))
        decreases = trial.value <= value + _DECREASE * float(slope @ (point - path.x))
        # Where values are equal up to rounding, the slope shows whether the minimum along the path was passed.
        about_equal = abs(trial.value - value) <= same and trial.slope <= (2.0 * _DECREASE - 1.0) * start.slope
        if (decreases or about_equal) and abs(trial.slope) <= -_FLATTER * start.slope:
            return point, new_value, new_slope
        if new_value < value and (lowest is None or new_value < lowest[1]):
            lowest = point, new_value, new_slope
        if stop():
            break
        before = low
        if not decreases or trial.value >= low.value:
            high = trial
        elif high is None and trial.slope < 0.0:
            if at >= end:
                return point, new_value, new_slope
            low = trial
        elif high is None or trial.slope * (high.at - low.at) >= 0.0:
            low, high = trial, low
        else:
            low = trial
        if high is None:
            at = min(end, float(np.clip(_between(before, trial), _LONGER * at, _LONGEST * at)))
            continue
        left, right = sorted((low.at, high.at))
        if right - left <= 1e-15 * right:
            break
        margin = _MARGIN * (right - left)
        at = float(np.clip(_between(low, high), left + margin, right - margin))
    return lowest


def _between(one: _Trial, other: _Trial) -> float:
    """Where the cubic through two trials has its minimum; the middle if it has none."""
    apart = other.at - one.at
    sum_of = one.slope + other.slope - 3.0 * (other.value - one.value) / apart
    inside = sum_of**2 - one.slope * other.slope
    if not inside >= 0.0:
        return 0.5 * (one.at + other.at)
    root = np.copysign(np.sqrt(inside), apart)
    below = other.slope - one.slope + 2.0 * root
    place = other.at - apart * (other.slope + root - sum_of) / below if below != 0.0 else np.nan
    return float(place) if np.isfinite(place) else 0.5 * (one.at + other.at)
