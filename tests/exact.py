"""Gaussian posteriors in 60 digits, with nothing but the standard library's decimal numbers."""

from decimal import Decimal, localcontext

import numpy as np

DIGITS = 60


def exact(values):
    """An array of numbers as decimal ones, without rounding."""
    return np.vectorize(lambda value: Decimal(float(value)), otypes=[object])(np.asarray(values, dtype=float))


def _solve(matrix, right):
    """By elimination with partial pivoting."""
    matrix, right = matrix.copy(), right.copy()
    size = len(matrix)
    for k in range(size):
        best = k + max(range(size - k), key=lambda i: abs(matrix[k + i, k]))
        matrix[[k, best]], right[[k, best]] = matrix[[best, k]], right[[best, k]]
        for i in range(k + 1, size):
            factor = matrix[i, k] / matrix[k, k]
            matrix[i, k:] = matrix[i, k:] - factor * matrix[k, k:]
            right[i] = right[i] - factor * right[k]
    for k in reversed(range(size)):
        right[k] = (right[k] - matrix[k, k + 1 :] @ right[k + 1 :]) / matrix[k, k]
    return right


def covariance_given_sites(gram, precision, cross=None, prior=None):
    """K − K(I + ΛK)⁻¹ΛK at the data, or K** − K*ᵀ(I + ΛK)⁻¹ΛK* with `cross` K* and `prior` K**; and (I + ΛK)⁻¹ΛK*."""
    cross = gram if cross is None else cross
    prior = gram if prior is None else prior
    with localcontext() as context:
        context.prec = DIGITS
        matrix = precision @ gram + exact(np.eye(len(gram)))
        weights = _solve(matrix, precision @ cross)
        return prior - cross.T @ weights, weights


def gram_of(kernel, x, z):
    """k(x, z) for a stationary kernel of one input, given as a function of the distance."""
    with localcontext() as context:
        context.prec = DIGITS
        return np.array([[kernel(abs(Decimal(float(a)) - Decimal(float(b)))) for b in z] for a in x], dtype=object)


def matern12(variance, lengthscale):
    return lambda r: Decimal(variance) * (-r / Decimal(lengthscale)).exp()


def matern32(variance, lengthscale):
    def kernel(r):
        scaled = Decimal(3).sqrt() * r / Decimal(lengthscale)
        return Decimal(variance) * (1 + scaled) * (-scaled).exp()

    return kernel


def rbf(variance, lengthscale):
    return lambda r: Decimal(variance) * (-((r / Decimal(lengthscale)) ** 2) / 2).exp()


def block_diagonal(blocks):
    """(N, D, D) as one matrix over rows and latents, latents within rows."""
    count, size = blocks.shape[:2]
    full = exact(np.zeros((count * size, count * size)))
    for n in range(count):
        full[n * size : (n + 1) * size, n * size : (n + 1) * size] = exact(blocks[n])
    return full
