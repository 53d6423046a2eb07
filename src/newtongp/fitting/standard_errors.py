"""Standard errors of the learned values, from the curvature of the energy."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..numerics.known import eigen_given
from .penalties import slopes_of
from .space import Space

_MOST_CURVATURES = 40
_DIFFERENCE = 1e-3


def curvature(
    evaluate: Callable[[np.ndarray], tuple[float, np.ndarray]], unconstrained: np.ndarray, units: np.ndarray
) -> np.ndarray | None:
    """Second derivatives of the energy in the free numbers, by differences of gradients; None if there are too many."""
    size = unconstrained.shape[0]
    if size == 0 or size > _MOST_CURVATURES:
        return None
    rows = []
    for move in np.diag(_DIFFERENCE * units):
        (above, up), (below, down) = evaluate(unconstrained + move), evaluate(unconstrained - move)
        if not (np.isfinite(above) and np.isfinite(below)):
            return None
        rows.append((up - down) / (2.0 * np.max(move)))
    matrix = np.stack(rows)
    return 0.5 * (matrix + matrix.T)


class Spread(NamedTuple):
    """The inverse curvature of an energy: the covariance of the free numbers is `root` rootᵀ."""

    root: np.ndarray
    loose: np.ndarray
    """Which free numbers the curvature does not determine."""

    @classmethod
    def of(cls, curvature: np.ndarray, units: np.ndarray) -> "Spread":
        """From a matrix of second derivatives, which may be singular, in free numbers with these units."""
        # In the numbers' own units, what counts as flat would depend on the units of y.
        sizes, directions = eigen_given(units[:, None] * curvature * units[None, :])
        flat = sizes <= 1e-6 * max(1.0, float(np.max(sizes)))
        root = units[:, None] * directions * np.where(flat, 0.0, 1.0 / np.sqrt(np.where(flat, 1.0, sizes)))
        return cls(root, np.sum(directions[:, flat] ** 2, axis=1) > 1e-6)

    @property
    def matrix(self) -> np.ndarray:
        """The covariance of the free numbers: infinite and undefined (NaN) for those that are not determined."""
        covariance = self.root @ self.root.T
        covariance[self.loose, :] = covariance[:, self.loose] = np.nan
        covariance[self.loose, self.loose] = np.inf
        return covariance

    @property
    def errors(self) -> np.ndarray:
        """Standard errors of the free numbers."""
        return np.where(self.loose, np.inf, np.sqrt(np.sum(self.root**2, axis=1)))


def errors_and_spread(
    space: Space, unconstrained: np.ndarray, curvature: np.ndarray | None
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The standard error of every value, infinite where it is not determined, and the covariance of the free numbers.

    The covariance has the curvature of weak priors, and the errors do not: they are infinite where only a weak prior
    determines a value. There are none if the curvature is not known.
    """
    if curvature is None or not np.all(np.isfinite(curvature)):
        return {}, None
    spread, errors, begin = Spread.of(curvature, space.units), {}, 0
    loose = spread.loose | space.held if space.held.size else spread.loose
    for slot, of_all in zip(space.slots, slopes_of(space.slots, unconstrained), strict=True):
        part = slice(begin, begin + slot.size)
        slope = of_all[:, part]
        error = np.sqrt(np.sum((slope @ spread.root[part]) ** 2, axis=1))
        undetermined = np.any((slope != 0.0) & loose[part][None, :], axis=1)
        errors[slot.name] = np.where(undetermined, np.inf, error).reshape(slot.shape)
        begin += slot.size
    return errors, spread.matrix
