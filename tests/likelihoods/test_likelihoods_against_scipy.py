"""Densities, moments, distribution functions and draws, against scipy.stats.

Vectorised but not compiled, and with grids of the same few sizes: the cases then share their primitives,
and most of the time would go into compiling.
"""

import decimal
import functools

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats as st

from newtongp import likelihoods as lk
from newtongp.likelihoods import host


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def exp(f):
    return np.exp(f)


def softplus(f):
    return np.logaddexp(f, 0.0)


def probit(f, lapse=0.0):
    return lapse + (1 - 2 * lapse) * scipy.special.ndtr(f)


def logit(f, lapse=0.0):
    return lapse + (1 - 2 * lapse) * scipy.special.expit(f)


def negative_binomial(mean, dispersion):
    return st.nbinom(1 / dispersion, 1 / (1 + dispersion * mean))


REAL = np.array([-7.0, -0.4, 0.0, 0.9, 12.0])
POSITIVE = np.array([0.01, 0.4, 1.0, 3.7, 25.0])
FRACTIONS = np.array([0.001, 0.2, 0.5, 0.93, 0.999])
COUNTS = np.array([0.0, 1.0, 2.0, 7.0, 40.0])
CLASSES = np.array([0.0, 1.0, 0.0, 1.0, 0.0])
LATENTS = np.array([-2.3, -0.5, 0.0, 0.7, 2.1])

