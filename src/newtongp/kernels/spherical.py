"""The spherical kernel of geostatistics."""

import jax.numpy as jnp

from .base import check_length
from .stationary import Stationary, safe_sqrt

MOST_COLUMNS = 3


class Spherical(Stationary):
    """Rough functions that are independent from a range on: k = variance · (1 − 3r/2 + r³/2) for r < 1, else 0.

    The lengthscale is the range, as in gstat's `vgm(psill, "Sph", range)`. The volume that two balls of this diameter
    have in common is a covariance in up to three dimensions only.

    >>> k = Spherical(lengthscale=2.0)
    >>> [round(float(k.evaluate(jnp.zeros(1), jnp.full(1, x))), 4) for x in (1.0, 2.0, 3.0)]
    [0.3125, 0.0, 0.0]
    """

    def correlation(self, squared_distance):
        """1 − 3r/2 + r³/2 up to r = 1, and 0 from there on."""
        r = jnp.minimum(safe_sqrt(squared_distance), 1.0)
        # (1 − r)² (1 + r/2), without cancellation near r = 1.
        return (1.0 - r) ** 2 * (1.0 + 0.5 * r)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless there is one lengthscale, or one per column, and at most three columns."""
        check_length(self.lengthscale, "lengthscale", dimension)
        if dimension > MOST_COLUMNS:
            raise ValueError(
                f"Spherical is a covariance in up to {MOST_COLUMNS} dimensions, but x has {dimension} columns: choose "
                "some, as in `Spherical(...).on(0, 1)`, or another kernel, such as Matern12"
            )
