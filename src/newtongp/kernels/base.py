"""The kernel base class: the covariance of f at one pair of inputs. Sums, products, active dimensions.

A kernel is written for one pair (`evaluate(x1, x2)` with vectors of length P); `gram` maps it over rows.
"""

import abc
import functools
import operator
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..parameters.constraints import Positive, Real, learned
from ..validation.arguments import is_whole, one_number, traced, whole
from ..validation.numbers import parameter
from .statespace import Block, ConstantBlock, multiply_blocks, scale_blocks


def hyperparameter(
    name: str,
    default: Any,
    *,
    lower: float = 0.0,
    max_ndim: int = 0,
    learned_by_default: bool = True,
    unit: str | None = None,
) -> Any:
    """A learnable field of a kernel: a float64 array, checked when the kernel is created."""
    return learned(
        Positive() if lower == 0.0 else Real(),
        learned_by_default,
        unit,
        default=default,
        converter=lambda value: parameter(value, name, lower=lower, max_ndim=max_ndim),
    )


def whole_number(name: str, default: int, lower: int, upper: int | None = None) -> Any:
    """A field of a kernel that is an integer of at least `lower`: part of its structure, not learned."""
    return eqx.field(
        static=True, default=default, converter=lambda value: whole(value, name, lower, upper, such_as=default)
    )


def check_length(values: Any, name: str, dimension: int) -> None:
    """Raise ValueError unless a vector of hyperparameters has one entry per column of x."""
    shape = np.shape(values)
    if shape and shape[0] != dimension:
        raise ValueError(
            f"{name} has length {shape[0]}, but x has {dimension} column(s): "
            f"give one {name} per column, or a single number for all of them"
        )


def check_one_column(kernel: str, dimension: int) -> None:
    """Raise ValueError unless x has one column."""
    if dimension != 1:
        raise ValueError(
            f"{kernel} works on one column of x, but x has {dimension}: choose one, as in `{kernel}(...).on(0)`"
        )


def one_column(values: Any, name: str) -> Any:
    """The hyperparameter of the only column of x."""
    check_length(values, name, 1)
    return values[0] if np.ndim(values) else values


class Kernel(eqx.Module):
    """The covariance k(x, x') of one latent function.

    >>> from newtongp import kernels
    >>> k = 2.0 * kernels.Matern32(lengthscale=0.5) + kernels.Constant(0.1)
    >>> round(float(k.evaluate(np.zeros(1), np.zeros(1))), 6)
    2.1
    """

    @abc.abstractmethod
    def evaluate(self, x1: Float[Array, " P"], x2: Float[Array, " P"]) -> Float[Array, ""]:
        """k(x1, x2) for one pair of inputs."""

    def gram_matrix(self, x1: Float[Array, "N P"], x2: Float[Array, "M P"]) -> Float[Array, "N M"]:
        """k(x1, x2) over all pairs of rows; overridden where parts of k depend on one row only."""
        return jax.vmap(lambda a: jax.vmap(lambda b: _evaluated(self, a, b))(x2))(x1)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError if this kernel cannot be used on inputs with that many columns."""

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError if this kernel is not defined at one of these inputs, an (N, P) matrix."""

    def blocks(self) -> tuple[Block, ...]:
        """The state space form on one column of x: f is the sum of the first entries of these processes."""
        raise ValueError(
            f"{type(self).__name__} has no state space form: use it with `GP`, or choose another, such as a Matern; "
            f"a custom kernel may define a method `blocks`, see `newtongp.kernels.LinearSDE`"
        )

    def on(self, *dimensions: Any) -> "Kernel":
        """This kernel restricted to these columns of x, numbered from 0: `Matern52().on(0) + White().on(1)`."""
        return Active(self, dimensions)

    # NumPy would otherwise turn `array * kernel` into an array of kernels.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> "Kernel":
        """k + k', or k + c for a constant covariance c."""
        return Sum((self, _as_kernel(other)))

    def __radd__(self, other: Any) -> "Kernel":
        """c + k; 0 + k is k, so that `sum` works on a list of kernels."""
        return self if isinstance(other, int) and other == 0 else Sum((_as_kernel(other), self))

    def __mul__(self, other: Any) -> "Kernel":
        """k * k', or k * c for a positive number c."""
        return Product((self, other)) if isinstance(other, Kernel) else Scaled(self, other)

    def __rmul__(self, other: Any) -> "Kernel":
        """c * k for a positive number c."""
        return Scaled(self, other)


def _as_kernel(value: Any) -> Kernel:
    return value if isinstance(value, Kernel) else Constant(value)


class Constant(Kernel):
    """One unknown level, the same everywhere: k = variance.

    >>> round(float(Constant(0.5).evaluate(jnp.zeros(1), jnp.ones(1))), 4)
    0.5
    """

    variance: Any = hyperparameter("variance", 1.0, unit="f2")

    def evaluate(self, x1, x2):
        return jnp.asarray(self.variance)

    def blocks(self) -> tuple[Block, ...]:
        """One state, the level."""
        return (ConstantBlock(self.variance),)


