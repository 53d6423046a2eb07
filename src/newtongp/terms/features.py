"""Columns of a design matrix: numbers and their transforms, factors, and interactions.

A feature is first described, and then *bound* to a table: factors learn their levels and bases their knots. Bound
features make the same columns of any other table.
"""

import abc
import dataclasses
import functools
import itertools
from typing import Any, ClassVar

import numpy as np

from ..validation.arguments import whole
from ..validation.text import short
from .table import Column, Level, Table, can_be_number


@dataclasses.dataclass(frozen=True)
class Feature(abc.ABC):
    """One or more columns of a design matrix, made from columns of a table."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """How the feature is written."""

    @property
    @abc.abstractmethod
    def sources(self) -> tuple[str, ...]:
        """The columns of the table that it uses."""

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """The names of its columns, once bound."""

    @abc.abstractmethod
    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Feature":
        """The feature with everything that it takes from the data; factors in `full` get one column per level."""

    @abc.abstractmethod
    def columns(self, table: Table) -> np.ndarray:
        """Its columns (N, K) of a table."""


FUNCTIONS = {"log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "sqrt": np.sqrt, "exp": np.exp}
FUNCTIONS |= {"square": np.square, "abs": np.abs}


@dataclasses.dataclass(frozen=True)
class Numeric(Feature):
    """A column of numbers, or a function of it: "log", "log1p", "log2", "log10", "sqrt", "exp", "square" or "abs".

    >>> Numeric("dose", "log").columns(Table({"dose": [1.0, 1.0]})).tolist()
    [[0.0], [0.0]]
    """

    column: str
    function: str | None = None

    def __post_init__(self):
        if self.function is not None and self.function not in FUNCTIONS:
            known = ", ".join(FUNCTIONS)
            raise ValueError(f"there is no function {self.function!r} of a column: functions are {known}")

    @property
    def label(self) -> str:
        return self.column if self.function is None else f"{self.function}({self.column})"

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.label,)

    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Numeric":
        self.columns(table)
        return self

    def columns(self, table: Table) -> np.ndarray:
        values = table[self.column].numbers()
        if self.function is not None:
            given = values
            with np.errstate(all="ignore"):
                values = FUNCTIONS[self.function](given)
            wrong = np.flatnonzero(~np.isfinite(values))
            if wrong.size:
                raise ValueError(
                    f"{self.label} must be finite, but row {wrong[0]} of column {self.column!r} is "
                    f"{given[wrong[0]]:g}: drop that row, or choose another function"
                )
        return values[:, None]


@dataclasses.dataclass(frozen=True)
class Factor(Feature):
    """One column per level of a factor except one: the `reference`, by default the first level.

    With `coding="treatment"`, a column is 1 for its level, and coefficients are differences from the reference. With
    `coding="sum"`, the reference has −1 in all columns, and coefficients are differences from the mean of all levels.

    >>> bound = Factor("drug").bind(Table({"drug": ["a", "b", "c", "a"]}))
    >>> bound.names, bound.columns(Table({"drug": ["c", "a"]})).tolist()
    (('drug[b]', 'drug[c]'), [[0.0, 1.0], [0.0, 0.0]])
    """

    column: str
    reference: Level | None = None
    coding: str = "treatment"
    levels: tuple[Level, ...] | None = None
    """The levels, known once bound; the reference comes first."""
    full: bool = False
    """Whether the reference has a column too."""

    CODINGS: ClassVar[tuple[str, ...]] = ("treatment", "sum")

    def __post_init__(self):
        if self.coding not in self.CODINGS:
            raise ValueError(f"coding must be 'treatment' or 'sum', got {self.coding!r}")

    @property
    def label(self) -> str:
        return self.column

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        assert self.levels is not None
        return tuple(f"{self.column}[{level}]" for level in (self.levels if self.full else self.levels[1:]))

    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Factor":
        levels = table[self.column].levels()
        reference = levels[0] if self.reference is None else self.reference
        if reference not in levels:
            raise ValueError(
                f"the reference level of column {self.column!r} must be one of its levels, got {reference!r}: they are "
                f"{_listed(levels)}"
            )
        everything = self.column in full
        if len(levels) == 1 and not everything:
            raise ValueError(
                f"column {self.column!r} has only one level, {levels[0]!r}, so it has no effect that could be "
                "estimated: leave it out"
            )
        ordered = (reference, *(level for level in levels if level != reference))
        return dataclasses.replace(self, levels=ordered, full=everything)

    def columns(self, table: Table) -> np.ndarray:
        assert self.levels is not None
        codes, new = table[self.column].codes(self.levels)
        if new:
            row = np.flatnonzero(codes >= len(self.levels))[0]
            raise ValueError(
                f"column {self.column!r} has the level {new[0]!r} in row {row}, which the data did not have: its "
                f"levels are {_listed(self.levels)}. A fixed effect cannot be predicted for a new level; "
                f"Group({self.column!r}) can"
            )
        table_of_codes = np.eye(len(self.levels))
        if not self.full:
            table_of_codes = table_of_codes[:, 1:]
            if self.coding == "sum":
                table_of_codes[0] = -1.0
        return table_of_codes[codes]


@dataclasses.dataclass(frozen=True)
class Polynomial(Feature):
    """Orthogonal polynomials of a column, of degrees 1 to `degree`, as R's `poly`.

    >>> x = np.arange(5.0)
    >>> bound = Polynomial("x", 2).bind(Table({"x": x}))
    >>> columns = bound.columns(Table({"x": x}))
    >>> bool(np.allclose(columns.T @ columns, np.eye(2)))
    True
    """

    column: str
    degree: int = 2
    centres: tuple[float, ...] | None = None
    norms: tuple[float, ...] | None = None

    def __post_init__(self):
        whole(self.degree, "degree", 1, 30, 2)

    @property
    def label(self) -> str:
        return f"poly({self.column}, {self.degree})"

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.label}[{power}]" for power in range(1, self.degree + 1))

    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Polynomial":
        x = table[self.column].numbers()
        distinct = np.unique(x).size
        if distinct <= self.degree:
            raise ValueError(
                f"{self.label} needs at least {self.degree + 1} different values of column {self.column!r}, which has "
                f"{distinct}: lower the degree, or use it as a factor"
            )
        # The three-term recurrence of polynomials that are orthogonal over the rows.
        centres, norms = [], [1.0, float(x.size)]
        before, now = np.zeros_like(x), np.ones_like(x)
        for _ in range(self.degree):
            centre = float(np.sum(x * now**2) / norms[-1])
            before, now = now, (x - centre) * now - norms[-1] / norms[-2] * before
            centres.append(centre)
            norms.append(float(np.sum(now**2)))
        return dataclasses.replace(self, centres=tuple(centres), norms=tuple(norms))

    def columns(self, table: Table) -> np.ndarray:
        assert self.centres is not None and self.norms is not None
        x = table[self.column].numbers()
        before, now, found = np.zeros_like(x), np.ones_like(x), []
        for power, centre in enumerate(self.centres):
            before, now = now, (x - centre) * now - self.norms[power + 1] / self.norms[power] * before
            found.append(now / np.sqrt(self.norms[power + 2]))
        return np.stack(found, axis=1)


@dataclasses.dataclass(frozen=True)
class Spline(Feature):
    """A natural cubic spline of a column with `df` columns; knots are at quantiles of the data, as R's `ns`.

    It is linear beyond the outermost knots.

    >>> bound = Spline("x", 4).bind(Table({"x": np.linspace(0.0, 1.0, 50)}))
    >>> bound.columns(Table({"x": [0.3, 2.0]})).shape
    (2, 4)
    """

    column: str
    df: int = 4
    knots: tuple[float, ...] | None = None

    def __post_init__(self):
        whole(self.df, "df", 1, 1000, 4)

    @property
    def label(self) -> str:
        return f"spline({self.column}, {self.df})"

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.label}[{number}]" for number in range(1, self.df + 1))

    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Spline":
        x = table[self.column].numbers()
        knots = np.unique(np.quantile(x, np.linspace(0.0, 1.0, self.df + 1)))
        if knots.size != self.df + 1:
            raise ValueError(
                f"{self.label} needs {self.df + 1} different quantiles of column {self.column!r}, which has "
                f"{np.unique(x).size} different values: lower df"
            )
        return dataclasses.replace(self, knots=tuple(knots.tolist()))

    def columns(self, table: Table) -> np.ndarray:
        assert self.knots is not None
        x, knots = table[self.column].numbers(), np.asarray(self.knots)
        size = knots[-1] - knots[0]
        x, knots = (x - knots[0]) / size, (knots - knots[0]) / size

        def cubes(k: int) -> np.ndarray:
            tails = np.maximum(x - knots[k], 0.0) ** 3 - np.maximum(x - knots[-1], 0.0) ** 3
            return tails / (knots[-1] - knots[k])

        last = cubes(knots.size - 2)
        return np.stack([x, *(cubes(k) - last for k in range(knots.size - 2))], axis=1)


@dataclasses.dataclass(frozen=True)
class Interaction(Feature):
    """All products of the columns of several features, as a:b in a formula.

    >>> bound = Interaction((Numeric("x"), Factor("g"))).bind(Table({"x": [1.0, 2.0], "g": ["a", "b"]}))
    >>> bound.names
    ('x:g[b]',)
    """

    parts: tuple[Feature, ...]

    @property
    def label(self) -> str:
        return ":".join(part.label for part in self.parts)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for part in self.parts for source in part.sources))

    @property
    def names(self) -> tuple[str, ...]:
        # The first factor changes fastest, as in R.
        backwards = itertools.product(*(part.names for part in reversed(self.parts)))
        return tuple(":".join(reversed(names)) for names in backwards)

    def bind(self, table: Table, full: frozenset[str] = frozenset()) -> "Interaction":
        return Interaction(tuple(part.bind(table, full) for part in self.parts))

    def columns(self, table: Table) -> np.ndarray:
        parts = [part.columns(table) for part in self.parts]
        return functools.reduce(lambda a, b: (b[:, :, None] * a[:, None, :]).reshape(a.shape[0], -1), parts)


def as_feature(entry: Any, table: Table) -> Feature:
    """A user's entry as a feature: a name is a column of numbers or a factor, a tuple or "a:b" an interaction."""
    if isinstance(entry, Feature):
        if isinstance(entry, Interaction):
            return Interaction(tuple(as_feature(part, table) for part in entry.parts))
        return entry
    if isinstance(entry, (tuple, list)):
        return Interaction(tuple(as_feature(part, table) for part in entry))
    if not isinstance(entry, str):
        raise ValueError(f"a feature must be the name of a column, or one such as Factor('drug'), got {entry!r}")
    if entry not in table and ":" in entry:
        return Interaction(tuple(as_feature(part.strip(), table) for part in entry.split(":")))
    column = table[entry]
    if not column.is_numeric and column.categories is None and column.times() is not None:
        raise ValueError(
            f"column {entry!r} holds time stamps, which are neither numbers nor levels: use Trend({entry!r}), or "
            f"Factor({entry!r}) for one effect per time, or add the time in numbers to the table"
        )
    if column.is_numeric:
        return Numeric(entry)
    _check_not_numbers(column)
    return Factor(entry)


