"""Files that a search can be resumed from."""

import hashlib
import re
import time
import types
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from ..validation.functions import functions_in


class Checkpoint:
    """A file of one search, with arrays by name: replaced while it runs, and read when it runs again.

    What took longer to compute than the file takes to write is written at once. What was quicker waits until writing
    takes no more than a tenth of the time.
    """

    PATIENCE: ClassVar[float] = 10.0
    """How many times as long as writing takes, quick results may wait."""

    def __init__(self, path: Any, kind: str, mark: str):
        """`mark` is the fingerprint of the search: a file with another one is refused."""
        self.path, self.kind, self.mark = Path(path), kind, mark
        self.cost = 0.0
        """Seconds that writing took the last time."""
        self.asked = self.written = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """What an earlier run has left; None if there was none."""
        if not self.path.exists():
            return None
        from ..storage import read_file

        kept = read_file(self.path, self.kind)
        if not isinstance(kept, dict):
            raise self.unusable("it holds no arrays by name")
        if kept.get("mark") != self.mark:
            raise ValueError(
                f"checkpoint {str(self.path)!r} is of another fit: give the same model, data and options as before, or "
                "another file"
            )
        return kept

    def array(self, kept: dict[str, Any], name: str, kind: str, *shape: int | None) -> np.ndarray:
        """One of the arrays that were read, of this kind ("f" or "i") and shape, with None for any length."""
        found = kept.get(name)
        if not isinstance(found, np.ndarray) or found.dtype.kind != kind:
            raise self.unusable(f"{name} must be an array of {'floats' if kind == 'f' else 'integers'}")
        fits = len(shape) == found.ndim and all(n in (None, m) for n, m in zip(shape, found.shape, strict=True))
        if not fits:
            wanted = str(shape).replace("None", "any")
            raise self.unusable(f"{name} must have shape {wanted}, and has {found.shape}")
        return found

    def unusable(self, why: str) -> ValueError:
        """The error for a file whose contents no search can have written."""
        from ..storage import FileFormatError

        return FileFormatError(
            f"checkpoint {str(self.path)!r} cannot be resumed from: {why}. Delete it to start anew, or give another "
            "file"
        )

    def is_due(self) -> bool:
        """Whether to write what has been computed since this was last asked."""
        now = time.monotonic()
        took, self.asked = now - self.asked, now
        return took >= self.cost or now - self.written >= self.PATIENCE * self.cost

    def write(self, payload: dict[str, Any]) -> None:
        """Replace the file."""
        from ..storage import write_file

        started = time.monotonic()
        write_file(self.path, self.kind, {"mark": self.mark, **payload})
        self.asked = self.written = time.monotonic()
        self.cost = self.written - started


def fingerprint(objects: Any, arrays: Any, words: Any) -> str:
    """A text that differs for other objects (leaves, structure and functions), other arrays and other words.

    It is the same in another process, where objects are elsewhere in memory. Functions are known by their module and
    name, their defaults, and the numbers and arrays that they close over: a file of a search with other such values is
    noticed, but not that the body of a function has been rewritten, that a global variable it reads has changed, or
    that another lambda stands in the same place.

    >>> one, same, other = (fingerprint({"rate": rate}, [np.ones(3)], "words") for rate in (0.1, 0.1, 0.2))
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((objects, arrays)):
        if not callable(leaf):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    described = jax.tree.structure(objects), words, [_described(function) for function in functions_in(objects)]
    digest.update(_ADDRESS.sub("", repr(described)).encode())
    return digest.hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _described(function: types.FunctionType) -> Any:
    """Which function it is, and the values that it closes over."""
    enclosed = [_in_full(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = [_in_full(value) for value in function.__defaults__ or ()]
    return function.__module__, function.__qualname__, defaults, enclosed


def _in_full(value: Any) -> Any:
    """A value whose text says all of it: that of a long array leaves its middle out."""
    return np.asarray(value).tobytes() if isinstance(value, (np.ndarray, jax.Array)) else value
