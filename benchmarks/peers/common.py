"""What the programs in this folder share.

Each runs in the environment of its own tool, so that only the standard library and NumPy are used here, of any
version. A program is started by `markov.py` with a task, prepares it, says that it is ready, and then takes one
measurement whenever it is asked for one: tools in different environments can so be measured in turn.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VARIANCE, LENGTHSCALE = 1.0, 2.0

clock = time.process_time  # on one core, what other programs disturb least

Measurements = dict[str, Callable[[], float]]


def serve(prepare: Callable[[dict], tuple[Measurements, dict]]) -> None:
    """Prepare the task of the command line, say what was found, then measure whatever is asked for, line by line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the tools themselves print is no answer

    def say(**answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    task = json.loads(sys.argv[1])
    if not task.get("all_cores"):
        keep_to_one_core()
    try:
        measurements, found = prepare(task)
        for measure in measurements.values():
            settle(measure)
        say(ready=list(measurements), found=found)
        for line in sys.stdin:
            say(seconds=measurements[line.strip()]())
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


def settle(measure: Callable[[], float], least: float = 8.0) -> None:
    """Measure once, which compiles. Ours are compiled again once they have run for long, unless the effort is set."""
    measure()
    if "newtongp" not in sys.modules or os.environ.get("NEWTONGP_EFFORT"):
        return
    try:
        from newtongp._runtime.tiers import is_compiling
    except ImportError:  # an earlier version, which compiles once
        return

    last = time.perf_counter()
    while time.perf_counter() - last < least:
        measure()
        if is_compiling():
            last = time.perf_counter()


def keep_to_one_core() -> None:
    """On the last core, as the first is where most other things run."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def timed(run: Callable[[], Any], least: float = 0.05) -> Callable[[], float]:
    """A measurement: seconds of one `run()`, from as many of them as take `least` seconds."""

    def measure() -> float:
        start, runs = clock(), 0
        while runs == 0 or clock() - start < least:
            run()
            runs += 1
        return (clock() - start) / runs

    return measure


def slope(run: Callable[[int], Any], short: int, long: int, least: float = 0.05) -> Callable[[], float]:
    """A measurement: seconds of one more iteration, where `run(n)` does n of them after whatever comes before."""
    few, many = timed(lambda: run(short), least), timed(lambda: run(long), least)

    def measure() -> float:
        before = few()
        return (many() - before) / (long - short)

    return measure


def series(rows: int, kind: str) -> dict[str, np.ndarray]:
    """Irregular times, about 20 to a lengthscale, and observations of a slow wave."""
    rng = np.random.default_rng(rows)
    t = np.cumsum(LENGTHSCALE / 20.0 * rng.gamma(2.0, 0.5, size=rows))
    f = np.sin(0.4 * t) + 0.5 * np.cos(0.11 * t)
    if kind == "poisson":
        y = rng.poisson(np.exp(f)).astype(float)
    elif kind == "bernoulli":
        y = (f + rng.normal(size=rows) > 0.0).astype(float)
    else:
        y = f + 0.3 * rng.normal(size=rows)
    # Noise of its own at every row, as sites have it.
    return {"t": t, "y": y, "noise": rng.uniform(0.05, 0.15, size=rows)}


def processes(dim: int) -> tuple[str, np.ndarray, np.ndarray]:
    """The family, variances and lengthscales of the processes whose sum has a state of this dimension."""
    if dim == 2:
        return "matern32", np.array([VARIANCE]), np.array([LENGTHSCALE])
    count = dim // 3
    return "matern52", np.full(count, VARIANCE / count), LENGTHSCALE * np.linspace(1.0, 2.0, count)


def matern32_transition(step: float, rate: float) -> np.ndarray:
    """The transition of f and its derivative over a step; the rate is √3 by the lengthscale."""
    scaled = rate * step
    return np.exp(-scaled) * np.array([[1.0 + scaled, step], [-scaled * rate, 1.0 - scaled]])


def write(path: str | Path, arrays: dict[str, Any]) -> None:
    as_arrays: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    np.savez(path, **as_arrays)


def read(path: str | Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def load(task: dict) -> dict[str, np.ndarray]:
    """The data of a task, the same file for all tools."""
    return read(task["data"])


def save(task: dict, **answer: Any) -> None:
    """The result, for the comparison with the other tools' results."""
    write(task["answer"], answer)


def peak_megabytes() -> float:
    """The most memory that this process has had."""
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
