"""Weights of rows, in copies.

A row of weight w > 1 is w copies of itself, and each copy has its own share 1/w of the row's site: everything that a
method does with a row, cavities included, it does with one copy. A row of weight w < 1 is one copy of a row with
density p^w, because a cavity cannot leave out more than the site. Both are what the method would do if such rows were
in the data; for integers, weights and repeated rows agree for every method.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..likelihoods.base import Likelihood
from ..likelihoods.weighted import Weighted, with_weight


class Copies(NamedTuple):
    """A row as a number of copies, each of which has a density to the power of `share`; None stands for 1."""

    base: Likelihood
    """The likelihood without weights."""
    share: Float[Array, ""] | None
    number: Float[Array, ""] | None

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of one copy."""
        return self.base if self.share is None else with_weight(self.base, self.share)


def copies_of(likelihood: Likelihood) -> Copies:
    """The copies that one row of this likelihood consists of."""
    if not isinstance(likelihood, Weighted):
        return Copies(likelihood, None, None)
    weight = jnp.asarray(likelihood.weights)
    # Rows without weight are not observed, and any weight does for them.
    weight = jnp.where(weight > 0.0, weight, 1.0)
    return Copies(likelihood.base, jnp.minimum(weight, 1.0), jnp.maximum(weight, 1.0))


def times(tree: Any, factor: Any) -> Any:
    """All numbers times a factor; None stands for 1."""
    return tree if factor is None else jax.tree.map(lambda leaf: factor * leaf, tree)


def divided(tree: Any, number: Float[Array, ""] | None) -> Any:
    """All numbers divided by a number; None stands for 1."""
    return tree if number is None else jax.tree.map(lambda leaf: leaf / number, tree)


def raised(likelihood: Likelihood, power: Any) -> tuple[Likelihood, Any]:
    """A likelihood without weights, and the power to which its density is what was to be integrated."""
    if not isinstance(likelihood, Weighted):
        return likelihood, power
    return likelihood.base, power * likelihood.weights
