"""log p(y) of each row, moments of y, and class probabilities: expectations over the latents."""

import numpy as np
from scipy import special

from ..numerics.small import LOG_2PI
from .adaptive import graded, integrate, locate
from .rows import BLOCK, Rows
from .tensor import SPACINGS, halved_trapezoids, trapezoid

_RELATIVE = 1e-9
"""The allowed error of a panel for one latent."""
_OUTER, _INNER = 1e-7, 2e-8
"""The allowed error of a panel for two latents, where the costs multiply."""
_REACH = 1e6
"""The range, in standard deviations from its mean, in which the mass of a latent given y is searched."""
_ENDS = np.array([-_REACH, -12.0, -4.0, -2.0, 0.0, 2.0, 4.0, 12.0, _REACH])
_NEAR, _NEAR_ENDS = 40.0, np.array([-40.0, -8.0, -2.5, 0.0, 2.5, 8.0, 40.0])
"""The same for each of two."""
_AGREEMENT = 1e-6
_FALL = 30.0
"""The smallest decrease of the log integrand from its peak to the boundary of the nodes."""
_MOST_NODES = 2**20
_HOPELESS = 1e-2
"""If two rules differ by more than this, no finer one is tried, because it would not agree with the second."""
_OUTER_SPACING = 0.25


