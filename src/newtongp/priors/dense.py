"""The dense Gaussian process: one N·D × N·D covariance, conditioned on sites of any signature."""

from typing import Any, ClassVar

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
from .base import (
    Conditioned,
    Posterior,
    Prior,
    Workspace,
    at_inputs,
    draws_of,
    jointly_at_inputs,
    over_pairs,
    start_at_inputs,
)
from .by_name import read_kernel
from .dense_conditioning import by_signature, conditioned, found_of, settled
from .dense_factors import Factors, block_diagonal, not_below, project, rounding, strength_of


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
        return cubic_size_class(rows, self.num_latents)

    def prepare(self, x: Float[Array, "N P"]) -> "DenseWorkspace":
        return DenseWorkspace(x, self.mean.means(x), grams(self.kernel, x, x))

    def condition(self, workspace: "DenseWorkspace", sites: Sites) -> "DensePosterior":
        positive, negative = jax.vmap(small.signed_roots)(sites.precision)

        def of_factors(factors: Factors):
            return found_of(workspace.gram, workspace.mean, sites, factors), factors.stored()

        (found, weights), (factor, lift, overlap, negative_factor) = by_signature(
            workspace.gram, positive, negative, of_factors
        )
        at_data = found.conditioned
        return DensePosterior(
            at_data.marginals,
            at_data.log_normaliser(sites),
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
        return conditioned(self.gram, self.mean, sites, psd)

    def settled(self, sites: Sites, psd: bool = False) -> Conditioned:
        return settled(self.gram, self.mean, sites, psd)

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        # It is stationary in the mean, so that derivatives at a fixed one are all there are.
        return self.settled(sites, psd).log_normaliser(sites)


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
        found, lost = at_inputs(_predict, self._as_needed(), x, self._smallest)
        warn_of_lost(lost)
        return found

    def start_compiling(self, columns: int) -> None:
        start_at_inputs(_predict, self._as_needed(), columns, self._smallest)

    def _as_needed(self) -> "DensePosterior":
        """Without the factors for negative sites, if there are none; nor are they expected where only shapes matter."""
        negative = self.negative
        is_known = isinstance(negative, np.ndarray | jax.ShapeDtypeStruct)
        if not is_known or (isinstance(negative, np.ndarray) and np.any(negative != 0.0)):
            return self
        return eqx.tree_at(lambda p: (p.negative, p.overlap, p.negative_factor), self, (None, None, None))

    @property
    def _smallest(self) -> int:
        """The smallest class of new inputs, each of which costs N² operations."""
        return SMALLEST if self.factor.shape[0] <= 4 * SMALLEST else SMALLEST // 8

    @on_host
    def joint(self, x: Any) -> Gaussian:
        found, lost = jointly_at_inputs(_joint, self._as_needed(), x, self.prior.num_latents)
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
    blocks = jax.vmap(jnp.diag)(prior) - block_diagonal(half, latents)
    least = _rounding_at(posterior, half, prior)
    lost = linalg.diagonals(blocks) < least
    blocks = not_below(blocks, least)
    if negative_half is not None:
        blocks = blocks + block_diagonal(negative_half, latents)
    return Gaussian(_mean(posterior, x, cross), jax.vmap(small.small_covariance)(blocks)), lost


@compiled
def _joint(posterior: DensePosterior, x: Float[Array, "M P"], count: Any) -> tuple[Gaussian, Bool[Array, "M D"]]:
    cross, half, negative_half = _halves(posterior, x)
    prior = grams(posterior.prior.kernel, x, x)
    covariance = over_pairs(prior) - half.T @ half
    found = jnp.diagonal(covariance)
    least = _rounding_at(posterior, half, linalg.diagonals(prior).T).reshape(-1)
    covariance = covariance + jnp.diag(jnp.where(found < least, least - found, 0.0))
    if negative_half is not None:
        covariance = covariance + negative_half.T @ negative_half
    mean = _mean(posterior, x, cross)
    covariance = linalg.as_covariance(covariance, count * mean.shape[1])
    return Gaussian(mean.reshape(-1), covariance), (found < least).reshape(mean.shape)


def _mean(posterior: DensePosterior, x, cross):
    return posterior.prior.mean.means(x) + jnp.einsum("dnm,nd->md", cross, posterior.weights)


def _halves(posterior: DensePosterior, x):
    """K(X, x), V* = L_B⁻¹R₊ᵀK(X, x) and W* = L_E⁻¹R₋ᵀC₊(X, x), which is None without negative sites."""
    cross = grams(posterior.prior.kernel, posterior.x, x)
    half = linalg.solve_lower(posterior.factor, project(posterior.positive, cross))
    if posterior.overlap is None:
        return cross, half, None
    remaining = project(posterior.negative, cross) - posterior.overlap.T @ half
    return cross, half, linalg.solve_lower(posterior.negative_factor, remaining)


def _rounding_at(posterior: DensePosterior, half, prior: Float[Array, "M D"]) -> Float[Array, "M D"]:
    strength = strength_of(posterior.positive, diagonals(posterior.prior.kernel, posterior.x).T)
    return rounding(posterior.factor, posterior.lift, strength, lambda: half, prior)
