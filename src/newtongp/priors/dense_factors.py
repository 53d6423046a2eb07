"""Factors of a dense covariance conditioned on sites of any signature: arrays in, arrays out.

Site precisions are split as Λ = R₊R₊ᵀ − R₋R₋ᵀ. The positive part is conditioned on first, through
B = I + R₊ᵀKR₊, whose Cholesky factor always exists. The negative part is then removed through E = I − R₋ᵀC₊R₋, which is
positive definite exactly when the posterior is proper. K is never factorised, so a singular K (repeated inputs, very
smooth kernels) needs neither jitter nor special treatment.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..numerics import linalg, small

# Vectors over all rows and latents are (N, D); flattened, latents run within rows. ---------------


def apply_gram(gram: Float[Array, "D N M"], vector: Float[Array, "M D"]) -> Float[Array, "N D"]:
    """K · vector, of every latent by itself."""
    return jnp.einsum("dnm,md->nd", gram, vector)


def project(roots: Float[Array, "N D D"], gram: Float[Array, "D N M"]) -> Float[Array, "NR MD"]:
    """RᵀK for a block diagonal R, as a matrix over (row, root column) and (row, latent)."""
    rows, latents, columns = roots.shape[0], gram.shape[0], gram.shape[2]
    if latents == 1:
        return roots[:, 0, 0][:, None] * gram[0]
    blocks = jnp.einsum("ndr,dnm->nrmd", roots, gram)
    return blocks.reshape(rows * latents, columns * latents)


def project_right(matrix: Float[Array, "A ND"], roots: Float[Array, "N D D"]) -> Float[Array, "A NR"]:
    """matrix · R for a block diagonal R."""
    rows, latents = roots.shape[:2]
    if latents == 1:
        return matrix * roots[:, 0, 0][None, :]
    blocks = matrix.reshape(-1, rows, latents)
    return jnp.einsum("and,ndr->anr", blocks, roots).reshape(-1, rows * latents)


def block_diagonal(factor: Float[Array, "A ND"], latents: int) -> Float[Array, "N D D"]:
    """The D × D diagonal blocks of factorᵀ factor."""
    if latents == 1:
        return jnp.sum(factor**2, axis=0)[:, None, None]
    columns = factor.reshape(factor.shape[0], -1, latents)
    return jnp.einsum("and,ane->nde", columns, columns)


class Factors(NamedTuple):
    """Factors of the posterior: L_B, its inverse T, and for indefinite sites L_E and W = L_E⁻¹R₋ᵀC₊."""

    positive: Float[Array, "N D D"]
    negative: Float[Array, "N D D"] | None
    roots: Float[Array, "N D D"]
    """R₊ as factorised: for one latent without zeros."""
    factor: Float[Array, "ND ND"]
    lift: Float[Array, ""]
    """ε, where B + ε diag(B) was factorised; zero unless rounding had made B indefinite."""
    inverse: Float[Array, "ND ND"]
    half: Float[Array, "ND ND"] | None
    """V = L_B⁻¹R₊ᵀK; None if it follows from L_B and T."""
    overlap: Float[Array, "ND ND"] | None
    negative_factor: Float[Array, "ND ND"] | None
    negative_half: Float[Array, "ND ND"] | None
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]

    def variances(self, gram: Float[Array, "D N N"]) -> Float[Array, "N D D"]:
        """The D × D blocks of C on the diagonal, PSD.

        Where sites are weak, C₊ = K − VᵀV, with an error of rounding's size relative to K. Where a site is strong
        (rᵀKr > 1 for a column r of R₊), R₊ᵀC₊R₊ = I − B⁻¹, with an error of rounding's size relative to Λ⁻¹. Where
        inputs are so close that K is singular to rounding, both errors grow with ΛK.
        Variances are at least as large as their error bounds.
        """
        latents = gram.shape[0]
        prior = linalg.diagonals(gram).T
        strength = strength_of(self.roots, prior)
        explained = self._explained(strength) if latents == 1 else block_diagonal(self.whole_half(gram), latents)
        weak = _as_blocks(prior) - explained
        weak = not_below(weak, rounding(self.factor, self.lift, strength, lambda: self.whole_half(gram), prior))
        shrunk = jnp.eye(latents)[None] - block_diagonal(self.inverse, latents)
        lost = 4.0 * linalg.EPS * (1.0 + jnp.max(strength)) * (1.0 - linalg.diagonals(shrunk))
        shrunk = not_below(shrunk, jnp.clip(lost, 0.0, 1.0))
        if latents == 1:
            blocks = jnp.where(strength[:, :, None] > 1.0, shrunk / self.roots**2, weak)
        else:
            mixed = _blocks_between(self.inverse, self.whole_half(gram), latents)
            blocks = jax.vmap(_joined)(weak, mixed, shrunk, self.positive, strength)
        if self.negative_half is not None:
            blocks = blocks + block_diagonal(self.negative_half, latents)
        return jax.vmap(small.small_covariance)(blocks)

    def _explained(self, strength: Float[Array, "N 1"]) -> Float[Array, "N 1 1"]:
        """The diagonal of VᵀV for one latent, by columns of V R = L_Bᵀ − T(I + ε diag(B))."""
        diagonal, scales = jnp.diagonal(self.factor), 1.0 + self.lift * (1.0 + strength[:, 0])
        before = jnp.sum(jnp.tril(self.factor, -1) ** 2, axis=1)
        after = jnp.sum(jnp.tril(self.inverse, -1) ** 2, axis=0) * scales**2
        seen = before + after + _diagonal_of_seen(diagonal, before, strength[:, 0]) ** 2
        return seen[:, None, None] / self.roots**2

    def whole_half(self, gram: Float[Array, "D N N"]) -> Float[Array, "ND ND"]:
        """V."""
        if self.half is not None:
            return self.half
        strength = strength_of(self.roots, linalg.diagonals(gram).T)[:, 0]
        scales = 1.0 + self.lift * (1.0 + strength)
        before = jnp.tril(self.factor, -1)
        middle = _diagonal_of_seen(jnp.diagonal(self.factor), jnp.sum(before**2, axis=1), strength)
        seen = before.T - jnp.tril(self.inverse, -1) * scales[None, :] + jnp.diag(middle)
        return seen / self.roots[:, 0, 0][None, :]

    @property
    def solver(self) -> "Solver":
        """What (I + ΛK)⁻¹ is applied with."""
        return Solver(self.positive, self.factor, self.negative, self.negative_factor)

    def stored(self) -> tuple[Array, Array, Array, Array]:
        """The factors for prediction: L_B, its lift, V R₋ and L_E (zero and identity for PSD sites)."""
        if self.overlap is None or self.negative_factor is None:
            size = self.factor.shape[0]
            return self.factor, self.lift, jnp.zeros((size, size)), jnp.eye(size)
        return self.factor, self.lift, self.overlap, self.negative_factor


# Variances that are small relative to the prior's ------------------------------------------------------


def strength_of(roots: Float[Array, "N D D"], prior: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """rᵀKr of every column r of every row's root: how much more precise than the prior it is."""
    return jnp.einsum("ndr,nd->nr", roots**2, prior)


