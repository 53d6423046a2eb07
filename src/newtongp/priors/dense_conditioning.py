"""A dense covariance conditioned on sites, as functions of arrays with closed derivatives.

With A = I + ΛK, α = A⁻¹(λ − Λμ), m = μ + Kα and C = KA⁻¹, changes of K, μ, λ and Λ have

    dα = A⁻¹(dλ − dΛ m − Λ(dμ + dK α)),  dm = dμ + dK α + K dα,  dC = A⁻ᵀ dK A⁻¹ − C dΛ C,
    d log det A = tr(A⁻¹Λ dK) + tr(C dΛ).

So no factorisation is differentiated, a product with the derivatives in the sites takes O(N²), and a gradient in K one
more triangular solve than the marginals.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float

from ..numerics import small
from ..numerics.gaussian import Gaussian, Sites
from .base import Conditioned
from .dense_factors import (
    Factors,
    Solver,
    apply_gram,
    factorise,
    factorise_indefinite,
    inverse,
    joint_covariance,
)

_ROUNDING = 1e-10


def conditioned(gram: Float[Array, "D N N"], mean: Float[Array, "N D"], sites: Sites, psd: bool = False) -> Conditioned:
    """q(f) at the data; with `psd`, improper if a site precision is not PSD."""
    return _condition(psd, gram, mean, sites.linear, sites.precision).conditioned


def by_signature(
    gram: Float[Array, "D N N"], positive: Any, negative: Any, of_factors: Callable[[Factors], Any]
) -> Any:
    """Apply `of_factors` to the posterior's factors; those for negative sites are computed only if needed."""
    return jax.lax.cond(
        jnp.any(negative != 0.0),
        lambda: of_factors(factorise_indefinite(gram, positive, negative)),
        lambda: of_factors(factorise(gram, positive)),
    )


class Found(NamedTuple):
    """The numbers of `Conditioned`, without its checks."""

    mean: Float[Array, "N D"]
    covariance: Float[Array, "N D D"]
    distance: Float[Array, ""]
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    @property
    def conditioned(self) -> Conditioned:
        """As inference takes it."""
        return Conditioned(Gaussian(self.mean, self.covariance), self.distance, self.log_det, self.proper)


def found_of(
    gram: Float[Array, "D N N"], mean: Float[Array, "N D"], sites: Sites, factors: Factors
) -> tuple[Found, Float[Array, "N D"]]:
    """q(f) at the data, and α = K⁻¹(m − μ)."""
    weights, shift = factors.solver.apply(gram, sites.centred_linear(mean))
    variances = factors.variances(gram)
    return Found(mean + shift, variances, jnp.sum(shift * weights), factors.log_det, factors.proper), weights


class _Linearised(NamedTuple):
    """The quantities from which derivatives are computed."""

    weights: Float[Array, "N D"]
    """α."""
    solver: Solver
    inverse: Float[Array, "ND ND"]
    """A⁻¹."""
    covariance: Float[Array, "ND ND"] | None
    """C = KA⁻¹, if wanted."""


def _linearise(psd: bool, wants_covariance: bool, gram, mean, linear, precision) -> tuple[Found, _Linearised]:
    sites = Sites(linear, precision)

    def of_factors(factors: Factors):
        factor, _, _, negative_factor = factors.stored()
        found, weights = found_of(gram, mean, sites, factors)
        matrix = inverse(gram, factors)
        covariance = joint_covariance(gram, factors, matrix, found.covariance) if wants_covariance else None
        return found, weights, factor, negative_factor, matrix, covariance

    positive, negative = jax.vmap(small.signed_roots)(precision)
    found, weights, factor, negative_factor, *matrices = _of_sites(psd, gram, positive, negative, of_factors)
    solver = Solver(positive, factor, *((None, None) if psd else (negative, negative_factor)))
    return _checked(psd, found, positive, negative), _Linearised(weights, solver, *matrices)


def _of_sites(psd: bool, gram, positive, negative, of_factors: Callable[[Factors], Any]) -> Any:
    return of_factors(factorise(gram, positive)) if psd else by_signature(gram, positive, negative, of_factors)


def _checked(psd: bool, found: Found, positive, negative) -> Found:
    """Improper if a site should be PSD and is not."""
    if not psd:
        return found
    return found._replace(proper=found.proper & jnp.all(jax.vmap(_is_rounding)(negative, positive)))


def _is_rounding(negative: Float[Array, "D D"], positive: Float[Array, "D D"]) -> Bool[Array, ""]:
    """Whether a site's negative part is as small as the rounding of averages over many nodes."""
    return jnp.sum(negative**2) <= _ROUNDING * jnp.sum(positive**2)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _condition(psd: bool, gram, mean, linear, precision) -> Found:
    positive, negative = jax.vmap(small.signed_roots)(precision)
    sites = Sites(linear, precision)
    found = _of_sites(psd, gram, positive, negative, lambda factors: found_of(gram, mean, sites, factors)[0])
    return _checked(psd, found, positive, negative)


