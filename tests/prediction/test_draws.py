"""Draws and joint distributions at any number of rows: the same as without filling, and nothing new to compile."""

import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.likelihoods.base import at_rows
from newtongp.numerics.size_classes import exact_sizes
from newtongp.prediction.integrals import draw_outputs, log_likelihoods, means_given
from newtongp.priors.base import centred_draws, draws_by_row
from newtongp.terms import Group, Linear, Smooth
from tests.inference.test_size_classes import compilations

RNG = np.random.default_rng(5)
N = 30
TIMES = np.sort(RNG.uniform(0.0, 9.0, N))
COUNTS = RNG.poisson(np.exp(np.sin(TIMES))).astype(float)
CLINIC = np.array(list("abcd"))[RNG.integers(0, 4, N)]
TABLE = {"t": TIMES, "clinic": CLINIC}
KERNEL = kernels.Matern32(2.0)
STEPS = ng.StateSpaceModel(
    [[1.0, 0.1], [0.0, 1.0]], [[1e-5, 1e-4], [1e-4, 1e-3]], [1.0, 0.0], initial_covariance=np.eye(2)
)
# The last new row, which is repeated, is not the last in time, and one row is there twice.
NEW = np.array([8.0, 8.0, 2.5, 0.3, 4.1])
EVERYWHERE = np.stack([TIMES, np.cos(TIMES)], axis=1)

CASES = {
    "dense": (ng.GP(KERNEL), TIMES, NEW),
    "two latents": (ng.GP(kernels.Independent([KERNEL, kernels.Matern52(3.0)])), TIMES, NEW),
    "sparse": (ng.SparseGP(KERNEL, inducing=9), TIMES, NEW),
    "markov": (ng.MarkovGP(KERNEL), TIMES, NEW),
    "by square roots": (ng.MarkovGP(kernels.Linear() + kernels.Constant()), TIMES, NEW),
    "sparse chain": (ng.MarkovGP(KERNEL, inducing=9), TIMES, NEW),
    "linear": (ng.LinearModel([10.0, 1.0]), EVERYWHERE, EVERYWHERE[[20, 20, 4, 3, 11]]),
    "state space": (STEPS, np.arange(N), np.array([28, 28, 9, 2, 14])),
    "space and time": (ng.SpaceTimeGP(KERNEL, kernels.RBF(2.0)), EVERYWHERE, EVERYWHERE[[20, 20, 4, 3, 11]]),
    "terms": (Linear("t") + Group("clinic"), TABLE, {"t": NEW, "clinic": np.array(list("eebaa"))}),
    "chain and group": (Smooth("t") + Group("clinic"), TABLE, {"t": NEW, "clinic": np.array(list("eebaa"))}),
}
LIKELIHOODS = {
    "two latents": ng.likelihoods.HeteroscedasticGaussian(),
    "by square roots": ng.likelihoods.Gaussian(1e-10),
}
QUICK = ["dense", "markov"]


@pytest.fixture(scope="module")
def fitted():
    """The result for a case, computed once."""
    results = {}

    def of(case):
        prior, x, _ = CASES[case]
        if case not in results:
            likelihood = LIKELIHOODS.get(case, ng.likelihoods.Poisson())
            y = 1.0 + 0.5 * TIMES if case == "by square roots" else COUNTS
            results[case] = ng.infer(ng.Model(prior, likelihood), x, y)
        return results[case]

    return of


def first(x, count):
    return {name: column[:count] for name, column in x.items()} if isinstance(x, dict) else x[:count]


def encoded(result, x):
    return result.columns.read(x, "x") if isinstance(x, dict) else np.asarray(x, dtype=float).reshape(len(x), -1)


@pytest.mark.cases(quick=QUICK, others="slow")
@pytest.mark.parametrize("case", CASES)
def test_draws_at_other_numbers_of_rows_compile_nothing(fitted, case):
    result, new = fitted(case), CASES[case][2]

    def everything(rows, n):
        x = first(new, rows)
        draws = result.sample(0, x, n), result.sample_y(0, x, n)
        # Programs for points in space and time depend on how many there are at one time, and how these are apart.
        queries = () if case == "space and time" else (result.posterior.joint(encoded(result, x)), result.predict(x))
        return draws, queries

    # There is one program for few draws and one for many.
    everything(4, 3)
    everything(4, 20)
    with compilations() as compiled:
        for rows, n in ((5, 3), (2, 3), (3, 7), (4, 40), (2, 100)):
            (f, y), queries = everything(rows, n)
            assert f.shape[:2] == y.shape[:2] == (n, rows)
            assert not queries or queries[0].covariance.shape == (f[0].size, f[0].size)
    assert not compiled


@pytest.mark.cases(quick=QUICK, others="slow")
@pytest.mark.parametrize("case", CASES)
def test_the_joint_distribution_is_that_without_filling(fitted, case):
    result, new = fitted(case), CASES[case][2]
    ours = result.posterior.joint(encoded(result, new))
    with exact_sizes():
        theirs = result.posterior.joint(encoded(result, new))
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-8, atol=1e-12)


