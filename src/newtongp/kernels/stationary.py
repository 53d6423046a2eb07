"""Kernels of the distance alone: k(x, x') = variance * c(r), with r the distance in lengthscales."""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from .base import Kernel, check_length, hyperparameter, one_column, whole_number
from .statespace import Block
from .stationary_blocks import RBF_ORDERS, MaternBlock, RBFBlock

# The polynomials in s = sqrt(2 nu) r that multiply exp(-s) in the Matern kernels with nu = p + 1/2.
_MATERN_POLYNOMIALS = ((1.0,), (1.0, 1.0), (1.0, 1.0, 1 / 3), (1.0, 1.0, 2 / 5, 1 / 15))


_FEW_COLUMNS, _AT_ONCE = 64, 16


@jax.custom_jvp
def _squared_distance(x1: Float[Array, " P"], x2: Float[Array, " P"], scales: Float[Array, "*P"]) -> Float[Array, ""]:
    """Σ_p (x_p − x'_p)² scales_p²; a few columns are summed one by one, twice as fast for gram matrices."""
    columns = x1.shape[0]
    if columns > _FEW_COLUMNS:
        return jnp.sum(((x1 - x2) * scales) ** 2)
    scales = jnp.broadcast_to(scales, x1.shape)
    total = ((x1[0] - x2[0]) * scales[0]) ** 2
    for p in range(1, columns):
        total = total + ((x1[p] - x2[p]) * scales[p]) ** 2
    return total


