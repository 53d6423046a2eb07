"""One iteration of dense VI, energy included, against LAPACK's potrf + trtri on a matrix of the same size.

    python benchmarks/dense.py                  # N = 2000, on one thread and on all
    python benchmarks/dense.py --rows 500 --repeats 3

Both are measured in the same process, in turn, because only their ratio means anything. An iteration is what one
more step costs inside the compiled loop: the time of a long run less that of a short one, by the steps between.
On one thread the process keeps to one core and CPU time is taken, which other programs disturb least.
"""

import argparse
import json
import os
import subprocess
import sys
import time

ROWS, REPEATS, DETAIL_REPEATS = 2000, 7, 3
SHORT, LONG = 2, 8
TARGET = 3.0


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=ROWS)
    options.add_argument("--repeats", type=int, default=REPEATS)
    options.add_argument("--measure", choices=["one", "all"], help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.rows, given.repeats, given.measure == "one")))
        return
    results = [run_in_a_process_of_its_own(given.rows, given.repeats, threads) for threads in ("one", "all")]
    report(given.rows, results)


def run_in_a_process_of_its_own(rows: int, repeats: int, threads: str) -> dict:
    """BLAS reads the number of threads once, when it is loaded."""
    environment = dict(os.environ)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.pop(name, None)
        if threads == "one":
            environment[name] = "1"
    command = [sys.executable, __file__, "--rows", str(rows), "--repeats", str(repeats), "--measure", threads]
    finished = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(finished.stdout.splitlines()[-1])


def measure(rows: int, repeats: int, one_thread: bool) -> dict:
    """Seconds by name: LAPACK's, the iteration's, and those of its parts."""
    import numpy as np

    clock = time.perf_counter
    if one_thread:
        clock = time.process_time
        if hasattr(os, "sched_setaffinity"):
            # The last core: the first is where most other things run.
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

    x, y = classification(rows)
    compared = {**lapack(x), "short": inference(x, y, SHORT), "long": inference(x, y, LONG)}
    detail = parts(x)
    for run in (*compared.values(), *detail.values()):
        run()
    seconds = {name: [] for name in (*compared, *detail)}
    for turn in range(repeats):
        runs = {**compared, **detail} if turn < DETAIL_REPEATS else compared
        for name, run in runs.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    taken = {name: np.asarray(values) for name, values in seconds.items()}
    step = (taken.pop("long") - taken.pop("short")) / (LONG - SHORT)
    limit = taken["potrf"] + taken["trtri"]
    return {
        "threads": "one" if one_thread else "all",
        "step": float(np.median(step)),
        "limit": float(np.median(limit)),
        "ratio": float(np.median(step / limit)),
        "lowest": float(np.min(step / limit)),
        "highest": float(np.max(step / limit)),
        "parts": {name: float(np.median(values)) for name, values in taken.items()},
    }


def classification(rows: int):
    """Two classes on the plane, split by a wave, with some labels wrong."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, size=(rows, 2))
    wrong = rng.random(rows) < 0.05
    return x, ((np.sin(2.0 * x[:, 0]) > x[:, 1]) ^ wrong).astype(float)


def model():
    import newtongp as ng

    return ng.Model(ng.GP(ng.kernels.RBF(variance=2.0, lengthscale=0.7)), ng.likelihoods.Bernoulli())


def inference(x, y, steps: int):
    import newtongp as ng

    def run():
        result = ng.infer(model(), x, y, step=ng.Constant(1.0), max_steps=steps, tol=0.0, throw=False)
        if result.steps != steps:
            raise RuntimeError(f"{result.steps} steps were taken where {steps} were asked for: {result}")

    return run


def system(x):
    """I + K, about what a step has to factorise, and K."""
    import numpy as np

    squares = np.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=2)
    gram = 2.0 * np.exp(-0.5 * squares / 0.7**2)
    return gram + np.eye(len(x)), gram


def lapack(x):
    import numpy as np
    from scipy.linalg.lapack import dpotrf, dtrtri

    matrix = np.asfortranarray(system(x)[0])
    factor, _ = dpotrf(matrix, lower=1)
    return {
        "potrf": lambda: dpotrf(matrix, lower=1, clean=0),
        "trtri": lambda: dtrtri(factor, lower=1),
    }


def parts(x):
    """What a step is made of, each compiled by itself."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from newtongp._runtime.double import in_double
    from newtongp.numerics import linalg

    rng = np.random.default_rng(1)
    rows = len(x)
    vector, root = rng.normal(size=rows), rng.uniform(0.3, 1.0, size=rows)
    prior = model().prior

    def compiled(function, *arguments):
        placed = in_double(lambda: jax.tree.map(jnp.asarray, arguments))()
        ready = in_double(jax.jit(function))
        return lambda: jax.block_until_ready(ready(*placed))

    matrix, gram = system(x)
    factor = np.linalg.cholesky(matrix)
    return {
        "cholesky": compiled(linalg.cholesky, matrix),
        "triangular solve": compiled(linalg.solve_lower, factor, gram),
        "build B": compiled(lambda g, r: r[:, None] * g * r[None, :] + jnp.eye(rows), gram, root),
        "column sums of V²": compiled(lambda v: jnp.sum(v**2, axis=0), gram),
        "one K·vector": compiled(lambda g, v: g @ v, gram, vector),
        "one L⁻¹·vector": compiled(linalg.solve_lower, factor, vector),
        "gram matrix (once a run, in no step)": compiled(lambda inputs: prior.prepare(inputs), x),
    }


def report(rows: int, results: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"dense VI, Bernoulli, N = {rows}: one iteration against potrf + trtri")
    for heading in (
        "threads",
        "iteration, ms",
        "potrf + trtri, ms",
        "ratio",
        "lowest to highest",
        f"at most {TARGET:g}",
    ):
        table.add_column(heading, justify="right")
    for found in results:
        table.add_row(
            found["threads"],
            f"{1e3 * found['step']:.1f}",
            f"{1e3 * found['limit']:.1f}",
            f"{found['ratio']:.2f}",
            f"{found['lowest']:.2f} to {found['highest']:.2f}",
            "yes" if found["ratio"] <= TARGET else "no",
        )
    detail = Table(title="where the time goes (each part by itself, ms)")
    detail.add_column("part")
    for found in results:
        detail.add_column(f"{found['threads']} thread(s)", justify="right")
    for name in results[0]["parts"]:
        detail.add_row(name, *(f"{1e3 * found['parts'][name]:.1f}" for found in results))
    detail.add_section()
    detail.add_row("whole iteration", *(f"{1e3 * found['step']:.1f}" for found in results))
    console = Console()
    console.print(table)
    console.print(detail)


if __name__ == "__main__":
    main()
