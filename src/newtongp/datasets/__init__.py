"""Small data sets that come with the package, for examples and tests."""

from importlib import resources

import numpy as np


def motorcycle() -> tuple[np.ndarray, np.ndarray]:
    """Head acceleration in a simulated motorcycle crash: 133 rows, noise that changes with time.

    Returns times after impact in milliseconds and accelerations in g, in the order of the source.
    39 of the 133 times repeat an earlier one.

    Source: `mcycle` of the R package MASS (Venables and Ripley, 2002), after B. W. Silverman (1985),
    Some aspects of the spline smoothing approach to non-parametric regression curve fitting,
    Journal of the Royal Statistical Society B 47, 1-52.

    >>> x, y = motorcycle()
    >>> x.shape, float(x[0]), float(y.min())
    ((133,), 2.4, -134.0)
    """
    with resources.files(__name__).joinpath("motorcycle.csv").open(encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float64)
    return table[:, 0].copy(), table[:, 1].copy()


def coal() -> np.ndarray:
    """Explosions in British coal mines that killed ten people or more: the 191 dates, 15 March 1851 to 22 March 1962.

    Returns dates (datetime64[D]) in rising order; two explosions were on 6 December 1875. The record begins and ends on
    the day of an explosion.

    Source: R. G. Jarrett (1979), A note on the intervals between coal-mining disasters, Biometrika 66, 191-193,
    by way of `coal` of the R package boot, which holds them as fractions of years of 365.25 days.

    >>> dates = coal()
    >>> dates.shape, str(dates[0]), str(dates[-1])
    ((191,), '1851-03-15', '1962-03-22')
    """
    with resources.files(__name__).joinpath("coal.csv").open(encoding="utf-8") as file:
        return np.loadtxt(file, skiprows=1, dtype="datetime64[D]")


def product() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An oscillation times a positive amplitude, with noise: 1000 rows, and the two latents that made them.

    Returns inputs, the signal, and the latents (1000, 2): the oscillation f₁, and f₂ whose softplus is the amplitude.
    The noise has standard deviation 0.1.

    Source: the signal that was sampled for the amplitude demodulation experiment of W. J. Wilkinson, S. Särkkä and
    A. Solin (2023), Bayes-Newton methods for approximate Bayesian inference with PSD guarantees, Journal of Machine
    Learning Research 24 (83), 1-50.

    >>> x, y, latents = product()
    >>> x.shape, float(x[-1]), latents.shape
    ((1000,), 200.0, (1000, 2))
    """
    with resources.files(__name__).joinpath("product.csv").open(encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float64)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2:].copy()


def gprn(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three outputs of a Gaussian process regression network, one of four samples (`index` 0 to 3): 400 rows.

    Returns inputs, the outputs (400, 3), and the outputs without noise (400, 3).

    Source: the data sets that were sampled for the regression network experiment of W. J. Wilkinson, S. Särkkä and
    A. Solin (2023), Bayes-Newton methods for approximate Bayesian inference with PSD guarantees, Journal of Machine
    Learning Research 24 (83), 1-50.

    >>> x, y, truth = gprn(0)
    >>> float(x[0]), float(x[-1]), y.shape, truth.shape
    (-17.0, 147.0, (400, 3), (400, 3))
    """
    if index not in range(4):
        raise ValueError(f"index must be 0, 1, 2 or 3, got {index!r}")
    with resources.files(__name__).joinpath(f"gprn_{index}.csv").open(encoding="utf-8") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.float64)
    return table[:, 0].copy(), table[:, 1:4].copy(), table[:, 4:].copy()
