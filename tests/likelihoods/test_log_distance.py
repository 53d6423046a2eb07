"""E[log(1 + (d - e)²)] without nodes: against adaptive integrals, for narrow and wide Gaussians."""

import jax
import numpy as np
import pytest
from scipy.integrate import quad

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.likelihoods.log_distance import expected_log_square

CASES = [(0.3, 1.0), (2.0, 0.5), (-10.0, 4.0), (0.3, 1e4), (100.0, 1e4), (1e-3, 1e-5), (3.0, 1e-10), (0.03, 2e-4)]
FUNCTIONS = [
    lambda u: np.log1p(u * u),
    lambda u: 2.0 * u / (1.0 + u * u),
    lambda u: 2.0 * (1.0 - u * u) / (1.0 + u * u) ** 2,
]


def integral(function, distance, variance):
    reach = 12.0 * np.sqrt(variance)
    breaks = [at for at in distance + np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) if abs(at) < reach] or None

    def integrand(e):
        return function(distance - e) * np.exp(-0.5 * e * e / variance)

    value = quad(integrand, -reach, reach, points=breaks, limit=500, epsabs=1e-12, epsrel=1e-10)[0]
    return value / np.sqrt(2.0 * np.pi * variance)


@in_double
def derivatives(distance, variance):
    first = jax.grad(expected_log_square)
    return [float(function(distance, variance)) for function in (expected_log_square, first, jax.grad(first))]


@pytest.mark.cases(slow=["2.0-0.5", "3.0-1e-10", "0.3-1.0"])
@pytest.mark.parametrize(("distance", "variance"), CASES)
def test_value_and_derivatives(distance, variance):
    expected = [integral(function, distance, variance) for function in FUNCTIONS]
    np.testing.assert_allclose(derivatives(distance, variance), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("distance", [0.0, 0.5, 4.0])
def test_without_variance_it_is_the_function_itself(distance):
    np.testing.assert_allclose(derivatives(distance, 0.0), [function(distance) for function in FUNCTIONS], atol=1e-14)


@pytest.mark.cases(
    thorough=["0.7", "0.0"],
)
@pytest.mark.parametrize("variance", [0.0, 0.7])
def test_derivatives_in_the_variance_are_half_of_second_ones(variance):
    @in_double
    def both():
        bend = jax.grad(jax.grad(expected_log_square))
        fourth = jax.grad(jax.grad(bend))
        return (
            [jax.grad(expected_log_square, 1)(0.4, variance), 0.5 * bend(0.4, variance)],
            [jax.grad(bend, 1)(0.4, variance), 0.5 * fourth(0.4, variance)],
        )

    for found, expected in both():
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_many_degrees_of_freedom_are_a_gaussian():
    """E[log N(y | f, 1)], to the digits that the difference between the two densities leaves."""

    @in_double
    def both():
        likelihoods = ng.likelihoods.StudentT(df=1e10, scale=1.0), ng.likelihoods.Gaussian(1.0)
        return [float(likelihood.expected_log_prob(1.5, 0.2, 0.3)) for likelihood in likelihoods]

    np.testing.assert_allclose(*both(), rtol=1e-9)
