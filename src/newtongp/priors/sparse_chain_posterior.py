"""The posterior of a sparse chain: predictions from the states at both ends of an interval, joint ones, and draws."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites, add_covariance
from ..numerics.small import small_pseudo_solve_lower
from .base import at_inputs, draws_by_row, jointly_at_inputs
from .markov_process import process_of
from .sparse_chain import (
    ChainFeatures,
    ChainProjection,
    SparseChainWorkspace,
    marginals_of_rows,
)
from .temporal import TemporalPosterior


class SparseChainPosterior(TemporalPosterior):
    """q(f) of a Markovian GP with inducing times: the product of the sites of every interval, and the moments of x.

    `inducing` has the inducing times; `states(inducing)` is the posterior of the states there.
    """

    marginals: Gaussian | None
    """None if the sites of single rows are not stored."""
    log_normaliser: Any
    prior: Any
    times: Any
    """The inducing times in ascending order, filled up to a size class by repeating the last one."""
    factors: kalman.Factors
    mean: Any
    """E[x] of every interval, (T, E)."""
    covariance: Any

    @property
    def inducing(self) -> np.ndarray:
        """The inducing times."""
        return np.unique(np.asarray(self.times))

    @in_double
    def predict(self, x: Any) -> Gaussian:
        return at_inputs(_predict, self, x)

    @in_double
    def states(self, x: Any) -> Gaussian:
        """The state at any inputs, such as the latent and its derivatives: mean (M, d), covariance (M, d, d)."""
        return at_inputs(_states, self, x)

    @in_double
    def joint(self, x: Any) -> Gaussian:
        return jointly_at_inputs(_joint, self, x, self.prior.num_latents)[0]

    @in_double
    def draw(self, key: Any, x: Any, n: int) -> Any:
        def draws(key: Any, number: int) -> Any:
            return at_inputs(lambda posterior, x: _draw(posterior, key, x, number), self, x)

        return draws_by_row(draws, key, n)

    @in_double
    def one_step_ahead(self) -> Gaussian:
        raise ValueError(
            "one_step_ahead is not available with inducing times, whose intervals are conditioned on as a whole: use "
            "MarkovGP without inducing="
        )

    def projection(self) -> ChainProjection:
        """The projection on the states at the inducing times."""
        return ChainProjection.to(self.prior.kernel, self.times)


def sparse_posterior(prior: Any, workspace: SparseChainWorkspace, sites: Sites) -> SparseChainPosterior:
    """The posterior given the sites of all rows."""
    factors, projection = workspace.factors(sites), workspace.projection
    moments = kalman.condition_intervals(projection.chain, factors)
    conditioned = workspace.conditioned(moments)
    return SparseChainPosterior(
        workspace.marginals_of_f(conditioned.marginals),
        conditioned.log_normaliser(sites),
        prior,
        projection.times,
        factors,
        moments.mean,
        moments.covariance,
    )


@compiled
def _predict(posterior: SparseChainPosterior, x: Float[Array, "R 1"]) -> Gaussian:
    features, residual = posterior.projection().at(posterior.prior.kernel, x)
    return add_covariance(marginals_of_rows(features, posterior.prior.mean.means(x), posterior), residual)


@compiled
def _states(posterior: SparseChainPosterior, x: Float[Array, "R 1"]) -> Gaussian:
    features, residual = posterior.projection().states(posterior.prior.kernel, x)
    nothing = jnp.zeros(features.values.shape[:2])
    return add_covariance(marginals_of_rows(features, nothing, posterior), residual)


@compiled
def _joint(posterior: SparseChainPosterior, x: Float[Array, "R 1"], count: Any) -> tuple[Gaussian, None]:
    projection, kernel = posterior.projection(), posterior.prior.kernel
    features, residual = projection.at(kernel, x)
    marginals = add_covariance(marginals_of_rows(features, posterior.prior.mean.means(x), posterior), residual)
    given = kalman.conditionals(projection.chain, posterior.factors)
    forward = kalman.forward_intervals(projection.chain, given)
    joint = kalman.joint_of_rows(forward, posterior.covariance, *features)
    between = jnp.einsum("dnm,de->ndme", projection.residual_between(kernel, x), jnp.eye(joint.shape[1]))
    covariance = kalman.with_marginals(joint + between, marginals.covariance, count)
    return Gaussian(marginals.mean.reshape(-1), covariance), None


def _times(features: ChainFeatures, paths: Float[Array, "T E n"]) -> Float[Array, "R n D"]:
    return jnp.einsum("rde,ren->rnd", features.values, paths[features.interval])


@functools.partial(compiled, static_argnums=3)
def _draw(posterior: SparseChainPosterior, key: Any, x: Float[Array, "R 1"], n: int) -> Float[Array, "R n D"]:
    """g from a draw of all x, and e = f − g from an independent draw of the prior."""
    projection, kernel = posterior.projection(), posterior.prior.kernel
    features, _ = projection.at(kernel, x)
    key_states, key_rest = jax.random.split(key)
    given = kalman.conditionals(projection.chain, posterior.factors)
    paths = kalman.draw_intervals(projection.chain, given, key_states, n)
    latents, pairs = _prior_draws(projection, kernel, key_rest, x[:, 0], n)
    return posterior.prior.mean.means(x)[:, None] + _times(features, paths) + latents - _times(features, pairs)


def _prior_draws(
    projection: ChainProjection, kernel: Any, key: Any, times: Float[Array, " R"], n: int
) -> tuple[Float[Array, "R n D"], Float[Array, "T E n"]]:
    """Joint draws from the prior: f at some times, as deviations from its mean, and x of all intervals."""
    process, count = process_of(kernel), projection.times.shape[0]
    merged = jnp.concatenate([projection.times, times])
    order = jnp.argsort(merged, stable=True)
    after = merged[order]
    chain = process.chain(jnp.concatenate([after[:1], after[:-1]]), after, after[0], 1)
    rows, latents = after.shape[0], process.num_latents
    nothing = jnp.zeros((rows, latents, latents)), jnp.zeros((rows, latents))
    states = kalman.draw_paths(kalman.forward(chain, *nothing), key, n)
    states = jnp.zeros_like(states).at[order].set(states)
    drawn = jnp.einsum("ds,rsn->rnd", jnp.asarray(process.observation), states[count:])
    known = states[:count]
    before = jnp.concatenate([jnp.zeros_like(known[:1]), known])
    end = jnp.concatenate([known, known[-1:]])
    transition, states = projection.chain.step[:, :, : process.dimension], []
    rest = end - jnp.einsum("tij,tjn->tin", transition, before)
    for root, own in zip(projection.roots, jnp.split(rest, np.cumsum(process.sizes)[:-1], axis=1), strict=True):
        states.append(jax.vmap(small_pseudo_solve_lower)(root, own))
    return drawn, jnp.concatenate([before, *states], axis=1)
