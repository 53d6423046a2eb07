"""Effects of groups: one intercept, or several coefficients, per level of a factor."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..numerics.linalg import cholesky
from ..numerics.size_classes import size_class
from ..parameters.constraints import Covariance, learned
from ..parameters.matrices import checked_covariance
from ..validation.numbers import parameter
from .base import Encoder, Term, Units, Weights, columns_of, replaced
from .features import Feature, bind_all, label_of
from .table import Level, Table

_SHARE = 0.3
"""The first guess of a variance, relative to that of the latent."""
_SMALLEST, _STEP = 8, 16
"""The smallest number of levels that programs are compiled for, and what larger ones are multiples of."""


@dataclasses.dataclass(frozen=True)
class GroupEncoder(Encoder):
    """Codes of levels, and the columns whose coefficients differ between levels."""

    columns: tuple[str, ...]
    levels: tuple[Level, ...]
    """The levels in the order of their codes; tuples if there are several columns."""
    features: tuple[Feature, ...]
    intercept: bool

    @property
    def sources(self) -> tuple[str, ...]:
        own = (source for feature in self.features for source in feature.sources)
        return tuple(dict.fromkeys((*self.columns, *own)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coefficients of one level."""
        own = tuple(name for feature in self.features for name in feature.names)
        return ("intercept", *own) if self.intercept else own

    def encode(self, table: Table) -> np.ndarray:
        codes, _ = codes_of(self.columns, self.levels, table)
        parts = [feature.columns(table) for feature in self.features]
        ones = np.ones((table.rows, int(self.intercept)))
        return np.concatenate([codes[:, None].astype(float), ones, *parts], axis=1)


def codes_of(columns: tuple[str, ...], levels: tuple[Any, ...], table: Table) -> tuple[np.ndarray, list[Any]]:
    """The number of each row's level, a tuple of levels if there are several columns, and levels that are new."""
    if len(columns) == 1:
        return table[columns[0]].codes(levels)
    rows = np.stack([table[column].labels()[1] for column in columns], axis=1)
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    names = [table[column].labels()[0] for column in columns]
    labels = [tuple(own[code] for own, code in zip(names, row, strict=True)) for row in distinct]
    place = {level: number for number, level in enumerate(levels)}
    new = [label for label in labels if label not in place]
    place |= {label: len(levels) + number for number, label in enumerate(new)}
    return np.array([place[label] for label in labels])[which.reshape(-1)], new


def levels_of(columns: tuple[str, ...], table: Table) -> tuple[Any, ...]:
    """The levels of a column; of several columns, the combinations that occur."""
    if len(columns) == 1:
        return table[columns[0]].levels()
    order = {column: {level: place for place, level in enumerate(table[column].levels())} for column in columns}
    _, found = codes_of(columns, (), table)
    return tuple(sorted(found, key=lambda level: [order[c][v] for c, v in zip(columns, level, strict=True)]))


