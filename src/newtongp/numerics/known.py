"""Linear algebra of known arrays, by NumPy: outside of any trace, and without compilation. Others: `linalg.py`."""

from typing import Any

import numpy as np


def solve_psd_given(matrix: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """A⁻¹ right for a positive definite matrix; None if it is not, relative to its diagonal."""
    scales = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    if not np.all(scales > 0.0):
        return None
    try:
        factor = np.linalg.cholesky(matrix / scales[:, None] / scales[None, :])
    except np.linalg.LinAlgError:
        return None
    return np.linalg.solve(factor.T, np.linalg.solve(factor, right / scales)) / scales


def dependent_column(matrix: np.ndarray, tolerance: float = 1e-10) -> int | None:
    """The first column that is a linear combination of those before it, up to a relative tolerance; None if none is."""
    size = np.sqrt(np.sum(matrix**2, axis=0))
    pivots = np.abs(np.diagonal(np.linalg.qr(matrix / np.where(size > 0.0, size, 1.0), mode="r")))
    found = np.flatnonzero(pivots < tolerance)
    return int(found[0]) if found.size else None


def ridge_regression(design: np.ndarray, y: np.ndarray, penalties: np.ndarray) -> np.ndarray:
    """The w that minimise ‖y − design w‖² + Σ_k penalties_k w_k².

    >>> ridge_regression(np.ones((2, 1)), np.array([1.0, 3.0]), np.zeros(1)).tolist()
    [2.0]
    """
    return np.linalg.solve(design.T @ design + np.diag(penalties), design.T @ y)


def psd_root_given(matrix: Any) -> np.ndarray:
    """A square root of a matrix that is PSD up to rounding, singular or not; NaN if any entry is not finite."""
    matrix = np.asarray(matrix)
    if not np.all(np.isfinite(matrix)):
        return np.full_like(matrix, np.nan)
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def smallest_eigenvalue_given(matrices: np.ndarray) -> float:
    """The smallest eigenvalue of all of these symmetric matrices."""
    return float(np.min(np.linalg.eigvalsh(matrices)))


def smallest_eigenvalues_given(matrices: np.ndarray) -> np.ndarray:
    """The smallest eigenvalue of each of N symmetric matrices."""
    return matrices[:, 0, 0] if matrices.shape[1] == 1 else np.linalg.eigvalsh(matrices)[:, 0]


def least_squares_given(matrix: np.ndarray, right: np.ndarray, least: float) -> np.ndarray:
    """The shortest x with the smallest |Ax − b|, without directions that are shorter than `least` in A, relatively."""
    return np.linalg.lstsq(matrix, right, rcond=least)[0]


def lower_root_given(matrix: np.ndarray) -> np.ndarray | None:
    """The Cholesky factor of a matrix; None if it is not positive definite."""
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return None


def eigen_given(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a symmetric matrix."""
    return np.linalg.eigh(matrix)


def rotation_given(matrix: np.ndarray) -> np.ndarray:
    """The orthogonal factor of a matrix whose triangular factor has a positive diagonal."""
    rotation, triangular = np.linalg.qr(matrix)
    return rotation * np.sign(np.diagonal(triangular))[None, :]


def lower_roots_given(matrices: np.ndarray) -> np.ndarray:
    """Lower Cholesky factors of many small PSD matrices (..., D, D), singular ones included."""
    root = np.zeros(matrices.shape)
    for k in range(matrices.shape[-1]):
        pivot = np.sqrt(np.maximum(matrices[..., k, k] - np.sum(root[..., k, :k] ** 2, axis=-1), 0.0))
        rest = matrices[..., k + 1 :, k] - np.einsum("...ij,...j->...i", root[..., k + 1 :, :k], root[..., k, :k])
        root[..., k, k] = pivot
        scale = np.where(pivot > 0.0, pivot, 1.0)[..., None]
        root[..., k + 1 :, k] = np.where(pivot[..., None] > 0.0, rest / scale, 0.0)
    return root


def depends_on(slope: np.ndarray, loose: np.ndarray) -> np.ndarray:
    """Which rows of slopes depend on any of these numbers."""
    return np.any(np.abs(slope[:, loose]) > 1e-9 * np.max(np.abs(slope), initial=0.0), axis=1)


def transformed_covariance(slope: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """slope · covariance · slopeᵀ, infinite where it depends on numbers that are not determined."""
    loose = np.isinf(np.diagonal(covariance))
    known = np.where(loose[:, None] | loose[None, :], 0.0, covariance)
    matrix = slope @ known @ slope.T
    open_rows = depends_on(slope, loose)
    matrix[open_rows, :] = matrix[:, open_rows] = np.nan
    matrix[open_rows, open_rows] = np.inf
    return matrix
