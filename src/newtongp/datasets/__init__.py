"""Small data sets for examples and tests."""

from importlib import resources

import numpy as np


def _table(name: str, dtype: str = "float64") -> np.ndarray:
    """The rows of a file of this package, below its header."""
    with resources.files(__name__).joinpath(name).open(encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=",", skiprows=1, dtype=dtype)


def motorcycle() -> tuple[np.ndarray, np.ndarray]:
    """Head acceleration in a simulated motorcycle crash: 133 rows, noise that changes with time.

    Returns times after impact in milliseconds and accelerations in g, in the order of the source.
    39 of the 133 times repeat an earlier time.

    Source: `mcycle` of the R package MASS (Venables and Ripley, 2002), after B. W. Silverman (1985),
    Some aspects of the spline smoothing approach to non-parametric regression curve fitting,
    Journal of the Royal Statistical Society B 47, 1-52.

    >>> x, y = motorcycle()
    >>> x.shape, float(x[0]), float(y.min())
    ((133,), 2.4, -134.0)
    """
    table = _table("motorcycle.csv")
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
    return _table("coal.csv", "datetime64[D]")


def coal_by_year() -> tuple[np.ndarray, np.ndarray]:
    """The explosions of `coal`, counted in each of the 110 whole years from 1852 to 1961.

    >>> year, explosions = coal_by_year()
    >>> year.shape, float(year[0]), float(year[-1]), int(explosions.sum())
    ((110,), 1852.0, 1961.0, 186)
    """
    years = np.arange(1852, 1962)
    counts = np.bincount(coal().astype("datetime64[Y]").astype(int) + 1970 - 1851, minlength=112)
    return years.astype(np.float64), counts[1:111]


def iris() -> tuple[np.ndarray, np.ndarray]:
    """Two species of iris by their sepals: 100 flowers, 50 each of Iris versicolor (0) and Iris virginica (1).

    Returns the length and the width of a sepal in centimetres (100, 2), and the species. Some flowers have identical
    measurements, also across species: the two species overlap.

    Source: R. A. Fisher (1936), The use of multiple measurements in taxonomic problems, Annals of Eugenics 7, 179-188,
    with the values of that table as in scikit-learn.

    >>> sepals, is_virginica = iris()
    >>> sepals.shape, sepals[0].tolist(), int(is_virginica.sum())
    ((100, 2), [7.0, 3.2], 50)
    """
    table = _table("iris.csv")
    return table[:, :2].copy(), table[:, 2].astype(np.int64)


def product() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An oscillation times a positive amplitude, with noise: 1000 rows, and the two latents that generated them.

    Returns inputs, the signal, and the latents (1000, 2): the oscillation f₁, and f₂ whose softplus is the amplitude.
    The noise has standard deviation 0.1.

    Source: the signal that was sampled for the amplitude demodulation experiment of W. J. Wilkinson, S. Särkkä and
    A. Solin (2023), Bayes-Newton methods for approximate Bayesian inference with PSD guarantees, Journal of Machine
    Learning Research 24 (83), 1-50.

    >>> x, y, latents = product()
    >>> x.shape, float(x[-1]), latents.shape
    ((1000,), 200.0, (1000, 2))
    """
    table = _table("product.csv")
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
    table = _table(f"gprn_{index}.csv")
    return table[:, 0].copy(), table[:, 1:4].copy(), table[:, 4:].copy()
