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


def make_data(seed: int = 1) -> pd.DataFrame:
    """One row per day: the date, its number, the weekday, whether it rained, and how many rolls were asked for."""
    rng = np.random.default_rng(seed)
    dates = pd.date_range("2025-01-06", periods=26 * 7)
    dates = dates[dates.day_of_week < 6]
    weekday = dates.strftime("%a")
    rain = (rng.uniform(size=len(dates)) < 0.3).astype(int)
    day = (dates - dates[0]).days.to_numpy()
    rate = np.exp(4.7 + 0.2 * np.sin(day / 28.0) - 0.3 * rain + np.array([WEEKDAYS[name] for name in weekday]))
    asked = rng.poisson(rate * rng.gamma(30.0, 1.0 / 30.0, len(dates)))
    return pd.DataFrame({"date": dates, "day": day, "weekday": weekday, "rain": rain, "asked": asked})


def profit(baked: Any, asked: Any) -> float:
    """What a number of rolls per day has earned, in all."""
    sold = np.minimum(baked, asked)
    return float(np.sum(GAIN * sold - LOSS * (np.asarray(baked) - sold)))


def main(picture: Any = None) -> dict[str, float]:
    """Learn from all but the last eight weeks, and decide on these, week by week; print what three rules earn."""
    table = pd.read_csv(DATA, parse_dates=["date"])
    past, later = table[:-48], table[-48:]
    model = ng.fit("asked ~ weekday + rain + smooth(day)", past, "negative_binomial").model
    weeks = []
    for first in range(len(past), len(table), 6):
        week = table[first : first + 6]
        prediction = ng.infer(model, table[:first], "asked").predict(week)  # from all days before this week
        weeks.append(
            week.assign(
                expected=np.round(prediction.mean),
                quantile=prediction.quantile(GAIN / (GAIN + LOSS)),
                usual=week["weekday"].map(table[:first].groupby("weekday")["asked"].mean()).round(),
                lower=prediction.quantile(0.05),
                upper=prediction.quantile(0.95),
            )
        )
    decided = pd.concat(weeks)
    rules = {"expected": "expected number", "quantile": "quantile that pays", "usual": "mean of the weekday"}
    profits = {name: profit(decided[column], later["asked"]) for column, name in rules.items()}
    for name, earned in profits.items():
        print(f"{name}: {earned:.0f} in eight weeks")
    if picture is not None:
        draw(decided[-24:]).savefig(picture, dpi=110)
    return profits


def draw(decided: pd.DataFrame) -> Any:
    """Intervals of what will be asked for, the decisions, and what was asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    ax = figure.subplots()
    at = np.arange(len(decided))
    ax.vlines(at, decided["lower"], decided["upper"], color="#89c2d9", lw=8.0, label="90 % of what may be asked for")
    ax.plot(at, decided["quantile"], "_", color="#01497c", markersize=13, markeredgewidth=2.5, label="bake")
    ax.plot(at, decided["asked"], "o", color="#e08a00", markersize=5, label="was asked for")
    ax.set_xticks(at, decided["weekday"], fontsize="small", rotation=60)
    ax.set(ylabel="rolls", xlabel=f"four weeks from {decided['date'].iloc[0]:%d %B %Y}")
    ax.legend(frameon=False, ncols=3, loc="upper left")
    ax.set_ylim(0, 1.2 * float(decided["upper"].max()))
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("bakery.png")
