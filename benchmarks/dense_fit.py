"""Learning hyperparameters of a dense GP: our `fit` against scikit-learn, where both have the same model.

    python benchmarks/dense_fit.py                          # all cases, a few minutes
    python benchmarks/dense_fit.py --cases cancer diabetes --repeats 3
    PYTHONPATH=other/src python benchmarks/dense_fit.py     # another version of this library

Both have the same kernel, likelihood and approximation, start from the same values and search once, by L-BFGS-B,
without priors and standard errors. They run in turn in one process on one core and on one thread, in CPU time, after a
first run that compiles. Each search ends by its own rule, ours by a tighter one: log marginal likelihoods and numbers
of evaluations are shown beside the times.

    cancer    Laplace, Bernoulli with a logit link, RBF with one lengthscale: breast cancer, 398 rows, 30 columns
    titanic   the same with one lengthscale per column: 916 passengers drawn to be like those of the Titanic, 5 columns
    diabetes  regression, RBF with one lengthscale per column: 442 rows, 10 columns
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from markov import machine, table
from peers.common import keep_to_one_core

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
NOISE = 0.5


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
        "fit of a dense GP, warm",
        results["cases"],
        {
            "case": lambda row: row["case"],
            "rows": lambda row: str(row["rows"]),
            "ours, s": lambda row: f"{row['seconds']['ours']:.2f}",
            "scikit-learn, s": lambda row: f"{row['seconds']['scikit-learn']:.2f}",
            "scikit-learn by ours": lambda row: f"{row['speedup']:.2f}",
            "ours, log likelihood": lambda row: f"{row['evidence']['ours']:.5f}",
            "scikit-learn, log likelihood": lambda row: f"{row['evidence']['scikit-learn']:.5f}",
            "evaluations": lambda row: f"{row['evaluations']['ours']}, {row['evaluations']['scikit-learn']}",
            "ours, first, s": lambda row: f"{row['first']:.1f}",
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


def compare(
    name: str, data: Callable[[], tuple[np.ndarray, np.ndarray]], ard: bool, classes: bool, repeats: int
) -> dict:
    x, y = data()
    lengthscale = np.full(x.shape[1], np.sqrt(x.shape[1])) if ard else np.sqrt(x.shape[1])
    ours, theirs = ours_on(x, y, lengthscale, classes), scikit_learn_on(x, y, lengthscale, classes)
    start = time.perf_counter()
    evidence, evaluations = {}, {}
    evidence["ours"], evaluations["ours"] = ours()
    first = time.perf_counter() - start
    evidence["scikit-learn"], evaluations["scikit-learn"] = theirs()
    taken = np.array([[seconds(ours), seconds(theirs)] for _ in range(repeats)])
    return {
        "case": name,
        "rows": len(y),
        "seconds": {"ours": float(np.median(taken[:, 0])), "scikit-learn": float(np.median(taken[:, 1]))},
        "speedup": float(np.median(taken[:, 1] / taken[:, 0])),
        "evidence": evidence,
        "evaluations": evaluations,
        "first": first,
    }


def seconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def ours_on(x: np.ndarray, y: np.ndarray, lengthscale: Any, classes: bool) -> Callable[[], tuple[float, int]]:
    import newtongp as ng

    likelihood = ng.likelihoods.Bernoulli("logit") if classes else ng.likelihoods.Gaussian(NOISE)
    model = ng.Model(ng.GP(ng.kernels.RBF(lengthscale, 1.0)), likelihood)
    starts = {"kernel.lengthscale": lengthscale, "kernel.variance": 1.0}
    if not classes:
        starts["likelihood.variance"] = NOISE
    # With starts that are given, `fit` does not look at guesses of its own.
    parameters = {name: ng.Free(start=value) for name, value in starts.items()}

    def run() -> tuple[float, int]:
        method = ng.Newton() if classes else None
        found = ng.fit(model, x, y, method, parameters=parameters, weak_priors=False, standard_errors=False)
        return -float(found.energy), found.evaluations

    return run


def scikit_learn_on(x: np.ndarray, y: np.ndarray, lengthscale: Any, classes: bool) -> Callable[[], tuple[float, int]]:
    from scipy.optimize import minimize
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-8, 1e8)) * RBF(lengthscale, (1e-5, 1e8))
    if not classes:
        kernel = kernel + WhiteKernel(NOISE, (1e-8, 1e8))
    counts = []

    def search(objective: Callable, start: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
        """scikit-learn's own search, counted."""
        found = minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds)
        counts.append(int(found.nfev))
        return found.x, found.fun

    def run() -> tuple[float, int]:
        kind = GaussianProcessClassifier if classes else GaussianProcessRegressor
        found: Any = kind(kernel, optimizer=search).fit(x, y)
        return float(found.log_marginal_likelihood(found.kernel_.theta)), counts[-1]

    return run


# Data -------------------------------------------------------------------------------------------------------------


def standardised(values: np.ndarray) -> np.ndarray:
    return (values - np.mean(values, axis=0)) / np.std(values, axis=0)


def cancer() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    bunch: Any = load_breast_cancer()
    chosen = np.random.default_rng(0).permutation(len(bunch.target))[:398]
    return standardised(bunch.data[chosen]), bunch.target[chosen].astype(float)


def diabetes() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_diabetes

    bunch: Any = load_diabetes()
    return standardised(bunch.data), standardised(bunch.target)


def titanic(rows: int = 916) -> tuple[np.ndarray, np.ndarray]:
    """Class, sex, age, siblings and parents aboard, and who survived, in about the proportions of the real ones."""
    rng = np.random.default_rng(1)
    ticket = rng.choice([1.0, 2.0, 3.0], rows, p=[0.27, 0.25, 0.48])
    man = (rng.random(rows) < 0.63).astype(float)
    age = np.round(np.clip(rng.normal(30.0, 14.0, rows), 0.2, 80.0))
    siblings = rng.choice(np.arange(5.0), rows, p=[0.65, 0.25, 0.05, 0.03, 0.02])
    parents = rng.choice(np.arange(4.0), rows, p=[0.75, 0.14, 0.09, 0.02])
    odds = 1.2 - 2.5 * man - (ticket - 2.0) - 0.03 * (age - 30.0) + 1.5 * (age < 10.0) - 0.4 * siblings
    odds += (1.0 - man) * (ticket < 3.0) - 0.8 * man * (ticket == 2.0)
    survived = (rng.random(rows) < 1.0 / (1.0 + np.exp(-odds))).astype(float)
    return standardised(np.stack([ticket, man, age, siblings, parents], axis=1)), survived


CASES = {"cancer": (cancer, False, True), "titanic": (titanic, True, True), "diabetes": (diabetes, True, False)}


if __name__ == "__main__":
    main()
