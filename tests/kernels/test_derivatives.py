"""Derivatives, above all where two inputs coincide and a distance has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import kernels

STATIONARY = [
    kernels.RBF,
    kernels.Matern12,
    kernels.Matern32,
    kernels.Matern52,
    kernels.Matern72,
    kernels.RationalQuadratic,
]
ONE_COLUMN = [kind(0.8, 1.7) for kind in STATIONARY] + [
    kernels.Periodic(0.7, 1.2, 1.7),
    kernels.Cosine(0.7, 1.7),
    kernels.Constant(0.4),
    kernels.Linear(0.4, 0.1),
    kernels.White(0.3),
    2.0 * kernels.Matern32() * kernels.Cosine() + kernels.White(0.1),
]


def named(values):
    return pytest.mark.parametrize("kernel", values, ids=lambda kernel: type(kernel).__name__)


@named(ONE_COLUMN)
def test_gradients_are_finite_at_coincident_inputs(kernel):
    x = jnp.array([[0.3], [0.3], [1.0]])

    def total(kernel, x1, x2):
        return jnp.sum(jnp.sin(kernels.gram(kernel, x1, x2)))

    gradients = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(kernel, x, x)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gradients))
    second = jax.jit(jax.hessian(lambda x1: kernel.evaluate(x1, x[0])))(x[0])
    assert bool(jnp.all(jnp.isfinite(second)))


@named([kind([0.8, 1.1], 1.7) for kind in STATIONARY])
def test_gradients_are_finite_for_one_lengthscale_a_column(kernel):
    x = jnp.array([[0.3, 0.1], [0.3, 0.1]])
    gradients = jax.jit(jax.grad(lambda kernel: jnp.sum(kernels.gram(kernel, x, x))))(kernel)
    np.testing.assert_array_equal(gradients.lengthscale, np.zeros(2))
    assert float(gradients.variance) == pytest.approx(4.0)


@named(ONE_COLUMN)
def test_gradients_agree_with_finite_differences(kernel):
    x1, x2, step = 0.3, np.array([0.85]), 1e-6
    leaves, structure = jax.tree.flatten(kernel)
    values = np.array([*leaves, x1])

    def covariance(values):
        rebuilt = jax.tree.unflatten(structure, list(values[:-1]))
        return rebuilt.evaluate(values[-1:], x2)

    steps = step * np.eye(len(values))
    upper, lower = jax.jit(jax.vmap(covariance))(np.concatenate([values + steps, values - steps])).reshape(2, -1)
    gradient = jax.jit(jax.grad(covariance))(values)
    np.testing.assert_allclose(gradient, (upper - lower) / (2.0 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "curvature"),
    [
        (kernels.RBF, 1.0),
        (kernels.Matern32, 3.0),
        (kernels.Matern52, 5.0 / 3.0),
        (kernels.Matern72, 7.0 / 5.0),
        (kernels.RationalQuadratic, 1.0),
    ],
)
def test_second_derivative_at_zero_distance(kind, curvature):
    # -k''(0) is the variance of the derivative of f, which differentiating through the root would miss.
    second = jax.jit(jax.hessian(lambda x: kind(0.5).evaluate(x, jnp.zeros(1))))(jnp.zeros(1))
    assert float(second[0, 0]) == pytest.approx(-curvature / 0.5**2, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "fourth"), [(kernels.RBF, 3.0), (kernels.Matern52, 25.0), (kernels.Matern72, 49.0 / 5.0)]
)
def test_fourth_derivative_at_zero_distance(kind, fourth):
    derivative = lambda x: kind().evaluate(x[None], jnp.zeros(1))  # noqa: E731
    for _ in range(4):
        derivative = jax.grad(derivative)
    assert float(jax.jit(derivative)(jnp.zeros(()))) == pytest.approx(fourth, rel=1e-12)


def test_hyperparameters_are_float64_leaves():
    kernel = kernels.RBF(np.float32(2.0)) + 3 * kernels.Periodic()
    leaves = jax.tree.leaves(kernel)
    assert len(leaves) == 6
    assert all(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in leaves)


def test_kernels_can_be_made_from_traced_values():
    gradient = jax.grad(lambda scale: kernels.RBF(scale).evaluate(jnp.zeros(1), jnp.ones(1)))(2.0)
    assert float(gradient) == pytest.approx(np.exp(-0.125) / 8.0)
