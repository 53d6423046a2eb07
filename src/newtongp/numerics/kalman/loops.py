"""Loops that XLA compiles as one kernel.

On a CPU, XLA runs every operation of a `lax.scan` body as a separate task, at tens of nanoseconds each, which makes a
Kalman filter fifty times slower than its arithmetic. Small loops are compiled whole, and the attribute that XLA sets on
those can be set by hand on others. It is not documented, so with versions of JAX that are not known to have it, it is
tried once on a small loop. If that fails, loops are plain scans, and long chains are cut into many pieces, so that each
task has more to do.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ..._runtime.compilation import at_once
from ..._runtime.jax_settings import TRIED, trace_variant
from ..._runtime.saved_programs import answered

_ATTRIBUTES = {"xla_cpu_small_call": "true", "inlineable": "false"}

_forced: list[bool] = []


def scan(body: Callable, start: Any, steps: Any, reverse: bool = False, whole: bool = True) -> tuple[Any, Any]:
    """`jax.lax.scan`, compiled as one kernel if `compiles_whole()`.

    Use `whole=False` for bodies with matrix products or calls to LAPACK, which cannot be compiled that way.
    """

    def run(start, steps):
        return jax.lax.scan(body, start, steps, reverse=reverse)

    if not (whole and compiles_whole()):
        return run(start, steps)
    return _marked(run)(start, steps)


def _marked(run: Callable) -> Callable:
    from jax.experimental.xla_metadata import set_xla_metadata

    def call(*args):
        with set_xla_metadata(**_ATTRIBUTES):
            return jax.jit(run, inline=False)(*args)

    return call


def compiles_whole() -> bool:
    """Whether loops can be compiled as one kernel on this device."""
    if _forced:
        return _forced[-1]
    return jax.default_backend() == "cpu" and _attribute_works()


@functools.cache
def _attribute_works() -> bool:
    return TRIED or answered("loops in one kernel", _try_attribute)


@contextlib.contextmanager
def plain_loops() -> Iterator[None]:
    """Within this context, newly traced loops are plain scans: for tests and measurements of the fallback."""
    jax.clear_caches()
    try:
        with unmarked():
            yield
    finally:
        jax.clear_caches()


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """Within this context, loops are traced as plain scans; functions compiled before are not affected.

    For programs that are transposed: XLA can crash on a marked loop that returns some of its arguments.
    """
    _forced.append(False)
    try:
        with trace_variant("plain loops"):
            yield
    finally:
        _forced.pop()


def _try_attribute() -> bool:
    """Whether a small loop with the attribute compiles and returns the result of a plain loop."""

    def body(carry, step):
        carry = 0.5 * carry + step / (1.0 + carry * carry)
        return carry, carry

    def run(start, steps):
        return jax.lax.scan(body, start, steps)

    try:
        with at_once():
            _, carries = jax.jit(_marked(run))(np.float32(1.0), np.ones(3, np.float32))
            carries = np.asarray(carries)
    # Any error of the compiler means that the attribute is not supported.
    except Exception:
        return False
    carry, expected = 1.0, []
    for _ in range(3):
        carry = 0.5 * carry + 1.0 / (1.0 + carry * carry)
        expected.append(carry)
    return bool(np.allclose(carries, expected, rtol=1e-5))


def time_axis_first(array: Any) -> Any:
    """(steps, pieces, ...) with the steps of all pieces in order of time: (pieces · steps, ...)."""
    return array.swapaxes(0, 1).reshape((-1, *array.shape[2:]))
