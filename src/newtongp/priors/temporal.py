"""The common parts of priors in time: the chain of states at the data's inputs, and queries of its posterior."""

import abc
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites
from ..validation.arguments import whole
from .base import Conditioned, Posterior, Prior, Workspace


class TemporalPrior(Prior):
    """A prior whose latents are read off a Markov chain of states."""


def chain_memory(positions: float, states: int, latents: int) -> float:
    """The approximate number of bytes that a filter and a smoother need for this number of positions."""
    return 8.0 * positions * (3.5 * float(states) ** 2 + 75.0 * latents**2)


def holds(flag: Any) -> bool:
    """Whether a flag is set; False inside a trace, where it is not known."""
    return not isinstance(flag, jax.core.Tracer) and bool(np.any(flag))


_MOST_PIECES = 2**16
"""Every piece has at least one position, even without a row."""


def as_pieces(pieces: Any) -> int | None:
    """A user's number of pieces of a chain, checked; None if it is chosen for speed."""
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
    """Quantities that depend only on the inputs, in the order of positions: prior means, the chain, and times."""

    mean: Float[Array, "T D"]
    chain: kalman.Chain
    times: Any
    """Times, or numbers of steps."""
    position: Any
    """The position of every row of the data."""
    state_mean: Any = None

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(kalman.marginals(self.chain, sites.precision, sites.centred_linear(self.mean), psd))

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        centred_linear = sites.centred_linear(self.mean)
        linear = jnp.sum((sites.linear + centred_linear) * self.mean)
        return 0.5 * linear + kalman.log_normaliser(self.chain, sites.precision, centred_linear)

    def conditioned(self, smoothed: kalman.Smoothed) -> Conditioned:
        """The result of a smoother, with the prior mean added."""
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
        # Nothing is compiled unless a site is very precise relative to the prior.
        strongest = np.max(np.diagonal(np.asarray(sites.precision), axis1=1, axis2=2), initial=0.0)
        if not strongest * self._widest(sites, strongest) > _PRECISE:
            return None
        return _refined(self, sites)

    def _widest(self, sites: Sites, strongest: float) -> float:
        """The approximate largest prior variance of f: at the start, or of the data if variances change."""
        chain, initial = self.chain, np.asarray(self.chain.initial)
        rows = chain.form.selection_rows if chain.weights is None else np.asarray(kalman.observation_rows(chain))
        rows = rows.reshape(-1, chain.num_latents, initial.shape[0])
        start = float(np.max(np.einsum("tdi,ij,tdj->td", rows, initial, rows)))
        if not strongest > 0.0:
            return start
        of_data = float(np.max(np.abs(np.asarray(sites.linear)))) ** 2 / strongest**2
        # The stationary covariance is looked at, which compiles, only if it matters.
        if strongest * start > _PRECISE or strongest * of_data <= _PRECISE or _is_stationary(chain):
            return start
        return max(start, of_data)

    def at_rows(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[self.position], tree)


_PRECISE = 1e6
_CHECKED_STEPS = 8


def _is_stationary(chain: kalman.Chain) -> bool:
    """Whether the covariance of the state is constant over the first few steps."""
    initial = np.asarray(chain.initial)
    steps = jax.tree.map(lambda leaf: leaf[:_CHECKED_STEPS], (chain.transition, chain.noise))
    transition, noise = np.asarray(chain.form.full(steps[0])), np.asarray(chain.form.full_symmetric(steps[1]))
    moved = transition @ initial @ np.swapaxes(transition, -1, -2) + noise - initial
    return bool(np.all(np.abs(moved) <= 1e-6 * np.max(np.abs(initial))))


def careful_query(
    chain: kalman.Chain, precision: Any, linear: Any, where: Any, mean: Any, state_mean: Any, query: str, count: Any
) -> Gaussian:
    """The "latents", the "states" or the "joint" distribution at some positions of a chain, by square roots.

    `linear` is centred; `mean` (M, D) and `state_mean` (M, d) are the prior means at these positions. Only the joint
    distribution of the first `count` positions is wanted.
    """
    forward = kalman.careful_forward(chain, precision, linear)
    moments = kalman.careful_states(chain, forward)
    if query == "states":
        return Gaussian(state_mean + moments.state_mean[where], moments.state_covariance[where])
    mean = mean + moments.mean[where]
    if query == "latents":
        return Gaussian(mean, moments.covariance[where])
    joint = kalman.joint_covariance(forward, moments.state_covariance, _rows(chain, linear), where)
    return Gaussian(mean.reshape(-1), kalman.with_marginals(joint, moments.covariance[where], count))


def joint_query(
    chain: kalman.Chain, precision: Any, linear: Any, where: Any, mean: Any, count: Any
) -> tuple[Gaussian, Bool[Array, ""]]:
    """The joint distribution at the first `count` positions of a chain, and whether square roots have more digits."""
    deviation, covariance, posterior = kalman.smoothed_states(chain, precision, linear)
    rows = _rows(chain, linear)
    mean = mean + jnp.einsum("mdi,mi->md", rows[where], deviation[where])
    joint = kalman.joint_covariance(kalman.forward(chain, precision, linear), covariance, rows, where)
    covariance = kalman.with_marginals(joint, posterior.smoothed.covariance[where], count)
    return Gaussian(mean.reshape(-1), covariance), posterior.lossy


def draw_query(
    chain: kalman.Chain, precision: Any, linear: Any, where: Any, mean: Any, key: Any, n: int, carefully: bool
) -> Float[Array, "M n D"]:
    """n joint draws at some positions of a chain, `carefully` by square roots."""
    forward = kalman.careful_forward if carefully else kalman.forward
    paths = kalman.draw_paths(forward(chain, precision, linear), key, n)[where]
    return mean[:, None] + jnp.einsum("mdi,min->mnd", _rows(chain, linear)[where], paths)


def _rows(chain: kalman.Chain, linear: Any) -> Float[Array, "T D d"]:
    return jnp.broadcast_to(kalman.observation_rows(chain), (*linear.shape, chain.form.dimension))


@compiled
def _refined(workspace: ChainWorkspace, sites: Sites) -> Gaussian:
    """Marginals at all positions, by square roots if those have more digits."""
    chain, centred_linear = workspace.chain, sites.centred_linear(workspace.mean)
    posterior = kalman.marginals_and_states(chain, sites.precision, centred_linear)

    def by_roots():
        in_time, pieces = kalman.in_time(chain), chain.pieces
        forward = kalman.careful_forward(
            in_time, *jax.tree.map(lambda leaf: kalman.to_time(leaf, pieces), (sites.precision, centred_linear))
        )
        moments = kalman.careful_states(in_time, forward)
        return kalman.from_time(moments.mean, pieces), kalman.from_time(moments.covariance, pieces)

    smoothed = posterior.smoothed
    mean, covariance = jax.lax.cond(posterior.lossy, by_roots, lambda: (smoothed.mean, smoothed.covariance))
    return Gaussian(workspace.mean + mean, covariance)
