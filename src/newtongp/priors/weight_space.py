"""Conditioning in the space of weights: f = μ + Ψv with weights v ~ N(0, I), for linear models and sparse GPs.

The weights have posterior precision B = I + ΨᵀΛΨ. It is positive definite exactly when the posterior is proper,
whatever the signs of Λ, and log det B = log det(I + ΛK) for K = ΨΨᵀ, which is never formed. Everything is computed from
T = L_B⁻¹, with B⁻¹ = TᵀT, as sums of squares: no variance is a difference.

Features Ψ are (F, N, P): one matrix per latent (F = D), or one for all (F = 1). Vectors over weights are (D, P);
flattened, the weights of one latent are contiguous. Rows are processed in blocks, so no array is much larger than the
features.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float

from ..numerics import linalg, small
from ..numerics.gaussian import Sites


class Solved(NamedTuple):
    """The posterior of the weights, N(mean, TᵀT), and quantities at the data."""

    inverse: Float[Array, "DP DP"]
    """T, lower triangular."""
    mean: Float[Array, "D P"]
    shift: Float[Array, "N D"]
    """m − μ = Ψv."""
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    @property
    def half(self) -> Float[Array, "DP D P"]:
        """T, with a separate axis for the latents."""
        return self.inverse.reshape(-1, *self.mean.shape)


def solve(features: Float[Array, "F N P"], prior_mean: Float[Array, "N D"], sites: Sites) -> Solved:
    """Condition the weights on sites."""
    factor = _factorise(features, sites.precision)
    mean = _whitened_mean(features, sites.precision, sites.centred_linear(prior_mean), factor.inverse)
    return Solved(factor.inverse, mean, times(features, mean), factor.log_det, factor.proper)


@jax.custom_jvp
def log_normaliser(features, prior_mean, linear, precision) -> Float[Array, ""]:
    """log ∫ p ∏ tₙ, whose derivative is αᵀdμ + mᵀdλ − ½ tr((mmᵀ + C) dΛ) + tr((αvᵀ − ΛΨB⁻¹)ᵀ dΨ), with α = λ − Λm."""
    return _log_normaliser(prior_mean, linear, precision, solve(features, prior_mean, Sites(linear, precision)))


def _log_normaliser(prior_mean, linear, precision, solved: Solved) -> Float[Array, ""]:
    mean = prior_mean + solved.shift
    exponent = jnp.sum(linear * mean) - 0.5 * jnp.einsum("ni,nij,nj->", mean, precision, mean)
    return exponent - 0.5 * (jnp.sum(solved.mean**2) + solved.log_det)


def _log_normaliser_derivative(primals, tangents):
    features, prior_mean, linear, precision = primals
    solved = solve(features, prior_mean, Sites(linear, precision))
    mean = prior_mean + solved.shift
    slope = linear - jnp.einsum("nde,ne->nd", precision, mean)
    moved_features, moved_mean, moved_linear, moved_precision = (
        None if isinstance(tangent, SymbolicZero) else tangent for tangent in tangents
    )
    change = jnp.zeros(())
    if moved_mean is not None:
        change = change + jnp.sum(slope * moved_mean)
    if moved_linear is not None:
        change = change + jnp.sum(mean * moved_linear)
    if moved_precision is not None:
        squares = mean[:, :, None] * mean[:, None, :] + covariances(solved.half, features)
        change = change - 0.5 * jnp.sum(squares * moved_precision)
    if moved_features is not None:
        latents, size = solved.mean.shape
        inverse = (solved.inverse.T @ solved.inverse).reshape(latents, size, latents, size)

        def of_latent(rows):
            own, weights, block, row_precision = rows
            pulled = jnp.einsum("ne,enp->np", row_precision, _projected(features, block))
            return own[:, None] * weights[None, :] - pulled

        rows = slope.T, solved.mean, inverse, jnp.swapaxes(precision, 0, 1)
        pulled = jax.lax.map(of_latent, rows)
        pulled = jnp.sum(pulled, axis=0, keepdims=True) if features.shape[0] == 1 else pulled
        change = change + jnp.sum(pulled * moved_features)
    return _log_normaliser(prior_mean, linear, precision, solved), change


log_normaliser.defjvp(_log_normaliser_derivative, symbolic_zeros=True)


# Sums and maps over rows, block by block ----------------------------------------------------------

_BLOCK = 2**20
"""The size of a block of rows, in numbers."""


def block_of(numbers: int) -> int:
    """The number of rows per block, for rows of this many numbers."""
    return max(256, _BLOCK // max(1, numbers))


def _blocks(features: Any, rows: tuple[Any, ...], numbers: int) -> tuple[int, int, Callable]:
    """The number of whole blocks, the number of remaining rows, and a function that selects a block."""
    count = jax.tree.leaves(rows)[0].shape[0] if features is None else features.shape[1]
    size = block_of(numbers)

    def cut(leaf, i, length, axis):
        return jax.lax.dynamic_slice_in_dim(leaf, i * size, length, axis)

    def block(i, length=size):
        own = None if features is None else cut(features, i, length, 1)
        return own, *jax.tree.map(lambda leaf: cut(leaf, i, length, 0), rows)

    whole = count // size if count > 2 * size else 0
    return whole, count - whole * size, block


def sum_over_rows(function: Callable, features: Float[Array, "F N P"], *rows: Any) -> Any:
    """The sum of `function(features, *rows)` over blocks of rows, for a function that sums over its rows."""
    whole, rest, block = _blocks(features, rows, features.shape[0] * features.shape[2])
    if whole == 0:
        return function(features, *rows)

    def add(i, total):
        return jax.tree.map(jnp.add, total, function(*block(i)))

    shapes = jax.eval_shape(function, *block(0))
    total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    total = jax.lax.fori_loop(0, whole, add, total)
    return jax.tree.map(jnp.add, total, function(*block(whole, rest))) if rest else total


def map_over_rows(
    function: Callable, features: Float[Array, "F N P"] | None, *rows: Any, numbers: int | None = None
) -> Any:
    """`function(features, *rows)`, with one result per row, by blocks; `numbers` per row, if features are None."""
    if numbers is None:
        assert features is not None
        numbers = features.shape[0] * features.shape[2]
    whole, rest, block = _blocks(features, rows, numbers)
    if whole == 0:
        return function(features, *rows)
    values = jax.lax.map(lambda i: function(*block(i)), jnp.arange(whole))
    values = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), values)
    if not rest:
        return values
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), values, function(*block(whole, rest)))


# Products with features -----------------------------------------------------------------------


def times(features: Float[Array, "F N P"], weights: Float[Array, "D P"]) -> Float[Array, "N D"]:
    """Ψv."""
    if features.shape[0] == 1:
        return features[0] @ weights.T
    return jnp.einsum("dnp,dp->nd", features, weights)


def transposed_times(features: Float[Array, "F N P"], values: Float[Array, "N D"]) -> Float[Array, "D P"]:
    """Ψᵀ times one value per row and latent."""
    if features.shape[0] == 1:
        return values.T @ features[0]
    return jnp.einsum("nd,dnp->dp", values, features)


def _projected(features: Float[Array, "F N P"], half: Float[Array, "A D P"]) -> Float[Array, "D N A"]:
    """Ψₙ halfᵀ of every latent and row."""
    if features.shape[0] == 1:
        return jnp.einsum("np,adp->dna", features[0], half)
    return jnp.einsum("dnp,adp->dna", features, half)


def gram(features: Float[Array, "F N P"], precision: Float[Array, "N D D"]) -> Float[Array, "DP DP"]:
    """ΨᵀΛΨ of one block of rows, one latent after the other."""
    latents = precision.shape[1]
    if latents == 1:
        return linalg.weighted_square(features[0], precision[:, 0, 0])
    above = np.triu_indices(latents)

    # Pairs of latents one after the other: a batched product would copy the features of every pair.
    def block(pair):
        own, first, second = pair
        return features[own[0]].T @ (precision[:, first, second][:, None] * features[own[1]])

    own = np.minimum(above, features.shape[0] - 1).T
    blocks = jax.lax.map(block, (own, *above))
    position = np.zeros((latents, latents), dtype=int)
    position[above] = position.T[above] = np.arange(len(above[0]))
    whole = blocks[position]
    below = np.tril(np.ones((latents, latents), dtype=bool), -1)[:, :, None, None]
    whole = jnp.where(below, jnp.swapaxes(whole, 2, 3), whole)
    return jnp.swapaxes(whole, 1, 2).reshape(latents * whole.shape[2], -1)


_LARGE = 128
"""The number of columns from which splitting a product saves time."""
_STRIP = 64


def covariances(
    half: Float[Array, "DP D P"], features: Float[Array, "F N P"], triangular: bool = False
) -> Float[Array, "N D D"]:
    """The D × D covariance of every row, Ψₙ halfᵀ half Ψₙᵀ.

    The half is block lower triangular. Products for one latent are cheaper if it is triangular.
    """
    return map_over_rows(lambda features: _covariances(half, features, triangular), features)


def _covariances(
    half: Float[Array, "DP D P"], features: Float[Array, "F N P"], triangular: bool
) -> Float[Array, "N D D"]:
    size, latents = half.shape[2], half.shape[1]
    if latents == 1:
        return _squared_norms(half[:, 0], features[0], triangular)[:, None, None]

    def add(total, block):
        rows = _projected(features, block)
        return total + jnp.einsum("dna,ena->nde", rows, rows), None

    blocks = half.reshape(-1, size, latents, size)
    return jax.lax.scan(add, jnp.zeros((features.shape[1], latents, latents)), blocks)[0]


def _squared_norms(half: Float[Array, "P P"], features: Float[Array, "N P"], triangular: bool) -> Float[Array, " N"]:
    """|half ψₙ|² of every row; for a large triangular half, zero blocks are skipped."""
    size = half.shape[1]
    if size < _LARGE or not triangular:
        return jnp.sum((features @ half.T) ** 2, axis=1)
    total = jnp.zeros(features.shape[0])
    for start in range(0, size, _STRIP):
        stop = min(start + _STRIP, size)
        total = total + jnp.sum((features[:, :stop] @ half[start:stop, :stop].T) ** 2, axis=1)
    return total


# The factor of B and the mean ---------------------------------------------------------------------


class _Factor(NamedTuple):
    """T with (I + ΨᵀΛΨ)⁻¹ = TᵀT, lower triangular."""

    inverse: Float[Array, "DP DP"]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]


_PLAIN = 1e6
"""Up to this size of its entries, the Cholesky factor of B loses at most six of sixteen digits."""


def _factorise(features: Float[Array, "F N P"], precision: Float[Array, "N D D"]) -> _Factor:
    def sums(features, precision):
        # |Λ_de ψ_d ψ_e| ≤ ½ |Λ_de| (ψ_d² + ψ_e²): sums over one row of Λ bound what each latent adds.
        sizes = jnp.sum(jnp.abs(precision), axis=2).T
        sizes = sizes if features.shape[0] > 1 else jnp.max(sizes, axis=0, keepdims=True)
        return gram(features, precision), jnp.sum(sizes[:, :, None] * features**2, axis=1)

    matrix, sizes = sum_over_rows(sums, features, precision)
    return jax.lax.cond(
        jnp.max(sizes) < _PLAIN,
        lambda: factor_of_gram(matrix),
        lambda: _factorise_twice(features, precision),
    )


def factor_of_gram(matrix: Float[Array, "DP DP"]) -> _Factor:
    """T from ΨᵀΛΨ."""
    identity = jnp.eye(matrix.shape[0])
    factor = linalg.cholesky(matrix + identity)
    return _inverted(factor, identity, linalg.log_det_from_cholesky(factor))


def _factorise_twice(features: Float[Array, "F N P"], precision: Float[Array, "N D D"]) -> _Factor:
    """Factorise B in two steps, for very precise sites.

    B is then large in some directions and I in others, and the latter are lost in the sum. They are recovered from
    T₁BT₁ᵀ = T₁T₁ᵀ + (ΨT₁ᵀ)ᵀΛ(ΨT₁ᵀ), which is near I and has no large entries. Any T₁ gives the same B⁻¹. It is computed
    from the positive part of Λ, raised by a bound on rounding errors, so that it always exists, and is constant in
    derivatives. Products with Λ use its roots: with a singular Λ itself, rounding would add spurious eigenvalues.
    """
    positive, negative = jax.vmap(small.signed_roots)(precision)
    fixed_features, roots = jax.lax.stop_gradient((features, positive))
    rough = sum_over_rows(gram, fixed_features, jnp.einsum("ndk,nek->nde", roots, roots))
    identity = jnp.eye(rough.shape[0])
    lift = 10.0 * jnp.finfo(rough.dtype).eps * jnp.trace(rough)
    first = linalg.cholesky(rough + (1.0 + lift) * identity)
    inverse = linalg.solve_lower(first, identity)
    latents = precision.shape[1]
    half = inverse.reshape(rough.shape[0], latents, -1)

    # A column of one of the roots is zero in the other.
    signs = jnp.where(jnp.any(negative != 0.0, axis=1), -1.0, 1.0)

    def scaled_gram(features, roots, signs):
        rows = jnp.einsum("ndk,dna->nka", roots, _projected(features, half))
        return linalg.weighted_square(rows.reshape(signs.size, -1), signs.reshape(-1))

    scaled = inverse @ inverse.T + sum_over_rows(scaled_gram, features, positive + negative, signs)
    second = linalg.cholesky(small.symmetrise(scaled))
    return _inverted(second, inverse, linalg.log_det_from_cholesky(first) + linalg.log_det_from_cholesky(second))


def _inverted(factor: Float[Array, "DP DP"], right: Float[Array, "DP DP"], log_det: Float[Array, ""]) -> _Factor:
    return _Factor(linalg.solve_lower(factor, right), log_det, jnp.all(jnp.isfinite(jnp.diagonal(factor))))


def _whitened_mean(
    features: Float[Array, "F N P"],
    precision: Float[Array, "N D D"],
    centred: Float[Array, "N D"],
    inverse: Float[Array, "DP DP"],
) -> Float[Array, "D P"]:
    """B⁻¹Ψᵀ(λ − Λμ), with one step of iterative refinement.

    λ − Λμ is of the size of Λ, and so are the errors of B⁻¹Ψᵀ(λ − Λμ). λ − Λm is not: adding B⁻¹ times the residual
    Ψᵀ(λ − Λm) − v removes these errors.
    """

    def solve(right: Float[Array, "D P"]) -> Float[Array, "D P"]:
        return (inverse.T @ (inverse @ right.reshape(-1))).reshape(right.shape)

    mean = solve(sum_over_rows(transposed_times, features, centred))
    for _ in range(2):

        def of_block(features, precision, centred, mean=mean):
            residual = centred - jnp.einsum("nij,nj->ni", precision, times(features, mean))
            return transposed_times(features, residual)

        mean = mean + solve(sum_over_rows(of_block, features, precision, centred) - mean)
    return mean
