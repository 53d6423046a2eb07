"""From nothing to a fit, its summary and predictions with quantiles: what `start.py` times from the outside.

    python newtongp_first.py CASE [CACHE]

Uses only what all versions have had, so that an older version can be run beside.
"""

import sys

import numpy as np

import newtongp as ng


def data(case: str):
    """x, y and new inputs."""
    rng = np.random.default_rng(0)
    if case == "poisson":
        t = np.cumsum(rng.gamma(2.0, 0.05, size=1000))
        return t, rng.poisson(np.exp(np.sin(0.4 * t))), t[:50] + 0.01
    if case == "bernoulli":
        x = rng.normal(size=(200, 2))
        return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.5 * rng.normal(size=200) > 0.0, x[:50] + 0.01
    if case == "heteroscedastic":
        x, y = ng.datasets.motorcycle()
        return (x - x.mean()) / x.std(), (y - y.mean()) / y.std(), np.linspace(-1.5, 2.5, 50)
    if case == "regression":
        x = rng.normal(size=(500, 5))
        return x, np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=500), x[:50] + 0.01
    x = rng.normal(size=(150, 4))
    return x, np.argmax(x[:, :3] + 0.5 * rng.normal(size=(150, 3)), axis=1), x[:50] + 0.01


def model(case: str):
    """The model of a case."""
    kernels = ng.kernels
    if case == "poisson":
        return ng.Model(ng.MarkovGP("matern32"), "poisson")
    if case == "bernoulli":
        return ng.Model(ng.GP("matern52"), "bernoulli")
    if case == "heteroscedastic":
        prior = ng.MarkovGP(kernels.Independent([kernels.Matern32(1.0), kernels.Matern32(1.0)]))
        return ng.Model(prior, ng.likelihoods.HeteroscedasticGaussian())
    if case == "regression":
        return ng.Model(ng.GP("rbf"), "gaussian")
    return ng.Model(ng.GP(kernels.Independent([kernels.RBF(2.0) for _ in range(3)])), ng.likelihoods.Softmax(3))


def main() -> None:
    case = sys.argv[1]
    if len(sys.argv) > 2:
        ng.use_cache(sys.argv[2])
    x, y, new = data(case)
    result = ng.fit(model(case), x, np.asarray(y, dtype=float), throw=False)
    str(result.summary())
    prediction = result.predict(new)
    if case == "multiclass":
        answers = [prediction.probabilities]
    else:
        answers = [prediction.mean, prediction.quantile([0.05, 0.95])]
    finite = all(np.all(np.isfinite(answer)) for answer in answers)
    print(f"{result.status.name} {result.energy:.4f} {result.evaluations}" if finite else "not finite")


if __name__ == "__main__":
    main()
