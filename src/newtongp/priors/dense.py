"""The dense Gaussian process: one N·D × N·D covariance, conditioned on sites of any signature.

Site precisions are split as Λ = R₊R₊ᵀ − R₋R₋ᵀ. The positive part is conditioned on first, through
B = I + R₊ᵀKR₊, whose Cholesky factor always exists. The negative part is then removed through E = I − R₋ᵀC₊R₋, which is
positive definite exactly when the posterior is proper. K is never factorised, so a singular K (repeated inputs, very
smooth kernels) needs neither jitter nor special treatment.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import on_host
from ..kernels import Independent, Kernel, diagonals, grams, num_latents
from ..means import as_mean
from ..numerics import linalg, small
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.rounding import warn_of_lost
from ..numerics.size_classes import SMALLEST, cubic_size_class
from .base import Conditioned, Posterior, Prior, Workspace, ask, draws_of, over_pairs
from .by_name import read_kernel


class GP(Prior):
    """A Gaussian process prior with a kernel and a mean function (`sec:gp`), conditioned exactly.

    `kernel` is a kernel, or `kernels.Independent([k1, k2, ...])` for several latents; `mean` is a number or
    a mean function, zero by default. A kernel may be given by its name, as in `GP("matern32")`. The prior then has a
    constant mean, and every latent and every column of x has its own lengthscale, all of which `fit` learns. A step
    costs O(N³), which is practical up to a few thousand rows.

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
        # Covariances of all rows and latents: the prior's, the posterior's, and intermediate factors.
        return 6.0 * 8.0 * (x.shape[0] * float(self.num_latents)) ** 2

    def size_class(self, rows: int) -> int:
        return cubic_size_class(rows)

    def prepare(self, x: Float[Array, "N P"]) -> "DenseWorkspace":
        return DenseWorkspace(x, self.mean.means(x), grams(self.kernel, x, x))

    def condition(self, workspace: "DenseWorkspace", sites: Sites) -> "DensePosterior":
        positive, negative = jax.vmap(small.signed_roots)(sites.precision)

        def of_factors(factors: _Factors):
            return _conditioned(workspace, sites, factors), factors.stored()

        (conditioned, weights), (factor, lift, overlap, negative_factor) = _by_signature(
            workspace, positive, negative, of_factors
        )
        return DensePosterior(
            conditioned.marginals,
            conditioned.log_normaliser(sites),
            self,
            workspace.x,
            weights,
            positive,
            negative,
            factor,
            lift,
            overlap,
            negative_factor,
        )


class DenseWorkspace(Workspace):
    """Quantities that depend only on the inputs: x, the prior mean (N, D) and one gram matrix per latent (D, N, N)."""

    x: Float[Array, "N P"]
    mean: Float[Array, "N D"]
    gram: Float[Array, "D N N"]

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        positive, negative = jax.vmap(small.signed_roots)(sites.precision)

        def of_factors(factors: _Factors):
            return _conditioned(self, sites, factors)[0]

        if not psd:
            return _by_signature(self, positive, negative, of_factors)
        found = of_factors(_factorise(self, positive))
        proper = found.proper & jnp.all(jax.vmap(_is_rounding)(negative, positive))
        return eqx.tree_at(lambda each: each.proper, found, proper)


_ROUNDING = 1e-10


def _is_rounding(negative: Float[Array, "D D"], positive: Float[Array, "D D"]) -> Bool[Array, ""]:
    """Whether a site's negative part is as small as the rounding of averages over many nodes."""
    return jnp.sum(negative**2) <= _ROUNDING * jnp.sum(positive**2)


def _by_signature(workspace: DenseWorkspace, positive, negative, of_factors: Callable):
    """Apply `of_factors` to the posterior's factors; those for negative sites are computed only if needed."""
    return jax.lax.cond(
        jnp.any(negative != 0.0),
        lambda: of_factors(_factorise_indefinite(workspace, positive, negative)),
        lambda: of_factors(_factorise(workspace, positive)),
    )


