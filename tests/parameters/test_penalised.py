"""Penalised complexity priors: they integrate to one, say what they state, and agree with R-INLA's formulas."""

import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp.parameters import PCMixing, PCStandardDeviation, PCVariance

EDGES = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (5, 6), (6, 7)]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)


def integral(function, lower, upper):
    share = 0.5 * (NODES + 1.0)
    if np.isinf(upper):
        return np.sum(0.5 * WEIGHTS * function(lower + share / (1.0 - share)) / (1.0 - share) ** 2)
    return np.sum(0.5 * WEIGHTS * (upper - lower) * function(lower + (upper - lower) * share))


def probability(prior, lower, upper):
    return integral(lambda values: np.exp(prior.log_density(values)), lower, upper)


def test_standard_deviations():
    prior = PCStandardDeviation(0.7, 0.05)
    np.testing.assert_allclose(probability(prior, 0.0, np.inf), 1.0, rtol=1e-8)
    np.testing.assert_allclose(probability(prior, 0.7, np.inf), 0.05, rtol=1e-8)


def test_variances():
    prior = PCVariance(0.7, 0.05)
    # Without the singularity at 0.
    total = integral(lambda s: 2.0 * s * np.exp(prior.log_density(s**2)), 0.0, np.inf)
    np.testing.assert_allclose(total, 1.0, rtol=1e-8)
    np.testing.assert_allclose(probability(prior, 0.49, np.inf), 0.05, rtol=1e-8)


def test_variances_as_precisions_have_the_density_in_the_documentation_of_r_inla():
    # π(τ) = λ/2 τ^(−3/2) exp(−λ τ^(−1/2)), λ = −log(α)/u.
    u, alpha, tau = 1.3, 0.02, np.array([0.1, 0.7, 4.0, 200.0])
    rate = -np.log(alpha) / u
    expected = 0.5 * rate * tau**-1.5 * np.exp(-rate * tau**-0.5)
    by_variance = np.exp(PCVariance(u, alpha).log_density(1.0 / tau))
    np.testing.assert_allclose(by_variance / tau**2, expected, rtol=1e-12)


def test_what_fit_maximises_is_the_density_of_the_distance():
    variances = np.array([0.3, 2.0])
    np.testing.assert_allclose(PCVariance(1.3, 0.02)(variances), PCStandardDeviation(1.3, 0.02)(np.sqrt(variances)))
    distances = np.linspace(0.0, 60.0, 40001)
    density = np.exp(np.asarray(PCVariance(1.3, 0.02)(distances**2)))
    np.testing.assert_allclose(np.trapezoid(density, distances), 1.0, rtol=1e-5)


def mixing(phi, eigenvalues, count):
    """The distance as R-INLA computes it, from the eigenvalues and the mean of the marginal variances."""
    excess = np.mean(eigenvalues) - 1.0
    return np.sqrt(count * phi * excess - np.sum(np.log1p(np.multiply.outer(phi, eigenvalues - 1.0)), axis=-1))


@pytest.mark.slow
@pytest.mark.thorough
def test_mixing_of_a_graph():
    graph = ng.kernels.Graph(EDGES, nodes=8)
    prior = graph.phi_prior(0.5, 2 / 3)
    eigenvalues = np.linalg.eigvalsh(graph.structure)
    rate = -np.log(1 / 3) / mixing(0.5, eigenvalues, 8)
    np.testing.assert_allclose(prior.rate(), rate, rtol=1e-10)
    phi = np.array([0.01, 0.3, 0.8, 0.999])
    distance, step = mixing(phi, eigenvalues, 8), 1e-5 * phi * (1.0 - phi)
    np.testing.assert_allclose(prior.distance(phi), distance, rtol=1e-8)
    slope = (mixing(phi + step, eigenvalues, 8) - mixing(phi - step, eigenvalues, 8)) / (2.0 * step)
    np.testing.assert_allclose(prior.log_density(phi), np.log(rate * slope) - rate * distance, rtol=1e-5)
    np.testing.assert_allclose(probability(prior, 0.0, 0.5), 2 / 3, rtol=1e-8)
    # The rest, in log odds: the density is not bounded at 1.
    beyond = 1.0 / (1.0 + np.exp(-30.0))
    rest = integral(lambda z: np.exp(prior.log_density(1 / (1 + np.exp(-z)))) / (2 + np.exp(z) + np.exp(-z)), 0.0, 30.0)
    np.testing.assert_allclose(rest, 1 / 3 - np.exp(-rate * float(prior.distance(beyond))), rtol=1e-7)
    assert prior.distance(1.0) == np.inf


def test_mixing_is_the_divergence_between_two_gaussians():
    graph = ng.kernels.Graph(EDGES, nodes=8)
    phi = 0.37
    covariance = (1.0 - phi) * np.eye(8) + phi * graph.structure
    divergence = 0.5 * (np.trace(covariance) - 8.0 - np.linalg.slogdet(covariance)[1])
    np.testing.assert_allclose(graph.phi_prior().distance(phi), np.sqrt(2.0 * divergence), rtol=1e-12)


def test_small_shares_keep_their_digits():
    graph = ng.kernels.Graph(EDGES, nodes=8)
    limit = np.sqrt(0.5 * np.sum((graph.eigenvalues - 1.0) ** 2))
    for phi in (1e-6, 1e-9, 1e-14):
        np.testing.assert_allclose(graph.phi_prior().distance(phi), phi * limit, rtol=1e-5)


@pytest.mark.slow
def test_they_hold_variances_that_the_data_do_not_determine():
    x, y = np.repeat(np.arange(4.0), 2), np.zeros(8)
    model = ng.Model(ng.GP(ng.kernels.Category()), ng.likelihoods.Gaussian(1.0))
    fit = {"kernel.variance": ng.Free(prior=PCVariance(1.0, 0.05)), "likelihood.variance": ng.Fixed()}
    result = ng.fit(model, x, y + 2.0, parameters=fit)
    variance = result.parameters["kernel.variance"]
    # Two rows of 2 in each of four levels: −log p = 2 (log(1 + 2 v) + 8/(1 + 2 v)) up to a constant, and rate · √v.
    rate = -np.log(0.05)
    slope = 4.0 / (1.0 + 2.0 * variance) - 32.0 / (1.0 + 2.0 * variance) ** 2 + 0.5 * rate / np.sqrt(variance)
    assert abs(slope) < 1e-4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PCVariance(0.0, 0.1), "bound must be greater than 0"),
        (lambda: PCStandardDeviation(1.0, 1.0), "probability must be greater than 0 and less than 1"),
        (lambda: PCMixing([0.0, 2.0], 1.5, 0.5), "bound must be greater than 0 and less than 1"),
        (lambda: PCMixing([-1.0, 2.0], 0.5, 0.5), "eigenvalues must be at least 0"),
        (lambda: PCMixing([0.5, 2.0], 0.5, 0.5), "eigenvalues must contain 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
