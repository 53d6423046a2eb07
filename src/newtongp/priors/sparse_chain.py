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
    def to(cls, kernel: Any, times: Any) -> "ChainProjection":
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
            interval, into, along, left_over = self._seen(process, x[:, 0])
            values = jnp.concatenate([*into, *along], axis=1)[:, None, :] * used[None]
            residual = jnp.stack(left_over, axis=1) @ latents.T if len(left_over) > 1 else left_over[0][:, None]
            return values, interval, jax.vmap(jnp.diag)(jnp.maximum(residual, 0.0))

        numbers = 4 * process.dimension * (process.num_latents + max(process.sizes))
        values, interval, residual = map_over_rows(of_rows, None, jnp.asarray(x), numbers=numbers)
        return ChainFeatures(values, interval), residual

    def states(self, kernel: Any, x: Float[Array, "N 1"]) -> tuple[ChainFeatures, Float[Array, "N d d"]]:
        """The same, for the whole state at every row instead of f."""
        process = process_of(kernel)

        def row(row):
            interval, left, right = self._around(row[0])
            into, along, left_over = [], [], []
            for block, roots in zip(process.blocks, self.roots, strict=True):
                given = _given(block, interval, left, row[0])
                weights = small_pseudo_solve_lower(roots[interval], block.transition(row[0], right) @ given)
                weights = jnp.where(interval == self.times.shape[0], 0.0, weights)
                into.append(jnp.where(interval == 0, 0.0, block.transition(left, row[0])))
                along.append(weights.T)
                left_over.append(given - weights.T @ weights)
            values = jnp.concatenate([kalman.block_diagonal(into), kalman.block_diagonal(along)], axis=1)
            return interval, values, kalman.block_diagonal(left_over)

        interval, values, residual = jax.vmap(row)(jnp.asarray(x))
        return ChainFeatures(values, interval), residual

    def residual_between(self, kernel: Any, x: Float[Array, "R 1"]) -> Float[Array, "D R R"]:
        """The covariance of e between rows, which is zero unless they are in the same interval."""
        process = process_of(kernel)
        interval, _, along, _ = self._seen(process, x[:, 0])
        _, left, _ = self._around(x[:, 0])
        given = [_columns(block, interval, left, x[:, 0]) for block in process.blocks]
        latents = np.eye(process.num_latents)[list(process.latents)]

        def between(one, other):
            early, late = jnp.minimum(x[one, 0], x[other, 0]), jnp.maximum(x[one, 0], x[other, 0])
            first = jnp.where(x[one, 0] <= x[other, 0], one, other)
            parts = [
                jnp.sum(block.transition(early, late)[0] * columns[first]) - jnp.sum(weights[one] * weights[other])
                for block, columns, weights in zip(process.blocks, given, along, strict=True)
            ]
            return jnp.where(interval[one] == interval[other], jnp.stack(parts) @ latents, 0.0)

        rows = jnp.arange(x.shape[0])
        found = jax.lax.map(lambda one: jax.vmap(lambda other: between(one, other))(rows), rows)
        return jnp.moveaxis(found, 2, 0)

    def _around(self, time: Any) -> tuple[Any, Any, Any]:
        """The intervals of times, and their ends, or the time itself where there is none."""
        interval = jnp.searchsorted(self.times, time, side="right")
        left = jnp.minimum(self.times[jnp.maximum(interval - 1, 0)], time)
        return interval, left, jnp.maximum(self.times[jnp.minimum(interval, self.times.shape[0] - 1)], time)

    def _seen(self, process: Process, time: Float[Array, " N"]) -> tuple[Any, list, list, list]:
        """The intervals of times, and for every block a (N, b), b (N, b) and the variance of e (N,)."""
        interval, left, right = self._around(time)
        into, along, left_over = [], [], []
        for block, roots in zip(process.blocks, self.roots, strict=True):
            given = _columns(block, interval, left, time)
            shared = _apply(jax.vmap(block.transition)(time, right), given)
            weights = _solve(roots, interval, shared)
            weights = jnp.where((interval == self.times.shape[0])[:, None], 0.0, weights)
            moved = jax.vmap(lambda start, end, block=block: block.transition(start, end)[0])(left, time)
            into.append(jnp.where((interval == 0)[:, None], 0.0, moved))
            along.append(weights)
            left_over.append(given[:, 0] - jnp.sum(weights**2, axis=1))
        return interval, into, along, left_over


