"""A table of counts with groups, factors and dates, and results of models of it, for several test files."""

import functools

import numpy as np
import pandas as pd

import newtongp as ng
from newtongp import terms

PAIRS = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")]


def visits(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Counts, some of them missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "patient": rng.choice([f"p{k}" for k in range(8)], rows),
            "drug": pd.Categorical(rng.choice(["none", "low", "high"], rows), ["none", "low", "high"], ordered=True),
            "dose": rng.normal(3.0, 1.0, rows).round(2),
            "age": rng.integers(20, 40, rows).astype(float),
            "area": rng.choice(list("abcd"), rows),
            "date": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 50, rows) * 10, unit="D"),
            "days": rng.uniform(5.0, 15.0, rows).round(1),
        }
    )
    own = dict(zip([f"p{k}" for k in range(8)], 0.6 * rng.normal(size=8), strict=True))
    rate = 0.2 * frame["dose"] + 0.4 * (frame["drug"] == "high") + frame["patient"].map(own) - 1.5
    rate += np.log(frame["days"])
    frame["y"] = rng.poisson(np.exp(rate)).astype(float)
    frame.loc[[4, 11], "y"] = np.nan
    return frame


def two_terms(prior="wide"):
    """Fixed effects, a group and an offset."""
    return terms.Linear("dose", "drug", prior=prior) + terms.Group("patient") + terms.Offset("days", "log")


def all_terms():
    """One term of every kind."""
    return (
        terms.Linear("dose", "drug", ("dose", "drug"))
        + terms.Group("patient", slope="dose")
        + terms.Smooth("age", by="drug")
        + terms.Smooth("age", "dose")
        + terms.Smooth("age", by="dose")
        + terms.Trend("date")
        + terms.Season("date", "1y")
        + terms.RandomWalk("drug")
        + terms.Area("area", PAIRS)
        + terms.Smooth("age") * terms.Season("date", "1y")
        + terms.Offset("days", "log")
    )


@functools.cache
def fitted(prior="wide") -> ng.Result:
    """A fit of the model with two terms."""
    return ng.fit(ng.Model(two_terms(prior), ng.likelihoods.Poisson()), visits(), "y")


@functools.cache
def inferred() -> ng.Result:
    """Inference with fixed hyperparameters in the model with all terms."""
    return ng.infer(ng.Model(all_terms(), ng.likelihoods.Poisson()), visits(), "y", ng.Newton())


@functools.cache
def distributional() -> ng.Result:
    """Inference in a model of two latents."""
    frame = visits()
    own = {"location": terms.Linear("dose") + terms.Group("patient"), "scale": terms.Linear("drug")}
    return ng.infer(ng.Model(own, ng.likelihoods.HeteroscedasticGaussian()), frame, np.log1p(frame["y"]))
