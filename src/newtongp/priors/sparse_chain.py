"""Sparse chains: a Markovian GP through its states at M inducing times.

Between two inducing times, f depends on the states s at both ends only. With s⁺ = A s + L w for the state at the end
of an interval, where LLᵀ is the covariance of s⁺ given s and w ~ N(0, I), a row at time t in the interval is

    f(t) = g + e,  g = a(t)ᵀ s + b(t)ᵀ w,  b(t) = L⁻¹ Cov(s⁺, f(t) | s),

and e is independent of all states at inducing times. Sites act on g, as in a sparse GP, so that all sites of an
interval are one factor of x = (s, w), and `numerics/kalman/intervals.py` does the rest. No covariance is inverted:
directions in which a state has no noise are left out of L.

Before the first inducing time, s is nothing and LLᵀ is the prior covariance of the first state; after the last one, w
is not used. M inducing times thus have M + 1 intervals.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites, add_covariance
from ..numerics.small import graded_root, small_pseudo_solve_lower, symmetrise
from .base import Conditioned, Workspace
from .markov_process import Process, process_of
from .weight_space import block_of, map_over_rows


class SparseChainInputs(eqx.Module):
    """The inputs of the data, and inducing times in ascending order."""

    x: Any
    times: Any
    """Filled up to a size class by repeating the last one."""

    @property
    def inducing(self) -> np.ndarray:
        """The inducing times, each once."""
        return np.unique(np.asarray(self.times))


class ChainFeatures(NamedTuple):
    """g of every row as a function of x of its interval: Ψ (N, D, 2d), and the interval (N,)."""

    values: Float[Array, "N D E"]
    interval: Int[Array, " N"]


class ChainProjection(eqx.Module):
    """The chain of all intervals: the inducing times (T − 1,), and (A, L) of every interval.

    `roots` are the L of every block.
    """

    times: Any
    roots: tuple[Any, ...]
    chain: kalman.Intervals

    @classmethod
    def to(cls, kernel: Any, times: Float[Array, " M"]) -> "ChainProjection":
        """The projection on the states at these times, in ascending order."""
        process, times = process_of(kernel), jnp.asarray(times)
        # The first interval has no left end, and the last one no right end.
        left = jnp.concatenate([times[:1], times])
        right = jnp.concatenate([times, times[-1:]])
        first, last = (jnp.arange(left.shape[0]) == end for end in (0, times.shape[0]))
        roots = tuple(jax.vmap(functools.partial(_root, block))(left, right, first) for block in process.blocks)
        transition = jnp.where(first[:, None, None], 0.0, jax.vmap(process.transition)(left, right))
        root = jax.vmap(lambda *blocks: kalman.block_diagonal(blocks))(*roots)
        step = jnp.where(last[:, None, None], 0.0, jnp.concatenate([transition, root], axis=2))
        return cls(times, roots, kalman.Intervals(step))

    @property
    def size(self) -> tuple[int, int]:
        """The number of intervals and of entries of x."""
        length, _, entries = self.chain.step.shape
        return length, entries

    def at(self, kernel: Any, x: Float[Array, "N 1"]) -> tuple[ChainFeatures, Float[Array, "N D D"]]:
        """The features of rows, and the covariances of e."""
        process = process_of(kernel)
        latents = np.eye(process.num_latents)[:, list(process.latents)]
        used = np.tile(np.repeat(latents, process.sizes, axis=1), 2)

        def of_rows(_, x):
            interval, into, along, left_over = jax.vmap(lambda row: self._seen(process, row[0]))(x)
            parts = [part[:, 0] for part in (*into, *along)]
            values = jnp.concatenate(parts, axis=1)[:, None, :] * used[None]
            residual = jnp.stack([block[:, 0, 0] for block in left_over], axis=1) @ latents.T
            return values, interval, jax.vmap(jnp.diag)(jnp.maximum(residual, 0.0))

        values, interval, residual = map_over_rows(of_rows, None, jnp.asarray(x), numbers=self._numbers(process))
        return ChainFeatures(values, interval), residual

    def states(self, kernel: Any, x: Float[Array, "N 1"]) -> tuple[ChainFeatures, Float[Array, "N d d"]]:
        """The same, for the whole state at every row instead of f."""
        process = process_of(kernel)

        def row(row):
            interval, into, along, left_over = self._seen(process, row[0], whole=True)
            values = jnp.concatenate([kalman.block_diagonal(into), kalman.block_diagonal(along)], axis=1)
            return interval, values, kalman.block_diagonal(left_over)

        interval, values, residual = jax.vmap(row)(jnp.asarray(x))
        return ChainFeatures(values, interval), residual

    def residual_between(self, kernel: Any, x: Float[Array, "R 1"]) -> Float[Array, "D R R"]:
        """The covariance of e between rows, which is zero unless they are in the same interval."""
        process = process_of(kernel)
        intervals, _, along, _ = jax.vmap(lambda row: self._seen(process, row[0]))(x)
        given = [
            jax.vmap(lambda row, block=block: _given(block, *self._around(row[0])[:2], row[0])[:, 0])(x)
            for block in process.blocks
        ]
        latents = np.eye(process.num_latents)[list(process.latents)]

        def between(one, other):
            early, late = jnp.minimum(x[one, 0], x[other, 0]), jnp.maximum(x[one, 0], x[other, 0])
            first = jnp.where(x[one, 0] <= x[other, 0], one, other)
            parts = [
                jnp.sum(block.transition(early, late)[0] * columns[first])
                - jnp.sum(weights[one, 0] * weights[other, 0])
                for block, columns, weights in zip(process.blocks, given, along, strict=True)
            ]
            return jnp.where(intervals[one] == intervals[other], jnp.stack(parts) @ latents, 0.0)

        rows = jnp.arange(x.shape[0])
        found = jax.lax.map(lambda one: jax.vmap(lambda other: between(one, other))(rows), rows)
        return jnp.moveaxis(found, 2, 0)

    def _numbers(self, process: Process) -> int:
        return 4 * process.dimension * (process.num_latents + max(process.sizes))

    def _around(self, time: Any) -> tuple[Any, Any, Any]:
        """The interval of a time, and its ends, or the time itself where there is none."""
        interval = jnp.searchsorted(self.times, time, side="right")
        left = jnp.minimum(self.times[jnp.maximum(interval - 1, 0)], time)
        return interval, left, jnp.maximum(self.times[jnp.minimum(interval, self.times.shape[0] - 1)], time)

    def _seen(self, process: Process, time: Any, whole: bool = False) -> tuple[Any, list, list, list]:
        """The interval of a time, and for every block aᵀ, bᵀ and the covariance of e: of f, or of the `whole` state."""
        interval, left, right = self._around(time)
        last, into, along, left_over = self.times.shape[0], [], [], []
        for block, roots in zip(process.blocks, self.roots, strict=True):
            rows = slice(None) if whole else slice(0, 1)
            given = _given(block, interval, left, time)
            shared = _product(block.transition(time, right), given[:, rows])
            weights = small_pseudo_solve_lower(roots[interval], shared)
            weights = jnp.where(interval == last, 0.0, weights)
            into.append(jnp.where(interval == 0, 0.0, block.transition(left, time)[rows]))
            along.append(weights.T)
            left_over.append(given[rows, rows] - _product(weights.T, weights))
        return interval, into, along, left_over


def _given(block: Any, interval: Any, left: Any, time: Any) -> Float[Array, "b b"]:
    """The covariance of a block's state given that at the left end of its interval."""
    return jnp.where(interval == 0, block.covariance(time), block.noise(left, time))


