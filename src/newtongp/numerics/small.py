"""Linear algebra of small matrices, one per row of data: factors, solves, log determinants, eigenvalues, PSD tests.

They are D x D with D a handful, and `jax.vmap` over rows turns them into vectorised operations instead of N calls to
LAPACK: scalar arithmetic up to D = 4, and loops over columns above, because unrolled they would take longer to compile
than to run. `linalg` has the large matrices.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float


def symmetrise(matrix: Float[Array, "... D D"]) -> Float[Array, "... D D"]:
    """(A + Aᵀ) / 2."""
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


def outer(a: Float[Array, " D"], b: Float[Array, " E"]) -> Float[Array, "D E"]:
    """a bᵀ."""
    return a[:, None] * b[None, :]


def small_pivots_and_root(
    matrix: Float[Array, "D D"], least: float = 0.0
) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """The pivots of a small symmetric matrix and its lower Cholesky factor.

    All pivots are positive exactly when the matrix is positive definite. A pivot that is not above `least`
    gives a column of zeros, so that a singular covariance still has a root.
    """
    size = matrix.shape[-1]
    if size > _LARGEST_UNROLLED:
        return _pivots_and_root_in_a_loop(matrix, least)
    zero = jnp.zeros((), matrix.dtype)
    pivots = []
    columns: list[list[Array]] = []
    for j in range(size):
        pivot = matrix[j, j]
        for k in range(j):
            pivot = pivot - columns[k][j] ** 2
        positive = pivot > least
        # NaN must stay NaN: only a pivot known to be non-positive is replaced.
        root = jnp.where(pivot <= least, 0.0, jnp.sqrt(jnp.where(pivot <= least, 1.0, pivot)))
        column = [zero] * j + [root]
        for i in range(j + 1, size):
            entry = matrix[i, j]
            for k in range(j):
                entry = entry - columns[k][i] * columns[k][j]
            column.append(jnp.where(positive, entry / jnp.where(positive, root, 1.0), 0.0))
        pivots.append(pivot)
        columns.append(column)
    factor = jnp.stack([jnp.stack(column) for column in columns], axis=-1)
    return jnp.stack(pivots), factor


def _pivots_and_root_in_a_loop(
    matrix: Float[Array, "D D"], least: float
) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """`small_pivots_and_root` as a loop over columns."""
    here = jnp.arange(matrix.shape[0])

    def column(j, state):
        pivots, factor = state
        entries = matrix[:, j] - jnp.sum(factor * factor[j][None, :], axis=1)
        pivot = entries[j]
        positive = pivot > least
        root = jnp.where(pivot <= least, 0.0, jnp.sqrt(jnp.where(pivot <= least, 1.0, pivot)))
        below = jnp.where(positive & (here > j), entries, 0.0) / jnp.where(positive, root, 1.0)
        return pivots.at[j].set(pivot), factor.at[:, j].set(jnp.where(here == j, root, below))

    return jax.lax.fori_loop(0, matrix.shape[0], column, (jnp.zeros(matrix.shape[0]), jnp.zeros_like(matrix)))


def small_covariance(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """Make a small matrix PSD that is a covariance up to rounding, without changing its nonnegative diagonal.

    Entries of its Cholesky factor are clipped to what remains of their row's variance. Derivatives are those of the
    matrix itself.
    """
    size = matrix.shape[-1]
    if size == 1:
        return matrix
    value = jax.lax.stop_gradient(matrix)
    factor, is_psd = (_clipped_root if size <= _LARGEST_UNROLLED else _clipped_root_in_a_loop)(value)
    # Selected, not corrected by a difference, which would leave rounding errors in small entries.
    return jnp.where(is_psd, value, factor @ factor.T) + (matrix - value)


_LARGEST_UNROLLED = 4


def _clipped_root(matrix: Float[Array, "D D"]) -> tuple[Float[Array, "D D"], Bool[Array, ""]]:
    """A lower Cholesky factor with clipped entries, and whether none had to be clipped."""
    size = matrix.shape[-1]
    zero = jnp.zeros((), matrix.dtype)
    variances = [matrix[i, i] for i in range(size)]
    columns: list[list[Array]] = []
    is_psd = jnp.ones((), dtype=bool)
    for j in range(size):
        root = jnp.sqrt(variances[j])
        column = [zero] * j + [root]
        for i in range(j + 1, size):
            entry = matrix[i, j]
            for k in range(j):
                entry = entry - columns[k][i] * columns[k][j]
            largest = jnp.sqrt(variances[i])
            is_psd = is_psd & (jnp.abs(entry) <= root * largest)
            ratio = jnp.where(root > 0.0, entry / jnp.where(root > 0.0, root, 1.0), 0.0)
            ratio = jnp.clip(ratio, -largest, largest)
            variances[i] = jnp.maximum(variances[i] - ratio**2, 0.0)
            column.append(ratio)
        columns.append(column)
    return jnp.stack([jnp.stack(column) for column in columns], axis=-1), is_psd


def _clipped_root_in_a_loop(matrix: Float[Array, "D D"]) -> tuple[Float[Array, "D D"], Bool[Array, ""]]:
    """`_clipped_root` as a loop over columns."""
    here = jnp.arange(matrix.shape[0])

    def column(j, state):
        factor, variances, is_psd = state
        root = jnp.sqrt(variances[j])
        entry = matrix[:, j] - factor @ factor[j]
        largest = jnp.sqrt(variances)
        below = here > j
        is_psd = is_psd & jnp.all((jnp.abs(entry) <= root * largest) | ~below)
        ratio = jnp.where(root > 0.0, entry / jnp.where(root > 0.0, root, 1.0), 0.0)
        ratio = jnp.where(below, jnp.clip(ratio, -largest, largest), 0.0)
        variances = jnp.maximum(variances - ratio**2, 0.0)
        return factor.at[:, j].set(jnp.where(here == j, root, ratio)), variances, is_psd

    start = jnp.zeros_like(matrix), jnp.diagonal(matrix), jnp.ones((), dtype=bool)
    factor, _, is_psd = jax.lax.fori_loop(0, matrix.shape[0], column, start)
    return factor, is_psd


def small_root(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """Lower Cholesky factor of a small PSD matrix, singular ones included."""
    return small_pivots_and_root(matrix)[1]


_DEPENDENT = 1e-13
"""Directions with a smaller conditional variance, relative to the variance itself, are determined by the others."""


def graded_root(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """Lower Cholesky factor of a small PSD matrix whose variances may be of very different sizes.

    Columns of directions that are determined by those before them up to rounding are zero.
    """
    variances = jax.lax.stop_gradient(jnp.diagonal(matrix))
    sizes = jnp.sqrt(jnp.where(variances > 0.0, variances, 1.0))
    return sizes[:, None] * small_pivots_and_root(matrix / outer(sizes, sizes), _DEPENDENT)[1]


def small_pseudo_solve_lower(factor: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """L⁻¹ right for a small lower triangular matrix, with zeros where a column of L is zero."""
    left_out = (jnp.diagonal(factor) <= 0.0)[:, None] & jnp.eye(factor.shape[-1], dtype=bool)
    return small_solve_lower(jnp.where(left_out, jnp.inf, factor), right)


def is_positive_definite(matrix: Float[Array, "D D"]) -> Bool[Array, ""]:
    """Whether a small symmetric matrix is positive definite (False for NaN)."""
    return jnp.all(small_pivots_and_root(matrix)[0] > 0.0)


def small_log_det(matrix: Float[Array, "D D"]) -> Float[Array, ""]:
    """log det of a small positive definite matrix."""
    if matrix.shape[-1] == 1:
        return jnp.log(matrix[0, 0])
    return jnp.sum(jnp.log(small_pivots_and_root(matrix)[0]))


def small_solve(matrix: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """A⁻¹ right for a small matrix of any symmetry."""
    size = matrix.shape[-1]
    if size == 1:
        return right / matrix[0, 0]
    if size == 2:
        determinant = matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]
        adjugate = jnp.array([[matrix[1, 1], -matrix[0, 1]], [-matrix[1, 0], matrix[0, 0]]])
        return (adjugate @ right) / determinant
    columns = right[:, None] if right.ndim == 1 else right
    solved, _ = _eliminate(matrix, columns)
    return solved.reshape(right.shape)


def _eliminate(matrix: Float[Array, "D D"], right: Float[Array, "D K"]) -> tuple[Float[Array, "D K"], Float[Array, ""]]:
    """A⁻¹ right and the sign of det A, by elimination with partial pivoting.

    LAPACK is not used because JAX spreads calls for one matrix per row over threads that wait for each other, and with
    few cores two such calls at a time can deadlock.
    """
    size = matrix.shape[0]
    rows = jnp.arange(size)

    def step(k, state):
        whole, sign = state
        column = jnp.where(rows >= k, jnp.abs(whole[:, k]), -1.0)
        best = jnp.argmax(column)
        swapped = jnp.where(rows == k, best, jnp.where(rows == best, k, rows))
        whole = whole[swapped]
        pivot = whole[k, k]
        sign = sign * jnp.sign(pivot) * jnp.where(best == k, 1.0, -1.0)
        top = whole[k] / pivot
        others = jnp.where(rows == k, 0.0, whole[:, k])
        whole = jnp.where((rows == k)[:, None], top[None, :], whole - outer(others, top))
        return whole, sign

    start = jnp.concatenate([matrix, right], axis=1), jnp.ones((), matrix.dtype)
    whole, sign = jax.lax.fori_loop(0, size, step, start)
    return whole[:, size:], sign


def small_solve_lower(factor: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """L⁻¹ right for a small lower triangular matrix."""
    if factor.shape[-1] > _LARGEST_UNROLLED:
        return _solve_lower_in_a_loop(factor, right)
    rows: list[Array] = []
    for i in range(factor.shape[-1]):
        entry = right[i]
        for k in range(i):
            entry = entry - factor[i, k] * rows[k]
        rows.append(entry / factor[i, i])
    return jnp.stack(rows)


def _solve_lower_in_a_loop(factor: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """`small_solve_lower` as a loop over rows."""

    def row(i, solved):
        weights = factor[i].reshape(-1, *(1 for _ in right.shape[1:]))
        return solved.at[i].set((right[i] - jnp.sum(weights * solved, axis=0)) / factor[i, i])

    return jax.lax.fori_loop(0, factor.shape[0], row, jnp.zeros_like(right))


def small_solve_lower_transposed(factor: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """L⁻ᵀ right for a small lower triangular matrix."""
    flipped = factor[::-1, ::-1].T
    return small_solve_lower(flipped, right[::-1])[::-1]


def small_solve_psd(matrix: Float[Array, "D D"], right: Float[Array, "D *K"]) -> Float[Array, "D *K"]:
    """A⁻¹ right for a small positive definite matrix."""
    if matrix.shape[-1] == 1:
        return right / matrix[0, 0]
    factor = small_root(matrix)
    return small_solve_lower_transposed(factor, small_solve_lower(factor, right))


LOG_2PI = math.log(2.0 * math.pi)


def normal_log_density(residual: Any, variance: Any) -> Any:
    """log N(residual | 0, variance) of single numbers."""
    return -0.5 * (LOG_2PI + jnp.log(variance) + residual**2 / variance)


def small_normal_log_density(residual: Float[Array, " D"], covariance: Float[Array, "D D"]) -> Float[Array, ""]:
    """log N(residual | 0, covariance), for a small positive definite covariance."""
    if residual.shape[0] == 1:
        return normal_log_density(residual[0], covariance[0, 0])
    pivots, factor = small_pivots_and_root(covariance)
    white = small_solve_lower(factor, residual)
    return -0.5 * (residual.shape[0] * LOG_2PI + jnp.sum(jnp.log(pivots)) + jnp.sum(white**2))


@jax.custom_jvp
def signed_roots(
    matrix: Float[Array, "D D"],
) -> tuple[Float[Array, "D D"], Float[Array, "D D"]]:
    """R₊ and R₋ with A = R₊R₊ᵀ − R₋R₋ᵀ, for a small symmetric matrix of any signature."""
    if matrix.shape[-1] == 1:
        return jnp.sqrt(jnp.maximum(matrix, 0.0)), jnp.sqrt(jnp.maximum(-matrix, 0.0))
    values, vectors = small_eigh(matrix)
    positive = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[None, :]
    negative = vectors * jnp.sqrt(jnp.maximum(-values, 0.0))[None, :]
    return positive, negative


@signed_roots.defjvp
def _signed_roots_jvp(primals, tangents):
    # Eigenvectors have no derivative where eigenvalues coincide, but R₊R₊ᵀ − R₋R₋ᵀ has one. With unit columns U and
    # their eigenvalues w it follows from dU = U X + (I − U Uᵀ) dA U/w, where X W + W Xᵀ = Uᵀ dA U. With the X of least
    # norm, a singular A (as in Gauss-Newton) changes within its range only, even if rounding has made a zero eigenvalue
    # nonzero. A = 0 (a missing row) is a constant.
    (matrix,), (change,) = primals, tangents
    positive, negative = signed_roots(matrix)
    values = jnp.sum(positive**2 - negative**2, axis=0)
    safe = jnp.where(values == 0.0, 1.0, values)
    lengths = jnp.sqrt(jnp.abs(safe))
    units = (positive + negative) / lengths[None, :]
    moved = change @ units
    turned = units.T @ moved
    squares = values[:, None] ** 2 + values[None, :] ** 2
    mixing = jnp.where(squares > 0.0, turned * values[None, :] / jnp.where(squares > 0.0, squares, 1.0), 0.0)
    slope = (units @ mixing + (moved - units @ turned) / safe[None, :]) * lengths[None, :]
    return (positive, negative), (
        jnp.where((values > 0.0)[None, :], slope, 0.0),
        jnp.where((values < 0.0)[None, :], slope, 0.0),
    )


def smallest_eigenvalue(matrix: Float[Array, "D D"]) -> Float[Array, ""]:
    """The smallest eigenvalue of a small symmetric matrix."""
    if matrix.shape[-1] == 1:
        return matrix[0, 0]
    return jnp.min(_eigh(matrix)[0])


def raise_eigenvalues(matrix: Float[Array, "D D"], floor: float) -> Float[Array, "D D"]:
    """A small symmetric matrix with eigenvalues below the floor raised to it."""
    if matrix.shape[-1] == 1:
        return jnp.maximum(matrix, floor)
    values, vectors = _eigh(matrix)
    return symmetrise((vectors * jnp.maximum(values, floor)[None, :]) @ vectors.T)


def project_psd(matrix: Float[Array, "D D"]) -> Float[Array, "D D"]:
    """The nearest PSD matrix: negative eigenvalues become zero."""
    return raise_eigenvalues(matrix, 0.0)


def small_eigh(matrix: Float[Array, "D D"]) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Eigenvalues and orthonormal eigenvectors (columns) of a small symmetric matrix, in no particular order.

    Eigenvalues that are zero up to rounding are returned as zero.
    """
    values, vectors = _eigh(matrix)
    return jnp.where(jnp.abs(values) <= 1e-14 * jnp.max(jnp.abs(values)), 0.0, values), vectors


