"""BayesNewton on the motorcycle model: one `inference()` call of a method."""

import numpy as np
from bayesnewton_markov import compiled
from common import Measurements, load, save, serve, timed

COMPARED = 40


def prepare(task: dict) -> tuple[Measurements, dict]:
    import bayesnewton  # pyright: ignore[reportMissingImports]

    data = load(task)
    kernels = [bayesnewton.kernels.Matern32(variance=1.0, lengthscale=1.0) for _ in range(2)]
    given = {
        "kernel": bayesnewton.kernels.Independent(kernels),
        "likelihood": bayesnewton.likelihoods.HeteroscedasticNoise(),
        "X": data["x"][:, None],
        "Y": data["y"][:, None],
    }
    models = bayesnewton.models
    model = {
        "newton": lambda: models.MarkovNewtonGP(**given),
        "vi": lambda: models.MarkovVariationalGP(**given),
        "vi gauss-newton": lambda: models.MarkovVariationalGaussNewtonGP(**given),
        "pep": lambda: models.MarkovExpectationPropagationGP(**given, power=0.5),
        "pl": lambda: models.MarkovPosteriorLinearisationGP(**given),
    }[task["method"]]()
    step = compiled(model, lambda: model.inference(lr=0.3))
    for _ in range(COMPARED):
        step()
    mean, variance = np.asarray(model.posterior_mean.value), np.asarray(model.posterior_variance.value)
    save(task, mean=mean.reshape(len(data["x"]), 2), variance=variance.reshape(len(data["x"]), 2, 2))
    return {"iteration": timed(step)}, {}


if __name__ == "__main__":
    serve(prepare)
