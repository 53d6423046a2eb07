"""Many series on the workers of a Dask cluster: counts of shops, fitted and forecast in parts.

    python examples/series_on_dask.py

needs `dask[distributed]`. The cluster here is local; `Client("tcp://scheduler:8786")` is one of several machines, on
all of which newtongp must be installed. The data are made.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng


def make_data(series: int = 8, months: int = 60, seed: int = 0) -> pd.DataFrame:
    """A long table: shops, months and sales."""
    rng = np.random.default_rng(seed)
    k = np.arange(months)
    frames = []
    for number in range(series):
        level = 3.0 + 0.3 * np.sin(2.0 * np.pi * k / 12.0 + number) + np.cumsum(0.03 * rng.normal(size=months))
        stamps = pd.date_range("2018-01-01", periods=months, freq="MS")
        frames.append(pd.DataFrame({"shop": f"shop {number}", "month": stamps, "sales": rng.poisson(np.exp(level))}))
    return pd.concat(frames, ignore_index=True)


def fitted(table: pd.DataFrame) -> ng.Forecaster:
    """The series of a table, one after the other: the cluster has several workers."""
    forecaster = ng.Forecaster(trend="level", likelihood="poisson")
    return forecaster.fit(table, time="month", y="sales", series="shop", workers=1)


def forecast_part(table: pd.DataFrame, horizon: int) -> pd.DataFrame:
    """What one worker does: forecasts of some of the series."""
    return fitted(table).forecast(horizon)


def forecast_on(client: Any, table: pd.DataFrame, parts: int, horizon: int) -> pd.DataFrame:
    """Forecasts of all series, in the order of the table, by the workers of a cluster.

    A part should have some dozens of series, since every worker compiles once.
    """
    names = table["shop"].drop_duplicates()
    chosen = [table[table["shop"].isin(own)] for own in np.array_split(names.to_numpy(), parts)]
    futures = client.map(forecast_part, chosen, horizon=horizon, pure=False)
    return pd.concat(client.gather(futures), ignore_index=True)


def main() -> None:
    """Forecast on a local cluster, and compare with a single process."""
    from dask.distributed import Client, LocalCluster

    table = make_data()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        found = forecast_on(client, table, parts=2, horizon=6)
    print(found.head(12).to_string())
    alone = forecast_part(table, 6)
    print(f"largest difference from one process: {np.abs(found['mean'] - alone['mean']).max():.2g}")


if __name__ == "__main__":
    main()
