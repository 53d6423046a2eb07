"""celerite2 and tinygp: log likelihood and posterior mean of a Matérn-3/2 GP with Gaussian noise; no variances."""

from collections.abc import Callable

import numpy as np
from common import LENGTHSCALE, VARIANCE, Measurements, load, save, serve, timed


def prepare(task: dict) -> tuple[Measurements, dict]:
    data = load(task)
    run = {"celerite2": celerite2_mean, "tinygp": tinygp_mean}[task["tool"]](**data)
    log_likelihood, mean = run()
    save(task, mean=mean, log_likelihood=log_likelihood)
    return {"mean": timed(run)}, {}


def celerite2_mean(t, y, noise) -> Callable[[], tuple]:
    import celerite2  # pyright: ignore[reportMissingImports]

    # Its Matérn-3/2 is an approximation.
    process = celerite2.GaussianProcess(celerite2.terms.Matern32Term(sigma=np.sqrt(VARIANCE), rho=LENGTHSCALE))

    def run() -> tuple:
        process.compute(t, diag=noise)
        return process.log_likelihood(y), process.predict(y)

    return run


def tinygp_mean(t, y, noise) -> Callable[[], tuple]:
    import jax
    import tinygp  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)
    kernel = VARIANCE * tinygp.kernels.quasisep.Matern32(scale=LENGTHSCALE)

    @jax.jit
    def condition(t, y, noise):
        found = tinygp.GaussianProcess(kernel, t, diag=noise).condition(y)
        return found.log_probability, found.gp.loc

    placed = [jax.numpy.asarray(array) for array in (t, y, noise)]
    return lambda: jax.block_until_ready(condition(*placed))


if __name__ == "__main__":
    serve(prepare)
