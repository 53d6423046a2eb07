"""Predictions of y against direct integration with SciPy, and of f against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.prediction import integrals

likelihoods = ng.likelihoods
MEANS, STDS = np.array([-0.5, 0.2, 1.0]), np.array([0.1, 0.5, 1.0])
LATENT = ng.Gaussian(MEANS[:, None], (STDS**2)[:, None, None])
PROBABILITIES = [0.02, 0.5, 0.9]

# Each likelihood, SciPy's distribution of y given f, and a few values of y.
CASES = {
    "gaussian": (likelihoods.Gaussian(0.04), lambda f: stats.norm(f, 0.2), [-0.8, 0.1, 3.0]),
    "student-t": (likelihoods.StudentT(df=4.0, scale=0.2), lambda f: stats.t(4.0, f, 0.2), [-0.8, 0.1, 9.0]),
    "gamma": (likelihoods.Gamma(shape=2.0), lambda f: stats.gamma(2.0, scale=np.exp(f)), [0.1, 2.0, 20.0]),
    "exponential": (likelihoods.Exponential(), lambda f: stats.expon(scale=np.exp(f)), [0.0, 1.0, 10.0]),
    "log-normal": (likelihoods.LogNormal(0.5), lambda f: stats.lognorm(0.5, scale=np.exp(f)), [0.1, 1.0, 10.0]),
    "beta": (
        likelihoods.Beta(concentration=5.0),
        lambda f: stats.beta(5.0 * special.ndtr(f), 5.0 * special.ndtr(-f)),
        [0.1, 0.5, 0.99],
    ),
    "poisson": (likelihoods.Poisson(exposure=3.0), lambda f: stats.poisson(3.0 * np.exp(f)), [0, 5, 30]),
    "negative binomial": (
        likelihoods.NegativeBinomial(dispersion=0.5, exposure=3.0),
        lambda f: stats.nbinom(2.0, 1.0 / (1.0 + 1.5 * np.exp(f))),
        [0, 5, 30],
    ),
    "binomial": (likelihoods.Binomial(trials=7), lambda f: stats.binom(7, special.expit(f)), [0, 3, 7]),
    "bernoulli": (likelihoods.Bernoulli(), lambda f: stats.bernoulli(special.ndtr(f)), [0, 1, 0]),
}


GRID = np.linspace(-12.0, 12.0, 8001)


def expect(function, row):
    """E[function(f)] under the latent of this row, by Simpson's rule."""
    values = function(MEANS[row] + STDS[row] * GRID)
    return integrate.simpson(values * np.exp(-0.5 * GRID**2), x=GRID) / np.sqrt(2.0 * np.pi)


@pytest.mark.cases(thorough=["student-t", "beta", "binomial"])
@pytest.mark.parametrize("name", CASES)
def test_moments_are_those_of_the_mixture(name):
    likelihood, given, _ = CASES[name]
    prediction = ng.prediction.Prediction(likelihood, LATENT, None)
    mean = np.array([expect(lambda f: given(f).mean(), row) for row in range(3)])
    square = np.array([expect(lambda f: given(f).var() + given(f).mean() ** 2, row) for row in range(3)])
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(prediction.variance, square - mean**2, rtol=1e-8)
    np.testing.assert_allclose(prediction.std**2, prediction.variance, rtol=1e-14)
    np.testing.assert_allclose(prediction.covariance[:, 0, 0], prediction.variance, rtol=1e-14)


@pytest.mark.cases(thorough=["student-t", "beta", "binomial"])
@pytest.mark.parametrize("name", CASES)
def test_log_density_is_that_of_the_mixture(name):
    likelihood, given, y = CASES[name]
    with jax.enable_x64(True):
        found = np.asarray(integrals.log_densities(likelihood, None, LATENT, np.array(y, dtype=float)[:, None]))

    def density(f, value):
        frozen = given(f)
        return frozen.pmf(value) if likelihood.support.integer else frozen.pdf(value)

    expected = [np.log(expect(lambda f, v=value: density(f, v), row)) for row, value in enumerate(y)]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


@pytest.mark.cases(quick=["gaussian", "exponential"], others="thorough")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case[0].support.integer])
def test_a_quantile_is_where_the_distribution_function_is_p(name):
    likelihood, given, _ = CASES[name]
    found = ng.prediction.Prediction(likelihood, LATENT, None).quantile(PROBABILITIES)
    assert found.shape == (3, 3)
    for p, row_values in zip(PROBABILITIES, found, strict=True):
        below = [expect(lambda f, v=value: given(f).cdf(v), row) for row, value in enumerate(row_values)]
        np.testing.assert_allclose(below, p, atol=2e-6)


