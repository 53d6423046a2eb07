"""Backtests and scores."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import newtongp as ng
from newtongp.forecasting.scores import LEVELS, crps_from_quantiles, naive_error

DATA = Path(__file__).resolve().parents[1] / "data" / "air_passengers.csv"


def test_the_crps_of_a_normal_forecast_is_that_in_closed_form():
    mean, deviation, y = 1.0, 2.0, np.array([-4.0, 0.5, 1.0, 9.0])
    z = (y - mean) / deviation
    exact = deviation * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / np.sqrt(np.pi))
    quantiles = norm.ppf(LEVELS, mean, deviation)[:, None].repeat(4, axis=1)
    np.testing.assert_allclose(crps_from_quantiles(quantiles, y), exact, rtol=6e-3)


def test_the_crps_is_that_of_scoringrules():
    rules = pytest.importorskip("scoringrules")
    rng = np.random.default_rng(0)
    quantiles, y = np.sort(rng.gamma(2.0, size=(99, 5)), axis=0), rng.gamma(2.0, size=5)
    np.testing.assert_allclose(crps_from_quantiles(quantiles, y), rules.crps_quantile(y, quantiles.T, LEVELS))


def test_errors_are_scaled_by_those_of_the_season_before():
    y = np.array([1.0, 5.0, 2.0, 7.0, np.nan, 9.0])
    assert naive_error(y, 2) == pytest.approx((1.0 + 2.0 + 2.0) / 3.0)
    assert naive_error(y, 3) == pytest.approx(np.mean([4.0, 3.0, 5.0]))  # too few for two periods
    assert np.isnan(naive_error(np.ones(5), 1))


@pytest.fixture(scope="module")
def tested():
    table = pd.read_csv(DATA).iloc[:60]
    forecaster = ng.Forecaster("linear").fit(table, time="month", y="passengers")
    return forecaster, table, forecaster.backtest(6, every=4, origins=3, level=0.8)


@pytest.mark.slow
@pytest.mark.thorough
def test_origins_roll_and_never_see_what_they_forecast(tested):
    _, table, found = tested
    frame = found.forecasts
    assert frame["origin"].unique().tolist() == ["1952-10", "1953-02", "1953-06"]
    assert np.all(frame["origin"] < frame["month"])
    last = frame[frame["origin"] == frame["origin"].max()]
    assert last["month"].tolist() == table["month"].tolist()[-6:] and last["step"].tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_array_equal(last["y"], table["passengers"].iloc[-6:])


@pytest.mark.slow
@pytest.mark.thorough
def test_a_forecast_of_the_backtest_is_that_of_the_earlier_data(tested):
    _, table, found = tested
    first = found.forecasts[found.forecasts["origin"] == found.forecasts["origin"].min()]
    known = table[table["month"] <= first["origin"].iloc[0]]
    alone = ng.Forecaster("linear").fit(known, time="month", y="passengers").forecast(6, level=0.8)
    np.testing.assert_allclose(first["mean"], alone["mean"], rtol=1e-6)
    np.testing.assert_allclose(first["lower"], alone["lower"])


@pytest.mark.slow
def test_scores_are_averages_of_those_of_rows(tested):
    _, _, found = tested
    frame, scores = found.forecasts, found.scores.iloc[0]
    assert scores["rows"] == len(frame) == 18
    assert scores["mae"] == pytest.approx(np.mean(np.abs(frame["median"] - frame["y"])))
    assert scores["coverage"] == np.mean((frame["lower"] <= frame["y"]) & (frame["y"] <= frame["upper"]))
    assert scores["mase"] < 1.0 and scores["crps"] < scores["mae"]
    assert found.by_step["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert found.by_step["crps"].mean() == pytest.approx(scores["crps"])
    assert "80 % intervals" in repr(found)


@pytest.mark.slow
@pytest.mark.thorough
def test_updates_without_learning_are_close_to_refits(tested):
    forecaster, _, found = tested
    updated = forecaster.backtest(6, every=4, origins=3, level=0.8, refit=False)
    assert updated.scores["mae"].iloc[0] == pytest.approx(found.scores["mae"].iloc[0], rel=0.5)
    assert updated.forecasts["month"].tolist() == found.forecasts["month"].tolist()


@pytest.mark.slow
def test_a_horizon_that_is_too_long(tested):
    with pytest.raises(ValueError, match=r"a backtest over 40 steps needs at least 64 different times, got 60"):
        tested[0].backtest(40)
