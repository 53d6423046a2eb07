"""Markovian GPs against C, against BayesNewton, and against themselves at other lengths.

    python benchmarks/markov.py                              # everything; some minutes
    python benchmarks/markov.py --quick                      # short series, few turns; less than a minute
    python benchmarks/markov.py --sections filter vi --repeats 9 --out markov.json
    python benchmarks/markov.py --no-peers                   # without other tools, which are installed on first use

Only ratios of one run mean anything. What is compared is measured in turn (A, B, A, B, ...) by processes that stay
alive, each in the environment of its tool, on one core and in CPU time, which other programs disturb least; a ratio is
the median over the turns. An iteration is what one more step costs inside the compiled loop: the time of a long
run less that of a short one, by the steps between.

    filter      filter and smoother of given Gaussian sites, against C in the usual form (and reordered as far as we
                could for speed); state dimensions 2, 3, 6, 24. C computes transitions on the way; inference computes
                them once and then uses them at every step, so ours is measured without and with them
    vi          one iteration of VI, Poisson and Bernoulli, against BayesNewton
    linear      one iteration of VI at several lengths, by row
    likelihoods one iteration of VI with several likelihoods, by row and relative to Poisson
    memory      the most memory that VI to convergence takes, start of Python included
    gradient    the log likelihood with its gradient in two hyperparameters, against the log likelihood alone
    coldstart   from the start of Python to a posterior, against `import jax` and one compiled operation
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from peers import common, environments
from rich.console import Console
from rich.table import Table

# Nothing that an earlier process has compiled is used, also by the scripts that import this one.
os.environ["NEWTONGP_CACHE"] = "off"

PEERS = Path(__file__).resolve().parent / "peers"
DIMENSIONS = (2, 3, 6, 24)
LARGEST_ROWS = {24: 20_000}  # for what takes longest
ONE_OPERATION = "import jax; jax.jit(lambda x: x + 1.0)(1.0).block_until_ready()"
START_ROWS = 1000

console = Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    sections = {
        "filter": filter_section,
        "vi": vi_section,
        "linear": linear_section,
        "likelihoods": likelihoods_section,
        "memory": memory_section,
        "gradient": gradient_section,
        "coldstart": coldstart_section,
    }
    given = parse(list(sections))
    results: dict[str, Any] = {"machine": machine(), "rows": given.rows, "repeats": given.repeats}
    with tempfile.TemporaryDirectory() as folder:
        given.folder = Path(folder)
        for name in given.sections:
            results[name] = sections[name](given)
            if given.out:
                given.out.write_text(json.dumps(results, indent=1) + "\n")


def parse(sections: list[str]) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sections", nargs="+", choices=sections, help="(all; quick: all but coldstart)")
    options.add_argument("--rows", type=int, help="of the series in filter, vi and gradient (100000)")
    options.add_argument("--dims", type=int, nargs="+", choices=DIMENSIONS, help="in filter (all; quick: 2 6)")
    options.add_argument("--lengths", type=int, nargs="+", help="in linear (1000 10000 100000 1000000)")
    options.add_argument("--memory-rows", type=int, help="of the series in memory (1000000)")
    options.add_argument("--repeats", type=int, help="turns of everything (7)")
    options.add_argument(
        "--quick", action="store_true", help="where not said otherwise: short series, few turns, other tools only in vi"
    )
    options.add_argument("--no-peers", action="store_true", help="only this library and C")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    given = options.parse_args()
    usual = {
        "sections": sections,
        "rows": 100_000,
        "dims": DIMENSIONS,
        "lengths": [1000, 10_000, 100_000, 1_000_000],
        "memory_rows": 1_000_000,
        "repeats": 7,
    }
    quick = {
        "sections": [name for name in sections if name != "coldstart"],
        "rows": 10_000,
        "dims": (2, 6),
        "lengths": [1000, 10_000, 100_000],
        "memory_rows": 100_000,
        "repeats": 3,
    }
    for name, value in (quick if given.quick else usual).items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


# Measuring --------------------------------------------------------------------------------------------------------


class Failed(Exception):
    """A tool that is not there, or that has failed; says how."""


class Tool:
    """A program in `peers/`, alive and ready to measure what it was given to do."""

    def __init__(self, python: str, script: str, task: dict, folder: Path):
        # BLAS and its like read the number of threads when they are loaded.
        threads = {} if task.get("all_cores") else dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.answer_file = folder / f"answer-{time.monotonic_ns()}.npz"
        self.complaints = self.answer_file.with_suffix(".txt")
        with self.complaints.open("w") as complaints:
            self.process = subprocess.Popen(
                [python, str(PEERS / script), json.dumps({**task, "answer": str(self.answer_file)})],
                env={**os.environ, **threads},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
        self.found: dict = {}
        self.names: list[str] = []

    def wait(self) -> "Tool":
        """Until it is ready."""
        answer = self.hear()
        self.found, self.names = answer["found"], answer["ready"]
        return self

    def measure(self, name: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return self.hear()["seconds"]

    def hear(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            said = self.complaints.read_text().strip().splitlines() or ["no message"]
            raise Failed(f"ended with {self.process.wait()}: {said[-1]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer["error"])
        return answer

    def answer(self) -> dict[str, np.ndarray]:
        return common.read(self.answer_file)

    def close(self) -> None:
        self.process.communicate()
        self.answer_file.unlink(missing_ok=True)


class Tools:
    """The tools of one comparison by name, as many of them as can be had."""

    def __init__(self, given: argparse.Namespace, data: dict[str, np.ndarray] | None):
        self.given, self.ready, self.missing = given, dict[str, Tool](), dict[str, str]()
        self.data_file = given.folder / "data.npz"
        if data is not None:
            common.write(self.data_file, data)

    def __enter__(self) -> "Tools":
        return self

    def __exit__(self, *_: object) -> None:
        for tool in self.ready.values():
            tool.close()
        for name, why in self.missing.items():
            console.print(f"[yellow]{name}: {why}[/yellow]")

    def start(self, name: str, script: str, environment: str | None = None, **task: Any) -> None:
        if environment and self.given.no_peers:
            return
        tool = None
        try:
            python = environments.python_of(environment) if environment else sys.executable
            tool = Tool(python, script, {**task, "data": str(self.data_file)}, self.given.folder)
            self.ready[name] = tool.wait()
        except (Failed, environments.Unavailable) as why:
            self.missing[name] = str(why)
            if tool:
                tool.close()

    def alternate(self, wanted: dict[str, tuple[str, str]]) -> dict[str, np.ndarray]:
        """Seconds by turn, of each measurement (a tool and what it calls it) whose tool is there."""
        there = {label: pair for label, pair in wanted.items() if pair[0] in self.ready}
        seconds: dict[str, list[float]] = {label: [] for label in there}
        for _ in range(self.given.repeats):
            for label, (tool, name) in there.items():
                seconds[label].append(self.ready[tool].measure(name))
        return {label: np.asarray(values) for label, values in seconds.items()}

    def apart(self, name: str, reference: str) -> dict[str, float]:
        """The largest difference between two tools' results, by what both of them have."""
        if name not in self.ready or reference not in self.ready:
            return {}
        first, second = self.ready[name].answer(), self.ready[reference].answer()
        return {key: float(np.max(np.abs(first[key] - second[key]))) for key in first if key in second}


