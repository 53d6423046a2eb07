"""Compiling programs with an effort that fits what there is to gain.

XLA's optimisations take several times as long as the rest of a compilation, and small problems are solved in
milliseconds without them. There are three levels of effort:

- `"low"`, without optimisation of machine code: compiles in a third of the time of `"medium"`, and loops over rows
  take two to three times as long. For small problems.
- `"medium"`, with an older way of making kernels, which takes half the time and a fraction of the memory of the newer
  one. Most kernels are no slower.
- `"full"`, XLA's defaults: for likelihoods that are evaluated at very many nodes.

Options of the compiler are not documented, so each set is tried once on a small function, and left out if the compiler
does not know it. The environment variable NEWTONGP_EFFORT sets one level for everything.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np

Effort = Literal["low", "medium", "full"]

_OPTIONS: dict[str, dict[str, Any]] = {
    "low": {
        "xla_cpu_use_fusion_emitters": False,
        "xla_backend_optimization_level": 0,
        "xla_cpu_parallel_codegen_split_count": 1,
    },
    "medium": {"xla_cpu_use_fusion_emitters": False},
    "full": {},
}
_FEW = 2**18
"""The number of array elements up to which a program that runs once is compiled with low effort."""


def compiled(
    function: Callable,
    static_argnums: int | tuple[int, ...] = (),
    donate_argnums: int | tuple[int, ...] = (),
) -> Callable:
    """`jax.jit` with an effort that is chosen for each call: low for small arguments, medium for others.

    Programs that iterate are called with the `effort` that fits their number of operations.
    """

    @functools.cache
    def jitted(effort: Effort) -> Any:
        options = _OPTIONS[effort] if options_work(effort) else None
        return jax.jit(function, static_argnums=static_argnums, donate_argnums=donate_argnums, compiler_options=options)

    @functools.wraps(function)
    def call(*args: Any, effort: Effort | None = None) -> Any:
        return jitted(_forced() or effort or _by_size(args))(*args)

    return call


def _by_size(args: Any) -> Effort:
    return "low" if sum(np.size(leaf) for leaf in jax.tree.leaves(args)) <= _FEW else "medium"


def _forced() -> Effort | None:
    """The level that the environment sets for everything, if any."""
    level = os.environ.get("NEWTONGP_EFFORT")
    if level is None or level == "":
        return None
    if level not in _OPTIONS:
        raise ValueError(f"NEWTONGP_EFFORT must be {', '.join(_OPTIONS)} or unset, got {level!r}")
    return level  # pyright: ignore[reportReturnType]


def options_work(effort: Effort) -> bool:
    """Whether the compiler accepts the options of this level here."""
    return jax.default_backend() == "cpu" and _try_options(effort)


@functools.cache
def _try_options(effort: Effort) -> bool:
    try:
        with jax.ensure_compile_time_eval():
            answer = jax.jit(lambda x: x + 1.0, compiler_options=_OPTIONS[effort])(np.float32(1.0))
            return float(answer) == 2.0
    # What a compiler does with an option that it does not know is its own affair: any error means no.
    except Exception:
        return False
