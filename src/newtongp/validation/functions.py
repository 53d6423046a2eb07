"""The Python functions in a model."""

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx


def functions_in(tree: Any) -> Iterator[types.FunctionType]:
    """All functions in a tree, including those in static fields."""
    if isinstance(tree, types.FunctionType):
        yield tree
    elif isinstance(tree, functools.partial):
        yield from functions_in([tree.func, tree.args, tree.keywords])
    elif isinstance(tree, eqx.Module):
        for field in dataclasses.fields(tree):
            yield from functions_in(getattr(tree, field.name, None))
    elif isinstance(tree, Mapping):
        yield from functions_in(list(tree.values()))
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from functions_in(part)
