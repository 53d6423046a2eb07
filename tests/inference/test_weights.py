"""Weights of rows: weight 2 is the row twice, weight 0 a missing row, and others what independent formulas say."""

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

import newtongp as ng
from newtongp import terms
from newtongp.likelihoods import Weighted

N = 12
RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(0.0, 6.0, N)).round(2)
COUNTS = RNG.poisson(np.exp(0.8 * np.sin(X))).astype(float)
INTEGERS = np.array([2, 1, 3, 0, 1, 1, 2, 1, 0, 1, 1, 2])
TWICE = np.repeat(np.arange(N), INTEGERS)
FRACTIONS = np.array([0.3, 1.0, 2.5, 0.7, 1.0, 0.1, 1.8, 0.5, 1.0, 0.9, 1.2, 0.4])
KERNEL = ng.kernels.Matern32(1.5, 0.8)
POISSON = ng.likelihoods.Poisson()

CLINIC = np.arange(N) % 4
PRIORS = {
    "dense": lambda: ng.GP(KERNEL),
    "markov": lambda: ng.MarkovGP(KERNEL),
    "sparse": lambda: ng.SparseGP(KERNEL, inducing=np.linspace(0.0, 6.0, 5)[:, None]),
    "additive": lambda: terms.Linear("x", prior=1.0) + terms.Group("clinic", covariance=0.4),
}


def inputs(prior, rows):
    return {"x": X[rows], "clinic": CLINIC[rows]} if prior == "additive" else X[rows]


def assert_same(weighted, repeated, rows=TWICE, tol=1e-8):
    assert weighted.energy == pytest.approx(repeated.energy, abs=tol)
    np.testing.assert_allclose(weighted.marginals.mean[rows], repeated.marginals.mean, atol=tol)
    np.testing.assert_allclose(weighted.marginals.covariance[rows], repeated.marginals.covariance, atol=tol)


def weighted_and_repeated(prior, likelihood, y, method, **options):
    model = ng.Model(PRIORS[prior](), likelihood)
    options = {"tol": 1e-11, "max_steps": 500, **options}
    weighted = ng.infer(model, inputs(prior, np.arange(N)), y, method, weights=INTEGERS, **options)
    return weighted, ng.infer(model, inputs(prior, TWICE), y[TWICE], method, **options)


@pytest.mark.cases(slow=["vi-additive", "vi-dense"], others="thorough")
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", [ng.VI(), ng.Newton(), ng.PowerEP(0.5)], ids=["vi", "newton", "power_ep"])
def test_weights_are_repeated_rows(method, prior):
    assert_same(*weighted_and_repeated(prior, POISSON, COUNTS, method))


METHODS = {
    "ep": ng.PowerEP(1.0),
    "taylor": ng.Taylor(),
    "linearised": ng.PosteriorLinearisation(),
    "regression": ng.PosteriorLinearisation(slope="regression"),
    "second_order": ng.PosteriorLinearisation(order=2),
    "gauss_newton": ng.VI(curvature=ng.GaussNewton()),
    "heuristic": ng.VI(safeguard=ng.Heuristic()),
}
REMEMBERING = {
    "quasi_newton": ng.VI(curvature=ng.QuasiNewton()),
    "power_ep_quasi_newton": ng.PowerEP(0.5, curvature=ng.QuasiNewton()),
}
"""Riemannian methods are not among them: they start from sites of a given precision, so two rows have twice that."""


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", METHODS)
def test_weights_are_repeated_rows_for_all_methods(method):
    assert_same(*weighted_and_repeated("dense", POISSON, COUNTS, METHODS[method]))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("method", REMEMBERING)
def test_weights_are_repeated_rows_after_a_few_steps(method):
    """Proposals of these methods depend on steps before: the same steps lead to the same point."""
    options = {"step": ng.Constant(0.5), "max_steps": 15, "throw": False}
    assert_same(*weighted_and_repeated("dense", POISSON, COUNTS, REMEMBERING[method], **options))


