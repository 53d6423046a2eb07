"""Tables: named columns of numbers, of levels or of time stamps, read from any data frame or from a mapping."""

import contextlib
import datetime
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..validation.frames import library_of, read_frame
from ..validation.numbers import NotRealError, as_real
from ..validation.text import listed, short
from ..validation.times import MixedError, Times, read_times

Level = str | int | float | bool | np.datetime64 | tuple
"""A level of a factor: a label as Python's own value, time stamps in microseconds, tuples of several columns."""


class Column(NamedTuple):
    """One column of a table: its entries, and its categories in their order if it declares them."""

    name: str
    entries: np.ndarray
    categories: tuple[Any, ...] | None = None
    source: Any = None
    """The column as it was given, for time stamps."""

    @property
    def is_numeric(self) -> bool:
        """Whether the entries are numbers, or truth values."""
        return self.categories is None and self.entries.dtype.kind in "fiub"

    def numbers(self) -> np.ndarray:
        """The entries as finite floats; ValueError names the row of any other."""
        if not self.is_numeric:
            row, entry = self._no_number()
            raise ValueError(
                f"column {self.name!r} must hold numbers here, but row {row} is {short(entry)}: "
                f"{_instead_of(entry, self.name)}"
            )
        values = self.entries.astype(float)
        wrong = np.flatnonzero(~(np.abs(values) <= _LARGEST))
        if wrong.size:
            entry = values[wrong[0]]
            what, remedy = (
                ("missing", "fill it in (only y may be missing)") if np.isnan(entry) else (entry, "correct it")
            )
            size = f"at most {_LARGEST:g} in size" if np.isfinite(entry) else "finite"
            raise ValueError(
                f"column {self.name!r} must be {size}, but row {wrong[0]} is {what}: drop that row, or {remedy}"
            )
        return values

    def _no_number(self) -> tuple[int, Any]:
        """The first row with an entry that cannot be read as a number, or else that is not missing; and the entry."""
        plain = [_plain(entry) for entry in self.entries]
        present = [(row, entry) for row, entry in enumerate(plain) if entry is not None and entry == entry]
        return next((pair for pair in present if not can_be_number(pair[1])), next(iter(present), (0, None)))

    def numbers_or_missing(self) -> np.ndarray:
        """The entries as floats with NaN where they are missing, for y."""
        if not self.is_numeric:
            row, entry = self._no_number()
            raise ValueError(
                f"column {self.name!r} must hold numbers to be y, but row {row} is {short(entry)}: correct it, or "
                "convert the column, as to 0 and 1, or to counts"
            )
        return self.entries.astype(float)

    def labels(self) -> tuple[list[Any], np.ndarray]:
        """The distinct entries as plain values, and which of them each row has; ValueError if one is missing."""
        if self.entries.dtype.kind in "OmM":
            known: dict[Any, int] = {}
            which = np.fromiter((known.setdefault(_plain(e), len(known)) for e in self.entries), int, self.entries.size)
            distinct = list(known)
        else:
            values, which = np.unique(self.entries, return_inverse=True)
            distinct = [_plain(value) for value in values]
        missing = [place for place, value in enumerate(distinct) if value is None or value != value]
        if missing:
            row = np.flatnonzero(np.isin(which, missing))[0]
            raise ValueError(
                f"column {self.name!r} has no level in row {row}: drop that row, or give its level a name of its own"
            )
        return distinct, which

    def levels(self) -> tuple[Any, ...]:
        """The distinct labels: declared categories that occur, in their order, or all labels sorted."""
        distinct, _ = self.labels()
        if self.categories is not None:
            return tuple(level for level in self.categories if level in set(distinct))
        try:
            return tuple(sorted(distinct))
        except TypeError:
            return tuple(sorted(distinct, key=str))

    def codes(self, levels: tuple[Any, ...]) -> tuple[np.ndarray, list[Any]]:
        """The number of each row's level, and the levels that are not among these, numbered after them."""
        distinct, which = self.labels()
        place = {level: number for number, level in enumerate(levels)}
        new = [label for label in distinct if label not in place]
        place |= {label: len(levels) + number for number, label in enumerate(new)}
        return np.array([place[label] for label in distinct])[which], new

    def times(self) -> Times | None:
        """The entries as time stamps or durations; None if they are not."""
        try:
            return read_times(self.source)
        except MixedError as error:
            raise ValueError(
                f"column {self.name!r} must hold numbers, or time stamps of one kind, but row {error.row} is "
                f"{short(error.second)} and others are like {short(error.first)}: make them all alike"
            ) from None


