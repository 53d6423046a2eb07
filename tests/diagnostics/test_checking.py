"""Calibration, cross-validation and comparison, against closed forms and loops written out with NumPy and SciPy."""

import copy

import numpy as np
import pytest
from scipy import integrate, stats

import newtongp as ng
from newtongp import diagnostics as checking
from newtongp.diagnostics import cross_validation
from newtongp.diagnostics.calibration import around
from newtongp.validation.times import Clock
from tests.inference.test_size_classes import compilations

likelihoods = ng.likelihoods
RNG = np.random.default_rng(0)
NOISE = 0.3
X = np.sort(RNG.uniform(0.0, 10.0, 20))
Y = np.sin(X) + np.sqrt(NOISE) * RNG.normal(size=20)
MISSING = 7
Y[MISSING] = np.nan
SEEN = np.isfinite(Y)
MODEL = ng.Model(ng.GP(ng.kernels.RBF(lengthscale=1.5)), likelihoods.Gaussian(NOISE))
LABELS = np.where(X < 3.0, "early", np.where(X < 7.0, "middle", "late"))

COUNTS = RNG.poisson(2.0, size=20).astype(float)
EXPOSURE = RNG.uniform(0.5, 2.0, size=20)
RATES = ng.Model(ng.GP(ng.kernels.RBF(lengthscale=1.5)), likelihoods.Poisson(exposure=EXPOSURE))


def gram(a, b):
    return np.exp(-0.5 * (a[:, None] - b[None, :]) ** 2 / 1.5**2)


def left_out():
    """Mean and variance of each y given all others (Rasmussen and Williams, 5.12)."""
    inverse = np.linalg.inv(gram(X[SEEN], X[SEEN]) + NOISE * np.eye(SEEN.sum()))
    return Y[SEEN] - inverse @ Y[SEEN] / np.diag(inverse), 1.0 / np.diag(inverse)


def regress(x, y, x_new):
    """Mean and variance of new y."""
    weights = np.linalg.solve(gram(x, x) + NOISE * np.eye(x.size), gram(x, x_new))
    return weights.T @ y, 1.0 + NOISE - np.sum(weights * gram(x, x_new), axis=0)


@pytest.fixture(scope="module")
def result():
    return ng.infer(MODEL, X, Y)


@pytest.fixture(scope="module")
def by_blocks():
    return ng.cross_validate(MODEL, X, Y, folds=LABELS)


# Calibration ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_leave_one_out_is_that_of_the_inverse_kernel_matrix(result):
    mean, variance = left_out()
    exact = stats.norm(mean, np.sqrt(variance))
    found = result.calibration()
    np.testing.assert_allclose(result.leave_one_out()[SEEN], exact.logpdf(Y[SEEN]), rtol=1e-8)
    np.testing.assert_allclose(found.pit[SEEN], exact.cdf(Y[SEEN]), atol=1e-8)
    np.testing.assert_array_equal(found.lower, found.upper)
    assert np.isnan(found.pit[MISSING]) and found.rows == 19
    for level, share in found.coverage.items():
        low, high = exact.interval(level)
        assert share == pytest.approx(np.mean((low <= Y[SEEN]) & (Y[SEEN] <= high)))
        assert found.standard_errors[level] == pytest.approx(np.sqrt(level * (1.0 - level) / 19.0))
    assert found.p_value == pytest.approx(stats.kstest(exact.cdf(Y[SEEN]), "uniform").pvalue)


def test_new_data_are_held_against_the_predictive_distribution(result):
    x_new, y_new = np.array([2.2, 5.1, 12.0]), np.array([0.9, np.nan, 1.5])
    mean, variance = regress(X[SEEN], Y[SEEN], x_new)
    found = result.calibration(x_new, y_new)
    np.testing.assert_allclose(found.pit, stats.norm(mean, np.sqrt(variance)).cdf(y_new), atol=1e-8)
    assert found.rows == 2 and found.source == "new data"


