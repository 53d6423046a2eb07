"""The constant latent under which data are most likely: closed forms beside a search by SciPy."""

import numpy as np
import pytest
import scipy.optimize

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.fitting.constant_latents import constant_latent
from newtongp.likelihoods.base import map_row_parameters, over_rows, row_log_prob

L = ng.likelihoods
RNG = np.random.default_rng(0)
RATES = np.exp(RNG.normal(1.0, 0.7, size=60))
COUNTS = RNG.poisson(RATES).astype(float)
SHARES = (RATES > 2.0).astype(float)
ROWS = np.arange(5, 60)

CASES = {
    **{f"poisson {link}": (L.Poisson(link), COUNTS) for link in ("exp", "softplus")},
    "poisson exposure": (L.Poisson(exposure=4.0), COUNTS),
    "poisson exposures": (L.Poisson(exposure=RNG.uniform(1.0, 3.0, 60)), COUNTS),
    **{f"negative binomial {link}": (L.NegativeBinomial(0.5, link), COUNTS) for link in ("exp", "softplus")},
    **{f"bernoulli {link}": (L.Bernoulli(link), SHARES) for link in ("probit", "logit")},
    "bernoulli lapse": (L.Bernoulli(lapse=0.05), SHARES),
    "binomial": (L.Binomial(5), RNG.binomial(5, 0.7, 60).astype(float)),
    "binomial trials": (L.Binomial(np.arange(1, 61)), RNG.binomial(np.arange(1, 61), 0.3).astype(float)),
    **{f"gamma {link}": (L.Gamma(2.0, link), RATES) for link in ("exp", "softplus")},
    "exponential": (L.Exponential(), RATES),
    "gaussian": (L.Gaussian(0.3), RATES),
    "gaussian variances": (L.Gaussian(RNG.uniform(0.1, 2.0, 60)), RATES),
}


@pytest.mark.parametrize("case", CASES)
def test_the_latent_is_the_most_likely_one(case):
    likelihood, y = CASES[case]
    found = constant_latent(likelihood, y, ROWS)

    @in_double
    def loss(f):
        of_rows = map_row_parameters(lambda values: values[ROWS], likelihood)
        values = over_rows(lambda one, y: row_log_prob(one, y, np.full(1, f)), of_rows, (y[ROWS, None],))
        return -float(np.sum(values))

    best = scipy.optimize.minimize_scalar(loss, bracket=(found.latent - 0.5, found.latent + 0.3))
    np.testing.assert_allclose(found.latent, best.x, atol=1e-3)


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith(("s", "variances"))])
def test_moments_there(case):
    likelihood, y = CASES[case]
    found = constant_latent(likelihood, y, ROWS)
    np.testing.assert_allclose(found.noise, likelihood.covariance(found.latent), rtol=1e-6)
    slope = (likelihood.mean(found.latent + 1e-2) - likelihood.mean(found.latent - 1e-2)) / 2e-2
    np.testing.assert_allclose(found.slope, slope, rtol=1e-3)


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [(L.Poisson(), np.zeros(9)), (L.Bernoulli(), np.ones(9)), (L.Binomial(3), np.full(9, 3.0))],
    ids=["no counts", "one class", "successes"],
)
def test_equal_rows_have_a_finite_latent(likelihood, y):
    assert 2.0 < abs(constant_latent(likelihood, y, np.arange(9)).latent) < 8.0


def test_others_have_none():
    for likelihood in (L.StudentT(), L.LogNormal(), L.NegativeBinomial(exposure=np.ones(9))):
        assert constant_latent(likelihood, np.ones(9), np.arange(9)) is None
    # What has no logarithm is left to the search.
    assert constant_latent(L.Exponential(), np.zeros(9), np.arange(9)) is None
