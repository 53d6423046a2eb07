"""Random walks and integrals of processes: non-stationary kernels that start at an origin."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..validation.numbers import parameter
from .base import Kernel, check_one_column, hyperparameter
from .statespace import Block, BrownianBlock, IntegratedBrownianBlock, IntegratedMatern12Block, excess, shortfall


def _origin() -> Any:
    """The field for the start of a process; not learned, because inputs must not precede it."""
    return eqx.field(static=True, default=0.0, converter=lambda value: float(parameter(value, "origin")))


def _check_start(kernel: str, origin: float, x: np.ndarray) -> None:
    early = x < origin
    if np.any(early):
        raise ValueError(
            f"{kernel} starts at its origin, {origin:g}, but x has the value {x[early][0]:g}: "
            f"choose an origin that no input precedes, as in `{kernel}(origin={x.min():g})`"
        )


class Brownian(Kernel):
    """A random walk (Wiener process) from zero at the origin, in one column: k = variance · (min(x, x') − origin).

    `variance` is the increase of its variance per unit of x. Inputs must not precede the origin, which is not learned.
    Add a `Constant` for an unknown level at the origin.

    >>> round(float(Brownian(variance=2.0).evaluate(jnp.ones(1), 3.0 * jnp.ones(1))), 4)
    2.0
    """

    variance: Any = hyperparameter("variance", 1.0, unit="f2/x")
    origin: float = _origin()

    def evaluate(self, x1, x2):
        return self.variance * (jnp.minimum(x1[0], x2[0]) - self.origin)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("Brownian", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError if an input precedes the origin."""
        _check_start("Brownian", self.origin, x)

    def blocks(self) -> tuple[Block, ...]:
        """One state, f."""
        return (BrownianBlock(self.variance, self.origin),)


class IntegratedBrownian(Kernel):
    """A function whose slope is a random walk (Wiener velocity), in one column; both are zero at the origin.

    k = variance · (m³/3 + |x − x'| m²/2), with m = min(x, x') − origin. Inputs must not precede the origin, which is
    not learned. Add a `Constant` and a `Linear(centre=origin)` for an unknown level and slope at the origin; with large
    variances the posterior mean is then a cubic smoothing spline.

    >>> round(float(IntegratedBrownian(variance=6.0).evaluate(jnp.ones(1), 3.0 * jnp.ones(1))), 4)
    8.0
    """

    variance: Any = hyperparameter("variance", 1.0, unit="f2/x3")
    origin: float = _origin()

    def evaluate(self, x1, x2):
        first, last = jnp.minimum(x1[0], x2[0]) - self.origin, jnp.maximum(x1[0], x2[0]) - self.origin
        # m³/3 + (M − m) m²/2, written without the difference.
        return self.variance * first**2 * (3.0 * last - first) / 6.0

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("IntegratedBrownian", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError if an input precedes the origin."""
        _check_start("IntegratedBrownian", self.origin, x)

    def blocks(self) -> tuple[Block, ...]:
        """Two states, f and its slope."""
        return (IntegratedBrownianBlock(self.variance, self.origin),)


class IntegratedMatern12(Kernel):
    """A function whose slope is a stationary Ornstein–Uhlenbeck process, in one column; it is zero at the origin.

    The slope has this `variance` and the kernel `Matern12(lengthscale)`: it tends to zero, so that the function levels
    off beyond the data. This is a damped trend. With a = (min(x, x') − origin)/lengthscale, b = |x − x'|/lengthscale
    and E(u) = 1 − exp(−u), k = variance · lengthscale² · (2 (a − E(a)) + E(a) E(b)). Inputs must not precede the
    origin, which is not learned. Add a `Constant` for an unknown level at the origin.

    >>> round(float(IntegratedMatern12(1e4, 2.0).evaluate(jnp.ones(1), 3.0 * jnp.ones(1))), 2)
    6.0
    """

    lengthscale: Any = hyperparameter("lengthscale", 1.0, unit="x")
    variance: Any = hyperparameter("variance", 1.0, unit="f2/x2")
    origin: float = _origin()

    def evaluate(self, x1, x2):
        first = (jnp.minimum(x1[0], x2[0]) - self.origin) / self.lengthscale
        gap = jnp.abs(x1[0] - x2[0]) / self.lengthscale
        return self.variance * self.lengthscale**2 * (2.0 * excess(first) + shortfall(first) * shortfall(gap))

    def gram_matrix(self, x1, x2):
        # Integrals up to the smaller of two inputs are those of either input: most of the arithmetic is per row.
        one, two = ((x[:, 0] - self.origin) / self.lengthscale for x in (x1, x2))
        first = one[:, None] < two[None, :]
        grown = jnp.where(first, excess(one)[:, None], excess(two)[None, :])
        short = jnp.where(first, shortfall(one)[:, None], shortfall(two)[None, :])
        gap = shortfall(jnp.abs(one[:, None] - two[None, :]))
        return self.variance * self.lengthscale**2 * (2.0 * grown + short * gap)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("IntegratedMatern12", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError if an input precedes the origin."""
        _check_start("IntegratedMatern12", self.origin, x)

    def blocks(self) -> tuple[Block, ...]:
        """Two states, f and its slope."""
        return (IntegratedMatern12Block(self.lengthscale, self.variance, self.origin),)
