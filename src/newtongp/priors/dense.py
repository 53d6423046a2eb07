"""The dense Gaussian process: one N·D × N·D covariance, conditioned on sites of any signature.

Site precisions are split as Λ = R₊R₊ᵀ − R₋R₋ᵀ. The positive part is conditioned on first, through
B = I + R₊ᵀKR₊, whose Cholesky factor always exists. The negative part is then taken out again through
E = I − R₋ᵀC₊R₋, which is positive definite exactly when the posterior is proper. No root of K is ever
taken, so singular K (repeated inputs, very smooth kernels) needs neither jitter nor special care.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import linalg
from ..gaussian import Gaussian, Sites
from ..kernels import Independent, Kernel, diagonals, grams, num_latents
from ..means import as_mean
from ..precision import on_host
from .base import Conditioned, Posterior, Prior, Workspace, draws_of, over_pairs
from .by_name import read_kernel


class GP(Prior):
    """A Gaussian process prior with a kernel and a mean function (`sec:gp`), conditioned exactly.

    `kernel` is a kernel, or `kernels.Independent([k1, k2, ...])` for several latents; `mean` is a number or
    a mean function, zero by default. A kernel may be given by its name, as in `GP("matern32")`, for `fit` to see to
    everything else: there is a constant mean then, and every latent and every column of x has its own lengthscale.
    Costs O(N³): good up to a few thousand rows.

    >>> from newtongp import kernels
    >>> GP(kernels.Matern32(lengthscale=0.5)).num_latents
    1
    """

    kernel: Kernel | Independent
    mean: Any
    by_name: bool = eqx.field(static=True)

    def __init__(self, kernel: Kernel | Independent | str, mean: Any = None):
        given, mean, self.by_name = read_kernel(kernel, mean)
        self.kernel = given
        self.mean = as_mean(mean, num_latents(given))

    @property
    def num_latents(self) -> int:
        return num_latents(self.kernel)

    def check_inputs(self, x: np.ndarray) -> None:
        self.kernel.check_inputs(x.shape[1])
        self.kernel.check_values(x)

    memory_remedy: ClassVar[str] = "use SparseGP(kernel, inducing=500), or MarkovGP(kernel) if x has one column"

    def memory(self, x: np.ndarray) -> float:
        # Covariances of all rows and latents: the prior's, the posterior's, and factors on the way between them.
        return 6.0 * 8.0 * (x.shape[0] * float(self.num_latents)) ** 2

    def prepare(self, x: Float[Array, "N P"]) -> "DenseWorkspace":
        return DenseWorkspace(x, self.mean.means(x), grams(self.kernel, x, x))

    def condition(self, workspace: "DenseWorkspace", sites: Sites) -> "DensePosterior":
        positive, negative = jax.vmap(linalg.signed_roots)(sites.precision)

        def of_factors(factors: _Factors):
            return _mean_and_covariance(workspace, sites, factors), factors.stored()

        (weights, shift, covariance, log_det), (factor, overlap, negative_factor) = _by_signature(
            workspace, positive, negative, of_factors
        )
        return DensePosterior(
            Gaussian(workspace.mean + shift, covariance),
            _log_normaliser(workspace, sites, shift, log_det),
            self,
            workspace.x,
            weights,
            positive,
            negative,
            factor,
            overlap,
            negative_factor,
        )


class DenseWorkspace(Workspace):
    """What depends on the inputs alone: x, the prior mean (N, D) and one gram matrix a latent (D, N, N)."""

    x: Float[Array, "N P"]
    mean: Float[Array, "N D"]
    gram: Float[Array, "D N N"]

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        positive, negative = jax.vmap(linalg.signed_roots)(sites.precision)

        def of_factors(factors: _Factors):
            return _mean_and_covariance(self, sites, factors), factors.proper

        if psd:
            (weights, shift, covariance, log_det), proper = of_factors(_factorise(self, positive))
            proper = proper & jnp.all(jax.vmap(_is_rounding)(negative, positive))
        else:
            (weights, shift, covariance, log_det), proper = _by_signature(self, positive, negative, of_factors)
        return Conditioned(Gaussian(self.mean + shift, covariance), jnp.sum(shift * weights), log_det, proper)


_ROUNDING = 1e-10


def _is_rounding(negative: Float[Array, "D D"], positive: Float[Array, "D D"]) -> Bool[Array, ""]:
    """Whether a site's negative part is no more than averages over many nodes leave in a singular one."""
    return jnp.sum(negative**2) <= _ROUNDING * jnp.sum(positive**2)


