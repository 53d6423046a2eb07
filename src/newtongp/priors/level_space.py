"""Conditioning of sums of terms: f = μ + Σ_b Φ_b z_b with weights z ~ N(0, I), and terms over levels as codes.

A *block* has one vector of weights per level, and a row of the data uses those of its own level: f gets
columnsₙ · Z[codeₙ]. Without codes there is one level, and the block is a matrix of columns. With a root R, the weights
of the levels are correlated, Z = R z. Some blocks are flat: their weights have no prior, so that log det(I + ΛK) is
log det P − p log 2π for their p weights.

Products with Φ and Φᵀ are gathers and sums by level: the matrix Φ is never formed. One set of independent blocks over
the same codes may be *eliminated*, level by level. With A = I + ZᵀΛZ, which is block diagonal, and C = ZᵀΛΦ, the other
weights have the posterior precision S = E + ΦᵀΛΦ − CᵀA⁻¹C, where E is 1, or 0 for flat weights. The posterior is proper
exactly when A and S are positive definite, whatever the signs of Λ. Variances are sums of squares: of L_A⁻¹z, and of
L_S⁻¹(φ − CᵀA⁻¹z).
"""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..numerics import linalg
from ..numerics.gaussian import Sites
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


class Blocks(eqx.Module):
    """All blocks of a prior, and the prior mean (N, D)."""

    mean: Float[Array, "N D"]
    eliminated: tuple[Block, ...]
    """Independent blocks over the same codes."""
    rest: tuple[Block, ...]


class Solved(NamedTuple):
    """The posterior of the weights."""

    weights: Float[Array, " P"]
    """The mean of the weights of all blocks but the eliminated ones."""
    half: Float[Array, "P P"]
    """H with S⁻¹ = HᵀH, lower triangular."""
    own: Float[Array, "L K"]
    """The mean of the eliminated weights, by level."""
    own_half: Float[Array, "L K K"]
    """L_A⁻¹ of every level."""
    coupling: Float[Array, "L K P"]
    """A⁻¹C of every level: how the eliminated weights move with the others."""
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]


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


def _offsets(blocks: tuple[Block, ...]) -> list[slice]:
    ends = np.cumsum([0, *(block.size for block in blocks)])
    return [slice(int(begin), int(end)) for begin, end in itertools.pairwise(ends)]


def all_times(blocks: tuple[Block, ...], weights: Float[Array, " P"], latents: int, rows: int) -> Float[Array, "N D"]:
    """Φz of all blocks, by latent."""
    total = [jnp.zeros(rows) for _ in range(latents)]
    for block, part in zip(blocks, _offsets(blocks), strict=True):
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


def _own_times(blocks: Blocks, own: Float[Array, "L K"]) -> Float[Array, "N D"]:
    """The part of f that the eliminated weights make."""
    flat = [own[:, part] for part in _columns_of(blocks.eliminated)]
    total = [jnp.zeros(blocks.mean.shape[0]) for _ in range(blocks.mean.shape[1])]
    for block, weights in zip(blocks.eliminated, flat, strict=True):
        total[block.latent] = total[block.latent] + _at_rows(block, weights)
    return jnp.stack(total, axis=1)


def _columns_of(blocks: tuple[Block, ...]) -> list[slice]:
    ends = np.cumsum([0, *(block.columns.shape[1] for block in blocks)])
    return [slice(int(begin), int(end)) for begin, end in itertools.pairwise(ends)]


def f_of(blocks: Blocks, weights: Float[Array, " P"], own: Float[Array, "L K"]) -> Float[Array, "N D"]:
    """f − μ at the data, for these weights."""
    rows, latents = blocks.mean.shape
    total = all_times(blocks.rest, weights, latents, rows)
    return total + _own_times(blocks, own) if blocks.eliminated else total


# Grams --------------------------------------------------------------------------------------------


def _pair(one: Block, two: Block, weights: Float[Array, " N"]) -> Float[Array, "A B"]:
    """Φ_aᵀ diag(w) Φ_b."""
    sums = _pair_by_level(one, two, weights)
    if one.root is not None:
        sums = jnp.einsum("lr,lqms->rqms", one.root, sums)
    if two.root is not None:
        sums = jnp.einsum("mt,lqms->lqts", two.root, sums)
    return sums.reshape(one.size, two.size)


