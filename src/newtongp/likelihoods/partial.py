"""Rows with some outputs missing, which are marginalised."""

import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.small import small_normal_log_density
from .base import Likelihood

# A missing output is replaced by one that is 0, has mean 0, and has the variance at which N(0 | 0, v) = 1, so it adds
# nothing to any density.
_SILENT_VARIANCE = 0.5 / math.pi


@final
class PartlyObserved(Likelihood):
    """p(observed part of y | f): the likelihood of rows with some outputs missing.

    Missing outputs must be 0 in `y`. `infer` creates this likelihood if rows are partly missing.

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
        return self.whole.num_latents

    @property
    def num_outputs(self) -> int:
        return self.whole.num_outputs

    @property
    def gaussian_form(self) -> bool:
        """Part of a Gaussian vector is Gaussian."""
        return self.whole.gaussian_form

    @property
    def linear_latents(self) -> tuple[int, ...]:
        return self.whole.linear_latents

    @property
    def log_prob_degree(self) -> int | None:
        return self.whole.log_prob_degree

    @property
    def row_parameters(self) -> tuple[str, ...]:
        """The mask of observed outputs, and the row parameters of the full likelihood."""
        return ("seen", *self.whole.row_parameters)

    def row_parameter(self, name: str) -> Any:
        return self.seen if name == "seen" else self.whole.row_parameter(name)

    def log_prob(self, y, f):
        """log p(observed part of y | f)."""
        if not self.whole.gaussian_form:
            return self.whole.partial_log_prob(y, self.seen, f)
        return small_normal_log_density(y - self.mean(f), self.covariance(f))

    def log_prob_at_nodes(self, y, f):
        """log p(observed part of y | f) with its derivatives, if the full likelihood has them."""
        return self.whole.partial_log_prob_at_nodes(y, self.seen, f)

    def mean(self, f):
        """E[y | f], with 0 for missing outputs."""
        return jnp.where(self.seen, self.whole.mean(f), 0.0)

    def covariance(self, f):
        """Cov[y | f] of the observed outputs, with independent noise for the missing ones."""
        return self._silence(self.whole.covariance(f))

    def linear_form(self, others):
        """The linear form of the full likelihood, with only independent noise in missing outputs."""
        matrix, offset, noise = self.whole.linear_form(others)
        return jnp.where(self.seen[:, None], matrix, 0.0), jnp.where(self.seen, offset, 0.0), self._silence(noise)

    def moments_problem(self):
        return self.whole.moments_problem()

    def _silence(self, covariance):
        both = self.seen[:, None] & self.seen[None, :]
        return jnp.where(both, covariance, _SILENT_VARIANCE * jnp.eye(self.num_outputs))


def partly_problem(likelihood: Likelihood) -> str | None:
    """A message if rows of this likelihood cannot be partly missing, or None if they can."""
    if likelihood.gaussian_form or type(likelihood).partial_log_prob is not Likelihood.partial_log_prob:
        return None
    return (
        f"{type(likelihood).__name__} cannot leave out some of its outputs: define `partial_log_prob`, or "
        "set all outputs of such rows to NaN"
    )
