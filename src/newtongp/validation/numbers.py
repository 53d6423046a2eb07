"""Real numbers from users, converted strictly and checked against their range."""

import contextlib
import datetime
import numbers
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .frames import as_array


class NotRealError(TypeError):
    """`entry` is not a real number."""

    def __init__(self, entry: Any):
        super().__init__(f"not a real number: {entry!r}")
        self.entry = entry


def as_real(value: Any) -> np.ndarray:
    """A float64 copy of `value`, with NaN for masked entries, None and pandas' NA; NotRealError for other entries.

    NumPy alone would convert strings and dates, and drop imaginary parts and masks.

    >>> as_real([1, None, 2.5])
    array([1. , nan, 2.5])
    >>> as_real(["1", "2"])
    Traceback (most recent call last):
        ...
    newtongp.validation.numbers.NotRealError: not a real number: '1'
    """
    try:
        array = as_array(value)
    except (TypeError, ValueError):  # ragged, or something that refuses to be an array
        raise NotRealError(value) from None
    if array.dtype.kind in "fiub" or jnp.issubdtype(array.dtype, np.floating):
        array = np.array(array, dtype=np.float64)
    elif array.dtype.kind == "O":
        array = np.array([_entry(entry, array.ndim) for entry in array.ravel()]).reshape(array.shape)
    else:
        entry = array.ravel()[0] if array.size else value
        raise NotRealError(entry.item() if array.dtype.kind in "cUS" and array.size else entry)
    mask = np.ma.getmask(value) if isinstance(value, np.ma.MaskedArray) else np.ma.nomask
    return array if mask is np.ma.nomask else np.where(mask, np.nan, array)


def _entry(entry: Any, ndim: int) -> float:
    if ndim > 0 and (entry is None or type(entry).__name__ == "NAType"):
        return np.nan
    if isinstance(entry, (numbers.Number, np.bool_)) and not isinstance(entry, (complex, np.complexfloating)):
        try:
            return float(entry)  # pyright: ignore[reportArgumentType]
        except OverflowError:
            pass
    raise NotRealError(entry)


def parameter(
    value,
    name: str,
    *,
    lower: float = -np.inf,
    upper: float = np.inf,
    strict: bool | tuple[bool, bool] = True,
    max_ndim: int = 0,
    remedy: str | None = None,
):
    """`value` as a float64 hyperparameter, checked against its range.

    `strict` says whether the bounds (or the lower and the upper one) are excluded; `remedy` is the advice for an
    invalid value. Tracers are not checked, so that modules can be rebuilt inside `jax.jit` and `jax.grad`.

    >>> float(parameter(2, "variance", lower=0.0))
    2.0
    >>> parameter(-1.0, "variance", lower=0.0)
    Traceback (most recent call last):
        ...
    ValueError: variance must be greater than 0, got -1.0: give a positive number, such as 1.0
    """
    if isinstance(value, jax.core.Tracer):
        return value
    above, below = strict if isinstance(strict, tuple) else (strict, strict)
    in_range = _in_range(lower, upper) if remedy is None else remedy
    try:
        array = as_real(value)
    except NotRealError as error:
        kind = f"a number{' or an array of numbers' if max_ndim else ''}"
        raise ValueError(f"{name} must be {kind}, got {value!r}: {_as_number(error.entry, in_range)}") from None
    if _has_flags(value):
        raise ValueError(f"{name} must be a number, not True or False, got {value!r}: {in_range}")
    if array.ndim > max_ndim:
        wanted = "a single number" if max_ndim == 0 else f"an array with at most {max_ndim} dimension(s)"
        advice = "choose one of its values" if max_ndim == 0 else "flatten it, or choose a part of it"
        raise ValueError(f"{name} must be {wanted}, got an array of shape {array.shape}: {advice}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got {value!r}: {in_range}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, {_which(value, array, ~np.isfinite(array))}: {in_range}")
    too_low = (array <= lower) if above else (array < lower)
    too_high = (array >= upper) if below else (array > upper)
    if np.any(too_low) or np.any(too_high):
        bounds = [f"{'greater than' if above else 'at least'} {lower:g}"] if np.isfinite(lower) else []
        bounds += [f"{'less than' if below else 'at most'} {upper:g}"] if np.isfinite(upper) else []
        raise ValueError(
            f"{name} must be {' and '.join(bounds)}, {_which(value, array, too_low | too_high)}: {in_range}"
        )
    if lower == 0.0 and above and np.any(array < _SMALLEST):
        raise ValueError(
            f"{name} must be at least {_SMALLEST:.2g}, because compiled programs treat smaller numbers as 0, got "
            f"{value!r}: measure it in a smaller unit"
        )
    return array


_SMALLEST = float(np.finfo(np.float64).tiny)


def _which(value: object, array: np.ndarray, wrong: np.ndarray) -> str:
    """What was wrong: the value, or the first wrong entry of an array.

    >>> _which(0.0, np.array(0.0), np.array(True)), _which([1, 0], np.array([1.0, 0.0]), np.array([False, True]))
    ('got 0.0', 'but entry 1 is 0.0')
    """
    if array.ndim == 0:
        return f"got {value!r}"
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return f"but entry {place[0] if len(place) == 1 else place} is {float(array[place])!r}"


def _in_range(lower: float, upper: float) -> str:
    """Advice for a value outside this range."""
    if np.isfinite(lower) and np.isfinite(upper):
        return f"give a number between {lower:g} and {upper:g}, such as {0.5 * (lower + upper)}"
    if lower == 0.0:
        return "give a positive number, such as 1.0"
    return f"give a number, such as {lower + 1.0 if np.isfinite(lower) else 1.0}"


def _as_number(entry: Any, otherwise: str) -> str:
    """Advice for a value that is not a number."""
    if isinstance(entry, str):
        with contextlib.suppress(ValueError):
            return f"write {float(entry)}, without quotes"
    if isinstance(entry, (np.timedelta64, datetime.timedelta)):
        return 'divide it by the unit of time, as in duration / np.timedelta64(1, "D")'
    return otherwise


def _has_flags(value: Any) -> bool:
    """Whether `value` contains booleans, which Python and NumPy would convert to 1 and 0."""
    if isinstance(value, (list, tuple)):
        return any(_has_flags(entry) for entry in value)
    return isinstance(value, bool) or getattr(value, "dtype", None) == np.bool_
