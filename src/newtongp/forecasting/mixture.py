"""Averages of predictive distributions: y comes from one of several models, with these probabilities."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from ..prediction.prediction import Prediction
from ..prediction.rows import Rows

_SCORES = np.linspace(-5.0, 5.0, 201)
"""Normal scores at which the distribution of every model is tabulated: quantiles between them are interpolated."""
_NODES, _FARTHEST = 121, 6.0
"""The number of nodes for the latent of a count, and the largest, in standard deviations."""
_MOST_COUNTS = 5000


class Mixture:
    """A mixture of predictive distributions of y in the same rows, with the same methods as each of them.

    `lowest` is a bound of y that some of the models do not know: probability below it is moved there.
    """

    def __init__(self, predictions: Sequence[Prediction], weights: Any, lowest: float = -np.inf):
        self.predictions, self.weights = tuple(predictions), np.asarray(weights, dtype=float)
        self.lowest = lowest

    @property
    def mean(self) -> np.ndarray:
        """E[y]."""
        return self.weights @ np.stack([one.mean for one in self.predictions])

    @property
    def variance(self) -> np.ndarray:
        """Var[y]: the average of the variances, and the variance of the means."""
        means = np.stack([one.mean for one in self.predictions])
        within = self.weights @ np.stack([one.variance for one in self.predictions])
        return within + self.weights @ (means - self.weights @ means) ** 2

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y."""
        return np.sqrt(self.variance)

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the central interval."""
        lower, upper = self.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return lower, upper

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ p: one row per level, or one vector for one level.

        Distributions of counts are summed up; others are interpolated, to about 1e-4 of their width.
        """
        levels, below = np.atleast_1d(np.asarray(p, dtype=float)), self._counts_below
        if below is not None:
            found = np.stack([np.sum(below < level, axis=1) for level in levels]).astype(float)
        else:
            found = self._interpolated(levels)
        found = np.maximum(found, self.lowest)
        return found[0] if np.ndim(p) == 0 else found

    @functools.cached_property
    def _counts_below(self) -> np.ndarray | None:
        """P(Y ≤ k) of counts k = 0, 1, … in every row; None if some y is no count, or too large."""
        tables = []
        for one in self.predictions:
            table = counts_below(one)
            if table is None:
                return None
            tables.append(table)
        size = max(table.shape[1] for table in tables)
        filled = [np.pad(table, ((0, 0), (0, size - table.shape[1])), constant_values=1.0) for table in tables]
        return np.tensordot(self.weights, np.stack(filled), axes=1)

    @functools.cached_property
    def _tables(self) -> np.ndarray:
        """The quantiles of every model at the normal scores, (K, G, M)."""
        return np.stack([one.quantile(special.ndtr(_SCORES)) for one in self.predictions])

    def _interpolated(self, levels: np.ndarray) -> np.ndarray:
        tables = self._tables
        integer = all(one.likelihood.support.integer for one in self.predictions)
        wanted = special.ndtri(levels)
        found = np.empty((levels.size, tables.shape[2]))
        for row in range(tables.shape[2]):
            values = np.unique(tables[:, :, row])
            scores = [np.interp(values, own, _SCORES) for own in tables[:, :, row]]
            below = self.weights @ special.ndtr(np.stack(scores))
            found[:, row] = np.interp(wanted, special.ndtri(np.clip(below, 1e-7, 1.0 - 1e-7)), values)
        return np.ceil(found) if integer else found


def counts_below(prediction: Prediction) -> np.ndarray | None:
    """P(Y ≤ k) of counts k = 0, 1, … in every row; None if y is no count, or counts are too many to sum up."""
    support = prediction.likelihood.support
    if not support.integer or support.lower != 0.0 or prediction.likelihood.num_latents != 1:
        return None
    rows = Rows(prediction.likelihood, prediction.latent)
    count, every = rows.count, np.arange(rows.count)
    mean, variance = rows.moments(every, np.full((1, count), _SCORES[-1]))
    largest = np.max(mean + 6.0 * np.sqrt(variance)) + 10.0
    if not largest < _MOST_COUNTS:
        return None
    z = np.linspace(-_FARTHEST, _FARTHEST, _NODES)
    weight = np.exp(-0.5 * z**2) / np.sum(np.exp(-0.5 * z**2))
    y = np.arange(int(largest) + 1.0)
    node, value = (part.ravel() for part in np.indices((z.size, y.size)))
    below = np.empty((count, y.size))
    for row in range(count):  # one by one: all together may take much memory
        density = np.exp(rows.log_density(np.full(node.size, row), y[value][:, None], z[node][None]))
        below[row] = np.cumsum(weight @ density.reshape(z.size, y.size))
    return np.minimum(below, 1.0)
