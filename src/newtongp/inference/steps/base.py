"""The interface of steps: how far the sites move towards the proposal, and when a trial is rejected.

A step depends on numbers, not on models: whether the trial is sound (posterior and cavities proper, all values finite),
and the objective and the fixed-point residual before and after. It returns a verdict.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.gaussian import Sites

SHORTEST = 1e-9
"""A shorter step changes nothing in double precision."""


class Outcome(eqx.Module):
    """The numbers of one point by which a step is judged."""

    sound: Bool[Array, ""]
    objective: Float[Array, ""]
    rounding: Float[Array, ""]
    """Smaller changes of the objective are rounding."""
    residual: Float[Array, ""]
    """Root mean square of the fixed-point residual over rows, in marginal standard deviations."""

    @classmethod
    def of_soundness(cls, sound: Bool[Array, ""]) -> "Outcome":
        """An outcome of which only the soundness is known or relevant."""
        zero = jnp.zeros(())
        return cls(sound, zero, zero, zero)


class Move(eqx.Module):
    """The start and the target of a step, with the fixed-point residuals of every row."""

    sites: Sites
    proposal: Sites
    residuals: Float[Array, "N K"]


class Verdict(eqx.Module):
    """Whether the trial is accepted, the step's next state, and whether to give up."""

    accept: Bool[Array, ""]
    state: Any
    give_up: Bool[Array, ""]
    stalled: Bool[Array, ""] | None = None
    """Whether many steps have been accepted without progress; None if this is not monitored."""


class Step(eqx.Module):
    """A rule for step sizes."""

    monitors: ClassVar[str]
    """The quantity in `history.objective`: "objective" or "residual"."""

    @abc.abstractmethod
    def start(self, sites: Sites | None, stationary: bool, allows_psd_fallback: bool = False) -> Any:
        """The state before the first step; `sites` is None if only outcomes will be judged.

        `stationary` says whether the same sites always have the same proposal, `allows_psd_fallback` whether proposals
        without negative curvature are available as well.
        """

    def guards(self, state: Any) -> Bool[Array, ""] | None:
        """Whether the next proposal leaves out negative curvature; None if no proposal does."""
        return None

    @abc.abstractmethod
    def size(self, state: Any) -> Float[Array, ""]:
        """ρ for the next trial."""

    @abc.abstractmethod
    def trial(self, state: Any, move: Move) -> tuple[Sites, Any]:
        """The sites to try, and the state with which to judge them."""

    @abc.abstractmethod
    def judge(self, state: Any, move: Move | None, before: Outcome, after: Outcome, psd: Bool[Array, ""]) -> Verdict:
        """Accept or reject the trial; `psd` is whether its precisions are PSD, if the method guarantees that.

        `move` is None where sites are not available, as between batches.
        """
