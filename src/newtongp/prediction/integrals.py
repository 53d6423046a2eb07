"""Expectations over the latents of all rows, in blocks: moments, class probabilities, log densities and draws of y."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..likelihoods import host
from ..likelihoods.base import (
    Likelihood,
    in_size_class,
    over_rows,
    row_covariance,
    row_log_prob,
    row_mean,
    row_probabilities,
    row_sample,
)
from ..methods.expectation import log_expected_density
from ..methods.nodes import moment_rule, place_nodes
from ..numerics.cubature import Cubature, QuasiRandom, has_negative_weights, nodes_and_weights
from ..numerics.gaussian import Gaussian
from ..numerics.small import outer
from . import densities, distribution
from .rows import Rows, warn_of_error


@contextlib.contextmanager
def explained(name: str | None = None) -> Iterator[None]:
    """A context that turns errors about missing methods and wrong shapes into ValueErrors, which start with `name`."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from None


def _without_negative_weights(rule: Cubature, dimension: int) -> Cubature:
    """Replace a rule with negative weights, because probabilities might be negative."""
    return QuasiRandom() if has_negative_weights(rule, dimension) else rule


def _moment_rule(cubature: Cubature | None, likelihood: Likelihood) -> Cubature:
    rule = moment_rule(likelihood, cubature)
    # For polynomials it is exact, whatever its weights.
    exact = cubature is None and likelihood.log_prob_degree is not None
    return rule if exact else _without_negative_weights(rule, likelihood.num_latents)


_MANY = 2**14
"""From this number of rows on, they are processed in blocks, to limit the memory for nodes."""
_BLOCK = 2**12


def _over_rows(likelihood: Likelihood, function, *rows):
    many = jax.tree.leaves(rows)[0].shape[0] >= _MANY
    return over_rows(function, likelihood, rows, block=_BLOCK if many else None)


_ROWS = 2048
"""Rows, or values of y, per block of adaptive integrals."""
POINTS = {0: 2**16, 1: _ROWS, 2: 64}
"""Values of y per block, by the number of latents that need nodes."""


