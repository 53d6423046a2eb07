"""Starts of inference: sites from a sweep over the rows, and sites that hold f at a given point.

By default, inference starts at the prior. If y is a non-linear function of f plus noise, the prior can be so wide that
no linear function approximates the likelihood under it, and the first proposals are misleading. A sweep linearises each
row under the prediction from the rows before it, which soon becomes narrow.

A likelihood may be zero for some f, which may differ between rows. The prior mean can then be outside the support, and
sites hold f at a point where the density is positive.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from .._runtime.compilation import compiled
from .._runtime.double import to_host
from ..likelihoods.base import Likelihood, one_row, over_rows, row_axes, row_log_prob
from ..methods.presets import PosteriorLinearisation
from ..methods.rule import Method, expansion_around, propose
from ..numerics import kalman
from ..numerics.cubature import Unscented
from ..numerics.gaussian import Gaussian, Sites
from ..priors.temporal import ChainWorkspace
from .loop import propose_rows
from .problem import Problem, Setup

START_PRECISIONS = (0.0, 1e-2, 1.0, 1e2, 1e4, 1e6)
"""Precisions of sites at the prior mean. If inference fails from one, the next is tried."""

HOPELESS = 1e6
"""A larger energy per row, or an infinite one, indicates that the prior is far too wide for the likelihood."""

_ROW_BY_ROW, _BLOCKS = 64, 16
"""Without an order of time, up to 64 rows are swept one by one, and more in 16 blocks. Each block costs as much as a
step."""


def swept_sites(setup: Setup) -> Sites:
    """`swept`, for the positions of a setup. It runs in the size class, in whatever size inference runs."""
    in_class = setup.with_size(setup.size_class)
    return setup.sites_from(in_class, to_host(swept(in_class.problem, setup.data.x)))


def swept(problem: Problem, x: Any) -> Sites:
    """Sites from one sweep over the rows, by statistical linearisation at a few sigma points.

    Rows are in the order of x if it has one column, and otherwise, or without x, in the order of the data. The slope
    from derivatives at the sigma points needs no inverse of a covariance, which may be singular.
    """
    method = PosteriorLinearisation(cubature=Unscented(3))
    if isinstance(problem.workspace, ChainWorkspace):
        return sweep_in_time(problem, method)
    rows = problem.observed.shape[0] if x is None else x.shape[0]
    count = rows if rows <= _ROW_BY_ROW else _BLOCKS
    arrays = jnp if isinstance(x, jax.core.Tracer) else np
    order: Any = np.arange(rows)
    if x is not None and x.shape[1] == 1:
        order = arrays.argsort(x[:, 0], stable=True)
    # The number of each row in that order, and 0 for rows that fill up a size class.
    places = arrays.pad(arrays.argsort(order), (0, problem.observed.shape[0] - rows))
    blocks = places * count // rows
    return _sweep_in_blocks(problem, method, blocks, count)


@compiled
def _sweep_in_blocks(problem: Problem, method: Method, blocks: Any, count: Any) -> Sites:
    """Every row's site, from the prediction of the rows in earlier blocks."""
    rows = problem.observed.shape[0]

    def add(block, sites):
        conditioned = problem.workspace.marginals(sites, method.expects_psd(problem.likelihood))
        expansions = over_rows(
            lambda likelihood, y, observed, marginal, residual_covariance: expansion_around(
                method, likelihood, y, observed, marginal, marginal, residual_covariance
            ),
            problem.likelihood,
            (problem.y, problem.observed, conditioned.marginals, conditioned.residual_covariance),
        )
        proposal, _ = propose_rows(problem, method, expansions, sites, None, jnp.ones(()))
        return jax.tree.map(
            lambda new, old: jnp.where((blocks == block).reshape((rows,) + (1,) * (old.ndim - 1)), new, old),
            proposal,
            sites,
        )

    return jax.lax.fori_loop(0, count, add, _no_sites(problem))