def _conditioned(workspace: DenseWorkspace, sites: Sites, factors: "_Factors") -> tuple[Conditioned, Any]:
    """q(f) at the data, and α = K⁻¹(m − μ)."""
    weights, shift = _weights(workspace, factors, sites.centred_linear(workspace.mean))
    marginals = Gaussian(workspace.mean + shift, factors.variances(workspace))
    return Conditioned(marginals, jnp.sum(shift * weights), factors.log_det, factors.proper), weights


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
    lift: Float[Array, ""]
    """ε, where B + ε diag(B) was factorised; zero unless rounding had made B indefinite."""
    half: Float[Array, "ND ND"]
    overlap: Float[Array, "ND ND"] | None
    negative_factor: Float[Array, "ND ND"] | None
    negative_half: Float[Array, "ND ND"] | None
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    def variances(self, workspace: DenseWorkspace) -> Float[Array, "N D D"]:
        """The D × D blocks of C on the diagonal, PSD.

        Where sites are weak, C₊ = K − VᵀV, with an error of rounding's size relative to K. Where a site is strong
        (rᵀKr > 1 for a column r of R₊), R₊ᵀC₊R₊ = I − B⁻¹, with an error of rounding's size relative to Λ⁻¹. Where
        inputs are so close that K is singular to rounding, both errors grow with ΛK.
        Variances are at least as large as their error bounds.
        """
        latents = workspace.gram.shape[0]
        prior = jnp.diagonal(workspace.gram, axis1=1, axis2=2).T
        strength = _strength(self.positive, prior)
        weak = jax.vmap(jnp.diag)(prior) - _block_diagonal(self.half, latents)
        weak = _not_below(weak, _rounding(self.factor, self.lift, strength, self.half, prior))
        inverse = _inverse_factor(self.factor, self.lift, strength, _project_right(self.half, self.positive))
        shrunk = jnp.eye(latents)[None] - _block_diagonal(inverse, latents)
        lost = 4.0 * linalg.EPS * (1.0 + jnp.max(strength)) * (1.0 - jnp.diagonal(shrunk, axis1=1, axis2=2))
        shrunk = _not_below(shrunk, jnp.clip(lost, 0.0, 1.0))
        if latents == 1:
            strong = strength[:, :, None] > 1.0
            blocks = jnp.where(strong, shrunk / jnp.where(strong, self.positive, 1.0) ** 2, weak)
        else:
            mixed = _blocks_between(inverse, self.half, latents)
            blocks = jax.vmap(_joined)(weak, mixed, shrunk, self.positive, strength)
        if self.negative_half is not None:
            blocks = blocks + _block_diagonal(self.negative_half, latents)
        return jax.vmap(small.small_covariance)(blocks)

    def stored(self) -> tuple[Array, Array, Array, Array]:
        """The factors for prediction: L_B, its lift, V R₋ and L_E (zero and identity for PSD sites)."""
        if self.overlap is None or self.negative_factor is None:
            size = self.factor.shape[0]
            return self.factor, self.lift, jnp.zeros((size, size)), jnp.eye(size)
        return self.factor, self.lift, self.overlap, self.negative_factor


# Variances that are small relative to the prior's ------------------------------------------------------


