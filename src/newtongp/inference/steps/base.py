"""How far the sites move towards the proposal, and when a move is refused.

A step sees numbers, not models: whether the trial is sound (posterior and cavities proper, all values
finite), the objective and the fixed-point residual before and after. It answers with a verdict.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...numerics.gaussian import Sites

SHORTEST = 1e-9
"""A step below this changes nothing that double precision can see."""


class Outcome(eqx.Module):
    """What a step needs to know of one point."""

    sound: Bool[Array, ""]
    objective: Float[Array, ""]
    rounding: Float[Array, ""]
    """Changes of the objective below this are rounding."""
    residual: Float[Array, ""]
    """Root mean square of the fixed-point residual over rows, in marginal standard deviations."""

    @classmethod
    def of_soundness(cls, sound: Bool[Array, ""]) -> "Outcome":
        """Where nothing but soundness is known, or asked for."""
        zero = jnp.zeros(())
        return cls(sound, zero, zero, zero)


class Move(eqx.Module):
    """Where a step starts from and where it is asked to go, with the fixed-point residuals of every row."""

    sites: Sites
    proposal: Sites
    residuals: Float[Array, "N K"]


class Verdict(eqx.Module):
    """Whether the trial is accepted, the step's next state, and whether there is no point in going on."""

    accept: Bool[Array, ""]
    state: Any
    give_up: Bool[Array, ""]
    stalled: Bool[Array, ""] | None = None
    """Whether steps have been accepted for long without getting anywhere; None if this is not watched."""


class Step(eqx.Module):
    """A rule for step sizes."""

    monitors: ClassVar[str]
    """What `history.objective` holds: "objective" or "residual"."""

    @abc.abstractmethod
    def start(self, sites: Sites | None, stationary: bool, allows_psd_fallback: bool = False) -> Any:
        """The state before the first step; None for the sites where only outcomes will be judged.

        `stationary` says whether the same sites always have the same proposal, `allows_psd_fallback` whether proposals
        without negative curvature are available as well.
        """

    def guards(self, state: Any) -> Bool[Array, ""] | None:
        """Whether the next proposal is to be made without negative curvature; None if this is never asked for."""
        return None

    @abc.abstractmethod
    def size(self, state: Any) -> Float[Array, ""]:
        """ρ for the next trial."""

    @abc.abstractmethod
    def trial(self, state: Any, move: Move) -> tuple[Sites, Any]:
        """The sites to try, and the state to judge them with."""

    @abc.abstractmethod
    def judge(self, state: Any, move: Move | None, before: Outcome, after: Outcome, psd: Bool[Array, ""]) -> Verdict:
        """Accept or refuse the trial; `psd` says whether its precisions are as PSD as the method promises.

        `move` is None where sites are not at hand, as between batches.
        """
