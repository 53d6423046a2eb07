"""P(Y <= y | f) and moments of y on the host, for many rows at once, with NumPy and SciPy.

SciPy's incomplete gamma and beta functions are far faster than JAX's iterations, need no compilation, and keep their
digits for counts of any size. For other likelihoods, their own methods are called.

In all functions `f` has the latents along its first axis and the rows along its last. Parameters of the likelihood are
single numbers or one number per row.
"""

import functools
from typing import Any

import equinox as eqx
import numpy as np
from scipy import special

from . import links
from .base import Likelihood
from .categorical import Bernoulli, Ordinal
from .chained import Chained, ZeroInflated
from .continuous import Beta, Exponential, Gamma, LogNormal, StudentT
from .count_sums import LARGEST, beta_binomial, negative_binomial
from .counts import BetaBinomial, Binomial, NegativeBinomial, Poisson
from .multilatent import HeteroscedasticGaussian, Product

_TINY = np.finfo(float).tiny


def _within_range(positive):
    """A positive parameter that may have underflowed or overflowed, clipped."""
    return np.clip(positive, 1e-290, 1e290)


# Links ------------------------------------------------------------------------------------------


def _positive(link: str, f):
    return np.exp(f) if link == "exp" else np.logaddexp(0.0, f)


def _log_positive(link: str, f):
    if link == "exp":
        return f
    near = np.log(np.logaddexp(0.0, np.maximum(f, -20.0)))
    return np.where(f < -20.0, f - 0.5 * np.exp(np.minimum(f, -20.0)), near)


def _probability(link: str, f, lapse: Any = None):
    plain = special.ndtr(f) if link == "probit" else special.expit(f)
    return plain if lapse is None else lapse + (1.0 - 2.0 * lapse) * plain


def _value(link: str, f):
    if link == links.IDENTITY:
        return f
    return _positive(link, f) if link in links.POSITIVE else _probability(link, f)


# P(Y <= y | f) ----------------------------------------------------------------------------------


def distribution(likelihood: Likelihood, y: np.ndarray, f: np.ndarray) -> np.ndarray | None:
    """P(Y <= y | f) of every row, or None if the likelihood is not known here.

    >>> from newtongp.likelihoods import Exponential
    >>> distribution(Exponential(), np.array([0.0, 1.0]), np.zeros((1, 2))).round(4).tolist()
    [0.0, 0.6321]
    """
    with np.errstate(all="ignore"):
        return _distribution(likelihood, y, f)


@functools.singledispatch
def _distribution(likelihood, y, f) -> Any:
    return None


@_distribution.register
def _(likelihood: StudentT, y, f):
    return special.stdtr(_within_range(likelihood.df), (y - f[0]) / _within_range(likelihood.scale))


@_distribution.register
def _(likelihood: Gamma, y, f):
    ratio = np.exp(np.log(np.maximum(y, 0.0)) - _log_positive(likelihood.link, f[0]))
    return special.gammainc(_within_range(likelihood.shape), ratio)


@_distribution.register
def _(likelihood: Exponential, y, f):
    return -np.expm1(-np.exp(np.log(np.maximum(y, 0.0)) - _log_positive(likelihood.link, f[0])))


@_distribution.register
def _(likelihood: Beta, y, f):
    concentration = _within_range(likelihood.concentration)
    a = concentration * _probability(likelihood.link, f[0], likelihood.lapse)
    b = concentration * _probability(likelihood.link, -f[0], likelihood.lapse)
    inside = np.clip(y, 0.0, 1.0)
    return incomplete_beta(np.maximum(a, _TINY), np.maximum(b, _TINY), inside, 1.0 - inside)


@_distribution.register
def _(likelihood: LogNormal, y, f):
    return special.ndtr((np.log(np.maximum(y, 0.0)) - f[0]) / _within_range(likelihood.scale))


@_distribution.register
def _(likelihood: Poisson, y, f):
    count = np.floor(np.maximum(y, 0.0))
    rate = likelihood.exposure * _positive(likelihood.link, f[0])
    return np.where(y < 0.0, 0.0, _upper_gamma(count + 1.0, rate))


