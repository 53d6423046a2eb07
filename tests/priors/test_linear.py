"""Linear models: against the dense GP with the same prior, closed forms, other people's regressions, and decimals."""

import decimal
import functools
import itertools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import LogisticRegression

import newtongp as ng
from newtongp.numerics.gaussian import Sites
from newtongp.priors.linear import LinearModel

RNG = np.random.default_rng(5)
N, P = 14, 3
X = RNG.normal(size=(N, P))
X_NEW = RNG.normal(size=(6, P))
VARIANCES = np.array([0.5, 2.0, 1.2])
MEAN = np.array([0.3, -0.2, 0.5])
F = X @ np.array([0.8, -1.1, 0.4])
ROOT = RNG.normal(size=(P, P))
MATRIX = ROOT @ ROOT.T


class Heteroscedastic(ng.Likelihood):
    """y = f₁ + noise whose standard deviation grows with f₂: sites may be indefinite."""

    num_latents = 2

    def log_prob(self, y, f):
        scale = jax.nn.softplus(f[1]) + 0.1
        return -0.5 * ((y - f[0]) / scale) ** 2 - jnp.log(scale) - 0.5 * np.log(2.0 * np.pi)

    def mean(self, f):
        return f[0]

    def covariance(self, f):
        return (jax.nn.softplus(f[1]) + 0.1) ** 2


LIKELIHOODS = {
    "gaussian": (ng.likelihoods.Gaussian(0.3), F + 0.5 * RNG.normal(size=N)),
    "poisson": (ng.likelihoods.Poisson(), RNG.poisson(np.exp(F)).astype(float)),
    "bernoulli": (ng.likelihoods.Bernoulli(), (F + RNG.logistic(size=N) > 0).astype(float)),
    "student": (ng.likelihoods.StudentT(scale=0.5, df=4.0), F + 0.5 * RNG.standard_t(3, size=N)),
    "heteroscedastic": (Heteroscedastic(), F + 0.4 * RNG.normal(size=N)),
}
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "ep": ng.PowerEP(1.0),
    "pl": ng.PosteriorLinearisation(),
    "gauss-newton": ng.VI(curvature=ng.GaussNewton()),
}


def pair(likelihood):
    """The same model twice: as a linear model, and as a dense GP."""
    latents = likelihood.num_latents
    means = np.stack([MEAN, -0.5 * MEAN])[:latents]
    linear = LinearModel(VARIANCES, mean=means, num_latents=latents)
    dense = ng.GP(
        ng.kernels.Independent([ng.kernels.Linear(VARIANCES)] * latents),
        mean=ng.means.Independent([ng.means.Linear(row) for row in means]),
    )
    return ng.Model(linear, likelihood), ng.Model(dense, likelihood)


