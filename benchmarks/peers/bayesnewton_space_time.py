"""BayesNewton on a model in space and time: one `inference()` call of VI."""

import numpy as np
from bayesnewton_markov import compiled
from common import Measurements, load, save, serve, timed

MOST, SAME = 100, 1e-9
"""The largest number of iterations, and the change of means and variances at which they have converged."""


def prepare(task: dict) -> tuple[Measurements, dict]:
    import bayesnewton  # pyright: ignore[reportMissingImports]

    data = load(task)
    times, places = data["y"].shape
    kernel = bayesnewton.kernels.SpatioTemporalMatern32(
        variance=float(data["variance"]),
        lengthscale_time=float(data["lengthscale"]),
        lengthscale_space=float(data["reach"]),
        z=data["s"][:, None],
        sparse=False,
    )
    model = bayesnewton.models.MarkovVariationalGP(
        kernel=kernel,
        likelihood=bayesnewton.likelihoods.Poisson(link="exp"),
        X=data["t"][:, None],
        R=np.tile(data["s"][None, :, None], (times, 1, 1)),
        Y=data["y"],
    )
    step = compiled(model, lambda: model.inference(lr=1.0))

    def moments() -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(model.posterior_mean.value), np.asarray(model.posterior_variance.value)

    iterations, change = 0, np.inf
    while iterations < MOST and change > SAME:
        before = moments()
        step()
        change = max(float(np.max(np.abs(new - old))) for new, old in zip(moments(), before, strict=True))
        iterations += 1
    # Its posterior is that of the whitened process.
    mean, spread = moments()
    rows = data["features"]
    variance = np.einsum("ij,tjk,ik->ti", rows, spread.reshape(times, places, places), rows)
    save(task, mean=mean.reshape(times, places) @ rows.T, variance=variance)
    return {"iteration": timed(step)}, {"iterations": iterations, "last_change": change}


if __name__ == "__main__":
    serve(prepare)
