"""The posterior of weights of which nested groups are eliminated from the inside out.

The weights z₁ of the innermost group meet those of one level of every group a around it, and all weights w that are not
eliminated. With A₁ = I + Z₁ᵀΛZ₁, which is block diagonal, and its couplings C₁ₐ and C₁ to them, the elimination leaves
C₁ₐᵀA₁⁻¹C₁ₐ less in every level of group a, and E + ΦᵀΛΦ − C₁ᵀA₁⁻¹C₁ for w, where E is 1, or 0 for flat weights. Nothing
fills up, and the next group is eliminated in the same way, until the matrix S of w remains. The posterior is proper
exactly when S and all blocks Aⱼ are positive definite, whatever the signs of Λ.

From the outside in, zⱼ = Lⱼ⁻ᵀηⱼ − Aⱼ⁻¹(Σ Cⱼₐzₐ + Cⱼw), with Aⱼ = LⱼLⱼᵀ and independent ηⱼ ~ N(0, I). Every zⱼ is hence
a response to w and a sum of loads on the η of its own level and of the levels around it. Variances are sums of squares.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..numerics import linalg
from ..numerics.gaussian import Sites
from . import level_space
from .level_space import LOG_TWO_PI, Block, Blocks, f_of, flats, group_times, group_transposed, offsets


class Own(NamedTuple):
    """The posterior of the weights of an eliminated group."""

    mean: Float[Array, "L K"]
    response: Float[Array, "L K P"]
    """How far the weights move against those that are not eliminated."""
    loads: tuple[Float[Array, "_ _ _"], ...]
    """The weights' loads on the noise of their own level, and of the levels of groups around it."""


class Solved(NamedTuple):
    """The posterior of the weights."""

    weights: Float[Array, " P"]
    """The mean of the weights of all blocks but the eliminated ones."""
    half: Float[Array, "P P"]
    """H with S⁻¹ = HᵀH, lower triangular."""
    own: tuple[Own, ...]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]
    rounding: Float[Array, ""]
    """The rounding error of the log determinant."""

    @property
    def own_means(self) -> tuple[Float[Array, "_ _"], ...]:
        """The means of the eliminated weights."""
        return tuple(own.mean for own in self.own)


def levels_within(groups: tuple[tuple[Block, ...], ...]) -> tuple[tuple[Int[Array, " _"], ...], ...]:
    """For every group, and for every group around it: in which level of that group each of its levels sits."""

    def found(inner: Block, outer: Block) -> Any:
        assert inner.codes is not None and outer.codes is not None
        return jnp.zeros(inner.levels, outer.codes.dtype).at[inner.codes].max(outer.codes)

    return tuple(
        tuple(found(group[0], other[0]) for other in groups[place + 1 :]) for place, group in enumerate(groups)
    )


# Factors ------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """L_A of every level of a group, and L_A⁻¹ times its couplings, to groups around it and to other weights."""

    factor: Float[Array, "L K K"]
    outer: tuple[Float[Array, "_ _ _"], ...]
    rest: Float[Array, "L K P"]


class _Factors(NamedTuple):
    half: Float[Array, "P P"]
    groups: tuple[_Group, ...]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]
    rounding: Float[Array, ""]


def _factorise(blocks: Blocks, precision: Float[Array, "N D D"]) -> _Factors:
    flat = flats(blocks.rest)
    matrix = level_space.gram(blocks.rest, precision) + jnp.diag(jnp.where(flat, 0.0, 1.0))
    log_det = jnp.asarray(-float(np.sum(flat)) * LOG_TWO_PI)
    proper = jnp.asarray(True)
    groups = _eliminate(blocks, precision)
    for group in groups:
        matrix = matrix - jnp.einsum("lkp,lkq->pq", group.rest, group.rest)
        pivots = linalg.diagonals(group.factor)
        log_det = log_det + 2.0 * jnp.sum(jnp.log(pivots))
        proper = proper & jnp.all(jnp.isfinite(pivots))
    if flat.size == 0:
        return _Factors(matrix, groups, log_det, proper, jnp.zeros(()))
    half, of_rest = linalg.inverse_root(matrix)
    # d log det S = tr(S⁻¹ dS), and rounding of S is relative to its diagonal. It is large if prior variances are.
    rounding = linalg.EPS * jnp.sum(jnp.diagonal(matrix) * jnp.sum(half**2, axis=0))
    return _Factors(half, groups, log_det + of_rest, proper & jnp.isfinite(of_rest), rounding)