@_distribution.register
def _(likelihood: NegativeBinomial, y, f):
    count = np.floor(np.maximum(y, 0.0))
    dispersion = _within_range(likelihood.dispersion)
    log_odds = np.log(dispersion) + np.log(likelihood.exposure) + _log_positive(likelihood.link, f[0])
    count, shape, log_odds = np.broadcast_arrays(count, 1.0 / dispersion, log_odds)
    few, below = count <= LARGEST, np.empty(count.shape)
    below[few] = negative_binomial(count[few], shape[few], log_odds[few])
    odds = log_odds[~few]
    below[~few] = incomplete_beta(shape[~few], count[~few] + 1.0, special.expit(-odds), special.expit(odds))
    return np.where(y < 0.0, 0.0, below)


@_distribution.register
def _(likelihood: Binomial, y, f):
    count = np.clip(np.floor(y), 0.0, likelihood.trials - 1.0)
    failure = _probability(likelihood.link, -f[0], likelihood.lapse)
    success = _probability(likelihood.link, f[0], likelihood.lapse)
    below = incomplete_beta(likelihood.trials - count, count + 1.0, failure, success)
    return np.where(y < 0.0, 0.0, np.where(y >= likelihood.trials, 1.0, below))


@_distribution.register
def _(likelihood: BetaBinomial, y, f):
    concentration = _within_range(likelihood.concentration)
    a = np.maximum(concentration * _probability(likelihood.link, f[0], likelihood.lapse), _TINY)
    b = np.maximum(concentration * _probability(likelihood.link, -f[0], likelihood.lapse), _TINY)
    return beta_binomial(y, likelihood.trials, a, b)


@_distribution.register
def _(likelihood: Bernoulli, y, f):
    return np.where(y < 0.0, 0.0, np.where(y < 1.0, _probability(likelihood.link, -f[0], likelihood.lapse), 1.0))


@_distribution.register
def _(likelihood: Ordinal, y, f):
    return _ordinal(likelihood, y, f[0], _within_range(likelihood.scale))


def _ordinal(likelihood: Ordinal, y, mean, scale):
    last = likelihood.num_levels - 1
    level = np.clip(np.floor(y), 0, last - 1).astype(int)
    below = _probability(likelihood.link, (_thresholds(likelihood)[level] - mean) / scale, None)
    return np.where(y < 0.0, 0.0, np.where(y >= last, 1.0, below))


def _thresholds(likelihood: Ordinal) -> np.ndarray:
    gaps = np.zeros(0) if likelihood.gaps is None else np.cumsum(likelihood.gaps)
    return np.asarray(likelihood.first) + np.concatenate([[0.0], gaps])


@_distribution.register
def _(likelihood: ZeroInflated, y, f):
    below = _distribution(likelihood.base, y, f)
    if below is None:
        return None
    return np.where(y < 0.0, 0.0, likelihood.probability + (1.0 - likelihood.probability) * below)


@_distribution.register
def _(likelihood: Chained, y, f):
    own = likelihood.base.num_latents
    values = [_value(link, f[own + i]) for i, link in enumerate(likelihood.link_names)]
    base = eqx.tree_at(
        lambda inside: [getattr(inside, name) for name in likelihood.names],
        likelihood.base,
        values,
        is_leaf=lambda leaf: leaf is None,
    )
    return _distribution(base, y, f[:own])


def _upper_gamma(a, x):
    """Q(a, x), the regularised upper incomplete gamma function, also for the largest numbers."""
    # SciPy's is NaN there. It is a step at x = a, at any scale.
    unit = np.where(a > 1e290, 1e-20, 1.0)
    return special.gammaincc(a * unit, x * unit)


_LARGE, _BOTH_LARGE = 1e15, 1e7