def can_be_number(entry: Any) -> bool:
    """Whether an entry is a number, or text that is read as one."""
    try:
        float(entry)
    except (TypeError, ValueError):
        return False
    return True


class Table:
    """Columns by name, all with the same number of rows.

    >>> table = Table({"age": [30, 40], "sex": ["f", "m"]})
    >>> table.rows, table["age"].numbers().tolist(), table["sex"].levels()
    (2, [30.0, 40.0], ('f', 'm'))
    """

    def __init__(self, given: Any, name: str = "the table"):
        self.name = name
        self.library = library_of(given)
        self._columns = _read_columns(given, name)
        if not self._columns:
            raise ValueError(f"{name} has no columns: give a data frame, or a mapping such as {{'age': ages}}")
        lengths = {column: _length(values) for column, values in self._columns.items()}
        self.rows = next(iter(lengths.values()), 0)
        for column, length in lengths.items():
            if length != self.rows:
                first = next(iter(lengths))
                raise ValueError(
                    f"all columns of {name} must have the same number of rows, but {first!r} has {self.rows} and "
                    f"{column!r} has {length}: give one value per row"
                )
        if self.rows == 0:
            raise ValueError(f"{name} has no rows: give at least one")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(self._columns)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Column:
        if name not in self._columns:
            near = difflib.get_close_matches(str(name), self._columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"{self.name} has no column {name!r}{hint}: add it, or name another; there are {listed(self._columns)}"
            )
        return _read_column(name, self._columns[name])


def is_table(value: Any) -> bool:
    """Whether this is something with named columns: a data frame, or a mapping of columns.

    >>> is_table({"age": [30.0]}), is_table([30.0])
    (True, False)
    """
    if isinstance(value, Mapping) or len(getattr(read_frame(value), "shape", ())) == 2:
        return True
    return len(_names_of(value)) > 1 and len(getattr(value, "shape", ())) == 2  # a frame with repeated names


def _names_of(given: Any) -> list[str]:
    """The names of the columns, also of a frame that has one of them twice."""
    names = given if isinstance(given, Mapping) else getattr(given, "column_names", getattr(given, "columns", None))
    return list(map(str, names)) if isinstance(names, Iterable) and not isinstance(given, np.ndarray) else []


def take_rows(given: Any, rows: np.ndarray) -> Any:
    """Some rows of a user's table, in their order, as a table of the same kind.

    >>> take_rows({"age": [30, 40, 50], "sex": ["f", "m", "f"]}, np.array([2, 0]))
    {'age': array([50, 30]), 'sex': array(['f', 'f'], dtype='<U1')}
    """
    if isinstance(given, Mapping):
        return {name: _take(values, rows) for name, values in given.items()}
    return _take(given, rows)


def _take(values: Any, rows: np.ndarray) -> Any:
    frame = read_frame(values)
    return np.asarray(values)[rows] if frame is None else frame[rows.tolist()].to_native()  # pyright: ignore


