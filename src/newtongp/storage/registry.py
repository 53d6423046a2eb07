"""Which classes a file may name: newtongp's own, and those that a user gives."""

import contextlib
import dataclasses
import enum
import functools
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ..results import History, Result

PACKAGE = __name__.partition(".")[0]
_TOOLS = {"__main__", "cli", "datasets", "demo", "experiments", "fitting", "plotting", "programs", "report", "storage"}
"""Modules that make nothing which results are made of."""
YOURS = "user"
"""In the name of a class, in place of the part of newtongp that it is from."""


def key_of(cls: type) -> str:
    """The part of newtongp that a class is from, and its name: files stay as they are when parts are rearranged."""
    return f"{cls.__module__.split('.')[1]}.{cls.__name__}"


@functools.cache
def known_classes() -> dict[str, type]:
    """Every class of newtongp's own whose objects can be in a file."""
    package = sys.modules[PACKAGE]
    before, found = set(vars(package)), {}
    for name in _modules(PACKAGE, package.__path__):
        # What cannot be imported here, for want of an optional package, cannot be in use either.
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            for cls in vars(module).values():
                if isinstance(cls, type) and cls.__module__ == name and _is_loadable(cls):
                    found[key_of(cls)] = cls
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
    return public and (is_record(cls) or issubclass(cls, enum.Enum))


def is_record(cls: type) -> bool:
    """Whether objects of a class are what their fields are."""
    return dataclasses.is_dataclass(cls) or is_named_tuple(cls) or issubclass(cls, (Result, History))


def is_named_tuple(cls: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def by_name(classes: Iterable[Any]) -> dict[str, Any]:
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
