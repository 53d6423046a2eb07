"""Time stamps as numbers: the time since an origin, in a unit.

Stamps are counted in whole ticks (nanoseconds, microseconds, days, ...) and the origin is subtracted as an integer, so
only the result is rounded, to sixteen digits.
"""

import dataclasses
import datetime
import math
import re
from typing import Any, NamedTuple

import numpy as np

from .frames import frame_array, has_zone, read_frame

_SECOND = 10**18
# NumPy's units in attoseconds, from long to short. Months and years have no fixed length.
_LENGTHS = {
    "W": 604_800 * _SECOND,
    "D": 86_400 * _SECOND,
    "h": 3_600 * _SECOND,
    "m": 60 * _SECOND,
    "s": _SECOND,
    "ms": 10**15,
    "us": 10**12,
    "ns": 10**9,
    "ps": 10**6,
    "fs": 10**3,
    "as": 1,
}
_UNITS = '"W" (weeks), "D", "h", "m" (minutes), "s", "ms", "us" or "ns"'
_NO_LENGTH = {"M": "months", "Y": "years"}
_NAT, _LARGEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

DEFAULT_ORIGIN = np.datetime64("2000-01-01")


@dataclasses.dataclass(frozen=True, init=False)
class Clock:
    """Converts time stamps to numbers: the time since `origin`, in units of `unit`.

    `unit` is one of NumPy's names for units, a `numpy.timedelta64` or a `datetime.timedelta`; months and years have no
    fixed length. Lengthscales and periods are in that unit. If x holds numbers instead of time stamps, they are used
    unchanged, as units since the origin. Stamps without a time zone are taken as UTC, those with one are converted to
    UTC, and there are no leap seconds. Durations are counted from the origin.

    Numbers have sixteen digits: after the default origin, 2000-01-01, those of a stamp in the 2020s resolve
    about 1e-7 seconds, whatever the unit. For finer stamps give an origin near the data.

    >>> clock = Clock("D")
    >>> clock.numbers(np.array(["2000-01-02", "2000-01-03T12"], dtype="datetime64[h]"))
    array([1. , 2.5])
    >>> Clock(datetime.timedelta(hours=12), origin="2000-01-02").numbers(
    ...     np.array(["2000-01-03"], dtype="datetime64[s]")
    ... )
    array([2.])
    >>> Clock("M")
    Traceback (most recent call last):
        ...
    ValueError: unit must have a fixed length, and months ("M") have none: use days, "D" (minutes are "m")
    """

    unit: np.timedelta64
    origin: np.datetime64

    def __init__(self, unit: Any, origin: Any = None):
        # In the longest exact unit, so that equal clocks compare equal and have equal hashes.
        object.__setattr__(self, "unit", np.timedelta64(*_shortened(_unit_length(unit))))
        start = DEFAULT_ORIGIN if origin is None else _as_origin(origin)
        object.__setattr__(self, "origin", np.datetime64(*_shortened(_attoseconds(start))))

    def numbers(self, times: np.ndarray) -> np.ndarray:
        """An array of datetime64 or timedelta64 as float64; NaN for NaT."""
        name = np.datetime_data(times.dtype)[0]
        if times.dtype.kind == "M" and name in _NO_LENGTH:
            times = times.astype("datetime64[D]")  # months and years begin on a day
        elif name not in _LENGTHS:
            what = _NO_LENGTH.get(name, "durations without a unit")
            raise ValueError(
                f'{what} have no fixed length: give durations in days or less, as in np.timedelta64(7, "D")'
            )
        ticks = times.astype(np.int64)
        missing = ticks == _NAT
        tick, unit = _tick(times.dtype), _attoseconds(self.unit)
        # The origin is `before` ticks and a remainder, which is zero unless the origin is finer than the stamps.
        before, rest = divmod(_attoseconds(self.origin) if times.dtype.kind == "M" else 0, tick)
        count = _minus(np.where(missing, 0, ticks), before)
        # count · tick / unit, as whole units and a fraction of one, so that integers with more digits than a double
        # are not rounded before they are divided.
        common = math.gcd(tick, unit)
        steps, size = tick // common, unit // common
        sign, distance = np.sign(count), np.abs(count)
        distance = distance if size <= _LARGEST else distance.astype(object)
        whole, part = distance // size, distance % size
        numbers = whole.astype(float) * float(steps) + part.astype(float) * float(steps) / float(size)
        numbers = sign.astype(float) * numbers - rest / unit
        return np.where(missing, np.nan, numbers)

    def stamps(self, numbers: np.ndarray) -> np.ndarray:
        """The inverse of `numbers`, to microseconds: numbers as time stamps in UTC.

        >>> Clock("D").stamps(np.array([1.5]))
        array(['2000-01-02T12:00:00.000000'], dtype='datetime64[us]')
        """
        microseconds = np.round(numbers * (self.unit / np.timedelta64(1, "us"))).astype(np.int64)
        return self.origin.astype("datetime64[us]") + microseconds.astype("timedelta64[us]")


