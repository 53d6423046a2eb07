"""P(Y ≤ y) of each row: closed forms, adaptive integrals over one or two latents, quasi-random points for more."""

from typing import NamedTuple

import numpy as np
from scipy import special

from ..likelihoods import host
from ..numerics.cubature import QuasiRandom
from .adaptive import graded, integrate, locate
from .rows import Rows
from .tensor import SPACINGS, halved_trapezoids, trapezoid

ACCURACY = 1e-6
"""The error in probability above which a warning is given."""
_RELATIVE, _ABSOLUTE = 1e-9, 1e-16
"""The allowed error of a panel for one latent, relative to the smaller of P(Y ≤ y) and P(Y > y)."""
_AGREEMENT = 1e-7
"""The change between product rules, relative to the same, below which the second is accepted."""
_OUTER, _INNER = 3e-8, 1e-8
"""The allowed error of a panel for two latents, where the costs multiply."""
_ENDS = np.array([-9.5, -4.0, -2.0, 0.0, 2.0, 4.0, 9.5])
"""Beyond 9.5 standard deviations a normal variable has a probability of 2e-21."""
_FEW_ENDS = np.array([-7.0, -2.5, 0.0, 2.5, 7.0])
"""Beyond 7, of 3e-12."""
_MANY_NODES = 4096


class Points(NamedTuple):
    """Rows, outputs and values y at which P(Y ≤ y) is evaluated: three vectors of equal length."""

    rows: np.ndarray
    outputs: np.ndarray
    y: np.ndarray

    def take(self, index: np.ndarray) -> "Points":
        """A subset of the points."""
        return Points(self.rows[index], self.outputs[index], self.y[index])


