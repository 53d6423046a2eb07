"""What all priors in time share: a chain of states at the data's inputs, and what only they can be asked."""

import abc
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.double import in_double
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites
from ..validation.arguments import whole
from .base import Conditioned, Posterior, Prior, Workspace


class TemporalPrior(Prior):
    """A prior whose latents are read off a Markov chain of states."""


def chain_memory(positions: float, states: int, latents: int) -> float:
    """About how many bytes a filter and a smoother take for so many positions."""
    return 8.0 * positions * (3.5 * float(states) ** 2 + 75.0 * latents**2)


def holds(flag: Any) -> bool:
    """Whether a flag is set; False inside of a trace, where it is not known."""
    return not isinstance(flag, jax.core.Tracer) and bool(np.any(flag))


_MOST_PIECES = 2**16
"""Every piece has at least one position, whether there is a row for it or not."""


def as_pieces(pieces: Any) -> int | None:
    """In how many pieces a chain is run; None for a choice by speed."""
    return None if pieces is None else whole(pieces, "pieces", 1, _MOST_PIECES, 8, "None for a choice by speed")


class TemporalPosterior(Posterior):
    """q(f) of a prior in time."""

    @abc.abstractmethod
    def states(self, x: Any) -> Gaussian:
        """The smoothed states at these inputs: mean (M, d), covariance (M, d, d)."""

    @abc.abstractmethod
    def one_step_ahead(self) -> Gaussian:
        """The latents of every row given the rows before it in time."""


class ChainWorkspace(Workspace):
    """What depends on the inputs alone, in the order of positions: prior means, the chain, and when positions are."""

    mean: Float[Array, "T D"]
    chain: kalman.Chain
    times: Any
    """Times, or numbers of steps."""
    position: Any
    """Where each row of the data is."""
    state_mean: Any = None

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(kalman.marginals(self.chain, sites.precision, sites.centred_linear(self.mean), psd))

    def log_normaliser(self, sites: Sites) -> Float[Array, ""]:
        """log ∫ p ∏ tₙ, with a derivative that costs no more than a smoother."""
        centred_linear = sites.centred_linear(self.mean)
        linear = jnp.sum((sites.linear + centred_linear) * self.mean)
        return 0.5 * linear + kalman.log_normaliser(self.chain, sites.precision, centred_linear)

    def conditioned(self, smoothed: kalman.Smoothed) -> Conditioned:
        """What a smoother found, beside the prior mean."""
        return Conditioned(
            Gaussian(self.mean + smoothed.mean, smoothed.covariance),
            jnp.sum(smoothed.mean * smoothed.weights),
            smoothed.log_det,
            smoothed.proper,
        )

    @in_double
    def refined(self, sites: Sites) -> Gaussian | None:
        if isinstance(sites.precision, jax.core.Tracer) or isinstance(self.mean, jax.core.Tracer):
            return None
        # Before anything is compiled for it: whether any site is very precise beside what the prior knows of f.
        strongest = np.max(np.diagonal(np.asarray(sites.precision), axis1=1, axis2=2), initial=0.0)
        if not strongest * self._widest(sites, strongest) > _PRECISE:
            return None
        return _refined(self, sites)

    def _widest(self, sites: Sites, strongest: float) -> float:
        """About the largest prior variance of f: that at the start, or where variances change that of the data."""
        chain, initial = self.chain, np.asarray(self.chain.initial)
        rows = np.asarray(kalman.observation_rows(chain)).reshape(-1, chain.num_latents, initial.shape[0])
        start = float(np.max(np.einsum("tdi,ij,tdj->td", rows, initial, rows)))
        if not strongest > 0.0 or strongest * start > _PRECISE or _is_stationary(chain):
            return start
        return max(start, float(np.max(np.abs(np.asarray(sites.linear)))) ** 2 / strongest**2)

    def at_rows(self, tree: Any) -> Any:
        """One entry per position → one per row of the data."""
        return jax.tree.map(lambda leaf: leaf[self.position], tree)


_PRECISE = 1e6
_LOOKED_AT = 8


def _is_stationary(chain: kalman.Chain) -> bool:
    """Whether the first few steps leave the covariance of the state as it is."""
    initial = np.asarray(chain.initial)
    few = jax.tree.map(lambda leaf: leaf[:_LOOKED_AT], (chain.transition, chain.noise))
    transition, noise = np.asarray(chain.form.full(few[0])), np.asarray(chain.form.full_symmetric(few[1]))
    moved = transition @ initial @ np.swapaxes(transition, -1, -2) + noise - initial
    return bool(np.all(np.abs(moved) <= 1e-6 * np.max(np.abs(initial))))


@jax.jit
def _refined(workspace: ChainWorkspace, sites: Sites) -> Gaussian:
    """Marginals at all positions, through square roots where those keep more digits."""
    chain, centred_linear = workspace.chain, sites.centred_linear(workspace.mean)
    kept = kalman.marginals_and_states(chain, sites.precision, centred_linear)

    def by_roots():
        in_time, pieces = kalman.in_time(chain), chain.pieces
        posterior = kalman.careful_forward(
            in_time, *jax.tree.map(lambda leaf: kalman.to_time(leaf, pieces), (sites.precision, centred_linear))
        )
        found = kalman.careful_states(in_time, posterior)
        return kalman.from_time(found.mean, pieces), kalman.from_time(found.covariance, pieces)

    mean, covariance = jax.lax.cond(kept.lossy, by_roots, lambda: (kept.smoothed.mean, kept.smoothed.covariance))
    return Gaussian(workspace.mean + mean, covariance)