@compiled
def sweep_in_time(problem: Problem, method: Method) -> Sites:
    """Every row's site, from the prediction of the rows before it, for a prior in time.

    It goes through the chain in the order of time, even if the chain is otherwise processed in parallel pieces.
    """
    workspace: Any = problem.workspace
    pieces, chain = workspace.chain.pieces, kalman.in_time(workspace.chain)
    form, latents = chain.form, workspace.mean.shape[1]
    own, shared = _split(problem.likelihood)

    def body(state, step):
        step, own, y, observed, prior_mean = step
        likelihood = jax.tree.map(lambda a, b: b if a is None else a, own, shared, is_leaf=_is_none)
        state, rows = kalman.predict_step(form, state, step)
        columns = [form.times(state[1], row) for row in rows]
        covariance = jnp.stack([jnp.stack([form.dot(row, column) for column in columns]) for row in rows])
        mean = prior_mean + jnp.stack([form.dot(row, state[0]) for row in rows])
        nothing = Sites(jnp.zeros(latents), jnp.zeros((latents, latents)))
        predicted = Gaussian(mean, covariance)
        expansion = expansion_around(method, likelihood, y, observed, predicted, predicted)
        site, _ = propose(method, expansion, observed, nothing, None, jnp.ones(()))
        centred_linear = site.linear - site.precision @ prior_mean
        rotation, precision, linear = kalman.scalar_sites(site.precision[None], centred_linear[None])
        rotated = None if rotation is None else tuple(tuple(rotation[0, :, k]) for k in range(latents))
        with_site = step._replace(rotation=rotated, precision=tuple(precision[0]), linear=tuple(linear[0]))
        state, _ = kalman.update_step(form, state, with_site)
        return state, site

    steps = kalman.Step(chain.transition, chain.noise, chain.weights, None, None, None)
    start = form.split_vector(jnp.zeros(form.dimension)), form.split(chain.initial)
    rows = jax.tree.map(lambda leaf: kalman.to_time(leaf, pieces), (own, problem.y, problem.observed, workspace.mean))
    _, sites = jax.lax.scan(body, start, (steps, *rows))
    return jax.tree.map(lambda leaf: kalman.from_time(leaf, pieces), sites)


_SHIFTS = 0.25 * 2.0 ** np.arange(24)
"""Distances from the prior mean at which a point inside the support is sought, in prior standard deviations."""
_HOLDS = (1.0, 1e2, 1e4, 1e6, 1e8)
"""Precisions of sites that hold f at such a point, relative to the prior's."""


def inside_support(problem: Problem) -> Iterator[Sites]:
    """Sites that hold f where log p(y | f) and its gradient are finite in every row, with increasing precisions.

    A common shift of all rows from the prior mean is preferred, because smooth functions can follow it. Otherwise every
    row has its own shift. If some row has none, there are no sites.
    """
    mean, scale, _ = _spread(_prior_marginals(problem))
    observed = np.asarray(problem.observed)
    typical = np.broadcast_to(np.median(scale[observed] if np.any(observed) else scale, axis=0), scale.shape)
    directions = _directions(mean.shape[1])
    shifts = _SHIFTS[:, None, None] * directions[None]
    fine = np.asarray(_finite(problem, mean, typical, shifts.reshape(-1, mean.shape[1])))
    fine = fine.reshape(*shifts.shape[:2], -1)
    shared = _first_inside(np.all(fine, axis=2, keepdims=True))
    chosen = _first_inside(fine) if shared is None else np.broadcast_to(shared, (2, mean.shape[0]))
    if chosen is None:
        return
    centre = mean + shifts[chosen[0], chosen[1]] * typical
    for hold in _HOLDS:
        precision = hold / typical**2
        yield Sites(precision * centre, precision[:, :, None] * np.eye(mean.shape[1])[None])


@compiled
def _prior_marginals(problem: Problem) -> Gaussian:
    workspace = problem.workspace
    return workspace.marginals_of_f(workspace.marginals(_no_sites(problem), True).marginals)


def _no_sites(problem: Problem) -> Sites:
    rows, latents = problem.workspace.mean.shape
    return Sites(jnp.zeros((rows, latents)), jnp.zeros((rows, latents, latents)))


