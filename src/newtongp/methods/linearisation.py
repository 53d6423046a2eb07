"""Statistical linear regression of one row: y ≈ A f + b + noise of covariance Ω, around a marginal.

`eq:gauss-filt-components`: with ν(f) = E[y | f], S = E[(ν − ν̄)(ν − ν̄)ᵀ + Cov[y | f]], Q = E[(f − m)(ν − ν̄)ᵀ] and
Ω = S − QᵀC⁻¹Q, all by one integration rule.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..likelihoods.base import Likelihood, row_covariance, row_mean
from ..numerics.cubature import Cubature, nodes_and_weights
from ..numerics.gaussian import Gaussian
from ..numerics.small import outer, small_solve


def linearise(
    likelihood: Likelihood, marginal: Gaussian, rule: Cubature
) -> tuple[Float[Array, " P"], Float[Array, "P P"]]:
    """ν̄ = E[E[y | f]] and Ω."""
    mean, centred, weights, standard, _, nodes = _conditional_means(likelihood, marginal, rule)
    noises = jax.vmap(lambda f: row_covariance(likelihood, f), in_axes=1, out_axes=-1)(nodes)
    # With f = m + Lz: QᵀC⁻¹Q = E[z ν]ᵀ E[z ν], which needs no inverse of C.
    whitened = _cross(weights, standard, centred)
    total = (centred[:, None] * centred[None] + noises) @ weights
    return mean, total - whitened.T @ whitened


def slope_by_derivative(likelihood: Likelihood, marginal: Gaussian, rule: Cubature) -> Float[Array, "P D"]:
    """∇ₘ ν̄ = E[∇ν]."""
    nodes, weights, _, _ = nodes_and_weights(rule, marginal)
    jacobians = jax.vmap(jax.jacfwd(lambda f: row_mean(likelihood, f)))(nodes)
    return jnp.tensordot(weights, jacobians, axes=1)


def slope_by_regression(likelihood: Likelihood, marginal: Gaussian, rule: Cubature) -> Float[Array, "P D"]:
    """QᵀC⁻¹."""
    _, centred, weights, standard, root, _ = _conditional_means(likelihood, marginal, rule)
    # Not every rule's root is triangular.
    return small_solve(root.T, _cross(weights, standard, centred)).T


def _conditional_means(likelihood: Likelihood, marginal: Gaussian, rule: Cubature):
    """ν̄, and ν − ν̄ at all nodes, which are the last axis; the rule, the root, and the nodes in the same form."""
    standard, weights = (jnp.asarray(part) for part in rule.rule(marginal.mean.shape[0]))
    root = rule.root(marginal.covariance)
    nodes = marginal.mean[:, None] + root @ standard.T
    at_nodes = jax.vmap(lambda f: row_mean(likelihood, f), in_axes=1, out_axes=-1)(nodes)
    mean = at_nodes @ weights
    return mean, at_nodes - mean[:, None], weights, standard, root, nodes


def _cross(
    weights: Float[Array, " S"], standard: Float[Array, "S D"], centred: Float[Array, "P S"]
) -> Float[Array, "D P"]:
    """E[z (ν − ν̄)ᵀ]."""
    return (centred @ (weights[:, None] * standard)).T


# As functions of the covariance: by Price's theorem ∇_C E[h] = ½ E[∇²h], at the nodes ---------------


def fitted_in_covariance(
    likelihood: Likelihood, marginal: Gaussian, covariance: Float[Array, "D D"], rule: Cubature
) -> Float[Array, " P"]:
    """ν̄ near the marginal's covariance, to first order."""
    return _price(lambda f: row_mean(likelihood, f), marginal, covariance, rule)


def noise_in_covariance(
    likelihood: Likelihood, marginal: Gaussian, covariance: Float[Array, "D D"], rule: Cubature
) -> Float[Array, "P P"]:
    """Ω near the marginal's covariance, to first order."""

    def second_moment(f):
        fitted = row_mean(likelihood, f)
        return outer(fitted, fitted) + row_covariance(likelihood, f)

    def product(f):
        return outer(f - marginal.mean, row_mean(likelihood, f))

    mean = fitted_in_covariance(likelihood, marginal, covariance, rule)
    total = _price(second_moment, marginal, covariance, rule) - outer(mean, mean)
    cross = _price(product, marginal, covariance, rule)
    return total - cross.T @ small_solve(covariance, cross)


def _price(function: Callable, marginal: Gaussian, covariance: Float[Array, "D D"], rule: Cubature) -> Array:
    """E[h(f)] to first order in the covariance, around the marginal's."""
    nodes, weights, _, _ = nodes_and_weights(rule, marginal)
    change = covariance - marginal.covariance

    def at(f):
        second = jax.jacfwd(jax.jacfwd(function))(f)
        return function(f) + 0.5 * jnp.tensordot(second, change, axes=2)

    return jnp.tensordot(weights, jax.vmap(at)(nodes), axes=1)
