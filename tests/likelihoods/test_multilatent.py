"""Likelihoods of several latents: against scipy.stats, their own linear form, and nodes; and inference with each."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as st

import newtongp as ng
from newtongp import likelihoods as lk
from newtongp.likelihoods import base

SIGMA = np.array([[0.02, -0.015, -0.005], [-0.015, 0.04, 0.01], [-0.005, 0.01, 0.06]])
PAIR = np.array([[0.5, -0.2], [-0.2, 0.3]])
MIXING = np.array([[1.0, 0.0], [0.5, 2.0], [0.3, 0.7]])
LOADINGS = np.array([[1.0, -0.5], [0.3, 2.0], [0.0, 1.5]])


@pytest.fixture(autouse=True)
def strict_double():
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        yield


def softplus(f):
    return np.logaddexp(f, 0.0)


def constant(value):
    return lambda f: np.atleast_2d(value)


# The likelihood, and its mean and covariance as functions of f, in NumPy.
CASES = {
    "heteroscedastic": (
        lk.HeteroscedasticGaussian(),
        lambda f: f[:1],
        lambda f: np.array([[softplus(f[1]) ** 2]]),
    ),
    "heteroscedastic-exp": (
        lk.HeteroscedasticGaussian("exp"),
        lambda f: f[:1],
        lambda f: np.array([[np.exp(2.0 * f[1])]]),
    ),
    "product": (lk.Product(0.3), lambda f: f[:1] * softplus(f[1]), constant(0.3)),
    "product-exp": (lk.Product(0.3, "exp"), lambda f: f[:1] * np.exp(f[1]), constant(0.3)),
    "product-plain": (lk.Product(0.3, None), lambda f: f[:1] * f[1], constant(0.3)),
    "demodulation": (
        lk.AmplitudeDemodulation(3, MIXING, 0.2),
        lambda f: np.array([f[:3] @ MIXING @ softplus(f[3:])]),
        constant(0.2),
    ),
    "demodulation-own": (
        lk.AmplitudeDemodulation(2, variance=0.2, link="exp"),
        lambda f: np.array([f[:2] @ np.exp(f[2:])]),
        constant(0.2),
    ),
    "network": (
        lk.RegressionNetwork(outputs=3, nodes=2, covariance=SIGMA),
        lambda f: f[2:].reshape(3, 2) @ f[:2],
        constant(SIGMA),
    ),
    "network-offset": (
        lk.RegressionNetwork(2, 3, [0.1, 0.2], weight_offset=1.5),
        lambda f: (f[3:].reshape(2, 3) + 1.5) @ f[:3],
        constant(np.diag([0.1, 0.2])),
    ),
    "network-one": (
        lk.RegressionNetwork(1, 2, 0.4, weight_offset=[[1.0, -1.0]]),
        lambda f: (f[2:].reshape(1, 2) + np.array([[1.0, -1.0]])) @ f[:2],
        constant(0.4),
    ),
    "multivariate": (lk.MultivariateGaussian(PAIR), lambda f: f, constant(PAIR)),
    "multivariate-one": (lk.MultivariateGaussian(0.7), lambda f: f, constant(0.7)),
    "coregionalisation": (lk.LinearCoregionalisation(LOADINGS, SIGMA), lambda f: LOADINGS @ f, constant(SIGMA)),
    "coregionalisation-one-latent": (
        lk.LinearCoregionalisation(LOADINGS[:, :1], 0.2),
        lambda f: LOADINGS[:, :1] @ f,
        constant(0.2 * np.eye(3)),
    ),
    "coregionalisation-one-output": (
        lk.LinearCoregionalisation(LOADINGS[:1], [[0.2]]),
        lambda f: LOADINGS[:1] @ f,
        constant(0.2),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def some_rows(likelihood, n=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, likelihood.num_outputs)), rng.normal(size=(n, likelihood.num_latents))


def test_log_prob_and_moments(case):
    likelihood, mean, covariance = case
    for y, f in zip(*some_rows(likelihood), strict=True):
        reference = st.multivariate_normal(mean(f), covariance(f))
        np.testing.assert_allclose(base.row_log_prob(likelihood, y, f), reference.logpdf(y), rtol=1e-11)
        np.testing.assert_allclose(base.row_mean(likelihood, f), mean(f), rtol=1e-13)
        np.testing.assert_allclose(base.row_covariance(likelihood, f), covariance(f), rtol=1e-13)
        expected = st.norm(mean(f), np.sqrt(np.diag(covariance(f)))).cdf(y)
        asked = y[0] if likelihood.num_outputs == 1 else y
        np.testing.assert_allclose(np.ravel(base.row_cdf(likelihood, asked, f)), expected, rtol=1e-11)


@pytest.mark.cases(thorough=["network"])
def test_linear_form_is_the_likelihood(case):
    likelihood, *_ = case
    linear = np.array(likelihood.linear_latents)
    others = np.setdiff1d(np.arange(likelihood.num_latents), linear)
    for y, f in zip(*some_rows(likelihood, seed=1), strict=True):
        matrix, offset, noise = likelihood.linear_form(jnp.asarray(f[others]))
        outputs = likelihood.num_outputs
        assert (matrix.shape, offset.shape, noise.shape) == (
            (outputs, linear.size),
            (outputs,),
            (outputs, outputs),
        )
        reference = st.multivariate_normal(matrix @ f[linear] + offset, noise)
        np.testing.assert_allclose(base.row_log_prob(likelihood, y, f), reference.logpdf(y), rtol=1e-11)


def test_flags(case):
    likelihood, *_ = case
    assert likelihood.gaussian_form
    assert likelihood.moments_problem() is None
    assert bool(likelihood.log_concave) == isinstance(likelihood, (lk.MultivariateGaussian, lk.LinearCoregionalisation))


def test_log_prob_degree(case):
    """Finite differences of one order more than the degree vanish along any line."""
    likelihood, *_ = case
    degree = likelihood.log_prob_degree
    rows, latents = some_rows(likelihood, n=2, seed=2)
    line = latents[0][None, :] + np.arange(-4.0, 5.0)[:, None] * latents[1][None, :]
    values = np.array([base.row_log_prob(likelihood, rows[0], f) for f in line])
    if degree is None:
        assert np.abs(np.diff(values, 5)).max() > 1e-3
    else:
        assert np.abs(np.diff(values, degree + 1)).max() < 1e-9 * np.abs(values).max()
        assert np.abs(np.diff(values, degree)).max() > 1e-6 * np.abs(values).max()


@pytest.mark.slow
def test_densities_integrate_to_one_and_give_the_moments():
    grid = np.linspace(-9.0, 9.0, 181)
    width = grid[1] - grid[0]
    f = np.array([0.4, -0.3])
    one = lk.Product(0.3)
    density = np.exp(jax.vmap(lambda y: one.log_prob(y, f))(grid)) * width
    np.testing.assert_allclose(density.sum(), 1.0, rtol=1e-10)
    np.testing.assert_allclose(density @ grid, one.mean(f), rtol=1e-10)
    two = lk.MultivariateGaussian(PAIR)
    pairs = np.array(list(itertools.product(grid, grid)))
    density = np.exp(jax.vmap(lambda y: two.log_prob(y, f))(pairs)) * width**2
    np.testing.assert_allclose(density.sum(), 1.0, rtol=1e-10)
    centred = pairs - f
    np.testing.assert_allclose(np.einsum("s,si,sj->ij", density, centred, centred), PAIR, rtol=1e-9)


@pytest.mark.cases(thorough=["heteroscedastic", "network"])
@pytest.mark.parametrize("name", ["heteroscedastic", "product", "demodulation", "network", "multivariate-one"])
def test_sample_moments(name):
    likelihood, mean, covariance = CASES[name]
    n, f = 40_000, some_rows(likelihood, 1, seed=3)[1][0]
    draws = np.asarray(
        jax.vmap(lambda key: base.row_sample(likelihood, key, f))(jax.random.split(jax.random.key(0), n))
    )
    scales = np.sqrt(np.diag(covariance(f)))
    assert np.all(np.abs(draws.mean(axis=0) - mean(f)) < 5.0 * scales / np.sqrt(n))
    error = (np.atleast_2d(np.cov(draws.T)) - covariance(f)) / np.outer(scales, scales)
    assert np.abs(error).max() < 5.0 * np.sqrt(2.0 / n)


# Closed forms -----------------------------------------------------------------------------------


def nodes(mean, covariance, order):
    points, weights = np.polynomial.hermite_e.hermegauss(order)
    dimension = mean.shape[0]
    grid = np.array(list(itertools.product(points, repeat=dimension)))
    joint = np.array([np.prod(each) for each in itertools.product(weights / weights.sum(), repeat=dimension)])
    return mean[None, :] + jnp.asarray(grid) @ np.linalg.cholesky(covariance).T, joint


def a_gaussian(dimension, seed=4):
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(dimension, dimension + 1))
    return rng.normal(size=dimension), root @ root.T + 0.05 * np.eye(dimension)


EXPECTED = {
    "heteroscedastic-exp": 60,
    "product-exp": 60,
    "product-plain": 3,
    "network": 3,
    "network-offset": 3,
    "network-one": 3,
    "multivariate": 2,
    "multivariate-one": 2,
    "coregionalisation": 2,
    "coregionalisation-one-latent": 2,
    "coregionalisation-one-output": 2,
}


@pytest.mark.cases(
    quick=["product-exp", "product-plain", "multivariate-one", "coregionalisation-one-output"], others="thorough"
)
@pytest.mark.parametrize("name", EXPECTED)
def test_expected_log_prob(name):
    likelihood = CASES[name][0]
    mean, covariance = a_gaussian(likelihood.num_latents)
    y = some_rows(likelihood, 1, seed=5)[0][0]

    def closed(mean):
        return base.row_expected_log_prob(likelihood, y, mean, covariance)

    def at_nodes(mean):
        points, weights = nodes(mean, covariance, EXPECTED[name])
        return weights @ jax.vmap(lambda f: base.row_log_prob(likelihood, y, f))(points)

    mine, reference = (jax.jit(jax.value_and_grad(function))(mean) for function in (closed, at_nodes))
    np.testing.assert_allclose(mine[0], reference[0], rtol=1e-10)
    np.testing.assert_allclose(mine[1], reference[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["heteroscedastic", "product", "demodulation", "demodulation-own"])
def test_no_expected_log_prob_for_other_links(name):
    likelihood = CASES[name][0]
    assert base.row_expected_log_prob(likelihood, np.zeros(1), *a_gaussian(likelihood.num_latents)) is None


@pytest.mark.cases(
    thorough=["multivariate-0.3", "multivariate-1.0"], slow=["multivariate-one-1.0", "coregionalisation-one-output-1.0"]
)
@pytest.mark.parametrize("power", [1.0, 0.3])
@pytest.mark.parametrize("name", ["multivariate", "multivariate-one", "coregionalisation-one-output"])
def test_log_expected_power(name, power):
    likelihood = CASES[name][0]
    mean, covariance = a_gaussian(likelihood.num_latents)
    y = some_rows(likelihood, 1, seed=6)[0][0]
    points, weights = nodes(mean, covariance, 80)
    at_nodes = np.log(weights @ np.exp(power * jax.vmap(lambda f: base.row_log_prob(likelihood, y, f))(points)))
    closed = base.row_log_expected_power(likelihood, y, mean, covariance, power)
    np.testing.assert_allclose(closed, at_nodes, rtol=1e-8)


def test_log_expected_power_of_many_outputs():
    """With power 1 it is the density of y itself."""
    likelihood = lk.LinearCoregionalisation(LOADINGS, SIGMA)
    mean, covariance = a_gaussian(2)
    y = np.array([0.3, -1.0, 0.2])
    marginal = st.multivariate_normal(LOADINGS @ mean, LOADINGS @ covariance @ LOADINGS.T + SIGMA)
    np.testing.assert_allclose(likelihood.log_expected_power(y, mean, covariance, 1.0), marginal.logpdf(y), rtol=1e-11)


# Tails and arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["heteroscedastic", "heteroscedastic-exp", "product", "product-exp", "demodulation"])
def test_finite_derivatives_far_out(name):
    likelihood = CASES[name][0]
    far = np.array(list(itertools.product([-40.0, 0.0, 30.0], repeat=2)))
    # One subband and one modulator are far out.
    latents = np.zeros((far.shape[0], likelihood.num_latents))
    latents[:, [0, -1]] = far

    @jax.jit
    @jax.vmap
    def derivatives(f):
        function = lambda g: base.row_log_prob(likelihood, jnp.ones(1), g)  # noqa: E731
        return function(f), jax.grad(function)(f), jax.hessian(function)(f)

    for part in derivatives(latents):
        assert np.all(np.isfinite(part))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lk.HeteroscedasticGaussian("probit"), "link must be one of 'exp', 'softplus', got 'probit'"),
        (lambda: lk.Product(link="log"), "link must be one of 'exp', 'softplus', 'identity', got 'log'"),
        (lambda: lk.Product(variance=0.0), "variance must be greater than 0"),
        (lambda: lk.AmplitudeDemodulation(0), "num_subbands must be an integer of at least 1, got 0"),
        (lambda: lk.AmplitudeDemodulation(2, [1.0, 2.0]), r"mixing must be a matrix \(subbands x modulators\)"),
        (lambda: lk.AmplitudeDemodulation(2, np.ones((3, 1))), r"one row per subband, 2, got shape \(3, 1\)"),
        (lambda: lk.AmplitudeDemodulation(1, [[-1.0]]), "mixing must not be negative"),
        (lambda: lk.AmplitudeDemodulation(1, variance=-1.0), "variance must be greater than 0"),
        (lambda: lk.AmplitudeDemodulation(1, link="identity"), "link must be one of 'exp', 'softplus'"),
        (lambda: lk.RegressionNetwork(2.5, 1, 1.0), "outputs must be an integer of at least 1, got 2.5"),
        (lambda: lk.RegressionNetwork(2, 0, 1.0), "nodes must be an integer of at least 1, got 0"),
        (
            lambda: lk.RegressionNetwork(2, 1, np.eye(3)),
            r"matrix of shape \(2, 2\) for 2 output\(s\), got shape \(3, 3\)",
        ),
        (lambda: lk.RegressionNetwork(2, 1, [1.0, -1.0]), "covariance must be greater than 0"),
        (lambda: lk.RegressionNetwork(2, 1, [[1.0, 2.0], [2.0, 1.0]]), "positive definite, but .* eigenvalue is -1"),
        (
            lambda: lk.RegressionNetwork(2, 1, [[1.0, 0.5], [0.2, 1.0]]),
            r"symmetric, but entries \(0, 1\) and \(1, 0\) are 0.5 and 0.2",
        ),
        (lambda: lk.RegressionNetwork(2, 1, 1.0, [1.0, 2.0]), r"weight_offset must be a number or a matrix of shape"),
        (lambda: lk.MultivariateGaussian("wide"), "covariance must be a number"),
        (lambda: lk.MultivariateGaussian(np.ones((2, 2))), "covariance must be positive definite"),
        (lambda: lk.MultivariateGaussian(np.ones((2, 3))), r"matrix of shape \(2, 2\) .* got shape \(2, 3\)"),
        (lambda: lk.MultivariateGaussian([]), "covariance must not be empty"),
        (lambda: lk.LinearCoregionalisation([1.0, 2.0], 1.0), r"mixing must be a matrix \(outputs x latents\)"),
        (lambda: lk.LinearCoregionalisation(LOADINGS, np.eye(2)), r"for 3 output\(s\), got shape \(2, 2\)"),
    ],
)
def test_constructors_name_what_is_wrong(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.slow
def test_a_number_for_the_noise_stays_one_parameter_and_has_a_gradient():
    network = lk.RegressionNetwork(3, 2, 0.1)
    assert [leaf.shape for leaf in jax.tree.leaves(network)] == [(), ()]
    y, f = some_rows(network, 1)
    gradient = jax.grad(lambda likelihood: likelihood.log_prob(y[0], f[0]))(network)
    assert np.isfinite(gradient.noise) and np.isfinite(gradient.weight_offset)

    @jax.jit
    def rebuilt(noise):
        return lk.RegressionNetwork(3, 2, noise).log_prob(y[0], f[0])

    np.testing.assert_allclose(rebuilt(0.1), network.log_prob(y[0], f[0]), rtol=1e-12)


# Inference --------------------------------------------------------------------------------------

X = np.linspace(0.0, 3.0, 8)
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(curvature=ng.GaussNewton()),
    "ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "variational-gauss-newton": ng.VI(curvature=ng.GaussNewton()),
}
RUNS = [
    *(("heteroscedastic", method) for method in METHODS),
    *(("product", method) for method in ("vi", "ep")),
    *(("network-one", method) for method in ("vi", "newton")),
    *(("multivariate", method) for method in ("vi", "ep", "pl")),
    ("demodulation-own", "vi"),
    ("coregionalisation-one-latent", "newton"),
]


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(("name", "method"), RUNS)
def test_inference_ends_well(name, method):
    likelihood, mean, covariance = CASES[name]
    rng = np.random.default_rng(7)
    latents = rng.normal(size=(X.size, likelihood.num_latents))
    y = np.array([rng.multivariate_normal(mean(f), covariance(f)) for f in latents])
    kernel = ng.kernels.Independent([ng.kernels.Matern32()] * likelihood.num_latents)
    result = ng.infer(ng.Model(ng.GP(kernel), likelihood), X, y, METHODS[method])
    assert result.status == ng.Status.CONVERGED
    assert np.isfinite(result.energy)
    prediction = result.predict([0.5, 1.0])
    assert np.all(prediction.variance > 0.0)
    assert result.sample_y(0, [0.5], 2).shape[:2] == (2, 1)


@pytest.mark.cases(thorough=["multivariate", "coregionalisation-one-latent"], others="slow")
@pytest.mark.parametrize("name", ["multivariate", "coregionalisation-one-latent"])
def test_linear_likelihoods_are_exact_regression(name):
    likelihood, mean, covariance = CASES[name]
    latents, outputs = likelihood.num_latents, likelihood.num_outputs
    y = np.random.default_rng(8).normal(size=(X.size, outputs))
    kernel = ng.kernels.Independent([ng.kernels.Matern32()] * latents)
    result = ng.infer(ng.Model(ng.GP(kernel), likelihood), X, y)
    gram = np.asarray(ng.kernels.grams(kernel, X[:, None], X[:, None]))[0]
    loadings = np.stack([mean(unit) for unit in np.eye(latents)], axis=1)
    # Rows of y one after the other, so that the covariance is K ⊗ (A Aᵀ) + I ⊗ Σ.
    whole = np.kron(gram, loadings @ loadings.T) + np.kron(np.eye(X.size), covariance(None))
    evidence = st.multivariate_normal(np.zeros(y.size), whole).logpdf(y.ravel())
    np.testing.assert_allclose(result.energy, -evidence, rtol=1e-9)
