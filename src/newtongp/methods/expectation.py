"""Expectations of one row's log density and moments: closed form where there is one, nodes elsewhere.

Derivatives of expectations are expectations of derivatives (Bonnet's and Price's theorems):
∇ₘ E[h] = E[∇h], ∇²ₘ E[h] = E[∇²h], ∇_C E[h] = ½ E[∇²h].
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..cubature import Cubature, default_cubature, is_point, nodes_and_weights
from ..gaussian import Gaussian
from ..likelihoods.base import Likelihood, row_axes, row_expected_log_prob, row_log_expected_power, row_log_prob
from ..linalg import outer, small_solve_lower_transposed, symmetrise


class Derivatives(NamedTuple):
    """A function of f with its gradient and Hessian."""

    value: Float[Array, "*rows"]
    gradient: Float[Array, "*rows D"]
    hessian: Float[Array, "*rows D D"]


def derivatives(function: Callable, f: Float[Array, " D"]) -> Derivatives:
    """Value, gradient and Hessian at f, forward mode (D is small)."""
    gradient = jax.jacfwd(function)
    return Derivatives(function(f), gradient(f), jax.jacfwd(gradient)(f))


def has_closed_form(likelihood: Likelihood) -> bool:
    """Whether the likelihood knows E[log p(y | f)] without nodes."""
    row = jax.tree.map(lambda leaf, axis: leaf if axis is None else leaf[0], likelihood, row_axes(likelihood))
    y, mean = jnp.zeros(likelihood.num_outputs), jnp.zeros(likelihood.num_latents)

    def closed():
        return row_expected_log_prob(row, y, mean, jnp.eye(likelihood.num_latents))

    return jax.eval_shape(closed) is not None


def rule_or_default(cubature: Cubature | None, dimension: int) -> Cubature:
    """The method's own rule, or the default one."""
    return default_cubature(dimension) if cubature is None else cubature


def expected_log_density(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    cubature: Cubature | None,
    descent: bool = False,
) -> Derivatives:
    """E[log p(y | f)] and its first two derivatives in the mean, `eq:vi-target`.

    A closed form is used where the likelihood has one and the method names no rule. With `descent`, the
    Hessian is that of `_descent_hessian`.
    """
    if cubature is None:

        def closed(mean):
            return row_expected_log_prob(likelihood, y, mean, gaussian.covariance)

        if closed(gaussian.mean) is not None:
            return derivatives(closed, gaussian.mean)
    rule = rule_or_default(cubature, gaussian.mean.shape[0])
    nodes, weights, standard, root = nodes_and_weights(rule, gaussian)
    at_nodes = jax.vmap(lambda f: derivatives(lambda g: row_log_prob(likelihood, y, g), f))(nodes)
    expected = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, axes=1), at_nodes)
    if not descent or is_point(rule, gaussian.mean.shape[0]):
        return expected
    slopes = jnp.einsum("s,si,sj->ij", weights, at_nodes.gradient, standard)
    return expected._replace(hessian=_descent_hessian(expected.hessian, slopes, root))


_NODES_EXACT, _NODES_COARSE = 1e-6, 1e-4


def _descent_hessian(
    hessian: Float[Array, "D D"], slopes: Float[Array, "D D"], root: Float[Array, "D D"]
) -> Float[Array, "D D"]:
    """E[∇² log p], or where the nodes are too coarse for it, twice the sum's own derivative in C.

    With f = m + Lz the sum over nodes changes with C as if LᵀHL were the lower triangle of LᵀE[∇log p zᵀ],
    mirrored. For exact integrals that is E[∇² log p] too; at nodes the two differ by quadrature error, and only
    with the second is a proposal sure to point downhill in the energy that is computed at the same nodes.
    """
    product = root.T @ slopes
    own = jnp.tril(product) + jnp.tril(product, -1).T
    usable = jnp.all(jnp.diagonal(root) > 0.0)
    safe_root = jnp.where(usable, root, jnp.eye(root.shape[0]))
    half = small_solve_lower_transposed(safe_root, own)
    of_sum = symmetrise(small_solve_lower_transposed(safe_root, half.T))
    error = jnp.max(jnp.abs(root.T @ hessian @ root - own)) / (1.0 + jnp.max(jnp.abs(own)))
    return hand_over(jnp.where(usable, error, 0.0), _NODES_EXACT, _NODES_COARSE, hessian, of_sum)


