"""Several latent functions: one kernel each, independent a priori.

The functions below take a `Kernel` (one latent) or an `Independent` (one latent per kernel), and always put the latents
first.
"""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import Kernel, diagonal, gram


class Independent(eqx.Module):
    """One kernel per latent, for likelihoods with several latents.

    >>> from newtongp.kernels import RBF, Matern32
    >>> Independent([RBF(), Matern32(lengthscale=2.0)]).num_latents
    2
    """

    kernels: tuple[Kernel, ...]

    def __init__(self, kernels: Any):
        """`kernels`: in the order of the likelihood's latents."""
        if isinstance(kernels, (Kernel, Independent)) or not isinstance(kernels, Iterable):
            raise ValueError(
                f"kernels must be a list with one kernel per latent, got {kernels!r}: "
                f"write `Independent([kernel, kernel])`"
            )
        kernels = tuple(kernels)
        if not kernels:
            raise ValueError(
                "kernels must not be empty: give one kernel per latent, as in `Independent([kernel, kernel])`"
            )
        for index, kernel in enumerate(kernels):
            if not isinstance(kernel, Kernel):
                raise ValueError(
                    f"kernels must contain only kernels, but element {index} is {kernel!r}: "
                    f"give one newtongp.kernels.Kernel per latent"
                )
        self.kernels = kernels

    @property
    def num_latents(self) -> int:
        """The number of latent functions."""
        return len(self.kernels)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError if one of the kernels cannot be used on inputs with that many columns."""
        self._check(lambda kernel: kernel.check_inputs(dimension))

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError if one of the kernels is not defined at one of these inputs."""
        self._check(lambda kernel: kernel.check_values(x))

    def _check(self, check: Callable[[Kernel], None]) -> None:
        for index, kernel in enumerate(self.kernels):
            try:
                check(kernel)
            except ValueError as error:
                raise ValueError(f"kernel of latent {index}: {error}") from None


def latent_kernels(kernel: Any) -> tuple[Kernel, ...]:
    """The kernel of every latent.

    >>> from newtongp.kernels import RBF
    >>> len(latent_kernels(RBF())), len(latent_kernels(Independent([RBF(), RBF()])))
    (1, 2)
    """
    if isinstance(kernel, Independent):
        return kernel.kernels
    if isinstance(kernel, Kernel):
        return (kernel,)
    raise ValueError(f"expected a kernel, or `Independent([kernel, kernel])` for several latents, got {kernel!r}")


def num_latents(kernel: Any) -> int:
    """The number of latent functions."""
    return len(latent_kernels(kernel))


def grams(kernel: Any, x1: Float[Array, "N P"], x2: Float[Array, "M P"]) -> Float[Array, "D N M"]:
    """The matrix k(x1, x2) of every latent."""
    return jnp.stack([gram(part, x1, x2) for part in latent_kernels(kernel)])


def diagonals(kernel: Any, x: Float[Array, "N P"]) -> Float[Array, "D N"]:
    """The variances k(x, x) of every latent."""
    return jnp.stack([diagonal(part, x) for part in latent_kernels(kernel)])