def _strength(roots: Float[Array, "N D D"], prior: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """rᵀKr of every column r of every row's root: how much more precise than the prior it is."""
    return jnp.einsum("ndr,nd->nr", roots**2, prior)


def _not_below(blocks: Float[Array, "N D D"], least: Float[Array, "N D"]) -> Float[Array, "N D D"]:
    """Blocks with diagonals raised to at least these values."""
    found = jnp.diagonal(blocks, axis1=1, axis2=2)
    return blocks + jax.vmap(jnp.diag)(jnp.where(found < least, least - found, 0.0))


def _inverse_factor(
    factor: Float[Array, "ND ND"], lift: Float[Array, ""], strength: Float[Array, "N D"], seen: Float[Array, "ND ND"]
) -> Float[Array, "ND ND"]:
    """T = L_B⁻¹, from V R, without a solve.

    L_B⁻¹(B − I) = L_Bᵀ − T, so that below the diagonal −V R is T itself; with a lift, T(I + ε diag(B)).
    """
    scales = 1.0 + lift * (1.0 + strength.reshape(-1))
    return jnp.diag(1.0 / jnp.diagonal(factor)) - jnp.tril(seen, -1) / scales[None, :]


def _blocks_between(left: Float[Array, "A ND"], right: Float[Array, "A ND"], latents: int) -> Float[Array, "N D D"]:
    """The D × D diagonal blocks of leftᵀ right."""
    columns = (left.shape[0], -1, latents)
    return jnp.einsum("anr,and->nrd", left.reshape(columns), right.reshape(columns))


def _joined(
    weak: Float[Array, "D D"],
    mixed: Float[Array, "D D"],
    shrunk: Float[Array, "D D"],
    root: Float[Array, "D D"],
    strength: Float[Array, " D"],
) -> Float[Array, "D D"]:
    """C of one row: RᵀCR = I − B⁻¹ and RᵀC = B⁻¹RᵀK along the strong columns of R, K − VᵀV across them."""
    lengths = jnp.sum(root**2, axis=0)
    strong = strength > 1.0
    units = jnp.where(strong[None, :], root / jnp.sqrt(jnp.where(strong, lengths, 1.0))[None, :], 0.0)
    scaled = units / jnp.sqrt(jnp.where(strong, lengths, 1.0))[None, :]
    across = jnp.eye(root.shape[0]) - units @ units.T
    between = scaled @ mixed @ across
    # Each term is made PSD before they are added, so that rounding in one does not reduce the other.
    parts = scaled @ small.small_covariance(shrunk) @ scaled.T + across @ small.small_covariance(weak) @ across
    whole = small.symmetrise(parts + between + between.T)
    least = linalg.EPS * jax.lax.stop_gradient(jnp.diagonal(parts))
    return _not_below(whole[None], least[None])[0]


_PLAIN = 1e-8
"""Relative errors of variances below this are ignored."""


def _rounding(
    factor: Float[Array, "ND ND"],
    lift: Float[Array, ""],
    strength: Float[Array, "N D"],
    half: Float[Array, "ND MD"],
    prior: Float[Array, "M D"],
) -> Float[Array, "M D"]:
    """A bound on the rounding error of K** − V*ᵀV*; zero where it is negligible.

    Entries of B have errors of rounding's size relative to √(BᵢᵢBⱼⱼ), and V*ᵀV* = wᵀBw with w = L_B⁻ᵀV*: the error is
    (Σᵢ √Bᵢᵢ |wᵢ|)² times that. It is at most the variance times the size of B.
    """
    factor, lift, strength, half, prior = jax.lax.stop_gradient((factor, lift, strength, half, prior))
    sizes = 1.0 + strength.reshape(-1)

    def looked_into():
        weights = jnp.abs(linalg.solve_lower(factor, half, transpose=True))
        error = 4.0 * linalg.EPS * (prior.reshape(-1) + (jnp.sqrt(sizes) @ weights) ** 2)
        return (error + lift * (sizes @ weights**2)).reshape(prior.shape)

    precise = sizes.shape[0] * linalg.EPS * jnp.max(sizes, initial=0.0) > _PLAIN
    return jax.lax.cond(precise, looked_into, lambda: jnp.zeros(prior.shape))


_LARGEST_RATIO = 1e13
"""The ratio of a site's precision to the prior's beyond which negative sites are lost in rounding."""


def _factorise(workspace: DenseWorkspace, positive: Float[Array, "N D D"]) -> _Factors:
    """Condition on PSD sites: one Cholesky factor and one triangular solve."""
    projected = _project(positive, workspace.gram)
    matrix = _project_right(projected, positive) + jnp.eye(projected.shape[0])
    factor, lift = linalg.lifted_cholesky(matrix)
    half = linalg.solve_lower(factor, projected)
    proper = jnp.all(jnp.isfinite(jnp.diagonal(factor)))
    log_det = linalg.log_det_from_cholesky(factor)
    return _Factors(positive, None, factor, lift, half, None, None, None, log_det, proper)


def _factorise_indefinite(
    workspace: DenseWorkspace, positive: Float[Array, "N D D"], negative: Float[Array, "N D D"]
) -> _Factors:
    """Condition on the positive parts, then remove the negative parts."""
    first = _factorise(workspace, positive)
    overlap = _project_right(first.half, negative)
    remaining = _project(negative, workspace.gram) - overlap.T @ first.half
    matrix = jnp.eye(first.factor.shape[0]) - _project_right(remaining, negative)
    factor = linalg.cholesky(small.symmetrise(matrix))
    half = linalg.solve_lower(factor, remaining)
    return _Factors(
        positive,
        negative,
        first.factor,
        first.lift,
        first.half,
        overlap,
        factor,
        half,
        first.log_det + linalg.log_det_from_cholesky(factor),
        first.proper & jnp.all(jnp.isfinite(jnp.diagonal(factor))) & _resolvable(workspace, positive),
    )


def _resolvable(workspace: DenseWorkspace, positive: Float[Array, "N D D"]) -> Bool[Array, ""]:
    """Whether all sites are imprecise enough for removing negative ones accurately."""
    variances = jnp.max(jnp.diagonal(workspace.gram, axis1=1, axis2=2), axis=0)
    return jnp.all(jnp.sum(positive**2, axis=(1, 2)) * variances < _LARGEST_RATIO)


def _weights(
    workspace: DenseWorkspace, factors: _Factors, centred_linear: Float[Array, "N D"]
) -> tuple[Float[Array, "N D"], Float[Array, "N D"]]:
    """α = (I + ΛK)⁻¹(λ − Λμ) and Kα = m − μ."""
    weights = _solve_positive(workspace, factors, centred_linear)
    shift = _apply_gram(workspace.gram, weights)
    if factors.negative_factor is None or factors.negative is None:
        return weights, shift
    inner = linalg.solve_lower(factors.negative_factor, _apply_roots(factors.negative, shift, transpose=True))
    inner = linalg.solve_lower(factors.negative_factor, inner, transpose=True)
    weights = _solve_positive(workspace, factors, centred_linear + _apply_roots(factors.negative, inner))
    return weights, _apply_gram(workspace.gram, weights)


def _solve_positive(workspace: DenseWorkspace, factors: _Factors, right: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """(I + R₊R₊ᵀK)⁻¹ right, accurate to rounding however large Λ is.

    The inverse maps R₊b to R₊B⁻¹b without cancellation. The part of `right` that has this form with b of moderate size,
    where the data are precise, is computed in this way; the rest uses I − R₊B⁻¹R₊ᵀK.
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


class DensePosterior(Posterior):
    """q(f) of a dense GP.

    At new inputs variances are K** − V*ᵀV*, with a rounding error relative to the prior variance (more where the mean
    extrapolates). Variances smaller than their error are lost: the error bound is returned instead, with a
    `RoundingWarning`. No variance is negative, and joint covariances are PSD.
    """

    marginals: Gaussian
    log_normaliser: Any
    prior: GP
    x: Any
    weights: Any
    positive: Any
    negative: Any
    factor: Any
    lift: Any
    overlap: Any
    negative_factor: Any

    @on_host
    def predict(self, x: Any) -> Gaussian:
        # Each new input costs N² operations.
        found, lost = ask(_predict, self, x, SMALLEST if self.factor.shape[0] <= 4 * SMALLEST else SMALLEST // 8)
        warn_of_lost(lost)
        return found

    @on_host
    def joint(self, x: Any) -> Gaussian:
        found, lost = _joint(self, x)
        warn_of_lost(lost)
        return found

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return draws_of(self.joint(x), key, n, x.shape[0])


@compiled
def _predict(posterior: DensePosterior, x: Float[Array, "M P"]) -> tuple[Gaussian, Bool[Array, "M D"]]:
    """The marginals, and which variances were lost."""
    cross, half, negative_half = _halves(posterior, x)
    latents = posterior.prior.num_latents
    prior = diagonals(posterior.prior.kernel, x).T
    blocks = jax.vmap(jnp.diag)(prior) - _block_diagonal(half, latents)
    least = _rounding_at(posterior, half, prior)
    lost = jnp.diagonal(blocks, axis1=1, axis2=2) < least
    blocks = _not_below(blocks, least) + _block_diagonal(negative_half, latents)
    return Gaussian(_mean(posterior, x, cross), jax.vmap(small.small_covariance)(blocks)), lost


@compiled
def _joint(posterior: DensePosterior, x: Float[Array, "M P"]) -> tuple[Gaussian, Bool[Array, "M D"]]:
    cross, half, negative_half = _halves(posterior, x)
    prior = grams(posterior.prior.kernel, x, x)
    covariance = over_pairs(prior) - half.T @ half
    found = jnp.diagonal(covariance)
    least = _rounding_at(posterior, half, jnp.diagonal(prior, axis1=1, axis2=2).T).reshape(-1)
    covariance = covariance + jnp.diag(jnp.where(found < least, least - found, 0.0)) + negative_half.T @ negative_half
    mean = _mean(posterior, x, cross)
    return Gaussian(mean.reshape(-1), linalg.as_covariance(covariance)), (found < least).reshape(mean.shape)


def _mean(posterior: DensePosterior, x, cross):
    return posterior.prior.mean.means(x) + jnp.einsum("dnm,nd->md", cross, posterior.weights)


def _halves(posterior: DensePosterior, x):
    """K(X, x), V* = L_B⁻¹R₊ᵀK(X, x) and W* = L_E⁻¹R₋ᵀC₊(X, x)."""
    cross = grams(posterior.prior.kernel, posterior.x, x)
    half = linalg.solve_lower(posterior.factor, _project(posterior.positive, cross))
    remaining = _project(posterior.negative, cross) - posterior.overlap.T @ half
    return cross, half, linalg.solve_lower(posterior.negative_factor, remaining)


def _rounding_at(posterior: DensePosterior, half, prior: Float[Array, "M D"]) -> Float[Array, "M D"]:
    strength = _strength(posterior.positive, diagonals(posterior.prior.kernel, posterior.x).T)
    return _rounding(posterior.factor, posterior.lift, strength, half, prior)
