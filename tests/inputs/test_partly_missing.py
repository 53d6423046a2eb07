"""Rows of which some outputs are missing: the others count, in every method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import newtongp as ng
from newtongp.likelihoods.partial import PartlyObserved

pytestmark = pytest.mark.versions

N = 9
X = np.linspace(0.0, 4.0, N)
NOISE = np.array([[0.3, 0.1], [0.1, 0.2]])
KERNELS = [ng.kernels.Matern32(lengthscale=1.5), ng.kernels.Matern32(lengthscale=0.7, variance=2.0)]


def outputs():
    rng = np.random.default_rng(4)
    y = np.column_stack([np.sin(X), np.cos(2.0 * X)]) + 0.3 * rng.normal(size=(N, 2))
    y[2, 0] = y[5, 1] = y[6, 1] = np.nan
    y[7] = np.nan
    return y


Y = outputs()
METHODS = {
    "VI": ng.VI(),
    "Newton": ng.Newton(),
    "Taylor": ng.Taylor(),
    "power EP": ng.PowerEP(0.5),
    "PL": ng.PosteriorLinearisation(),
    "PL by regression": ng.PosteriorLinearisation(slope="regression"),
    "PL2": ng.PosteriorLinearisation(order=2),
    "variational Gauss-Newton": ng.VI(curvature=ng.GaussNewton()),
    "VI at nodes": ng.VI(cubature=ng.cubature.GaussHermite(4)),
}


def exact():
    """Mean and covariance of f at X, and log p(y), by stacking all numbers that were observed."""
    seen = ~np.isnan(Y)
    gram = np.zeros((N, 2, N, 2))
    for k, (lengthscale, variance) in enumerate([(1.5, 1.0), (0.7, 2.0)]):
        distance = np.sqrt(3.0) * np.abs(X[:, None] - X[None, :]) / lengthscale
        gram[:, k, :, k] = variance * (1.0 + distance) * np.exp(-distance)
    gram, noise = gram.reshape(2 * N, 2 * N), np.kron(np.eye(N), NOISE)
    kept = np.flatnonzero(seen.ravel())
    total = (gram + noise)[np.ix_(kept, kept)]
    cross = gram[:, kept]
    mean = cross @ np.linalg.solve(total, Y.ravel()[kept])
    covariance = gram - cross @ np.linalg.solve(total, cross.T)
    log_density = multivariate_normal(np.zeros(kept.size), total).logpdf(Y.ravel()[kept])
    blocks = covariance.reshape(N, 2, N, 2)[np.arange(N), :, np.arange(N), :]
    return mean.reshape(N, 2), blocks, log_density


@pytest.mark.cases(slow=["VI-GP"], others="thorough")
@pytest.mark.parametrize(("name", "prior"), [*((name, ng.GP) for name in METHODS), ("VI", ng.MarkovGP)])
def test_one_step_is_exact_regression_on_what_was_observed(name, prior):
    model = ng.Model(prior(ng.kernels.Independent(KERNELS)), ng.likelihoods.MultivariateGaussian(NOISE))
    result = ng.infer(model, X, Y, METHODS[name], ng.Constant(1.0), max_steps=3)
    mean, covariance, log_density = exact()
    np.testing.assert_allclose(result.marginals.mean, mean, atol=1e-9)
    np.testing.assert_allclose(result.marginals.covariance, covariance, atol=1e-9)
    assert result.energy == pytest.approx(-log_density, abs=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
def test_densities_of_new_and_left_out_rows_are_of_what_is_given():
    model = ng.Model(ng.GP(ng.kernels.Independent(KERNELS)), ng.likelihoods.MultivariateGaussian(NOISE))
    result = ng.infer(model, X, Y)
    x_new = [0.3, 1.1, 2.2]
    y_new = np.array([[0.2, 0.1], [np.nan, 0.4], [np.nan, np.nan]])
    latent = result.predict(x_new).latent
    found = result.log_density(x_new, y_new)
    whole = multivariate_normal(latent.mean[0], latent.covariance[0] + NOISE).logpdf(y_new[0])
    part = multivariate_normal(latent.mean[1, 1], latent.covariance[1, 1, 1] + NOISE[1, 1]).logpdf(0.4)
    np.testing.assert_allclose(found[:2], [whole, part], rtol=1e-9)
    assert np.isnan(found[2])

    left_out = result.leave_one_out()
    without = Y.copy()
    without[5] = np.nan
    refitted = ng.infer(model, X, without).log_density(X[5:6], Y[5:6])
    np.testing.assert_allclose(left_out[5], refitted[0], rtol=1e-8)


@pytest.mark.slow
def test_a_network_marginalises_the_missing_output():
    network = ng.likelihoods.RegressionNetwork(3, 2, [[0.5, 0.1, 0.0], [0.1, 0.4, -0.1], [0.0, -0.1, 0.6]])
    with jax.enable_x64(True):
        f = jnp.asarray(np.random.default_rng(0).normal(size=8))
        seen = np.array([True, False, True])
        y = np.array([0.3, 0.0, -1.0])
        part = PartlyObserved(network, seen)
        mean, covariance = np.asarray(network.mean(f))[seen], np.asarray(network.covariance(f))[np.ix_(seen, seen)]
        wanted = multivariate_normal(mean, covariance).logpdf(y[seen])
        assert float(part.log_prob(jnp.asarray(y), f)) == pytest.approx(wanted, rel=1e-12)


class Pairs(ng.Likelihood):
    """Two independent counts of one rate."""

    num_outputs = 2

    def log_prob(self, y, f):
        return jnp.sum(y * f - jnp.exp(f) - jax.scipy.special.gammaln(y + 1.0))


class PairsThatMayBeMissing(Pairs):
    def partial_log_prob(self, y, seen, f):
        return jnp.sum(jnp.where(seen, y * f - jnp.exp(f) - jax.scipy.special.gammaln(y + 1.0), 0.0))


COUNTS = np.random.default_rng(1).poisson(2.0, size=(N, 2)).astype(float)
COUNTS[3, 0] = np.nan


@pytest.mark.slow
@pytest.mark.thorough
def test_likelihoods_that_are_not_gaussian_say_how():
    with pytest.raises(ValueError, match=r"first row 3.*partial_log_prob"):
        ng.infer(ng.Model(ng.GP(KERNELS[0]), Pairs()), X, COUNTS)
    result = ng.infer(ng.Model(ng.GP(KERNELS[0]), PairsThatMayBeMissing()), X, COUNTS)
    # One count of two, and the other one: the same as two rows for each pair.
    x, y = np.repeat(X, 2), COUNTS.ravel()
    by_rows = ng.infer(
        ng.Model(ng.GP(KERNELS[0]), ng.likelihoods.Poisson()), x, y, ng.VI(cubature=ng.cubature.GaussHermite(20))
    )
    assert result.energy == pytest.approx(by_rows.energy, abs=1e-6)
    np.testing.assert_allclose(result.marginals.mean, by_rows.marginals.mean[::2], atol=1e-5)
