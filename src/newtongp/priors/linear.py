"""Bayesian linear models: f = Xw with Gaussian weights w, conditioned in the space of the weights.

With prior covariance S = LLᵀ and features Ψ = XL, the weights in units of the prior, v = L⁻¹(w − mean), have prior
N(0, I): `weight_space.py` conditions them on sites.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import on_host, to_host
from ..numerics import linalg, small
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.size_classes import SMALLEST_DATA, size_class
from ..parameters.constraints import Covariance, Real, learned
from ..parameters.matrices import checked_covariance
from ..validation.arguments import generator, whole
from ..validation.numbers import parameter
from . import weight_space
from .base import Conditioned, Posterior, Prior, Workspace, at_inputs, jointly_at_inputs


class LinearModel(Prior):
    """A linear model with Gaussian weights: x is the design matrix, and fₙ = xₙᵀw with w ~ N(mean, prior_covariance).

    `prior_covariance` is a number (the variance of every weight), a vector of variances, one per column of x, or a
    positive semi-definite matrix; `mean` is a number, a vector, or one vector per latent, zero by default. With several
    latents, each has its own weights, with the same prior covariance. There is no intercept unless x has a column of
    ones.

    The posterior has `.weights`, the joint Gaussian of all weights: mean (P,) and covariance (P, P) for one latent, and
    (D·P,) and (D·P, D·P) for D latents, the weights of the first latent first. It is conditional on all
    hyperparameters: if those were learned, `FitResult.joint_covariance` includes their uncertainty.

    A step costs O(NP²D² + (PD)³), and another NP²D³ if sites are very precise: linear in the number of rows. With far
    more columns than rows, `GP(kernels.Linear(variance))` is the same model for O(N³).

    >>> import newtongp as ng
    >>> x = [[1.0, -2.0], [1.0, -1.0], [1.0, 1.0], [1.0, 2.0]]  # a column of ones and one covariate
    >>> model = ng.Model(LinearModel([100.0, 1.0]), ng.likelihoods.Bernoulli("logit"))  # logistic regression
    >>> result = ng.infer(model, x, [0, 0, 1, 1], ng.Newton())
    >>> result.posterior.weights.mean.shape, result.posterior.weights.covariance.shape
    ((2,), (2, 2))
    >>> bool(result.posterior.weights.mean[1] > 0.0)
    True
    """

    latents: int = eqx.field(static=True)
    prior_covariance: Any = learned(Covariance())
    mean: Any = learned(Real(), by_default=False)

    def __init__(self, prior_covariance: Any, mean: Any = None, num_latents: int = 1):
        self.latents = whole(num_latents, "num_latents")
        self.prior_covariance = _covariance(prior_covariance)
        self.mean = None if mean is None else parameter(mean, "mean", max_ndim=2)
        if np.ndim(self.mean) == 2 and self.mean.shape[0] != self.latents:
            raise ValueError(
                f"mean must be a number, one value per weight, or one row per latent, got shape {self.mean.shape} for "
                f"{self.latents} latent(s)"
            )
        weights = self._weights_given()
        if len(set(weights.values())) > 1:
            raise ValueError(
                f"prior_covariance is for {weights['prior_covariance']} weight(s), but mean is for {weights['mean']}: "
                "give both one value per column of x"
            )

    def _weights_given(self) -> dict[str, int]:
        """The number of weights that each argument implies, if any."""
        named = {"prior_covariance": self.prior_covariance, "mean": self.mean}
        return {name: value.shape[-1] for name, value in named.items() if np.ndim(value) > 0}

    @property
    def num_latents(self) -> int:
        return self.latents

    def check_inputs(self, x: np.ndarray) -> None:
        for name, weights in self._weights_given().items():
            if weights != x.shape[1]:
                raise ValueError(
                    f"{name} is for {weights} weight(s), but x has {x.shape[1]} column(s): x is the design matrix, "
                    "with one column per weight"
                )

    memory_remedy: ClassVar[str] = "use fewer columns"

    def memory(self, x: np.ndarray) -> float:
        # Features of all rows, and covariances of all weights.
        weights = self.num_latents * float(x.shape[1])
        return 8.0 * (4.5 * x.size + 6.0 * weights**2)

    def size_class(self, rows: int) -> int:
        return size_class(rows, SMALLEST_DATA)

    def prepare(self, x: Float[Array, "N P"]) -> "LinearWorkspace":
        return LinearWorkspace(_times_root(x, self.prior_covariance), x @ self._prior_mean(x.shape[1]).T)

    def condition(self, workspace: "LinearWorkspace", sites: Sites) -> "LinearPosterior":
        solved = workspace.solve(sites)
        # T(I ⊗ Lᵀ): the covariance of the weights is its square.
        half = _times_root_transposed(solved.half, self.prior_covariance)
        mean = self._prior_mean(half.shape[2]) + _times_root_transposed(solved.mean, self.prior_covariance)
        flat = half.reshape(half.shape[0], -1)
        conditioned = workspace.conditioned(solved)
        return LinearPosterior(
            conditioned.marginals,
            conditioned.log_normaliser(sites),
            Gaussian(mean.reshape(-1), flat.T @ flat),
            half,
        )

    def _prior_mean(self, size: int) -> Float[Array, "D P"]:
        """The prior mean of every latent's weights."""
        mean = 0.0 if self.mean is None else self.mean
        return jnp.broadcast_to(jnp.asarray(mean), (self.latents, size))


