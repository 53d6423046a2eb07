"""newtongp's side of `tables.py`: prints one line of JSON."""

import json
import resource
import sys
import time

import numpy as np

import newtongp as ng
from newtongp import terms


def mixed(task: dict) -> dict:
    with np.load(task["data"]) as stored:
        data = dict(stored)
    covariates = [name for name in data if name.startswith("x")]
    model = ng.Model(terms.Linear(*covariates, prior=task["effects"]) + terms.Group("group"), "poisson")
    seconds = []
    for _ in range(1 + task["repeats"]):
        begin = time.perf_counter()
        result = ng.fit(model, data, "y", ng.Newton())
        seconds.append(time.perf_counter() - begin)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        "first": seconds[0],
        "warm": float(np.median(seconds[1:] or seconds)),
        "log_likelihood": -result.energy,
        "memory": memory,
        "evaluations": result.evaluations,
    }


def series(task: dict) -> dict:
    """Seconds of a step, from runs of different numbers of steps."""
    rng = np.random.default_rng(0)
    rows = task["rows"]
    t, x = np.arange(float(rows)), rng.normal(size=(rows, 20))
    y = rng.poisson(np.exp(0.5 + np.sin(t / 8000.0) + 0.05 * x.sum(axis=1)))
    data = {"t": t, **{f"x{number}": x[:, number] for number in range(20)}, "y": y}
    alone = (
        terms.Linear() + terms.Trend("t", kernel=ng.kernels.Matern32(5000.0)) + terms.Season("t", 365.25, harmonics=3)
    )
    covariates = terms.Linear(*[f"x{number}" for number in range(20)]) + alone.terms[1] + alone.terms[2]
    return {"alone": _step(alone, data, task["repeats"]), "covariates": _step(covariates, data, task["repeats"])}


def _step(sums, data: dict, repeats: int) -> float:
    model, seconds = ng.Model(sums, "poisson"), []
    for turn in range(1 + repeats):
        found = {}
        for steps in (1, 5):
            begin = time.perf_counter()
            ng.infer(model, data, "y", max_steps=steps, tol=0.0, throw=False)
            found[steps] = time.perf_counter() - begin
        if turn:
            seconds.append((found[5] - found[1]) / 4.0)
    return float(np.median(seconds))


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps({"mixed": mixed, "series": series}[task["section"]](task)) + "\n")
