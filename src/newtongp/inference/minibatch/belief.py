"""The product of all sites as a function of the inducing variables, and the posterior it gives."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...methods.rule import residual_in
from ...numerics import kalman
from ...numerics.gaussian import Gaussian, Sites
from ...numerics.small import graded_root
from ...priors import weight_space
from ...priors.sparse_chain import ChainFeatures, marginals_of_rows


class Product(eqx.Module):
    """The product t of all sites as a function of inducing variables, exp(λᵀv − ½ vᵀΛv).

    For a sparse GP, `linear` is (D, M) and `precision` (D·M, D·M). For a sparse chain they have one entry per interval,
    (T, E) and (T, E, E), and v is its x.
    """

    linear: Any
    precision: Any

    def __add__(self, other: "Product") -> "Product":
        return Product(self.linear + other.linear, self.precision + other.precision)

    def times(self, factor: Any) -> "Product":
        """To the power of `factor`."""
        return Product(factor * self.linear, factor * self.precision)

    @property
    def trace(self) -> Float[Array, ""]:
        """The trace of the precision."""
        return jnp.sum(jnp.trace(self.precision, axis1=-2, axis2=-1))


class Belief(eqx.Module):
    """q(v) ∝ N(0, I) t(v): its mean (D, M) and the half of its covariance (D·M, D, M)."""

    mean: Float[Array, "D M"]
    half: Float[Array, "DM D M"]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    @classmethod
    def given(cls, product: Product) -> "Belief":
        factor = weight_space.factor_of_gram(product.precision)
        mean = factor.inverse.T @ (factor.inverse @ product.linear.reshape(-1))
        half = factor.inverse.reshape(-1, *product.linear.shape)
        return cls(mean.reshape(product.linear.shape), half, factor.log_det, factor.proper)

    def marginals(self, prior_mean: Float[Array, "B D"], features: Float[Array, "D B M"]) -> Gaussian:
        """The marginals of g at some rows."""
        mean = prior_mean + weight_space.times(features, self.mean)
        return Gaussian(mean, weight_space.covariances(self.half, features, triangular=True))

    @property
    def distance(self) -> Float[Array, ""]:
        return jnp.sum(self.mean**2)

    @property
    def excess(self) -> Float[Array, ""]:
        """The trace of the covariance of v, minus that of the prior."""
        return jnp.sum(self.half**2) - self.mean.size

    def expected(self, product: Product) -> tuple[Any, Any]:
        """Half of the expectation of vᵀv + vᵀΛv over the deviations of v, and at its mean, for the Λ of a product."""
        mean, half = self.mean.reshape(-1), self.half.reshape(self.half.shape[0], -1)
        spread = jnp.sum(half**2) + jnp.sum((half @ product.precision) * half)
        return 0.5 * spread, (0.5 * (mean @ mean), 0.5 * (mean @ product.precision @ mean))

    def residuals(self, product: Product, proposal: Product) -> Float[Array, " K"]:
        """The fixed-point residual of t as one site on all of v; the root of q's covariance is Hᵀ."""
        root = self.half.reshape(self.half.shape[0], -1).T
        sites = (Sites(part.linear.reshape(-1), part.precision) for part in (product, proposal))
        return residual_in(root, self.mean.reshape(-1), *sites)


class ChainBelief(eqx.Module):
    """q(x) of every interval of a sparse chain: its mean (T, E) and covariance (T, E, E)."""

    mean: Float[Array, "T E"]
    covariance: Float[Array, "T E E"]
    distance: Float[Array, ""]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]
    explained: Float[Array, ""]
    """tr(ΛC), by which the covariance of the whitened variables is smaller than that of the prior."""

    @classmethod
    def given(cls, chain: kalman.Intervals, product: Product) -> "ChainBelief":
        moments = kalman.condition_intervals(chain, kalman.Factors(product.linear, product.precision))
        return cls(*moments, jnp.sum(product.precision * moments.covariance))

    def marginals(self, prior_mean: Float[Array, "B D"], features: ChainFeatures) -> Gaussian:
        """The marginals of g at some rows."""
        return marginals_of_rows(features, prior_mean, self)

    @property
    def excess(self) -> Float[Array, ""]:
        """The trace of the covariance of the whitened variables, minus that of the prior."""
        return -self.explained

    def expected(self, product: Product) -> tuple[Any, Any]:
        """As for `Belief`, up to a constant."""
        spread = jnp.sum(product.precision * self.covariance) - self.explained
        quadratic = jnp.einsum("ti,tij,tj->", self.mean, product.precision, self.mean)
        return 0.5 * spread, (0.5 * self.distance, 0.5 * quadratic)

    def residuals(self, product: Product, proposal: Product) -> Float[Array, " K"]:
        """The fixed-point residuals of the factors of all intervals."""
        roots = jax.vmap(graded_root)(self.covariance)
        sites = (Sites(part.linear, part.precision) for part in (product, proposal))
        return jax.vmap(residual_in)(roots, self.mean, *sites).reshape(-1)
