"""Conditioning of sums of terms: f = μ + Σ_b Φ_b z_b with weights z ~ N(0, I), and terms over levels as codes.

A *block* has one vector of weights per level, and a row of the data uses those of its own level: f gets
columnsₙ · Z[codeₙ]. Without codes there is one level, and the block is a matrix of columns. With a root R, the weights
of the levels are correlated, Z = R z. Some blocks are flat: their weights have no prior, so that log det(I + ΛK) is
log det P − p log 2π for their p weights.

Products with Φ and Φᵀ are gathers and sums by level: the matrix Φ is never formed. Groups that are nested in each other
may be *eliminated*, level by level (`elimination.py`); all other weights are solved for together.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..numerics import linalg
from ..terms.base import Weights


class Block(eqx.Module):
    """The rows of a term: at row n, f of one latent gets columnsₙ · Z[codeₙ], with Z (L, Q)."""

    codes: Int[Array, " N"] | None
    columns: Float[Array, "N Q"]
    root: Float[Array, "L R"] | None
    """Z = root @ z; None if the levels are independent."""
    levels: int = eqx.field(static=True)
    over: str = eqx.field(static=True, default="")
    """The name of the codes: blocks with the same name have the same codes."""
    latent: int = eqx.field(static=True, default=0)
    flat: bool = eqx.field(static=True, default=False)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of z."""
        return self.levels if self.root is None else self.root.shape[1], self.columns.shape[1]

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.shape[0] * self.shape[1]


def block_of(weights: Weights, latent: int) -> Block:
    """The weights of a term as a block of a latent."""
    return Block(weights.codes, weights.columns, weights.root, weights.levels, weights.over, latent, weights.flat)


def residual_of(weights: Sequence[Sequence[Weights]], rows: int) -> Float[Array, "N D D"] | None:
    """The covariance that the weights of all terms of every latent leave at the data; None if they leave nothing."""
    own = [[one.residual for one in latent if one.residual is not None] for latent in weights]
    if not any(own):
        return None
    variances = [sum(parts, jnp.zeros(rows)) for parts in own]
    return jax.vmap(jnp.diag)(jnp.stack(variances, axis=1))


class Blocks(eqx.Module):
    """All blocks of a prior, and the prior mean (N, D)."""

    mean: Float[Array, "N D"]
    eliminated: tuple[tuple[Block, ...], ...]
    """Nested groups from the inside out: every level of one sits in one level of the next. The blocks of a group are
    independent, and over the same codes."""
    rest: tuple[Block, ...]
    within: tuple[tuple[Int[Array, " _"], ...], ...] = ()
    """For every group, and for every group around it: in which level of that group each of its levels sits."""


# Products -----------------------------------------------------------------------------------------


def level_weights(block: Block, weights: Float[Array, " S"]) -> Float[Array, "L Q"]:
    """Z, the weights of every level."""
    inner = weights.reshape(block.shape)
    return inner if block.root is None else block.root @ inner


def _at_rows(block: Block, by_level: Float[Array, "L Q"]) -> Float[Array, " N"]:
    if block.codes is None:
        return block.columns @ by_level[0]
    # Column by column: a gather of rows takes several times as long.
    parts = [block.columns[:, q] * by_level[:, q][block.codes] for q in range(block.columns.shape[1])]
    return sum(parts[1:], parts[0])


def times(block: Block, weights: Float[Array, " S"]) -> Float[Array, " N"]:
    """Φ_b z."""
    return _at_rows(block, level_weights(block, weights))


def _by_level(block: Block, values: Float[Array, " N"]) -> Float[Array, "L Q"]:
    if block.codes is None:
        return (values @ block.columns)[None]
    sums = [
        jax.ops.segment_sum(values * block.columns[:, q], block.codes, block.levels)
        for q in range(block.columns.shape[1])
    ]
    return jnp.stack(sums, axis=1)


def transposed_times(block: Block, values: Float[Array, " N"]) -> Float[Array, " S"]:
    """Φ_bᵀ v."""
    sums = _by_level(block, values)
    return (sums if block.root is None else block.root.T @ sums).reshape(-1)


