"""Results in files: one file each, with no code in it and nothing that is not checked before it is used.

A file is eight bytes that say what it is, the version of the format (4 bytes), the length of the header (8), the header
(JSON: a tree of nodes, and the type and shape of every array), the arrays one after the other, and the SHA-256 of all
that; numbers are little-endian. Unlike in a zip of arrays, where names, sizes, compression and headers within headers
can contradict each other, the place of every byte follows from the header, and all of them together must be as many
as the file has: that is known before anything is allocated.

A file names classes, and never says where they are to be imported from: they are looked up among newtongp's own, which
are found without it, and those that the user gives. Their objects are made field by field, and then checked.
"""

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import io
import json
import math
import os
import pkgutil
import re
import secrets
import stat
import struct
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import jax
import jaxtyping
import numpy as np

from . import data as data_room
from . import means
from .data import Data
from .gaussian import Gaussian, Sites
from .infer import _posterior
from .methods.presets import FirstOrderVI
from .methods.rule import Method
from .model import Model
from .precision import in_double
from .priors.base import Posterior, Prior
from .priors.dense import GP
from .priors.linear import LinearModel
from .priors.markov import MarkovGP
from .priors.sparse import SparseGP, SparsePosterior
from .priors.statespace import StateSpaceModel
from .problem import Setup
from .results import History, Result, Status
from .times import Clock

# As of PNG: a byte above 127 and both kinds of line ends show a file that went through a transfer of text.
_MAGIC = b"\x89NGP\r\n\x1a\n"
_VERSION = 1
_PREFIX = struct.Struct("<8sIQ")
_CHECKSUM = hashlib.sha256().digest_size
_LARGEST_HEADER = 2**22
_DEEPEST = 100
"""Objects and tuples within each other."""
_BRACKETS = 3 * _DEEPEST + 10
"""What that is in JSON, at most."""
_CHUNK = 2**20

