"""Gaussian likelihoods of several latents: varying noise, products, networks, mixtures.

In each of them some latents enter linearly once the others are known (`linear_form`).
"""

import math
from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..numerics import small
from ..parameters.constraints import Covariance, Positive, Real, learned
from ..parameters.matrices import checked_covariance
from ..validation.arguments import whole
from ..validation.numbers import parameter
from . import links
from . import support as supports
from .base import Likelihood
from .special import ndtr

_AMPLITUDES = (*links.POSITIVE, links.IDENTITY)


@final
class HeteroscedasticGaussian(Likelihood):
    """Gaussian noise whose scale is a latent: p(y | f) = N(y | f₀, s²) with s = link(f₁).

    >>> import newtongp as ng
    >>> kernel = ng.kernels.Independent([ng.kernels.Matern32(), ng.kernels.Matern32()])
    >>> model = ng.Model(ng.GP(kernel), HeteroscedasticGaussian())  # ready for ng.infer(model, x, y)
    >>> model.likelihood.num_latents
    2
    """

    link: str = eqx.field(static=True)
    num_latents: ClassVar[int] = 2
    support: ClassVar[supports.Support] = supports.real
    gaussian_form: ClassVar[bool] = True
    linear_latents: ClassVar[tuple[int, ...]] = (0,)
    latent_names: ClassVar[tuple[str, ...]] = ("location", "scale")

    def __init__(self, link="softplus"):
        """`link` is "softplus" or "exp"."""
        self.link = links.check(link, links.POSITIVE)

    def log_prob(self, y, f):
        """log N(y | f₀, link(f₁)²)."""
        log_scale, inverse = links.log_positive_and_inverse(self.link, f[1])
        return -0.5 * small.LOG_2PI - log_scale - 0.5 * ((y - f[0]) * inverse) ** 2

    def log_prob_at_nodes(self, y, f):
        """log p, its gradient and its Hessian, with ℓ = log link(f₁) and r = (y - f₀) / link(f₁)."""
        log_scale, slope, bend, inverse = links.log_positive_derivatives(self.link, f[1])
        r = (y - f[0]) * inverse
        excess = r**2 - 1.0
        value = -0.5 * small.LOG_2PI - log_scale - 0.5 * r**2
        mixed = -2.0 * r * slope * inverse
        last = bend * excess - 2.0 * (r * slope) ** 2
        hessian = jnp.stack([-(inverse**2), mixed, mixed, last]).reshape(2, 2, -1)
        return value, jnp.stack([r * inverse, slope * excess]), hessian

    def mean(self, f):
        """E[y | f] = f₀."""
        return jnp.asarray(f)[0]

    def covariance(self, f):
        """Var[y | f] = link(f₁)²."""
        return links.positive(self.link, f[1]) ** 2

    def cdf(self, y, f):
        return ndtr((y - f[0]) * jnp.exp(-links.log_positive(self.link, f[1])))

    def sample(self, key, f):
        return f[0] + links.positive(self.link, f[1]) * jax.random.normal(key)

    def linear_form(self, others):
        """y ~ N(f₀, link(f₁)²), linear in f₀."""
        return jnp.ones((1, 1)), jnp.zeros(1), links.positive(self.link, others)[:, None] ** 2

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), with the exponential link."""
        if self.link != "exp":
            return None
        # E[h(f) exp(tᵀf)] = exp(tᵀm + tᵀCt/2) E[h(f + Ct)], with t = (0, -2).
        residual = y - mean[0] + 2.0 * covariance[0, 1]
        inverse = jnp.exp(2.0 * (covariance[1, 1] - mean[1]))
        return -0.5 * small.LOG_2PI - mean[1] - 0.5 * inverse * (residual**2 + covariance[0, 0])


class _OneSignal(Likelihood):
    """y ~ N(mean(f), variance): the base class of likelihoods with one output and constant noise."""

    variance: eqx.AbstractVar[jax.Array | np.ndarray]
    support: ClassVar[supports.Support] = supports.real
    gaussian_form: ClassVar[bool] = True

    def log_prob(self, y, f):
        """log N(y | mean(f), variance)."""
        return small.normal_log_density(y - self.mean(f), self.variance)

    def covariance(self, f):
        """Var[y | f] = variance."""
        return jnp.asarray(self.variance)

    def cdf(self, y, f):
        return ndtr((y - self.mean(f)) / jnp.sqrt(self.variance))

    def sample(self, key, f):
        return self.mean(f) + jnp.sqrt(self.variance) * jax.random.normal(key)


@final
class Product(_OneSignal):
    """A signal and its amplitude: p(y | f) = N(y | f₀ link(f₁), variance).

    >>> float(Product(link="identity").mean([3.0, -2.0]))
    -6.0
    """

    link: str = eqx.field(static=True)
    num_latents: ClassVar[int] = 2
    linear_latents: ClassVar[tuple[int, ...]] = (0,)
    variance: jax.Array | np.ndarray = learned(Positive(), unit="y2")

    def __init__(self, variance=0.1, link: str | None = "softplus"):
        """`variance` > 0 is the variance of the noise; `link` is "softplus", "exp", or "identity" (None) for f₀ f₁."""
        self.variance = parameter(variance, "variance", lower=0.0)
        self.link = links.check(links.IDENTITY if link is None else link, _AMPLITUDES)

    @property
    def log_prob_degree(self) -> int | None:
        """4 with the identity link; otherwise log p is not a polynomial."""
        return 4 if self.link == links.IDENTITY else None

    def mean(self, f):
        """E[y | f] = f₀ link(f₁)."""
        return f[0] * links.value(self.link, f[1])

    def linear_form(self, others):
        """y ~ N(link(f₁) f₀, variance), linear in f₀."""
        return links.value(self.link, others)[:, None], jnp.zeros(1), jnp.reshape(self.variance, (1, 1))

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), with the exponential and the identity link."""
        if self.link == "softplus":
            return None
        (first, second), cross = mean, covariance[0, 1]
        if self.link == links.IDENTITY:
            signal = first * second + cross
            spread = first**2 * covariance[1, 1] + second**2 * covariance[0, 0] + 2.0 * first * second * cross
            squared = signal**2 + spread + covariance[0, 0] * covariance[1, 1] + cross**2
        else:
            # E[h(f) exp(tᵀf)] = exp(tᵀm + tᵀCt/2) E[h(f + Ct)], with t = (0, 1) and (0, 2).
            signal = jnp.exp(second + 0.5 * covariance[1, 1]) * (first + cross)
            squared = jnp.exp(2.0 * (second + covariance[1, 1])) * ((first + 2.0 * cross) ** 2 + covariance[0, 0])
        error = y**2 - 2.0 * y * signal + squared
        return small.normal_log_density(0.0, self.variance) - 0.5 * error / self.variance