def _eliminate(blocks: Blocks, precision: Float[Array, "N D D"]) -> tuple[_Group, ...]:
    """Eliminate the groups from the inside out."""
    groups = blocks.eliminated
    to_groups = [[level_space.level_sums(one, two, precision) for two in groups[j:]] for j, one in enumerate(groups)]
    to_rest = [level_space.couplings(group, blocks.rest, precision) for group in groups]
    found = []
    for j in range(len(groups)):
        own, *outer = to_groups[j]
        factor = linalg.cholesky_of_each(own + jnp.eye(own.shape[1])[None])
        whitened = tuple(linalg.solve_each_lower(factor, coupling) for coupling in outer)
        rest = linalg.solve_each_lower(factor, to_rest[j])
        found.append(_Group(factor, whitened, rest))
        for a, one in enumerate(whitened):
            place, levels = j + 1 + a, blocks.within[j][a]
            to_rest[place] = _less(to_rest[place], levels, one, rest)
            for b, two in enumerate(whitened[a:]):
                to_groups[place][b] = _less(to_groups[place][b], levels, one, two)
    return tuple(found)


def _less(matrices: Float[Array, "M A B"], levels: Int[Array, " L"], one: Any, two: Any) -> Float[Array, "M A B"]:
    """Matrices of the levels of a group, less products of the levels that sit in them."""
    return matrices - jax.ops.segment_sum(jnp.einsum("lka,lkb->lab", one, two), levels, matrices.shape[0])


# Means --------------------------------------------------------------------------------------------


def _solve(blocks: Blocks, factors: _Factors, right: Float[Array, " P"], own: tuple[Any, ...]) -> tuple[Any, Any]:
    """The weights with these right-hand sides of their equations."""
    rights, inner, means = list(own), [], []
    for j, group in enumerate(factors.groups):
        solved = linalg.solve_each_lower(group.factor, rights[j][:, :, None])[:, :, 0]
        inner.append(solved)
        right = right - jnp.einsum("lkp,lk->p", group.rest, solved)
        for place, (coupling, levels) in enumerate(zip(group.outer, blocks.within[j], strict=True), start=j + 1):
            moved = jnp.einsum("lka,lk->la", coupling, solved)
            rights[place] = rights[place] - jax.ops.segment_sum(moved, levels, rights[place].shape[0])
    weights = factors.half.T @ (factors.half @ right)
    for j, group in reversed(list(enumerate(factors.groups))):
        left = inner[j] - jnp.einsum("lkp,p->lk", group.rest, weights)
        # The means found so far are of the groups around this one, the outermost last.
        for coupling, levels, mean in zip(group.outer, blocks.within[j], means, strict=True):
            left = left - jnp.einsum("lka,la->lk", coupling, mean[levels])
        means.insert(0, linalg.solve_each_lower(group.factor, left[:, :, None], transpose=True)[:, :, 0])
    return weights, tuple(means)


def _rights(blocks: Blocks, values: Float[Array, "N D"]) -> tuple[Any, tuple[Any, ...]]:
    """Φᵀv, and Zᵀv of every group."""
    own = tuple(group_transposed(group, values) for group in blocks.eliminated)
    return level_space.all_transposed(blocks.rest, values), own


def _means(blocks: Blocks, sites: Sites, factors: _Factors) -> tuple[Any, Any]:
    """The weights' means, with one step of iterative refinement.

    λ − Λμ can be much larger than λ − Λm. Everything but the residual is constant in derivatives: by the implicit
    function theorem, the derivative of the last step is then that of the solution.
    """
    factors = jax.lax.stop_gradient(factors)
    centred, flat = sites.centred_linear(blocks.mean), flats(blocks.rest)
    weights, own = jax.lax.stop_gradient(_solve(blocks, factors, *_rights(blocks, centred)))
    residual = centred - jnp.einsum("nij,nj->ni", sites.precision, f_of(blocks, weights, own))
    right, own_right = _rights(blocks, residual)
    own_right = tuple(map(jnp.subtract, own_right, own))
    more, own_more = _solve(blocks, factors, right - jnp.where(flat, 0.0, weights), own_right)
    return weights + more, tuple(map(jnp.add, own, own_more))


# The posterior ------------------------------------------------------------------------------------


def solve(blocks: Blocks, sites: Sites) -> Solved:
    """Condition the weights on sites."""
    factors = _factorise(blocks, sites.precision)
    weights, means = _means(blocks, sites, factors)
    own = _from_outside(blocks, factors, means)
    return Solved(weights, factors.half, own, factors.log_det, factors.proper, factors.rounding)


