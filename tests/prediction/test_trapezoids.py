"""Trapezoidal rules for one latent, beside adaptive integrals."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.numerics.gaussian import Gaussian
from newtongp.prediction import densities, distribution
from newtongp.prediction.distribution import Points
from newtongp.prediction.rows import Rows
from newtongp.prediction.tensor import halved_trapezoids

L = ng.likelihoods
ROWS = 60

LIKELIHOODS = {
    "poisson": (L.Poisson(), "counts"),
    "negative_binomial": (L.NegativeBinomial(0.3), "counts"),
    "gamma": (L.Gamma(2.0), "positive"),
    "exponential": (L.Exponential(), "positive"),
    "student_t": (L.StudentT(4.0, 0.5), "real"),
    "beta": (L.Beta(20.0), "unit"),
}


def problem(name, spread):
    """Rows whose latents have about this standard deviation, and y."""
    rng = np.random.default_rng(0)
    likelihood, kind = LIKELIHOODS[name]
    variance = (spread * np.exp(0.5 * rng.normal(size=(ROWS, 1, 1)))) ** 2
    rows = Rows(likelihood, Gaussian(rng.normal(size=(ROWS, 1)), variance))
    y = {
        "counts": lambda: rng.integers(0, 12, ROWS).astype(float),
        "positive": lambda: np.exp(rng.normal(size=ROWS)),
        "real": lambda: 2.0 * rng.normal(size=ROWS),
        "unit": lambda: rng.uniform(size=ROWS),
    }[kind]()
    return rows, y


def test_each_halving_refines_the_rule_before():
    total, count = 0.0, 0
    for nodes, weights in halved_trapezoids():
        total = 0.5 * total + np.sum(weights * np.cos(nodes[0]))
        count += weights.size
        assert total == pytest.approx(np.exp(-0.5), rel=1e-14)
    every = np.sort(np.concatenate([nodes[0] for nodes, _ in halved_trapezoids()]))
    np.testing.assert_allclose(np.diff(every), 1.0 / 16.0)
    assert every.size == count and every[0] == -every[-1] == -9.5


@pytest.mark.parametrize("spread", [0.3, 1.5])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_what_is_accepted_is_what_adaptive_integrals_find(name, spread):
    rows, y = problem(name, spread)
    points = Points(np.arange(ROWS), np.zeros(ROWS, dtype=int), y)
    with np.errstate(all="ignore"):
        value, error = distribution._by_halving(rows, points)
        expected, _ = distribution._adaptively(rows, points)
        log_value, log_error = densities._by_halving(rows, y[:, None])
        log_expected, _ = densities._adaptively(rows, y[:, None], np.arange(ROWS))
    known, log_known = np.isfinite(error), np.isfinite(log_error)
    assert np.mean(known) > 0.4 and np.mean(log_known) > 0.4
    np.testing.assert_allclose(value[known], expected[known], rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(log_value[log_known], log_expected[log_known], atol=1e-8)


def test_what_is_too_narrow_is_refused():
    """Densities that are far narrower than the latent's, and one whose mass is beyond the nodes."""
    likelihood = L.StudentT(4.0, 1e-4)
    rows = Rows(likelihood, Gaussian(np.zeros((2, 1)), np.ones((2, 1, 1))))
    points = Points(np.arange(2), np.zeros(2, dtype=int), np.array([0.123, 1.0]))
    with np.errstate(all="ignore"):
        assert np.all(np.isinf(distribution._by_halving(rows, points)[1]))
        assert np.all(np.isinf(densities._by_halving(rows, np.array([[0.123], [8.03]]))[1]))
    counts = Rows(L.Poisson(), Gaussian(np.zeros((1, 1)), np.ones((1, 1, 1))))
    with np.errstate(all="ignore"):
        assert np.all(np.isinf(densities._by_halving(counts, np.array([[1e6]]))[1]))