@pytest.mark.cases(quick=QUICK, others="slow")
@pytest.mark.parametrize("case", CASES)
def test_draws_have_the_joint_distribution(fitted, case):
    result, new = fitted(case), CASES[case][2]
    joint, n = result.posterior.joint(encoded(result, new)), 4000
    draws = result.sample(1, new, n).reshape(n, -1)
    assert np.unique(draws[:, -1]).size == n
    scales = np.sqrt(np.diagonal(joint.covariance))
    np.testing.assert_allclose((draws.mean(axis=0) - joint.mean) / scales, 0.0, atol=5.0 / np.sqrt(n))
    apart = (np.cov(draws.T) - joint.covariance) / np.outer(scales, scales)
    np.testing.assert_allclose(apart, 0.0, atol=5.0 * np.sqrt(2.0 / n))


@pytest.mark.cases(quick=QUICK, others="slow")
@pytest.mark.parametrize("case", CASES)
def test_a_key_gives_the_same_draws_whatever_was_drawn_before(fitted, case):
    result, new = fitted(case), CASES[case][2]
    before = result.sample(2, new, 3), result.sample_y(2, new, 3)
    result.sample(2, first(new, 2), 20)
    np.testing.assert_array_equal(result.sample(2, new, 3), before[0])
    np.testing.assert_array_equal(result.sample_y(2, new, 3), before[1])
    # Those of one input twice are equal.
    np.testing.assert_allclose(before[0][:, 0], before[0][:, 1], atol=1e-6)


def test_draws_of_y_are_those_without_filling_and_do_not_depend_on_later_rows_or_draws():
    latents = RNG.normal(size=(6, 7, 1))
    likelihood = ng.likelihoods.Poisson(exposure=RNG.uniform(1.0, 30.0, 7))

    def drawn(n, rows):
        with jax.enable_x64(True):
            return draw_outputs(at_rows(likelihood, np.arange(rows)), jax.random.key(3), latents[:n, :rows])

    draws = drawn(6, 7)
    assert draws.shape == (6, 7, 1) and np.unique(draws).size > 8
    np.testing.assert_array_equal(drawn(4, 5), draws[:4, :5])
    with exact_sizes():
        np.testing.assert_array_equal(drawn(6, 7), draws)


def test_each_draw_of_y_has_the_parameters_of_its_row():
    exposure = np.array([1e-9, 1e6, 1e-9, 1e6, 1e-9])
    result = ng.infer(ng.Model(CASES["dense"][0], ng.likelihoods.Poisson(exposure=np.ones(N))), TIMES, COUNTS)
    draws = result.sample_y(0, NEW, 4, exposure=exposure)
    np.testing.assert_array_equal(draws > 1e3, np.tile(exposure > 1.0, (4, 1)))


def test_draws_from_a_singular_covariance_are_in_its_range():
    root = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    draws = centred_draws(np.random.default_rng(0), root @ root.T, 5)
    assert np.all(np.abs(draws[:, 0] - draws[:, 1]) < 1e-7) and np.all(draws[:, 0] != draws[:, 2])
    assert np.all(np.isnan(centred_draws(np.random.default_rng(0), np.diag([1.0, np.nan]), 2)))


@pytest.mark.slow
def test_log_likelihoods_and_means_of_draws_are_those_of_their_rows():
    exposure, latents, y = RNG.uniform(0.5, 2.0, 4), RNG.normal(size=(3, 4, 1)), np.arange(4.0)
    likelihood = ng.likelihoods.Poisson(exposure=exposure)
    rates = exposure * np.exp(latents[:, :, 0])
    with jax.enable_x64(True):
        means, logs = means_given(likelihood, latents), log_likelihoods(likelihood, y[:, None], latents)
    np.testing.assert_allclose(means[:, :, 0], rates, rtol=1e-12)
    factorial = np.array([1.0, 1.0, 2.0, 6.0])
    np.testing.assert_allclose(logs, y * np.log(rates) - rates - np.log(factorial), rtol=1e-10)


@pytest.mark.parametrize(("length", "numbers"), [(1000, [16, 64, 64, 64]), (10**6, [16, *[16] * 9])])
def test_draws_of_long_paths_are_made_a_few_at_a_time(length, numbers):
    """All at once, twenty draws of a million rows would take gigabytes; every block has a key of its own."""
    asked = []

    def function(key, number):
        asked.append(number)
        return np.asarray(jax.random.normal(key, (3, number, 1)))

    assert draws_by_row(function, jax.random.key(0), 5, length).shape == (5, 3, 1)
    draws = draws_by_row(function, jax.random.key(0), 140, length)
    assert draws.shape == (140, 3, 1) and np.unique(draws).size == draws.size
    assert asked == numbers
