"""Several latent functions: one kernel each, independent a priori.

The functions below take a `Kernel` (one latent) or an `Independent` (one latent per kernel), and always put the latents
first.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax
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


class Alike(NamedTuple):
    """Latents whose kernels have the same structure, and what was found for them, stacked."""

    latents: list[int]
    found: Any
    shared: bool = False
    """Whether they have one kernel, with the same arguments."""

    @property
    def each(self) -> list[Any]:
        """What was found for every latent: one object for all of them, if they share a kernel."""
        leaves, structure = jax.tree.flatten(self.found)
        if self.shared:
            return [structure.unflatten([leaf[0] for leaf in leaves])] * len(self.latents)
        return [structure.unflatten([leaf[k] for leaf in leaves]) for k in range(len(self.latents))]


def over_latents(function: Callable, kernel: Any, *arguments: Any, one_by_one: bool = False) -> list[Alike]:
    """`function(kernel, *argument)` of every latent, where `arguments` are sequences with one array per latent.

    Latents whose kernels have the same structure, and whose arguments the same shapes, are mapped over, so that the
    size of a compiled program does not depend on their number. With `one_by_one`, they are processed in a loop. Latents
    that share a kernel and its arguments (the same objects, as with tied hyperparameters) are processed once for all.
    """
    groups: list[tuple[Any, list[int], list[Any]]] = []
    for latent, parts in enumerate(zip(latent_kernels(kernel), *arguments, strict=True)):
        structure = _structure(parts)
        known = next((group for group in groups if structure is not None and group[0] == structure), None)
        if known is None:
            groups.append((structure, [latent], [parts]))
        else:
            known[1].append(latent)
            known[2].append(parts)
    return [_found(function, latents, members, one_by_one) for _, latents, members in groups]


def _structure(parts: Any) -> Any:
    """What has to be equal for kernels to be stacked; None if they cannot be."""
    leaves, structure = jax.tree.flatten(parts)
    if not all(isinstance(leaf, (jax.Array, np.ndarray, np.number, float)) for leaf in leaves):
        return None
    return structure, [(np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]


def _found(function: Callable, latents: list[int], members: list[Any], one_by_one: bool) -> Alike:
    if _is_shared(members):
        once = function(*members[0])
        return Alike(latents, jax.tree.map(lambda leaf: jnp.stack([leaf] * len(latents)), once), shared=True)
    return Alike(latents, _mapped(function, members, one_by_one))


def _is_shared(members: list[Any]) -> bool:
    """Whether all consist of the same objects: equal values of different objects may be different at the next call."""
    first, *others = (jax.tree.leaves(parts) for parts in members)
    return all(own is same for leaves in others for own, same in zip(leaves, first, strict=True))


def _mapped(function: Callable, members: list[Any], one_by_one: bool) -> Any:
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *members)
    if one_by_one:
        return jax.lax.map(lambda parts: function(*parts), stacked)
    return jax.vmap(function)(*stacked)


def stacked(groups: list[Alike]) -> Any:
    """Arrays of one shape for all latents, in the order of the latents."""
    if len(groups) == 1:
        return groups[0].found
    order = np.argsort([latent for group in groups for latent in group.latents])
    return jnp.concatenate([group.found for group in groups])[order]


def grams(kernel: Any, x1: Float[Array, "N P"], x2: Float[Array, "M P"]) -> Float[Array, "D N M"]:
    """The matrix k(x1, x2) of every latent."""
    return stacked(over_latents(lambda part: gram(part, x1, x2), kernel))


def diagonals(kernel: Any, x: Float[Array, "N P"]) -> Float[Array, "D N"]:
    """The variances k(x, x) of every latent."""
    return stacked(over_latents(lambda part: diagonal(part, x), kernel))
