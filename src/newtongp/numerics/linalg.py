"""Dense linear algebra: Cholesky factors, triangular solves, whitening. One of three modules that call LAPACK."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .small import outer, symmetrise


def diagonals(matrices: Float[Array, "... M M"]) -> Float[Array, "... M"]:
    """The diagonal of one or more matrices, in two operations where `jnp.diagonal` takes twenty."""
    size = matrices.shape[-1]
    flat = matrices.reshape(*matrices.shape[:-2], size * size)
    return jax.lax.slice_in_dim(flat, 0, size * size, stride=size + 1, axis=matrices.ndim - 2)


def cholesky(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Lower Cholesky factor of a large matrix; NaN throughout if it is not positive definite."""
    return jax.lax.linalg.cholesky(matrix, symmetrize_input=False)


EPS = float(np.finfo(np.float64).eps)


@jax.custom_jvp
def lifted_cholesky(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """Lower Cholesky factor of A + ε diag(A), and ε, which is zero if A is positive definite.

    Otherwise ε is a bound on the rounding errors of A, relative to its diagonal. The factor is NaN throughout if A is
    indefinite beyond rounding.
    """
    factor = cholesky(matrix)
    lift = 4.0 * matrix.shape[0] * EPS
    return jax.lax.cond(
        jnp.all(jnp.isfinite(jnp.diagonal(factor))),
        lambda: (factor, jnp.zeros((), matrix.dtype)),
        lambda: (cholesky(matrix + jnp.diag(lift * jnp.diagonal(matrix))), jnp.asarray(lift, matrix.dtype)),
    )


@lifted_cholesky.defjvp
def _lifted_cholesky_jvp(primals, tangents):
    # dL = L Φ(L⁻¹ dA L⁻ᵀ) with the returned factor, so that the other one, which may be NaN, is not used.
    (matrix,), (change,) = primals, tangents
    factor, lift = lifted_cholesky(matrix)
    change = change + jnp.diag(lift * jnp.diagonal(change))
    inner = jax.lax.linalg.triangular_solve(factor, change, left_side=False, lower=True, transpose_a=True)
    inner = solve_lower(factor, inner)
    inner = jnp.tril(inner, -1) + jnp.diag(0.5 * jnp.diagonal(inner))
    return (factor, lift), (factor @ inner, jnp.zeros_like(lift))


def solve_lower(
    factor: Float[Array, "M M"], right: Float[Array, "M *K"], transpose: bool = False
) -> Float[Array, "M *K"]:
    """L⁻¹ right, or L⁻ᵀ right."""
    columns = right if right.ndim == 2 else right[:, None]
    solution = jax.lax.linalg.triangular_solve(factor, columns, left_side=True, lower=True, transpose_a=transpose)
    return solution if right.ndim == 2 else solution[:, 0]


def cholesky_of_each(matrices: Float[Array, "L K K"]) -> Float[Array, "L K K"]:
    """The lower Cholesky factors of many small matrices; NaN where one is not positive definite."""
    if matrices.shape[1] == 1:
        return jnp.sqrt(jnp.where(matrices > 0.0, matrices, jnp.nan))
    return jax.lax.linalg.cholesky(matrices, symmetrize_input=False)


_FEW = 4
"""Systems of up to this many equations are solved by unrolled substitution: a batched call takes much longer."""


def solve_each_lower(
    factors: Float[Array, "L K K"], right: Float[Array, "L K P"], transpose: bool = False
) -> Float[Array, "L K P"]:
    """L⁻¹ right, or L⁻ᵀ right, for many small factors."""
    size = factors.shape[1]
    if size > _FEW:
        return jax.lax.linalg.triangular_solve(factors, right, left_side=True, lower=True, transpose_a=transpose)
    found: dict[int, Any] = {}
    for i in reversed(range(size)) if transpose else range(size):
        left = right[:, i]
        for j, known in found.items():
            left = left - (factors[:, j, i] if transpose else factors[:, i, j])[:, None] * known
        found[i] = left / factors[:, i, i][:, None]
    return jnp.stack([found[i] for i in range(size)], axis=1)


_BLOCKS, _SMALLEST_BLOCK = 4, 40
"""Triangular matrices are inverted in this many blocks of columns, each of at least so many."""


def _column_blocks(size: int) -> list[tuple[int, int]]:
    count = max(1, min(_BLOCKS, size // _SMALLEST_BLOCK))
    ends = [round(size * index / count) for index in range(count + 1)]
    return list(itertools.pairwise(ends))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def times_lower_transposed(
    matrix: Float[Array, "K S"], factor: Float[Array, "M M"], first: int = 0
) -> Float[Array, "K M"]:
    """ALᵀ, in blocks of rows of a large L without their zeros; A has columns for those of L from `first` on."""
    last, blocks = first + matrix.shape[1], []
    for begin, end in _column_blocks(factor.shape[0]):
        stop = min(max(end, first), last)
        blocks.append(matrix[:, : stop - first] @ factor[begin:end, first:stop].T)
    return jnp.concatenate(blocks, axis=1)


@times_lower_transposed.defjvp
def _times_lower_transposed_jvp(first, primals, tangents):
    # The derivative of L need not be triangular: see `inverse_root`.
    (matrix, factor), (moved, change) = primals, tangents
    products = matrix @ change[:, first : first + matrix.shape[1]].T
    return times_lower_transposed(matrix, factor, first), times_lower_transposed(moved, factor, first) + products


_LARGE_SQUARE = 128
"""The number of columns from which splitting a product saves time."""


@jax.custom_jvp
def weighted_square(matrix: Float[Array, "N P"], weights: Float[Array, " N"]) -> Float[Array, "P P"]:
    """AᵀwA; of a large one the block above the diagonal is copied from below."""
    weighted, size = weights[:, None] * matrix, matrix.shape[1]
    if size < _LARGE_SQUARE:
        return matrix.T @ weighted
    cut = size // 2
    above, below = matrix[:, :cut].T @ weighted[:, :cut], matrix[:, cut:].T @ weighted
    return jnp.concatenate([jnp.concatenate([above, below[:, :cut].T], axis=1), below])


@weighted_square.defjvp
def _weighted_square_jvp(primals, tangents):
    # One product, forwards and backwards, because of the symmetry.
    (matrix, weights), (moved, change) = primals, tangents
    half = matrix.T @ (weights[:, None] * moved + (0.5 * change)[:, None] * matrix)
    return weighted_square(matrix, weights), half + half.T


_HALVINGS, _SMALLEST_HALF = 3, 80
"""How often triangular matrices are cut in half, and the smallest half: smaller ones only take longer to compile."""


def _half(size: int, halvings: int) -> int | None:
    """Where to cut a triangular matrix in half; None if it is too small or was cut often enough."""
    return None if halvings == 0 or size < 2 * _SMALLEST_HALF else size // 2


def inverse_lower(factor: Float[Array, "M M"], halvings: int = _HALVINGS) -> Float[Array, "M M"]:
    """L⁻¹, in halves: [[A, 0], [B, C]] has the inverse [[A⁻¹, 0], [−C⁻¹BA⁻¹, C⁻¹]].

    Products of matrices are several times faster than triangular solves. Their errors grow with the condition of the
    blocks, and so do those of a Cholesky factor, which are larger by far.
    """
    size, half = factor.shape[0], _half(factor.shape[0], halvings)
    if half is None:
        return solve_lower(factor, jnp.eye(size, dtype=factor.dtype))
    first, last = (inverse_lower(block, halvings - 1) for block in (factor[:half, :half], factor[half:, half:]))
    below = -(last @ factor[half:, :half]) @ first
    return _joined(first, jnp.zeros((half, size - half), factor.dtype), below, last)


def _joined(first: Array, above: Array, below: Array, last: Array) -> Array:
    return jnp.concatenate([jnp.concatenate([first, above], axis=1), jnp.concatenate([below, last], axis=1)])


@jax.custom_jvp
def inverse_root(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """H, lower triangular, with HᵀH = A⁻¹, and log det A; NaN throughout if A is not positive definite.

    Derivatives are those of all functions of HᵀH, and take products of matrices alone.
    """
    factor = cholesky(matrix)
    return inverse_lower(factor), log_det_from_cholesky(factor)


@inverse_root.defjvp
def _inverse_root_jvp(primals, tangents):
    # HᵀH = A⁻¹ has the derivative −A⁻¹ dA A⁻¹, which dH = −½ H dA HᵀH gives as well as that of the triangular H.
    (matrix,), (change,) = primals, tangents
    half, log_det = inverse_root(matrix)
    # Written with A⁻¹ for log det A: where only that is differentiated backwards, it is the one product that is left.
    return (half, log_det), (-0.5 * ((half @ change) @ half.T) @ half, jnp.sum((half.T @ half) * change))


def square_of_lower(matrix: Float[Array, "M M"], halvings: int = _HALVINGS) -> Float[Array, "M M"]:
    """LᵀL of a lower triangular L, in halves without their zeros: (LLᵀ)⁻¹, if L is the inverse of another one."""
    half = _half(matrix.shape[0], halvings)
    if half is None:
        return matrix.T @ matrix
    first, last = (square_of_lower(block, halvings - 1) for block in (matrix[:half, :half], matrix[half:, half:]))
    below = matrix[half:, :half]
    beside = matrix[half:, half:].T @ below
    return _joined(first + below.T @ below, beside.T, beside, last)


def log_det_from_cholesky(factor: Float[Array, "M M"]) -> Float[Array, ""]:
    """log det(L Lᵀ)."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor)))


def symmetric_inverse(
    matrix: Float[Array, "M M"],
) -> tuple[Float[Array, "M M"], Float[Array, ""], Float[Array, ""]]:
    """The inverse of a symmetric matrix of any signs, log |det|, and the number of positive eigenvalues."""
    inverse, (_, log_det) = jnp.linalg.inv(matrix), jnp.linalg.slogdet(matrix)
    positive = jnp.sum(jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix)) > 0.0)
    return symmetrise(inverse), log_det, positive.astype(matrix.dtype)


def solve_few(matrix: Float[Array, "K K"], right: Float[Array, " K"]) -> Float[Array, " K"]:
    """A⁻¹ right for one small positive definite matrix, by elimination in a loop, which compiles quickly."""

    def eliminate(k, table):
        row = table[k] / table[k, k]
        return jnp.where((jnp.arange(table.shape[0]) == k)[:, None], row[None, :], table - outer(table[:, k], row))

    table = jnp.concatenate([matrix, right[:, None]], axis=1)
    return jax.lax.fori_loop(0, matrix.shape[0], eliminate, table)[:, -1]


def psd_root(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """A square root of a large matrix that is PSD up to rounding, singular or not (no jitter needed)."""
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]


def as_covariance(matrix: Float[Array, "M M"], count: Any = None) -> Float[Array, "M M"]:
    """Make a large matrix PSD that is a covariance up to rounding, without changing its nonnegative diagonal.

    Negative eigenvalues of its correlation matrix become zero. If only the first `count` rows are wanted, the others
    lose their covariances, so that they have no influence.
    """
    if count is not None:
        wanted = jnp.arange(matrix.shape[0]) < count
        matrix = jnp.where(wanted[:, None] & wanted[None, :], matrix, jnp.diag(jnp.diagonal(matrix)))
    scales = jnp.sqrt(jnp.diagonal(matrix))
    inverse = jnp.where(scales > 0.0, 1.0 / jnp.where(scales > 0.0, scales, 1.0), 0.0)
    identity = jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    correlation = jnp.where(identity > 0.0, 1.0, inverse[:, None] * symmetrise(matrix) * inverse[None, :])
    factor = cholesky(correlation + 10.0 * matrix.shape[0] * EPS * identity)

    def projected():
        root = psd_root(correlation)
        root = root * (scales / jnp.sqrt(jnp.sum(root**2, axis=1)))[:, None]
        return root @ root.T

    return jax.lax.cond(jnp.all(jnp.isfinite(jnp.diagonal(factor))), lambda: symmetrise(matrix), projected)


def triangular_root(matrix: Float[Array, "M C"], size: int) -> Float[Array, "size C"]:
    """The first `size` rows of QᵀA, whose first `size` columns are the triangular factor R of those of A.

    By Householder reflections in a loop of array operations, for small matrices inside loops.
    """
    here = jnp.arange(matrix.shape[0])

    def reflect(k, matrix):
        column = jnp.where(here >= k, matrix[:, k], 0.0)
        square = jnp.sum(column**2)
        length = jnp.where(square > 0.0, jnp.sqrt(jnp.where(square > 0.0, square, 1.0)), 0.0)
        lead = matrix[k, k]
        end = jnp.where(lead < 0.0, length, -length)
        normal = jnp.where(here == k, lead - end, column)
        half = length * (length + jnp.abs(lead))
        share = jnp.where(half > 0.0, 1.0 / jnp.where(half > 0.0, half, 1.0), 0.0)
        reflected = matrix - share * normal[:, None] * jnp.sum(normal[:, None] * matrix, axis=0)[None, :]
        # The reflected column is known exactly.
        exact = jnp.where(here < k, matrix[:, k], jnp.where(here == k, end, 0.0))
        return jnp.where((jnp.arange(matrix.shape[1]) == k)[None, :], exact[:, None], reflected)

    return jax.lax.fori_loop(0, size, reflect, matrix)[:size]


def greedy_pivots(
    column: Callable[[Any], Float[Array, " N"]], diagonal: Float[Array, " N"], count: int
) -> tuple[Any, Float[Array, " count"]]:
    """The first rows and pivots of the pivoted Cholesky factor of a PSD matrix.

    Each row is the one with the largest variance given the rows before it, and its pivot is that variance.
    `column(i)` returns column i of the matrix; only the columns of these rows are computed.
    """

    def take(k, state):
        factor, variances, rows, pivots = state
        row = jnp.argmax(variances)
        pivot = variances[row]
        root = jnp.sqrt(jnp.maximum(pivot, jnp.finfo(variances.dtype).tiny))
        new = jnp.where(pivot > 0.0, (column(row) - factor @ factor[row]) / root, 0.0)
        variances = jnp.maximum(variances - new**2, 0.0).at[row].set(0.0)
        return factor.at[:, k].set(new), variances, rows.at[k].set(row), pivots.at[k].set(pivot)

    start = jnp.zeros((diagonal.shape[0], count)), diagonal, jnp.zeros(count, dtype=int), jnp.zeros(count)
    _, _, rows, pivots = jax.lax.fori_loop(0, count, take, start)
    return rows, pivots


_DROPPED = 1e-13
"""Eigenvalues of a correlation matrix below this, relative to the largest, are treated as rounding errors."""


@jax.custom_jvp
def whitening(matrix: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """T with TᵀT = A⁻¹, for a large matrix that is PSD up to rounding, singular or not (no jitter needed).

    Directions in which A is zero up to rounding have zero rows in T.
    """
    return _whitener(_spectrum(matrix))


@whitening.defjvp
def _whitening_jvp(primals, tangents):
    # Eigenvectors have no derivative where eigenvalues coincide, but results depend on TᵀT alone, and dT = −½ T dA TᵀT
    # gives its derivative; for a singular A, the derivative within its range.
    (matrix,), (change,) = primals, tangents
    whitener = whitening(matrix)
    return whitener, _whitener_change(whitener, change)


class _Spectrum(NamedTuple):
    """The eigenvalues and eigenvectors of a correlation matrix, the deviations, and their inverses (zero for zero)."""

    values: Float[Array, " M"]
    vectors: Float[Array, "M M"]
    scales: Float[Array, " M"]
    inverse: Float[Array, " M"]


def _spectrum(matrix: Float[Array, "M M"]) -> _Spectrum:
    scales = jnp.sqrt(jnp.maximum(jnp.diagonal(matrix), 0.0))
    inverse = jnp.where(scales > 0.0, 1.0 / jnp.where(scales > 0.0, scales, 1.0), 0.0)
    values, vectors = jnp.linalg.eigh(symmetrise(inverse[:, None] * matrix * inverse[None, :]))
    return _Spectrum(values, vectors, scales, inverse)


def _whitener(found: _Spectrum) -> Float[Array, "M M"]:
    positive = found.values > _DROPPED * found.values[-1]
    weights = jnp.where(positive, 1.0 / jnp.sqrt(jnp.where(positive, found.values, 1.0)), 0.0)
    return weights[:, None] * found.vectors.T * found.inverse[None, :]


def _whitener_change(whitener: Float[Array, "M M"], change: Float[Array, "M M"]) -> Float[Array, "M M"]:
    return -0.5 * whitener @ (change @ whitener.T) @ whitener


@jax.custom_jvp
def whitening_and_root(matrix: Float[Array, "M M"]) -> tuple[Float[Array, "M M"], Float[Array, "M M"]]:
    """T as in `whitening`, and a root F of A, FFᵀ = A.

    F is ATᵀ, but for directions that T leaves out. There it is continuous in A, where ATᵀ jumps.
    """
    found = _spectrum(matrix)
    return _whitener(found), _root(found)


def _root(found: _Spectrum) -> Float[Array, "M M"]:
    return found.scales[:, None] * found.vectors * jnp.sqrt(jnp.maximum(found.values, 0.0))[None, :]


@whitening_and_root.defjvp
def _whitening_and_root_jvp(primals, tangents):
    (matrix,), (change,) = primals, tangents
    found = _spectrum(matrix)
    whitener = _whitener(found)
    # dF = ½ dA Tᵀ is the derivative that goes with that of T, with 1/√λ bounded where λ is rounding.
    least = EPS * found.values[-1]
    weights = jnp.sqrt(jnp.maximum(found.values, 0.0)) / jnp.maximum(found.values, least)
    root_change = 0.5 * change @ (found.inverse[:, None] * found.vectors * weights[None, :])
    return (whitener, _root(found)), (_whitener_change(whitener, change), root_change)


_SOLVED, _RESTARTS = 1e-10, 3


_KEPT, _FEWEST_KEPT = 2**21, 6
"""The number of entries of all vectors that are kept before a restart, and the smallest number of these vectors."""


def solve_by_products(apply: Callable[[Any], Any], right: Any, iterations: int) -> Any:
    """A⁻¹ right for a matrix given by its products with trees of arrays: restarted GMRES.

    It takes no more products than it needs: two for I − N with N² = 0, as the fixed-point maps of Newton's method have.
    Orthonormal images of the directions are kept, and the directions as combinations of images.
    """
    flat, to_tree = jax.flatten_util.ravel_pytree(right)
    iterations = min(iterations, max(_FEWEST_KEPT, _KEPT // flat.size))
    limit = _SOLVED * jnp.sqrt(flat @ flat)

    def is_open(residual):
        return residual @ residual > limit**2

    def extend(state):
        count, vectors, directions, shares, residual = state
        image, _ = jax.flatten_util.ravel_pytree(apply(to_tree(vectors[count])))
        direction = (jnp.arange(iterations + 1) == count).astype(flat.dtype)
        # Twice, because rounding leaves something of what was removed once.
        for _ in range(2):
            overlap = vectors[1:] @ image
            image, direction = image - overlap @ vectors[1:], direction - overlap @ directions
        square = image @ image
        scale = jnp.where(square > 0.0, 1.0 / jnp.sqrt(jnp.where(square > 0.0, square, 1.0)), 0.0)
        image, direction = scale * image, scale * direction
        share = image @ residual
        vectors, directions = vectors.at[count + 1].set(image), directions.at[count].set(direction)
        return count + 1, vectors, directions, shares.at[count].set(share), residual - share * image

    def restart(state):
        rounds, solution, residual = state
        vectors = jnp.zeros((iterations + 1, flat.size), flat.dtype).at[0].set(residual / jnp.sqrt(residual @ residual))
        directions, shares = jnp.zeros((iterations, iterations + 1), flat.dtype), jnp.zeros(iterations, flat.dtype)
        start = jnp.zeros((), dtype=int), vectors, directions, shares, residual
        _, vectors, directions, shares, residual = jax.lax.while_loop(
            lambda state: (state[0] < iterations) & is_open(state[4]), extend, start
        )
        return rounds + 1, solution + (shares @ directions) @ vectors, residual

    start = jnp.zeros((), dtype=int), jnp.zeros_like(flat), flat
    _, solution, _ = jax.lax.while_loop(lambda state: (state[0] < _RESTARTS) & is_open(state[2]), restart, start)
    return to_tree(solution)
