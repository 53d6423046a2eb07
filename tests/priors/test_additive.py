"""Additive models: all structures are the same model, and the same as one computed with dense matrices."""

import jax
import numpy as np
import pytest
import scipy.special

import newtongp as ng
from newtongp import terms
from newtongp.fitting.objective import evaluate
from newtongp.inference.problem import Setup
from newtongp.priors import additive
from newtongp.terms.base import replaced

rng = np.random.default_rng(0)
N = 60
TIMES = np.sort(rng.uniform(0.0, 100.0, N))
TABLE = {
    "t": TIMES,
    "a": rng.normal(size=N),
    "b": 10.0 + rng.normal(size=N),
    "g": rng.integers(0, 12, N).astype(str),
    "h": rng.integers(0, 5, N),
    "y": np.where(np.arange(N) % 11 == 3, np.nan, rng.poisson(np.exp(1.0 + np.sin(TIMES / 15.0)))),
}
NEW = {
    "t": [TIMES[0], 50.0, 130.0, 130.0],
    "a": [0.0, 1.0, -1.0, 2.0],
    "b": [9.0, 10.0, 11.0, 10.0],
    "g": ["1", "2", "new", "new"],
    "h": [0, 4, 77, 78],
}
METHODS = {"vi": ng.VI(), "newton": ng.Newton(), "power_ep": ng.PowerEP(0.5), "linearised": ng.PosteriorLinearisation()}


def sums(prior=10.0):
    return (
        terms.Linear("a", "b", prior=prior)
        + terms.Smooth("t", kernel=ng.kernels.Matern32(15.0, 0.7))
        + terms.Season("t", 30.0, variance=0.3)
        + terms.Group("g", slope="a", covariance=[[0.3, 0.1], [0.1, 0.2]])
        + terms.Group("h", covariance=0.2)
    )


def answers(model, method, monkeypatch, chain=False, eliminate=False):
    monkeypatch.setattr(additive, "_MANY_POINTS", 2 if chain else 10**9)
    monkeypatch.setattr(additive, "_FEW_LEVELS", 2 if eliminate else 10**9)
    result = ng.infer(model, TABLE, "y", method, tol=1e-10)
    prior = result.model.prior
    assert (bool(prior.chained), bool(prior.eliminated)) == (chain, eliminate)
    x = result.columns.read(NEW, "x_new")
    some = tuple(float(number % 2) for number in range(len(prior.latents[0].terms)))
    parts = result.posterior.predict(x), result.posterior.joint(x), result.posterior.of_terms(x, (some,))
    return result, parts


def assert_same(one, two):
    assert one[0].energy == pytest.approx(two[0].energy, abs=1e-8)
    pairs = [(one[0].marginals, two[0].marginals), *zip(one[1], two[1], strict=True)]
    for a, b in pairs:
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-8, rtol=0.0)
        np.testing.assert_allclose(a.covariance, b.covariance, atol=1e-8, rtol=0.0)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("structure", ["chain", "eliminated"])
@pytest.mark.parametrize("method", METHODS)
def test_structures_agree(method, structure, monkeypatch):
    # Linear approximations of exp need a prior under which rates are not astronomical.
    model = ng.Model(sums(prior=0.1 if method == "linearised" else 10.0), "poisson")
    structured = answers(
        model, METHODS[method], monkeypatch, chain=structure == "chain", eliminate=structure == "eliminated"
    )
    assert_same(structured, answers(model, METHODS[method], monkeypatch))


@pytest.mark.slow
@pytest.mark.thorough
def test_flat_effects_agree_between_structures(monkeypatch):
    trend = replaced(terms.Trend("t", "smooth"), kernel=ng.kernels.IntegratedBrownian(1e-4))
    model = ng.Model(sums(prior="flat") + trend, "poisson")
    assert_same(answers(model, ng.VI(), monkeypatch, chain=True), answers(model, ng.VI(), monkeypatch))


def test_a_single_term_may_be_eliminated():
    table = {"g": np.arange(80) % 40, "y": np.arange(80) % 3}
    result = ng.infer(ng.Model(terms.Group("g", covariance=0.5), "gaussian"), table, "y")
    assert result.model.prior.eliminated == ("g",) and result.status.ok
    # Two rows a level, with noise of variance 1: the mean is shrunk by 0.5 / (0.5 + 1/2).
    expected = 0.5 * np.mean(np.reshape(table["y"], (2, 40)), axis=0)
    np.testing.assert_allclose(result.marginals.mean[:40, 0], expected, atol=1e-12)


@pytest.mark.slow
def test_wide_priors_do_not_stop_inference_early(monkeypatch):
    """A trend as it is before it is learned has variances of 1e6: log determinants have rounding errors above 1e-9."""
    monkeypatch.setattr(additive, "_MANY_POINTS", 10**9)
    result = ng.infer(ng.Model(sums(prior="flat") + terms.Trend("t"), "poisson"), TABLE, "y", tol=1e-10)
    assert result.status is ng.Status.CONVERGED and result.residual <= 1e-10


