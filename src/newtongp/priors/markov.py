"""Markovian Gaussian processes: a kernel with a state space form, conditioned in time linear in the rows."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..kernels import Independent, Kernel, latent_kernels, num_latents
from ..kernels.inducing import as_storage
from ..means import as_mean
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.rounding import warn_of_lost
from ..numerics.size_classes import SMALLEST_DATA, data_size_class, fill_rows, first_rows, size_class
from ..parameters.constraints import never_learned
from ..validation.arguments import whole
from ..validation.times import Clock, as_clock
from . import temporal
from .base import Layout, at_inputs, draws_by_row, jointly_at_inputs, start_at_inputs
from .by_name import read_kernel
from .inducing_times import SampleOfTimes, read_count, read_inducing_times
from .markov_process import process_of
from .sparse_chain import ChainProjection, SparseChainInputs, SparseChainWorkspace
from .sparse_chain_posterior import sparse_posterior
from .temporal import ChainWorkspace, TemporalPosterior, TemporalPrior


class MarkovGP(TemporalPrior):
    """A Gaussian process prior over functions of time (`sec:markov-gp`), conditioned exactly in O(N).

    `kernel` is any kernel of one input with a state space form: Matérn, cosine, periodic, Brownian and others, their
    sums, products and multiples; or `kernels.Independent([...])` for several latents; or a name (see `GP`). Rows may be
    in any order, repeat inputs and have gaps. Time stamps need `unit`, in which lengthscales and periods are
    measured: "D", "h", "s", or a `timedelta`; they are counted from `origin`, 2000-01-01 if it is not given. `pieces`
    is the number of parts of the series that are processed in parallel; by default it is chosen for speed, and the
    result does not depend on it.

    With `inducing`, f is represented by its states (its value and its derivatives) at M inducing times only, and a row
    between two of them sees f through the states at both. A step then costs O(N) simple sums over rows and a chain of
    M states instead of N. The posterior is that of a sparse GP, and exact if all times of the data are inducing times.
    `inducing` is an array of different times or time stamps, in any order, within the data or near it, or a number:
    then that many are chosen from the data, with equally many distinct times of the data between them, or all distinct
    times if there are no more. Such a model can be updated in batches (`batch_size` in `infer` and `fit`), with
    `storage="full"` or `"tied"` as for `SparseGP`; if the data is not in memory, inducing times are chosen from a
    random sample of it, with `seed`. The posterior has `.inducing`, the inducing times.

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
    # Defaults are the values in files of older versions.
    count: int | None = eqx.field(static=True, default=None)
    inducing: Any = never_learned(default=None)
    """Inducing times in ascending order; None if all times are used, or if they are chosen from the data."""
    storage: str = eqx.field(static=True, default="full")
    seed: int = eqx.field(static=True, default=0)

    def __init__(
        self,
        kernel: Kernel | Independent | str,
        mean: Any = None,
        unit: Any = None,
        origin: Any = None,
        pieces: int | None = None,
        inducing: Any = None,
        storage: str = "full",
        seed: int = 0,
    ):
        read, mean, self.by_name = read_kernel(kernel, mean)
        self.kernel = read
        self.mean = as_mean(mean, num_latents(read))
        self.clock = as_clock(unit, origin)
        self.pieces = temporal.as_pieces(pieces)
        self.count = read_count(inducing)
        given = inducing is not None and self.count is None
        self.inducing = read_inducing_times(inducing, self.clock) if given else None
        self.storage, self.seed = as_storage(storage), whole(seed, "seed", 0)
        if storage != "full" and not self.is_sparse:
            raise ValueError(f'storage="{storage}" needs inducing times: give inducing=, or leave storage out')
        process_of(read)

    @property
    def num_latents(self) -> int:
        return num_latents(self.kernel)

    @property
    def is_sparse(self) -> bool:
        """Whether f is represented by its states at inducing times."""
        return self.count is not None or self.inducing is not None

    def check_inputs(self, x: np.ndarray) -> None:
        if x.shape[1] != 1:
            raise ValueError(
                f"MarkovGP works on one column of x, the time, but x has {x.shape[1]}: use GP for several columns, or "
                "SpaceTimeGP for a time and a place"
            )
        self.kernel.check_inputs(1)
        for kernel in latent_kernels(self.kernel):
            kernel.check_values(x)
        if self.inducing is None:
            return
        for kernel in latent_kernels(self.kernel):
            try:
                kernel.check_values(np.asarray(self.inducing)[:, None])
            except ValueError as error:
                raise ValueError(f"inducing times are times like those in x: {error}") from None

    def kernels_at(self, x: np.ndarray) -> list[tuple[Any, np.ndarray, bool]]:
        return [(self.kernel, x, True)]

    def size_class(self, rows: int) -> int:
        return data_size_class(rows, self.num_latents)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        if self.is_sparse:
            return self._sparse_layout(x, size)
        x = fill_rows(x, size)
        count = x.shape[0]
        order = np.argsort(x[:, 0], kind="stable")
        process = process_of(self.kernel)
        pieces = self.pieces or kalman.choose_pieces(count, process.dimension, self.num_latents)
        times, rows, position = kalman.cut(x[order, 0], order, pieces)
        in_order = np.array_equal(rows, np.arange(count))
        return Layout(_Inputs(times, position, pieces), None if in_order else rows)

    def _sparse_layout(self, x: Any, size: int | None) -> Layout:
        if self.storage == "tied":
            raise ValueError(
                'this needs the sites of single rows, which storage="tied" does not keep: use storage="full"'
            )
        sample = self.new_sample()
        assert sample is not None
        sample.see(np.asarray(x))
        return Layout(self.sparse_inputs(fill_rows(x, size), self.inducing_for(sample)), None)

    def sparse_inputs(self, x: Any, inducing: np.ndarray) -> SparseChainInputs:
        """Inputs with these inducing times, which are filled up to a size class."""
        return SparseChainInputs(x, fill_rows(inducing, size_class(len(inducing) + 1, SMALLEST_DATA) - 1))

    def new_sample(self) -> SampleOfTimes | None:
        """An empty sample of the data, from which inducing times are chosen, and with which they are compared."""
        return SampleOfTimes(self.seed) if self.is_sparse else None

    def inducing_for(self, sample: SampleOfTimes | None) -> np.ndarray:
        """The inducing times, as given or chosen from a sample of the data."""
        if self.inducing is None:
            assert self.count is not None and sample is not None
            return sample.choose(self.count)
        if sample is not None:
            sample.require_within(self.inducing, self.clock)
        return self.inducing

    def with_inducing(self, inducing: Any) -> "MarkovGP":
        """The same prior with these inducing times."""
        if len(inducing) == 1:
            return self  # all rows are at one time, which is chosen again
        return MarkovGP(
            self.kernel, self.mean, self.clock, None, self.pieces, inducing, storage=self.storage, seed=self.seed
        )

    memory_remedy: ClassVar[str] = "use a kernel with fewer states, such as Periodic with fewer harmonics"

    def memory(self, x: np.ndarray) -> float:
        if self.is_sparse:
            known = self.inducing
            states = 2 * process_of(self.kernel).dimension
            intervals = min(self.count or 1, x.shape[0]) if known is None else len(known)
            rows = 8.0 * x.shape[0] * self.num_latents * (2.0 * states + 75.0 * self.num_latents)
            return rows + temporal.chain_memory(float(intervals), states, states)
        positions = float(kalman.positions(x.shape[0], self.pieces or 1))
        return temporal.chain_memory(positions, process_of(self.kernel).dimension, self.num_latents)

    def prepare(self, inputs: Any) -> Any:
        if self.is_sparse:
            return self._prepare_sparse(inputs)
        times = kalman.to_time(inputs.times, inputs.pieces)
        before = kalman.from_time(jnp.concatenate([times[:1], times[:-1]]), inputs.pieces)
        chain = process_of(self.kernel).chain(before, inputs.times, times[0], inputs.pieces)
        return ChainWorkspace(self.mean.means(inputs.times[:, None]), chain, inputs.times, inputs.position)

    def _prepare_sparse(self, inputs: SparseChainInputs) -> SparseChainWorkspace:
        projection, x = ChainProjection.to(self.kernel, inputs.times), jnp.asarray(inputs.x)
        features, residual = projection.at(self.kernel, x)
        return SparseChainWorkspace(self.mean.means(x), projection, features, residual)

    def condition(self, workspace: Any, sites: Sites) -> Any:
        if self.is_sparse:
            return sparse_posterior(self, workspace, sites)
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
            return self._carefully(x, "latents")
        warn_of_lost(lost)
        return marginals

    def start_compiling(self, columns: int) -> None:
        start_at_inputs(_predict, self, columns)

    @in_double
    def states(self, x: Any) -> Gaussian:
        """The state at any inputs, such as the latent and its derivatives: mean (M, d), covariance (M, d, d)."""
        states, lossy = at_inputs(_state, self, x)
        return self._carefully(x, "states") if temporal.holds(lossy) else states

    @in_double
    def joint(self, x: Any) -> Gaussian:
        latents = self.prior.num_latents
        joint, lossy = jointly_at_inputs(_joint, self, x, latents)
        if not temporal.holds(lossy):
            return joint
        return jointly_at_inputs(
            lambda posterior, x, count: (_carefully(posterior, x, "joint", count), None), self, x, latents
        )[0]

    @in_double
    def draw(self, key: Any, x: Any, n: int) -> Any:
        carefully = temporal.holds(self.lossy)

        def draws(key: Any, number: int) -> Any:
            return at_inputs(lambda posterior, x: _draw(posterior, key, x, number, carefully), self, x)

        return draws_by_row(draws, key, n, self.marginals.mean.shape[0])

    def _carefully(self, x: Any, query: str) -> Gaussian:
        return at_inputs(lambda posterior, x: _carefully(posterior, x, query), self, x)

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
def _carefully(posterior: MarkovPosterior, x: Float[Array, "M 1"], query: str, count: Any = None) -> Gaussian:
    """The results of `_predict`, `_state` and `_joint`, by square roots on a chain that includes the new inputs."""
    return temporal.careful_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x), 0.0, query, count)


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
def _joint(posterior: MarkovPosterior, x: Float[Array, "M 1"], count: Any) -> tuple[Gaussian, Bool[Array, ""]]:
    return temporal.joint_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x), count)


@functools.partial(compiled, static_argnums=(3, 4))
def _draw(
    posterior: MarkovPosterior, key: Any, x: Float[Array, "M 1"], n: int, carefully: bool
) -> Float[Array, "M n D"]:
    return temporal.draw_query(*_merge(posterior, x[:, 0]), posterior.prior.mean.means(x), key, n, carefully)