def blocks(count: int, size: int) -> Iterator[np.ndarray]:
    """The numbers from 0 to `count`, in blocks of `size`."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def in_blocks(function: Callable, rows: Rows, *arrays: np.ndarray) -> Any:
    """`function(rows, *arrays)` for blocks of rows."""
    parts = [function(rows.some(block), *(array[block] for array in arrays)) for block in blocks(rows.count, _ROWS)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def warn_of_errors(what: str, errors: np.ndarray, rows: np.ndarray) -> None:
    """Warn if any error is larger than the accuracy that is promised."""
    wrong = errors > distribution.ACCURACY
    if np.any(wrong):
        warn_of_error(what, float(np.max(errors[wrong])), np.unique(rows[wrong]).size, stacklevel=4)


def predictive_moments(likelihood, cubature, latent: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """E[y] = E[E[y|f]] (M, P) and Cov[y] = E[Cov[y|f]] + Cov[E[y|f]] (M, P, P)."""
    if likelihood.num_outputs == 1:
        one_per_row = np.asarray(latent.mean).T, np.moveaxis(np.asarray(latent.covariance), 0, 2)
        moments = host.expected_moments(to_host(likelihood), *one_per_row)
        if moments is None and likelihood.num_latents - len(likelihood.linear_latents) == 1:
            moments = in_blocks(densities.moments, Rows(likelihood, latent))
        if moments is not None:
            mean, variance = (np.broadcast_to(part, latent.mean.shape[:1]) for part in moments)
            return mean[:, None], variance[:, None, None]
    moments_at = functools.partial(in_double(_moments_at_nodes), cubature)
    mean, covariance = to_host(in_size_class(moments_at, likelihood, latent))
    # If a mean overflows, so does the spread around it.
    lost = np.isinf(mean)[:, :, None] | np.isinf(mean)[:, None, :]
    return mean, np.where(lost & np.isnan(covariance), np.inf, covariance)


@compiled
def _moments_at_nodes(cubature, likelihood, latent: Gaussian):
    def row(likelihood, gaussian):
        rule = _moment_rule(cubature, likelihood)
        nodes, weights, _, _ = nodes_and_weights(rule, gaussian)
        means = jax.vmap(lambda f: row_mean(likelihood, f))(nodes)
        noises = jax.vmap(lambda f: row_covariance(likelihood, f))(nodes)
        mean = weights @ means
        centred = means - mean[None, :]
        spread = jnp.tensordot(weights, jax.vmap(outer)(centred, centred), axes=1)
        return mean, jnp.tensordot(weights, noises, axes=1) + spread

    return _over_rows(likelihood, row, latent)


@in_double
def class_probabilities(likelihood, cubature, latent: Gaussian) -> np.ndarray:
    """P(y = k) of every class k, by nodes."""
    return np.asarray(in_size_class(functools.partial(_class_probabilities, cubature), likelihood, latent))


@compiled
def _class_probabilities(cubature, likelihood, latent: Gaussian) -> Float[Array, "M K"]:
    def row(likelihood, gaussian):
        nodes = place_nodes(likelihood, gaussian, cubature, True, _without_negative_weights)
        unscaled = nodes.weights @ jax.vmap(lambda f: row_probabilities(likelihood, f))(nodes.latents)
        # They sum to 1 up to rounding.
        return unscaled / jnp.sum(unscaled)

    return _over_rows(likelihood, row, latent)


def log_densities(likelihood, cubature, latent: Gaussian, y: np.ndarray) -> np.ndarray:
    """log E[p(y | f)] of each row: exact for up to two latents that need nodes, by the method's rule for more."""
    rows = Rows(likelihood, to_host(latent))
    if rows.nodal > 2:
        at_nodes = functools.partial(_log_densities_at_nodes, cubature)
        return np.asarray(in_size_class(at_nodes, likelihood, latent, y))
    values, errors = in_blocks(densities.log_densities, rows, np.asarray(y))
    warn_of_errors("densities of y", errors, np.arange(rows.count))
    return values


@compiled
def _log_densities_at_nodes(cubature, likelihood, latent: Gaussian, y: Float[Array, "M P"]) -> Float[Array, " M"]:
    def row(likelihood, gaussian, y):
        return log_expected_density(likelihood, y, gaussian, cubature, refine=_without_negative_weights)

    return _over_rows(likelihood, row, latent, y)


@jax.jit
def draw_outputs(likelihood, key: Any, latents: Float[Array, "n M D"]) -> Float[Array, "n M P"]:
    """Draws of y, one for each draw of the latents."""
    keys = jax.random.split(key, latents.shape[:2])

    def row(likelihood, keys, f):
        return jax.vmap(lambda k, g: row_sample(likelihood, k, g))(keys, f)

    columns = _over_rows(likelihood, row, jnp.swapaxes(keys, 0, 1), jnp.swapaxes(latents, 0, 1))
    return jnp.swapaxes(columns, 0, 1)


@jax.jit
def means_given(likelihood, latents: Float[Array, "n M D"]) -> Float[Array, "n M P"]:
    """E[y | f] for each draw of the latents."""

    def row(likelihood, f):
        return jax.vmap(lambda g: row_mean(likelihood, g))(f)

    return jnp.swapaxes(_over_rows(likelihood, row, jnp.swapaxes(latents, 0, 1)), 0, 1)


@jax.jit
def log_likelihoods(likelihood, y: Float[Array, "M P"], latents: Float[Array, "n M D"]) -> Float[Array, "n M"]:
    """log p(y | f) for each draw of the latents."""

    def row(likelihood, y, f):
        return jax.vmap(lambda g: row_log_prob(likelihood, y, g))(f)

    return jnp.swapaxes(_over_rows(likelihood, row, y, jnp.swapaxes(latents, 0, 1)), 0, 1)
