"""Markovian Gaussian processes: a kernel with a state space form, conditioned in time linear in the rows."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..kernels import Independent, Kernel, latent_kernels, num_latents
from ..means import as_mean
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.rounding import warn_of_lost
from ..numerics.size_classes import data_size_class, fill_rows, first_rows
from ..validation.times import Clock, as_clock
from . import temporal
from .base import Layout, at_inputs
from .by_name import read_kernel
from .temporal import ChainWorkspace, TemporalPosterior, TemporalPrior


class MarkovGP(TemporalPrior):
    """A Gaussian process prior over functions of time (`sec:markov-gp`), conditioned exactly in O(N).

    `kernel` is any kernel of one input with a state space form: Matérn, cosine, periodic, Brownian and others, their
    sums, products and multiples; or `kernels.Independent([...])` for several latents; or a name (see `GP`). Rows may be
    in any order, repeat inputs and have gaps. Time stamps need `unit`, in which lengthscales and periods are
    measured: "D", "h", "s", or a `timedelta`; they are counted from `origin`, 2000-01-01 if it is not given. `pieces`
    is the number of parts of the series that are processed in parallel; by default it is chosen for speed, and the
    result does not depend on it.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(lengthscale=2.0)), ng.likelihoods.Poisson())
    >>> result = ng.infer(model, [0.0, 1.0, 2.5, 4.0], [1, 3, 2, 0])
    >>> result.predict([5.0]).mean.shape
    (1,)
    """

    kernel: Kernel | Independent
    mean: Any
    by_name: bool = eqx.field(static=True)
    clock: Clock | None = eqx.field(static=True)
    pieces: int | None = eqx.field(static=True)

    def __init__(
        self,
        kernel: Kernel | Independent | str,
        mean: Any = None,
        unit: Any = None,
        origin: Any = None,
        pieces: int | None = None,
    ):
        read, mean, self.by_name = read_kernel(kernel, mean)
        self.kernel = read
        self.mean = as_mean(mean, num_latents(read))
        self.clock = as_clock(unit, origin)
        self.pieces = temporal.as_pieces(pieces)
        process_of(read)

    @property
    def num_latents(self) -> int:
        return num_latents(self.kernel)

    def check_inputs(self, x: np.ndarray) -> None:
        if x.shape[1] != 1:
            raise ValueError(
                f"MarkovGP works on one column of x, the time, but x has {x.shape[1]}: use GP for several columns"
            )
        self.kernel.check_inputs(1)
        for kernel in latent_kernels(self.kernel):
            kernel.check_values(x)

    def kernels_at(self, x: np.ndarray) -> list[tuple[Any, np.ndarray, bool]]:
        return [(self.kernel, x, True)]

    def size_class(self, rows: int) -> int:
        return data_size_class(rows, self.num_latents)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        x = fill_rows(x, size)
        count = x.shape[0]
        order = np.argsort(x[:, 0], kind="stable")
        process = process_of(self.kernel)
        pieces = self.pieces or kalman.choose_pieces(count, process.dimension, self.num_latents)
        times, rows, position = kalman.cut(x[order, 0], order, pieces)
        in_order = np.array_equal(rows, np.arange(count))
        return Layout(_Inputs(times, position, pieces), None if in_order else rows)

    memory_remedy: ClassVar[str] = "use a kernel with fewer states, such as Periodic with fewer harmonics"

    def memory(self, x: np.ndarray) -> float:
        positions = float(kalman.positions(x.shape[0], self.pieces or 1))
        return temporal.chain_memory(positions, process_of(self.kernel).dimension, self.num_latents)

    def prepare(self, inputs: "_Inputs") -> ChainWorkspace:
        times = kalman.to_time(inputs.times, inputs.pieces)
        before = kalman.from_time(jnp.concatenate([times[:1], times[:-1]]), inputs.pieces)
        chain = process_of(self.kernel).chain(before, inputs.times, times[0], inputs.pieces)
        return ChainWorkspace(self.mean.means(inputs.times[:, None]), chain, inputs.times, inputs.position)

    def condition(self, workspace: ChainWorkspace, sites: Sites) -> "MarkovPosterior":
        centred_linear = sites.centred_linear(workspace.mean)
        smoothed, states, spread, lossy = kalman.marginals_and_states(workspace.chain, sites.precision, centred_linear)
        conditioned = workspace.conditioned(smoothed)

        def in_time(leaf):
            return kalman.to_time(leaf, workspace.chain.pieces)

        times, states, precision, centred_linear = jax.tree.map(
            in_time, (workspace.times, states, sites.precision, centred_linear)
        )
        return MarkovPosterior(
            workspace.at_rows(conditioned.marginals),
            conditioned.log_normaliser(sites),
            self,
            times,
            states,
            precision,
            centred_linear,
            kalman.time_of(workspace.position, workspace.times.shape[0], workspace.chain.pieces),
            spread,
            lossy,
        )


class _Inputs(eqx.Module):
    """Times in the order of positions, the position of every row, and the number of pieces."""

    times: Any
    position: Any
    pieces: int = eqx.field(static=True)


class Process(NamedTuple):
    """The state of all latents: blocks in order of their size, with the latent that each adds to."""

    blocks: tuple[Any, ...]
    latents: tuple[int, ...]
    num_latents: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(block.size for block in self.blocks)

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @property
    def selection(self) -> tuple[tuple[int, ...], ...]:
        """The first state of every block of each latent."""
        first = np.cumsum((0, *self.sizes[:-1]))
        return tuple(
            tuple(int(at) for at, latent in zip(first, self.latents, strict=True) if latent == j)
            for j in range(self.num_latents)
        )

    @property
    def observation(self) -> np.ndarray:
        """H, (D, d)."""
        rows = np.zeros((self.num_latents, self.dimension))
        for row, states in zip(rows, self.selection, strict=True):
            row[list(states)] = 1.0
        return rows

    def chain(self, before: Float[Array, " T"], after: Float[Array, " T"], first: Any, pieces: int) -> kalman.Chain:
        """The chain of states at times `after`, each given the one at `before`."""
        return kalman.make_chain(
            tuple(jax.vmap(block.transition)(before, after) for block in self.blocks),
            tuple(jax.vmap(block.noise)(before, after) for block in self.blocks),
            tuple(block.covariance(first) for block in self.blocks),
            self.selection,
            pieces=pieces,
        )

    def transition(self, start: Any, end: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.transition(start, end) for block in self.blocks])

    def noise(self, start: Any, end: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.noise(start, end) for block in self.blocks])

    def covariance(self, time: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.covariance(time) for block in self.blocks])


def process_of(kernel: Kernel | Independent) -> Process:
    """The state of all latents of a kernel."""
    pairs = [(block, latent) for latent, part in enumerate(latent_kernels(kernel)) for block in part.blocks()]
    # Neighbouring blocks of one size are multiplied together.
    pairs.sort(key=lambda pair: pair[0].size)
    blocks, latents = zip(*pairs, strict=True)
    return Process(blocks, latents, num_latents(kernel))


class MarkovPosterior(TemporalPosterior):
    """q(f) of a Markovian GP: states in order of time, and their sites."""

    marginals: Gaussian
    log_normaliser: Any
    prior: MarkovGP
    times: Any
    held: kalman.States
    precision: Any
    centred_linear: Any
    order: Any
    """The position of every row in order of time."""
    spread: Any
    """The largest variance of f at any row given the rows before it."""
    lossy: Any
    """Whether square roots have more digits than covariances."""

    @in_double
    def predict(self, x: Any) -> Gaussian:
        marginals, lost, lossy = at_inputs(_predict, self, x)
        if temporal.holds(lossy):
            return to_host(_carefully(self, jnp.asarray(x), "latents"))
        warn_of_lost(lost)
        return marginals

    @in_double
    def states(self, x: Any) -> Gaussian:
        """The state at any inputs, such as the latent and its derivatives: mean (M, d), covariance (M, d, d)."""
        states, lossy = at_inputs(_state, self, x)
        return to_host(_carefully(self, jnp.asarray(x), "states")) if temporal.holds(lossy) else states

    @in_double
    def joint(self, x: Any) -> Gaussian:
        joint, lossy = to_host(_joint(self, jnp.asarray(x)))
        return to_host(_carefully(self, jnp.asarray(x), "joint")) if temporal.holds(lossy) else joint

    @in_double
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return np.asarray(_draw(self, key, jnp.asarray(x), n, temporal.holds(self.lossy)))

    @in_double
    def one_step_ahead(self) -> Gaussian:
        return first_rows(to_host(_one_step_ahead(self.without_marginals())), self.marginals.mean.shape[0])


@compiled
def _state(posterior: MarkovPosterior, x: Float[Array, "M 1"]) -> tuple[Gaussian, Bool[Array, ""]]:
    """The states, and whether square roots have more digits."""
    spread, information = kalman.largest(posterior.held.covariance), kalman.largest(posterior.held.matrix)

    def states(mean, covariance, vector, matrix):
        mean, smoothed = kalman.seen_from_later(mean, covariance, vector, matrix)
        return mean, smoothed, kalman.is_lossy(smoothed, kalman.rounding_errors(covariance, spread, information))

    mean, covariance, lossy = in_batches(posterior, x[:, 0], states)
    return Gaussian(mean, covariance), ~_has_negative_sites(posterior) & (jnp.any(lossy) | posterior.lossy)


@compiled
def _predict(
    posterior: MarkovPosterior, x: Float[Array, "M 1"]
) -> tuple[Gaussian, Bool[Array, "M D"], Bool[Array, ""]]:
    """The marginals of f, which variances were lost to rounding, and whether square roots have more digits."""
    rows = jnp.asarray(process_of(posterior.prior.kernel).observation)
    information = kalman.largest(posterior.held.matrix)

    def latents(mean, covariance, vector, matrix):
        columns = covariance @ rows.T
        smoothed = rows @ columns - columns.T @ matrix @ columns
        # The variances of the states; a latent may be a small difference of them.
        sizes = rows**2 @ jnp.diagonal(covariance)
        errors = kalman.rounding_errors(columns.T, posterior.spread, information)
        return rows @ mean + columns.T @ vector, smoothed, sizes, errors

    mean, covariance, sizes, errors = in_batches(posterior, x[:, 0], latents)
    negative = _has_negative_sites(posterior)
    lossy = ~negative & (jnp.any(kalman.is_lossy(covariance, errors)) | posterior.lossy)
    covariance, lost = kalman.not_below_rounding(covariance, sizes, jnp.where(negative, errors, 0.0))
    return Gaussian(posterior.prior.mean.means(x) + mean, covariance), lost, lossy


def _has_negative_sites(posterior: MarkovPosterior) -> Bool[Array, ""]:
    return kalman.is_negative((kalman.scalar_sites(posterior.precision, posterior.centred_linear)[1],))


@functools.partial(compiled, static_argnums=2)
def _carefully(posterior: MarkovPosterior, x: Float[Array, "M 1"], query: str) -> Gaussian:
    """The results of `_predict`, `_state` and `_joint`, by square roots on a chain that includes the new inputs."""
    return temporal.careful_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x), 0.0, query)


_ROWS_AT_ONCE = 4096


def in_batches(posterior: MarkovPosterior, times: Float[Array, " M"], function: Callable) -> Any:
    """`function` of the filtered state at any times (mean and covariance) and of the information from later sites.

    Means are deviations from the prior mean.
    """
    process = process_of(posterior.prior.kernel)
    known, states = posterior.times, posterior.held
    length = known.shape[0]

    def at(time):
        index = jnp.searchsorted(known, time, side="right") - 1
        before, after = jnp.maximum(index, 0), jnp.minimum(index + 1, length - 1)
        is_after_first, is_before_last = index >= 0, index + 1 < length
        start, end = jnp.minimum(known[before], time), jnp.maximum(known[after], time)
        forward = process.transition(start, time)
        spread = forward @ states.covariance[before] @ forward.T + process.noise(start, time)
        mean = jnp.where(is_after_first, forward @ states.mean[before], 0.0)
        covariance = jnp.where(is_after_first, spread, process.covariance(time))
        onward = process.transition(time, end)
        vector = jnp.where(is_before_last, onward.T @ states.vector[after], 0.0)
        matrix = jnp.where(is_before_last, onward.T @ states.matrix[after] @ onward, 0.0)
        return function(mean, covariance, vector, matrix)

    if times.shape[0] <= _ROWS_AT_ONCE:
        return jax.vmap(at)(times)  # a smaller program than that with a loop
    return jax.lax.map(at, times, batch_size=_ROWS_AT_ONCE)


def _merge(posterior: MarkovPosterior, times: Float[Array, " M"]):
    """The posterior's chain and sites with additional times, which have no sites, and their positions."""
    known = posterior.times
    count, latents = known.shape[0], posterior.centred_linear.shape[1]
    merged = jnp.concatenate([known, times])
    order = jnp.argsort(merged, stable=True)
    merged = merged[order]
    before = jnp.concatenate([merged[:1], merged[:-1]])
    chain = process_of(posterior.prior.kernel).chain(before, merged, merged[0], 1)
    added = times.shape[0]
    precision = jnp.concatenate([posterior.precision, jnp.zeros((added, latents, latents))])[order]
    centred_linear = jnp.concatenate([posterior.centred_linear, jnp.zeros((added, latents))])[order]
    where = jnp.zeros(count + added, dtype=int).at[order].set(jnp.arange(count + added))[count:]
    return chain, precision, centred_linear, where


@compiled
def _one_step_ahead(posterior: MarkovPosterior) -> Gaussian:
    times = posterior.times
    before = jnp.concatenate([times[:1], times[:-1]])
    chain = process_of(posterior.prior.kernel).chain(before, times, times[0], 1)
    mean, covariance = kalman.predicted(chain, posterior.precision, posterior.centred_linear)
    mean = mean + posterior.prior.mean.means(times[:, None])
    return Gaussian(mean[posterior.order], covariance[posterior.order])


@compiled
def _joint(posterior: MarkovPosterior, x: Float[Array, "M 1"]) -> tuple[Gaussian, Bool[Array, ""]]:
    return temporal.joint_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x))


@functools.partial(compiled, static_argnums=(3, 4))
def _draw(
    posterior: MarkovPosterior, key: Any, x: Float[Array, "M 1"], n: int, carefully: bool
) -> Float[Array, "n M D"]:
    return temporal.draw_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x), key, n, carefully)