def in_double(method, *args):
    """A method of a prior, workspace or posterior, compiled and in double precision, as the library calls it."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, _call(method.__name__, method.__self__, args))


@functools.partial(jax.jit, static_argnums=0)
def _call(name, owner, args):
    return getattr(owner, name)(*args)


@pytest.mark.cases(slow=["gauss-newton-poisson"], others="thorough")
@pytest.mark.parametrize(
    ("method", "name"),
    [
        *itertools.product(METHODS, ["poisson", "heteroscedastic"]),
        *[("vi", "gaussian"), ("newton", "bernoulli"), ("ep", "bernoulli"), ("vi", "student")],
    ],
)
def test_it_is_the_dense_gp_with_a_linear_kernel(method, name):
    likelihood, y = LIKELIHOODS[name]
    linear, dense = pair(likelihood)
    ours, theirs = (ng.infer(model, X, y, METHODS[method], tol=1e-10, throw=False) for model in (linear, dense))
    assert ours.status is theirs.status is ng.Status.CONVERGED
    assert ours.energy == pytest.approx(theirs.energy, abs=1e-8)
    np.testing.assert_allclose(ours.marginals.mean, theirs.marginals.mean, atol=1e-8)
    np.testing.assert_allclose(ours.marginals.covariance, theirs.marginals.covariance, atol=1e-8)
    new, old = ours.predict(X_NEW), theirs.predict(X_NEW)
    np.testing.assert_allclose(new.latent.mean, old.latent.mean, atol=1e-8)
    np.testing.assert_allclose(new.latent.covariance, old.latent.covariance, atol=1e-8)
    np.testing.assert_allclose(new.mean, old.mean, rtol=1e-7)
    np.testing.assert_allclose(ours.log_density(X, y), theirs.log_density(X, y), atol=1e-8)
    np.testing.assert_allclose(ours.posterior.log_normaliser, theirs.posterior.log_normaliser, atol=1e-7)
    joint, dense_joint = (in_double(result.posterior.joint, X_NEW) for result in (ours, theirs))
    np.testing.assert_allclose(joint.mean, dense_joint.mean, atol=1e-8)
    np.testing.assert_allclose(joint.covariance, dense_joint.covariance, atol=1e-8)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("name", ["student", "heteroscedastic"])
@pytest.mark.parametrize("method", METHODS)
def test_the_sites_are_the_same_step_by_step(name, method):
    likelihood, y = LIKELIHOODS[name]
    runs = [ng.iterate(model, X, y, METHODS[method]) for model in pair(likelihood)]
    for ours, theirs in itertools.islice(zip(*runs, strict=True), 6):
        np.testing.assert_allclose(ours.sites.linear, theirs.sites.linear, atol=1e-9)
        np.testing.assert_allclose(ours.sites.precision, theirs.sites.precision, atol=1e-9)
        assert ours.energy == pytest.approx(theirs.energy, abs=1e-8)


def sites_of(kind, n, d):
    """Random sites: PSD, with missing rows, singular, or indefinite but with a proper posterior."""
    linear = RNG.normal(size=(n, d))
    root = RNG.normal(size=(n, d, d))
    precision = root @ np.swapaxes(root, 1, 2)
    if kind == "missing":
        linear[::2], precision[::2] = 0.0, 0.0
    if kind == "singular":
        precision = root[:, :, :1] @ np.swapaxes(root[:, :, :1], 1, 2)
    if kind == "indefinite":
        precision[::3] = -0.05 * np.eye(d)
    if kind == "precise":
        precision = precision * 10.0 ** RNG.uniform(0.0, 8.0, (n, 1, 1))
        precision[::4] = -0.02 * np.eye(d)
    return Sites(linear, precision)


def definition(x, covariance, mean, sites):
    """The design over (row, latent) pairs, the weights' posterior, log ∫ p ∏ t and log det(I + ΛK), to 40 digits."""
    n, d = sites.linear.shape
    size = x.shape[1]
    design, precision = np.zeros((n * d, d * size)), np.zeros((n * d, n * d))
    for i in range(n):
        precision[i * d : (i + 1) * d, i * d : (i + 1) * d] = sites.precision[i]
        for k in range(d):
            design[i * d + k, k * size : (k + 1) * size] = x[i]
    design, precision, prior = exact(design), exact(precision), exact(np.kron(np.eye(d), covariance))
    prior_mean, linear = exact(mean.reshape(-1)), exact(sites.linear.reshape(-1))
    # (I + S A)⁻¹ S with A = XᵀΛX needs no inverse of S.
    inner = design.T @ precision @ design
    posterior, log_det = solve_exactly(exact(np.eye(d * size)) + prior @ inner, prior)
    at_rows = design @ prior_mean
    tilt = linear - precision @ at_rows
    shift = posterior @ (design.T @ tilt)
    twice = -log_det + (linear + tilt) @ at_rows + tilt @ (design @ shift)
    return design, prior_mean + shift, posterior, float(twice) / 2.0, float(log_det)


def exact(array):
    """Doubles as decimals, whose arithmetic keeps 60 digits here."""
    decimal.getcontext().prec = 60
    return np.vectorize(decimal.Decimal, otypes=[object])(array)


def solve_exactly(matrix, right):
    """A⁻¹ right and log det A, by Gaussian elimination."""
    matrix, right = matrix.copy(), right.copy()
    determinant = decimal.Decimal(1)
    for j in range(len(matrix)):
        pivot = j + np.argmax(np.abs(matrix[j:, j]))
        for array in (matrix, right):
            array[[j, pivot]] = array[[pivot, j]]
        determinant *= matrix[j, j] if pivot == j else -matrix[j, j]
        others = np.arange(len(matrix)) != j
        ratios = matrix[others, j] / matrix[j, j]
        matrix[others] -= np.outer(ratios, matrix[j])
        right[others] -= np.outer(ratios, right[j])
    return right / np.diagonal(matrix)[:, None], determinant.ln()


