"""Nodes for one latent that follow two widths: that of p(y | f) and that of the Gaussian it is integrated against.

All of this is in units of the Gaussian, z = (f − m) / √C. The nodes are equidistant in u, with
z = c + κ asinh(ε sinh u): their distance is κε near c, where p(y | f) is narrow, grows in proportion to |z − c|, and is
κ further away, where the Gaussian alone decides. The trapezoidal rule in u then converges exponentially, whatever the
ratio of the two widths. Where the nodes are does not change what they add up to, so that no derivative is taken of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..numerics.small import LOG_2PI

_COARSEST = 1.5
"""The distance κ of nodes, per unit of u, where the Gaussian alone decides."""
_NARROWEST = 1e-10
_NEGLIGIBLE = 50.0
"""Nats below the other that a peak of the tilted density may be and still be looked at."""
_WEAK_PULL = 1.0 / 400.0
"""Of the parabola that keeps the search for the peak of p(y | f) from going to infinity."""
_SCANNED = 20
"""Points at which a tilted density is looked at to see where it is."""
_MOST_TRIALS = 60
_CLOSE = 0.1
"""How close to a peak a search has to come, in widths of the peak."""

Scalar = Float[Array, ""]


class Mesh(NamedTuple):
    """Equidistant u from `low` to `high`, and z = c + κ asinh(ε sinh u)."""

    centre: Scalar
    narrow: Scalar
    low: Scalar
    high: Scalar
    whole: Bool[Array, ""]
    """Whether the Gaussian itself is covered, so that the weights have to add up to 1."""

    @classmethod
    def between(cls, low: Scalar, high: Scalar, centre: Scalar, width: Scalar, whole: Bool[Array, ""]) -> "Mesh":
        """From one z to another, dense around a centre on the scale of this width."""
        narrow = jnp.clip(width / _COARSEST, _NARROWEST, 1.0)
        first, last = (_map(1.0 / narrow, (end - centre) / _COARSEST) for end in (low, high))
        return cls(centre, narrow, first, last, whole)

    def at(self, u: Array) -> Array:
        """z at u."""
        return self.centre + _COARSEST * _map(self.narrow, u)

    def nodes(self, count: int) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
        """Nodes z, and the logarithms of their weights, the density of the standard normal included."""
        z, spacing = self._nodes_and_spacing(count)
        log_weights = jnp.log(spacing) - 0.5 * z**2 - 0.5 * LOG_2PI
        total = jax.scipy.special.logsumexp(log_weights)
        return z, log_weights - jnp.where(self.whole, total, 0.0)

    def nodes_of_whole(self, count: int) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
        """Nodes z and their weights, which add up to 1, where the Gaussian itself is covered."""
        z, spacing = self._nodes_and_spacing(count)
        weights = spacing * jnp.exp(-0.5 * z**2)
        return z, weights * (1.0 / jnp.sum(weights))

    def _nodes_and_spacing(self, count: int) -> tuple[Float[Array, " S"], Float[Array, " S"]]:
        """z at equidistant u, and dz/du times their distance."""
        # jnp.linspace puts its last point in place by a concatenation, after which nothing is vectorised.
        u = self.low + (self.high - self.low) * np.linspace(0.0, 1.0, count)
        size = jnp.abs(u)
        decay = jnp.exp(-2.0 * size)
        half = 0.5 * self.narrow * (1.0 - decay)
        root = jnp.sqrt(half**2 + decay)
        z = self.centre + _COARSEST * jnp.sign(u) * (size + jnp.log(half + root))
        distance = _COARSEST * (self.high - self.low) / (count - 1)
        return z, 0.5 * distance * self.narrow * (1.0 + decay) / root


def mesh_for_expectation(log_density: Callable, reach: float, peak: tuple[Scalar, Scalar] | None) -> Mesh:
    """For E[log p]: all of the Gaussian, and the peak of p, where log p is sharply curved.

    `reach` is how many standard deviations to each side are to be covered.
    """
    centre, width = _peak_of(log_density) if peak is None else peak
    ends = jnp.asarray(-reach), jnp.asarray(reach)
    return Mesh.between(*ends, centre, width, jnp.ones((), dtype=bool))


def mesh_for_density(
    log_density: Callable, reach: float, power: Any, log_concave: bool, peak: tuple[Scalar, Scalar] | None
) -> Mesh:
    """For E[p^α]: where the tilted density is, which may have one peak near that of p and one near the Gaussian's."""

    def tilted(z):
        return power * log_density(z) - 0.5 * z**2

    if log_concave:
        # It falls at least as fast as the Gaussian from its only peak.
        centre, width = top, _ = climb(tilted, jnp.zeros(()))
    else:
        centre, width = _peak_of(log_density) if peak is None else peak
        top, _ = climb(tilted, centre)
    lead = tilted(top) - tilted(jnp.zeros(()))
    near_top, near_mean = ~(lead < -_NEGLIGIBLE), ~(lead > _NEGLIGIBLE)
    ends = jnp.where(near_top, top, 0.0), jnp.where(near_mean, 0.0, top)
    mesh = Mesh.between(jnp.minimum(*ends) - reach, jnp.maximum(*ends) + reach, centre, width, near_mean)
    # What is far from a narrow peak counts in the variance by the square of its distance, in widths of the peak.
    return _without_empty_ends(mesh, tilted, 0.5 * reach**2 - 2.0 * jnp.log(mesh.narrow))


