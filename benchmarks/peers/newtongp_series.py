"""Many series of different lengths in one process: what `start.py` reads.

python newtongp_series.py (series | backtest | predictions) (markov | dense)
"""

import json
import sys
import time

import jax
import numpy as np

import newtongp as ng

compiled: list[float] = []


def listen(event: str, duration: float, **_) -> None:
    if event.endswith("backend_compile_duration"):
        compiled.append(duration)


def prior_of(kind: str):
    return ng.MarkovGP("matern32") if kind == "markov" else ng.GP("matern32")


def fit_and_forecast(kind: str, t: np.ndarray, counts: np.ndarray) -> None:
    result = ng.fit(ng.Model(prior_of(kind), "poisson"), t, counts, throw=False)
    result.predict(t[-1] + np.arange(1.0, 13.0)).quantile([0.05, 0.5, 0.95])


def tasks(what: str, kind: str):
    """Functions to run one after the other."""
    rng = np.random.default_rng(1)
    if what == "series":
        for number, length in enumerate(rng.integers(40, 151, 30)):
            t = np.arange(float(length))
            counts = rng.poisson(np.exp(1.0 + np.sin(t / 8.0 + number)))
            yield lambda t=t, counts=counts: fit_and_forecast(kind, t, counts)
        return
    t = np.arange(144.0)
    counts = rng.poisson(np.exp(1.0 + np.sin(t / 8.0)))
    if what == "backtest":
        for origin in range(120, 144):
            yield lambda origin=origin: fit_and_forecast(kind, t[:origin], counts[:origin])
        return
    result = ng.infer(ng.Model(prior_of(kind), "poisson"), t, counts)
    for rows in (7, 1, 3, 12, 20, 50, 80, 120, 160, 200):
        yield lambda rows=rows: result.predict(np.linspace(0.0, 150.0, rows)).quantile([0.05, 0.95])


def main() -> None:
    jax.monitoring.register_event_duration_secs_listener(listen)
    seconds, programs = [], []
    for task in tasks(*sys.argv[1:3]):
        before, start = len(compiled), time.perf_counter()
        task()
        seconds.append(time.perf_counter() - start)
        programs.append(len(compiled) - before)
    print(json.dumps({"seconds": seconds, "programs": programs}))


if __name__ == "__main__":
    main()
