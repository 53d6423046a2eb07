"""Distributional regression: both the location and the scale of y depend on covariates.

The data are made: the growth of children, whose mean and whose spread change with age, and differ between two groups.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng


def make_data(seed: int = 3) -> pd.DataFrame:
    """One row per child."""
    rng = np.random.default_rng(seed)
    count = 400
    age, sex = rng.uniform(2.0, 18.0, count).round(1), rng.choice(["f", "m"], count)
    mean = 12.0 - 0.55 * age + 5.0 * np.exp(-0.5 * ((age - 12.5) / 1.5) ** 2) + 0.5 * (sex == "m")
    scale = 0.4 + 1.2 * np.exp(-0.5 * ((age - 12.5) / 2.5) ** 2) + 0.2 * (sex == "m")
    return pd.DataFrame({"age": age, "sex": sex, "growth": mean + scale * rng.normal(size=count)})


def main(picture: Any = None) -> ng.Result:
    """Fit a curve and a group for both parameters; print effects and a range that 90 % of children are in."""
    data = make_data()
    model = ng.Model(
        {
            "location": ng.terms.Linear("sex") + ng.terms.Smooth("age"),
            "scale": ng.terms.Linear("sex") + ng.terms.Smooth("age"),
        },
        ng.likelihoods.HeteroscedasticGaussian(),
    )
    result = ng.fit(model, data, "growth")
    print(result.effects().to_string(float_format="%.3f"))
    ages = pd.DataFrame({"age": [4.0, 8.0, 12.0, 16.0], "sex": "f"})
    lower, upper = result.predict(ages).interval(0.9)
    print(ages.assign(lower=lower, upper=upper).round(2).to_string())
    if picture is not None:
        result.plot_terms().savefig(picture, dpi=110)
    return result


if __name__ == "__main__":
    main("distributional.png")