def test_simulated_data_are_calibrated_and_others_are_not(result):
    draws = np.random.default_rng(1)
    x_new = np.full(4000, 25.0)  # far from the data: the prior, with independent noise around one f
    y_new = draws.normal(size=4000) * np.sqrt(1.0 + NOISE)
    right, wrong = result.calibration(x_new, y_new), result.calibration(x_new, 1.5 * y_new)
    assert right.p_value > 0.01 and wrong.p_value < 1e-6
    for level in checking.LEVELS:
        assert abs(right.coverage[level] - level) < 3.0 * right.standard_errors[level]
        assert wrong.coverage[level] < level - 5.0 * wrong.standard_errors[level]
    low, high = stats.binom.ppf([1e-4, 1.0 - 1e-4], 4000, 0.05)
    heights = right.histogram(20)
    assert np.all((low <= heights) & (heights <= high)) and heights.sum() == pytest.approx(4000.0)
    assert wrong.histogram(20)[[0, -1]].min() > high


@pytest.mark.slow
def test_simulated_counts_are_calibrated():
    """Coverage and histogram of counts have the right expectation, although no interval of counts has."""
    model = ng.Model(ng.GP(ng.kernels.RBF(variance=1e-8)), likelihoods.Poisson())
    known = ng.infer(model, [0.0], [1])  # f is 0
    rate = np.repeat([0.3, 5.0], 500)
    y_new = np.random.default_rng(2).poisson(rate)
    found = known.calibration(np.zeros(1000), y_new, exposure=rate, key=3)
    np.testing.assert_allclose(found.upper, stats.poisson(rate).cdf(y_new), atol=1e-6)
    np.testing.assert_allclose(found.lower, stats.poisson(rate).cdf(y_new - 1), atol=1e-6)
    assert np.all((found.lower <= found.pit) & (found.pit <= found.upper)) and found.p_value > 0.01
    for level in checking.LEVELS:
        assert abs(found.coverage[level] - level) < 3.0 * found.standard_errors[level]
    np.testing.assert_allclose(found.histogram(5), 200.0, atol=40.0)
    same, other = (checking.Calibration(found.lower, found.upper, "new data", key) for key in (3, 4))
    np.testing.assert_array_equal(found.pit, same.pit)
    assert np.any(found.pit != other.pit) and found.coverage == other.coverage


def test_counts_at_an_end_of_an_interval_count_in_part():
    # Between 0.2 and 0.7, of which 0.25 to 0.7 is in the central half: 0.45 of 0.5.
    found = checking.Calibration(np.array([0.2]), np.array([0.7]), "new data")
    assert found.covered(0.5) == pytest.approx(0.9)
    np.testing.assert_allclose(found.histogram(4), [0.1, 0.5, 0.4, 0.0], atol=1e-12)


def test_values_on_0_and_1_belong_to_the_first_and_last_bars():
    ends = np.array([0.0, 1.0, 0.5])
    found = checking.Calibration(ends, ends, "new data")
    assert found.histogram(3).tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_latents_that_enter_linearly_are_integrated_exactly():
    """Against Simpson's rule over both latents, where the first is far wider than the noise."""
    covariance = np.array([[1.0, 0.1], [0.1, 0.3]])
    latent = ng.Gaussian(np.array([[0.2, -1.5]]), covariance[None])
    prediction = ng.prediction.Prediction(likelihoods.HeteroscedasticGaussian(link="exp"), latent, None)
    z = np.linspace(-8.0, 8.0, 801)
    f = np.array([0.2, -1.5])[:, None, None] + np.einsum(
        "ij,jkl->ikl", np.linalg.cholesky(covariance), np.stack(np.meshgrid(z, z, indexing="ij"))
    )
    weights = stats.norm.pdf(z)[:, None] * stats.norm.pdf(z)[None, :]
    for y in (-1.5, 0.3):
        values = weights * stats.norm.cdf(
            (y - f[0]) / np.sqrt(likelihoods.HeteroscedasticGaussian("exp").covariance(f))
        )
        exact = integrate.simpson(integrate.simpson(values, x=z), x=z)
        assert prediction.cdf(y)[0] == pytest.approx(exact, abs=1e-6)


