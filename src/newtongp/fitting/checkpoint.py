"""Files that a search can be resumed from."""

import hashlib
import time
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np


class Checkpoint:
    """A file of one search, with arrays by name: replaced now and then while it runs, and read when it runs again."""

    EVERY: ClassVar[float] = 2.0
    """Seconds between two writings, at least."""

    def __init__(self, path: Any, kind: str, mark: str):
        """`mark` is the fingerprint of the search: a file with another one is refused."""
        self.path, self.kind, self.mark = Path(path), kind, mark
        self.written = -np.inf

    def read(self) -> dict[str, Any] | None:
        """What an earlier run has left; None if there was none."""
        if not self.path.exists():
            return None
        from ..storage import read_file

        kept = read_file(self.path, self.kind)
        if kept.get("mark") != self.mark:
            raise ValueError(
                f"checkpoint {str(self.path)!r} is of another fit: give the same model, data and options as before, or "
                "another file"
            )
        return kept

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self.written >= self.EVERY

    def write(self, payload: dict[str, Any]) -> None:
        """Replace the file."""
        from ..storage import write_file

        write_file(self.path, self.kind, {"mark": self.mark, **payload})
        self.written = time.monotonic()


def fingerprint(objects: Any, arrays: Any, words: Any) -> str:
    """A text that differs for other objects (leaves and structure), other arrays and other words.

    >>> one, same, other = (fingerprint({"rate": rate}, [np.ones(3)], "words") for rate in (0.1, 0.1, 0.2))
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((objects, arrays)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    digest.update(repr((jax.tree.structure(objects), words)).encode())
    return digest.hexdigest()
