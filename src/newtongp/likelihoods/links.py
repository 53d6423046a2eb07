"""Inverse links: from a latent to a positive number or to a probability, stable in both tails.

Both probability links are symmetric, 1 - p(f) = p(-f), so that the complement needs no separate function.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..numerics.small import LOG_2PI
from ..validation.numbers import parameter

POSITIVE = ("exp", "softplus")
PROBABILITY = ("probit", "logit")
IDENTITY = "identity"
ANY = (*POSITIVE, *PROBABILITY, IDENTITY)


def check(link, allowed: tuple[str, ...], name: str = "link") -> str:
    """Return `link` if it is allowed; raise ValueError otherwise.

    >>> check("log", POSITIVE)
    Traceback (most recent call last):
        ...
    ValueError: link must be one of 'exp', 'softplus', got 'log'
    """
    if not isinstance(link, str) or link not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {link!r}")
    return link


def value(link: str, f):
    """The inverse link at f: a positive number, a probability, or f itself.

    >>> float(value("logit", 0.0)), float(value("identity", -2.0))
    (0.5, -2.0)
    """
    if link == IDENTITY:
        return jnp.asarray(f)
    return positive(link, f) if link in POSITIVE else probability(link, f, None)


# To the positive numbers ------------------------------------------------------------------------


def positive(link: str, f):
    """exp(f) or log(1 + exp(f)).

    >>> float(positive("exp", 0.0))
    1.0
    """
    return jnp.exp(f) if link == "exp" else softplus(f)


def softplus(f):
    """log(1 + exp(f)), with the logistic function as its derivative, which is cheaper than automatic differentiation.

    >>> float(softplus(-1000.0)), float(softplus(1000.0)), float(jax.grad(softplus)(0.0))
    (0.0, 1000.0, 0.5)
    """
    return _softplus(jnp.asarray(f, dtype=jnp.result_type(f, float)))


@jax.custom_jvp
def _softplus(f):
    decay = jnp.exp(-jnp.abs(f))
    return jnp.maximum(f, 0.0) + _two_artanh(decay / (2.0 + decay))


# artanh(s) / s for 0 <= s <= 1/3 as a polynomial in s^2, from the constant up: interpolated at Chebyshev nodes, with a
# relative error below 3e-18.
_ARTANH = (
    1.0,
    0.33333333333333076,
    0.20000000000092874,
    0.14285714272727057,
    0.11111112040373837,
    0.09090870416252403,
    0.07693307021152004,
    0.06650187016337313,
    0.06055084364034609,
    0.0416225325593041,
    0.08522081781390699,
)


def _two_artanh(s):
    """log((1 + s) / (1 - s)) for |s| <= 1/3: with s = u / (2 + u), the logarithm of 1 + u."""
    return 2.0 * s * _polynomial(_ARTANH, s * s)


@_softplus.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    return _softplus(f), _sigmoid(f) * df


@jax.custom_jvp
def _sigmoid(f):
    """1 / (1 + exp(-f)), from the same exponential as log(1 + exp(f)), and so is its derivative."""
    decay = jnp.exp(-jnp.abs(f))
    return jnp.where(f < 0.0, decay, 1.0) / (1.0 + decay)


@_sigmoid.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    return _sigmoid(f), _sigmoid_slope(f) * df


def _sigmoid_slope(f):
    decay = jnp.exp(-jnp.abs(f))
    return decay / (1.0 + decay) ** 2


def log_sigmoid(f):
    """log of the logistic function.

    >>> float(log_sigmoid(-1000.0)), float(log_sigmoid(1000.0)), float(jax.grad(log_sigmoid)(0.0))
    (-1000.0, -0.0, 0.5)
    """
    return -softplus(-jnp.asarray(f, dtype=jnp.result_type(f, float)))


def log_positive(link: str, f):
    """log of `positive`, also if the number itself underflows.

    >>> float(log_positive("softplus", -1000.0))
    -1000.0
    """
    return jnp.asarray(f) if link == "exp" else _log_softplus(jnp.asarray(f, dtype=jnp.result_type(f, float)))


_FEW_TERMS = -20.0


@jax.custom_jvp
def _log_softplus(f):
    # log(log(1 + u)) = f - u/2 + O(u^2) with u = exp(f). Below -20 the rest is lost in rounding, and the
    # second derivative of the direct form would be a difference of two numbers that both tend to one.
    return jnp.where(f < _FEW_TERMS, f - 0.5 * jnp.exp(-jnp.abs(f)), _log(_softplus(f)))


@_log_softplus.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    return _log_softplus(f), _log_softplus_slope(f) * df


@jax.custom_jvp
def _log_softplus_slope(f):
    # Both are zero far below, where their ratio is not used.
    safe = jnp.maximum(f, _FEW_TERMS)
    return jnp.where(f < _FEW_TERMS, 1.0 - 0.5 * jnp.exp(-jnp.abs(f)), _sigmoid(safe) / _softplus(safe))


@_log_softplus_slope.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    slope = _log_softplus_slope(f)
    bend = jnp.where(f < _FEW_TERMS, -0.5 * jnp.exp(-jnp.abs(f)), slope * (_sigmoid(-f) - slope))
    return slope, bend * df


def log_positive_and_inverse(link: str, f):
    """`log_positive` and the inverse of `positive`, from one exponential.

    >>> [float(number) for number in log_positive_and_inverse("exp", 0.0)]
    [0.0, 1.0]
    """
    f = jnp.asarray(f, dtype=jnp.result_type(f, float))
    return (f, jnp.exp(-f)) if link == "exp" else _log_softplus_and_inverse(f)


@jax.custom_jvp
def _log_softplus_and_inverse(f):
    # In a shape of their own: XLA does not vectorise a loop that writes over what it reads.
    apart = f[None]
    return _log_softplus(apart)[0], (1.0 / _softplus(apart))[0]


@_log_softplus_and_inverse.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    value, inverse = _log_softplus_and_inverse(f)
    slope = _log_softplus_slope(f)
    return (value, inverse), (slope * df, -slope * inverse * df)


def log_positive_derivatives(link: str, f):
    """`log_positive` with its first and second derivative, and the inverse of `positive`.

    >>> [float(number) for number in log_positive_derivatives("exp", 0.0)]
    [0.0, 1.0, 0.0, 1.0]
    """
    f = jnp.asarray(f, dtype=jnp.result_type(f, float))
    if link == "exp":
        return f, jnp.ones_like(f), jnp.zeros_like(f), jnp.exp(-f)
    # As `_log_softplus` and its derivatives, but from fewer exponentials and divisions.
    value, inverse = _log_softplus_and_inverse(f)
    far, decay = f < _FEW_TERMS, jnp.exp(-jnp.abs(f))
    rest, share = 0.5 * decay, 1.0 / (1.0 + decay)
    upper, lower = (jnp.where((f < 0.0) == first, decay, 1.0) * share for first in (True, False))
    slope = jnp.where(far, 1.0 - rest, upper * inverse)
    return value, slope, jnp.where(far, -rest, slope * (lower - slope)), inverse


# To probabilities -------------------------------------------------------------------------------


def lapse_rate(lapse):
    """Return `lapse` if it is at least 0 and less than 1/2; None if it is 0, so that it is not learned.

    >>> lapse_rate(0.5)
    Traceback (most recent call last):
        ...
    ValueError: lapse must be at least 0 and less than 0.5, got 0.5: it is a small share of y, such as 0.01
    """
    remedy = "it is a small share of y, such as 0.01"
    lapse = parameter(lapse, "lapse", lower=0.0, upper=0.5, strict=(False, True), remedy=remedy)
    return None if not isinstance(lapse, Tracer) and lapse == 0.0 else lapse


def probability(link: str, f, lapse: Any = 0.0):
    """p = lapse + (1 - 2 lapse) s(f), with s the normal or the logistic distribution function.

    >>> float(probability("probit", 0.0, lapse=0.1))
    0.5
    """
    f = jnp.asarray(f, dtype=jnp.result_type(f, float))
    plain = 0.5 * jax.lax.erfc(-f / math.sqrt(2.0)) if link == "probit" else jax.nn.sigmoid(f)
    return plain if lapse is None else lapse + (1.0 - 2.0 * lapse) * plain


def log_probability(link: str, f, lapse: Any = 0.0):
    """log of `probability`; log(1 - p) is its value at -f.

    >>> round(float(log_probability("probit", -40.0)), 1)
    -804.6
    """
    plain = log_ndtr(f) if link == "probit" else log_sigmoid(f)
    if lapse is None:
        return plain
    lapses = lapse > 0.0
    floor = jnp.log(jnp.where(lapses, lapse, 0.25))
    mixed = jnp.logaddexp(floor, jnp.log1p(-2.0 * lapse) + plain)
    # Equal to `plain` at lapse = 0, with the one-sided derivative in `lapse` that log(0) cannot give
    # (capped where it would overflow).
    without_lapse = plain + lapse * (jnp.exp(jnp.minimum(-plain, 80.0)) - 2.0)
    return jnp.where(lapses, mixed, without_lapse)


def log_probability_derivatives(link: str, f):
    """`log_probability` without lapses, with its first and second derivative: less to trace than the derivatives of it.

    >>> [float(number) for number in log_probability_derivatives("logit", 1000.0)]
    [-0.0, 0.0, -0.0]
    """
    f = jnp.asarray(f, dtype=jnp.result_type(f, float))
    if link == "probit":
        value, slope, excess = _log_and_hazard(f)
        return value, slope, -slope * excess
    return -_softplus(-f), _sigmoid(-f), -_sigmoid_slope(f)


# The normal distribution function ---------------------------------------------------------------

# phi(a) / Phi(-a) - a, the inverse of Mills' ratio minus a, for 0 <= a <= 1e3 as a ratio of these polynomials, from the
# constant up: interpolated at Chebyshev nodes in 1 / (a + 4.5), in 60 digits, with a relative error below 2e-17.
_EXCESS_NUMERATOR = (
    0.7978845608028654,
    1.1837805532072905,
    0.8887500854936252,
    0.4368025123921167,
    0.15440364392206096,
    0.04093859807661429,
    0.008275056385552437,
    0.0012727858895345665,
    0.0001459526843559642,
    1.1897360012520766e-05,
    6.217964046601736e-07,
    1.5805464751938855e-08,
)
_EXCESS_DENOMINATOR = (
    1.0,
    1.939078479326496,
    1.8603769649863622,
    1.153778949926516,
    0.5115361697089964,
    0.17010415496129092,
    0.04341344955263455,
    0.0085632309753437,
    0.0012964857767768778,
    0.0001471962771652442,
    1.1928970942024787e-05,
    6.217964046601734e-07,
    1.5805464751938855e-08,
)
# Beyond, two terms of its continued fraction are as accurate.
_FAR = {"float64": 1e3, "float32": 40.0}
# exp(r) = (q + rp) / (q - rp), with these polynomials p and q in r^2, for |r| <= log(2) / 2 (from Cephes); and log(2)
# as a sum, of which the first part has few digits.
_EXP_P = (1.0, 0.030299440770744196, 0.00012617719307481058)
_EXP_Q = (2.0, 0.22726554820815503, 0.002524483403496841, 3.0019850513866446e-06)
_LOG_2 = (0.693145751953125, 1.4286068203094172e-06)
# For each floating type: the integers of its size, the length of its mantissa, the bias of its exponent, a mask for the
# exponent, and the bits of the number next to which the last bit of the mantissa is worth 1.
_BITS = {
    "float64": (jnp.int64, 52, 1023, 0x7FF0000000000000, 0x4330000000000000),
    "float32": (jnp.int32, 23, 127, 0x7F800000, 0x4B000000),
}


def log_ndtr(x):
    """log Phi(x), with derivatives of any order that are accurate in both tails.

    >>> import jax
    >>> round(float(jax.grad(jax.grad(log_ndtr))(-100.0)), 3)
    -1.0
    """
    # The custom derivative rules below need one floating type throughout, and the logarithm one of these two.
    dtype = jnp.promote_types(jnp.result_type(x, float), jnp.float32)
    return _log_and_hazard(jnp.asarray(x, dtype=dtype))[0]


@jax.custom_jvp
@jax.jit
def _log_and_hazard(x):
    """log Phi(x), h = phi(x) / Phi(x), and its excess h + x, which tends to 0 as x tends to minus infinity.

    Wrapped in `jit` only so that it is traced once.
    """
    below, kind = x < 0.0, jnp.finfo(x.dtype)
    # An infinite a would be a product of zero and infinity.
    a = jnp.minimum(jnp.abs(x), float(kind.max) * float(kind.eps) / 16.0)
    excess, density = _excess(a), _density(x)
    inverse_mills = a + excess
    above = density * (inverse_mills / (inverse_mills - density))
    # Both branches are a logarithm 2 artanh(s): of 1/m by a power of two near it, where 1/m is the inverse of Mills'
    # ratio, or of 1 / Phi = 1 + phi / (1/m - phi).
    exponent, power = _power_of_two(a + 1.0)
    top = jnp.where(below, inverse_mills - power, density)
    bottom = jnp.where(below, inverse_mills + power, 2.0 * inverse_mills - density)
    rest = jnp.where(below, -math.log(2.0) * exponent - 0.5 * x**2 - 0.5 * LOG_2PI, -0.0)
    value = rest - _two_artanh(top / bottom)
    return value, jnp.where(below, inverse_mills, above), jnp.where(below, excess, above + x)


@_log_and_hazard.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    value, ratio, excess = _log_and_hazard(x)
    slope = -ratio * excess
    return (value, ratio, excess), (ratio * dx, slope * dx, (1.0 + slope) * dx)


def _excess(a):
    """phi(a) / Phi(-a) - a for a >= 0."""
    far = _FAR[str(a.dtype)]
    near, square = jnp.minimum(a, far), jnp.minimum(a * a, 4.0 / float(jnp.finfo(a.dtype).eps))
    top = jnp.where(a > far, square + 3.0, _polynomial(_EXCESS_NUMERATOR, near))
    return top / jnp.where(a > far, a * (square + 5.0), _polynomial(_EXCESS_DENOMINATOR, near))


def _density(x):
    """phi(x). XLA's exponential takes three times as long as this one, which ends with a division.

    XLA computes a division once, and cheaper operations again wherever they are used.
    """
    if x.dtype != jnp.float64:
        return jnp.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
    exponent = jnp.maximum(-0.5 * x**2, -708.0)
    count = jax.lax.round(exponent / math.log(2.0), jax.lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = (exponent - count * _LOG_2[0]) - count * _LOG_2[1]
    odd, even = rest * _polynomial(_EXP_P, rest**2), _polynomial(_EXP_Q, rest**2)
    # The last bits of this sum are the biased exponent of 2^count.
    bits = jax.lax.bitcast_convert_type(count + (1.5 * 2.0**52 + 1023.0), jnp.int64) << 52
    scale = jax.lax.bitcast_convert_type(bits, x.dtype) / math.sqrt(2.0 * math.pi)
    return jnp.where(exponent > -708.0, (even + odd) * scale, 0.0) / (even - odd)


def _power_of_two(x):
    """The largest power of two that is not above x > 0: its exponent, and as a number."""
    integers, length, bias, mask, ones = _BITS[str(x.dtype)]
    bits = jax.lax.bitcast_convert_type(x, integers)
    biased = jax.lax.shift_right_logical(bits, jnp.asarray(length, integers)) | ones
    exponent = jax.lax.bitcast_convert_type(biased, x.dtype) - (2.0**length + bias)
    return exponent, jax.lax.bitcast_convert_type(bits & mask, x.dtype)


def _log(x):
    """log x of x > 0 that is neither tiny nor infinite: XLA calls a function for every number.

    It is that of a power of two, plus 2 artanh(s) for a ratio between 1/sqrt(2) and sqrt(2).
    """
    if str(x.dtype) not in _BITS:
        return jnp.log(x)
    exponent, power = _power_of_two(math.sqrt(2.0) * x)
    value = math.log(2.0) * exponent + _two_artanh((x - power) / (x + power))
    return jnp.where(x == jnp.inf, x, value)


def _polynomial(coefficients, x):
    """The polynomial with these coefficients, from the constant up."""
    return functools.reduce(
        lambda value, coefficient: value * x + coefficient, reversed(coefficients[:-1]), coefficients[-1]
    )
