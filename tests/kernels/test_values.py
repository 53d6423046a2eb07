"""Every kernel against scikit-learn, or against its formula written with NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from sklearn.gaussian_process import kernels as oracle

from newtongp import kernels

ARD = [0.5, 1.3, 2.1]


def stationary_pairs(lengthscale):
    """newtongp's and scikit-learn's form of the same kernel."""
    return [
        (kernels.RBF(lengthscale, 1.7), 1.7 * oracle.RBF(lengthscale)),
        (kernels.Matern12(lengthscale, 1.7), 1.7 * oracle.Matern(lengthscale, nu=0.5)),
        (kernels.Matern32(lengthscale, 1.7), 1.7 * oracle.Matern(lengthscale, nu=1.5)),
        (kernels.Matern52(lengthscale, 1.7), 1.7 * oracle.Matern(lengthscale, nu=2.5)),
        (kernels.Matern72(lengthscale, 1.7), 1.7 * oracle.Matern(lengthscale, nu=3.5)),
    ]


PAIRS = [
    *((1, *pair) for pair in stationary_pairs(0.8)),
    *((3, *pair) for pair in stationary_pairs(0.8)),
    *((3, *pair) for pair in stationary_pairs(ARD)),
    (1, kernels.RationalQuadratic(0.8, 1.7, alpha=0.6), 1.7 * oracle.RationalQuadratic(0.8, 0.6)),
    (3, kernels.RationalQuadratic(0.8, 1.7, alpha=0.6), 1.7 * oracle.RationalQuadratic(0.8, 0.6)),
    (1, kernels.Periodic(0.7, 1.2, 1.7), 1.7 * oracle.ExpSineSquared(1.2, 0.7)),
    (1, 0.4**2 + kernels.Linear(), oracle.DotProduct(0.4)),
    (3, 0.4**2 + kernels.Linear(), oracle.DotProduct(0.4)),
    (1, kernels.Constant(0.4), oracle.ConstantKernel(0.4)),
    (3, kernels.Constant(0.4), oracle.ConstantKernel(0.4)),
]


gram_of = jax.jit(kernels.gram)


@jax.jit
def matrices(kernel, x1, x2):
    return kernels.gram(kernel, x1, x2), kernels.gram(kernel, x1, x1), kernels.diagonal(kernel, x1)


@pytest.mark.parametrize(
    ("dimension", "kernel", "expected"), PAIRS, ids=[f"{type(k).__name__}-{p}-{o}" for p, k, o in PAIRS]
)
def test_agrees_with_scikit_learn(rng, dimension, kernel, expected):
    x1, x2 = rng.normal(size=(7, dimension)), rng.normal(size=(5, dimension))
    gram, own, diagonal = matrices(kernel, jnp.asarray(x1), jnp.asarray(x2))
    assert gram.dtype == np.float64
    np.testing.assert_allclose(gram, expected(x1, x2), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(own, expected(x1), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(diagonal, expected.diag(x1), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "nu"),
    [(kernels.Matern12, 0.5), (kernels.Matern32, 1.5), (kernels.Matern52, 2.5), (kernels.Matern72, 3.5)],
)
def test_matern_is_the_bessel_form(kind, nu):
    distance = np.linspace(0.01, 6.0, 40)
    s = np.sqrt(2.0 * nu) * distance / 0.8
    expected = 1.7 * 2.0 ** (1.0 - nu) / scipy.special.gamma(nu) * s**nu * scipy.special.kv(nu, s)
    gram = gram_of(kind(0.8, 1.7), jnp.zeros((1, 1)), jnp.asarray(distance)[:, None])
    np.testing.assert_allclose(gram[0], expected, rtol=1e-11)


def test_rational_quadratic_tends_to_rbf(rng):
    x = jnp.asarray(rng.normal(size=(6, 2)))
    wide = gram_of(kernels.RationalQuadratic(0.8, alpha=1e12), x, x)
    np.testing.assert_allclose(wide, gram_of(kernels.RBF(0.8), x, x), rtol=1e-10)


def test_periodic_sums_over_columns(rng):
    x1, x2 = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    sines = np.sin(np.pi * (x1[:, None] - x2[None]) / 0.7) ** 2
    gram = gram_of(kernels.Periodic(0.7, 1.2, 1.7), jnp.asarray(x1), jnp.asarray(x2))
    np.testing.assert_allclose(gram, 1.7 * np.exp(-2.0 * sines.sum(-1) / 1.2**2), rtol=1e-12)


def test_cosine(rng):
    x1, x2 = rng.normal(size=(5, 1)), rng.normal(size=(4, 1))
    gram = gram_of(kernels.Cosine(0.7, 1.7), jnp.asarray(x1), jnp.asarray(x2))
    np.testing.assert_allclose(gram, 1.7 * np.cos(2.0 * np.pi * np.abs(x1 - x2.T) / 0.7), rtol=1e-10)


def test_linear_with_centre_and_one_variance_a_column(rng):
    x1, x2 = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    variance, centre = np.array([0.5, 1.0, 2.0]), np.array([0.1, -0.3, 0.7])
    gram = gram_of(kernels.Linear(variance, centre), jnp.asarray(x1), jnp.asarray(x2))
    np.testing.assert_allclose(gram, (variance * (x1 - centre)) @ (x2 - centre).T, rtol=1e-12, atol=1e-14)


def test_white_is_shared_by_equal_inputs():
    x = jnp.array([[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]])
    expected = 0.3 * np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    np.testing.assert_array_equal(gram_of(kernels.White(0.3), x, x), expected)


def test_white_on_a_column_is_an_effect_of_its_groups():
    x = jnp.array([[0.0, 3.0], [1.0, 3.0], [0.0, 5.0]])
    expected = 0.3 * np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(gram_of(kernels.White(0.3).on(1), x, x), expected)
