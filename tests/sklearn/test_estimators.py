"""The estimators for scikit-learn: the same numbers as `newtongp.fit`, in the units and labels of the user."""

import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import newtongp as ng
from newtongp.sklearn import GPClassifier, GPRegressor, choices
from newtongp.sklearn.choices import Size, centres_of, coarse_for, method_for, prior_for, shares_kernel
from newtongp.sklearn.hyperpriors import with_priors
from newtongp.sklearn.scaling import Scaling

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 10.0, size=(60, 2)) * np.array([1.0, 1000.0])
Y = 5e4 + 3e3 * np.sin(X[:, 0]) + X[:, 1] + 300.0 * RNG.normal(size=60)
NEW = X[:5] + np.array([0.3, 50.0])
WEIGHTS = np.arange(60) % 4
LABELS = np.array(["no", "perhaps", "yes"])[np.digitize(Y, np.quantile(Y, [0.3, 0.7]))]


@pytest.fixture(scope="module")
def regressor():
    return GPRegressor(random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return GPClassifier(learn=False, method="newton").fit(X, LABELS)


@pytest.mark.slow
def test_regression_is_that_of_fit_on_scaled_data(regressor):
    shift, scale = X.mean(axis=0), X.std(axis=0)
    model = ng.Model(ng.GP("matern52"), "gaussian")
    options = {"tol": 1e-2, "weak_priors": "keep", "standard_errors": False}
    lengthscales = ng.parameters.LogNormal(3.0 * np.sqrt(2.0) * np.e * np.ones(2), 1.0)  # with the mode 3√2
    options["parameters"] = {
        "kernel.lengthscale": ng.Free(prior=lengthscales),
        "likelihood.variance": ng.Free(lower=1e-6),
    }
    result = ng.fit(model, (X - shift) / scale, (Y - Y.mean()) / Y.std(), **options)
    prediction = result.predict((NEW - shift) / scale)
    mean, std = regressor.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, Y.mean() + Y.std() * prediction.mean, rtol=1e-6)
    np.testing.assert_allclose(std, Y.std() * prediction.std, rtol=1e-4)
    np.testing.assert_array_equal(regressor.predict(NEW), mean)
    assert regressor.prior_ == "dense" and regressor.n_features_in_ == 2


@pytest.mark.slow
def test_quantiles_densities_and_draws_are_in_the_units_of_y(regressor):
    mean, std = regressor.predict(NEW, return_std=True)
    quantiles = regressor.predict_quantiles(NEW, [0.1, 0.5])
    np.testing.assert_allclose(quantiles, mean[:, None] + std[:, None] * norm.ppf([0.1, 0.5]), rtol=1e-6)
    assert regressor.predict_quantiles(NEW).shape == (5, 3)
    y = mean + std
    np.testing.assert_allclose(regressor.log_density(NEW, y), norm.logpdf(y, mean, std), rtol=1e-6)
    draws = regressor.sample_y(NEW, 2000, random_state=1)
    assert draws.shape == (5, 2000)
    # Four standard errors of a mean of 2000 draws.
    assert np.all(np.abs(draws.mean(axis=1) - mean) < 4.0 * std / np.sqrt(2000))
    np.testing.assert_array_equal(draws, regressor.sample_y(NEW, 2000, random_state=1))


@pytest.mark.slow
def test_rows_are_predicted_in_pieces(regressor, monkeypatch):
    whole = regressor.predict(X), regressor.log_density(X, Y)
    monkeypatch.setattr("newtongp.sklearn.base._PIECE", 7)
    np.testing.assert_allclose(regressor.predict(X), whole[0], rtol=1e-10)
    np.testing.assert_allclose(regressor.log_density(X, Y), whole[1], rtol=1e-8)


