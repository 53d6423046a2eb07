"""The posterior of a Gaussian process in space and time: predictions, joint distributions and draws at any points."""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..kernels import Independent, grams
from ..numerics import linalg, separable, small
from ..numerics import separable_queries as queries
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.size_classes import fill_rows, first_rows, size_class
from ..validation.arguments import generator
from .base import centred_draws, draws_by_row, draws_of, first_of_joint
from .space_time_layout import segments_of
from .space_time_process import SpaceTimeWorkspace, process_of
from .temporal import TemporalPosterior

_POINTS_PER_STEP, _STEPS_PER_GROUP = 64, 32
"""The largest numbers of points at one time that are read together, and of times in one segment."""
_COLUMNS = 64
"""The largest number of draws, or of columns of a covariance, that are computed together."""


class SpaceTimePosterior(TemporalPosterior):
    """q(f) of a process in space and time.

    `inducing` has the places through which f is represented.
    """

    marginals: Gaussian
    log_normaliser: Any
    prior: Any
    workspace: SpaceTimeWorkspace
    precision: Any
    """The precisions of all slots."""
    linear: Any
    """Their linear terms, as functions of deviations from the prior mean."""
    ends: queries.Ends

    @property
    def inducing(self) -> Any:
        """The places through which f is represented: inducing places, or all places of the data."""
        return self.workspace.projection.inducing[0]

    @property
    def _times(self) -> np.ndarray:
        return np.asarray(self.workspace.times)

    @in_double
    def predict(self, x: Any) -> Gaussian:
        return self._query(x, "latents")

    @in_double
    def states(self, x: Any) -> Gaussian:
        """The states in time at the place of each row, as deviations: mean (M, q), covariance (M, q, q)."""
        return self._query(x, "states")

    def _query(self, x: Any, what: str) -> Gaussian:
        x = np.asarray(x)
        filled = fill_rows(x, size_class(x.shape[0]))
        groups, place = _groups(self._times, self.workspace.chain.segments, x[:, 0])
        found = to_host(_at_points(self.without_marginals(), filled, groups, what))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:])[place], found)

    @in_double
    def joint(self, x: Any) -> Gaussian:
        x = np.asarray(x)
        count, marginals = x.shape[0], self.predict(x)
        filled = fill_rows(x, size_class(count))
        merged = _merged(self._times, x[:, 0], filled.shape[0])
        size = count * self.prior.num_latents
        parts = [
            np.asarray(_columns(self.without_marginals(), filled, merged, begin))[:count]
            for begin in range(0, size, _COLUMNS)
        ]
        covariance = np.zeros((len(filled) * self.prior.num_latents,) * 2)
        covariance[:size, :size] = np.concatenate(parts, axis=2).reshape(size, -1)[:, :size]
        joint = _completed(
            self.without_marginals(), filled, fill_rows(marginals, len(filled)), covariance, np.asarray(size)
        )
        return first_of_joint(to_host(joint), size)

    @in_double
    def draw(self, key: Any, x: Any, n: int) -> Any:
        x = np.asarray(x)
        if bool(separable.has_negative(jnp.asarray(self.precision))):
            return draws_of(self.joint(x), key, n, x.shape[0])
        count = x.shape[0]
        filled = fill_rows(x, size_class(count))
        merged = _merged(self._times, x[:, 0], filled.shape[0])
        key_left, key_draws = jax.random.split(key)
        posterior, size = self.without_marginals(), count * self.prior.num_latents
        left = np.asarray(_residual_joint(posterior, filled))[:size, :size]
        draws = draws_by_row(lambda key, number: _draws(posterior, filled, merged, key, number), key_draws, n)[
            :, :count
        ]
        return draws + centred_draws(generator(key_left), left, n).reshape(draws.shape)

    @in_double
    def one_step_ahead(self) -> Gaussian:
        """The latents of every row given all rows at earlier times."""
        return first_rows(to_host(_one_step_ahead(self.without_marginals())), self.marginals.mean.shape[0])


def posterior_of(prior: Any, workspace: SpaceTimeWorkspace, sites: Sites) -> SpaceTimePosterior:
    """Condition on the final sites."""
    precision, linear = workspace.summed(sites)
    conditioned = workspace.conditioned(separable.marginals(workspace.chain, precision, linear))
    ends = _by_sign(workspace.chain, precision, linear, queries.ends_of)
    marginals = workspace.marginals_of_f(conditioned.marginals)
    return SpaceTimePosterior(marginals, conditioned.log_normaliser(sites), prior, workspace, precision, linear, ends)