def _first_inside(fine: np.ndarray) -> np.ndarray | None:
    """The size and direction of every row's smallest shift inside, or of the next larger one if that is also inside."""
    size = np.argmax(np.any(fine, axis=1), axis=0)
    rows = np.arange(fine.shape[2])
    direction = np.argmax(fine[size, :, rows], axis=1)
    if not np.all(fine[size, direction, rows]):
        return None
    further = np.minimum(size + 1, fine.shape[0] - 1)
    return np.stack([np.where(fine[further, direction, rows], further, size), direction])


class Bound(NamedTuple):
    """The point where the density of a row becomes zero, and whether it is zero below it (for one latent)."""

    row: int
    edge: np.ndarray
    below: bool


_REACH = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Distances from a marginal's mean at which a bound is sought, in standard deviations."""
_LARGEST_LOG_DENSITY = 1e100
"""A larger value next to an infinite one is overflow, not a bound of the support."""


def bound_nearby(problem: Problem, marginals: Gaussian) -> Bound | None:
    """The first row found in which log p(y | f) is finite at one f and −∞ at another, both near the row's marginal."""
    mean, _, scale = _spread(marginals)
    size = mean.shape[1]
    shifts = (np.asarray(_REACH)[:, None, None] * _directions(size)[None]).reshape(-1, size)
    shifts = np.concatenate([np.zeros((1, size)), shifts])
    finite = np.asarray(_finite(problem, mean, scale, shifts))
    for row in np.flatnonzero(np.any(finite, axis=0) & ~np.all(finite, axis=0))[:5]:
        ends = [mean[row] + shifts[np.argmax(finite[:, row] == wanted)] * scale[row] for wanted in (True, False)]
        for _ in range(60):
            middle = 0.5 * (ends[0] + ends[1])
            ends[int(not np.isfinite(_log_density(problem, row, middle)))] = middle
        inside, outside = (float(_log_density(problem, row, end)) for end in ends)
        if outside == -np.inf and abs(inside) < _LARGEST_LOG_DENSITY:
            return Bound(int(row), ends[0], bool(ends[1][0] < ends[0][0]))
    return None


def _spread(marginals: Gaussian) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, and standard deviations with zeros replaced by 1 and as they are."""
    mean, covariance = np.asarray(marginals.mean), np.asarray(marginals.covariance)
    deviations = np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 0.0))
    deviations = np.where(np.isfinite(deviations), deviations, 0.0)
    return mean, np.where(deviations > 0.0, deviations, 1.0), deviations


def _directions(latents: int) -> np.ndarray:
    """Each latent alone, and all of them together, up and down."""
    axes = np.eye(latents) if latents == 1 else np.concatenate([np.eye(latents), np.ones((1, latents))])
    return np.concatenate([axes, -axes])


@compiled
def _finite(problem: Problem, mean: Any, scale: Any, shifts: Any) -> Any:
    """Whether log p(y | f) and its gradient are finite, for every shift of f and every row; true for missing rows."""

    def row(likelihood, y, observed, f):
        value, slope = jax.value_and_grad(lambda g: row_log_prob(likelihood, y, g))(f)
        return ~observed | (jnp.isfinite(value) & jnp.all(jnp.isfinite(slope)))

    def at(shift):
        return over_rows(row, problem.likelihood, (problem.y, problem.observed, mean + shift[None, :] * scale))

    return jax.lax.map(at, shifts)


def _log_density(problem: Problem, row: int, f: np.ndarray) -> Any:
    """log p(y | f) of one row."""
    own = one_row(problem.likelihood, row)
    return row_log_prob(own, problem.y[row], jnp.asarray(f))


def _split(likelihood: Likelihood) -> tuple[Any, Likelihood]:
    """The part of the likelihood that has one entry per row, and the whole likelihood."""
    axes = row_axes(likelihood)
    own = jax.tree.map(lambda leaf, axis: leaf if axis == 0 else None, likelihood, axes, is_leaf=_is_none)
    return own, likelihood


def _is_none(leaf: Any) -> bool:
    return leaf is None