def dense_model(table):
    """The same model with one covariance matrix over the rows: intercept and slopes N(0, 10²), and all other terms."""

    def one(x):
        a, b, t, g, h = x.T
        same = (g[:, None] == g[None, :]).astype(float)
        fixed = 100.0 * (1.0 + np.outer(a, a) + np.outer(b, b))
        lags = np.abs(t[:, None] - t[None, :])
        smooth = 0.7 * (1.0 + np.sqrt(3.0) * lags / 15.0) * np.exp(-np.sqrt(3.0) * lags / 15.0)
        level = scipy.special.ive(0, 1.0)  # the constant part of a periodic kernel, which a season leaves out
        season = 0.3 * (np.exp(-2.0 * np.sin(np.pi * lags / 30.0) ** 2) - level) / (1.0 - level)
        group = same * (0.3 + 0.1 * (a[:, None] + a[None, :]) + 0.2 * np.outer(a, a))
        return fixed + smooth + season + group + 0.2 * (h[:, None] == h[None, :])

    codes = {level: place for place, level in enumerate(sorted(set(TABLE["g"]) | {"new"}))}
    g = np.array([codes[level] for level in table["g"]], dtype=float)
    x = np.stack([table["a"], table["b"], table["t"], g, table["h"]], axis=1).astype(float)
    return one(x)


@pytest.mark.slow
def test_equal_to_a_dense_covariance_matrix():
    """With Gaussian noise: the log density of y, and predictions with new levels, by NumPy."""
    model = ng.Model(sums(), ng.likelihoods.Gaussian(0.5))
    result = ng.infer(model, TABLE, "y")
    seen = np.isfinite(TABLE["y"])
    both = {key: np.concatenate([np.asarray(TABLE[key])[seen], np.asarray(NEW[key])]) for key in NEW}
    matrix, y = dense_model(both), TABLE["y"][seen]
    count = y.size
    noisy = matrix[:count, :count] + 0.5 * np.eye(count)
    solved = np.linalg.solve(noisy, y)
    energy = 0.5 * (y @ solved + np.linalg.slogdet(noisy)[1] + count * np.log(2.0 * np.pi))
    assert result.energy == pytest.approx(energy, rel=1e-9)
    x = result.columns.read(NEW, "x_new")
    joint, cross = result.posterior.joint(x), matrix[:count, count:]
    np.testing.assert_allclose(joint.mean, cross.T @ solved, atol=1e-8)
    expected = matrix[count:, count:] - cross.T @ np.linalg.solve(noisy, cross)
    np.testing.assert_allclose(joint.covariance, expected, atol=1e-8)
    latent = result.predict(NEW).latent
    np.testing.assert_allclose(latent.variance[:, 0], np.diagonal(expected), atol=1e-8)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", ["vi", "newton"])
@pytest.mark.parametrize("structure", ["chain", "eliminated", "plain"])
def test_gradients_of_the_energy(method, structure, monkeypatch):
    monkeypatch.setattr(additive, "_MANY_POINTS", 2 if structure == "chain" else 10**9)
    monkeypatch.setattr(additive, "_FEW_LEVELS", 2 if structure == "eliminated" else 10**9)
    model = ng.Model(sums(prior="wide"), "poisson")
    parameters = ng.hyperparameters(Setup(model, TABLE, "y").model)
    result = ng.fit(model, TABLE, "y", METHODS[method], max_steps=0, standard_errors=False, throw=False)
    assert result.evaluations > 0 and len(parameters) == 6
    gradient, slopes = gradient_of(model, TABLE, METHODS[method])
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6)


def gradient_of(model, table, method):
    """The gradient of the energy at the model's own hyperparameters, and central differences of the energy."""
    from newtongp.fitting.initial_values import Scales
    from newtongp.fitting.space import Space
    from newtongp.inference.compatibility import check_choices

    setup = Setup(model, table, "y")
    method, step = check_choices(setup.model, method, None)
    space = Space(setup.model, Scales(setup.model, setup.data), None, False)
    start = space.free_of([np.asarray(item.start) for item in space.learned])
    rows, latents = setup.problem.workspace.mean.shape
    sites = ng.Sites.constant(rows, latents, 0.0)

    def at(move):
        return evaluate(space.slots, setup.bound, start + move, method, step, sites, 1.0, 200, 1e-12)

    with jax.enable_x64(True):
        moves = 1e-4 * np.eye(start.size)
        slopes = [(float(at(move).report.energy) - float(at(-move).report.energy)) / 2e-4 for move in moves]
        return np.asarray(at(np.zeros(start.size)).gradient), np.array(slopes)


@pytest.mark.slow
@pytest.mark.thorough
def test_draws_have_the_joint_distribution(monkeypatch):
    monkeypatch.setattr(additive, "_MANY_POINTS", 2)
    result = ng.infer(ng.Model(sums(), "poisson"), TABLE, "y")
    x = result.columns.read(NEW, "x_new")
    draws = result.sample(0, NEW, 40_000)[:, :, 0]
    joint = result.posterior.joint(x)
    scale = np.sqrt(np.outer(np.diagonal(joint.covariance), np.diagonal(joint.covariance)))
    assert np.max(np.abs(np.cov(draws.T) - joint.covariance) / scale) < 0.03
    assert np.max(np.abs(draws.mean(0) - joint.mean) / np.sqrt(np.diagonal(joint.covariance))) < 0.03


@pytest.mark.slow
@pytest.mark.thorough
def test_two_latents():
    """Location and scale each have terms; groups over the same column are eliminated together."""
    y = np.where(np.isnan(TABLE["y"]), 1.0, TABLE["y"])
    both = {"location": sums(), "scale": terms.Linear("a") + terms.Group("g", covariance=0.1)}
    model = ng.Model(both, ng.likelihoods.HeteroscedasticGaussian())
    result = ng.infer(model, TABLE, y)
    assert result.status.ok and result.marginals.mean.shape == (N, 2)
    assert result.predict(NEW).mean.shape == (4,)
