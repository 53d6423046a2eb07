"""Double precision without touching anyone's settings.

JAX truncates to single precision unless `jax_enable_x64` is set. newtongp never sets it globally:
every public entry point runs inside `jax.enable_x64(True)` and hands back NumPy arrays, which no
later JAX setting can truncate. Hyperparameters are NumPy float64 arrays for the same reason.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core
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
