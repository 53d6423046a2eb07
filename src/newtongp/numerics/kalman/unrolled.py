"""States of up to a handful of entries: one number per entry.

XLA compiles scalar arithmetic well and small matrix products badly. A vector is a list of numbers, a matrix a list of
rows. Zeros and ones that are known in advance (outside the blocks of a transition, in an observation) are Python
floats and cost nothing.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..small import small_root
from .algebra import Form, Number, batched, resolved


def _is(value: Any, known: float) -> bool:
    return isinstance(value, float) and value == known


def _times(a: Number, b: Number) -> Number:
    if _is(a, 0.0) or _is(b, 0.0):
        return 0.0
    if _is(a, 1.0):
        return b
    if _is(b, 1.0):
        return a
    return jax.lax.mul(a, b) if _are_alike(a, b) else a * b


def _plus(a: Number, b: Number) -> Number:
    if _is(a, 0.0):
        return b
    if _is(b, 0.0):
        return a
    return jax.lax.add(a, b) if _are_alike(a, b) else a + b


def _minus(a: Number, b: Number) -> Number:
    if _is(b, 0.0):
        return a
    if _is(a, 0.0):
        return -b
    return jax.lax.sub(a, b) if _are_alike(a, b) else a - b


def _are_alike(a: Number, b: Number) -> bool:
    """Whether an operation of `jax.lax` applies, which is traced in a fraction of the time of an operator."""
    return isinstance(a, jax.Array) and isinstance(b, jax.Array) and a.shape == b.shape and a.dtype == b.dtype


def _entry(array: Any, *indices: int) -> Any:
    """`array[..., i, j]` by operations of `jax.lax`; an index may not be negative."""
    if not isinstance(array, jax.Array):
        return array[(..., *indices)]
    kept = array.shape[: array.ndim - len(indices)]
    start, end = (0,) * len(kept) + indices, kept + tuple(index + 1 for index in indices)
    return jax.lax.reshape(jax.lax.slice(array, start, end), kept)


def _sum(terms: Iterable) -> Number:
    total: Number = 0.0
    for term in terms:
        total = _plus(total, term)
    return total


def _dot(a: Iterable, b: Iterable) -> Number:
    return _sum(_times(x, y) for x, y in zip(a, b, strict=True))


class Unrolled(Form):
    """One number per entry. Symmetric matrices share the entries above and below the diagonal."""

    def is_whole(self, pieces):
        return True

    def steps(self, blocks):
        return tuple(
            tuple(tuple(_entry(block, i, j) for j in range(size)) for i in range(size))
            for size, block in zip(self.sizes, blocks, strict=True)
        )

    def symmetric_steps(self, blocks):
        return tuple(
            tuple(_entry(block, i, j) for i in range(size) for j in range(i, size))
            for size, block in zip(self.sizes, blocks, strict=True)
        )

    def matrix(self, step):
        rows = self._zeros()
        for offset, block in zip(self.offsets, step, strict=True):
            for i, row in enumerate(block):
                rows[offset + i][offset : offset + len(row)] = row
        return rows

    def symmetric(self, step):
        return self.matrix(_symmetric_block(size, entries) for size, entries in zip(self.sizes, step, strict=True))

    def _zeros(self) -> list[list[Number]]:
        return [[0.0] * self.dimension for _ in range(self.dimension)]

    def observation(self, weights):
        return self.selection_rows.tolist() if weights is None else [list(row) for row in weights]

    def weight_steps(self, weights):
        latents = weights.shape[-2]
        return tuple(tuple(_entry(weights, j, i) for i in range(self.dimension)) for j in range(latents))

    def split(self, array):
        return [[_entry(array, i, j) for j in range(self.dimension)] for i in range(self.dimension)]

    def split_vector(self, array):
        return [_entry(array, i) for i in range(self.dimension)]

    def join(self, matrix):
        return jnp.stack([jnp.stack(row, axis=-1) for row in matrix], axis=-2)

    def join_vector(self, vector):
        return jnp.stack(vector, axis=-1)

    def full(self, step):
        return _stack_rows(self.matrix(step))

    def full_symmetric(self, step):
        return _stack_rows(self.symmetric(step))

    def root_steps(self, noise):
        columns = []
        for size, entries in zip(self.sizes, noise, strict=True):
            root = batched(small_root, self.join(_symmetric_block(size, entries)))
            columns.append(tuple(tuple(root[..., i, k] for i in range(k, size)) for k in range(size)))
        return tuple(columns)

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
        return self.times_left(vector, transition)

    def propagate(self, transition, matrix):
        return self.product(transition, matrix)

    def congruence(self, transition, symmetric):
        half = [[_dot(row, column) for column in symmetric] for row in transition]
        return self._mirror(lambda i, j: _dot(half[i], transition[j]))

    def congruence_transposed(self, transition, symmetric):
        return self.congruence(list(zip(*transition, strict=True)), symmetric)

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
        return [_dot(column, vector) for column in zip(*matrix, strict=True)]

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
        columns = list(zip(*matrix, strict=True))
        return [[_dot(row, column) for column in columns] for row in symmetric]

    def pair(self, matrix, step):
        return _sum(map(_dot, matrix, self.matrix(step)))

    def pair_symmetric(self, symmetric, step):
        return _sum(map(_dot, symmetric, self.symmetric(step)))

    def downdate(self, symmetric, gain, shrink, vector, direction):
        scaled = self.scale(gain, vector)
        lowered = self._mirror(lambda i, j: _minus(symmetric[i][j], _times(scaled[i], vector[j])))
        # The observed row is scaled as a whole, which avoids a small difference of large numbers.
        return self.with_column(lowered, direction, self.scale(shrink, vector))

    def single(self, direction):
        chosen = [i for i, entry in enumerate(direction) if not _is(entry, 0.0)]
        return chosen[0] if len(chosen) == 1 and _is(direction[chosen[0]], 1.0) else None

    def spread(self, symmetric, direction, column):
        single = self.single(direction)
        if single is not None:
            return column[single], None
        largest = _sum(_times(_times(h, h), symmetric[i][i]) for i, h in enumerate(direction))
        return resolved(_dot(direction, column), largest)

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


def _symmetric_block(size: int, entries: Iterable) -> list[list[Number]]:
    """The rows of a symmetric block from its entries on and above the diagonal."""
    remaining = iter(entries)
    rows: list[list[Number]] = [[0.0] * size for _ in range(size)]
    for i in range(size):
        for j in range(i, size):
            rows[i][j] = rows[j][i] = next(remaining)
    return rows


def _stack_rows(rows: list[list[Number]]) -> Any:
    """An array from rows of numbers, some of which are Python floats."""
    shape = next(np.shape(entry) for row in rows for entry in row if not isinstance(entry, float))
    return jnp.stack([jnp.stack([jnp.broadcast_to(entry, shape) for entry in row], axis=-1) for row in rows], axis=-2)
