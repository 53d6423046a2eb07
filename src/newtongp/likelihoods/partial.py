"""Rows of which only some outputs were observed: the others are marginalised."""

import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.small import small_normal_log_density
from .base import Likelihood

# A missing output is replaced by one that is 0, has mean 0, and has the variance at which N(0 | 0, v) = 1: it adds
# nothing to any density, whatever is done with it.
_SILENT_VARIANCE = 0.5 / math.pi


@final
class PartlyObserved(Likelihood):
    """p(seen part of y | f): what a likelihood says of rows with some outputs missing.

    Missing outputs must be 0 in `y`. `infer` makes one of these by itself where rows are partly missing.

    >>> from newtongp.likelihoods import MultivariateGaussian
    >>> whole = MultivariateGaussian([[1.0, 0.5], [0.5, 2.0]])
    >>> row = PartlyObserved(whole, np.array([True, False]))
    >>> round(float(row.log_prob(jnp.array([0.3, 0.0]), jnp.zeros(2))), 4)
    -0.9639
    """

    whole: Likelihood
    seen: jax.Array | np.ndarray
    """Which outputs of a row were observed."""

    @property
    def num_latents(self) -> int:
        """As of the whole."""
        return self.whole.num_latents

    @property
    def num_outputs(self) -> int:
        """As of the whole."""
        return self.whole.num_outputs

    @property
    def gaussian_form(self) -> bool:
        """Part of a Gaussian vector is Gaussian."""
        return self.whole.gaussian_form

    @property
    def linear_latents(self) -> tuple[int, ...]:
        """As of the whole."""
        return self.whole.linear_latents

    @property
    def log_prob_degree(self) -> int | None:
        """As of the whole."""
        return self.whole.log_prob_degree

    @property
    def row_parameters(self) -> tuple[str, ...]:
        """Which outputs are seen, and those of the whole."""
        return ("seen", *self.whole.row_parameters)

    def row_parameter(self, name: str) -> Any:
        """One of its own or of the whole's."""
        return self.seen if name == "seen" else self.whole.row_parameter(name)

    def log_prob(self, y, f):
        """log p(seen part of y | f)."""
        if not self.whole.gaussian_form:
            return self.whole.partial_log_prob(y, self.seen, f)
        return small_normal_log_density(y - self.mean(f), self.covariance(f))

    def mean(self, f):
        """E[y | f], 0 for what is missing."""
        return jnp.where(self.seen, self.whole.mean(f), 0.0)

    def covariance(self, f):
        """Cov[y | f] of what is seen, beside independent noise for what is missing."""
        return self._silence(self.whole.covariance(f))

    def linear_form(self, others):
        """That of the whole, with nothing but independent noise in what is missing."""
        matrix, offset, noise = self.whole.linear_form(others)
        return jnp.where(self.seen[:, None], matrix, 0.0), jnp.where(self.seen, offset, 0.0), self._silence(noise)

    def moments_problem(self):
        """As of the whole."""
        return self.whole.moments_problem()

    def _silence(self, covariance):
        both = self.seen[:, None] & self.seen[None, :]
        return jnp.where(both, covariance, _SILENT_VARIANCE * jnp.eye(self.num_outputs))


def partly_problem(likelihood: Likelihood) -> str | None:
    """Why rows of this likelihood cannot be partly missing, in a sentence, or None if they can."""
    knows = type(likelihood).partial_log_prob is not Likelihood.partial_log_prob
    if likelihood.gaussian_form or knows:
        return None
    return (
        f"{type(likelihood).__name__} does not say how to leave out some of its outputs: define `partial_log_prob`, or "
        "set all outputs of such rows to NaN"
    )