# Products of these are exact, so that the outer product has rank one in decimals too.
RANK_ONE = np.array([0.5, -1.25, 2.0])
PRIORS = {
    "a number": (0.7, 0.7 * np.eye(P)),
    "a vector": (VARIANCES, np.diag(VARIANCES)),
    "a matrix": (MATRIX, MATRIX),
    "a singular matrix": (np.outer(RANK_ONE, RANK_ONE), np.outer(RANK_ONE, RANK_ONE)),
    "a fixed weight": ([0.5, 0.0, 2.0], np.diag([0.5, 0.0, 2.0])),
}


@pytest.mark.cases(thorough=["a number-psd-2", "a number-psd-3", "a matrix-psd-1"])
@pytest.mark.parametrize("latents", [1, 2, 3])
@pytest.mark.parametrize("kind", ["psd", "missing", "singular", "indefinite", "precise"])
@pytest.mark.parametrize("prior", PRIORS)
def test_conditioning_is_what_the_definition_says(latents, kind, prior):
    sites = sites_of(kind, N, latents)
    given, covariance = PRIORS[prior]
    mean = np.stack([MEAN, -MEAN, 2.0 * MEAN])[:latents]
    model = LinearModel(given, mean=mean, num_latents=latents)
    design, weights, posterior, log_z, log_det = definition(X, covariance, mean, sites)
    f, spread = (design @ weights).astype(float), (design @ posterior @ design.T).astype(float)
    blocks = np.stack([spread[i * latents : (i + 1) * latents, i * latents : (i + 1) * latents] for i in range(N)])

    workspace = in_double(model.prepare, X)
    stepwise = in_double(workspace.marginals, sites)
    found = in_double(model.condition, workspace, sites)
    again, joint = in_double(found.predict, X), in_double(found.joint, X)
    assert bool(stepwise.proper)
    for gaussian in (stepwise.marginals, found.marginals, again):
        np.testing.assert_allclose(gaussian.mean, f.reshape(N, latents), atol=1e-10)
        np.testing.assert_allclose(gaussian.covariance, blocks, atol=1e-11)
    np.testing.assert_allclose(joint.mean, f, atol=1e-10)
    np.testing.assert_allclose(joint.covariance, spread, atol=1e-11)
    np.testing.assert_allclose(found.weights.mean, weights.astype(float), atol=1e-10)
    np.testing.assert_allclose(found.weights.covariance, posterior.astype(float), atol=1e-11)
    assert float(stepwise.log_det) == pytest.approx(float(log_det), abs=1e-10)
    # It is a sum of terms of the size of Λ.
    rounding = 1e-10 + 1e-15 * np.sum(np.abs(sites.precision))
    assert float(found.log_normaliser) == pytest.approx(float(log_z), abs=rounding)
    kept = np.linalg.matrix_rank(np.kron(np.eye(latents), covariance))
    if kept == latents * P:
        shift = (weights - exact(mean.reshape(-1))).astype(float)
        distance = shift @ np.linalg.solve(np.kron(np.eye(latents), covariance), shift)
        assert float(stepwise.distance) == pytest.approx(distance, rel=1e-9)


def test_the_workspace_does_not_hold_the_prior():
    number, matrix = (in_double(LinearModel(given).prepare, X) for given in (2.0, MATRIX))
    assert jax.tree.structure(number) == jax.tree.structure(matrix)
    assert len(jax.tree.leaves(number)) == 2


