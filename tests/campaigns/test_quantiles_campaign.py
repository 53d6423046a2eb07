"""A few draws of every kind of the campaign in quantiles.py, so that it runs and its checks can fail."""

import numpy as np
import pytest

import newtongp as ng
from tests.campaigns import quantiles

DEAR = ("demodulation", "network", "heteroscedastic student", "chained")
"""Two latents that need nodes."""


@pytest.mark.cases(
    quick=[
        "gamma",
        "exponential",
        "log-normal",
        "negative binomial",
        "bernoulli",
        "ordinal",
        "multivariate",
        "coregionalisation",
    ],
    others="thorough",
)
@pytest.mark.parametrize("kind", [kind for kind in quantiles.KINDS if kind not in DEAR])
def test_quantiles_and_distribution_functions_are_inverses(kind):
    for number in range(1000, 1002):
        case, levels = quantiles.draw(kind, number)
        checked, faults = quantiles.faults_of(case, levels)
        assert checked and not faults, (kind, number, faults)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", DEAR)
def test_quantiles_of_two_latents(kind):
    for number in range(1000, 1003):
        case, levels = quantiles.draw(kind, number)
        checked, faults = quantiles.faults_of(case, levels)
        assert checked and not faults, (kind, number, faults)


def test_every_likelihood_with_an_order_is_among_the_kinds():
    made = {type(quantiles.draw(kind, number)[0].likelihood) for kind in quantiles.KINDS for number in range(3)}
    there = {getattr(ng.likelihoods, name) for name in ng.likelihoods.__all__}
    classes = {each for each in there if isinstance(each, type)} - {ng.Likelihood, ng.likelihoods.Softmax}
    classes -= {ng.likelihoods.Weighted}  # of rows in the data: predictions are those of its base
    assert classes <= made


def test_the_widths_span_seven_orders_of_magnitude():
    rng = np.random.default_rng(0)
    ratios = [np.sqrt(quantiles.student(rng).latent.covariance).ravel() for _ in range(200)]
    assert np.ptp(np.log10(ratios)) > 7.0


def test_a_wrong_quantile_is_a_fault(monkeypatch):
    case, levels = quantiles.draw("student", 1000)
    right = ng.prediction.Prediction.quantile
    monkeypatch.setattr(ng.prediction.Prediction, "quantile", lambda self, p: right(self, np.asarray(p) + 2e-6))
    assert len(quantiles.faults_of(case, levels)[1]) == 12


def test_a_wrong_distribution_function_is_a_fault():
    case, levels = quantiles.draw("poisson", 1000)
    wrong = case._replace(given=lambda y, f: case.given(y, f) * (1.0 - 1e-4))
    assert len(quantiles.faults_of(wrong, levels)[1]) > 0