def _pair_by_level(one: Block, two: Block, weights: Float[Array, " N"]) -> Float[Array, "L Q M S"]:
    """The same before roots: indices are level and column of either block."""
    (count, width), (other, breadth) = (one.levels, one.columns.shape[1]), (two.levels, two.columns.shape[1])
    if one.codes is None and two.codes is None:
        return (one.columns.T @ (weights[:, None] * two.columns)).reshape(1, width, 1, breadth)
    if one.codes is None:
        return jnp.transpose(_pair_by_level(two, one, weights), (2, 3, 0, 1))
    if two.codes is None or one.over == two.over:
        keys, size = one.codes, count
    else:
        keys, size = one.codes * other + two.codes, count * other
    sums = [
        jax.ops.segment_sum(weights * one.columns[:, q] * two.columns[:, s], keys, size)
        for q in range(width)
        for s in range(breadth)
    ]
    table = jnp.stack(sums, axis=1).reshape(size, width, breadth)
    if two.codes is None:
        return table[:, :, None, :]
    if one.over == two.over:
        return jnp.einsum("lqs,lm->lqms", table, jnp.eye(count))
    return jnp.transpose(table.reshape(count, other, width, breadth), (0, 2, 1, 3))


def _gram(blocks: tuple[Block, ...], precision: Float[Array, "N D D"]) -> Float[Array, "P P"]:
    """ΦᵀΛΦ of all blocks."""
    count = len(blocks)
    table: list[list[Any]] = [[None] * count for _ in blocks]
    for i, one in enumerate(blocks):
        for j, two in enumerate(blocks[: i + 1]):
            # Blocks of different latents that have no precision in common are cheap to compute all the same.
            table[i][j] = _pair(one, two, precision[:, one.latent, two.latent])
            table[j][i] = table[i][j].T
    return jnp.block(table) if count else jnp.zeros((0, 0))


# The posterior ------------------------------------------------------------------------------------


class _Factors(NamedTuple):
    half: Float[Array, "P P"]
    own_factor: Float[Array, "L K K"]
    whitened: Float[Array, "L K P"]
    """L_A⁻¹C."""
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]


LOG_TWO_PI = float(np.log(2.0 * np.pi))


def flats(blocks: tuple[Block, ...]) -> np.ndarray:
    """Which weights are flat."""
    return np.concatenate([np.full(block.size, block.flat) for block in blocks] or [np.zeros(0, bool)])


def _factorise(blocks: Blocks, precision: Float[Array, "N D D"]) -> _Factors:
    flat = flats(blocks.rest)
    matrix = _gram(blocks.rest, precision) + jnp.diag(jnp.where(flat, 0.0, 1.0))
    log_det = jnp.asarray(-float(np.sum(flat)) * LOG_TWO_PI)
    proper = jnp.asarray(True)
    own_factor, whitened = jnp.zeros((0, 0, 0)), jnp.zeros((0, 0, flat.size))
    if blocks.eliminated:
        own_factor, whitened = _eliminate(blocks, precision)
        matrix = matrix - jnp.einsum("lkp,lkq->pq", whitened, whitened)
        pivots = linalg.diagonals(own_factor)
        log_det = log_det + 2.0 * jnp.sum(jnp.log(pivots))
        proper = jnp.all(jnp.isfinite(pivots))
    if flat.size == 0:
        return _Factors(matrix, own_factor, whitened, log_det, proper)
    factor = linalg.cholesky(matrix)
    half = linalg.solve_lower(factor, jnp.eye(flat.size))
    log_det = log_det + linalg.log_det_from_cholesky(factor)
    return _Factors(half, own_factor, whitened, log_det, proper & jnp.all(jnp.isfinite(jnp.diagonal(factor))))