def as_clock(unit: Any, origin: Any = None) -> Clock | None:
    """The clock for a user's `unit=` and `origin=`; None without a unit.

    >>> as_clock("h").unit
    np.timedelta64(1,'h')
    >>> as_clock(None) is None
    True
    """
    if unit is None and origin is None:
        return None
    if unit is None:
        raise ValueError(f'origin needs the unit of time, got origin={origin!r} without one: write unit="D" for days')
    if isinstance(unit, Clock):
        if origin is None:
            return unit
        raise ValueError(f"the clock already has an origin, got origin={origin!r} as well: leave one of them out")
    return Clock(unit, origin)


def same_times(one: np.ndarray, clock: Clock, other: np.ndarray, other_clock: Clock) -> bool:
    """Whether numbers by two clocks are the same times, up to their rounding.

    >>> same_times(np.array([366.0]), Clock("D"), np.array([24.0]), Clock("h", origin="2000-12-31"))
    True
    """
    unit = _attoseconds(clock.unit)
    scale = _attoseconds(other_clock.unit) / unit
    shift = (_attoseconds(other_clock.origin) - _attoseconds(clock.origin)) / unit
    # Far from its origin, a number has a lower resolution, relative to its size.
    rounding = np.finfo(np.float64).eps * (np.abs(one) + scale * np.abs(other) + abs(shift))
    return bool(np.all(np.abs(scale * other + shift - one) <= 4.0 * rounding))


def _unit_length(unit: Any) -> int:
    """A unit in attoseconds."""
    if isinstance(unit, str):
        if unit in _NO_LENGTH:
            raise ValueError(_without_length(unit))
        if unit not in _LENGTHS:
            raise ValueError(f"unit must be {_UNITS}, or a duration such as np.timedelta64(7, 'D'), got {unit!r}")
        return _LENGTHS[unit]
    entry = _as_time(unit)
    if not isinstance(entry, np.timedelta64):
        raise ValueError(f"unit must be {_UNITS}, or a duration such as np.timedelta64(7, 'D'), got {unit!r}")
    name = np.datetime_data(entry.dtype)[0]
    if name in _NO_LENGTH:
        raise ValueError(_without_length(name))
    if np.isnat(entry) or name == "generic" or _attoseconds(entry) <= 0:
        raise ValueError(f"unit must be a positive duration, got {unit!r}: write np.timedelta64(7, 'D') for weeks")
    return _attoseconds(entry)


def _without_length(name: str) -> str:
    advice = 'use days, "D" (minutes are "m")'
    if name == "Y":
        advice = 'use days, "D", or np.timedelta64(8766, "h"), which is 365.25 days'
    return f'unit must have a fixed length, and {_NO_LENGTH[name]} ("{name}") have none: {advice}'


def _as_origin(origin: Any) -> np.datetime64:
    entry = _parsed(origin) if isinstance(origin, str) else _as_time(origin)
    if not isinstance(entry, np.datetime64) or np.isnat(entry):
        raise ValueError(
            f'origin must be a point in time, such as np.datetime64("2020-01-01") or "2020-01-01", got {origin!r}'
        )
    name = np.datetime_data(entry.dtype)[0]
    return entry.astype("datetime64[D]") if name in _NO_LENGTH else entry


def _parsed(text: str) -> Any:
    """An ISO date or time, to the microsecond; None if it is not one."""
    try:
        stamp = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    # Python would silently drop further digits.
    return None if re.search(r"[.,]\d{7}", text) else _as_time(stamp)


def _shortened(attoseconds: int) -> tuple[int, Any]:
    """The duration as a whole number of the longest possible unit, from days down."""
    units = list(_LENGTHS)[1:]
    name = next(name for name in units if attoseconds % _LENGTHS[name] == 0)
    return attoseconds // _LENGTHS[name], name


def _attoseconds(entry: np.datetime64 | np.timedelta64) -> int:
    return int(entry.astype(np.int64)) * _tick(entry.dtype)


def _tick(dtype: np.dtype) -> int:
    """The resolution of stamps, in attoseconds."""
    name, count = np.datetime_data(dtype)
    return count * _LENGTHS[name]


def _minus(ticks: np.ndarray, before: int) -> np.ndarray:
    """ticks − before in integers, of any size if need be."""
    if ticks.size == 0:
        return ticks
    largest = max(abs(before), abs(int(ticks.min()) - before), abs(int(ticks.max()) - before))
    return ticks - before if largest <= _LARGEST else ticks.astype(object) - before


# Finding times in inputs ---------------------------------------------------------------------------


