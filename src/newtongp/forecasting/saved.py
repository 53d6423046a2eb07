"""Forecasters in files: what they were asked for, the rows of every series, and the results of their structures."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..likelihoods.base import named_columns
from ..results.result import Result
from ..storage import FileFormatError, read_file, write_file
from ..terms.table import Table
from ..validation.arguments import file_name
from .calendar import KINDS, Calendar
from .fitted import Fitted, Member
from .rows import Rows, structures_of
from .specification import Specification

KIND = "forecaster"
_PARTS = ("arguments", "options", "columns", "labels", "fits", "failures")
_FIT = ("calendar", "times", "y", "table", "members")


def save(forecaster: Any, path: Any) -> None:
    """Write a fitted forecaster to a file, which contains no code."""
    labels = list(forecaster.fits)
    tree = {
        "arguments": {**_arguments(forecaster.specification), "pooled": forecaster.pooled},
        "options": dict(forecaster.options),
        "columns": forecaster.columns,
        "labels": [label.item() if isinstance(label, np.generic) else label for label in labels],
        "fits": [_tree_of(forecaster.fits[label]) for label in labels],
        "failures": [[str(label), problem] for label, problem in forecaster.failures.items()],
    }
    write_file(path, KIND, tree)


def load(cls: Any, path: Any, classes: Any) -> Any:
    """Read a forecaster from a file."""
    tree = read_file(path, KIND, classes)
    try:
        if not isinstance(tree, dict) or set(tree) != set(_PARTS):
            raise ValueError("its parts are not those of a forecaster")
        made = cls(**tree["arguments"], **tree["options"])
        made.columns = tuple(tree["columns"])
        fits = [_fitted(made.specification, made.columns, own) for own in tree["fits"]]
        made.fits = dict(zip(tree["labels"], fits, strict=True))
        made.failures = {label: problem for label, problem in tree["failures"]}
        return made
    # The values may be anything that a file can hold, and constructors assume values of the right type.
    except Exception as error:
        raise FileFormatError(f"{file_name(path)!r} cannot be loaded: {error}") from None


def _arguments(given: Specification) -> dict[str, Any]:
    """The arguments of `Forecaster` as text, numbers and likelihoods."""
    holidays = given.holidays
    if isinstance(holidays, Mapping):
        holidays = {_written(day): str(name) for day, name in holidays.items()}
    interventions = {one.name: [_written(one.start), _written(one.end), one.ramp] for one in given.interventions}
    seasons = given.seasons
    return {
        "trend": given.trend,
        "season": "auto" if seasons is None else [one.label if one.unit else one.count for one in seasons],
        "changing": given.changing,
        "holidays": holidays,
        "regressors": list(given.regressors),
        "intervention": interventions,
        "likelihood": given.likelihood,
    }


def _written(time: Any) -> Any:
    """A time as text, or as the number that it is."""
    if time is None or isinstance(time, (str, int, float)):
        return time
    return str(np.datetime64(getattr(time, "start_time", time), "us"))


def _tree_of(fitted: Fitted) -> dict[str, Any]:
    calendar, rows = fitted.calendar, fitted.rows
    table = Table(rows.table)
    names = dict.fromkeys([*fitted.specification.regressors, *named_columns(fitted.structure.likelihood).values()])
    order = structures_of(fitted.specification, calendar, rows)
    return {
        "calendar": [calendar.kind, calendar.step, calendar.origin, _flavour(calendar.flavour)],
        "times": rows.times,
        "y": rows.y,
        "table": {name: _entries(table[name].entries) for name in names},
        "members": [[_place(order, one), one.weight, one.energy, one.result] for one in fitted.members],
    }


def _place(structures: list[Any], one: Member) -> int:
    """The number of a structure among those of its series."""
    kinds = [(other.trend, type(other.likelihood)) for other in structures]
    return kinds.index((one.structure.trend, type(one.structure.likelihood)))


def _entries(column: np.ndarray) -> Any:
    """A column as an array of numbers, or as a list of text."""
    return column if column.dtype.kind in "fiub" else [None if entry is None else str(entry) for entry in column]


def _flavour(flavour: tuple[str, Any]) -> list[Any]:
    kind, detail = flavour
    if kind == "month end":
        return [kind, _flavour(detail)]
    return [kind, detail if detail is None or isinstance(detail, (str, int)) else str(detail.freq.freqstr)]


def _read_flavour(given: Any) -> tuple[str, Any]:
    kind, detail = given
    return kind, _read_flavour(detail) if kind == "month end" else detail


def _fitted(specification: Specification, columns: tuple[Any, ...], own: Any) -> Fitted:
    if not isinstance(own, dict) or set(own) != set(_FIT):
        raise ValueError("its parts are not those of a series")
    kind, step, origin, flavour = own["calendar"]
    times, y = own["times"], own["y"]
    if kind not in KINDS or not float(step) > 0.0 or times.shape != y.shape or times.ndim != 1:
        raise ValueError("a series has no calendar, or not one y per time")
    if (kind != "number") != (times.dtype.kind == "M"):
        raise ValueError(f"times of the kind {kind!r} cannot be {times.dtype}")
    calendar = Calendar(kind, float(step), origin, _read_flavour(flavour))
    table = {**{name: np.array(entries) for name, entries in own["table"].items()}, columns[1]: y}
    rows = Rows(times, y, table, columns[0], columns[1])
    structures = structures_of(specification, calendar, rows)
    members = tuple(
        Member(structures[place], result, float(energy), float(weight))
        for place, weight, energy, result in own["members"]
    )
    if not members or any(not isinstance(one.result, Result) for one in members):
        raise ValueError("a series has no results")
    return Fitted(specification, calendar, rows, members)