@pytest.mark.cases(slow=["100000000000.0-10-25", "100000000000.0-30-4", "100000000000.0-12-12"], others="thorough")
@pytest.mark.parametrize(("rows", "columns"), [(30, 4), (10, 25), (12, 12)])
@pytest.mark.parametrize("precision", [1e4, 1e8, 1e11])
def test_precise_data_keep_their_digits(rows, columns, precision):
    rng = np.random.default_rng(rows)
    x, x_new = rng.normal(size=(rows, columns)), rng.normal(size=(5, columns))
    y = x @ rng.normal(size=columns)
    y[3] = np.nan
    model = ng.Model(LinearModel(1.5), ng.likelihoods.Gaussian(1.0 / precision))
    result = ng.infer(model, x, y, ng.VI(), ng.Constant(1.0))
    observed = np.where(np.isnan(y), 0.0, precision)
    sites = Sites((observed * np.nan_to_num(y))[:, None], observed[:, None, None])
    design, weights, posterior, _, log_det = definition(x, 1.5 * np.eye(columns), np.zeros((1, columns)), sites)
    np.testing.assert_allclose(result.marginals.mean[:, 0], (design @ weights).astype(float), atol=1e-12)
    # Variances as small as the noise's have digits of their own.
    variances = np.diagonal(design @ posterior @ design.T).astype(float)
    tolerance = max(1e-14 * np.sqrt(precision), 1e-10)
    np.testing.assert_allclose(result.marginals.variance[:, 0], variances, rtol=tolerance)
    predicted = result.predict(x_new).latent
    np.testing.assert_allclose(predicted.mean[:, 0], (exact(x_new) @ weights).astype(float), atol=1e-11)
    np.testing.assert_allclose(
        predicted.variance[:, 0], np.diagonal(exact(x_new) @ posterior @ exact(x_new.T)).astype(float), rtol=tolerance
    )
    covariance = result.posterior.weights.covariance
    np.testing.assert_allclose(covariance, posterior.astype(float), atol=tolerance)
    workspace = in_double(model.prior.prepare, x)
    stepwise = in_double(workspace.marginals, sites)
    assert float(stepwise.log_det) == pytest.approx(float(log_det), rel=tolerance)


@pytest.mark.slow
@pytest.mark.thorough
def test_noise_of_1e_minus_8_agrees_with_the_dense_gp():
    y = X @ MEAN
    likelihood = ng.likelihoods.Gaussian(1e-8)
    ours, theirs = (ng.infer(model, X, y, ng.VI(), ng.Constant(1.0)) for model in pair(likelihood))
    np.testing.assert_allclose(ours.marginals.mean, theirs.marginals.mean, atol=1e-12)
    np.testing.assert_allclose(ours.predict(X_NEW).latent.mean, theirs.predict(X_NEW).latent.mean, atol=1e-12)
    # The dense GP's variances are differences from the prior's.
    np.testing.assert_allclose(ours.marginals.covariance, theirs.marginals.covariance, atol=1e-13)
    # The evidence of the Gaussian model, by way of the singular values of X √S.
    left, values, _ = np.linalg.svd(X * np.sqrt(VARIANCES))
    spectrum = np.concatenate([values**2, np.zeros(N - P)]) + 1e-8
    rotated = np.where(np.arange(N) < P, left.T @ (y - X @ MEAN), 0.0)
    exact = 0.5 * np.sum(rotated**2 / spectrum + np.log(2.0 * np.pi * spectrum))
    assert ours.energy == pytest.approx(exact, abs=1e-9)


