"""Compiling programs with as much optimisation as is worthwhile.

XLA's optimisations take several times as long as the rest of a compilation, and small problems are solved in
milliseconds without them. There are three levels of effort:

- `"low"`, without optimisation of machine code: compiles in a third of the time of `"medium"`, and loops over rows
  take two to three times as long. For small problems.
- `"medium"`, with an older way of making kernels, which takes half the time and a fraction of the memory of the newer
  one. Most kernels are no slower.
- `"full"`, XLA's defaults: for likelihoods that are evaluated at very many nodes.

Programs that were compiled with low effort and are used for long are compiled again with medium effort (`tiers.py`).
With `use_cache`, low becomes medium: what is compiled once for all processes is worth more.

Options of the compiler are not documented. With versions of JAX that are not known to have them, each set is tried once
on a small function, and left out if the compiler does not know it. The environment variable NEWTONGP_EFFORT sets one
level for everything.
"""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.core
import numpy as np

from . import saved_programs
from .jax_settings import TRIED
from .threads import one_blas_thread
from .tiers import Tiers

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
_SMALL_ARGUMENTS, _LITTLE_WORK = 2**19, 2**17
"""The number of array elements up to which a program that runs once, or iterates, is compiled with low effort."""
_ONE_THREAD = 2**23
"""The number of array elements up to which linear algebra runs on one thread: matrices of about 1000 rows."""


def compiled(
    function: Callable,
    static_argnums: int | tuple[int, ...] = (),
    donate_argnums: int | tuple[int, ...] = (),
) -> Any:
    """`jax.jit` with an effort and a number of threads that are chosen for each call.

    They depend on `work`, the number of array elements that the program processes, or processes per step if it
    iterates. By default that is the size of its arguments. If the program factorises many small matrices, `matrix`, the
    number of elements of one of them, determines the threads. With `full`, the effort is full unless there is little
    work.
    Without `again`, the program is not compiled a second time. There are three attributes: `start` starts compiling the
    program that a call with such arguments, of which only the shapes matter, will use, and returns the shapes of its
    value if it did; `is_pending` says whether a program that was started is still being compiled or read; `prepare`
    compiles one for later calls (`Tiers.prepare`).
    """

    @functools.cache
    def jitted(effort: Effort | None) -> Any:
        options = None if effort is None else _options(effort)
        return jax.jit(function, static_argnums=static_argnums, donate_argnums=donate_argnums, compiler_options=options)

    on_disk = saved_programs.SavedPrograms(function, static_argnums, donate_argnums, _options_on_disk)

    def quick(*args: Any) -> Any:
        answer = on_disk(args, saved_programs.QUICK) if saved_programs.are_saved() else None
        return jitted("low")(*args) if answer is None else answer

    tiers = Tiers(quick, lambda: jitted("medium"), static_argnums, on_disk)

    @functools.wraps(function)
    def call(
        *args: Any, work: float | None = None, matrix: float | None = None, full: bool = False, again: bool = True
    ) -> Any:
        leaves, structure = jax.tree.flatten(tiers.dynamic(args))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return jitted(None)(*args)  # part of a larger program, which has its own options
        size = sum(getattr(leaf, "size", 1) for leaf in leaves)
        elements = size if work is None else work
        factorised = elements if matrix is None else matrix
        forced, effort = forced_effort(), _effort(size, work, full)
        with at_once(), blas_threads_for(factorised):
            if effort == "low" and forced is None:
                return tiers.run(args, leaves, structure, wait_for, again)
            ready = tiers.prepared(args, leaves, structure) if forced is None else None
            if ready is not None:
                return wait_for(ready())
            answer = on_disk(args, effort) if saved_programs.are_saved() else None
            if answer is None:
                answer = jitted(effort)(*args)
            return answer if factorised > _ONE_THREAD else wait_for(answer)

    def start(*args: Any, work: float | None = None, full: bool = False) -> Any:
        if forced_effort() is not None:
            return None
        size = sum(getattr(leaf, "size", 1) for leaf in jax.tree.leaves(tiers.dynamic(args)))
        effort, are_saved = _effort(size, work, full), saved_programs.are_saved()
        # The first call will raise the same error, where it can be explained.
        with contextlib.suppress(Exception):
            level = saved_programs.QUICK if effort == "low" else effort
            saved, shapes = on_disk.start(args, level) if are_saved else (False, None)
            return shapes if saved else tiers.start(args, jitted(effort))
        return None

    def is_pending() -> bool:
        return tiers.is_compiling() or on_disk.are_compiling() or saved_programs.are_read()

    vars(call).update(prepare=lambda *args: tiers.prepare(args), start=start, is_pending=is_pending)
    return call


def _effort(size: int, work: float | None, full: bool) -> Effort:
    """The effort for arguments of this size, or for this work."""
    little = size <= _SMALL_ARGUMENTS if work is None else work <= _LITTLE_WORK
    if little and not saved_programs.are_wanted():
        return forced_effort() or "low"
    return forced_effort() or ("full" if full else "medium")


def is_quick(work: float) -> bool:
    """Whether a program that iterates, with this work per step, is compiled with low effort at first."""
    return _effort(0, work, False) == "low"


def at_once() -> contextlib.AbstractContextManager[Any]:
    """A context in which concrete arguments are computed with at once, even while a function around this is traced."""
    # Elsewhere it would compile every constant in a program by itself.
    is_traced = isinstance(jax.device_put(_zero()), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if is_traced else contextlib.nullcontext()


@functools.cache
def _zero() -> jax.Array:
    """A number on the device: looking at it takes a fraction of the time of putting one there."""
    with jax.ensure_compile_time_eval():
        return jax.device_put(np.float32(0.0))


def blas_threads_for(elements: float) -> contextlib.AbstractContextManager[None]:
    """A context with one thread for linear algebra if so few array elements are processed."""
    return one_blas_thread() if elements <= _ONE_THREAD else contextlib.nullcontext()


def wait_for(answer: Any) -> Any:
    """The answer of a program when it has ended; after Ctrl-C too, because a process that ends before it can crash."""
    try:
        return jax.block_until_ready(answer)
    except KeyboardInterrupt:
        jax.block_until_ready(answer)
        raise


def forced_effort() -> Effort | None:
    """The level that the environment sets for everything, if any."""
    level = os.environ.get("NEWTONGP_EFFORT")
    if level is None or level == "":
        return None
    if level not in _OPTIONS:
        raise ValueError(f"NEWTONGP_EFFORT must be {', '.join(_OPTIONS)} or unset, got {level!r}")
    return level  # pyright: ignore[reportReturnType]


def _options(effort: Effort) -> dict[str, Any] | None:
    return _OPTIONS[effort] if options_work(effort) else None


def _options_on_disk(effort: str) -> dict[str, Any] | None:
    return _options("low" if effort == saved_programs.QUICK else effort)  # pyright: ignore[reportArgumentType]


def options_work(effort: Effort) -> bool:
    """Whether the compiler accepts the options of this level here."""
    return jax.default_backend() == "cpu" and _try_options(effort)


@functools.cache
def _try_options(effort: Effort) -> bool:
    return TRIED or saved_programs.answered(
        f"options {effort} {_OPTIONS[effort]}", functools.partial(_are_accepted, effort)
    )


def _are_accepted(effort: Effort) -> bool:
    try:
        with at_once():
            answer = jax.jit(lambda x: x + 1.0, compiler_options=_OPTIONS[effort])(np.float32(1.0))
            return float(answer) == 2.0
    # Compilers report unknown options in different ways, so any error means that the options cannot be used.
    except Exception:
        return False
