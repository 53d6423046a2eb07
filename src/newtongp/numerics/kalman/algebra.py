"""The interface of the small matrices of one step, so that every recursion is written once.

There are two forms: small states are unrolled into one number per entry (`unrolled`), and larger ones are arrays
(`arrays`). A "number" is an array with one entry per piece of the chain, or a scalar.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..linalg import EPS

ROUNDING = 8.0 * EPS
"""A difference that is smaller than this, relative to its operands, is taken to be rounding error."""

Number = Any
Vector = Any
Matrix = Any


class Form(eqx.Module):
    """The representation of states: the sizes of the transition's blocks, and which states each latent observes.

    `selection[j]` lists the states whose sum is latent j; it is empty if the chain has observation weights.
    """

    sizes: tuple[int, ...] = eqx.field(static=True)
    selection: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def dimension(self) -> int:
        """The number of states."""
        return sum(self.sizes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first state of every block."""
        return tuple(int(offset) for offset in np.cumsum((0, *self.sizes[:-1])))

    @property
    def selection_rows(self) -> np.ndarray:
        """The observation matrix (D, d) of the selection."""
        rows = np.zeros((len(self.selection), self.dimension))
        for row, states in zip(rows, self.selection, strict=True):
            row[list(states)] = 1.0
        return rows

    @abc.abstractmethod
    def is_whole(self, pieces: int) -> bool:
        """Whether loops over these operations can be compiled as one kernel, for this number of pieces."""

    # Conversion -------------------------------------------------------------------------------

    @abc.abstractmethod
    def steps(self, blocks: tuple) -> Any:
        """The inputs of a loop from blocks (steps, pieces, b, b)."""

    @abc.abstractmethod
    def symmetric_steps(self, blocks: tuple) -> Any:
        """The inputs of a loop from symmetric blocks (steps, pieces, b, b)."""

    @abc.abstractmethod
    def matrix(self, step: Any) -> Matrix:
        """One step's matrix from its blocks."""

    @abc.abstractmethod
    def symmetric(self, step: Any) -> Matrix:
        """One step's symmetric matrix from its blocks."""

    @abc.abstractmethod
    def observation(self, weights: Any) -> list[Vector]:
        """One row per latent, from the step's weights, or from the selection if they are None."""

    @abc.abstractmethod
    def weight_steps(self, weights: Any) -> Any:
        """The inputs of a loop from observation weights (steps, pieces, D, d)."""

    @abc.abstractmethod
    def split(self, array: Any) -> Matrix:
        """A (..., d, d) array in this form; the leading axes are the pieces."""

    @abc.abstractmethod
    def split_vector(self, array: Any) -> Vector:
        """A (..., d) array in this form."""

    @abc.abstractmethod
    def join(self, matrix: Matrix) -> Any:
        """A matrix in this form as a (..., d, d) array."""

    @abc.abstractmethod
    def join_vector(self, vector: Vector) -> Any:
        """A vector in this form as a (..., d) array."""

    @abc.abstractmethod
    def full(self, step: Any) -> Any:
        """The (..., d, d) array of a matrix in blocks, as returned by `steps`."""

    @abc.abstractmethod
    def full_symmetric(self, step: Any) -> Any:
        """The (..., d, d) array of a symmetric matrix in blocks, as returned by `symmetric_steps`."""

    @abc.abstractmethod
    def root_steps(self, noise: Any) -> Any:
        """The inputs of a loop for square roots of the noise, from those for the noise, `symmetric_steps`."""

    @abc.abstractmethod
    def root_columns(self, step: Any) -> list[Vector]:
        """The columns of one step's root."""

    # Products ---------------------------------------------------------------------------------

    @abc.abstractmethod
    def apply(self, transition: Matrix, vector: Vector) -> Vector:
        """A v for a transition A."""

    @abc.abstractmethod
    def apply_transposed(self, transition: Matrix, vector: Vector) -> Vector:
        """Aᵀ v."""

    @abc.abstractmethod
    def propagate(self, transition: Matrix, matrix: Matrix) -> Matrix:
        """A F for a transition A and any matrix F."""

    @abc.abstractmethod
    def congruence(self, transition: Matrix, symmetric: Matrix) -> Matrix:
        """A P Aᵀ."""

    @abc.abstractmethod
    def congruence_transposed(self, transition: Matrix, symmetric: Matrix) -> Matrix:
        """Aᵀ L A."""

    @abc.abstractmethod
    def add(self, first: Matrix, second: Matrix) -> Matrix:
        """The sum of two symmetric matrices."""

    @abc.abstractmethod
    def times(self, symmetric: Matrix, vector: Vector) -> Vector:
        """P v for a symmetric P."""

    @abc.abstractmethod
    def times_left(self, vector: Vector, matrix: Matrix) -> Vector:
        """Fᵀ v for any matrix F."""

    @abc.abstractmethod
    def dot(self, first: Vector, second: Vector) -> Number:
        """vᵀ w."""

    @abc.abstractmethod
    def combine(self, vector: Vector, scale: Number, other: Vector) -> Vector:
        """v + s w."""

    @abc.abstractmethod
    def scale(self, scale: Number, vector: Vector) -> Vector:
        """s v."""

    @abc.abstractmethod
    def rank_one(self, symmetric: Matrix, scale: Number, vector: Vector) -> Matrix:
        """P + s v vᵀ."""

    @abc.abstractmethod
    def rank_one_general(self, matrix: Matrix, scale: Number, left: Vector, right: Vector) -> Matrix:
        """F + s v wᵀ."""

    @abc.abstractmethod
    def product(self, symmetric: Matrix, matrix: Matrix) -> Matrix:
        """P F for a symmetric P and any matrix F."""

    @abc.abstractmethod
    def pair(self, matrix: Matrix, step: Any) -> Number:
        """Σᵢⱼ Fᵢⱼ Aᵢⱼ for any matrix F and a transition in blocks."""

    @abc.abstractmethod
    def pair_symmetric(self, symmetric: Matrix, step: Any) -> Number:
        """Σᵢⱼ Pᵢⱼ Qᵢⱼ for a symmetric P and a noise in blocks."""

    @abc.abstractmethod
    def downdate(self, symmetric: Matrix, gain: Number, shrink: Number, vector: Vector, direction: Vector) -> Matrix:
        """P − g v vᵀ with v = P h and g = w / (1 + w hᵀPh); `shrink` is 1 / (1 + w hᵀPh)."""

    @abc.abstractmethod
    def single(self, direction: Vector) -> int | None:
        """The index of the state that a direction selects; None if it is not known to select exactly one."""

    @abc.abstractmethod
    def spread(self, symmetric: Matrix, direction: Vector, column: Vector) -> tuple[Number, Number | None]:
        """hᵀPh from P h, raised to its rounding error, and that error (None if h is a single state)."""

    @abc.abstractmethod
    def with_column(self, symmetric: Matrix, direction: Vector, column: Vector) -> Matrix:
        """P with P h replaced by `column` if h is a single state; otherwise P."""

    @abc.abstractmethod
    def valued(self, value: Vector, slope: Vector) -> Vector:
        """A vector with the values of `value` and the derivatives of `slope`."""

    @abc.abstractmethod
    def rank_two(self, symmetric: Matrix, direction: Vector, vector: Vector, scale: Number) -> Matrix:
        """L − h vᵀ − v hᵀ + s h hᵀ."""


def resolved(total: Number, largest: Number) -> tuple[Number, Number]:
    """A sum of terms of size `largest`, replaced by its rounding error if it is smaller; and that error."""
    least = ROUNDING * jnp.abs(largest)
    return jnp.where(jnp.abs(total) < least, least, total), least


def batched(function: Any, matrices: Any) -> Any:
    """A function of one matrix, mapped over the leading axes of (..., b, b)."""
    for _ in range(matrices.ndim - 2):
        function = jax.vmap(function)
    return function(matrices)
