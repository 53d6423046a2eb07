"""Fits, forecasts, components and effects of one series, and of several."""

import datetime
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from matplotlib import pyplot

import newtongp as ng
from newtongp.forecasting import Intervention
from newtongp.forecasting.holidays import holiday_columns
from newtongp.forecasting.rows import calendar_for, read_rows
from newtongp.forecasting.structure import AVERAGED, guess_likelihood
from tests.inference.test_size_classes import compilations

DATA = Path(__file__).resolve().parents[1] / "data" / "air_passengers.csv"


def passengers():
    return pd.read_csv(DATA)


def made(seed=0, rows=120, law=60):
    """Counts of months with a trend, a season, a price and a law that lowers them by a quarter."""
    rng = np.random.default_rng(seed)
    k = np.arange(rows)
    price = rng.normal(size=rows)
    rate = np.exp(4.0 + 0.004 * k + 0.3 * np.sin(2.0 * np.pi * k / 12.0) + 0.2 * price - 0.29 * (k >= law))
    months = pd.date_range("2010-01-01", periods=rows, freq="MS")
    return pd.DataFrame({"month": months, "calls": rng.poisson(rate), "price": price})


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def air():
    table = passengers()
    return ng.Forecaster().fit(table.iloc[:120], time="month", y="passengers"), table.iloc[120:]


@pytest.fixture(scope="module")
def average():
    table = passengers()
    return ng.Forecaster("auto").fit(table.iloc[:120], time="month", y="passengers"), table.iloc[120:]


@pytest.fixture(scope="module")
def law():
    table = made()
    forecaster = ng.Forecaster("linear", regressors=["price"], intervention={"law": "2015-01-01"}, likelihood="poisson")
    return forecaster.fit(table.iloc[:108], time="month", y="calls"), table


@pytest.mark.slow
def test_two_years_of_passengers_within_seven_percent(air):
    forecaster, truth = air
    ahead = forecaster.forecast(24)
    assert ahead["month"].tolist() == truth["month"].tolist()
    error = np.abs(ahead["median"].to_numpy() / truth["passengers"].to_numpy() - 1.0)
    assert 100.0 * np.mean(error) < 7.0
    inside = (ahead["lower"].to_numpy() <= truth["passengers"]) & (truth["passengers"] <= ahead["upper"].to_numpy())
    assert inside.mean() > 0.75


@pytest.mark.slow
def test_what_is_averaged_over_is_shown(average):
    forecaster, _ = average
    frame = forecaster.structures
    assert frame.columns.tolist() == ["trend", "likelihood", "weight", "energy"]
    assert frame["weight"].sum() == pytest.approx(1.0) and np.all(np.diff(frame["weight"]) <= 0.0)
    assert set(frame["trend"]) == set(AVERAGED) and frame["energy"].iloc[0] == frame["energy"].min()
    assert f"average over {len(frame)} structures" in repr(forecaster)
    means = [
        one.result.predict(average[0].fits[None].encode(times, None, one.structure)).mean
        for one in forecaster.fits[None].members
        for times in [forecaster.fits[None].calendar.future(forecaster.fits[None].rows.times[-1], 6)]
    ]
    np.testing.assert_allclose(forecaster.forecast(6)["mean"], frame["weight"].to_numpy() @ np.stack(means))


@pytest.mark.slow
def test_a_saved_forecaster_is_the_same(average, tmp_path):
    forecaster, _ = average
    forecaster.save(tmp_path / "air.ngp")
    again = ng.Forecaster.load(tmp_path / "air.ngp")
    for method in (lambda one: one.forecast(6), lambda one: one.components(3), lambda one: one.structures):
        pd.testing.assert_frame_equal(method(again), method(forecaster), check_exact=False, rtol=1e-9)
    assert repr(again) == repr(forecaster)
    with pytest.raises(ValueError, match="it holds a forecaster, not a result"):
        ng.load(tmp_path / "air.ngp")


@pytest.mark.slow
def test_forecasters_can_be_pickled_and_saved_with_regressors(law, tmp_path):
    forecaster, table = law
    forecaster.save(tmp_path / "law.ngp")
    ahead = table.iloc[108:].drop(columns="calls")
    expected = forecaster.forecast(ahead)
    for again in (pickle.loads(pickle.dumps(forecaster)), ng.Forecaster.load(tmp_path / "law.ngp")):
        pd.testing.assert_frame_equal(again.forecast(ahead), expected, check_exact=False, rtol=1e-9)


