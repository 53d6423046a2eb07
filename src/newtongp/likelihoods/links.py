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
    decay, inverse = _decay(f)
    return jnp.maximum(f, 0.0) + _two_artanh(decay * (1.0 + decay) * inverse)


def _decay(f):
    """u = exp(-|f|) and 1 / ((1 + u) (2 + u)): one division for the function and both derivatives."""
    decay = jnp.exp(-jnp.abs(f))
    return decay, 1.0 / ((1.0 + decay) * (2.0 + decay))


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
    decay, inverse = _decay(f)
    return jnp.where(f < 0.0, decay, 1.0) * ((2.0 + decay) * inverse)


@_sigmoid.defjvp
def _(primals, tangents):
    (f,), (df,) = primals, tangents
    return _sigmoid(f), _sigmoid_slope(f) * df


def _sigmoid_slope(f):
    decay, inverse = _decay(f)
    return decay * ((2.0 + decay) * inverse) ** 2


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
    return jnp.where(f < _FEW_TERMS, f - 0.5 * jnp.exp(-jnp.abs(f)), jnp.log(_softplus(f)))


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


def log_positive_derivatives(link: str, f):
    """`log_positive` with its first and second derivative, and the inverse of `positive`.

    >>> [float(number) for number in log_positive_derivatives("exp", 0.0)]
    [0.0, 1.0, 0.0, 1.0]
    """
    f = jnp.asarray(f, dtype=jnp.result_type(f, float))
    if link == "exp":
        return f, jnp.ones_like(f), jnp.zeros_like(f), jnp.exp(-f)
    # As `_log_softplus` and its derivatives, but from fewer exponentials and divisions.
    near, far = jnp.maximum(f, _FEW_TERMS), f < _FEW_TERMS
    decay, share = _decay(near)
    number = jnp.maximum(near, 0.0) + _two_artanh(decay * (1.0 + decay) * share)
    power = jnp.exp(jnp.minimum(f, _FEW_TERMS))
    rest = 0.5 * power
    inverse = 1.0 / jnp.where(far, power * (1.0 - rest), number)
    upper, lower = (jnp.where((near < 0.0) == first, decay, 1.0) * ((2.0 + decay) * share) for first in (True, False))
    slope = jnp.where(far, 1.0 - rest, upper * inverse)
    bend = jnp.where(far, -rest, slope * (lower - slope))
    return jnp.where(far, f - rest, jnp.log(number)), slope, bend, inverse


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


# The normal distribution function ---------------------------------------------------------------

# Mills' ratio Phi(-a) / phi(a) for 0 <= a <= 5, as a ratio of these polynomials, from the constant up: interpolated at
# Chebyshev nodes in 80 digits, with a relative error below 1e-16.
_MILLS_NUMERATOR = (
    1.2533141373155003,
    1.6331339540636844,
    1.064228474813331,
    0.4354880523033255,
    0.12070025328678458,
    0.023056832617898395,
    0.0029613323881640175,
    0.00023452321759540466,
    8.838239591820126e-06,
)
_MILLS_DENOMINATOR = (
    1.0,
    2.1009369284732236,
    2.0254366076695205,
    1.179026847524314,
    0.45808226263198965,
    0.12364341935012096,
    0.023291384733172993,
    0.0029701693878468067,
    0.0002345232520421913,
    8.838239126790488e-06,
)
# Beyond, it is 1 / (a + R(1/a²)/a), with R the ratio of these, and a relative error of R below 2e-17.
_FAR = 5.0
_FAR_NUMERATOR = (
    1.0,
    64.90052229891556,
    1470.2783924061068,
    14210.929252999262,
    57015.488735927975,
    75896.59053828717,
    14569.96920411248,
)
_FAR_DENOMINATOR = (
    1.0,
    66.9005222989154,
    1594.0794370041635,
    16804.082903881852,
    78927.49886873463,
    144602.85951099845,
    68216.14635750165,
)