def ratio(seconds: dict[str, np.ndarray], name: str, reference: str) -> dict[str, float] | None:
    """Median, lowest and highest over the turns of one measurement by another."""
    if name not in seconds or reference not in seconds:
        return None
    by_turn = seconds[name] / seconds[reference]
    return {"median": float(np.median(by_turn)), "low": float(np.min(by_turn)), "high": float(np.max(by_turn))}


def medians(seconds: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in seconds.items()}


def machine() -> dict[str, Any]:
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}


# Sections ---------------------------------------------------------------------------------------------------------


def filter_section(given: argparse.Namespace) -> list[dict]:
    results = []
    for dim in given.dims:
        rows = min(given.rows, LARGEST_ROWS.get(dim, given.rows))
        with Tools(given, common.series(rows, "gaussian")) as tools:
            tools.start("C", "c_kalman.py", dim=dim)
            tools.start("ours", "newtongp_markov.py", task="filter", dim=dim, loops="fast")
            tools.start("ours, plain loops", "newtongp_markov.py", task="filter", dim=dim, loops="plain")
            wanted = {
                "C": ("C", "matern32_rts" if dim == 2 else "matern52_usual"),
                "C, reordered for speed": ("C", "matern32" if dim == 2 else "matern52"),
                "ours": ("ours", "smoother"),
                "ours, with transitions": ("ours", "with transitions"),
                "ours, plain loops": ("ours, plain loops", "smoother"),
            }
            if dim == 2 and not given.quick:
                tools.start("BayesNewton", "bayesnewton_markov.py", "bayesnewton", task="filter")
                tools.start("celerite2, mean only", "gaussian_markov.py", "gaussian", tool="celerite2")
                tools.start("tinygp, mean only", "gaussian_markov.py", "gaussian", tool="tinygp")
                wanted["BayesNewton"] = ("BayesNewton", "smoother")
                wanted |= {name: (name, "mean") for name in tools.ready if name.endswith("mean only")}
            seconds = tools.alternate(wanted)
            for name, taken in medians(seconds).items():
                results.append(
                    {
                        "dim": dim,
                        "rows": rows,
                        "tool": name,
                        "ns_per_step": 1e9 * taken / rows,
                        "to_c": None if name == "C" else ratio(seconds, name, "C"),
                        "ours_to_it": None if name == "ours" else ratio(seconds, "ours", name),
                        "apart_from_c": {} if name == "C" else tools.apart(name, "C"),
                    }
                )
    table(
        "filter and smoother: time of a step",
        results,
        {
            "dim": lambda row: str(row["dim"]),
            "rows": lambda row: str(row["rows"]),
            "tool": lambda row: row["tool"],
            "ns a step": lambda row: f"{row['ns_per_step']:.1f}",
            "by C": lambda row: spread(row["to_c"]),
            "ours by it": lambda row: spread(row["ours_to_it"]),
            "apart from C": lambda row: largest(row["apart_from_c"]),
        },
    )
    return results


