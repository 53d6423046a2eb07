"""Programs that are compiled quickly at first, and again with more effort once that is worthwhile.

A program that was compiled with low effort is compiled with medium effort, in a thread of its own, once it has run for
as long as its first call took, and for at least a second. Nobody waits for the second compilation: the first program
runs until it is ready. A program can also be compiled in this way before it is called for the first time.

The first compilation can be started in a thread as well (`Tiers.start`, `compile_ahead.py`).
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import compile_ahead, garbage, jax_settings
from .saved_programs import SavedPrograms

_PATIENCE, LEAST = 1.0, 1.0
"""How long a program runs before it is compiled again, in durations of its first call, and at least in seconds."""


class Use:
    """How long a program has run, and what has taken its place."""

    def __init__(self):
        self.patience = np.inf
        self.seconds = 0.0
        self.replaced = False
        self.successor: Any = None
        self.started: compile_ahead.Compilation | None = None
        """The first compilation, if it was started before the first call."""
        self.traced = 0.0
        """How many seconds tracing took, if the first compilation was started."""

    @property
    def is_new(self) -> bool:
        """Whether there is no program yet."""
        return self.patience == np.inf and self.started is None and not self.replaced

    def wait(self) -> float:
        """Wait for the first compilation, if it was started; returns how long tracing and compiling took."""
        return 0.0 if self.started is None else self.traced + self.started.wait()


class Tiers:
    """The quickly compiled programs of one function, and those that have taken their places.

    `quick` is the function as compiled quickly, and `thorough` returns it as wrapped by `jax.jit`, with other options.
    `saved`, if given, has programs of earlier processes on disk (`saved_programs.py`).
    """

    def __init__(
        self,
        quick: Callable[..., Any],
        thorough: Callable[[], Any],
        static: int | tuple[int, ...],
        saved: SavedPrograms | None = None,
    ):
        self._quick, self._thorough, self._saved = quick, thorough, saved
        self._static = (static,) if isinstance(static, int) else static
        self._uses: dict[Any, Use] = {}
        self._prepares = False

    def prepare(self, args: tuple) -> Use | None:
        """Start compiling the program for such arguments, thoroughly and in the background.

        Calls use it once `successor` is there. None if nothing was started: where programs cannot be replaced, or while
        another one is being compiled.
        """
        use = self._use(args, *jax.tree.flatten(self.dynamic(args)))
        if use is None or use.replaced:
            return use
        # Tracing takes long: not in vain.
        if is_compiling():
            return None
        use.successor = None if self._saved is None else self._saved.thorough(args)
        if use.successor is None and not _in_background(self._replacement(use, args)):
            return None
        use.replaced = self._prepares = True
        return use

    def _replacement(self, use: Use, args: tuple) -> Callable[[], None]:
        """What compiles a program thoroughly. Tracing is done here, as it depends on settings of this thread."""
        lowered = self._thorough().lower(*args)
        save = None if self._saved is None else self._saved.saver(args, lowered)
        return functools.partial(_replace, use, lowered, save)

    def start(self, args: tuple, jitted: Any) -> Any:
        """Start compiling `jitted`, the function as wrapped by `jax.jit`, for such arguments; calls wait for it.

        Returns the shapes of its value, or None if nothing was started.
        """
        use = self._use(args, *jax.tree.flatten(self.dynamic(args))) if compile_ahead.FINDS_COMPILED else None
        if use is None or not use.is_new:
            return None
        began = time.perf_counter()
        with garbage.paused():
            lowered = jitted.lower(*args)
        use.traced = time.perf_counter() - began
        use.started = compile_ahead.Compilation(lowered)
        self._prepares = True
        return lowered.out_info

    def is_compiling(self) -> bool:
        """Whether any compilation that was started has not ended."""
        return any(use.started is not None and use.started.is_running for use in list(self._uses.values()))

    def prepared(self, args: tuple, leaves: list, structure: Any) -> Callable[[], Any] | None:
        """The function's value as a function, if the program was prepared and is ready; `leaves` as for `run`.

        A compilation that was started is waited for.
        """
        use = self._use(args, leaves, structure) if self._prepares else None
        if use is None:
            return None
        use.wait()
        return None if use.successor is None else functools.partial(use.successor, *self.dynamic(args))

    def run(self, args: tuple, leaves: list, structure: Any, wait_for: Callable[[Any], Any], again: bool = True) -> Any:
        """The function's value, for which `wait_for` waits. With `again`, the program is replaced if that is due.

        `leaves` and `structure` are those of the arguments that are not static.
        """
        use = self._use(args, leaves, structure)
        if use is None:
            return wait_for(self._quick(*args))
        if use.successor is not None:
            return wait_for(use.successor(*self.dynamic(args)))
        if again and use.seconds > use.patience and not use.replaced:
            use.replaced = _in_background(self._replacement(use, args))
        before, began = use.wait(), time.perf_counter()
        # The first call traces the function.
        with garbage.paused() if use.is_new else contextlib.nullcontext():
            answer = wait_for(self._quick(*args))
        elapsed = time.perf_counter() - began
        if use.patience == np.inf:
            earlier, use.successor = (0.0, None) if self._saved is None else self._saved.found(args)
            use.replaced = use.replaced or use.successor is not None
            use.patience = _PATIENCE * max(elapsed, before, earlier, LEAST)
        else:
            use.seconds += elapsed
        return answer

    def dynamic(self, args: tuple) -> tuple:
        """The arguments that are not static."""
        return tuple(arg for i, arg in enumerate(args) if i not in self._static) if self._static else args

    def _use(self, args: tuple, leaves: list, structure: Any) -> Use | None:
        """What is known of the program for such arguments; None where it cannot be replaced."""
        if jax.device_count() > 1 or jax_settings.is_debugged():
            return None
        static = tuple(args[i] for i in self._static if i < len(args))
        try:
            known = structure, tuple(map(_kind, leaves)), static, jax_settings.circumstances()
            return self._uses.get(known) or self._uses.setdefault(known, Use())
        except TypeError:  # a static value that cannot be hashed
            return None


def _kind(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None)
    return type(leaf) if dtype is None else (leaf.shape, dtype, getattr(leaf, "weak_type", False))


def _replace(use: Use, lowered: Any, save: Callable[[Any, float], None] | None) -> None:
    began = time.perf_counter()
    use.successor = lowered.compile()
    if save is not None:
        save(use.successor, time.perf_counter() - began)


_threads: list[threading.Thread] = []


def _in_background(job: Callable[[], None]) -> bool:
    """Start a job in a thread of its own unless another is running; returns whether it was started.

    Python waits for the thread when it exits: a process that ends while XLA is compiling can crash.
    """
    if is_compiling():
        return False
    thread = threading.Thread(target=job, name="newtongp-compiler")
    _threads[:] = [thread]
    thread.start()
    return True


def is_compiling() -> bool:
    """Whether a program is being compiled in the background."""
    return any(thread.is_alive() for thread in _threads)


def wait_for_compilations() -> None:
    """Return when no program is being compiled in the background: for tests and measurements."""
    for thread in list(_threads):
        thread.join()
