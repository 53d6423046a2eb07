"""Variances of kernels that the data determine only together: the factors of a product."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from ..kernels import Active, Independent, Kernel, Product, Scaled, Sum

Path = tuple[str | int, ...]


class Variance(NamedTuple):
    """A hyperparameter that is to be learned."""

    path: Path
    size: int
    unit: str | None
    is_said: bool
    """Whether a user has said something of it."""


def redundant_variances(model: Any, learned: dict[Path, Variance]) -> dict[Path, Path]:
    """Which variances say nothing that others do not: each with one that it is multiplied by.

    k₁k₂ does not change if k₁ doubles and k₂ halves. Of each such pair the first is kept, or the one that a user has
    named, and so is what cannot be fixed because it is a vector.
    """
    found: dict[Path, Path] = {}
    kernel = getattr(getattr(model, "prior", None), "kernel", None)
    if kernel is not None:
        _visit(kernel, ("prior", "kernel"), learned, found)
    return found


def _visit(kernel: Any, path: Path, learned: dict[Path, Variance], found: dict[Path, Path]) -> list[Variance]:
    """The variances that multiply a kernel, together or alone; none if it has a part that they do not multiply."""
    if isinstance(kernel, (Sum, Product, Independent)):
        name = "kernels" if isinstance(kernel, Independent) else "parts"
        groups = [
            _visit(part, (*path, name, index), learned, found) for index, part in enumerate(getattr(kernel, name))
        ]
        if isinstance(kernel, Product):
            return _reduce(groups, found)
        return [each for group in groups for each in group] if isinstance(kernel, Sum) and all(groups) else []
    if isinstance(kernel, (Scaled, Active)):
        inside = _visit(kernel.kernel, (*path, "kernel"), learned, found)
        outside = learned.get((*path, "scale"))
        return _reduce([inside, [] if outside is None else [outside]], found)
    return list(_multipliers(kernel, path, learned))


def _reduce(groups: list[list[Variance]], found: dict[Path, Path]) -> list[Variance]:
    """Of factors, each with the variances that multiply it: all but one lose a degree of freedom."""
    groups = [group for group in groups if group]
    if not groups:
        return []
    kept = next((group for group in groups if all(each.is_said or each.size > 1 for each in group)), groups[0])
    for group in groups:
        unconstrained = [each for each in group if not each.is_said and each.size == 1]
        if group is not kept and unconstrained:
            found[unconstrained[0].path] = kept[0].path
    return kept


def _multipliers(kernel: Kernel, path: Path, learned: dict[Path, Variance]) -> Iterator[Variance]:
    """Parameters of a kernel that is made of no others, by which it is multiplied."""
    own = [each for where, each in learned.items() if where[: len(path)] == path]
    if type(kernel).__module__.partition(".")[0] == __name__.partition(".")[0]:
        yield from (each for each in own if (each.unit or "").startswith("f2"))
        return
    for each in own:
        if each.size == 1 and len(each.path) == len(path) + 1 and _multiplies(kernel, str(each.path[-1])):
            yield each
            return


@in_double
def _multiplies(kernel: Kernel, field: str) -> bool:
    """Whether twice the value of a field makes twice the kernel, at some inputs."""
    value = np.asarray(getattr(kernel, field), dtype=float)
    twice = eqx.tree_at(lambda tree: getattr(tree, field), kernel, 2.0 * value)
    inputs = np.random.default_rng(0).uniform(0.5, 3.0, size=(_PAIRS, 2, _COLUMNS))
    try:
        pairs = [[float(each.evaluate(jnp.asarray(a), jnp.asarray(b))) for each in (kernel, twice)] for a, b in inputs]
    # A kernel may have no more than a state space form, or inputs of its own kind.
    except Exception:
        return False
    before, after = np.array(pairs).T
    return bool(np.any(before != 0.0) and np.allclose(after, 2.0 * before, rtol=1e-9, atol=0.0))


_PAIRS, _COLUMNS = 4, 8
