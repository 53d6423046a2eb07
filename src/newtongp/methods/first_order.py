"""Adam on the variational free energy, over each site's mean and the root of its covariance.

The first-order baseline of `sec:experiments`: a site has mean a and covariance TᵀT with T lower triangular,
so it is PSD by construction.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..numerics.gaussian import Sites
from ..numerics.small import small_root, small_solve_psd


class AdamState(eqx.Module):
    """Site means and roots, and Adam's moments."""

    mean: Float[Array, "N D"]
    root: Float[Array, "N D D"]
    moments: Any


def _optimiser(learning_rate) -> Any:
    # Imported here, since it takes a tenth of a second and few need it.
    import optax

    return optax.adam(learning_rate, b2=0.99)


def start(sites: Sites, learning_rate) -> AdamState:
    """Adam's state at these sites, whose precisions must be positive definite."""

    def row(linear, precision):
        mean = small_solve_psd(precision, linear)
        covariance = small_solve_psd(precision, jnp.eye(linear.shape[0]))
        # TᵀT = covariance with T lower triangular is the Cholesky factor of the reversed matrix, reversed.
        flipped = small_root(covariance[::-1, ::-1])
        return mean, flipped[::-1, ::-1].T

    mean, root = jax.vmap(row)(jnp.asarray(sites.linear), jnp.asarray(sites.precision))
    return AdamState(mean, root, _optimiser(learning_rate).init((mean, root)))


def to_sites(mean: Float[Array, "N D"], root: Float[Array, "N D D"]) -> Sites:
    """The sites with these means and covariance roots."""

    def row(mean, root):
        lower = jnp.tril(root)
        precision = small_solve_psd(lower.T @ lower, jnp.eye(mean.shape[0]))
        return Sites(precision @ mean, precision)

    return jax.vmap(row)(mean, root)


def advance(
    free_energy: Callable[[Sites], Float[Array, ""]], state: AdamState, learning_rate
) -> tuple[Sites, AdamState]:
    """One step of Adam."""
    parameters = (state.mean, state.root)
    gradient = jax.grad(lambda p: free_energy(to_sites(*p)))(parameters)
    updates, moments = _optimiser(learning_rate).update(gradient, state.moments, parameters)
    mean, root = jax.tree.map(jnp.add, parameters, updates)
    root = _keep_regular(state.root, root)
    return to_sites(mean, root), AdamState(mean, root, moments)


_SHRINKS = 1e-3
"""The least part of a diagonal entry that one step leaves."""


def _keep_regular(old: Float[Array, "N D D"], new: Float[Array, "N D D"]) -> Float[Array, "N D D"]:
    """Roots with no zero on the diagonal, where a step as long as an entry may lead: the sites would be infinite."""
    least = _SHRINKS * jnp.diagonal(old, axis1=1, axis2=2)
    found = jnp.diagonal(new, axis1=1, axis2=2)
    missing = jnp.where(jnp.abs(found) < jnp.abs(least), least - found, 0.0)
    return new + missing[:, :, None] * jnp.eye(old.shape[1])[None]
