"""Counts in space and time: measles in 17 districts, 104 weeks; forecasts one week ahead, maps and series.

The latent of a district and week is a sum of four products of a kernel in time and one in space: a season and a slow
change that all districts share, a level of each district, and deviations of each district that last for some weeks.
Among similar sums, this one had the best log score in weeks 53 to 65, with hyperparameters learned from weeks 1 to 52.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import newtongp as ng

DATA = Path(__file__).parent / "data"
FIRST, LAST = 66, 78
"""The weeks that are forecast, each from all weeks before it."""


class Scores(NamedTuple):
    """Means over all forecasts: −log p(y), and the ranked probability score."""

    log_score: float
    rps: float


def read_data() -> tuple[np.ndarray, np.ndarray, pd.DataFrame]:
    """Rows of weeks and codes of districts, counts, and the districts."""
    counts = pd.read_csv(DATA / "measles.csv", comment="#").iloc[:, 2:].to_numpy(float)
    districts = pd.read_csv(DATA / "measles_districts.csv", comment="#", dtype={"district": str})
    week, code = np.indices(counts.shape)
    return np.column_stack([week.ravel() + 1.0, code.ravel()]), counts.ravel(), districts


def make_model() -> ng.Model:
    """Season + common change + districts + deviations, and negative binomial counts."""
    kernels = ng.kernels
    prior = ng.SpaceTimeGP(
        time=[
            kernels.Cosine(period=52.0),
            kernels.Matern12(variance=0.5, lengthscale=20.0),
            kernels.Constant(2.0),
            kernels.Matern12(lengthscale=8.0),
        ],
        space=[kernels.Constant(1.0), kernels.Constant(1.0), kernels.Category(), kernels.Category()],
        mean=-1.0,
    )
    return ng.Model(prior, ng.likelihoods.NegativeBinomial(1.0))


def fit(x: np.ndarray, y: np.ndarray, until: float) -> ng.Result:
    """Learn from all rows up to a week. The year has 52 weeks; everything else is learned."""
    rows = x[:, 0] <= until
    return ng.fit(make_model(), x[rows], y[rows], parameters={"time[0].period": ng.Fixed()}, standard_errors=False)


def score(model: ng.Model, x: np.ndarray, y: np.ndarray, weeks: range) -> Scores:
    """Forecast every week from all weeks before it, with the hyperparameters of the model."""
    logs, rps, steps = [], [], np.arange(150.0)
    for week in weeks:
        known, new = x[:, 0] < week, x[:, 0] == week
        result = ng.infer(model, x[known], y[known])
        places, counts = np.repeat(x[new], steps.size, axis=0), np.tile(steps, new.sum())
        probabilities = np.exp(result.log_density(places, counts)).reshape(-1, steps.size)
        logs.append(-np.log(probabilities[np.arange(new.sum()), y[new].astype(int)]))
        rps.append(np.sum((np.cumsum(probabilities, axis=1) - (steps >= y[new][:, None])) ** 2, axis=1))
    return Scores(float(np.mean(logs)), float(np.mean(rps)))


def main(maps: Any = None, series: Any = None) -> Scores:
    """Learn from the weeks before the first forecast, score all forecasts, and draw maps and series."""
    x, y, districts = read_data()
    learned = fit(x, y, FIRST - 1)
    print({name: round(float(value), 3) for name, value in learned.parameters.items() if "space" not in name})
    scores = score(learned.model, x, y, range(FIRST, LAST + 1))
    print(f"weeks {FIRST} to {LAST}, one week ahead: log score {scores.log_score:.3f}, RPS {scores.rps:.3f}")
    if maps is not None or series is not None:
        result = ng.infer(learned.model, x[x[:, 0] <= LAST], y[x[:, 0] <= LAST])
        points = dict(enumerate(districts[["longitude", "latitude"]].to_numpy()))
        names = dict(enumerate(districts["district"]))
    if maps is not None:
        result.plot_maps([58.0, 66.0, 74.0, 79.0], points, what="latent").savefig(maps, dpi=110)
    if series is not None:
        result.plot_places(until=LAST + 4.0, names=names).savefig(series, dpi=110)
    return scores


if __name__ == "__main__":
    main("measles_maps.png", "measles_series.png")
