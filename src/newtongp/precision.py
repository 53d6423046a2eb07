"""Double precision without touching anyone's settings, and hyperparameters that survive it.

JAX truncates to single precision unless `jax_enable_x64` is set. newtongp never sets it globally:
every public entry point runs inside `jax.enable_x64(True)` and hands back NumPy arrays, which no
later JAX setting can truncate. Hyperparameters are NumPy float64 arrays for the same reason.
"""

import contextlib
import ctypes
import functools
import numbers
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


def in_double(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `function` with 64-bit JAX types, whatever the program around it has chosen.

    >>> import jax.numpy as jnp
    >>> str(in_double(lambda: jnp.ones(3))().dtype)
    'float64'
    """

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _check_process()
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


_process = {"used": False, "forked": False}
"""Whether this process may have run JAX, and whether it is a copy of one that had."""


def _check_process() -> None:
    """Raise RuntimeError in a process that was forked after JAX had been used: without its threads, it would hang."""
    if _process["forked"]:
        raise RuntimeError(
            "this process was forked from one in which newtongp had been used, where JAX would wait for ever: start "
            'processes with multiprocessing.get_context("spawn"), or fork before newtongp is used'
        )
    _process["used"] = True


def _note_fork() -> None:
    _process["forked"] = _process["used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def to_host(tree: _T) -> _T:
    """Every JAX array in `tree` as a NumPy array (a view where that is possible); tracers stay what they are."""

    def convert(leaf: Any) -> Any:
        return np.asarray(leaf) if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) else leaf

    return jax.tree.map(convert, tree)


def on_host(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """`in_double`, with NumPy arrays for what `function` returns.

    >>> import jax.numpy as jnp
    >>> type(on_host(lambda: jnp.ones(3))()).__name__
    'ndarray'
    """

    @in_double
    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return to_host(function(*args, **kwargs))

    return wrapped


def give_back_memory() -> None:
    """Return what the C library has freed but kept, as after a compilation, to the system (where it is glibc)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class NotRealError(TypeError):
    """`entry` is no real number."""

    def __init__(self, entry: Any):
        super().__init__(f"not a real number: {entry!r}")
        self.entry = entry


def as_real(value: Any) -> np.ndarray:
    """A float64 copy of `value`, with NaN for masked entries, None and pandas' NA; NotRealError if it has others.

    NumPy alone would read numbers from strings and dates, drop imaginary parts and forget masks.

    >>> as_real([1, None, 2.5])
    array([1. , nan, 2.5])
    >>> as_real(["1", "2"])
    Traceback (most recent call last):
        ...
    newtongp.precision.NotRealError: not a real number: '1'
    """
    try:
        array = np.asarray(value)
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
    strict: bool = True,
    max_ndim: int = 0,
):
    """`value` as a float64 hyperparameter, checked against its range.

    Tracers pass through unchecked, so that modules can be rebuilt inside `jax.jit` and `jax.grad`.

    >>> float(parameter(2, "variance", lower=0.0))
    2.0
    >>> parameter(-1.0, "variance", lower=0.0)
    Traceback (most recent call last):
        ...
    ValueError: variance must be greater than 0, got -1.0
    """
    if isinstance(value, jax.core.Tracer):
        return value
    try:
        array = as_real(value)
    except NotRealError:
        raise ValueError(f"{name} must be a number{' or a vector' if max_ndim else ''}, got {value!r}") from None
    if array.ndim > max_ndim:
        wanted = "a single number" if max_ndim == 0 else f"an array with at most {max_ndim} dimension(s)"
        raise ValueError(f"{name} must be {wanted}, got an array of shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got {value!r}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, got {value!r}")
    too_low = (array <= lower) if strict else (array < lower)
    too_high = (array >= upper) if strict else (array > upper)
    if np.any(too_low) or np.any(too_high):
        word = "greater than" if strict else "at least"
        below = "less than" if strict else "at most"
        bounds = [f"{word} {lower:g}"] if np.isfinite(lower) else []
        bounds += [f"{below} {upper:g}"] if np.isfinite(upper) else []
        raise ValueError(f"{name} must be {' and '.join(bounds)}, got {value!r}")
    return array