_TYPES = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<[mM]8\[\d{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")
"""What arrays may hold: truth values, integers, floating point numbers and times, as `numpy.dtype.str` spells them."""

_PACKAGE = __name__.partition(".")[0]
_TOOLS = {"__main__", "cli", "datasets", "demo", "experiments", "plotting", "programs", "report", "storage"}
"""Modules that make nothing which results are made of."""
_YOURS = "user"
"""In the name of a class, in place of the part of newtongp that it is from."""


class FileFormatError(ValueError):
    """A file cannot be loaded: it is damaged, or something else, or needs a class that was not given."""


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
        raise FileFormatError(f"{_name(path)!r} cannot be loaded: it is no result, but {_short(found)}")
    return found


# Files ------------------------------------------------------------------------------------------------------------


def write_file(path: Any, kind: str, payload: Any) -> None:
    """Write a tree of arrays, numbers and objects; `kind` says what it is, and `read_file` asks for it.

    The file is there as a whole or not at all: whatever was there before is replaced at the very end.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/pass.ngp", "checkpoint", {"rates": np.ones(2), "passes": 3})
    ...     read_file(f"{folder}/pass.ngp", "checkpoint")
    {'rates': array([1., 1.]), 'passes': 3}
    """
    target = _target(path)
    encoder = _Encoder()
    tree = encoder.node(payload, kind, 0)
    try:
        decode(tree, encoder.arrays, encoder.yours.values())  # what could not be loaded is not written
    except FileFormatError as error:
        raise ValueError(f"{kind} cannot be saved: {error}") from None
    header = {
        "newtongp": sys.modules[_PACKAGE].__version__,
        "kind": kind,
        "arrays": [[array.dtype.str, list(array.shape)] for array in encoder.arrays],
        "tree": tree,
    }
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > _LARGEST_HEADER:
        raise ValueError(
            f"{kind} cannot be saved: what is not in arrays takes {len(text)} bytes, more than {_LARGEST_HEADER}: put "
            "lists of numbers into arrays"
        )
    digest = hashlib.sha256()
    with _replacing(target) as file:
        for piece in (_PREFIX.pack(_MAGIC, _VERSION, len(text)), text, *map(_bytes_of, encoder.arrays)):
            file.write(piece)
            digest.update(piece)
        file.write(digest.digest())


def read_file(path: Any, kind: str, classes: Iterable[Any] = ()) -> Any:
    """The tree that `write_file` wrote; FileFormatError if it is anything else."""
    given, name = _by_name(classes), _name(path)
    try:
        with _opened(name) as file:
            header = _read_header(file)
            if header["kind"] != kind:
                raise FileFormatError(f"it holds a {header['kind']}, and what was asked for is a {kind}")
            arrays = [_read_array(file, *declared) for declared in header["arrays"]]
        return decode(header["tree"], arrays, given.values())
    except FileFormatError as error:
        raise FileFormatError(f"{name!r} cannot be loaded: {error}") from None


def _name(path: Any) -> str:
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ValueError(f"path must be the name of a file, got {path!r}") from None


def _target(path: Any) -> str:
    """Where to write: the file itself, if it is there under another name too."""
    target = os.path.realpath(_name(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise ValueError(f"path must be the name of a file, and {_name(path)!r} is none: choose another name")
    if not os.path.isdir(os.path.dirname(target)):
        raise ValueError(f"path is in a folder that does not exist, {os.path.dirname(target)!r}: make it first")
    return target


@contextlib.contextmanager
def _replacing(target: str) -> Iterator[BinaryIO]:
    """A file that takes the place of `target` once it is complete and on the disk."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:64]}.{secrets.token_hex(8)}.tmp")
    try:
        # Not by `tempfile`, whose files nobody else may read.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    # Asked first: opening a pipe would wait for someone to write to it.
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise FileFormatError("it is no file")
    with open(name, "rb") as file:
        yield file


_FOREIGN = "it is no file of newtongp's: files for newtongp.load are written by result.save"
_DAMAGED = "the file is damaged or not complete (its checksum is wrong): copy it again from where it was written"


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """The header, checked against the file; the file is left where the arrays begin."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(_MAGIC):
        raise FileFormatError(_FOREIGN)
    if size < _PREFIX.size + _CHECKSUM:
        raise FileFormatError(_DAMAGED)
    _, version, length = _PREFIX.unpack(prefix)
    if version != _VERSION:
        raise FileFormatError(
            f"it has version {version} of the format, and this newtongp reads version {_VERSION}: load it with the "
            "newtongp that wrote it, or a newer one"
        )
    room = size - _PREFIX.size - _CHECKSUM
    if length > min(room, _LARGEST_HEADER) or not _is_whole(file, size):
        raise FileFormatError(_DAMAGED)
    file.seek(_PREFIX.size)
    header = _parse(file.read(length))
    declared = sum(_size(*array) for array in header["arrays"])
    if declared != room - length:
        raise FileFormatError(f"its arrays would take {declared} bytes, and it has {room - length}")
    for _, shape in header["arrays"]:
        # An array without entries takes no bytes, whatever its other sides are.
        if any(side > size for side in shape):
            raise FileFormatError(f"it has an array of shape {tuple(shape)}, larger than itself")
    return header


def _is_whole(file: BinaryIO, size: int) -> bool:
    digest, left = hashlib.sha256(), size - _CHECKSUM
    file.seek(0)
    while left > 0:
        piece = file.read(min(left, _CHUNK))
        if not piece:
            return False
        digest.update(piece)
        left -= len(piece)
    return file.read(_CHECKSUM + 1) == digest.digest()


_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]')


def _parse(text: bytes) -> dict[str, Any]:
    """The header of a file, as far as what it declares has the right form."""
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        if depth > _BRACKETS:
            raise FileFormatError(f"its objects are more than {_DEEPEST} deep within each other")
    try:
        header = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except ValueError as error:
        raise FileFormatError(f"its header cannot be read ({error})") from None
    match header:
        case {"newtongp": str(), "kind": str(), "arrays": list(arrays), "tree": _, **rest} if not rest:
            for array in arrays:
                match array:
                    case [str(), list(shape)] if len(shape) <= 16 and all(map(_is_count, shape)):
                        pass
                    case _:
                        raise FileFormatError(f"it declares an array as {_short(array)}")
            return header
    raise FileFormatError("its header has not the parts that it should have")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _dtype(spelled: str) -> np.dtype:
    if not _TYPES.fullmatch(spelled):
        raise FileFormatError(f"it has an array of the type {_short(spelled)}, which is none for numbers or times")
    try:
        return np.dtype(spelled)
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"it has an array of a type that does not exist ({error})") from None


def _size(spelled: str, shape: list[int]) -> int:
    return _dtype(spelled).itemsize * math.prod(shape)


def _read_array(file: BinaryIO, spelled: str, shape: list[int]) -> np.ndarray:
    try:
        array = np.empty(shape, dtype=_dtype(spelled))
    except ValueError as error:
        raise FileFormatError(f"it has an array of shape {tuple(shape)}, which cannot be made ({error})") from None
    raw = _bytes_of(array)
    if file.readinto(raw) != raw.nbytes:  # pyright: ignore[reportAttributeAccessIssue]
        raise FileFormatError(_DAMAGED)
    if array.dtype.kind == "b" and np.any(raw > 1):
        raise FileFormatError("it has truth values that are neither true nor false")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _bytes_of(array: np.ndarray) -> Any:
    """The memory of an array."""
    return array.reshape(-1).view(np.uint8)


# Trees as JSON and arrays -----------------------------------------------------------------------------------------


def encode(tree: Any, name: str = "tree") -> tuple[Any, list[np.ndarray]]:
    """A tree of arrays, numbers, text, tuples, lists, dicts and objects, as what JSON can hold and a list of arrays.

    >>> encode({"rate": np.ones(2), "steps": 3})
    ({'dict': [['rate', {'array': 0}], ['steps', 3]]}, [array([1., 1.])])
    """
    encoder = _Encoder()
    return encoder.node(tree, name, 0), encoder.arrays


def decode(tree: Any, arrays: list[np.ndarray], classes: Iterable[Any] = ()) -> Any:
    """The inverse of `encode`, for trees from anywhere: FileFormatError if it cannot be one. Makes no copies.

    >>> decode(*encode((1.5, None, np.arange(3))))
    (1.5, None, array([0, 1, 2]))
    """
    try:
        return _Decoder(arrays, _by_name(classes)).whole(tree)
    except RecursionError:
        raise FileFormatError("its objects are too deep within each other") from None


class _Encoder:
    def __init__(self):
        self.arrays: list[np.ndarray] = []
        self.yours: dict[str, Any] = {}
        """Classes and functions that are not newtongp's own."""
        self._index: dict[int, tuple[int, Any]] = {}

    def node(self, value: Any, where: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"{where} cannot be saved: objects are more than {_DEEPEST} deep within each other")
        deeper = depth + 1
        # Before numbers and tuples, of which some of these are special cases.
        if isinstance(value, enum.Enum):
            return {"enum": self._class(type(value), where), "name": value.name}
        if isinstance(value, str):
            return str(value)
        if isinstance(value, (np.generic, np.ndarray, jax.Array)):
            return {"scalar" if isinstance(value, np.generic) else "array": self._array(value, where)}
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if type(value) in (tuple, list):
            return {type(value).__name__: [self.node(v, f"{where}[{i}]", deeper) for i, v in enumerate(value)]}
        if type(value) is dict:
            if not all(type(key) in (str, int) for key in value):
                raise ValueError(f"{where} cannot be saved: keys must be text or integers, got {_short(list(value))}")
            return {"dict": [[key, self.node(v, f"{where}[{key!r}]", deeper)] for key, v in value.items()]}
        if _is_record(type(value)):
            fields = {
                name: self.node(part, f"{where}.{name}", deeper) for name, part in _contents(value, where).items()
            }
            return {"object": self._class(type(value), where), "fields": fields}
        if callable(value) and not isinstance(value, type):
            return {"function": self._function(value, where)}
        raise ValueError(
            f"{where} cannot be saved: it is of the type {type(value).__name__}, and files hold numbers, text, arrays, "
            "tuples, lists, dicts and objects with declared fields (dataclasses)"
        )

    def _array(self, value: Any, where: str) -> int:
        if id(value) in self._index:
            return self._index[id(value)][0]
        spelled = value.dtype.newbyteorder("<").str if isinstance(value.dtype, np.dtype) else str(value.dtype)
        if isinstance(value, np.ma.MaskedArray) or not _TYPES.fullmatch(spelled):
            what = "masked arrays" if isinstance(value, np.ma.MaskedArray) else f"arrays of the type {value.dtype}"
            raise ValueError(f"{where} cannot be saved: files hold no {what}: convert it to one of numbers or times")
        self.arrays.append(np.asarray(value, dtype=spelled, order="C"))
        self._index[id(value)] = len(self.arrays) - 1, value  # kept, so that no other array gets its id
        return len(self.arrays) - 1

    def _class(self, cls: type, where: str) -> str:
        if cls.__module__.partition(".")[0] != _PACKAGE:
            return f"{_YOURS}.{self._own(cls, where)}"
        key = _key(cls)
        if _classes().get(key) is not cls:
            raise ValueError(f"{where} cannot be saved: {cls.__name__} is not among the classes that files hold")
        return key

    def _function(self, value: Any, where: str) -> str:
        if not getattr(value, "__name__", "").isidentifier() or getattr(value, "__self__", None) is not None:
            raise ValueError(
                f"{where} cannot be saved: {_short(value)} is code without a name by which it could be given again, "
                "and files hold no code: define a function with def and pass it to newtongp.load in classes=[...], or "
                "write a class with the numbers as fields"
            )
        return self._own(value, where)

    def _own(self, value: Any, where: str) -> str:
        name = value.__name__
        if self.yours.setdefault(name, value) is not value:
            raise ValueError(f"{where} cannot be saved: another class or function is called {name} too: rename one")
        return name


class _Decoder:
    def __init__(self, arrays: list[np.ndarray], given: dict[str, Any]):
        self._arrays, self._given = arrays, given

    def whole(self, tree: Any) -> Any:
        missing = sorted(_names_of_users(tree) - set(self._given))
        if missing:
            raise FileFormatError(
                f"it holds objects of {' and '.join(missing)}, not newtongp's own: import what is called so and write "
                f"newtongp.load(path, classes=[{', '.join(missing)}])"
            )
        return self._node(tree, "its content", 0)

    def _node(self, tree: Any, where: str, depth: int) -> Any:
        if depth > _DEEPEST:
            raise FileFormatError(f"its objects are more than {_DEEPEST} deep within each other")
        deeper = depth + 1
        match tree:
            case None | bool() | int() | float() | str():
                return tree
            case {"float": "nan" | "inf" | "-inf" as text, **rest} if not rest:
                return float(text)
            case {"array": int(index), **rest} if not rest and 0 <= index < len(self._arrays):
                return self._arrays[index]
            case {"scalar": int(index), **rest} if not rest and 0 <= index < len(self._arrays):
                if self._arrays[index].shape == ():
                    return self._arrays[index][()]
            case {"list": list(parts), **rest} if not rest:
                return [self._node(part, f"{where}[{i}]", deeper) for i, part in enumerate(parts)]
            case {"tuple": list(parts), **rest} if not rest:
                return tuple([self._node(part, f"{where}[{i}]", deeper) for i, part in enumerate(parts)])
            case {"dict": list(pairs), **rest} if not rest:
                if all(isinstance(p, list) and len(p) == 2 and type(p[0]) in (str, int) for p in pairs):
                    return {key: self._node(part, f"{where}[{_short(key)}]", deeper) for key, part in pairs}
            case {"enum": str(key), "name": str(name), **rest} if not rest:
                cls = self._look_up(key, where)
                if isinstance(cls, type) and issubclass(cls, enum.Enum) and name in cls.__members__:
                    return cls[name]
            case {"function": str(name), **rest} if not rest:
                function = self._given.get(name)
                if callable(function) and not isinstance(function, type):
                    return function
            case {"object": str(key), "fields": dict(fields), **rest} if not rest:
                cls = self._look_up(key, where)
                if isinstance(cls, type) and _is_record(cls):
                    name = f"{where}, {cls.__name__}" if depth == 0 else where
                    values = {field: self._node(part, f"{name}.{field}", deeper) for field, part in fields.items()}
                    return _make(cls, values, where)
        raise FileFormatError(f"{where} cannot be {_short(tree)}")

    def _look_up(self, key: str, where: str) -> Any:
        part, _, name = key.partition(".")
        found = self._given.get(name) if part == _YOURS else _classes().get(key)
        if found is None:
            raise FileFormatError(
                f"{where} is of the class {_short(key)}, which this newtongp does not have: load it with the newtongp "
                "that wrote it, or a newer one"
            )
        return found


def _names_of_users(tree: Any) -> set[str]:
    """Classes and functions in a tree that are not newtongp's own."""
    found, waiting = set(), [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
            named = [str(part.get(tag)) for tag in ("object", "enum")]
            found |= {name.removeprefix(f"{_YOURS}.") for name in named if name.startswith(f"{_YOURS}.")}
            found |= {part["function"]} if set(part) == {"function"} and isinstance(part["function"], str) else set()
    return found


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


# Classes ----------------------------------------------------------------------------------------------------------


def _key(cls: type) -> str:
    """The part of newtongp that a class is from, and its name: files stay as they are when parts are rearranged."""
    return f"{cls.__module__.split('.')[1]}.{cls.__name__}"


@functools.cache
def _classes() -> dict[str, type]:
    """Every class of newtongp's own whose objects can be in a file."""
    package = sys.modules[_PACKAGE]
    before, found = set(vars(package)), {}
    for name in _modules(_PACKAGE, package.__path__):
        # What cannot be imported here, for want of an optional package, cannot be in use either.
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            for cls in vars(module).values():
                if isinstance(cls, type) and cls.__module__ == name and _is_loadable(cls):
                    found[_key(cls)] = cls
    for name in set(vars(package)) - before:
        # A module that has just been imported hides what the package has under its name, a function for instance.
        if name in package.__all__:
            delattr(package, name)
    return found


def _modules(package: str, folders: Iterable[str]) -> Iterator[str]:
    for module in pkgutil.iter_modules(folders):
        name = f"{package}.{module.name}"
        if module.name not in _TOOLS:
            yield name
            if module.ispkg:
                yield from _modules(name, importlib.import_module(name).__path__)


def _is_loadable(cls: type) -> bool:
    public = not cls.__name__.startswith("_") and not getattr(cls, "__abstractmethods__", None)
    return public and (_is_record(cls) or issubclass(cls, enum.Enum))


def _is_record(cls: type) -> bool:
    """Whether objects of a class are what their fields are."""
    return dataclasses.is_dataclass(cls) or _is_named_tuple(cls) or issubclass(cls, (Result, History))


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _by_name(classes: Iterable[Any]) -> dict[str, Any]:
    """What a user gave as `classes`."""
    if isinstance(classes, (str, type)) or not isinstance(classes, Iterable):
        raise ValueError(f"classes must be a list of classes, as in classes=[MyLikelihood], got {classes!r}")
    found: dict[str, Any] = {}
    for each in classes:
        if not callable(each) or not isinstance(getattr(each, "__name__", None), str):
            raise ValueError(f"classes must hold classes, or functions with a name, got {each!r}")
        if found.setdefault(each.__name__, each) is not each:
            raise ValueError(f"classes must have different names, got two called {each.__name__}")
    return found


# Objects as fields ------------------------------------------------------------------------------------------------


def _contents(value: Any, where: str) -> dict[str, Any]:
    """The fields of an object."""
    if isinstance(value, Result):
        return _contents_of_result(value)
    if isinstance(value, History):
        return vars(value)
    named = _is_named_tuple(type(value))
    names = value._fields if named else [field.name for field in dataclasses.fields(value)]
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise ValueError(f"{where} cannot be saved: its field {missing[0]} has no value")
    return {name: getattr(value, name) for name in names}


def _make(cls: type, values: dict[str, Any], where: str) -> Any:
    """An object with these fields, checked. No constructor runs before that."""
    try:
        if issubclass(cls, Result):
            return _make_result(cls, values, where)
        if issubclass(cls, History):
            made = object.__new__(cls)
            vars(made).update(values)
        elif _is_named_tuple(cls):
            made = _make_named_tuple(cls, values, where)
        else:
            made = _make_dataclass(cls, values, where)
        for kind, check in _CHECKS.items():
            if isinstance(made, kind):
                check(made)
        return made
    except (FileFormatError, RecursionError):
        raise
    # Checks were written for values that have at least the right type.
    except Exception as error:
        raise FileFormatError(f"{where} is no {cls.__name__} that can be: {error}") from None


def _complete(cls: type, names: Iterable[str], defaults: dict[str, Any], values: dict[str, Any], where: str) -> None:
    wrong = sorted(set(values) - set(names)) or sorted(set(names) - set(values) - set(defaults))
    if wrong:
        has = "has no" if wrong[0] in values else "needs the"
        raise FileFormatError(
            f"{where}: {cls.__name__} {has} field {_short(wrong[0])}: the class has changed since the file was written"
        )


def _make_named_tuple(cls: Any, values: dict[str, Any], where: str) -> Any:
    _complete(cls, cls._fields, cls._field_defaults, values, where)
    return tuple.__new__(cls, [values.get(name, cls._field_defaults.get(name)) for name in cls._fields])


def _make_dataclass(cls: Any, values: dict[str, Any], where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    defaults = {name: f.default for name, f in fields.items() if f.default is not dataclasses.MISSING}
    _complete(cls, fields, defaults, values, where)
    made, ours = object.__new__(cls), cls.__module__.partition(".")[0] == _PACKAGE
    for name, field in fields.items():
        value, convert = values.get(name, defaults.get(name)), field.metadata.get("converter")
        if name not in values and convert is not None:
            value = convert(value)
        if ours:
            _check_field(cls, name, field.type, value, where)
            _check_range(field.metadata, value)
        object.__setattr__(made, name, value)
    for each in cls.__mro__:
        if "__check_init__" in vars(each):
            vars(each)["__check_init__"](made)
    return made


_HYPERPARAMETERS = ("cubature", "kernels", "likelihoods", "means", "methods", "steps")


def _check_field(cls: type, name: str, hint: Any, value: Any, where: str) -> None:
    if not _fits(value, hint):
        raise FileFormatError(f"{where}.{name} of {cls.__name__} cannot be {_short(value)}")
    if (issubclass(cls, Prior) or _key(cls).partition(".")[0] in _HYPERPARAMETERS) and not _is_finite(value):
        raise FileFormatError(f"{where}.{name} of {cls.__name__} must be finite, and is {_short(value)}")


def _check_range(metadata: Any, value: Any) -> None:
    """Raise ValueError if a hyperparameter is not in the range that its field declares."""
    if value is None:
        return  # a latent has taken its place
    convert, positive = metadata.get("converter"), getattr(metadata.get("constraint"), "is_positive", False)
    if convert is not None:
        convert(value)
    if positive and np.ndim(value) < 2:
        _require(np.all(np.asarray(value) >= 0.0), f"a positive number cannot be {_short(value)}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value can be in a field that is declared so."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inside)
    if origin is tuple:
        inside = inside[:1] * len(value) if inside[-1] is Ellipsis and isinstance(value, tuple) else inside
        return isinstance(value, tuple) and len(value) == len(inside) and all(map(_fits, value, inside))
    if origin is collections.abc.Callable:
        return callable(value)
    if hint is Any:
        return _is_number(value) or dataclasses.is_dataclass(value) or (type(value) is tuple and all(map(_any, value)))
    if hint is None:
        return value is None
    if not isinstance(hint, type):
        return True
    if hint in (jax.Array, np.ndarray) or issubclass(hint, jaxtyping.AbstractArray):
        return _is_number(value)
    if hint in (int, float):
        kinds = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, hint)


def _any(value: Any) -> bool:
    return _fits(value, Any)


def _is_number(value: Any) -> bool:
    """A number or an array of numbers; None too, which `Chained` has where a latent is in place of a number."""
    return value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray))


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    array = np.asarray(value) if isinstance(value, (float, np.generic, np.ndarray)) else np.zeros(())
    return array.dtype.kind not in "fmM" or bool(np.all(np.isfinite(array)))


# What must hold of objects beyond the types of their fields -------------------------------------------------------


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _is_array(value: Any, kind: str, *shape: int | None) -> bool:
    """Whether this is an array of that kind and shape, with None for sides of any length."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != kind or value.ndim != len(shape):
        return False
    return all(side in (None, length) for side, length in zip(shape, value.shape, strict=True))


def _check_moments(vector: Any, matrix: Any) -> None:
    fine = all(isinstance(each, np.ndarray) and each.dtype.kind == "f" for each in (vector, matrix))
    _require(fine and vector.ndim > 0, "it needs a vector and a matrix")
    _require(matrix.shape == (*vector.shape, vector.shape[-1]), f"shapes are {vector.shape} and {matrix.shape}")


def _check_data(data: Data) -> None:
    _require(_is_array(data.x, "f", None, None) and data.x.shape[0] > 0, "x must be a matrix with one row a datum")
    rows = data.x.shape[0]
    _require(_is_array(data.y, "f", rows, None), f"y must be a matrix with {rows} row(s)")
    _require(_is_array(data.observed, "b", rows), f"observed must have {rows} truth value(s)")
    _require(data.seen is None or _is_array(data.seen, "b", *data.y.shape), "seen must be like y")
    _require(_is_finite(data.x) and _is_finite(data.y), "x and y must be finite")


def _check_history(history: History) -> None:
    values = vars(history)
    _require(set(values) == {"energy", "objective", "step_size"}, f"its parts are {', '.join(map(_short, values))}")
    _require(_is_array(history.energy, "f", None), "energy must be a vector")
    _require(all(_is_array(v, "f", len(history.energy)) for v in values.values()), "its parts differ in length")


def _check_sparse_posterior(posterior: SparsePosterior) -> None:
    latents, inducing, whitening = posterior.prior.num_latents, posterior.inducing, posterior.projection.whitening
    _require(len(inducing) == len(whitening) == latents, f"there must be {latents} set(s) of inducing inputs")
    for inputs, matrix in zip(inducing, whitening, strict=True):
        _require(_is_array(inputs, "f", None, inducing[0].shape[1]) and inputs.size, "inducing inputs must be matrices")
        _require(_is_array(matrix, "f", len(inputs), len(inputs)), "there must be one row of whitening for each input")
        posterior.prior.check_inputs(inputs)
    size = posterior.projection.size
    _require(_is_array(posterior.whitened_mean, "f", latents, size), "whitened_mean does not fit inducing inputs")
    _require(_is_array(posterior.half, "f", latents * size, latents, size), "half does not fit inducing inputs")


def _check_mean(prior: GP | MarkovGP | SparseGP) -> None:
    _require(isinstance(prior.mean, means.Independent), f"mean cannot be {_short(prior.mean)}")


def _check_gp(prior: GP) -> None:
    _check_mean(prior)
    GP(prior.kernel, prior.mean)


def _check_markov(prior: MarkovGP) -> None:
    _check_mean(prior)
    in_double(prior.as_one_piece)()


def _check_sparse(prior: SparseGP) -> None:
    _check_mean(prior)
    _require((prior.count is None) != (prior.inducing is None), "inducing inputs are given or counted")
    inducing = prior.count if prior.inducing is None else list(prior.inducing)
    if prior.inducing is not None:
        _require(all(_is_array(each, "f", None, None) for each in prior.inducing), "inducing inputs must be matrices")
        inducing = prior.inducing[0] if len(prior.inducing) == 1 else inducing
    SparseGP(prior.kernel, inducing, prior.mean, prior.selection, prior.seed, prior.storage)


def _check_state_space(prior: StateSpaceModel) -> None:
    fields = [field.name for field in dataclasses.fields(prior) if not field.metadata.get("static", False)]
    _require(all(isinstance(getattr(prior, name), np.ndarray) for name in fields), "matrices must be arrays")
    again = in_double(prior.as_one_piece)()
    _require(again.selection == prior.selection, "selection does not fit observation")


def _check_clock(clock: Clock) -> None:
    _require(Clock(clock.unit, clock.origin) == clock, "its unit is not in its shortest form")


def _check_model(model: Model) -> None:
    latents = model.prior.num_latents, model.likelihood.num_latents
    _require(latents[0] == latents[1], f"the prior has {latents[0]} latent(s), and the likelihood {latents[1]}")


# Constructors that take what their objects hold are asked whether they would have: by now all types are right.
_CHECKS: dict[type, Callable[[Any], Any]] = {
    Clock: _check_clock,
    Data: _check_data,
    GP: _check_gp,
    Gaussian: lambda it: _check_moments(it.mean, it.covariance),
    History: _check_history,
    LinearModel: lambda it: in_double(LinearModel)(it.prior_covariance, it.mean, it.latents),
    MarkovGP: _check_markov,
    Model: _check_model,
    Sites: lambda it: _check_moments(it.linear, it.precision),
    SparseGP: _check_sparse,
    SparsePosterior: _check_sparse_posterior,
    StateSpaceModel: _check_state_space,
}


# Results ----------------------------------------------------------------------------------------------------------

_PARTS: dict[str, Any] = {
    "model": Model,
    "method": Method | FirstOrderVI,
    "data": Data | None,
    "status": Status,
    "energy": float,
    "residual": float,
    "steps": int,
    "history": History,
    "sites": Sites | None,
    "marginals": Gaussian | None,
    "site_marginals": Gaussian | None,
    "posterior": Posterior | None,
}
"""What every result has; classes of results may have more."""


def _contents_of_result(result: Result) -> dict[str, Any]:
    """What a result is made of: its attributes, but for private ones and what is computed when it is asked for."""
    kept = {
        name: value
        for name, value in vars(result).items()
        if not name.startswith("_") and not isinstance(getattr(type(result), name, None), functools.cached_property)
    }
    if result.site_marginals is result.marginals:
        kept["site_marginals"] = None
    return {**kept, "posterior": result.posterior if _keeps_posterior(result.model, result) else None}


def _keeps_posterior(model: Model, result: Any) -> bool:
    """Whether the posterior itself is kept: where it does not follow from the sites, or inputs were chosen from data.

    A dense GP's has N² numbers, and is soon computed again.
    """
    return result.data is None or result.sites is None or isinstance(model.prior, SparseGP)


def _make_result(cls: type, values: dict[str, Any], where: str) -> Result:
    wrong = [name for name in _PARTS if name not in values]
    wrong += [name for name in values if not name.isidentifier() or name.startswith("_")]
    wrong += [name for name in values if name not in _PARTS and hasattr(getattr(cls, name, None), "__get__")]
    if wrong:
        raise FileFormatError(f"{where}: {_short(wrong[0])} cannot be, or cannot be missing, in a {cls.__name__}")
    for name, kind in _PARTS.items():
        if not _fits(values[name], kind):
            raise FileFormatError(f"{where}.{name} cannot be {_short(values[name])}")
    made, posterior = object.__new__(cls), values.pop("posterior")
    vars(made).update(values)
    if made.site_marginals is None:
        made.site_marginals = made.marginals
    _check_result(made, posterior)
    if posterior is None:
        made._condition = functools.partial(_conditioned, made.model, made.data, made.sites)
    else:
        made._condition = lambda: posterior
    return made


def _check_result(result: Result, posterior: Posterior | None) -> None:
    model, latents = result.model, result.model.prior.num_latents
    keeps = _keeps_posterior(model, result)
    _require((posterior is not None) == keeps, "its posterior cannot be missing" if keeps else "it has two posteriors")
    if posterior is not None and isinstance(model.prior, SparseGP):
        _require(isinstance(posterior, SparsePosterior), "the posterior is of another prior")
        _require(posterior.prior.num_latents == latents, "the posterior has another number of latents")  # pyright: ignore
    _require(result.steps >= 0, f"steps cannot be {result.steps}")
    rows = None
    if result.data is not None:
        data_room.read_data(result.data.x, _with_gaps(result.data), model)
        rows = result.data.x.shape[0]
    for name in ("sites", "marginals", "site_marginals"):
        part = getattr(result, name)
        if part is not None:
            vector, matrix = vars(part).values()
            rows = vector.shape[0] if rows is None else rows
            _require(vector.shape == (rows, latents), f"{name} must be of {rows} row(s) and {latents} latent(s)")
            # A run that broke down may have nothing better to show.
            fine = result.status.failed or (_is_finite(vector) and _is_finite(matrix))
            _require(fine, f"{name} must be finite")


def _with_gaps(data: Data) -> np.ndarray:
    """y as it came, with NaN where it is missing."""
    return np.where(data.observed[:, None] if data.seen is None else data.seen, data.y, np.nan)


@in_double
def _conditioned(model: Model, data: Data, sites: Sites) -> Posterior:
    """q(f), as `infer` would have it for these sites."""
    setup = Setup(model, data.x, _with_gaps(data))
    return _posterior(model.prior, setup.problem.workspace, setup.order.sites(sites))