def test_collinear_columns_keep_their_digits():
    """Powers of x: the normal equations alone would lose twice the digits that the design has to lose."""
    t = np.linspace(0.9, 1.1, 40)
    x = np.stack([t**k for k in range(5)], axis=1)
    y = np.sin(3.0 * t)
    model = ng.Model(LinearModel(1.0), ng.likelihoods.Gaussian(1e-8))
    result = ng.infer(model, x, y, ng.VI(), ng.Constant(1.0))
    sites = Sites(1e8 * y[:, None], np.full((40, 1, 1), 1e8))
    _, weights, posterior, _, _ = definition(x, np.eye(5), np.zeros((1, 5)), sites)
    np.testing.assert_allclose(result.posterior.weights.mean, weights.astype(float), atol=1e-10)
    np.testing.assert_allclose(result.posterior.weights.covariance, posterior.astype(float), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_gaussian_noise_has_a_closed_form():
    y, noise = LIKELIHOODS["gaussian"][1], 0.3
    result = ng.infer(ng.Model(LinearModel(MATRIX, mean=MEAN), ng.likelihoods.Gaussian(noise)), X, y)
    precision = np.linalg.inv(MATRIX) + X.T @ X / noise
    covariance = np.linalg.inv(precision)
    mean = covariance @ (np.linalg.solve(MATRIX, MEAN) + X.T @ y / noise)
    np.testing.assert_allclose(result.posterior.weights.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(result.posterior.weights.covariance, covariance, rtol=1e-9)
    predicted = result.predict(X_NEW)
    np.testing.assert_allclose(predicted.mean, X_NEW @ mean, rtol=1e-10)
    np.testing.assert_allclose(predicted.variance, np.sum((X_NEW @ covariance) * X_NEW, axis=1) + noise, rtol=1e-10)
    marginal = X @ MATRIX @ X.T + noise * np.eye(N)
    residual = y - X @ MEAN
    evidence = -0.5 * residual @ np.linalg.solve(marginal, residual) - 0.5 * np.linalg.slogdet(2 * np.pi * marginal)[1]
    assert result.energy == pytest.approx(-evidence, abs=1e-10)


@pytest.mark.cases(thorough=["0.1"])
@pytest.mark.parametrize("variance", [0.1, 1.0, 50.0])
def test_the_laplace_mode_is_regularised_logistic_regression(variance):
    rng = np.random.default_rng(3)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 3))])
    y = (x @ [0.2, 1.0, -2.0, 0.5] + rng.logistic(size=60) > 0).astype(float)
    result = ng.infer(ng.Model(LinearModel(variance), ng.likelihoods.Bernoulli("logit")), x, y, ng.Newton(), tol=1e-9)
    reference = LogisticRegression(C=variance, fit_intercept=False, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    reference.fit(x, y)
    np.testing.assert_allclose(result.posterior.weights.mean, reference.coef_[0], rtol=1e-7)
    # The Laplace approximation's covariance: the inverse of the negative Hessian at the mode.
    p = 1.0 / (1.0 + np.exp(-x @ reference.coef_[0]))
    hessian = x.T @ (x * (p * (1.0 - p))[:, None]) + np.eye(4) / variance
    np.testing.assert_allclose(result.posterior.weights.covariance, np.linalg.inv(hessian), rtol=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e9])
def test_an_improper_posterior_is_called_improper(size):
    """Both ways to the factor: that of ordinary sites, and that of very precise ones."""
    x = np.eye(2)
    workspace = in_double(LinearModel(1.0).prepare, np.concatenate([x, x[:1]]))

    def proper(*precisions):
        sites = Sites(np.zeros((3, 1)), np.array([*precisions, size])[:, None, None])
        return bool(in_double(workspace.marginals, sites).proper)

    assert proper(-0.9, -0.9) and not proper(-0.9, -1.1)
    # The determinant of I + ΛK is positive here: only the definiteness tells.
    assert proper(-0.5 * size, -0.9) and not proper(-size - 1.1, -1.1)


@pytest.mark.slow
def test_inference_refuses_steps_to_improper_posteriors():
    """Full steps of exact Newton on a likelihood that is not log-concave, from where they leave the cone."""
    x = np.column_stack([np.ones(12), np.linspace(-1.0, 1.0, 12)])
    y = np.where(np.arange(12) % 2, 30.0, -30.0)
    model = ng.Model(LinearModel(100.0, mean=[4.0, 0.0]), ng.likelihoods.StudentT(scale=0.5, df=3.0))
    broken = ng.infer(model, x, y, ng.Newton(), ng.Constant(1.0), throw=False)
    assert broken.status is ng.Status.IMPROPER_POSTERIOR
    guarded = ng.infer(model, x, y, ng.Newton(), throw=False)
    assert not guarded.status.failed and np.all(guarded.marginals.variance > 0.0)
    assert np.any(guarded.sites.precision < 0.0)


@pytest.mark.cases(thorough=["ep"], others="slow")
@pytest.mark.parametrize("method", ["vi", "ep"])
def test_missing_rows_have_no_influence(method):
    likelihood, y = LIKELIHOODS["poisson"]
    y = y.copy()
    y[[1, 6]] = np.nan
    kept = ~np.isnan(y)
    model = ng.Model(LinearModel(VARIANCES), likelihood)
    result = ng.infer(model, X, y, METHODS[method], tol=1e-9)
    expected = ng.infer(model, X[kept], y[kept], METHODS[method], tol=1e-9)
    assert result.energy == pytest.approx(expected.energy, abs=1e-9)
    np.testing.assert_allclose(result.posterior.weights.mean, expected.posterior.weights.mean, atol=1e-9)
    np.testing.assert_allclose(result.marginals.mean[~kept], expected.predict(X[~kept]).latent.mean, atol=1e-9)


