"""The hyperparameters of a model, by name.

A name is the path to the number, as one would write it in Python: `kernel.lengthscale`, `kernel[1].variance` for the
second part of a sum or the second latent, `mean.value`, `likelihood.variance`. A name may be shortened to its last
part, and then refers to all parameters that end in it.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .constraints import Constraint, Real

Path = tuple[str | int, ...]


_ELIDED = ("parts", "kernels", "base", "latents", "terms")
"""Fields that a name leaves out: `kernel[0]` is `kernel.parts[0]`."""


# Finding hyperparameters -------------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """One hyperparameter of a model: its name, path, value and declaration."""

    name: str
    path: Path
    value: np.ndarray
    constraint: Constraint
    learned: bool
    """Whether it is learned by default."""
    unit: str | None
    declared: bool = True
    """Whether its class declares it with `newtongp.learned`. If not, it is learned only if `Free` is given for it."""


_UNDECLARED = Real(), False, None, False


def hyperparameters(model: Any) -> list[Parameter]:
    """All hyperparameters of a model, a kernel, a mean or a likelihood, with their names.

    Numbers in fields that are not declared with `newtongp.learned` are included, with `declared` False.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF() + ng.kernels.Constant()), ng.likelihoods.Gaussian())
    >>> [parameter.name for parameter in ng.hyperparameters(model)]
    ['kernel[0].lengthscale', 'kernel[0].variance', 'kernel[1].variance', 'likelihood.variance']
    """
    if not isinstance(model, eqx.Module):
        raise ValueError(
            f"model must be a Model, or a part of one such as a kernel, got {model!r}: hyperparameters of a result are "
            "those of result.model"
        )
    return list(_walk(model, (), "", _UNDECLARED))


def _walk(node: Any, path: Path, name: str, inherited: tuple) -> Iterator[Parameter]:
    by_row = getattr(node, "row_parameters", ())
    for field in dataclasses.fields(node):
        value, declaration = vars(node).get(field.name), field.metadata
        # A declaration of a field applies to its contents (a neural network, say), unless these have their own.
        declaration_above = inherited
        if "constraint" in declaration:
            declaration_above = declaration["constraint"], declaration["learned"], declaration["unit"], True
        if declaration.get("static") or value is None or declaration_above[0] is None:
            continue
        # Values of rows are data; a single number may still be learned, such as the variance of noise.
        if field.name in by_row and ("constraint" not in declaration or np.ndim(value) > 0):
            continue
        yield from _visit(value, (*path, field.name), _longer(name, field.name), declaration_above)


def _visit(value: Any, path: Path, name: str, declaration_above: tuple) -> Iterator[Parameter]:
    if isinstance(value, eqx.Module):
        yield from _walk(value, path, name, declaration_above)
    elif isinstance(value, (tuple, list)):
        for index, (entry, label) in enumerate(zip(value, numbered_labels(value), strict=True)):
            # A single part needs no index: `mean.value`, not `mean[0].value`.
            numbered = name if len(value) == 1 else f"{name}[{index}]"
            inner = numbered if label is None else _longer(name, label)
            yield from _visit(entry, (*path, index), inner, declaration_above)
    elif _is_real(value):
        yield Parameter(name, path, np.asarray(value, dtype=float), *declaration_above)


def numbered_labels(entries: Any) -> list[str | None]:
    """The labels of entries that have one; those that share it are numbered: `smooth(day)[0]`, `smooth(day)[1]`."""
    found = [getattr(entry, "label", None) for entry in entries]
    labels = [label if isinstance(label, str) else None for label in found]
    return [
        label if label is None or labels.count(label) == 1 else f"{label}[{labels[:place].count(label)}]"
        for place, label in enumerate(labels)
    ]


def _is_real(value: Any) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, (np.ndarray, np.floating, jax.Array)) and jnp.issubdtype(value.dtype, np.floating)


def _longer(name: str, field: str) -> str:
    if field == "prior" or field in _ELIDED:
        return name
    return f"{name}.{field}" if name else field


def look_up(tree: Any, path: Path) -> Any:
    """The value at this path."""
    for step in path:
        tree = tree[step] if isinstance(step, int) else getattr(tree, step)
    return tree


def put(tree: Any, path: Path, value: Any) -> Any:
    """The tree with another value at this path."""
    return put_all(tree, [path], [value])


def put_all(tree: Any, paths: Sequence[Path], values: Sequence[Any]) -> Any:
    """The tree with other values at these paths, which takes no longer than one of them."""
    if not paths:
        return tree
    return eqx.tree_at(lambda whole: [look_up(whole, path) for path in paths], tree, list(values))
