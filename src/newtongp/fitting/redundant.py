"""Hyperparameters that others make redundant: variances that are multiplied by others, and thresholds."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from .._runtime.lazy import is_a
from ..kernels import Active, Independent, Kernel, Product, Scaled, Sum

Path = tuple[str | int, ...]


class Variance(NamedTuple):
    """A learned hyperparameter that may be a variance."""

    path: Path
    size: int
    unit: str | None
    is_specified: bool
    """Whether the user has specified something about it."""


def redundant_variances(model: Any, learned: dict[Path, Variance]) -> dict[Path, Path]:
    """Variances that are redundant, each with one that it is multiplied by.

    k₁k₂ does not change if k₁ doubles and k₂ halves. Of each such pair the first is learned, or the one that the user
    has named. Vectors cannot be fixed, and are always learned.
    """
    redundant: dict[Path, Path] = {}
    prior: Any = getattr(model, "prior", None)
    kernel = getattr(prior, "kernel", None)
    if kernel is not None:
        _visit(kernel, ("prior", "kernel"), learned, redundant)
    if getattr(prior, "in_space", False):
        _visit_products(prior, learned, redundant)
    if getattr(prior, "over_table", False):
        for latent, terms in enumerate(prior.latents):
            for number, term in enumerate(terms.terms):
                _visit_term(term, ("prior", "latents", latent, "terms", number), learned, redundant)
    return redundant


def redundant_shift(model: Any) -> tuple[Path, str] | None:
    """The hyperparameter of the likelihood that shifts f as an intercept does, and that intercept, if there are both.

    An intercept with a prior of the user's own is not redundant.
    """
    prior: Any = getattr(model, "prior", None)
    shift = getattr(getattr(model, "likelihood", None), "shift", None)
    if shift is None or not getattr(prior, "over_table", False):
        return None
    terms = [term for own in prior.latents for term in own.terms]
    found = [
        term for term in terms if getattr(term, "intercept", False) and getattr(term, "prior", "normal") != "normal"
    ]
    if not found:
        return None
    label = found[0].label
    return ("likelihood", shift), label if label == "intercept" else f"the intercept of {label}"


def _visit_products(prior: Any, learned: dict[Path, Variance], redundant: dict[Path, Path]) -> None:
    """Products of a kernel of time and one of space."""
    for number in range(len(prior.time)):
        latents = max(_latents(prior.time[number]), _latents(prior.space[number]))
        # The variance of a kernel that all latents share is determined by those of the others.
        names = sorted(("time", "space"), key=lambda name: _latents(getattr(prior, name)[number]) < latents)
        for latent in range(latents):
            groups = []
            for name in names:
                kernel, path = getattr(prior, name)[number], ("prior", name, number)
                if isinstance(kernel, Independent):
                    kernel, path = kernel.kernels[latent], (*path, "kernels", latent)
                groups.append(_visit(kernel, path, learned, redundant))
            _reduce(groups, redundant)


def _latents(kernel: Any) -> int:
    return kernel.num_latents if isinstance(kernel, Independent) else 1


def _visit_term(term: Any, path: Path, learned: dict[Path, Variance], redundant: dict[Path, Path]) -> list[Variance]:
    """The variances that together multiply a term."""
    if is_a(term, "terms.kernel_term", "Product"):
        groups = [
            _visit_term(part, (*path, "parts", index), learned, redundant) for index, part in enumerate(term.parts)
        ]
        return _reduce(groups, redundant)
    if hasattr(term, "kernel"):
        return _visit(term.kernel, (*path, "kernel"), learned, redundant)
    return [item for place, item in learned.items() if place[:-1] == path and (item.unit or "").startswith("f2")]


def _visit(kernel: Any, path: Path, learned: dict[Path, Variance], redundant: dict[Path, Path]) -> list[Variance]:
    """The variances that together multiply a whole kernel; none if some part of it is not multiplied by any."""
    if isinstance(kernel, (Sum, Product, Independent)):
        name = "kernels" if isinstance(kernel, Independent) else "parts"
        groups = [
            _visit(part, (*path, name, index), learned, redundant) for index, part in enumerate(getattr(kernel, name))
        ]
        if isinstance(kernel, Product):
            return _reduce(groups, redundant)
        return [variance for group in groups for variance in group] if isinstance(kernel, Sum) and all(groups) else []
    if isinstance(kernel, (Scaled, Active)):
        inside = _visit(kernel.kernel, (*path, "kernel"), learned, redundant)
        outside = learned.get((*path, "scale"))
        return _reduce([inside, [] if outside is None else [outside]], redundant)
    return list(_multipliers(kernel, path, learned))


def _reduce(groups: list[list[Variance]], redundant: dict[Path, Path]) -> list[Variance]:
    """Mark one variance of every factor but one as redundant; `groups` has the variances that multiply each factor."""
    groups = [group for group in groups if group]
    if not groups:
        return []
    kept = next((group for group in groups if not _fixable(group)), groups[0])
    for group in groups:
        fixable = _fixable(group)
        if group is not kept and fixable:
            redundant[fixable[0].path] = kept[0].path
    return kept


def _fixable(group: list[Variance]) -> list[Variance]:
    return [variance for variance in group if not variance.is_specified and variance.size == 1]


def _multipliers(kernel: Kernel, path: Path, learned: dict[Path, Variance]) -> Iterator[Variance]:
    """The parameters that multiply a kernel without parts."""
    own = [variance for place, variance in learned.items() if place[: len(path)] == path]
    if type(kernel).__module__.partition(".")[0] == __name__.partition(".")[0]:
        yield from (variance for variance in own if (variance.unit or "").startswith("f2"))
        return
    for variance in own:
        is_field = variance.size == 1 and len(variance.path) == len(path) + 1
        if is_field and _multiplies(kernel, str(variance.path[-1])):
            yield variance
            return


@in_double
def _multiplies(kernel: Kernel, field: str) -> bool:
    """Whether doubling a field doubles the kernel, at a few inputs."""
    value = np.asarray(getattr(kernel, field), dtype=float)
    twice = eqx.tree_at(lambda tree: getattr(tree, field), kernel, 2.0 * value)
    inputs = np.random.default_rng(0).uniform(0.5, 3.0, size=(_PAIRS, 2, _COLUMNS))
    try:
        pairs = [[float(k.evaluate(jnp.asarray(a), jnp.asarray(b))) for k in (kernel, twice)] for a, b in inputs]
    # A kernel may have only a state space form, or require inputs of a particular kind.
    except Exception:
        return False
    before, after = np.array(pairs).T
    return bool(np.any(before != 0.0) and np.allclose(after, 2.0 * before, rtol=1e-9, atol=0.0))


_PAIRS, _COLUMNS = 4, 8
