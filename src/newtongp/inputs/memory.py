"""Memory estimates, checked before any work starts.

The system often kills a process that runs out of memory without a message. The estimates cover the arrays that exist at
the same time, as measured on a few models, and ignore those that do not grow with the data.
"""

import contextlib
import contextvars
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..validation.arguments import flag

_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available() -> float:
    """The number of bytes available to this process; infinite if the system does not report it."""
    return min(_limits(), default=float("inf"))


def _limits() -> Iterator[float]:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        yield 1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        for limit, used in _CGROUPS:
            with contextlib.suppress(OSError, ValueError):
                yield float(int(Path(limit).read_text()) - int(Path(used).read_text()))
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        yield float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


_LITTLE = 1e8
"""Bytes that are assumed to be available: querying takes too long for small problems."""


def require(needed: float, what: str, remedy: str) -> None:
    """Raise MemoryError if `what` needs more bytes than are available.

    >>> require(1e18, "a matrix", "make it smaller")
    Traceback (most recent call last):
        ...
    MemoryError: a matrix needs about 1000000 TB of memory, and ... are available: make it smaller
    """
    # Other devices have their own memory and report when it runs out.
    if needed > _LITTLE and jax.default_backend() == "cpu" and needed > (free := available()):
        raise MemoryError(
            f"{what} needs about {in_words(needed)} of memory, and {in_words(free)} are available: {remedy}"
        )


def in_words(size: float) -> str:
    """A number of bytes in readable units.

    >>> in_words(2.5e9), in_words(3e5)
    ('2.5 GB', '0.3 MB')
    """
    unit, name = next(((u, n) for u, n in ((1e12, "TB"), (1e9, "GB")) if size >= u), (1e6, "MB"))
    return f"{size / unit:.2g} {name}" if size < 10 * unit else f"{size / unit:.0f} {name}"


_checked: contextvars.ContextVar[bool] = contextvars.ContextVar("checked", default=True)


@contextlib.contextmanager
def checked(wanted: bool) -> Iterator[None]:
    """A context in which problems do or do not have to fit in memory."""
    token = _checked.set(_checked.get() and flag(wanted, "check_memory"))
    try:
        yield
    finally:
        _checked.reset(token)


def require_rows(prior: Any, x: np.ndarray, times: float = 1.0) -> float:
    """The bytes needed for inference with this prior; MemoryError if `times` that is not available."""
    needed = prior.memory(x)
    if _checked.get():
        what = f"{type(prior).__name__} with {prior.num_latents} latent(s) and {x.shape[0]} row(s)"
        require(times * needed, what, f"{prior.memory_remedy}, or try it anyway with check_memory=False")
    return needed


def require_nodes(cubature: Any, rows: int, latents: int) -> None:
    """Raise MemoryError if the nodes of a rule for all these rows do not fit in memory."""
    if _checked.get() and cubature is not None:
        nodes = len(cubature.rule(latents)[1])
        require(
            8.0 * nodes * min(rows, ROWS_AT_ONCE) * (1 + latents + latents**2),
            f"{type(cubature).__name__} with {nodes} nodes for each of {rows} row(s)",
            "use fewer nodes, as in Unscented(5), or try it anyway with check_memory=False",
        )


ROWS_AT_ONCE = 2**14
"""The largest number of rows whose nodes are evaluated at the same time."""
