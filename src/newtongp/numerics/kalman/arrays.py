"""Larger states: arrays, with transitions multiplied block by block."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..linalg import psd_root
from ..small import small_root
from .algebra import Form, Vector, batched, resolved

_LARGEST_BROADCAST = 8
"""Blocks up to this size are multiplied by broadcasting, larger ones by a matrix product."""
_LARGEST_PACKED, _FEW_STATES = 4, 8
"""Symmetric blocks up to this size, of so few states, are stored without the entries below the diagonal.

Larger blocks unpack slowly, and of more states the noise is a smaller part.
"""
_SHORTEST_LIBRARY_SUM = 4096
"""On a CPU, XLA leaves sums over arrays of at least this size to a library."""


class Arrays(Form):
    """Vectors (..., d) and matrices (..., d, d); neighbouring blocks of the same size are multiplied together."""

    def is_whole(self, pieces):
        # XLA leaves matrix products and long sums to libraries, which a loop in one kernel cannot call.
        return max(self.sizes) <= _LARGEST_BROADCAST and pieces * self.dimension**2 < _SHORTEST_LIBRARY_SUM

    def _runs(self) -> list[tuple[int, int, int]]:
        """Neighbouring blocks of the same size: (first state, number of blocks, size)."""
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
        return tuple(
            group[..., *np.triu_indices(width)] if self._packs(width) else group
            for (_, _, width), group in zip(self._runs(), self.steps(blocks), strict=True)
        )

    def _packs(self, width: int) -> bool:
        return width <= _LARGEST_PACKED and self.dimension <= _FEW_STATES

    def matrix(self, step):
        return step

    def symmetric(self, step):
        return self.full(self._symmetric_blocks(step))

    def _symmetric_blocks(self, step):
        """The blocks as returned by `steps`, from `symmetric_steps`."""
        return tuple(
            _unpacked(group, width) if self._packs(width) else group
            for (_, _, width), group in zip(self._runs(), step, strict=True)
        )

    def full(self, step):
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
            return list(self.selection_rows)
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

    def full_symmetric(self, step):
        return self.symmetric(step)

    def root_steps(self, noise):
        return tuple(
            batched(small_root if block.shape[-1] <= _LARGEST_BROADCAST else psd_root, block)
            for block in self._symmetric_blocks(noise)
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
        rank = max(scale.ndim, vector.ndim)
        return _with_rank(scale, rank) * _with_rank(vector, rank)

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
        return self.pair(symmetric, self._symmetric_blocks(step))

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
        return resolved(
            self.dot(direction, column), jnp.sum(_with_rank(direction**2, diagonal.ndim) * diagonal, axis=-1)
        )

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


def _unpacked(entries: Any, size: int) -> Any:
    """Symmetric matrices (..., size, size) from their entries on and above the diagonal, row by row."""
    full, start = jnp.zeros((*entries.shape[:-1], size, size)), 0
    for i in range(size):
        row = entries[..., start : start + size - i]
        full = full.at[..., i, i:].set(row)
        if i + 1 < size:
            full = full.at[..., i + 1 :, i].set(row[..., 1:])
        start += size - i
    return full


def _with_rank(vector: Vector, rank: int) -> Vector:
    """A vector that is the same for all rows or pieces, with leading axes added for broadcasting."""
    return vector.reshape((1,) * (rank - vector.ndim) + vector.shape)
