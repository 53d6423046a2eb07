"""Mean functions of a prior: E[f(x)] at one row of x, one per latent."""

import abc
import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .parameters.constraints import learned
from .validation.arguments import one_number, traced
from .validation.numbers import parameter


class Mean(eqx.Module):
    """The mean of one latent function.

    A mean with learnable parameters is a subclass that declares them:

    >>> import newtongp as ng
    >>> class Exponential(ng.means.Mean):
    ...     rate: Any = ng.learned()
    ...
    ...     def evaluate(self, x):
    ...         return jnp.exp(self.rate * x[0])
    >>> round(float((Exponential(0.0) + 2.0).evaluate(jnp.ones(1))), 4)
    3.0
    """

    @abc.abstractmethod
    def evaluate(self, x: Float[Array, " P"]) -> Float[Array, ""]:
        """The mean at one input."""

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError if this mean cannot be used on inputs with that many columns."""

    # NumPy would otherwise turn `array + mean` into an array of means.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> "Mean":
        """The sum with another mean, number or function."""
        return Sum((self, _as_single(other)))

    def __radd__(self, other: Any) -> "Mean":
        return Sum((_as_single(other), self))


class Zero(Mean):
    """Zero everywhere.

    >>> float(Zero().evaluate(jnp.ones(1)))
    0.0
    """

    def evaluate(self, x):
        return jnp.zeros(())


class Constant(Mean):
    """The same value everywhere.

    >>> float(Constant(1.5).evaluate(jnp.ones(1)))
    1.5
    """

    value: Any = learned(converter=lambda value: parameter(value, "value"))

    def evaluate(self, x):
        return jnp.asarray(self.value)


class Linear(Mean):
    """slopeᵀx + intercept, with one slope per column (a number, if x has one column).

    >>> float(Linear([2.0, -1.0], intercept=0.5).evaluate(jnp.ones(2)))
    1.5
    """

    slope: Any = learned(converter=lambda value: parameter(value, "slope", max_ndim=1))
    intercept: Any = learned(default=0.0, converter=lambda value: parameter(value, "intercept"))

    def evaluate(self, x):
        return jnp.sum(self.slope * x) + self.intercept

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless there is one slope per column."""
        slopes = np.size(self.slope)
        if slopes != dimension:
            raise ValueError(f"slope has length {slopes}, but x has {dimension} column(s): give one slope per column")


class Function(Mean):
    """A function of one row of x that JAX can trace, without learnable parameters.

    >>> round(float(Function(lambda x: jnp.sin(x[0])).evaluate(jnp.zeros(1))), 4)
    0.0
    """

    function: Callable[[Any], Any] = eqx.field(static=True)

    def __init__(self, function: Callable[[Any], Any]):
        """`function`: takes a vector with the columns of one row, returns one number."""
        if any(eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(function)):
            raise ValueError(
                f"a function with arrays inside cannot be used as a mean directly, got {type(function).__name__}: "
                f"make it a field of a subclass of newtongp.means.Mean, declared with newtongp.learned() if its arrays "
                f"should be learned"
            )
        self.function = function

    def evaluate(self, x):
        return self.function(x)


class Sum(Mean):
    """The sum of several means.

    >>> float((Linear(2.0) + 1.0).evaluate(jnp.ones(1)))
    3.0
    """

    parts: tuple[Mean, ...]

    def evaluate(self, x):
        return functools.reduce(operator.add, (part.evaluate(x) for part in self.parts))

    def check_inputs(self, dimension: int) -> None:
        for part in self.parts:
            part.check_inputs(dimension)


class Independent(eqx.Module):
    """One mean per latent: a `Mean`, a number, a function or None (zero) for each.

    >>> Independent([Constant(1.0), None]).means(jnp.zeros((3, 1))).shape
    (3, 2)
    """

    parts: tuple[Mean, ...]

    def __init__(self, parts: Any):
        """`parts`: in the order of the likelihood's latents."""
        if isinstance(parts, (Mean, Independent, str)) or not isinstance(parts, Iterable):
            raise ValueError(
                f"expected a list with one mean per latent, got {parts!r}: write `Independent([mean, mean])`"
            )
        parts = tuple(parts)
        if not parts:
            raise ValueError("the list of means is empty: give one mean per latent")
        self.parts = tuple(_as_single(part, f" (element {index})") for index, part in enumerate(parts))

    @property
    def num_latents(self) -> int:
        """The number of latent functions."""
        return len(self.parts)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError if one of the means cannot be used on inputs with that many columns."""
        for index, part in enumerate(self.parts):
            try:
                part.check_inputs(dimension)
            except ValueError as error:
                raise ValueError(f"mean of latent {index}: {error}") from None

    def means(self, x: Float[Array, "N P"]) -> Float[Array, "N D"]:
        """The mean of every latent at every row."""
        self.check_inputs(x.shape[1])
        return jax.vmap(lambda row: jnp.stack([_evaluated(part, row) for part in self.parts]))(x)


def _evaluated(mean: Mean, x: Float[Array, " P"]) -> Float[Array, ""]:
    """The mean at one input, for a mean that may be custom."""
    name = "the mean function" if isinstance(mean, Function) else f"`evaluate` of the mean {type(mean).__name__}"
    with traced(name):
        value = mean.evaluate(x)
    return one_number(value, name, "its argument is one row of x, so choose a column, as in `lambda x: 2.0 * x[0]`")


def as_mean(value: Any, num_latents: int) -> Independent:
    """Convert a user's mean to one mean for each of `num_latents` latents.

    None is zero for all of them; a number, a `Mean` or a function is the mean of one latent.

    >>> as_mean(None, 2).means(jnp.zeros((3, 1))).shape
    (3, 2)
    >>> as_mean(1.0, 2)
    Traceback (most recent call last):
        ...
    ValueError: the mean has 1 latent(s), but the prior has 2: write `means.Independent([mean, mean])`
    """
    if value is None:
        return Independent([Zero()] * num_latents)
    mean = value if isinstance(value, Independent) else Independent([value])
    if mean.num_latents != num_latents:
        raise ValueError(
            f"the mean has {mean.num_latents} latent(s), but the prior has {num_latents}: "
            f"write `means.Independent([mean, mean])`"
        )
    return mean


def _as_single(value: Any, where: str = "") -> Mean:
    if isinstance(value, Mean):
        return value
    if value is None:
        return Zero()
    if isinstance(value, (int, float, np.number, np.ndarray, jax.Array)):
        return Constant(value)
    # A class is callable too, but `Zero` without brackets is a mistake.
    if callable(value) and not isinstance(value, type):
        return Function(value)
    raise ValueError(
        f"a mean must be a Mean, a number or a function of one row of x, got {value!r}{where}; "
        f"for several latents write `means.Independent([mean, mean])`"
    )
