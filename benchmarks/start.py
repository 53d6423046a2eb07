"""The first second, and the same call with other numbers of rows.

    python benchmarks/start.py                                  # this version
    python benchmarks/start.py --before ../old/src              # and another one, in turn
    python benchmarks/start.py --sections start --cases poisson --repeats 5

    start     from the start of Python to the end of `fit`, `summary` and `predict` with quantiles, each time in a new
              process: without a cache, with an empty one, with what an earlier process has kept unasked, and with what
              it has kept after `use_cache`
    many      30 series of 40 to 150 rows, a backtest of 24 origins, and predictions at ten numbers of rows, each in
              one process and without a cache: all of them relative to the first, and the number of programs that were
              compiled

Versions take turns, and a ratio is the median over the turns. Times are elapsed, as a person feels them: run this on a
quiet machine.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from markov import ONE_OPERATION, machine, table

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
CASES = ("poisson", "bernoulli", "heteroscedastic", "regression", "multiclass")


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sections", nargs="+", choices=["start", "many"], default=["start", "many"])
    options.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    options.add_argument("--before", type=Path, help="the folder src of another version")
    options.add_argument("--repeats", type=int, default=3, help="turns of everything (3)")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    given = options.parse_args()
    results: dict = {"machine": machine()}
    for source in [SOURCE] if given.before is None else [SOURCE, given.before]:
        run(source, "newtongp_first.py", "heteroscedastic")  # writes the bytecode files
    with tempfile.TemporaryDirectory() as folder:
        for section in given.sections:
            results[section] = {"start": start, "many": many}[section](given, Path(folder))
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


def environment(cache: str = "off") -> dict[str, str]:
    """With programs kept in this folder or not at all, and with bytecode files, which an installed package has."""
    unwanted = ("JAX_COMPILATION_CACHE", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "NEWTONGP_CACHE": cache}


def run(source: Path, script: str, *arguments: str, cache: str = "off") -> tuple[float, str]:
    """Elapsed seconds of a new process, and the last line that it printed."""
    command = [sys.executable, str(HERE / "peers" / script), *arguments]
    begin = time.perf_counter()
    finished = subprocess.run(
        command,
        env={**environment(cache), "PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    seconds = time.perf_counter() - begin
    if finished.returncode:
        return float("nan"), "failed"
    return seconds, finished.stdout.strip().splitlines()[-1]


def start(given: argparse.Namespace, folder: Path) -> list[dict]:
    rows = []
    for case in given.cases:
        names = ("bare", "before", "now", "empty", "cached", "asked")
        seconds: dict[str, list[float]] = {name: [] for name in names}
        answers = {}
        for turn in range(given.repeats):
            caches = folder / f"{case}-{turn}", folder / f"{case}-{turn}-asked"
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", ONE_OPERATION], check=True, env=environment())
            seconds["bare"].append(time.perf_counter() - begin)
            if given.before is not None:
                taken, answers["before"] = run(given.before, "newtongp_first.py", case)
                seconds["before"].append(taken)
            taken, answers["now"] = run(SOURCE, "newtongp_first.py", case)
            seconds["now"].append(taken)
            for name in ("empty", "cached"):
                seconds[name].append(run(SOURCE, "newtongp_first.py", case, cache=str(caches[0]))[0])
            run(SOURCE, "newtongp_first.py", case, str(caches[1]))
            seconds["asked"].append(run(SOURCE, "newtongp_first.py", case, str(caches[1]))[0])
            for cache in caches:
                shutil.rmtree(cache, ignore_errors=True)
        rows.append({"case": case, "seconds": seconds, "answers": answers})
    table(
        "process start to the end of fit, summary and predictions, s",
        rows,
        {
            "case": lambda row: row["case"],
            "import jax": lambda row: middle(row, "bare"),
            "before": lambda row: middle(row, "before"),
            "now": lambda row: middle(row, "now"),
            "empty cache": lambda row: middle(row, "empty"),
            "cached": lambda row: middle(row, "cached"),
            "use_cache": lambda row: middle(row, "asked"),
            "now by before": lambda row: ratio(row, "now", "before"),
            "cached by before": lambda row: ratio(row, "cached", "before"),
            "cached by import": lambda row: ratio(row, "cached", "bare"),
            "ended": lambda row: row["answers"].get("now", ""),
        },
    )
    return rows


def middle(row: dict, name: str) -> str:
    return f"{np.median(row['seconds'][name]):.2f}" if row["seconds"][name] else ""


def ratio(row: dict, one: str, other: str) -> str:
    pair = row["seconds"][one], row["seconds"][other]
    if not all(pair):
        return ""
    ratios = np.divide(*pair)
    return f"{np.median(ratios):.2f} ({np.min(ratios):.2f} to {np.max(ratios):.2f})"


def many(given: argparse.Namespace, folder: Path) -> list[dict]:
    rows = []
    versions = {"now": SOURCE} | ({} if given.before is None else {"before": given.before})
    for what in ("series", "backtest", "predictions"):
        for kind in ("markov", "dense"):
            for version, source in versions.items():
                taken, answer = run(source, "newtongp_series.py", what, kind)
                if answer != "failed":
                    rows.append(
                        {"what": what, "prior": kind, "version": version, "process": taken, **json.loads(answer)}
                    )
    table(
        "many sizes in one process",
        rows,
        {
            "task": lambda row: row["what"],
            "prior": lambda row: row["prior"],
            "version": lambda row: row["version"],
            "first, s": lambda row: f"{row['seconds'][0]:.2f}",
            "all, s": lambda row: f"{sum(row['seconds']):.2f}",
            "all by first": lambda row: f"{sum(row['seconds']) / row['seconds'][0]:.2f}",
            "programs of the first": lambda row: str(row["programs"][0]),
            "of the others": lambda row: str(sum(row["programs"][1:])),
        },
    )
    return rows


if __name__ == "__main__":
    main()