def vi_section(given: argparse.Namespace) -> list[dict]:
    results = []
    for likelihood in ("poisson", "bernoulli"):
        with Tools(given, common.series(given.rows, likelihood)) as tools:
            tools.start("ours", "newtongp_markov.py", task="vi", likelihood=likelihood)
            tools.start("BayesNewton", "bayesnewton_markov.py", "bayesnewton", task="vi", likelihood=likelihood)
            seconds = tools.alternate({name: (name, "iteration") for name in tools.ready})
            taken = medians(seconds)
            results.append(
                {
                    "likelihood": likelihood,
                    "rows": given.rows,
                    "ours_seconds": taken.get("ours"),
                    "bayesnewton_seconds": taken.get("BayesNewton"),
                    "speedup": ratio(seconds, "BayesNewton", "ours"),
                    "apart": tools.apart("ours", "BayesNewton"),
                    "found": {name: tool.found for name, tool in tools.ready.items()},
                }
            )
    table(
        "one iteration of VI, Matérn-3/2",
        results,
        {
            "likelihood": lambda row: row["likelihood"],
            "rows": lambda row: str(row["rows"]),
            "ours, ms": lambda row: milliseconds(row["ours_seconds"]),
            "BayesNewton, ms": lambda row: milliseconds(row["bayesnewton_seconds"]),
            "BayesNewton by ours": lambda row: spread(row["speedup"]),
            # Its probit has a floor of 1e-3, ours has none.
            "posteriors apart": lambda row: largest(row["apart"]),
        },
    )
    return results


def linear_section(given: argparse.Namespace) -> list[dict]:
    results = []
    with Tools(given, common.series(max(given.lengths), "poisson")) as tools:
        tools.start("ours", "newtongp_markov.py", task="linear", lengths=given.lengths)
        for length, taken in medians(tools.alternate({str(n): ("ours", str(n)) for n in given.lengths})).items():
            results.append({"rows": int(length), "seconds": taken, "ns_per_row": 1e9 * taken / int(length)})
    table(
        "one iteration of VI, Poisson, Matérn-3/2, by length",
        results,
        {
            "rows": lambda row: str(row["rows"]),
            "iteration, ms": lambda row: milliseconds(row["seconds"]),
            "ns a row": lambda row: f"{row['ns_per_row']:.1f}",
        },
    )
    return results


def likelihoods_section(given: argparse.Namespace) -> list[dict]:
    results = []
    with Tools(given, None) as tools:
        tools.start("ours", "newtongp_markov.py", task="likelihoods", rows=given.rows)
        names = tools.ready["ours"].names if "ours" in tools.ready else []
        seconds = tools.alternate({name: ("ours", name) for name in names})
        for name, taken in medians(seconds).items():
            by_poisson = ratio(seconds, name, "poisson")
            results.append({"likelihood": name, "ns_per_row": 1e9 * taken / given.rows, "by_poisson": by_poisson})
    table(
        f"one iteration of VI, Matérn-3/2, {given.rows} rows, by likelihood",
        results,
        {
            "likelihood": lambda row: row["likelihood"],
            "ns a row": lambda row: f"{row['ns_per_row']:.1f}",
            "by Poisson": lambda row: spread(row["by_poisson"]),
        },
    )
    return results


