"""Conversion of objects to their fields, and back from untrusted fields."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from ..results.result import History, Result
from ..validation.text import short
from .checks import CHECKS
from .constructing import construct
from .errors import FileFormatError
from .fields import check_field, check_range
from .registry import PACKAGE, is_named_tuple
from .saved_results import contents_of_result, make_result


def contents(value: Any, where: str) -> dict[str, Any]:
    """The fields of an object."""
    if isinstance(value, Result):
        return contents_of_result(value)
    if isinstance(value, History):
        return vars(value)
    named = is_named_tuple(type(value))
    names = value._fields if named else [field.name for field in dataclasses.fields(value)]
    missing = [name for name in names if not hasattr(value, name)]
    if missing:
        raise ValueError(f"{where} cannot be saved: its field {missing[0]} has no value")
    return {name: getattr(value, name) for name in names}


def make(cls: type, values: dict[str, Any], where: str) -> Any:
    """Create an object with these fields through its constructor."""
    try:
        if issubclass(cls, Result):
            return make_result(cls, values, where)
        if issubclass(cls, History):
            made = object.__new__(cls)
            vars(made).update(values)
        elif is_named_tuple(cls):
            made = _make_named_tuple(cls, values, where)
        else:
            made = _make_dataclass(cls, values, where)
        for kind, check in CHECKS.items():
            if isinstance(made, kind):
                check(made)
        return made
    except (FileFormatError, RecursionError):
        raise
    # Constructors and checks assume values of the right type.
    except Exception as error:
        raise FileFormatError(f"{where} cannot be a {cls.__name__}: {error}") from None


def make_with(function: Callable, values: dict[str, Any], where: str) -> Any:
    """Call the function that replaces a class of an older version, with these arguments."""
    try:
        return function(**values)
    # As above: the values may be anything that a file can hold.
    except Exception as error:
        raise FileFormatError(f"{where} cannot be a {function.__name__}: {error}") from None


def _complete(cls: type, names: Iterable[str], defaults: dict[str, Any], values: dict[str, Any], where: str) -> None:
    wrong = sorted(set(values) - set(names)) or sorted(set(names) - set(values) - set(defaults))
    if wrong:
        has = "has no" if wrong[0] in values else "needs the"
        raise FileFormatError(
            f"{where}: {cls.__name__} {has} field {short(wrong[0])}: the class has changed since the file was written"
        )


def _make_named_tuple(cls: Any, values: dict[str, Any], where: str) -> Any:
    _complete(cls, cls._fields, cls._field_defaults, values, where)
    return tuple.__new__(cls, [values.get(name, cls._field_defaults.get(name)) for name in cls._fields])


def _make_dataclass(cls: Any, values: dict[str, Any], where: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    defaults = {name: f.default for name, f in fields.items() if f.default is not dataclasses.MISSING}
    _complete(cls, fields, defaults, values, where)
    ours = cls.__module__.partition(".")[0] == PACKAGE
    complete = {}
    for name, field in fields.items():
        value, convert = values.get(name, defaults.get(name)), field.metadata.get("converter")
        complete[name] = convert(value) if name not in values and convert is not None else value
        if ours:
            check_field(cls, name, field.type, complete[name], where)
        else:
            check_range(field.metadata, complete[name])
    return construct(cls, complete) if ours and cls not in CHECKS else _set_fields(cls, complete)


def _set_fields(cls: Any, values: dict[str, Any]) -> Any:
    """Create an object without its constructor (which checks nothing, or is custom); `__check_init__` runs."""
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    for base in cls.__mro__:
        if "__check_init__" in vars(base):
            vars(base)["__check_init__"](made)
    return made