@final
class AmplitudeDemodulation(_OneSignal):
    """A sum of subbands with amplitudes: y ~ N(Σₖ sₖ aₖ, variance), aₖ = Σₘ mixing[k, m] link(gₘ).

    The latents are the K subbands s, then the M modulators g. Without `mixing` each subband has its own modulator.

    >>> speech = AmplitudeDemodulation(3, mixing=[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    >>> speech.num_latents, speech.linear_latents
    (5, (0, 1, 2))
    """

    link: str = eqx.field(static=True)
    num_subbands: int = eqx.field(static=True)
    num_modulators: int = eqx.field(static=True)
    mixing: jax.Array | np.ndarray | None = learned(Positive(), by_default=False)
    variance: jax.Array | np.ndarray = learned(Positive(), unit="y2")

    def __init__(self, num_subbands, mixing=None, variance=0.1, link="softplus"):
        """`mixing` is a non-negative matrix (subbands x modulators); `variance` > 0; `link` is "softplus" or "exp"."""
        self.num_subbands = whole(num_subbands, "num_subbands")
        self.mixing = None if mixing is None else _mixing_weights(mixing, self.num_subbands)
        self.num_modulators = self.num_subbands if self.mixing is None else self.mixing.shape[1]
        self.variance = parameter(variance, "variance", lower=0.0)
        self.link = links.check(link, links.POSITIVE)

    @property
    def num_latents(self) -> int:
        """Subbands and modulators."""
        return self.num_subbands + self.num_modulators

    @property
    def linear_latents(self) -> tuple[int, ...]:
        """The subbands."""
        return tuple(range(self.num_subbands))

    def _amplitudes(self, modulators):
        plain = links.positive(self.link, modulators)
        return plain if self.mixing is None else self.mixing @ plain

    def mean(self, f):
        """E[y | f] = Σₖ sₖ aₖ."""
        f = jnp.asarray(f)
        return f[: self.num_subbands] @ self._amplitudes(f[self.num_subbands :])

    def linear_form(self, others):
        """y ~ N(aᵀs, variance), linear in the subbands s."""
        return self._amplitudes(others)[None, :], jnp.zeros(1), jnp.reshape(self.variance, (1, 1))


