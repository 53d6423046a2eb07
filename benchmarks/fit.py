"""Learning hyperparameters by VI: our `fit` against GPflow's VGP, on small data sets of classes and counts.

    python benchmarks/fit.py [--repeats N] [--no-peers] [--out FILE]

GPflow is run in the two ways of its documentation: L-BFGS over everything at once, and natural gradients for q(f) in
turn with L-BFGS for hyperparameters. All start with data and end with an ELBO, in turn on one core, with every function
compiled in an earlier run of the same fit where the tool keeps it (`first` is that earlier run, in a new process).
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from markov import Tools, machine, medians, ratio, spread, table

SETS = Path(__file__).resolve().parent.parent / "tests" / "oracles" / "data" / "sets"
CASES = [
    ("bernoulli_1d", "bernoulli", "matern52"),
    ("bernoulli_2d", "bernoulli", "rbf"),
    ("poisson_1d", "poisson", "matern52"),
    ("poisson_2d", "poisson", "rbf"),
]


def main() -> None:
    given = parse()
    results = {"machine": machine(), "repeats": given.repeats, "cases": []}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        results["cases"] = [compare(given, *case) for case in CASES]
    names = ("ours", "GPflow, L-BFGS", "GPflow, natural gradients")
    table(
        "VI with hyperparameters",
        results["cases"],
        {
            "data": lambda row: row["data"],
            **{f"{name}, ELBO": lambda row, n=name: number(row["elbo"].get(n)) for name in names},
            **{f"{name}, s": lambda row, n=name: number(row["seconds"].get(n), 3) for name in names},
            **{f"{name}, first": lambda row, n=name: number(row["first"].get(n), 1) for name in names},
            "GPflow by ours": lambda row: spread(row["speedup"]),
        },
    )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--repeats", type=int, default=5, help="turns of everything (5)")
    options.add_argument("--no-peers", action="store_true", help="only this library")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def number(value: float | None, digits: int = 5) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def compare(given: argparse.Namespace, name: str, likelihood: str, kernel: str) -> dict:
    content = json.loads((SETS / f"{name}.json").read_text())
    x, y = (np.asarray(content[part], dtype=float) for part in ("X", "Y"))
    with Tools(given, {"x": x.reshape(len(y), -1), "y": y.reshape(-1)}) as tools:
        model = {"likelihood": likelihood, "kernel": kernel}
        tools.start("ours", "newtongp_fit.py", **model)
        tools.start("GPflow, L-BFGS", "gpflow_fit.py", "gpflow", way="lbfgs", **model)
        tools.start("GPflow, natural gradients", "gpflow_fit.py", "gpflow", way="natural", **model)
        seconds = tools.alternate({name: (name, "fit") for name in tools.ready})
        others = [key for key in seconds if key != "ours"]
        fastest = min(others, key=lambda key: np.median(seconds[key]), default=None)
        found = {key: tool.found for key, tool in tools.ready.items()}
    return {
        "data": name,
        "elbo": {key: value["elbo"] for key, value in found.items()},
        "first": {key: value["first"] for key, value in found.items()},
        "seconds": medians(seconds),
        "speedup": None if fastest is None else ratio(seconds, fastest, "ours"),
    }


if __name__ == "__main__":
    main()
