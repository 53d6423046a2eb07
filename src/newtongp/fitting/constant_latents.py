"""The constant latent under which data are most likely, in closed form, for likelihoods where the mean of y says it.

Where y is a sufficient statistic, the constant latent is the one under which y has its mean. `fit` needs it for its
first guesses; for other likelihoods `initial_values.py` searches for it with two programs, whose compilation takes as
long as a small fit.
"""

import contextlib
import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from .._runtime.lazy import is_a
from ..likelihoods import links
from ..likelihoods.base import Likelihood

_LEAST_MEAN, _LEAST_SHARE = 1e-3, 1e-3
"""The smallest mean of counts, and the smallest probability: where all rows are equal, the latent would be infinite."""


class ConstantLatent(NamedTuple):
    """The latent, and y given f there."""

    latent: float
    slope: Any
    """The derivative of E[y | f]; one per row if the likelihood has parameters of rows."""
    noise: Any
    """Var[y | f]."""


def constant_latent(likelihood: Likelihood, y: np.ndarray, rows: np.ndarray) -> ConstantLatent | None:
    """What makes the observed `rows` of `y` most likely; None if there is no closed form.

    >>> from newtongp.likelihoods import Poisson
    >>> found = constant_latent(Poisson(), np.array([1.0, 3.0, 9.0]), np.array([0, 1]))
    >>> round(found.latent, 6), round(found.slope, 6), round(found.noise, 6)
    (0.693147, 2.0, 2.0)
    """
    for module, name, find in _KNOWN:
        if is_a(likelihood, f"likelihoods.{module}", name):
            # The search copes with numbers at the limits of double precision.
            with contextlib.suppress(ArithmeticError, ValueError):
                return find(likelihood, y[rows], rows)
    return None


def _of_rows(value: Any, rows: np.ndarray) -> Any:
    return np.asarray(value)[rows] if np.ndim(value) else float(value)


def _inverse_link(link: str, value: float) -> tuple[float, float]:
    """The latent with this value of the inverse link, and the derivative of that there."""
    if link == "exp":
        return math.log(value), value
    if link == "softplus":
        return value + math.log(-math.expm1(-value)), -math.expm1(-value)
    if link == "logit":
        return math.log(value / (1.0 - value)), value * (1.0 - value)
    normal = NormalDist()
    latent = normal.inv_cdf(value)
    return latent, normal.pdf(latent)


def _of_gaussian(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent:
    weights = 1.0 / np.broadcast_to(_of_rows(likelihood.variance, rows), y.shape)
    return ConstantLatent(float(np.sum(weights * y) / np.sum(weights)), 1.0, _of_rows(likelihood.variance, rows))


def _of_poisson(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent:
    exposure = _of_rows(likelihood.exposure, rows)
    rate = max(float(np.mean(y)), _LEAST_MEAN) / float(np.mean(exposure))
    latent, slope = _inverse_link(likelihood.link, rate)
    return ConstantLatent(latent, exposure * slope, exposure * rate)


def _of_negative_binomial(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent | None:
    if np.ndim(likelihood.exposure):
        return None  # rows with more exposure count less than in proportion
    found = _of_poisson(likelihood, y, rows)
    return found._replace(noise=found.noise + float(likelihood.dispersion) * found.noise**2)


def _of_successes(likelihood: Any, successes: float, trials: Any) -> ConstantLatent:
    lapse = 0.0 if likelihood.lapse is None else float(likelihood.lapse)
    share = (successes / float(np.mean(trials)) - lapse) / (1.0 - 2.0 * lapse)
    share = min(max(share, _LEAST_SHARE), 1.0 - _LEAST_SHARE)
    latent, slope = _inverse_link(likelihood.link, share)
    probability = lapse + (1.0 - 2.0 * lapse) * share
    return ConstantLatent(latent, trials * (1.0 - 2.0 * lapse) * slope, trials * probability * (1.0 - probability))


def _of_bernoulli(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent:
    return _of_successes(likelihood, float(np.mean(y)), 1.0)


def _of_binomial(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent:
    return _of_successes(likelihood, float(np.mean(y)), _of_rows(likelihood.trials, rows))


def _of_gamma(likelihood: Any, y: np.ndarray, rows: np.ndarray) -> ConstantLatent:
    shape = float(getattr(likelihood, "shape", 1.0))
    scale = float(np.mean(y)) / shape
    latent, slope = _inverse_link(likelihood.link, scale)
    return ConstantLatent(latent, shape * slope, shape * scale**2)


_KNOWN = (
    ("counts", "Poisson", _of_poisson),
    ("categorical", "Bernoulli", _of_bernoulli),
    ("continuous", "Gaussian", _of_gaussian),
    ("counts", "Binomial", _of_binomial),
    ("counts", "NegativeBinomial", _of_negative_binomial),
    ("continuous", "Gamma", _of_gamma),
    ("continuous", "Exponential", _of_gamma),
)


def is_linked(likelihood: Likelihood) -> bool:
    """Whether a link makes the slope depend on the latent."""
    return getattr(likelihood, "link", links.IDENTITY) != links.IDENTITY
