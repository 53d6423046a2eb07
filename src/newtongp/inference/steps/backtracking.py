"""Steps that are halved until the objective falls."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ...validation.arguments import flag
from ...validation.numbers import parameter
from . import anderson, guard
from .anderson import Acceleration
from .base import SHORTEST, Outcome, Step, Verdict
from .guard import Guard

_NEARLY_FLAT = 1e-9
"""The largest rise of the objective, relative to its size, of a step that brings the fixed point closer."""


class _State(eqx.Module):
    """ρ, the memory of the acceleration, and the guard."""

    size: Float[Array, ""]
    memory: Acceleration
    guard: Guard | None


class Backtracking(Step):
    """Full steps, halved until the trial is sound and the objective has not risen; doubled after success.

    For methods whose fixed points are the stationary points of an objective. If the objective cannot distinguish two
    points, the fixed-point residual must not grow instead; if it can hardly do that, a smaller residual is enough. If
    convergence is slow, Anderson acceleration is tried first, and accepted only if it passes the same test.

    Far from the optimum, negative curvature may allow only tiny steps before the posterior becomes improper. It is then
    left out of the proposals for some steps and tried again from time to time, because it is needed at the optimum. It
    is replaced by Gauss-Newton curvature if y is Gaussian given f, and otherwise by the exact curvature with every
    negative eigenvalue of a row's precision set to zero.

    >>> float(Backtracking(shorten=0.25).shorten)
    0.25
    """

    monitors = "objective"
    shorten: Any
    lengthen: Any
    accelerate: bool = eqx.field(static=True)

    def __init__(self, shorten: float = 0.5, lengthen: float = 2.0, accelerate: bool = True):
        self.shorten = parameter(shorten, "shorten", lower=0.0, upper=1.0)
        self.lengthen = parameter(lengthen, "lengthen", lower=1.0, strict=False)
        self.accelerate = flag(accelerate, "accelerate")

    def start(self, sites, stationary, allows_psd_fallback=False):
        memory = anderson.start(sites, self.accelerate and stationary)
        return _State(jnp.ones(()), memory, guard.start() if allows_psd_fallback else None)

    def size(self, state):
        return state.size

    def guards(self, state):
        return None if state.guard is None else state.guard.on

    def trial(self, state, move):
        sites, memory = anderson.trial(state.memory, state.size, move)
        return sites, _State(state.size, memory, state.guard)

    def judge(self, state, move, before, after, psd):
        change = after.objective - before.objective
        flat = jnp.abs(change) <= after.rounding
        # At nodes, the objective is lowest a little away from the fixed point, and rises on the last way there.
        closer = (change <= _NEARLY_FLAT * (1.0 + jnp.abs(before.objective))) & (after.residual < 0.9 * before.residual)
        fallen = jnp.where(flat, after.residual <= before.residual, (change < 0.0) | closer)
        accelerated = state.memory.next
        accept = after.sound & fallen & (psd | ~accelerated)
        # A failed acceleration costs one trial and the memory, not step length.
        shorter = jnp.where(accelerated, state.size, self.shorten * state.size)
        longer = jnp.minimum(1.0, self.lengthen * state.size)
        memory = anderson.remember(state.memory, accept, before, after)
        size, present = jnp.where(accept, longer, shorter), state.guard
        if present is not None:
            present, size, changed = guard.advance(present, accept, ~accept & ~accelerated, size)
            # The stored points belong to the other kind of proposals.
            memory = anderson.forget(memory, changed)
        return Verdict(accept, _State(size, memory, present), ~accept & (size < SHORTEST))


def first_accepted(
    attempt: Callable[[Float[Array, ""]], tuple[Any, Outcome]], before: Outcome, longest: Any
) -> tuple[Float[Array, ""], Any, Bool[Array, ""]]:
    """The first of the steps ρ, ρ/2, ρ/4, … whose trial `Backtracking` accepts.

    Returns its size, the trial, and whether there is such a step. For updates that do not depend on earlier steps, such
    as those of a batch.
    """
    step = Backtracking(accelerate=False)
    psd = jnp.ones((), dtype=bool)

    def judged(state):
        size = longest * step.size(state)
        trial, after = attempt(size)
        return size, trial, step.judge(state, None, before, after, psd)

    def is_rejected(carry):
        verdict = carry[2]
        return ~verdict.accept & ~verdict.give_up

    start = judged(step.start(None, False))
    size, trial, verdict = jax.lax.while_loop(is_rejected, lambda carry: judged(carry[2].state), start)
    return size, trial, verdict.accept
