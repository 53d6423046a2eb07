"""States at the starts and ends of the pieces of a chain: exact parallelism in time.

One loop over all pieces at once computes the map from the start of each piece to its end (`Element`). A short loop over
the pieces then gives the filtered state at the start of each, and another the information from all later pieces at its
end. With those, filter and smoother run on all pieces side by side, and return the result of one long loop.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ..small import small_solve
from . import loops
from .chain import Chain
from .recursions import Element, Step, element_step


def starts(chain: Chain, elements: Element | None) -> Any:
    """The filter's state before the first step of every piece."""
    form, size = chain.form, chain.form.dimension
    if elements is None:
        return form.split_vector(jnp.zeros(size)), form.split(chain.initial)

    def body(state, element):
        return _through(state, element), state

    _, (means, covariances) = jax.lax.scan(body, (jnp.zeros(size), chain.initial), elements)
    return form.split_vector(means), form.split(covariances)


def ends(chain: Chain, elements: Element | None, last: Any) -> Any:
    """The smoother's (r, L) after the last step of every piece, given the filter's states there."""
    form, size = chain.form, chain.form.dimension
    if elements is None:
        return form.split_vector(jnp.zeros(size)), form.split(jnp.zeros((size, size)))

    def body(later, element):
        return _back(later, element), later

    nothing = (jnp.zeros(size), jnp.zeros((size, size)))
    _, (vectors, matrices) = jax.lax.scan(body, nothing, elements, reverse=True)
    mean, covariance = form.join_vector(last[0]), form.join(last[1])
    vector, matrix = jax.vmap(_adjoint)(mean, covariance, vectors, matrices)
    return form.split_vector(vector), form.split(matrix)


def elements_of(chain: Chain, steps: Step) -> Element | None:
    """The `Element` of every piece, arrays with the pieces first; None for a chain of one piece."""
    if chain.pieces == 1:
        return None
    form, size, pieces = chain.form, chain.form.dimension, chain.pieces
    nothing = form.split(jnp.zeros((pieces, size, size)))
    identity = form.split(jnp.broadcast_to(jnp.eye(size), (pieces, size, size)))
    zeros = form.split_vector(jnp.zeros((pieces, size)))
    start = Element(identity, zeros, nothing, zeros, nothing)
    element, _ = loops.scan(lambda e, step: (element_step(form, e, step), None), start, steps, whole=chain.is_whole)
    return Element(
        form.join(element.sensitivity),
        form.join_vector(element.mean),
        form.join(element.covariance),
        form.join_vector(element.information_vector),
        form.join(element.information),
    )


def _through(state, element: Element):
    """The filter's state after a piece, from the state before it."""
    mean, covariance = state
    size = mean.shape[0]
    right = jnp.concatenate([covariance, (mean + covariance @ element.information_vector)[:, None]], axis=1)
    solved = small_solve(jnp.eye(size) + covariance @ element.information, right)
    covariance, mean = solved[:, :-1], solved[:, -1]
    sensitivity = element.sensitivity
    return sensitivity @ mean + element.mean, sensitivity @ covariance @ sensitivity.T + element.covariance


def _back(later, element: Element):
    """The information about the state at the start of a piece from its own sites and all later ones."""
    vector, matrix = later
    size = vector.shape[0]
    right = jnp.concatenate([matrix @ element.sensitivity, (vector - matrix @ element.mean)[:, None]], axis=1)
    solved = small_solve(jnp.eye(size) + matrix @ element.covariance, right)
    return (
        element.sensitivity.T @ solved[:, -1] + element.information_vector,
        element.sensitivity.T @ solved[:, :-1] + element.information,
    )


def _adjoint(mean, covariance, vector, matrix):
    """Information about a state, as (r, L) relative to its filtered mean and covariance."""
    size = mean.shape[0]
    right = jnp.concatenate([matrix, (vector - matrix @ mean)[:, None]], axis=1)
    solved = small_solve(jnp.eye(size) + matrix @ covariance, right)
    return solved[:, -1], solved[:, :-1]
