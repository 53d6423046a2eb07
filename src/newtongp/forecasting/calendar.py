"""Times of a series: what the step from one row to the next is, phases within years, weeks and days, and future times.

Months have different lengths, and so have years. Steps of months, quarters and years are therefore counted as such, and
the phase within a year is that of the calendar: the first of March has the same phase in every year.
"""

import dataclasses
import datetime
import re
from typing import Any

import numpy as np

from ..terms.table import Column, Table
from ..validation.frames import read_frame
from ..validation.text import short

_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000}
_DAY, _WEEK = _MICROSECONDS["d"], 7 * _MICROSECONDS["d"]
_MONDAY = np.datetime64("1970-01-05", "us")
_YEAR_DAYS = 365.2425
_MONTHS = {"y": 12, "q": 3, "M": 1}


@dataclasses.dataclass(frozen=True)
class Period:
    """The period of a season: a number of units, "y", "q", "M" (months), "w", "d", "h", "m" or "s"; "" for numbers."""

    count: float
    unit: str

    @property
    def label(self) -> str:
        """The period as text, such as 1y."""
        return f"{self.count:g}{self.unit}"


def read_period(given: Any) -> Period:
    """A period given as text such as "1y", or as a number in the units of a numeric time column.

    >>> read_period("1y").label, read_period(12).label
    ('1y', '12')
    """
    if isinstance(given, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)?\s*([a-zA-Z])\s*", given)
        unit = None if found is None else found[2] if found[2] in ("M", "m") else found[2].lower()
        count = 0.0 if found is None else float(found[1] or 1.0)
        if unit in ("y", "q", "M", "w", "d", "h", "m", "s") and count > 0.0:
            return Period(count, unit)
    elif isinstance(given, (int, float, np.number)) and not isinstance(given, bool) and 0.0 < given < np.inf:
        return Period(float(given), "")
    raise ValueError(
        f"a season is text such as '1y', '1M' (month), '1w', '1d' or '12h', or a number in the units of a numeric time "
        f"column, got {short(given)}"
    )


KINDS = ("months", "duration", "weekdays", "number")
"""The kinds of calendars."""


@dataclasses.dataclass(frozen=True)
class Calendar:
    """The step of a series: months, a duration, working days, or a number.

    `kind` is "months", "duration" (in microseconds), "weekdays" or "number"; `step` is how many of them. `flavour` says
    how stamps are given back: at the end of a month, as periods of pandas, as dates, with a time zone, or as text.
    """

    kind: str
    step: float
    origin: Any
    """The first time: a datetime64 in microseconds, or a number."""
    flavour: tuple[str, Any] = ("", None)

    @property
    def stamped(self) -> bool:
        """Whether times are stamps, and not numbers."""
        return self.kind != "number"

    def steps(self, times: np.ndarray) -> np.ndarray:
        """Times as the number of steps since the origin."""
        if self.kind == "number":
            return _rounded((times - self.origin) / self.step)
        if self.kind == "months":
            return (_months(times) - _months(np.asarray(self.origin))) / self.step
        if self.kind == "weekdays":
            days = times.astype("datetime64[D]")
            return np.busday_count(np.datetime64(self.origin, "D"), days).astype(float)
        return _rounded((times - self.origin).astype(np.int64) / self.step)

    def future(self, last: Any, count: int) -> np.ndarray:
        """The next times after the last one."""
        ahead = np.arange(1, count + 1)
        if self.kind == "number":
            return last + ahead * self.step
        if self.kind == "weekdays":
            day, clock = np.datetime64(last, "D"), last - np.datetime64(last, "D")
            return np.busday_offset(day, ahead, roll="backward").astype("datetime64[us]") + clock
        if self.kind == "duration":
            return last + (ahead * int(self.step)).astype("timedelta64[us]")
        month, day = np.datetime64(last, "M"), np.datetime64(last, "D")
        later = month + ahead * int(self.step)
        length = (later + 1).astype("datetime64[D]") - later.astype("datetime64[D]")
        place = (
            length - 1
            if self.flavour[0] == "month end"
            else np.minimum(day - month.astype("datetime64[D]"), length - 1)
        )
        return (later.astype("datetime64[D]") + place).astype("datetime64[us]") + (last - day)

    def rows_per(self, period: Period) -> float:
        """The number of steps in a period."""
        if self.kind == "number" or not period.unit:
            if self.stamped:
                raise ValueError(f"a season of time stamps has a unit, got {period.label}: write '1y', '1w' or '1d'")
            if period.unit:
                raise ValueError(
                    f"the time column holds numbers, so a season is a number in their units, got {period.label!r}: "
                    "write season=12 for monthly rows that are numbered, or give dates"
                )
            return period.count / self.step
        months = period.count * _MONTHS.get(period.unit, 0.0)
        if self.kind == "months":
            if not months:
                raise ValueError(
                    f"rows are {self.step:g} month(s) apart, and a season of {period.label} is not in months: use '1y'"
                )
            return months / self.step
        days = months * _YEAR_DAYS / 12.0 if months else period.count * _length(period) / _DAY
        if self.kind == "weekdays":
            return days * 5.0 / 7.0
        return days * _DAY / self.step

    def phase(self, times: np.ndarray, period: Period) -> np.ndarray:
        """Times in periods since a fixed date (or since 0): whole numbers begin a period."""
        if self.kind == "number":
            return times / period.count
        if period.unit in _MONTHS:
            if self.kind == "months":
                return _months(times) / (period.count * _MONTHS[period.unit])
            return _in_calendar(times, period.unit) / period.count
        return (times - _MONDAY).astype(np.int64) / (period.count * _length(period))

    @property
    def name(self) -> str:
        """The step in words."""
        if self.kind == "months":
            words = {1: "month", 3: "quarter", 12: "year"}
            return words.get(int(self.step), f"{self.step:g} months")
        if self.kind == "number":
            return f"step of {self.step:g}"
        words = {_WEEK: "week", _DAY: "day", _MICROSECONDS["h"]: "hour", _MICROSECONDS["m"]: "minute"}
        return "weekday" if self.kind == "weekdays" else words.get(int(self.step), f"{self.step / 1e6:g} seconds")

    def usual_seasons(self, rows: float) -> tuple[Period, ...]:
        """The seasons that such a series may have, with at least two periods in this number of steps."""
        usual = {"months": ("1y",), "duration": ("1d", "1w", "1y"), "weekdays": ("1w", "1y"), "number": ()}[self.kind]
        found = [read_period(name) for name in usual]
        return tuple(period for period in found if 2.0 <= self.rows_per(period) <= rows / 2.0)


