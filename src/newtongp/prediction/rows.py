"""The rows of a prediction, on the host: latents at standard normal points, and y given the latents."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..likelihoods import host
from ..likelihoods.base import (
    Likelihood,
    row_axes,
    row_cdf,
    row_covariance,
    row_log_expected_power,
    row_log_prob,
    row_mean,
    row_probabilities,
)
from ..numerics.gaussian import Gaussian
from ..numerics.known import lower_roots_given
from ..numerics.small import small_normal_log_density

_CHUNK, BLOCK = 2**12, 2**16
"""Points per call of a compiled function: two sizes, so that each is compiled at most twice."""


class AccuracyWarning(UserWarning):
    """An integral over the latents is less accurate than it should be."""


def warn_of_error(what: str, error: float, rows: int, stacklevel: int) -> None:
    """Warn of the accuracy of an integral over the latents."""
    warnings.warn(
        f"{what} in {rows} row(s) are integrals over the latents with an accuracy of only about {error:.1g}",
        AccuracyWarning,
        stacklevel=stacklevel,
    )


class Rows:
    """A likelihood and the Gaussian of the latents in each row.

    Latents that enter linearly given the others are integrated in closed form; `nodal` is the number of those others,
    g. A row's latents are g = m + Lz at the points z (nodal, n), and the means of the linear ones given those.
    """

    def __init__(self, likelihood: Likelihood, latent: Gaussian):
        linear = tuple(likelihood.linear_latents)
        others = tuple(k for k in range(likelihood.num_latents) if k not in linear)
        if not linear:
            # Latent parameters come last: they change y smoothly, and are best integrated in the outer loop.
            others = others[::-1]
        order = np.asarray(others + linear, dtype=int)
        self._back = np.argsort(order)
        self.likelihood = to_host(likelihood)
        self.nodal, self.linear = len(others), len(linear)
        self.mean = np.asarray(latent.mean)[:, order]
        self.covariance = np.asarray(latent.covariance)[:, order][:, :, order]
        self.root = lower_roots_given(self.covariance)
        self._axes = row_axes(self.likelihood)
        self._has_row_parameters = bool(jax.tree.leaves(self._axes))

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.mean.shape[0]

    def some(self, rows: np.ndarray) -> "Rows":
        """A subset of the rows."""
        part = object.__new__(Rows)
        part.__dict__ |= self.__dict__
        part.mean, part.covariance, part.root = self.mean[rows], self.covariance[rows], self.root[rows]
        part.__dict__.pop("_columns", None)
        part.likelihood = self.at(rows)
        return part

    @functools.cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Means (D, M) and roots (D, D, M), laid out for selecting rows."""
        return np.ascontiguousarray(self.mean.T), np.ascontiguousarray(np.moveaxis(self.root, 0, 2))

    def at(self, rows: np.ndarray) -> Likelihood:
        """The likelihood with the row parameters of these rows."""
        if not self._has_row_parameters:
            return self.likelihood
        return jax.tree.map(
            lambda leaf, axis: leaf if axis is None else np.asarray(leaf)[rows],
            self.likelihood,
            self._axes,
            is_leaf=_is_none,
        )

    def latents(self) -> tuple[np.ndarray, np.ndarray]:
        """Means (M, D) and covariances (M, D, D) in the order of the likelihood."""
        return self.mean[:, self._back], self.covariance[:, self._back][:, :, self._back]

    def _latents(self, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The latents (n, D) at the points z (nodal, n): others first where some are linear."""
        means, roots = self._columns
        f = np.empty((rows.size, means.shape[0]))
        for i, mean in enumerate(means):
            # By columns: batched matrix products would take several times as long.
            column = mean.take(rows)
            for j in range(min(i + 1, self.nodal)):
                column += roots[i, j].take(rows) * z[j]
            f[:, i if self.linear else self.nodal - 1 - i] = column
        return f

    # Given the latents that need nodes ------------------------------------------------------------

    def normal(self, rows: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance (n, P) of y given g, where the other latents are linear."""
        f = self._latents(rows, z)
        free = self.root[:, self.nodal :, self.nodal :]
        return self._compiled(_normal, rows, f[:, : self.nodal], f[:, self.nodal :], free[rows])

    def distribution(self, rows: np.ndarray, outputs: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """P(Y ≤ y | g) of these outputs."""
        if self.linear:
            return special.ndtr(self.standardised(rows, outputs, y, z))
        f = self._latents(rows, z)
        if self.likelihood.num_outputs == 1:
            below = host.distribution(self.at(rows), y, f.T)
            if below is not None:
                return np.broadcast_to(below, y.shape)
        every = self._compiled(_distribution, rows, y, f)
        return every[np.arange(rows.size), outputs]

    def standardised(self, rows: np.ndarray, outputs: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """(y − mean) / standard deviation given g, where the other latents are linear."""
        mean, variance = self.normal(rows, z)
        index = np.arange(rows.size)
        return (y - mean[index, outputs]) / np.sqrt(variance[index, outputs])

    def log_density(self, rows: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log p(y | g) at y (n, P)."""
        f = self._latents(rows, z)
        if self.linear == 0:
            return self._compiled(row_log_prob, rows, y, f)
        free = self.root[:, self.nodal :, self.nodal :]
        return self._compiled(_normal_log_density, rows, y, f[:, : self.nodal], f[:, self.nodal :], free[rows])

    def expected_density(self, y: np.ndarray) -> np.ndarray | None:
        """log p(y) of each row at y (M, P) in closed form, or None if there is none."""
        first = self.at(np.zeros(1, dtype=int))
        one = jax.tree.map(lambda leaf, axis: leaf if axis is None else leaf[0], first, self._axes, is_leaf=_is_none)
        mean, covariance = self.latents()
        if jax.eval_shape(_expected_density, one, y[0], mean[0], covariance[0]) is None:
            return None
        return self._compiled(_expected_density, np.arange(self.count), y, mean, covariance)

    def moments(self, rows: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y given g, for one output."""
        if self.linear:
            mean, variance = self.normal(rows, z)
            return mean[:, 0], variance[:, 0]
        return self._compiled(_moments, rows, self._latents(rows, z))

    def probabilities(self, rows: np.ndarray, z: np.ndarray) -> np.ndarray:
        """P(y = k | g) of every class, (n, K)."""
        return self._compiled(row_probabilities, rows, self._latents(rows, z))

    @in_double
    def _compiled(self, function: Callable, rows: np.ndarray, *arrays: np.ndarray) -> Any:
        """`function(likelihood, *arrays)` for every point, in chunks of a few sizes."""
        chunks, start = [], 0
        while start < rows.size:
            left = rows.size - start
            size = BLOCK if left >= BLOCK else _CHUNK
            parts = [array[start : start + size] for array in (rows, *arrays)]
            if left < size:  # padded with its first point
                parts = [np.concatenate([part, np.repeat(part[:1], size - left, axis=0)]) for part in parts]
            answer = _at_points(function, self.at(parts[0]), *parts[1:])
            chunks.append(jax.tree.map(lambda leaf, n=left: np.asarray(leaf)[:n], answer))
            start += size
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks)


@functools.partial(compiled, static_argnums=0)
def _at_points(function: Callable, likelihood: Likelihood, *arrays: Any) -> Any:
    axes = row_axes(likelihood)
    return jax.vmap(function, in_axes=(axes, *(0 for _ in arrays)))(likelihood, *arrays)


def _normal(likelihood, others, linear, free_root):
    matrix, offset, noise = (jnp.asarray(part) for part in likelihood.linear_form(others))
    spread = matrix @ free_root
    return offset + matrix @ linear, jnp.diagonal(noise) + jnp.sum(spread**2, axis=1)


def _normal_log_density(likelihood, y, others, linear, free_root):
    matrix, offset, noise = (jnp.asarray(part) for part in likelihood.linear_form(others))
    spread = matrix @ free_root
    return small_normal_log_density(y - offset - matrix @ linear, noise + spread @ spread.T)


def _distribution(likelihood, y, f):
    outputs = likelihood.num_outputs
    return jnp.reshape(row_cdf(likelihood, y if outputs == 1 else jnp.full(outputs, y), f), (outputs,))


def _expected_density(likelihood, y, mean, covariance):
    return row_log_expected_power(likelihood, y, mean, covariance, 1.0)


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _moments(likelihood, f):
    return row_mean(likelihood, f)[0], row_covariance(likelihood, f)[0, 0]
