"""Where inference starts for new hyperparameters: sites, predicted from those of hyperparameters nearby."""

import numpy as np

from ..numerics.gaussian import Sites
from ..numerics.known import least_squares_given, smallest_eigenvalues_given

_REACH = 0.5
"""The largest distance, in free numbers divided by their units, over which sites are nearly linear."""
_MOST_WEIGHT = 4.0
"""The largest sum of weights: beyond it, errors of the sites would be multiplied."""


class KnownSites:
    """The sites that inference found for the last hyperparameters, as a function of free numbers.

    Close to each other, sites are linear functions of the hyperparameters, up to second order. With as many points
    nearby as there are numbers, a prediction saves one or two steps of inference in every evaluation.
    """

    def __init__(self, units: np.ndarray):
        self._units, self._known = units, []
        self._most = units.size + 3

    def add(self, unconstrained: np.ndarray, sites: Sites) -> None:
        """Note what inference found for these hyperparameters."""
        self._known = [*self._known[-self._most + 1 :], (unconstrained / self._units, sites)]

    def at(self, unconstrained: np.ndarray, otherwise: Sites) -> Sites:
        """The sites to start from; `otherwise` if none are known nearby.

        >>> known = KnownSites(np.ones(1))
        >>> for place in (0.0, 0.1):
        ...     known.add(np.array([place]), Sites(np.full((2, 1), place), np.ones((2, 1, 1))))
        >>> known.at(np.array([-0.1]), known.at(np.array([9.0]), None)).linear.round(6).tolist()
        [[-0.1], [-0.1]]
        """
        if not self._known:
            return otherwise
        place = unconstrained / self._units
        apart = np.stack([point for point, _ in self._known]) - place
        distances = np.sqrt(np.sum(apart**2, axis=1))
        order = [number for number in np.argsort(distances, kind="stable") if distances[number] <= _REACH]
        if not order:
            return otherwise
        first, *others = order
        found = self._known[first][1]
        if not others or distances[first] == 0.0:
            return found
        weights = least_squares_given((apart[others] - apart[first]).T, -apart[first], 1e-3)
        if not np.sum(np.abs(weights)) <= _MOST_WEIGHT:
            return found
        near = [self._known[number][1] for number in others]
        linear = found.linear + np.tensordot(weights, [sites.linear - found.linear for sites in near], 1)
        precision = found.precision + np.tensordot(weights, [sites.precision - found.precision for sites in near], 1)
        # A precision that was positive stays so: methods may rely on it.
        before, after = smallest_eigenvalues_given(np.asarray(found.precision)), smallest_eigenvalues_given(precision)
        kept = after >= np.minimum(before, 0.0)
        if np.all(kept):
            return Sites(linear, precision)
        return Sites(
            np.where(kept[:, None], linear, found.linear), np.where(kept[:, None, None], precision, found.precision)
        )