def _as_blocks(diagonals: Float[Array, "N D"]) -> Float[Array, "N D D"]:
    """Diagonal matrices."""
    return diagonals[:, :, None] * jnp.eye(diagonals.shape[1])[None]


def not_below(blocks: Float[Array, "N D D"], least: Float[Array, "N D"]) -> Float[Array, "N D D"]:
    """Blocks with diagonals raised to at least these values."""
    found = linalg.diagonals(blocks)
    return blocks + _as_blocks(jnp.where(found < least, least - found, 0.0))


def _diagonal_of_seen(
    diagonal: Float[Array, " N"], before: Float[Array, " N"], strength: Float[Array, " N"]
) -> Float[Array, " N"]:
    """The diagonal of V R, Lⱼⱼ − (1 + εBⱼⱼ)/Lⱼⱼ, without subtracting numbers that are close to 1 for weak sites."""
    return (strength - before) / diagonal


_LEAST_STRENGTH = 1e-80
"""A site so much less precise than the prior has no influence at all in double precision."""


def _without_zeros(roots: Float[Array, "N 1 1"], gram: Float[Array, "1 N N"]) -> Float[Array, "N 1 1"]:
    """Roots of one latent, with zeros raised to where they have no influence, so that one can divide by them."""
    prior = linalg.diagonals(gram[0])
    least = jnp.sqrt(_LEAST_STRENGTH / jnp.where(prior > 0.0, prior, 1.0))
    return jnp.maximum(roots, least[:, None, None])


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
    return not_below(whole[None], least[None])[0]


_PLAIN = 1e-8
"""Relative errors of variances below this are ignored."""


