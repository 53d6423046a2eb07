"""Fits with Gaussian noise: the exact energy and its gradient in one evaluation, without steps."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.fitting import objective
from newtongp.fitting.learned import choose
from newtongp.inference.compatibility import check_choices
from newtongp.inference.problem import Setup
from newtongp.numerics.gaussian import Sites
from newtongp.results.status import Status


def data(n=30):
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 5.0, n))
    y = np.sin(x) + 0.3 * rng.normal(size=n)
    y[[3, 17]] = np.nan
    return x, y


@in_double
def evaluator(model, x, y, method=None):
    """The evaluation as a function of the free numbers, and where it starts."""
    method, step = check_choices(model, method, None)
    setup = Setup(model, x, y)
    learned = choose(model, None)
    slots = tuple(item.slot for item in learned)
    start = np.concatenate([item.slot.constraint.unconstrain(item.start) for item in learned])
    sites = Sites.constant(setup.bound.observed.shape[0], model.prior.num_latents, 0.0)

    @in_double
    def evaluate(unconstrained):
        return objective.evaluate(slots, setup.bound, unconstrained, method, step, sites, -1.0, 200, 1e-7)

    return evaluate, start


def matern32(x, lengthscale, variance) -> Any:
    s = np.sqrt(3.0) * np.abs(x[:, None] - x[None, :]) / lengthscale
    return variance * (1.0 + s) * np.exp(-s)


@pytest.mark.parametrize("prior", [ng.GP, ng.MarkovGP])
@pytest.mark.parametrize("method", [ng.VI(), ng.Newton(), ng.PowerEP(0.5)], ids=["vi", "newton", "power_ep"])
@pytest.mark.cases(quick=["vi-GP"], slow=["newton-MarkovGP"], others="thorough")
def test_energy_and_gradient_are_exact(prior, method):
    x, y = data()
    evaluate, start = evaluator(
        ng.Model(prior(ng.kernels.Matern32(0.7, 1.3), mean=ng.means.Constant(0.2)), ng.likelihoods.Gaussian(0.15)),
        x,
        y,
        method,
    )
    found = evaluate(start)
    seen = np.isfinite(y)
    covariance = matern32(x[seen], 0.7, 1.3) + 0.15 * np.eye(int(seen.sum()))
    expected = -multivariate_normal(np.full(int(seen.sum()), 0.2), covariance).logpdf(y[seen])
    assert float(found.report.energy) == pytest.approx(expected, abs=1e-10)
    assert int(found.report.status) == Status.CONVERGED.value and int(found.report.steps) == 0
    for index in range(start.shape[0]):
        move = 1e-5 * np.eye(start.shape[0])[index]
        difference = float(evaluate(start + move).report.energy) - float(evaluate(start - move).report.energy)
        assert float(found.gradient[index]) == pytest.approx(difference / 2e-5, abs=1e-6)


@pytest.mark.slow
def test_several_outputs_with_some_missing():
    """Every row is a linear function of two latents; some outputs are missing."""
    rng = np.random.default_rng(1)
    x = np.linspace(0.0, 3.0, 12)
    y = rng.normal(size=(12, 2))
    y[2, 0] = y[5, 1] = np.nan
    noise = np.array([[0.5, 0.2], [0.2, 0.7]])
    kernel = ng.kernels.Independent([ng.kernels.Matern32(0.8, 1.0), ng.kernels.Matern32(1.5, 0.6)])
    evaluate, start = evaluator(ng.Model(ng.GP(kernel), ng.likelihoods.MultivariateGaussian(noise)), x, y)
    covariance: Any = np.kron(np.eye(12), noise)
    for latent, (lengthscale, variance) in enumerate(((0.8, 1.0), (1.5, 0.6))):
        covariance[latent::2, latent::2] += matern32(x, lengthscale, variance)
    seen = np.isfinite(y).reshape(-1)
    expected = -multivariate_normal(cov=covariance[np.ix_(seen, seen)]).logpdf(y.reshape(-1)[seen])
    assert float(evaluate(start).report.energy) == pytest.approx(expected, abs=1e-10)


def test_noise_that_is_tiny_loses_no_digits():
    """Site precisions of 1e8 are not subtracted from each other."""
    x, y = data()
    y = np.sin(x)
    evaluate, start = evaluator(ng.Model(ng.GP(ng.kernels.Matern32(0.7, 1.3)), ng.likelihoods.Gaussian(1e-8)), x, y)
    covariance = matern32(x, 0.7, 1.3) + 1e-8 * np.eye(x.shape[0])
    expected = -multivariate_normal(cov=covariance).logpdf(y)
    assert float(evaluate(start).report.energy) == pytest.approx(expected, abs=1e-8)
