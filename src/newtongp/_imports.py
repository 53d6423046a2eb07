"""Quick imports: only what every user needs at once, and no garbage collection meanwhile."""

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterator

_FEW_OBJECTS = 50_000
"""No more than this are there when a program has just started."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Within this context nothing is collected: imports make many objects, all of which stay.

    In a program that has just started, the collector does not look at these later either, and the interpreter need
    not take each of them apart when it ends. Where there is more than that, it might be waiting to be collected.
    """
    was_on, just_started = gc.isenabled(), len(gc.get_objects()) < _FEW_OBJECTS
    gc.disable()
    try:
        yield
    finally:
        if was_on and gc.get_freeze_count() == 0:
            gc.freeze()
            if not just_started:
                gc.unfreeze()  # to the oldest generation, unseen
        if was_on:
            gc.enable()


def on_demand(package: str, names: dict[str, str]) -> tuple[Callable, Callable]:
    """`__getattr__` and `__dir__` of a package, for `names` that are imported when they are first asked for.

    `names` says for each module of the package which names are to be found in it, as in `{"dense": "GP"}`;
    none stands for the module itself.
    """
    where = {name: module for module, found in names.items() for name in found.split() or [module]}

    def find(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{where[name]}")
        found = getattr(module, name) if names[where[name]] else module
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*vars(sys.modules[package]), *where})