def test_checks_of_other_numbers_of_rows_compile_nothing():
    model = ng.Model(ng.GP(ng.kernels.RBF(lengthscale=1.5)), likelihoods.Poisson())

    def everything(rows):
        result = ng.infer(model, X[:rows], COUNTS[:rows])
        folds = ng.cross_validate(model, X[:rows], COUNTS[:rows], folds=2)
        return result.calibration(), result.calibration(X[:rows], COUNTS[:rows]), folds.calibration

    everything(12)
    with compilations() as compiled:
        for rows in (11, 10):
            assert all(found is not None and found.pit.shape == (rows,) for found in everything(rows))
    assert not compiled


def test_calibration_shows_as_a_table(result):
    found = result.calibration()
    text = str(found)
    assert "leave-one-out" in text and "19 rows" in text and "95 %" in text
    assert repr(found).startswith("Calibration of 19 row(s), leave-one-out: ")


def test_a_calibration_without_rows_says_so(result):
    found = result.calibration(X[:3], np.full(3, np.nan))
    assert found.rows == 0 and repr(found) == "Calibration of no rows, new data: none is both observed and predictable"
    assert "no rows: none is both observed" in " ".join(str(found).split())
    for ask in (lambda: found.coverage, lambda: found.standard_errors, lambda: found.p_value, found.histogram):
        with pytest.raises(ValueError, match="calibration has no rows: none is both observed and predictable"):
            ask()


def test_a_sparse_prior_with_all_inputs_is_calibrated_as_the_dense_one(result):
    sparse = ng.infer(ng.Model(ng.SparseGP(MODEL.prior.kernel, X[:, None]), MODEL.likelihood), X, Y)
    np.testing.assert_allclose(sparse.calibration().pit, result.calibration().pit, atol=1e-6)


def without_data(result):
    """As a result of data that was read in chunks."""
    chunked = object.__new__(ng.Result)
    chunked.__dict__.update({**result.__dict__, "data": None})
    return chunked


def test_rows_that_were_not_kept_are_asked_for(result):
    with pytest.raises(ValueError, match="leave-one-out needs the rows and their sites"):
        without_data(result).calibration()
    assert without_data(result).calibration(X, Y).rows == 19
    with pytest.raises(ValueError, match="'model 0' was read in chunks"):
        ng.compare([without_data(result)])


class OnlyDensity(ng.Likelihood):
    def log_prob(self, y, f):
        return -0.5 * (y - f) ** 2


@pytest.mark.slow
def test_calibration_says_what_it_lacks(result):
    with pytest.raises(ValueError, match="y_new is missing: calibration on new data"):
        result.calibration([1.0])
    with pytest.raises(ValueError, match="exposure is for new rows"):
        result.calibration(exposure=2.0)
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 95"):
        result.calibration().covered(95)
    with pytest.raises(ValueError, match="bins must be an integer"):
        result.calibration().histogram(0)
    with pytest.raises(ValueError, match="key must be a JAX key"):
        result.calibration(key="seed")
    plain = ng.infer(ng.Model(MODEL.prior, OnlyDensity()), X, Y)
    with pytest.raises(ValueError, match="OnlyDensity has no `cdf`"):
        plain.calibration()
    pair = likelihoods.MultivariateGaussian(np.eye(2))
    both = ng.prediction.Prediction(pair, ng.Gaussian(np.zeros((1, 2)), np.eye(2)[None]), None)
    with pytest.raises(ValueError, match="one output, but MultivariateGaussian has 2"):
        around(both, ng.infer(MODEL, X, Y).data, np.ones(1, dtype=bool))


# Cross-validation -----------------------------------------------------------------------------------


def test_cross_validation_is_a_loop_over_folds(by_blocks):
    log_density, pit = np.full((2, 20), np.nan)
    for label in ("early", "middle", "late"):
        held, rest = SEEN & (label == LABELS), SEEN & (label != LABELS)
        mean, variance = regress(X[rest], Y[rest], X[held])
        exact = stats.norm(mean, np.sqrt(variance))
        log_density[held], pit[held] = exact.logpdf(Y[held]), exact.cdf(Y[held])
    np.testing.assert_allclose(by_blocks.log_density, log_density, rtol=1e-8)
    np.testing.assert_allclose(by_blocks.calibration.pit, pit, atol=1e-8)
    assert by_blocks.labels == ["early", "late", "middle"] and by_blocks.rows == 19
    assert by_blocks.total == pytest.approx(np.nansum(log_density))
    assert by_blocks.mean == pytest.approx(np.nanmean(log_density))
    assert by_blocks.standard_error == pytest.approx(np.sqrt(19) * np.nanstd(log_density, ddof=1))
    np.testing.assert_array_equal(by_blocks.folds, LABELS)
    assert by_blocks.statuses == [ng.Status.CONVERGED] * 3
    assert "middle" in str(by_blocks) and "in 3 folds" in repr(by_blocks)