_MANY_LEVELS, _ROWS_PER_LEVEL, _SHARE_WRONG = 10, 4, 0.2
"""Text with so many levels, of so few rows each on average, and of which so few are not numbers, is no factor."""


def _check_not_numbers(column: Column) -> None:
    """Raise ValueError if a column of text looks like numbers of which a few cannot be read."""
    if column.categories is not None:
        return
    distinct, which = column.labels()
    wrong = [place for place, label in enumerate(distinct) if not can_be_number(label)]
    few_rows_each = len(distinct) >= _MANY_LEVELS and _ROWS_PER_LEVEL * len(distinct) > which.size
    if few_rows_each and 0 < len(wrong) <= _SHARE_WRONG * len(distinct):
        row = np.flatnonzero(which == wrong[0])[0]
        raise ValueError(
            f"column {column.name!r} holds text, though {len(distinct) - len(wrong)} of its {len(distinct)} distinct "
            f"entries are numbers: row {row} is {short(distinct[wrong[0]])}. Correct or drop such rows and convert the "
            f"column to numbers, or write Factor({column.name!r}) for one effect per entry"
        )


def label_of(entry: Any) -> str:
    """How a user's entry is written.

    >>> label_of("age"), label_of(("age", "drug")), label_of(Numeric("dose", "log"))
    ('age', 'age:drug', 'log(dose)')
    """
    if isinstance(entry, tuple):
        return ":".join(map(label_of, entry))
    return entry if isinstance(entry, str) else entry.label


