"""This library on a model in space and time: one iteration of VI, convergence, and what the first run takes."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import Measurements, load, peak_megabytes, save, serve, slope

SHORT, LONG = 2, 12


def prepare(task: dict) -> tuple[Measurements, dict]:
    data = load(task)
    if task.get("first"):
        return {}, first_call(*problem(data))
    if "lengths" in task:
        parts = {times: {**data, "t": data["t"][:times], "y": data["y"][:times]} for times in task["lengths"]}
        return {str(times): iteration(*problem(part)) for times, part in parts.items()}, {}
    return run_all(task, data)


def problem(data: dict[str, np.ndarray]) -> tuple[Any, np.ndarray, np.ndarray]:
    """The model, x and y."""
    import newtongp as ng

    times, places = data["y"].shape
    x = np.column_stack([np.repeat(data["t"], places), np.tile(data["s"], times)])
    kernel = ng.kernels.Matern32(data["lengthscale"], data["variance"])
    model = ng.Model(ng.SpaceTimeGP(kernel, ng.kernels.Matern32(data["reach"])), ng.likelihoods.Poisson())
    return model, x, data["y"].ravel()


def iteration(model: Any, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    """A measurement of one iteration."""
    import newtongp as ng

    def run(iterations: int):
        return ng.infer(model, x, y, ng.VI(), ng.Constant(1.0), iterations, tol=0.0, throw=False)

    return slope(run, SHORT, LONG)


STAGES = {
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
    "backend_compile_duration": "compile",
}


def first_call(model: Any, x: np.ndarray, y: np.ndarray) -> dict:
    """Seconds of tracing, lowering and compiling in a first call of `infer` with one step, and of a second call."""
    import jax

    import newtongp as ng

    stages: dict[str, list[tuple[float, float]]] = {name: [] for name in STAGES.values()}

    def listen(event: str, seconds: float, **_: Any) -> None:
        name, end = STAGES.get(event.rpartition("/")[2]), time.perf_counter()
        if name:
            stages[name].append((end - seconds, end))

    def call() -> dict[str, float]:
        start, used = time.perf_counter(), time.process_time()
        ng.infer(model, x, y, ng.VI(), max_steps=1, throw=False)
        return {"seconds": time.perf_counter() - start, "of processor": time.process_time() - used}

    jax.monitoring.register_event_duration_secs_listener(listen)
    first = call()
    found: dict[str, Any] = {name: covered(intervals) for name, intervals in stages.items()}
    found["together"] = covered([interval for intervals in stages.values() for interval in intervals])
    return {**found, "programs": len(stages["compile"]), "first": first, "second": call()}


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of intervals: functions are traced inside each other, and on several threads."""
    length, reached = 0.0, -np.inf
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def run_all(task: dict, data: dict[str, np.ndarray]) -> tuple[Measurements, dict]:
    """Inference for the first time and to convergence, and learning if asked for."""
    import newtongp as ng

    model, x, y = problem(data)
    start = time.perf_counter()
    ng.infer(model, x, y, max_steps=1, throw=False)
    found = {"first_seconds": time.perf_counter() - start}
    start = time.perf_counter()
    result = ng.infer(model, x, y)
    found |= {"seconds": time.perf_counter() - start, "steps": result.steps, "status": result.status.name}
    found["peak_megabytes"] = peak_megabytes()
    if task.get("fit"):
        unknown = ng.Model(ng.SpaceTimeGP("matern32", "matern32"), ng.likelihoods.Poisson())
        start = time.perf_counter()
        fitted = ng.fit(unknown, x, y)
        found |= {"fit_seconds": time.perf_counter() - start, "fit_status": fitted.status.name}
        found |= {"evaluations": fitted.evaluations, "fit_megabytes": peak_megabytes()}
        found["learned"] = {name: float(value) for name, value in fitted.learned.items()}
        return {}, found
    shape = data["y"].shape
    save(
        task,
        mean=result.marginals.mean.reshape(shape),
        variance=result.marginals.covariance.reshape(shape),
        linear=result.sites.linear.reshape(shape),
        precision=result.sites.precision.reshape(shape),
    )
    return {"iteration": iteration(model, x, y)}, found


if __name__ == "__main__":
    serve(prepare)