def _squared_distance_derivative(primals, tangents):
    # In sums over many columns: in the gradient of a gram matrix, each is one pass over all pairs of rows.
    x1, x2, scales = primals
    moved1, moved2, scaled = (None if isinstance(each, SymbolicZero) else each for each in tangents)
    squared = _squared_distance(x1, x2, scales)
    change = jnp.zeros_like(squared)
    if scaled is not None and jnp.ndim(scales) == 0:
        change = change + 2.0 * squared * (scaled / scales)
    elif scaled is not None:
        weights = scales * scaled
        for begin in range(0, x1.shape[0], _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            change = change + 2.0 * jnp.sum((x1[part] - x2[part]) ** 2 * weights[part])
    for moved, sign in ((moved1, 2.0), (moved2, -2.0)):
        if moved is not None:
            change = change + sign * jnp.sum((x1 - x2) * scales**2 * moved)
    return squared, change


_squared_distance.defjvp(_squared_distance_derivative, symbolic_zeros=True)


class Stationary(Kernel):
    """A kernel of r² = Σ_p (x_p − x'_p)²/lengthscale_p²: one lengthscale for all columns, or one per column."""

    lengthscale: Any = hyperparameter("lengthscale", 1.0, max_ndim=1, unit="x")
    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    @abc.abstractmethod
    def correlation(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """c as a function of r²."""

    def evaluate(self, x1, x2):
        # Times 1: NumPy arrays that are mapped over inside `jax.jit` become JAX arrays, as `custom_jvp` wants them.
        squared = _squared_distance(1.0 * x1, 1.0 * x2, 1.0 / jnp.asarray(self.lengthscale))
        return self.variance * self.correlation(squared)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless there is one lengthscale, or one per column."""
        check_length(self.lengthscale, "lengthscale", dimension)


class RBF(Stationary):
    """Infinitely smooth functions: k = variance · exp(−r²/2).

    The state space form (on one column) is an approximation with `order` states; nothing else uses that number. It has
    the kernel's variance, and its covariance at any distance has at most this error, relative to the variance:

    | order | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
    |---|---|---|---|---|---|---|---|
    | error | 2.8e-2 | 6.5e-3 | 4.5e-4 | 6.2e-5 | 9.1e-6 | 1.7e-6 | 3.8e-7 |

    >>> k = RBF(lengthscale=[1.0, 2.0], variance=3.0)
    >>> round(float(k.evaluate(jnp.zeros(2), jnp.array([1.0, 2.0]))), 4)
    1.1036
    """

    order: int = whole_number("order", 6, lower=min(RBF_ORDERS), upper=max(RBF_ORDERS))

    def correlation(self, squared_distance):
        """exp(−r²/2)."""
        return jnp.exp(-0.5 * squared_distance)

    def blocks(self) -> tuple[Block, ...]:
        """An approximation, with f and f′ · lengthscale as the first two states."""
        return (RBFBlock(one_column(self.lengthscale, "lengthscale"), self.variance, self.order),)


class Matern12(Stationary):
    """Continuous, rough functions (Ornstein-Uhlenbeck): k = variance · exp(−r).

    >>> round(float(Matern12(lengthscale=2.0).evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.6065
    """

    def correlation(self, squared_distance):
        """exp(−r)."""
        return _matern(0, squared_distance)

    def blocks(self) -> tuple[Block, ...]:
        """One state, f."""
        return (MaternBlock(one_column(self.lengthscale, "lengthscale"), self.variance, 1),)


class Matern32(Stationary):
    """Once differentiable functions: k = variance · (1 + s) exp(−s), with s = √3 r.

    >>> round(float(Matern32().evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.4834
    """

    def correlation(self, squared_distance):
        """(1 + s) exp(−s)."""
        return _matern(1, 3.0 * squared_distance)

    def blocks(self) -> tuple[Block, ...]:
        """Two states: f and its derivative, in units of the kernel."""
        return (MaternBlock(one_column(self.lengthscale, "lengthscale"), self.variance, 2),)


class Matern52(Stationary):
    """Twice differentiable functions: k = variance · (1 + s + s²/3) exp(−s), with s = √5 r.

    >>> round(float(Matern52().evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.524
    """

    def correlation(self, squared_distance):
        """(1 + s + s²/3) exp(−s)."""
        return _matern(2, 5.0 * squared_distance)

    def blocks(self) -> tuple[Block, ...]:
        """Three states: f and its derivatives, in units of the kernel."""
        return (MaternBlock(one_column(self.lengthscale, "lengthscale"), self.variance, 3),)


class Matern72(Stationary):
    """Three times differentiable functions: k = variance · (1 + s + 2s²/5 + s³/15) exp(−s), with s = √7 r.

    >>> round(float(Matern72().evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.5449
    """

    def correlation(self, squared_distance):
        """(1 + s + 2s²/5 + s³/15) exp(−s)."""
        return _matern(3, 7.0 * squared_distance)

    def blocks(self) -> tuple[Block, ...]:
        """Four states: f and its derivatives, in units of the kernel."""
        return (MaternBlock(one_column(self.lengthscale, "lengthscale"), self.variance, 4),)


class RationalQuadratic(Stationary):
    """A mixture of RBF kernels with many lengthscales: k = variance · (1 + r²/(2 alpha))^(−alpha).

    >>> round(float(RationalQuadratic(alpha=0.5).evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.7071
    """

    alpha: Any = hyperparameter("alpha", 1.0)

    def correlation(self, squared_distance):
        """(1 + r²/(2 alpha))^(−alpha)."""
        # Through log1p, because 1 + r²/(2 alpha) loses r² when alpha is large.
        return jnp.exp(-self.alpha * jnp.log1p(squared_distance / (2.0 * self.alpha)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _matern(order: int, squared: Float[Array, ""]) -> Float[Array, ""]:
    """The Matern correlation with nu = order + 1/2, as a function of s²."""
    s = safe_sqrt(squared)
    coefficients = _MATERN_POLYNOMIALS[order]
    polynomial = jnp.full_like(s, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        polynomial = coefficient + s * polynomial
    return polynomial * jnp.exp(-s)


@_matern.defjvp
def _matern_derivative(order, primals, tangents):
    # The derivative with respect to s² is the next rougher Matern. With this rule, every derivative that exists is
    # right at s = 0, where differentiating through the root would give 0 from the second derivative on.
    (squared,), (tangent,) = primals, tangents
    if order == 0:
        return jax.jvp(lambda value: jnp.exp(-safe_sqrt(value)), primals, tangents)
    return _matern(order, squared), -_matern(order - 1, squared) / (4 * order - 2) * tangent


def safe_sqrt(squared):
    """The square root, with derivative 0 at 0."""
    # Both branches of `where` are differentiated, so the root must not be evaluated at zero either.
    positive = squared > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 0.0)
