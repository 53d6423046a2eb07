"""Modified Bessel functions of whole order: the Fourier coefficients of the periodic kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import bessel_i0e

# Starting from here, the recurrence no longer depends on its start for orders of a few dozen, for any z.
_START = 400


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def scaled_bessel(count: int, z):
    """exp(−z) I_j(z) for j = 0, …, count − 1 and a scalar z > 0, each with a relative error below 1e-13 (count ≤ 60).

    >>> [round(float(value), 4) for value in scaled_bessel(3, 2.0)]
    [0.3085, 0.2153, 0.0932]
    """

    def ratio(above, order):
        # I_(j−1) = I_(j+1) + (2j/z) I_j, downwards and for ratios: all terms are positive, and nothing overflows.
        current = z / (2.0 * order + z * above)
        return current, current

    z = jnp.asarray(z)
    start = _START + count
    _, ratios = jax.lax.scan(ratio, _ratio_at(start, z), np.arange(start - 1.0, 0.0, -1.0))
    zeroth = bessel_i0e(z)[None]
    return jnp.cumprod(jnp.concatenate([zeroth, ratios[::-1][: count - 1]]))


@scaled_bessel.defjvp
def _scaled_bessel_derivative(count, primals, tangents):
    # I_j' = (I_(j−1) + I_(j+1)) / 2, with I_(−1) = I_1.
    (z,), (tangent,) = primals, tangents
    values = scaled_bessel(count + 1, z)
    below = jnp.concatenate([values[1:2], values[: count - 1]])
    return values[:count], (0.5 * (below + values[1:]) - values[:count]) * tangent


def _ratio_at(order: float, z):
    """I_j(z) / I_(j−1)(z) for a large order j."""

    def leading(j):
        return z / (j - 0.5 + jnp.sqrt(z * z + (j * j - 0.25)))

    # The change by one step of the recurrence, after which further changes alternate.
    guess = leading(order)
    change = z / (2.0 * order + z * leading(order + 1.0)) - guess
    return guess + change / (1.0 + guess * guess)
