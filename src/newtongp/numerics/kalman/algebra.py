"""The small matrices of one step, in two forms: one number per entry, or arrays.

XLA makes good code of scalar arithmetic and poor code of small matrix products, so states of up to a handful of
entries are unrolled: a vector is a list of numbers, a matrix a list of rows, and zeros that are known in advance
(outside the blocks of a transition, in an observation) are Python's `0.0` and cost nothing. A "number" is an array
with one entry per piece of the chain, or a scalar. Larger states are arrays, multiplied block by block.

Both forms offer the same operations, so that every recursion is written once.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..linalg import EPS, psd_root
from ..small import small_root

ROUNDING = 8.0 * EPS
"""What is left of a difference below this, relative to what it is a difference of, is taken to be rounding error."""

Number = Any
Vector = Any
Matrix = Any


class Form(eqx.Module):
    """How states are held: the sizes of the blocks of the transition, and which states each latent observes.

    `selection[j]` lists the states whose sum is latent j; it is empty where weights are given a step.
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

    @abc.abstractmethod
    def is_whole(self, pieces: int) -> bool:
        """Whether loops over these operations can be compiled as one kernel, for so many pieces."""

    # Conversion -------------------------------------------------------------------------------

    @abc.abstractmethod
    def steps(self, blocks: tuple) -> Any:
        """Blocks (steps, pieces, b, b) as what a loop runs over."""

    @abc.abstractmethod
    def symmetric_steps(self, blocks: tuple) -> Any:
        """The same for symmetric blocks."""

    @abc.abstractmethod
    def matrix(self, step: Any) -> Matrix:
        """One step's matrix from its blocks."""

    @abc.abstractmethod
    def symmetric(self, step: Any) -> Matrix:
        """One step's symmetric matrix from its blocks."""

    @abc.abstractmethod
    def observation(self, weights: Any) -> list[Vector]:
        """One row per latent, from the step's weights (None where the selection is known in advance)."""

    @abc.abstractmethod
    def weight_steps(self, weights: Any) -> Any:
        """Observation weights (steps, pieces, D, d) as what a loop runs over."""

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
        """A matrix in blocks, as `steps` gives it, as one (..., d, d) array."""

    @abc.abstractmethod
    def full_symmetric(self, step: Any) -> Any:
        """A symmetric matrix in blocks, as `symmetric_steps` gives it, as one (..., d, d) array."""

    @abc.abstractmethod
    def root_steps(self, noise: Any) -> Any:
        """Square roots of the blocks of the noise, as what a loop runs over, from what it runs over for the noise."""

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
        """P − g v vᵀ with v = P h and g = w / (1 + w hᵀPh), given also 1 / (1 + w hᵀPh)."""

    @abc.abstractmethod
    def single(self, direction: Vector) -> int | None:
        """The state that a direction is, if it is known to be one."""

    @abc.abstractmethod
    def spread(self, symmetric: Matrix, direction: Vector, column: Vector) -> tuple[Number, Number | None]:
        """hᵀPh, given also P h, and its rounding error, below which it is not; None where h is a single state."""

    @abc.abstractmethod
    def with_column(self, symmetric: Matrix, direction: Vector, column: Vector) -> Matrix:
        """P with this P h, where h is a single state; P as it is elsewhere."""

    @abc.abstractmethod
    def valued(self, value: Vector, slope: Vector) -> Vector:
        """A vector with the value of one and the derivatives of another."""

    @abc.abstractmethod
    def rank_two(self, symmetric: Matrix, direction: Vector, vector: Vector, scale: Number) -> Matrix:
        """L − h vᵀ − v hᵀ + s h hᵀ."""


# One number per entry -----------------------------------------------------------------------------


def _is(value: Any, known: float) -> bool:
    return isinstance(value, float) and value == known


def _times(a: Number, b: Number) -> Number:
    if _is(a, 0.0) or _is(b, 0.0):
        return 0.0
    if _is(a, 1.0):
        return b
    return a if _is(b, 1.0) else a * b


