"""Known noise per row: variances of a Gaussian, scales of Student's t and the log-normal, with every prior."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

import newtongp as ng

RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(0.0, 5.0, 14))
VARIANCES = RNG.uniform(0.02, 0.6, 14)
Y = np.sin(X) + np.sqrt(VARIANCES) * RNG.normal(size=14)
NEW = np.array([0.4, 2.2, 7.0])
KERNEL = ng.kernels.Matern32(lengthscale=1.2)
PRIORS = {
    "dense": ng.GP(KERNEL),
    "markov": ng.MarkovGP(KERNEL),
    "sparse": ng.SparseGP(KERNEL, inducing=X),
}


def oracle(seen):
    return GaussianProcessRegressor(Matern(1.2, nu=1.5), alpha=VARIANCES[seen], optimizer=None).fit(
        X[seen, None], Y[seen]
    )


@pytest.mark.cases(slow=["sparse", "dense"], thorough=["markov"])
@pytest.mark.parametrize("prior", PRIORS)
def test_regression_agrees_with_scikit_learn(prior):
    seen = np.arange(14) != 5
    y = np.where(seen, Y, np.nan)
    result = ng.infer(ng.Model(PRIORS[prior], ng.likelihoods.Gaussian(VARIANCES)), X, y)
    expected = oracle(seen)
    mean, spread = expected.predict(NEW[:, None], return_std=True)
    prediction = result.predict(NEW, variance=[0.1, 0.2, 0.3])
    np.testing.assert_allclose(prediction.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(prediction.std**2, spread**2 + [0.1, 0.2, 0.3], rtol=1e-8)
    np.testing.assert_allclose(result.energy, -expected.log_marginal_likelihood_value_, rtol=1e-8)


@pytest.mark.slow
def test_linear_models_are_weighted_least_squares():
    design = np.column_stack([np.ones(14), X])
    result = ng.infer(ng.Model(ng.LinearModel([1e8, 1e8]), ng.likelihoods.Gaussian(VARIANCES)), design, Y)
    weights = np.polynomial.polynomial.polyfit(X, Y, 1, w=1.0 / np.sqrt(VARIANCES))
    np.testing.assert_allclose(np.ravel(result.posterior.predict(np.eye(2)).mean), weights, rtol=1e-6)


def test_new_rows_need_their_own():
    result = ng.infer(ng.Model(PRIORS["dense"], ng.likelihoods.Gaussian(VARIANCES)), X, Y)
    with pytest.raises(ValueError, match="the model was given one variance per row: pass variance="):
        result.predict(NEW)
    with pytest.raises(ValueError, match=r"variance must be a number or one value per new row, got 2 value\(s\) for 3"):
        result.predict(NEW, variance=[0.1, 0.2])
    assert result.predict(NEW, variance=0.1).std.shape == (3,)


def test_another_number_of_rows_is_refused():
    model = ng.Model(PRIORS["dense"], ng.likelihoods.Gaussian(VARIANCES[:5]))
    with pytest.raises(ValueError, match=r"variance was given for 5 row\(s\), but the data has 14"):
        ng.infer(model, X, Y)


def test_known_values_are_not_learned_and_single_ones_are():
    def names(likelihood):
        return [parameter.name for parameter in ng.hyperparameters(likelihood)]

    lk = ng.likelihoods
    assert names(lk.Gaussian(VARIANCES)) == [] and names(lk.Gaussian()) == ["variance"]
    assert names(lk.StudentT(scale=VARIANCES)) == ["df"] and names(lk.StudentT()) == ["df", "scale"]
    assert names(lk.LogNormal(VARIANCES)) == [] and names(lk.LogNormal()) == ["scale"]
    assert names(lk.Chained(lk.Gaussian(), variance="exp")) == []


@pytest.mark.slow
def test_fit_leaves_known_values_alone():
    result = ng.fit(ng.Model(PRIORS["dense"], ng.likelihoods.Gaussian(VARIANCES)), X, Y)
    assert set(result.parameters) == {"kernel.lengthscale", "kernel.variance"}
    np.testing.assert_array_equal(result.model.likelihood.variance, VARIANCES)


def test_a_parameter_is_a_latent_or_known_per_row_and_not_both():
    chained = ng.likelihoods.Chained(ng.likelihoods.StudentT(), scale="softplus")
    assert chained.row_parameters == ()
    with pytest.raises(ValueError, match="scale is given per row with the data, and cannot be a latent"):
        ng.likelihoods.Chained(ng.likelihoods.StudentT(scale=VARIANCES), scale="softplus")
    known = ng.likelihoods.Chained(ng.likelihoods.StudentT(scale=VARIANCES), df="exp")
    assert known.row_parameters == ("scale",)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (lambda rows: ng.likelihoods.StudentT(4.0, np.sqrt(VARIANCES)[rows]), Y),
        (lambda rows: ng.likelihoods.LogNormal(np.sqrt(VARIANCES)[rows]), np.exp(Y)),
    ],
    ids=["StudentT", "LogNormal"],
)
def test_equal_scales_are_a_single_scale(likelihood, y):
    equal = ng.infer(ng.Model(PRIORS["dense"], likelihood(np.zeros(14, int))), X, y)
    single = ng.infer(ng.Model(PRIORS["dense"], likelihood(0)), X, y)
    np.testing.assert_allclose(equal.energy, single.energy, rtol=1e-10)
    np.testing.assert_allclose(
        equal.predict(NEW, scale=0.3).quantile(0.9), single.predict(NEW, scale=[0.3] * 3).quantile(0.9), rtol=1e-7
    )
    result = ng.infer(ng.Model(PRIORS["dense"], likelihood(np.arange(14))), X, y)
    assert abs(result.energy - single.energy) > 0.1