def _condition_derivative(psd: bool, primals, tangents):
    gram, mean, _, precision = primals
    moved_gram, moved_mean, moved_linear, moved_precision = map(_or_none, tangents)
    found, at = _linearise(psd, moved_precision is not None, *primals)
    zero = jnp.zeros_like(mean)
    pushed = zero if moved_gram is None else apply_gram(moved_gram, at.weights)
    distance = jnp.sum(at.weights * pushed)
    pushed = pushed if moved_mean is None else pushed + moved_mean
    pulled = zero if moved_linear is None else moved_linear
    if moved_precision is not None:
        pulled = pulled - _apply_blocks(moved_precision, found.mean)
    if moved_gram is not None or moved_mean is not None:
        pulled = pulled - _apply_blocks(precision, pushed)
    _, shift = at.solver.apply(gram, pulled)
    covariance, log_det = jnp.zeros_like(found.covariance), jnp.zeros(())
    if moved_gram is not None:
        covariance = covariance + _pushed_blocks(at.inverse, moved_gram)
        log_det = log_det + jnp.sum(_gram_slope(at.inverse, precision) * moved_gram)
    if moved_precision is not None and at.covariance is not None:
        covariance = covariance - _pulled_blocks(at.covariance, moved_precision)
        log_det = log_det + jnp.sum(found.covariance * moved_precision)
    distance = distance + 2.0 * jnp.sum(at.weights * shift)
    return found, Found(pushed + shift, covariance, distance, log_det, _no_derivative())


_condition.defjvp(_condition_derivative, symbolic_zeros=True)


def settled(gram: Float[Array, "D N N"], mean: Float[Array, "N D"], sites: Sites, psd: bool = False) -> Conditioned:
    """The same, with derivatives at fixed marginals: d distance = −2 αᵀdμ − αᵀdK α."""
    return _settle(psd, gram, mean, sites.linear, sites.precision).conditioned


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _settle(psd: bool, gram, mean, linear, precision) -> Found:
    return _condition(psd, gram, mean, linear, precision)


def _settled_derivative(psd: bool, primals, tangents):
    precision = primals[3]
    found, at = _linearise(psd, False, *primals)
    moved_gram, moved_mean, _, moved_precision = map(_or_none, tangents)
    distance, log_det = jnp.zeros(()), jnp.zeros(())
    if moved_gram is not None:
        distance = distance - jnp.sum(at.weights * apply_gram(moved_gram, at.weights))
        log_det = log_det + jnp.sum(_gram_slope(at.inverse, precision) * moved_gram)
    if moved_mean is not None:
        distance = distance - 2.0 * jnp.sum(at.weights * moved_mean)
    if moved_precision is not None:
        log_det = log_det + jnp.sum(found.covariance * moved_precision)
    still = jnp.zeros_like(found.mean), jnp.zeros_like(found.covariance)
    return found, Found(*still, distance, log_det, _no_derivative())


_settle.defjvp(_settled_derivative, symbolic_zeros=True)


def _or_none(tangent: Any) -> Any:
    return None if isinstance(tangent, SymbolicZero) else tangent


def _no_derivative() -> Any:
    return np.zeros((), dtype=jax.dtypes.float0)


def _apply_blocks(blocks: Float[Array, "N D D"], vectors: Float[Array, "N D"]) -> Float[Array, "N D"]:
    return jnp.einsum("nde,ne->nd", blocks, vectors)


def _by_rows(matrix: Float[Array, "ND ND"], latents: int) -> Float[Array, "N D N D"]:
    rows = matrix.shape[0] // latents
    return matrix.reshape(rows, latents, rows, latents)


def _gram_slope(inverse: Float[Array, "ND ND"], precision: Float[Array, "N D D"]) -> Float[Array, "D N N"]:
    """The derivative of log det(I + ΛK) in the gram matrix of every latent, the corresponding blocks of A⁻¹Λ."""
    latents = precision.shape[1]
    if latents == 1:
        return (inverse * precision[:, 0, 0][None, :])[None]
    return jnp.einsum("ndme,med->dnm", _by_rows(inverse, latents), precision)


def _pushed_blocks(inverse: Float[Array, "ND ND"], moved: Float[Array, "D N N"]) -> Float[Array, "N D D"]:
    """The diagonal blocks of A⁻ᵀ dK A⁻¹."""
    latents = moved.shape[0]
    if latents == 1:
        return jnp.sum(inverse * (moved[0] @ inverse), axis=0)[:, None, None]
    columns = _by_rows(inverse, latents)
    return jnp.einsum("mfnd,mfne->nde", columns, jnp.einsum("fmk,kfne->mfne", moved, columns))


def _pulled_blocks(covariance: Float[Array, "ND ND"], moved: Float[Array, "N D D"]) -> Float[Array, "N D D"]:
    """The diagonal blocks of C dΛ C."""
    latents = moved.shape[1]
    if latents == 1:
        return (moved[:, 0, 0] @ covariance**2)[:, None, None]
    blocks = _by_rows(covariance, latents)
    return jnp.einsum("mrnd,mrne->nde", blocks, jnp.einsum("mrs,msne->mrne", moved, blocks))
