"""This library: the filter and smoother alone, iterations of VI, the memory they take, and gradients."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
from common import (
    LENGTHSCALE,
    VARIANCE,
    Measurements,
    load,
    peak_megabytes,
    processes,
    save,
    series,
    serve,
    slope,
    timed,
)

SHORT, LONG = 2, 8


# What reaches below the public interface ------------------------------------------------------------------------


def prior_at(t: np.ndarray) -> tuple[Any, Any]:
    """Inputs as the prior wants them, and how to bring values a row into its order."""
    import newtongp as ng

    place = ng.MarkovGP(ng.kernels.Matern32()).layout(np.asarray(t)[:, None])
    rows = np.arange(len(t)) if place.rows is None else place.rows
    return place.inputs, rows


def filter_smoother(workspace: Any, y: Any, noise: Any) -> tuple[Any, Any, Any]:
    """Mean, variance and log likelihood of y = f(t) + noise of these variances, in the prior's order; to be traced.

    Where the order has positions without a row, noise is infinite.
    """
    import jax.numpy as jnp

    from newtongp.numerics import kalman

    precision = 1.0 / noise
    smoothed = kalman.marginals(workspace.chain, precision[:, None, None], (precision * y)[:, None], psd=True)
    mean, variance = smoothed.mean[:, 0], smoothed.covariance[:, 0, 0]
    quadratic = jnp.sum(precision * y * (y - mean))
    determinants = smoothed.log_det + jnp.sum(jnp.where(precision > 0.0, jnp.log(2.0 * jnp.pi / precision), 0.0))
    return mean, variance, -0.5 * (quadratic + determinants)


def log_likelihood(workspace: Any, y: Any, noise: Any) -> Any:
    """The log likelihood alone, which takes a filter and no smoother."""
    import jax.numpy as jnp

    from newtongp.numerics import kalman

    precision = 1.0 / noise
    normaliser = kalman.log_normaliser(workspace.chain, precision[:, None, None], (precision * y)[:, None])
    constants = jnp.where(precision > 0.0, jnp.log(2.0 * jnp.pi / precision) + precision * y**2, 0.0)
    return normaliser - 0.5 * jnp.sum(constants)


def in_order(rows: np.ndarray, data: dict) -> tuple[np.ndarray, np.ndarray]:
    """y and noise variances at the prior's positions."""
    present = rows >= 0
    y = np.where(present, data["y"][np.maximum(rows, 0)], 0.0)
    return y, np.where(present, data["noise"][np.maximum(rows, 0)], np.inf)


_for_good = contextlib.ExitStack()


def use_plain_loops() -> None:
    """For the rest of this process, as where loops cannot be compiled as one kernel."""
    from newtongp.numerics.kalman import plain_loops

    _for_good.enter_context(plain_loops())


# Tasks ------------------------------------------------------------------------------------------------------------


def prepare(task: dict) -> tuple[Measurements, dict]:
    kind = {
        "filter": smoother,
        "vi": iterations,
        "linear": linear,
        "likelihoods": likelihoods,
        "memory": memory,
        "gradient": gradient,
    }
    return kind[task["task"]](task)


def smoother(task: dict) -> tuple[Measurements, dict]:
    """The pass as inference makes it, with transitions that were computed once; and together with computing them."""
    import newtongp as ng

    data = load(task)
    family, variances, lengthscales = processes(task["dim"])
    if task["loops"] == "plain":
        use_plain_loops()
    kernel = make_kernel(family, variances, lengthscales)
    place = ng.MarkovGP(kernel).layout(data["t"][:, None])
    rows = np.arange(len(data["t"])) if place.rows is None else place.rows
    y, noise = in_order(rows, data)

    def prepare_chain(hyperparameters, inputs):
        return ng.MarkovGP(make_kernel(family, *hyperparameters)).prepare(inputs)

    def whole(hyperparameters, inputs, y, noise):
        return filter_smoother(prepare_chain(hyperparameters, inputs), y, noise)

    hyperparameters = (variances, lengthscales)
    workspace = compiled(prepare_chain, hyperparameters, place.inputs)()
    run = compiled(filter_smoother, workspace, y, noise)
    everything = compiled(whole, hyperparameters, place.inputs, y, noise)
    mean, variance, log_likelihood = run()
    everything()
    position = np.empty(len(data["t"]), dtype=int)
    position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    save(task, mean=np.asarray(mean)[position], variance=np.asarray(variance)[position], log_likelihood=log_likelihood)
    return {"smoother": timed(run), "with transitions": timed(everything)}, {}


def iterations(task: dict) -> tuple[Measurements, dict]:
    data = load(task)
    found = infer(task["likelihood"], data, max_steps=100)
    marginals = found.posterior.marginals
    save(task, mean=np.ravel(marginals.mean), variance=np.ravel(marginals.covariance))
    measure = slope(lambda steps: exactly(steps, task["likelihood"], data), SHORT, LONG)
    return {"iteration": measure}, {"steps": int(found.steps), "peak_megabytes": peak_megabytes()}


