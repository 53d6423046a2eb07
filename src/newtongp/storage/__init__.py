"""Results in files: `save` and `load`, and trees of arrays and objects in general.

The parts: `container.py` (bytes), `trees.py` (JSON and arrays), `records.py` (objects and their fields), `registry.py`
(which classes), `constructing.py` (fields through constructors), `fields.py` and `checks.py` (types, and what
constructors do not check), `kept_results.py` (results themselves).
"""

from collections.abc import Iterable
from typing import Any

from ..results.result import Result
from .container import name_of, read_file, write_file
from .errors import FileFormatError, short
from .trees import decode, encode

__all__ = ["FileFormatError", "decode", "encode", "load", "read_file", "save", "write_file"]


def save(result: Result, path: Any) -> None:
    """Write a result to a file, in one go: see `Result.save`."""
    if not isinstance(result, Result):
        raise ValueError(f"result must be what infer returns, got {type(result).__name__}")
    write_file(path, "result", result)


def load(path: Any, classes: Iterable[Any] = ()) -> Any:
    """The result that `result.save(path)` wrote, with its model, ready to predict.

    `classes` are classes of your own that the model is made of, such as a likelihood, and functions of your own that
    serve as means: a file holds their names only. No code is ever loaded from a file, so those of others are safe to
    open. `newtongp.storage.FileFormatError`, a ValueError, says what is wrong with a file that cannot be loaded.

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
    found = read_file(path, "result", classes)
    if not isinstance(found, Result):
        raise FileFormatError(f"{name_of(path)!r} cannot be loaded: it is no result, but {short(found)}")
    return found
