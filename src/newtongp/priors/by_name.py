"""Kernels given by their names: `GP("matern32")`.

Such a prior has a constant mean, one kernel per latent of the likelihood, and one lengthscale per column of x, all of
which `fit` learns.
"""

from typing import Any

import equinox as eqx
import numpy as np

from .. import kernels, means
from ..kernels import Independent, Kernel
from ..validation.names import find

_KERNELS = (
    "Matern12",
    "Matern32",
    "Matern52",
    "Matern72",
    "RBF",
    "RationalQuadratic",
    "Brownian",
    "IntegratedBrownian",
)


def read_kernel(kernel: Any, mean: Any) -> tuple[Any, Any, bool]:
    """The kernel and the mean, and whether the kernel was given by its name."""
    if isinstance(kernel, str):
        return named(kernel), means.Constant(0.0) if mean is None else mean, True
    if not isinstance(kernel, (Kernel, Independent)):
        raise ValueError(
            "kernel must be a kernel such as kernels.Matern32(), its name, or kernels.Independent([...]), got "
            f"{kernel!r}"
        )
    return kernel, mean, False


def named(kernel: str) -> Kernel:
    """The kernel with this name."""
    return getattr(kernels, find(kernel, _KERNELS, "kernel"))()


def is_named(kernel: Any) -> bool:
    """Whether a kernel, or the kernel of every latent, could have been given by name."""
    parts = kernel.kernels if isinstance(kernel, Independent) else (kernel,)
    return all(type(part) is type(parts[0]) and type(part).__name__ in _KERNELS for part in parts)


def for_latents(prior: Any, count: int) -> Any:
    """A prior given by name, with the likelihood's number of latents; other priors are unchanged."""
    if not getattr(prior, "by_name", False) or prior.num_latents == count or prior.num_latents != 1:
        return prior
    mean = prior.mean.parts[0]
    parts = Independent([prior.kernel] * count), means.Independent([mean] * count)
    return eqx.tree_at(lambda p: (p.kernel, p.mean), prior, parts)


def for_columns(prior: Any, count: int) -> Any:
    """A prior given by name, with one lengthscale per column of x; other priors are unchanged."""
    if not getattr(prior, "by_name", False) or count == 1:
        return prior

    def widened(kernel: Any) -> Any:
        if np.ndim(getattr(kernel, "lengthscale", np.ones(1))) > 0:
            return kernel
        return eqx.tree_at(lambda k: k.lengthscale, kernel, np.full(count, float(kernel.lengthscale)))

    kernel = prior.kernel
    wide = Independent([widened(k) for k in kernel.kernels]) if isinstance(kernel, Independent) else widened(kernel)
    return eqx.tree_at(lambda p: p.kernel, prior, wide)
