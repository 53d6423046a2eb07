"""The task of `classes.py`, the same for every tool: fit, predict the probabilities of classes, tell the times."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from common import load, save

LENGTHSCALE, VARIANCE = 2.0, 4.0
DRAWS = 10_000
"""Of the latents in every predicted row, where a tool averages the probabilities over draws."""


def perform(fit: Callable[[dict, dict], tuple[str, Callable[[], Any]]]) -> None:
    """Time `fit(task, data)`, which returns how it was done and a function that predicts."""
    task = json.loads(sys.argv[1])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-task["cores"] :])
    data = load(task)
    start, cpu = time.perf_counter(), time.process_time()
    how, predict = fit(task, data)
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    save(task, probabilities=predict())
    print(json.dumps({"seconds": seconds, "cpu": used, "how": how}))
