"""Gaussians and sites as values, and the block algebra between them, one row at a time.

A site is t(f) = exp(λᵀf − ½ fᵀΛf). Nothing here inverts a site precision Λ: it is zero for a missing row, singular with
Gauss-Newton, and may have negative eigenvalues with exact VI and EP for likelihoods that are not log-concave.
"""

from typing import TYPE_CHECKING, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from . import small

if TYPE_CHECKING:
    from typing import Any as Numbers
else:
    # JAX arrays inside a compiled function, NumPy arrays in results.
    Numbers = Array | np.ndarray


class Gaussian(eqx.Module):
    """A Gaussian, or one per row: `mean` (..., D) and `covariance` (..., D, D)."""

    mean: Float[Numbers, "*rows D"]
    covariance: Float[Numbers, "*rows D D"]

    @property
    def variance(self) -> Float[Numbers, "*rows D"]:
        """The diagonal of the covariance."""
        return self.covariance.diagonal(axis1=-2, axis2=-1)


def add_covariance(gaussian: Gaussian, residual_covariance: Float[Numbers, "*rows D D"] | None) -> Gaussian:
    """The distribution of g + e for independent e ~ N(0, residual_covariance); None means e = 0."""
    return (
        gaussian if residual_covariance is None else Gaussian(gaussian.mean, gaussian.covariance + residual_covariance)
    )


class Sites(eqx.Module):
    """One factor per row, t(f) = exp(λᵀf − ½ fᵀΛf): `linear` λ (..., D) and `precision` Λ (..., D, D).

    >>> Sites.constant(3, 1, 0.01).precision.shape
    (3, 1, 1)
    """

    linear: Float[Numbers, "*rows D"]
    precision: Float[Numbers, "*rows D D"]

    @classmethod
    def constant(cls, n: int, d: int, precision: float) -> "Sites":
        """λ = 0 and Λ = precision · I for n rows of d latents."""
        return cls(np.zeros((n, d)), np.broadcast_to(precision * np.eye(d), (n, d, d)).copy())

    def centred_linear(self, mean: Float[Numbers, "*rows D"]) -> Float[Array, "*rows D"]:
        """λ − Λμ: the linear term of the sites as functions of f − μ."""
        return self.linear - jnp.sum(self.precision * mean[..., None, :], axis=-1)


def interpolate(old: Sites, new: Sites, step_size: Float[Array, ""]) -> Sites:
    """(1 − ρ) old + ρ new, `eq:local-update`."""
    return Sites(
        (1.0 - step_size) * old.linear + step_size * new.linear,
        (1.0 - step_size) * old.precision + step_size * new.precision,
    )


class Cavity(NamedTuple):
    """q(f) / t(f)^α: the cavity, whether it is proper, and log det(C C_cav⁻¹)."""

    gaussian: Gaussian
    proper: Bool[Array, ""]
    log_det_ratio: Float[Array, ""]


def cavity(marginal: Gaussian, site: Sites, power: float) -> Cavity:
    """The cavity q(f) / t(f)^α, without inverting C or Λ.

    With C = LLᵀ and M = I − αLᵀΛL: C_cav = L M⁻¹ Lᵀ and m_cav = m − α C_cav (λ − Λm).
    """
    root = small.small_root(marginal.covariance)
    middle = jnp.eye(root.shape[0]) - power * root.T @ site.precision @ root
    covariance = small.symmetrise(root @ small.small_solve_psd(middle, root.T))
    shift = covariance @ (site.linear - site.precision @ marginal.mean)
    return Cavity(
        Gaussian(marginal.mean - power * shift, covariance),
        small.is_positive_definite(middle),
        small.small_log_det(middle),
    )


def relative_log_expected_site_power(cavity: Cavity, marginal: Gaussian, site: Sites, power: float) -> Float[Array, ""]:
    """(1/α) log E_cav[t(f)^α] − log t(m), for the second term of `eq:pep-energy`.

    Computed relative to log t(m), so that no terms of the size of Λm² cancel.
    """
    slope = site.linear - site.precision @ marginal.mean
    move = cavity.gaussian.mean - marginal.mean
    centred_linear = slope - site.precision @ move
    return (
        0.5 * cavity.log_det_ratio / power
        + slope @ move
        - 0.5 * move @ site.precision @ move
        + 0.5 * power * centred_linear @ marginal.covariance @ centred_linear
    )
