"""Covariance matrices that users give, checked."""

import jax.core
import numpy as np

from ..numerics.known import smallest_eigenvalue_given

_ASYMMETRY = 1e-10
_ROUNDING = {True: -1e-14, False: 1e-10}
"""How far below zero the smallest eigenvalue may be, by whether the matrix must be positive definite."""


def checked_covariance(matrices, name: str, *, definite: bool = False, in_units: bool = True):
    """Check a covariance matrix, or several (..., D, D), and make it exactly symmetric. Tracers are not checked.

    Errors are measured relative to the standard deviations of the entries, or with `in_units=False` relative to the
    largest entry, which allows for rounding errors in differences of much larger matrices.

    >>> checked_covariance(np.array([[1.0, 2.0], [2.0, 1.0]]), "noise")
    Traceback (most recent call last):
        ...
    ValueError: noise must be positive semi-definite, but its smallest eigenvalue is -1 as a correlation matrix: ...
    """
    if isinstance(matrices, jax.core.Tracer):
        return matrices
    if in_units:
        scales = np.sqrt(np.maximum(np.diagonal(matrices, axis1=-2, axis2=-1), 0.0))
    else:
        scales = np.full(matrices.shape[-1], np.sqrt(np.max(np.abs(matrices))))
    scales = np.where(scales > 0.0, scales, 1.0)
    scaled = matrices / scales[..., :, None] / scales[..., None, :]
    gaps = np.abs(scaled - np.swapaxes(scaled, -1, -2))
    if np.max(gaps) > _ASYMMETRY:
        *where, row, column = np.unravel_index(np.argmax(gaps), gaps.shape)
        matrix, which = matrices[tuple(where)], f" of matrix {int(where[0])}" if where else ""
        raise ValueError(
            f"{name} must be symmetric, but entries ({row}, {column}) and ({column}, {row}){which} are "
            f"{matrix[row, column]:g} and {matrix[column, row]:g}: symmetrise it, as in 0.5 * (S + S.T)"
        )
    smallest = smallest_eigenvalue_given(0.5 * (scaled + np.swapaxes(scaled, -1, -2)))
    if smallest < -_ROUNDING[definite]:
        kind = "definite" if definite else "semi-definite"
        units = "as a correlation matrix" if in_units else "relative to its largest entry"
        raise ValueError(
            f"{name} must be positive {kind}, but its smallest eigenvalue is {smallest:.3g} {units}: check its "
            "entries, or give variances alone"
        )
    return 0.5 * (matrices + np.swapaxes(matrices, -1, -2))