@pytest.mark.slow
def test_several_levels_are_nested_and_named(air):
    ahead = air[0].forecast(6, level=[0.5, 0.9])
    assert ahead.columns.tolist() == ["month", "mean", "median", "lower_50", "upper_50", "lower_90", "upper_90"]
    ordered = ahead[["lower_90", "lower_50", "median", "upper_50", "upper_90"]].to_numpy()
    assert np.all(np.diff(ordered, axis=1) >= 0.0)


@pytest.mark.slow
def test_components_add_up_to_the_latent(air):
    forecaster = air[0]
    parts = forecaster.components(12)
    assert parts["component"].unique().tolist() == ["trend", "season 1y"]
    total = parts.groupby("month")["mean"].sum()
    fitted = forecaster.fits[None]
    latent = fitted.predict(fitted.calendar.future(fitted.rows.times[-1], 12)).latent.mean[:, 0]
    np.testing.assert_allclose(total, latent, rtol=1e-9)
    season = parts[parts["component"] == "season 1y"]["mean"]
    assert abs(season.mean()) < 0.05 * season.std()


@pytest.mark.slow
def test_forecasts_are_those_of_the_same_model_of_a_table(air):
    forecaster = air[0]
    fitted = forecaster.fits[None]
    encoded = fitted.encode(fitted.calendar.future(fitted.rows.times[-1], 5))
    np.testing.assert_allclose(forecaster.forecast(5)["mean"], forecaster.result.predict(encoded).mean)


@pytest.mark.slow
@pytest.mark.thorough
def test_any_unit_of_y_and_any_order_of_rows_is_the_same(air):
    months = passengers().iloc[:60]
    table = months.assign(passengers=months["passengers"] + 0.5)
    scaled = table.assign(passengers=1e6 * table["passengers"]).sample(frac=1.0, random_state=0)
    first, second = (ng.Forecaster("linear").fit(one, time="month", y="passengers") for one in (table, scaled))
    np.testing.assert_allclose(1e6 * first.forecast(12)["median"], second.forecast(12)["median"], rtol=2e-3)