def rounding(
    factor: Float[Array, "ND ND"],
    lift: Float[Array, ""],
    strength: Float[Array, "N D"],
    half: Callable[[], Float[Array, "ND MD"]],
    prior: Float[Array, "M D"],
) -> Float[Array, "M D"]:
    """A bound on the rounding error of K** − V*ᵀV*, for V* = `half()`; zero where it is negligible.

    Entries of B have errors of rounding's size relative to √(BᵢᵢBⱼⱼ), and V*ᵀV* = wᵀBw with w = L_B⁻ᵀV*: the error is
    (Σᵢ √Bᵢᵢ |wᵢ|)² times that. It is at most the variance times the size of B.
    """
    factor, lift, strength, prior = jax.lax.stop_gradient((factor, lift, strength, prior))
    sizes = 1.0 + strength.reshape(-1)

    def looked_into():
        weights = jnp.abs(linalg.solve_lower(factor, jax.lax.stop_gradient(half()), transpose=True))
        error = 4.0 * linalg.EPS * (prior.reshape(-1) + (jnp.sqrt(sizes) @ weights) ** 2)
        return (error + lift * (sizes @ weights**2)).reshape(prior.shape)

    precise = sizes.shape[0] * linalg.EPS * jnp.max(sizes, initial=0.0) > _PLAIN
    return jax.lax.cond(precise, looked_into, lambda: jnp.zeros(prior.shape))


_LARGEST_RATIO = 1e13
"""The ratio of a site's precision to the prior's beyond which negative sites are lost in rounding."""


def factorise(gram: Float[Array, "D N N"], positive: Float[Array, "N D D"]) -> Factors:
    """Condition on PSD sites: one Cholesky factor, and its inverse or one triangular solve."""
    alone = gram.shape[0] == 1
    roots = _without_zeros(positive, gram) if alone else positive
    projected = project(roots, gram)
    matrix = project_right(projected, roots) + jnp.eye(projected.shape[0])
    factor, lift = linalg.lifted_cholesky(matrix)
    if alone:
        half, inverse = None, linalg.inverse_lower(factor)
    else:
        half = linalg.solve_lower(factor, projected)
        strength = strength_of(roots, linalg.diagonals(gram).T)
        inverse = _inverse_factor(factor, lift, strength, project_right(half, roots))
    proper = jnp.all(jnp.isfinite(jnp.diagonal(factor)))
    log_det = linalg.log_det_from_cholesky(factor)
    return Factors(positive, None, roots, factor, lift, inverse, half, None, None, None, log_det, proper)


def factorise_indefinite(
    gram: Float[Array, "D N N"], positive: Float[Array, "N D D"], negative: Float[Array, "N D D"]
) -> Factors:
    """Condition on the positive parts, then remove the negative parts."""
    first = factorise(gram, positive)
    first_half = first.whole_half(gram)
    overlap = project_right(first_half, negative)
    remaining = project(negative, gram) - overlap.T @ first_half
    matrix = jnp.eye(first.factor.shape[0]) - project_right(remaining, negative)
    factor = linalg.cholesky(small.symmetrise(matrix))
    return first._replace(
        negative=negative,
        overlap=overlap,
        negative_factor=factor,
        negative_half=linalg.solve_lower(factor, remaining),
        log_det=first.log_det + linalg.log_det_from_cholesky(factor),
        proper=first.proper & jnp.all(jnp.isfinite(jnp.diagonal(factor))) & _resolvable(gram, positive),
    )


def _resolvable(gram: Float[Array, "D N N"], positive: Float[Array, "N D D"]) -> Bool[Array, ""]:
    """Whether all sites are imprecise enough for removing negative ones accurately."""
    variances = jnp.max(linalg.diagonals(gram), axis=0)
    return jnp.all(jnp.sum(positive**2, axis=(1, 2)) * variances < _LARGEST_RATIO)


# (I + ΛK)⁻¹, as products and as a matrix ----------------------------------------------------------------


