"""Checks of the prior, made only after inference has failed to start."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from ..kernels import Active, Kernel, Product, Scaled, Sum, diagonal, gram, latent_kernels
from ..means import Independent as IndependentMeans
from ..parameters.names import hyperparameters
from ..validation.text import shown

_MOST = 500
"""The largest number of rows of which all pairs are checked."""
_ADVICE = "Look for 0/0, and for roots and logarithms of negative numbers"


@in_double
def check_prior(prior: Any, x: np.ndarray, workspace: Any = None) -> None:
    """Raise ValueError if the mean or a kernel of the prior is not finite at these inputs, and say which and where."""
    mean, kernel = getattr(prior, "mean", None), getattr(prior, "kernel", None)
    if isinstance(mean, IndependentMeans):
        _check_mean(np.asarray(mean.means(jnp.asarray(x))), x)
    for own, inputs, _ in prior.kernels_at(x):
        for latent, part in enumerate(latent_kernels(own)):
            _check_kernel(part, inputs, f" of latent {latent}" if len(latent_kernels(own)) > 1 else "")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(workspace)):
        where = "" if kernel is None else f" (for a MarkovGP, in `blocks` of {type(kernel).__name__})"
        raise ValueError(
            f"{type(prior).__name__} must be finite at the data, and it is not. {_ADVICE}{where}, and check its "
            "hyperparameters"
        )


def _check_mean(means: np.ndarray, x: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(means))
    if wrong.size:
        row, latent = wrong[0]
        raise ValueError(
            f"the mean function must return finite numbers, but it is {means[row, latent]} at row {row} of x, "
            f"{x[row].tolist()}. {_ADVICE} in it"
        )


def _check_kernel(kernel: Kernel, x: np.ndarray, whose: str) -> None:
    entry = _not_finite(kernel, x)
    if entry is None:
        return
    for part, columns in _parts(kernel, x):
        if _not_finite(part, columns) is not None:
            return _check_kernel(part, columns, whose)
    one, other, value = entry
    pair = f"at row {one} of x" if one == other else f"between rows {one} and {other} of x"
    places = f"{x[one].tolist()}" if one == other else f"{x[one].tolist()} and {x[other].tolist()}"
    numbers = ", ".join(f"{number.name} = {shown(number.value)}" for number in hyperparameters(kernel))
    raise ValueError(
        f"the kernel {type(kernel).__name__}{whose} must return finite numbers, but it is {value} {pair}, {places}. "
        f"{_ADVICE} in it{f', and check its hyperparameters, {numbers}' if numbers else ''}"
    )


def _parts(kernel: Kernel, x: np.ndarray) -> list[tuple[Kernel, np.ndarray]]:
    """The parts of a kernel, each with its columns of x."""
    if isinstance(kernel, (Sum, Product)):
        return [(part, x) for part in kernel.parts]
    if isinstance(kernel, Active):
        return [(kernel.kernel, x[:, list(kernel.dimensions)])]
    return [(kernel.kernel, x)] if isinstance(kernel, Scaled) else []


def _not_finite(kernel: Kernel, x: np.ndarray) -> tuple[int, int, float] | None:
    """Two rows between which the kernel is not finite, and its value there."""
    variances = np.asarray(diagonal(kernel, jnp.asarray(x)))
    wrong = np.flatnonzero(~np.isfinite(variances))
    if wrong.size:
        return int(wrong[0]), int(wrong[0]), float(variances[wrong[0]])
    rows = np.unique(np.linspace(0, x.shape[0] - 1, min(_MOST, x.shape[0])).astype(int))
    matrix = np.asarray(gram(kernel, jnp.asarray(x[rows]), jnp.asarray(x[rows])))
    wrong = np.argwhere(~np.isfinite(matrix))
    if not wrong.size:
        return None
    one, other = wrong[0]
    return int(rows[one]), int(rows[other]), float(matrix[one, other])
