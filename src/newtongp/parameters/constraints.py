"""Constraints on hyperparameters, and unconstrained coordinates for optimisers.

Fields that can be learned are declared with `learned`. Other fields are not learned.
"""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..numerics.known import lower_root_given


@dataclasses.dataclass(frozen=True)
class Constraint(abc.ABC):
    """A set of values, and a map to it from unconstrained numbers."""

    is_positive: ClassVar[bool] = False
    """Whether values are positive numbers, which are compared by ratio."""

    def size(self, shape: tuple[int, ...]) -> int:
        """The number of unconstrained numbers for an array of this shape."""
        return math.prod(shape)

    def logarithms(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which unconstrained numbers are logarithms, where large values overflow."""
        return np.full(self.size(shape), self.is_positive)

    def limits(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """The range of unconstrained numbers in which values differ numerically from the boundary of the set."""
        return -math.inf, math.inf

    @abc.abstractmethod
    def unconstrain(self, value: np.ndarray) -> np.ndarray:
        """The unconstrained numbers of a value, flat; not finite if the value is outside the set."""

    @abc.abstractmethod
    def constrain(self, unconstrained: Any, shape: tuple[int, ...]) -> Any:
        """The value with these unconstrained numbers, in NumPy or JAX as they are; complex numbers are allowed."""


@dataclasses.dataclass(frozen=True)
class Real(Constraint):
    """Any real number.

    >>> Real().unconstrain(np.array([1.0, -2.0])).tolist()
    [1.0, -2.0]
    """

    def unconstrain(self, value):
        return np.ravel(value)

    def constrain(self, unconstrained, shape):
        return unconstrained.reshape(shape)


@dataclasses.dataclass(frozen=True)
class Positive(Constraint):
    """Positive numbers, parametrised by their logarithms.

    >>> float(Positive().constrain(jnp.zeros(1), ()))
    1.0
    """

    is_positive: ClassVar[bool] = True

    def unconstrain(self, value):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(np.ravel(value))

    def constrain(self, unconstrained, shape):
        return _arrays(unconstrained).exp(unconstrained).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Between(Constraint):
    """Numbers strictly between two bounds, parametrised by their log odds.

    >>> float(Between(0.0, 0.5).constrain(jnp.zeros(1), ()))
    0.25
    """

    lower: float
    upper: float

    def __post_init__(self):
        if not -math.inf < self.lower < self.upper < math.inf:
            raise ValueError(
                f"lower must be less than upper, both finite, got {self.lower} and {self.upper}: swap them"
            )

    def limits(self, shape):
        share = 4.0 * np.finfo(float).eps * max(1.0, max(abs(self.lower), abs(self.upper)) / (self.upper - self.lower))
        return (-math.inf, math.inf) if share >= 0.5 else (math.log(share), -math.log(share))

    def unconstrain(self, value):
        share = (np.ravel(value) - self.lower) / (self.upper - self.lower)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(share) - np.log1p(-share)

    def constrain(self, unconstrained, shape):
        share = 1.0 / (1.0 + _arrays(unconstrained).exp(-unconstrained))
        return (self.lower + (self.upper - self.lower) * share).reshape(shape)


_SINGULAR = 14.0
"""Numbers of pairs beyond this are those of singular matrices: with two variables, 1 − r² is below 3e-12."""


@dataclasses.dataclass(frozen=True)
class Covariance(Constraint):
    """A variance, a vector of variances, or a positive definite matrix.

    A matrix has logarithms of its standard deviations, and one number per pair: for two variables, the inverse
    hyperbolic tangent of their correlation; in general, the inverse hyperbolic sine of an entry of the Cholesky factor,
    relative to the pivot of its row. None has a unit, and one alone goes to infinity where a matrix becomes singular.

    >>> matrix = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> free = Covariance().unconstrain(matrix)
    >>> free.shape, bool(np.allclose(Covariance().constrain(free, (2, 2)), matrix))
    ((3,), True)
    """

    is_positive: ClassVar[bool] = True

    def size(self, shape):
        return math.prod(shape) if len(shape) < 2 else shape[-1] * (shape[-1] + 1) // 2

    def logarithms(self, shape):
        if len(shape) < 2:
            return Positive().logarithms(shape)
        rows, columns = np.tril_indices(shape[0])
        return rows == columns

    def limits(self, shape):
        if len(shape) < 2:
            return -math.inf, math.inf
        reach = np.where(self.logarithms(shape), math.inf, _SINGULAR)
        return -reach, reach

    def unconstrain(self, value):
        if np.ndim(value) < 2:
            return Positive().unconstrain(value)
        factor = lower_root_given(value)
        if factor is None:
            return np.full(self.size(np.shape(value)), np.nan)
        rows, columns = np.tril_indices(value.shape[0])
        deviations = np.log(np.sqrt(np.sum(factor**2, axis=1)))[rows]
        return np.where(rows == columns, deviations, np.arcsinh(factor[rows, columns] / np.diagonal(factor)[rows]))

    def constrain(self, unconstrained, shape):
        if len(shape) < 2:
            return Positive().constrain(unconstrained, shape)
        arrays, indices = _arrays(unconstrained), np.arange(shape[0])
        below = indices[:, None] > indices[None, :]
        # Where each entry below the diagonal, and each standard deviation, is among the unconstrained numbers.
        place = np.where(below, indices[:, None] * (indices[:, None] + 1) // 2 + indices[None, :], 0)
        deviations = arrays.exp(unconstrained[indices * (indices + 3) // 2])
        relative = arrays.sinh(arrays.where(below, unconstrained[place], 0.0)) + np.eye(shape[0])
        factor = relative * (deviations / arrays.sqrt(arrays.sum(relative**2, axis=1)))[:, None]
        return factor @ factor.T


def _arrays(values: Any) -> Any:
    """The module with the functions for these arrays."""
    return np if isinstance(values, np.ndarray) else jnp


def learned(
    constraint: Constraint | None = None, by_default: bool = True, unit: str | None = None, **options: Any
) -> Any:
    """A field of a kernel, mean or likelihood that `fit` learns; `options` are those of `equinox.field`.

    `constraint` specifies the allowed values: `Positive()`, `Between(lower, upper)`, `Covariance()`, or `Real()`, the
    default. With `by_default=False` it is learned only if `parameters` contains `Free()` for it. `unit` is its unit,
    from which an initial value can be derived from the data: "x", "y", "y2" (for a variance), "f2" and the like.

    >>> import newtongp as ng
    >>> class Laplace(ng.Likelihood):
    ...     scale: Any = ng.learned(ng.Positive(), default=1.0)
    ...
    ...     def log_prob(self, y, f):
    ...         return -jnp.abs(y - f) / self.scale - jnp.log(2.0 * self.scale)
    >>> [parameter.name for parameter in ng.hyperparameters(Laplace())]
    ['scale']
    """
    if constraint is not None and not isinstance(constraint, Constraint):
        raise ValueError(f"constraint must be a constraint such as Positive() or Between(0.0, 1.0), got {constraint!r}")
    metadata = {"constraint": Real() if constraint is None else constraint, "learned": by_default, "unit": unit}
    return eqx.field(metadata=metadata, **options)


def never_learned(**options: Any) -> Any:
    """A field of numbers that are part of a model's structure and are not learned."""
    return eqx.field(metadata={"constraint": None, "learned": False, "unit": None}, **options)
