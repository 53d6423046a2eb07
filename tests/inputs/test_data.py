"""What is accepted as data, and that missing rows, repeated inputs and the order of rows mean what they should."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp.inputs.data import read_data

pytestmark = pytest.mark.versions

X = np.array([0.0, 0.4, 1.1, 1.3, 2.0, 2.2, 3.1, 3.5])
Y = np.array([1, 2, 0, 3, 4, 2, 1, 0])
X_NEW = np.array([-0.5, 1.0, 4.0])
MODEL = ng.Model(ng.GP(ng.kernels.Matern52(lengthscale=1.5)), ng.likelihoods.Poisson())
METHODS = {
    "vi": ng.VI(),
    "power ep": ng.PowerEP(0.5),
    "riemannian": ng.VI(safeguard=ng.Riemannian()),
    "quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "first-order vi": ng.FirstOrderVI(),
}


def infer(x=X, y=Y, method=None, model=MODEL, **options):
    return ng.infer(model, x, y, method=method, throw=False, **options)


def assert_same(result, expected, rows=slice(None), tolerance=1e-12):
    np.testing.assert_allclose(result.energy, expected.energy, rtol=tolerance)
    np.testing.assert_allclose(result.marginals.mean[rows], expected.marginals.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(result.marginals.covariance[rows], expected.marginals.covariance, rtol=tolerance)
    ours, theirs = result.predict(X_NEW).latent, expected.predict(X_NEW).latent
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=tolerance)


@pytest.fixture(scope="module")
def reference():
    return infer()


HALVES = np.round(2.0 * X) / 2.0
KINDS = {
    "lists": (X.tolist(), Y.tolist()),
    "tuples": (tuple(X), tuple(Y)),
    "columns": (X[:, None], Y[:, None]),
    "a list of rows": ([[value] for value in X], [[value] for value in Y]),
    "int8 y": (X, Y.astype(np.int8)),
    "unsigned y": (X, Y.astype(np.uint64)),
    "float32 y": (X, Y.astype(np.float32)),
    "longdouble": (X.astype(np.longdouble), Y),
    "big-endian": (X.astype(">f8"), Y.astype(">i4")),
    "not contiguous": (np.repeat(X, 2)[::2], np.repeat(Y, 3)[::3]),
    "objects": (X.astype(object), Y.astype(object)),
    "jax y": (X, jnp.asarray(Y)),
    "series": (pd.Series(X), pd.Series(Y)),
    "an index of their own": (pd.Series(X, index=range(8, 0, -1)), pd.Series(Y, index=range(8, 0, -1))),
    "frames": (pd.DataFrame({"t": X}, index=list("abcdefgh")), pd.DataFrame({"counts": Y}, index=list("abcdefgh"))),
    "nullable": (pd.Series(X, dtype="Float64"), pd.Series(Y, dtype="Int64")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_many_kinds_give_the_same_result(kind, reference):
    assert_same(infer(*KINDS[kind]), reference, tolerance=1e-15)


@pytest.mark.parametrize(
    "kind", [np.float32, np.float16, jnp.float32, jnp.bfloat16, lambda values: jnp.asarray(values, jnp.float32)]
)
def test_inputs_in_lower_precision_are_read_exactly(kind):
    assert_same(infer(kind(HALVES)), infer(HALVES), tolerance=1e-15)


def test_integers_and_booleans_are_numbers():
    x = np.arange(8)
    assert_same(infer(x, Y > 1), infer(x.astype(float), (Y > 1).astype(float)), tolerance=1e-15)
    mixed = pd.DataFrame({"t": X, "late": X > 1.0})
    np.testing.assert_array_equal(read_data(mixed, Y, MODEL).x, np.stack([X, X > 1.0], axis=1))


MISSING = Y.astype(float)
MISSING[[2, 5]] = np.nan
MASK = np.isnan(MISSING)
WITH_NONE = [None if missing else int(value) for value, missing in zip(Y, MASK, strict=True)]


@pytest.mark.parametrize(
    "y",
    [
        pd.Series(WITH_NONE, dtype="Int64"),
        pd.Series(WITH_NONE, dtype="Float64", index=range(3, 11)),
        pd.DataFrame({"y": pd.array(WITH_NONE, dtype="Int64")}),
        WITH_NONE,
        [pd.NA if value is None else value for value in WITH_NONE],
        np.ma.array(Y, mask=MASK),
        np.ma.array(np.where(MASK, -1, Y), mask=MASK),
        jnp.asarray(MISSING),
        MISSING[:, None],
    ],
    ids=["Int64", "Float64", "frame", "None", "NA", "masked", "masked codes", "jax", "column"],
)
def test_missing_is_written_in_many_ways(y):
    result, expected = infer(y=y), infer(y=MISSING)
    np.testing.assert_array_equal(result.sites.precision, expected.sites.precision)
    assert np.all(result.sites.precision[MASK] == 0.0)


def test_nullable_booleans_may_be_missing():
    model = ng.Model(MODEL.prior, ng.likelihoods.Bernoulli())
    read = read_data([0.0, 1.0, 2.0], pd.Series([True, False, pd.NA], dtype="boolean"), model)
    np.testing.assert_array_equal(read.observed, [True, True, False])
    np.testing.assert_array_equal(read.y[:2, 0], [1.0, 0.0])
    assert np.isfinite(read.y[2, 0])


@pytest.mark.cases(slow=["quasi-newton"], others="thorough")
@pytest.mark.parametrize("name", METHODS)
def test_missing_rows_have_no_influence_at_all(name):
    # A fixed number of steps: convergence tests must not see missing rows either.
    result = infer(y=MISSING, method=METHODS[name], max_steps=15)
    kept = infer(X[~MASK], Y[~MASK], method=METHODS[name], max_steps=15)
    assert (result.status, result.steps) == (kept.status, kept.steps)
    assert_same(result, kept, ~MASK, tolerance=1e-11)
    assert np.all(result.sites.linear[MASK] == 0.0) and np.all(result.sites.precision[MASK] == 0.0)
    np.testing.assert_allclose(result.residual, kept.residual, rtol=1e-5, atol=1e-12)


@pytest.mark.cases(slow=["power ep", "quasi-newton"], others="thorough")
@pytest.mark.parametrize("name", METHODS)
def test_what_a_missing_row_would_have_been_given_does_not_matter(name):
    """A start from sites that are not zero there forgets them."""
    start = ng.Sites(np.full((8, 1), 0.3), np.full((8, 1, 1), 0.5))
    result = infer(y=MISSING, method=METHODS[name], sites=start, max_steps=0)
    kept = infer(
        X[~MASK], Y[~MASK], method=METHODS[name], sites=ng.Sites(start.linear[2:], start.precision[2:]), max_steps=0
    )
    assert_same(result, kept, ~MASK)
    assert np.all(result.sites.precision[MASK] == 0.0)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_missing_row_needs_no_value_that_fits_its_own_parameters():
    """With trials of its own, an observed row's successes would be impossible in a missing row."""

    def run(missing_trials):
        likelihood = ng.likelihoods.Binomial(np.where(MASK, missing_trials, 9))
        model = ng.Model(MODEL.prior, likelihood)
        return infer(y=MISSING + 5.0, method=ng.FirstOrderVI(), model=model, max_steps=5)

    few, many = run(1), run(9)
    assert few.steps == 5 and few.energy == many.energy
    np.testing.assert_array_equal(few.sites.linear, many.sites.linear)


