"""From a CSV to a decision: how many rolls to bake on each day of next week.

The data are made: half a year of rolls that customers asked for, in a bakery that is closed on Sundays. The tutorial
in docs/tutorial.md walks through this script, and docs/assets/bakery.csv is what `make_data` makes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng

DATA = Path(__file__).parents[1] / "docs" / "assets" / "bakery.csv"
GAIN, LOSS = 0.50, 0.20
"""What a roll that is sold earns, and what one that is left over costs."""
WEEKDAYS = {"Mon": -0.10, "Tue": -0.20, "Wed": -0.15, "Thu": -0.05, "Fri": 0.20, "Sat": 0.55}


def make_data(seed: int = 7) -> pd.DataFrame:
    """One row per day: the date, its number, the weekday, whether it rained, and how many rolls were asked for."""
    rng = np.random.default_rng(seed)
    dates = pd.date_range("2025-01-06", periods=26 * 7)
    dates = dates[dates.dayofweek < 6]
    weekday = dates.strftime("%a")
    rain = (rng.uniform(size=len(dates)) < 0.3).astype(int)
    day = (dates - dates[0]).days.to_numpy()
    rate = np.exp(4.7 + 0.12 * np.sin(day / 28.0) - 0.18 * rain + np.array([WEEKDAYS[name] for name in weekday]))
    asked = rng.poisson(rate * rng.gamma(80.0, 1.0 / 80.0, len(dates)))
    return pd.DataFrame({"date": dates, "day": day, "weekday": weekday, "rain": rain, "asked": asked})


def profit(baked: Any, asked: Any) -> float:
    """What a number of rolls per day has earned, in all."""
    sold = np.minimum(baked, asked)
    return float(np.sum(GAIN * sold - LOSS * (np.asarray(baked) - sold)))


def main(picture: Any = None) -> dict[str, float]:
    """Learn from all but the last four weeks, and decide on these; print and return the profit of three rules."""
    table = pd.read_csv(DATA, parse_dates=["date"])
    past, later = table[:-24], table[-24:]
    result = ng.fit("asked ~ weekday + rain + smooth(day)", past, "negative_binomial")
    prediction = result.predict(later)
    baked = {
        "as many as are expected": np.round(prediction.mean),
        "the quantile that pays": prediction.quantile(GAIN / (GAIN + LOSS)),
        "the mean of the weekday": np.round(later["weekday"].map(past.groupby("weekday")["asked"].mean())),
    }
    profits = {rule: profit(numbers, later["asked"]) for rule, numbers in baked.items()}
    for rule, earned in profits.items():
        print(f"{rule}: {earned:.0f} in four weeks")
    if picture is not None:
        draw(later, prediction, baked["the quantile that pays"]).savefig(picture, dpi=110)
    return profits


def draw(later: pd.DataFrame, prediction: Any, baked: np.ndarray) -> Any:
    """Intervals of what will be asked for, the decisions, and what was asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    ax = figure.subplots()
    at = np.arange(len(later))
    lower, upper = prediction.interval(0.9)
    ax.vlines(at, lower, upper, color="#89c2d9", lw=8.0, label="90 % of the days' demand")
    ax.plot(at, baked, "_", color="#01497c", markersize=13, markeredgewidth=2.5, label="bake")
    ax.plot(at, later["asked"], "o", color="#e08a00", markersize=5, label="was asked for")
    ax.set_xticks(at, later["weekday"], fontsize="small", rotation=60)
    ax.set(ylabel="rolls", xlabel=f"from {later['date'].iloc[0]:%d %B %Y}")
    ax.legend(frameon=False, ncols=3, loc="upper left")
    ax.set_ylim(0, 1.2 * float(upper.max()))
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("bakery.png")