def log_densities(rows: Rows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log E[p(y | f)] at y (M, P), for up to two latents that need nodes, and the estimated relative error of p."""
    every = np.arange(rows.count)
    if rows.nodal == 0:
        return rows.log_density(every, y, np.zeros((0, rows.count))), np.zeros(rows.count)
    closed = None if rows.linear else rows.expected_density(y)
    if closed is not None:
        return closed, np.zeros(rows.count)
    with np.errstate(all="ignore"):
        value, error = _by_halving(rows, y) if rows.nodal == 1 else _by_products(rows, y)
        for harder in (_adaptively,) if rows.nodal == 1 else (_half_nested, _adaptively):
            rough = np.flatnonzero(np.isinf(error))
            if rough.size:
                value[rough], error[rough] = harder(rows, y, rough)
        return value, error


def _by_halving(rows: Rows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Halve the spacing of a trapezoidal rule for one latent; the error is infinite where the last two do not agree."""
    value, error = np.full(rows.count, -np.inf), np.full(rows.count, np.inf)
    open_ = np.arange(rows.count)
    for number, (nodes, weights) in enumerate(halved_trapezoids()):
        row = np.repeat(open_, weights.size)
        terms = rows.log_density(row, y[row], np.tile(nodes, (1, open_.size))).reshape(open_.size, -1) + np.log(weights)
        sums = np.logaddexp(value[open_] - np.log(2.0), special.logsumexp(terms, axis=1))
        change = np.abs(np.expm1(value[open_] - sums))
        agree = change <= _RELATIVE
        value[open_], error[open_[agree]] = sums, change[agree]
        open_ = open_[~agree]
        if number == 0:  # mass beyond the nodes shows at their boundary
            open_ = open_[np.maximum(terms[:, 0], terms[:, -1]) < np.max(terms, axis=1) - _FALL]
        if open_.size == 0:
            break
    return value, error


def _by_products(rows: Rows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Use successively finer product rules; the error is infinite where the last two do not agree."""
    value, error = np.full(rows.count, np.nan), np.full(rows.count, np.inf)
    open_, hopeless = np.arange(rows.count), np.zeros(rows.count, dtype=bool)
    for spacing in SPACINGS:
        nodes, weights, rim = trapezoid(spacing, rows.nodal)
        for part in np.array_split(open_, 1 + open_.size * weights.size // _MOST_NODES):
            row = np.repeat(part, weights.size)
            terms = rows.log_density(row, y[row], np.tile(nodes, (1, part.size))).reshape(part.size, -1) + np.log(
                weights
            )
            sums = special.logsumexp(terms, axis=1)
            change = np.abs(np.expm1(sums - value[part]))
            # Mass beyond the nodes shows at their boundary.
            inside = np.max(terms[:, rim], axis=1) < np.max(terms, axis=1) - _FALL
            agree = (change <= _AGREEMENT) & inside
            value[part] = sums
            error[part[agree]] = change[agree]
            hopeless[part] = change > _HOPELESS
        open_ = open_[np.isinf(error[open_]) & ~hopeless[open_]]
        if open_.size == 0:
            break
    return value, error


def _half_nested(rows: Rows, y: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Use a fixed rule for the outer integral; the error is infinite where its two halves do not agree."""
    nodes, weights, rim = trapezoid(_OUTER_SPACING, 1)
    log_weights = np.log(weights)
    value, error = _nested(rows, y, np.repeat(row, weights.size), np.tile(nodes, (1, row.size)), log_weights)
    terms = value.reshape(row.size, -1) + log_weights
    sums = np.asarray(special.logsumexp(terms, axis=1))
    # The even and the odd nodes are each a rule.
    one, other = (special.logsumexp(terms[:, k::2], axis=1) - np.log(np.sum(weights[k::2])) for k in (0, 1))
    change = np.abs(np.expm1(one - other))
    inside = np.max(terms[:, rim], axis=1) < np.max(terms, axis=1) - _FALL
    agree = (change <= _AGREEMENT) & inside
    shares = np.exp(terms - sums[:, None])
    return sums, np.where(agree, change + np.sum(shares * error.reshape(row.size, -1), axis=1), np.inf)


def _adaptively(rows: Rows, y: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _nested(rows, y, row, np.zeros((0, row.size)))


def _nested(
    rows: Rows, y: np.ndarray, row: np.ndarray, outer: np.ndarray, log_weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """log E[p(y | g)] over the latents after those at the points `outer` (k, n), of these rows.

    With `log_weights` (S,), every S of them are summed with these weights: terms that hardly contribute are less
    accurate, or −∞.
    """
    last = outer.shape[0] + 1 == rows.nodal

    def log_density(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p, with its error if it is an integral itself."""
        if not last:
            place = np.concatenate([outer[:, items], z[None, :]])
            return np.stack(_nested(rows, y, row[items], place), axis=1)
        values = np.empty((z.size, 1))
        # In blocks that stay in the processor's cache.
        for start in range(0, z.size, BLOCK):
            some = slice(start, start + BLOCK)
            here = row.take(items[some])
            place = np.concatenate([outer.take(items[some], axis=1), z[None, some]])
            values[some, 0] = rows.log_density(here, y.take(here, axis=0), place)
        return values

    def objectives(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The log density of y alone, and with that of z: a narrow peak can be far from the maximum of the second."""
        density = log_density(items, z)[:, 0]
        return np.stack([density, density - 0.5 * z**2], axis=1)

    centre, width, height = locate(objectives, row.size, _REACH if rows.nodal == 1 else _NEAR)
    # Two peaks that nearly coincide need panels once.
    near = np.abs(centre[:, 0] - centre[:, 1]) < 0.5 * np.min(width, axis=1)
    near &= np.max(width, axis=1) < 2.0 * np.min(width, axis=1)
    centre[near, 0], width[near, 0] = centre[near, 1], width[near, 1]
    top = np.where(np.isfinite(height[:, 1]), height[:, 1], 0.0)
    share = np.ones(row.size) if log_weights is None else _shares(height[:, 1], width[:, 1], log_weights)
    counting = np.flatnonzero(share > 0.0)

    def weighted(items: np.ndarray, z: np.ndarray) -> np.ndarray:
        items = counting[items]
        density = log_density(items, z)
        weight = np.exp(density[:, 0] - 0.5 * z**2 - top[items])
        return weight[:, None] if last else weight[:, None] * np.stack([np.ones_like(weight), density[:, 1]], axis=1)

    def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
        relative = _RELATIVE if rows.nodal == 1 else _OUTER if not last else _INNER
        wanted = relative / share[counting, None] * value + 1e-300
        wanted[:, 1:] = np.inf
        return wanted

    ends = graded(centre[counting], width[counting], _ENDS if rows.nodal == 1 else _NEAR_ENDS)
    integrals = integrate(weighted, ends, allowed)
    value, error = np.zeros(row.size), np.zeros(row.size)
    value[counting] = integrals.value[:, 0]
    error[counting] = integrals.error[:, 0] + (0.0 if last else integrals.value[:, 1])
    relative = np.where(value > 0.0, error / np.where(value > 0.0, value, 1.0), 0.0)
    # A peak that is narrower than the spacing of numbers, and higher than what was seen of it. It is that of a noise
    # that is next to impossible, and is missed as others of its kind are.
    lost = ~np.isfinite(value)
    value[lost], relative[lost] = 0.0, 1.0
    return top + np.log(value) - 0.5 * LOG_2PI, relative


def _shares(height: np.ndarray, width: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """A bound on each integral's share of the sum of S integrals, from the peaks of the integrands.

    The upper estimate assumes the peak's height over the whole interval, the lower one a decrease by 1 at its width.
    """
    peaks = height.reshape(-1, log_weights.size) + log_weights
    least = np.max(peaks + np.log(width.reshape(peaks.shape)) - 1.0, axis=1, keepdims=True)
    known = np.isfinite(least)
    share = np.where(known, np.exp(np.minimum(peaks + np.log(2.0 * _NEAR) - np.where(known, least, 0.0), 0.0)), 1.0)
    return np.where(share > np.exp(-_FALL - 2.0), share, 0.0).ravel()


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
            # Overflowed values are capped here: they matter only where they dominate.
            return weight[:, None] * np.concatenate([held, np.where(lost, held, 0.0)], axis=1)

        def allowed(value: np.ndarray, size: np.ndarray) -> np.ndarray:
            wanted = 0.1 * _RELATIVE * size + 1e-300
            wanted[:, 2:] = np.inf
            return wanted

        integrals = integrate(weighted, np.broadcast_to(_MOMENT_ENDS, (rows.count, _MOMENT_ENDS.size)), allowed).value
        first, second = integrals[:, 0], integrals[:, 1]
        over = np.abs(integrals[:, 2:]) > 1e-6 * np.abs(integrals[:, :2])
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

    ends = np.broadcast_to(_PROBABILITY_ENDS, (rows.count, _PROBABILITY_ENDS.size))
    unscaled = integrate(weighted, ends, allowed).value
    # They sum to 1 up to rounding.
    return unscaled / np.sum(unscaled, axis=1, keepdims=True)
