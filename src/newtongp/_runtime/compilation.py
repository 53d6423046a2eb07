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

_OPTIONS: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}


def compiled(
    function: Callable,
    static_argnums: int | tuple[int, ...] = (),
    donate_argnums: int | tuple[int, ...] = (),
) -> Callable:
    """`jax.jit` for the large programs of the package; with `quickly=False` they are compiled with XLA's defaults."""

    @functools.cache
    def jitted(quickly: bool) -> Any:
        options = _OPTIONS if quickly and options_work() else None
        return jax.jit(function, static_argnums=static_argnums, donate_argnums=donate_argnums, compiler_options=options)

    @functools.wraps(function)
    def call(*args: Any, quickly: bool = True) -> Any:
        return jitted(quickly)(*args)

    return call


def options_work() -> bool:
    """Whether the compiler accepts our options here."""
    return jax.default_backend() == "cpu" and _try_options()


@functools.cache
def _try_options() -> bool:
    try:
        with jax.ensure_compile_time_eval():
            found = jax.jit(lambda x: x + 1.0, compiler_options=_OPTIONS)(np.float32(1.0))
            return float(found) == 2.0
    # What a compiler does with an option that it does not know is its own affair: any error means no.
    except Exception:
        return False