class Times(NamedTuple):
    """Inputs that are times: datetime64 or timedelta64 of one resolution or, as objects, of several."""

    entries: np.ndarray
    zoned: bool = False
    """Whether they had a time zone; if so they are in UTC."""

    @property
    def first(self) -> Any:
        """The first entry, if there is any."""
        return self.entries.ravel()[0] if self.entries.size else None

    @property
    def missing(self) -> np.ndarray:
        """Which entries are NaT."""
        return (
            np.isnat(self.entries) if self.entries.dtype.kind != "O" else np.vectorize(np.isnat, [bool])(self.entries)
        )

    def numbers(self, clock: Clock) -> np.ndarray:
        """The entries in units after the clock's origin."""
        if self.entries.dtype.kind != "O":
            return clock.numbers(self.entries)
        numbers, kinds = np.full(self.entries.shape, np.nan), np.vectorize(_dtype, [object])(self.entries)
        # Each resolution separately: NumPy would convert all to the finest, which may overflow silently.
        for kind in set(kinds.ravel()):
            numbers[kinds == kind] = clock.numbers(self.entries[kinds == kind].astype(kind))
        return numbers


class MixedError(ValueError):
    """Two incompatible entries: a time stamp and a duration, a number, or a stamp without a time zone."""

    def __init__(self, first: Any, second: Any, row: int):
        super().__init__(f"{first!r} and {second!r} cannot be mixed")
        self.first = first
        self.second = second
        self.row = row
        stamps = all(isinstance(_as_time(entry), np.datetime64) for entry in (first, second))
        self.advice = "give all of them a time zone, or none" if stamps else None


def read_times(value: Any) -> Times | None:
    """The times in `value`, or None if there are none; MixedError if there are other entries too.

    >>> read_times([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)]).missing
    array([False, False])
    >>> read_times([1.0, 2.0]) is None
    True
    """
    frame = read_frame(value)
    try:
        array = np.asarray(value) if frame is None else frame_array(frame)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind in "mM" and not isinstance(value, (list, tuple)):
        return Times(_unmask(value, array), frame is not None and has_zone(frame))
    # NumPy would read [duration, 3] as two durations and [stamp, duration] as two stamps.
    if array.dtype.kind in "mMO":
        return _from_objects(np.array(_unpacked(value), dtype=object) if isinstance(value, (list, tuple)) else array)
    return None


def _unmask(value: Any, array: np.ndarray) -> np.ndarray:
    mask = np.ma.getmask(value) if isinstance(value, np.ma.MaskedArray) else np.ma.nomask
    return array if mask is np.ma.nomask else np.where(mask, np.array("NaT", dtype=array.dtype), array)


def _unpacked(value: Any) -> Any:
    """Lists that contain arrays of times as lists of times: NumPy would turn nanoseconds into integers."""
    if isinstance(value, (list, tuple)):
        return [_unpacked(entry) for entry in value]
    return _unpacked(list(value)) if isinstance(value, np.ndarray) and value.dtype.kind in "mM" else value


def _from_objects(array: np.ndarray) -> Times | None:
    entries = np.empty(array.shape, dtype=object)
    kinds = np.empty(array.shape, dtype=object)
    for position, entry in np.ndenumerate(array):
        entries[position] = _as_time(entry)
        kinds[position] = _kind(entry, entries[position])
    present = [kind for kind in dict.fromkeys(kinds.ravel()) if kind != "missing"]
    has_times = any(kind in ("stamp", "stamp in a zone", "duration") for kind in present)
    # NaT alone counts as time too, but None and NaN do not.
    if not has_times and (present or all(entry is None for entry in entries.ravel())):
        return None
    if len(present) > 1:
        first, second = (tuple(np.argwhere(kinds == kind)[0]) for kind in present[:2])
        raise MixedError(array[first], array[second], int(second[0]))
    for position in np.argwhere(kinds == "missing"):
        entries[tuple(position)] = np.datetime64("NaT", "D")
    return Times(entries, present == ["stamp in a zone"])


def _kind(entry: Any, time: Any) -> str:
    if time is None:
        nothing = entry is None or type(entry).__name__ == "NAType" or (isinstance(entry, float) and math.isnan(entry))
        return "missing" if nothing else "other"
    if np.isnat(time):
        return "missing"
    if isinstance(time, np.timedelta64):
        return "duration"
    return "stamp" if getattr(entry, "tzinfo", None) is None else "stamp in a zone"


def _as_time(entry: Any) -> np.datetime64 | np.timedelta64 | None:
    """A stamp (in UTC) or duration of Python, NumPy or pandas as NumPy's; None if it is neither."""
    if isinstance(entry, (np.datetime64, np.timedelta64)):
        return entry
    if not isinstance(entry, (datetime.date, datetime.timedelta)):
        return None
    for convert in ("to_datetime64", "to_timedelta64"):  # pandas' own have nanoseconds
        if hasattr(entry, convert):
            return getattr(entry, convert)()
    if isinstance(entry, datetime.datetime):
        if entry.tzinfo is not None:
            entry = entry.astimezone(datetime.UTC).replace(tzinfo=None)
        return np.datetime64(entry, "us")
    return np.datetime64(entry, "D") if isinstance(entry, datetime.date) else np.timedelta64(entry, "us")


def _dtype(entry: np.datetime64 | np.timedelta64) -> str:
    return entry.dtype.str
