"""Terms with a kernel over their inputs, and products of such terms.

At the data, such a term is exact as weights at its distinct inputs: a hundred ages, 52 weeks, 400 districts.
"""

import abc
import functools
import itertools
import operator
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import kernels
from ..kernels import Kernel, gram
from ..kernels.base import diagonal
from ..numerics import linalg
from ..numerics.size_classes import size_class
from ..parameters.constraints import never_learned
from ..validation.names import find
from .base import Term, Units, Weights, replaced
from .group import Group
from .inputs import InputEncoder, ProductEncoder
from .table import Table

_SMALLEST, _STEP = 16, 32
"""The smallest number of distinct inputs that programs are compiled for, and what larger ones are multiples of."""
_KERNELS = ("Matern12", "Matern32", "Matern52", "Matern72", "RBF", "RationalQuadratic")


class KernelTerm(Term):
    """A term with a kernel over encoded columns."""

    takes_by: ClassVar[bool] = True
    """Whether it may have one function per level of a factor."""
    columns: eqx.AbstractVar[tuple[str, ...]]
    by: eqx.AbstractVar[str | None]
    points: eqx.AbstractVar[Any]
    """The distinct inputs of the data, filled up to a size class, or inducing inputs, once bound."""
    used: eqx.AbstractVar[Any]
    """Which of them are not fill."""
    grouped: eqx.AbstractVar[bool]
    """Whether numbers in the column `by` are levels too."""
    by_level: eqx.AbstractVar[bool]
    """Whether the last input is a level, each of which has a function of its own."""

    def __mul__(self, other: Any) -> Term:
        return product_of(self, other)

    def __rmul__(self, other: Any) -> Term:
        return product_of(other, self)

    @abc.abstractmethod
    def covariance(self) -> Kernel:
        """The kernel over the inputs."""

    @abc.abstractmethod
    def encoder(self, table: Table) -> InputEncoder:
        """The encoder of the inputs."""

    @property
    def kind(self) -> str:
        """The word for such terms in labels."""
        return type(self).__name__.lower()

    @property
    def lines(self) -> bool:
        """Whether a line is added that has no prior."""
        return False

    @property
    def is_sparse(self) -> bool:
        """Whether the points are inducing inputs, and not all distinct inputs of the data, once bound."""
        return False

    @property
    def count(self) -> int:
        return self.points.shape[0] + int(self.lines)

    @property
    def is_flat(self) -> bool:
        return self.lines

    @property
    def label(self) -> str:
        inside = [*self.columns, *([f"by={self.by}"] if self.by else [])]
        return f"{self.kind}({', '.join(inside)})"

    @property
    def width(self) -> int:
        return len(self.columns) + 1 + int(self.by_level)

    def bind(self, table: Table, units: Units) -> tuple[Any, InputEncoder]:
        encoder = self.encoder(table)
        x = encoder.encode(table)[:, :-1]
        distinct = self._points_of(x, encoder)
        points, used = filled_points(distinct)
        bound = replaced(self, points=points, used=used, by_level=len(encoder.columns) > len(self.columns))
        bound = bound.adapted(distinct, units)
        bound.covariance().check_inputs(bound.dimension)
        bound.covariance().check_values(distinct[:, : bound.dimension])
        return bound, encoder

    def adapted(self, distinct: np.ndarray, units: Units) -> Any:
        """The term with hyperparameters whose sizes depend on the data."""
        return self

    def _points_of(self, x: np.ndarray, encoder: InputEncoder) -> np.ndarray:
        return np.unique(x, axis=0)

    @property
    def dimension(self) -> int:
        """The number of inputs of the kernel."""
        return len(self.columns)

    def read_rows(self, x: np.ndarray) -> Any:
        inputs, known = x[:, :-1], np.asarray(self.points)[np.asarray(self.used)]
        both, where = np.unique(np.concatenate([known, inputs]), axis=0, return_inverse=True)
        where = where.reshape(-1)
        codes = np.full(both.shape[0], -1)
        codes[where[: known.shape[0]]] = np.arange(known.shape[0])
        found = codes[where[known.shape[0] :]]
        assert np.all(found >= 0), "rows of other data than the term was bound to"
        return found.astype(np.int32), x[:, -1:], inputs[:, :1] if self.lines else None

    @property
    def is_chain(self) -> bool:
        """Whether the function is that of one column, with a kernel that has a state space form."""
        if len(self.columns) != 1 or self.by is not None:
            return False
        try:
            return len(self.covariance().blocks()) > 0
        except (NotImplementedError, ValueError):
            return False

    def chain_weights(self, times: Any) -> tuple[Weights, ...]:
        """The weights that are not part of a chain over the column: the line, if there is one."""
        return self.line_weights(times[:, None], 1.0)

    def line_weights(self, x: Any, multiplier: Any) -> tuple[Weights, ...]:
        """The line at inputs, if there is one."""
        return (self._line(x, multiplier),) if self.lines else ()

    def gram(self, one: Any, two: Any) -> Float[Array, "N M"]:
        """The covariance of the function at inputs."""
        dimension = self.dimension
        found = gram(self.covariance(), one[:, :dimension], two[:, :dimension])
        if self.by_level:
            found = jnp.where(one[:, None, -1] == two[None, :, -1], found, 0.0)
        return found

    def root(self) -> Float[Array, "L L"]:
        """L with LLᵀ the covariance at the distinct inputs; the identity where these are fill."""
        return root_of(self.gram(self.points, self.points), self.used)

    @property
    def over(self) -> str:
        """The name of the codes of distinct inputs."""
        return self.label

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        codes, multiplier, line = rows
        own = Weights(codes, multiplier, self.root(), self.points.shape[0], self.over, False)
        return own, *self.line_weights(line, multiplier)

    def _line(self, x: Any, multiplier: Any) -> Weights:
        used = jnp.asarray(self.used)
        values = jnp.where(used, jnp.asarray(self.points)[:, 0], 0.0)
        centre = jnp.sum(values) / jnp.sum(used)
        return Weights(None, (x - centre) * multiplier, None, 1, "", True)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        inputs, multiplier = x[:, :-1], x[:, -1:]
        rows, left = self._projected(inputs)
        own = Weights(None, rows * multiplier, None, 1, self.over, False, left * multiplier[:, 0] ** 2)
        return own, *self.line_weights(inputs[:, :1], multiplier)

    def _projected(self, inputs: Any) -> tuple[Any, Any]:
        """What the weights of the distinct inputs say about others: rows of R⁻¹k, and the variance that is left."""
        cross = jnp.where(jnp.asarray(self.used)[:, None], self.gram(jnp.asarray(self.points), inputs), 0.0)
        root = self.root()
        rows = linalg.solve_lower(root, cross).T
        # At the inputs of the data these are rows of R, here without rounding: terms add up to the latent.
        same = jnp.all(inputs[:, None, :] == jnp.asarray(self.points)[None], axis=2) & jnp.asarray(self.used)[None]
        known = jnp.any(same, axis=1)
        rows = jnp.where(known[:, None], root[jnp.argmax(same, axis=1)], rows)
        left = jnp.maximum(self.variance_at(inputs) - jnp.sum(rows**2, axis=1), 0.0)
        return rows, jnp.where(known, 0.0, left)

    def variance_at(self, inputs: Any) -> Float[Array, " N"]:
        """The prior variance of the function at inputs."""
        return diagonal(self.covariance(), inputs[:, : self.dimension])

    def new_covariance(self, x: Any) -> Any:
        inputs, multiplier = x[:, :-1], x[:, -1:]
        rows, left = self._projected(inputs)
        found = self.gram(inputs, inputs) - rows @ rows.T
        found = found + jnp.diag(left - jnp.diagonal(found))
        return found * (multiplier @ multiplier.T)


