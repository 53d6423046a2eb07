"""log p(y) of each row, and what else is an expectation over its latents: moments of y, probabilities of classes."""

import numpy as np
from scipy import special

from ..cubature import GaussHermite
from .adaptive import graded, integrate, locate
from .rows import Rows

ACCURACY = 1e-6
"""The relative error from which on it is spoken of."""
_RELATIVE = 1e-9
_REACH = 1e6
"""How far from its mean, in standard deviations, the mass of a latent given y is looked for."""
_ENDS = np.array([-_REACH, -12.0, -4.0, -2.0, 0.0, 2.0, 4.0, 12.0, _REACH])
_LOG_ROOT_2PI = 0.5 * np.log(2.0 * np.pi)
_ORDERS = (20, 32)


def log_densities(rows: Rows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log E[p(y | f)] at y (M, P), for up to two latents that need nodes, and the estimated relative error of p."""
    every = np.arange(rows.count)
    if rows.nodal == 0:
        return rows.log_density(every, y, np.zeros((0, rows.count))), np.zeros(rows.count)
    closed = None if rows.linear else rows.expected_density(y)
    if closed is not None:
        return closed, np.zeros(rows.count)
    with np.errstate(all="ignore"):
        if rows.nodal == 1:
            return _nested(rows, y, every, np.zeros((0, rows.count)))
        value, error = _by_products(rows, y)
        rough = np.flatnonzero(~(error < ACCURACY / 10.0))
        if rough.size:
            value[rough], error[rough] = _nested(rows, y, rough, np.zeros((0, rough.size)))
        return value, error


def _by_products(rows: Rows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two product rules, the second finer, and by how much they differ."""
    found = []
    for order in _ORDERS:
        nodes, weights = GaussHermite(order).rule(rows.nodal)
        row = np.repeat(np.arange(rows.count), weights.size)
        values = rows.log_density(row, y[row], np.tile(nodes.T, (1, rows.count))).reshape(rows.count, -1)
        found.append(special.logsumexp(values, axis=1, b=weights))
    return found[1], np.where(found[0] == found[1], 0.0, np.abs(np.expm1(found[1] - found[0])))


def _nested(rows: Rows, y: np.ndarray, row: np.ndarray, outer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log E[p(y | g)] over the latents after those at the points `outer` (k, n), of these rows."""
    last = outer.shape[0] + 1 == rows.nodal

    def log_density(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p with its error where it is an integral itself."""
        place = np.concatenate([outer[:, items], z[None, :]])
        if last:
            return rows.log_density(row[items], y[row[items]], place)[:, None]
        return np.stack(_nested(rows, y, row[items], place), axis=1)

    def objectives(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        """That of y alone, and with that of z: a narrow peak can be far from where the second is largest."""
        found = log_density(items, z)[:, 0]
        return np.stack([found, found - 0.5 * z**2], axis=1)

    centre, width, height = locate(objectives, row.size, _REACH)
    top = np.where(np.isfinite(height[:, 1]), height[:, 1], 0.0)

    def weighted(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        found = log_density(items, z)
        weight = np.exp(found[:, 0] - 0.5 * z**2 - top[items])
        return weight[:, None] if last else weight[:, None] * np.stack([np.ones_like(weight), found[:, 1]], axis=1)

    def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
        wanted = _RELATIVE * value + 1e-300
        wanted[:, 1:] = np.inf
        return wanted

    found = integrate(weighted, graded(centre, width, _ENDS), allowed)
    value = found.value[:, 0]
    error = found.error[:, 0] + (0.0 if last else found.value[:, 1])
    relative = np.where(value > 0.0, error / np.where(value > 0.0, value, 1.0), 0.0)
    return top + np.log(value) - _LOG_ROOT_2PI, relative


# Moments, and probabilities of classes ------------------------------------------------------------

_MOMENT_ENDS = np.array([-40.0, -20.0, -10.0, -4.0, -2.0, 0.0, 2.0, 4.0, 10.0, 20.0, 40.0])
"""Beyond 40 standard deviations the normal density underflows, and what it is multiplied with has overflowed."""
_LARGEST = np.finfo(float).max


def moments(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """E[y] and Var[y] for one output and one latent that needs nodes; inf where they overflow."""
    every = np.arange(rows.count)
    with np.errstate(all="ignore"):
        reference, _ = rows.moments(every, np.zeros((1, rows.count)))
        reference = np.where(np.isfinite(reference), reference, 0.0)

        def weighted(items: np.ndarray, z: np.ndarray) -> np.ndarray:
            mean, variance = rows.moments(items, z[None, :])
            shift = mean - reference[items]
            weight = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
            values = np.stack([shift, variance + shift**2], axis=1)
            lost = np.abs(values) > _LARGEST
            held = np.clip(values, -_LARGEST, _LARGEST)
            # What has overflowed is no more than this: it decides only where it is all that counts.
            return weight[:, None] * np.concatenate([held, np.where(lost, held, 0.0)], axis=1)

        def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
            wanted = 0.1 * _RELATIVE * size + 1e-300
            wanted[:, 2:] = np.inf
            return wanted

        found = integrate(weighted, np.broadcast_to(_MOMENT_ENDS, (rows.count, _MOMENT_ENDS.size)), allowed).value
        first, second = found[:, 0], found[:, 1]
        over = np.abs(found[:, 2:]) > 1e-6 * np.abs(found[:, :2])
        mean = np.where(over[:, 0], np.copysign(np.inf, first), reference + first)
        return mean, np.where(over[:, 1] | over[:, 0], np.inf, np.maximum(second - first**2, 0.0))


_PROBABILITY_ENDS = np.array([-9.5, -4.0, -2.0, 0.0, 2.0, 4.0, 9.5])


def probabilities(rows: Rows) -> np.ndarray:
    """P(y = k) of every class, for one latent that needs nodes."""

    def weighted(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        weight = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        return weight[:, None] * rows.probabilities(items, z[None, :])

    def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
        return 0.1 * _RELATIVE * value + 1e-16

    found = integrate(weighted, np.broadcast_to(_PROBABILITY_ENDS, (rows.count, _PROBABILITY_ENDS.size)), allowed).value
    # They sum to 1 up to rounding.
    return found / np.sum(found, axis=1, keepdims=True)
