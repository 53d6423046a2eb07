"""A constant step size, as in the paper."""

from typing import Any

import jax.numpy as jnp

from ...numerics.gaussian import interpolate
from ...validation.numbers import parameter
from .base import Step, Verdict


class Constant(Step):
    """The same ρ in every step, as in the paper. It ends at the first trial that is not sound.

    >>> Constant(1.5)
    Traceback (most recent call last):
        ...
    ValueError: rho must be greater than 0 and at most 1, got 1.5: use 1.0 for full steps, or less for shorter ones
    """

    monitors = "residual"
    rho: Any

    def __init__(self, rho: float = 1.0):
        remedy = "use 1.0 for full steps, or less for shorter ones"
        self.rho = parameter(rho, "rho", lower=0.0, upper=1.0, strict=(True, False), remedy=remedy)

    def start(self, sites, stationary, allows_psd_fallback=False):
        return None

    def size(self, state):
        return jnp.asarray(self.rho)

    def trial(self, state, move):
        return interpolate(move.sites, move.proposal, self.size(state)), state

    def judge(self, state, move, before, after, psd):
        return Verdict(after.sound, state, ~after.sound)
