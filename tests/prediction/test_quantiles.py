"""Quantiles, distribution functions and densities of y where the noise is far narrower or wider than the latent.

All against integrals that share nothing with the library's: SciPy's adaptive quadrature, told where the step is.
"""

import itertools
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import newtongp as ng
from newtongp.likelihoods import host
from newtongp.prediction import integrals
from newtongp.prediction.adaptive import integrate as adaptive
from newtongp.prediction.rows import AccuracyWarning

lk = ng.likelihoods


def latent(mean, variance):
    return ng.Gaussian(np.atleast_1d(np.asarray(mean, float))[:, None], np.atleast_1d(variance)[:, None, None])


def prediction(likelihood, mean, variance):
    return ng.prediction.Prediction(likelihood, latent(mean, variance), None)


def expectation(function, step, width, mean=0.0, std=1.0):
    """E[function(f)] for f ~ N(mean, std²), by quadrature between points at which the function changes."""
    at = (np.asarray(step) - mean) / std
    near = np.concatenate([at + side * width / std * np.array([1.0, 6.0, 40.0, 1e3]) for side in (-1.0, 1.0)])
    ends = np.unique(np.clip(np.concatenate([near, [at], np.linspace(-12.0, 12.0, 13)]), -12.0, 12.0))

    def weighted(z):
        return function(mean + std * z) * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)

    pieces = itertools.pairwise(ends)
    return sum(integrate.quad(weighted, a, b, epsabs=1e-12, epsrel=1e-10)[0] for a, b in pieces)


# Counts that are large, and latents that are wide --------------------------------------------------


def poisson_below(y, mean, std):
    def below(f):
        return special.gammaincc(y + 1.0, np.exp(min(f, 700.0)))

    return expectation(below, np.log(y), 1.0 / np.sqrt(y), mean, std)


@pytest.mark.slow
def test_quantiles_of_large_counts():
    x = np.arange(30.0)
    y = np.floor(1e6 * np.exp(0.3 * np.sin(x / 3.0)))
    model = ng.Model(ng.GP(ng.kernels.Matern32(3.0), mean=14.0), lk.Poisson())
    found = ng.infer(model, x, y).predict([60.0])
    lower, upper = found.quantile([0.025, 0.975])[:, 0]
    assert (lower, upper) == (169_402, 8_537_374)
    mean, std = found.latent.mean[0, 0], np.sqrt(found.latent.covariance[0, 0, 0])
    for p, q in ((0.025, lower), (0.975, upper)):
        assert poisson_below(q - 1.0, mean, std) < p <= poisson_below(q, mean, std)
        assert found.cdf(q)[0] == pytest.approx(poisson_below(q, mean, std), abs=1e-9)


@pytest.mark.parametrize("variance", [400.0, 1e4])
def test_quantiles_of_counts_under_wide_latents(variance):
    std = np.sqrt(variance)
    found = prediction(lk.Poisson(), 0.0, variance)
    q = found.quantile(0.95)[0]
    # So far out y is as good as exp(f).
    assert np.log(q) == pytest.approx(std * stats.norm.ppf(0.95), rel=1e-6)
    assert poisson_below(q, 0.0, std) == pytest.approx(0.95, abs=1e-6)
    assert found.cdf(q)[0] == pytest.approx(0.95, abs=1e-7)
    assert found.quantile(0.5)[0] == 1.0
    none = expectation(lambda f: np.exp(-np.exp(min(f, 700.0))), 0.0, 1.0, 0.0, std)
    assert none < 0.5 <= poisson_below(1.0, 0.0, std)
    assert found.cdf(0.0)[0] == pytest.approx(none, abs=1e-9)


def test_a_quantile_beyond_all_numbers_is_infinite():
    found = prediction(lk.Poisson(), [0.0, 800.0], [1e6, 1e-4])
    assert found.quantile(0.9).tolist() == [np.inf, np.inf]
    assert found.quantile(0.1)[0] == 0.0
    large = prediction(lk.NegativeBinomial(0.5), 60.0, 1.0).quantile(0.9)[0]
    assert large > 2.0**53 and large == np.floor(large)


