"""Checks of values against the declared types of fields."""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable
from typing import Any

import jax
import jaxtyping
import numpy as np

from ..priors.base import Prior
from ..validation.text import short
from .errors import FileFormatError, require
from .registry import key_of

_HYPERPARAMETERS = ("cubature", "kernels", "likelihoods", "means", "methods", "steps", "terms")


def check_field(cls: type, name: str, hint: Any, value: Any, where: str) -> None:
    """Raise FileFormatError if a value does not fit the field of a newtongp class."""
    if not fits(value, hint):
        raise FileFormatError(f"{where}.{name} of {cls.__name__} cannot be {short(value)}")
    if (issubclass(cls, Prior) or (key_of(cls) or "").partition(".")[0] in _HYPERPARAMETERS) and not is_finite(value):
        raise FileFormatError(f"{where}.{name} of {cls.__name__} must be finite, got {short(value)}")


def check_range(metadata: Any, value: Any) -> None:
    """Raise ValueError if a hyperparameter of a custom class violates its declared constraint."""
    constraint = metadata.get("constraint")
    if constraint is not None and value is not None:
        outside = np.any(np.isnan(constraint.unconstrain(np.asarray(value, dtype=np.float64))))
        require(not outside, f"a hyperparameter in {type(constraint).__name__}() cannot be {short(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value fits the declared type of a field."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, kind) for kind in inside)
    if origin is tuple:
        inside = inside[:1] * len(value) if inside[-1] is Ellipsis and isinstance(value, tuple) else inside
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(fits, value, inside))
    if origin is list:
        return isinstance(value, list) and all(fits(entry, inside[0]) for entry in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(key, inside[0]) and fits(value[key], inside[1]) for key in value)
    if hint is Callable or origin is Callable:
        return callable(value)
    if hint is Any:
        if isinstance(value, tuple):
            return type(value) is tuple and all(map(_any, value))
        return value is None or _is_number(value) or dataclasses.is_dataclass(value)
    if hint is None:
        return value is None
    if not isinstance(hint, type):
        return True
    if hint in (jax.Array, np.ndarray) or issubclass(hint, jaxtyping.AbstractArray):
        return _is_number(value)
    if hint in (int, float):
        kinds = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, kinds) and not isinstance(value, (bool, enum.Enum))
    return isinstance(value, hint)


def _any(value: Any) -> bool:
    return fits(value, Any)


def _is_number(value: Any) -> bool:
    """A number or an array of numbers."""
    return isinstance(value, (bool, int, float, np.generic, np.ndarray))


def is_finite(value: Any) -> bool:
    """Whether all its numbers are finite."""
    if isinstance(value, tuple):
        return all(map(is_finite, value))
    array = np.asarray(value) if isinstance(value, (float, np.generic, np.ndarray)) else np.zeros(())
    return array.dtype.kind not in "fmM" or bool(np.all(np.isfinite(array)))
