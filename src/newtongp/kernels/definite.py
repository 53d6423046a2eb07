"""A check that a custom kernel is a covariance at the data. Built-in kernels always are."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.double import in_double
from ..numerics.known import eigen_given
from .base import Active, Kernel, Product, Scaled, Sum, gram
from .multilatent import Independent

_PACKAGE = __name__.partition(".")[0]
_MOST_ROWS, _MOST_TIMES = 100, 40
"""The number of rows that are checked: for a covariance function, and for a state space form, which is slower."""
_TOLERATED = 1e-6
"""Relative to the largest eigenvalue: the tolerance for inaccurate arithmetic in a kernel."""


class _Part(NamedTuple):
    """A custom kernel, its name within the prior's kernel, and its columns of the inputs."""

    name: str
    kernel: Kernel
    x: np.ndarray


def find_indefinite(kernel: Kernel | Independent, x: np.ndarray, in_time: bool) -> str | None:
    """A message about the part of a kernel that is not a covariance at these inputs; None if all are.

    With `in_time` the state space form is checked instead of `evaluate`. Kernels of the library are not checked.
    """
    if not is_own(kernel):
        return None
    rows = _chosen(x.shape[0], _MOST_TIMES if in_time else _MOST_ROWS)
    for part in filter(_is_own, _leaves(kernel, x[rows], "kernel")):
        problem = _problem(part, rows, in_time)
        if problem is not None:
            return f"{type(part.kernel).__name__} ({part.name}) {problem}"
    return None


def is_own(kernel: Kernel | Independent) -> bool:
    """Whether a part of a kernel is of a custom class."""
    return any(_is_own(part) for part in _leaves(kernel, None, ""))


def _is_own(part: _Part) -> bool:
    return type(part.kernel).__module__.partition(".")[0] != _PACKAGE


def check_definite(kernel: Kernel | Independent, x: np.ndarray, in_time: bool) -> None:
    """Raise ValueError if a custom kernel is not a covariance at these inputs."""
    problem = find_indefinite(kernel, x, in_time)
    if problem is not None:
        raise ValueError(
            f"{problem}, so it is not a covariance: a kernel must be symmetric and positive semi-definite. Check its "
            f"{'blocks' if in_time else 'evaluate'} and the values of its fields, such as the sign of a variance"
        )


def _leaves(kernel: Any, x: Any, name: str) -> Iterator[_Part]:
    """The elementary parts of a kernel."""
    if isinstance(kernel, (Sum, Product, Independent)):
        parts = kernel.kernels if isinstance(kernel, Independent) else kernel.parts
        for index, part in enumerate(parts):
            yield from _leaves(part, x, f"{name}[{index}]")
    elif isinstance(kernel, Scaled):
        yield from _leaves(kernel.kernel, x, f"{name}.kernel")
    elif isinstance(kernel, Active):
        yield from _leaves(kernel.kernel, None if x is None else x[:, list(kernel.dimensions)], f"{name}.kernel")
    else:
        yield _Part(name, kernel, x)


def _chosen(count: int, most: int) -> np.ndarray:
    """A sample of rows: the first ones, which may be neighbours, and others spread over the data."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.append(np.arange(most // 2), np.linspace(0, count - 1, most - most // 2).astype(int)))


def _problem(part: _Part, rows: np.ndarray, in_time: bool) -> str | None:
    if in_time:
        order = np.argsort(part.x[:, 0], kind="stable")
        rows, matrix = rows[order], in_double(_gram_in_time)(part.kernel, part.x[order, 0])
    else:
        matrix = in_double(_gram)(part.kernel, part.x)
    matrix = np.asarray(matrix)
    if not np.all(np.isfinite(matrix)):
        return None
    variances, size = np.diagonal(matrix), np.max(np.abs(matrix))
    if np.min(variances) < 0.0:
        worst = int(np.argmin(variances))
        return f"has the variance {variances[worst]:.4g} at row {rows[worst]}"
    gap = np.abs(matrix - matrix.T)
    if np.max(gap) > _TOLERATED * size:
        i, j = np.unravel_index(int(np.argmax(gap)), gap.shape)
        return (
            f"is not symmetric: k(x, x') is {matrix[i, j]:.4g} for x at row {rows[i]} and x' at row {rows[j]}, and "
            f"{matrix[j, i]:.4g} the other way round"
        )
    eigenvalues, _ = eigen_given(0.5 * (matrix + matrix.T))
    if eigenvalues[0] < -_TOLERATED * eigenvalues[-1]:
        return (
            f"has a covariance matrix at {len(rows)} of the rows with the eigenvalue {eigenvalues[0]:.3g} (the largest "
            f"is {eigenvalues[-1]:.3g})"
        )
    return None


@jax.jit
def _gram(kernel: Kernel, x: Float[Array, "N P"]) -> Float[Array, "N N"]:
    return gram(kernel, x, x)


@jax.jit
def _gram_in_time(kernel: Kernel, times: Float[Array, " N"]) -> Float[Array, "N N"]:
    """k(s, t) = Σ [A(s → t) P(s)]₀₀ for s ≤ t."""

    def pair(start, end):
        return sum((block.transition(start, end) @ block.covariance(start))[0, 0] for block in kernel.blocks())

    later = jax.vmap(lambda s: jax.vmap(lambda t: pair(s, jnp.maximum(s, t)))(times))(times)
    upper = jnp.triu(later)
    return upper + jnp.triu(upper, 1).T
