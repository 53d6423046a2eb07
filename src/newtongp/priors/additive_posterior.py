"""Prediction with additive models: the posterior of sums of terms at new rows, through their weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import on_host
from ..numerics.gaussian import Gaussian
from ..terms.base import Weights
from . import elimination, joined, level_space
from .base import Posterior, at_inputs, draws_of, jointly_at_inputs
from .level_space import Blocks, block_of


class AdditivePosterior(Posterior):
    """q(f) of a sum of terms, through their weights.

    `terms` gives the posterior of chosen terms. All are conditional on the hyperparameters.
    """

    marginals: Gaussian
    log_normaliser: Any
    prior: Any
    """The `Additive` prior."""
    weights: Any
    """The means of all weights but the eliminated ones, in units of their prior."""
    half: Any
    """H: the covariance of these weights is HᵀH."""
    own: tuple[elimination.Own, ...]
    """The eliminated weights, from the inside out."""
    within: Any
    """The levels of outer groups in which those of inner ones sit."""

    @on_host
    def predict(self, x: Any) -> Gaussian:
        return at_inputs(_predict, self, x)

    @on_host
    def joint(self, x: Any) -> Gaussian:
        return self.joint_of_terms(x, self.everything)

    @on_host
    def draw(self, key: Any, x: Any, n: int) -> Any:
        return draws_of(self.joint(x), key, n, x.shape[0])

    @on_host
    def of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The posterior of a weighted sum of terms at rows: `chosen` has one number per term of every latent."""
        rows = np.asarray(x)
        chosen = tuple(tuple(map(float, own)) for own in chosen)
        return at_inputs(lambda posterior, x: _of_terms(posterior, x, chosen), self, rows)

    @on_host
    def joint_of_terms(self, x: Any, chosen: Any) -> Gaussian:
        """The joint distribution of a weighted sum of terms at rows."""
        return jointly_at_inputs(
            lambda posterior, x, _: (_joint(posterior, x, chosen), None), self, x, self.prior.num_latents
        )[0]

    @property
    def everything(self) -> tuple[tuple[float, ...], ...]:
        """The choice of all terms."""
        return tuple(tuple(1.0 for _ in terms.terms) for terms in self.prior.latents)


class _NewRows:
    """Rows at new inputs: what the weights contribute, and what is left of the prior."""

    def __init__(self, posterior: AdditivePosterior, x: Any, chosen: Any):
        prior, count = posterior.prior, x.shape[0]
        means, blocks, self.left = [], [], []
        for latent, (terms, places, together) in enumerate(zip(prior.latents, prior.places, prior.joined, strict=True)):
            mean, left = jnp.zeros(count), jnp.zeros(count)
            inputs = [x[:, place] for place in places]
            for number, (term, own, factor) in enumerate(zip(terms.terms, inputs, chosen[latent], strict=True)):
                mean = mean + factor * term.new_mean(own)
                if number not in together:
                    found = term.new_weights(own)
                else:
                    smooth: Any = term
                    found = smooth.line_weights(own[:, :1], own[:, -1:])
                found = [_times(factor, weights) for weights in found]
                if together and number == together[0]:
                    found.insert(0, joined.at_rows(*joined.chosen(together, terms.terms, inputs, chosen[latent])))
                for weights in found:
                    left = left if weights.residual is None else left + weights.residual
                    blocks.append(block_of(weights, latent))
            means.append(mean)
            self.left.append(left)
        eliminated, rest = prior.parted(blocks)
        self.blocks = Blocks(jnp.stack(means, axis=1), eliminated, rest, posterior.within)
        self.solved = elimination.Solved(
            posterior.weights, posterior.half, posterior.own, jnp.zeros(()), jnp.asarray(True), jnp.zeros(())
        )

    @property
    def mean(self) -> Float[Array, "M D"]:
        return self.blocks.mean + level_space.f_of(self.blocks, self.solved.weights, self.solved.own_means)


def _times(factor: Any, weights: Weights) -> Weights:
    """The weights of a term that is multiplied by a number."""
    left = None if weights.residual is None else factor**2 * weights.residual
    return weights._replace(columns=factor * weights.columns, residual=left)


def _of_terms_now(posterior: AdditivePosterior, x: Any, chosen: Any) -> Gaussian:
    rows = _NewRows(posterior, x, chosen)
    covariance = elimination.covariances(rows.blocks, rows.solved, is_nested=False)
    left = jax.vmap(jnp.diag)(jnp.stack(rows.left, axis=1))
    return Gaussian(rows.mean, covariance + left)


@compiled
def _of_terms(posterior: AdditivePosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    return _of_terms_now(posterior, x, chosen)


@compiled
def _predict(posterior: AdditivePosterior, x: Float[Array, "M C"]) -> Gaussian:
    return _of_terms_now(posterior, x, posterior.everything)


@compiled
def _joint(posterior: AdditivePosterior, x: Float[Array, "M C"], chosen: Any) -> Gaussian:
    rows = _NewRows(posterior, x, chosen)
    prior, mean = posterior.prior, rows.mean
    count, latents = mean.shape
    covariance = elimination.joint_covariance(rows.blocks, rows.solved)
    for latent, (terms, places, together) in enumerate(zip(prior.latents, prior.places, prior.joined, strict=True)):
        factors = chosen[latent]
        left = sum(
            factors[number] ** 2 * term.new_covariance(x[:, place])
            for number, (term, place) in enumerate(zip(terms.terms, places, strict=True))
            if number not in together
        )
        if together:
            own = [x[:, place] for place in places]
            left = left + joined.new_covariance(*joined.chosen(together, terms.terms, own, factors))
        pick = jnp.zeros((latents, latents)).at[latent, latent].set(1.0)
        spread = jnp.einsum("mn,de->mdne", jnp.broadcast_to(left, (count, count)), pick)
        covariance = covariance + spread.reshape(count * latents, count * latents)
    return Gaussian(mean.reshape(-1), covariance)