@pytest.mark.slow
@pytest.mark.thorough
def test_numbers_of_rows_go_with_their_rows():
    folds = np.arange(20) % 2
    found = ng.cross_validate(RATES, X, COUNTS, ng.PowerEP(1.0), folds=folds, tol=1e-8)
    for label in range(2):
        held = folds == label
        model = ng.Model(RATES.prior, likelihoods.Poisson(exposure=EXPOSURE[~held]))
        alone = ng.infer(model, X[~held], COUNTS[~held], ng.PowerEP(1.0), tol=1e-8)
        exact = alone.log_density(X[held], COUNTS[held], exposure=EXPOSURE[held])
        np.testing.assert_allclose(found.log_density[held], exact, rtol=1e-7)
        # The same sums from the distribution function: P(Y ≤ y) − P(Y < y) is the density of counts.
        mass = found.calibration.upper[held] - found.calibration.lower[held]
        np.testing.assert_allclose(mass, np.exp(exact), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.slow
def test_inducing_inputs_are_chosen_from_the_rows_of_other_folds():
    """Of folds with different sizes: the larger one has rows far away, which would be chosen before others."""
    x = np.append([30.0, 40.0], np.linspace(0.0, 6.0, 7))
    folds = np.array([0, 0, 0, 1, 1, 0, 1, 1, 0])
    model = ng.Model(ng.SparseGP(MODEL.prior.kernel, 3), MODEL.likelihood)
    found = ng.cross_validate(model, x, np.sin(x), folds=folds)
    for label in (0, 1):
        held = folds == label
        alone = ng.infer(model, x[~held], np.sin(x[~held]))
        np.testing.assert_allclose(found.log_density[held], alone.log_density(x[held], np.sin(x[held])), rtol=1e-8)


@pytest.mark.slow
def test_a_function_that_learns_takes_the_place_of_infer(by_blocks):
    calls = []

    def learn(model, x, y):
        calls.append((x.shape, np.isnan(y).sum()))
        return ng.infer(ng.Model(ng.GP(ng.kernels.RBF(lengthscale=0.1 * len(calls) + 1.3)), model.likelihood), x, y)

    found = ng.cross_validate(MODEL, X, Y, folds=LABELS, learn=learn)
    sizes = [np.sum(label != LABELS) for label in found.labels]
    missing = [np.sum(~SEEN & (label != LABELS)) for label in found.labels]
    assert calls == [((size, 1), count) for size, count in zip(sizes, missing, strict=True)]
    assert [float(model.prior.kernel.lengthscale) for model in found.models] == pytest.approx([1.4, 1.5, 1.6])
    second = LABELS == "late"
    np.testing.assert_allclose(found.log_density[second], by_blocks.log_density[second], rtol=1e-8)
    assert np.all(found.log_density[LABELS == "early"] != by_blocks.log_density[LABELS == "early"])


def test_random_folds_are_even_and_hold_out_every_observed_row_once():
    observed = np.ones(23, dtype=bool)
    observed[[2, 11]] = False
    assignment, labels = cross_validation._read_folds(4, 0, observed)
    assert labels == [0, 1, 2, 3] and np.all(assignment[~observed] == -1)
    counts = np.bincount(assignment[observed])
    assert counts.sum() == 21 and np.ptp(counts) <= 1
    np.testing.assert_array_equal(assignment, cross_validation._read_folds(4, 0, observed)[0])
    assert np.any(assignment != cross_validation._read_folds(4, 1, observed)[0])


def test_folds_without_observed_rows_are_not_predicted():
    observed = np.array([True, True, False, True])
    assert cross_validation._read_folds(["a", "a", "b", "c"], 0, observed)[1] == ["a", "c"]


@pytest.mark.parametrize("unit", ["ns", "D"])
def test_folds_may_be_time_stamps_of_any_unit(unit, by_blocks):
    months = {"early": "2020-01-01", "middle": "2020-02-01", "late": "2020-03-01"}
    stamps = np.array([months[label] for label in LABELS.tolist()], dtype=f"datetime64[{unit}]")
    found = ng.cross_validate(MODEL, X, Y, folds=stamps)
    np.testing.assert_array_equal(found.labels, np.unique(stamps))
    np.testing.assert_array_equal(found.log_density, by_blocks.log_density)
    assert "2020-02-01" in str(found)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"folds": 1}, "folds must be at least 2 and at most the number of observed rows, 19, got 1"),
        ({"folds": 20}, "got 20"),
        ({"folds": LABELS[:5]}, r"folds must be an integer, or one label per row: 20 .*\(5,\)"),
        ({"folds": 2.5}, "folds must be an integer, or one label per row"),
        ({"folds": np.where(X < 5.0, np.nan, 1.0)}, "folds must have a label for every row, but row 0 is NaN"),
        ({"folds": np.array(["NaT", *["2020-01-01"] * 19], dtype="M8[D]")}, "label for every row, but row 0 is NaT"),
        ({"folds": np.array(["a", *[None] * 19], dtype=object)}, "label for every row, but row 1 is None"),
        ({"folds": np.zeros(20)}, r"folds must have at least two labels .* got \[0.0\]"),
        ({"key": 1.5}, "key must be a JAX key"),
        ({"learn": 3}, "learn must be a function of a model, x and y"),
        ({"learn": lambda *_: None}, "learn must return a Result, as infer does, got None"),
        ({"learn": ng.infer, "method": ng.Newton()}, "learn replaces infer, so method is not used"),
        ({"learn": ng.infer, "tol": 1e-3}, "so tol is not used"),
        ({"sites": ng.Sites.constant(20, 1, 0.0)}, "sites belong to all rows"),
        ({"model": "GP"}, "model must be a Model"),
        ({"y": Y[:3]}, "x and y must have the same number of rows"),
    ],
)
def test_cross_validation_refuses_what_it_cannot_do(changed, message):
    with pytest.raises(ValueError, match=message):
        ng.cross_validate(**{"model": MODEL, "x": X, "y": Y, **changed})