def distribution(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """P(Y ≤ y) at these points, and its estimated error."""
    with np.errstate(all="ignore"):
        return _distribution(rows, points)


def _distribution(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    if rows.nodal == 0:
        z = np.zeros((0, points.rows.size))
        return special.ndtr(rows.standardised(points.rows, points.outputs, points.y, z)), np.zeros(points.y.shape)
    closed = None
    if rows.linear == 0 and rows.likelihood.num_outputs == 1:
        mean, covariance = (np.moveaxis(part[points.rows], 0, -1) for part in rows.latents())
        closed = host.expected_distribution(rows.at(points.rows), points.y, mean, covariance)
    if closed is not None:
        return np.broadcast_to(closed, points.y.shape), np.zeros(points.y.shape)
    if rows.nodal > 2:
        return _by_points(rows, points)
    value, error = _by_halving(rows, points) if rows.nodal == 1 else _by_products(rows, points)
    for harder in (_adaptively,) if rows.nodal == 1 else (_half_nested, _adaptively):
        rough = np.flatnonzero(np.isinf(error))
        if rough.size:
            value[rough], error[rough] = harder(rows, points.take(rough))
    return np.clip(value, 0.0, 1.0), error


def _by_halving(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Halve the spacing of a trapezoidal rule for one latent; the error is infinite where the last two do not agree."""
    value, error = np.zeros(points.y.shape), np.full(points.y.shape, np.inf)
    open_ = np.arange(points.y.size)
    for nodes, weights in halved_trapezoids():
        index = np.repeat(open_, weights.size)
        new = rows.distribution(*points.take(index), np.tile(nodes, (1, open_.size))).reshape(open_.size, -1) @ weights
        sums = 0.5 * value[open_] + new
        change = np.abs(sums - value[open_])
        # NaN does not need a finer rule.
        agree = ~(change > _RELATIVE * np.minimum(sums, 1.0 - sums) + _ABSOLUTE)
        value[open_], error[open_[agree]] = sums, change[agree]
        open_ = open_[~agree]
        if open_.size == 0:
            break
    return value, error


def _by_products(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Use successively finer product rules; the error is infinite where the last two do not agree."""
    value, error = np.full(points.y.shape, np.nan), np.full(points.y.shape, np.inf)
    open_ = np.arange(points.y.size)
    for spacing in SPACINGS:
        nodes, weights, _ = trapezoid(spacing, rows.nodal)
        index = np.repeat(open_, weights.size)
        sums = rows.distribution(*points.take(index), np.tile(nodes, (1, open_.size))).reshape(open_.size, -1) @ weights
        change = np.abs(sums - value[open_])
        agree = change <= _AGREEMENT * np.minimum(sums, 1.0 - sums) + _ABSOLUTE
        value[open_] = sums
        error[open_[agree]] = change[agree]
        open_ = open_[~agree]
        if open_.size == 0:
            break
    return value, error


def _half_nested(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """Use two fixed rules for the outer integral; the error is infinite where they do not agree."""
    sums, errors = [], []
    for spacing in SPACINGS[:2]:
        nodes, weights, _ = trapezoid(spacing, 1)
        index = np.repeat(np.arange(points.y.size), weights.size)
        value, error = _nested(rows, points.take(index), np.tile(nodes, (1, points.y.size)))
        sums.append(value.reshape(-1, weights.size) @ weights)
        errors.append(error.reshape(-1, weights.size) @ weights)
    change = np.abs(sums[1] - sums[0])
    agree = change <= _AGREEMENT * np.minimum(sums[1], 1.0 - sums[1]) + _INNER
    return sums[1], np.where(agree, change + errors[1], np.inf)


def _adaptively(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    return _nested(rows, points, np.zeros((0, points.y.size)))


def _nested(rows: Rows, points: Points, outer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[P(Y ≤ y | g)] over the latents after those at the points `outer` (k, n)."""
    last = outer.shape[0] + 1 == rows.nodal

    def at(items: np.ndarray, z: np.ndarray) -> tuple[Points, np.ndarray]:
        return points.take(items), np.concatenate([outer[:, items], z[None, :]])

    def weighted(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        chosen, place = at(items, z)
        weight = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        if last:
            return (weight * rows.distribution(*chosen, place))[:, None]
        value, error = _nested(rows, chosen, place)
        return weight[:, None] * np.stack([value, error], axis=1)

    def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
        if rows.nodal == 1:
            return _RELATIVE * np.minimum(np.abs(value), np.abs(1.0 - value)) + _ABSOLUTE
        wanted = np.full(value.shape, _INNER if last else _OUTER)
        # A rough error of the inner integrals is enough.
        wanted[:, 1:] = np.inf
        return wanted

    ends = _ENDS if rows.nodal == 1 else _FEW_ENDS
    breaks = np.broadcast_to(ends, (points.y.size, ends.size))
    if last and rows.linear:
        # The step of the distribution function, or its steepest point.
        def closeness(items: np.ndarray, z: np.ndarray) -> np.ndarray:
            chosen, place = at(items, z)
            return -0.5 * (rows.standardised(*chosen, place)[:, None]) ** 2

        centre, width, _ = locate(closeness, points.y.size, ends[-1])
        breaks = graded(centre, width, ends)
    integrals = integrate(weighted, breaks, allowed)
    inner = integrals.value[:, 1] if integrals.value.shape[1] > 1 else 0.0
    return integrals.value[:, 0], integrals.error[:, 0] + inner


def _by_points(rows: Rows, points: Points) -> tuple[np.ndarray, np.ndarray]:
    """An average over many points of equal weight, with its change from half as many as the error."""
    averages = []
    for count in (_MANY_NODES // 2, _MANY_NODES):
        nodes, _ = QuasiRandom(count).rule(rows.nodal)
        index = np.repeat(np.arange(points.y.size), count)
        z = np.tile(nodes.T, (1, points.y.size))
        averages.append(rows.distribution(*points.take(index), z).reshape(-1, count).mean(axis=1))
    return averages[1], np.abs(averages[1] - averages[0])
