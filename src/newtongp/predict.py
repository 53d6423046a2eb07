"""From q(f) to y: moments, quantiles, log densities and draws at new inputs."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import data as data_room
from .cubature import Cubature, PointRule, nodes_and_weights
from .gaussian import Gaussian
from .likelihoods.base import (
    Likelihood,
    row_axes,
    row_cdf,
    row_covariance,
    row_mean,
    row_sample,
    rows_given,
    with_row_parameters,
)
from .linalg import outer, psd_root
from .methods.expectation import log_expected_density, rule_or_default
from .model import Model
from .precision import in_double, to_host
from .priors.base import Posterior
from .results import Result


class Prediction:
    """The predictive distribution of y at new inputs, in y's own units; `.latent` is that of f.

    `mean`, `variance` and `std` have shape (M,), or (M, P) for likelihoods with P outputs (then `covariance`
    is (M, P, P)). They are computed when first asked for.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [4, 6, 5]).predict([0.5, 1.5])
    >>> bool((prediction.quantile(0.05) <= prediction.mean).all())
    True
    """

    def __init__(self, likelihood: Likelihood, latent: Gaussian, cubature: Cubature | None):
        self._likelihood = likelihood
        self._cubature = cubature
        self.latent = latent

    @property
    def mean(self) -> np.ndarray:
        """E[y]."""
        return self._outputs(self._moments()[0])

    @property
    def covariance(self) -> np.ndarray:
        """Cov[y] between the outputs of each row, (M, P, P)."""
        return self._moments()[1]

    @property
    def variance(self) -> np.ndarray:
        """Var[y]."""
        return self._outputs(np.diagonal(self._moments()[1], axis1=1, axis2=2))

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y."""
        return np.sqrt(self.variance)

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ p, for one output; shape (M,), or (len(p), M) for several p."""
        probabilities = np.asarray(p, dtype=np.float64)
        if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
            raise ValueError(f"p must lie strictly between 0 and 1, got {p!r}")
        if probabilities.ndim > 1:
            raise ValueError(f"p must be a number or a vector, got shape {probabilities.shape}")
        if self._likelihood.num_outputs != 1:
            raise ValueError(
                f"quantiles are defined for one output, and {type(self._likelihood).__name__} has "
                f"{self._likelihood.num_outputs}: use sample_y and take quantiles of the draws"
            )
        mean, covariance = self._moments()
        rows = in_double(_quantiles)(
            self._likelihood,
            self._cubature,
            self.latent,
            mean[:, 0],
            np.sqrt(covariance[:, 0, 0]),
            probabilities.reshape(-1),
        )
        found = np.asarray(rows)
        return found[0] if probabilities.ndim == 0 else found

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(self, "_cached_moments"):
            problem = self._likelihood.moments_problem()
            if problem is not None:
                raise ValueError(f"the mean and covariance of y need those of y given f: {problem}")
            moments = in_double(_predictive_moments)(self._likelihood, self._cubature, self.latent)
            self._cached_moments = to_host(moments)
        return self._cached_moments

    def _outputs(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self._likelihood.num_outputs == 1 else array


def predict(result: Result, x_new: Any, **row_parameters: Any) -> Prediction:
    """Predictions of y and f at new inputs."""
    x = data_room.read_inputs(x_new, result.model, "x_new")
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    return Prediction(likelihood, _latent(result, x), _cubature(result))


@in_double
def log_density(result: Result, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
    """log E_q[p(y* | f*)] for each row."""
    x = data_room.read_inputs(x_new, result.model, "x_new")
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    model = Model(result.model.prior, likelihood)
    read = data_room.read_data(x, y_new, model, ("x_new", "y_new"))
    values = _log_densities(likelihood, _cubature(result), _latent(result, x), read.y)
    return np.where(read.observed, np.asarray(values), np.nan)


@in_double
def sample(result: Result, key: Any, x_new: Any, n: int) -> np.ndarray:
    """n joint draws of f at new inputs."""
    x = data_room.read_inputs(x_new, result.model, "x_new")
    return np.asarray(_draw(result.posterior, as_key(key), x, _count(n)))


@in_double
def sample_y(result: Result, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
    """n draws of y at new inputs, each given a joint draw of f."""
    x = data_room.read_inputs(x_new, result.model, "x_new")
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    key_f, key_y = jax.random.split(as_key(key))
    latents = _draw(result.posterior, key_f, x, _count(n))
    draws = np.asarray(_draw_outputs(likelihood, key_y, latents))
    return draws[:, :, 0] if likelihood.num_outputs == 1 else draws


def as_key(key: Any) -> Any:
    """A JAX key from a key or an integer seed."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return jax.random.key(int(key))
    if isinstance(key, jax.Array):
        return key
    raise ValueError(f"key must be a JAX key or an integer seed, got {key!r}")


def _count(n: Any) -> int:
    if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 1:
        raise ValueError(f"n must be an integer of at least 1, got {n!r}")
    return int(n)


def _cubature(result: Result) -> Cubature | None:
    """The method's own rule; a single node is no predictive distribution, so the default stands in for it."""
    rule = result.method.cubature
    return None if isinstance(rule, PointRule) else rule