@pytest.mark.cases(slow=["poisson"], others="thorough")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0].support.integer])
def test_a_quantile_of_counts_is_the_smallest_count_that_reaches_p(name):
    likelihood, given, _ = CASES[name]
    found = ng.prediction.Prediction(likelihood, LATENT, None).quantile(PROBABILITIES)
    assert np.all(found == np.round(found)) and np.all(found >= 0)
    for p, row_values in zip(PROBABILITIES, found, strict=True):
        for row, value in enumerate(row_values):
            assert expect(lambda f, v=value: given(f).cdf(v), row) >= p
            assert value == 0 or expect(lambda f, v=value: given(f).cdf(v - 1), row) < p


def test_one_quantile_is_a_row_of_several():
    prediction = ng.prediction.Prediction(likelihoods.Gaussian(0.04), LATENT, None)
    np.testing.assert_array_equal(prediction.quantile(0.9), prediction.quantile(PROBABILITIES)[2])


def test_gaussian_predictions_are_closed_form():
    prediction = ng.prediction.Prediction(likelihoods.Gaussian(0.04), LATENT, None)
    total = stats.norm(MEANS, np.sqrt(STDS**2 + 0.04))
    np.testing.assert_allclose(prediction.mean, MEANS, rtol=1e-12)
    np.testing.assert_allclose(prediction.variance, total.var(), rtol=1e-12)
    np.testing.assert_allclose(prediction.quantile(0.9), total.ppf(0.9), rtol=1e-7)


@pytest.mark.slow
def test_quantiles_reach_far_and_keep_their_digits():
    wide = ng.Gaussian(np.array([[1e6], [-1e-3]]), np.array([[[1e-4]], [[1e-12]]]))
    found = ng.prediction.Prediction(likelihoods.Gaussian(1e-12), wide, None).quantile(0.9)
    expected = stats.norm([1e6, -1e-3], np.sqrt(np.array([1e-4, 1e-12]) + 1e-12)).ppf(0.9)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-8)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-8)
    large = ng.Gaussian(np.array([[20.0]]), np.array([[[0.01]]]))
    counts = ng.prediction.Prediction(likelihoods.Poisson(), large, None).quantile(0.5)
    np.testing.assert_allclose(counts, np.exp(20.0), rtol=1e-3)


@pytest.mark.slow
def test_heavy_tails_have_quantiles_without_moments():
    found = ng.prediction.Prediction(likelihoods.StudentT(df=1.0, scale=1.0), LATENT, None).quantile(0.9)
    below = [expect(lambda f, v=value: stats.cauchy(f).cdf(v), row) for row, value in enumerate(found)]
    np.testing.assert_allclose(below, 0.9, atol=1e-8)


# Two latents, of which the first enters linearly --------------------------------------------------

TWO_MEANS = np.array([[0.2, -2.0], [-1.0, 0.5], [3.0, 1.0]])
TWO_COVARIANCES = np.array([[[1.0, 0.1], [0.1, 0.3]], [[0.25, -0.2], [-0.2, 0.5]], [[4.0, 0.0], [0.0, 1e-4]]])
TWO = ng.Gaussian(TWO_MEANS, TWO_COVARIANCES)
COARSE = np.linspace(-8.0, 8.0, 801)


def softplus(f):
    return np.logaddexp(0.0, f)


# Each likelihood, with the mean and the standard deviation of y given f.
LINEAR = {
    "noise, exp": (likelihoods.HeteroscedasticGaussian("exp"), lambda f, g: (f, np.exp(g))),
    "noise, softplus": (likelihoods.HeteroscedasticGaussian(), lambda f, g: (f, softplus(g))),
    "product, softplus": (likelihoods.Product(0.09), lambda f, g: (f * softplus(g), 0.3)),
    "product, identity": (likelihoods.Product(0.01, link=None), lambda f, g: (f * g, 0.1)),
}