def _given(block: Any, interval: Any, left: Any, time: Any) -> Float[Array, "b b"]:
    """The covariance of a block's state given that at the left end of its interval."""
    return jnp.where(interval == 0, block.covariance(time), block.noise(left, time))


def _columns(block: Any, interval: Any, left: Any, time: Any) -> Float[Array, "N b"]:
    """The covariance of a block's state and its first entry, for many rows."""
    return jax.vmap(lambda *row: _given(block, *row)[:, 0])(interval, left, time)


def _apply(matrices: Float[Array, "N b b"], vectors: Float[Array, "N b"]) -> Float[Array, "N b"]:
    size = vectors.shape[1]
    if size > _LARGEST_BLOCK:
        return jnp.sum(matrices * vectors[:, None, :], axis=2)
    rows = [sum(matrices[:, i, j] * vectors[:, j] for j in range(size)) for i in range(size)]
    return jnp.stack(rows, axis=1)


def _solve(roots: Float[Array, "T b b"], interval: Any, right: Float[Array, "N b"]) -> Float[Array, "N b"]:
    """L⁻¹ right for the L of every row's interval, with zeros where a column of L is zero."""
    size = right.shape[1]
    if size > _LARGEST_BLOCK:
        return jax.vmap(small_pseudo_solve_lower)(roots[interval], right)
    # Column by column, because what a row looks up is then not written to memory: three times faster.
    solved: list[Any] = []
    for i in range(size):
        entry, pivot = right[:, i], roots[:, i, i][interval]
        for j in range(i):
            entry = entry - roots[:, i, j][interval] * solved[j]
        solved.append(jnp.where(pivot > 0.0, entry / jnp.where(pivot > 0.0, pivot, 1.0), 0.0))
    return jnp.stack(solved, axis=1)


_LARGEST_BLOCK = 4


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
        if entries <= _LARGEST_UNROLLED:
            pairs = zip(one, other, strict=True)
            products = jnp.stack([jnp.sum(values[:, :, i] * weighted[:, :, j], axis=1) for i, j in pairs], axis=1)
        else:
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


_LARGEST_UNROLLED = 8


def marginals_of_rows(features: ChainFeatures, mean: Float[Array, "N D"], moments: Any) -> Gaussian:
    """The marginals of g, from the moments of x; `mean` is the prior mean."""
    entries = features.values.shape[2]
    by_columns = entries <= _LARGEST_UNROLLED

    def of_rows(_, values, interval):
        return (_by_columns if by_columns else _by_arrays)(values, interval, moments)

    shift, covariance, sizes = map_over_rows(of_rows, None, *features, numbers=entries**2)
    return Gaussian(mean + shift, kalman.not_below_rounding(covariance, sizes)[0])


def _by_arrays(values: Float[Array, "N D E"], interval: Any, moments: Any) -> tuple[Any, Any, Any]:
    """ΨE[x], ΨCΨᵀ, and the sum of the variances in the latter."""
    covariance = moments.covariance[interval]
    columns = jnp.sum(covariance[:, None, :, :] * values[:, :, None, :], axis=3)
    sizes = jnp.sum(values**2 * jnp.diagonal(covariance, axis1=1, axis2=2)[:, None, :], axis=2)
    found = jnp.sum(values[:, :, None, :] * columns[:, None, :, :], axis=3)
    return jnp.sum(moments.mean[interval][:, None, :] * values, axis=2), found, sizes


def _by_columns(values: Float[Array, "N D E"], interval: Any, moments: Any) -> tuple[Any, Any, Any]:
    """The same, ten times faster for few entries: what a row looks up is not written to memory."""
    entries = range(values.shape[2])
    columns = [[values[:, d, i] for i in entries] for d in range(values.shape[1])]
    means = [moments.mean[:, i][interval] for i in entries]
    covariance = [[moments.covariance[:, i, j][interval] for j in entries] for i in entries]
    shift = [sum(own[i] * means[i] for i in entries) for own in columns]
    sizes = [sum(own[i] ** 2 * covariance[i][i] for i in entries) for own in columns]
    found = [
        [sum(one[i] * covariance[i][j] * other[j] for i in entries for j in entries) for other in columns]
        for one in columns
    ]
    stacked = jnp.stack([jnp.stack(row, axis=1) for row in found], axis=1)
    return jnp.stack(shift, axis=1), symmetrise(stacked), jnp.stack(sizes, axis=1)


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