@pytest.mark.slow
@pytest.mark.thorough
def test_more_columns_than_rows():
    rng = np.random.default_rng(8)
    x, x_new, variances = rng.normal(size=(7, 20)), rng.normal(size=(4, 20)), rng.uniform(0.1, 2.0, 20)
    y = rng.poisson(3.0, 7)
    ours, theirs = (
        ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), x, y, tol=1e-10)
        for prior in (LinearModel(variances), ng.GP(ng.kernels.Linear(variances)))
    )
    assert ours.energy == pytest.approx(theirs.energy, abs=1e-9)
    np.testing.assert_allclose(ours.predict(x_new).latent.mean, theirs.predict(x_new).latent.mean, atol=1e-9)
    np.testing.assert_allclose(
        ours.predict(x_new).latent.covariance, theirs.predict(x_new).latent.covariance, atol=1e-9
    )


@pytest.mark.slow
def test_the_units_of_the_columns_do_not_matter():
    """Weights of very different sizes, and a covariance whose eigenvalues differ by thirty orders."""
    units = np.array([1e8, 1.0, 1e-8])
    likelihood, y = LIKELIHOODS["poisson"]
    scaled = MATRIX * units[:, None] * units[None, :]
    plain = ng.infer(ng.Model(LinearModel(MATRIX), likelihood), X, y, tol=1e-10)
    other = ng.infer(ng.Model(LinearModel(scaled), likelihood), X / units, y, tol=1e-10)
    assert other.energy == pytest.approx(plain.energy, abs=1e-9)
    np.testing.assert_allclose(other.posterior.weights.mean, plain.posterior.weights.mean * units, rtol=1e-8)


@pytest.mark.cases(thorough=["heteroscedastic"], slow=["poisson"])
@pytest.mark.parametrize("name", ["poisson", "heteroscedastic"])
def test_draws_have_the_joint_distribution(name):
    likelihood, y = LIKELIHOODS[name]
    result = ng.infer(pair(likelihood)[0], X, y)
    posterior = result.posterior
    joint = in_double(posterior.joint, X_NEW)
    with jax.enable_x64(True):
        draws = np.asarray(posterior.draw(jax.random.key(0), jnp.asarray(X_NEW), 40_000))
    assert draws.shape == (40_000, 6, likelihood.num_latents)
    flat = draws.reshape(40_000, -1)
    scales = np.sqrt(np.diagonal(joint.covariance))
    np.testing.assert_allclose((flat.mean(axis=0) - joint.mean) / scales, 0.0, atol=0.03)
    np.testing.assert_allclose((np.cov(flat.T) - joint.covariance) / np.outer(scales, scales), 0.0, atol=0.03)
    # Six rows of three columns: all draws are of the form Xw.
    assert np.linalg.matrix_rank(draws[:, :, 0] - draws[:1, :, 0], tol=1e-9) == P
    assert result.sample(0, X_NEW, 3).shape == (3, 6, likelihood.num_latents)


def test_draws_at_many_rows_are_cheap():
    likelihood, y = LIKELIHOODS["poisson"]
    posterior = ng.infer(ng.Model(LinearModel(1.0), likelihood), X, y).posterior
    many = np.random.default_rng(0).normal(size=(100_000, P))
    with jax.enable_x64(True):
        draws = posterior.draw(jax.random.key(1), jnp.asarray(many), 2)
    assert draws.shape == (2, 100_000, 1)


@pytest.mark.slow
@pytest.mark.thorough
def test_weights_of_several_latents_come_latent_by_latent():
    likelihood, y = LIKELIHOODS["heteroscedastic"]
    result = ng.infer(pair(likelihood)[0], X, y)
    weights = result.posterior.weights
    assert weights.mean.shape == (2 * P,) and weights.covariance.shape == (2 * P, 2 * P)
    assert isinstance(weights.mean, np.ndarray)
    np.testing.assert_allclose(X @ weights.mean.reshape(2, P).T, result.marginals.mean, atol=1e-10)
    np.testing.assert_allclose(
        np.einsum("np,pq,nq->n", X, weights.covariance[:P, P:], X), result.marginals.covariance[:, 0, 1], atol=1e-10
    )