_LARGEST_SMALL = 16


def _eigh(matrix: Float[Array, "D D"]) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Eigenvalues and eigenvectors, without LAPACK for small matrices (see `_eliminate`)."""
    size = matrix.shape[-1]
    if size == 1:
        return matrix[0], jnp.ones((1, 1), matrix.dtype)
    if size == 2:
        return _eigh_of_two(matrix)
    return _jacobi(matrix) if size <= _LARGEST_SMALL else jnp.linalg.eigh(matrix)


def _jacobi(matrix: Float[Array, "D D"]) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Jacobi's method: rotations that set one off-diagonal pair to zero each, for disjoint pairs at a time."""
    size = matrix.shape[0]
    here, rounds = np.arange(size), _pairings(size)
    # If eigenvalues are equal, rounding errors off the diagonal would cause rotations by 45° that undo each other.
    negligible = 1e-16 * jnp.max(jnp.abs(matrix))

    def turn(state, partner):
        turned, vectors = state
        diagonal, off = jnp.diagonal(turned), turned[here, partner]
        safe = jnp.where(off == 0.0, 1.0, off)
        slope = (diagonal[partner] - diagonal) / (2.0 * safe)
        tangent = jnp.where(slope < 0.0, -1.0, 1.0) / (jnp.abs(slope) + jnp.sqrt(1.0 + slope**2))
        tangent = jnp.where((jnp.abs(off) <= negligible) | (partner == here), 0.0, tangent)
        # Both entries of a pair use exactly the same angle: computed separately, they would differ by rounding.
        tangent = jnp.where(here <= partner, tangent, -tangent[partner])
        cosine = 1.0 / jnp.sqrt(1.0 + tangent**2)
        sine = tangent * cosine
        turned = cosine[:, None] * turned - sine[:, None] * turned[partner]
        turned = turned * cosine[None, :] - turned[:, partner] * sine[None, :]
        # Vectors as rows: for permuted columns, XLA makes a kernel that recomputes all rounds for every entry.
        return turned, cosine[:, None] * vectors - sine[:, None] * vectors[partner]

    def sweep(_, state):
        if size > _LARGEST_UNROLLED:
            return jax.lax.fori_loop(0, len(rounds), lambda k, state: turn(state, jnp.asarray(rounds)[k]), state)
        for partner in rounds:
            state = turn(state, partner)
        return state

    # Convergence is quadratic: six sweeps are enough for ten states, and a few more for more.
    start = symmetrise(matrix), jnp.eye(size, dtype=matrix.dtype)
    turned, vectors = jax.lax.fori_loop(0, 6 + size // 8, sweep, start)
    return jnp.diagonal(turned), vectors.T


def _pairings(size: int) -> np.ndarray:
    """Rounds of disjoint pairs that together contain every pair: the partner of each index, or itself."""
    places = list(range(size + size % 2))
    rounds = []
    for _ in range(len(places) - 1):
        partner = np.arange(size)
        for one, other in zip(places[: len(places) // 2], reversed(places), strict=False):
            if one < size and other < size:
                partner[one], partner[other] = other, one
        rounds.append(partner)
        places = [places[0], places[-1], *places[1:-1]]
    return np.stack(rounds)


def _eigh_of_two(matrix: Float[Array, "2 2"]) -> tuple[Float[Array, " 2"], Float[Array, "2 2"]]:
    """Eigenvalues and eigenvectors of a 2 × 2 matrix, by one rotation."""
    half = 0.5 * (matrix[0, 0] - matrix[1, 1])
    middle = 0.5 * (matrix[0, 0] + matrix[1, 1])
    radius = jnp.hypot(half, matrix[0, 1])
    angle = 0.5 * jnp.arctan2(matrix[0, 1], half)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    vectors = jnp.stack([jnp.stack([-sine, cosine]), jnp.stack([cosine, sine])], axis=1)
    return jnp.stack([middle - radius, middle + radius]), vectors


def determinant_sign(left: Float[Array, "N D D"], right: Float[Array, "N D D"]) -> Float[Array, " N"]:
    """The sign of det(I + AB) for every pair of small symmetric matrices."""
    size = left.shape[-1]
    if size <= 3:
        # XLA takes a second to compile a batched product of such small matrices.
        product = jnp.sum(left[:, :, :, None] * right[:, None, :, :], axis=2)
    else:
        product = jnp.einsum("nij,njk->nik", left, right)
    matrix = jnp.eye(size)[None] + product
    if size == 1:
        return jnp.sign(matrix[:, 0, 0])
    if size == 2:
        return jnp.sign(_minor(matrix, 0, 1, 0, 1))
    if size == 3:
        return jnp.sign(
            matrix[:, 0, 0] * _minor(matrix, 1, 2, 1, 2)
            - matrix[:, 0, 1] * _minor(matrix, 1, 2, 0, 2)
            + matrix[:, 0, 2] * _minor(matrix, 1, 2, 0, 1)
        )
    return jax.vmap(lambda matrix: _eliminate(matrix, jnp.zeros((size, 0)))[1])(matrix)


def _minor(matrix: Float[Array, "N D D"], i: int, j: int, k: int, m: int) -> Float[Array, " N"]:
    """The determinant of rows i, j and columns k, m."""
    return matrix[:, i, k] * matrix[:, j, m] - matrix[:, i, m] * matrix[:, j, k]
