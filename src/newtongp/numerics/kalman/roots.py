"""The square root form of the posterior of a chain, for sites so precise that covariances lose their digits.

If the variance of f is 1e-16 of the prior's, a covariance of 16 digits does not contain it, unless f is one of the
states. Its square root, in which 1e-16 is 1e-8, does. Backward in time, sites add rows to a least-squares problem,
|z − Vᵀx|², which reflections keep triangular; forward in time, the columns of each position's own noise are added to
the root F of a smoothed covariance C = F Fᵀ. Everything is a sum of squares, so that no covariance can be indefinite.

It takes several times as long as filter and smoother, and sites must be PSD.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..linalg import psd_root, triangular_root
from ..small import small_root
from .chain import Chain, observation_rows
from .scalar_sites import scalar_sites

_SMALL = 8
_WEAK = 1e-8
"""Sites that are weaker than this, relative to the strongest, enter linearly: their values a / √w could be huge."""


class Information(NamedTuple):
    """exp(νᵀx − ½ |z − Vᵀx|²)."""

    root: Float[Array, "*T d d"]
    """V."""
    value: Float[Array, "*T d"]
    """z."""
    centred_linear: Float[Array, "*T d"]
    """ν: the linear term of weak sites, which are not part of z."""


class Forward(NamedTuple):
    """The posterior chain: xₙ = Φₙ xₙ₋₁ + cₙ + Rₙ ε, from x₀ = c₀ + R₀ ε before the first position."""

    transition: Float[Array, "T d d"]
    offset: Float[Array, "T d"]
    root: Float[Array, "T d d"]
    first: Float[Array, " d"]
    first_root: Float[Array, "d d"]


def careful_forward(chain: Chain, precision: Float[Array, "T D D"], linear: Float[Array, "T D"]) -> Forward:
    """The posterior, given PSD sites, of a chain of one piece as a Markov chain forward in time."""
    form = chain.form
    transition = form.full(chain.transition)
    noise = _noise_roots(chain)
    start, here = _backward(transition, noise, _site_rows(chain, precision, linear))
    root, pull = jax.vmap(_conditional)(noise, here.root)
    product = jnp.einsum("tji,tjk->tik", here.root, transition)
    steered = jnp.einsum("tij,tjk->tik", root, jnp.einsum("tij,tjk->tik", pull, product))
    first_root, first_pull = _conditional(psd_root(chain.initial), start.root)
    return Forward(
        transition - steered,
        jax.vmap(_offset)(root, pull, here),
        root,
        _offset(first_root, first_pull, start),
        first_root,
    )


class Careful(NamedTuple):
    """Mean and covariance of every state and of the latents, as deviations from the prior mean."""

    state_mean: Float[Array, "T d"]
    state_covariance: Float[Array, "T d d"]
    mean: Float[Array, "T D"]
    covariance: Float[Array, "T D D"]


def careful_states(chain: Chain, posterior: Forward) -> Careful:
    """The moments of a chain of one piece, from `careful_forward`."""
    mean, root = _smoothed_roots(posterior)
    rows = jnp.broadcast_to(observation_rows(chain), (mean.shape[0], chain.num_latents, mean.shape[1]))
    latent_root = jnp.sum(rows[:, :, :, None] * root[:, None, :, :], axis=2)
    return Careful(
        mean,
        jnp.sum(root[:, :, None, :] * root[:, None, :, :], axis=3),
        jnp.sum(rows * mean[:, None, :], axis=2),
        jnp.sum(latent_root[:, :, None, :] * latent_root[:, None, :, :], axis=3),
    )


def _smoothed_roots(chain: Forward) -> tuple[Float[Array, "T d"], Float[Array, "T d d"]]:
    """The mean of every state, and F with covariance F Fᵀ."""

    def body(state, step):
        mean, root = state
        transition, offset, own = step
        mean = jnp.sum(transition * mean[None, :], axis=1) + offset
        carried = jnp.sum(transition[:, :, None] * root[None, :, :], axis=1)
        root = triangular_root(jnp.concatenate([carried.T, own.T]), root.shape[0]).T
        return (mean, root), (mean, root)

    return jax.lax.scan(body, (chain.first, chain.first_root), (chain.transition, chain.offset, chain.root))[1]


def _noise_roots(chain: Chain) -> Float[Array, "T d d"]:
    noise = chain.form.full_symmetric(chain.noise)
    return jax.vmap(small_root if chain.form.dimension <= _SMALL else psd_root)(noise)


class _Rows(NamedTuple):
    """Scalar sites as rows of a least-squares problem, √w (h, a / w), and the linear term of the weak ones."""

    rows: Float[Array, "T D d"]
    values: Float[Array, "T D"]
    centred_linear: Float[Array, "T d"]


def _site_rows(chain: Chain, precision, linear) -> _Rows:
    rotation, weights, centred_linear = scalar_sites(precision, linear)
    rows = jnp.broadcast_to(observation_rows(chain), (*linear.shape, chain.form.dimension))
    directions = rows if rotation is None else jnp.einsum("tik,tid->tkd", rotation, rows)
    strong = weights > _WEAK * jnp.max(weights)
    roots = jnp.where(weights > 0.0, jnp.sqrt(jnp.where(weights > 0.0, weights, 1.0)), 0.0)
    values = jnp.where(strong, centred_linear / jnp.where(strong, roots, 1.0), 0.0)
    weak = jnp.sum(jnp.where(strong, 0.0, centred_linear)[:, :, None] * directions, axis=1)
    return _Rows(roots[:, :, None] * directions, values, weak)


def _backward(transition: Any, noise: Any, sites: _Rows) -> tuple[Information, Information]:
    """The information about the state before the first position, and at every position, its own sites included."""
    size = transition.shape[-1]

    def body(later, step):
        transition, noise, own = step
        stacked = jnp.concatenate(
            [
                jnp.concatenate([own.rows, own.values[:, None]], axis=1),
                jnp.concatenate([later.root.T, later.value[:, None]], axis=1),
            ]
        )
        reduced = triangular_root(stacked, size)
        here = Information(reduced[:, :size].T, reduced[:, size], later.centred_linear + own.centred_linear)
        before = jax.lax.fori_loop(0, size, lambda k, info: _absorb(info, noise[:, k]), here)
        turned = transition.T
        earlier = Information(
            jnp.sum(turned[:, :, None] * before.root[None, :, :], axis=1),
            before.value,
            jnp.sum(turned * before.centred_linear[None, :], axis=1),
        )
        return earlier, here

    nothing = Information(jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(size))
    return jax.lax.scan(body, nothing, (transition, noise, sites), reverse=True)


def _absorb(information: Information, column: Float[Array, " d"]) -> Information:
    """The expectation over x' = x + g ε of the information about x', as a function of x (Potter's form)."""
    root, value, centred_linear = information
    product = jnp.sum(root * column[:, None], axis=0)
    size = 1.0 + jnp.sum(product**2)
    scale = 1.0 / (size + jnp.sqrt(size))
    along = jnp.sum(root * product[None, :], axis=1)
    return Information(
        root - scale * along[:, None] * product[None, :],
        value - scale * jnp.sum(product * value) * product,
        centred_linear - jnp.sum(column * centred_linear) / size * along,
    )


def _conditional(root: Float[Array, "d d"], information: Float[Array, "d d"]) -> tuple[Any, Any]:
    """R with R Rᵀ = G (I + GᵀVVᵀG)⁻¹ Gᵀ, and RᵀV, whose norm is at most 1.

    If VᵀG stacked on I is Q U, with U upper triangular, they are G Q₂ and Q₁ᵀ. Computed by solving with U, small
    entries of RᵀV would be differences of entries as large as V.
    """
    size = root.shape[0]
    product = jnp.sum(information[:, :, None] * root[:, None, :], axis=0)
    stacked = jnp.concatenate([product, jnp.eye(size)])
    turned = triangular_root(jnp.concatenate([stacked, jnp.eye(2 * size)], axis=1), size)
    pull, inverse = turned[:, size : 2 * size], turned[:, 2 * size :]
    return jnp.sum(root[:, None, :] * inverse[None, :, :], axis=2), pull


def _offset(root: Float[Array, "d d"], pull: Float[Array, "d d"], information: Information) -> Float[Array, " d"]:
    """R (RᵀV z + Rᵀν)."""
    inner = jnp.sum(pull * information.value[None, :], axis=1) + jnp.sum(
        root * information.centred_linear[:, None], axis=0
    )
    return jnp.sum(root * inner[None, :], axis=1)