class _Vector(Likelihood):
    """y ~ N(mean(f), Σ): the base class of likelihoods with several outputs and constant noise."""

    noise: eqx.AbstractVar[jax.Array | np.ndarray]
    outputs: eqx.AbstractVar[int]
    support: ClassVar[supports.Support] = supports.real
    gaussian_form: ClassVar[bool] = True

    @property
    def num_outputs(self) -> int:
        """The length of y."""
        return self.outputs

    def log_prob(self, y, f):
        """log N(y | mean(f), Σ)."""
        residual = jnp.reshape(jnp.asarray(y) - self.mean(f), (self.outputs,))
        return small.small_normal_log_density(residual, self._noise_matrix())

    def covariance(self, f):
        """Cov[y | f] = Σ."""
        noise = self._noise_matrix()
        return noise[0, 0] if self.outputs == 1 else noise

    def _noise_matrix(self):
        noise = jnp.asarray(self.noise)
        return noise if noise.ndim == 2 else jnp.diag(jnp.broadcast_to(noise, (self.outputs,)))

    def cdf(self, y, f):
        scale = jnp.sqrt(jnp.diagonal(self._noise_matrix()))
        return ndtr((y - self.mean(f)) / (scale[0] if self.outputs == 1 else scale))

    def sample(self, key, f):
        noise = small.small_root(self._noise_matrix()) @ jax.random.normal(key, (self.outputs,))
        return self.mean(f) + (noise[0] if self.outputs == 1 else noise)


class _LinearVector(_Vector):
    """y ~ N(A f, Σ): the base class of likelihoods that are linear in all latents."""

    log_concave: ClassVar[bool] = True
    log_prob_degree: ClassVar[int | None] = 2

    @property
    def linear_latents(self) -> tuple[int, ...]:
        """All latents."""
        return tuple(range(self.num_latents))

    def expected_log_prob(self, y, mean, covariance):
        return _expected_normal(*self._residual(y, mean, covariance))

    def log_expected_power(self, y, mean, covariance, power):
        """log E[N(y | g, Σ)^α] = log N(y | E g, Σ/α + Cov g) + the log of N(·, Σ)^α / N(·, Σ/α), a constant."""
        residual, spread, noise = self._residual(y, mean, covariance)
        size = residual.shape[0]
        log_normaliser = size * small.LOG_2PI + small.small_log_det(noise)
        constant = 0.5 * (1.0 - power) * log_normaliser - 0.5 * size * math.log(power)
        return small.small_normal_log_density(residual, noise / power + spread) + constant

    def _residual(self, y, mean, covariance):
        """The residual at the mean, the covariance of g = A f, and Σ."""
        matrix, offset, noise = self.linear_form(jnp.zeros(0))
        latents = matrix.shape[1]
        residual = jnp.reshape(jnp.asarray(y), (matrix.shape[0],)) - offset - matrix @ jnp.reshape(mean, (latents,))
        return residual, matrix @ jnp.reshape(covariance, (latents, latents)) @ matrix.T, noise


def _expected_normal(residual, spread, noise):
    """E[log N(y | g, noise)] for a g with covariance `spread` and mean y - residual."""
    loss = jnp.trace(small.small_solve_psd(noise, spread))
    return small.small_normal_log_density(residual, noise) - 0.5 * loss