def _from_outside(blocks: Blocks, factors: _Factors, means: tuple[Any, ...]) -> tuple[Own, ...]:
    """Responses and loads of all groups, from the outermost to the innermost."""
    found: list[Own] = []
    for j, group in reversed(list(enumerate(factors.groups))):
        identity = jnp.broadcast_to(jnp.eye(group.factor.shape[1]), group.factor.shape)
        response = linalg.solve_each_lower(group.factor, group.rest, transpose=True)
        loads: list[Any] = [linalg.solve_each_lower(group.factor, identity)]
        # A group around this one moves it directly, and through the groups between them.
        for place, (coupling, levels) in enumerate(zip(group.outer, blocks.within[j], strict=True)):
            pulled, other = linalg.solve_each_lower(group.factor, coupling, transpose=True), found[place]
            response = response - jnp.einsum("lka,lap->lkp", pulled, other.response[levels])
            for further, load in enumerate(other.loads, start=place + 1):
                through = -jnp.einsum("lja,lka->ljk", load[levels], pulled)
                if further < len(loads):
                    loads[further] = loads[further] + through
                else:
                    loads.append(through)
        found.insert(0, Own(means[j], response, tuple(loads)))
    return tuple(found)


def flat_errors(blocks: Blocks, precision: Float[Array, "N D D"]) -> tuple[Float[Array, " S"], ...]:
    """The posterior standard deviations of the weights of every flat block, at sites of these precisions."""
    half = _factorise(blocks, precision).half
    errors = jnp.sqrt(jnp.sum(half**2, axis=0))
    places = zip(blocks.rest, offsets(blocks.rest), strict=True)
    return tuple(errors[part] for block, part in places if block.flat and block.codes is None)


def distance(blocks: Blocks, weights: Float[Array, " P"], own: tuple[Any, ...]) -> Float[Array, ""]:
    """zᵀz of all weights but the flat ones."""
    total = jnp.sum(jnp.where(flats(blocks.rest), 0.0, weights) ** 2)
    return sum((jnp.sum(mean**2) for mean in own), total)


def log_normaliser(blocks: Blocks, sites: Sites) -> Float[Array, ""]:
    """log ∫ p ∏ tₙ: the exponent at its maximum, whose derivatives are those at fixed weights, and the determinant."""
    factors = _factorise(blocks, sites.precision)
    weights, own = jax.lax.stop_gradient(_means(blocks, sites, factors))
    mean = blocks.mean + f_of(blocks, weights, own)
    exponent = jnp.sum(sites.linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, sites.precision, mean)
    return exponent - 0.5 * (distance(blocks, weights, own) + factors.log_det)


# Covariances --------------------------------------------------------------------------------------

_BATCH = 2**20
"""The largest number of entries of intermediate results: rows of H times rows of the data."""


