"""Inverse links: from a latent to a positive number or to a probability, stably in both tails.

Both probability links are symmetric, 1 - p(f) = p(-f), so that the complement needs no function of its own.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ..precision import parameter

POSITIVE = ("exp", "softplus")
PROBABILITY = ("probit", "logit")


def check(link, allowed: tuple[str, ...]) -> str:
    """`link`, if it is one of those allowed.

    >>> check("log", POSITIVE)
    Traceback (most recent call last):
        ...
    ValueError: link must be one of 'exp', 'softplus', got 'log'
    """
    if not isinstance(link, str) or link not in allowed:
        raise ValueError(f"link must be one of {', '.join(map(repr, allowed))}, got {link!r}")
    return link


# To the positive numbers ------------------------------------------------------------------------


def positive(link: str, f):
    """The positive number that `link` makes of f: exp(f) or log(1 + exp(f)).

    >>> float(positive("exp", 0.0))
    1.0
    """
    return jnp.exp(f) if link == "exp" else jax.nn.softplus(f)


def log_positive(link: str, f):
    """log of `positive`, also where the number itself underflows.

    >>> float(log_positive("softplus", -1000.0))
    -1000.0
    """
    return jnp.asarray(f) if link == "exp" else _log_softplus(f)


def _log_softplus(f):
    # log(log(1 + u)) = f - u/2 + O(u^2) with u = exp(f). Below -20 the rest is lost in rounding, and the
    # second derivative of the direct form would be a difference of two numbers that both tend to one.
    far = f < -20.0
    direct = jnp.log(jax.nn.softplus(jnp.where(far, -20.0, f)))
    series = f - 0.5 * jnp.exp(jnp.where(far, f, -20.0))
    return jnp.where(far, series, direct)


# To probabilities -------------------------------------------------------------------------------


def lapse_rate(lapse):
    """`lapse`, checked: at least 0 and less than 1/2.

    >>> lapse_rate(0.5)
    Traceback (most recent call last):
        ...
    ValueError: lapse must be at least 0 and less than 0.5, got 0.5
    """
    lapse = parameter(lapse, "lapse")
    if not isinstance(lapse, Tracer) and not 0.0 <= lapse < 0.5:
        raise ValueError(f"lapse must be at least 0 and less than 0.5, got {float(lapse)}")
    return lapse


def probability(link: str, f, lapse: Any = 0.0):
    """p = lapse + (1 - 2 lapse) s(f), with s the normal or the logistic distribution function.

    >>> float(probability("probit", 0.0, lapse=0.1))
    0.5
    """
    plain = 0.5 * jax.lax.erfc(-jnp.asarray(f, float) / math.sqrt(2.0)) if link == "probit" else jax.nn.sigmoid(f)
    return lapse + (1.0 - 2.0 * lapse) * plain


def log_probability(link: str, f, lapse: Any = 0.0):
    """log of `probability`; log(1 - p) is its value at -f.

    >>> round(float(log_probability("probit", -40.0)), 1)
    -804.6
    """
    plain = log_ndtr(f) if link == "probit" else jax.nn.log_sigmoid(f)
    lapses = lapse > 0.0
    floor = jnp.log(jnp.where(lapses, lapse, 0.25))
    mixed = jnp.logaddexp(floor, jnp.log1p(-2.0 * lapse) + plain)
    # Equal to `plain` at lapse = 0, with the one-sided derivative in `lapse` that log(0) cannot give
    # (capped where it would overflow).
    without_lapse = plain + lapse * (jnp.exp(jnp.minimum(-plain, 80.0)) - 2.0)
    return jnp.where(lapses, mixed, without_lapse)


# The normal distribution function ---------------------------------------------------------------

# Below this the continued fraction of Mills' ratio is used; above it erfc has not lost any digits.
_TAIL = -5.0
# At |x| = 5 this many levels leave an error below rounding, and fewer are needed further out.
_LEVELS = 24


def log_ndtr(x):
    """log Phi(x), with derivatives of any order that keep their digits in both tails.

    >>> import jax
    >>> round(float(jax.grad(jax.grad(log_ndtr))(-100.0)), 3)
    -1.0
    """
    # The custom derivative rules below want one floating type throughout.
    return _log_ndtr(jnp.asarray(x, dtype=jnp.result_type(x, float)))


@jax.custom_jvp
def _log_ndtr(x):
    in_tail = x < _TAIL
    lower = jnp.log(0.5 * jax.lax.erfc(-jnp.clip(x, _TAIL, 0.0) / math.sqrt(2.0)))
    upper = jnp.log1p(-0.5 * jax.lax.erfc(jnp.maximum(x, 0.0) / math.sqrt(2.0)))
    ratio, _ = _hazard(jnp.minimum(x, _TAIL))
    tail = -0.5 * x**2 - 0.5 * math.log(2.0 * math.pi) - jnp.log(ratio)
    return jnp.where(in_tail, tail, jnp.where(x < 0.0, lower, upper))


@_log_ndtr.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio, _ = _hazard(x)
    return _log_ndtr(x), ratio * dx


@jax.custom_jvp
def _hazard(x):
    """h = phi(x) / Phi(x) and its excess h + x, which tends to 0 as x tends to minus infinity."""
    depth = -jnp.minimum(x, _TAIL)
    # h = d + 1/(d + 2/(d + 3/(d + ...))) with d = -x: the excess comes without a subtraction.
    tail_excess = functools.reduce(lambda below, k: k / (depth + below), range(_LEVELS, 0, -1), jnp.zeros_like(x))
    body = jnp.maximum(x, _TAIL)
    density = jnp.exp(-0.5 * body**2) / math.sqrt(2.0 * math.pi)
    body_ratio = density / (0.5 * jax.lax.erfc(-body / math.sqrt(2.0)))
    in_tail = x < _TAIL
    return jnp.where(in_tail, depth + tail_excess, body_ratio), jnp.where(in_tail, tail_excess, body_ratio + x)


@_hazard.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio, excess = _hazard(x)
    slope = -ratio * excess
    return (ratio, excess), (slope * dx, (1.0 + slope) * dx)
