"""Profiles of the energy along positive values that the data hardly determine, such as a variance whose estimate is 0.

There a curvature says little or nothing. The energy's rise along the value, with all others at their best, says how
large it may be: twice the rise is compared with a chi-squared distribution (profile likelihood).
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..results.profiles import HIGHEST, LOOSE, entry_name
from .evaluator import Evaluator
from .learned import Slot
from .search import search

_USUAL = (0.821, 1.353, 1.921, 3.317)
"""Rises at the ends of intervals of 80, 90, 95 and 99 %: profiles have points there."""
_FARTHEST = 30.0
"""Where the energy has not risen over this distance, of a logarithm, it does not rise."""
_SMALLEST_STEP, _LITTLE = 0.5, 0.5
"""The first step away from the optimum, of a logarithm, and a rise below which steps grow."""
_TOL, _MAX_STEPS = 1e-2, 20
"""The tolerance and most steps of the searches over the other values: energies are then exact to 1e-4."""
_CLOSE, _TRIALS = 0.002, 4
"""How close the root of a rise has to be, and how many points are tried."""
_LOW, _RAISED, _FAR = 2.0, 1.0, 0.25
"""How far below its guess a logarithm is low, to where it is then raised, and which share of its limit is far."""
_UNSURE = 0.2
"""A larger standard error, relative to its value, leaves ends of intervals uncertain by 5 % or more."""
_MOST_WORK, _LEAST_WORK = 2.0**26, 2.0**13
"""The most array elements that all steps of all profiles of a fit process, and how many a step counts at least.

These are one to three seconds.
"""
_STEPS_OF_EVALUATION = 4
"""As how many steps an evaluation counts besides those of its inference."""


class _TooLong(Exception):
    """The profiles of this fit take longer than anybody should have to wait for them unasked."""


class _Run(NamedTuple):
    """What the evaluations of profiles work on, and how many there had been before."""

    evaluator: Evaluator
    before: int

    def lowest_from(self, start: np.ndarray, place: int, value: float) -> tuple[float, np.ndarray]:
        """The lowest energy with this value, found from these others."""
        spent = sum(_STEPS_OF_EVALUATION + entry.steps for entry in self.evaluator.record[self.before :])
        if spent * max(self.evaluator.work, _LEAST_WORK) > _MOST_WORK:
            raise _TooLong
        start = np.array(start)
        start[place] = value
        bounds = np.asarray(self.evaluator.space.bounds(start))
        bounds[place] = value
        found = search(self.evaluator, start, _MAX_STEPS, _TOL, [], bounds=bounds)
        return found.total, found.unconstrained


def of_loose_values(
    evaluator: Evaluator, unconstrained: np.ndarray, errors: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The profiles of positive values, and variances of matrices, with large standard errors: (2, n) each, by name.

    If there are any, those with smaller ones follow. Rows are values, which ascend, and rises of the energy without the
    value's own weak prior. Values for which the user has set bounds have none, and neither have those for which there
    is no time.
    """
    found, space = {}, evaluator.space
    run = _Run(evaluator, len(evaluator.record))
    entries = list(_entries(evaluator, unconstrained, errors))
    try:
        # Beside a value that is near the end of its range, curvatures say too little about the others as well.
        for smallest in (LOOSE, _UNSURE):
            for name, place, power, relative_error in entries:
                if name not in found and relative_error > smallest:
                    evaluator.space = space.release(np.arange(space.size) == place)
                    logarithms, rises = _profile(run, unconstrained, place)
                    found[name] = np.stack([np.exp(power * logarithms), rises])
            if not found:
                break
    except _TooLong:
        pass
    finally:
        evaluator.space = space
    return found


def _entries(
    evaluator: Evaluator, unconstrained: np.ndarray, errors: dict[str, np.ndarray]
) -> Iterator[tuple[str, int, float, float]]:
    """The name of every entry that may have a profile, its place among the free numbers, of which power of the entry
    that is the logarithm, and its standard error, relative to its value."""
    space, begin = evaluator.space, 0
    for item, value in zip(space.learned, space.values_at(unconstrained), strict=True):
        error = errors.get(item.slot.name)
        if error is not None and item.lower is None and item.upper is None:
            for name, index, place, power in _logarithms(item.slot):
                yield name, begin + place, power, float(error[index] / value[index]) if value[index] > 0.0 else np.inf
        begin += item.slot.size


def _logarithms(slot: Slot) -> Iterator[tuple[str, tuple[int, ...], int, float]]:
    """The positive entries of a value: name, index, place among its free numbers, and which power is that logarithm."""
    places = np.flatnonzero(slot.constraint.logarithms(slot.shape))
    is_matrix = slot.size != math.prod(slot.shape)  # whose free numbers include logarithms of standard deviations
    indices = [(k, k) for k in range(len(places))] if is_matrix else list(np.ndindex(slot.shape))
    for index, place in zip(indices, places, strict=True) if len(places) else ():
        yield entry_name(slot.name, index), index, int(place), 2.0 if is_matrix else 1.0


def _profile(run: _Run, unconstrained: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
    """A free number and the rises of the energy along it.

    First outwards in growing steps, and then closer to where intervals of the usual levels end.
    """
    start = unconstrained[place]
    points = {start: (run.evaluator.at(unconstrained)[0], unconstrained)}
    for side in (-1.0, 1.0):
        step, here = _SMALLEST_STEP, start
        while abs(here - start) < _FARTHEST:
            before, here = points[here][0], here + side * step
            points[here] = _lowest(run, points, place, here)
            total, least = points[here][0], min(total for total, _ in points.values())
            if not total - least < HIGHEST:
                break
            step *= 2.0 if abs(total - before) < _LITTLE else 1.0
    for side, rise, _ in itertools.product((-1.0, 1.0), _USUAL, range(_TRIALS)):
        between = _to_add(points, side, rise)
        if between is not None:
            points[between] = _lowest(run, points, place, between)
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


def _lowest(
    run: _Run, points: dict[float, tuple[float, np.ndarray]], place: int, value: float
) -> tuple[float, np.ndarray]:
    """The lowest energy with this value, from the other values at the nearest point.

    A variance near 0 has no slope, and neither has a correlation near 1: a search does not lead away from there. If any
    ended there, a second search begins elsewhere.
    """
    nearest = min((at for at in points if np.isfinite(points[at][0])), key=lambda at: abs(at - value))
    first = run.lowest_from(points[nearest][1], place, value)
    space, ended = run.evaluator.space, first[1]
    low = np.isfinite(space.margins) & (ended < space.middle - _LOW)
    far = np.abs(ended) > _FAR * space.limits
    low[place] = far[place] = False
    if not np.any(low | far):
        return first
    elsewhere = np.where(far, 0.0, np.where(low, space.middle - _RAISED, ended))
    second = run.lowest_from(elsewhere, place, value)
    return second if second[0] < first[0] else first
