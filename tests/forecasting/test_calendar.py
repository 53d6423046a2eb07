"""Steps, phases and future times of a series."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from newtongp.forecasting.calendar import calendar_of, read_period, read_times, written
from newtongp.terms.table import Table


def calendar(times):
    found, flavour = read_times(Table({"t": times} if not hasattr(times, "dt") else pd.DataFrame({"t": times})), "t")
    return calendar_of(np.sort(found), flavour), np.sort(found)


@pytest.mark.parametrize(
    ("freq", "name"),
    [
        ("MS", "month"),
        ("ME", "month"),
        ("QS", "quarter"),
        ("YS", "year"),
        ("W-WED", "week"),
        ("D", "day"),
        ("h", "hour"),
    ],
)
def test_the_step_and_the_next_times_of_dates(freq, name):
    times = pd.date_range("2019-11-30 00:00", periods=60, freq=freq)
    found, stamps = calendar(times[:50].to_series(index=range(50)))
    assert found.name == name
    np.testing.assert_array_equal(found.steps(stamps), np.arange(50.0))
    np.testing.assert_array_equal(written(found, found.future(stamps[-1], 10)), times[50:].to_numpy())


def test_working_days_skip_weekends():
    days = pd.bdate_range("2024-01-01", periods=30)
    found, stamps = calendar(days[:20].to_series(index=range(20)))
    assert found.name == "weekday"
    np.testing.assert_array_equal(found.steps(stamps), np.arange(20.0))
    np.testing.assert_array_equal(found.future(stamps[-1], 10), days[20:].to_numpy())
    assert found.rows_per(read_period("1w")) == 5.0


def test_missing_months_are_gaps():
    months = pd.date_range("2020-01-01", periods=24, freq="MS").delete([3, 4, 10])
    found, stamps = calendar(months.to_series(index=range(21)))
    assert found.name == "month" and found.steps(stamps)[3] == 5.0


def test_twelve_months_are_a_year_in_every_year():
    months = np.arange("2015-01", "2025-01", dtype="datetime64[M]")
    found, stamps = calendar(months)
    phase = found.phase(stamps, read_period("1y"))
    np.testing.assert_allclose(phase % 1.0, np.tile(np.arange(12) / 12.0, 10), atol=1e-12)
    assert found.rows_per(read_period("1y")) == 12.0


def test_the_first_of_march_has_one_phase():
    days = np.arange("2015-01-01", "2025-01-01", dtype="datetime64[D]")
    found, stamps = calendar(days)
    years, months = (found.phase(stamps, read_period(period)) for period in ("1y", "1M"))
    first = np.array([str(day)[5:] == "03-01" for day in days])
    assert np.ptp(years[first] % 1.0) < 1.0 / 365.0
    np.testing.assert_array_equal(months[first] % 1.0, 0.0)
    new_year = np.array([str(day)[5:] == "01-01" for day in days])
    np.testing.assert_array_equal(years[new_year] % 1.0, 0.0)


def test_weeks_begin_on_monday_and_days_at_midnight():
    hours = np.arange("2024-01-01T00", "2024-02-01T00", dtype="datetime64[h]")
    found, stamps = calendar(hours)
    np.testing.assert_allclose(found.phase(stamps, read_period("1w"))[:168] % 1.0, np.arange(168) / 168.0, atol=1e-12)
    np.testing.assert_allclose(found.phase(stamps, read_period("1d"))[:24] % 1.0, np.arange(24) / 24.0, atol=1e-12)


def test_a_time_zone_keeps_local_time_over_the_change_to_summer():
    local = pd.date_range("2024-03-25", periods=14, freq="D", tz="Europe/Berlin").to_series(index=range(14))
    found, stamps = calendar(local)
    assert found.name == "day"
    ahead = written(found, found.future(stamps[-1], 2))
    assert [value.hour for value in ahead] == [0, 0] and str(ahead[0].tzinfo) == "Europe/Berlin"


@pytest.mark.parametrize(
    ("times", "following"),
    [
        ([2000, 2001, 2002, 2003], [2004, 2005]),
        ([0.5, 1.0, 1.5, 2.0], [2.5, 3.0]),
        (["2024-01", "2024-02", "2024-03"], ["2024-04", "2024-05"]),
        (["2024-01-30", "2024-01-31", "2024-02-01"], ["2024-02-02", "2024-02-03"]),
        (
            [datetime.date(2024, 2, day) for day in (26, 27, 28)],
            [datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)],
        ),
        (pl.Series(["2020-01-31", "2020-02-29", "2020-03-31"]), ["2020-04-30", "2020-05-31"]),
    ],
    ids=["years", "numbers", "months as text", "days as text", "dates", "ends of months"],
)
def test_times_are_given_back_as_they_came(times, following):
    found, stamps = calendar(times)
    assert list(written(found, found.future(stamps[-1], 2))) == following


def test_decimal_years_are_whole_steps():
    found, stamps = calendar(np.round(1949.0 + np.arange(40) / 12.0, 3))
    np.testing.assert_array_equal(found.steps(stamps), np.arange(40.0))
    assert round(found.rows_per(read_period(1)), 2) == 12.0


def test_periods_of_pandas_come_back_as_periods():
    months = pd.period_range("2020-01", periods=12, freq="M").to_series(index=range(12))
    found, stamps = calendar(months)
    ahead = written(found, found.future(stamps[-1], 2))
    assert found.name == "month" and ahead.tolist() == list(pd.period_range("2021-01", periods=2, freq="M"))


@pytest.mark.parametrize(
    ("times", "season", "message"),
    [
        (np.arange(20), "1y", "a season is a number"),
        (pd.date_range("2020-01-01", periods=20), 7, "has a unit"),
        (pd.date_range("2020-01-01", periods=20, freq="MS"), "1w", "is not in months"),
    ],
)
def test_seasons_that_do_not_suit_the_times(times, season, message):
    found, _ = calendar(times if isinstance(times, np.ndarray) else times.to_series(index=range(20)))
    with pytest.raises(ValueError, match=message):
        found.rows_per(read_period(season))


@pytest.mark.parametrize("wrong", ["yearly", "0y", -1.0, True, None])
def test_wrong_periods(wrong):
    with pytest.raises(ValueError, match="a season is text such as '1y'"):
        read_period(wrong)


def test_text_that_is_no_time():
    with pytest.raises(ValueError, match=r"must hold times: .* row 0 is 'Q1'"):
        read_times(Table({"t": ["Q1", "Q2", "Q3"]}), "t")
