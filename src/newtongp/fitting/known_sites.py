"""Where inference starts for new hyperparameters: sites, predicted from those of hyperparameters nearby."""

import numpy as np

from ..numerics.gaussian import Sites
from ..numerics.linalg import least_squares_given, smallest_eigenvalues_given

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
        place = unconstrained / self._units
        near = [(np.sqrt(np.sum((point - place) ** 2)), point, sites) for point, sites in self._known]
        near = sorted((item for item in near if item[0] <= _REACH), key=lambda item: item[0])
        if not near:
            return otherwise
        (_, first, found), *others = near
        if not others:
            return found
        moves = np.stack([point - first for _, point, _ in others], axis=1)
        weights = least_squares_given(moves, place - first, 1e-3)
        if not np.sum(np.abs(weights)) <= _MOST_WEIGHT:
            return found
        pairs = list(zip(weights, (sites for _, _, sites in others), strict=True))
        linear = found.linear + sum(weight * (sites.linear - found.linear) for weight, sites in pairs)
        precision = found.precision + sum(weight * (sites.precision - found.precision) for weight, sites in pairs)
        # A precision that was positive stays so: methods may rely on it.
        before, after = smallest_eigenvalues_given(np.asarray(found.precision)), smallest_eigenvalues_given(precision)
        kept = after >= np.minimum(before, 0.0)
        return Sites(
            np.where(kept[:, None], linear, found.linear), np.where(kept[:, None, None], precision, found.precision)
        )
