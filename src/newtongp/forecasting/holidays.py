"""Public holidays as columns of a table, from the package holidays."""

import datetime
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..validation.text import short
from .calendar import Calendar


def holiday_columns(given: Any, calendar: Calendar, times: np.ndarray) -> dict[str, np.ndarray]:
    """One column per holiday: 1 at times on that day, or the number of its days in a longer step such as a month."""
    if given is None or times.size == 0:
        return {}
    if not calendar.stamped:
        raise ValueError("holidays need dates, but the time column holds numbers: give dates, or leave holidays out")
    begin, end = _days_in_steps(calendar, times)
    found: dict[str, np.ndarray] = {}
    for day, name in sorted(_days_of(given, np.min(begin), np.max(end)).items()):
        inside = (begin <= day) & (day < end)
        if np.any(inside):
            found.setdefault(name, np.zeros(times.size))[inside] += 1.0
    return found


_DAY = 86_400_000_000


def _days_in_steps(calendar: Calendar, times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first day of every step, and the first day after it: a stamp begins a step, unless it ends a month."""
    if calendar.kind == "months":
        months, step = times.astype("datetime64[M]"), int(calendar.step)
        begin = months - (step - 1) if calendar.flavour[0] == "month end" else months
        return begin.astype("datetime64[D]"), (begin + step).astype("datetime64[D]")
    days = max(1, round(calendar.step / _DAY)) if calendar.kind == "duration" else 1
    begin = times.astype("datetime64[D]")
    return begin, begin + days


def _days_of(given: Any, first: Any, last: Any) -> dict[Any, str]:
    """The holidays between two days: of a country, or as the user gives them."""
    if isinstance(given, Mapping):
        return {_day(day): str(name) for day, name in given.items()}
    if isinstance(given, (list, tuple, np.ndarray)) or (isinstance(given, Iterable) and not isinstance(given, str)):
        return {_day(day): "holiday" for day in given}
    if not isinstance(given, str):
        raise ValueError(
            f"holidays must be a country such as 'DE', or a mapping from dates to names, got {short(given)}"
        )
    try:
        package = importlib.import_module("holidays")
    except ImportError:
        raise ImportError(
            "holidays of a country need the package holidays: pip install 'newtongp[holidays]', or give a mapping from "
            "dates to names"
        ) from None
    country, _, part = given.partition("-")
    years = range(int(str(first)[:4]), int(str(last)[:4]) + 1)
    try:
        days = package.country_holidays(country, subdiv=part or None, years=years)
    except (NotImplementedError, KeyError) as error:
        raise ValueError(f"the package holidays does not know {given!r}: {error}") from None
    return {np.datetime64(day, "D"): name for day, name in days.items()}


def _day(value: Any) -> np.datetime64:
    try:
        is_time = isinstance(value, datetime.datetime)
        return np.datetime64(value.date() if is_time else value, "D")
    except (TypeError, ValueError):
        raise ValueError(f"holidays are dates, such as '2024-12-25', got {short(value)}") from None