def _by_signature(workspace: DenseWorkspace, positive, negative, of_factors: Callable):
    """What `of_factors` makes of the posterior's factors; the second set is made only where a site needs it."""
    return jax.lax.cond(
        jnp.any(negative != 0.0),
        lambda: of_factors(_factorise_indefinite(workspace, positive, negative)),
        lambda: of_factors(_factorise(workspace, positive)),
    )


def _mean_and_covariance(workspace: DenseWorkspace, sites: Sites, factors: "_Factors"):
    """α, m − μ, the D × D blocks of C, and log det(I + ΛK)."""
    weights, shift = _weights(workspace, factors, _tilt(workspace, sites))
    return weights, shift, factors.variances(workspace), factors.log_det


# Vectors over all rows and latents are (N, D); flattened, latents run within rows. ---------------


def _apply_gram(gram: Float[Array, "D N M"], vector: Float[Array, "M D"]) -> Float[Array, "N D"]:
    return jnp.einsum("dnm,md->nd", gram, vector)


def _project(roots: Float[Array, "N D D"], gram: Float[Array, "D N M"]) -> Float[Array, "NR MD"]:
    """RᵀK for a block diagonal R, as a matrix over (row, root column) and (row, latent)."""
    rows, latents, columns = roots.shape[0], gram.shape[0], gram.shape[2]
    if latents == 1:
        return roots[:, 0, 0][:, None] * gram[0]
    blocks = jnp.einsum("ndr,dnm->nrmd", roots, gram)
    return blocks.reshape(rows * latents, columns * latents)


def _project_right(matrix: Float[Array, "A ND"], roots: Float[Array, "N D D"]) -> Float[Array, "A NR"]:
    """matrix · R for a block diagonal R."""
    rows, latents = roots.shape[:2]
    if latents == 1:
        return matrix * roots[:, 0, 0][None, :]
    blocks = matrix.reshape(-1, rows, latents)
    return jnp.einsum("and,ndr->anr", blocks, roots).reshape(-1, rows * latents)


def _block_diagonal(factor: Float[Array, "A ND"], latents: int) -> Float[Array, "N D D"]:
    """The D × D diagonal blocks of factorᵀ factor."""
    if latents == 1:
        return jnp.sum(factor**2, axis=0)[:, None, None]
    columns = factor.reshape(factor.shape[0], -1, latents)
    return jnp.einsum("and,ane->nde", columns, columns)


class _Factors(NamedTuple):
    """Factors of the posterior: L_B, V = L_B⁻¹R₊ᵀK, and for indefinite sites L_E and W = L_E⁻¹R₋ᵀC₊."""

    positive: Float[Array, "N D D"]
    negative: Float[Array, "N D D"] | None
    factor: Float[Array, "ND ND"]
    half: Float[Array, "ND ND"]
    overlap: Float[Array, "ND ND"] | None
    negative_factor: Float[Array, "ND ND"] | None
    negative_half: Float[Array, "ND ND"] | None
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    def variances(self, workspace: DenseWorkspace) -> Float[Array, "N D D"]:
        """The D × D blocks of C on the diagonal."""
        latents = workspace.gram.shape[0]
        prior = jax.vmap(jnp.diag, in_axes=1)(jnp.diagonal(workspace.gram, axis1=1, axis2=2))
        blocks = prior - _block_diagonal(self.half, latents)
        if self.negative_half is not None:
            return blocks + _block_diagonal(self.negative_half, latents)
        return jax.vmap(_bounded_by_site)(blocks, self.positive, prior)

    def stored(self) -> tuple[Array, Array, Array]:
        """What prediction needs: L_B, V R₋ and L_E (zero and identity for PSD sites)."""
        if self.overlap is None or self.negative_factor is None:
            size = self.factor.shape[0]
            return self.factor, jnp.zeros((size, size)), jnp.eye(size)
        return self.factor, self.overlap, self.negative_factor