def test_a_mean_may_be_given_in_several_ways():
    for given, expected in [(None, 0.0), (0.5, 0.5), (MEAN, MEAN), ([MEAN, 2.0 * MEAN], np.stack([MEAN, 2.0 * MEAN]))]:
        latents = 2 if np.ndim(given) == 2 else 1
        workspace = in_double(LinearModel(1.0, mean=given, num_latents=latents).prepare, X)
        np.testing.assert_allclose(workspace.mean, X @ np.broadcast_to(expected, (latents, P)).T, atol=1e-14)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("given", [2.0, VARIANCES, MATRIX, np.eye(P), np.diag([1.0, 0.0, 2.0])])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_the_evidence_has_derivatives(given, scale):
    """With respect to the prior covariance and the sites, on both ways to the factor, and where eigenvalues meet."""
    given = np.asarray(given)
    sites = Sites(RNG.normal(size=(N, 1)), scale * np.exp(RNG.normal(size=(N, 1, 1))))

    def value(size, precision):
        model = LinearModel(size * jnp.asarray(given), mean=MEAN)
        workspace = model.prepare(jnp.asarray(X))
        found = workspace.marginals(Sites(jnp.asarray(sites.linear), precision))
        return 0.5 * (found.distance + found.log_det) + jnp.sum(found.marginals.covariance)

    with jax.enable_x64(True):
        start = (jnp.asarray(1.3), jnp.asarray(sites.precision))
        by_size, by_precision = jax.grad(value, argnums=(0, 1))(*start)
        h = 1e-5
        difference = (value(1.3 + h, start[1]) - value(1.3 - h, start[1])) / (2.0 * h)
        direction = start[1] * np.sin(np.arange(N))[:, None, None]
        along = (value(1.3, start[1] + h * direction) - value(1.3, start[1] - h * direction)) / (2.0 * h)
        assert float(by_size) == pytest.approx(float(difference), rel=1e-5)
        assert float(jnp.sum(by_precision * direction)) == pytest.approx(float(along), rel=1e-5)


@pytest.mark.slow
def test_first_order_vi_works_too():
    likelihood, y = LIKELIHOODS["poisson"]
    model = ng.Model(LinearModel(VARIANCES), likelihood)
    result = ng.infer(model, X, y, ng.FirstOrderVI(0.05), max_steps=100, throw=False)
    assert result.energy > ng.infer(model, X, y).energy and np.isfinite(result.energy)


