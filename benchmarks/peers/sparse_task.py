"""The task of `sparse.py`: 8-D probit classification with given inducing inputs, the same for every tool."""

from typing import Any

import numpy as np

VARIANCE, LENGTHSCALE, COLUMNS = 2.0, 2.0, 8


def rows_of(task: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels 0 and 1, and inducing inputs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(task["rows"], COLUMNS))
    f = 2.0 * np.sin(x[:, 0]) + x[:, 1] * x[:, 2]
    y = (f + rng.normal(size=task["rows"]) > 0.0).astype(float)
    return x, y, x[rng.choice(task["rows"], task["inducing"], replace=False)]


def batches(task: dict, x: Any, y: Any) -> Any:
    """Batches in turn, for ever."""
    size, start = task["batch"], 0
    while True:
        yield x[start : start + size], y[start : start + size]
        start = (start + size) % (len(x) - size + 1)