def memory_section(given: argparse.Namespace) -> list[dict]:
    task = {"task": "memory", "likelihood": "poisson", "all_cores": True}
    with Tools(given, common.series(given.memory_rows, "poisson")) as tools:
        tools.start("ours", "newtongp_markov.py", **task)
        if not given.quick:
            # Its memory does not grow after the first iterations.
            tools.start("BayesNewton", "bayesnewton_markov.py", "bayesnewton", **task, iterations=2)
        results = [{"tool": name, "rows": given.memory_rows, **tool.found} for name, tool in tools.ready.items()]
    table(
        "most memory, Poisson, Matérn-3/2",
        results,
        {
            "tool": lambda row: row["tool"],
            "rows": lambda row: str(row["rows"]),
            "MB": lambda row: f"{row['peak_megabytes']:.0f}",
            "MB after import and one operation": lambda row: (
                f"{row['start_megabytes']:.0f}" if "start_megabytes" in row else ""
            ),
            "steps": lambda row: str(row.get("steps", "")),
        },
    )
    return results


def gradient_section(given: argparse.Namespace) -> list[dict]:
    results = []
    with Tools(given, common.series(given.rows, "gaussian")) as tools:
        tools.start("ours", "newtongp_markov.py", task="gradient")
        seconds = tools.alternate({name: ("ours", name) for name in ("value", "gradient")})
        if seconds:
            by_value = ratio(seconds, "gradient", "value")
            results.append({"rows": given.rows, **medians(seconds), "ratio": by_value, **tools.ready["ours"].found})
    table(
        "log likelihood with its gradient in two hyperparameters, Matérn-3/2",
        results,
        {
            "rows": lambda row: str(row["rows"]),
            "value, ms": lambda row: milliseconds(row["value"]),
            "value and gradient, ms": lambda row: milliseconds(row["gradient"]),
            "ratio": lambda row: spread(row["ratio"]),
            "from differences": lambda row: f"{row['error']:.0e}",
        },
    )
    return results


def coldstart_section(given: argparse.Namespace) -> list[dict]:
    ours = [sys.executable, str(PEERS / "newtongp_start.py"), str(START_ROWS)]
    limit = [sys.executable, "-c", ONE_OPERATION]
    # An installed package has its bytecode; one run from its sources must be allowed to keep it.
    kept_out = ("JAX_", "PYTHONDONTWRITEBYTECODE")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(kept_out)}
    cached = {
        **plain,
        "JAX_COMPILATION_CACHE_DIR": str(given.folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    results = []
    for cache, environment in (("warm", cached), ("none", plain)):
        wall: dict[str, list[float]] = {"ours": [], "limit": []}
        cpu: dict[str, list[float]] = {"ours": [], "limit": []}
        try:
            for turn in range(given.repeats + 1):
                for name, command in (("limit", limit), ("ours", ours)):
                    taken = process_times(command, environment)
                    if turn > 0:  # the first fills caches
                        wall[name].append(taken[0])
                        cpu[name].append(taken[1])
        except Failed as why:
            console.print(f"[yellow]coldstart: {why}[/yellow]")
            break
        by_wall, by_cpu = ({name: np.asarray(v) for name, v in each.items()} for each in (wall, cpu))
        results.append(
            {
                "cache": cache,
                "rows": START_ROWS,
                "wall_seconds": medians(by_wall),
                "cpu_seconds": medians(by_cpu),
                "wall_ratio": ratio(by_wall, "ours", "limit"),
                "cpu_ratio": ratio(by_cpu, "ours", "limit"),
            }
        )
    table(
        f"from the start of Python to a posterior, Poisson, N = {START_ROWS}",
        results,
        {
            "compile cache": lambda row: row["cache"],
            "ours, s": lambda row: f"{row['wall_seconds']['ours']:.2f}",
            "import jax and one operation, s": lambda row: f"{row['wall_seconds']['limit']:.2f}",
            "ratio": lambda row: spread(row["wall_ratio"]),
            "ratio of CPU time": lambda row: spread(row["cpu_ratio"]),
        },
    )
    return results


def process_times(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process from start to end."""
    with tempfile.TemporaryFile("w+") as complaints:
        start = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=complaints)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            complaints.seek(0)
            raise Failed((complaints.read().strip().splitlines() or ["no message"])[-1])
    return wall, used.ru_utime + used.ru_stime


# Tables -----------------------------------------------------------------------------------------------------------


def table(title: str, results: list[dict], columns: dict[str, Callable[[dict], str]]) -> None:
    if not results:
        console.print(f"{title}: nothing was measured")
        return
    shown = Table(title=title)
    for heading in columns:
        shown.add_column(heading, justify="right")
    for row in results:
        shown.add_row(*(cell(row) for cell in columns.values()))
    console.print(shown)


def spread(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g}"


def largest(apart: dict[str, float]) -> str:
    """Of mean and variance; the log likelihood grows with the rows."""
    worst = [value for name, value in apart.items() if name in ("mean", "variance")]
    return f"{max(worst):.0e}" if worst else ""


if __name__ == "__main__":
    main()