@pytest.fixture
def _as_users_run_it(monkeypatch):
    """The library's own checks, not those of the strict test mode, are what a user meets."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def refuses(call, *fragments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


CONSTRUCTIONS = {
    "negative variance": (lambda: LinearModel(-1.0), "prior_covariance must be at least 0", "-1.0"),
    "one negative variance": (lambda: LinearModel([1.0, -2.0]), "prior_covariance must be at least 0", "-2.0"),
    "a string": (lambda: LinearModel("wide"), "prior_covariance must be a number", "'wide'"),
    "None": (lambda: LinearModel(None), "prior_covariance must be a number", "None"),
    "nan": (lambda: LinearModel(np.nan), "prior_covariance must be finite", "nan"),
    "empty": (lambda: LinearModel([]), "prior_covariance must not be empty"),
    "not square": (lambda: LinearModel(np.ones((2, 3))), "square matrix", "(2, 3)"),
    "three dimensions": (lambda: LinearModel(np.ones((2, 2, 2))), "prior_covariance", "(2, 2, 2)"),
    "not symmetric": (lambda: LinearModel([[1.0, 0.5], [0.2, 1.0]]), "symmetric", "(0, 1) and (1, 0) are 0.5 and 0.2"),
    "not PSD": (lambda: LinearModel([[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite", "eigenvalue", "-1"),
    "negative diagonal": (lambda: LinearModel([[1.0, 0.0], [0.0, -1.0]]), "positive semi-definite"),
    "zero variance with covariance": (lambda: LinearModel([[1.0, 0.1], [0.1, 0.0]]), "positive semi-definite"),
    "mean of other length": (lambda: LinearModel([1.0, 2.0], mean=[1.0]), "2 weight(s)", "mean is for 1"),
    "means of other latents": (
        lambda: LinearModel(1.0, mean=np.ones((2, 3))),
        "one row per latent",
        "(2, 3)",
        "1 latent",
    ),
    "mean as a string": (lambda: LinearModel(1.0, mean="zero"), "mean must be a number", "'zero'"),
    "no latents": (lambda: LinearModel(1.0, num_latents=0), "num_latents must be an integer of at least 1", "0"),
    "half a latent": (lambda: LinearModel(1.0, num_latents=1.5), "num_latents", "1.5"),
}


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("case", CONSTRUCTIONS)
def test_bad_parts_are_refused(case):
    call, *fragments = CONSTRUCTIONS[case]
    refuses(call, *fragments)


@pytest.mark.parametrize(
    ("prior", "fragment"),
    [
        (LinearModel([1.0, 2.0]), "prior_covariance is for 2 weight(s), but x has 3 column(s)"),
        (LinearModel(np.eye(4)), "prior_covariance is for 4 weight(s), but x has 3 column(s)"),
        (LinearModel(1.0, mean=[1.0, 2.0]), "mean is for 2 weight(s), but x has 3 column(s)"),
    ],
)
def test_x_must_have_a_column_a_weight(prior, fragment):
    refuses(
        lambda: ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), X, np.ones(N)), fragment, "one column per weight"
    )


@pytest.mark.usefixtures("_as_users_run_it")
def test_x_new_must_have_the_same_columns():
    result = ng.infer(ng.Model(LinearModel(1.0), ng.likelihoods.Poisson()), X, np.ones(N))
    refuses(lambda: result.predict(X[:, :2]), "x_new", "columns", "3 and 2")
    refuses(lambda: result.sample(0, X[:, :2], 1), "x_new", "columns", "3 and 2")


# In the summary ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_a_summary_has_the_coefficients():
    """Against the normal equations, and the normal quantiles of scipy.stats."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=20)
    result = ng.infer(ng.Model(ng.LinearModel([2.0, 1.0, 0.5]), ng.likelihoods.Gaussian(0.3)), x, y)
    covariance = np.linalg.inv(x.T @ x / 0.3 + np.diag([0.5, 1.0, 2.0]))
    mean, deviation = covariance @ x.T @ y / 0.3, np.sqrt(np.diag(covariance))
    summary = result.summary(checks=False, names=["one", "two", "three"])
    assert [entry["name"] for entry in summary.coefficients] == ["one", "two", "three"]
    np.testing.assert_allclose([entry["mean"] for entry in summary.coefficients], mean, rtol=1e-9)
    np.testing.assert_allclose([entry["standard_deviation"] for entry in summary.coefficients], deviation, rtol=1e-9)
    interval = scipy.stats.norm(mean, deviation).interval(0.95)
    np.testing.assert_allclose(np.transpose([entry["interval"] for entry in summary.coefficients]), interval, rtol=1e-8)
    for text in (str(summary), summary._repr_html_()):
        assert "95 % interval" in text and f"{mean[1]:.4g}" in text and "two" in text
        assert "conditional on the hyperparameters" in text
    assert summary.as_dict()["coefficients"] == summary.coefficients
    assert [entry["name"] for entry in result.summary(checks=False).coefficients] == ["x[0]", "x[1]", "x[2]"]
    with pytest.raises(ValueError, match=r"names must have one name per column of x, 3, got 2"):
        result.summary(names=["one", "two"])


@pytest.mark.thorough
@pytest.mark.slow
def test_coefficients_of_several_latents_and_of_learned_models_say_so():
    rng = np.random.default_rng(4)
    x, y = np.column_stack([np.ones(30), rng.normal(size=30)]), rng.normal(size=30)
    two = ng.infer(ng.Model(ng.LinearModel(1.0, num_latents=2), ng.likelihoods.HeteroscedasticGaussian()), x, y)
    names = [entry["name"] for entry in two.summary(checks=False).coefficients]
    assert names == ["x[0], latent 0", "x[1], latent 0", "x[0], latent 1", "x[1], latent 1"]
    learned = ng.fit(ng.Model(ng.LinearModel(1.0), ng.likelihoods.Gaussian()), x, y, standard_errors=False)
    assert "conditional on the learned hyperparameters" in str(learned.summary(checks=False))
    other = ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian()), [0.0, 1.0], [0.0, 1.0])
    assert other.summary(checks=False).coefficients == []
    with pytest.raises(ValueError, match="names are for the coefficients of a LinearModel"):
        other.summary(names=["a"])
