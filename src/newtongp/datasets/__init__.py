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
