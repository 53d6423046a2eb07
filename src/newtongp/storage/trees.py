"""Conversion of trees of arrays, numbers and objects to JSON and a list of arrays, and back from untrusted input.

A tree names classes, but not the modules to import them from: they are looked up among newtongp's own and those that
the user passes. Objects are created by their own constructors.
"""

import enum
import math
import re
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from ..validation.text import short
from .constructing import prepare
from .errors import FileFormatError
from .records import contents, make, make_with
from .registry import PACKAGE, YOURS, by_name, class_of, is_record, key_of, replacement_of

DEEPEST = 100
"""The maximum nesting of objects and tuples."""
TYPES = re.compile(r"\|b1|\|[iu]1|<[iu][248]|<f[248]|<[mM]8\[\d{0,6}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]")
"""The allowed types of arrays: booleans, integers, floats and times, as in `numpy.dtype.str`."""


def encode(tree: Any, name: str = "tree") -> tuple[Any, list[np.ndarray]]:
    """Convert a tree of arrays, numbers, text, tuples, lists, dicts and objects to JSON nodes and a list of arrays.

    >>> encode({"rate": np.ones(2), "steps": 3})
    ({'dict': [['rate', {'array': 0}], ['steps', 3]]}, [array([1., 1.])])
    """
    encoder = Encoder()
    return encoder.node(tree, name, 0), encoder.arrays


def decode(tree: Any, arrays: list[np.ndarray], classes: Iterable[Any] = ()) -> Any:
    """The inverse of `encode`, for untrusted trees: FileFormatError if one is invalid. Makes no copies.

    >>> decode(*encode((1.5, None, np.arange(3))))
    (1.5, None, array([0, 1, 2]))
    """
    try:
        return _Decoder(arrays, by_name(classes)).whole(tree)
    except RecursionError:
        raise FileFormatError("its objects are nested too deeply") from None


class Encoder:
    """Converts a tree to JSON nodes, and collects its arrays and custom classes."""

    def __init__(self):
        self.arrays: list[np.ndarray] = []
        self.yours: dict[str, Any] = {}
        """Custom classes and functions."""
        self._index: dict[int, tuple[int, Any]] = {}

    def node(self, value: Any, where: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError(f"{where} cannot be saved: objects are nested more than {DEEPEST} deep")
        deeper = depth + 1
        # Before numbers and tuples, because some of these are subclasses.
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
                raise ValueError(f"{where} cannot be saved: keys must be text or integers, got {short(list(value))}")
            return {"dict": [[key, self.node(v, f"{where}[{key!r}]", deeper)] for key, v in value.items()]}
        if is_record(type(value)):
            fields = {name: self.node(part, f"{where}.{name}", deeper) for name, part in contents(value, where).items()}
            return {"object": self._class(type(value), where), "fields": fields}
        if callable(value) and not isinstance(value, type):
            return {"function": self._function(value, where)}
        raise ValueError(
            f"{where} cannot be saved: it is of type {type(value).__name__}, but files hold numbers, text, arrays, "
            "tuples, lists, dicts and objects with declared fields (dataclasses)"
        )

    def _array(self, value: Any, where: str) -> int:
        if id(value) in self._index:
            return self._index[id(value)][0]
        spelled = value.dtype.newbyteorder("<").str if isinstance(value.dtype, np.dtype) else str(value.dtype)
        if isinstance(value, np.ma.MaskedArray) or not TYPES.fullmatch(spelled):
            what = "masked arrays" if isinstance(value, np.ma.MaskedArray) else f"arrays of the type {value.dtype}"
            raise ValueError(
                f"{where} cannot be saved: files hold no {what}: convert it to an array of numbers or times"
            )
        self.arrays.append(np.asarray(value, dtype=spelled, order="C"))
        self._index[id(value)] = len(self.arrays) - 1, value  # keeps the array alive, so that its id stays unique
        return len(self.arrays) - 1

    def _class(self, cls: type, where: str) -> str:
        if cls.__module__.partition(".")[0] != PACKAGE:
            return f"{YOURS}.{self._own(cls, where)}"
        key = key_of(cls)
        if key is None:
            raise ValueError(f"{where} cannot be saved: {cls.__name__} is not among the classes that can be saved")
        return key

    def _function(self, value: Any, where: str) -> str:
        if not getattr(value, "__name__", "").isidentifier() or getattr(value, "__self__", None) is not None:
            raise ValueError(
                f"{where} cannot be saved: {short(value)} is code without a name, "
                "and files hold no code: define a function with def and pass it to newtongp.load in classes=[...], or "
                "write a class with the numbers as fields"
            )
        return self._own(value, where)

    def _own(self, value: Any, where: str) -> str:
        name = value.__name__
        if self.yours.setdefault(name, value) is not value:
            raise ValueError(f"{where} cannot be saved: another class or function is also called {name}: rename one")
        return name


class _Decoder:
    def __init__(self, arrays: list[np.ndarray], given: dict[str, Any]):
        self._arrays, self._given = arrays, given

    def whole(self, tree: Any) -> Any:
        missing = sorted(_names_of_users(tree) - set(self._given))
        if missing:
            raise FileFormatError(
                f"it holds objects of custom classes, {' and '.join(missing)}: import them and write "
                f"newtongp.load(path, classes=[{', '.join(missing)}])"
            )
        return self._node(tree, "its content", 0)

    def _node(self, tree: Any, where: str, depth: int) -> Any:
        if depth > DEEPEST:
            raise FileFormatError(f"its objects are nested more than {DEEPEST} deep")
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
                    return {key: self._node(part, f"{where}[{short(key)}]", deeper) for key, part in pairs}
            case {"enum": str(key), "name": str(name), **rest} if not rest:
                cls = self._look_up(key, where)
                if isinstance(cls, type) and issubclass(cls, enum.Enum) and name in cls.__members__:
                    return cls[name]
            case {"function": str(name), **rest} if not rest:
                function = self._given.get(name)
                if callable(function) and not isinstance(function, type):
                    return function
            case {"object": str(key), "fields": dict(fields), **rest} if not rest and replacement_of(key):
                values = {field: self._node(part, f"{where}.{field}", deeper) for field, part in fields.items()}
                return make_with(replacement_of(key), values, where)
            case {"object": str(key), "fields": dict(fields), **rest} if not rest:
                cls = self._look_up(key, where)
                if isinstance(cls, type) and is_record(cls):
                    name = f"{where}, {cls.__name__}" if depth == 0 else where
                    parts = prepare(cls, fields).items()
                    values = {field: self._node(part, f"{name}.{field}", deeper) for field, part in parts}
                    return make(cls, values, where)
        raise FileFormatError(f"{where} cannot be {short(tree)}")

    def _look_up(self, key: str, where: str) -> Any:
        part, _, name = key.partition(".")
        cls = self._given.get(name) if part == YOURS else class_of(key)
        if cls is None:
            raise FileFormatError(
                f"{where} is of class {short(key)}, which this newtongp does not have: load it with the newtongp "
                "that wrote it, or a newer one"
            )
        return cls


def _names_of_users(tree: Any) -> set[str]:
    """The custom classes and functions in a tree."""
    names, waiting = set(), [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting.extend(part)
        elif isinstance(part, dict):
            waiting.extend(part.values())
            named = [str(part.get(tag)) for tag in ("object", "enum")]
            names |= {name.removeprefix(f"{YOURS}.") for name in named if name.startswith(f"{YOURS}.")}
            names |= {part["function"]} if set(part) == {"function"} and isinstance(part["function"], str) else set()
    return names