# The prior covariance and its root ----------------------------------------------------------------

_ROUNDING = 1e-14
"""Eigenvalues of a correlation matrix below this are treated as zero."""


def _covariance(value: Any) -> Any:
    """A variance, a vector of variances or a PSD matrix, checked."""
    array = parameter(value, "prior_covariance", max_ndim=2)
    if isinstance(array, jax.core.Tracer):
        return array
    if array.ndim < 2:
        return parameter(value, "prior_covariance", lower=0.0, strict=False, max_ndim=1)
    if array.shape[0] != array.shape[1]:
        raise ValueError(
            f"prior_covariance must be a number, a vector or a square matrix, got shape {array.shape}: give one row "
            "and one column per weight"
        )
    return checked_covariance(array, "prior_covariance")


@jax.custom_jvp
def _root(covariance: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """L with S = LLᵀ, singular or not.

    Computed from the correlation matrix, so that weights may have very different units.
    """
    scales = _safe_sqrt(jnp.diagonal(covariance))
    return scales[:, None] * _correlation_root(covariance, scales)


def _correlation_root(covariance: Float[Array, "P P"], scales: Float[Array, " P"]) -> Float[Array, "P P"]:
    """V√ω for the correlation matrix VωVᵀ; columns of the size of rounding are zero."""
    inverse = _safe_inverse(scales)
    root = linalg.psd_root(small.symmetrise(inverse[:, None] * covariance * inverse[None, :]))
    return jnp.where(jnp.sum(root**2, axis=0)[None, :] > _ROUNDING, root, 0.0)


@_root.defjvp
def _root_jvp(primals, tangents):
    # Eigenvectors have no derivative where eigenvalues coincide, but all results depend on LLᵀ alone, and
    # dL = ½ dS S⁻¹ L gives its derivative; for a singular S, the derivative within its range.
    (covariance,), (change,) = primals, tangents
    scales = _safe_sqrt(jnp.diagonal(covariance))
    root = _correlation_root(covariance, scales)
    solved = _safe_inverse(scales)[:, None] * root * _safe_inverse(jnp.sum(root**2, axis=0))[None, :]
    return scales[:, None] * root, 0.5 * change @ solved


def _safe_sqrt(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """√, with derivative zero at zero."""
    positive = values > 0.0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1.0)), 0.0)