@pytest.mark.parametrize("scale", [0.1, 0.03, 1e-4])
def test_quantiles_of_log_normal_outputs_are_closed_form(scale):
    found = prediction(lk.LogNormal(scale), 0.3, 1.0).quantile([0.025, 0.95])
    exact = stats.lognorm(np.sqrt(1.0 + scale**2), scale=np.exp(0.3)).ppf([0.025, 0.95])
    np.testing.assert_allclose(found[:, 0], exact, rtol=1e-7)


# Every ratio of the two widths ----------------------------------------------------------------------

RATIOS = [1e-8, 1e-4, 1e-2, 1.0, 1e3]


@pytest.mark.parametrize("scale", RATIOS)
def test_student_outputs_of_any_width(scale):
    """Against the integral over the noise, which is the same one the other way round."""
    found = prediction(lk.StudentT(3.0, scale), 1.0, 1.0)
    p = [0.01, 0.5, 0.8]
    for level, q in zip(p, found.quantile(p)[:, 0], strict=True):
        exact = integrate.quad(
            lambda e, q=q: stats.norm.cdf(q - 1.0 - scale * e) * stats.t.pdf(e, 3.0), -np.inf, np.inf
        )
        assert exact[0] == pytest.approx(level, abs=1e-6)
        assert found.cdf(q)[0] == pytest.approx(exact[0], abs=1e-6)


@pytest.mark.parametrize("concentration", [0.5, 1e3, 1e8])
@pytest.mark.parametrize("y", [1e-9, 0.5, 1.0 - 1e-9])
def test_fractions_near_their_edges(concentration, y):
    found = prediction(lk.Beta(concentration), 0.4, 4.0)

    def below(f):
        a, b = concentration * special.ndtr(f), concentration * special.ndtr(-f)
        return special.betainc(max(a, 1e-300), max(b, 1e-300), y)

    exact = expectation(below, stats.norm.ppf(y), 1.0 / np.sqrt(concentration), 0.4, 2.0)
    below_y = found.cdf(y)[0]
    assert below_y == pytest.approx(exact, abs=1e-6)
    # 1 − 1e-9 has no more than seven digits to 1.
    np.testing.assert_allclose(found.quantile(below_y)[0], y, rtol=1e-5 if y < 0.9 else 1e-12)


@pytest.mark.parametrize("noise", [1e-12, 1e-4, 1.0])
@pytest.mark.parametrize("y", [1e-6, 1e-2, 1.0])
def test_products_with_little_noise(noise, y):
    """The product of two latents has a density that is infinite at 0, and the noise rounds it off."""
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    found = ng.prediction.Prediction(
        lk.Product(noise, link=None), ng.Gaussian(np.array([[0.2, -0.1]]), covariance[None]), None
    )

    def given(first):  # over the second latent in closed form, where the library has the first so
        mean = -0.1 + 0.3 * (first - 0.2)
        return special.ndtr((y - first * mean) / np.sqrt(noise + first**2 * (0.5 - 0.09)))

    exact = expectation(given, 0.0, max(y, np.sqrt(noise)), 0.2, 1.0)
    assert found.cdf(y)[0] == pytest.approx(exact, abs=1e-6)
    assert found.cdf(found.quantile(exact))[0] == pytest.approx(exact, abs=1e-6)


def test_a_step_at_the_end_of_a_panel_is_seen():
    """Next to an end there is room for a step of which no node knows."""
    for shift in (0.0, 1e-3, -2e-3, 1e-7):
        found = adaptive(
            lambda items, x, s=shift: special.ndtr((s - x) / 1e-6)[:, None],
            np.array([[-2.0, 0.0, 2.0]]),
            lambda value, size: np.full_like(value, 1e-10),
        )
        assert found.value[0, 0] == pytest.approx(2.0 + shift, abs=1e-9)


# Likelihoods on the host ----------------------------------------------------------------------------