def incomplete_beta(a, b, x, complement):
    """I_x(a, b), the regularised incomplete beta function, with complement = 1 - x, for parameters of any size.

    >>> incomplete_beta(np.array([2.0]), np.array([1.0]), np.array([0.5]), np.array([0.5])).tolist()
    [0.25]
    """
    a, b, x, complement = np.broadcast_arrays(a, b, x, complement)
    smaller, larger = np.minimum(a, b), np.maximum(a, b)
    near_zero = x < 0.5
    both, one = smaller > _BOTH_LARGE, (larger > _LARGE) & (smaller <= _BOTH_LARGE)
    # Each of the three forms is computed only where it is used.
    values = np.empty(x.shape)
    pick = ~both & ~one & near_zero
    values[pick] = special.betainc(a[pick], b[pick], x[pick])
    pick = ~both & ~one & ~near_zero
    values[pick] = special.betaincc(b[pick], a[pick], complement[pick])
    if np.any(one):
        # A beta variable tends to a gamma variable, Abramowitz and Stegun 26.5.20.
        first = a[one] <= b[one]
        near = np.where(first, x[one], complement[one])
        argument = -(larger[one] + 0.5 * (smaller[one] - 1.0)) * np.log1p(-near)
        values[one] = np.where(
            first, special.gammainc(smaller[one], argument), special.gammaincc(smaller[one], argument)
        )
    if np.any(both):
        # Abramowitz and Stegun 26.5.22, after Camp and Paulson; its error is about 5e-3 / smaller.
        p, q = a[both], b[both]
        left, right = np.cbrt(q * x[both]), np.cbrt(p * complement[both])
        spread = np.sqrt(left**2 / q + right**2 / p)
        values[both] = special.ndtr(3.0 * (left * (1.0 - 1.0 / (9.0 * q)) - right * (1.0 - 1.0 / (9.0 * p))) / spread)
    return values


# E[P(Y <= y | f)] and moments of y in closed form -------------------------------------------------


def expected_distribution(likelihood: Likelihood, y, mean, covariance) -> np.ndarray | None:
    """P(Y <= y) for f ~ N(mean, covariance) in closed form, or None if there is none.

    `mean` is (D, rows) and `covariance` (D, D, rows).
    """
    with np.errstate(all="ignore"):
        return _expected_distribution(likelihood, y, mean, covariance)


@functools.singledispatch
def _expected_distribution(likelihood, y, mean, covariance) -> Any:
    return None


@_expected_distribution.register
def _(likelihood: LogNormal, y, mean, covariance):
    spread = np.hypot(likelihood.scale, np.sqrt(covariance[0, 0]))
    return special.ndtr((np.log(np.maximum(y, 0.0)) - mean[0]) / spread)


@_expected_distribution.register
def _(likelihood: Bernoulli, y, mean, covariance):
    if likelihood.link != "probit":
        return None
    failure = _probability("probit", -mean[0] / np.sqrt(1.0 + covariance[0, 0]), likelihood.lapse)
    return np.where(y < 0.0, 0.0, np.where(y < 1.0, failure, 1.0))


@_expected_distribution.register
def _(likelihood: Ordinal, y, mean, covariance):
    if likelihood.link != "probit":
        return None
    return _ordinal(likelihood, y, mean[0], np.hypot(likelihood.scale, np.sqrt(covariance[0, 0])))


@_expected_distribution.register
def _(likelihood: ZeroInflated, y, mean, covariance):
    below = _expected_distribution(likelihood.base, y, mean, covariance)
    if below is None:
        return None
    return np.where(y < 0.0, 0.0, likelihood.probability + (1.0 - likelihood.probability) * below)


def expected_moments(likelihood: Likelihood, mean, covariance) -> tuple[np.ndarray, np.ndarray] | None:
    """E[y] and Var[y] for f ~ N(mean, covariance) in closed form (inf on overflow), or None if there is none.

    >>> from newtongp.likelihoods import Poisson
    >>> [moment.tolist() for moment in expected_moments(Poisson(), np.zeros((1, 1)), np.full((1, 1, 1), 1e4))]
    [[inf], [inf]]
    """
    with np.errstate(all="ignore"):
        return _expected_moments(likelihood, mean, covariance)


@functools.singledispatch
def _expected_moments(likelihood, mean, covariance) -> Any:
    return None


