"""Profiles of the energy along positive values that the data determine poorly, such as a variance whose estimate is 0.

There a curvature says little, or nothing if the energy has no minimum. Its rise along the value, with all others at
their best, says more: twice the rise is compared with a chi-squared distribution (profile likelihood).
"""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from ..results.profiles import HIGHEST, entry_name
from .evaluator import Evaluator
from .learned import Slot
from .search import search

_USUAL = (1.353, 1.921, 3.317)
"""Rises at the ends of intervals of 90, 95 and 99 %: profiles have points there."""
_FARTHEST = 30.0
"""Where the energy has not risen over this distance, of a logarithm, it does not rise."""
_SMALLEST_STEP, _LITTLE = 0.5, 0.5
"""The first step away from the optimum, of a logarithm, and a rise below which steps grow."""
_TOL, _MAX_STEPS = 1e-2, 20
"""The tolerance and most steps of the searches over the other values: energies are then exact to 1e-4."""
_CLOSE, _TRIALS = 0.002, 6
"""How close the root of a rise has to be, and how many points are tried."""
EVALUATIONS = 100
"""About as many evaluations as one profile takes."""
LOOSE = 0.2
"""A larger standard error, relative to its value, says too little: ends of intervals from it are off by 5 % or more."""


def of_loose_values(
    evaluator: Evaluator, unconstrained: np.ndarray, errors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The profiles of positive values, and variances of matrices, with large standard errors: (2, n) each, by name.

    Rows are values, which ascend, and rises of the energy without the value's own weak prior.
    """
    found, space, begin = {}, evaluator.space, 0
    try:
        for slot, value in zip(space.slots, space.values_at(unconstrained), strict=True):
            error = errors.get(slot.name, np.zeros(slot.shape))
            for name, index, place, power in _logarithms(slot):
                if error[index] > LOOSE * value[index]:
                    evaluator.space = space.release(np.arange(space.size) == begin + place)
                    logarithms, rises = _profile(evaluator, unconstrained, begin + place)
                    found[name] = np.stack([np.exp(power * logarithms), rises])
            begin += slot.size
    finally:
        evaluator.space = space
    return found


def _logarithms(slot: Slot) -> Iterator[tuple[str, tuple[int, ...], int, float]]:
    """The positive entries of a value: name, index, place among its free numbers, and which power is that logarithm."""
    places = np.flatnonzero(slot.constraint.logarithms(slot.shape))
    is_matrix = slot.size != math.prod(slot.shape)  # whose free numbers include logarithms of standard deviations
    indices = [(k, k) for k in range(len(places))] if is_matrix else list(np.ndindex(slot.shape))
    for index, place in zip(indices, places, strict=True) if len(places) else ():
        yield entry_name(slot.name, index), index, int(place), 2.0 if is_matrix else 1.0


def _profile(evaluator: Evaluator, unconstrained: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
    """A free number and the rises of the energy along it.

    First outwards in growing steps, and then closer to where intervals of the usual levels end.
    """
    start = unconstrained[place]
    points = {start: (evaluator.at(unconstrained)[0], unconstrained)}
    for side in (-1.0, 1.0):
        step, here = _SMALLEST_STEP, start
        while abs(here - start) < _FARTHEST:
            before, here = points[here][0], here + side * step
            points[here] = _continued(evaluator, points, place, here)
            total, least = points[here][0], min(total for total, _ in points.values())
            if not total - least < HIGHEST:
                break
            step *= 2.0 if abs(total - before) < _LITTLE else 1.0
    for side, rise, _ in itertools.product((-1.0, 1.0), _USUAL, range(_TRIALS)):
        between = _to_add(points, side, rise)
        if between is not None:
            points[between] = _continued(evaluator, points, place, between)
    values = np.array(sorted(points))
    totals = np.array([points[value][0] for value in values])
    finite = np.isfinite(totals)
    return values[finite], totals[finite] - np.min(totals)


def _to_add(points: dict[float, tuple[float, np.ndarray]], side: float, rise: float) -> float | None:
    """Where the energy has about this rise on one side; None if a point is there, or it does not rise so far."""
    least = min(points, key=lambda value: points[value][0])
    along = sorted((value for value in points if side * (value - least) >= 0.0), key=lambda value: side * value)
    rises = [points[value][0] - points[least][0] for value in along]
    after = next((k for k, own in enumerate(rises) if not own < rise), None)
    if not after:
        return None
    # The root of the rise is almost linear.
    (before, beyond), (low, high), root = along[after - 1 : after + 1], np.sqrt(rises[after - 1 : after + 1]), rise**0.5
    if min(root - low, high - root) < _CLOSE:
        return None
    share = float(np.clip((root - low) / (high - low), 0.1, 0.9)) if np.isfinite(high) else 0.5
    return before + share * (beyond - before)


def _continued(
    evaluator: Evaluator, points: dict[float, tuple[float, np.ndarray]], place: int, value: float
) -> tuple[float, np.ndarray]:
    """The lowest energy with this value, from the other values at the nearest point."""
    nearest = min((at for at in points if np.isfinite(points[at][0])), key=lambda at: abs(at - value))
    start = np.array(points[nearest][1])
    start[place] = value
    bounds = np.asarray(evaluator.space.bounds(start))
    bounds[place] = value
    found = search(evaluator, start, _MAX_STEPS, _TOL, [], bounds=bounds)
    return found.total, found.unconstrained