@pytest.mark.slow
def test_classes_are_those_of_the_labels(classifier):
    codes = np.searchsorted(["no", "perhaps", "yes"], LABELS)
    x = Scaling.of(X)
    model = ng.Model(ng.GP("matern52"), ng.likelihoods.Softmax(3))
    prediction = ng.infer(model, x.apply(X), codes, ng.Newton()).predict(x.apply(NEW))
    probabilities = classifier.predict_proba(NEW)
    np.testing.assert_allclose(probabilities, prediction.probabilities, rtol=1e-6)
    np.testing.assert_allclose(classifier.predict_log_proba(NEW), np.log(probabilities))
    # All rows are inducing inputs: the sparse GP is the dense one.
    assert classifier.prior_ == "sparse" and classifier.result_.posterior.inducing[0].shape == (64, 2)
    assert classifier.classes_.tolist() == ["no", "perhaps", "yes"]
    assert classifier.predict(NEW).tolist() == classifier.classes_[probabilities.argmax(axis=1)].tolist()
    assert classifier.score(X, LABELS) > 0.8
    densities = classifier.log_density(NEW, LABELS[:5])
    np.testing.assert_allclose(np.exp(densities), probabilities[np.arange(5), codes[:5]], rtol=1e-6)
    draws = classifier.sample_y(NEW, 500)
    assert draws.shape == (5, 500) and set(draws.ravel()) <= set(LABELS)
    # Four standard errors of a share of 500 draws.
    assert np.all(np.abs((draws == "yes").mean(axis=1) - probabilities[:, 2]) < 4.0 * 0.5 / np.sqrt(500))


@pytest.mark.slow
def test_a_fitted_estimator_can_be_pickled_and_cloned(regressor, classifier):
    again = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_allclose(again.predict(NEW), regressor.predict(NEW), rtol=1e-10)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_allclose(again.predict_proba(NEW), classifier.predict_proba(NEW), rtol=1e-8)
    with pytest.raises(NotFittedError):
        clone(regressor).predict_quantiles(NEW)
    kernel = ng.kernels.RBF(lengthscale=[1.0, 2.0])
    copied = clone(GPRegressor(kernel, method=ng.PowerEP(0.5)))
    assert copied.kernel is not kernel and copied.kernel.lengthscale.tolist() == [1.0, 2.0]
    assert "PowerEP" in repr(copied) or "method=" in repr(copied)


def chosen(rows, columns, latents=1, gaussian=True, **given):
    usual = {"kernel": "matern52", "prior": "auto", "max_dense": None, "inducing": 100, "batch_size": "auto"}
    method = method_for(given.pop("method", None))
    return prior_for(size=Size(rows, columns, latents, gaussian), method=method, seed=0, **(usual | given))


@pytest.mark.parametrize(
    ("size", "given", "expected"),
    [
        ((10**6, 1), {}, ("markov", None)),
        ((1000, 2), {}, ("dense", None)),
        ((1001, 2), {}, ("sparse", None)),
        ((500, 2, 1, False), {}, ("dense", None)),
        ((501, 2, 1, False), {}, ("sparse", None)),
        ((30, 2, 3, False), {}, ("sparse", None)),
        ((30, 2, 3, False), {"prior": "dense"}, ("dense", None)),
        ((300, 2), {"max_dense": 200}, ("sparse", None)),
        ((20_001, 2), {}, ("sparse", 4096)),
        ((20_001, 2), {"method": "newton"}, ("sparse", None)),
        ((20_001, 2), {"batch_size": None}, ("sparse", None)),
        ((50, 2), {"prior": "sparse", "batch_size": 10}, ("sparse", 10)),
        ((50, 1), {"prior": "dense"}, ("dense", None)),
        ((50, 1), {"kernel": ng.kernels.RationalQuadratic()}, ("dense", None)),
        ((50, 1), {"prior": ng.GP(ng.kernels.RBF())}, ("GP", None)),
    ],
)
def test_the_prior_follows_the_rule(size, given, expected):
    choice = chosen(*size, **given)
    assert (choice.name, choice.batch_size) == expected


def test_a_kernel_serves_every_latent_with_a_mean():
    prior = chosen(50, 2, 3, kernel=ng.kernels.RBF(lengthscale=2.0)).prior
    assert prior.num_latents == 3
    names = [parameter.name for parameter in ng.hyperparameters(ng.Model(prior, ng.likelihoods.Softmax(3)))]
    assert sum("lengthscale" in name for name in names) == 3 and sum("mean" in name for name in names) == 3


def test_priors_are_on_lengthscales_and_on_variances_of_classes():
    model = ng.Model(ng.GP("matern52"), ng.likelihoods.Softmax(3))
    found = with_priors(model, np.array([1.0, 2.0]), True, {})
    names = [f"kernel[{latent}].{part}" for latent in range(3) for part in ("lengthscale", "variance")]
    assert list(found) == names
    gradient = jax.grad(lambda log: jnp.sum(found["kernel[0].lengthscale"].prior(jnp.exp(log)) + log))
    modes = np.log(3.0 * np.sqrt(2.0) * np.array([1.0, 2.0])) + 1.0  # of a density of the logarithm
    np.testing.assert_allclose(gradient(modes), 0.0, atol=1e-5)
    bounds = {"likelihood.variance": ng.Free(lower=1e-6)}
    numbers = with_priors(ng.Model(ng.GP("matern52"), "gaussian"), np.ones(2), False, bounds)
    assert set(numbers) == {"likelihood.variance", "kernel.lengthscale"}