def expect_two(function, row):
    """E[function(f₀, f₁)] under the latents of this row, by Simpson's rule over both."""
    root = np.linalg.cholesky(TWO_COVARIANCES[row])
    first, second = np.meshgrid(COARSE, COARSE, indexing="ij", sparse=True)
    values = function(
        TWO_MEANS[row, 0] + root[0, 0] * first, TWO_MEANS[row, 1] + root[1, 0] * first + root[1, 1] * second
    )
    weighted = values * stats.norm.pdf(first) * stats.norm.pdf(second)
    return integrate.simpson(integrate.simpson(weighted, x=COARSE), x=COARSE)


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("rule", [None, ng.cubature.Unscented(3)], ids=["default", "unscented"])
def test_a_quantile_over_latents_that_enter_linearly_is_exact(name, rule):
    likelihood, given = LINEAR[name]
    prediction = ng.prediction.Prediction(likelihood, TWO, rule)
    found = prediction.quantile([0.025, 0.5, 0.9])
    for p, values in zip([0.025, 0.5, 0.9], found, strict=True):
        np.testing.assert_allclose(prediction.cdf(values), p, atol=2e-5)
        for row, value in enumerate(values if rule is None else []):
            assert expect_two(lambda f, g, v=value: below(v, *given(f, g)), row) == pytest.approx(p, abs=2e-5)


def below(value, mean, deviation):
    return special.ndtr((value - mean) / deviation)


def test_little_noise_does_not_show_the_nodes():
    """The first latent as wide as ten times the noise: three nodes for it gave 12 % where 2.5 % were asked for."""
    latent = ng.Gaussian(np.zeros((1, 2)), np.diag([1.0, 1e-6])[None])
    shifted = ng.Gaussian(np.array([[0.0, np.log(0.1)]]), latent.covariance)
    found = ng.prediction.Prediction(likelihoods.HeteroscedasticGaussian("exp"), shifted, None).quantile([0.025, 0.3])
    np.testing.assert_allclose(found[:, 0], stats.norm(0.0, np.sqrt(1.01)).ppf([0.025, 0.3]), rtol=1e-5)


@pytest.mark.cases(
    thorough=["default"],
    slow=[
        "negative weights",
    ],
)
@pytest.mark.parametrize("rule", [None, ng.cubature.Unscented(5)], ids=["default", "negative weights"])
def test_probabilities_of_many_classes_are_none_of_them_negative(rule):
    """Eight wide latents: an average over nodes with negative weights was below zero for some classes."""
    rng = np.random.default_rng(0)
    latent = ng.Gaussian(3.0 * rng.normal(size=(40, 8)), np.broadcast_to(25.0 * np.eye(8), (40, 8, 8)))
    prediction = ng.prediction.Prediction(likelihoods.Softmax(8), latent, rule)
    draws = latent.mean[:, None] + 5.0 * rng.normal(size=(1, 20_000, 8))
    np.testing.assert_allclose(prediction.probabilities, special.softmax(draws, axis=2).mean(1), atol=0.015)
    assert np.all(prediction.probabilities > 0.0)
    y = rng.integers(0, 8, (40, 1))
    found = in_double(integrals.log_densities)(prediction.likelihood, rule, latent, y.astype(float))
    np.testing.assert_allclose(found, np.log(np.take_along_axis(prediction.probabilities, y, axis=1)[:, 0]), rtol=1e-9)


class Window(ng.Likelihood):
    """y is within 1 of f, and nowhere else."""

    def log_prob(self, y, f):
        return jnp.where(jnp.abs(y - f) <= 1.0, -np.log(2.0), -jnp.inf)


def test_what_is_impossible_has_a_density_of_zero():
    latent = ng.Gaussian(np.zeros((2, 1)), np.full((2, 1, 1), 1e-4))
    found = in_double(integrals.log_densities)(Window(), None, latent, np.array([[0.0], [50.0]]))
    np.testing.assert_array_equal(found, [pytest.approx(-np.log(2.0)), -np.inf])


# Distribution functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_function_is_that_of_the_mixture(name):
    likelihood, given, y = CASES[name]
    prediction = ng.prediction.Prediction(likelihood, LATENT, None)
    expected = [expect(lambda f, v=value: given(f).cdf(v), row) for row, value in enumerate(y)]
    np.testing.assert_allclose(prediction.cdf(y), expected, atol=1e-8)
    np.testing.assert_array_equal(prediction.cdf(np.array(y)[:, None]), prediction.cdf(y))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case[0].support.integer])
