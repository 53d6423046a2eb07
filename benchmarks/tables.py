"""Mixed models of tables: a Poisson model with five covariates and one group, beside glmmTMB and lme4.

    python benchmarks/tables.py                                 # all sections
    python benchmarks/tables.py --sections mixed --rows 100000 --groups 1000
    python benchmarks/tables.py --no-peers

    mixed     `fit` with fixed effects maximised (Laplace), beside glmmTMB and glmer on the same data: in a new process
              with imports, and again in the same process
    large     10⁶ rows and 10⁴ groups, effects integrated: seconds and memory of a new process
    series    a step of inference with a trend, a season and twenty covariates over 10⁵ time steps, by one without the
              covariates

R, lme4 and glmmTMB are used where they are installed (Debian: r-cran-lme4, r-cran-glmmtmb), and left out elsewhere.
Times are elapsed, as a person feels them: run this on a quiet machine.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from markov import machine, table

HERE = Path(__file__).resolve().parent
COVARIATES = [f"x{number}" for number in range(5)]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sections", nargs="+", choices=["mixed", "large", "series"])
    options.add_argument("--rows", type=int, default=100_000, help="in mixed (100000)")
    options.add_argument("--groups", type=int, default=1000, help="in mixed (1000)")
    options.add_argument("--no-peers", action="store_true", help="only this library")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    given = options.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        for section in given.sections or ["mixed", "large", "series"]:
            run = {"mixed": mixed, "large": large, "series": series}[section]
            results[section] = run(given, Path(folder))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def simulated(rows: int, groups: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    group, x = rng.integers(0, groups, rows), rng.normal(size=(rows, 5))
    f = 0.5 + x @ np.array([0.3, -0.2, 0.1, 0.05, 0.0]) + 0.5 * rng.normal(size=groups)[group]
    return {"group": group, **dict(zip(COVARIATES, x.T, strict=True)), "y": rng.poisson(np.exp(f))}


def ours(task: dict) -> dict:
    """What `newtongp_tables.py` prints in a new process, and the elapsed seconds of that process."""
    begin = time.perf_counter()
    command = [sys.executable, str(HERE / "peers" / "newtongp_tables.py"), json.dumps(task)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(finished.stdout.splitlines()[-1]), "process": time.perf_counter() - begin}


_R = """
library(%(package)s)
d <- read.csv("%(data)s"); d$group <- factor(d$group)
t <- system.time(m <- %(call)s(y ~ x0 + x1 + x2 + x3 + x4 + (1 | group), d, family = poisson))
cat(t[["elapsed"]], format(as.numeric(logLik(m)), digits = 14), "\\n")
"""


def peer(package: str, call: str, data: Path) -> dict | None:
    """Seconds and log-likelihood of an R package; None if it is not installed."""
    if shutil.which("Rscript") is None:
        return None
    script = _R % {"package": package, "call": call, "data": data}
    begin = time.perf_counter()
    finished = subprocess.run(["Rscript", "-e", script], capture_output=True, text=True)
    if finished.returncode:
        return None
    seconds, log_likelihood = map(float, finished.stdout.split()[-2:])
    return {"warm": seconds, "process": time.perf_counter() - begin, "log_likelihood": log_likelihood}


def mixed(given: argparse.Namespace, folder: Path) -> list[dict]:
    data = simulated(given.rows, given.groups)
    path = folder / "data.npz"
    np.savez(path, **data)
    task = {"section": "mixed", "data": str(path), "effects": "maximised", "repeats": 3}
    found = {"newtongp": {**ours(task), "process": ours({**task, "repeats": 0})["process"]}}
    if not given.no_peers:
        text = folder / "data.csv"
        header = ",".join(data)
        np.savetxt(text, np.stack(list(data.values()), axis=1), delimiter=",", header=header, comments="")
        for name, package, call in (("glmmTMB", "glmmTMB", "glmmTMB"), ("glmer", "lme4", "glmer")):
            result = peer(package, call, text)
            if result is None:
                print(f"{name} is not installed: left out")
            else:
                found[name] = result
    rows = [{"tool": name, **values, "ours": found["newtongp"]} for name, values in found.items()]
    table(
        f"Poisson, {given.rows} rows, {given.groups} groups, five covariates, Laplace",
        rows,
        {
            "tool": lambda row: row["tool"],
            "warm s": lambda row: f"{row['warm']:.2f}",
            "by ours": lambda row: f"{row['warm'] / row['ours']['warm']:.1f}",
            "new process s": lambda row: f"{row['process']:.2f}",
            "by ours ": lambda row: f"{row['process'] / row['ours']['process']:.1f}",
            "log-likelihood": lambda row: f"{row['log_likelihood']:.6f}",
        },
    )
    return rows


def large(given: argparse.Namespace, folder: Path) -> list[dict]:
    path = folder / "large.npz"
    np.savez(path, **simulated(1_000_000, 10_000))
    found = ours({"section": "mixed", "data": str(path), "effects": "wide", "repeats": 1})
    table(
        "Poisson, 10⁶ rows, 10⁴ groups, five covariates, effects integrated",
        [found],
        {
            "first fit s": lambda row: f"{row['first']:.1f}",
            "again s": lambda row: f"{row['warm']:.1f}",
            "process s": lambda row: f"{row['process']:.1f}",
            "memory GB": lambda row: f"{row['memory']:.2f}",
        },
    )
    return [found]


def series(given: argparse.Namespace, folder: Path) -> list[dict]:
    found = ours({"section": "series", "rows": 100_000, "repeats": 5})
    table(
        "A step of VI, Poisson, 10⁵ time steps, trend (Matérn-3/2) and season",
        [found],
        {
            "alone ms": lambda row: f"{row['alone'] * 1e3:.0f}",
            "with 20 covariates ms": lambda row: f"{row['covariates'] * 1e3:.0f}",
            "ratio": lambda row: f"{row['covariates'] / row['alone']:.2f}",
        },
    )
    return [found]


if __name__ == "__main__":
    main()