def _eliminate(blocks: Blocks, precision: Float[Array, "N D D"]) -> tuple[Any, Any]:
    """L_A and L_A⁻¹C of every level."""
    first = blocks.eliminated[0]
    codes, count = first.codes, first.levels
    rows = []
    for one in blocks.eliminated:
        columns = []
        for two in blocks.eliminated:
            weights = precision[:, one.latent, two.latent]
            columns.append(_level_sums(codes, count, weights, one.columns, two.columns))
        rows.append(jnp.concatenate(columns, axis=2))
    matrices = jnp.concatenate(rows, axis=1)
    size = matrices.shape[1]
    factor = linalg.cholesky_of_each(matrices + jnp.eye(size)[None])
    couplings = [
        jnp.concatenate([_coupling(one, two, precision) for one in blocks.eliminated], axis=1) for two in blocks.rest
    ]
    coupling = jnp.concatenate(couplings, axis=2) if couplings else jnp.zeros((count, size, 0))
    return factor, linalg.solve_each_lower(factor, coupling)


def _level_sums(codes, count: int, weights, one, two) -> Float[Array, "L Q S"]:
    sums = [
        jax.ops.segment_sum(weights * one[:, q] * two[:, s], codes, count)
        for q in range(one.shape[1])
        for s in range(two.shape[1])
    ]
    return jnp.stack(sums, axis=1).reshape(count, one.shape[1], two.shape[1])


def _coupling(one: Block, two: Block, precision: Float[Array, "N D D"]) -> Float[Array, "L Q S"]:
    """ZᵀΛΦ_b of every level of the eliminated block."""
    return _pair(one, two, precision[:, one.latent, two.latent]).reshape(one.levels, -1, two.size)


def _solve(factors: _Factors, right: Float[Array, " P"], own: Float[Array, "L K"]) -> tuple[Any, Any]:
    """The weights with these right-hand sides of their equations."""
    inner = linalg.solve_each_lower(factors.own_factor, own[:, :, None])[:, :, 0] if own.size else own
    right = right - jnp.einsum("lkp,lk->p", factors.whitened, inner)
    weights = factors.half.T @ (factors.half @ right)
    if own.size:
        inner = inner - jnp.einsum("lkp,p->lk", factors.whitened, weights)
        own = linalg.solve_each_lower(factors.own_factor, inner[:, :, None], transpose=True)[:, :, 0]
    return weights, own


def _rights(blocks: Blocks, values: Float[Array, "N D"]) -> tuple[Any, Any]:
    """Φᵀv and Zᵀv."""
    own = [_by_level(block, values[:, block.latent]) for block in blocks.eliminated]
    return all_transposed(blocks.rest, values), jnp.concatenate(own, axis=1) if own else jnp.zeros((0, 0))


def _means(blocks: Blocks, sites: Sites, factors: _Factors) -> tuple[Any, Any]:
    """The weights' means, with one step of iterative refinement.

    λ − Λμ can be much larger than λ − Λm. Everything but the residual is constant in derivatives: by the implicit
    function theorem, the derivative of the last step is then that of the solution.
    """
    factors = jax.lax.stop_gradient(factors)
    centred, flat = sites.centred_linear(blocks.mean), flats(blocks.rest)
    weights, own = jax.lax.stop_gradient(_solve(factors, *_rights(blocks, centred)))
    residual = centred - jnp.einsum("nij,nj->ni", sites.precision, f_of(blocks, weights, own))
    right, own_right = _rights(blocks, residual)
    more, own_more = _solve(factors, right - jnp.where(flat, 0.0, weights), own_right - own)
    return weights + more, own + own_more


def solve(blocks: Blocks, sites: Sites) -> Solved:
    """Condition the weights on sites."""
    factors = _factorise(blocks, sites.precision)
    weights, own = _means(blocks, sites, factors)
    own_half, coupling = factors.own_factor, factors.whitened
    if blocks.eliminated:
        size = factors.own_factor.shape[1]
        identity = jnp.broadcast_to(jnp.eye(size), factors.own_factor.shape)
        own_half = linalg.solve_each_lower(factors.own_factor, identity)
        coupling = linalg.solve_each_lower(factors.own_factor, factors.whitened, transpose=True)
    return Solved(weights, factors.half, own, own_half, coupling, factors.log_det, factors.proper)


def flat_errors(blocks: Blocks, precision: Float[Array, "N D D"]) -> tuple[Float[Array, " S"], ...]:
    """The posterior standard deviations of the weights of every flat block, at sites of these precisions."""
    half = _factorise(blocks, precision).half
    errors = jnp.sqrt(jnp.sum(half**2, axis=0))
    places = zip(blocks.rest, _offsets(blocks.rest), strict=True)
    return tuple(errors[part] for block, part in places if block.flat and block.codes is None)