def _read_columns(given: Any, name: str) -> dict[str, Any]:
    if isinstance(given, Table):
        return given._columns
    names = _names_of(given)
    twice = next((column for column in names if names.count(column) > 1), None)
    if twice is not None:
        raise ValueError(f"{name} has two columns called {twice!r}: give columns different names")
    if isinstance(given, Mapping):
        return dict(zip(names, given.values(), strict=True))
    frame: Any = read_frame(given)
    if frame is None or len(frame.shape) != 2:
        raise ValueError(
            f"terms are over the named columns of a table, got {type(given).__name__}: give a data frame of pandas, "
            'polars or pyarrow, or a mapping such as {"age": ages}'
        )
    return {str(column): frame[column] for column in frame.columns}


def _length(values: Any) -> int:
    try:
        return len(values)
    except TypeError:
        return int(np.size(values))


def _read_column(name: str, values: Any) -> Column:
    import narwhals as nw

    series: Any = values if isinstance(values, nw.Series) else read_frame(values)
    if series is None or len(series.shape) != 1:
        return Column(name, _plain_array(name, values), None, values)
    native = series.to_native()
    if isinstance(series.dtype, (nw.Categorical, nw.Enum)):
        return Column(name, np.fromiter(series.to_list(), object, len(series)), _categories(series), native)
    array = series.to_numpy()
    if array.dtype.kind in "fiub" or array.dtype.kind in "mM":
        return Column(name, array, None, native)
    entries = series.to_list()
    if series.dtype.is_numeric() or series.dtype == nw.Boolean:  # numbers with missing entries
        return Column(name, np.array([np.nan if e is None else float(e) for e in entries]), None, native)
    return Column(name, np.fromiter(entries, object, len(series)), None, native)


def _categories(series: Any) -> tuple[Any, ...] | None:
    """The categories that a column declares in their order; None if their order is that in which they were met."""
    native, library = series.to_native(), series.implementation
    if library.is_pandas_like():
        declared = native.cat.categories.tolist()
    elif library.is_polars() and hasattr(native.dtype, "categories") and "Enum" in str(native.dtype):
        declared = native.dtype.categories.to_list()
    elif library.is_pyarrow() and native.type.ordered:
        declared = native.unify_dictionaries().chunk(0).dictionary.to_pylist()
    else:
        return None
    return tuple(map(_plain, declared))


def _plain_array(name: str, values: Any) -> np.ndarray:
    """A column that is not of a data frame: numbers as floats if some are missing, anything else as it is."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"column {name!r} has rows of different lengths: give one value per row") from None
    if array.ndim != 1:
        raise ValueError(f"column {name!r} must have one value per row, got shape {array.shape}: give one dimension")
    if array.dtype.kind == "c":
        raise ValueError(f"column {name!r} holds complex numbers, such as {array[0]}: take their real part or modulus")
    if array.dtype.kind == "O" or isinstance(values, np.ma.MaskedArray):
        with contextlib.suppress(NotRealError):
            return as_real(values)
    return array


_LARGEST = 1e100
"""Larger numbers have powers that are not finite."""


def _instead_of(entry: Any, name: str) -> str:
    """What to do with an entry that is not a number."""
    if isinstance(entry, (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)):
        return f"measure time in numbers, or use Trend({name!r}), Season({name!r}, '1y') or Smooth({name!r}, unit='D')"
    if type(entry).__name__ == "Period":
        return f"take the time at which each period starts, table[{name!r}].dt.start_time, and use Trend({name!r})"
    try:
        float(entry)
    except (TypeError, ValueError):
        return f"convert it to numbers, or use it as a factor, as in Linear({name!r}) or Group({name!r})"
    return "it is text, so convert the column to numbers"


def _stamp(value: Any) -> np.datetime64:
    """A time stamp in microseconds, in UTC if it has a time zone."""
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


def _plain(value: Any) -> Any:
    """A NumPy scalar as Python's own; whole floats as integers, so that levels 1 and 1.0 are the same."""
    if isinstance(value, (np.datetime64, datetime.date)):  # also datetime.datetime, and the stamps of pandas
        return None if value != value else _stamp(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None if type(value).__name__ in ("NAType", "NaTType") else value
