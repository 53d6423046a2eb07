"""Less work for Python's garbage collector while very many objects are made that stay.

Importing JAX and tracing programs make hundreds of thousands of objects, and the collector looks at all of them again
and again without finding any garbage. That is a tenth of the time of a first fit. When Python exits, it looks at them
three times more, which takes almost half a second.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_state = {"pauses": 0, "was_enabled": False}


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """A context without garbage collection; afterwards it is as it was before.

    >>> with paused():
    ...     inside = gc.isenabled()
    >>> inside, gc.isenabled()
    (False, True)
    """
    with _lock:
        if _state["pauses"] == 0:
            _state["was_enabled"] = gc.isenabled()
            gc.disable()
        _state["pauses"] += 1
    try:
        yield
    finally:
        with _lock:
            _state["pauses"] -= 1
            if _state["pauses"] == 0 and _state["was_enabled"]:
                gc.enable()


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """A context for imports, without garbage collection; most of what they make is never looked at again.

    It is set aside by `gc.freeze`, which sets aside everything that there is. What a process had before may well become
    garbage, and therefore nothing is set aside if that is half of all objects or more, as in a process that has
    imported JAX already.
    """
    before = len(gc.get_objects())
    with paused():
        yield
        if len(gc.get_objects()) > 2 * before:
            gc.freeze()
