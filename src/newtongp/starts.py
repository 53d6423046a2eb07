"""Where inference starts from: sites that a sweep over the rows leaves, and sites that hold f where it is to begin.

By default inference starts at the prior. Where y is a non-linear function of f plus noise, the prior can be so wide
that no linear function describes the likelihood under it, and what is proposed there leads astray. A sweep linearises
each row under what the rows before it predict, which soon is narrow.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kalman
from .compilation import compiled
from .cubature import Unscented
from .gaussian import Gaussian, Sites
from .likelihoods.base import Likelihood, over_rows, row_axes
from .loop import propose_rows
from .methods.presets import PosteriorLinearisation
from .methods.rule import Method, propose, view_around
from .priors.temporal import ChainWorkspace
from .problem import Problem

_ROW_BY_ROW, _BLOCKS = 64, 32
"""Where a prior has no order of time, up to so many rows are swept one by one and more in so many blocks, each of which
costs as much as a step."""


def swept(problem: Problem, x: np.ndarray) -> Sites:
    """Sites from one sweep over the rows, by statistical linearisation at a few sigma points.

    Derivatives at the sigma points need no inverse of a covariance, which may be singular.
    """
    method = PosteriorLinearisation(cubature=Unscented(3))
    if isinstance(problem.workspace, ChainWorkspace):
        return sweep_in_time(problem, method)
    rows = problem.observed.shape[0]
    count = rows if rows <= _ROW_BY_ROW else _BLOCKS
    # In order of x if that is one number, as they come if not.
    order = np.argsort(x[:, 0], kind="stable") if x.shape[1] == 1 else np.arange(rows)
    blocks = np.empty(rows, dtype=int)
    blocks[order] = np.arange(rows) * count // rows
    return _sweep_in_blocks(problem, method, blocks, count)


@compiled
def _sweep_in_blocks(problem: Problem, method: Method, blocks: Any, count: Any) -> Sites:
    """Every row's site, from what the rows in earlier blocks predict."""
    rows, latents = problem.workspace.mean.shape

    def add(block, sites):
        conditioned = problem.workspace.marginals(sites, method.expects_psd(problem.likelihood))
        views = over_rows(
            lambda likelihood, y, observed, marginal, extra: view_around(
                method, likelihood, y, observed, marginal, marginal, extra
            ),
            problem.likelihood,
            (problem.y, problem.observed, conditioned.marginals, conditioned.extra),
        )
        proposal, _ = propose_rows(problem, method, views, sites, None, jnp.ones(()))
        return jax.tree.map(
            lambda new, old: jnp.where((blocks == block).reshape((rows,) + (1,) * (old.ndim - 1)), new, old),
            proposal,
            sites,
        )

    nothing = Sites(jnp.zeros((rows, latents)), jnp.zeros((rows, latents, latents)))
    return jax.lax.fori_loop(0, count, add, nothing)


@compiled
def sweep_in_time(problem: Problem, method: Method) -> Sites:
    """Every row's site, from what the rows before it predict, for a prior in time.

    Whatever the pieces in which the chain is run, this goes through it in plain order of time.
    """
    workspace: Any = problem.workspace
    pieces, chain = workspace.chain.pieces, kalman.in_time(workspace.chain)
    form, latents = chain.form, workspace.mean.shape[1]
    own, shared = _split(problem.likelihood)

    def body(state, step):
        step, own, y, observed, prior_mean = step
        likelihood = jax.tree.map(lambda a, b: b if a is None else a, own, shared, is_leaf=_is_none)
        state, rows = kalman.predict_step(form, state, step)
        columns = [form.times(state[1], each) for each in rows]
        covariance = jnp.stack([jnp.stack([form.dot(each, column) for column in columns]) for each in rows])
        mean = prior_mean + jnp.stack([form.dot(each, state[0]) for each in rows])
        nothing = Sites(jnp.zeros(latents), jnp.zeros((latents, latents)))
        predicted = Gaussian(mean, covariance)
        view = view_around(method, likelihood, y, observed, predicted, predicted)
        site, _ = propose(method, view, observed, nothing, None, jnp.ones(()))
        tilt = site.linear - site.precision @ prior_mean
        rotation, precision, linear = kalman.scalar_sites(site.precision[None], tilt[None])
        turned = None if rotation is None else tuple(tuple(rotation[0, :, k]) for k in range(latents))
        seen = step._replace(rotation=turned, precision=tuple(precision[0]), linear=tuple(linear[0]))
        state, _ = kalman.update_step(form, state, seen)
        return state, site

    steps = kalman.Step(chain.transition, chain.noise, chain.weights, None, None, None)
    start = form.split_vector(jnp.zeros(form.dimension)), form.split(chain.initial)
    rows = jax.tree.map(lambda leaf: kalman.to_time(leaf, pieces), (own, problem.y, problem.observed, workspace.mean))
    _, sites = jax.lax.scan(body, start, (steps, *rows))
    return jax.tree.map(lambda leaf: kalman.from_time(leaf, pieces), sites)


def _split(likelihood: Likelihood) -> tuple[Any, Likelihood]:
    """What of the likelihood has one entry per row, and the whole of it."""
    axes = row_axes(likelihood)
    own = jax.tree.map(lambda leaf, axis: leaf if axis == 0 else None, likelihood, axes, is_leaf=_is_none)
    return own, likelihood


def _is_none(leaf: Any) -> bool:
    return leaf is None
