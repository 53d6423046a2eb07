"""Modules that will probably be needed soon, imported while Python would wait for the compiler.

The compiler does not hold Python's lock. Rooms say with `expect` what most programs need next.
"""

import importlib
from collections.abc import Callable

_expected: dict[str, None] = {}


def expect(*modules: str) -> None:
    """Modules that most programs need sooner or later, in the order in which they do."""
    _expected.update(dict.fromkeys(modules))


def use(lasts: Callable[[], bool]) -> None:
    """Import them one after the other, as long as there is spare time."""
    while _expected and lasts():
        module = next(iter(_expected))
        del _expected[module]
        importlib.import_module(module)