def _without_empty_ends(mesh: Mesh, log_density: Callable, depth: Scalar) -> Mesh:
    """The part of a mesh where a density is not further than so many nats below its largest value."""
    u = jnp.linspace(mesh.low, mesh.high, _SCANNED)
    values = jax.vmap(log_density)(mesh.at(u))
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    inside = values >= jnp.max(values) - depth
    spacing = u[1] - u[0]
    low = jnp.maximum(jnp.min(jnp.where(inside, u, jnp.inf)) - spacing, mesh.low)
    high = jnp.minimum(jnp.max(jnp.where(inside, u, -jnp.inf)) + spacing, mesh.high)
    cut = (low > mesh.low) | (high < mesh.high)
    return mesh._replace(low=low, high=high, whole=mesh.whole & ~cut)


def _map(narrow: Scalar, u: Array) -> Array:
    """asinh(ε sinh u), without overflow."""
    size = jnp.abs(u)
    half = -0.5 * narrow * jnp.expm1(-2.0 * size)
    return jnp.sign(u) * (size + jnp.log(half + jnp.sqrt(half**2 + jnp.exp(-2.0 * size))))


def _peak_of(log_density: Callable) -> tuple[Scalar, Scalar]:
    """Where p peaks near the Gaussian, and how wide the peak is."""
    return climb(lambda z: log_density(z) - 0.5 * _WEAK_PULL * z**2, jnp.zeros(()))


class _Climb(NamedTuple):
    at: Scalar
    next: Scalar
    low: Scalar
    high: Scalar
    longest: Scalar
    width: Scalar
    close: Bool[Array, ""]
    trials: Array


def climb(function: Callable, start: Scalar) -> tuple[Scalar, Scalar]:
    """A maximum of a function of one number, uphill from `start`, and its width 1 / √(−function'').

    Newton's method, with steps that are limited at first and later kept inside the bracket in which the slope changes
    its sign.
    """

    def slope(z):
        return jax.jvp(function, (z,), (jnp.ones_like(z),))[1]

    def unfinished(state: _Climb):
        return ~state.close & (state.trials < _MOST_TRIALS)

    def go_on(state: _Climb) -> _Climb:
        z = state.next
        rise, curvature = jax.jvp(slope, (z,), (jnp.ones_like(z),))
        # Outside of the support there is no slope: back to where the Gaussian is.
        rise = jnp.where(jnp.isfinite(rise), rise, -z)
        uphill = rise > 0.0
        low, high = jnp.where(uphill, z, state.low), jnp.where(uphill, state.high, z)
        concave = jnp.isfinite(curvature) & (curvature < 0.0)
        step = jnp.where(concave, rise / jnp.where(concave, -curvature, 1.0), jnp.sign(rise) * state.longest)
        wanted = z + jnp.clip(step, -state.longest, state.longest)
        inside = (wanted > low) & (wanted < high)
        bracketed = jnp.isfinite(low) & jnp.isfinite(high)
        middle = 0.5 * (jnp.where(bracketed, low, 0.0) + jnp.where(bracketed, high, 0.0))
        new = jnp.where(inside | ~bracketed, wanted, middle)
        width = jnp.where(concave, jax.lax.rsqrt(jnp.where(concave, -curvature, 1.0)), 1.0)
        close = concave & (jnp.abs(rise) * width <= _CLOSE)
        longest = jnp.where(bracketed, 0.5 * (jnp.where(bracketed, high - low, 0.0)), 2.0 * state.longest)
        return _Climb(z, new, low, high, longest, width, close, state.trials + 1)

    one, infinity = jnp.ones(()), jnp.asarray(jnp.inf)
    begin = _Climb(start, start, -infinity, infinity, one, one, jnp.zeros((), dtype=bool), jnp.zeros((), dtype=int))
    found = jax.lax.while_loop(unfinished, go_on, begin)
    return found.at, jnp.minimum(found.width, 1.0)
