"""Counts in space and time: one iteration of VI against BayesNewton and against a NumPy filter and smoother.

    python benchmarks/space_time.py [--times 500] [--places 30] [--large] [--no-peers] [--out FILE]

The three are measured in turn on one core: an iteration of inference here and in BayesNewton, and one filter and
smoother of the same model in NumPy at the converged sites. Marginals at convergence are compared. With `--large`, also
5000 times and 50 places on all cores: inference to convergence and learning, with the memory they take.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from markov import Tools, common, machine, medians, milliseconds, ratio, spread, table

LENGTHSCALE, REACH, VARIANCE = 10.0, 0.3, 1.0


def main() -> None:
    given = parse()
    results = {"machine": machine(), "repeats": given.repeats}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        results["iteration"] = [compare(times, given.places, given) for times in given.times]
        if given.large:
            results["large"] = [large(given)]
    show(results)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--times", type=int, nargs="+", default=[500], help="numbers of times (500)")
    options.add_argument("--places", type=int, default=30, help="the number of places (30)")
    options.add_argument("--large", action="store_true", help="also 5000 times and 50 places, on all cores")
    options.add_argument("--repeats", type=int, default=5, help="turns of everything (5)")
    options.add_argument("--no-peers", action="store_true", help="only this library and NumPy")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def data(times: int, places: int) -> dict[str, np.ndarray]:
    """Counts of a slow wave over places on a line, and what a smoother in NumPy needs of the model."""
    rng = np.random.default_rng(places)
    t, s = np.cumsum(rng.gamma(2.0, 0.5, size=times)), np.sort(rng.uniform(size=places))
    f = np.sin(0.2 * t)[:, None] + 0.5 * np.cos(6.0 * s)[None, :]
    distances = np.sqrt(3.0) * np.abs(s[:, None] - s[None, :]) / REACH
    features = np.linalg.cholesky((1.0 + distances) * np.exp(-distances))
    numbers = {"lengthscale": LENGTHSCALE, "reach": REACH, "variance": VARIANCE}
    counts = rng.poisson(np.exp(f)).astype(float)
    return {"t": t, "s": s, "y": counts, "features": features} | {k: np.asarray(v) for k, v in numbers.items()}


def compare(times: int, places: int, given: argparse.Namespace) -> dict:
    arrays = data(times, places)
    with Tools(given, arrays) as tools:
        tools.start("ours", "newtongp_space_time.py", iterations=True)
        found = tools.ready["ours"].answer()
        common.write(tools.data_file, {**arrays, "linear": found["linear"], "precision": found["precision"]})
        tools.start("NumPy", "numpy_space_time.py")
        tools.start("BayesNewton", "bayesnewton_space_time.py", "bayesnewton")
        wanted = {"ours": ("ours", "iteration"), "NumPy": ("NumPy", "smoother")}
        seconds = tools.alternate({**wanted, "BayesNewton": ("BayesNewton", "iteration")})
        return {
            "times": times,
            "places": places,
            "seconds": medians(seconds),
            "by NumPy": ratio(seconds, "ours", "NumPy"),
            "speedup": ratio(seconds, "BayesNewton", "ours"),
            "apart": {name: tools.apart("ours", name) for name in ("NumPy", "BayesNewton")},
            "found": tools.ready["ours"].found,
        }


def large(given: argparse.Namespace) -> dict:
    with Tools(given, data(5000, 50)) as tools:
        tools.start("ours", "newtongp_space_time.py", iterations=False, fit=True, all_cores=True)
        return {"times": 5000, "places": 50, **tools.ready["ours"].found}


def show(results: dict) -> None:
    table(
        "one iteration of VI, Poisson counts",
        results["iteration"],
        {
            "times": lambda row: str(row["times"]),
            "places": lambda row: str(row["places"]),
            "ours, ms": lambda row: milliseconds(row["seconds"].get("ours")),
            "NumPy, ms": lambda row: milliseconds(row["seconds"].get("NumPy")),
            "ours by NumPy": lambda row: spread(row["by NumPy"]),
            "BayesNewton, ms": lambda row: milliseconds(row["seconds"].get("BayesNewton")),
            "BayesNewton by ours": lambda row: spread(row["speedup"]),
            "first run, s": lambda row: f"{row['found']['first_seconds']:.1f}",
        },
    )
    if "large" in results:
        table(
            "counts at 5000 times and 50 places",
            results["large"],
            {
                "inference, s": lambda row: f"{row['seconds']:.0f}",
                "steps": lambda row: str(row["steps"]),
                "MB": lambda row: f"{row['peak_megabytes']:.0f}",
                "fit, s": lambda row: f"{row['fit_seconds']:.0f}",
                "fit, MB": lambda row: f"{row['fit_megabytes']:.0f}",
            },
        )


if __name__ == "__main__":
    main()