@pytest.mark.slow
def test_a_missing_row_where_an_expectation_overflows_leaves_gradients_finite():
    x = np.concatenate([np.linspace(0.0, 10.0, 12), [300.0]])
    y = np.concatenate([np.arange(12) % 4, [np.nan]])
    model = ng.Model(ng.GP(ng.kernels.Matern32(3.0, 5000.0)), ng.likelihoods.Poisson())
    with pytest.warns(ng.ConvergenceWarning):
        result = ng.infer(model, x, y, ng.FirstOrderVI(), max_steps=5)
    with pytest.warns(ng.ConvergenceWarning):
        without = ng.infer(model, x[:-1], y[:-1], ng.FirstOrderVI(), max_steps=5)
    assert result.steps == 5
    np.testing.assert_allclose(result.energy, without.energy, rtol=1e-12)


@pytest.mark.cases(slow=["power ep", "first-order vi"])
@pytest.mark.parametrize("name", METHODS)
def test_all_rows_missing_gives_the_prior(name):
    result = infer(y=np.full(8, np.nan), method=METHODS[name], max_steps=15)
    assert result.status is ng.Status.CONVERGED
    np.testing.assert_allclose(result.energy, 0.0, atol=1e-14)
    np.testing.assert_array_equal(result.marginals.mean, np.zeros((8, 1)))
    np.testing.assert_allclose(result.marginals.covariance, np.ones((8, 1, 1)), rtol=1e-14)
    np.testing.assert_allclose(result.predict(X_NEW).latent.covariance, np.ones((3, 1, 1)), rtol=1e-14)


