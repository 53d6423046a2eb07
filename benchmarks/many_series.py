"""Many series in one call: made counts with a trend and a season, fitted and forecast.

    python benchmarks/many_series.py --series 1000 --rows 150

prints elapsed seconds and processor time, compilation included, and how many of the next values the 90 % intervals
cover.
"""

import argparse
import time

import numpy as np
import pandas as pd

import newtongp as ng

HORIZON = 12


def make_data(series, rows, seed=0):
    """A long table of counts, one row per month, and the values that come next."""
    rng, k = np.random.default_rng(seed), np.arange(rows + HORIZON)
    frames = []
    for number in range(series):
        walk = np.cumsum(rng.normal(0.0, 0.03, size=k.size))
        slope, size, shift = rng.normal(0.0, 0.003), rng.uniform(0.1, 0.5), rng.uniform(0.0, 2.0 * np.pi)
        season = size * np.sin(2.0 * np.pi * k / 12.0 + shift) + 0.3 * size * np.cos(4.0 * np.pi * k / 12.0)
        rate = np.exp(rng.uniform(1.0, 5.0) + slope * k + season + walk)
        stamps = pd.date_range("2005-01-01", periods=k.size, freq="MS")
        frames.append(pd.DataFrame({"series": number, "month": stamps, "count": rng.poisson(rate)}))
    table = pd.concat(frames, ignore_index=True)
    later = table["month"] >= stamps[rows]
    return table[~later], table[later]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--trend", default="linear")
    parser.add_argument("--pooled", choices=("prior", "all"))
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    table, truth = make_data(arguments.series, arguments.rows)
    started, worked = time.perf_counter(), time.process_time()
    forecaster = ng.Forecaster(arguments.trend, likelihood="poisson", pooled=arguments.pooled)
    forecaster.fit(table, time="month", y="count", series="series", workers=arguments.workers)
    fitted, fitted_work = time.perf_counter() - started, time.process_time() - worked
    ahead = forecaster.forecast(HORIZON)
    elapsed, work = time.perf_counter() - started, time.process_time() - worked
    both = ahead.merge(truth, on=["series", "month"])
    covered = np.mean((both["lower"] <= both["count"]) & (both["count"] <= both["upper"]))
    converged = sum(bool(one.result.status.ok) for one in forecaster.fits.values())
    print(
        f"{len(forecaster.fits)} series of {arguments.rows} rows ({converged} converged, {len(forecaster.failures)} "
        f"failed): fitted in {fitted:.1f} s ({fitted_work:.1f} s of processor time), with forecasts {elapsed:.1f} s "
        f"({work:.1f} s); {100.0 * covered:.1f} % of {len(both)} values inside 90 % intervals"
    )


if __name__ == "__main__":
    main()