def hand_over(error: Float[Array, ""], trusted: float, useless: float, first: Array, second: Array) -> Array:
    """`first` where the error is below `trusted`, `second` where it is above `useless`, a mixture in between.

    Continuous, because a map that jumps has no fixed point to converge to.
    """
    weight = jnp.clip((useless - error) / (useless - trusted), 0.0, 1.0)
    # Not a plain sum: 0 times the infinity of a useless expectation would be NaN.
    return jnp.where(weight > 0.0, weight * first, 0.0) + (1.0 - weight) * second


class Tilted(NamedTuple):
    """log E[p^α] with its derivatives in the mean, and the moments of the tilted distribution."""

    derivatives: Derivatives
    mean_shift: Float[Array, " D"]
    """L⁻¹(E_t[f] − m)."""
    whitened_covariance: Float[Array, "D D"]
    """L⁻¹ Cov_t[f] L⁻ᵀ."""
    root: Float[Array, "D D"]


def log_expected_density(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    cubature: Cubature | None,
    power: float = 1.0,
) -> Float[Array, ""]:
    """log E[p(y | f)^α]: the value alone."""
    if cubature is None:
        closed = row_log_expected_power(likelihood, y, gaussian.mean, gaussian.covariance, power)
        if closed is not None:
            return closed
    rule = rule_or_default(cubature, gaussian.mean.shape[0])
    nodes, weights, _, _ = nodes_and_weights(rule, gaussian)
    log_p = jax.vmap(lambda f: row_log_prob(likelihood, y, f))(nodes)
    return _log_normaliser(weights, power * log_p)[0]


def tilted_expectations(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, cubature: Cubature, power: float
) -> Tilted:
    """log E[p(y | f)^α] at nodes, from expectations under the tilted weights t ∝ w p^α.

    ∇ log Z = α E_t[∇ log p] and ∇² log Z = α E_t[∇² log p] + α² Cov_t[∇ log p], which tends to
    variational inference as α → 0.
    """
    nodes, weights, standard, root = nodes_and_weights(cubature, gaussian)
    at_nodes = jax.vmap(lambda f: derivatives(lambda g: row_log_prob(likelihood, y, g), f))(nodes)
    log_z, tilted = _log_normaliser(weights, power * at_nodes.value)
    gradient = tilted @ at_nodes.gradient
    centred = at_nodes.gradient - gradient[None, :]
    spread = jnp.einsum("s,si,sj->ij", tilted, centred, centred)
    hessian = jnp.tensordot(tilted, at_nodes.hessian, axes=1)
    shift = tilted @ standard
    deviation = standard - shift[None, :]
    return Tilted(
        Derivatives(log_z, power * gradient, power * hessian + power**2 * spread),
        shift,
        jnp.einsum("s,si,sj->ij", tilted, deviation, deviation),
        root,
    )


def closed_log_expected_density(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, power: float
) -> Derivatives | None:
    """log E[p(y | f)^α] and its derivatives in the mean, where the likelihood knows them."""

    def closed(mean):
        return row_log_expected_power(likelihood, y, mean, gaussian.covariance, power)

    return None if closed(gaussian.mean) is None else derivatives(closed, gaussian.mean)


def covariance_gradient_of_log_expectation(log_z: Derivatives) -> Float[Array, "D D"]:
    """∇_C log Z = ½ (∇²ₘ log Z + ∇ₘ log Z ∇ₘ log Zᵀ), since ∇_C Z = ½ ∇²ₘ Z."""
    return 0.5 * (log_z.hessian + outer(log_z.gradient, log_z.gradient))


def _log_normaliser(
    weights: Float[Array, " S"], log_values: Float[Array, " S"]
) -> tuple[Float[Array, ""], Float[Array, " S"]]:
    """log Σ wₛ exp(vₛ) and the normalised terms, for weights of either sign."""
    largest = jax.lax.stop_gradient(jnp.max(log_values))
    terms = weights * jnp.exp(log_values - largest)
    total = jnp.sum(terms)
    return largest + jnp.log(total), terms / total
