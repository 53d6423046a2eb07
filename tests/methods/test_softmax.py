"""Integrals under softmax: nodes for differences of latents alone, against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.methods.expectation import expected_log_density, log_expected_density
from newtongp.methods.nodes import numbers_per_row, place_nodes
from newtongp.methods.target import PowerDensity
from newtongp.numerics.gaussian import Gaussian

DENSE = ng.cubature.GaussHermite(40)
expected = jax.jit(expected_log_density, static_argnames=("cubature", "descent"))
tilted = jax.jit(PowerDensity.expand, static_argnames=("cubature",))


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def latents(classes, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(classes, classes)) / np.sqrt(classes)
    covariance = scale * (root @ root.T + 0.3 * np.eye(classes) + 0.5)
    return Gaussian(jnp.asarray(np.sqrt(scale) * rng.normal(size=classes)), jnp.asarray(covariance))


def draws_of(gaussian, count=400_000):
    z = np.random.default_rng(1).normal(size=(count // 2, gaussian.mean.shape[0]))
    return np.asarray(gaussian.mean) + np.concatenate([z, -z]) @ np.linalg.cholesky(gaussian.covariance).T


def probabilities_at(f):
    powers = np.exp(f - f.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 3])
def test_expected_log_density_of_few_classes_against_a_dense_product_rule(classes):
    softmax, y, gaussian = ng.likelihoods.Softmax(classes), jnp.array([1.0]), latents(classes)
    ours, brute = (expected(softmax, y, gaussian, rule) for rule in (None, DENSE))
    for one, other in zip(ours, brute, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_power_ep_of_three_classes_against_a_dense_product_rule(power):
    softmax, y, gaussian = ng.likelihoods.Softmax(3), jnp.array([2.0]), latents(3)
    ours, brute = (tilted(PowerDensity(power), softmax, y, gaussian, rule) for rule in (None, DENSE))
    np.testing.assert_allclose(ours.value, brute.value, atol=1e-7)
    np.testing.assert_allclose(ours.gradient, brute.gradient, atol=2e-7)
    np.testing.assert_allclose(ours.hessian, brute.hessian, atol=3e-6)


@pytest.mark.cases(slow=["6-1.0", "10-1.0"])
@pytest.mark.parametrize(("classes", "scale"), [(6, 1.0), (10, 1.0), (10, 4.0)])
def test_expectations_of_many_classes_against_draws(classes, scale):
    softmax, y, gaussian = ng.likelihoods.Softmax(classes), jnp.array([1.0]), latents(classes, scale)
    ours = expected(softmax, y, gaussian, None)
    found = probabilities_at(draws_of(gaussian))
    values = np.log(found[:, 1])
    noise = 5.0 * values.std() / np.sqrt(values.size)
    # The rule's own error, as documented, and that of the draws.
    tolerance = 2e-3 * scale + noise
    assert abs(float(ours.value) - values.mean()) < tolerance
    np.testing.assert_allclose(ours.gradient, np.eye(classes)[1] - found.mean(axis=0), atol=tolerance)
    hessian = found.T @ found / len(found) - np.diag(found.mean(axis=0))
    np.testing.assert_allclose(ours.hessian, hessian, atol=tolerance)
    log_z = float(jax.jit(log_expected_density, static_argnums=3)(softmax, y, gaussian, None))
    assert abs(log_z - np.log(found[:, 1].mean())) < 5e-3 * scale + noise


@pytest.mark.slow
def test_derivatives_are_those_of_the_computed_sum():
    softmax, y, gaussian = ng.likelihoods.Softmax(7), jnp.array([3.0]), latents(7)

    def value(mean, covariance):
        return expected_log_density(softmax, y, Gaussian(mean, covariance), None).value

    ours = expected(softmax, y, gaussian, None, descent=True)
    in_mean, in_covariance = jax.jit(jax.grad(value, argnums=(0, 1)))(gaussian.mean, gaussian.covariance)
    np.testing.assert_allclose(ours.gradient, in_mean, atol=1e-12)
    np.testing.assert_allclose(ours.hessian, in_covariance + in_covariance.T, atol=1e-10)


def test_a_number_added_to_all_latents_changes_nothing():
    softmax, y, gaussian = ng.likelihoods.Softmax(5), jnp.array([0.0]), latents(5)
    shifted = Gaussian(gaussian.mean + 3.0, gaussian.covariance + 100.0)
    for one, other in zip(expected(softmax, y, gaussian, None), expected(softmax, y, shifted, None), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


def test_a_named_rule_is_used_for_all_latents():
    softmax, gaussian = ng.likelihoods.Softmax(3), latents(3)
    named = place_nodes(softmax, gaussian, ng.cubature.GaussHermite(7), density=False)
    assert named.points.shape == (7**3, 3) and named.standard.shape == (7**3, 3)
    assert place_nodes(softmax, gaussian, None, density=False).standard.shape[1] == 2


def test_the_work_per_row_does_not_grow_exponentially_with_the_number_of_classes():
    for classes in (5, 10, 20, 40):
        assert numbers_per_row(ng.likelihoods.Softmax(classes), None, False) <= 1024 * 2 * classes


@pytest.mark.slow
def test_own_derivatives_are_those_of_log_prob():
    softmax, f = ng.likelihoods.Softmax(4), jnp.array([0.3, -2.0, 40.0, 1.0])
    for y in (0.0, 2.0):
        value, gradient, diagonal, factor = softmax.log_prob_derivatives(y, f)
        np.testing.assert_allclose(value, softmax.log_prob(y, f), rtol=1e-14)
        np.testing.assert_allclose(gradient, jax.grad(lambda f, y=y: softmax.log_prob(y, f))(f), atol=1e-15)
        hessian = jax.hessian(lambda f, y=y: softmax.log_prob(y, f))(f)
        np.testing.assert_allclose(jnp.diag(diagonal) + factor @ factor.T, hessian, atol=1e-15)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_summary_of_six_classes_estimates_the_error_of_its_integrals():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = np.argmax(
        np.concatenate([x, -x, x @ [[1.0, 1.0], [1.0, -1.0]]], axis=1) + 0.3 * rng.normal(size=(40, 6)), axis=1
    )
    kernels = ng.kernels.Independent([ng.kernels.RBF(1.5, 2.0) for _ in range(6)])
    result = ng.infer(ng.Model(ng.SparseGP(kernels, x[:8]), ng.likelihoods.Softmax(6)), x, y)
    from newtongp.inference.quadrature import QuadratureError, estimate_error

    error = estimate_error(result)
    assert isinstance(error, QuadratureError)
    assert 0.0 < abs(error.energy) < 0.05
