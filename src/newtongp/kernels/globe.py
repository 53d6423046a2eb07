"""Kernels of longitude and latitude: of the distance through the globe, or along its surface."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .base import Kernel
from .spherical import Spherical
from .stationary import Matern12, safe_sqrt

RADIUS = 180.0 / math.pi
"""The radius of the globe, in degrees along a great circle: a degree on Earth is 111.2 km."""
_ON_THE_SPHERE = (Matern12, Spherical)
"""Kernels that are positive definite as functions of the great-circle distance (Gneiting, 2013)."""


def _direction(x: Float[Array, " 2"]) -> Float[Array, " 3"]:
    """The unit vector to a longitude and latitude in degrees."""
    longitude, latitude = x[0] * (math.pi / 180.0), x[1] * (math.pi / 180.0)
    across = jnp.cos(latitude)
    return jnp.stack([across * jnp.cos(longitude), across * jnp.sin(longitude), jnp.sin(latitude)])


def _check_columns(kernel: str, dimension: int) -> None:
    if dimension != 2:
        raise ValueError(
            f"{kernel} works on two columns of x, longitude and latitude, but x has {dimension}: choose them in this "
            f"order, as in `{kernel}(...).on(0, 1)`"
        )


def _check_degrees(kernel: str, x: np.ndarray) -> None:
    """Raise ValueError, naming row and value, unless these are longitudes and latitudes in degrees."""
    for column, name, lowest, highest in ((0, "longitude", -180.0, 360.0), (1, "latitude", -90.0, 90.0)):
        outside = np.flatnonzero((x[:, column] < lowest) | (x[:, column] > highest))
        if outside.size:
            raise ValueError(
                f"{kernel} works on longitude and latitude in degrees, in this order, but the {name} in row "
                f"{outside[0]} is {x[outside[0], column]:g}, not between {lowest:g} and {highest:g}: check the order "
                f"of the columns, as in `{kernel}(...).on(1, 0)`, and their unit"
            )


class Chordal(Kernel):
    """A kernel of points on the globe in space, over longitude and latitude in degrees: any kernel of three columns.

    Distances are straight lines through the globe, so that every kernel stays positive definite. Lengthscales are in
    degrees along a great circle (111.2 km on Earth); the straight line is shorter by 1 % at 28 degrees.

    >>> from newtongp.kernels import Matern32
    >>> k = Chordal(Matern32(lengthscale=10.0))
    >>> round(float(k.evaluate(jnp.array([179.0, 60.0]), jnp.array([-181.0, 60.0]))), 4)
    1.0
    """

    kernel: Kernel

    def __init__(self, kernel: Kernel):
        """`kernel` has one lengthscale for all columns, since no direction in space is special."""
        self.kernel = _is_kernel(kernel, "Chordal")

    def evaluate(self, x1, x2):
        return self.kernel.evaluate(RADIUS * _direction(x1), RADIUS * _direction(x2))

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has two columns."""
        _check_columns("Chordal", dimension)
        self.kernel.check_inputs(3)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are longitudes and latitudes."""
        _check_degrees("Chordal", x)


class GreatCircle(Kernel):
    """A kernel of the distance along the surface of the globe, over longitude and latitude in degrees.

    `kernel` is a `Matern12` or a `Spherical`: smoother functions of this distance are not positive definite. The
    lengthscale is in degrees along a great circle (111.2 km on Earth).

    >>> k = GreatCircle(Matern12(lengthscale=90.0))
    >>> round(float(k.evaluate(jnp.array([0.0, 0.0]), jnp.array([30.0, 90.0]))), 4) == round(math.exp(-1.0), 4)
    True
    """

    kernel: Kernel

    def __init__(self, kernel: Kernel):
        """`kernel` has one lengthscale."""
        self.kernel = _is_kernel(kernel, "GreatCircle")
        if not isinstance(kernel, _ON_THE_SPHERE):
            allowed = " or ".join(cls.__name__ for cls in _ON_THE_SPHERE)
            raise ValueError(
                f"GreatCircle takes a {allowed}, got a {type(kernel).__name__}, which is not positive definite in the "
                f"great-circle distance, or not known to be: write `Chordal({type(kernel).__name__}(...))`, which is "
                "nearly the same over short distances"
            )
        if np.ndim(kernel.lengthscale) > 0:
            raise ValueError(
                f"lengthscale must be a single number in GreatCircle, got an array of shape "
                f"{np.shape(kernel.lengthscale)}: give one for all directions"
            )

    def evaluate(self, x1, x2):
        first, second = _direction(x1), _direction(x2)
        # Accurate for near and for opposite points, which the cosine or the sine alone is not.
        sine = safe_sqrt(jnp.sum(jnp.cross(first, second) ** 2))
        distance = RADIUS * jnp.arctan2(sine, jnp.sum(first * second))
        squared = (distance / self._stationary.lengthscale) ** 2
        return self._stationary.variance * self._stationary.correlation(squared)

    @property
    def _stationary(self) -> Any:
        return self.kernel

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has two columns."""
        _check_columns("GreatCircle", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are longitudes and latitudes."""
        _check_degrees("GreatCircle", x)


def _is_kernel(kernel: Any, name: str) -> Kernel:
    if not isinstance(kernel, Kernel):
        raise ValueError(f"{name} takes a kernel, such as `{name}(Matern12(lengthscale=10.0))`, got {kernel!r}")
    return kernel
