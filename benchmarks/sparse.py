"""Sparse GPs in batches, against GPflow and GPyTorch, and a million rows from a file.

    python benchmarks/sparse.py                  # everything; some minutes
    python benchmarks/sparse.py --quick          # fewer rows and turns
    python benchmarks/sparse.py --no-peers       # without other tools, which are installed on first use

Only ratios of one run mean anything. In `rate`, one natural gradient step on one batch (8-D probit classification,
given inducing inputs, fixed hyperparameters) is measured in turn by processes that stay alive, each in the environment
of its tool, on one core and in CPU time; a ratio is the median over the turns. In `million`, rows are read from a file
that is mapped into memory, from the start of Python to convergence.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from markov import Failed, Tool
from peers import environments
from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 120)
TOOLS = {"gpflow": "gpflow_sparse.py", "gpytorch": "gpytorch_sparse.py"}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sections", nargs="+", choices=["rate", "million"], default=["rate", "million"])
    options.add_argument("--rows", type=int, help="of the file in million (1000000)")
    options.add_argument("--inducing", type=int, default=256)
    options.add_argument("--batch", type=int, default=1000)
    options.add_argument("--repeats", type=int, help="turns of everything (7)")
    options.add_argument("--quick", action="store_true", help="where not said otherwise: fewer rows and turns")
    options.add_argument("--no-peers", action="store_true", help="only this library")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    options.add_argument("--one-run", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    given.rows = given.rows or (100_000 if given.quick else 1_000_000)
    given.repeats = given.repeats or (3 if given.quick else 7)
    if given.one_run:
        one_run(given)
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in given.sections:
            results[name] = {"rate": rate, "million": million}[name](given, Path(folder))
            if given.out:
                given.out.write_text(json.dumps(results, indent=1) + "\n")


def rate(given: argparse.Namespace, folder: Path) -> dict:
    """Rows a second, in turn."""
    task = {"rows": 50_000, "inducing": given.inducing, "batch": given.batch, "steps": 5}
    tools = {"newtongp": Tool(sys.executable, "newtongp_sparse.py", task, folder).wait()}
    for name, script in {} if given.no_peers else TOOLS.items():
        try:
            tools[name] = Tool(environments.python_of(name), script, task, folder).wait()
        except (Failed, environments.Unavailable) as why:
            console.print(f"{name}: {why}")
    turns: dict[str, list[float]] = {}
    for _ in range(given.repeats):
        for name, tool in tools.items():
            for what in ["full", "tied"] if name == "newtongp" else ["step"]:
                found = task["steps"] * task["batch"] / tool.measure(what)
                turns.setdefault(f"newtongp, {what}" if name == "newtongp" else name, []).append(found)
    table = Table(title=f"rows a second, M = {given.inducing}, batches of {given.batch}, one core, CPU time")
    for heading in ("tool", "rows a second", "ours, all sites kept, against it"):
        table.add_column(heading, justify="right")
    ours = np.array(turns["newtongp, full"])
    for name, found in turns.items():
        ratios = ours / np.array(found)
        spread = f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        table.add_row(name, f"{np.median(found):,.0f}", spread)
    console.print(table)
    return turns


def million(given: argparse.Namespace, folder: Path) -> dict:
    """From a file to convergence, in a process of its own."""
    path = folder / "rows.npy"
    rows = np.lib.format.open_memmap(path, "w+", dtype=float, shape=(given.rows, 9))
    rng = np.random.default_rng(0)
    for start in range(0, given.rows, 10_000):
        part = rows[start : start + 10_000]
        part[:, :8] = rng.normal(size=(len(part), 8))
        f = 2.0 * np.sin(part[:, 0]) + part[:, 1] * part[:, 2]
        part[:, 8] = f + rng.normal(size=len(part)) > 0.0
    rows.flush()
    del rows
    command = [sys.executable, __file__, "--one-run", str(path)]
    command += ["--inducing", str(given.inducing), "--batch", str(given.batch)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    console.print(
        f"{given.rows:,} rows from a file of {path.stat().st_size / 1e6:,.0f} MB: {found['status']} after "
        f"{found['passes']} passes, {found['seconds']:.0f} s, {found['rate']:,.0f} rows a second of CPU time, "
        f"peak memory {found['megabytes']:,.0f} MB"
    )
    return found


def one_run(given: argparse.Namespace) -> None:
    import newtongp as ng

    rows = np.load(given.one_run, mmap_mode="r")
    prior = ng.SparseGP(ng.kernels.RBF(lengthscale=2.0, variance=2.0), given.inducing, selection="kmeans")
    start, cpu = time.perf_counter(), time.process_time()
    result = ng.infer(
        ng.Model(prior, ng.likelihoods.Bernoulli("probit")), rows[:, :8], rows[:, 8], batch_size=given.batch, key=0
    )
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    found = {
        "status": result.status.name.lower(),
        "passes": result.steps,
        "energy": result.energy,
        "seconds": seconds,
        "rate": len(rows) * (result.steps + 1) / used,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
