"""Files that will be needed soon, read in a thread while Python does other things.

A process often needs what an earlier one needed. The first file that a process uses therefore has a list of those that
were used after it, and they are all read at once. Reading a compiled program holds Python's lock for a small part of
the time only.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

_SUFFIX = ".next"
_MOST = 24
"""The largest number of files in a list."""


class ReadAhead:
    """The files of one folder, which `load` reads; it returns None if there is none, or if it is of no use.

    It must not raise anything. `save` writes a list.
    """

    def __init__(self, folder: Path, load: Callable[[Path], Any], save: Callable[[Path, bytes], None]):
        self._folder, self._load, self._save = folder, load, save
        self._used: list[str] = []
        self._expected: list[str] = []
        self._reading: dict[str, Future] = {}
        self._threads: list[threading.Thread] = []

    def begin(self, name: str) -> bool:
        """Start reading a file that will be used. Returns whether there is one."""
        if name not in self._reading and not (self._folder / name).exists():
            return False
        self._start([name])
        self._note(name)
        return True

    def use(self, name: str) -> Any:
        """What a file contains; None if there is none, or if it is of no use."""
        self._note(name)
        reading = self._reading.pop(name, None)
        # What has not been begun is read here, before what was expected earlier.
        return self._load(self._folder / name) if reading is None or reading.cancel() else reading.result()

    @property
    def is_reading(self) -> bool:
        """Whether anything is being read."""
        return any(thread.is_alive() for thread in self._threads)

    def wait(self) -> None:
        """Return when nothing is being read: for tests."""
        for thread in self._threads:
            thread.join()

    def _start(self, names: list[str]) -> None:
        new = {name: Future() for name in names if name not in self._reading}
        if new:
            self._reading.update(new)
            self._threads.append(threading.Thread(target=self._read, args=(new,), name="newtongp-reader"))
            self._threads[-1].start()

    def _read(self, new: dict[str, Future]) -> None:
        for name, reading in new.items():
            # Python waits for this thread when it exits.
            if not threading.main_thread().is_alive():
                return
            if reading.set_running_or_notify_cancel():
                reading.set_result(self._load(self._folder / name))

    def _note(self, name: str) -> None:
        if name in self._used:
            return
        self._used.append(name)
        first, *others = self._used
        if not others:
            self._expected = self._read_list(first)
            self._start(self._expected)
        elif name not in self._expected and len(others) <= _MOST:
            self._expected = [*others, *(old for old in self._expected if old not in others)][:_MOST]
            self._save(self._folder / (first + _SUFFIX), "\n".join(self._expected).encode())

    def _read_list(self, first: str) -> list[str]:
        with contextlib.suppress(OSError, ValueError):
            names = (self._folder / (first + _SUFFIX)).read_text("ascii").splitlines()
            return [name for name in names[:_MOST] if name.isascii() and "/" not in name]
        return []