@pytest.mark.slow
def test_frames_of_polars_give_frames_of_polars(air):
    table = pl.DataFrame(passengers().iloc[:120].to_dict("list")).with_columns(pl.col("month").str.to_date("%Y-%m"))
    ahead = ng.Forecaster("linear").fit(table, time="month", y="passengers").forecast(3)
    assert isinstance(ahead, pl.DataFrame) and ahead["month"][0] == datetime.date(1959, 1, 1)
    np.testing.assert_allclose(ahead["mean"].to_numpy(), air[0].forecast(3)["mean"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_law_and_a_price_are_found(law):
    forecaster, table = law
    effect = forecaster.effects().iloc[0]
    active = table.iloc[60:108]
    truth = np.mean(active["calls"] * (1.0 - np.exp(0.29)))  # with the law, minus without it
    assert effect["intervention"] == "law" and effect["rows"] == 48
    assert effect["lower"] < truth < effect["upper"] < 0.0
    assert effect["total"] == pytest.approx(48 * effect["estimate"])
    price = forecaster.result.effects()
    price = price[price["name"] == "price"].iloc[0]
    assert abs(price["estimate"] - 0.2) < 3.0 * price["se"] < 0.1


@pytest.mark.slow
@pytest.mark.thorough
def test_regressors_are_needed_in_the_future(law):
    forecaster, table = law
    with pytest.raises(ValueError, match="the regressor 'price' is needed in the future too"):
        forecaster.forecast(12)
    ahead = forecaster.forecast(table.iloc[108:].drop(columns="calls"))
    y = table["calls"].iloc[108:].to_numpy()
    assert np.mean((ahead["lower"] <= y) & (y <= ahead["upper"])) >= 0.75


@pytest.mark.slow
def test_repr_says_what_there_is(law):
    assert repr(law[0]) == ("Forecaster, 108 rows, one per month: trend, season 1y, regressors, interventions; Poisson")


@pytest.mark.slow
def test_plots_have_the_forecast_and_one_panel_per_component(law):
    pytest.importorskip("matplotlib")
    forecaster, table = law
    figure = forecaster.plot(table.iloc[108:])
    assert figure.axes[0].get_legend() is not None
    panels = forecaster.plot_components().axes
    assert [ax.get_ylabel() for ax in panels] == ["trend", "season 1y", "regressors", "interventions"]


def test_an_intervention_is_a_step_a_pulse_or_a_ramp():
    times = np.arange("2020-01", "2020-07", dtype="datetime64[M]").astype("datetime64[us]")
    steps = np.arange(6.0)
    columns = [
        Intervention("a", "2020-03-01"),
        Intervention("b", "2020-03-01", "2020-04-30"),
        Intervention("c", datetime.date(2020, 3, 1), ramp=True),
        Intervention("d", "2020-03", "2020-04-01", ramp=True),
    ]
    found = [one.column(times, steps).tolist() for one in columns]
    assert found == [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 0, 1, 2, 3, 4], [0, 0, 1, 2, 2, 2]]


def test_holidays_are_counted_per_step():
    days = {"2024-12-25": "Christmas", "2024-12-26": "Christmas", "2025-01-01": "New Year"}

    def columns(times):
        rows, flavour = read_rows({"t": times, "y": np.arange(float(len(times)))}, "t", "y")
        return {
            name: column.tolist()
            for name, column in holiday_columns(days, calendar_for(rows, flavour), rows.times).items()
        }

    assert columns(pd.date_range("2024-12-24", periods=4)) == {"Christmas": [0, 1, 1, 0]}
    assert columns(pd.date_range("2024-10-01", periods=4, freq="MS")) == {
        "Christmas": [0, 0, 2, 0],
        "New Year": [0, 0, 0, 1],
    }
    assert columns(pd.date_range("2024-10-31", periods=4, freq="ME")) == {
        "Christmas": [0, 0, 2, 0],
        "New Year": [0, 0, 0, 1],
    }
    assert columns(pd.date_range("2024-12-16", periods=4, freq="7D")) == {
        "Christmas": [0, 2, 0, 0],
        "New Year": [0, 0, 1, 0],
    }
    hours = columns(pd.date_range("2024-12-24 12:00", periods=30, freq="h"))
    assert hours == {"Christmas": [0] * 12 + [1] * 18}


def test_the_same_series_with_another_day_or_another_count_compiles_nothing():
    days = pd.date_range("2023-01-01", periods=110)
    sold = np.random.default_rng(0).poisson(20.0 + 5.0 * np.sin(2.0 * np.pi * np.arange(110) / 7.0))
    free = {"2023-02-14": "fair", "2023-03-20": "fair", "2023-04-09": "Easter"}

    def forecast(rows, sold):
        table = {"day": days[:rows], "sold": sold[:rows]}
        return ng.Forecaster("linear", holidays=free).fit(table, time="day", y="sold").forecast(7)

    forecast(108, sold)
    with compilations() as compiled:
        forecast(109, sold)
        forecast(108, sold + (np.arange(110) == 5))
    assert not compiled


def test_holidays_of_a_country():
    pytest.importorskip("holidays")
    rows, flavour = read_rows({"t": pd.date_range("2024-09-25", periods=20), "y": np.ones(20)}, "t", "y")
    found = holiday_columns("DE", calendar_for(rows, flavour), rows.times)
    assert [np.flatnonzero(column).tolist() for column in found.values()] == [[8]]  # 3 October
    with pytest.raises(ValueError, match="does not know 'Atlantis'"):
        holiday_columns("Atlantis", calendar_for(rows, flavour), rows.times)


@pytest.mark.parametrize(
    ("y", "name"),
    [
        ([0, 1, 5], "NegativeBinomial"),
        ([2000, 3000, 5000], "LogNormal"),
        ([0.0, 0.5], "Gaussian"),
        ([3, np.nan], "NegativeBinomial"),
        (np.random.default_rng(0).poisson(np.linspace(40.0, 90.0, 60)), "NegativeBinomial"),
        (np.round(np.linspace(90.0, 120.0, 60) + np.random.default_rng(0).normal(0.0, 2.0, 60)), "LogNormal"),
        (np.round(np.linspace(90.0, 120.0, 60) + 20.0 * np.tile(np.cos(np.arange(12.0)), 5)), "LogNormal"),
    ],
)
def test_the_likelihood_follows_from_the_kind_of_y(y, name):
    assert type(guess_likelihood(np.array(y, dtype=float), [12.0])).__name__ == name


@pytest.mark.slow
def test_cycles_that_are_no_season_go_on():
    rng, k = np.random.default_rng(0), np.arange(112)
    y = 3.0 * np.sin(2.0 * np.pi * k / 9.3) + rng.normal(0.0, 0.5, k.size)
    table = pd.DataFrame({"year": k[:100], "y": y[:100]})
    forecaster = ng.Forecaster("cyclic", season=None, likelihood="gaussian").fit(table, time="year", y="y")
    name = next(name for name in forecaster.result.parameters if name.endswith("period"))
    assert float(forecaster.result.parameters[name]) == pytest.approx(9.3, abs=0.2)
    ahead = forecaster.forecast(12)
    assert np.mean(np.abs(ahead["median"].to_numpy() - y[100:])) < 1.0
    assert np.mean((ahead["lower"] <= y[100:]) & (y[100:] <= ahead["upper"])) > 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trend": "quadratic"}, "trend must be one of 'auto', 'linear', 'damped'"),
        ({"season": "yearly"}, "a season is text such as '1y'"),
        ({"seasons": "1y"}, r"no argument 'seasons' \(did you mean 'season'\?\)"),
        ({"pooled": "some"}, "pooled must be 'prior', 'all' or None"),
        ({"season": ["1y", "1y"]}, "the same period twice"),
        ({"likelihood": "poison"}, "did you mean 'poisson'"),
        ({"likelihood": ng.likelihoods.HeteroscedasticGaussian()}, "one latent and one y"),
        ({"regressors": [3]}, "names of columns"),
        ({"intervention": ["2020-01-01"]}, "a mapping from names to times"),
        ({"intervention": {"law": ("2020-01-01",)}}, "a start and an end"),
        ({"regressors": ["law"], "intervention": {"law": "2020-01-01"}}, "both a regressor and an intervention"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ng.Forecaster(**arguments)


@pytest.mark.parametrize(
    ("arguments", "table", "message"),
    [
        ({}, {"t": [1, 2, 3], "y": [1.0, 2.0, 3.0]}, "at least 4 values of y"),
        ({}, {"t": [1, 1, 2, 2], "y": [1.0, 2.0, 3.0, 4.0]}, "at least 3 different times"),
        ({}, {"time": [1, 2, 3], "y": [1.0, 2.0, 3.0]}, "has no column 't'"),
        ({"season": "1y"}, {"t": np.arange(9), "y": np.ones(9)}, "a season is a number"),
        ({"holidays": "DE"}, {"t": np.arange(9), "y": np.ones(9)}, "holidays need dates"),
        ({"intervention": {"law": "soon"}}, {"t": np.arange(9), "y": np.ones(9)}, "must be a number"),
    ],
)
def test_wrong_tables(arguments, table, message):
    with pytest.raises(ValueError, match=message):
        ng.Forecaster(**arguments).fit(table, time="t", y="y")


@pytest.mark.slow
def test_times_to_forecast_are_like_those_of_the_data(air):
    with pytest.raises(ValueError, match="times of the data are dates, and those to forecast are numbers"):
        air[0].forecast({"month": [1961.0, 1962.0]})
    with pytest.raises(ValueError, match="after the first row"):
        air[0].forecast({"month": ["1940-01"]})
    with pytest.raises(ValueError, match="horizon must be"):
        air[0].forecast(0)


def test_nothing_before_the_fit():
    with pytest.raises(ValueError, match=r"call fit\(table"):
        ng.Forecaster().forecast(3)


# Several series ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shops():
    parts = [made(seed, 60, 60).assign(shop=name) for seed, name in enumerate("abc")]
    short = made(9, 2).assign(shop="new")
    table = pd.concat([*parts, short]).sample(frac=1.0, random_state=1)
    with pytest.warns(ng.FitWarning, match="1 of 4 series could not be fitted"):
        forecaster = ng.Forecaster("linear", likelihood="poisson").fit(table, time="month", y="calls", series="shop")
    return forecaster, parts


@pytest.mark.slow
@pytest.mark.thorough
def test_each_series_is_fitted_as_if_alone(shops):
    forecaster, parts = shops
    assert sorted(forecaster.fits) == ["a", "b", "c"]
    assert list(forecaster.failures) == ["new"] and "at least 4 values" in forecaster.failures["new"]
    ahead = forecaster.forecast(6)
    assert ahead.columns.tolist()[:2] == ["shop", "month"] and len(ahead) == 18
    alone = ng.Forecaster("linear", likelihood="poisson").fit(parts[1], time="month", y="calls").forecast(6)
    own = ahead[ahead["shop"] == "b"]
    np.testing.assert_allclose(own["mean"], alone["mean"], rtol=1e-6)
    assert own["month"].tolist() == alone["month"].tolist()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_table_of_future_rows_may_have_some_series(shops):
    forecaster, _ = shops
    wanted = {"shop": ["b", "a", "b"], "month": pd.to_datetime(["2015-01-01", "2015-03-01", "2015-02-01"])}
    ahead = forecaster.forecast(wanted)
    assert ahead["shop"].tolist() == ["b", "b", "a"]
    with pytest.raises(ValueError, match="the series 'z' was not fitted"):
        forecaster.forecast({"shop": ["z"], "month": pd.to_datetime(["2015-01-01"])})


@pytest.mark.slow
def test_results_of_one_series_are_asked_for_by_name(shops):
    forecaster = shops[0]
    with pytest.raises(ValueError, match=r"result is of one series, .* use forecaster\.fits\['.'\]\.result"):
        _ = forecaster.result
    assert repr(forecaster.fits["a"]) == "Fitted, 60 rows, one per month: trend, season 1y; Poisson"


@pytest.mark.slow
def test_one_series_of_several_is_plotted(shops):
    pytest.importorskip("matplotlib")
    forecaster, parts = shops
    (ax,) = forecaster.plot(6, series="b").axes
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), parts[1]["calls"])
    assert len(forecaster.plot_components(series="b").axes) == 2
    for wanted, message in ((None, r"series=, of '.', '.', '.'$"), ("z", "none of which has the label 'z'")):
        with pytest.raises(ValueError, match=message):
            forecaster.plot(6, series=wanted)


