"""The paper's motorcycle model, two latents a row: one iteration of each method against BayesNewton's.

    python benchmarks/motorcycle.py [--methods vi pep ...] [--no-peers] [--out FILE]

Both run the Markovian form with sites that start alike and steps of 0.3 for as many iterations, in turn on one core.
Ours is shown twice: with the plain product rule of 400 nodes, which BayesNewton has, and as it is by default, where the
mean of a Gaussian needs no nodes. The marginals after 40 iterations with the plain rule are compared.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from markov import Tools, machine, medians, milliseconds, ratio, spread, table

METHODS = ("newton", "vi", "vi gauss-newton", "pep", "pl")


def main() -> None:
    given = parse()
    results = {"machine": machine(), "repeats": given.repeats, "methods": []}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        results["methods"] = [compare(method, given) for method in given.methods]
    table(
        "one iteration, motorcycle data (99 rows)",
        results["methods"],
        {
            "method": lambda row: row["method"],
            "ours, ms": lambda row: milliseconds(row["seconds"].get("ours")),
            "ours, 400 nodes, ms": lambda row: milliseconds(row["seconds"].get("ours, 400 nodes")),
            "BayesNewton, ms": lambda row: milliseconds(row["seconds"].get("BayesNewton")),
            "BayesNewton by ours": lambda row: spread(row["speedup"]),
            "by ours, 400 nodes": lambda row: spread(row["speedup_same_rule"]),
            "apart": lambda row: f"{max(row['apart'].values()):.0e}" if row["apart"] else "",
        },
    )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="(all)")
    options.add_argument("--repeats", type=int, default=7, help="turns of everything (7)")
    options.add_argument("--no-peers", action="store_true", help="only this library")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def compare(method: str, given: argparse.Namespace) -> dict:
    with Tools(given, data()) as tools:
        tools.start("ours", "newtongp_motorcycle.py", method=method, nodes="default")
        tools.start("ours, 400 nodes", "newtongp_motorcycle.py", method=method, nodes="product")
        tools.start("BayesNewton", "bayesnewton_motorcycle.py", "bayesnewton", method=method)
        seconds = tools.alternate({name: (name, "iteration") for name in tools.ready})
        return {
            "method": method,
            "seconds": medians(seconds),
            "speedup": ratio(seconds, "BayesNewton", "ours"),
            "speedup_same_rule": ratio(seconds, "BayesNewton", "ours, 400 nodes"),
            "apart": tools.apart("ours, 400 nodes", "BayesNewton"),
        }


def data() -> dict[str, np.ndarray]:
    """The training rows of the paper's first fold, in order of time."""
    import newtongp as ng

    x, y = ((column - column.mean()) / column.std() for column in ng.datasets.motorcycle())
    rows = np.sort(np.random.RandomState(123).permutation(132)[33:])
    return {"x": x[rows], "y": y[rows]}


if __name__ == "__main__":
    main()
