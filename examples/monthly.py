"""A monthly series with a regressor and an intervention: accidents, the price of petrol, and a law.

The data are made: sixteen years of monthly counts with a trend, a season, an effect of the price, and a law that
lowers them by a fifth.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng

LAW = pd.Timestamp("2013-02-01")


def make_data(seed: int = 2) -> pd.DataFrame:
    """One row per month."""
    rng = np.random.default_rng(seed)
    months = pd.date_range("2004-01-01", "2019-12-01", freq="MS")
    count = len(months)
    price = 1.2 + 0.25 * np.sin(np.arange(count) / 17.0) + 0.05 * rng.normal(size=count)
    season = 0.12 * np.cos(2.0 * np.pi * (months.month - 12) / 12.0)
    trend = np.cumsum(0.015 * rng.normal(size=count)) - 0.001 * np.arange(count)
    law = (months >= LAW).astype(float)
    rate = 5.2 + trend + season - 0.5 * (price - 1.2) - 0.22 * law
    return pd.DataFrame(
        {"month": months, "log_price": np.log(price), "law": law, "accidents": rng.poisson(np.exp(rate))}
    )


def main(picture: Any = None) -> ng.Result:
    """Fit a trend, a season, the price and the law; print what the law changed, and draw all terms."""
    data = make_data()
    terms = (
        ng.terms.Linear("log_price", "law") + ng.terms.Trend("month", "level") + ng.terms.Season("month", period="1y")
    )
    result = ng.fit(ng.Model(terms, ng.likelihoods.Poisson()), data, "accidents")
    print(result.effects(including_learned=True).to_string(float_format="%.4f"))

    after = data[data["law"] == 1.0]
    saved = result.contrast(after, after.assign(law=0.0), average=True)
    print("accidents per month with the law, minus those without it:")
    print(saved.to_string(float_format="%.1f"))
    ahead = pd.DataFrame({"month": pd.date_range("2020-01-01", periods=12, freq="MS"), "log_price": 0.2, "law": 1.0})
    print(result.predict(ahead).to_frame()[["mean", "lower", "upper"]].round(0).to_string())
    if picture is not None:
        result.plot_terms().savefig(picture, dpi=110)
    return result


if __name__ == "__main__":
    main("monthly.png")
