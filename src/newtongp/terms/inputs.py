"""The inputs of smooth terms: columns of numbers, time stamps and levels, encoded as numbers."""

import dataclasses
import re
from typing import Any

import numpy as np

from ..validation.numbers import parameter
from ..validation.times import Clock
from .base import Encoder
from .table import Level, Table


@dataclasses.dataclass(frozen=True)
class InputEncoder(Encoder):
    """The inputs of a smooth term: one number per column, and the value that multiplies the function.

    A column is encoded by its levels if they are given, as time in units of a clock if that is given, and as numbers
    otherwise, after an origin.
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[Level, ...] | None, ...]
    clock: Clock | None = None
    origin: float = 0.0
    multiplier: str | None = None
    closed: bool = False
    """Whether levels that the data did not have are an error."""
    steps: bool = False
    """Whether the first column must be whole steps from the origin."""
    stamped: bool = False
    """Whether numbers are times of the clock."""

    @property
    def sources(self) -> tuple[str, ...]:
        own = () if self.multiplier is None else (self.multiplier,)
        return tuple(dict.fromkeys((*self.columns, *own)))

    def encode(self, table: Table) -> np.ndarray:
        parts = [self._column(table, place) for place in range(len(self.columns))]
        parts.append(np.ones(table.rows) if self.multiplier is None else table[self.multiplier].numbers())
        return np.stack(parts, axis=1)

    def decode(self, x: np.ndarray, place: int) -> np.ndarray:
        """The entries of one column from its numbers: levels, time stamps or numbers."""
        levels = self.levels[place]
        if levels is not None:
            return as_entries([levels[int(code)] for code in x])
        numbers = x + self.origin
        return numbers if not self.stamped or self.clock is None else self.clock.stamps(numbers)

    def _column(self, table: Table, place: int) -> np.ndarray:
        name, levels = self.columns[place], self.levels[place]
        if levels is None:
            numbers = numbers_of(table, name, self.clock) - self.origin
            if self.steps and place == 0:
                _check_steps(numbers, name, self.origin)
            return numbers
        codes, new = table[name].codes(levels)
        if new and self.closed:
            row = np.flatnonzero(codes >= len(levels))[0]
            raise ValueError(
                f"column {name!r} has {new[0]!r} in row {row}, which is not among the {len(levels)} known ones: "
                f"correct it, or add it where they are given (the first are {', '.join(map(repr, levels[:5]))})"
            )
        return codes.astype(float)


def _check_steps(numbers: np.ndarray, name: str, origin: float) -> None:
    wrong = np.flatnonzero((numbers < 0.0) | (numbers != np.round(numbers)))
    if wrong.size:
        raise ValueError(
            f"RandomWalk is over whole steps from its start, {origin:g}, but row {wrong[0]} of column {name!r} is "
            f"{numbers[wrong[0]] + origin:g}: number the levels 0, 1, 2, …, or use Trend({name!r}), which allows any"
        )


def as_entries(labels: list[Any]) -> np.ndarray:
    """Labels as a column: of numbers or text if all are alike, of objects otherwise."""
    kinds = {type(label) for label in labels}
    return np.array(labels, dtype=object) if len(kinds) > 1 or tuple in kinds else np.array(labels)


def numbers_of(table: Table, name: str, clock: Clock | None) -> np.ndarray:
    """A column of numbers, or of time stamps in units of a clock."""
    column = table[name]
    times = None if column.is_numeric else column.times()
    if times is None:
        return column.numbers()
    if clock is None:
        raise ValueError(
            f"column {name!r} holds time stamps: state the unit in which lengthscales are measured, as in unit='D' for "
            "days"
        )
    if np.any(times.missing):
        raise ValueError(f"column {name!r} has no time in row {np.flatnonzero(times.missing)[0]}: drop that row")
    return np.ravel(times.numbers(clock))


_DAYS = {"y": 365.2425, "M": 365.2425 / 12.0, "w": 7.0, "d": 1.0, "h": 1.0 / 24.0, "m": 1.0 / 1440.0}


def read_period(period: Any, unit: Clock) -> float:
    """A period in units of a clock: a number, or text such as "1y", "1w", "12h".

    >>> read_period("1w", Clock("D")), read_period(7.0, Clock("D"))
    (7.0, 7.0)
    """
    if not isinstance(period, str):
        return float(parameter(period, "period", lower=0.0))
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)?\s*([a-zA-Z])\s*", period)
    key = None if found is None else found[2] if found[2] in ("M", "m") else found[2].lower()
    if found is None or key not in _DAYS:
        raise ValueError(
            f"period must be a number or text such as '1y', '1M' (month), '1w', '1d', '12h', '30m', got {period!r}"
        )
    in_days = unit.unit / np.timedelta64(1, "D")
    return float(found[1] or 1.0) * _DAYS[key] / float(in_days)


@dataclasses.dataclass(frozen=True)
class ProductEncoder(Encoder):
    """The inputs of all factors of a product side by side, and the product of their multipliers."""

    parts: tuple[InputEncoder, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for part in self.parts for source in part.sources))

    def encode(self, table: Table) -> np.ndarray:
        parts = [part.encode(table) for part in self.parts]
        multiplier = np.prod([part[:, -1] for part in parts], axis=0)
        return np.concatenate([*(part[:, :-1] for part in parts), multiplier[:, None]], axis=1)