def _product(a: Any, b: Any) -> Any:
    """a b for small matrices, without the library of matrix products, which is slow for one per row."""
    return jnp.sum(a[:, :, None] * b[None, :, :], axis=1)


def _root(block: Any, left: Any, right: Any, first: Any) -> Float[Array, "b b"]:
    """L of an interval."""
    return graded_root(jnp.where(first, block.covariance(right), block.noise(left, right)))


# Sums over rows, and marginals of rows -----------------------------------------------------------------------------


def factors_of_rows(features: ChainFeatures, sites: Sites, mean: Float[Array, "N D"], length: int) -> kalman.Factors:
    """The product of the sites of every one of `length` intervals."""
    entries = features.values.shape[2]
    one, other = np.triu_indices(entries)

    def of_rows(values, interval, linear, precision):
        weighted = jnp.sum(precision[:, :, :, None] * values[:, None, :, :], axis=2)
        products = jnp.sum(values[:, :, one] * weighted[:, :, other], axis=1)
        return jnp.concatenate([jnp.sum(linear[:, :, None] * values, axis=1), products], axis=1), interval

    rows = (*features, sites.centred_linear(mean), sites.precision)
    total = _sums(of_rows, rows, length, entries + len(one))
    where = np.zeros((entries, entries), dtype=int)
    where[one, other] = where[other, one] = entries + np.arange(len(one))
    return kalman.Factors(total[:, :entries], total[:, where])


