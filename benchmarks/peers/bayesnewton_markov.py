"""BayesNewton's Markovian GP: one `inference()` call, the memory it takes, and its filter and smoother alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
from common import LENGTHSCALE, VARIANCE, Measurements, load, peak_megabytes, save, serve, timed

ITERATIONS = 12  # to convergence


def prepare(task: dict) -> tuple[Measurements, dict]:
    if task["task"] == "filter":
        return filter_and_smoother(task), {}
    likelihood = task["likelihood"]
    data = load(task)
    y = 2.0 * data["y"] - 1.0 if likelihood == "bernoulli" else data["y"]
    model = markov_gp(data["t"], y, likelihood)
    step = compiled(model, lambda: model.inference(lr=1.0))
    for _ in range(task.get("iterations", ITERATIONS)):
        step()
    save(task, mean=np.ravel(model.posterior_mean.value), variance=np.ravel(model.posterior_variance.value))
    peak = {"peak_megabytes": peak_megabytes()}
    return ({} if task["task"] == "memory" else {"iteration": timed(step)}), peak


def filter_and_smoother(task: dict) -> Measurements:
    import jax.numpy as jnp

    data = load(task)
    rows = len(data["t"])
    model = markov_gp(data["t"], data["y"], "gaussian")
    model.pseudo_likelihood.update_mean_cov(
        jnp.asarray(data["y"]).reshape(rows, 1, 1), jnp.asarray(data["noise"]).reshape(rows, 1, 1)
    )
    run = compiled(model, model.update_posterior)
    run()
    save(task, mean=np.ravel(model.posterior_mean.value), variance=np.ravel(model.posterior_variance.value))
    return {"smoother": timed(run)}


def markov_gp(t, y, likelihood: str) -> Any:
    import bayesnewton  # pyright: ignore[reportMissingImports]

    choice = {
        "poisson": lambda: bayesnewton.likelihoods.Poisson(link="exp"),
        "bernoulli": lambda: bayesnewton.likelihoods.Bernoulli(link="probit"),
        "gaussian": lambda: bayesnewton.likelihoods.Gaussian(variance=0.1),
    }
    return bayesnewton.models.MarkovVariationalGP(
        kernel=bayesnewton.kernels.Matern32(variance=VARIANCE, lengthscale=LENGTHSCALE),
        likelihood=choice[likelihood](),
        X=t[:, None],
        Y=y[:, None],
    )


def compiled(model: Any, method: Callable[[], Any]) -> Callable[[], None]:
    """A method that changes the model, as one compiled call that ends when its work is done."""
    import jax
    import objax  # pyright: ignore[reportMissingImports]

    def change():
        method()
        return model.posterior_mean.value[0]

    jitted = objax.Jit(objax.Function(change, model.vars()))

    def run() -> None:
        jitted()
        jax.block_until_ready((model.posterior_mean.value, model.posterior_variance.value))

    return run


if __name__ == "__main__":
    serve(prepare)
