"""One chain in time and any number of weights: f = μ + g + Φw, conditioned exactly in time linear in the rows.

g is a Markovian GP. With sites (λ, Λ) and G = (I + ΛK)⁻¹Λ, a filter and a smoother applied to the sites (Λφ, Λ) return
the columns KGφ, as means, and Gφ, as weights K⁻¹m. The posterior precision of w is P = E + ΦᵀGΦ, where E is 1, or 0 for
flat weights, and with Ψ = Φ − KGΦ

    m_w = P⁻¹Ψᵀ(λ − Λμ),    Cov f = Cov[g | w] + Ψ P⁻¹ Ψᵀ,    log det(I + ΛK_f) = log det(I + ΛK) + log det P.

Given w = m_w, g is conditioned on the sites (λ − Λμ − ΛΦm_w, Λ). The posterior is proper exactly when that of g given w
is and P is positive definite.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import on_host
from ..numerics import kalman, linalg
from ..numerics.gaussian import Gaussian, Sites, add_covariance
from .base import Conditioned, Posterior, Workspace, at_inputs, draws_of, jointly_at_inputs
from .level_space import LOG_TWO_PI, block_of, matrix_of
from .markov import MarkovPosterior, in_batches
from .temporal import ChainWorkspace


class Joined(NamedTuple):
    """The posterior of the weights, and the chain's columns."""

    weights: Float[Array, " P"]
    half: Float[Array, "P P"]
    """H with P⁻¹ = HᵀH."""
    left: Float[Array, "P N"]
    """Ψᵀ: what the chain leaves of every column."""
    log_det: Float[Array, ""]
    proper: Bool[Array, ""]


class ChainedWorkspace(Workspace):
    """A chain and blocks of weights at the data, in the order of the chain's positions."""

    inner: ChainWorkspace
    """The chain, with prior mean zero."""
    mean: Float[Array, "N 1"]
    columns: Float[Array, "P N"]
    """Φᵀ."""
    residual: Float[Array, "N 1 1"] | None
    """The covariance of what sparse terms leave of f given their weights."""
    flat_weights: tuple[bool, ...] = eqx.field(static=True)
    """Which weights have no prior."""

    @property
    def flat(self) -> np.ndarray:
        """The same as an array."""
        return np.asarray(self.flat_weights, dtype=bool)

    def at_rows(self, tree: Any) -> Any:
        return self.inner.at_rows(tree)

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        joined = self.join(sites)
        return self.conditioned(self.given(joined, sites, psd), joined)

    def given(self, joined: Joined, sites: Sites, psd: bool = False) -> Conditioned:
        """The chain given w = m_w."""
        return self.inner.marginals(self.inner_sites(joined.weights, sites), psd)

    def inner_sites(self, weights: Float[Array, " P"], sites: Sites) -> Sites:
        """The sites of g given w."""
        shift = self.mean + (weights @ self.columns)[:, None]
        return Sites(sites.centred_linear(shift), sites.precision)

    def conditioned(self, chain: Conditioned, joined: Joined) -> Conditioned:
        """q(f) at the data."""
        mean = self.mean + (joined.weights @ self.columns)[:, None] + chain.marginals.mean
        spread = jnp.sum((joined.half @ joined.left) ** 2, axis=0)
        covariance = chain.marginals.covariance + spread[:, None, None]
        distance = chain.distance + jnp.sum(jnp.where(self.flat, 0.0, joined.weights) ** 2)
        log_det, proper = chain.log_det + joined.log_det, chain.proper & joined.proper
        return Conditioned(Gaussian(mean, covariance), distance, log_det, proper, self.residual)

    def residual_covariance(self):
        return self.residual

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        return add_covariance(marginals, self.residual)

    def join(self, sites: Sites) -> Joined:
        """The posterior of the weights."""
        columns, flat, precision = self.columns, self.flat, sites.precision[:, 0, 0]
        explained, pulled = self._columns(sites.precision, precision[None] * columns)
        # Φ − KGΦ is rounding where a site is precise; there ΛΨ = GΦ has all digits.
        left = columns - explained
        lost = (precision > 0.0)[None] & (jnp.abs(left) < _LOST * jnp.abs(columns))
        left = jnp.where(lost, pulled / jnp.where(precision > 0.0, precision, 1.0)[None], left)
        matrix = columns @ pulled.T
        matrix = 0.5 * (matrix + matrix.T) + jnp.diag(jnp.where(flat, 0.0, 1.0))
        factor = linalg.cholesky(matrix)
        half = linalg.solve_lower(factor, jnp.eye(flat.size))
        weights = half.T @ (half @ (left @ sites.centred_linear(self.mean)[:, 0]))
        log_det = linalg.log_det_from_cholesky(factor) - float(flat.sum()) * LOG_TWO_PI
        return Joined(weights, half, left, log_det, jnp.all(jnp.isfinite(jnp.diagonal(factor))))

    def _columns(self, precision: Float[Array, "N 1 1"], linears: Float[Array, "P N"]) -> tuple[Any, Any]:
        """KGΦ and GΦ, one row per column of Φ."""
        chain = self.inner.chain

        def one(linear):
            smoothed = kalman.marginals(chain, precision, linear[:, None], True)
            return smoothed.mean[:, 0], smoothed.weights[:, 0]

        return jax.vmap(one)(linears)

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        """log ∫ p ∏ tₙ, with derivatives at fixed m_w, and those of log det P from normalisers of the chain."""
        joined = jax.lax.stop_gradient(self.join(sites))
        flat, columns, inner = self.flat, self.columns, self.inner
        shift = self.mean + (joined.weights @ columns)[:, None]
        given = inner.log_normaliser(self.inner_sites(joined.weights, sites), psd)
        exponent = jnp.sum(sites.linear * shift) - 0.5 * jnp.einsum("ni,nij,nj->", shift, sites.precision, shift)
        size = jnp.sum(jnp.where(flat, 0.0, joined.weights) ** 2)
        # d log det P = Σ d(φᵀGφ) over the whitened columns φ, and φᵀGφ = φᵀΛφ − 2 (log Z(Λφ) − log Z(0)).
        whitened = joined.half @ columns
        precision = sites.precision[:, 0, 0]

        def squared(column):
            pulled = Sites((precision * column)[:, None], sites.precision)
            return jnp.sum(precision * column**2) - 2.0 * inner.log_normaliser(pulled, psd)

        empty = Sites(jnp.zeros_like(sites.linear), sites.precision)
        grown = jnp.sum(jax.vmap(squared)(whitened)) + 2.0 * flat.size * inner.log_normaliser(empty, psd)
        log_det = joined.log_det + grown - jax.lax.stop_gradient(grown)
        return given + exponent - 0.5 * (size + log_det)