def linear(task: dict) -> tuple[Measurements, dict]:
    """One measurement a length, named by it."""
    data = load(task)

    def of_length(rows: int) -> Callable[[], float]:
        part = {name: values[:rows] for name, values in data.items()}
        return slope(lambda steps: exactly(steps, "poisson", part), SHORT, LONG, least=0.1)

    return {str(rows): of_length(rows) for rows in task["lengths"]}, {}


def likelihoods(task: dict) -> tuple[Measurements, dict]:
    """One measurement per likelihood."""
    import newtongp as ng

    positive, guarded = ng.VI(), ng.VI(safeguard=ng.Heuristic())
    choices = {
        "poisson": (ng.likelihoods.Poisson(), "poisson", positive),
        "bernoulli, probit": (ng.likelihoods.Bernoulli("probit"), "bernoulli", positive),
        "bernoulli, logit": (ng.likelihoods.Bernoulli("logit"), "bernoulli", positive),
        "poisson, softplus": (ng.likelihoods.Poisson("softplus"), "poisson", guarded),
        "student_t": (ng.likelihoods.StudentT(4.0, 0.3), "gaussian", guarded),
    }

    def of(likelihood: Any, kind: str, method: Any) -> Callable[[], float]:
        model = ng.Model(ng.MarkovGP(make_kernel("matern32", [VARIANCE], [LENGTHSCALE])), likelihood)
        data = series(task["rows"], kind)

        def run(steps: int) -> None:
            found = ng.infer(
                model, data["t"], data["y"], method, ng.Constant(0.3), max_steps=steps, tol=0.0, throw=False
            )
            if found.steps != steps:
                raise RuntimeError(f"{found.steps} steps were taken where {steps} were asked for")

        return slope(run, SHORT, LONG)

    return {name: of(*choice) for name, choice in choices.items()}, {}


def memory(task: dict) -> tuple[Measurements, dict]:
    import jax

    import newtongp as ng

    jax.jit(lambda x: x + 1.0)(1.0).block_until_ready()
    before = peak_megabytes()
    found = infer("poisson", load(task), max_steps=100)
    if found.status is not ng.Status.CONVERGED:
        raise RuntimeError(f"ended with {found.status.name}")
    return {}, {"peak_megabytes": peak_megabytes(), "start_megabytes": before, "steps": int(found.steps)}


def gradient(task: dict) -> tuple[Measurements, dict]:
    """The log likelihood, and it with its gradient in the logarithms of variance and lengthscale."""
    import jax

    import newtongp as ng

    data = load(task)
    start = np.log([VARIANCE, LENGTHSCALE])
    inputs, rows = prior_at(data["t"])
    y, noise = in_order(rows, data)

    def value(logarithms, inputs, y, noise):
        variance, lengthscale = jax.numpy.exp(logarithms)
        prior = ng.MarkovGP(make_kernel("matern32", [variance], [lengthscale]))
        return log_likelihood(prior.prepare(inputs), y, noise)

    arguments = (start, inputs, y, noise)
    both = compiled(jax.value_and_grad(value), *arguments)
    alone = compiled(value, *arguments)
    _, slopes = both()
    error = differences(lambda at: float(compiled(value, at, *arguments[1:])()), start) - np.asarray(slopes)
    found = {"error": float(np.max(np.abs(error) / np.maximum(1.0, np.abs(slopes))))}
    return {"value": timed(alone), "gradient": timed(both)}, found


# Parts ------------------------------------------------------------------------------------------------------------


def make_kernel(family: str, variances: Any, lengthscales: Any) -> Any:
    import newtongp as ng

    kind = {"matern32": ng.kernels.Matern32, "matern52": ng.kernels.Matern52}[family]
    parts = [kind(variance=variances[k], lengthscale=lengthscales[k]) for k in range(len(variances))]
    return parts[0] if len(parts) == 1 else sum(parts[1:], start=parts[0])


def infer(likelihood: str, data: dict, **settings: Any) -> Any:
    import newtongp as ng

    choice = {"poisson": ng.likelihoods.Poisson, "bernoulli": ng.likelihoods.Bernoulli}
    kernel = make_kernel("matern32", [VARIANCE], [LENGTHSCALE])
    model = ng.Model(ng.MarkovGP(kernel), choice[likelihood]())
    return ng.infer(model, data["t"], data["y"], **settings)


def exactly(steps: int, likelihood: str, data: dict) -> None:
    import newtongp as ng

    found = infer(likelihood, data, step=ng.Constant(1.0), max_steps=steps, tol=0.0, throw=False)
    if found.steps != steps:
        raise RuntimeError(f"{found.steps} steps were taken where {steps} were asked for")


def compiled(function: Callable, *arguments: Any) -> Callable[[], Any]:
    """A call of the compiled function on arguments that are already where JAX wants them, until it is done."""
    import jax

    from newtongp._runtime.double import in_double

    placed = in_double(lambda: jax.tree.map(jax.numpy.asarray, arguments))()
    ready = in_double(jax.jit(function))
    return lambda: jax.block_until_ready(ready(*placed))


def differences(function: Callable[[np.ndarray], float], at: np.ndarray, width: float = 1e-4) -> np.ndarray:
    """Central differences."""
    steps = width * np.eye(len(at))
    return np.array([(function(at + step) - function(at - step)) / (2.0 * width) for step in steps])


if __name__ == "__main__":
    serve(prepare)
