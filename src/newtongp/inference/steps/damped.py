"""Steps for methods that have fixed points but no objective."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...validation.arguments import flag
from ...validation.numbers import parameter
from . import anderson
from .anderson import Acceleration
from .base import SHORTEST, Step, Verdict
from .constant import Constant

_PATIENCE = 100
"""Accepted steps without progress after which a damped run ends."""

_RECENT = 5
"""The number of earlier residuals with which a new one is compared."""


class _State(eqx.Module):
    """ρ, the memory of the acceleration, and the residuals with which the next ones are compared."""

    size: Float[Array, ""]
    memory: Acceleration
    recent: Float[Array, " R"]
    """Residuals of the last accepted steps."""
    best: Float[Array, ""]
    """A residual well below this counts as progress."""
    since: Any
    """Accepted steps since the last progress."""


class Damped(Step):
    """Steps for methods that have fixed points but no objective: power EP, posterior linearisation, ...

    A trial is accepted if it is sound and its fixed-point residual does not exceed the largest of the last few;
    otherwise ρ is halved. Once ρ is at most `patient`, a growing residual is accepted, because it may have to grow on
    the way to the fixed point. If convergence is slow, Anderson acceleration is tried first, and accepted only if it is
    sound and lowers the residual.

    >>> Damped(accelerate=False).accelerate
    False
    """

    monitors = "residual"
    rho: Any
    patient: Any
    accelerate: bool = eqx.field(static=True)

    def __init__(self, rho: float = 1.0, patient: float = 0.05, accelerate: bool = True):
        self.rho = Constant(rho).rho
        self.patient = parameter(patient, "patient", lower=0.0, upper=1.0)
        self.accelerate = flag(accelerate, "accelerate")

    def start(self, sites, stationary, allows_psd_fallback=False):
        # A method with a state (quasi-Newton) is not a fixed map, and cannot be extrapolated.
        memory = anderson.start(sites, self.accelerate and stationary)
        rho, recent = jnp.asarray(self.rho, dtype=float), jnp.full(_RECENT, jnp.inf)
        return _State(rho, memory, recent, jnp.asarray(jnp.inf), jnp.zeros((), dtype=int))

    def size(self, state):
        return state.size

    def trial(self, state, move):
        sites, memory = anderson.trial(state.memory, state.size, move)
        return sites, eqx.tree_at(lambda s: s.memory, state, memory)

    def judge(self, state, move, before, after, psd):
        lower = after.residual < before.residual
        progress = after.sound & (after.residual < 0.9 * state.best)
        limit = jnp.max(jnp.where(jnp.isfinite(state.recent), state.recent, before.residual))
        acceptable = (after.residual <= limit) | (state.size <= self.patient)
        accelerated = state.memory.next
        accept = after.sound & jnp.where(accelerated, lower & psd, acceptable)
        shorter = jnp.where(accelerated, state.size, 0.5 * state.size)
        longer = jnp.where(lower, jnp.minimum(1.0, 1.5 * state.size), state.size)
        recent = jnp.concatenate([state.recent[1:], after.residual[None]])
        judged = _State(
            jnp.where(accept, longer, shorter),
            anderson.remember(state.memory, accept, before, after),
            jnp.where(accept, recent, state.recent),
            jnp.where(progress, after.residual, state.best),
            jnp.where(progress, 0, state.since + accept),
        )
        return Verdict(accept, judged, ~accept & (shorter < SHORTEST), judged.since >= _PATIENCE)
