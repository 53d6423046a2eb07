"""Terms over the same column as one function g = Σ g_t, with one weight per distinct input instead of one per term.

Nothing but the sum is conditioned on. With K_t the covariance of g_t, K = Σ K_t = RRᵀ at the distinct inputs and
g = Rw, a sum Σ c_t g_t at other inputs has the covariance Σ c_t K_t with g there, so that its row of weights is R⁻¹k
with k = Σ c_t k_t, and the variance Σ c_t² k_t(x, x) − |R⁻¹k|² is left given w.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..numerics import linalg
from ..terms.base import Terms, Weights
from ..terms.kernel_term import KernelTerm, root_of


def joined_terms(terms: Terms) -> tuple[int, ...]:
    """The terms of a latent that are one function: of the column of time that most of them share, if several do."""
    found: dict[Any, list[int]] = {}
    for number, term in enumerate(terms.terms):
        if isinstance(term, KernelTerm) and term.is_chain and term.points is not None:
            found.setdefault((term.columns, term.points.shape), []).append(number)
    largest = max(found.values(), key=len, default=[])
    return tuple(largest) if len(largest) > 1 else ()


def chosen(numbers: tuple[int, ...], *lists: Sequence[Any]) -> list[list[Any]]:
    """The entries of lists that have these numbers."""
    return [[own[number] for number in numbers] for own in lists]


def at_data(terms: Sequence[Any], rows: Sequence[Any]) -> Weights:
    """The weights of the sum at the data; lines that single terms have are not among them."""
    codes, multiplier, _ = rows[0]
    return Weights(codes, multiplier, _root(terms), terms[0].points.shape[0], _over(terms), False)


def at_rows(terms: Sequence[Any], x: Sequence[Any], factors: Sequence[Any]) -> Weights:
    """The same at other encoded rows, for a weighted sum of the terms."""
    rows, left = _projected(terms, x, factors)
    return Weights(None, rows, None, 1, _over(terms), False, left)


def new_covariance(terms: Sequence[Any], x: Sequence[Any], factors: Sequence[Any]) -> Float[Array, "M M"]:
    """The covariance of what is left of a weighted sum given the weights."""
    rows, left = _projected(terms, x, factors)
    parts = [
        factor**2 * term.gram(own[:, :-1], own[:, :-1]) for term, own, factor in zip(terms, x, factors, strict=True)
    ]
    found = sum(parts[1:], parts[0]) - rows @ rows.T
    return found + jnp.diag(left - jnp.diagonal(found))


def _over(terms: Sequence[Any]) -> str:
    return " + ".join(term.label for term in terms)


def _root(terms: Sequence[Any]) -> Float[Array, "L L"]:
    grams = [term.gram(term.points, term.points) for term in terms]
    return root_of(functools.reduce(operator.add, grams), terms[0].used)


def _projected(terms: Sequence[Any], x: Sequence[Any], factors: Sequence[Any]) -> tuple[Any, Any]:
    """The rows R⁻¹k, and the variance that is left."""
    inputs, used = [own[:, :-1] for own in x], jnp.asarray(terms[0].used)
    pairs = list(zip(terms, inputs, factors, strict=True))
    cross = sum(factor * term.gram(jnp.asarray(term.points), own) for term, own, factor in pairs)
    root = _root(terms)
    rows = linalg.solve_lower(root, jnp.where(used[:, None], cross, 0.0)).T
    left = sum(factor**2 * term.variance_at(own) for term, own, factor in pairs) - jnp.sum(rows**2, axis=1)
    left = jnp.maximum(left, 0.0)
    # At the inputs of the data the rows of the whole sum are those of R, here without rounding.
    points, whole = jnp.asarray(terms[0].points), jnp.all(jnp.stack([jnp.asarray(one) for one in factors]) == 1.0)
    same = jnp.all(inputs[0][:, None, :] == points[None], axis=2) & used[None]
    known = jnp.any(same, axis=1) & whole
    return jnp.where(known[:, None], root[jnp.argmax(same, axis=1)], rows), jnp.where(known, 0.0, left)
