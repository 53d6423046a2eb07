"""Compilations that are started in threads before a program is called, while Python does other things.

The compiler does not hold Python's lock, and neither does reading a compiled program from a file. One core is left to
Python. On two cores, programs are therefore compiled one after the other, in the order in which they were started, and
the first is ready sooner than if all were compiled at once.
"""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

FINDS_COMPILED = jax.__version_info__ >= (0, 10)
"""Whether a call finds what `lower` and `compile` have made of the same function; before, it compiles again."""


@functools.cache
def _workers() -> ThreadPoolExecutor:
    """The threads of the compiler; Python waits for them when it exits."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return ThreadPoolExecutor(max(1, allowed - 1), thread_name_prefix="newtongp-compiler")


_uses: list[Future] = []


def _afterwards(use: Callable[[], None]) -> None:
    """Do something once a thread is free."""
    _uses[:] = [future for future in _uses if not future.done()]
    try:
        _uses.append(_workers().submit(use))
    except RuntimeError:  # Python is about to exit
        use()


def wait_for_uses() -> None:
    """Return when all compiled programs have been used: for tests."""
    for future in list(_uses):
        future.result()


class Compilation:
    """The compilation of a lowered program, in a thread as soon as one is free.

    `use`, if given, is called in such a thread afterwards, with the compiled program and the seconds that it took.
    """

    def __init__(self, lowered: Any, use: Callable[[Any, float], None] | None = None):
        self._seconds = 0.0
        self._lowered: Any = lowered
        self._use, self._compiled = use, None
        self._future: Future = _workers().submit(self._compile)

    def _compile(self) -> None:
        began = time.perf_counter()
        # A program that cannot be compiled is compiled again by the first call, which raises the error.
        with contextlib.suppress(Exception):
            self._compiled = self._lowered.compile()
        self._seconds = time.perf_counter() - began
        if self._compiled is not None:
            # Not at once: nobody should wait for it.
            if self._use is not None:
                _afterwards(functools.partial(self._use, self._compiled, self._seconds))
            self._lowered = self._use = None  # they are large

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return not self._future.done()

    def wait(self) -> float:
        """Return when it has ended: how many seconds it took. If no thread has been free, it takes place here."""
        if not self._future.done():
            if self._future.cancel():
                self._compile()
            else:
                self._future.result()
        return self._seconds

    def result(self) -> Any:
        """The compiled program."""
        self.wait()
        return self._compiled if self._lowered is None else self._lowered.compile()
