"""Ten million rows in time from a file: `MarkovGP` with inducing times, in batches.

    python benchmarks/sparse_chains.py              # 10⁷ rows, 10⁴ inducing times; some minutes
    python benchmarks/sparse_chains.py --quick      # a tenth of the rows

Counts are read from a file that is mapped into memory, in a process of its own whose peak memory is measured. A pass
over the data is compared, in turn, with a pass that only reads the same batches from the file, checks them, and
evaluates the sites of their rows at marginals that are given. Only ratios of one run mean anything.
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
from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--rows", type=int, help="of the file (10000000)")
    options.add_argument("--inducing", type=int, default=10_000)
    options.add_argument("--batch", type=int, default=2**17)
    options.add_argument("--repeats", type=int, default=3, help="turns of everything")
    options.add_argument("--quick", action="store_true", help="where not said otherwise: fewer rows")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    options.add_argument("--one-run", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    given.rows = given.rows or (1_000_000 if given.quick else 10_000_000)
    if given.one_run:
        one_run(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        write_rows(path, given.rows)
        command = [sys.executable, __file__, "--one-run", str(path)]
        command += ["--inducing", str(given.inducing), "--batch", str(given.batch), "--repeats", str(given.repeats)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    show(given, found)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def write_rows(path: Path, count: int) -> None:
    """Times in ascending order, a thousand in a unit of time, and counts."""
    rows = np.lib.format.open_memmap(path, "w+", dtype=float, shape=(count, 2))
    rng = np.random.default_rng(0)
    for start in range(0, count, 100_000):
        part = rows[start : start + 100_000]
        part[:, 0] = (start + np.sort(rng.uniform(0.0, len(part), len(part)))) / 1000.0
        part[:, 1] = rng.poisson(np.exp(0.5 + np.sin(part[:, 0] / 5.0)))
    rows.flush()


def one_run(given: argparse.Namespace) -> None:
    import newtongp as ng

    rows = np.load(given.one_run, mmap_mode="r")
    x, y = rows[:, :1], rows[:, 1]
    last = float(x[-1, 0])

    def model(storage):
        kernel = ng.kernels.Matern32(lengthscale=5.0)
        times = np.linspace(0.0, last, given.inducing)
        return ng.Model(ng.MarkovGP(kernel, 0.5, inducing=times, storage=storage), ng.likelihoods.Poisson())

    turns = passes(model("tied"), x, y, given.batch, given.repeats)
    before = time.perf_counter(), time.process_time()
    result = ng.infer(model("tied"), x, y, batch_size=given.batch, key=0)
    run = {
        "status": result.status.name.lower(),
        "passes": result.steps,
        "energy": result.energy,
        "seconds": time.perf_counter() - before[0],
        "cpu": time.process_time() - before[1],
    }
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps({"turns": turns, "run": run, "megabytes": megabytes}))


def passes(model, x, y, batch_size: int, repeats: int) -> dict:
    """Seconds and CPU seconds of the passes over the data, in turn."""
    import jax

    import newtongp as ng
    from newtongp._runtime.double import in_double
    from newtongp.inference.minibatch import BatchRun
    from newtongp.inference.minibatch.problem import add
    from newtongp.inference.minibatch.product import nothing
    from newtongp.inference.minibatch.progress import RowProgress
    from newtongp.inference.minibatch.tied import measure, propose_batch, towards
    from newtongp.inference.minibatch.tied_run import step_once

    @in_double
    def all_passes():
        problem = BatchRun(model, x, y, ng.VI(), None, batch_size, 0, 1e-6).problem
        bar, shared = RowProgress(False, len(x), 1), problem.shared
        start = problem.tied(nothing(problem.prior, shared.projection))
        alone = jax.jit(sites_alone)

        def reading_and_sites():
            total = 0.0
            for _, rows in problem.batches(False, bar):
                total = total + alone(shared.method, rows)
            jax.block_until_ready(total)

        def at_fixed_q():
            total = None
            for _, rows in problem.batches(False, bar):
                total = add(total, propose_batch(shared, rows, start))
            point = measure(shared, start, total)
            jax.block_until_ready(problem.tied(towards(point.tied.product, point.proposal, 1.0)))

        def batch_by_batch():
            tied = start
            for batch, rows in problem.batches(True, bar):
                proposal = propose_batch(shared, rows, tied).product.times(problem.rows.count / batch.count)
                tied = step_once(shared, tied, proposal, 0.1, problem.batching.observed)
            jax.block_until_ready(tied)

        turns: dict[str, list[tuple[float, float]]] = {}
        work = {"alone": reading_and_sites, "at a fixed q": at_fixed_q, "batch by batch": batch_by_batch}
        for turn in range(repeats + 1):
            for name, one_pass in work.items():
                before = time.perf_counter(), time.process_time()
                one_pass()
                spent = time.perf_counter() - before[0], time.process_time() - before[1]
                if turn:  # the first one compiles
                    turns.setdefault(name, []).append(spent)
        return turns

    return all_passes()


def sites_alone(method, rows):
    """The sum of the energies and proposed sites of a batch, at marginals that are given."""
    import jax.numpy as jnp

    from newtongp.likelihoods.base import over_rows
    from newtongp.methods.rule import expansion_around, propose
    from newtongp.numerics.gaussian import Gaussian, Sites

    count = rows.y.shape[0]
    marginals = Gaussian(jnp.full((count, 1), 0.5), jnp.full((count, 1, 1), 0.1))
    nothing = Sites(jnp.zeros((count, 1)), jnp.zeros((count, 1, 1)))

    def row(likelihood, y, observed, marginal, site):
        expansion = expansion_around(method, likelihood, y, observed, marginal, marginal)
        proposal, _ = propose(method, expansion, observed, site, None, jnp.ones(()))
        energy = method.energy.tied_row(likelihood, y, marginal, marginal, method.cubature)
        return jnp.sum(proposal.linear) + jnp.sum(proposal.precision) + energy

    return jnp.sum(over_rows(row, rows.likelihood, (rows.y, rows.observed, marginals, nothing)))


def show(given: argparse.Namespace, found: dict) -> None:
    table = Table(
        title=f"one pass over {given.rows:,} rows, {given.inducing:,} inducing times, batches of {given.batch:,}"
    )
    for heading in ("pass", "seconds", "CPU seconds", "against reading and sites alone, CPU time"):
        table.add_column(heading, justify="right")
    alone = np.array(found["turns"]["alone"])
    for name, spent in found["turns"].items():
        spent = np.array(spent)
        ratios = spent[:, 1] / alone[:, 1]
        ratio = f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        table.add_row(name, *(f"{value:.1f}" for value in np.median(spent, axis=0)), ratio)
    console.print(table)
    run = found["run"]
    console.print(
        f"infer: {run['status']} after {run['passes']} passes, {run['seconds']:.0f} s, {run['cpu']:.0f} s of CPU time; "
        f"peak memory {found['megabytes']:,.0f} MB"
    )


if __name__ == "__main__":
    main()
