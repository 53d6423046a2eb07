"""This library on a model in space and time: one iteration of VI, convergence, and what the first run takes."""

import time

import numpy as np
from common import Measurements, load, peak_megabytes, save, serve, slope

SHORT, LONG = 2, 12


def prepare(task: dict) -> tuple[Measurements, dict]:
    import newtongp as ng

    data = load(task)
    times, places = data["y"].shape
    x = np.column_stack([np.repeat(data["t"], places), np.tile(data["s"], times)])
    y = data["y"].ravel()
    kernel = ng.kernels.Matern32(data["lengthscale"], data["variance"])
    model = ng.Model(ng.SpaceTimeGP(kernel, ng.kernels.Matern32(data["reach"])), ng.likelihoods.Poisson())
    start = time.perf_counter()
    ng.infer(model, x, y, max_steps=1, throw=False)
    found = {"first_seconds": time.perf_counter() - start}
    start = time.perf_counter()
    result = ng.infer(model, x, y)
    found |= {"seconds": time.perf_counter() - start, "steps": result.steps, "status": result.status.name}
    found["peak_megabytes"] = peak_megabytes()
    if task.get("fit"):
        start = time.perf_counter()
        fitted = ng.fit(model, x, y, standard_errors=False)
        found |= {"fit_seconds": time.perf_counter() - start, "fit_status": fitted.status.name}
        found["fit_megabytes"] = peak_megabytes()
    shape = times, places
    save(
        task,
        mean=result.marginals.mean.reshape(shape),
        variance=result.marginals.covariance.reshape(shape),
        linear=result.sites.linear.reshape(shape),
        precision=result.sites.precision.reshape(shape),
    )

    def run(iterations: int):
        return ng.infer(model, x, y, ng.VI(), ng.Constant(1.0), iterations, tol=0.0, throw=False)

    return ({"iteration": slope(run, SHORT, LONG)} if task["iterations"] else {}), found


if __name__ == "__main__":
    serve(prepare)