_LARGEST_RATIO = 1e13
"""Of a site's precision to the prior's: beyond it K − VᵀV is rounding error."""


def _bounded_by_site(
    covariance: Float[Array, "D D"], root: Float[Array, "D D"], prior: Float[Array, "D D"]
) -> Float[Array, "D D"]:
    """C of one row, no larger than its own site allows: tr(ΛC) ≤ D where all sites are PSD.

    Where a site is so precise that C = K − VᵀV is rounding error, the site alone decides.
    """
    size = covariance.shape[0]
    precision = root @ root.T
    lost = jnp.trace(precision @ prior) > size * _LARGEST_RATIO
    alone = linalg.small_solve_psd(precision + jnp.eye(size) / jnp.trace(prior), jnp.eye(size))
    covariance = jnp.where(lost, alone, covariance)
    share = jnp.trace(precision @ covariance) / size
    return covariance / jnp.maximum(share, 1.0)


def _factorise(workspace: DenseWorkspace, positive: Float[Array, "N D D"]) -> _Factors:
    """Condition on PSD sites: one Cholesky factor and one triangular solve."""
    projected = _project(positive, workspace.gram)
    matrix = _project_right(projected, positive) + jnp.eye(projected.shape[0])
    factor = linalg.cholesky(matrix)
    half = linalg.solve_lower(factor, projected)
    proper = jnp.all(jnp.isfinite(jnp.diagonal(factor)))
    return _Factors(positive, None, factor, half, None, None, None, linalg.log_det_from_cholesky(factor), proper)


def _factorise_indefinite(
    workspace: DenseWorkspace, positive: Float[Array, "N D D"], negative: Float[Array, "N D D"]
) -> _Factors:
    """Condition on the positive parts, then take the negative parts out."""
    first = _factorise(workspace, positive)
    overlap = _project_right(first.half, negative)
    remaining = _project(negative, workspace.gram) - overlap.T @ first.half
    matrix = jnp.eye(first.factor.shape[0]) - _project_right(remaining, negative)
    factor = linalg.cholesky(linalg.symmetrise(matrix))
    half = linalg.solve_lower(factor, remaining)
    return _Factors(
        positive,
        negative,
        first.factor,
        first.half,
        overlap,
        factor,
        half,
        first.log_det + linalg.log_det_from_cholesky(factor),
        first.proper & jnp.all(jnp.isfinite(jnp.diagonal(factor))) & _resolvable(workspace, positive),
    )


def _resolvable(workspace: DenseWorkspace, positive: Float[Array, "N D D"]) -> Bool[Array, ""]:
    """Whether no site is so precise that taking the negative ones out would work on rounding error."""
    variances = jnp.max(jnp.diagonal(workspace.gram, axis1=1, axis2=2), axis=0)
    return jnp.all(jnp.sum(positive**2, axis=(1, 2)) * variances < _LARGEST_RATIO)


def _tilt(workspace: DenseWorkspace, sites: Sites) -> Float[Array, "N D"]:
    """λ − Λμ: what the sites ask for beyond the prior mean."""
    return sites.linear - jnp.einsum("nij,nj->ni", sites.precision, workspace.mean)


def _weights(
    workspace: DenseWorkspace, factors: _Factors, tilt: Float[Array, "N D"]
) -> tuple[Float[Array, "N D"], Float[Array, "N D"]]:
    """α = (I + ΛK)⁻¹(λ − Λμ) and Kα = m − μ."""
    weights = _solve_positive(workspace, factors, tilt)
    shift = _apply_gram(workspace.gram, weights)
    if factors.negative_factor is None or factors.negative is None:
        return weights, shift
    inner = linalg.solve_lower(factors.negative_factor, _apply_roots(factors.negative, shift, transpose=True))
    inner = linalg.solve_lower(factors.negative_factor, inner, transpose=True)
    weights = _solve_positive(workspace, factors, tilt + _apply_roots(factors.negative, inner))
    return weights, _apply_gram(workspace.gram, weights)