def root_of(matrix: Float[Array, "L L"], used: Any) -> Float[Array, "L L"]:
    """L with LLᵀ the covariance of functions at points; the identity where these are fill."""
    used = jnp.asarray(used)
    both = used[:, None] & used[None, :]
    matrix = jnp.where(both, matrix, jnp.diag(jnp.where(used, 0.0, 1.0)))
    # Smooth kernels are singular up to rounding: this is as much as rounding changes the entries themselves, which may
    # differ by orders of magnitude, and start from zero.
    variances = jnp.diagonal(matrix)
    largest = jnp.max(jnp.where(used, variances, 0.0))
    lift = 4.0 * matrix.shape[0] * linalg.EPS * jnp.where(variances > 0.0, variances, largest)
    return linalg.cholesky(matrix + jnp.diag(lift))


def filled_points(distinct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct inputs, filled up to a size class, and which of them are not fill."""
    size = size_class(distinct.shape[0], _SMALLEST, _STEP)
    filled = np.concatenate([distinct, np.repeat(distinct[-1:], size - distinct.shape[0], axis=0)])
    return filled, np.arange(size) < distinct.shape[0]


def by_encoder(term: Any, table: Table, **fields: Any) -> InputEncoder:
    """The encoder of a term that may have one function per level, or one that is multiplied by a number."""
    columns, levels = term.columns, (None,) * len(term.columns)
    fields["stamped"] = fields.get("clock") is not None and not table[columns[0]].is_numeric
    if term.by is not None and (term.grouped or not table[term.by].is_numeric):
        known = table[term.by].levels()
        return InputEncoder((*columns, term.by), (*levels, known), **fields)
    return InputEncoder(columns, levels, multiplier=term.by, **fields)


def read_kernel(given: Any) -> tuple[Kernel, bool]:
    """A kernel, and whether it was given by name or not at all."""
    if given is None or isinstance(given, str):
        return getattr(kernels, find("matern52" if given is None else given, _KERNELS, "kernel"))(), True
    if not isinstance(given, Kernel):
        raise ValueError(f"kernel must be a kernel such as kernels.Matern52(), or its name, got {given!r}")
    return given, False


class Product(KernelTerm):
    """The product of several terms over different columns, with the product of their covariances."""

    takes_by: ClassVar[bool] = False
    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    """The number of inputs of every factor, once bound."""
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    parts: tuple[KernelTerm, ...]
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(self, parts: Any):
        self.parts = tuple(parts)
        self.columns = tuple(column for part in self.parts for column in part.columns)
        self.widths = ()
        self.by, self.grouped, self.by_level, self.points, self.used = None, False, False, None, None

    @property
    def label(self) -> str:
        return " * ".join(part.label for part in self.parts)

    @property
    def width(self) -> int:
        return sum(self.widths) + 1

    def covariance(self) -> Kernel:
        raise NotImplementedError("a product has one kernel per factor")

    def encoder(self, table: Table) -> Any:
        return ProductEncoder(tuple(part.encoder(table) for part in self.parts))

    def bind(self, table: Table, units: Units) -> tuple[Any, Any]:
        bound = [part.bind(table, units)[0] for part in self.parts]
        encoder = self.encoder(table)
        distinct = np.unique(encoder.encode(table)[:, :-1], axis=0)
        points, used = filled_points(distinct)
        parts = tuple(replaced(part, points=None, used=None) for part in bound)
        widths = tuple(part.width - 1 for part in bound)
        return replaced(self, parts=parts, widths=widths, points=points, used=used), encoder

    def gram(self, one: Any, two: Any) -> Float[Array, "N M"]:
        factors = [part.gram(one[:, own], two[:, own]) for part, own in self._places()]
        return functools.reduce(operator.mul, factors)

    def variance_at(self, inputs: Any) -> Any:
        return functools.reduce(operator.mul, [part.variance_at(inputs[:, own]) for part, own in self._places()])

    def _places(self) -> list[tuple[KernelTerm, slice]]:
        """The factors, each with the columns of its inputs."""
        ends = itertools.pairwise(np.cumsum([0, *self.widths]))
        return [(part, slice(int(begin), int(end))) for part, (begin, end) in zip(self.parts, ends, strict=True)]


def product_of(one: Any, two: Any) -> Term:
    """The product of two terms: with a group, one function per level of it."""
    if isinstance(one, Group):
        one, two = two, one
    if isinstance(two, Group) and isinstance(one, KernelTerm) and one.takes_by:
        if two.slope or len(two.columns) > 1 or one.by is not None:
            raise ValueError(
                f"{one.label} cannot be multiplied by {two.label}: use a group of one column, without slope"
            )
        return replaced(one, by=":".join(two.columns), grouped=True)
    if not (isinstance(one, KernelTerm) and isinstance(two, KernelTerm)):
        raise ValueError(
            f"only smooth terms can be multiplied with each other or with a Group, got {_shown(one)} and {_shown(two)}"
        )
    sparse = next((part for part in (one, two) if getattr(part, "asks_for_inducing", False)), None)
    if sparse is not None:
        raise ValueError(
            f"{sparse.label} with inducing inputs cannot be a factor: write one Smooth over all columns, with a "
            "product of kernels, as in Smooth('a', 'b', kernel=k1.on(0) * k2.on(1), inducing=200)"
        )
    if one.lines or two.lines:
        raise ValueError("a trend or a walk whose slope has no prior cannot be a factor: give it a kernel instead")
    parts = [*(one.parts if isinstance(one, Product) else [one]), *(two.parts if isinstance(two, Product) else [two])]
    return Product(parts)


def _shown(value: Any) -> str:
    return value.label if isinstance(value, Term) else repr(value)
