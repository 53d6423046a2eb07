"""The steps of `inference.steps`, applied from one pass over the data to the next."""

from typing import Any

import jax
import jax.numpy as jnp

from ..._runtime.double import to_host
from ...results.status import Status
from ..steps.base import Outcome, Step, Verdict
from ..steps.endings import status_after


class StepControl:
    """A step and its state between two passes.

    It runs on the host with plain numbers: with several processes, the sites or their product are distributed over
    devices, but decisions are not. Trials are therefore not accelerated.
    """

    def __init__(self, step: Step, longest: float = 1.0):
        self.step, self.longest = step, longest
        self.state = step.start(None, False)

    @property
    def size(self) -> float:
        """ρ for the next pass."""
        return self.longest * float(self.step.size(self.state))

    def judge(self, before: Outcome, after: Outcome) -> Verdict:
        """The step's verdict on a pass."""
        verdict = _judge(self.step, self.state, *to_host((before, after)))
        self.state = verdict.state
        return verdict

    def judge_trial(
        self,
        before: Outcome | None,
        after: Outcome,
        largest: float,
        failure: int,
        tol: float,
        may_stall: bool,
    ) -> tuple[bool, Status]:
        """Whether a trial is accepted, and the status after it, as in the loop; `before` is None at the start."""
        first, state = before is None, self.state
        verdict = self.judge(after if before is None else before, after)
        if first:
            self.state = state
        after = to_host(after)
        accept, status = status_after(self.step, verdict, jnp.asarray(first), after, largest, failure, tol, may_stall)
        return bool(accept), Status(int(status))


@jax.jit
def _judge(step: Step, state: Any, before: Outcome, after: Outcome) -> Verdict:
    return step.judge(state, None, before, after, jnp.ones((), dtype=bool))
