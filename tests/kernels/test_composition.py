"""Sums, products, scaling and active dimensions; what is a covariance stays one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from newtongp import kernels


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.normal(size=(6, 3)))


gram = jax.jit(kernels.gram)


def matrix(kernel, x):
    return np.asarray(gram(kernel, x, x))


A, B, C = kernels.RBF(0.8), kernels.Matern32([0.5, 1.0, 2.0]), kernels.Linear(0.3)


def test_sums_products_and_scaling(x):
    a, b, c = (matrix(kernel, x) for kernel in (A, B, C))
    np.testing.assert_allclose(matrix(A + B * C, x), a + b * c, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(matrix((A + B) * C, x), (a + b) * c, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(matrix(2 * A + B * 3.0, x), 2.0 * a + 3.0 * b, rtol=1e-12)
    np.testing.assert_allclose(matrix(A + 0.5, x), a + 0.5, rtol=1e-12)
    np.testing.assert_allclose(matrix(0.5 + A, x), a + 0.5, rtol=1e-12)
    np.testing.assert_allclose(matrix(sum([A, B, C]), x), a + b + c, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [np.float64(2.0), np.array(2.0), jnp.float32(2.0)], ids=["numpy", "0-d", "jax"])
def test_numbers_of_numpy_and_jax_scale_from_both_sides(x, scale):
    for kernel in (scale * A, A * scale):
        assert isinstance(kernel, kernels.Scaled)
        np.testing.assert_allclose(matrix(kernel, x), 2.0 * matrix(A, x), rtol=1e-12)


def test_nested_operations_become_one():
    assert len((A + B + (C + A)).parts) == 4
    assert len((A * B * (C * A)).parts) == 4
    assert len((A + B * C).parts) == 2


def test_active_dimensions(x):
    one = kernels.RBF(0.8).on(1)
    np.testing.assert_allclose(matrix(one, x), matrix(A, x[:, 1:2]), rtol=1e-13)
    two = kernels.RBF([0.5, 2.0]).on(2, 0)
    np.testing.assert_allclose(matrix(two, x), matrix(kernels.RBF([0.5, 2.0]), x[:, jnp.array([2, 0])]), rtol=1e-13)


def test_nested_active_dimensions(x):
    np.testing.assert_allclose(matrix(A.on(1).on(2, 0), x), matrix(A, x[:, :1]), rtol=1e-13)
    inner = kernels.Cosine(3.0).on(0) * kernels.RBF([0.5, 2.0])
    np.testing.assert_allclose(matrix(inner.on(1, 2), x), matrix(inner, x[:, 1:]), rtol=1e-13)


def test_gram_of_two_sets_is_a_block_of_the_whole(x):
    kernel = A.on(0) * B + C
    np.testing.assert_allclose(gram(kernel, x[:2], x[2:]), matrix(kernel, x)[:2, 2:], rtol=1e-13)
    np.testing.assert_allclose(jax.jit(kernels.diagonal)(kernel, x), np.diag(matrix(kernel, x)), rtol=1e-13)


positive = st.floats(0.1, 5.0)


# Strategies draw recipes, and the test makes the kernels: the run-time type checks of the strict mode
# use random numbers, which Hypothesis does not allow inside a strategy.
@st.composite
def base_kernels(draw):
    lengthscale, variance = draw(positive), draw(positive)
    return draw(
        st.sampled_from(
            [
                lambda: kernels.RBF(lengthscale, variance),
                lambda: kernels.RBF([lengthscale, variance]),
                lambda: kernels.Matern12(lengthscale, variance),
                lambda: kernels.Matern32(lengthscale, variance),
                lambda: kernels.Matern52([variance, lengthscale], variance),
                lambda: kernels.Matern72(lengthscale, variance),
                lambda: kernels.RationalQuadratic(lengthscale, variance, alpha=lengthscale),
                lambda: kernels.Periodic(lengthscale, variance),
                lambda: kernels.Cosine(lengthscale, variance).on(1),
                lambda: kernels.Matern32(lengthscale).on(0),
                lambda: kernels.Constant(variance),
                lambda: kernels.Linear(variance, centre=lengthscale),
                lambda: kernels.White(variance),
            ]
        )
    )


compositions = st.recursive(
    base_kernels(),
    lambda parts: st.one_of(
        st.builds(lambda a, b: lambda: a() + b(), parts, parts),
        st.builds(lambda a, b: lambda: a() * b(), parts, parts),
        st.builds(lambda scale, a: lambda: scale * a(), positive, parts),
        st.builds(lambda a: lambda: a().on(1, 0), parts),
    ),
    max_leaves=4,
)
inputs = st.lists(st.tuples(st.floats(-3.0, 3.0), st.floats(-3.0, 3.0)), min_size=6, max_size=6)


@pytest.mark.slow
@given(make=compositions, rows=inputs)
def test_gram_matrices_are_symmetric_and_positive_semidefinite(make, rows):
    kernel, x = make(), jnp.asarray(rows)
    kernel.check_inputs(2)
    covariance = matrix(kernel, x)
    np.testing.assert_allclose(covariance, covariance.T, rtol=1e-12, atol=1e-13)
    assert np.linalg.eigvalsh(covariance).min() >= -1e-9 * np.trace(covariance)


def test_a_composition_survives_flattening_and_jit(x):
    kernel = 2.0 * A.on(0) * B + C
    leaves, structure = jax.tree.flatten(kernel)
    rebuilt = jax.tree.unflatten(structure, leaves)
    np.testing.assert_allclose(gram(rebuilt, x, x), matrix(kernel, x), rtol=1e-12)


def test_a_custom_kernel_may_have_a_field_named_matrix():
    class Weighted(kernels.Kernel):
        matrix: Any

        def evaluate(self, x1, x2):
            return x1 @ self.matrix @ x2

    x = np.array([[1.0, 2.0], [0.5, -1.0]])
    weights = np.array([[2.0, 0.5], [0.5, 1.0]])
    np.testing.assert_allclose(kernels.gram(Weighted(weights), x, x), x @ weights @ x.T, rtol=1e-6)