def _safe_inverse(values: Float[Array, "..."]) -> Float[Array, "..."]:
    positive = values > 0.0
    return jnp.where(positive, 1.0 / jnp.where(positive, values, 1.0), 0.0)


def _as_root(covariance: Any) -> Float[Array, "..."]:
    """L as a number, a diagonal or a matrix."""
    array = jnp.asarray(covariance)
    return _root(small.symmetrise(array)) if array.ndim == 2 else _safe_sqrt(array)


def _times_root(x: Float[Array, "N P"], covariance: Any) -> Float[Array, "N P"]:
    """XL."""
    root = _as_root(covariance)
    return x @ root if root.ndim == 2 else x * jnp.broadcast_to(root, x.shape)


def _times_root_transposed(values: Float[Array, "*K P"], covariance: Any) -> Float[Array, "*K P"]:
    """Lv for every row v."""
    root = _as_root(covariance)
    return values @ root.T if root.ndim == 2 else values * jnp.broadcast_to(root, values.shape)


# Conditioning ---------------------------------------------------------------------------------------


class LinearWorkspace(Workspace):
    """Quantities that depend only on the inputs: the features Ψ = XL (N, P) and the prior mean (N, D)."""

    features: Float[Array, "N P"]
    mean: Float[Array, "N D"]

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(self.solve(sites))

    def conditioned(self, solved: weight_space.Solved) -> Conditioned:
        """q(f) at the data, from the posterior of the weights."""
        covariance = weight_space.covariances(solved.half, self.features[None])
        marginals = Gaussian(self.mean + solved.shift, covariance)
        return Conditioned(marginals, jnp.sum(solved.mean**2), solved.log_det, solved.proper)

    def solve(self, sites: Sites) -> weight_space.Solved:
        """The posterior of the weights in units of the prior."""
        return weight_space.solve(self.features[None], self.mean, sites)


class LinearPosterior(Posterior):
    """q(f) of a linear model, through its weights.

    `weights` is their joint Gaussian given the hyperparameters, the weights of the first latent first:
    `weights.mean.reshape(D, P)` has one row per latent.
    """

    marginals: Gaussian
    log_normaliser: Any
    weights: Gaussian
    half: Any
    """(D·P, D, P): the covariance of the weights is its square."""

    @on_host
    def predict(self, x: Any) -> Gaussian:
        return at_inputs(_predict, self, x)

    @on_host
    def joint(self, x: Any) -> Gaussian:
        return jointly_at_inputs(_joint, self, x, self.half.shape[1])[0]

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        # Through draws of the weights: linear in the number of rows, and no work for a compiler.
        half, mean = to_host(self._at(x))
        noise = generator(key).standard_normal((n, half.shape[0]))
        drawn = mean[None] + np.tensordot(noise, half, axes=1)
        return np.moveaxis(drawn @ np.asarray(x).T, 2, 1)

    def _at(self, x) -> tuple[Any, Any]:
        """The half and the mean (D, P) of the weights, for inputs with one column per weight."""
        half = jnp.asarray(self.half)
        if x.shape[1] != half.shape[2]:
            raise ValueError(
                f"design matrices must have the same number of columns, got {half.shape[2]} and {x.shape[1]}: give "
                "one column per weight"
            )
        return half, jnp.asarray(self.weights.mean).reshape(half.shape[1:])


@compiled
def _joint(posterior: LinearPosterior, x: Float[Array, "M P"], count: Any) -> tuple[Gaussian, None]:
    half, mean = posterior._at(x)
    rows = jnp.einsum("adp,mp->mda", half, x).reshape(-1, half.shape[0])
    return Gaussian((x @ mean.T).reshape(-1), rows @ rows.T), None


@compiled
def _predict(posterior: LinearPosterior, x: Float[Array, "M P"]) -> Gaussian:
    half, mean = posterior._at(x)
    return Gaussian(x @ mean.T, weight_space.covariances(half, x[None]))