def distance(blocks: Blocks, solved: Solved) -> Float[Array, ""]:
    """zᵀz of all weights but the flat ones."""
    flat = flats(blocks.rest)
    return jnp.sum(jnp.where(flat, 0.0, solved.weights) ** 2) + jnp.sum(solved.own**2)


def log_normaliser(blocks: Blocks, sites: Sites) -> Float[Array, ""]:
    """log ∫ p ∏ tₙ: the exponent at its maximum, whose derivatives are those at fixed weights, and the determinant."""
    factors = _factorise(blocks, sites.precision)
    weights, own = jax.lax.stop_gradient(_means(blocks, sites, factors))
    mean = blocks.mean + f_of(blocks, weights, own)
    exponent = jnp.sum(sites.linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, sites.precision, mean)
    size = jnp.sum(jnp.where(flats(blocks.rest), 0.0, weights) ** 2) + jnp.sum(own**2)
    return exponent - 0.5 * (size + factors.log_det)


_BATCH = 2**20
"""The largest number of entries of intermediate results: rows of H times rows of the data."""


def covariances(blocks: Blocks, solved: Solved) -> Float[Array, "N D D"]:
    """The covariance of f at every row: sums of squares over the rows of H, a few of them at a time."""
    rows, latents = blocks.mean.shape
    total = _own_covariances(blocks, solved)
    size = solved.half.shape[0]
    if size == 0:
        return total
    moved = jnp.einsum("lkp,ap->alk", solved.coupling, solved.half)

    def squares(part):
        values = jax.vmap(lambda weights, own: _moved_rows(blocks, weights, own))(*part)
        return jnp.einsum("and,ane->nde", values, values)

    batch = max(1, min(size, _BATCH // max(1, rows * latents)))
    if batch == size:
        return total + squares((solved.half, moved))
    fill = -size % batch
    parts = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, fill), *((0, 0),) * (leaf.ndim - 1))).reshape(-1, batch, *leaf.shape[1:]),
        (solved.half, moved),
    )
    step = jax.checkpoint(lambda total, part: (total + squares(part), None))
    return jax.lax.scan(step, total, parts)[0]


def _moved_rows(blocks: Blocks, weights: Float[Array, " P"], own: Float[Array, "L K"]) -> Float[Array, "N D"]:
    """φ − CᵀA⁻¹z in the direction of these weights."""
    rows, latents = blocks.mean.shape
    found = all_times(blocks.rest, weights, latents, rows)
    return found - _own_times(blocks, own) if blocks.eliminated else found


def joint_covariance(blocks: Blocks, solved: Solved) -> Float[Array, "ND ND"]:
    """The joint covariance of f at all rows and latents, latents within rows."""
    rows, latents = blocks.mean.shape
    moved = jnp.einsum("lkp,ap->alk", solved.coupling, solved.half)
    values = jax.vmap(lambda weights, own: _moved_rows(blocks, weights, own))(solved.half, moved)
    values = values.reshape(-1, rows * latents)
    total = values.T @ values
    if not blocks.eliminated:
        return total
    codes = blocks.eliminated[0].codes
    assert codes is not None
    own = _own_values(blocks, solved)
    same = (codes[:, None] == codes[None, :]).astype(own.dtype)
    return total + jnp.einsum("knd,kme,nm->ndme", own, own, same).reshape(total.shape)


def _own_covariances(blocks: Blocks, solved: Solved) -> Float[Array, "N D D"]:
    """Zₙ A⁻¹ Zₙᵀ of every row."""
    rows, latents = blocks.mean.shape
    if not blocks.eliminated:
        return jnp.zeros((rows, latents, latents))
    values = _own_values(blocks, solved)
    return jnp.einsum("knd,kne->nde", values, values)


def _own_values(blocks: Blocks, solved: Solved) -> Float[Array, "K N D"]:
    """L_A⁻¹zₙ of every row and latent."""
    size = solved.own_half.shape[1]
    return jnp.stack([_own_times(blocks, solved.own_half[:, k, :]) for k in range(size)])