@final
class RegressionNetwork(_Vector):
    """A Gaussian process regression network: y ~ N((W + offset) g, Σ), where W and g are latent (`eq:gprn`).

    The latents are the nodes g, then the weights W row by row: W[0, 0], W[0, 1], ..., W[P-1, Q-1] for P outputs
    and Q nodes.

    >>> network = RegressionNetwork(outputs=3, nodes=2, covariance=0.1)
    >>> network.num_latents, network.num_outputs
    (8, 3)
    >>> network.mean([1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]).tolist()
    [1.0, 2.0, 3.0]
    """

    outputs: int = eqx.field(static=True)
    nodes: int = eqx.field(static=True)
    log_prob_degree: ClassVar[int | None] = 4
    noise: jax.Array | np.ndarray = learned(Covariance(), unit="y2")
    weight_offset: jax.Array | np.ndarray = learned(Real(), by_default=False)

    def __init__(self, outputs, nodes, covariance, weight_offset=0.0):
        """`covariance` is Σ, or a number or vector of variances; `weight_offset` a number, or a matrix like W."""
        self.outputs, self.nodes = whole(outputs, "outputs"), whole(nodes, "nodes")
        self.noise = _noise(covariance, self.outputs)
        self.weight_offset = parameter(weight_offset, "weight_offset", max_ndim=2)
        if self.weight_offset.shape not in ((), (self.outputs, self.nodes)):
            raise ValueError(
                f"weight_offset must be a number or a matrix of shape {(self.outputs, self.nodes)}, got shape "
                f"{self.weight_offset.shape}"
            )

    @property
    def num_latents(self) -> int:
        """Nodes and weights."""
        return self.nodes * (1 + self.outputs)

    @property
    def linear_latents(self) -> tuple[int, ...]:
        """The weights."""
        return tuple(range(self.nodes, self.num_latents))

    def _weights(self, f):
        return jnp.reshape(f[self.nodes :], (self.outputs, self.nodes)) + self.weight_offset

    def mean(self, f):
        """E[y | f] = (W + offset) g."""
        f = jnp.asarray(f)
        signal = self._weights(f) @ f[: self.nodes]
        return signal[0] if self.outputs == 1 else signal

    def log_prob_at_nodes(self, y, f):
        """log p, its gradient and its Hessian: the mean is linear in the nodes and in the weights."""
        return self.partial_log_prob_at_nodes(y, np.ones(self.outputs, dtype=bool), f)

    def partial_log_prob_at_nodes(self, y, seen, f):
        """The same of the observed outputs, with no precision for the others."""
        outputs, q, size = self.outputs, self.nodes, f.shape[1]
        offset = jnp.broadcast_to(self.weight_offset, (outputs, q))
        g, weights = f[:q], jnp.reshape(f[q:], (outputs, q, size)) + offset[:, :, None]
        both = seen[:, None] & seen[None, :]
        noise = jnp.where(both, self._noise_matrix(), jnp.eye(outputs))
        half = small.small_solve_lower(small.small_root(noise), jnp.eye(outputs))
        precision = jnp.where(both, half.T @ half, 0.0)
        residual = jnp.reshape(y, (outputs, 1)) - jnp.sum(weights * g[None], axis=1)
        residual = jnp.where(seen[:, None], residual, 0.0)
        # Sums, since XLA is slow with many small products of matrices.
        pull: Any = sum(precision[:, k, None] * residual[k][None] for k in range(outputs))
        log_det = -2.0 * jnp.sum(jnp.log(jnp.diagonal(half)))
        value = -0.5 * (jnp.sum(residual * pull, axis=0) + log_det + jnp.sum(seen) * small.LOG_2PI)
        seen_weights: Any = sum(precision[:, k, None, None] * weights[k][None] for k in range(outputs))
        of_nodes = -jnp.sum(weights[:, :, None] * seen_weights[:, None], axis=0)
        mixed = jnp.eye(q)[:, None, :, None] * pull[None, :, None]
        mixed = mixed - jnp.swapaxes(seen_weights, 0, 1)[:, :, None] * g[None, None]
        mixed = jnp.reshape(mixed, (q, outputs * q, size))
        of_weights = -precision[:, None, :, None, None] * (g[:, None] * g[None])[None, :, None]
        of_weights = jnp.reshape(of_weights, (outputs * q, outputs * q, size))
        upper = jnp.concatenate([of_nodes, mixed], axis=1)
        lower = jnp.concatenate([jnp.swapaxes(mixed, 0, 1), of_weights], axis=1)
        of_all = jnp.reshape(pull[:, None] * g[None], (outputs * q, size))
        gradient = jnp.concatenate([jnp.sum(weights * pull[:, None], axis=0), of_all])
        return value, gradient, jnp.concatenate([upper, lower])

    def linear_form(self, others):
        """y ~ N((I ⊗ gᵀ) vec(Wᵀ) + offset g, Σ), linear in the weights."""
        offset = jnp.broadcast_to(self.weight_offset, (self.outputs, self.nodes)) @ others
        return jnp.kron(jnp.eye(self.outputs), others[None, :]), offset, self._noise_matrix()

    def expected_log_prob(self, y, mean, covariance):
        q, shape = self.nodes, (self.outputs, self.nodes)
        nodes, cross = covariance[:q, :q], jnp.reshape(covariance[:q, q:], (q, *shape))
        weights = jnp.reshape(covariance[q:, q:], (*shape, *shape))
        # Every output is quadratic in f, with slope J at the mean and constant second derivative Hᵢ:
        # E = value at the mean + tr(Hᵢ C)/2, Cov = J C Jᵀ + tr(Hᵢ C Hⱼ C)/2.
        signal = jnp.reshape(self.mean(mean), (self.outputs,)) + jnp.einsum("qpq->p", cross)
        slope = jnp.concatenate([self._weights(mean), self.linear_form(mean[:q])[0]], axis=1)
        curved = jnp.einsum("iqjr,qr->ij", weights, nodes) + jnp.einsum("riq,qjr->ij", cross, cross)
        spread = slope @ covariance @ slope.T + curved
        return _expected_normal(jnp.reshape(y, (self.outputs,)) - signal, spread, self._noise_matrix())


