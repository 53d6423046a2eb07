"""What keeps a proposed precision PSD after the curvature has been chosen."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..numerics.gaussian import Sites
from ..numerics.small import small_solve
from ..validation.numbers import parameter


class Safeguard(eqx.Module):
    """A correction of one row's Hessian."""

    keeps_psd: ClassVar[bool]
    initial_precision: ClassVar[float] = 0.0
    """Sites start from λ = 0 and this times I."""

    @abc.abstractmethod
    def correct(self, hessian: Float[Array, "D D"], site: Sites, step_size: Float[Array, ""]) -> Float[Array, "D D"]:
        """The Hessian to use in place of the given one."""


class Heuristic(Safeguard):
    """Keep the diagonal, and turn its negative precisions into `floor` (`sec:heuristic`).

    >>> float(Heuristic(floor=0.1).floor)
    0.1
    """

    keeps_psd = True
    floor: Any

    def __init__(self, floor: float = 0.01):
        self.floor = parameter(floor, "floor", lower=0.0, strict=False)

    def correct(self, hessian, site, step_size):
        precision = -jnp.diagonal(hessian)
        return -jnp.diag(jnp.where(precision < 0.0, self.floor, precision))


class Riemannian(Safeguard):
    """Add the retraction term −(ρ/2) G Λ⁻¹ G with G = Λ + H (`eq:vi-target-psd`, `eq:pep-target-psd`).

    It needs Λ ≻ 0, so sites start from 0.01·I. Its guarantee holds for exact integrals only.

    >>> Riemannian().initial_precision
    0.01
    """

    keeps_psd = False
    initial_precision = 0.01

    def correct(self, hessian, site, step_size):
        # A masked row has Λ = 0; its proposal is discarded later, so any invertible matrix serves there.
        empty = jnp.all(site.precision == 0.0)
        precision = jnp.where(empty, jnp.eye(hessian.shape[0]), site.precision)
        gap = site.precision + hessian
        return hessian - 0.5 * step_size * gap @ small_solve(precision, gap)
