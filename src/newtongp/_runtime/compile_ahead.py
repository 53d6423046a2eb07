"""Compilations that are started in a thread before a program is called, while Python does other things.

The compiler does not hold Python's lock, and neither does reading a compiled program from a file.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import jax

FINDS_COMPILED = jax.__version_info__ >= (0, 10)
"""Whether a call finds what `lower` and `compile` have made of the same function; before, it compiles again."""


class Compilation:
    """The compilation of a lowered program, in a thread of its own; Python waits for it when it exits.

    `use`, if given, is called with the compiled program at the end.
    """

    def __init__(self, lowered: Any, use: Callable[[Any], None] | None = None):
        self._seconds = 0.0
        self._lowered: Any = lowered
        self._use, self._compiled = use, None
        self._thread = threading.Thread(target=self._compile, name="newtongp-compiler")
        self._thread.start()

    def _compile(self) -> None:
        began = time.perf_counter()
        # A program that cannot be compiled is compiled again by the first call, which raises the error.
        with contextlib.suppress(Exception):
            self._compiled = self._lowered.compile()
        self._seconds = time.perf_counter() - began
        if self._compiled is not None:
            if self._use is not None:
                self._use(self._compiled)
            self._lowered = self._use = None  # they are large

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def wait(self) -> float:
        """Return when it has ended: how many seconds it took."""
        self._thread.join()
        return self._seconds

    def result(self) -> Any:
        """The compiled program."""
        self._thread.join()
        return self._compiled if self._lowered is None else self._lowered.compile()
