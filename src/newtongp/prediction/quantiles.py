"""Quantiles of y, by a search on the distribution function.

The search runs in a coordinate u that covers the whole support, and in which y is close to a standard normal variable:
the squared widths of y given f and of the latents, from conditional quantiles, are added. The first guess is then
close, and Φ⁻¹(P(Y ≤ y)) is nearly linear in u.
"""

from typing import NamedTuple

import numpy as np
from scipy import special

from ..likelihoods.support import Support
from .distribution import Points, distribution
from .rows import Rows

_TOLERANCE = 1e-8
"""Relative to the smaller of p and 1 − p."""
_MOST_TRIALS = 300
_LARGEST = np.finfo(float).max
_FAR = 300.0


def quantiles(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """The smallest y with P(Y ≤ y) ≥ p, where `points` holds p instead of y; and the error of the probabilities."""
    p = points.y
    if rows.nodal == 0:
        mean, variance = rows.normal(points.rows, np.zeros((0, p.size)))
        index = np.arange(p.size)
        spread = np.sqrt(variance[index, points.outputs])
        return mean[index, points.outputs] + spread * special.ndtri(p), np.zeros(p.shape)
    with np.errstate(all="ignore"):
        return _Search(rows, points, _coordinate(rows, points)).run()


# Coordinates ------------------------------------------------------------------------------------


class _Chart(NamedTuple):
    """A map of the real line onto a support, from `first` to `last`; counts are whole numbers."""

    support: Support

    @property
    def first(self) -> float:
        """The t of the smallest y."""
        if self.support.integer and np.isfinite(self.support.lower):
            return 0.0
        return -745.0 if np.isfinite(self.support.lower) else -710.0

    @property
    def last(self) -> float:
        """The t of the largest y."""
        if np.isfinite(self.support.upper) and not self.support.integer:
            return 745.0
        return float(np.log(_LARGEST))

    def y(self, t):
        """The y at t."""
        lower, upper = self.support.lower, self.support.upper
        if self.support.integer:
            y = np.floor(lower + np.expm1(t) if np.isfinite(lower) else np.sinh(t))
            return np.minimum(y, upper)
        if np.isfinite(lower) and np.isfinite(upper):
            return lower + (upper - lower) * special.expit(t)
        if np.isfinite(lower):
            return lower + np.exp(t)
        return upper - np.exp(-t) if np.isfinite(upper) else np.sinh(t)

    def t(self, y):
        """The t at y."""
        lower, upper = self.support.lower, self.support.upper
        if self.support.integer and np.isfinite(lower):
            return np.log1p(y - lower)
        if not self.support.integer:
            if np.isfinite(lower) and np.isfinite(upper):
                return np.log(y - lower) - np.log(upper - y)
            if np.isfinite(lower):
                return np.log(y - lower)
            if np.isfinite(upper):
                return -np.log(upper - y)
        return np.arcsinh(y)


class _Coordinate(NamedTuple):
    """y as a function of u: the chart at centre + scale · u, or centre + scale · sinh(u) on the whole real line."""

    chart: _Chart
    centre: np.ndarray
    scale: np.ndarray

    @property
    def whole_line(self) -> bool:
        """Whether y is unbounded on both sides."""
        support = self.chart.support
        return not (np.isfinite(support.lower) or np.isfinite(support.upper) or support.integer)

    def y(self, u):
        """The y at u."""
        if self.whole_line:
            near = self.scale * np.sinh(np.clip(u, -_FAR, _FAR))
            far = np.sign(u) * np.exp(np.abs(u) + np.log(0.5 * self.scale))
            return np.clip(self.centre + np.where(np.abs(u) < _FAR, near, far), -_LARGEST, _LARGEST)
        t = self.centre + self.scale * u
        y = self.chart.y(np.clip(t, self.chart.first, self.chart.last))
        endless = not np.isfinite(self.chart.support.upper)
        return np.where(endless & (t >= self.chart.last), _LARGEST, y)

    def u(self, y):
        """The u at y."""
        if self.whole_line:
            ratio = (y - self.centre) / self.scale
            far = np.sign(y) * (np.log(np.abs(y)) - np.log(0.5 * self.scale))
            return np.where(np.isfinite(ratio), np.arcsinh(ratio), far)
        return (self.chart.t(y) - self.centre) / self.scale

    def guess(self, normal):
        """Where a standard normal variable has this value."""
        return np.arcsinh(normal) if self.whole_line else normal

    def take(self, index) -> "_Coordinate":
        """The map for a subset of the points."""
        return _Coordinate(self.chart, self.centre[index], self.scale[index])


def _coordinate(rows: Rows, points: Points) -> _Coordinate:
    """From quantiles of y given the latents at their means, and at one standard deviation from them."""
    chart = _Chart(rows.likelihood.support)
    pairs, back = np.unique(np.stack([points.rows, points.outputs]), axis=1, return_inverse=True)
    back = back.reshape(-1)
    places = np.concatenate([np.zeros((1, rows.nodal)), np.eye(rows.nodal), -np.eye(rows.nodal)])
    probes = [(0, special.ndtr(-1.0)), (0, special.ndtr(1.0))] + [(k, 0.5) for k in range(places.shape[0])]
    count = pairs.shape[1]
    row, output = (np.tile(part, len(probes)) for part in pairs)
    z = np.repeat(np.stack([places[k] for k, _ in probes]), count, axis=0).T
    p = np.repeat([level for _, level in probes], count)
    t = _conditional(rows, chart, row, output, z, p).reshape(len(probes), count)
    whole_line = _Coordinate(chart, t[0], t[0]).whole_line
    values = chart.y(t) if whole_line else t
    centre, moved = values[2], values[3:]
    noise = 0.5 * (values[1] - values[0])
    spread = 0.5 * (moved[: rows.nodal] - moved[rows.nodal :])
    scale = np.sqrt(noise**2 + np.sum(spread**2, axis=0))
    least = 1e-12 * (np.abs(centre) + (1e-290 if whole_line else 1.0))
    scale = np.where(np.isfinite(scale), np.maximum(scale, least), 1.0)
    if rows.likelihood.support.integer:
        scale = np.maximum(scale, 1e-3)
    centre = np.where(np.isfinite(centre), centre, 0.0)
    return _Coordinate(chart, centre[back], scale[back])


def _conditional(rows: Rows, chart: _Chart, row, output, z, p) -> np.ndarray:
    """t of the p-quantile of y given the latents at z, by bisection."""
    low, high = np.full(p.shape, chart.first), np.full(p.shape, chart.last)
    for _ in range(64):
        middle = 0.5 * (low + high)
        closed = (middle <= low) | (middle >= high)
        if chart.support.integer:
            # No whole number is left between the ends; y is not known to be above the first until that was tried.
            apart = chart.y(high) - chart.y(low)
            closed |= (apart <= 0.0) | ((apart <= 1.0) & (low > chart.first))
        if np.all(closed):
            break
        below = rows.distribution(row, output, chart.y(middle), z) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return chart.t(chart.y(high)) if chart.support.integer else 0.5 * (low + high)


# The search -------------------------------------------------------------------------------------


class _Search:
    """A bracket for each quantile: P(Y ≤ y) < p at its lower end and ≥ p at its upper. It is shrunk to convergence.

    A trial is where the line through both ends reaches p, in Φ⁻¹ of the probabilities (the Illinois form of regula
    falsi), or the middle if that has shrunk the bracket too little.
    """

    def __init__(self, rows: Rows, points: Points, coordinate: _Coordinate):
        self.rows, self.points, self.coordinate = rows, points, coordinate
        self.support = rows.likelihood.support
        p = points.y
        self.target = special.ndtri(p)
        self.tolerance = _TOLERANCE * np.minimum(p, 1.0 - p)
        chart, support = coordinate.chart, self.support
        first = support.lower - 1.0 if support.integer else support.lower
        last = support.upper
        self.low = np.full(p.shape, max(first, -_LARGEST))
        self.high = np.full(p.shape, min(last, _LARGEST))
        if coordinate.whole_line:
            self.low_u, self.high_u = (coordinate.u(end) for end in (self.low, self.high))
        else:
            self.low_u = (chart.first - coordinate.centre) / coordinate.scale
            self.high_u = (chart.last - coordinate.centre) / coordinate.scale
        # Φ⁻¹(P(Y ≤ y)) − Φ⁻¹(p) at the ends, NaN where it was not evaluated.
        self.low_miss, self.high_miss = np.full(p.shape, np.nan), np.full(p.shape, np.nan)
        self.quantiles, self.done = np.full(p.shape, np.nan), np.zeros(p.shape, dtype=bool)
        self.error = np.zeros(p.shape)
        self.step = np.ones(p.shape)
        self.last_side, self.slow = np.zeros(p.shape, dtype=int), np.zeros(p.shape, dtype=int)

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        """All quantiles, and the errors of the last probabilities."""
        open_ = np.arange(self.quantiles.size)
        u = self.coordinate.guess(self.target)
        for _ in range(_MOST_TRIALS):
            y = self._inside(open_, u)
            value, error = distribution(self.rows, Points(self.points.rows[open_], self.points.outputs[open_], y))
            self.error[open_] = error
            self._record(open_, y, value)
            self._close(open_[~self.done[open_]])
            open_ = open_[~self.done[open_]]
            if open_.size == 0:
                break
            u = self._trial(open_)
        self.quantiles[open_] = self.high[open_]
        self._at_the_lower_end()
        return self.quantiles, self.error

    def _at_the_lower_end(self) -> None:
        """Quantiles at the lower end of the support, where y has a positive probability."""
        if self.support.integer or not self.support.lower_included:
            return
        nearest = np.nextafter(self.support.lower, np.inf)
        index = np.flatnonzero(self.quantiles == nearest)
        if index.size:
            lower = np.full(index.shape, self.support.lower)
            value, _ = distribution(self.rows, Points(self.points.rows[index], self.points.outputs[index], lower))
            self.quantiles[index] = np.where(value >= self.points.y[index], lower, nearest)

    def _inside(self, index: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The y at u, strictly inside the bracket."""
        y = self.coordinate.take(index).y(u)
        low, high = self.low[index], self.high[index]
        if self.support.integer:
            y = np.round(y)
            above = np.maximum(low + 1.0, np.nextafter(low, np.inf))
            below = np.minimum(high - 1.0, np.nextafter(high, -np.inf))
        else:
            above, below = np.nextafter(low, np.inf), np.nextafter(high, -np.inf)
        # An end that was not evaluated can be the result itself.
        below = np.where(np.isnan(self.high_miss[index]) & np.isfinite(high), np.where(y >= high, high, below), below)
        return np.clip(y, above, np.maximum(above, below))

    def _record(self, index: np.ndarray, y: np.ndarray, value: np.ndarray) -> None:
        p = self.points.y[index]
        miss = special.ndtri(value) - self.target[index]
        # A distribution function that is NaN has no quantile.
        done = (np.abs(value - p) <= self.tolerance[index]) | np.isnan(value)
        self.done[index] = done
        self.quantiles[index[done]] = np.where(np.isnan(value[done]), np.nan, y[done])
        reached = value >= p
        u = np.clip(self.coordinate.take(index).u(y), self.low_u[index], self.high_u[index])
        side = np.where(reached, 1, -1)
        # The value at an end that is kept twice is halved (Illinois).
        again = side == self.last_side[index]
        self.last_side[index] = side
        up, down = index[reached], index[~reached]
        before = self.high_u[index] - self.low_u[index]
        self.high[up], self.high_u[up], self.high_miss[up] = y[reached], u[reached], miss[reached]
        self.low[down], self.low_u[down], self.low_miss[down] = y[~reached], u[~reached], miss[~reached]
        self.low_miss[up] *= np.where(again[reached], 0.5, 1.0)
        self.high_miss[down] *= np.where(again[~reached], 0.5, 1.0)
        little = self.high_u[index] - self.low_u[index] > 0.5 * before
        self.slow[index] = np.where(little, self.slow[index] + 1, 0)

    def _close(self, index: np.ndarray) -> None:
        """No number is left between the ends: the result is the upper end, or infinite."""
        low, high = self.low[index], self.high[index]
        apart = np.nextafter(low, np.inf)
        if self.support.integer:
            apart = np.maximum(apart, low + 1.0)
        closed = (high <= apart) | (low >= _LARGEST) | (high <= -_LARGEST)
        # The largest number may not reach p, and the smallest may.
        answer = np.where(low >= _LARGEST, np.inf, np.where(high <= -_LARGEST, -np.inf, high))
        self.quantiles[index[closed]] = answer[closed]
        self.done[index[closed]] = True

    def _trial(self, index: np.ndarray) -> np.ndarray:
        low, high = self.low_u[index], self.high_u[index]
        a, b = self.low_miss[index], self.high_miss[index]
        straight = low - a * (high - low) / (b - a)
        middle = 0.5 * (low + high)
        known = np.isfinite(a) & np.isfinite(b)
        trial = np.where(known & (self.slow[index] < 3), straight, middle)
        self.slow[index] = np.where(self.slow[index] >= 3, 0, self.slow[index])
        # With one end only, move away from it: slightly further than linear extrapolation, then ever further.
        lonely = np.isnan(a) | np.isnan(b)
        end = np.where(np.isnan(b), low, high)
        miss = np.where(np.isnan(b), a, b)
        slope = np.cosh(np.clip(end, -30.0, 30.0)) if self.coordinate.whole_line else 1.0
        length = self.step[index] * np.where(np.isfinite(miss), 1.2 * np.abs(miss) / slope + 1e-3, 3.0)
        away = np.where(np.isnan(b), low + length, high - length)
        self.step[index] = np.where(lonely, 2.0 * self.step[index], 1.0)
        return np.where(lonely, np.clip(away, low, high), trial)