def test_a_fold_that_breaks_down_is_named():
    def breaks(model, x, y):
        raise ng.InferenceError(ng.infer(model, x, y, max_steps=0, throw=False))

    with pytest.raises(ng.InferenceError) as caught:
        ng.cross_validate(MODEL, X, Y, folds=LABELS, learn=breaks)
    assert caught.value.__notes__ == ["This was without the rows of fold 'early'."]


Y_CLASSES = (X > 5.0).astype(int)


@pytest.mark.slow
@pytest.mark.thorough
def test_classes_have_densities_but_no_calibration():
    prior = ng.GP(ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF()]))
    found = ng.cross_validate(ng.Model(prior, likelihoods.Softmax(2)), X, Y_CLASSES, ng.Newton(), folds=2)
    assert found.calibration is None and np.all(found.log_density < 0.0)


# Comparison -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def others():
    rough = ng.infer(ng.Model(ng.GP(ng.kernels.RBF(lengthscale=0.3)), MODEL.likelihood), X, Y)
    loud = ng.infer(ng.Model(MODEL.prior, likelihoods.Gaussian(3.0)), X, Y)
    return {"rough": rough, "loud": loud}


def test_a_comparison_is_sorted_and_paired(result, others):
    found = ng.compare({**others, "true": result})
    densities = {name: each.leave_one_out()[SEEN] for name, each in {**others, "true": result}.items()}
    assert found.best == "true" and found.rows == 19 and len(found) == 3
    assert [entry["name"] for entry in found] == sorted(densities, key=lambda name: -densities[name].sum())
    for entry in found:
        values, gap = densities[entry["name"]], densities[entry["name"]] - densities["true"]
        assert entry["log_density"] == pytest.approx(values.sum())
        assert entry["standard_error"] == pytest.approx(np.sqrt(19) * values.std(ddof=1))
        assert entry["difference"] == pytest.approx(gap.sum(), abs=1e-12)
        assert entry["difference_error"] == pytest.approx(np.sqrt(19) * gap.std(ddof=1), abs=1e-12)
        assert entry["status"] == "converged" and entry["improper"] == 0
    assert found.entries[0]["energy"] == result.energy and found.entries[0]["steps"] == result.steps
    text = str(found)
    assert text.index("true") < text.index("rough") and "19 rows" in text
    assert repr(found) == "Comparison of 3 model(s), leave-one-out: best is 'true'"