class _Composed(Kernel):
    """A kernel of several parts. Nested operations of the same kind become one."""

    parts: tuple[Kernel, ...]

    def __init__(self, parts: Sequence[Kernel]):
        flat: list[Kernel] = []
        for part in parts:
            flat.extend(part.parts if type(part) is type(self) else (part,))
        self.parts = tuple(flat)

    def check_inputs(self, dimension: int) -> None:
        for part in self.parts:
            part.check_inputs(dimension)

    def check_values(self, x: np.ndarray) -> None:
        for part in self.parts:
            part.check_values(x)


class Sum(_Composed):
    """k1 + k2 + ...: the covariance of a sum of independent functions."""

    def gram_matrix(self, x1, x2):
        return functools.reduce(operator.add, (part.gram_matrix(x1, x2) for part in self.parts))

    def evaluate(self, x1, x2):
        return functools.reduce(operator.add, (part.evaluate(x1, x2) for part in self.parts))

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of all parts."""
        return tuple(block for part in self.parts for block in part.blocks())


class Product(_Composed):
    """k1 * k2 * ...: periodic x Matern is quasi-periodic, cosine x Matern a sub-band."""

    def evaluate(self, x1, x2):
        return functools.reduce(operator.mul, (part.evaluate(x1, x2) for part in self.parts))

    def blocks(self) -> tuple[Block, ...]:
        """The products of the blocks of the parts, in all combinations."""
        return multiply_blocks([part.blocks() for part in self.parts])


class Scaled(Kernel):
    """scale * k."""

    kernel: Kernel
    scale: Any = hyperparameter("scale", 1.0)

    def evaluate(self, x1, x2):
        return self.scale * self.kernel.evaluate(x1, x2)

    def check_inputs(self, dimension: int) -> None:
        self.kernel.check_inputs(dimension)

    def check_values(self, x: np.ndarray) -> None:
        self.kernel.check_values(x)

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the kernel, scaled."""
        return scale_blocks(self.kernel.blocks(), self.scale)


class Active(Kernel):
    """A kernel of some columns of x.

    If nested, inner columns are numbered within the outer ones: `k.on(1).on(2, 0)` uses column 0.
    """

    kernel: Kernel
    dimensions: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernel: Kernel, dimensions: Sequence[Any]):
        """`dimensions`: column numbers from 0, in the order in which the kernel uses them."""
        if not dimensions or any(not is_whole(d) or d < 0 for d in dimensions):
            raise ValueError(
                f"dimensions must be one or more column numbers from 0, got {tuple(dimensions)!r}: "
                f"write `kernel.on(0, 2)`"
            )
        self.kernel = kernel
        self.dimensions = tuple(int(d) for d in dimensions)

    def evaluate(self, x1, x2):
        columns = np.asarray(self.dimensions)
        return self.kernel.evaluate(x1[columns], x2[columns])

    def check_inputs(self, dimension: int) -> None:
        if max(self.dimensions) >= dimension:
            raise ValueError(
                f"the kernel uses column {max(self.dimensions)} of x, but x has {dimension} column(s), "
                f"numbered from 0: give x more columns or change `on(...)`"
            )
        self.kernel.check_inputs(len(self.dimensions))

    def check_values(self, x: np.ndarray) -> None:
        self.kernel.check_values(x[:, list(self.dimensions)])

    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the kernel, if it uses column 0 only."""
        if self.dimensions != (0,):
            raise ValueError(
                f"a state space form has one column of x, column 0, but the kernel uses {self.dimensions}: "
                f"use it with `GP`, or leave out `on(...)`"
            )
        return self.kernel.blocks()


def check_rows(kernel: Kernel, *inputs: Any) -> None:
    """Raise ValueError unless these are arrays of input rows that the kernel can be used on.

    Shapes are known while JAX traces, so this costs nothing. Without it, a vector of the wrong length would be
    broadcast silently.
    """
    for x in inputs:
        if np.ndim(x) != 2:
            raise ValueError(f"x must have shape (rows, columns), got {np.shape(x)}: write `x[:, None]` for one column")
        if np.shape(x)[1] != np.shape(inputs[0])[1]:
            raise ValueError(
                f"the inputs have different numbers of columns: {np.shape(inputs[0])[1]} and {np.shape(x)[1]}"
            )
    kernel.check_inputs(np.shape(inputs[0])[1])


def gram(kernel: Kernel, x1: Float[Array, "N P"], x2: Float[Array, "M P"]) -> Float[Array, "N M"]:
    """The matrix k(x1, x2) over all pairs of rows."""
    check_rows(kernel, x1, x2)
    return kernel.gram_matrix(x1, x2)


def diagonal(kernel: Kernel, x: Float[Array, "N P"]) -> Float[Array, " N"]:
    """The variance k(x, x) of every row."""
    check_rows(kernel, x)
    return jax.vmap(lambda a: _evaluated(kernel, a, a))(x)


def _evaluated(kernel: Kernel, x1: Float[Array, " P"], x2: Float[Array, " P"]) -> Float[Array, ""]:
    """k(x1, x2), for a kernel that may be custom."""
    name = f"`evaluate` of {type(kernel).__name__}"
    with traced(name):
        value = kernel.evaluate(x1, x2)
    return one_number(value, name, "its arguments are two rows (vectors), so sum over their columns or choose one")