class Solver(NamedTuple):
    """What (I + ΛK)⁻¹ is applied with: R₊, L_B, and for indefinite sites R₋ and L_E."""

    positive: Float[Array, "N D D"]
    factor: Float[Array, "ND ND"]
    negative: Float[Array, "N D D"] | None
    negative_factor: Float[Array, "ND ND"] | None

    def apply(
        self, gram: Float[Array, "D N N"], right: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N D"], Float[Array, "N D"]]:
        """v = (I + ΛK)⁻¹ right, and Kv = C right: of λ − Λμ, α and m − μ."""
        found = self._apply_positive(gram, right)
        shift = apply_gram(gram, found)
        if self.negative_factor is None or self.negative is None:
            return found, shift
        inner = linalg.solve_lower(self.negative_factor, apply_roots(self.negative, shift, transpose=True))
        inner = linalg.solve_lower(self.negative_factor, inner, transpose=True)
        found = self._apply_positive(gram, right + apply_roots(self.negative, inner))
        return found, apply_gram(gram, found)

    def _apply_positive(self, gram: Float[Array, "D N N"], right: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """(I + R₊R₊ᵀK)⁻¹ right, accurate to rounding however large Λ is.

        The inverse maps R₊b to R₊B⁻¹b without cancellation. The part of `right` that has this form with b of moderate
        size, where the data are precise, is computed in this way; the rest uses I − R₊B⁻¹R₊ᵀK.
        """
        roots = self.positive
        inside, rest = _split(gram, roots)
        rest = jnp.einsum("nde,ne->nd", rest, right)
        pulled = apply_roots(roots, apply_gram(gram, rest), transpose=True)
        half = linalg.solve_lower(self.factor, jnp.einsum("nrd,nd->nr", inside, right).reshape(-1) - pulled)
        return rest + apply_roots(roots, linalg.solve_lower(self.factor, half, transpose=True))


def _split(
    gram: Float[Array, "D N N"], roots: Float[Array, "N D D"]
) -> tuple[Float[Array, "N D D"], Float[Array, "N D D"]]:
    """R⁺ and I − RR⁺ of every row, where R⁺ leaves out columns of R that are less precise than the prior."""
    sizes = jnp.sum(roots**2, axis=1)
    variances = jnp.max(linalg.diagonals(gram), axis=0)
    informative = sizes * variances[:, None] > 1.0
    inside = jnp.where(
        informative[:, :, None], jnp.swapaxes(roots, 1, 2) / jnp.where(informative, sizes, 1.0)[:, :, None], 0.0
    )
    return inside, jnp.eye(roots.shape[1])[None] - jnp.einsum("ndr,nre->nde", roots, inside)


def inverse(gram: Float[Array, "D N N"], factors: Factors) -> Float[Array, "ND ND"]:
    """(I + ΛK)⁻¹, one triangular solve.

    For one latent it is R B⁻¹R⁻¹. For several, R may be singular, and it is split as by `Solver.apply`.
    """
    if gram.shape[0] == 1:
        roots = factors.roots[:, 0, 0]
        found = roots[:, None] * linalg.square_of_lower(factors.inverse) / roots[None, :]
    else:
        roots = factors.positive
        inside, rest = _split(gram, roots)
        half = project_right(factors.inverse, inside) - project_right(factors.whole_half(gram), rest)
        found = _as_matrix(rest) + _project_left(roots, linalg.solve_lower(factors.factor, half, transpose=True))
    if factors.negative_factor is None or factors.negative_half is None or factors.negative is None:
        return found
    # A₊⁻¹ + A₊⁻¹R₋E⁻¹R₋ᵀC₊
    inner = linalg.solve_lower(factors.negative_factor, factors.negative_half, transpose=True)
    return found + project_right(found, factors.negative) @ inner


def joint_covariance(
    gram: Float[Array, "D N N"], factors: Factors, inverse: Float[Array, "ND ND"], variances: Float[Array, "N D D"]
) -> Float[Array, "ND ND"]:
    """C = KA⁻¹ from A⁻¹ and its own diagonal blocks; for one latent and PSD sites without a product of matrices."""
    latents = gram.shape[0]
    if latents == 1 and factors.negative_factor is None:
        # A⁻¹ = I − ΛC
        spread = -inverse / factors.roots[:, 0] ** 2
        return jnp.where(jnp.eye(spread.shape[0], dtype=bool), variances[:, 0], spread)
    rows = gram.shape[1]
    blocks = jnp.einsum("fmk,kfa->mfa", gram, inverse.reshape(rows, latents, -1))
    return blocks.reshape(rows * latents, -1)


def _project_left(roots: Float[Array, "N D D"], matrix: Float[Array, "NR A"]) -> Float[Array, "ND A"]:
    """R · matrix for a block diagonal R."""
    rows, latents = roots.shape[:2]
    if latents == 1:
        return roots[:, 0, 0][:, None] * matrix
    blocks = jnp.einsum("ndr,nra->nda", roots, matrix.reshape(rows, latents, -1))
    return blocks.reshape(rows * latents, -1)


def _as_matrix(blocks: Float[Array, "N D D"]) -> Float[Array, "ND ND"]:
    """A block diagonal matrix."""
    rows, latents = blocks.shape[:2]
    if latents == 1:
        return jnp.diag(blocks[:, 0, 0])
    return jnp.einsum("nde,nm->ndme", blocks, jnp.eye(rows)).reshape(rows * latents, rows * latents)


def apply_roots(roots: Float[Array, "N D D"], vector: Float[Array, "..."], transpose: bool = False):
    """R applied to a flat vector over root columns, as (N, D); or Rᵀ applied to (N, D), flat."""
    if transpose:
        return jnp.einsum("ndr,nd->nr", roots, vector).reshape(-1)
    return jnp.einsum("ndr,nr->nd", roots, vector.reshape(roots.shape[0], -1))
