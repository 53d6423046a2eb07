"""Prior densities of hyperparameters, in units of scaled columns, unless a user gives specifications.

A fit of a few rows with one lengthscale per column would otherwise adapt to noise, and classes that a plane separates
would make the variance of the latents grow without end, which takes long and gives probabilities of 0 and 1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..fitting.learned import choose
from ..model import Model
from ..parameters import Free, LogNormal, Tied
from ..parameters.names import hyperparameters
from ..priors.by_name import for_columns

LENGTHSCALE, LENGTHSCALE_SPREAD = 3.0, 1.0
"""The most probable lengthscale, in standard deviations of a column and per √(number of columns), and its spread."""
VARIANCE, VARIANCE_SPREAD = 4.0, 1.0
"""The same for the variance of latents of classes, which have no units."""


def with_priors(
    model: Model, scales: np.ndarray, of_classes: bool, bounds: Mapping[str, Free], shared: bool = False
) -> dict[str, Any]:
    """Specifications with priors on lengthscales, and on variances of latents of classes, besides these bounds.

    `scales` are the standard deviations of the columns of x. With `shared`, all latents have one kernel in common, and
    the search starts at the modes.
    """
    columns = len(scales)
    model = Model(for_columns(model.prior, columns), model.likelihood)
    specifications: dict[str, Any] = dict(bounds) | (one_kernel(model) if shared else {})
    for item in choose(model, specifications):
        if item.slot.name.endswith("lengthscale") and item.slot.shape in ((), (columns,)):
            scale = scales if item.slot.shape else np.sqrt(np.mean(scales**2))
            mode, spread = LENGTHSCALE * np.sqrt(columns) * scale, LENGTHSCALE_SPREAD
        elif item.unit == "f2" and of_classes and item.slot.shape == ():
            mode, spread = VARIANCE, VARIANCE_SPREAD
        else:
            continue
        specifications[item.slot.name] = Free(start=mode if shared else None, prior=around(mode, spread))
    return specifications


def one_kernel(model: Model) -> dict[str, Tied]:
    """Ties of the hyperparameters of every latent's kernel to those of the first."""
    known = {item.path: item for item in hyperparameters(model)}
    own = [path for path, item in known.items() if path[:3] == _KERNELS and path[3] != 0 and item.learned]
    return {known[path].name: Tied(known[*_KERNELS, 0, *path[4:]].name) for path in own}


_KERNELS = ("prior", "kernel", "kernels")


def around(mode: Any, spread: float) -> LogNormal:
    """The density of a value whose logarithm has a normal density, with this mode of the value.

    >>> prior = around(3.0, 1.5)
    >>> bool(prior(3.0) > prior(2.9)), bool(prior(3.0) > prior(3.1))
    (True, True)
    """
    return LogNormal(mode * np.exp(spread**2), spread)
