"""Checks of arguments from users: whole numbers, flags, keys, file names and functions.

Real numbers are checked in `numbers.py`, and data in `newtongp.inputs`.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from .numbers import parameter


def is_whole(value: Any) -> bool:
    """Whether this is an integer of Python or NumPy; True and False are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole(
    value: Any,
    name: str,
    least: int = 1,
    most: int | None = None,
    such_as: int | None = None,
    otherwise: str | None = None,
) -> int:
    """`value` as an integer in a range; `otherwise` is what else users may give.

    >>> whole(20, "max_steps")
    20
    >>> whole(2.5, "max_steps", least=0, such_as=100)
    Traceback (most recent call last):
        ...
    ValueError: max_steps must be an integer of at least 0, got 2.5: give a whole number, such as 100
    """
    if is_whole(value) and value >= least and (most is None or value <= most):
        return int(value)
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    wanted += "" if otherwise is None else f", or {otherwise}"
    example = max(least, 1) if such_as is None else such_as
    raise ValueError(f"{name} must be an integer {wanted}, got {value!r}: give a whole number, such as {example}")


def flag(value: Any, name: str) -> bool:
    """`value` as True or False.

    >>> flag("no", "throw")
    Traceback (most recent call last):
        ...
    ValueError: throw must be True or False, got 'no': write throw=True or throw=False
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} must be True or False, got {value!r}: write {name}=True or {name}=False")


def tolerance(tol: Any, strict: bool = False) -> float:
    """`tol` as a number of at least 0, or above 0 if `strict`."""
    return float(parameter(tol, "tol", lower=0.0, strict=strict, remedy="give a small number, such as 1e-6"))


def file_name(value: Any, name: str = "path", example: str = "result.ngp", what: str = "file") -> str:
    """`value` as the name of a file or folder.

    >>> file_name(3, "checkpoint", "fit.checkpoint")
    Traceback (most recent call last):
        ...
    ValueError: checkpoint must be the name of a file, got 3: give a string or a path, such as "fit.checkpoint"
    """
    try:
        return os.fsdecode(value)
    except TypeError:
        raise ValueError(
            f'{name} must be the name of a {what}, got {value!r}: give a string or a path, such as "{example}"'
        ) from None


def as_key(key: Any) -> Any:
    """A JAX key from a key or an integer seed."""
    try:
        if is_whole(key):
            return jax.random.key(int(key))
        if isinstance(key, jax.Array):
            typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
            single = key if typed else jax.random.wrap_key_data(key)
            if single.shape == ():
                return single
    except (OverflowError, TypeError):
        pass
    raise ValueError(f"key must be a JAX key, such as jax.random.key(0), or an integer seed, got {key!r}: write key=0")


@in_double
def generator(key: Any) -> np.random.Generator:
    """NumPy's random numbers for a JAX key or an integer seed, in any number without compilation.

    >>> float(generator(0).random(3)[0]) == float(generator(0).random())
    True
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(as_key(key))))


def check_key(key: Any) -> None:
    """Raise ValueError unless `as_key` accepts this key. For ordinary seeds this compiles nothing."""
    if not (is_whole(key) and 0 <= int(key) < 2**31):
        as_key(key)


_UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)


@contextlib.contextmanager
def traced(what: str) -> Iterator[None]:
    """A context for calling custom functions: if JAX cannot trace them, the error says what to write.

    >>> with traced("the mean function"):
    ...     jax.eval_shape(lambda x: np.sin(x), 1.0)
    Traceback (most recent call last):
        ...
    ValueError: the mean function cannot be traced by JAX: ...
    """
    try:
        yield
    except _UNTRACEABLE as error:
        raise ValueError(
            f"{what} cannot be traced by JAX: use the functions of jax.numpy instead of numpy and math "
            "(jnp.sin for np.sin), jnp.where instead of `if`, and no float(...) or int(...)"
        ) from error


def one_number(value: Any, what: str, advice: str) -> Any:
    """The return value of a custom function, as an array without dimensions."""
    array = jnp.asarray(value)
    if array.shape:
        raise ValueError(f"{what} must return one number, not an array of shape {array.shape}: {advice}")
    return array