def _likelihood_at(model: Model, n: int, given: dict[str, Any]) -> Likelihood:
    """The likelihood with its row parameters at n new rows."""
    likelihood = model.likelihood
    unknown = sorted(set(given) - set(likelihood.row_parameters))
    if unknown:
        known = ", ".join(likelihood.row_parameters) or "none"
        raise ValueError(f"{type(likelihood).__name__} has no parameter a row called {unknown[0]!r}; it has: {known}")
    needed = [name for name in rows_given(likelihood) if name not in given]
    if needed:
        raise ValueError(
            f"the model was given one {needed[0]} a row: pass {needed[0]}= (a number, or one value a new row)"
        )
    for name, value in given.items():
        if np.ndim(value) > 1 or (np.ndim(value) == 1 and np.shape(value)[0] != n):
            raise ValueError(
                f"{name} must be a number or one value a new row ({n}), got an array of shape {np.shape(value)}"
            )
    return with_row_parameters(likelihood, **given)


def _latent(result: Result, x: np.ndarray) -> Gaussian:
    return to_host(in_double(_predict_latent)(result.posterior, x))


@jax.jit
def _predict_latent(posterior: Posterior, x: Any) -> Gaussian:
    return posterior.predict(x)


def _over_rows(likelihood: Likelihood, function, *rows):
    return jax.vmap(function, in_axes=(row_axes(likelihood), *(0 for _ in rows)))(likelihood, *rows)


@jax.jit
def _predictive_moments(likelihood, cubature, latent: Gaussian):
    """E[y] = E[E[y|f]] and Cov[y] = E[Cov[y|f]] + Cov[E[y|f]]."""

    def row(likelihood, gaussian):
        rule = rule_or_default(cubature, gaussian.mean.shape[0])
        nodes, weights, _, _ = nodes_and_weights(rule, gaussian)
        means = jax.vmap(lambda f: row_mean(likelihood, f))(nodes)
        noises = jax.vmap(lambda f: row_covariance(likelihood, f))(nodes)
        mean = weights @ means
        centred = means - mean[None, :]
        spread = jnp.tensordot(weights, jax.vmap(outer)(centred, centred), axes=1)
        return mean, jnp.tensordot(weights, noises, axes=1) + spread

    return _over_rows(likelihood, row, latent)


@jax.jit
def _log_densities(likelihood, cubature, latent: Gaussian, y: Float[Array, "M P"]) -> Float[Array, " M"]:
    def row(likelihood, gaussian, y):
        return log_expected_density(likelihood, y, gaussian, cubature)

    return _over_rows(likelihood, row, latent, y)


@eqx.filter_jit
def _draw(posterior: Posterior, key: Any, x: Any, n: int) -> Float[Array, "n M D"]:
    joint = posterior.joint(x)
    noise = jax.random.normal(key, (n, joint.mean.shape[0]), dtype=joint.mean.dtype)
    draws = joint.mean[None, :] + noise @ psd_root(joint.covariance).T
    return draws.reshape(n, x.shape[0], -1)


@jax.jit
def _draw_outputs(likelihood, key: Any, latents: Float[Array, "n M D"]) -> Float[Array, "n M P"]:
    keys = jax.random.split(key, latents.shape[:2])

    def row(likelihood, keys, f):
        return jax.vmap(lambda k, g: row_sample(likelihood, k, g))(keys, f)

    columns = _over_rows(likelihood, row, jnp.swapaxes(keys, 0, 1), jnp.swapaxes(latents, 0, 1))
    return jnp.swapaxes(columns, 0, 1)


# Quantiles: bisection on the predictive distribution function -------------------------------------

_BISECTIONS = 80
_LARGEST_COUNT = 2.0**52


@jax.jit
def _quantiles(likelihood, cubature, latent, means, stds, probabilities) -> Float[Array, "Q M"]:
    support = likelihood.support

    def row(likelihood, gaussian, mean, std):
        rule = rule_or_default(cubature, gaussian.mean.shape[0])
        nodes, weights, _, _ = nodes_and_weights(rule, gaussian)

        def cdf(y):
            return weights @ jax.vmap(lambda f: row_cdf(likelihood, y, f))(nodes)

        search = _integer_quantile if support.integer else _real_quantile
        return jax.vmap(lambda p: search(cdf, p, mean, std, support))(probabilities)

    return _over_rows(likelihood, row, latent, means, stds).T


def _real_quantile(cdf, p, mean, std, support):
    """Bisection in a coordinate u in which the whole support is within reach."""
    if np.isfinite(support.lower) and np.isfinite(support.upper):
        width = support.upper - support.lower
        to_y = lambda u: support.lower + width * jax.nn.sigmoid(u)  # noqa: E731
        reach = 700.0
    elif np.isfinite(support.lower):
        to_y = lambda u: support.lower + (mean - support.lower) * jnp.exp(u)  # noqa: E731
        reach = 700.0
    else:
        to_y = lambda u: mean + std * jnp.sinh(u)  # noqa: E731
        reach = 300.0

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        above = cdf(to_y(middle)) >= p
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (jnp.asarray(-reach), jnp.asarray(reach)))
    return to_y(0.5 * (low + high))


def _integer_quantile(cdf, p, mean, std, support):
    """The smallest integer with cdf ≥ p, by bisection between the ends of the support."""
    lower, upper = support.lower, min(support.upper, _LARGEST_COUNT)

    def halve(_, bounds):
        low, high = bounds
        middle = jnp.floor(0.5 * (low + high))
        above = cdf(middle) >= p
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    bounds = (jnp.asarray(lower - 1.0), jnp.asarray(upper))
    return jax.lax.fori_loop(0, _BISECTIONS, halve, bounds)[1]