def offsets(blocks: tuple[Block, ...]) -> list[slice]:
    """Where the weights of every block are among those of all."""
    ends = np.cumsum([0, *(block.size for block in blocks)])
    return [slice(int(begin), int(end)) for begin, end in itertools.pairwise(ends)]


def all_times(blocks: tuple[Block, ...], weights: Float[Array, " P"], latents: int, rows: int) -> Float[Array, "N D"]:
    """Φz of all blocks, by latent."""
    total = [jnp.zeros(rows) for _ in range(latents)]
    for block, part in zip(blocks, offsets(blocks), strict=True):
        total[block.latent] = total[block.latent] + times(block, weights[part])
    return jnp.stack(total, axis=1)


def matrix_of(blocks: tuple[Block, ...], rows: int) -> Float[Array, "P N"]:
    """Φᵀ of one latent, for few weights."""
    size = sum(block.size for block in blocks)
    return jax.vmap(lambda weights: all_times(blocks, weights, 1, rows)[:, 0])(jnp.eye(size))


def all_transposed(blocks: tuple[Block, ...], values: Float[Array, "N D"]) -> Float[Array, " P"]:
    """Φᵀv of all blocks."""
    parts = [transposed_times(block, values[:, block.latent]) for block in blocks]
    return jnp.concatenate(parts) if parts else jnp.zeros(0)


def group_times(group: tuple[Block, ...], by_level: Float[Array, "L K"], latents: int) -> Float[Array, "N D"]:
    """The part of f that the weights of an eliminated group make, by latent."""
    total = [jnp.zeros(group[0].columns.shape[0]) for _ in range(latents)]
    for block, part in zip(group, columns_of(group), strict=True):
        total[block.latent] = total[block.latent] + _at_rows(block, by_level[:, part])
    return jnp.stack(total, axis=1)


def group_transposed(group: tuple[Block, ...], values: Float[Array, "N D"]) -> Float[Array, "L K"]:
    """Zᵀv of an eliminated group, by level."""
    return jnp.concatenate([_by_level(block, values[:, block.latent]) for block in group], axis=1)


def columns_of(blocks: tuple[Block, ...]) -> list[slice]:
    """Where the columns of every block are among those of a group."""
    ends = np.cumsum([0, *(block.columns.shape[1] for block in blocks)])
    return [slice(int(begin), int(end)) for begin, end in itertools.pairwise(ends)]


def f_of(blocks: Blocks, weights: Float[Array, " P"], own: tuple[Float[Array, "_ _"], ...]) -> Float[Array, "N D"]:
    """f − μ at the data, for these weights."""
    rows, latents = blocks.mean.shape
    total = all_times(blocks.rest, weights, latents, rows)
    for group, by_level in zip(blocks.eliminated, own, strict=True):
        total = total + group_times(group, by_level, latents)
    return total


# Grams --------------------------------------------------------------------------------------------


def _pair(one: Block, two: Block, weights: Float[Array, " N"]) -> Float[Array, "A B"]:
    """Φ_aᵀ diag(w) Φ_b."""
    if one.codes is not None and one.over == two.over and one.root is not None and two.root is not None:
        return _pair_in_levels(one, two, one.root, two.root, weights)
    sums = _pair_by_level(one, two, weights)
    if one.root is not None:
        sums = jnp.einsum("lr,lqms->rqms", one.root, sums)
    if two.root is not None:
        sums = jnp.einsum("mt,lqms->lqts", two.root, sums)
    return sums.reshape(one.size, two.size)


def _pair_in_levels(one: Block, two: Block, root: Any, other: Any, weights: Float[Array, " N"]) -> Float[Array, "A B"]:
    """The same for two blocks over the same levels, with roots: before them, levels have nothing to do with each other.

    A product of roots with weights between takes half the time of one with a diagonal matrix.
    """
    table = _sums_in_levels(one, weights, two.columns)
    if one is two and table.shape[1] == 1:
        return linalg.weighted_square(root, table[:, 0, 0])
    right = table[:, :, :, None] * other[:, None, None, :]
    return jnp.einsum("lr,lqst->rqts", root, right).reshape(one.size, two.size)


_WIDE = 16
"""The number of columns from which sums over all of them at once are faster, and compiled far faster, than one by one.
"""


