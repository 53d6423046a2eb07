"""Counts in areas: cases of a disease in 80 districts, with an expected number, a covariate and a map.

The data are made: districts are the squares of a grid, and the risk rises smoothly to one corner.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng

WIDE, HIGH = 10, 8


def make_data(seed: int = 1) -> tuple[pd.DataFrame, dict[str, list[str]], dict[str, np.ndarray]]:
    """The districts, the neighbours of each, and the corners of each."""
    rng = np.random.default_rng(seed)
    names = {(i, j): f"d{i}{j}" for i in range(WIDE) for j in range(HIGH)}
    steps = ((1, 0), (-1, 0), (0, 1), (0, -1))
    neighbours = {
        name: [names[i + a, j + b] for a, b in steps if (i + a, j + b) in names] for (i, j), name in names.items()
    }
    corners = {name: np.array([(i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)]) for (i, j), name in names.items()}
    place = np.array(list(names))
    rows = pd.DataFrame({"district": list(names.values()), "expected": rng.gamma(4.0, 3.0, len(names)) + 1.0})
    rows["poverty"] = (rng.uniform(0.0, 30.0, len(names))).round(1)
    smooth = 0.6 * np.sin(place[:, 0] / 4.0) * np.cos(place[:, 1] / 5.0)
    risk = -0.6 + 0.03 * rows["poverty"] + smooth + 0.15 * rng.normal(size=len(names))
    rows["cases"] = rng.poisson(rows["expected"] * np.exp(risk))
    return rows, neighbours, corners


def main(picture: Any = None) -> ng.Result:
    """Fit a BYM2 model with penalised complexity priors, print its effects, and draw the map."""
    data, neighbours, corners = make_data()
    area = ng.terms.Area("district", neighbours)
    terms = ng.terms.Linear("poverty") + area + ng.terms.Offset("expected", "log")
    result = ng.fit(
        ng.Model(terms, ng.likelihoods.Poisson()),
        data,
        "cases",
        parameters={
            "area(district).kernel.variance": ng.Free(prior=ng.parameters.PCVariance(1.0, 0.01)),
            "area(district).kernel.phi": ng.Free(prior=area.kernel.phi_prior(0.5, 0.67)),
        },
    )
    print(result.effects().to_string(float_format="%.3f"))
    highest = result.effects("district").sort_values("estimate", ascending=False).head(3)
    print("the districts with the highest risk beyond poverty:")
    print(highest.to_string(float_format="%.2f"))
    if picture is not None:
        result.plot_terms(places=corners).savefig(picture, dpi=110)
    return result


if __name__ == "__main__":
    main("areas.png")
