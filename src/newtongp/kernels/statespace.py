"""State space forms of kernels of one input: linear stochastic differential equations.

A kernel with a state space form is a tuple of blocks, `kernel.blocks()`. Each block is a Gaussian Markov process x(t),
and f(t) is the sum of their first entries. Hence k(s, t) = Σ [A(s → t) P(s)]₀₀ for s ≤ t, with P the block's
`covariance` and A its `transition`. The blocks of composed kernels follow from those of their parts.

Everything is written for one pair of times, and mapped over pairs. At equal times A = I and Q = 0, exactly.
"""

import abc
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..numerics.small import symmetrise
from ..validation.numbers import parameter

Matrix = Float[Array, "b b"]


class Block(eqx.Module):
    """One component x(t) of a kernel's state, a linear Gaussian Markov process whose first entry is added to f.

    >>> from newtongp import kernels
    >>> (block,) = kernels.Matern32(lengthscale=2.0, variance=0.5).blocks()
    >>> block.size, block.covariance(0.0).tolist()
    (2, [[0.5, 0.0], [0.0, 0.5]])
    >>> block.transition(1.0, 1.0).tolist(), block.noise(1.0, 1.0).tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]])
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """b, the number of entries of x."""

    @property
    def deterministic(self) -> bool:
        """Whether x(s) determines x(t), so that the noise is zero for any step."""
        return False

    @abc.abstractmethod
    def covariance(self, time: Any) -> Matrix:
        """P: the prior covariance of x(time)."""

    @abc.abstractmethod
    def transition(self, start: Any, end: Any) -> Matrix:
        """A: the matrix with E[x(end) | x(start)] = A x(start), for start ≤ end."""

    @abc.abstractmethod
    def noise(self, start: Any, end: Any) -> Matrix:
        """Q: the covariance of x(end) given x(start), for start ≤ end."""


# Blocks of the simple kernels -----------------------------------------------------------------


class ConstantBlock(Block):
    """A constant level."""

    variance: Any

    @property
    def size(self) -> int:
        return 1

    @property
    def deterministic(self) -> bool:
        return True

    def covariance(self, time):
        return jnp.reshape(self.variance, (1, 1))

    def transition(self, start, end):
        return jnp.ones((1, 1))

    def noise(self, start, end):
        return jnp.zeros((1, 1))


class WhiteBlock(Block):
    """A new independent value at every new time."""

    variance: Any

    @property
    def size(self) -> int:
        return 1

    def covariance(self, time):
        return jnp.reshape(self.variance, (1, 1))

    def transition(self, start, end):
        return jnp.reshape(jnp.where(end > start, 0.0, 1.0), (1, 1))

    def noise(self, start, end):
        return jnp.reshape(jnp.where(end > start, self.variance, 0.0), (1, 1))


class LinearBlock(Block):
    """A straight line through zero at the centre: x = (f, slope)."""

    variance: Any
    centre: Any

    @property
    def size(self) -> int:
        return 2

    @property
    def deterministic(self) -> bool:
        return True

    def covariance(self, time):
        reach = jnp.stack([time - self.centre, jnp.ones_like(time - self.centre)])
        return self.variance * reach[:, None] * reach[None, :]

    def transition(self, start, end):
        return _drift_along(end - start)

    def noise(self, start, end):
        return jnp.zeros((2, 2))


class OscillationBlock(Block):
    """A sinusoid of random amplitude and phase, with `harmonic` turns per period: x = (f, f a quarter turn later)."""

    variance: Any
    period: Any
    harmonic: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        return 2

    @property
    def deterministic(self) -> bool:
        return True

    def covariance(self, time):
        return self.variance * np.eye(2)

    def transition(self, start, end):
        angle = 2.0 * jnp.pi * self.harmonic * _turns(end - start, self.period)
        return jnp.cos(angle) * np.eye(2) + jnp.sin(angle) * np.array([[0.0, 1.0], [-1.0, 0.0]])

    def noise(self, start, end):
        return jnp.zeros((2, 2))


def _turns(step, period):
    """The fractional part of step / period."""
    # The remainder is exact even if step / period has no digits after the point. It jumps where the step is a multiple
    # of the period, so the derivative is taken from the quotient, which enters with the value zero.
    quotient = step / period
    return jax.lax.stop_gradient(jnp.fmod(step, period) / period) + (quotient - jax.lax.stop_gradient(quotient))


class BrownianBlock(Block):
    """A random walk that starts from zero at the origin."""

    variance: Any
    origin: Any

    @property
    def size(self) -> int:
        return 1

    def covariance(self, time):
        return jnp.reshape(self.variance * (time - self.origin), (1, 1))

    def transition(self, start, end):
        return jnp.ones((1, 1))

    def noise(self, start, end):
        return jnp.reshape(self.variance * (end - start), (1, 1))


class IntegratedBrownianBlock(Block):
    """The integral of a random walk, both zero at the origin: x = (f, slope)."""

    variance: Any
    origin: Any

    @property
    def size(self) -> int:
        return 2

    def covariance(self, time):
        return self.noise(self.origin, time)

    def transition(self, start, end):
        return _drift_along(end - start)

    def noise(self, start, end):
        step = end - start
        integrals = horner(step, (np.diag([0.0, 1.0]), np.array([[0.0, 0.5], [0.5, 0.0]]), np.diag([1 / 3, 0.0])))
        return self.variance * step * integrals


class IntegratedMatern12Block(Block):
    """The integral, zero at the origin, of a stationary Ornstein–Uhlenbeck process: x = (f, slope)."""

    lengthscale: Any
    variance: Any
    origin: Any

    @property
    def size(self) -> int:
        return 2

    def covariance(self, time):
        since = (time - self.origin) / self.lengthscale
        f, cross = 2.0 * self.lengthscale**2 * excess(since), self.lengthscale * shortfall(since)
        return self.variance * _symmetric(f, cross, jnp.ones_like(f))

    def transition(self, start, end):
        step = (end - start) / self.lengthscale
        moved, left = self.lengthscale * shortfall(step), jnp.exp(-step)
        return jnp.stack([jnp.stack([jnp.ones_like(moved), moved]), jnp.stack([jnp.zeros_like(left), left])])

    def noise(self, start, end):
        step = (end - start) / self.lengthscale
        short = shortfall(step)
        f, cross = 2.0 * self.lengthscale**2 * _squared_shortfalls(step), self.lengthscale * short**2
        return self.variance * _symmetric(f, cross, shortfall(2.0 * step))


def shortfall(x):
    """1 − exp(−x)."""
    return -jnp.expm1(-x)


_FEW = 0.5
"""Below this, integrals of `shortfall` are sums of powers."""


def excess(x):
    """x − (1 − exp(−x)), the integral of `shortfall`, without cancellation."""
    powers = [(-1.0) ** k / math.factorial(k) for k in range(2, 16)]
    small = jnp.minimum(x, _FEW)
    return jnp.where(x < _FEW, small**2 * horner(small, powers), x - shortfall(x))


def _squared_shortfalls(x):
    """The integral of `shortfall`² from 0 to x, without cancellation."""
    powers = [(-1.0) ** k * (2.0**k - 2.0) / math.factorial(k + 1) for k in range(2, 20)]
    small = jnp.minimum(x, _FEW)
    short = shortfall(x)
    return jnp.where(x < _FEW, small**3 * horner(small, powers), x - short - 0.5 * short**2)


def _symmetric(first, cross, second):
    """A symmetric matrix of two rows."""
    return jnp.stack([jnp.stack([first, cross]), jnp.stack([cross, second])])


def _drift_along(step):
    """The transition of (f, slope) with a constant slope."""
    return np.eye(2) + step * np.array([[0.0, 1.0], [0.0, 0.0]])


def horner(x, coefficients: Sequence[Any]):
    """Σ_k coefficients[k] x^k."""
    return functools.reduce(lambda total, coefficient: coefficient + x * total, reversed(coefficients))


# Blocks of composed kernels -------------------------------------------------------------------


class ScaledBlock(Block):
    """√scale · x."""

    block: Block
    scale: Any

    @property
    def size(self) -> int:
        return self.block.size

    @property
    def deterministic(self) -> bool:
        return self.block.deterministic

    def covariance(self, time):
        return self.scale * self.block.covariance(time)

    def transition(self, start, end):
        return self.block.transition(start, end)

    def noise(self, start, end):
        return self.scale * self.block.noise(start, end)


class ProductBlock(Block):
    """x₁ ⊗ x₂ of two independent processes: its covariance is the product of theirs."""

    left: Block
    right: Block

    @property
    def size(self) -> int:
        return self.left.size * self.right.size

    @property
    def deterministic(self) -> bool:
        return self.left.deterministic and self.right.deterministic

    def covariance(self, time):
        return _kronecker(self.left.covariance(time), self.right.covariance(time))

    def transition(self, start, end):
        return _kronecker(self.left.transition(start, end), self.right.transition(start, end))

    def noise(self, start, end):
        """Q₁ ⊗ P₂ + (P₁ − Q₁) ⊗ Q₂ with P at the end: P₁ ⊗ P₂ − A₁P₁A₁ᵀ ⊗ A₂P₂A₂ᵀ without cancellation."""
        if self.left.deterministic:
            return _kronecker(self.left.covariance(end), self.right.noise(start, end))
        new = self.left.noise(start, end)
        total = _kronecker(new, self.right.covariance(end))
        if self.right.deterministic:
            return total
        return total + _kronecker(self.left.covariance(end) - new, self.right.noise(start, end))


def _kronecker(left, right):
    size = left.shape[0] * right.shape[0]
    return (left[:, None, :, None] * right[None, :, None, :]).reshape(size, size)


def scale_blocks(blocks: Sequence[Block], scale: Any) -> tuple[Block, ...]:
    """The blocks of scale · k."""
    return tuple(ScaledBlock(block, scale) for block in blocks)


def multiply_blocks(factors: Sequence[Sequence[Block]]) -> tuple[Block, ...]:
    """The blocks of k₁ · k₂ · …: a product of sums is the sum of the products."""
    return tuple(functools.reduce(_multiply, chosen) for chosen in itertools.product(*factors))


def _multiply(left: Block, right: Block) -> Block:
    if isinstance(left, ConstantBlock):
        return ScaledBlock(right, left.variance)
    if isinstance(right, ConstantBlock):
        return ScaledBlock(left, right.variance)
    return ProductBlock(left, right)


# A block from its differential equation -------------------------------------------------------


class LinearSDE(Block):
    """dx = F x dt + dβ in its stationary state: the block for a custom kernel.

    `drift` is F, `diffusion` the covariance of β per unit of time (L q Lᵀ) and `stationary` the covariance of x, which
    solves F P + P Fᵀ + L q Lᵀ = 0. Steps may have any length from 0 to 10¹¹/‖F‖; longer ones are treated as that.

    >>> import numpy as np
    >>> from newtongp import kernels
    >>> class Resonance(kernels.Kernel):  # a damped spring, pushed at random
    ...     def evaluate(self, x1, x2):
    ...         r = jnp.abs(x1[0] - x2[0])
    ...         return jnp.exp(-r) * (jnp.cos(2.0 * r) + 0.5 * jnp.sin(2.0 * r))
    ...
    ...     def blocks(self):
    ...         drift = np.array([[0.0, 1.0], [-5.0, -2.0]])
    ...         return (LinearSDE(drift, np.diag([0.0, 20.0]), np.diag([1.0, 5.0])),)
    >>> (block,) = Resonance().blocks()
    >>> round(float(block.transition(0.0, 0.3)[0, 0]), 4)
    0.8206
    >>> round(float(Resonance().evaluate(jnp.zeros(1), jnp.array([0.3]))), 4)
    0.8206
    """

    drift: Any
    diffusion: Any
    stationary: Any

    def __init__(self, drift: Any, diffusion: Any, stationary: Any):
        """All three are (b, b)."""
        self.drift = _square(drift, "drift")
        self.diffusion = _square(diffusion, "diffusion")
        self.stationary = _square(stationary, "stationary")
        shapes = {np.shape(matrix) for matrix in (self.drift, self.diffusion, self.stationary)}
        if len(shapes) > 1:
            raise ValueError(f"drift, diffusion and stationary must have the same shape, got {sorted(shapes)}")
        _check_stationary(self.drift, self.diffusion, self.stationary)

    @property
    def size(self) -> int:
        return np.shape(self.drift)[0]

    def covariance(self, time):
        return jnp.asarray(self.stationary)

    def transition(self, start, end):
        return _discretise(self.drift, self.diffusion, end - start)[0]

    def noise(self, start, end):
        return _discretise(self.drift, self.diffusion, end - start)[1]


def _square(value, name: str):
    matrix = parameter(value, name, max_ndim=2)
    shape = np.shape(matrix)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"{name} must be a square matrix, got shape {shape}")
    return matrix


def _check_stationary(drift, diffusion, stationary) -> None:
    """Raise ValueError unless the covariance is stationary. Tracers are not checked."""
    if any(isinstance(matrix, jax.core.Tracer) for matrix in (drift, diffusion, stationary)):
        return
    change = drift @ stationary
    change = change + change.T + diffusion
    scale = np.abs(drift) @ np.abs(stationary)
    if np.any(np.abs(change) > 1e-6 * (scale + scale.T + np.abs(diffusion)).max()):
        raise ValueError(
            f"stationary must solve drift @ P + P @ drift.T + diffusion = 0, but the left side has entries up to "
            f"{np.abs(change).max():.3g}: use scipy.linalg.solve_continuous_lyapunov(drift, -diffusion)"
        )


_TERMS = 26
_DOUBLINGS = 38


def _discretise(drift, diffusion, step):
    """A = exp(F h) and Q = ∫₀ʰ exp(F s) L q Lᵀ exp(F s)ᵀ ds, by a Taylor series for h / 2ᵏ and k doublings.

    There is no cancellation: entries of Q that are of high order in a small step keep their digits, unlike in
    P − A P Aᵀ or in the exponential of one matrix that contains both.
    """
    drift, diffusion = jnp.asarray(drift), jnp.asarray(diffusion)
    norm = jax.lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(drift), axis=1)))
    step = jnp.minimum(step, 0.5 * 2.0**_DOUBLINGS / jnp.where(norm > 0.0, norm, 1.0))
    reach = jax.lax.stop_gradient(jnp.maximum(norm * step, 0.5))
    doublings = jnp.minimum(jnp.ceil(jnp.log2(2.0 * reach)), _DOUBLINGS)
    small = step * jnp.exp2(-doublings)

    def add_term(carry, order):
        transition, noise, mean_term, noise_term = carry
        mean_term = drift @ mean_term * (small / order)
        noise_term = drift @ noise_term
        noise_term = (noise_term + noise_term.T) * (small / (order + 1.0))
        return (transition + mean_term, noise + noise_term, mean_term, noise_term), None

    def double(carry, index):
        transition, noise = carry
        twice = transition @ transition, noise + transition @ noise @ transition.T
        return jax.tree.map(lambda new, old: jnp.where(index < doublings, new, old), twice, carry), None

    first = jnp.eye(drift.shape[0], dtype=drift.dtype), diffusion * small
    (transition, noise, _, _), _ = jax.lax.scan(add_term, (*first, *first), jnp.arange(1.0, _TERMS))
    (transition, noise), _ = jax.lax.scan(double, (transition, noise), jnp.arange(float(_DOUBLINGS)))
    return transition, symmetrise(noise)