def _by_sign(chain: separable.SeparableChain, precision: Any, linear: Any, function: Any) -> Any:
    def run(psd: bool):
        return function(chain, separable.steps_of(chain, precision, linear[..., None], psd), psd)

    return separable.by_sign(run, separable.has_negative(precision), False)


# Points by segments -------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Points that one segment determines."""

    segment: Any
    times: Any
    """(L,)"""
    index: Any
    """The step of the chain before each time, within the segment; −1 before the first."""
    points: Any
    """The points at each time, (L, Q)."""
    used: Any
    """Which times are not only there to fill up the size of the arrays, (L,)."""


def _groups(times: np.ndarray, segments: int, wanted: np.ndarray) -> tuple[_Group, np.ndarray]:
    """Points by segment and time, and the place of every point among all (groups, times, points)."""
    length = times.size // segments
    distinct, step, number = _split(wanted, _POINTS_PER_STEP)
    index = np.searchsorted(times, distinct, side="right") - 1
    segment = np.maximum(index, 0) // length
    _, group, within = _split(segment.astype(float), _STEPS_PER_GROUP)
    # Times that fill up cost nothing, so sizes may be few.
    counts = (int(each.max()) + 1 for each in (group, within, number))
    shape = tuple(_size_among(sizes, count) for sizes, count in zip(_SIZES, counts, strict=True))
    found = _Group(
        np.zeros(shape[0], dtype=np.int32),
        np.full(shape[:2], distinct[0]),
        np.zeros(shape[:2], dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros(shape[:2], dtype=bool),
    )
    found.segment[group] = segment
    found.used[group, within] = True
    found.times[group, within] = distinct
    found.index[group, within] = index - segment * length
    found.points[group[step], within[step], number] = np.arange(wanted.size)
    return found, np.ravel_multi_index((group[step], within[step], number), shape)


def _split(values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups of at most so many equal values: their values, the group of every entry, and its number there."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.flatnonzero(np.diff(ordered, prepend=np.nan) != 0.0)
    number = np.arange(values.size) - np.repeat(first, np.diff(np.append(first, values.size)))
    begins = (number % most) == 0
    group, within = np.empty(values.size, dtype=int), np.empty(values.size, dtype=int)
    group[order], within[order] = np.cumsum(begins) - 1, number % most
    return ordered[begins], group, within


_SIZES = (4, 16), (8, _STEPS_PER_GROUP), (8, _POINTS_PER_STEP)
"""The smallest sizes of arrays of points: groups, times in a group, and points at a time."""


def _size_among(sizes: tuple[int, int], count: int) -> int:
    """The first of these sizes that is large enough, or the next power of four."""
    return next((size for size in sizes if count <= size), 4 ** math.ceil(math.log(count, 4)))


def _size(count: int) -> int:
    """The next power of two, so that few programs are compiled."""
    return 1 << (count - 1).bit_length()


class _Points(NamedTuple):
    """What points see of the state, and the covariance of what it does not determine."""

    mean: Any
    features: Any
    residual: Any


def _latents_at(posterior: SpaceTimePosterior, x: Any) -> _Points:
    """For the latents of rows."""
    prior, projection = posterior.prior, posterior.workspace.projection
    channels = prior.channels
    features = projection.features(Independent([channel.space for channel in channels]), x[:, 1:])
    return _Points(
        prior.mean.means(x),
        process_of(channels).features(features, prior.num_latents),
        prior.residual(projection, x),
    )


def _states_at(posterior: SpaceTimePosterior, x: Any) -> _Points:
    """For the states in time at the places of rows."""
    projection, channels = posterior.workspace.projection, posterior.prior.channels
    process, kernel = process_of(channels), Independent([channel.space for channel in channels])
    features = process.state_features(projection.features(kernel, x[:, 1:]))
    whole = jnp.einsum("qpm,qi->pqim", features, jnp.eye(process.size))
    _, left = projection.at(kernel, x[:, 1:])
    channel = process.channel_of_state
    residual = process.covariance(x[:, 0]) * linalg.diagonals(left)[:, channel][:, :, None]
    mean = jnp.zeros((x.shape[0], process.size))
    return _Points(mean, whole.reshape(*whole.shape[:2], -1), residual)


@functools.partial(compiled, static_argnums=3)
def _at_points(posterior: SpaceTimePosterior, x: Float[Array, "M P"], groups: _Group, what: str) -> Gaussian:
    """The latents or states at points, (groups, times, points)."""
    chain, process = posterior.workspace.chain, process_of(posterior.prior.channels)
    times = jnp.asarray(posterior.workspace.times).reshape(chain.segments, -1)
    rows = (_latents_at if what == "latents" else _states_at)(posterior, x)
    seen = rows.features.shape[2]
    after = jnp.concatenate([times[1:, 0], times[-1:, -1]])

    def unused(axis):
        """Numbers of no meaning, which take no time, in place of those of a group or a time."""
        shape = groups.points.shape[1 + axis :]
        empty = Gaussian(*(jnp.zeros((*shape, *part.shape[1:])) for part in (rows.mean, rows.residual)))
        return lambda argument: empty

    def run(chain, steps, psd):
        by_segment = separable.cut(steps, chain.segments)

        def of_group(group):
            own, states, later, all_times = jax.tree.map(
                lambda leaf: leaf[group.segment], (by_segment, posterior.ends.states, posterior.ends.adjoints, times)
            )
            adjoints, filtered = queries.run_segment(chain, states, later, own, psd)
            adjoints = jax.tree.map(lambda all_, last: jnp.concatenate([all_, last[None]]), adjoints, later)
            ends = jnp.concatenate([all_times, after[group.segment][None]])

            def at_time(time):
                time, index, points, _ = time
                before = jnp.maximum(index, 0)
                start, end = jnp.minimum(all_times[before], time)[None], jnp.maximum(ends[index + 1], time)[None]
                here = time[None]
                between = queries.Between(
                    process.transition(start, here)[0],
                    process.noise(start, here)[0],
                    process.transition(here, end)[0],
                    process.covariance(here)[0],
                    index < 0,
                )
                state = queries.state_at(
                    jax.tree.map(lambda leaf: leaf[before], filtered),
                    jax.tree.map(lambda leaf: leaf[index + 1], adjoints),
                    between,
                )
                return _read(state, jax.tree.map(lambda leaf: leaf[points], rows), seen)

            times_of_group = group.times, group.index, group.points, group.used
            return jax.lax.map(lambda time: jax.lax.cond(time[-1], at_time, unused(1), time), times_of_group)

        return jax.lax.map(lambda group: jax.lax.cond(group.used[0], of_group, unused(0), group), groups)

    return _by_sign(chain, jnp.asarray(posterior.precision), jnp.asarray(posterior.linear), run)


def _read(state: separable.State, rows: _Points, seen: int) -> Gaussian:
    """What points see of a state."""
    mean = rows.mean + rows.features @ state.mean[:seen, 0]
    spread = jnp.einsum("pdi,ij,pej->pde", rows.features, state.covariance[:seen, :seen], rows.features)
    # A variance is a difference, and rounding must not make it negative.
    variances = jnp.maximum(linalg.diagonals(spread), 0.0)
    spread = jnp.where(jnp.eye(spread.shape[1]) > 0.0, variances[:, :, None], small.symmetrise(spread))
    return Gaussian(mean, jax.vmap(small.small_covariance)(spread + rows.residual))


@compiled
def _one_step_ahead(posterior: SpaceTimePosterior) -> Gaussian:
    workspace = posterior.workspace
    mean, covariance = _by_sign(
        workspace.chain, jnp.asarray(posterior.precision), jnp.asarray(posterior.linear), queries.predicted
    )
    found = Gaussian(workspace.mean + workspace.of_rows(mean), workspace.of_rows(covariance))
    return workspace.marginals_of_f(found)


# Joint distributions and draws --------------------------------------------------------------------


class _Merged(eqx.Module):
    """The steps of the data and of points, in order of time."""

    times: Any
    source: Any
    """The step of the data at each step, T if there is none."""
    points: Any
    """The points at each step, (T', Q)."""
    segments: int = eqx.field(static=True)


def _merged(times: np.ndarray, wanted: np.ndarray, none: int) -> _Merged:
    """The steps of a chain through the data and the wanted times; `none` is the number of no point."""
    distinct, step, number = _split(wanted, _POINTS_PER_STEP)
    width = _size(int(number.max()) + 1)
    segments, count = segments_of(times.size + distinct.size)
    extra = count - times.size - distinct.size
    last = max(times[-1], distinct[-1])
    merged = np.concatenate([times, distinct, np.full(extra, last)])
    order = np.argsort(merged, kind="stable")
    source = np.concatenate([np.arange(times.size), np.full(distinct.size + extra, times.size)])[order]
    points = np.full((count, width), none, dtype=np.int32)
    points[times.size + step, number] = np.arange(wanted.size)
    return _Merged(merged[order], source.astype(np.int32), points[order], segments)


def _chain_through(posterior: SpaceTimePosterior, x: Any, merged: _Merged) -> tuple[Any, Any, Any, queries.Points]:
    """The chain through data and points, the sites of its slots, and the points."""
    chain, process = posterior.workspace.chain, process_of(posterior.prior.channels)
    before = jnp.concatenate([merged.times[:1], merged.times[:-1]])

    def at_steps(leaf):
        return jnp.concatenate([leaf, jnp.zeros_like(leaf[:1])])[merged.source]

    precision, linear = at_steps(jnp.asarray(posterior.precision)), at_steps(jnp.asarray(posterior.linear))
    longer = separable.SeparableChain(
        process.transition(before, merged.times),
        process.noise(before, merged.times),
        process.covariance(merged.times[:1])[0],
        chain.features,
        None if chain.places is None else at_steps(jnp.asarray(chain.places)),
        chain.observed,
        merged.segments,
        False,
    )
    return longer, precision, linear, queries.Points(merged.points, _latents_at(posterior, x).features)


@compiled
def _columns(posterior: SpaceTimePosterior, x: Float[Array, "M P"], merged: _Merged, begin: Any) -> Any:
    """Columns of the posterior covariance of the part of f that the state determines, (M, D, columns)."""
    chain, precision, linear, points = _chain_through(posterior, x, merged)
    latents = linear.shape[2]
    empty = jnp.zeros((*linear.shape, _COLUMNS))

    def push(numbers):
        column = numbers[:, None] * latents + jnp.arange(latents)[None, :]
        unit = column.reshape(-1)[:, None] == begin + jnp.arange(_COLUMNS)[None, :]
        return points.at(numbers).T @ unit.astype(linear.dtype)

    def run(psd: bool):
        steps = separable.steps_of(chain, precision, empty, psd)
        return queries.respond(chain, steps, points, psd, push)

    return separable.by_sign(run, separable.has_negative(precision), False)


@compiled
def _completed(
    posterior: SpaceTimePosterior, x: Float[Array, "M P"], marginals: Gaussian, covariance: Any, wanted: Any
) -> Gaussian:
    """The joint distribution of the first `wanted` variables, with the covariance of what states do not determine."""
    count, latents = marginals.mean.shape
    whole = small.symmetrise(covariance) + _residual_joint(posterior, x)
    own = jnp.eye(count)[:, None, :, None] * marginals.covariance[:, :, None, :]
    same = jnp.kron(jnp.eye(count), jnp.ones((latents, latents))) > 0.0
    whole = jnp.where(same, own.reshape(whole.shape), whole)
    return Gaussian(marginals.mean.reshape(-1), linalg.as_covariance(whole, wanted))


@compiled
def _residual_joint(posterior: SpaceTimePosterior, x: Float[Array, "M P"]) -> Float[Array, "MD MD"]:
    """The joint covariance of e, what states do not determine."""
    prior, projection = posterior.prior, posterior.workspace.projection
    channels = prior.channels
    space, time = (Independent([getattr(channel, name) for channel in channels]) for name in ("space", "time"))
    features = projection.features(space, x[:, 1:])
    left = grams(space, x[:, 1:], x[:, 1:]) - jnp.einsum("fim,fjm->fij", features, features)
    latent = np.eye(prior.num_latents)[[channel.latent for channel in channels]]
    product = left * grams(time, x[:, :1], x[:, :1])
    size = x.shape[0] * prior.num_latents
    return jnp.einsum("fij,fd,fe->idje", product, latent, latent).reshape(size, size)


@functools.partial(compiled, static_argnums=4)
def _draws(posterior: SpaceTimePosterior, x: Float[Array, "M P"], merged: _Merged, key: Any, n: int) -> Any:
    """Draws from the posterior: draws from the prior, moved by what the sites say about their differences."""
    chain, precision, linear, points = _chain_through(posterior, x, merged)
    key_path, key_noise = jax.random.split(key)
    values, at_points = queries.prior_paths(chain, points, key_path, linear.shape[1], n)
    steps = separable.steps_of(chain, precision, linear[..., None], True)
    noise = jax.random.normal(key_noise, values.shape, dtype=values.dtype)
    moved = jnp.einsum("trdk,trkc->trdc", steps.roots, noise) - jnp.einsum("trde,trec->trdc", precision, values)
    change = queries.respond(chain, steps._replace(linear=linear[..., None] + moved), points, True)
    return posterior.prior.mean.means(x)[:, None] + jnp.moveaxis(at_points + change, 2, 1)
