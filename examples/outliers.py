"""Outliers: telephone calls from Belgium, of which six years were recorded in another unit.

Rousseeuw and Leroy (1987), Robust Regression and Outlier Detection, page 26: millions of calls from Belgium in 1950 to
1973. From 1964 to 1969 the minutes were written down instead, and in parts of 1963 and 1970 too.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng

CALLS = (4.4, 4.7, 4.7, 5.9, 6.6, 7.3, 8.1, 8.8, 10.6, 12.0, 13.5, 14.9, 16.1, 21.2)
MINUTES = (119.0, 124.0, 142.0, 159.0, 182.0, 212.0)
AFTER = (43.0, 24.0, 27.0, 29.0)


def read_data() -> pd.DataFrame:
    """One row per year."""
    return pd.DataFrame({"year": np.arange(1950.0, 1974.0), "calls": CALLS + MINUTES + AFTER})


def main(picture: Any = None) -> dict[str, ng.Result]:
    """Fit a line with Gaussian and with Student-t noise, and name the years that do not belong to it."""
    data = read_data()
    results = {
        "Gaussian": ng.fit("calls ~ year", data, "gaussian"),
        "Student-t": ng.fit("calls ~ year", data, "student_t"),
    }
    for name, result in results.items():
        slope = result.effects().set_index("name").loc["year"]
        interval = f"{slope['lower']:.2f} to {slope['upper']:.2f}"
        print(f"{name} noise: {slope['estimate']:.2f} ({interval}) million calls more every year")
    print(ng.compare(results))
    lower, upper = results["Student-t"].predict(data).interval(0.9)
    outside = data["year"][(data["calls"] < lower) | (data["calls"] > upper)]
    print("outside the 90 % intervals of Student-t noise:", ", ".join(f"{year:.0f}" for year in outside))
    if picture is not None:
        draw(results, data).savefig(picture, dpi=110)
    return results


def draw(results: dict[str, ng.Result], data: pd.DataFrame) -> Any:
    """The data and both lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    ax = figure.subplots()
    for (name, result), colour in zip(results.items(), ("#e08a00", "#01497c"), strict=True):
        latent = result.predict(data).latent
        mean, half = latent.mean[:, 0], 1.96 * np.sqrt(latent.covariance[:, 0, 0])
        ax.plot(data["year"], mean, color=colour, label=f"{name} noise")
        ax.fill_between(data["year"], mean - half, mean + half, color=colour, alpha=0.2, lw=0)
    ax.plot(data["year"], data["calls"], "o", color="#222222", markersize=5, label="recorded")
    ax.set(xlabel="year", ylabel="calls, millions")
    ax.legend(frameon=False, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("outliers.png")