REAL = np.sin(X) + 0.3 * RNG.normal(size=N)
PAIRS = np.stack([REAL, np.where(np.arange(N) % 5 == 1, np.nan, REAL**2)], axis=1)
OTHERS = {
    "gaussian": (ng.likelihoods.Gaussian(0.2), REAL),
    "student": (ng.likelihoods.StudentT(4.0, 0.3), REAL),
    "binomial": (ng.likelihoods.Binomial(np.arange(5, 5 + N)), np.minimum(COUNTS, 5.0)),
    "log-normal": (ng.likelihoods.LogNormal(0.5), np.exp(REAL)),
    "heteroscedastic": (ng.likelihoods.HeteroscedasticGaussian(), REAL),
    "softmax": (ng.likelihoods.Softmax(3), COUNTS % 3),
    "partly_missing": (ng.likelihoods.MultivariateGaussian([0.2, 0.3]), PAIRS),
}


@pytest.mark.cases(
    slow=[
        "gaussian-newton",
    ],
    others="thorough",
)
@pytest.mark.parametrize("method", [ng.VI(), ng.Newton(), ng.PowerEP(1.0)], ids=["vi", "newton", "ep"])
@pytest.mark.parametrize("family", OTHERS)
def test_weights_are_repeated_rows_for_all_kinds_of_integrals(family, method):
    """Closed forms, nodes that follow the density, linear latents, contrasts, and row parameters."""
    likelihood, y = OTHERS[family]
    count = likelihood.num_latents
    prior = ng.GP(KERNEL if count == 1 else ng.kernels.Independent([KERNEL] * count))
    options = {"tol": 1e-11, "max_steps": 500}
    weighted = ng.infer(ng.Model(prior, likelihood), X, y, method, weights=INTEGERS, **options)
    repeated = ng.likelihoods.Binomial(np.arange(5, 5 + N)[TWICE]) if family == "binomial" else likelihood
    assert_same(weighted, ng.infer(ng.Model(prior, repeated), X[TWICE], y[TWICE], method, **options))


# Fractions, against formulas in NumPy -----------------------------------------------------------------


def covariance():
    lags = np.sqrt(3.0) * np.abs(X[:, None] - X[None]) / 1.5
    return 0.8 * (1.0 + lags) * np.exp(-lags)


def log_factorials(y):
    return scipy.special.gammaln(y + 1.0)


def fractional(method, prior="dense", **options):
    model = ng.Model(PRIORS[prior](), POISSON)
    return ng.infer(model, X, COUNTS, method, weights=FRACTIONS, tol=1e-11, max_steps=300, **options)


@pytest.mark.slow
def test_fractional_weights_in_laplace_approximations():
    """The mode by Newton's method on w (y f − exp f) − ½ fᵀK⁻¹f, and the log determinant there."""
    matrix, f = covariance(), np.zeros(N)
    for _ in range(50):
        precision = FRACTIONS * np.exp(f)
        right = precision * f + FRACTIONS * (COUNTS - np.exp(f))
        f = np.linalg.solve(np.linalg.inv(matrix) + np.diag(precision), right)
    precision = FRACTIONS * np.exp(f)
    log_prob = FRACTIONS @ (COUNTS * f - np.exp(f) - log_factorials(COUNTS))
    energy = 0.5 * f @ np.linalg.solve(matrix, f) - log_prob
    energy += 0.5 * np.linalg.slogdet(np.eye(N) + precision[:, None] * matrix)[1]
    result = fractional(ng.Newton(), "markov")
    assert result.energy == pytest.approx(energy, abs=1e-8)
    np.testing.assert_allclose(result.marginals.mean[:, 0], f, atol=1e-8)


