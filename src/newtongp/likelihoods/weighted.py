"""Rows with weights: p(y | f)^w."""

import contextlib
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..validation.numbers import NotRealError, as_real, parameter
from .base import Likelihood, rows_or_column
from .wrapper import Wrapper


def _weights(value: Any, name: str) -> Any:
    """Weights as numbers that are at least 0; ValueError names the row of one that is not."""
    remedy = "give numbers that are at least 0, one per row"
    with contextlib.suppress(NotRealError):
        array = np.zeros(0) if isinstance(value, Tracer) else as_real(value)
        wrong = np.flatnonzero(~((array >= 0.0) & np.isfinite(array)))
        if array.ndim == 1 and wrong.size:
            raise ValueError(
                f"{name} must be finite and at least 0, but row {wrong[0]} is {array[wrong[0]]}: use 0 for a row that "
                "is to have no influence"
            )
    return parameter(value, name, lower=0.0, strict=False, max_ndim=1, remedy=remedy)


@final
class Weighted(Wrapper):
    """A likelihood with one weight w per row: every row contributes p(y | f)^w.

    A row of weight 2 counts as if it were in the data twice, and one of weight 0 as if its y were missing. Weights say
    how much evidence a row is, not how noisy it is: predictions of y are those of `base`. The argument `weights` of
    `infer` and `fit` does the same.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> weighted = ng.Model(model.prior, Weighted(model.likelihood, [2.0, 1.0, 0.0]))
    >>> result = ng.infer(weighted, [0.0, 1.0, 2.0], [3, 0, 8])
    >>> twice = ng.infer(model, [0.0, 0.0, 1.0], [3, 3, 0])
    >>> bool(abs(result.energy - twice.energy) < 1e-8)
    True
    """

    base: Likelihood
    weights: jax.Array | np.ndarray

    def __init__(self, base, weights):
        """`base` is a likelihood; `weights` are at least 0: one per row, a number, or the name of a column."""
        if not isinstance(base, Likelihood):
            raise ValueError(f"base must be a likelihood such as Poisson(), got {base!r}")
        if isinstance(base, Weighted) or "weights" in base.row_parameters:
            raise ValueError(f"{type(base).__name__} already has weights: give their product")
        self.base = base
        self.weights = rows_or_column(_weights, weights, "weights")

    @property
    def row_parameters(self) -> tuple[str, ...]:
        """The weights, and the row parameters of the wrapped likelihood."""
        return ("weights", *self.base.row_parameters)

    def row_parameter(self, name: str) -> Any:
        return self.weights if name == "weights" else self.base.row_parameter(name)

    def check_row_parameter(self, name, value):
        """Weights must be at least 0."""
        return _weights(value, name) if name == "weights" else self.base.check_row_parameter(name, value)

    @property
    def num_latents(self) -> int:
        return self.base.num_latents

    @property
    def num_outputs(self) -> int:
        return self.base.num_outputs

    @property
    def latent_names(self) -> Any:
        return self.base.latent_names

    @property
    def gaussian_form(self) -> bool:
        """Whether `base` is Gaussian: its power is, up to a factor."""
        return self.base.gaussian_form

    @property
    def log_concave(self) -> bool:
        return self.base.log_concave

    @property
    def linear_latents(self) -> Any:
        return self.base.linear_latents

    @property
    def log_prob_degree(self) -> int | None:
        return self.base.log_prob_degree

    @property
    def long_formulas(self) -> bool:
        return self.base.long_formulas

    @property
    def contrasts(self) -> Any:
        return self.base.contrasts

    def log_prob(self, y, f):
        """w log p(y | f)."""
        return self.weights * jnp.asarray(self.base.log_prob(y, f))

    def mean(self, f):
        return self.base.mean(f)

    def covariance(self, f):
        return self.base.covariance(f)

    def probabilities(self, f):
        return self.base.probabilities(f)

    def cdf(self, y, f):
        return self.base.cdf(y, f)

    def sample(self, key, f):
        return self.base.sample(key, f)

    def expected_log_prob(self, y, mean, covariance):
        """w E[log p(y | f)]."""
        closed = self.base.expected_log_prob(y, mean, covariance)
        return None if closed is None else self.weights * closed

    def log_expected_power(self, y, mean, covariance, power):
        """log E[p(y | f)^(w power)]."""
        return self.base.log_expected_power(y, mean, covariance, self.weights * power)

    def peak(self, y):
        """The peak of `base`, narrower by √w."""
        peak = self.base.peak(y)
        return None if peak is None else (peak[0], peak[1] / jnp.sqrt(self.weights))

    def moments_problem(self):
        return self.base.moments_problem()


def unweighted(likelihood: Likelihood) -> Likelihood:
    """The likelihood without weights.

    >>> from newtongp import likelihoods
    >>> type(unweighted(Weighted(likelihoods.Poisson(), [1.0, 2.0]))).__name__
    'Poisson'
    """
    return likelihood.base if isinstance(likelihood, Weighted) else likelihood


def with_weight(base: Likelihood, weight: Any) -> Weighted:
    """`Weighted`, without checks, for weights that have been checked."""
    return eqx.tree_at(lambda made: made.weights, Weighted(base, 1.0), weight)


def weights_of(likelihood: Likelihood) -> Any:
    """The weights of a likelihood that has them; None for others, and if all weights are 1."""
    weights = likelihood.weights if isinstance(likelihood, Weighted) else None
    known = weights is not None and not isinstance(weights, (str, Tracer))
    return None if known and np.all(np.asarray(weights) == 1.0) else weights


def refuse_weights(base: Likelihood, name: str) -> None:
    """Raise ValueError if a likelihood that another one is made of has weights, which are those of whole rows."""
    if isinstance(base, Weighted):
        raise ValueError(
            f"weights are those of whole rows, got {name}(Weighted(...)): write Weighted({name}(...), weights)"
        )
