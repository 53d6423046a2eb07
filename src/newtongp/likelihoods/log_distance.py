"""E[log(1 + (d - e)²)] for Gaussian e, as Student's t distribution needs it, without nodes.

With e ~ N(0, v) and ζ = d + i it is twice the real part of Φ(ζ) = E[log(ζ - e)], whose derivative E[1 / (ζ - e)] is the
Faddeeva function w(ζ / s) up to constants, s = √(2v). Weideman (1994) expands w in powers of Z = (Ls + iζ) / (Ls - iζ),
which has modulus at most 1. The error of the expansion is below rounding for all d and v, and the integral of each term
is known.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

_TERMS = 36
_SCALE = math.sqrt(_TERMS / math.sqrt(2.0))
"""L."""
_TWO_ROOT_PI = 2.0 * math.sqrt(math.pi)
_SMALL = 1e-3
"""Below this d² + v, log(1 + (d - e)²) is expanded in powers of (d - e)², so that no digits are lost."""


def _weideman() -> tuple[float, ...]:
    """The coefficients of 1, Z, Z², ..."""
    half = 2 * _TERMS
    t = _SCALE * np.tan(np.pi * np.arange(-half + 1, half) / (2 * half))
    values = np.concatenate([[0.0], np.exp(-(t**2)) * (_SCALE**2 + t**2)])
    return tuple((np.real(np.fft.fft(np.fft.fftshift(values))) / (2 * half))[1 : _TERMS + 1].tolist())


_COEFFICIENTS = _weideman()
_INTEGRALS = (0.0, *(value / power for power, value in enumerate(_COEFFICIENTS, start=1)))
_AT_MINUS_ONE = sum(value * (-1.0) ** power for power, value in enumerate(_INTEGRALS))


def expected_log_square(distance, variance):
    """E[log(1 + (d - e)²)] for e ~ N(0, v), with d = `distance` and v = `variance` >= 0.

    >>> round(float(expected_log_square(2.0, 0.0)), 4) == round(math.log(5.0), 4)
    True
    """
    dtype = jnp.result_type(distance, variance, float)
    return _expected_log_square(jnp.asarray(distance, dtype=dtype), jnp.asarray(variance, dtype=dtype))


def _expansion(distance, variance):
    """s, 1 / (Ls - iζ) and Z."""
    spread = jnp.sqrt(2.0 * variance)
    real = _SCALE * spread + 1.0
    size = 1.0 / (real * real + distance * distance)
    inverse = jax.lax.complex(real * size, distance * size)
    return spread, inverse, (2.0 * _SCALE) * spread * inverse - 1.0


@jax.custom_jvp
def _expected_log_square(distance, variance):
    spread, _, z = _expansion(distance, variance)
    real = _SCALE * spread + 1.0
    series = jnp.real(_polynomial(_INTEGRALS, z)) - _AT_MINUS_ONE
    whole = jnp.log(real * real + distance * distance) - _TWO_ROOT_PI / _SCALE * series
    small = distance * distance + variance < _SMALL
    return jnp.where(small, _in_powers(jnp.where(small, distance, 0.0), jnp.where(small, variance, 0.0)), whole)


def _in_powers(distance, variance):
    """The sum of (-1)^(k + 1) E[(d - e)^(2k)] / k, up to k = 6."""
    before, moment, total = jnp.ones_like(distance), distance, jnp.zeros_like(distance)
    for power in range(2, 13):
        before, moment = moment, distance * moment + (power - 1) * variance * before
        if power % 2 == 0:
            total = total + (-1.0) ** (power // 2 + 1) / (power // 2) * moment
    return total


def _expected_log_square_jvp(primals, tangents):
    return _expected_log_square(*primals), 2.0 * jnp.real(_change(0, primals, tangents))


def _change(order: int, primals, tangents):
    """The change of the derivative of this order: dΦ = Φ' dd + ½ Φ'' dv, without what does not change."""
    terms = [
        _times_real(_derivative(order + further)(*primals), scale * tangent)
        for scale, further, tangent in zip((1.0, 0.5), (1, 2), tangents, strict=True)
        if not isinstance(tangent, SymbolicZero)
    ]
    return sum(terms[1:], start=terms[0])


def _times_real(value, factor):
    """A complex number times a real one, so that one part does not depend on the other."""
    return jax.lax.complex(jnp.real(value) * factor, jnp.imag(value) * factor)


_expected_log_square.defjvp(_expected_log_square_jvp, symbolic_zeros=True)


@functools.cache
def _derivative(order: int) -> Callable:
    """The derivative of Φ of this order, with its own derivatives in d and v."""
    function = jax.custom_jvp(lambda distance, variance: _formula(order, distance, variance))

    def rule(primals, tangents):
        return function(*primals), _change(order, primals, tangents)

    function.defjvp(rule, symbolic_zeros=True)
    return function


def _formula(order: int, distance, variance):
    if order > 2:
        lower = functools.partial(_formula, order - 1, variance=variance)
        return jax.jvp(lower, (distance,), (jnp.ones_like(distance),))[1]
    spread, inverse, z = _expansion(distance, variance)
    if order == 1:
        factor = -1j * (1.0 + _TWO_ROOT_PI * spread * inverse * _polynomial(_COEFFICIENTS, z))
    else:
        series, slope = jax.jvp(lambda z: _polynomial(_COEFFICIENTS, z), (z,), (jnp.ones_like(z),))
        # With d(inverse)/dζ = i inverse² and dZ/dζ = 2iLs inverse².
        rest = 2.0 * series + (2.0 * _SCALE) * spread * inverse * slope
        factor = inverse * (1.0 + _TWO_ROOT_PI * spread * inverse * rest)
    # XLA keeps the result of a division, but computes sums and products again wherever they are used.
    real = _SCALE * spread + 1.0
    numerator, size = factor * jax.lax.complex(real, distance), real * real + distance * distance
    return jax.lax.complex(jnp.real(numerator) / size, jnp.imag(numerator) / size)


@functools.partial(jax.jit, static_argnums=0)
def _polynomial(coefficients, z):
    """The polynomial with these coefficients, from the constant up. Wrapped in `jit` only so that it is traced once."""
    # In real numbers, since complex ones are not vectorised.
    x, y = jnp.real(z), jnp.imag(z)
    real, imaginary = jnp.full_like(x, coefficients[-1]), jnp.zeros_like(x)
    for coefficient in reversed(coefficients[:-1]):
        real, imaginary = real * x - imaginary * y + coefficient, real * y + imaginary * x
    return jax.lax.complex(real, imaginary)