def test_quantiles_and_the_distribution_function_are_inverses(name):
    likelihood, _, y = CASES[name]
    prediction = ng.prediction.Prediction(likelihood, LATENT, None)
    np.testing.assert_allclose(prediction.cdf(prediction.quantile(0.3)), 0.3, atol=5e-6)
    below = prediction.cdf(y[1])
    np.testing.assert_allclose(np.diag(prediction.quantile(below)), y[1], rtol=1e-4)


def test_the_distribution_function_beyond_the_support_and_of_nothing():
    prediction = ng.prediction.Prediction(likelihoods.Poisson(), LATENT, None)
    assert prediction.cdf(-1.0).tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_array_equal(prediction.cdf(2.7), prediction.cdf(2))
    np.testing.assert_array_equal(prediction.cdf([np.nan, np.inf, -np.inf]), [np.nan, 1.0, 0.0])


def test_distribution_functions_that_cannot_be_had_are_refused():
    prediction = ng.prediction.Prediction(likelihoods.Poisson(), LATENT, None)
    with pytest.raises(ValueError, match=r"one number per row, 3 of them, got shape \(2,\)"):
        prediction.cdf([1.0, 2.0])
    with pytest.raises(ValueError, match=r"y must be a number.*'many'"):
        prediction.cdf("many")
    with pytest.raises(ValueError, match="no order"):
        ng.prediction.Prediction(likelihoods.Softmax(2), TWO, None).cdf(1)
    with pytest.raises(ValueError, match=r"one number per row and output, \(3, 2\), 3 of them, got shape \(3,\)"):
        ng.prediction.Prediction(likelihoods.MultivariateGaussian(np.eye(2)), TWO, None).cdf([0.0, 0.0, 0.0])


# From inference -----------------------------------------------------------------------------------

X = np.array([0.0, 0.4, 1.1, 1.3, 2.0, 2.2, 3.1, 3.5])
X_NEW = np.array([-1.0, 0.7, 2.1, 6.0])
COUNTS = np.array([1, 2, 0, 3, 4, 2, 1, 0])
KERNEL = ng.kernels.Matern52(lengthscale=1.5, variance=0.8)
MEAN = 0.3
MODEL = ng.Model(ng.GP(KERNEL, mean=MEAN), likelihoods.Poisson())


@pytest.fixture(scope="module")
def result():
    return ng.infer(MODEL, X, COUNTS)


def gram(a, b):
    distance = np.sqrt(5.0) * np.abs(a[:, None] - b[None, :]) / 1.5
    return 0.8 * (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)


def by_numpy(sites, x_new):
    """The joint posterior at new inputs from K, λ and Λ, whatever the signs of Λ."""
    precision, linear = np.diag(sites.precision[:, 0, 0]), sites.linear[:, 0]
    cross, system = gram(X, x_new), np.eye(X.size) + precision @ gram(X, X)
    mean = MEAN + cross.T @ np.linalg.solve(system, linear - precision @ np.full(X.size, MEAN))
    return mean, gram(x_new, x_new) - cross.T @ np.linalg.solve(system, precision @ cross)


def assert_joint(result, x_new, rtol=1e-9):
    mean, covariance = by_numpy(result.sites, x_new)
    latent = result.predict(x_new).latent
    np.testing.assert_allclose(latent.mean[:, 0], mean, rtol=rtol, atol=1e-11)
    np.testing.assert_allclose(latent.covariance[:, 0, 0], np.diag(covariance), rtol=rtol)
    with jax.enable_x64(True):
        joint = jax.jit(lambda posterior, x: posterior.joint(x))(result.posterior, x_new[:, None])
    np.testing.assert_allclose(joint.mean, mean, rtol=rtol, atol=1e-11)
    np.testing.assert_allclose(joint.covariance, covariance, rtol=rtol, atol=1e-11)


@pytest.mark.slow
def test_the_latent_is_that_of_the_sites(result):
    assert_joint(result, X_NEW)