def _length(period: Period) -> int:
    """The length of one unit, in microseconds."""
    return _WEEK if period.unit == "w" else _MICROSECONDS[period.unit]


def _rounded(steps: np.ndarray) -> np.ndarray:
    """Steps as whole numbers where they are, up to the rounding of decimal times."""
    whole = np.round(steps)
    return np.where(np.abs(steps - whole) < 0.02, whole, steps)


def _months(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[M]").astype(np.int64).astype(float)


def _in_calendar(times: np.ndarray, unit: str) -> np.ndarray:
    """Years, quarters or months of the calendar, with the fraction that has passed."""
    count = _MONTHS[unit]
    begin = times.astype("datetime64[M]").astype(np.int64) // count
    first, following = ((begin + k) * count for k in (0, 1))
    start, end = (months.astype("datetime64[M]").astype("datetime64[us]") for months in (first, following))
    return begin + (times - start).astype(np.int64) / (end - start).astype(np.int64)


# Reading a column of times ------------------------------------------------------------------------


def read_times(table: Table, name: str) -> tuple[np.ndarray, tuple[str, Any]]:
    """A column as stamps in microseconds, in local time, or as numbers; and how the user writes them."""
    column = table[name]
    if column.is_numeric:
        return column.numbers(), ("", None)
    stamps, flavour = _stamps(column)
    missing = np.flatnonzero(np.isnat(stamps))
    if missing.size:
        raise ValueError(f"column {name!r} has no time in row {missing[0]}: drop that row")
    return stamps, flavour


def _stamps(column: Column) -> tuple[np.ndarray, tuple[str, Any]]:
    native = column.source
    dtype = getattr(native, "dtype", None)
    if type(dtype).__name__ == "PeriodDtype":
        return native.dt.start_time.to_numpy().astype("datetime64[us]"), ("period", dtype)
    series: Any = read_frame(native)
    zone = getattr(getattr(series, "dtype", None), "time_zone", None)
    if zone is not None:
        local = series.dt.replace_time_zone(None)
        return local.to_numpy().astype("datetime64[us]"), ("zone", zone)
    if column.entries.dtype.kind == "M":
        kind = "date" if type(getattr(series, "dtype", None)).__name__ == "Date" else ""
        return column.entries.astype("datetime64[us]"), (kind, None)
    return _parsed(column)


def _parsed(column: Column) -> tuple[np.ndarray, tuple[str, Any]]:
    """Text in ISO format, dates and date times of Python, and periods of pandas as objects."""
    entries = [entry for entry in column.entries.tolist() if entry is not None]
    first: Any = entries[0] if entries else None
    if hasattr(first, "to_timestamp"):
        return np.array([np.datetime64(entry.start_time, "us") for entry in entries]), ("period", first.freqstr)
    zoned = isinstance(first, datetime.datetime) and first.tzinfo is not None
    plain = [entry.replace(tzinfo=None) if zoned else entry for entry in column.entries.tolist()]
    try:
        found = np.array(plain, dtype="datetime64[us]")
    except (ValueError, TypeError):
        row = next((row for row, entry in enumerate(plain) if not _is_time(entry)), 0)
        raise ValueError(
            f"column {column.name!r} must hold times: dates, time stamps, numbers, or text such as '2024-01-31', but "
            f"row {row} is {short(plain[row])}: correct it, or convert the column, as by pandas.to_datetime(format=...)"
        ) from None
    if isinstance(first, str):
        return found, ("text", len(first))
    is_date = isinstance(first, datetime.date) and not isinstance(first, datetime.datetime)
    return found, ("date", None) if is_date else ("", None)


def _is_time(entry: Any) -> bool:
    try:
        np.datetime64(entry, "us")
    except (ValueError, TypeError):
        return False
    return True


def calendar_of(times: np.ndarray, flavour: tuple[str, Any]) -> Calendar:
    """The step of sorted times: the most frequent one."""
    distinct = np.unique(times)
    if distinct.size < 3:
        raise ValueError(f"a series needs at least 3 different times, got {distinct.size}")
    if distinct.dtype.kind != "M":
        return Calendar("number", float(_most_frequent(np.diff(distinct))), float(distinct[0]), flavour)
    months = _month_step(distinct)
    if months is not None:
        step, at_end = months
        if at_end and flavour[0] != "period":
            flavour = ("month end", flavour)
        return Calendar("months", float(step), distinct[0], flavour)
    step = int(_most_frequent(np.diff(distinct).astype(np.int64)))
    if step == _DAY and distinct.size >= 10 and np.all(np.is_busday(distinct.astype("datetime64[D]"))):
        return Calendar("weekdays", 1.0, distinct[0], flavour)
    return Calendar("duration", float(step), distinct[0], flavour)


def _month_step(stamps: np.ndarray) -> tuple[int, bool] | None:
    """The step in months and whether stamps are at the ends of months; None if stamps are not months apart."""
    days = stamps.astype("datetime64[D]")
    clock, months = stamps - days, stamps.astype("datetime64[M]")
    gaps = np.diff(months.astype(np.int64))
    if np.any(gaps < 1) or np.unique(clock).size > 1:
        return None
    place = days - months.astype("datetime64[D]")
    at_end = bool(np.all((days + 1).astype("datetime64[M]") == months + 1))
    if not at_end and np.unique(place).size > 1:
        return None
    return int(np.gcd.reduce(gaps)), at_end


def _most_frequent(gaps: np.ndarray) -> Any:
    """The most frequent gap, up to the rounding of decimal times."""
    if gaps.dtype.kind == "f":
        middle = float(np.median(gaps))
        near = gaps[np.abs(gaps - middle) < 0.02 * middle]
        return np.mean(near) if near.size >= 0.5 * gaps.size else middle
    values, counts = np.unique(gaps, return_counts=True)
    return values[np.argmax(counts)]


def written(calendar: Calendar, times: np.ndarray) -> Any:
    """Times as the user writes them: a list or an array for a data frame."""
    if not calendar.stamped:
        whole = np.round(times)
        return whole.astype(int) if np.array_equal(whole, times) else times
    kind, detail = calendar.flavour
    if kind == "month end":
        kind, detail = detail
    if kind == "period":
        import pandas as pd

        freq = getattr(detail, "freq", detail)
        return pd.PeriodIndex(pd.DatetimeIndex(times), freq=freq).to_series(index=range(times.size))
    if kind == "date":
        return times.astype("datetime64[D]").astype(object).tolist()
    if kind == "text":
        return [str(time)[:detail] if detail <= 10 else str(np.datetime64(time, "s"))[:detail] for time in times]
    if kind == "zone":
        import zoneinfo

        zone = zoneinfo.ZoneInfo(detail)
        return [time.replace(tzinfo=zone) for time in times.astype(object).tolist()]
    return times