def _solve_positive(workspace: DenseWorkspace, factors: _Factors, right: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """(I + R₊R₊ᵀK)⁻¹ right, to rounding however large Λ is.

    The matrix takes R₊b to R₊B⁻¹b, with nothing to cancel. What of `right` can be written that way with b of
    moderate size is, which is where the data are precise; the rest goes through I − R₊B⁻¹R₊ᵀK.
    """
    roots = factors.positive
    sizes = jnp.sum(roots**2, axis=1)
    variances = jnp.max(jnp.diagonal(workspace.gram, axis1=1, axis2=2), axis=0)
    informative = sizes * variances[:, None] > 1.0
    inside = jnp.einsum("ndr,nd->nr", roots, right)
    inside = jnp.where(informative, inside / jnp.where(informative, sizes, 1.0), 0.0)
    rest = right - jnp.einsum("ndr,nr->nd", roots, inside)
    pulled = _apply_roots(roots, _apply_gram(workspace.gram, rest), transpose=True)
    half = linalg.solve_lower(factors.factor, inside.reshape(-1) - pulled)
    return rest + _apply_roots(roots, linalg.solve_lower(factors.factor, half, transpose=True))


def _apply_roots(roots: Float[Array, "N D D"], vector: Float[Array, "..."], transpose: bool = False):
    """R applied to a flat vector over root columns, as (N, D); or Rᵀ applied to (N, D), flat."""
    if transpose:
        return jnp.einsum("ndr,nd->nr", roots, vector).reshape(-1)
    return jnp.einsum("ndr,nr->nd", roots, vector.reshape(roots.shape[0], -1))


def _log_normaliser(workspace, sites, shift, log_det) -> Float[Array, ""]:
    """log ∫ p ∏ tₙ = −½ log det(I + ΛK) + λᵀμ − ½ μᵀΛμ + ½ (λ − Λμ)ᵀ(m − μ)."""
    tilt = _tilt(workspace, sites)
    linear = jnp.sum((sites.linear + tilt) * workspace.mean)
    return -0.5 * log_det + 0.5 * linear + 0.5 * jnp.sum(tilt * shift)


class DensePosterior(Posterior):
    """q(f) of a dense GP."""

    marginals: Gaussian
    log_normaliser: Any
    prior: GP
    x: Any
    weights: Any
    positive: Any
    negative: Any
    factor: Any
    overlap: Any
    negative_factor: Any

    @on_host
    @jax.jit
    def predict(self, x: Float[Array, "M P"]) -> Gaussian:
        cross, half, negative_half = self._halves(x)
        latents = self.prior.num_latents
        prior = jax.vmap(jnp.diag, in_axes=1)(diagonals(self.prior.kernel, x))
        covariance = prior - _block_diagonal(half, latents) + _block_diagonal(negative_half, latents)
        return Gaussian(self._mean(x, cross), covariance)

    @on_host
    @jax.jit
    def joint(self, x: Float[Array, "M P"]) -> Gaussian:
        cross, half, negative_half = self._halves(x)
        prior = over_pairs(grams(self.prior.kernel, x, x))
        covariance = prior - half.T @ half + negative_half.T @ negative_half
        return Gaussian(self._mean(x, cross).reshape(-1), linalg.symmetrise(covariance))

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return draws_of(self.joint(x), key, n, x.shape[0])

    def _mean(self, x, cross):
        return self.prior.mean.means(x) + jnp.einsum("dnm,nd->md", cross, self.weights)

    def _halves(self, x):
        """K(X, x), V* = L_B⁻¹R₊ᵀK(X, x) and W* = L_E⁻¹R₋ᵀC₊(X, x)."""
        cross = grams(self.prior.kernel, self.x, x)
        half = linalg.solve_lower(self.factor, _project(self.positive, cross))
        remaining = _project(self.negative, cross) - self.overlap.T @ half
        return cross, half, linalg.solve_lower(self.negative_factor, remaining)