def test_a_list_is_named_by_position(result, others):
    found = ng.compare([others["loud"], result])
    assert [entry["name"] for entry in found] == ["model 1", "model 0"]


def test_rows_that_one_model_cannot_predict_are_left_out_of_all(result, others, monkeypatch):
    values = others["loud"].leave_one_out()
    values[4] = np.nan
    monkeypatch.setattr(others["loud"], "leave_one_out", lambda: values, raising=False)
    found = ng.compare({"true": result, "loud": others["loud"]})
    assert found.rows == 18 and [entry["improper"] for entry in found] == [0, 1]
    assert found.entries[0]["log_density"] == pytest.approx(np.delete(result.leave_one_out(), [4, MISSING]).sum())
    assert "improper cavity" in str(found)


@pytest.mark.slow
def test_a_run_that_has_not_converged_is_not_ranked(result):
    """After a few steps of Adam the cavities still know their own rows, and score higher than they predict."""
    adam = ng.infer(MODEL, X, Y, ng.FirstOrderVI(), max_steps=5, throw=False)
    assert not adam.settled and result.settled
    found = ng.compare({"adam": adam, "vi": result})
    assert [entry["name"] for entry in found] == ["vi", "adam"]
    assert found.entries[0]["reason"] is None and found.rows == 19
    assert np.isnan(found.entries[1]["log_density"]) and np.isnan(found.entries[1]["difference"])
    assert "max_steps" in found.entries[1]["reason"] and "residual" in " ".join(str(found).split())
    with pytest.raises(ValueError, match="none has"):
        ng.compare([adam])


@pytest.mark.cases(slow=["pit", "densities"])
@pytest.mark.parametrize("ask", [lambda r: r.leave_one_out(), lambda r: r.calibration()], ids=["densities", "pit"])
def test_leave_one_out_of_a_run_that_has_not_converged_warns(ask):
    adam = ng.infer(MODEL, X, Y, ng.FirstOrderVI(), max_steps=5, throw=False)
    with pytest.warns(ng.ConvergenceWarning, match="not converged.*cross_validate"):
        ask(adam)


@pytest.mark.slow
def test_cross_validations_are_compared_by_their_folds(by_blocks):
    again = ng.cross_validate(MODEL, X, Y, folds=np.select([LABELS == "early", LABELS == "late"], [0, 1], 2))
    found = ng.compare({"once": by_blocks, "again": again})
    assert found.source == "cross-validation" and found.entries[1]["difference"] == pytest.approx(0.0, abs=1e-8)
    assert found.entries[0]["energy"] is None and "converged" in str(found)
    other = ng.cross_validate(MODEL, X, Y, folds=3)
    with pytest.raises(ValueError, match="'a' and 'b' have different folds: use the same folds and key"):
        ng.compare({"a": by_blocks, "b": other})


def with_densities(found, row, value, rest=0.0):
    """The same cross-validation, with this log density of one row and others that are better by `rest`."""
    changed = copy.copy(found)
    changed.log_density = found.log_density + rest
    changed.log_density[row] = value
    return changed


