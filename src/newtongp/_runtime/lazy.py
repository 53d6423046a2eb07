"""Names of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping


def is_a(value: object, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of newtongp, without importing the class: then there are none.

    >>> is_a(1.0, "priors.sparse", "SparseGP")
    False
    """
    found = sys.modules.get(f"newtongp.{module}")
    return found is not None and isinstance(value, getattr(found, name))


def on_demand(
    package: str, names: Mapping[str, str], moved: Mapping[str, str] | None = None
) -> tuple[Callable, Callable]:
    """`__getattr__` and `__dir__` of a package, for `names` that are imported when they are first used.

    `names` lists, for each module of the package, the names to be found in it, as in `{"dense": "GP"}`. The name of a
    package that has to be imported itself is listed under "". `moved` says what to write for names that are gone.
    """
    where = {name: module for module, found in names.items() for name in found.split()}

    def find(name: str) -> object:
        if moved and name in moved:
            raise AttributeError(f"{package}.{name} has moved: use {moved[name]}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if where[name]:
            found = getattr(importlib.import_module(f"{package}.{where[name]}"), name)
        else:
            found = importlib.import_module(f"{package}.{name}")
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *where})