@pytest.mark.parametrize(
    ("kernel", "prior", "likelihood", "columns", "expected"),
    [
        ("matern52", "auto", ng.likelihoods.Softmax(10), 61, True),
        ("matern52", "auto", ng.likelihoods.Softmax(3), 13, False),
        ("matern52", "auto", ng.likelihoods.Bernoulli(), 61, False),
        (ng.kernels.RBF(), "auto", ng.likelihoods.Softmax(10), 61, False),
        ("matern52", ng.GP("matern52"), ng.likelihoods.Softmax(10), 61, False),
    ],
)
def test_many_lengthscales_of_classes_are_shared(kernel, prior, likelihood, columns, expected):
    assert shares_kernel(kernel, prior, likelihood, columns) == expected


def test_a_shared_kernel_has_one_set_of_hyperparameters_that_start_at_the_modes():
    model = ng.Model(ng.GP("matern52"), ng.likelihoods.Softmax(3))
    found = with_priors(model, np.array([1.0, 2.0]), True, {}, shared=True)
    free = {name: given.start for name, given in found.items() if isinstance(given, ng.Free)}
    assert set(free) == {"kernel[0].lengthscale", "kernel[0].variance"}
    np.testing.assert_allclose(free["kernel[0].lengthscale"], 3.0 * np.sqrt(2.0) * np.array([1.0, 2.0]))
    ties = {name: given.to for name, given in found.items() if isinstance(given, ng.Tied)}
    assert ties["kernel[2].lengthscale"] == "kernel[0].lengthscale" and len(ties) == 4


def test_many_classes_are_learned_from_fewer_rows_and_inducing_inputs():
    digits = Size(1347, 61, 10, False)
    sparse = chosen(*digits)
    assert coarse_for(sparse, digits, 100, 10_000) == (50, 1000)
    assert coarse_for(sparse, digits, 30, None) is None
    assert coarse_for(sparse, digits._replace(rows=20_000), 30, None) == (30, 20_000)
    assert coarse_for(sparse, Size(500, 20, 3, False), 100, 10_000) is None
    assert coarse_for(chosen(*digits, prior="dense"), digits, 100, 10_000) is None


def test_inducing_inputs_do_not_depend_on_repeated_rows():
    centres = centres_of(X, 10, "matern52", 0)
    assert centres.shape == (10, 2)
    np.testing.assert_array_equal(centres_of(np.repeat(X, WEIGHTS + 1, axis=0), 10, "matern52", 0), centres)
    assert centres_of(X, 100, "matern52", 0).shape == (64, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::newtongp.FitWarning")  # of means that equal shares leave at zero
def test_many_columns_of_classes(monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 18))
    y = np.argmax(x[:, :3] + 0.3 * rng.normal(size=(150, 3)), axis=1)
    model = GPClassifier(inducing=20, random_state=0).fit(x[:120], y[:120])
    names = [name for name in model.result_.learned if "kernel" in name]
    assert names == ["kernel[0].lengthscale", "kernel[0].variance"]
    first, *others = model.result_.posterior.inducing
    assert first.shape == (20, 18) and all(np.array_equal(first, other) for other in others)
    assert model.score(x[120:], y[120:]) > 0.7
    monkeypatch.setattr(choices, "_COSTLY", 0.0)
    monkeypatch.setattr(choices, "_LEARN_INDUCING", 10)
    coarse = GPClassifier(inducing=20, max_learn=240, random_state=0).fit(x[:120], y[:120])
    assert coarse.result_.posterior.inducing[0].shape == (20, 18) and coarse.result_.marginals.mean.shape == (120, 3)
    assert coarse.score(x[120:], y[120:]) > 0.7


@pytest.mark.slow
def test_specifications_replace_the_priors():
    x, y = X / X.std(axis=0), (Y - Y.mean()) / Y.std()
    plain = GPRegressor(scale_x=False, parameters={}, tol=1e-5).fit(x, y)
    fitted = ng.fit(ng.Model(ng.GP("matern52"), "gaussian"), x, y, weak_priors="keep", standard_errors=False)
    np.testing.assert_allclose(plain.result_.energy, fitted.energy, rtol=1e-6)
    assert plain.result_.energy < GPRegressor(scale_x=False).fit(x, y).result_.energy