_LOST = 1e-4
"""Of a column's entry, at least this share is left to be told from rounding."""


# Prediction ---------------------------------------------------------------------------------------


class ChainedPosterior(Posterior):
    """q(f) of a chain and weights."""

    marginals: Gaussian
    log_normaliser: Any
    prior: Any
    inner: MarkovPosterior
    """The chain given the mean of the weights."""
    weights: Any
    half: Any
    means: Any
    """Filtered states of the chain under the sites of every column, (P, T, d)."""
    vectors: Any
    """The smoother's vectors under these sites, (P, T, d)."""

    @on_host
    def predict(self, x: Any) -> Gaussian:
        return at_inputs(_predict, self, x)

    @on_host
    def of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The posterior of a weighted sum of terms at rows: `chosen` has one number per term of every latent."""
        return at_inputs(lambda posterior, x: _of_terms(posterior, x, chosen), self, np.asarray(x))

    @on_host
    def joint(self, x: Any) -> Gaussian:
        return self.joint_of_terms(x, self.everything)

    @on_host
    def joint_of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The joint distribution of a weighted sum of terms at rows; the chain is in it as a whole, or not at all."""
        factors = {float(chosen[0][number]) for number in self.prior.chained}
        if factors not in ({0.0}, {1.0}):
            raise ValueError(
                "the joint distribution of some terms of a chain in time is not available: choose all terms over its "
                "column, or none"
            )
        rest = self._rest(x, tuple(map(tuple, chosen)))
        if factors == {0.0}:
            return rest
        inner = self.inner.joint(self.prior.times_of(x))
        return Gaussian(rest.mean + inner.mean, rest.covariance + inner.covariance)

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        # Paths of the chain given the mean of the weights, and what other weights change.
        key_g, key_w = jax.random.split(key)
        paths = self.inner.draw(key_g, self.prior.times_of(x), n)
        return paths + draws_of(self._rest(x, self.everything), key_w, n, x.shape[0])

    def _rest(self, x: Any, chosen: Any) -> Gaussian:
        """The joint distribution at rows, without that of the chain given the weights."""
        return jointly_at_inputs(lambda posterior, x, _: (_rest(posterior, x, chosen), None), self, x, 1)[0]

    @property
    def everything(self) -> tuple[tuple[float, ...], ...]:
        """The choice of all terms."""
        return tuple(tuple(1.0 for _ in terms.terms) for terms in self.prior.latents)


