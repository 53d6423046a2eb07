"""Sites on several latents as scalar sites: Λ = V diag(w) Vᵀ, and λᵀf = Σₖ aₖ (Vᵀf)ₖ."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..small import small_eigh


def scalar_sites(
    precision: Float[Array, "T D D"], linear: Float[Array, "T D"]
) -> tuple[Any, Float[Array, "T D"], Float[Array, "T D"]]:
    """V (None for one latent), w in descending order and a = V⁻¹λ, for every row."""
    if linear.shape[1] == 1:
        return None, precision[:, :, 0], linear
    return _rotate(precision, linear)


@jax.custom_jvp
def _rotate(precision, linear):
    values, vectors = jax.vmap(small_eigh)(precision)
    # Positive sites come first, which keeps the row's denominators 1 + w s as far from zero as possible;
    # `information.is_proper` relies on this order.
    values, vectors = _descending(values, vectors)
    return vectors, values, jnp.einsum("tjk,tj->tk", vectors, linear)


def _descending(values, vectors):
    """The same pairs in descending order of the values."""
    if values.shape[1] == 2:  # a comparison, in place of a sort and two gathers
        swap = values[:, 1:] > values[:, :1]
        return jnp.where(swap, values[:, ::-1], values), jnp.where(swap[:, None], vectors[:, :, ::-1], vectors)
    order = jnp.argsort(-values, axis=1)
    return jnp.take_along_axis(values, order, axis=1), jnp.take_along_axis(vectors, order[:, None, :], axis=2)


@_rotate.defjvp
def _rotate_derivative(primals, tangents):
    # Eigenvectors have no derivative where eigenvalues coincide. But only V diag(w) Vᵀ and V a matter, and V need not
    # stay orthogonal: with dV = V X it is enough that X W + W Xᵀ + dW = Vᵀ dΛ V =: E. The X of least norm solves this
    # unless both eigenvalues are zero.
    precision, linear = primals
    vectors, values, centred_linear = _rotate(precision, linear)
    change, linear_change = tangents
    turned = jnp.einsum("tik,tij,tjl->tkl", vectors, change, vectors)
    size = values[:, :, None] ** 2 + values[:, None, :] ** 2
    mixing = jnp.where(size > 0.0, turned * values[:, None, :] / jnp.where(size > 0.0, size, 1.0), 0.0)
    mixing = jnp.where(jnp.eye(values.shape[1], dtype=bool)[None], 0.0, mixing)
    value_change = jnp.diagonal(turned, axis1=1, axis2=2)
    site_change = jnp.einsum("tjk,tj->tk", vectors, linear_change) - jnp.einsum("tkl,tl->tk", mixing, centred_linear)
    return (vectors, values, centred_linear), (jnp.einsum("tik,tkl->til", vectors, mixing), value_change, site_change)
