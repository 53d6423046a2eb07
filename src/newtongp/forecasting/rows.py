"""The rows of one series: times in order, y, and the columns that the model uses."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..likelihoods import Gaussian, LogNormal
from ..likelihoods.base import Likelihood, named_columns
from ..results.status import FitWarning
from ..terms.table import Table, take_rows
from .calendar import Calendar, calendar_of, read_times
from .holidays import holiday_columns
from .specification import AUTO, Specification
from .structure import AVERAGED, TIME, Structure, guess_likelihood, harmonics_of, link_of


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a user's table: their times, y (NaN where it is missing), and the table itself."""

    times: np.ndarray
    y: np.ndarray
    table: Any
    """The user's table, with its rows in the order of the times."""
    time: str
    output: str | None

    def take(self, chosen: np.ndarray) -> "Rows":
        """Some of the rows."""
        return dataclasses.replace(
            self, times=self.times[chosen], y=self.y[chosen], table=take_rows(self.table, chosen)
        )

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.times.size


def read_rows(given: Any, time: str, output: str | None) -> tuple[Rows, tuple[str, Any]]:
    """The rows of a table in the order of time, and how its times are written."""
    table = Table(given)
    times, flavour = read_times(table, time)
    y = np.full(times.size, np.nan) if output is None else table[output].numbers_or_missing()
    order = np.argsort(times, kind="stable")
    return Rows(times[order], y[order], take_rows(given, order), time, output), flavour


_REPEATED, _ROWS_PER_SERIES = 0.1, 4
"""The smallest share of rows at repeated times, and number of rows per label, that point to several series."""


def warn_of_several_series(rows: Rows, regressors: Sequence[str]) -> None:
    """Warn if times are repeated, and not within the labels of another column: these are several series.

    Of several such columns, the one with the fewest labels is named.
    """
    times, which_time = np.unique(rows.times, return_inverse=True)
    if rows.count - times.size < _REPEATED * rows.count:
        return
    table, found = Table(rows.table), dict[str, int]()
    for name in table.names:
        if name in (rows.time, rows.output, *regressors):
            continue
        try:
            labels, which = table[name].labels()
        except ValueError:  # entries are missing
            continue
        pairs = np.unique(np.stack([which, which_time]), axis=1)
        if pairs.shape[1] == rows.count and _ROWS_PER_SERIES * len(labels) <= rows.count:
            found[name] = len(labels)
    if found:
        name = min(found, key=lambda column: found[column])
        warnings.warn(
            f"times are repeated, but not within one {name}, so these seem to be {found[name]} series, which are "
            f"modelled as one: pass series={name!r} to forecast each of them",
            FitWarning,
            stacklevel=4,
        )


def calendar_for(rows: Rows, flavour: tuple[str, Any]) -> Calendar:
    """The calendar of a series."""
    if np.sum(np.isfinite(rows.y)) < _FEWEST:
        raise ValueError(f"a series needs at least {_FEWEST} values of y, got {int(np.sum(np.isfinite(rows.y)))}")
    return calendar_of(rows.times, flavour)


_FEWEST = 4
_MANY = 300
"""The number of times from which a trend is conditioned as a chain.

Patterns of seasons do not change then, and forecasts are not averaged over trends, which would take long.
"""


def structures_of(specification: Specification, calendar: Calendar, rows: Rows) -> list[Structure]:
    """What the model of this series consists of: one structure, or several that are averaged over."""
    steps = calendar.steps(rows.times)
    seasons = specification.seasons
    if seasons is None:
        seasons = calendar.usual_seasons(float(steps[-1] - steps[0]) + 1.0)
    effects = {
        "regressors": specification.regressors,
        "holidays": tuple(holiday_columns(specification.holidays, calendar, rows.times)),
        "interventions": tuple(one.name for one in specification.interventions),
    }
    columns = columns_at(specification, calendar, rows.times, Table(rows.table), steps)
    # An effect of something that did not change yet cannot be learned.
    varying = {
        kind: tuple(name for name in names if np.unique(columns[name]).size > 1) for kind, names in effects.items()
    }
    is_long = np.unique(rows.times).size >= _MANY
    trends = (specification.trend,) if specification.trend != AUTO else AVERAGED[:1] if is_long else AVERAGED
    return [
        Structure(
            trend,
            len(trends) > 1,
            seasons,
            tuple(harmonics_of(calendar, period) for period in seasons),
            tuple(calendar.rows_per(period) for period in seasons),
            tuple(specification.changing and not is_long for _ in seasons),
            tuple(varying.items()),
            likelihood,
            link_of(likelihood),
        )
        for likelihood in likelihoods_of(specification, rows.y, [calendar.rows_per(period) for period in seasons])
        for trend in trends
    ]


def likelihoods_of(specification: Specification, y: np.ndarray, periods: Sequence[float]) -> tuple[Likelihood, ...]:
    """The likelihood that was asked for, or those that suit y."""
    if specification.likelihood is not None:
        return (specification.likelihood,)
    guessed = guess_likelihood(y, periods)
    if specification.trend == AUTO and isinstance(guessed, LogNormal):
        return guessed, Gaussian()
    return (guessed,)


def columns_at(
    specification: Specification, calendar: Calendar, times: np.ndarray, table: Table | None, steps: np.ndarray
) -> dict[str, np.ndarray]:
    """All columns of effects at some times; regressors are read from the table."""
    columns: dict[str, np.ndarray] = dict(holiday_columns(specification.holidays, calendar, times))
    for one in specification.interventions:
        columns[one.name] = one.column(times, steps)
    for name in specification.regressors:
        if table is None:
            raise ValueError(
                f"the regressor {name!r} is needed in the future too: give forecast a table with the times to forecast "
                "and this column, instead of a horizon"
            )
        columns[name] = table[name].entries
    return columns


def encode(
    specification: Specification, structure: Structure, calendar: Calendar, times: np.ndarray, table: Table | None
) -> dict[str, np.ndarray]:
    """The columns of the model at some times."""
    if (times.dtype.kind == "M") != calendar.stamped:
        one, other = ("dates", "numbers") if calendar.stamped else ("numbers", "dates")
        raise ValueError(f"times of the data are {one}, and those to forecast are {other}: give {one}")
    steps = calendar.steps(times)
    if structure.trend is not None and np.any(steps < 0.0):
        raise ValueError("forecasts are for times after the first row of the data, and some are before it: drop them")
    columns = columns_at(specification, calendar, times, table, steps)
    encoded = {TIME: steps}
    for name, period in zip(structure.season_names, structure.seasons, strict=True):
        encoded[name] = calendar.phase(times, period)
    for _, names in structure.effects:
        encoded |= {name: columns.get(name, np.zeros(times.size)) for name in names}
    for column in named_columns(structure.likelihood).values():
        if table is None:
            raise ValueError(f"the column {column!r} is needed in the future too: give forecast a table that has it")
        encoded[column] = table[column].numbers()
    return encoded