def _pair_by_level(one: Block, two: Block, weights: Float[Array, " N"]) -> Float[Array, "L Q M S"]:
    """The same before roots: indices are level and column of either block."""
    (count, width), (other, breadth) = (one.levels, one.columns.shape[1]), (two.levels, two.columns.shape[1])
    if one.codes is None and two.codes is None:
        return (one.columns.T @ (weights[:, None] * two.columns)).reshape(1, width, 1, breadth)
    if one.codes is None:
        return jnp.transpose(_pair_by_level(two, one, weights), (2, 3, 0, 1))
    if two.codes is None and breadth >= _WIDE:
        scaled = weights[:, None] * one.columns
        rows = [jax.ops.segment_sum(scaled[:, q, None] * two.columns, one.codes, count) for q in range(width)]
        return jnp.stack(rows, axis=1)[:, :, None, :]
    if two.codes is None or one.over == two.over:
        keys, size = one.codes, count
    else:
        keys, size = one.codes * other + two.codes, count * other
    table = _sums_by(keys, size, one.columns, weights, two.columns)
    if two.codes is None:
        return table[:, :, None, :]
    if one.over == two.over:
        return jnp.einsum("lqs,lm->lqms", table, jnp.eye(count))
    return jnp.transpose(table.reshape(count, other, width, breadth), (0, 2, 1, 3))


def gram(blocks: tuple[Block, ...], precision: Float[Array, "N D D"]) -> Float[Array, "P P"]:
    """ΦᵀΛΦ of blocks that are not eliminated."""
    count = len(blocks)
    table: list[list[Any]] = [[None] * count for _ in blocks]
    for i, one in enumerate(blocks):
        for j, two in enumerate(blocks[: i + 1]):
            # Blocks of different latents that have no precision in common are cheap to compute all the same.
            table[i][j] = _pair(one, two, precision[:, one.latent, two.latent])
            table[j][i] = table[i][j].T
    return jnp.block(table) if count else jnp.zeros((0, 0))


def level_sums(group: tuple[Block, ...], other: tuple[Block, ...], precision: Float[Array, "N D D"]) -> Any:
    """ZᵀΛZ' of two groups in every level (L, K, K') of the first, which is the second or is nested in it."""
    rows = []
    for one in group:
        columns = [_sums_in_levels(one, precision[:, one.latent, two.latent], two.columns) for two in other]
        rows.append(jnp.concatenate(columns, axis=2))
    return jnp.concatenate(rows, axis=1)


def _sums_in_levels(block: Block, weights: Float[Array, " N"], columns: Float[Array, "N S"]) -> Float[Array, "L Q S"]:
    assert block.codes is not None
    return _sums_by(block.codes, block.levels, block.columns, weights, columns)


def _sums_by(keys: Any, count: int, one: Any, weights: Float[Array, " N"], two: Any) -> Float[Array, "L Q S"]:
    """The sums of weighted products of columns, over the rows of every key."""
    width, breadth = one.shape[1], two.shape[1]
    sums = [
        jax.ops.segment_sum(weights * one[:, q] * two[:, s], keys, count) for q in range(width) for s in range(breadth)
    ]
    return jnp.stack(sums, axis=1).reshape(count, width, breadth)


def couplings(group: tuple[Block, ...], rest: tuple[Block, ...], precision: Float[Array, "N D D"]) -> Any:
    """ZᵀΛΦ of every level (L, K, P) of a group and the blocks that are not eliminated."""
    parts = [jnp.concatenate([_coupling(one, two, precision) for one in group], axis=1) for two in rest]
    width = sum(block.columns.shape[1] for block in group)
    return jnp.concatenate(parts, axis=2) if parts else jnp.zeros((group[0].levels, width, 0))


def _coupling(one: Block, two: Block, precision: Float[Array, "N D D"]) -> Float[Array, "L Q S"]:
    return _pair(one, two, precision[:, one.latent, two.latent]).reshape(one.levels, -1, two.size)


LOG_TWO_PI = float(np.log(2.0 * np.pi))


def flats(blocks: tuple[Block, ...]) -> np.ndarray:
    """Which weights are flat."""
    return np.concatenate([np.full(block.size, block.flat) for block in blocks] or [np.zeros(0, bool)])
