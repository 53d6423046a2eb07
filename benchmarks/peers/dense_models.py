"""The same dense GP in this library and in scikit-learn, and one fit of it: what `dense_fit.py` times.

python dense_models.py ours DATA.npz [CACHE]
python dense_models.py scikit-learn DATA.npz
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

NOISE = 0.5


def ours_on(x: np.ndarray, y: np.ndarray, lengthscale: Any, classes: bool) -> Callable[[], tuple[float, int]]:
    """A fit that returns the log marginal likelihood and the number of evaluations."""
    import newtongp as ng

    likelihood = ng.likelihoods.Bernoulli("logit") if classes else ng.likelihoods.Gaussian(NOISE)
    model = ng.Model(ng.GP(ng.kernels.RBF(lengthscale, 1.0)), likelihood)
    starts = {"kernel.lengthscale": lengthscale, "kernel.variance": 1.0}
    if not classes:
        starts["likelihood.variance"] = NOISE
    # With starts that are given, `fit` does not look at guesses of its own.
    parameters = {name: ng.Free(start=value) for name, value in starts.items()}

    def run() -> tuple[float, int]:
        method = ng.Newton() if classes else None
        found = ng.fit(model, x, y, method, parameters=parameters, weak_priors=False, standard_errors=False)
        return -float(found.energy), found.evaluations

    return run


def scikit_learn_on(x: np.ndarray, y: np.ndarray, lengthscale: Any, classes: bool) -> Callable[[], tuple[float, int]]:
    """The same by scikit-learn."""
    from scipy.optimize import minimize
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-8, 1e8)) * RBF(lengthscale, (1e-5, 1e8))
    if not classes:
        kernel = kernel + WhiteKernel(NOISE, (1e-8, 1e8))
    counts = []

    def search(objective: Callable, start: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
        """scikit-learn's own search, counted."""
        found = minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds)
        counts.append(int(found.nfev))
        return found.x, found.fun

    def run() -> tuple[float, int]:
        kind = GaussianProcessClassifier if classes else GaussianProcessRegressor
        found: Any = kind(kernel, optimizer=search).fit(x, y)
        return float(found.log_marginal_likelihood(found.kernel_.theta)), counts[-1]

    return run


def lengthscale_of(x: np.ndarray, ard: bool) -> Any:
    """The lengthscales that searches start from."""
    return np.full(x.shape[1], np.sqrt(x.shape[1])) if ard else np.sqrt(x.shape[1])


def main() -> None:
    who, file = sys.argv[1:]
    warnings.simplefilter("ignore")
    data = np.load(file)
    x, y = data["x"], data["y"]
    on = ours_on if who == "ours" else scikit_learn_on
    evidence, evaluations = on(x, y, lengthscale_of(x, bool(data["ard"])), bool(data["classes"]))()
    print(evidence, evaluations)


if __name__ == "__main__":
    main()
