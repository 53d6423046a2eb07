"""Prior densities of hyperparameters, in units of scaled columns, unless a user gives specifications.

A fit of a few rows with one lengthscale per column would otherwise adapt to noise, and classes that a plane separates
would make the variance of the latents grow without end, which takes long and gives probabilities of 0 and 1.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..fitting.learned import choose
from ..model import Model
from ..parameters import Free, LogNormal
from ..priors.by_name import for_columns

LENGTHSCALE, LENGTHSCALE_SPREAD = 3.0, 1.0
"""The most probable lengthscale, in standard deviations of a column and per √(number of columns), and its spread."""
VARIANCE, VARIANCE_SPREAD = 4.0, 1.0
"""The same for the variance of latents of classes, which have no units."""


def with_priors(model: Model, scales: np.ndarray, of_classes: bool, bounds: Mapping[str, Free]) -> dict[str, Free]:
    """Specifications with priors on lengthscales, and on variances of latents of classes, besides these bounds.

    `scales` are the standard deviations of the columns of x.
    """
    columns = len(scales)
    specifications = dict(bounds)
    for item in choose(Model(for_columns(model.prior, columns), model.likelihood), bounds):
        if item.slot.name.endswith("lengthscale") and item.slot.shape in ((), (columns,)):
            scale = scales if item.slot.shape else np.sqrt(np.mean(scales**2))
            prior = around(LENGTHSCALE * np.sqrt(columns) * scale, LENGTHSCALE_SPREAD)
        elif item.unit == "f2" and of_classes and item.slot.shape == ():
            prior = around(VARIANCE, VARIANCE_SPREAD)
        else:
            continue
        specifications[item.slot.name] = Free(prior=prior)
    return specifications


def around(mode: Any, spread: float) -> LogNormal:
    """The density of a value whose logarithm has a normal density, with this mode of the value.

    >>> prior = around(3.0, 1.5)
    >>> bool(prior(3.0) > prior(2.9)), bool(prior(3.0) > prior(3.1))
    (True, True)
    """
    return LogNormal(mode * np.exp(spread**2), spread)