def test_fractional_weights_in_variational_inference():
    """The fixed point Λ = w exp(m + v/2), λ = Λm + w (y − exp(m + v/2)), and the free energy there."""
    matrix, mean, variance = covariance(), np.zeros(N), np.ones(N)
    for _ in range(500):
        rate = FRACTIONS * np.exp(mean + 0.5 * variance)
        posterior = np.linalg.inv(np.linalg.inv(matrix) + np.diag(rate))
        mean = posterior @ (rate * mean + FRACTIONS * COUNTS - rate)
        variance = np.diagonal(posterior)
    expected = FRACTIONS @ (COUNTS * mean - np.exp(mean + 0.5 * variance) - log_factorials(COUNTS))
    solved = np.linalg.solve(matrix, posterior)
    divergence = 0.5 * (np.trace(solved) - N + mean @ np.linalg.solve(matrix, mean) - np.linalg.slogdet(solved)[1])
    result = fractional(ng.VI())
    assert result.energy == pytest.approx(divergence - expected, abs=1e-8)
    np.testing.assert_allclose(result.marginals.mean[:, 0], mean, atol=1e-8)
    np.testing.assert_allclose(result.marginals.covariance[:, 0, 0], variance, atol=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_fractional_weights_in_power_expectation_propagation(power):
    """Cavities leave out α of one copy's site, and the density is to the power of αw for w < 1, and α for others."""
    result = fractional(ng.PowerEP(power))
    for row, weight in enumerate(FRACTIONS):
        copies, share = max(weight, 1.0), min(weight, 1.0)
        mean, variance = result.marginals.mean[row, 0], result.marginals.covariance[row, 0, 0]
        linear, precision = result.sites.linear[row, 0] / copies, result.sites.precision[row, 0, 0] / copies
        left_precision = 1.0 / variance - power * precision
        left_mean = (mean / variance - power * linear) / left_precision
        f = left_mean + np.linspace(-12.0, 12.0, 4001) / np.sqrt(left_precision)
        log_density = power * share * (COUNTS[row] * f - np.exp(f)) - 0.5 * left_precision * (f - left_mean) ** 2
        density = np.exp(log_density - np.max(log_density))
        density /= scipy.integrate.simpson(density, x=f)
        tilted_mean = scipy.integrate.simpson(density * f, x=f)
        tilted_variance = scipy.integrate.simpson(density * (f - tilted_mean) ** 2, x=f)
        assert tilted_mean == pytest.approx(mean, abs=1e-8)
        assert tilted_variance == pytest.approx(variance, abs=1e-8)


@pytest.mark.slow
def test_weighted_gaussian_noise_is_noise_of_another_variance():
    """N(y | f, v)^w is N(y | f, v/w) up to a factor, by which alone energies differ."""
    weighted = ng.infer(ng.Model(ng.GP(KERNEL), ng.likelihoods.Gaussian(0.2)), X, REAL, weights=FRACTIONS)
    same = ng.infer(ng.Model(ng.GP(KERNEL), ng.likelihoods.Gaussian(0.2 / FRACTIONS)), X, REAL)
    np.testing.assert_allclose(weighted.marginals.mean, same.marginals.mean, atol=1e-10)
    factor = 0.5 * np.sum((1.0 - FRACTIONS) * np.log(2.0 * np.pi * 0.2) - np.log(FRACTIONS))
    assert weighted.energy == pytest.approx(same.energy - factor, abs=1e-9)


# Everywhere else --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_predictions_have_no_weights():
    """Only the posterior knows weights: y, log densities of new rows and of rows left out are those of one row."""
    model = ng.Model(ng.GP(KERNEL), POISSON)
    result = ng.infer(model, X, COUNTS, ng.Newton(), weights=FRACTIONS)
    assert type(result.model.likelihood) is ng.likelihoods.Poisson
    latent = result.predict(X).latent
    expected = np.exp(latent.mean[:, 0] + 0.5 * latent.covariance[:, 0, 0])
    np.testing.assert_allclose(result.predict(X).mean, expected, rtol=1e-8)
    own = ng.infer(model, X, COUNTS, ng.Newton(), sites=result.sites, max_steps=0, throw=False)
    np.testing.assert_allclose(result.log_density(X, COUNTS), own.log_density(X, COUNTS), atol=1e-10)
    with pytest.warns(ng.ConvergenceWarning):
        np.testing.assert_allclose(result.leave_one_out(), own.leave_one_out(), atol=1e-10)
    assert f"sum of weights {np.sum(FRACTIONS):.6g}" in str(result.summary())


def test_weights_of_one_change_nothing():
    model = ng.Model(ng.GP(KERNEL), POISSON)
    with_ones = ng.infer(model, X, COUNTS, weights=np.ones(N))
    assert with_ones.data.weights is None
    assert with_ones.energy == ng.infer(model, X, COUNTS).energy


def test_weights_in_files(tmp_path):
    result = ng.infer(ng.Model(ng.GP(KERNEL), POISSON), X, COUNTS, weights=INTEGERS)
    result.save(tmp_path / "weighted.ngp")
    loaded = ng.load(tmp_path / "weighted.ngp")
    np.testing.assert_array_equal(loaded.data.weights, INTEGERS)
    np.testing.assert_array_equal(loaded.data.observed, INTEGERS > 0)
    np.testing.assert_allclose(loaded.predict(X).mean, result.predict(X).mean)


VISITS = np.array([15.0, 1.0, 8.0, 1.0, 9.0, 1.0, 6.0, 1.0, 14.0, 2.0, 4.0, 3.0])
TABLE = {"x": X, "clinic": CLINIC, "y": VISITS, "w": INTEGERS}
REPEATED = {name: np.asarray(column)[TWICE] for name, column in TABLE.items()}


@pytest.mark.slow
@pytest.mark.thorough
def test_weights_of_tables_and_fits(tmp_path):
    """A column by its name; hyperparameters that are learned agree too, and new rows need no weights."""
    formula = "y ~ x + (1 | clinic)"
    weighted = ng.fit(formula, TABLE, "poisson", ng.Newton(), effects="maximised", weights="w", weak_priors=False)
    repeated = ng.fit(formula, REPEATED, "poisson", ng.Newton(), effects="maximised", weak_priors=False)
    assert weighted.energy == pytest.approx(repeated.energy, abs=1e-8)
    variance = "group(clinic).covariance"
    assert repeated.learned[variance] > 0.1
    assert weighted.learned[variance] == pytest.approx(repeated.learned[variance], rel=1e-4)
    new = {"x": [1.0, 2.0], "clinic": [0, 9]}
    np.testing.assert_allclose(weighted.predict(new).mean, repeated.predict(new).mean, rtol=1e-3)
    weighted.save(tmp_path / "fit.ngp")
    np.testing.assert_allclose(ng.load(tmp_path / "fit.ngp").predict(new).mean, weighted.predict(new).mean)


@pytest.mark.slow
def test_fractional_weights_of_a_mixed_model():
    """glmmTMB(y ~ x + (1 | clinic), family = poisson, weights = w) gives these; glmer agrees with it to 2e-9."""
    days = [0.51, 0.56, 0.68, 0.96, 1.42, 2.35, 2.6, 2.87, 3.1, 3.49, 4.41, 4.81]
    table = {**TABLE, "x": days, "w": FRACTIONS}
    options = {"effects": "maximised", "weak_priors": False, "tol": 1e-8}
    result = ng.fit("y ~ x + (1 | clinic)", table, "poisson", ng.Newton(), weights="w", **options)
    assert -result.energy == pytest.approx(-27.5598495278137, abs=1e-8)
    intercept, slope = result.learned["linear(x).coefficients"]
    assert slope == pytest.approx(-0.0629508553, abs=1e-6)
    assert intercept - slope * np.mean(days) == pytest.approx(1.5050368200, abs=1e-6)
    assert result.learned["group(clinic).covariance"] == pytest.approx(0.7096488479, abs=1e-5)


@pytest.mark.cases(thorough=["tied-vi", "tied-power_ep", "full-power_ep", "full-vi", "full-power_ep"], others="slow")
@pytest.mark.parametrize("method", [ng.VI(), ng.PowerEP(0.5)], ids=["vi", "power_ep"])
@pytest.mark.parametrize("storage", ["full", "tied"])
def test_weights_in_batches(storage, method):
    prior = ng.SparseGP(KERNEL, inducing=np.linspace(0.0, 6.0, 5)[:, None], storage=storage)
    model, options = ng.Model(prior, POISSON), {"batch_size": 5, "max_steps": 400, "tol": 1e-9}
    weighted = ng.infer(model, X, COUNTS, method, weights=INTEGERS, **options)
    repeated = ng.infer(model, X[TWICE], COUNTS[TWICE], method, **options)
    assert weighted.energy == pytest.approx(repeated.energy, abs=1e-6)
    np.testing.assert_allclose(weighted.predict(X).latent.mean, repeated.predict(X).latent.mean, atol=1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_of_weighted_energies():
    """`fit` with Gaussian noise, where nothing iterates, and with VI: the optimum is that of repeated rows."""
    held = {"kernel.variance": ng.Fixed(), "likelihood.variance": ng.Fixed()}
    options = {"weak_priors": False, "standard_errors": False}
    for likelihood, y in ((ng.likelihoods.Gaussian(0.2), REAL), (POISSON, COUNTS)):
        model = ng.Model(ng.MarkovGP(KERNEL), likelihood)
        options["parameters"] = {name: held[name] for name in held if name.startswith("kernel") or y is REAL}
        weighted = ng.fit(model, X, y, weights=INTEGERS, **options)
        repeated = ng.fit(model, X[TWICE], y[TWICE], **options)
        assert weighted.energy == pytest.approx(repeated.energy, abs=1e-8)
        assert weighted.learned["kernel.lengthscale"] == pytest.approx(repeated.learned["kernel.lengthscale"], rel=1e-4)


@pytest.mark.slow
def test_cross_validation_splits_weights():
    model, folds = ng.Model(ng.GP(KERNEL), POISSON), np.arange(N) % 3
    found = ng.cross_validate(model, X, COUNTS, folds=folds, weights=FRACTIONS)
    for fold in range(3):
        train, test = folds != fold, folds == fold
        one = ng.infer(model, X[train], COUNTS[train], weights=FRACTIONS[train])
        np.testing.assert_allclose(found.log_density[test], one.log_density(X[test], COUNTS[test]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_derivatives_in_weights():
    """dF/dw = −E[log p(y | f)] at the minimum of the free energy."""
    import jax

    with jax.enable_x64(True):

        def energy(weights):
            return ng.solve(ng.Model(ng.GP(KERNEL), Weighted(POISSON, weights)), (X, COUNTS), tol=1e-10).energy

        slopes = np.asarray(jax.grad(energy)(FRACTIONS))
    marginals = fractional(ng.VI()).marginals
    mean, variance = marginals.mean[:, 0], marginals.covariance[:, 0, 0]
    expected = COUNTS * mean - np.exp(mean + 0.5 * variance) - log_factorials(COUNTS)
    np.testing.assert_allclose(slopes, -expected, atol=1e-7)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.where(np.arange(N) == 3, -1.0, 1.0), r"weights must be finite and at least 0, but row 3 is -1.0: use 0"),
        (np.where(np.arange(N) == 5, np.nan, 1.0), r"but row 5 is nan: use 0"),
        (np.full(N, np.inf), r"but row 0 is inf"),
        (np.ones(N - 1) * 2.0, r"weights was given for 11 row\(s\), but the data has 12: give one value per row"),
        (np.ones((N, 2)), r"weights must be an array with at most 1 dimension"),
        ("w", r"weights is given by the column 'w' of a table, but x is not the table"),
        (["a"] * N, r"weights must be a number or an array of numbers"),
    ],
)
def test_wrong_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        ng.infer(ng.Model(ng.GP(KERNEL), POISSON), X, COUNTS, weights=weights)


def test_wrong_uses_of_weights():
    with pytest.raises(ValueError, match="Weighted already has weights: give their product"):
        Weighted(Weighted(POISSON, 2.0), 2.0)
    with pytest.raises(ValueError, match=r"write Weighted\(ZeroInflated\(\.\.\.\), weights\)"):
        ng.likelihoods.ZeroInflated(Weighted(POISSON, 2.0))
    with pytest.raises(ValueError, match="base must be a likelihood"):
        Weighted("poisson", 2.0)
    table = {**TABLE, "w": np.where(np.arange(N) == 7, -2.0, 1.0)}
    with pytest.raises(ValueError, match=r"row 7 of column 'w': weights must be"):
        ng.infer("y ~ x", table, "poisson", weights="w")
