"""Averages of predictive distributions."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from newtongp import likelihoods
from newtongp.forecasting.fitted import weights_of
from newtongp.forecasting.mixture import Mixture, counts_below
from newtongp.numerics.gaussian import Gaussian
from newtongp.prediction.prediction import Prediction


def _prediction(likelihood, mean, sd):
    mean, sd = np.atleast_1d(mean), np.atleast_1d(sd)
    return Prediction(likelihood, Gaussian(mean[:, None], (sd**2)[:, None, None]), None)


def test_quantiles_of_a_mixture_of_normal_distributions():
    parts = [_prediction(likelihoods.Gaussian(0.25), [0.0, 5.0], [1.0, 2.0])]
    parts.append(_prediction(likelihoods.Gaussian(1.0), [3.0, 5.0], [0.5, 0.1]))
    mixture, weights = Mixture(parts, [0.3, 0.7]), np.array([0.3, 0.7])
    sds = [np.sqrt(np.array([1.0, 4.0]) + 0.25), np.sqrt(np.array([0.25, 0.01]) + 1.0)]
    means = [np.array([0.0, 5.0]), np.array([3.0, 5.0])]
    np.testing.assert_allclose(mixture.mean, 0.3 * means[0] + 0.7 * means[1])
    spread = 0.3 * sds[0] ** 2 + 0.7 * sds[1] ** 2 + 0.21 * (means[0] - means[1]) ** 2
    np.testing.assert_allclose(mixture.std, np.sqrt(spread))
    levels = [0.01, 0.25, 0.5, 0.95]
    for row in range(2):
        for level, found in zip(levels, mixture.quantile(levels)[:, row], strict=True):
            exact = brentq(
                lambda y, row=row, level=level: (
                    sum(w * norm.cdf(y, m[row], s[row]) for w, m, s in zip(weights, means, sds, strict=True)) - level
                ),
                -20.0,
                30.0,
            )
            assert found == pytest.approx(exact, abs=2e-3)
    assert mixture.quantile(0.5).shape == (2,)
    assert np.all(Mixture(parts, weights, lowest=2.0).quantile(levels) >= 2.0)


def test_distributions_of_counts_are_summed_up():
    one = _prediction(likelihoods.Poisson(), [1.0, 3.0], [0.3, 0.6])
    below = counts_below(one)
    assert below is not None
    for count in (0, 3, 20, 60):
        np.testing.assert_allclose(below[:, count], one.cdf(float(count)), atol=1e-6)
    levels = [0.05, 0.5, 0.9]
    np.testing.assert_array_equal(Mixture([one, one], [0.5, 0.5]).quantile(levels), one.quantile(levels))
    assert counts_below(_prediction(likelihoods.Poisson(), [12.0], [0.3])) is None


def test_many_counts_are_interpolated():
    one = _prediction(likelihoods.Poisson(), [9.0], [0.3])
    found = Mixture([one, one], [0.5, 0.5]).quantile([0.05, 0.5, 0.95])
    np.testing.assert_allclose(found, one.quantile([0.05, 0.5, 0.95]), rtol=1e-3)
    assert np.all(found == np.round(found))


def test_weights_are_those_of_energies():
    weights = weights_of([3.0, 1.0, 1.0])
    assert weights.sum() == pytest.approx(1.0) and weights[1] == weights[2] > weights[0]