def bind_all(entries: tuple[Any, ...], intercept: bool, table: Table) -> tuple[Feature, ...]:
    """All features of a design matrix, bound to a table.

    A factor in a feature has one column fewer than levels if the feature without that factor is in the model as well
    (or, for a factor alone, the intercept): columns would be linearly dependent otherwise. This is R's rule.
    """
    features = [as_feature(entry, table) for entry in entries]
    present = {_parts_of(feature) for feature in features} | ({frozenset()} if intercept else set())
    bound = []
    for feature in features:
        own = _parts_of(feature)
        factors = [part for part in _pieces(feature) if isinstance(part, Factor)]
        full = frozenset(part.column for part in factors if own - {part.label} not in present)
        bound.append(feature.bind(table, full))
        present.add(own)
        if not intercept and len(own) == 1 and full:
            present.add(frozenset())  # the first factor with all its levels stands for the intercept
    return tuple(bound)


def _pieces(feature: Feature) -> tuple[Feature, ...]:
    return feature.parts if isinstance(feature, Interaction) else (feature,)


def _parts_of(feature: Feature) -> frozenset[str]:
    return frozenset(part.label for part in _pieces(feature))


def _listed(levels: tuple[Any, ...], most: int = 8) -> str:
    shown = ", ".join(repr(level) for level in levels[:most])
    return shown if len(levels) <= most else f"{shown}, … ({len(levels)} in all)"