def covariances(blocks: Blocks, solved: Solved, is_nested: bool = True) -> Float[Array, "N D D"]:
    """The covariance of f at every row: sums of squares over the rows of H, a few of them at a time.

    At the data, the levels of a row are nested in each other; elsewhere they need not be.
    """
    rows, latents = blocks.mean.shape
    total = jnp.zeros((rows, latents, latents))
    for shares in _noise_shares(blocks, solved, is_nested):
        for share in shares:
            total = total + jnp.einsum("knd,kne->nde", share.values, share.values)
    size = solved.half.shape[0]
    if size == 0:
        return total
    tables = _tables(blocks, solved)

    def squares(tables):
        values = _directions(blocks, tables)
        pairs = [[jnp.sum(one * two, axis=1) for two in values] for one in values]
        return jnp.stack([jnp.stack(row, axis=1) for row in pairs], axis=1)

    count = -(-size // max(1, _BATCH // max(1, rows * latents)))
    if count == 1:
        return total + squares(tables)
    batch = -(-size // count)  # of equal sizes, so that little is filled up
    parts = jax.tree.map(lambda table: _in_batches(table, batch), tables)
    step = jax.checkpoint(lambda total, part: (total + squares(part), None))
    return jax.lax.scan(step, total, parts)[0]


def _in_batches(table: Float[Array, "L Q A"], batch: int) -> Float[Array, "B L Q A"]:
    levels, width, size = table.shape
    filled = jnp.pad(table, ((0, 0), (0, 0), (0, -size % batch)))
    return jnp.moveaxis(filled.reshape(levels, width, -1, batch), 2, 0)


def _tables(blocks: Blocks, solved: Solved) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What every row of H makes of the weights of all blocks, and of the eliminated groups: (L, Q, A) each."""
    rest = []
    for block, part in zip(blocks.rest, offsets(blocks.rest), strict=True):
        if block.root is not None and block.shape[1] == 1:
            rest.append(linalg.times_lower_transposed(block.root, solved.half, part.start)[:, None])
            continue
        table = jnp.moveaxis(solved.half[:, part].reshape(-1, *block.shape), 0, 2)
        rest.append(table if block.root is None else jnp.einsum("lr,rqa->lqa", block.root, table))
    return tuple(rest), tuple(-_times_half(own.response, solved.half) for own in solved.own)


def _times_half(response: Float[Array, "L K P"], half: Float[Array, "P P"]) -> Float[Array, "L K P"]:
    return linalg.times_lower_transposed(response.reshape(-1, half.shape[0]), half).reshape(response.shape)


def _directions(blocks: Blocks, tables: tuple[tuple[Any, ...], tuple[Any, ...]]) -> list[Float[Array, "N A"]]:
    """What every row of H makes of f, by latent."""
    total: list[Any] = [0.0 for _ in range(blocks.mean.shape[1])]
    for block, table in zip(blocks.rest, tables[0], strict=True):
        total[block.latent] = total[block.latent] + _at_rows(block, table)
    for group, table in zip(blocks.eliminated, tables[1], strict=True):
        for block, part in zip(group, level_space.columns_of(group), strict=True):
            total[block.latent] = total[block.latent] + _at_rows(block, table[:, part])
    size = jax.tree.leaves(tables)[0].shape[2]
    return [jnp.broadcast_to(own, (blocks.mean.shape[0], size)) for own in total]


def _at_rows(block: Block, table: Float[Array, "L Q A"]) -> Float[Array, "N A"]:
    if block.codes is None:
        return block.columns @ table[0]
    parts = [block.columns[:, q, None] * table[:, q][block.codes] for q in range(block.columns.shape[1])]
    return sum(parts[1:], parts[0])


class _Share(NamedTuple):
    """The load of every row on the noise of one level of a group."""

    levels: Int[Array, " N"]
    values: Float[Array, "K N D"]


def _noise_shares(blocks: Blocks, solved: Solved, is_nested: bool) -> list[list[_Share]]:
    """The loads of every row on the noise of eliminated groups: for every group, on that of one or several levels."""
    found: list[list[_Share]] = [[] for _ in blocks.eliminated]
    latents = blocks.mean.shape[1]
    for j, (group, own) in enumerate(zip(blocks.eliminated, solved.own, strict=True)):
        codes = group[0].codes
        assert codes is not None
        for place, load in enumerate(own.loads):
            levels = codes if place == 0 else blocks.within[j][place - 1][codes]
            by_row = [group_times(group, load[:, k, :], latents) for k in range(load.shape[1])]
            found[j + place] = _added(found[j + place], _Share(levels, jnp.stack(by_row)), is_nested)
    return found


def _added(shares: list[_Share], new: _Share, is_nested: bool) -> list[_Share]:
    """Loads on the same level are added up, so that their squares do not cancel."""
    if is_nested and shares:
        (known,) = shares
        return [_Share(known.levels, known.values + new.values)]
    kept, left = [], jnp.ones(new.levels.shape, bool)
    for share in shares:
        same = left & (share.levels == new.levels)
        kept.append(_Share(share.levels, share.values + jnp.where(same[None, :, None], new.values, 0.0)))
        left = left & ~same
    return [*kept, _Share(new.levels, jnp.where(left[None, :, None], new.values, 0.0))]


def joint_covariance(blocks: Blocks, solved: Solved) -> Float[Array, "ND ND"]:
    """The joint covariance of f at all rows and latents, latents within rows; levels need not be nested."""
    rows, latents = blocks.mean.shape
    total = jnp.zeros((rows * latents, rows * latents))
    if solved.half.shape[0]:
        values = jnp.stack(_directions(blocks, _tables(blocks, solved)), axis=1).reshape(rows * latents, -1)
        total = values @ values.T
    for shares in _noise_shares(blocks, solved, False):
        for one in shares:
            for two in shares:
                same = (one.levels[:, None] == two.levels[None, :]).astype(total.dtype)
                total = total + jnp.einsum("knd,kme,nm->ndme", one.values, two.values, same).reshape(total.shape)
    return total
