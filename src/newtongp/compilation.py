"""Compiling large programs quickly and in little memory.

XLA's newer way of making kernels on a CPU takes twice the time and several times the memory of the older one for
programs like ours, and most kernels are no faster (those that evaluate likelihoods at very many nodes are). Which one
is used is an option of the compiler, not a documented one: it is tried once on a small function, and left alone where
it is not known.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import programs

_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}


def compiled(
    function: Callable,
    static_argnums: int | tuple[int, ...] = (),
    donate_argnums: int | tuple[int, ...] = (),
    always_kept: bool = False,
) -> Callable:
    """`jax.jit` for the large programs of the package, which are kept where that is possible (`programs.py`).

    With `quickly=False` they are compiled as XLA would by itself. Programs that are made quickly are not worth keeping,
    unless they are `always_kept`.
    """
    static, donated = _as_tuple(static_argnums), _as_tuple(donate_argnums)

    def jitted(function: Callable, quickly: bool) -> Any:
        options = _OPTIONS if quickly and options_work() else None
        return jax.jit(function, static_argnums=static, donate_argnums=donated, compiler_options=options)

    usual = functools.cache(functools.partial(jitted, function))

    @functools.wraps(function)
    def call(*args: Any, quickly: bool = True) -> Any:
        def jitted_as(name: str) -> Any:
            return jitted(_renamed(function, name), quickly)

        found = programs.run(function, jitted_as, args, static, donated, quickly, always_kept)
        return usual(quickly)(*args) if found is None else found[0]

    return call


def _as_tuple(numbers: int | tuple[int, ...]) -> tuple[int, ...]:
    return numbers if isinstance(numbers, tuple) else (numbers,)


def _renamed(function: Callable, name: str) -> Callable:
    def call(*args):
        return function(*args)

    call.__name__ = name
    return call


def options_work() -> bool:
    """Whether the compiler knows our options here."""
    return jax.default_backend() == "cpu" and _try_options()


@programs.remembered
def _try_options() -> bool:
    try:
        with jax.ensure_compile_time_eval():
            found = jax.jit(lambda x: x + 1.0, compiler_options=_OPTIONS)(np.float32(1.0))
            return float(found) == 2.0
    # What a compiler does with an option that it does not know is its own affair: any error means no.
    except Exception:
        return False
