"""Expectations in closed form, against Gauss-Hermite quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import likelihoods as lk

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(160)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
MEANS = np.array([-1.1, 0.2, 1.4])
VARIANCES = np.array([0.05, 0.7, 2.0])


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def derivatives_on_grid(function, values):
    """Value, gradient and second derivative in the mean, for all combinations of y, mean and variance."""
    y, mean, variance = (grid.ravel() for grid in np.meshgrid(values, MEANS, VARIANCES))

    def in_mean(order):
        derivative = function
        for _ in range(order):
            derivative = jax.grad(derivative, argnums=1)
        return derivative

    every = jax.vmap(lambda *row: tuple(in_mean(order)(*row) for order in range(3)))
    return [np.asarray(part) for part in jax.jit(every)(y, mean, variance)]


def assert_same_derivatives(closed, quadrature, values):
    for mine, reference in zip(
        derivatives_on_grid(closed, values), derivatives_on_grid(quadrature, values), strict=True
    ):
        np.testing.assert_allclose(mine, reference, rtol=1e-9, atol=1e-10)


@pytest.mark.cases(quick=["LogNormal-list", "Exponential-list"], others="thorough")
@pytest.mark.parametrize(
    ("likelihood", "values"),
    [
        (lk.Gaussian(0.3), [-2.0, 0.7]),
        (lk.LogNormal(0.8), [0.2, 3.0]),
        (lk.Poisson(exposure=1.7), [0.0, 4.0]),
        (lk.Gamma(2.3), [0.2, 3.0]),
        (lk.Exponential(), [0.2, 3.0]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_log_prob(likelihood, values):
    def quadrature(y, mean, variance):
        points = mean + jnp.sqrt(variance) * NODES
        return jnp.sum(WEIGHTS * jax.vmap(likelihood.log_prob, in_axes=(None, 0))(y, points))

    assert_same_derivatives(likelihood.expected_log_prob, quadrature, values)


@pytest.mark.cases(quick=["likelihood2-values2-0.5"], others="thorough")
@pytest.mark.parametrize(
    ("likelihood", "values", "power"),
    [
        (lk.Gaussian(1.3), [-2.0, 0.7], 1.0),
        (lk.Gaussian(1.3), [-2.0, 0.7], 0.25),
        (lk.LogNormal(1.2), [0.2, 3.0], 0.5),
        (lk.Bernoulli(), [0.0, 1.0], 1.0),
        (lk.Bernoulli(lapse=0.03), [0.0, 1.0], 1.0),
    ],
)
def test_log_expected_power(likelihood, values, power):
    def closed(y, mean, variance):
        return likelihood.log_expected_power(y, mean, variance, power)

    def quadrature(y, mean, variance):
        points = mean + jnp.sqrt(variance) * NODES
        log_probs = jax.vmap(likelihood.log_prob, in_axes=(None, 0))(y, points)
        return jax.scipy.special.logsumexp(power * log_probs, b=WEIGHTS)

    assert_same_derivatives(closed, quadrature, values)


@pytest.mark.parametrize(
    "likelihood",
    [lk.Poisson("softplus"), lk.Gamma(link="softplus"), lk.Exponential("softplus"), lk.Bernoulli()],
)
def test_no_expected_log_prob_for_other_links(likelihood):
    assert likelihood.expected_log_prob(1.0, 0.0, 1.0) is None


@pytest.mark.parametrize(("likelihood", "power"), [(lk.Bernoulli(), 0.5), (lk.Bernoulli("logit"), 1.0)])
def test_no_log_expected_power_for_other_links_and_powers(likelihood, power):
    assert likelihood.log_expected_power(1.0, 0.0, 1.0, power) is None
