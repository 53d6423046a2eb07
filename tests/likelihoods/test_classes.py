"""Softmax and ordinal likelihoods: probabilities, tails, moments, and inference with classes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats as st

import newtongp as ng
from newtongp import likelihoods as lk
from newtongp.likelihoods import base

THRESHOLDS = np.array([-1.3, 0.2, 0.9, 2.5])
STARS = lk.Ordinal(THRESHOLDS, scale=0.8)
LATENTS = np.array([-2.3, -0.5, 0.0, 0.7, 2.1])


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def level_probabilities(f, thresholds=THRESHOLDS, scale=0.8):
    edges = (np.concatenate([[-np.inf], thresholds, [np.inf]]) - f) / scale
    # From the tail in which the numbers are small.
    return np.where(edges[1:] > 0.0, -np.diff(st.norm.sf(edges)), np.diff(st.norm.cdf(edges)))


# Ordered levels ---------------------------------------------------------------------------------


@pytest.mark.cases(thorough=["0.0", "-0.5", "-2.3", "0.7"], others="slow")
@pytest.mark.parametrize("f", LATENTS)
def test_ordinal_probabilities_and_moments(f):
    levels, expected = np.arange(5.0), level_probabilities(f)
    log_probs = jax.vmap(lambda y: STARS.log_prob(y, f))(levels)
    np.testing.assert_allclose(log_probs, np.log(expected), rtol=1e-9)
    np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-13)
    np.testing.assert_allclose(STARS.probabilities(f), expected, rtol=1e-9)
    mean = levels @ expected
    np.testing.assert_allclose(STARS.mean(f), mean, rtol=1e-12)
    np.testing.assert_allclose(STARS.covariance(f), (levels - mean) ** 2 @ expected, rtol=1e-10)
    cdf = jax.vmap(lambda y: STARS.cdf(y, f))(np.array([-0.5, 0.0, 1.7, 3.0, 4.0, 9.0]))
    sums = np.cumsum(expected)
    np.testing.assert_allclose(cdf, [0.0, sums[0], sums[1], sums[3], 1.0, 1.0], rtol=1e-11)


@pytest.mark.slow
def test_ordinal_draws():
    draws = np.asarray(jax.vmap(lambda key: STARS.sample(key, 0.4))(jax.random.split(jax.random.key(1), 40_000)))
    STARS.check_support(draws[:, None])
    frequencies = np.bincount(draws.astype(int), minlength=5) / draws.size
    assert np.abs(frequencies - level_probabilities(0.4)).max() < 5.0 * 0.5 / np.sqrt(draws.size)


@pytest.mark.slow
def test_one_threshold_is_a_probit_model():
    two = lk.Ordinal([0.0])
    assert two.num_levels == 2
    for y, f in itertools.product([0.0, 1.0], LATENTS):
        np.testing.assert_allclose(two.log_prob(y, f), lk.Bernoulli().log_prob(y, f), rtol=1e-14)
    np.testing.assert_allclose(two.covariance(0.3), lk.Bernoulli().covariance(0.3), rtol=1e-14)


@pytest.mark.slow
@pytest.mark.thorough
def test_ordinal_with_logistic_noise():
    odds = lk.Ordinal(THRESHOLDS, scale=0.8, link="logit")
    levels, f = np.arange(5.0), 0.4
    expected = np.diff(scipy.special.expit(np.concatenate([[-np.inf], (THRESHOLDS - f) / 0.8, [np.inf]])))
    np.testing.assert_allclose(odds.probabilities(f), expected, rtol=1e-12)
    mean = levels @ expected
    np.testing.assert_allclose(odds.mean(f), mean, rtol=1e-12)
    np.testing.assert_allclose(odds.covariance(f), (levels - mean) ** 2 @ expected, rtol=1e-12)
    np.testing.assert_allclose(odds.cdf(2.0, f), np.sum(expected[:3]), rtol=1e-12)
    draws = np.asarray(jax.vmap(lambda key: odds.sample(key, f))(jax.random.split(jax.random.key(1), 40_000)))
    frequencies = np.bincount(draws.astype(int), minlength=5) / draws.size
    assert np.abs(frequencies - expected).max() < 5.0 * 0.5 / np.sqrt(draws.size)
    # Far out the slope is that of the logistic tail, and nothing overflows.
    slopes = jax.vmap(jax.grad(lambda g: odds.log_prob(2.0, g)))(np.array([-300.0, 300.0]))
    np.testing.assert_allclose(slopes, [1.0 / 0.8, -1.0 / 0.8], rtol=1e-9)
    assert odds.log_expected_power(1.0, f, 0.6, 1.0) is None
    with pytest.raises(ValueError, match="link must be one of 'probit', 'logit'"):
        lk.Ordinal(THRESHOLDS, link="log")


@pytest.mark.slow
def test_ordinal_tails():
    """Far out, a level is as likely as the nearest end of its interval says, and the curvature is that of a normal."""
    far = np.array([-300.0, -60.0, -25.0, 25.0, 60.0, 300.0])
    y, f = (grid.ravel() for grid in np.meshgrid(np.arange(5.0), far))

    @jax.jit
    @jax.vmap
    def derivatives(y, f):
        function = lambda g: STARS.log_prob(y, g)  # noqa: E731
        return function(f), jax.grad(function)(f), jax.grad(jax.grad(function))(f), STARS.covariance(f)

    value, slope, curvature, variance = map(np.asarray, derivatives(y, f))
    for part in (value, slope, curvature, variance):
        assert np.all(np.isfinite(part))
    assert np.all(variance >= 0.0) and np.all(curvature <= 0.0)
    index = y.astype(int)
    above, below = (f > 0.0) & (index < 4), (f < 0.0) & (index > 0)
    nearest = np.where(f > 0.0, THRESHOLDS[np.minimum(index, 3)], THRESHOLDS[np.maximum(index - 1, 0)])
    z = -np.abs(f - nearest) / 0.8
    unlikely = above | below
    np.testing.assert_allclose(value[unlikely], scipy.special.log_ndtr(z)[unlikely], rtol=1e-9)
    np.testing.assert_allclose(curvature[unlikely], -1.0 / 0.8**2, rtol=2e-3)
    np.testing.assert_allclose(value[~unlikely], 0.0, atol=1e-100)


@pytest.mark.slow
def test_narrow_levels_keep_their_digits():
    width = 1e-5
    narrow = lk.Ordinal([0.0, width])
    f = np.array([-6.0, -0.3, 0.0, 2.0, 6.0])
    density = st.norm.logpdf(f - 0.5 * width) + np.log(width)
    np.testing.assert_allclose(jax.vmap(lambda g: narrow.log_prob(1.0, g))(f), density, rtol=1e-9)


@pytest.mark.slow
def test_ordinal_expected_probability():
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    for y in range(5):
        points = 0.3 + np.sqrt(0.6) * nodes
        direct = np.log((weights / weights.sum()) @ np.exp(jax.vmap(lambda f, y=y: STARS.log_prob(y, f))(points)))
        np.testing.assert_allclose(STARS.log_expected_power(y, 0.3, 0.6, 1.0), direct, rtol=1e-9)
    assert STARS.log_expected_power(1.0, 0.3, 0.6, 0.5) is None


@pytest.mark.slow
def test_thresholds_stay_increasing_and_have_gradients():
    np.testing.assert_allclose(STARS.thresholds, THRESHOLDS, rtol=1e-14)
    gradient = jax.grad(lambda likelihood: likelihood.log_prob(2.0, 0.4))(STARS)
    assert {leaf.shape for leaf in jax.tree.leaves(gradient)} == {(), (3,)}
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(
        jax.jit(lambda t: lk.Ordinal(t).log_prob(2.0, 0.4))(THRESHOLDS),
        lk.Ordinal(THRESHOLDS).log_prob(2.0, 0.4),
        rtol=1e-12,
    )


# Unordered classes ------------------------------------------------------------------------------


def test_softmax_probabilities():
    likelihood = lk.Softmax(4)
    f = np.random.default_rng(0).normal(size=(6, 4))
    for row in f:
        log_probs = jax.vmap(lambda y, row=row: likelihood.log_prob(y, row))(np.arange(4.0))
        np.testing.assert_allclose(log_probs, scipy.special.log_softmax(row), rtol=1e-12)
        np.testing.assert_allclose(likelihood.probabilities(row), np.exp(log_probs), rtol=1e-12)
        np.testing.assert_allclose(likelihood.probabilities(row).sum(), 1.0, rtol=1e-14)


def test_softmax_of_two_is_a_logistic_model():
    f = np.array([0.7, -0.4])
    np.testing.assert_allclose(
        lk.Softmax(2).log_prob(0.0, f), lk.Bernoulli("logit").log_prob(1.0, f[0] - f[1]), rtol=1e-13
    )


@pytest.mark.slow
def test_softmax_far_out_and_its_curvature():
    likelihood = lk.Softmax(3)
    latents = np.array(list(itertools.product([-300.0, 0.0, 300.0], repeat=3)))
    function = lambda f: likelihood.log_prob(1.0, f)  # noqa: E731
    value, slope, hessian = jax.vmap(lambda f: (function(f), jax.grad(function)(f), jax.hessian(function)(f)))(latents)
    for part in (value, slope, hessian):
        assert np.all(np.isfinite(part))
    # Concave everywhere.
    assert np.linalg.eigvalsh(hessian).max() < 1e-14


def test_softmax_draws():
    likelihood, f = lk.Softmax(3), np.array([0.5, -0.2, 1.0])
    draws = np.asarray(jax.vmap(lambda key: likelihood.sample(key, f))(jax.random.split(jax.random.key(2), 40_000)))
    assert draws.dtype == np.float64
    likelihood.check_support(draws[:, None])
    frequencies = np.bincount(draws.astype(int), minlength=3) / draws.size
    assert np.abs(frequencies - scipy.special.softmax(f)).max() < 5.0 * 0.5 / np.sqrt(draws.size)


def test_bernoulli_probabilities():
    np.testing.assert_allclose(lk.Bernoulli().probabilities(0.3), [st.norm.cdf(-0.3), st.norm.cdf(0.3)], rtol=1e-13)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lk.Softmax(1), "num_classes must be an integer of at least 2, got 1"),
        (lambda: lk.Softmax(2.5), "num_classes must be an integer of at least 2, got 2.5"),
        (lambda: lk.Ordinal([0.0, 0.0]), "thresholds must increase, but threshold 1, 0, is not above threshold 0, 0"),
        (lambda: lk.Ordinal([0.0, 2.0, 1.0]), "threshold 2, 1, is not above threshold 1, 2"),
        (lambda: lk.Ordinal([]), "thresholds must not be empty"),
        (lambda: lk.Ordinal([0.0, np.nan]), "thresholds must be finite"),
        (lambda: lk.Ordinal([0.0], scale=0.0), "scale must be greater than 0"),
    ],
)
def test_constructors_name_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("likelihood", "bad"), [(lk.Softmax(3), 3.0), (lk.Softmax(3), 0.5), (STARS, -1.0), (STARS, 5.0)]
)
def test_values_outside_the_support_are_named(likelihood, bad):
    with pytest.raises(ValueError, match=rf"integers from 0 to \d .*row 2 is {bad:g}"):
        likelihood.check_support(np.array([[1.0], [np.nan], [bad]]))


def test_labels_have_no_moments():
    likelihood = lk.Softmax(3)
    assert "labels" in likelihood.moments_problem()
    model = ng.Model(ng.GP(ng.kernels.Independent([ng.kernels.RBF()] * 3)), likelihood)
    with pytest.raises(ValueError, match="the classes of Softmax are labels"):
        ng.infer(model, [0.0, 1.0], [0, 2], ng.PosteriorLinearisation())
    with pytest.raises(NotImplementedError, match="have no order"):
        likelihood.cdf(1.0, np.zeros(3))


# Inference --------------------------------------------------------------------------------------

X = np.linspace(0.0, 4.0, 9)
LABELS = np.array([0.0, 0.0, 1.0, 1.0, 2.0, np.nan, 2.0, 0.0, 0.0])


def softmax_model():
    kernels = [ng.kernels.Matern32(variance=v, lengthscale=1.5) for v in (1.0, 2.0, 1.5)]
    return ng.Model(ng.GP(ng.kernels.Independent(kernels)), lk.Softmax(3))


@pytest.mark.cases(thorough=["newton", "newton", "ep"], others="slow")
@pytest.mark.parametrize("method", [ng.Newton(), ng.PowerEP(0.5)], ids=["newton", "ep"])
def test_softmax_inference(method):
    result = ng.infer(softmax_model(), X, LABELS, method)
    assert result.status == ng.Status.CONVERGED
    assert np.isfinite(result.energy)
    assert result.sample_y(0, X, 3).shape == (3, 9)


@pytest.mark.slow
@pytest.mark.thorough
def test_softmax_variational_free_energy():
    """Against E[log p] from nodes of its own and the divergence from the prior, both in NumPy."""
    model = softmax_model()
    result = ng.infer(model, X, LABELS, ng.VI())
    assert result.status == ng.Status.CONVERGED
    points, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.array(list(itertools.product(points, repeat=3)))
    joint = np.prod(list(itertools.product(weights / weights.sum(), repeat=3)), axis=1)
    expected = 0.0
    for y, mean, covariance in zip(LABELS, result.marginals.mean, result.marginals.covariance, strict=True):
        if np.isfinite(y):
            f = mean + grid @ np.linalg.cholesky(covariance).T
            expected += joint @ (f[:, int(y)] - scipy.special.logsumexp(f, axis=1))
    # KL[q || p] with q made of the prior and the sites, latent by latent in blocks of rows.
    n, d = result.marginals.mean.shape
    grams = np.asarray(ng.kernels.grams(model.prior.kernel, X[:, None], X[:, None]))
    prior = np.zeros((n * d, n * d))
    precision = np.zeros((n * d, n * d))
    for k, m in itertools.product(range(d), repeat=2):
        if k == m:
            prior[k::d, k::d] = grams[k]
        precision[k::d, m::d] = np.diag(result.sites.precision[:, k, m])
    posterior = np.linalg.inv(np.linalg.inv(prior) + precision)
    mean = posterior @ result.sites.linear.ravel()
    np.testing.assert_allclose(mean.reshape(n, d), result.marginals.mean, atol=1e-8)
    divergence = 0.5 * (
        np.trace(np.linalg.solve(prior, posterior))
        + mean @ np.linalg.solve(prior, mean)
        - n * d
        + np.linalg.slogdet(prior)[1]
        - np.linalg.slogdet(posterior)[1]
    )
    np.testing.assert_allclose(result.energy, divergence - expected, rtol=1e-5)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(
    "method",
    [ng.VI(), ng.PowerEP(1.0), ng.PosteriorLinearisation(), ng.Newton(curvature=ng.GaussNewton())],
    ids=["vi", "ep", "pl", "gauss-newton"],
)
def test_ordinal_inference(method):
    y = np.array([0, 0, 1, 2, 3, 4, 3, 3, 1])
    result = ng.infer(ng.Model(ng.GP(ng.kernels.Matern32(variance=2.0)), STARS), X, y, method)
    assert result.status == ng.Status.CONVERGED
    prediction = result.predict([0.2, 2.4])
    assert prediction.mean[0] < prediction.mean[1]
    assert set(prediction.quantile(0.5)) <= set(range(5))


@pytest.mark.slow
def test_row_functions():
    y, f = jnp.array([1.0]), jnp.array([0.3, 0.1, -1.0])
    assert base.row_log_prob(lk.Softmax(3), y, f).shape == ()
    assert base.row_sample(lk.Softmax(3), jax.random.key(0), f).shape == (1,)
    assert base.row_covariance(STARS, f[:1]).shape == (1, 1)
