"""Proportions: beetles killed by a poison at eight doses, and the dose that kills half of them.

Bliss (1935), The calculation of the dosage-mortality curve, Annals of Applied Biology 22, 134-167: beetles exposed to
carbon disulphide for five hours. Dose is the logarithm to base 10 of mg per litre.
"""

from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import newtongp as ng

DOSE = [1.6907, 1.7242, 1.7552, 1.7842, 1.8113, 1.8369, 1.8610, 1.8839]
EXPOSED = [59, 60, 62, 56, 63, 59, 62, 60]
KILLED = [6, 13, 18, 28, 52, 53, 61, 60]


def read_data() -> pd.DataFrame:
    """One row per dose."""
    return pd.DataFrame({"dose": DOSE, "exposed": EXPOSED, "killed": KILLED})


def lethal_dose(result: ng.Result, share: float = 0.5, draws: int = 1000) -> np.ndarray:
    """Draws of the dose at which this share is killed: the first crossing of each drawn curve."""
    doses = pd.DataFrame({"dose": np.linspace(min(DOSE), max(DOSE), 200), "exposed": 1})
    curves = expit(result.sample(0, doses, draws)[:, :, 0])
    crossed = np.argmax(curves >= share, axis=1)
    return doses["dose"].to_numpy()[crossed[np.any(curves >= share, axis=1)]]


def main(picture: Any = None) -> tuple[ng.Result, np.ndarray]:
    """Compare a line with a smooth curve on the scale of the logit, and print the lethal dose."""
    data = read_data()
    likelihood = ng.likelihoods.Binomial(trials="exposed")
    line = ng.fit("killed ~ dose", data, likelihood)
    curve = ng.fit("killed ~ dose + smooth(dose)", data, likelihood)
    print(ng.compare({"line": line, "curve": curve}))
    found = lethal_dose(curve)
    low, middle, high = np.quantile(found, [0.025, 0.5, 0.975])
    print(f"half of the beetles die at a log dose of {middle:.3f} (95 % interval {low:.3f} to {high:.3f})")
    if picture is not None:
        draw({"line": line, "curve": curve}, data, found).savefig(picture, dpi=110)
    return curve, found


def draw(results: dict[str, ng.Result], data: pd.DataFrame, found: np.ndarray) -> Any:
    """The observed shares, both models, and the lethal dose."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    ax = figure.subplots()
    grid = pd.DataFrame({"dose": np.linspace(min(DOSE), max(DOSE), 100), "exposed": 1})
    for (name, result), colour in zip(results.items(), ("#999999", "#01497c"), strict=True):
        latent = result.predict(grid).latent
        half = 1.96 * np.sqrt(latent.covariance[:, 0, 0])
        ax.plot(grid["dose"], expit(latent.mean[:, 0]), color=colour, label=name)
        ax.fill_between(
            grid["dose"],
            expit(latent.mean[:, 0] - half),
            expit(latent.mean[:, 0] + half),
            color=colour,
            alpha=0.2,
            lw=0,
        )
    ax.axvspan(*np.quantile(found, [0.025, 0.975]), color="#e08a00", alpha=0.3, lw=0, label="dose that kills half")
    ax.plot(data["dose"], data["killed"] / data["exposed"], "o", color="#222222", label="observed")
    ax.set(xlabel="log10 of the dose in mg per litre", ylabel="share killed", ylim=(-0.02, 1.02))
    ax.legend(frameon=False, loc="upper left")
    ax.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main("proportions.png")
