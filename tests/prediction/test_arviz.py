"""Draws for ArviZ, against SciPy's densities, the marginals, and exact leave-one-out."""

import numpy as np
import pytest
from scipy import stats

import newtongp as ng

arviz_stats = pytest.importorskip("arviz_stats", reason="arviz-stats is optional")
pytest.importorskip("xarray_einstats", reason="arviz-stats needs it for loo")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = np.linspace(0.0, 10.0, 80)
    return x, np.sin(0.5 * x), rng


@pytest.fixture(scope="module")
def gaussian(data):
    x, f, rng = data
    y = f + rng.normal(size=x.size)
    y[7] = np.nan
    return ng.infer(ng.Model(ng.GP(ng.kernels.RBF(lengthscale=5.0)), ng.likelihoods.Gaussian(1.0)), x, y)


@pytest.mark.slow
def test_groups_are_draws_of_the_posterior(gaussian):
    tree = gaussian.to_arviz(draws=500, chains=4, key=1)
    f = tree["posterior"]["f"]
    assert f.dims == ("chain", "draw", "row") and f.shape == (4, 500, 80)
    mean, sd = gaussian.marginals.mean[:, 0], np.sqrt(gaussian.marginals.variance[:, 0])
    # 4.5 standard errors of 2000 independent draws
    np.testing.assert_allclose(f.mean(("chain", "draw")), mean, rtol=0, atol=4.5 * sd.max() / np.sqrt(2000))
    np.testing.assert_allclose(f.std(("chain", "draw")) / sd, 1.0, rtol=0, atol=4.5 / np.sqrt(4000))
    seen = np.delete(np.arange(80), 7)
    for group in ("log_likelihood", "observed_data", "posterior_predictive"):
        np.testing.assert_array_equal(tree[group]["row"], seen)
    np.testing.assert_array_equal(tree["observed_data"]["y"], gaussian.data.outputs[seen, 0])
    expected = stats.norm.logpdf(gaussian.data.outputs[seen, 0], f.values[..., seen], 1.0)
    np.testing.assert_allclose(tree["log_likelihood"]["y"], expected, rtol=0, atol=1e-12)
    spread = (tree["posterior_predictive"]["y"].values - f.values[..., seen]).std()
    assert abs(spread - 1.0) < 4.5 / np.sqrt(2 * 2000 * 79)


@pytest.mark.slow
@pytest.mark.thorough
def test_loo_of_gaussian_noise_is_leave_one_out_up_to_monte_carlo_error(gaussian):
    # The weights 1/p have moments up to (noise variance) / (posterior variance of f), so few draws are enough.
    assert np.max(gaussian.marginals.variance) < 0.25
    found = [arviz_stats.loo(gaussian.to_arviz(draws=1000, key=seed)).elpd for seed in range(20)]
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert error < 0.01
    assert abs(np.mean(found) - np.nansum(gaussian.leave_one_out())) < 4.0 * error


@pytest.mark.slow
@pytest.mark.thorough
def test_several_latents_have_a_dimension(data):
    x, f, rng = data
    y = f + np.exp(0.2 * f) * rng.normal(size=x.size)
    model = ng.Model(
        ng.GP(ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF()])), ng.likelihoods.HeteroscedasticGaussian()
    )
    tree = ng.infer(model, x, y).to_arviz(draws=3, chains=2)
    assert tree["posterior"]["f"].dims == ("chain", "draw", "row", "latent")
    assert tree["posterior"]["f"].shape == (2, 3, 80, 2)
    assert tree["posterior_predictive"]["y"].shape == (2, 3, 80)


def test_wrong_arguments_are_refused(gaussian):
    with pytest.raises(ValueError, match="draws must be"):
        gaussian.to_arviz(draws=0)
    with pytest.raises(MemoryError, match="take fewer"):
        gaussian.to_arviz(draws=10**12)