CASES = {
    "gaussian": (lk.Gaussian(0.3), lambda f: st.norm(f, np.sqrt(0.3)), REAL),
    "student": (lk.StudentT(4.0, 1.7), lambda f: st.t(4.0, f, 1.7), REAL),
    "student-heavy": (lk.StudentT(2.5, 0.1), lambda f: st.t(2.5, f, 0.1), REAL),
    "gamma-exp": (lk.Gamma(2.2), lambda f: st.gamma(2.2, scale=exp(f)), POSITIVE),
    "gamma-softplus": (lk.Gamma(0.6, "softplus"), lambda f: st.gamma(0.6, scale=softplus(f)), POSITIVE),
    "exponential-exp": (lk.Exponential(), lambda f: st.expon(scale=exp(f)), POSITIVE),
    "exponential-softplus": (lk.Exponential("softplus"), lambda f: st.expon(scale=softplus(f)), POSITIVE),
    "beta-probit": (
        lk.Beta(3.0),
        lambda f: st.beta(3.0 * probit(f), 3.0 * probit(-f)),
        FRACTIONS,
    ),
    "beta-logit-lapse": (
        lk.Beta(0.8, "logit", lapse=0.05),
        lambda f: st.beta(0.8 * logit(f, 0.05), 0.8 * logit(-f, 0.05)),
        FRACTIONS,
    ),
    "lognormal": (lk.LogNormal(0.6), lambda f: st.lognorm(0.6, scale=exp(f)), POSITIVE),
    "poisson-exp": (lk.Poisson(exposure=2.5), lambda f: st.poisson(2.5 * exp(f)), COUNTS),
    "poisson-softplus": (lk.Poisson("softplus"), lambda f: st.poisson(softplus(f)), COUNTS),
    "negative-binomial-exp": (
        lk.NegativeBinomial(0.4, exposure=3.0),
        lambda f: negative_binomial(3.0 * exp(f), 0.4),
        COUNTS,
    ),
    "negative-binomial-softplus": (
        lk.NegativeBinomial(2.0, "softplus"),
        lambda f: negative_binomial(softplus(f), 2.0),
        COUNTS,
    ),
    "binomial-logit": (lk.Binomial(40), lambda f: st.binom(40, logit(f)), COUNTS),
    "binomial-probit-lapse": (
        lk.Binomial(40, "probit", lapse=0.1),
        lambda f: st.binom(40, probit(f, 0.1)),
        COUNTS,
    ),
    "beta-binomial-logit": (
        lk.BetaBinomial(40, 3.0),
        lambda f: st.betabinom(40, 3.0 * logit(f), 3.0 * logit(-f)),
        COUNTS,
    ),
    "beta-binomial-probit-lapse": (
        lk.BetaBinomial(40, 0.3, "probit", lapse=0.1),
        lambda f: st.betabinom(40, 0.3 * probit(f, 0.1), 0.3 * probit(-f, 0.1)),
        COUNTS,
    ),
    "bernoulli-probit": (lk.Bernoulli(), lambda f: st.bernoulli(probit(f)), CLASSES),
    "bernoulli-logit-lapse": (
        lk.Bernoulli("logit", 0.02),
        lambda f: st.bernoulli(logit(f, 0.02)),
        CLASSES,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.cases(
    thorough=["student-heavy", "student"],
)
def test_log_prob_moments_and_cdf(case):
    likelihood, reference, values = case
    y, f = (grid.ravel() for grid in np.meshgrid(values, LATENTS))
    between = y + (0.3 if likelihood.support.integer else 0.0)
    below = likelihood.support.lower - 1.0 if np.isfinite(likelihood.support.lower) else -np.inf

    @jax.vmap
    def everything(y, between, f):
        return (
            likelihood.log_prob(y, f),
            likelihood.mean(f),
            likelihood.covariance(f) + 0.0 * f,
            likelihood.cdf(between, f),
            likelihood.cdf(below, f),
        )

    log_prob, mean, covariance, cdf, cdf_below = everything(y, between, f)
    expected = reference(f)
    density = expected.logpmf if likelihood.support.integer else expected.logpdf
    np.testing.assert_allclose(log_prob, density(y), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-12)
    np.testing.assert_allclose(covariance, expected.var(), rtol=1e-11)
    np.testing.assert_allclose(cdf, expected.cdf(between), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(cdf_below, 0.0)


@pytest.mark.cases(
    slow=["beta-binomial-logit"],
    thorough=[
        "negative-binomial-softplus",
        "poisson-softplus",
        "beta-logit-lapse",
        "student",
        "gamma-exp",
        "beta-probit",
        "poisson-exp",
        "negative-binomial-exp",
        "binomial-logit",
        "student-heavy",
        "binomial-probit-lapse",
        "beta-binomial-probit-lapse",
    ],
)
def test_sample_moments(case):
    likelihood, reference, _ = case
    n, latents = 20_000, np.array([-0.8, 0.9])
    keys = jax.random.split(jax.random.key(3), n)
    sample = jax.vmap(jax.vmap(likelihood.sample, in_axes=(0, None)), in_axes=(None, 0))
    draws = np.asarray(sample(keys, latents))
    assert draws.dtype == np.float64
    for column, f in zip(draws, latents, strict=True):
        expected = reference(f)
        likelihood.check_support(column[:, None])
        assert abs(column.mean() - expected.mean()) < 5.0 * expected.std() / np.sqrt(n)
        fourth = expected.stats("k") + 3.0
        if np.isfinite(fourth):
            assert abs(column.var() - expected.var()) < 5.0 * expected.var() * np.sqrt((fourth - 1.0) / n)


def log_probs(likelihood, y, f):
    return np.asarray(jax.vmap(likelihood.log_prob)(y, np.full(y.shape, f)))


def cdfs(likelihood, y, f):
    return np.asarray(jax.vmap(likelihood.cdf)(y, np.full(y.shape, f)))


@pytest.mark.cases(slow=["binomial-logit-40"], others="thorough")
@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("poisson-exp", 400),
        ("negative-binomial-exp", 400),
        ("binomial-logit", 40),
        ("beta-binomial-logit", 40),
        ("bernoulli-probit", 1),
    ],
)
def test_discrete_probabilities_sum_to_one(name, last):
    y = np.arange(401.0)
    log_prob = log_probs(CASES[name][0], np.minimum(y, last), 0.6)
    np.testing.assert_allclose(np.exp(log_prob[y <= last]).sum(), 1.0, rtol=1e-11)


@pytest.mark.parametrize("name", ["gaussian", "gamma-exp", "beta-probit", "lognormal"])
def test_densities_integrate_to_one(name):
    likelihood = CASES[name][0]
    # A substitution that makes the integrand vanish doubly exponentially at the ends: the sum is then exact.
    u = np.linspace(-4.0, 4.0, 401)
    sinh, slope = 0.5 * np.pi * np.sinh(u), 0.5 * np.pi * np.cosh(u)
    if name == "gaussian":
        y = sinh
    elif name == "beta-probit":
        y, slope = scipy.special.expit(sinh), slope * scipy.special.expit(sinh) * scipy.special.expit(-sinh)
    else:
        y, slope = np.exp(sinh), slope * np.exp(sinh)
    inside = likelihood.support.contains(y)
    density = np.exp(log_probs(likelihood, np.where(inside, y, likelihood.support.example), 0.6))
    total = (density * slope)[inside].sum() * (u[1] - u[0])
    np.testing.assert_allclose(total, 1.0, rtol=1e-8)


def test_student_cdf_keeps_its_digits_around_the_median_and_in_the_tail():
    near, far = np.array([-1e-6, -1e-12, 0.0, 1e-9, 1e-6]), np.array([-1e5, -30.0, -2.0, 1e-3, 8.0])
    for df in (1.0, 5.0, 3e6):
        cdf = cdfs(lk.StudentT(df), np.concatenate([near, far, np.zeros(15)]), 0.0)
        # Linear to all digits, which scipy.stats is not there.
        np.testing.assert_allclose(cdf[:5] - 0.5, near * st.t(df).pdf(0.0), rtol=1e-8, atol=1e-15)
        np.testing.assert_allclose(cdf[5:10], st.t(df).cdf(far), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("size", [1e3, 1e7, 1e12])
def test_cdf_of_large_counts(size):
    deviations = np.linspace(-3.0, 3.0, 25)

    def compare(likelihood, reference, f, tolerance, cdf=None):
        y = np.floor(np.maximum(reference.mean() + deviations * reference.std(), 0.0))
        np.testing.assert_allclose(cdfs(likelihood, y, f), (cdf or reference.cdf)(y), atol=tolerance)

    compare(lk.Poisson(), st.poisson(size), np.log(size), 1e-8)
    for dispersion in (2.0, 1e-2, 1e-8):
        reference = negative_binomial(size, dispersion)
        compare(lk.NegativeBinomial(dispersion), reference, np.log(size), 1e-5)
    successes = st.binom(10.0 * size, 0.1)
    # SciPy before 1.16 is off by 5e-5 there; the expansion is off by less than one over the variance.
    cdf = functools.partial(edgeworth_cdf, successes) if successes.var() > 1e8 else None
    compare(lk.Binomial(10.0 * size), successes, scipy.special.logit(0.1), 1e-5, cdf)


def edgeworth_cdf(counts, y):
    """The distribution function of counts with a large variance, to the first order of the Edgeworth expansion."""
    z = (y + 0.5 - counts.mean()) / counts.std()
    return st.norm.cdf(z) - st.norm.pdf(z) * counts.stats("s") * (z**2 - 1.0) / 6.0


@pytest.mark.parametrize("shape", [1e5, 1e8, 1e14])
def test_gamma_cdf_of_large_shapes(shape):
    y = shape + np.linspace(-3.0, 3.0, 25) * np.sqrt(shape)
    np.testing.assert_allclose(cdfs(lk.Gamma(shape), y, 0.0), scipy.special.gammainc(shape, y), atol=1e-8)


def test_beta_binomial_tends_to_binomial():
    y = np.arange(25.0)
    limit, binomial = lk.BetaBinomial(24, 1e13), lk.Binomial(24)
    np.testing.assert_allclose(log_probs(limit, y, 0.4), log_probs(binomial, y, 0.4), rtol=1e-11)
    np.testing.assert_allclose(cdfs(limit, y, 0.4), cdfs(binomial, y, 0.4), rtol=1e-10)


@pytest.mark.parametrize(("trials", "concentration"), [(40, 3.0), (40, 0.05), (1, 2.0), (3000, 500.0)])
def test_beta_binomial_distribution_on_the_host(trials, concentration):
    y, f = (grid.ravel() for grid in np.meshgrid(np.append(-1.0, np.linspace(0.0, trials, 24).round()), LATENTS))
    found = host.distribution(lk.BetaBinomial(trials, concentration), y + 0.5, f[None])
    reference = st.betabinom(trials, concentration * logit(f), concentration * logit(-f))
    np.testing.assert_allclose(found, reference.cdf(y), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dispersion", [0.02, 0.3, 1.0, 7.0])
def test_negative_binomial_distribution_on_the_host(dispersion):
    """Sums of probabilities below counts of 100, the incomplete beta function above."""
    counts = np.array([-1.0, 0.0, 1.0, 2.0, 9.0, 60.0, 99.0, 100.0, 101.0, 180.0])
    y, f = (grid.ravel() for grid in np.meshgrid(counts, np.log([1e-8, 0.3, 4.0, 70.0, 110.0, 900.0])))
    found = host.distribution(lk.NegativeBinomial(dispersion), y + 0.5, f[None])
    reference = negative_binomial(np.exp(f), dispersion)
    np.testing.assert_allclose(found, reference.cdf(y), rtol=1e-10, atol=1e-14)
    # With a dispersion per row, as functions of a second latent have.
    rows = lk.NegativeBinomial(1.0)
    object.__setattr__(rows, "dispersion", dispersion * np.linspace(0.5, 2.0, y.size))
    reference = negative_binomial(np.exp(f), rows.dispersion)
    np.testing.assert_allclose(host.distribution(rows, y, f[None]), reference.cdf(y), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dispersion", [1e-100, 1e-20, 1e-9, 1e4, 1e100])
def test_negative_binomial_distribution_of_extreme_dispersions(dispersion):
    """Beside sums in decimal numbers, where SciPy's 1 / (1 + dispersion * mean) is rounded to 1."""
    for rate in (1e-100, 0.2, 30.0, 400.0, 1e9):
        f = np.log(rate)
        counts = np.array([0.0, 1.0, 5.0, 40.0, 100.0])
        found = host.distribution(lk.NegativeBinomial(dispersion), counts, np.full((1, 5), f))
        np.testing.assert_allclose(found, decimal_sums(counts, dispersion, np.exp(f)), rtol=1e-10, atol=1e-290)


def decimal_sums(counts, dispersion, mean):
    """P(Y <= y) of a negative binomial Y at some counts, summed with 250 digits."""
    with decimal.localcontext(decimal.Context(prec=250, Emin=-(10**12), Emax=10**12)):
        shape, odds = 1 / decimal.Decimal(dispersion), decimal.Decimal(dispersion) * decimal.Decimal(mean)
        term = (-shape * (1 + odds).ln()).exp()
        sums = [term]
        for k in range(int(counts.max())):
            term *= (shape + k) / (k + 1) * odds / (1 + odds)
            sums.append(sums[-1] + term)
        return [float(sums[int(count)]) for count in counts]


def test_negative_binomial_tends_to_poisson():
    y = np.arange(25.0)
    limit = log_probs(lk.NegativeBinomial(1e-13), y, 1.3)
    np.testing.assert_allclose(limit, log_probs(lk.Poisson(), y, 1.3), rtol=1e-10)


@pytest.mark.cases(thorough=["1000000000.0", "20000.0", "1000000000000000.0"], others="slow")
@pytest.mark.parametrize("rate", [2e4, 1e9, 1e15, 1e25])
def test_draws_of_large_counts(rate):
    keys = jax.random.split(jax.random.key(5), 4000)
    for likelihood in (lk.Poisson(), lk.NegativeBinomial(1e-20 if rate < 1e16 else 1e-30)):
        draws = np.asarray(jax.vmap(likelihood.sample, in_axes=(0, None))(keys, np.log(rate)))
        spread = np.sqrt(float(likelihood.covariance(np.log(rate))))
        likelihood.check_support(draws[:, None])
        # The mean itself is rounded, to parts in 1e15 of it.
        assert abs(draws.mean() - rate) < 5.0 * spread / np.sqrt(draws.size) + 1e-14 * rate
        np.testing.assert_allclose(draws.std(), spread, rtol=0.06)
