"""The Kalman filter and smoother of `kalman_reference.c`, compiled here and checked against dense matrices."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import Measurements, load, processes, save, serve, timed

SOURCE = Path(__file__).resolve().parent.parent / "kalman_reference.c"
FLAGS = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
CHECKED_ROWS, TOLERANCE = 400, 1e-9

Answer = dict[str, np.ndarray]


def prepare(task: dict) -> tuple[Measurements, dict]:
    """Measurements named after the C functions that this dimension has."""
    dim, data = task["dim"], load(task)
    family = processes(dim)[0]
    library = compiled(blocks=max(dim // 3, 1))
    names = [family, "matern32_rts" if dim == 2 else "matern52_usual"]
    few = {name: values[:CHECKED_ROWS] for name, values in data.items()}
    wanted = dense(dim, **few)
    measurements: Measurements = {}
    for name in names:
        run, found = smoother(library, name, dim, **few)
        run()
        for key, value in wanted.items():
            worst = float(np.max(np.abs(found[key] - value) / np.maximum(1.0, np.abs(value))))
            if not worst < TOLERANCE:
                raise RuntimeError(f"{name}: {key} is off by {worst:.1e}")
        run, found = smoother(library, name, dim, **data)
        measurements[name] = timed(run)
        if name == family:
            run()
            save(task, **found)
    return measurements, {}


def compiled(blocks: int) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kalman_reference.so"
        subprocess.run(["cc", *FLAGS, f"-DBLOCKS={blocks}", str(SOURCE), "-o", str(target), "-lm"], check=True)
        return ctypes.CDLL(str(target))


def smoother(library: ctypes.CDLL, name: str, dim: int, t, y, noise) -> tuple[Callable[[], None], Answer]:
    """A call of the C function, and the arrays that it writes to."""
    rows = ctypes.c_long(len(t))
    library.workspace.restype = ctypes.c_long
    function = library[name]
    function.restype = ctypes.c_double
    found = {"mean": np.empty_like(t), "variance": np.empty_like(t), "log_likelihood": np.empty(())}
    _, variances, lengthscales = processes(dim)
    work = np.empty(library.workspace(rows))
    arrays = [np.diff(t, prepend=t[0]), y, noise, variances, lengthscales, work, found["mean"], found["variance"]]
    pointers = [array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for array in arrays]

    def run() -> None:
        found["log_likelihood"][...] = function(rows, *pointers)

    return run, found


def dense(dim: int, t, y, noise) -> Answer:
    """The same posterior by way of the covariance matrix."""
    family, variances, lengthscales = processes(dim)
    distance = np.abs(t[:, None] - t[None, :])
    gram = np.zeros_like(distance)
    for variance, lengthscale in zip(variances, lengthscales, strict=True):
        x = np.sqrt(3.0 if family == "matern32" else 5.0) * distance / lengthscale
        gram += variance * np.exp(-x) * (1.0 + x if family == "matern32" else 1.0 + x + x**2 / 3.0)
    factor = np.linalg.cholesky(gram + np.diag(noise))
    white, root = np.linalg.solve(factor, y), np.linalg.solve(factor, gram)
    log_det = 2.0 * np.sum(np.log(np.diag(factor)))
    return {
        "mean": root.T @ white,
        "variance": np.diag(gram) - np.sum(root**2, axis=0),
        "log_likelihood": -0.5 * (white @ white + log_det + len(y) * np.log(2.0 * np.pi)),
    }


if __name__ == "__main__":
    serve(prepare)
