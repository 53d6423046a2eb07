"""Findings about data from which little can be learned: each is given for such data, and not for data like it."""

import warnings

import numpy as np
import pytest

import newtongp as ng

ROWS = np.arange(24.0)
NOISE = np.random.default_rng(1).normal(size=ROWS.size)


def texts(result, about, checks=False):
    return [each.text for each in result.summary(checks=checks).warnings if each.about == about]


@pytest.mark.parametrize(("y", "value"), [(np.zeros(24), "0"), (np.where(ROWS == 3, np.nan, 2.0), "2")])
def test_counts_that_are_all_the_same(y, value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.ConvergenceWarning)
        result = ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), ROWS, y)
    (text,) = texts(result, "y")
    assert f"All observed y are {value}:" in text
    assert texts(ng.infer(result.model, ROWS, y), "y") == []  # nothing was learned from them
    changed = np.where(ROWS == 20, 1.0, y)
    assert texts(ng.infer(result.model, ROWS, changed), "y") == []


@pytest.mark.parametrize("effects", ["wide", "flat", "maximised"])
@pytest.mark.parametrize("moved", [False, True])
def test_separated_classes(moved, effects):
    """The same columns and classes, with one row on the other side."""
    is_positive = (ROWS > 11.0) ^ (moved & (ROWS == 6.0))
    table = {"y": is_positive.astype(int), "x": ROWS}
    result = ng.fit("y ~ 1 + x", table, "bernoulli", effects=effects, throw=False)
    found = texts(result, "y")
    assert len(found) == (0 if moved else 1)
    assert moved or ("classes are separated" in found[0] and "standard errors mean little" in found[0])


def test_rows_that_are_all_missing():
    with pytest.warns(ng.FitWarning, match=r"y is missing \(NaN\) in every row"):
        result = ng.fit(ng.Model(ng.GP("rbf"), "gaussian"), ROWS, np.full(24, np.nan))
    assert [each.about for each in result.summary(checks=False).warnings] == ["fit"]


def test_levels_of_one_row_each_are_not_told_apart_from_noise():
    """The sum of both variances is that of the data; neither has ended at 0."""
    table = {"y": NOISE, "g": [f"level {row:.0f}" for row in ROWS]}
    result = ng.fit("y ~ 1 + (1 | g)", table, "gaussian")
    total = sum(float(result.learned[name]) for name in ("group(g).covariance", "likelihood.variance"))
    np.testing.assert_allclose(total, np.var(NOISE, ddof=1), rtol=1e-2)
    (text,) = texts(result, "group(g).covariance", checks=True)
    assert "poorly" in text and "its sum with another variance" in text and "singular" not in text


def test_values_that_the_data_do_not_determine_are_listed():
    """A smooth function is a rational quadratic with any large alpha."""
    model = ng.Model(ng.GP("rational_quadratic"), "gaussian")
    result = ng.fit(model, ROWS, np.sin(ROWS / 4.0) + 0.1 * NOISE, weak_priors=False, throw=False)
    assert [name for name, error in result.standard_errors.items() if np.isinf(error)] == ["kernel.alpha"]
    (text,) = texts(result, "fit")
    assert "do not determine kernel.alpha:" in text


def test_zero_counts_over_time_have_a_forecast_near_zero():
    forecaster = ng.Forecaster().fit({"month": np.arange(40), "sold": np.zeros(40)}, time="month", y="sold")
    assert np.max(forecaster.forecast(6)["mean"]) < 0.05
    about = [each.about for each in forecaster.result.summary(checks=False).warnings]
    assert about.count("y") == 1 and not any("influence" in text for text in texts(forecaster.result, "fit"))