def log_ndtr(x):
    """log Phi(x), with derivatives of any order that are accurate in both tails.

    >>> import jax
    >>> round(float(jax.grad(jax.grad(log_ndtr))(-100.0)), 3)
    -1.0
    """
    # The custom derivative rules below need one floating type throughout, and the logarithm one of these two.
    dtype = jnp.promote_types(jnp.result_type(x, float), jnp.float32)
    return _log_ndtr(jnp.asarray(x, dtype=dtype))


@jax.custom_jvp
def _log_ndtr(x):
    _, inverse_mills = _inverse_mills(jnp.abs(x))
    density = _density(x)
    below = x < 0.0
    exponent, mantissa = _split(inverse_mills)
    # Both branches are a logarithm 2 artanh(s): of the mantissa of 1/m, or of 1 / Phi = 1 + phi / (1/m - phi).
    top = jnp.where(below, mantissa - 1.0, density)
    bottom = jnp.where(below, mantissa + 1.0, 2.0 * inverse_mills - density)
    rest = jnp.where(below, -exponent * math.log(2.0) - 0.5 * x**2 - 0.5 * LOG_2PI, -0.0)
    return rest - _two_artanh(top / bottom)


def _density(x):
    return jnp.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)


@jax.jit
def _inverse_mills(a):
    """The inverse of Mills' ratio m = Phi(-a) / phi(a) for a >= 0, minus a and as it is: h(-a) + a and h(-a) = 1 / m.

    Wrapped in `jit` only so that it is traced once.
    """
    far = a > _FAR
    # An infinite a would be a product of zero and infinity.
    farthest = 1e-8 * float(jnp.finfo(a.dtype).max)
    near, depth = jnp.minimum(a, _FAR), jnp.clip(a, _FAR, farthest)
    inverse = 1.0 / depth
    square = inverse * inverse
    numerator, denominator = _polynomial(_MILLS_NUMERATOR, near), _polynomial(_MILLS_DENOMINATOR, near)
    # One division for both cases, of which the second has no subtraction.
    top = jnp.where(far, _polynomial(_FAR_NUMERATOR, square) * inverse, denominator - near * numerator)
    excess = top / jnp.where(far, _polynomial(_FAR_DENOMINATOR, square), numerator)
    return excess, jnp.minimum(a, farthest) + excess


# For each floating type: the integers of its size, the number of bits of its mantissa, and the bits of √½.
_BITS = {"float64": (jnp.int64, 52, 0x3FE6A09E667F3BCD), "float32": (jnp.int32, 23, 0x3F3504F3)}


def _split(x):
    """The exponent and the mantissa, between √½ and √2, of a positive number that is not subnormal."""
    integers, count, root_half = _BITS[str(x.dtype)]
    bits = jax.lax.bitcast_convert_type(x, integers)
    exponent = (bits - root_half) >> count
    mantissa = jax.lax.bitcast_convert_type(bits - (exponent << count), x.dtype)
    return exponent.astype(jnp.int32).astype(x.dtype), jnp.where(jnp.isnan(x), x, mantissa)


def _polynomial(coefficients, x):
    """The polynomial with these coefficients, from the constant up."""
    return functools.reduce(
        lambda value, coefficient: value * x + coefficient, reversed(coefficients[:-1]), coefficients[-1]
    )


@_log_ndtr.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio, _ = _hazard(x)
    return _log_ndtr(x), ratio * dx


@jax.custom_jvp
def _hazard(x):
    """h = phi(x) / Phi(x) and its excess h + x, which tends to 0 as x tends to minus infinity."""
    excess, inverse_mills = _inverse_mills(jnp.abs(x))
    density = _density(x)
    above = density * (inverse_mills / (inverse_mills - density))
    below = x < 0.0
    return jnp.where(below, inverse_mills, above), jnp.where(below, excess, above + x)


@_hazard.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio, excess = _hazard(x)
    slope = -ratio * excess
    return (ratio, excess), (slope * dx, (1.0 + slope) * dx)