def test_methods_have_names():
    assert method_for(None).target.name == method_for("VI").target.name == "vi"
    assert method_for("ep").target.power == 1.0
    with pytest.raises(ValueError, match="did you mean 'newton'"):
        method_for("newtn")
    with pytest.raises(ValueError, match="method must be"):
        method_for(3)


def test_scaling_knows_constant_columns_and_weights():
    values = RNG.normal(size=(7, 3)) * np.array([1.0, 1e-200, 0.0]) + np.array([5.0, 0.0, 0.1])
    scaling = Scaling.of(values)
    scaled = scaling.apply(values)
    np.testing.assert_allclose(scaled.std(axis=0), [1.0, 1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(scaling.undo(scaled), values, rtol=1e-12)
    weights = np.array([2, 1, 3, 1, 1, 2, 1])
    np.testing.assert_allclose(Scaling.of(values, weights), Scaling.of(np.repeat(values, weights, axis=0)), rtol=1e-9)


@pytest.mark.cases(slow=["vi"], others="thorough")
@pytest.mark.parametrize("method", ["newton", "vi"])
def test_a_weight_is_a_number_of_rows(method):
    labels = LABELS == "yes"
    estimators = GPRegressor(learn=False, method=method), GPClassifier(learn=False, method=method)
    for estimator, y in zip(estimators, (Y, labels), strict=True):
        repeated = clone(estimator).fit(np.repeat(X, WEIGHTS, axis=0), np.repeat(y, WEIGHTS))
        weighted = clone(estimator).fit(X, y, sample_weight=WEIGHTS)
        predict = "predict" if estimator is estimators[0] else "predict_proba"
        np.testing.assert_allclose(getattr(weighted, predict)(NEW), getattr(repeated, predict)(NEW), rtol=1e-7)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.zeros(60), "every sample_weight is zero"),
        (np.ones(59), "one value per row"),
        (np.ones((60, 1)), "one value per row"),
        (-np.ones(60), "at least 0, but row 0 is -1"),
        (np.full(60, np.nan), "sample_weight contains NaN"),
    ],
)
def test_wrong_weights_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        GPRegressor().fit(X, Y, sample_weight=weights)


def test_classes_of_weight_zero_are_no_classes():
    with pytest.raises(ValueError, match="one class only, 'no'"):
        GPClassifier().fit(X, LABELS, sample_weight=(LABELS == "no").astype(float))


@pytest.mark.parametrize(
    ("estimator", "y", "words"),
    [
        (GPRegressor(likelihood="poison"), Y, "did you mean 'poisson'"),
        (GPRegressor(likelihood=3), Y, "likelihood must be"),
        (GPRegressor(likelihood=ng.likelihoods.MultivariateGaussian([1.0, 1.0])), Y, "2 outputs"),
        (GPRegressor(likelihood="poisson"), Y, "non-negative integers"),
        (GPRegressor(kernel="matern"), Y, "kernel"),
        (GPRegressor(prior="dence"), Y, "prior must be one of"),
        (GPRegressor(max_dense=-1), Y, "max_dense"),
        (GPRegressor(learn="yes"), Y, "learn"),
        (GPClassifier(), np.zeros(60, dtype=int), "at least two classes"),
        (GPClassifier(likelihood="poisson"), LABELS, "likelihood of classes"),
        (GPClassifier(likelihood=ng.likelihoods.Poisson()), LABELS, "one of classes"),
        (GPClassifier(likelihood="bernoulli"), LABELS, "2 classes, but y has 3"),
    ],
)
def test_wrong_arguments_are_named(estimator, y, words):
    with pytest.raises(ValueError, match=words):
        estimator.fit(X, y)


@pytest.mark.slow
def test_unknown_labels_are_named(classifier):
    with pytest.raises(ValueError, match="'maybe', which is not one of the classes"):
        classifier.log_density(NEW, np.array(["no", "yes", "maybe", "no", "no"]))


def test_counts_need_positive_y():
    assert GPRegressor(likelihood="poisson").__sklearn_tags__().target_tags.positive_only
    assert not GPRegressor().__sklearn_tags__().target_tags.positive_only
    assert not GPRegressor(likelihood="nonsense").__sklearn_tags__().target_tags.positive_only


@pytest.mark.slow
def test_without_scikit_learn_the_error_says_so():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "try:\n    import newtongp.sklearn\n"
        "except ImportError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "needs scikit-learn 1.6 or later" in printed and "newtongp[sklearn]" in printed
