"""A start for fixed effects that are maximised: those that are most likely without the other terms of the model.

They come from Newton's method on a generalised linear model, which takes a few passes over the rows, and are close
enough for the search over all hyperparameters to begin with its last steps.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..inference.problem import Setup
from ..likelihoods.base import Likelihood, over_rows, row_log_prob
from ..model import Model
from ..numerics.known import solve_psd_given
from ..priors import elimination
from ..priors.additive import Additive
from ..terms.base import replaced
from ..terms.linear import Linear

_MOST_STEPS, _MOST_HALVINGS = 25, 12
_CLOSE = 1e-6


def with_started_effects(setup: Setup) -> Setup:
    """The same data, with a start of the fixed effects that are to be maximised."""
    prior = setup.model.prior
    if not isinstance(prior, Additive) or not _maximised(prior):
        return setup
    found = _most_likely(setup, prior)
    if found is None:
        return setup
    coefficients, precisions = found
    values = {place: {"coefficients": own} for place, own in coefficients.items()}
    if not prior.chained:
        for place, error in zip(coefficients, _errors(setup, prior, precisions), strict=True):
            values[place] |= {"errors": np.asarray(error)} if np.all(np.isfinite(error)) else {}
    return setup.with_model(Model(_changed(prior, values), setup.model.likelihood))


def _changed(prior: Additive, values: dict[tuple[int, int], dict[str, Any]]) -> Additive:
    """The prior with other values of some fields of some terms."""
    latents = tuple(
        replaced(
            terms,
            terms=tuple(replaced(term, **values.get((latent, number), {})) for number, term in enumerate(terms.terms)),
        )
        for latent, terms in enumerate(prior.latents)
    )
    return eqx.tree_at(lambda p: p.latents, prior, latents)


@in_double
def _errors(setup: Setup, prior: Additive, precisions: np.ndarray) -> tuple[np.ndarray, ...]:
    """The standard errors of the coefficients of every maximised term, given the other terms as they are guessed."""
    maximised = _maximised(prior)
    flat = _changed(prior, {place: {"prior": "flat", "coefficients": None} for place in maximised})
    places = [(i, j) for i, terms in enumerate(flat.latents) for j, term in enumerate(terms.terms) if term.is_flat]
    errors = to_host(_spread(flat, setup.bound.inputs, precisions))
    # Lines of trends and walks, and other fixed effects, may be flat as well.
    return tuple(error for place, error in zip(places, errors, strict=True) if place in maximised)


@compiled
def _spread(prior: Additive, inputs: Any, precisions: Any) -> tuple[Any, ...]:
    return elimination.flat_errors(prior.prepare(inputs).blocks, precisions)


def _maximised(prior: Additive) -> list[tuple[int, int]]:
    return [
        (latent, number)
        for latent, terms in enumerate(prior.latents)
        for number, term in enumerate(terms.terms)
        if isinstance(term, Linear) and term.prior == "maximised"
    ]


@in_double
def _most_likely(setup: Setup, prior: Additive) -> tuple[dict[tuple[int, int], np.ndarray], np.ndarray] | None:
    """The coefficients of every maximised term, and the precisions of rows there; None if the search fails."""
    bound, places = setup.bound, _maximised(prior)
    inputs = bound.inputs[1:] if prior.chained else bound.inputs  # after those of the chain
    rows = [np.asarray(inputs[latent][number]) for latent, number in places]
    latents = [latent for latent, _ in places]
    sizes = np.cumsum([0, *(own.shape[1] for own in rows)])
    offset = np.array(setup.problem.workspace.mean)
    terms: list[Any] = [prior.latents[latent].terms[number] for latent, number in places]
    now = np.concatenate([np.asarray(term.coefficients) for term in terms])
    for k, own in enumerate(rows):  # the part of the prior mean that does not move
        offset[:, latents[k]] -= own @ now[sizes[k] : sizes[k + 1]]

    def expand(coefficients: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
        f = offset.copy()
        for k, own in enumerate(rows):
            f[:, latents[k]] += own @ coefficients[sizes[k] : sizes[k + 1]]
        value, slopes, hessians = map(np.asarray, _derivatives(bound.likelihood, bound.y, bound.observed, f))
        gradient = np.concatenate([own.T @ slopes[:, latent] for own, latent in zip(rows, latents, strict=True)])
        blocks = [
            [rows[a].T @ (hessians[:, latents[a], latents[b], None] * rows[b]) for b in range(len(rows))]
            for a in range(len(rows))
        ]
        return float(value), gradient, np.block(blocks), hessians

    value, gradient, hessian, by_row = expand(now)
    if not np.isfinite(value):
        return None
    for _ in range(_MOST_STEPS):
        step = solve_psd_given(-hessian, gradient)
        if step is None or not np.all(np.isfinite(step)):
            break
        for halving in range(_MOST_HALVINGS):
            trial = now + 0.5**halving * step
            expanded = expand(trial)
            if np.isfinite(expanded[0]) and expanded[0] > value:
                break
        else:
            break
        gain, now = expanded[0] - value, trial
        value, gradient, hessian, by_row = expanded
        if gain < _CLOSE * max(1.0, abs(value)):
            break
    return {place: now[sizes[k] : sizes[k + 1]] for k, place in enumerate(places)}, -by_row


@compiled
def _derivatives(likelihood: Likelihood, y: Any, observed: Any, f: Any) -> tuple[Any, Any, Any]:
    """Σ log p(y | f), and its derivatives in every row; Hessians without their positive part on the diagonal."""

    def row(likelihood, y, observed, f):
        value, slope = jax.value_and_grad(lambda g: row_log_prob(likelihood, y, g))(f)
        hessian = jax.hessian(lambda g: row_log_prob(likelihood, y, g))(f)
        own = jnp.minimum(jnp.diagonal(hessian), 0.0)
        hessian = jnp.where(jnp.eye(f.shape[0], dtype=bool), jnp.diag(own), hessian)
        return jax.tree.map(lambda leaf: jnp.where(observed, leaf, 0.0), (value, slope, hessian))

    values, slopes, hessians = over_rows(row, likelihood, (y, observed, f))
    return jnp.sum(values), slopes, hessians