@final
class MultivariateGaussian(_LinearVector):
    """Several outputs with correlated noise, one latent each: y ~ N(f, Σ).

    >>> import newtongp as ng
    >>> kernel = ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF()])
    >>> noise = [[0.2, 0.1], [0.1, 0.3]]
    >>> result = ng.infer(ng.Model(ng.GP(kernel), MultivariateGaussian(noise)), [0.0, 1.0], [[1.0, 2.0], [0.5, 1.5]])
    >>> result.predict([0.5]).mean.shape
    (1, 2)
    """

    outputs: int = eqx.field(static=True)
    noise: jax.Array | np.ndarray = learned(Covariance(), unit="y2")

    def __init__(self, covariance):
        """`covariance` is Σ, or a vector of variances (a number, for one output)."""
        self.outputs = max(1, np.shape(covariance)[0] if np.ndim(covariance) else 1)
        self.noise = _noise(covariance, self.outputs)

    @property
    def num_latents(self) -> int:
        """The number of outputs."""
        return self.outputs

    def mean(self, f):
        """E[y | f] = f."""
        return jnp.asarray(f)

    def linear_form(self, others):
        """y ~ N(f, Σ), linear in f."""
        return jnp.eye(self.outputs), jnp.zeros(self.outputs), self._noise_matrix()


@final
class LinearCoregionalisation(_LinearVector):
    """Outputs that mix a few latents: y ~ N(mixing f, Σ), the linear model of coregionalisation.

    >>> likelihood = LinearCoregionalisation(mixing=[[1.0], [0.5], [-2.0]], covariance=0.1)
    >>> likelihood.num_latents, likelihood.num_outputs
    (1, 3)
    >>> likelihood.mean(2.0).tolist()
    [2.0, 1.0, -4.0]
    """

    outputs: int = eqx.field(static=True)
    mixing: jax.Array | np.ndarray = learned(Real())
    noise: jax.Array | np.ndarray = learned(Covariance(), unit="y2")

    def __init__(self, mixing, covariance):
        """`mixing` is a matrix (outputs x latents); `covariance` is Σ, or a number or vector of variances."""
        self.mixing = _matrix(mixing, "mixing", "outputs x latents")
        self.outputs = self.mixing.shape[0]
        self.noise = _noise(covariance, self.outputs)

    @property
    def num_latents(self) -> int:
        """The number of columns of the mixing matrix."""
        return self.mixing.shape[1]

    def mean(self, f):
        """E[y | f] = mixing f."""
        signal = jnp.asarray(self.mixing) @ jnp.reshape(jnp.asarray(f), (self.num_latents,))
        return signal[0] if self.outputs == 1 else signal

    def linear_form(self, others):
        """y ~ N(mixing f, Σ), linear in f."""
        return jnp.asarray(self.mixing), jnp.zeros(self.outputs), self._noise_matrix()


# Checks of arguments --------------------------------------------------------------------------------


def _matrix(value, name: str, meaning: str):
    matrix = parameter(value, name, max_ndim=2)
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be a matrix ({meaning}), got shape {matrix.shape}")
    return matrix


def _mixing_weights(value, rows: int):
    mixing = _matrix(value, "mixing", "subbands x modulators")
    if mixing.shape[0] != rows:
        raise ValueError(f"mixing must have one row per subband, {rows}, got shape {mixing.shape}")
    if not isinstance(mixing, Tracer) and np.any(mixing < 0.0):
        raise ValueError(f"mixing must not be negative, got {value!r}: give amounts of at least 0")
    return mixing


def _noise(value, size: int) -> Any:
    """A noise covariance, checked: a number, a vector of variances or a positive definite matrix."""
    noise = parameter(value, "covariance", max_ndim=2)
    if noise.shape not in ((), (size,), (size, size)):
        raise ValueError(
            f"covariance must be a number, {size} variance(s) or a matrix of shape {(size, size)} for {size} "
            f"output(s), got shape {noise.shape}"
        )
    if isinstance(noise, Tracer):
        return noise
    if noise.ndim < 2:
        return parameter(noise, "covariance", lower=0.0, max_ndim=1)
    return checked_covariance(noise, "covariance", definite=True)