def _log_normal(mean, variance):
    """E[exp(f)], Var[exp(f)] and E[exp(2 f)]."""
    expected = np.exp(mean + 0.5 * variance)
    # exp(2 m + v) (exp(v) - 1): one factor may underflow where the other overflows.
    log_excess = np.where(variance > 1.0, variance + np.log1p(-np.exp(-variance)), np.log(np.expm1(variance)))
    spread = np.exp(2.0 * mean + variance + log_excess)
    return expected, spread, np.exp(2.0 * (mean + variance))


@_expected_moments.register
def _(likelihood: StudentT, mean, covariance):
    return mean[0], covariance[0, 0] + likelihood.scale**2 * likelihood.df / (likelihood.df - 2.0)


@_expected_moments.register
def _(likelihood: Gamma, mean, covariance):
    if likelihood.link != "exp":
        return None
    expected, spread, square = _log_normal(mean[0], covariance[0, 0])
    return likelihood.shape * expected, likelihood.shape * square + likelihood.shape**2 * spread


@_expected_moments.register
def _(likelihood: Exponential, mean, covariance):
    if likelihood.link != "exp":
        return None
    expected, spread, square = _log_normal(mean[0], covariance[0, 0])
    return expected, square + spread


@_expected_moments.register
def _(likelihood: LogNormal, mean, covariance):
    return _log_normal(mean[0], covariance[0, 0] + likelihood.scale**2)[:2]


@_expected_moments.register
def _(likelihood: Poisson, mean, covariance):
    if likelihood.link != "exp":
        return None
    expected, spread, _ = _log_normal(mean[0] + np.log(likelihood.exposure), covariance[0, 0])
    return expected, expected + spread


@_expected_moments.register
def _(likelihood: NegativeBinomial, mean, covariance):
    if likelihood.link != "exp":
        return None
    expected, spread, square = _log_normal(mean[0] + np.log(likelihood.exposure), covariance[0, 0])
    return expected, expected + likelihood.dispersion * square + spread


@_expected_moments.register
def _(likelihood: Bernoulli, mean, covariance):
    if likelihood.link != "probit":
        return None
    middle = mean[0] / np.sqrt(1.0 + covariance[0, 0])
    success = _probability("probit", middle, likelihood.lapse)
    return success, success * _probability("probit", -middle, likelihood.lapse)


@_expected_moments.register
def _(likelihood: Ordinal, mean, covariance):
    if likelihood.link != "probit":
        return None
    scale = np.hypot(likelihood.scale, np.sqrt(covariance[0, 0]))
    distance = (_thresholds(likelihood)[:, None] - mean[0]) / scale
    above, below = special.ndtr(-distance), special.ndtr(distance)
    number = np.arange(above.shape[0])
    larger, smaller = np.maximum(number[:, None], number), np.minimum(number[:, None], number)
    return np.sum(above, axis=0), np.sum(above[larger] * below[smaller], axis=(0, 1))


@_expected_moments.register
def _(likelihood: ZeroInflated, mean, covariance):
    inside = _expected_moments(likelihood.base, mean, covariance)
    if inside is None:
        return None
    expected, spread = inside
    share = 1.0 - likelihood.probability
    return share * expected, share * (spread + likelihood.probability * expected**2)


@_expected_moments.register
def _(likelihood: HeteroscedasticGaussian, mean, covariance):
    if likelihood.link != "exp":
        return None
    return mean[0], covariance[0, 0] + np.exp(2.0 * (mean[1] + covariance[1, 1]))


@_expected_moments.register
def _(likelihood: Product, mean, covariance):
    if likelihood.link != "exp":
        return None
    # E[h(f) exp(tᵀf)] = exp(tᵀm + tᵀCt/2) E[h(f + Ct)], with t = (0, 1) and (0, 2).
    first, cross = mean[0], covariance[0, 1]
    expected = np.exp(mean[1] + 0.5 * covariance[1, 1]) * (first + cross)
    shift = (first + 2.0 * cross) ** 2 + covariance[0, 0]
    # E[y²] - E[y]² without cancellation if the amplitude hardly varies.
    rest = np.expm1(covariance[1, 1]) * shift + cross * (2.0 * first + 3.0 * cross) + covariance[0, 0]
    scale = np.exp(2.0 * mean[1] + covariance[1, 1])
    return expected, likelihood.variance + np.where(rest > 0.0, scale * rest, 0.0)
