"""Results in files: `save` and `load`, and trees of arrays and objects in general.

The parts: `container.py` (bytes), `trees.py` (JSON and arrays), `records.py` (objects and their fields), `registry.py`
(which classes), `constructing.py` (objects through constructors), `fields.py` and `checks.py` (types, and checks that
constructors do not make), `saved_results.py` (results themselves).
"""

from collections.abc import Iterable
from typing import Any

from ..results.result import Result
from ..validation.arguments import file_name
from ..validation.text import short
from .container import kind_of, read_file, write_file
from .errors import FileFormatError
from .trees import decode, encode

__all__ = ["FileFormatError", "decode", "encode", "kind_of", "load", "read_file", "save", "write_file"]


def save(result: Result, path: Any) -> None:
    """Save a result in a file: see `Result.save`."""
    if not isinstance(result, Result):
        raise ValueError(f"result must be a Result, as infer returns, got {type(result).__name__}")
    write_file(path, "result", result)


def load(path: Any, classes: Iterable[Any] = ()) -> Any:
    """Load a result that `result.save(path)` wrote, with its model.

    `classes` lists the custom classes in the model, such as a likelihood, and custom functions that are used as means:
    a file holds only their names. No code is ever loaded from a file, so untrusted files are safe to open. If a file
    cannot be loaded, `newtongp.storage.FileFormatError`, a ValueError, says why.

    >>> import pathlib, tempfile
    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> result = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.save(pathlib.Path(folder) / "counts.ngp")
    ...     again = ng.load(pathlib.Path(folder) / "counts.ngp")
    >>> bool(again.predict([0.5]).mean == result.predict([0.5]).mean)
    True
    """
    result = read_file(path, "result", classes)
    if not isinstance(result, Result):
        raise FileFormatError(f"{file_name(path)!r} cannot be loaded: it is not a result, but {short(result)}")
    return result