def test_several_series_in_one_are_noticed():
    """A column within whose levels no time is repeated; a price at which each store sells is none."""
    months = np.tile(np.arange(12), 3)
    table = {"month": months, "price": months + 0.5, "store": np.repeat(["a", "b", "c"], 12), "sold": months % 5 + 1.0}
    with pytest.warns(ng.FitWarning, match="these seem to be 3 series, .* pass series='store'"):
        forecaster = ng.Forecaster("level", None, likelihood="gaussian").fit(table, time="month", y="sold")
    with pytest.raises(ValueError, match="has one series without a label"):
        forecaster.plot(series="a")
    # One row is missing, and a column of numbers that hardly repeat comes first.
    others = {"month": months, "visitors": 100.0 + np.arange(36) * 7 % 36, **table}
    shorter = {name: np.delete(np.asarray(values), 35) for name, values in others.items()}
    with pytest.warns(ng.FitWarning, match="these seem to be 3 series, .* pass series='store'"):
        ng.Forecaster("level", None, likelihood="gaussian").fit(shorter, time="month", y="sold")


def test_a_plot_of_one_of_several_series_has_its_rows_alone(shops):
    forecaster = shops[0]
    label, other = list(forecaster.fits)[:2]
    time, series = forecaster.columns[0], forecaster.columns[2]
    future = forecaster.forecast(3)
    axes = forecaster.plot(future[[series, time]], series=label).axes[0]
    (median,) = (line for line in axes.lines if line.get_label() == "median")
    np.testing.assert_array_equal(median.get_ydata(), future["median"][future[series] == label])
    with pytest.raises(ValueError, match=f"the table has no rows of the series '{label}'"):
        forecaster.plot(future.loc[future[series] == other, [series, time]], series=label)
    with pytest.raises(ValueError, match="none of which has the label"):
        forecaster.plot(series=[label])