def test_a_model_that_calls_a_row_impossible_is_last(by_blocks):
    wrong = with_densities(by_blocks, 4, -np.inf, rest=0.5)
    assert wrong.total == -np.inf and np.isnan(wrong.standard_error)
    found = ng.compare({"wrong": wrong, "usual": by_blocks})
    assert found.best == "usual" and found.rows == 19
    last = found.entries[1]
    assert last["log_density"] == last["difference"] == -np.inf and last["improper"] == 0
    assert np.isnan(last["standard_error"]) and np.isnan(last["difference_error"])
    text = " ".join(str(found).split())
    assert "an observed row is impossible" in text and "nan" not in text and "improper" not in text
    both = ng.compare([wrong, with_densities(by_blocks, 5, -np.inf)])
    assert both.best == "model 0" and np.isnan(both.entries[1]["difference"])


def test_rows_without_a_log_density_are_not_called_improper_cavities_in_folds(by_blocks):
    found = ng.compare({"usual": by_blocks, "silent": with_densities(by_blocks, 4, np.nan, rest=-1.0)})
    assert found.rows == 18 and [entry["improper"] for entry in found] == [0, 1]
    text = " ".join(str(found).split())
    assert "rows without a log density are left out of all sums (1 of silent)" in text


def test_only_models_of_the_same_data_are_compared(result, by_blocks):
    shifted, changed, shorter = X.copy(), Y.copy(), SEEN
    shifted[0] -= 0.1
    changed[0] += 0.1
    elsewhere = ng.infer(MODEL, shifted, Y)
    for other, message in [
        (ng.infer(MODEL, X, changed), "'model 0' and 'model 1' differ in y"),
        (ng.infer(MODEL, X, np.nan_to_num(Y)), "differ in y"),
        (ng.infer(MODEL, X[shorter], Y[shorter]), "have 20 and 19 rows"),
        (elsewhere, "differ in x: .* check_x=False"),
        (by_blocks, "all Results or all CrossValidations"),
        (3, "but 'model 1' is 3"),
    ]:
        with pytest.raises(ValueError, match=message):
            ng.compare([result, other])
    assert len(ng.compare([result, elsewhere], check_x=False)) == 2
    for nothing in ([], {}):
        with pytest.raises(ValueError, match="results must not be empty"):
            ng.compare(nothing)
    with pytest.raises(ValueError, match="results must be a dictionary or a list"):
        ng.compare(result)


@pytest.mark.thorough
@pytest.mark.slow
def test_time_stamps_are_the_same_in_any_unit():
    days = np.datetime64("2024-01-01") + np.arange(8)
    y = np.array([1.0, 2, 0, 3, 1, np.nan, 2, 1])
    results = [
        ng.infer(ng.Model(ng.MarkovGP(ng.kernels.Matern32(length), unit=unit, origin=origin), MODEL.likelihood), x, y)
        for length, unit, origin, x in (
            (3.0, "D", None, days),
            (72.0, "h", "2023-05-05", days),
            (72.0, "h", None, days + np.timedelta64(1, "h")),
        )
    ]
    found = ng.compare(results[:2])
    assert found.entries[1]["difference"] == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="differ in x"):
        ng.compare(results[::2])
    folds = ng.cross_validate(results[0].model, days, y, folds=days < np.datetime64("2024-01-05"))
    assert np.isnan(folds.log_density[5]) and np.isfinite(folds.total)


def test_time_stamps_are_compared_to_rounding_wherever_their_origin_is(by_blocks):
    def stamped(stamps, unit, origin=None):
        moved, clock = copy.copy(by_blocks), Clock(unit, origin)
        moved.clock, moved.data = clock, by_blocks.data._replace(x=clock.numbers(stamps)[:, None])
        return moved

    minutes = np.arange(20) * np.timedelta64(7 * 60 * 1000, "ms")
    for start in ("1970-01-01", "2000-01-01", "2024-03-01"):
        stamps = np.datetime64(start, "ms") + minutes
        later = stamps.copy()
        later[3] += np.timedelta64(1, "ms")
        for unit, origin in (("h", None), ("s", "2023-12-31T23:59:59.999"), ("W", "1950-01-01")):
            assert len(ng.compare([stamped(stamps, "D"), stamped(stamps, unit, origin)])) == 2
            with pytest.raises(ValueError, match="differ in x"):
                ng.compare([stamped(stamps, "D"), stamped(later, unit, origin)])
