"""Ten classes: handwritten digits by a sparse GP with a softmax or a similar likelihood, against GPflow and GPyTorch.

    python benchmarks/classes.py                 # everything; some minutes
    python benchmarks/classes.py --no-peers      # without other tools, which are installed on first use
    python benchmarks/classes.py --cores 1

1257 of scikit-learn's digits are learned from, and the log loss is that of the other 540. All tools have one RBF kernel
for all classes, with one lengthscale, the same start and the same fixed inducing inputs; "one kernel per class" is ours
with ten kernels. Each runs in a new process of its own, one after the other, from data in memory to learned
hyperparameters, compilation included. GPflow's and GPyTorch's Softmax draw from the latents at every step and need an
optimiser that tolerates noise; ours and GPflow's MultiClass (another likelihood, which needs no draws) do not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from markov import console, machine, table
from peers import environments
from peers.common import read, write

HERE = Path(__file__).resolve().parent
TRAINING = 1257
RUNS = [
    ("newtongp", "newtongp_classes.py", "softmax"),
    ("gpflow", "gpflow_classes.py", "multiclass"),
    ("gpflow", "gpflow_classes.py", "softmax"),
    ("gpytorch", "gpytorch_classes.py", "softmax"),
    ("newtongp", "newtongp_classes.py", "softmax, one kernel per class"),
]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--inducing", type=int, default=50)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--no-peers", action="store_true", help="only this library")
    options.add_argument("--out", type=Path, help="write everything that was measured to this JSON file")
    given = options.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits.npz"
        labels = write_digits(data, given.inducing)
        for tool, script, likelihood in RUNS:
            if given.no_peers and tool != "newtongp":
                continue
            try:
                python = sys.executable if tool == "newtongp" else environments.python_of(tool)
                results.append(run(python, tool, script, likelihood, data, labels, given.cores))
                console.print(results[-1])
            except (RuntimeError, environments.Unavailable) as why:
                console.print(f"{tool}, {likelihood}: {why}")
    table(
        f"digits: ten classes, {TRAINING} rows, M = {given.inducing}, {given.cores} core(s)",
        results,
        {
            "tool": lambda row: row["tool"],
            "likelihood": lambda row: row["likelihood"],
            "seconds": lambda row: f"{row['seconds']:.1f}",
            "CPU seconds": lambda row: f"{row['cpu']:.1f}",
            "log loss": lambda row: f"{row['log_loss']:.4f}",
            "errors": lambda row: f"{row['errors']:.1%}",
            "how": lambda row: row["how"],
        },
    )
    if given.out:
        given.out.write_text(json.dumps({"machine": machine(), "runs": results}, indent=1) + "\n")


def write_digits(path: Path, inducing: int) -> np.ndarray:
    """Write the data for all tools; returns the labels of the rows that are predicted."""
    from scipy.cluster.vq import kmeans2
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = x / 16.0
    centres, _ = kmeans2(x[:TRAINING], inducing, iter=20, minit="++", rng=np.random.default_rng(0))
    write(path, {"x": x[:TRAINING], "y": y[:TRAINING], "new": x[TRAINING:], "inducing": centres})
    return y[TRAINING:]


def run(python: str, tool: str, script: str, likelihood: str, data: Path, labels: np.ndarray, cores: int) -> dict:
    """Fit and predict in a new process; the log loss and the share of errors are of the predicted rows."""
    answer = data.with_name("answer.npz")
    task = {"data": str(data), "answer": str(answer), "likelihood": likelihood, "cores": cores}
    finished = subprocess.run(
        [python, str(HERE / "peers" / script), json.dumps(task)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    if finished.returncode:
        raise RuntimeError((finished.stderr.strip().splitlines() or ["no message"])[-1])
    found = json.loads(finished.stdout.strip().splitlines()[-1])
    probabilities = read(answer)["probabilities"]
    chosen = probabilities[np.arange(len(labels)), labels]
    errors = float(np.mean(np.argmax(probabilities, axis=1) != labels))
    log_loss = -float(np.mean(np.log(chosen)))
    return {"tool": tool, "likelihood": likelihood, **found, "log_loss": log_loss, "errors": errors}


if __name__ == "__main__":
    main()