def test_one_label_needs_no_choice():
    table = {"month": np.arange(12), "store": ["a"] * 12, "sold": np.arange(12) % 5 + 1.0}
    forecaster = ng.Forecaster("level", None, likelihood="gaussian").fit(table, time="month", y="sold", series="store")
    assert forecaster.result is forecaster.fits["a"].result
    assert forecaster.plot(2).axes


@pytest.mark.slow
@pytest.mark.thorough
def test_a_backtest_of_several_series(shops):
    found = shops[0].backtest(6, origins=1, refit=False)
    assert sorted(found.scores["shop"]) == ["a", "b", "c"]
    assert len(found.forecasts) == 18


@pytest.mark.cases(slow=["all"], others="thorough")
@pytest.mark.parametrize("pooled", ["prior", "all"])
def test_hyperparameters_of_several_series_are_pooled(shops, pooled):
    own, parts = shops
    table = pd.concat(parts)
    forecaster = ng.Forecaster("linear", likelihood="poisson", pooled=pooled).fit(
        table, time="month", y="calls", series="shop"
    )

    def relative(fitted):
        modes, values = fitted.modes(fitted.structure), fitted.result.model
        found = {item.name: float(item.value) for item in ng.hyperparameters(values)}
        return np.array([np.log(found[name] / mode.value) for name, mode in modes.items()])

    alone = np.stack([relative(own.fits[shop]) for shop in "abc"])
    together = np.stack([relative(forecaster.fits[shop]) for shop in "abc"])
    if pooled == "all":
        np.testing.assert_allclose(together, np.tile(alone.mean(axis=0), (3, 1)), atol=1e-9)
    else:
        assert np.sum(np.std(together, axis=0)) < 0.9 * np.sum(np.std(alone, axis=0))
    assert len(forecaster.forecast(3)) == 9
