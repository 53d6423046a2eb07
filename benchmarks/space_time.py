"""Counts in space and time: one iteration of VI against BayesNewton and against a NumPy filter and smoother.

    python benchmarks/space_time.py [--times 500] [--places 30] [--first 5000x50] [--large] [--no-peers] [--out FILE]

The three are measured in turn on one core: an iteration of inference here and in BayesNewton, and one filter and
smoother of the same model in NumPy at the converged sites. Marginals at convergence are compared. Iterations here are
also measured by the number of times, and the first call of a process, of which tracing, lowering and compiling are
shown by themselves, by the numbers of times and places. With `--large`, 5000 times and 50 places on all cores follow:
inference to convergence, learning with standard errors, and the memory they take.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from markov import Tools, common, largest, machine, medians, milliseconds, ratio, spread, table

LENGTHSCALE, REACH, VARIANCE = 10.0, 0.3, 1.0


def main() -> None:
    given = parse()
    results = {"machine": machine(), "repeats": given.repeats}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        results["iteration"] = [compare(times, given.places, given) for times in given.times]
        results["lengths"] = lengths(given)
        results["first"] = [first(*size, given) for size in given.first]
        if given.large:
            results["large"] = [large(given)]
    show(results)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--times", type=int, nargs="+", default=[500], help="numbers of times (500)")
    options.add_argument("--places", type=int, default=30, help="the number of places (30)")
    options.add_argument(
        "--lengths", type=int, nargs="*", default=[250, 500, 1000, 2000, 4000], help="numbers of times to compare"
    )
    options.add_argument(
        "--first",
        type=size,
        nargs="*",
        default=[(500, 30), (5000, 30), (500, 100), (5000, 50)],
        metavar="TIMESxPLACES",
        help="sizes for which the first call of a process is measured",
    )
    options.add_argument("--large", action="store_true", help="also 5000 times and 50 places, on all cores")
    options.add_argument("--repeats", type=int, default=5, help="turns of everything (5)")
    options.add_argument("--no-peers", action="store_true", help="only this library and NumPy")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def size(text: str) -> tuple[int, int]:
    """Numbers of times and places, such as 5000x50."""
    times, places = text.split("x")
    return int(times), int(places)


def data(times: int, places: int) -> dict[str, np.ndarray]:
    """Counts drawn from the model at irregular times, places on a line, and what a smoother in NumPy needs."""
    rng = np.random.default_rng(places)
    t, s = np.cumsum(rng.gamma(2.0, 0.5, size=times)), np.sort(rng.uniform(size=places))
    distances = np.sqrt(3.0) * np.abs(s[:, None] - s[None, :]) / REACH
    features = np.linalg.cholesky((1.0 + distances) * np.exp(-distances))
    f = path(t, rng.normal(size=(times, 2, places))) @ features.T
    numbers = {"lengthscale": LENGTHSCALE, "reach": REACH, "variance": VARIANCE}
    counts = rng.poisson(np.exp(f)).astype(float)
    return {"t": t, "s": s, "y": counts, "features": features} | {k: np.asarray(v) for k, v in numbers.items()}


def path(t: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Independent draws of a Matérn-3/2 process at times t, from normal numbers (times, 2, draws)."""
    rate = np.sqrt(3.0) / LENGTHSCALE
    stationary = VARIANCE * np.diag([1.0, rate**2])
    state, found = np.sqrt(stationary) @ noise[0], [noise[0, 0] * np.sqrt(VARIANCE)]
    for step, own in zip(np.diff(t), noise[1:], strict=True):
        matrix = common.matern32_transition(step, rate)
        state = matrix @ state + np.linalg.cholesky(stationary - matrix @ stationary @ matrix.T) @ own
        found.append(state[0])
    return np.array(found)


def compare(times: int, places: int, given: argparse.Namespace) -> dict:
    arrays = data(times, places)
    with Tools(given, arrays) as tools:
        tools.start("ours", "newtongp_space_time.py")
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


def lengths(given: argparse.Namespace) -> list[dict]:
    """One iteration for the first so many times of the same data."""
    if not given.lengths:
        return []
    with Tools(given, data(max(given.lengths), given.places)) as tools:
        tools.start("ours", "newtongp_space_time.py", lengths=given.lengths)
        seconds = tools.alternate({str(times): ("ours", str(times)) for times in given.lengths})
        return [
            {"times": int(times), "places": given.places, "seconds": taken, "by time": taken / int(times)}
            for times, taken in medians(seconds).items()
        ]


def first(times: int, places: int, given: argparse.Namespace) -> dict:
    """The first call of a process with so many times and places, on all cores."""
    with Tools(given, data(times, places)) as tools:
        tools.start("ours", "newtongp_space_time.py", first=True, all_cores=True)
        return {"times": times, "places": places, **tools.ready["ours"].found}


def large(given: argparse.Namespace) -> dict:
    with Tools(given, data(5000, 50)) as tools:
        tools.start("ours", "newtongp_space_time.py", fit=True, all_cores=True)
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
            "apart from NumPy": lambda row: largest(row["apart"]["NumPy"]),
            "apart from BayesNewton": lambda row: largest(row["apart"]["BayesNewton"]),
        },
    )
    table(
        "one iteration of VI by the number of times",
        results["lengths"],
        {
            "times": lambda row: str(row["times"]),
            "places": lambda row: str(row["places"]),
            "iteration, ms": lambda row: milliseconds(row["seconds"]),
            "ms by time": lambda row: milliseconds(row["by time"]),
        },
    )
    table(
        "the first call of a process: one step of VI",
        results["first"],
        {
            "times": lambda row: str(row["times"]),
            "places": lambda row: str(row["places"]),
            "trace, s": lambda row: f"{row['trace']:.2f}",
            "lower, s": lambda row: f"{row['lower']:.2f}",
            "compile, s": lambda row: f"{row['compile']:.2f}",
            "together, s": lambda row: f"{row['together']:.2f}",
            "programs": lambda row: str(row["programs"]),
            "first call, s": lambda row: f"{row['first']['seconds']:.1f}",
            "second call, s": lambda row: f"{row['second']['seconds']:.1f}",
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
                "ended": lambda row: row["fit_status"],
                "evaluations": lambda row: str(row["evaluations"]),
                "fit, MB": lambda row: f"{row['fit_megabytes']:.0f}",
            },
        )


if __name__ == "__main__":
    main()
