"""Specifications of hyperparameters: `Free`, `Fixed` or `Tied`."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from ..validation.arguments import traced
from ..validation.numbers import parameter
from .constraints import Constraint
from .names import Parameter
from .priors import LogNormal, Plausible

# Specifications --------------------------------------------------------------


class Fixed:
    """Keep the model's value.

    >>> Fixed()
    Fixed()
    """

    def __repr__(self) -> str:
        return "Fixed()"


class Free:
    """Learn the value, optionally within bounds and with a prior density.

    `prior` is a distribution such as `LogNormal(median, spread)`, or any function of the value that returns the log of
    its density (up to a constant) and that JAX can trace. `start` replaces the model's value as the starting point.

    >>> Free(lower=0.1, upper=10.0)
    Free(lower=0.1, upper=10.0)
    """

    def __init__(self, lower: Any = None, upper: Any = None, prior: Any = None, start: Any = None):
        self.lower = None if lower is None else parameter(lower, "lower", max_ndim=2)
        self.upper = None if upper is None else parameter(upper, "upper", max_ndim=2)
        if self.lower is not None and self.upper is not None and np.any(self.lower >= self.upper):
            raise ValueError(f"lower must be less than upper, got {lower!r} and {upper!r}: swap them, or leave one out")
        if prior is not None and not callable(prior):
            raise ValueError(f"prior must be a prior such as LogNormal(1.0, 0.5) or a function, got {prior!r}")
        self.prior = prior
        self.start = None if start is None else parameter(start, "start", max_ndim=2)

    def __repr__(self) -> str:
        values = {"lower": self.lower, "upper": self.upper, "start": self.start}
        arguments = [f"{name}={value.tolist()}" for name, value in values.items() if value is not None]
        arguments += [f"prior={self.prior!r}"] if self.prior is not None else []
        return f"Free({', '.join(arguments)})"


class Tied:
    """Always the same value as another parameter.

    >>> Tied("kernel[0].lengthscale")
    Tied('kernel[0].lengthscale')
    """

    def __init__(self, to: str):
        if not isinstance(to, str):
            raise ValueError(f'to must be the name of a parameter, got {to!r}: write Tied("kernel[0].lengthscale")')
        self.to = to

    def __repr__(self) -> str:
        return f"Tied({self.to!r})"


@in_double
def _check_density(prior: Any, name: str, value: np.ndarray) -> None:
    """Raise ValueError unless a prior, which may be a custom function, returns a log density at this value."""
    what = f"the prior of {name}"
    if isinstance(prior, (LogNormal, Plausible)):
        with np.errstate(all="ignore"):  # and without a program, which would take longer than small fits
            density = np.asarray(prior.with_slope(value)[0])
    else:
        with traced(what):
            density = np.asarray(_density_of(prior, value))
    if density.shape not in ((), value.shape):
        raise ValueError(
            f"{what} must return one number, not an array of shape {density.shape}: return the log of a density, "
            "summed over all values"
        )
    if not np.all(density < np.inf):
        raise ValueError(
            f"{what} must return the log of a density, but it is {density.tolist()} at {value.tolist()}: check "
            "its formula, and return -inf where the density is 0"
        )


@eqx.filter_jit
def _density_of(prior: Any, value: Any) -> Any:
    """What a prior returns; its numbers are arguments, so that priors of one class are compiled once."""
    return jnp.asarray(prior(value))


def _of_its_shape(value: Any, hyperparameter: Parameter, what: str) -> np.ndarray:
    try:
        return np.broadcast_to(value, hyperparameter.value.shape).copy()
    except ValueError:
        raise ValueError(
            f"{what} of {hyperparameter.name} has shape {value.shape}, but the parameter {hyperparameter.value.shape}: "
            "give a number, or one per value"
        ) from None


def _inside(start: np.ndarray, lower: Any, upper: Any, constraint: Constraint) -> np.ndarray:
    """The start, or the middle of the bounds if the start is not between them."""
    low = np.full(start.shape, -np.inf) if lower is None else lower
    high = np.full(start.shape, np.inf) if upper is None else upper
    outside = (start <= low) | (start >= high)
    if not np.any(outside):
        return start
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(all="ignore"):
        geometric = constraint.is_positive & (low > 0.0)
        middle = np.where(geometric, np.sqrt(np.abs(low) * high), 0.5 * (low + high))
        above = np.where(geometric | (low > 0.0), 2.0 * low, low + 1.0)
        below = np.where(constraint.is_positive, 0.5 * high, high - 1.0)
    inside = np.where(both, middle, np.where(np.isfinite(low), above, below))
    return np.where(outside, inside, start)