class Group(Term):
    """One effect per level of a column: all come from a normal distribution whose variance is learned.

    `column` is a name, or several for the combinations of their levels: `Group("school", "class")` has one effect per
    class within a school. With `slope`, the name of a column or several, every level has its own coefficients as well.
    They have a joint covariance, or independent variances with `correlated=False`. `intercept=False` leaves the slopes
    only. A level that the data do not have is predicted from this distribution.

    >>> Group("clinic").label, Group("subject", slope="days").label
    ('group(clinic)', 'group(subject, slope=days)')
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    slope: tuple[str | tuple | Feature, ...] = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    correlated: bool = eqx.field(static=True)
    size: int = eqx.field(static=True)
    """The number of coefficients of a level, once bound."""
    levels: int = eqx.field(static=True)
    """The number of levels, filled up to a size class, once bound."""
    covariance: Any = learned(Covariance())
    """The variance of the effects; with several coefficients their covariance, or one variance for each."""

    def __init__(
        self,
        column: Any,
        *more: str,
        slope: Any = (),
        correlated: bool = True,
        intercept: bool = True,
        covariance: Any = None,
    ):
        self.columns = columns_of((column, *more) if isinstance(column, str) else column, "Group")
        self.slope = tuple(slope) if isinstance(slope, (tuple, list)) else (slope,)
        self.intercept, self.correlated = bool(intercept), bool(correlated)
        if not self.slope and not self.intercept:
            raise ValueError("Group without an intercept needs slopes: write slope='age', or leave intercept=True")
        self.covariance = None if covariance is None else _covariance(covariance)
        self.size = self.levels = 0

    @property
    def label(self) -> str:
        slopes = [label_of(effect) for effect in self.slope]
        inside = [":".join(self.columns), *([f"slope={'+'.join(slopes)}"] if slopes else [])]
        return f"group({', '.join(inside)})"

    @property
    def count(self) -> int:
        return self.levels * self.size

    @property
    def width(self) -> int:
        return 1 + self.size

    def bind(self, table: Table, units: Units) -> tuple["Group", GroupEncoder]:
        levels = levels_of(self.columns, table)
        if len(levels) < 2:
            raise ValueError(
                f"{self.label} needs at least two levels, but column {self.columns[0]!r} has only "
                f"{next(iter(levels))!r}: leave the term out"
            )
        encoder = GroupEncoder(self.columns, levels, bind_all(self.slope, self.intercept, table), self.intercept)
        size = len(encoder.names)
        start = self.covariance
        if start is None:
            # As large as effects that explain a share of the variation.
            spread = np.sqrt(np.mean(encoder.encode(table)[:, 1:] ** 2, axis=0))
            start = _SHARE * units.scale**2 / np.where(spread > 0.0, spread, 1.0) ** 2
            start = start[0] if size == 1 else np.diag(start) if self.correlated else start
        shapes = [(size, size)] if size > 1 and self.correlated else [(), (size,)] if size == 1 else [(size,)]
        if np.shape(start) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise ValueError(
                f"covariance of {self.label} must have shape {wanted} for the coefficients {', '.join(encoder.names)}, "
                f"got {np.shape(start)}"
            )
        filled = size_class(len(levels), _SMALLEST, _STEP)
        return replaced(self, covariance=start, size=size, levels=filled), encoder

    def read_rows(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[:, 0].astype(np.int32), x[:, 1:]

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        codes, columns = rows
        return (Weights(codes, columns @ self.root(), None, self.levels, ":".join(self.columns), False),)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        # Levels that fill up a size class have the prior's distribution, and serve as new ones; others have no weights.
        new = x[:, 0] >= self.levels
        codes = jnp.where(new, 0.0, x[:, 0]).astype(jnp.int32)
        (found,) = self.weights((codes, x[:, 1:]))
        columns = jnp.where(new[:, None], 0.0, found.columns)
        return (found._replace(columns=columns, residual=jnp.sum((found.columns - columns) ** 2, axis=1)),)

    def new_covariance(self, x: Any) -> Any:
        codes, columns = x[:, 0], x[:, 1:] @ self.root()
        new = codes >= self.levels
        same = (codes[:, None] == codes[None, :]) & new[:, None] & new[None, :]
        return jnp.where(same, columns @ columns.T, 0.0)

    def root(self) -> Any:
        """L with LLᵀ the covariance of the coefficients of one level."""
        covariance = jnp.asarray(self.covariance)
        if covariance.ndim == 2:
            return cholesky(covariance)
        return jnp.diag(jnp.broadcast_to(jnp.sqrt(covariance), (self.size,)))


def _covariance(value: Any) -> Any:
    array = parameter(value, "covariance", max_ndim=2)
    if np.ndim(array) == 2:
        return checked_covariance(array, "covariance")
    return parameter(value, "covariance", lower=0.0, max_ndim=1)
