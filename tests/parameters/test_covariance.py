"""Unconstrained coordinates of covariance matrices."""

import jax
import numpy as np
import pytest

from newtongp.parameters.constraints import Covariance


@pytest.mark.cases(slow=["3"], others="thorough")
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_coordinates_and_back(size):
    root = np.random.default_rng(size).normal(size=(size, size))
    matrix = root @ root.T + 0.1 * np.eye(size)
    free = Covariance().unconstrain(matrix)
    assert free.shape == (size * (size + 1) // 2,) == (Covariance().size(matrix.shape),)
    np.testing.assert_allclose(Covariance().constrain(free, matrix.shape), matrix, rtol=1e-12)
    logs = Covariance().logarithms(matrix.shape)
    np.testing.assert_allclose(np.exp(2.0 * free[logs]), np.diagonal(matrix), rtol=1e-12)
    # NumPy and JAX agree, and so do derivatives by a complex step.
    with jax.enable_x64(True):
        slope = jax.jacobian(lambda free: Covariance().constrain(free, matrix.shape))(free)
    for number, move in enumerate(1e-30j * np.eye(free.size)):
        imaginary = Covariance().constrain(free + move, matrix.shape).imag / 1e-30
        np.testing.assert_allclose(slope[..., number], imaginary, rtol=1e-10, atol=1e-12)


def test_two_variables_have_the_inverse_hyperbolic_tangent_of_their_correlation():
    deviations, correlation = np.array([2.0, 0.3]), -0.999
    matrix = np.outer(deviations, deviations) * np.array([[1.0, correlation], [correlation, 1.0]])
    expected = [np.log(2.0), np.arctanh(correlation), np.log(0.3)]
    np.testing.assert_allclose(Covariance().unconstrain(matrix), expected, rtol=1e-11)


def test_limits_are_matrices_that_can_be_factorised():
    low, high = Covariance().limits((3, 3))
    logs = Covariance().logarithms((3, 3))
    assert np.all(np.isinf(high[logs])) and np.all(low == -high)
    at_limit = Covariance().constrain(np.where(logs, 0.0, high), (3, 3))
    np.testing.assert_allclose(np.diagonal(at_limit), 1.0, rtol=1e-12)
    assert 1.0 - at_limit[0, 1] < 1e-11
    two = Covariance().constrain(np.array([1.0, high[1], -2.0]), (2, 2))
    assert np.all(np.isfinite(np.linalg.cholesky(two)))