def _plus(a: Number, b: Number) -> Number:
    if _is(a, 0.0):
        return b
    return a if _is(b, 0.0) else a + b


def _minus(a: Number, b: Number) -> Number:
    if _is(b, 0.0):
        return a
    return -b if _is(a, 0.0) else a - b


def _sum(terms: Any) -> Number:
    total: Number = 0.0
    for term in terms:
        total = _plus(total, term)
    return total


def _dot(a: list, b: list) -> Number:
    return _sum(_times(x, y) for x, y in zip(a, b, strict=True))


class Unrolled(Form):
    """One number per entry. Symmetric matrices share the entries above and below the diagonal."""

    def is_whole(self, pieces):
        return True

    def steps(self, blocks):
        return tuple(
            tuple(tuple(block[..., i, j] for j in range(size)) for i in range(size))
            for size, block in zip(self.sizes, blocks, strict=True)
        )

    def symmetric_steps(self, blocks):
        return tuple(
            tuple(block[..., i, j] for i in range(size) for j in range(i, size))
            for size, block in zip(self.sizes, blocks, strict=True)
        )

    def matrix(self, step):
        rows = self._zeros()
        for offset, block in zip(self.offsets, step, strict=True):
            for i, row in enumerate(block):
                rows[offset + i][offset : offset + len(row)] = row
        return rows

    def symmetric(self, step):
        rows = self._zeros()
        for offset, size, entries in zip(self.offsets, self.sizes, step, strict=True):
            remaining = iter(entries)
            for i in range(size):
                for j in range(i, size):
                    rows[offset + i][offset + j] = rows[offset + j][offset + i] = next(remaining)
        return rows

    def _zeros(self) -> list[list[Number]]:
        return [[0.0] * self.dimension for _ in range(self.dimension)]

    def observation(self, weights):
        if weights is None:
            return [[1.0 if i in chosen else 0.0 for i in range(self.dimension)] for chosen in self.selection]
        return [list(row) for row in weights]

    def weight_steps(self, weights):
        latents = weights.shape[-2]
        return tuple(tuple(weights[..., j, i] for i in range(self.dimension)) for j in range(latents))

    def split(self, array):
        return [[array[..., i, j] for j in range(self.dimension)] for i in range(self.dimension)]

    def split_vector(self, array):
        return [array[..., i] for i in range(self.dimension)]

    def join(self, matrix):
        return jnp.stack([jnp.stack(row, axis=-1) for row in matrix], axis=-2)

    def join_vector(self, vector):
        return jnp.stack(vector, axis=-1)

    def full(self, step):
        return _stack_rows(self.matrix(step))

    def full_symmetric(self, step):
        return _stack_rows(self.symmetric(step))

    def root_steps(self, noise):
        return tuple(self._root(size, entries) for size, entries in zip(self.sizes, noise, strict=True))

    def _root(self, size, entries):
        remaining = iter(entries)
        rows = [[entries[0]] * size for _ in range(size)]
        for i in range(size):
            for j in range(i, size):
                rows[i][j] = rows[j][i] = next(remaining)
        stacked = jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)
        root = _batched(small_root, stacked)
        return tuple(tuple(root[..., i, k] for i in range(k, size)) for k in range(size))

    def root_columns(self, step):
        columns = []
        for offset, block in zip(self.offsets, step, strict=True):
            for k, entries in enumerate(block):
                column: list[Number] = [0.0] * self.dimension
                column[offset + k : offset + k + len(entries)] = entries
                columns.append(column)
        return columns

    def apply(self, transition, vector):
        return [_dot(row, vector) for row in transition]

    def apply_transposed(self, transition, vector):
        return [_dot([row[i] for row in transition], vector) for i in range(self.dimension)]

    def propagate(self, transition, matrix):
        columns = list(zip(*matrix, strict=True))
        return [[_dot(row, list(column)) for column in columns] for row in transition]

    def congruence(self, transition, symmetric):
        half = [[_dot(row, column) for column in symmetric] for row in transition]
        return self._mirror(lambda i, j: _dot(half[i], transition[j]))

    def congruence_transposed(self, transition, symmetric):
        return self.congruence([list(column) for column in zip(*transition, strict=True)], symmetric)

    def _mirror(self, entry) -> list[list[Number]]:
        """A symmetric matrix from its entries on and above the diagonal."""
        rows = self._zeros()
        for i in range(self.dimension):
            for j in range(i, self.dimension):
                rows[i][j] = rows[j][i] = entry(i, j)
        return rows

    def add(self, first, second):
        return self._mirror(lambda i, j: _plus(first[i][j], second[i][j]))

    def times(self, symmetric, vector):
        return [_dot(row, vector) for row in symmetric]

    def times_left(self, vector, matrix):
        return [_dot([row[i] for row in matrix], vector) for i in range(self.dimension)]

    def dot(self, first, second):
        return _dot(first, second)

    def combine(self, vector, scale, other):
        return [_plus(a, _times(scale, b)) for a, b in zip(vector, other, strict=True)]

    def scale(self, scale, vector):
        return [_times(scale, entry) for entry in vector]

    def rank_one(self, symmetric, scale, vector):
        scaled = self.scale(scale, vector)
        return self._mirror(lambda i, j: _plus(symmetric[i][j], _times(scaled[i], vector[j])))

    def rank_one_general(self, matrix, scale, left, right):
        scaled = self.scale(scale, left)
        return [
            [_plus(entry, _times(scaled[i], right[j])) for j, entry in enumerate(row)] for i, row in enumerate(matrix)
        ]

    def product(self, symmetric, matrix):
        columns = [list(column) for column in zip(*matrix, strict=True)]
        return [[_dot(row, column) for column in columns] for row in symmetric]

    def pair(self, matrix, step):
        return _sum(_dot(row, other) for row, other in zip(matrix, self.matrix(step), strict=True))

    def pair_symmetric(self, symmetric, step):
        return self.pair(symmetric, self._rows_of(step))

    def _rows_of(self, step):
        full = self.symmetric(step)
        return tuple(
            tuple(tuple(full[offset + i][offset : offset + size]) for i in range(size))
            for offset, size in zip(self.offsets, self.sizes, strict=True)
        )

    def downdate(self, symmetric, gain, shrink, vector, direction):
        scaled = self.scale(gain, vector)
        lowered = self._mirror(lambda i, j: _minus(symmetric[i][j], _times(scaled[i], vector[j])))
        # The row that is observed shrinks as a whole, and need not be found as a small difference.
        return self.with_column(lowered, direction, self.scale(shrink, vector))

    def single(self, direction):
        chosen = [i for i, entry in enumerate(direction) if not _is(entry, 0.0)]
        return chosen[0] if len(chosen) == 1 and _is(direction[chosen[0]], 1.0) else None

    def spread(self, symmetric, direction, column):
        single = self.single(direction)
        if single is not None:
            return column[single], None
        largest = _sum(_times(_times(h, h), symmetric[i][i]) for i, h in enumerate(direction))
        return _resolved(_dot(direction, column), largest)

    def with_column(self, symmetric, direction, column):
        single = self.single(direction)
        if single is None:
            return symmetric
        replaced = [list(row) for row in symmetric]
        for i, entry in enumerate(column):
            replaced[single][i] = replaced[i][single] = entry
        return replaced

    def valued(self, value, slope):
        return [v if _is(v, 0.0) else s + jax.lax.stop_gradient(v - s) for v, s in zip(value, slope, strict=True)]

    def rank_two(self, symmetric, direction, vector, scale):
        def entry(i, j):
            lowered = _minus(symmetric[i][j], _times(direction[i], vector[j]))
            lowered = _minus(lowered, _times(vector[i], direction[j]))
            return _plus(lowered, _times(scale, _times(direction[i], direction[j])))

        return self._mirror(entry)