def _sums(function: Any, rows: tuple[Any, ...], length: int, numbers: int) -> Float[Array, "T K"]:
    """Sums of a function of rows over the rows of every interval, by blocks of rows."""
    count, size = rows[0].shape[0], block_of(2 * numbers)
    whole = count // size if count > 2 * size else 0
    total = jnp.zeros((length, numbers))

    def add(i, total, cut=size):
        values, interval = function(*(jax.lax.dynamic_slice_in_dim(leaf, i * size, cut) for leaf in rows))
        return total.at[interval].add(values)

    total = jax.lax.fori_loop(0, whole, add, total) if whole else total
    rest = count - whole * size
    return add(whole, total, rest) if rest else total


def marginals_of_rows(features: ChainFeatures, mean: Float[Array, "N D"], moments: Any) -> Gaussian:
    """The marginals of g, from the moments of x; `mean` is the prior mean."""
    entries = features.values.shape[2]

    def of_rows(_, values, interval):
        covariance = moments.covariance[interval]
        columns = jnp.sum(covariance[:, None, :, :] * values[:, :, None, :], axis=3)
        shift = jnp.sum(moments.mean[interval][:, None, :] * values, axis=2)
        sizes = jnp.sum(values**2 * jnp.diagonal(covariance, axis1=1, axis2=2)[:, None, :], axis=2)
        return shift, jnp.sum(values[:, :, None, :] * columns[:, None, :, :], axis=3), sizes

    shift, covariance, sizes = map_over_rows(of_rows, None, *features, numbers=entries**2)
    return Gaussian(mean + shift, kalman.not_below_rounding(symmetrise(covariance), sizes)[0])


class SparseChainWorkspace(Workspace):
    """Quantities that depend only on the inputs: prior means, the chain of intervals, features, covariances of e."""

    mean: Float[Array, "N D"]
    projection: ChainProjection
    features: ChainFeatures
    residual: Float[Array, "N D D"]

    def residual_covariance(self):
        return self.residual

    def factors(self, sites: Sites) -> kalman.Factors:
        """The product of the sites of every interval."""
        return factors_of_rows(self.features, sites, self.mean, self.projection.size[0])

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(kalman.condition_intervals(self.projection.chain, self.factors(sites)))

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        linear = jnp.sum((sites.linear + sites.centred_linear(self.mean)) * self.mean)
        return 0.5 * linear + kalman.log_integral(self.projection.chain, self.factors(sites))

    def conditioned(self, moments: kalman.Moments) -> Conditioned:
        """q(g) at the data."""
        marginals = marginals_of_rows(self.features, self.mean, moments)
        return Conditioned(marginals, moments.distance, moments.log_det, moments.proper, self.residual)

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        return add_covariance(marginals, self.residual)
