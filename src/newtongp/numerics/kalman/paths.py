"""The posterior as a Markov chain forward in time: draws of whole paths, and covariances between positions.

Given the state before it, the state at a position depends on the sites from there on only through their information
exp(νᵀx − ½ xᵀJx). It is N(Φ x + c, R Rᵀ) with R Rᵀ = Q½ (I + Q½ᵀJQ½)⁻¹ Q½ᵀ, Φ = (I − R Rᵀ J) A and c = R Rᵀ ν.
No inverse of Q occurs, so that repeated inputs and processes without noise need no special treatment.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import EPS, as_covariance, lifted_cholesky, psd_root, solve_lower
from ..small import small_root, small_solve_lower, symmetrise
from . import loops
from .chain import Chain, observation_rows
from .information import backward
from .roots import Forward
from .smoother import steps_of


def forward(chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]) -> Forward:
    """The posterior, given sites, of a chain of one piece as a Markov chain forward in time."""
    steps = steps_of(chain, precision, linear)
    start, later = backward(chain, steps)
    form, size = chain.form, chain.form.dimension
    rows = observation_rows(chain)
    vector = form.join_vector(later[0]) + jnp.sum(rows * linear[:, :, None], axis=1)
    weighted = jnp.sum(precision[:, :, :, None] * rows[:, None, :, :], axis=2)
    matrix = form.join(later[1]) + jnp.einsum("tji,tjk->tik", jnp.broadcast_to(rows, weighted.shape), weighted)
    root_of = small_root if size <= _SMALL else psd_root
    noise = jax.vmap(root_of)(form.full_symmetric(chain.noise))
    root = jax.vmap(_conditional_root)(noise, matrix)
    spread = jnp.einsum("tik,tjk->tij", root, root)
    transition = form.full(chain.transition)
    pulled = jnp.einsum("tij,tjk->tik", spread, jnp.einsum("tij,tjk->tik", matrix, transition))
    first_root = _conditional_root(psd_root(chain.initial), form.join(start[1]))
    return Forward(
        transition - pulled,
        jnp.einsum("tij,tj->ti", spread, vector),
        root,
        first_root @ (first_root.T @ form.join_vector(start[0])),
        first_root,
    )


_SMALL = 8


def _conditional_root(root: Float[Array, "d d"], information: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """R with R Rᵀ = S (I + SᵀJS)⁻¹ Sᵀ."""
    size = root.shape[0]
    matrix = symmetrise(jnp.eye(size) + root.T @ information @ root)
    if size > _SMALL:
        return solve_lower(lifted_cholesky(matrix)[0], root.T).T
    factor = small_root(matrix + 4.0 * size * EPS * jnp.diag(jnp.diagonal(matrix)))
    # A pivot lost to rounding belongs to a direction with no remaining variance.
    known = (jnp.diagonal(factor) <= 0.0)[:, None] & jnp.eye(size, dtype=bool)
    return small_solve_lower(jnp.where(known, jnp.inf, factor), root.T).T


def draw_paths(chain: Forward, key: Any, n: int) -> Float[Array, "T d n"]:
    """n draws of all states."""
    length, size = chain.offset.shape
    key_first, key_rest = jax.random.split(key)
    first = chain.first[:, None] + chain.first_root @ jax.random.normal(key_first, (size, n))
    kicks = chain.offset[:, :, None] + jnp.einsum(
        "tij,tjn->tin", chain.root, jax.random.normal(key_rest, (length, size, n))
    )

    def body(state, step):
        transition, kick = step
        state = kick + jnp.sum(transition[:, :, None] * state[None, :, :], axis=1)
        return state, state

    return loops.scan(body, first, (chain.transition, kicks), whole=size * size * n <= 64)[1]


def joint_covariance(
    chain: Forward, covariances: Float[Array, "T d d"], rows: Float[Array, "T D d"], chosen: Any
) -> Float[Array, "M D M D"]:
    """Cov of f between all pairs of chosen positions, which may be in any order and repeated.

    `covariances` are the smoothed covariances of all states. The result is PSD up to rounding.
    """
    return joint_of_rows(chain, covariances, rows[chosen], chosen)


def joint_of_rows(
    chain: Forward, covariances: Float[Array, "T d d"], rows: Float[Array, "M D d"], chosen: Any
) -> Float[Array, "M D M D"]:
    """The same for functions of the states at chosen positions, which may differ between two of the same position."""
    order = jnp.argsort(chosen)
    back = jnp.argsort(order)
    at = chosen[order]
    joint = _joint_in_order(_products(chain, at), covariances[at], rows[order])
    return joint[back][:, :, back]


def with_marginals(
    joint: Float[Array, "M D M D"], marginal: Float[Array, "M D D"], wanted: Any = None
) -> Float[Array, "MD MD"]:
    """The joint covariance with these covariances within positions, as a PSD matrix: `wanted` positions, or all."""
    count, latents = joint.shape[:2]
    own = (jnp.arange(count)[:, None] == jnp.arange(count)[None, :])[:, None, :, None]
    whole = jnp.where(own, marginal[:, :, None, :], joint).reshape(count * latents, -1)
    return as_covariance(whole, None if wanted is None else wanted * latents)


def _products(chain: Forward, chosen: Any) -> Float[Array, "M d d"]:
    """The product of the transitions from each chosen position to the next, for positions in ascending order."""
    length, size = chain.offset.shape
    is_chosen = jnp.zeros(length, dtype=bool).at[chosen].set(True)

    def body(product, step):
        transition, ends = step
        product = jnp.sum(transition[:, :, None] * product[None, :, :], axis=1)
        return jnp.where(ends, jnp.eye(size), product), product

    _, products = jax.lax.scan(body, jnp.eye(size), (chain.transition, is_chosen))
    repeated = jnp.concatenate([jnp.zeros(1, dtype=bool), chosen[1:] == chosen[:-1]])
    return jnp.where(repeated[:, None, None], jnp.eye(size)[None], products[chosen])


def _joint_in_order(products, covariances, rows) -> Float[Array, "M D M D"]:
    count, latents, size = rows.shape
    own = jnp.einsum("mij,mdj->mid", covariances, rows)
    index = jnp.arange(count)

    def body(state, step):
        product, column, row, k = step
        state = jnp.einsum("ij,jmd->imd", product, state)
        state = jnp.where((index == k)[None, :, None], column[:, None, :], state)
        return state, jnp.einsum("ei,imd->emd", row, state)

    start = jnp.zeros((size, count, latents))
    _, lower = jax.lax.scan(body, start, (products, own, rows, index))
    full = lower.reshape(count * latents, count * latents)
    below = (index[:, None] >= index[None, :]).repeat(latents, 0).repeat(latents, 1)
    return jnp.where(below, full, full.T).reshape(count, latents, count, latents)