def _resolved(found: Number, largest: Number) -> tuple[Number, Number]:
    """A sum of terms as large as this, or their rounding error where it is no more than that; and that error."""
    least = ROUNDING * jnp.abs(largest)
    return jnp.where(jnp.abs(found) < least, least, found), least


def _stack_rows(rows: list[list[Number]]) -> Any:
    """An array from rows of numbers, some of which are known in advance."""
    shape = next(np.shape(entry) for row in rows for entry in row if not isinstance(entry, float))
    return jnp.stack([jnp.stack([jnp.broadcast_to(entry, shape) for entry in row], axis=-1) for row in rows], axis=-2)


# Arrays ----------------------------------------------------------------------------------------

_LARGEST_BROADCAST = 8
"""Blocks up to this size are multiplied by broadcasting, larger ones by a matrix product."""
_SHORTEST_LIBRARY_SUM = 4096
"""Sums over an array with so many numbers are a library's on a CPU."""


class Arrays(Form):
    """Vectors (..., d) and matrices (..., d, d); neighbouring blocks of the same size are multiplied together."""

    def is_whole(self, pieces):
        # XLA leaves matrix products and long sums to libraries, which a loop in one kernel cannot call.
        return max(self.sizes) <= _LARGEST_BROADCAST and pieces * self.dimension**2 < _SHORTEST_LIBRARY_SUM

    def _runs(self) -> list[tuple[int, int, int]]:
        """Neighbouring blocks of the same size: (first state, how many, size)."""
        runs: list[tuple[int, int, int]] = []
        for offset, size in zip(self.offsets, self.sizes, strict=True):
            if runs and runs[-1][2] == size:
                first, count, _ = runs[-1]
                runs[-1] = (first, count + 1, size)
            else:
                runs.append((offset, 1, size))
        return runs

    def steps(self, blocks):
        grouped, position = [], 0
        for _, count, _ in self._runs():
            grouped.append(jnp.stack(blocks[position : position + count], axis=-3))
            position += count
        return tuple(grouped)

    def symmetric_steps(self, blocks):
        return self.steps(blocks)

    def matrix(self, step):
        return step

    def symmetric(self, step):
        size = self.dimension
        batch = step[0].shape[:-3]
        full = jnp.zeros((*batch, size, size))
        for (first, count, width), group in zip(self._runs(), step, strict=True):
            for k in range(count):
                at = first + k * width
                full = full.at[..., at : at + width, at : at + width].set(group[..., k, :, :])
        return full

    def observation(self, weights):
        if weights is None:
            rows = np.zeros((len(self.selection), self.dimension))
            for row, chosen in zip(rows, self.selection, strict=True):
                row[list(chosen)] = 1.0
            return list(rows)
        return [weights[..., j, :] for j in range(weights.shape[-2])]

    def weight_steps(self, weights):
        return weights

    def split(self, array):
        return array

    def split_vector(self, array):
        return array

    def join(self, matrix):
        return matrix

    def join_vector(self, vector):
        return vector

    def full(self, step):
        return self.symmetric(step)

    def full_symmetric(self, step):
        return self.symmetric(step)

    def root_steps(self, noise):
        return tuple(
            _batched(small_root if block.shape[-1] <= _LARGEST_BROADCAST else psd_root, block) for block in noise
        )

    def root_columns(self, step):
        columns = []
        for (first, count, width), group in zip(self._runs(), step, strict=True):
            for block in range(count):
                at = first + block * width
                padded = jnp.pad(group[block], ((at, self.dimension - at - width), (0, 0)))
                columns.extend(padded[:, k] for k in range(width))
        return columns

    def _product(self, step, matrix, transpose: bool):
        """A X or Aᵀ X for X of shape (..., d, K)."""
        parts = []
        for (first, count, width), group in zip(self._runs(), step, strict=True):
            group = jnp.swapaxes(group, -1, -2) if transpose else group
            batch, columns = matrix.shape[:-2], matrix.shape[-1]
            part = matrix[..., first : first + count * width, :].reshape(*batch, count, width, columns)
            if width > _LARGEST_BROADCAST:
                product = group @ part
            else:
                product = group[..., :, 0, None] * part[..., None, 0, :]
                for k in range(1, width):
                    product = product + group[..., :, k, None] * part[..., None, k, :]
            parts.append(product.reshape(*batch, count * width, columns))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-2)

    def apply(self, transition, vector):
        return self._product(transition, vector[..., None], False)[..., 0]

    def apply_transposed(self, transition, vector):
        return self._product(transition, vector[..., None], True)[..., 0]

    def propagate(self, transition, matrix):
        return self._product(transition, matrix, False)

    def congruence(self, transition, symmetric):
        half = self._product(transition, symmetric, False)
        return self._product(transition, jnp.swapaxes(half, -1, -2), False)

    def congruence_transposed(self, transition, symmetric):
        half = self._product(transition, symmetric, True)
        return self._product(transition, jnp.swapaxes(half, -1, -2), True)

    def add(self, first, second):
        return first + second

    def times(self, symmetric, vector):
        if isinstance(vector, np.ndarray):
            # A selection known in advance: the sum of some rows.
            rows = [symmetric[..., int(i), :] for i in np.flatnonzero(vector)]
            return sum(rows[1:], start=rows[0])
        return jnp.sum(symmetric * vector[..., None, :], axis=-1)

    def times_left(self, vector, matrix):
        if isinstance(vector, np.ndarray):
            return self.times(matrix, vector)
        return jnp.sum(matrix * vector[..., :, None], axis=-2)

    def dot(self, first, second):
        if isinstance(first, np.ndarray):
            return sum(second[..., int(i)] for i in np.flatnonzero(first))
        return jnp.sum(first * second, axis=-1)

    def combine(self, vector, scale, other):
        return vector + self.scale(scale, other)

    def scale(self, scale, vector):
        scale = jnp.asarray(scale)[..., None]
        return scale * _with_rank(vector, scale.ndim)

    def rank_one(self, symmetric, scale, vector):
        return self.rank_one_general(symmetric, scale, vector, vector)

    def rank_one_general(self, matrix, scale, left, right):
        scaled = self.scale(scale, left)
        return matrix + scaled[..., :, None] * right[..., None, :]

    def product(self, symmetric, matrix):
        return symmetric @ matrix

    def pair(self, matrix, step):
        return jnp.sum(matrix * self.full(step), axis=(-1, -2))

    def pair_symmetric(self, symmetric, step):
        return self.pair(symmetric, step)

    def downdate(self, symmetric, gain, shrink, vector, direction):
        return self.with_column(self.rank_one(symmetric, -gain, vector), direction, self.scale(shrink, vector))

    def single(self, direction):
        if not isinstance(direction, np.ndarray) or np.count_nonzero(direction) != 1 or np.max(direction) != 1.0:
            return None
        return int(np.argmax(direction))

    def spread(self, symmetric, direction, column):
        single = self.single(direction)
        if single is not None:
            return column[..., single], None
        diagonal = jnp.sum(symmetric * _with_rank(np.eye(self.dimension), symmetric.ndim), axis=-1)
        return _resolved(self.dot(direction, column), jnp.sum(direction**2 * diagonal, axis=-1))

    def with_column(self, symmetric, direction, column):
        single = self.single(direction)
        if single is None:
            return symmetric
        here = np.arange(self.dimension) == single
        row, across = _with_rank(here[None, :], symmetric.ndim), _with_rank(here[:, None], symmetric.ndim)
        return jnp.where(row, column[..., :, None], jnp.where(across, column[..., None, :], symmetric))

    def valued(self, value, slope):
        return slope + jax.lax.stop_gradient(value - slope)

    def rank_two(self, symmetric, direction, vector, scale):
        along = self.combine(-vector, 0.5 * scale, direction)
        outer = _with_rank(direction, along.ndim)[..., :, None] * along[..., None, :]
        return symmetric + outer + jnp.swapaxes(outer, -1, -2)


def _batched(function: Any, matrices: Any) -> Any:
    """A function of one matrix, for all of (..., b, b)."""
    for _ in range(matrices.ndim - 2):
        function = jax.vmap(function)
    return function(matrices)


def _with_rank(vector: Vector, rank: int) -> Vector:
    """A vector that is the same for all pieces, next to one per piece."""
    return vector.reshape((1,) * (rank - vector.ndim) + vector.shape)