def chained_posterior(prior: Any, workspace: ChainedWorkspace, sites: Sites) -> ChainedPosterior:
    """Condition on the final sites."""
    joined = workspace.join(sites)
    conditioned = workspace.conditioned(workspace.given(joined, sites), joined)
    inner = prior.chain().condition(workspace.inner, workspace.inner_sites(joined.weights, sites))
    precision, chain = sites.precision[:, 0, 0], workspace.inner.chain

    def states(column):
        found = kalman.marginals_and_states(chain, sites.precision, (precision * column)[:, None]).states
        return kalman.to_time(found.mean, chain.pieces), kalman.to_time(found.vector, chain.pieces)

    means, vectors = jax.lax.map(states, workspace.columns)
    return ChainedPosterior(
        workspace.at_rows(workspace.marginals_of_f(conditioned.marginals)),
        conditioned.log_normaliser(sites),
        prior,
        inner,
        joined.weights,
        joined.half,
        means,
        vectors,
    )


class _NewRows(NamedTuple):
    """What chosen terms are at new rows: the prior mean, columns of the weights, and the variance that is left."""

    mean: Float[Array, " M"]
    columns: Float[Array, "P M"]
    left: Float[Array, " M"]
    selection: np.ndarray
    """The factor of every state of the chain."""


def _new_rows(posterior: ChainedPosterior, x: Any, chosen: Any) -> _NewRows:
    prior, count = posterior.prior, x.shape[0]
    mean, left, blocks = jnp.zeros(count), jnp.zeros(count), []
    times = prior.times_of(x)
    for number, (term, place) in enumerate(zip(prior.latents[0].terms, prior.places[0], strict=True)):
        factor, own = chosen[0][number], x[:, place]
        chained = number in prior.chained
        if not chained:
            mean = mean + factor * term.new_mean(own)
        for weights in term.chain_weights(times[:, 0]) if chained else term.new_weights(own):
            if weights.residual is not None:
                left = left + factor**2 * weights.residual
            blocks.append(block_of(weights._replace(columns=factor * weights.columns), 0))
    return _NewRows(mean, matrix_of(tuple(blocks), count), left, _selection(prior, chosen[0]))


def _selection(prior: Any, chosen: Any) -> np.ndarray:
    """The factor of every state of the chain in the sum of chosen terms: 0 but for the first state of each block."""
    pairs = [
        (block.size, chosen[number])
        for number in prior.chained
        for block in prior.latents[0].terms[number].covariance().blocks()
    ]
    pairs.sort(key=lambda pair: pair[0])  # as the process orders its blocks
    return np.concatenate([np.eye(1, size)[0] * factor for size, factor in pairs])


def _of_chain(posterior: ChainedPosterior, times: Any, row: np.ndarray) -> tuple[Any, Any, Any]:
    """Mean and variance of a sum of the chain's states at times given the weights, and its columns KGφ (P, M)."""

    def latents(mean, covariance, vector, matrix):
        column = covariance @ row
        return row @ mean + column @ vector, row @ column - column @ matrix @ column

    def moved(mean, vector):
        inner = eqx.tree_at(lambda p: (p.held.mean, p.held.vector), posterior.inner, (mean, vector))
        return in_batches(inner, times, lambda m, c, v, _: row @ m + (c @ row) @ v)

    mean, variance = in_batches(posterior.inner, times, latents)
    return mean, jnp.maximum(variance, 0.0), jax.vmap(moved)(posterior.means, posterior.vectors)


def _of_terms_now(posterior: ChainedPosterior, x: Any, chosen: Any) -> Gaussian:
    rows = _new_rows(posterior, x, chosen)
    mean, variance, explained = _of_chain(posterior, posterior.prior.times_of(x)[:, 0], rows.selection)
    spread = jnp.sum((posterior.half @ (rows.columns - explained)) ** 2, axis=0)
    mean = rows.mean + posterior.weights @ rows.columns + mean
    return Gaussian(mean[:, None], (variance + spread + rows.left)[:, None, None])


@compiled
def _predict(posterior: ChainedPosterior, x: Float[Array, "M C"]) -> Gaussian:
    return _of_terms_now(posterior, x, posterior.everything)


@functools.partial(compiled, static_argnums=2)
def _of_terms(posterior: ChainedPosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    return _of_terms_now(posterior, x, chosen)


@functools.partial(compiled, static_argnums=2)
def _rest(posterior: ChainedPosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    """The mean without the chain, and the covariance of the weights, through Ψ, and of what is left of single terms."""
    prior, rows = posterior.prior, _new_rows(posterior, x, chosen)
    _, _, explained = _of_chain(posterior, prior.times_of(x)[:, 0], rows.selection)
    left = jnp.zeros((x.shape[0], x.shape[0]))
    for number, (term, place) in enumerate(zip(prior.latents[0].terms, prior.places[0], strict=True)):
        if number not in prior.chained:
            left = left + chosen[0][number] ** 2 * term.new_covariance(x[:, place])
    halves = posterior.half @ (rows.columns - explained)
    return Gaussian(rows.mean + posterior.weights @ rows.columns, halves.T @ halves + left)
