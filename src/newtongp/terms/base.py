"""Terms: the named parts of an additive model, over the columns of a table.

A term is described by the user, and *bound* to a table before inference. Binding splits it in two: an `Encoder`, which
knows labels (levels, units of time) and turns the columns of any table into numbers, and the term itself, which then
knows sizes only, so that programs compiled for one table serve another.

Numbers of one term at the data become *blocks* of weights (`priors/level_space.py`).
"""

import abc
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from .table import Table


class Units(NamedTuple):
    """The location and the scale of the latent in the data, from which wide priors are derived."""

    location: float = 0.0
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Encoder(abc.ABC):
    """Turns the columns of a table that a term uses into numbers."""

    @property
    @abc.abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The columns of the table."""

    @abc.abstractmethod
    def encode(self, table: Table) -> np.ndarray:
        """One row of numbers per row of the table. A level that the data did not have gets a number after theirs."""


class Weights(NamedTuple):
    """Weights of a term and what they multiply: at row n, f gets columnsₙ · Z[codeₙ], as a `Block` of a prior."""

    codes: Int[Array, " N"] | None
    columns: Float[Array, "N Q"]
    root: Float[Array, "L R"] | None
    levels: int
    over: str
    flat: bool
    residual: Float[Array, " N"] | None = None
    """At new rows: the variance that is left given all weights."""


class Term(eqx.Module):
    """A part of an additive model: a Gaussian prior over the columns of a table, with its own hyperparameters.

    Terms are added with `+` and multiplied with `*`.
    """

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The name of the term, such as `group(clinic)`."""

    @abc.abstractmethod
    def bind(self, table: Table, units: Units) -> tuple["Term", Encoder]:
        """The term with the sizes that this table implies, and the encoder of tables like it."""

    @property
    @abc.abstractmethod
    def width(self) -> int:
        """The number of encoded columns, once bound."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """The number of weights, once bound."""

    @property
    def is_known(self) -> bool:
        """Whether there is nothing to learn about its size: fixed effects and offsets."""
        return False

    @property
    def is_flat(self) -> bool:
        """Whether some of its weights have no prior."""
        return False

    @abc.abstractmethod
    def read_rows(self, x: np.ndarray) -> Any:
        """What `weights` and `mean` need of encoded rows: arrays with one entry per row, made before tracing."""

    @abc.abstractmethod
    def weights(self, rows: Any) -> tuple[Weights, ...]:
        """The weights of the term at the data."""

    @abc.abstractmethod
    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        """The same at other encoded rows, possibly traced: in the order of `weights`, with the same levels."""

    def new_covariance(self, x: Any) -> Any:
        """The covariance (M, M) of what is left of the term given all its weights, at other encoded rows."""
        return 0.0

    def mean(self, rows: Any) -> Any:
        """The prior mean of the term at the data: a number, or one per row."""
        return 0.0

    def new_mean(self, x: Any) -> Any:
        """The prior mean at other encoded rows."""
        return 0.0

    def __add__(self, other: Any) -> "Terms":
        return Terms((self,)) + other


class Terms(eqx.Module):
    """A sum of terms: the prior of one latent.

    >>> from newtongp import terms
    >>> print(terms.Linear("age") + terms.Group("clinic"))
    linear(age) + group(clinic)
    """

    terms: tuple[Term, ...]

    def __add__(self, other: Any) -> "Terms":
        if isinstance(other, Term):
            return Terms((*self.terms, other))
        if isinstance(other, Terms):
            return Terms((*self.terms, *other.terms))
        return NotImplemented

    def __str__(self) -> str:
        return " + ".join(term.label for term in self.terms)


def replaced(term: Any, **fields: Any) -> Any:
    """A copy of a term with other values of some fields."""
    copy = object.__new__(type(term))
    for field in dataclasses.fields(term):
        object.__setattr__(copy, field.name, fields.get(field.name, getattr(term, field.name)))
    return copy


def columns_of(given: Any, what: str) -> tuple[str, ...]:
    """Names of columns, checked."""
    names = given if isinstance(given, (tuple, list)) else (given,)
    if not names or any(not isinstance(name, str) for name in names):
        raise ValueError(f"{what} is over columns of a table, given by their names, got {given!r}: write {what}('age')")
    return tuple(names)
