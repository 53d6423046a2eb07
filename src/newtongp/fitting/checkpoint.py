"""Files from which a search can be resumed."""

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
    """The file of one search, with named arrays: replaced while the search runs, and read when it is started again.

    Results that took longer to compute than the file takes to write are written at once. Quicker ones wait until
    writing takes at most a tenth of the time.
    """

    PATIENCE: ClassVar[float] = 10.0
    """How long quick results may wait, as a multiple of the time that writing takes."""

    def __init__(self, path: Any, kind: str, mark: str):
        """`mark` is the fingerprint of the search; a file with a different one is rejected."""
        self.path, self.kind, self.mark = Path(path), kind, mark
        self.cost = 0.0
        """The time that the last write took, in seconds."""
        self.checked = self.written = time.monotonic()

    def read(self) -> dict[str, Any] | None:
        """The contents of the file; None if it does not exist."""
        if not self.path.exists():
            return None
        from ..storage import read_file

        contents = read_file(self.path, self.kind)
        if not isinstance(contents, dict):
            raise self.unusable("it contains no named arrays")
        if contents.get("mark") != self.mark:
            raise self.of_another_fit()
        return contents

    def array(self, contents: dict[str, Any], name: str, kind: str, *shape: int | None) -> np.ndarray:
        """One of the arrays in the file, of this kind ("f" or "i") and shape, with None for any length."""
        array = contents.get(name)
        if not isinstance(array, np.ndarray) or array.dtype.kind != kind:
            raise self.unusable(f"{name} must be an array of {'floats' if kind == 'f' else 'integers'}")
        fits = len(shape) == array.ndim and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
        if not fits:
            expected = str(shape).replace("None", "any")
            raise self.unusable(f"{name} must have shape {expected}, got {array.shape}")
        return array

    def of_another_fit(self, detail: str = "") -> ValueError:
        """The error for a file of a search with another model, data or options."""
        return ValueError(
            f"checkpoint {str(self.path)!r} belongs to another fit{detail}. Use the same model, data and options as "
            "before, or another file"
        )

    def unusable(self, why: str) -> ValueError:
        """The error for a file whose contents cannot come from a search."""
        from ..storage import FileFormatError

        return FileFormatError(
            f"checkpoint {str(self.path)!r} cannot be resumed from: {why}. Delete it to start anew, or use another file"
        )

    def is_due(self) -> bool:
        """Whether to write what has been computed since the last call."""
        now = time.monotonic()
        took, self.checked = now - self.checked, now
        return took >= self.cost or now - self.written >= self.PATIENCE * self.cost

    def write(self, payload: dict[str, Any]) -> None:
        """Replace the file."""
        from ..storage import write_file

        started = time.monotonic()
        write_file(self.path, self.kind, {"mark": self.mark, **payload})
        self.checked = self.written = time.monotonic()
        self.cost = self.written - started


def fingerprint(objects: Any, arrays: Any, words: Any) -> str:
    """A text that identifies objects (leaves, structure and functions), arrays and words.

    It does not depend on memory addresses, so it is the same in every process. Functions are identified by their module
    and name, their defaults, and the numbers and arrays that they close over. A function with a changed body, a changed
    global variable, or another lambda in the same place are not detected.

    >>> one, same, other = (fingerprint({"rate": rate}, [np.ones(3)], "words") for rate in (0.1, 0.1, 0.2))
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((objects, arrays)):
        if not callable(leaf):
            digest.update(np.ascontiguousarray(leaf).tobytes())
    described = jax.tree.structure(objects), words, [_describe(function) for function in functions_in(objects)]
    digest.update(_ADDRESS.sub("", repr(described)).encode())
    return digest.hexdigest()


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def _describe(function: types.FunctionType) -> Any:
    """The name of a function, its defaults, and the values that it closes over."""
    enclosed = [_hashable(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = [_hashable(value) for value in function.__defaults__ or ()]
    return function.__module__, function.__qualname__, defaults, enclosed


def _hashable(value: Any) -> Any:
    """A value whose `repr` is complete: that of a long array is abbreviated."""
    return np.asarray(value).tobytes() if isinstance(value, (np.ndarray, jax.Array)) else value
