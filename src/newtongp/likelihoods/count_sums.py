"""Distribution functions of counts on the host, as sums of probabilities, by the ratios of successive ones."""

import functools

import numpy as np
from scipy import special

from .special import log_rising_factorial

LARGEST = 100
"""The largest count up to which the probabilities of a negative binomial are summed: the incomplete beta function,
which takes about a microsecond, is slower."""
_BLOCK = 4096
"""Elements that are summed at a time, which stay in the cache of a processor."""

_log_rising = functools.partial(log_rising_factorial, arrays=np, log_gamma=special.gammaln)


def negative_binomial(count, shape, log_odds):
    """P(Y <= count) for P(Y = k) = [Gamma(k + r) / (Gamma(r) k!)] p^k (1 - p)^r, with r = shape, log_odds = logit(p).

    P(Y <= c) = P(Y = c) h(c), where h(k) = 1 + h(k - 1) k / ((r + k - 1) p) and h(0) = 1. All terms are positive, so
    that nothing cancels, for parameters of any size.

    >>> negative_binomial(np.array([0.0, 1.0]), np.ones(2), np.zeros(2)).round(4).tolist()
    [0.5, 0.75]
    """
    success = special.expit(log_odds)
    # log p = common + min(log_odds, 0) and log(1 - p) = common - max(log_odds, 0), without cancellation.
    common = np.where(log_odds > 0.0, np.log(success), np.log1p(-success))
    log_last = _log_choices(count, shape) + shape * (common - np.maximum(log_odds, 0.0))
    log_last += np.where(count > 0.0, count * (common + np.minimum(log_odds, 0.0)), 0.0)
    order = np.argsort(LARGEST - count.astype(np.int16), kind="stable")
    ratio = np.ones(count.shape)
    for start in range(0, count.size, _BLOCK):
        block = order[start : start + _BLOCK]
        ratio[block] = _relative_sums(count[block], shape[block], success[block])
    # The ratio overflows only above the mean, where the last probability and all that follow are negligible.
    return np.where(np.isposinf(ratio), 1.0, np.minimum(np.exp(log_last + np.log(ratio)), 1.0))


def _log_choices(count, shape):
    """log [Gamma(k + r) / (Gamma(r) k!)] for k = count and r = shape."""
    if shape.size == 0 or np.any(shape != shape[0]):
        return _log_rising(shape, count) - special.gammaln(count + 1.0)
    every = np.arange(LARGEST + 1.0)
    return (_log_rising(shape[0], every) - special.gammaln(every + 1.0))[count.astype(np.int16)]


def _relative_sums(count, shape, success):
    """P(Y <= count) / P(Y = count) of counts in descending order."""
    ratio, buffer = np.ones(count.shape), np.empty(count.shape)
    first = shape * success
    at_least = np.searchsorted(-count, -np.arange(1.0, count[0] + 1.0), side="right")
    for k, n in enumerate(at_least.tolist(), start=1):
        denominator = np.multiply(success[:n], k - 1.0, out=buffer[:n])
        denominator += first[:n]
        ratio[:n] *= k
        ratio[:n] /= denominator
        ratio[:n] += 1.0
    return ratio


_TERMS, _NEGLIGIBLE = 64, 1e-20


def beta_binomial(y, trials, a, b):
    """P(Y <= y) for Y ~ Binomial(trials, p), p ~ Beta(a, b): a sum over the counts on the far side of y.

    >>> beta_binomial(np.array([0.0, 1.0]), 2.0, np.ones(2), np.ones(2)).round(4).tolist()
    [0.3333, 0.6667]
    """
    y, trials, a, b = np.broadcast_arrays(y, trials, a, b)
    whole = np.clip(np.floor(y), 0.0, trials - 1.0)
    lower = whole * (a + b) < trials * a
    # The upper tail of Y is the lower tail of the failures, trials - Y.
    count = np.where(lower, whole, trials - whole - 1.0)
    p, q = np.where(lower, a, b), np.where(lower, b, a)
    tail = _sum_downwards(count.ravel(), trials.ravel(), p.ravel(), q.ravel()).reshape(count.shape)
    inside = np.clip(np.where(lower, tail, 1.0 - tail), 0.0, 1.0)
    return np.where(y < 0.0, 0.0, np.where(y >= trials, 1.0, inside))


def _sum_downwards(count, trials, a, b):
    """P(Y = count) + ... + P(Y = 0), by the ratios of successive terms, some at a time."""
    rest = trials - count
    rising = [_log_rising(r, k) for r, k in ((rest + 1.0, count), (1.0, count), (a, count), (b, rest), (a + b, trials))]
    term = np.exp(rising[0] - rising[1] + rising[2] + rising[3] - rising[4])
    total, left, steps = term.copy(), np.arange(count.size), np.arange(_TERMS)
    done = 0
    while True:
        left = left[(count[left] > done) & (term[left] > _NEGLIGIBLE * total[left])]
        if left.size == 0:
            return total
        k = np.maximum(count[left, None] - done - steps, 0.0)
        n, first, second = trials[left, None], a[left, None], b[left, None]
        last = np.where(k > 0.0, first + k - 1.0, 1.0)
        terms = term[left, None] * np.cumprod(k / (n - k + 1.0) * ((second + n - k) / last), axis=1)
        term[left], total[left] = terms[:, -1], total[left] + terms.sum(axis=1)
        done += _TERMS
