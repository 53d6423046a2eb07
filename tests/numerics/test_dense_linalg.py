"""Inverses of triangular matrices in blocks, roots of singular ones, and equations solved by products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp.numerics import linalg


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.cases(slow=["350"])
@pytest.mark.parametrize("size", [1, 7, 159, 170, 350])
def test_inverses_in_halves(size):
    root = np.random.default_rng(size).normal(size=(size, size))
    matrix = root @ root.T + size * np.eye(size)
    factor = jnp.asarray(np.linalg.cholesky(matrix))
    inverse = linalg.inverse_lower(factor)
    np.testing.assert_allclose(inverse @ factor, np.eye(size), atol=1e-13)
    assert np.all(np.triu(np.asarray(inverse), 1) == 0.0)
    whole = linalg.square_of_lower(inverse)
    np.testing.assert_allclose(whole @ matrix, np.eye(size), atol=1e-12)
    assert np.array_equal(whole, whole.T)


def test_diagonals_of_several_matrices():
    matrices = np.random.default_rng(0).normal(size=(3, 5, 5))
    assert np.array_equal(linalg.diagonals(jnp.asarray(matrices)), np.diagonal(matrices, axis1=1, axis2=2))


def covariance(reach):
    """Of 20 points on a line; for long reaches, most of its eigenvalues are rounding."""
    gaps = jnp.abs(jnp.arange(20.0)[:, None] - jnp.arange(20.0)[None, :]) / reach
    scales = jnp.linspace(0.5, 2.0, 20)
    return scales[:, None] * jnp.exp(-0.5 * gaps**2) * scales[None, :]


@pytest.mark.parametrize("reach", [0.7, 30.0])
def test_roots_of_singular_covariances(reach):
    matrix, change = jax.jvp(covariance, (reach,), (1.0,))
    (whitener, root), (_, root_change) = jax.jvp(
        lambda reach: linalg.whitening_and_root(covariance(reach)), (reach,), (1.0,)
    )
    np.testing.assert_array_equal(whitener, linalg.whitening(matrix))
    np.testing.assert_allclose(root @ root.T, matrix, atol=1e-14)
    kept = np.any(np.asarray(whitener) != 0.0, axis=1)
    assert np.all(kept) == (reach < 1.0)
    np.testing.assert_allclose(root[:, kept], matrix @ whitener[kept].T, atol=1e-8)
    np.testing.assert_allclose(root @ root_change.T + root_change @ root.T, change, atol=1e-8)


def system(size, strength):
    rng = np.random.default_rng(size)
    return np.eye(size) - strength * rng.normal(size=(size, size)) / np.sqrt(size), rng.normal(size=size)


def solved(matrix, right, iterations):
    """Through a tree of two arrays."""

    def apply(tree):
        image = jnp.asarray(matrix) @ jnp.concatenate([tree["a"], jnp.ravel(tree["b"])])
        return {"a": image[:4], "b": image[4:].reshape(2, -1)}

    tree = {"a": jnp.asarray(right[:4]), "b": jnp.asarray(right[4:].reshape(2, -1))}
    found = jax.jit(lambda tree: linalg.solve_by_products(apply, tree, iterations))(tree)
    return np.concatenate([found["a"], np.ravel(found["b"])])


@pytest.mark.parametrize("iterations", [12, 40])
def test_equations_are_solved_by_products(iterations):
    """With fewer directions than needed at once, too: they are solved by restarts."""
    matrix, right = system(40, 0.3)
    np.testing.assert_allclose(solved(matrix, right, iterations), np.linalg.solve(matrix, right), atol=1e-8)


def test_a_symmetric_part_that_is_indefinite_does_not_stop_it():
    matrix = np.kron(np.eye(5), np.array([[0.0, 1.0], [-1.0, 0.0]]))
    right = np.arange(1.0, 11.0)
    np.testing.assert_allclose(solved(matrix, right, 10), np.linalg.solve(matrix, right), atol=1e-12)


def test_two_products_are_enough_if_the_rest_is_nilpotent():
    rng = np.random.default_rng(0)
    nilpotent = np.zeros((10, 10))
    nilpotent[:5, 5:] = rng.normal(size=(5, 5))
    right = rng.normal(size=10)
    expected = np.linalg.solve(np.eye(10) - nilpotent, right)
    np.testing.assert_allclose(solved(np.eye(10) - nilpotent, right, 2), expected, atol=1e-12)


@pytest.mark.parametrize("size", [6, 130])
def test_weighted_squares_and_their_derivatives(size):
    rng = np.random.default_rng(0)
    matrix, weights, toward = (jnp.asarray(rng.normal(size=shape)) for shape in ((9, size), (9,), (size, size)))

    def total(square, matrix, weights):
        return jnp.sum(toward * square(matrix, weights))

    with jax.enable_x64(True):
        plain = jax.value_and_grad(functools.partial(total, lambda a, w: a.T @ (w[:, None] * a)), (0, 1))
        expected, found = (
            plain(matrix, weights),
            jax.value_and_grad(functools.partial(total, linalg.weighted_square), (0, 1))(matrix, weights),
        )
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10), found, expected)


@pytest.mark.parametrize("first", [0, 3])
def test_derivatives_of_products_with_triangular_matrices_are_those_of_all_entries(first):
    """Of a factor whose derivative is not triangular, zeros that are left out in the product still move."""
    rng, size = np.random.default_rng(0), 90
    factor, matrix = (jnp.asarray(rng.normal(size=shape)) for shape in ((size, size), (4, size - first - 2)))
    factor = jnp.tril(factor)
    toward, columns = rng.normal(size=(4, size)), slice(first, size - 2)

    def total(product, matrix, factor):
        return jnp.sum(toward * product(matrix, factor))

    with jax.enable_x64(True):
        plain = jax.value_and_grad(functools.partial(total, lambda a, b: a @ b[:, columns].T), (0, 1))
        expected = plain(matrix, factor)
        blocks = functools.partial(total, lambda a, b: linalg.times_lower_transposed(a, b, first))
        found = jax.value_and_grad(blocks, (0, 1))(matrix, factor)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-10), found, expected)