def test_predictions_at_the_data_are_the_marginals(result):
    latent = result.predict(X).latent
    np.testing.assert_allclose(latent.mean, result.marginals.mean, rtol=1e-9)
    np.testing.assert_allclose(latent.covariance, result.marginals.covariance, rtol=1e-9)
    np.testing.assert_allclose(latent.mean, result.posterior.marginals.mean, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.thorough
def test_indefinite_sites_predict_as_they_should():
    model = ng.Model(ng.GP(KERNEL, mean=MEAN), likelihoods.StudentT(df=3.0, scale=0.5))
    precision = np.array([2.0, -0.3, 1.0, 4.0, -0.5, 0.0, 3.0, 1.5])
    sites = ng.Sites(np.sin(X)[:, None], precision[:, None, None])
    result = ng.infer(model, X, np.sin(X), sites=sites, max_steps=0, step=ng.Constant(1.0), throw=False)
    np.testing.assert_array_equal(result.sites.precision[:, 0, 0], precision)
    assert_joint(result, X_NEW)
    mean, covariance = by_numpy(sites, X)
    np.testing.assert_allclose(result.marginals.mean[:, 0], mean, rtol=1e-10)
    np.testing.assert_allclose(result.marginals.covariance[:, 0, 0], np.diag(covariance), rtol=1e-10)


def test_log_density_of_a_result_is_that_of_its_latent(result):
    latent = result.predict(X_NEW).latent
    y = np.array([0.0, 3.0, np.nan, 5.0])
    found = result.log_density(X_NEW, y)
    f = latent.mean + np.sqrt(latent.covariance[:, :, 0]) * GRID[None, :]
    values = stats.poisson.pmf(np.nan_to_num(y)[:, None], np.exp(f)) * stats.norm.pdf(GRID)[None, :]
    expected = np.log(integrate.simpson(values, x=GRID))
    assert np.isnan(found[2]) and found.shape == (4,)
    np.testing.assert_allclose(np.delete(found, 2), np.delete(expected, 2), rtol=1e-9)


def test_exposures_at_prediction_scale_the_mean(result):
    mean, variance = result.predict(X_NEW).mean, result.predict(X_NEW).variance
    exposure = np.array([1.0, 2.0, 0.5, 10.0])
    exposed = result.predict(X_NEW, exposure=exposure)
    np.testing.assert_allclose(exposed.mean, exposure * mean, rtol=1e-12)
    np.testing.assert_allclose(exposed.variance, exposure**2 * (variance - mean) + exposure * mean, rtol=1e-10)
    np.testing.assert_allclose(result.predict(X_NEW, exposure=2.0).mean, 2.0 * mean, rtol=1e-12)
    each = [result.log_density(X_NEW[[i]], [3], exposure=exposure[i])[0] for i in range(4)]
    np.testing.assert_allclose(result.log_density(X_NEW, [3, 3, 3, 3], exposure=exposure), each, rtol=1e-12)


def test_joint_draws_have_the_mean_and_the_covariance_of_the_joint(result):
    n = 20_000
    draws = result.sample(0, X_NEW, n)[:, :, 0]
    mean, covariance = by_numpy(result.sites, X_NEW)
    spread = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2)
    assert np.all(np.abs(draws.mean(axis=0) - mean) < 5.0 * np.sqrt(np.diag(covariance) / n))
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 5.0 * spread / np.sqrt(n))


def test_draws_at_one_input_twice_are_equal(result):
    draws = result.sample(1, np.array([0.7, 2.1, 0.7]), 5)[:, :, 0]
    np.testing.assert_allclose(draws[:, 0], draws[:, 2], atol=1e-7)


@pytest.mark.slow
@pytest.mark.thorough
def test_draws_of_y_have_the_predictive_moments(result):
    n = 20_000
    draws = result.sample_y(0, X_NEW, n)
    prediction = result.predict(X_NEW)
    assert draws.shape == (n, 4) and np.all(draws == np.round(draws))
    assert np.all(np.abs(draws.mean(axis=0) - prediction.mean) < 5.0 * prediction.std / np.sqrt(n))
    fourth = np.mean((draws - prediction.mean) ** 4, axis=0)
    error = np.sqrt((fourth - prediction.variance**2) / n)
    assert np.all(np.abs(draws.var(axis=0) - prediction.variance) < 5.0 * error)


@pytest.mark.slow
def test_the_same_key_gives_the_same_draws(result):
    key = jax.random.key(3)
    np.testing.assert_array_equal(result.sample(key, X_NEW, 2), result.sample(3, X_NEW, 2))
    np.testing.assert_array_equal(result.sample(np.int64(3), X_NEW, 2), result.sample(3, X_NEW, 2))
    np.testing.assert_array_equal(result.sample(jax.random.PRNGKey(3), X_NEW, 2), result.sample(3, X_NEW, 2))
    np.testing.assert_array_equal(result.sample_y(key, X_NEW, 2), result.sample_y(3, X_NEW, 2))
    assert not np.any(result.sample(4, X_NEW, 2) == result.sample(3, X_NEW, 2))
