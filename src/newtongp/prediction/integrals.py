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
    at_rows,
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


# Draws of the latents ---------------------------------------------------------------------------------


def draw_outputs(likelihood, key: Any, latents: Float[np.ndarray, "n M D"]) -> Float[np.ndarray, "n M P"]:
    """Draws of y, one for each draw of the latents; each depends on its own numbers of row and draw only."""
    number, row = (part.ravel() for part in np.indices(latents.shape[:2]))
    return _at_draws(functools.partial(_outputs, key), likelihood, latents, number, row)


@compiled
def _outputs(key: Any, likelihood, latents: Float[Array, "R D"], number: Any, row: Any) -> Float[Array, "R P"]:
    def one(likelihood, f, number, row):
        return row_sample(likelihood, jax.random.fold_in(jax.random.fold_in(key, row), number), f)

    return _over_draws(one, likelihood, latents, number, row)


def means_given(likelihood, latents: Float[np.ndarray, "n M D"]) -> Float[np.ndarray, "n M P"]:
    """E[y | f] for each draw of the latents."""
    return _at_draws(_means, likelihood, latents)


@compiled
def _means(likelihood, latents: Float[Array, "R D"]) -> Float[Array, "R P"]:
    return _over_draws(row_mean, likelihood, latents)


def log_likelihoods(likelihood, y: np.ndarray, latents: Float[np.ndarray, "n M D"]) -> Float[np.ndarray, "n M"]:
    """log p(y | f) for each draw of the latents."""
    return _at_draws(_log_likelihoods, likelihood, latents, np.tile(y, (latents.shape[0], 1)))


@compiled
def _log_likelihoods(likelihood, latents: Float[Array, "R D"], y: Float[Array, "R P"]) -> Float[Array, " R"]:
    return _over_draws(lambda likelihood, f, y: row_log_prob(likelihood, y, f), likelihood, latents, y)


def _at_draws(function: Callable, likelihood, latents: np.ndarray, *each: np.ndarray) -> np.ndarray:
    """`function(likelihood, latents, *each)` for all draws of all rows as rows of their own, (n, M, ...).

    They are taken in blocks of one size, so that few programs serve all numbers of rows and draws.
    """
    n, rows, size = latents.shape
    row, every = np.tile(np.arange(rows), n), (np.reshape(latents, (n * rows, size)), *each)
    found = []
    for start in range(0, max(n * rows, 1), _DRAWS):
        block = slice(start, start + _DRAWS)
        own = at_rows(likelihood, row[block])
        found.append(in_size_class(function, own, *(array[block] for array in every), step=_DRAWS))
    return np.concatenate(found).reshape(n, rows, *found[0].shape[1:])


_DRAWS = 2**12
"""Draws per block."""


def _over_draws(function: Callable, likelihood, *rows):
    return over_rows(function, likelihood, rows)