@pytest.mark.cases(slow=["first-order vi", "power ep"])
@pytest.mark.parametrize("name", METHODS)
def test_permuting_rows_permutes_marginals(name):
    order = np.random.default_rng(0).permutation(8)
    result = infer(y=MISSING, method=METHODS[name], max_steps=15)
    permuted = infer(X[order], MISSING[order], method=METHODS[name], max_steps=15)
    np.testing.assert_allclose(permuted.energy, result.energy, rtol=1e-10)
    np.testing.assert_allclose(permuted.marginals.mean, result.marginals.mean[order], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(permuted.marginals.covariance, result.marginals.covariance[order], rtol=1e-10)
    np.testing.assert_allclose(permuted.sites.precision, result.sites.precision[order], rtol=1e-9)
    np.testing.assert_allclose(permuted.posterior.marginals.mean, permuted.marginals.mean, rtol=1e-12)


@pytest.mark.cases(slow=["power ep"])
@pytest.mark.parametrize("name", ["vi", "power ep"])
def test_repeated_inputs_share_one_marginal(name):
    x = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    result = infer(x, method=METHODS[name], tol=1e-9)
    assert result.status is ng.Status.CONVERGED
    for same in ([0, 1, 2], [3, 4], [5, 6, 7]):
        np.testing.assert_allclose(np.ptp(result.marginals.mean[same]), 0.0, atol=1e-12)
        np.testing.assert_allclose(np.ptp(result.marginals.covariance[same]), 0.0, atol=1e-12)


def test_two_gaussian_rows_at_one_input_are_their_average():
    y, averages = np.sin(X), np.full(8, np.nan)
    averages[:4] = y.reshape(4, 2).mean(axis=1)
    pairs = infer(np.repeat(X[:4], 2), y, model=ng.Model(MODEL.prior, ng.likelihoods.Gaussian(0.2)))
    averaged = infer(X, averages, model=ng.Model(MODEL.prior, ng.likelihoods.Gaussian(0.1)))
    np.testing.assert_allclose(pairs.marginals.mean[::2], averaged.marginals.mean[:4], rtol=1e-11)
    np.testing.assert_allclose(pairs.marginals.covariance[1::2], averaged.marginals.covariance[:4], rtol=1e-11)


def test_inputs_are_left_as_they_were(reference):
    x, y, x_new = X.copy(), MISSING.copy(), X_NEW.copy()
    start = ng.Sites(np.full((8, 1), 0.3), np.full((8, 1, 1), 0.5))
    result = infer(x, y, sites=start)
    result.predict(x_new)
    result.log_density(x, y)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, MISSING)
    np.testing.assert_array_equal(x_new, X_NEW)
    np.testing.assert_array_equal(start.linear, np.full((8, 1), 0.3))
    # And what happens to them later is no concern of the result.
    before = result.predict(X_NEW).mean
    x[:] = 100.0
    np.testing.assert_array_equal(result.predict(X_NEW).mean, before)


def test_one_row_is_enough():
    result = infer([0.0], [3])
    assert result.status is ng.Status.CONVERGED and result.marginals.mean.shape == (1, 1)


@pytest.mark.slow
def test_results_are_numpy_arrays_in_double_precision(reference):
    arrays = [
        *(reference.sites.linear, reference.marginals.covariance, reference.history.energy),
        *(reference.predict(X_NEW).mean, reference.predict(X_NEW).quantile(0.5), reference.log_density(X, Y)),
        *(reference.sample(0, X_NEW, 2), reference.sample_y(0, X_NEW, 2), reference.posterior.marginals.mean),
    ]
    assert {(type(array), array.dtype) for array in arrays} == {(np.ndarray, np.dtype(np.float64))}
