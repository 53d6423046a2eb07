"""Counts of a clinical trial: several visits of every patient, a treatment, and its effect on new patients.

The data are made, in the form of a trial of epileptic seizures: 60 patients with four visits each, of which a few were
missed.
"""

from typing import Any

import numpy as np
import pandas as pd

import newtongp as ng


def make_data(seed: int = 0) -> pd.DataFrame:
    """One row per visit: the number of seizures, the treatment, log baseline, and age."""
    rng = np.random.default_rng(seed)
    patients, visits = 60, 4
    base, age = rng.gamma(2.5, 12.0, patients) + 4.0, rng.integers(18, 43, patients)
    treated = np.repeat(["placebo", "drug"], patients // 2)
    own = 0.5 * rng.normal(size=patients)
    rows = pd.DataFrame(
        {
            "patient": np.repeat([f"p{number:02d}" for number in range(patients)], visits),
            "treatment": pd.Categorical(np.repeat(treated, visits), ["placebo", "drug"]),
            "base": np.repeat(np.log(base / 4.0), visits),
            "age": np.repeat(age, visits),
            "visit": np.tile(np.arange(1, visits + 1), patients),
        }
    )
    drug = (rows["treatment"] == "drug").to_numpy()
    curve = 0.6 * np.sin((rows["age"] - 18.0) / 6.0)
    rate = -0.2 + rows["base"] + curve - 0.4 * drug - 0.08 * (rows["visit"] - 2.5) + np.repeat(own, visits)
    rows["seizures"] = rng.poisson(np.exp(rate)).astype(float)
    rows.loc[rng.choice(len(rows), 8, replace=False), "seizures"] = np.nan
    return rows


def main(picture: Any = None) -> ng.Result:
    """Fit the model, print its effects and that of the treatment on new patients, and draw its terms."""
    data = make_data()
    terms = ng.terms.Linear("base", "treatment", "visit") + ng.terms.Group("patient") + ng.terms.Smooth("age")
    result = ng.fit(ng.Model(terms, ng.likelihoods.Poisson()), data, "seizures")
    print(result.effects().to_string(float_format="%.3f"))

    new = pd.DataFrame({"patient": ["new"], "treatment": ["drug"], "base": [2.0], "age": [30], "visit": [4]})
    print("seizures of a new patient under the drug, minus those under placebo:")
    print(result.contrast(new, new.assign(treatment="placebo")).to_string(float_format="%.2f"))
    print("a new patient:", result.predict(new).mean, "one without an effect of his own:", end=" ")
    print(result.predict(new, without=["patient"]).mean)

    held_out = ng.cross_validate(result.model, data, "seizures", folds=("patient", 5))
    print(f"log density of patients that were left out: {held_out.mean:.3f} per visit")
    if picture is not None:
        result.plot_terms().savefig(picture, dpi=110)
    return result


if __name__ == "__main__":
    main("seizures.png")