EVERYWHERE = {
    "student": (lk.StudentT(3.0, 0.5), [-2.0, 0.3, 9.0]),
    "gamma": (lk.Gamma(2.0, "softplus"), [0.1, 2.0, 20.0]),
    "exponential": (lk.Exponential("softplus"), [0.1, 1.0, 10.0]),
    "beta": (lk.Beta(5.0, "logit", lapse=0.1), [0.1, 0.5, 0.99]),
    "log-normal": (lk.LogNormal(0.5), [0.1, 1.0, 10.0]),
    "poisson": (lk.Poisson("softplus", exposure=3.0), [-1.0, 2.0, 30.0]),
    "negative binomial": (lk.NegativeBinomial(0.5, exposure=3.0), [-1.0, 2.0, 30.0]),
    "binomial": (lk.Binomial(7, lapse=0.1), [-1.0, 3.0, 7.0]),
    "bernoulli": (lk.Bernoulli("logit", lapse=0.1), [-1.0, 0.0, 1.0]),
    "ordinal": (lk.Ordinal([-1.0, 0.0, 2.0], 0.5), [-1.0, 1.0, 3.0]),
    "ordinal, logit": (lk.Ordinal([-1.0, 0.0, 2.0], 0.5, link="logit"), [-1.0, 1.0, 3.0]),
    "zero-inflated": (lk.ZeroInflated(lk.Poisson(), 0.3), [-1.0, 2.0, 30.0]),
    "chained": (lk.Chained(lk.ZeroInflated(lk.Poisson()), probability="probit"), [-1.0, 0.0, 3.0]),
    "student, chained": (lk.HeteroscedasticStudentT(4.0), [-2.0, 0.3, 9.0]),
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_host_knows_what_the_likelihood_says(name):
    likelihood, values = EVERYWHERE[name]
    f = np.random.default_rng(0).normal(size=(likelihood.num_latents, 3))
    found = host.distribution(likelihood, np.array(values), f)
    for k, y in enumerate(values):
        expected = likelihood.cdf(y, f[0, k] if likelihood.num_latents == 1 else f[:, k])
        assert found[k] == pytest.approx(float(expected), abs=2e-6), (name, y)  # of single precision


def test_incomplete_beta_functions_of_large_parameters():
    """Against the normal distribution with its first correction, for the skewness."""
    for a, b in ((2e7, 3e7), (1e12, 1e12), (1e15, 1e15), (1e3, 1e16), (5.0, 1e30)):
        mean, both = a / (a + b), a + b
        spread = np.sqrt(mean * (b / both) / (both + 1.0))
        z = np.array([-1.5, 0.1, 2.0])
        x = mean + spread * z
        if a < 1e4:  # the limit of a gamma variable
            exact, tolerance = special.gammainc(a, x * b), 1e-7
        else:
            skewness = 2.0 * (b - a) / both * np.sqrt(both + 1.0) / np.sqrt(a * b)
            exact = special.ndtr(z) - skewness / 6.0 * (z**2 - 1.0) * stats.norm.pdf(z)
            # x has sixteen digits, of which the spread is the last few.
            tolerance = 1e-7 + 1e-16 * mean / spread
        np.testing.assert_allclose(host.incomplete_beta(a, b, x, 1.0 - x), exact, atol=tolerance)


# A user's own ---------------------------------------------------------------------------------------


class Laplace(ng.Likelihood):
    """Two methods and no more."""

    scale: float = 1.0

    def log_prob(self, y, f):
        return -jnp.abs(y - f) / self.scale - jnp.log(2.0 * self.scale)

    def cdf(self, y, f):
        tail = 0.5 * jnp.exp(-jnp.abs(y - f) / self.scale)
        return jnp.where(y < f, tail, 1.0 - tail)


class Pair(ng.Likelihood):
    """Two outputs around one latent, the second upside down."""

    num_outputs = 2

    def log_prob(self, y, f):
        return -jnp.abs(y[0] - f) - jnp.abs(y[1] + f) - 2.0 * jnp.log(2.0)

    def cdf(self, y, f):
        return Laplace().cdf(y, jnp.stack([f, -f]))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_a_likelihood_of_ones_own(scale):
    found = prediction(Laplace(scale), [2.0, -1.0], [1.0, 4.0])
    for p in (0.1, 0.7):
        quantile = found.quantile(p)
        for row, (mean, std) in enumerate(((2.0, 1.0), (-1.0, 2.0))):
            q = quantile[row]
            exact = expectation(lambda f, q=q: stats.laplace.cdf(q, f, scale), q, scale, mean, std)
            assert exact == pytest.approx(p, abs=1e-6)
            assert found.cdf(q)[row] == pytest.approx(exact, abs=1e-8)


# Several outputs ------------------------------------------------------------------------------------


def test_several_outputs_each_by_itself():
    noise = np.array([[0.2, 0.1], [0.1, 0.3]])
    mean, covariance = np.array([[1.0, -2.0], [0.0, 5.0], [3.0, 3.0]]), np.array([[4.0, 0.01], [0.01, 1e-4]])
    found = ng.prediction.Prediction(
        lk.MultivariateGaussian(noise), ng.Gaussian(mean, np.broadcast_to(covariance, (3, 2, 2))), None
    )
    exact = stats.norm(mean, np.sqrt(np.diag(noise) + np.diag(covariance)))
    assert found.quantile([0.1, 0.5]).shape == (2, 3, 2)
    np.testing.assert_allclose(found.quantile(0.1), exact.ppf(0.1), rtol=1e-12)
    np.testing.assert_allclose(found.cdf(mean + 0.3), exact.cdf(mean + 0.3), rtol=1e-12)
    np.testing.assert_allclose(found.cdf([0.5, 1.0]), exact.cdf([0.5, 1.0]), atol=1e-15)
    np.testing.assert_allclose(found.interval(0.5)[1], exact.ppf(0.75), rtol=1e-12)


def test_outputs_of_a_users_own():
    found = prediction(Pair(), 1.0, 4.0)
    first, second = found.cdf(0.5)[0]
    assert first == pytest.approx(expectation(lambda f: stats.laplace.cdf(0.5, f), 0.5, 1.0, 1.0, 2.0), abs=1e-8)
    assert second == pytest.approx(expectation(lambda f: stats.laplace.cdf(0.5, -f), -0.5, 1.0, 1.0, 2.0), abs=1e-8)
    quantile = found.quantile(0.3)[0]
    np.testing.assert_allclose(found.cdf(quantile)[0], 0.3, atol=1e-8)


def test_classes_have_no_order():
    found = ng.prediction.Prediction(lk.Softmax(3), ng.Gaussian(np.zeros((2, 3)), np.tile(np.eye(3), (2, 1, 1))), None)
    for ask in (lambda: found.quantile(0.5), lambda: found.cdf(1.0), lambda: found.interval(0.9)):
        with pytest.raises(ValueError, match="classes of Softmax have no order"):
            ask()


def test_many_latents_say_how_accurate_they_are():
    rows = ng.Gaussian(np.full((1, 6), 0.3), 4.0 * np.eye(6)[None])
    found = ng.prediction.Prediction(lk.AmplitudeDemodulation(3, variance=0.01), rows, None)
    with pytest.warns(AccuracyWarning, match=r"values of P\(Y ≤ y\) in 1 row\(s\) .* accuracy of only about"):
        below = found.cdf(1.0)[0]
    rng = np.random.default_rng(0)
    f = 0.3 + 2.0 * rng.normal(size=(400_000, 6))
    draws = np.sum(f[:, :3] * np.logaddexp(0.0, f[:, 3:]), axis=1) + 0.1 * rng.normal(size=400_000)
    assert below == pytest.approx(np.mean(draws <= 1.0), abs=4e-3)


# Densities ------------------------------------------------------------------------------------------


def log_density(likelihood, mean, variance, y):
    return integrals.log_densities(likelihood, None, latent(mean, variance), np.reshape(np.asarray(y, float), (-1, 1)))


def by_panels(function, centre):
    """∫ function(z) φ(z) dz on fixed panels that double in width away from the centre, from 1e-15 on."""
    points, weights = np.polynomial.legendre.leggauss(16)
    growth = 2.0 ** np.arange(-50.0, 6.0)
    ends = np.concatenate([centre - growth, [centre], centre + growth, np.linspace(-40.0, 40.0, 81)])
    ends = np.unique(np.clip(ends, -40.0, 40.0))
    half = 0.5 * np.diff(ends)[:, None]
    z = ends[:-1, None] + half * (1.0 + points)
    return np.sum(half * weights * function(z) * stats.norm.pdf(z))


@pytest.mark.parametrize("scale", RATIOS)
@pytest.mark.parametrize("y", [0.7, 9.0])
def test_densities_of_student_outputs_of_any_width(scale, y):
    exact = by_panels(lambda z: stats.t.pdf(y, 3.0, z, scale), y)
    assert log_density(lk.StudentT(3.0, scale), 0.0, 1.0, y)[0] == pytest.approx(np.log(exact), abs=1e-6)


def test_densities_of_large_counts():
    y = 2e6
    exact = expectation(lambda f: stats.poisson.pmf(y, np.exp(f)), np.log(y), 1.0 / np.sqrt(y), 14.0, 1.0)
    assert log_density(lk.Poisson(), 14.0, 1.0, y)[0] == pytest.approx(np.log(exact), abs=1e-6)


def test_densities_far_from_what_was_expected():
    """Fifty standard deviations away, where a rule around the mean of the latent sees nothing."""
    found = log_density(Laplace(1e-3), 0.0, 1.0, 50.0)[0]
    # ∫ φ(50 + e) exp(-|e| / s) / 2s de = φ(50) / (1 - (50 s)²) up to terms of s².
    assert found == pytest.approx(-1250.0 - 0.5 * np.log(2.0 * np.pi) - np.log1p(-0.0025), abs=1e-5)


@pytest.mark.parametrize(
    ("mean", "size"), [((0.0, -9.0), 1.0), ((1.0, 0.0), 0.2), ((4.0, -2.3), 1.0), ((0.5, 1.0), 1.5)]
)
def test_densities_of_two_latents(mean, size):
    """A scale of its own latent, over which Gauss-Legendre nodes are laid, and for each the panels for the other."""
    rows = ng.Gaussian(np.array([mean]), size**2 * np.eye(2)[None])
    found = integrals.log_densities(lk.HeteroscedasticStudentT(4.0, "exp"), None, rows, np.array([[0.8]]))[0]
    nodes, weights = np.polynomial.legendre.leggauss(80)
    scales = np.exp(mean[1] + 8.0 * size * nodes)
    centre = (0.8 - mean[0]) / size
    inner = [by_panels(lambda z, s=s: stats.t.pdf(0.8, 4.0, mean[0] + size * z, s), centre) for s in scales]
    exact = np.sum(8.0 * weights * stats.norm.pdf(8.0 * nodes) * inner)
    assert found == pytest.approx(np.log(exact), abs=1e-6)


class SoftplusScale(ng.Likelihood):
    """N(y | f₁, softplus(f₂)²), of which the library does not know that f₁ can be integrated out."""

    num_latents = 2

    def log_prob(self, y, f):
        scale = jnp.logaddexp(f[1], 0.0)
        return -0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(scale) - 0.5 * ((y - f[0]) / scale) ** 2


@pytest.mark.parametrize("y", [-0.75, -0.7, 0.3])
def test_densities_with_noise_that_may_be_narrower_than_the_spacing_of_numbers(y):
    """Forty standard deviations below its mean, the scale is 1e-20; there the peak of the other latent is not seen."""
    mean, covariance = (
        np.array([0.55175191, -1.06442033]),
        np.array([[0.2154645, -0.02888939], [-0.02888939, 1.27028636]]),
    )
    rows = ng.Gaussian(mean[None], covariance[None])
    found = integrals.log_densities(SoftplusScale(), None, rows, np.array([[y]]))[0]

    def given(f):
        slope = covariance[0, 1] / covariance[1, 1]
        spread = np.sqrt(covariance[0, 0] - slope * covariance[0, 1] + np.logaddexp(f, 0.0) ** 2)
        return stats.norm.pdf(y, mean[0] + slope * (f - mean[1]), spread)

    exact = expectation(given, 0.0, 1.0, mean[1], np.sqrt(covariance[1, 1]))
    assert found == pytest.approx(np.log(exact), abs=1e-6)


# Moments that overflow, and steep links ---------------------------------------------------------------

OVERFLOWING = {
    "poisson": lk.Poisson(),
    "negative binomial": lk.NegativeBinomial(0.5),
    "gamma": lk.Gamma(2.0),
    "exponential": lk.Exponential(),
    "log-normal": lk.LogNormal(0.5),
    "zero-inflated": lk.ZeroInflated(lk.Poisson(), 0.3),
}


@pytest.mark.parametrize("name", OVERFLOWING)
def test_moments_that_overflow_are_infinite(name):
    found = prediction(OVERFLOWING[name], [0.0, 0.0, -6000.0], [1e4, 800.0, 1e4])
    assert found.mean[0] == found.std[0] == found.variance[0] == np.inf
    # E[y] is about exp(400), and its square more than any number.
    assert np.log(found.mean[1]) == pytest.approx(400.0, abs=1.0) and found.std[1] == np.inf
    assert np.isfinite(found.mean[2]) and found.std[2] == np.inf


def test_moments_of_chains_that_overflow_are_infinite():
    chain = lk.Chained(lk.NegativeBinomial(), dispersion="exp")
    found = ng.prediction.Prediction(chain, ng.Gaussian(np.zeros((1, 2)), 1e4 * np.eye(2)[None]), None)
    assert found.mean[0] == found.std[0] == np.inf


class Growth(ng.Likelihood):
    """An exponential link of a user's own: no closed form is known of it."""

    def log_prob(self, y, f):
        return -0.5 * (y - jnp.exp(f)) ** 2

    def mean(self, f):
        return jnp.exp(f)

    def covariance(self, f):
        return jnp.ones(())


def test_moments_of_a_users_own_that_grow():
    found = prediction(Growth(), [0.0, 0.0, 0.0], [9.0, 400.0, 1e4])
    np.testing.assert_allclose(found.mean[:2], np.exp([4.5, 200.0]), rtol=1e-7)
    np.testing.assert_allclose(found.variance[0], 1.0 + np.exp(9.0) * np.expm1(9.0), rtol=1e-7)
    assert found.variance[1] == found.variance[2] == found.mean[2] == np.inf


def test_moments_and_probabilities_through_steep_links():
    """With a latent of standard deviation 1000 the logistic function is a step."""
    std = 1e3
    exact = expectation(special.expit, 0.0, 1.0, 300.0, std)
    square = expectation(lambda f: special.expit(f) ** 2, 0.0, 1.0, 300.0, std)
    binary = prediction(lk.Bernoulli("logit"), 300.0, std**2)
    assert binary.mean[0] == pytest.approx(exact, abs=1e-9)
    np.testing.assert_allclose(binary.probabilities, [[1.0 - exact, exact]], atol=1e-9)
    counts = prediction(lk.Binomial(10), 300.0, std**2)
    assert counts.variance[0] == pytest.approx(10.0 * (exact - square) + 100.0 * (square - exact**2), rel=1e-7)
    kinked = prediction(lk.Exponential("softplus"), 300.0, std**2)
    assert kinked.mean[0] == pytest.approx(expectation(lambda f: np.logaddexp(0.0, f), 0.0, 1.0, 300.0, std), rel=1e-8)


# Rows without y ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_score_of_a_model_with_a_missing_row_is_that_of_the_others():
    """As docs/time.md and docs/linear.md have it."""
    x, y = np.arange(6.0), np.array([1.0, 0.0, np.nan, 2.0, 1.0, 3.0])
    result = ng.infer(ng.Model(ng.MarkovGP(ng.kernels.Matern32()), lk.Poisson()), x, y)
    for values in (result.leave_one_out(), result.one_step_ahead()):
        assert np.flatnonzero(np.isnan(values)).tolist() == [2]
        assert np.nansum(values) == pytest.approx(np.delete(values, 2).sum())
    for page in ("time.md", "linear.md", "coming_from.md"):
        text = (Path(__file__).resolve().parents[2] / "docs" / page).read_text(encoding="utf-8")
        assert "leave_one_out().sum()" not in text and "np.nansum(result.leave_one_out())" in text


# What users see -------------------------------------------------------------------------------------


def test_intervals():
    found = prediction(lk.Gaussian(0.5), [0.0, 2.0], [1.0, 0.1])
    lower, upper = found.interval()
    np.testing.assert_allclose(lower, stats.norm([0.0, 2.0], np.sqrt([1.5, 0.6])).ppf(0.025), rtol=1e-12)
    np.testing.assert_array_equal(upper, found.quantile(0.975))
    for level in (0.0, 1.0, 95, "wide", [0.5], np.nan):
        with pytest.raises(ValueError, match=r"level must be a number strictly between 0 and 1"):
            found.interval(level)


def test_a_prediction_shows_its_first_rows():
    found = prediction(lk.Gaussian(0.5), np.arange(5.0), np.full(5, 0.5))
    assert repr(found) == "Prediction of 5 row(s), Gaussian: y = 0 ± 1, 1 ± 1, 2 ± 1, ..."
    exposed = prediction(lk.Poisson(exposure=[1.0, 2.0]), [0.0, 0.0], [1e-12, 1e-12])
    assert repr(exposed) == "Prediction of 2 row(s), Poisson: y = 1 ± 1, 2 ± 1.4"
    classes = ng.prediction.Prediction(lk.Softmax(2), ng.Gaussian(np.zeros((1, 2)), np.eye(2)[None]), None)
    assert repr(classes) == "Prediction of 1 row(s), Softmax: f = (0 ± 1, 0 ± 1)"


def test_a_prediction_as_a_frame():
    pytest.importorskip("pandas")
    found = prediction(lk.Poisson(), [0.0, 1.0], [0.1, 0.2])
    frame = found.to_frame(0.9)
    assert list(frame.columns) == ["mean", "std", "lower", "upper", "latent_mean", "latent_std"]
    np.testing.assert_array_equal(frame["upper"], found.quantile(0.95))
    np.testing.assert_array_equal(frame["latent_std"], np.sqrt([0.1, 0.2]))
    pair = ng.prediction.Prediction(
        lk.MultivariateGaussian(np.eye(2)), ng.Gaussian(np.zeros((3, 2)), np.tile(np.eye(2), (3, 1, 1))), None
    )
    assert list(pair.to_frame().columns) == [
        f"{name}_{k}" for name in ("mean", "std", "lower", "upper", "latent_mean", "latent_std") for k in range(2)
    ]
    classes = ng.prediction.Prediction(lk.Softmax(2), ng.Gaussian(np.zeros((1, 2)), np.eye(2)[None]), None).to_frame()
    assert list(classes.columns)[:2] == ["probability_0", "probability_1"]
    with pytest.raises(ValueError, match="level must be a number strictly between 0 and 1"):
        found.to_frame(level=2.0)


@pytest.mark.cases(slow=["pyarrow", "polars", "pandas"])
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_is_of_the_library_of_the_new_inputs(library):
    frames = pytest.importorskip(library)
    table = frames.table if library == "pyarrow" else frames.DataFrame
    result = ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), lk.Gaussian(0.1)), [0.0, 1.0, 2.0], [0.1, 1.2, 0.4])
    found, wanted = result.predict(table({"x": [0.5, 1.5]})), result.predict([0.5, 1.5])
    assert type(found.to_frame()) is type(table({"x": [0.5]}))
    assert type(wanted.to_frame()).__module__.startswith("pandas")
    np.testing.assert_array_equal(np.asarray(found.to_frame()["upper"]), wanted.to_frame()["upper"])
    if library == "pandas":
        labelled = table({"x": [0.5, 1.5]}, index=["a", "c"])
        assert result.predict(labelled).to_frame().index.tolist() == ["a", "c"]
        assert result.predict(labelled["x"]).to_frame().index.tolist() == ["a", "c"]


def test_a_frame_has_the_index_of_the_new_inputs():
    pandas = pytest.importorskip("pandas")
    dates = pandas.date_range("2024-01-31", periods=2, freq="ME", name="month")
    latent = ng.Gaussian(np.zeros((2, 1)), np.ones((2, 1, 1)))
    frame = ng.prediction.Prediction(lk.Gaussian(0.1), latent, None, "pandas", dates).to_frame()
    pandas.testing.assert_index_equal(frame.index, dates)


def test_a_frame_needs_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame needs pandas: install it"):
        prediction(lk.Poisson(), 0.0, 0.1).to_frame()
