"""Small matrices, one a row of data, against NumPy's LAPACK."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp.numerics import small

pytestmark = pytest.mark.versions


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def symmetric(size, count=20):
    matrices = np.random.default_rng(size).normal(size=(count, size, size))
    matrices = matrices + matrices.swapaxes(1, 2)
    special = [
        np.zeros((size, size)),
        np.eye(size),
        np.ones((size, size)),
        np.diag(10.0 ** -np.arange(size)),
        1e8 * np.outer(np.arange(size), np.arange(size)) + np.eye(size),
    ]
    return np.concatenate([matrices, special])


@pytest.mark.cases(quick=["1", "2", "3"], others="thorough")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11])
def test_eigenvalues_and_eigenvectors(size):
    matrices = symmetric(size)
    values, vectors = jax.jit(jax.vmap(small.small_eigh))(matrices)
    scale = np.max(np.abs(matrices), axis=(1, 2)) + 1.0
    rebuilt = np.einsum("nij,nj,nkj->nik", vectors, values, vectors)
    assert np.max(np.abs(rebuilt - matrices) / scale[:, None, None]) < 3e-14
    identity = np.einsum("nij,nik->njk", vectors, vectors)
    np.testing.assert_allclose(identity, np.broadcast_to(np.eye(size), identity.shape), atol=3e-14)
    wanted = np.linalg.eigvalsh(matrices)
    assert np.max(np.abs(np.sort(values, axis=1) - wanted) / scale[:, None]) < 3e-14
    smallest = jax.jit(jax.vmap(small.smallest_eigenvalue))(matrices)
    assert np.max(np.abs(smallest - wanted[:, 0]) / scale) < 3e-14


@pytest.mark.cases(quick=["1e-14"], others="thorough")
@pytest.mark.parametrize("rounding", [1e-16, 1e-14, 1e-12])
def test_equal_eigenvalues_with_rounding_off_the_diagonal(rounding):
    """Blocks of a regression network's Hessian: pairs of equal eigenvalues, coupled by no more than rounding."""
    covariance = np.array([[0.02, -0.015, -0.005], [-0.015, 0.04, 0.01], [-0.005, 0.01, 0.06]])
    matrix = np.zeros((8, 8))
    matrix[2:, 2:] = np.kron(np.linalg.inv(covariance), 1.01 * np.eye(2))
    matrix[:2, :2] = [[124.42424242, 1.696969], [1.696969, 124.42424242]]
    noise = 100.0 * rounding * np.random.default_rng(0).normal(size=(4000, 8, 8))
    matrices = matrix + noise + np.swapaxes(noise, 1, 2)
    values, vectors = jax.jit(jax.vmap(small.small_eigh))(matrices)
    rebuilt = np.einsum("nij,nj,nkj->nik", vectors, values, vectors)
    assert np.max(np.abs(rebuilt - matrices)) < 3e-14 * np.max(np.abs(matrices)) * 8


def test_every_pair_meets_once_in_a_sweep():
    for size in (3, 4, 7, 8):
        met = [
            (one, int(other))
            for partner in small._pairings(size)
            for one, other in enumerate(partner)
            if one < int(other)
        ]
        assert sorted(met) == [(i, j) for i in range(size) for j in range(i + 1, size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_solving_with_matrices_of_any_symmetry(size):
    rng = np.random.default_rng(size)
    matrices, right = rng.normal(size=(20, size, size)), rng.normal(size=(20, size, 3))
    matrices[0] = np.eye(size)[::-1]  # no pivot where it would be looked for first
    solved = jax.jit(jax.vmap(small.small_solve))(matrices, right)
    residual = np.einsum("nij,njk->nik", matrices, solved) - right
    assert np.max(np.abs(residual)) < 1e-11 * np.max(np.linalg.cond(matrices))
    one = jax.jit(jax.vmap(small.small_solve))(matrices, right[:, :, 0])
    np.testing.assert_allclose(one, solved[:, :, 0], rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_solving_can_be_differentiated():
    rng = np.random.default_rng(1)
    matrix, right = jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=4))
    slope = jax.grad(lambda a: jnp.sum(small.small_solve(a, right) ** 2))(matrix)
    wanted = jax.grad(lambda a: jnp.sum(jnp.linalg.solve(a, right) ** 2))(matrix)
    np.testing.assert_allclose(slope, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.cases(thorough=["4", "6"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
def test_signs_of_determinants(size):
    left, right = symmetric(size), symmetric(size)[::-1]
    wanted = np.sign(np.linalg.det(np.eye(size) + left @ right))
    np.testing.assert_array_equal(small.determinant_sign(jnp.asarray(left), jnp.asarray(right)), wanted)


@pytest.mark.cases(slow=["3"], thorough=["5"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_projection_on_positive_semidefinite_matrices(size):
    matrices = symmetric(size)
    projected = np.asarray(jax.vmap(small.project_psd)(jnp.asarray(matrices)))
    values, vectors = np.linalg.eigh(matrices)
    wanted = np.einsum("nij,nj,nkj->nik", vectors, np.maximum(values, 0.0), vectors)
    scale = np.max(np.abs(matrices), axis=(1, 2), keepdims=True) + 1.0
    assert np.max(np.abs(projected - wanted) / scale) < 3e-14


@pytest.mark.cases(slow=["3", "2", "1"], thorough=["0"])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_signed_roots_follow_a_matrix_of_any_rank(rank):
    rng = np.random.default_rng(rank)
    parts, moves = rng.normal(size=(2, 3, rank))
    signs = np.array([1.0, -1.0, 1.0])[:rank]
    matrix = (parts * signs) @ parts.T
    change = (moves * signs) @ parts.T + (parts * signs) @ moves.T
    roots, slopes = jax.jvp(small.signed_roots, (jnp.asarray(matrix),), (jnp.asarray(change),))
    products = [slope @ root.T + root @ slope.T for root, slope in zip(roots, slopes, strict=True)]
    np.testing.assert_allclose(products[0] - products[1], change, atol=1e-12)
