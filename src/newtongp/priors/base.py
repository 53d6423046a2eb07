"""What a prior is to the rest of the package: something that can be conditioned on Gaussian sites."""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float

from ..gaussian import Gaussian, Sites


class Conditioned(eqx.Module):
    """q(f) ∝ p(f) ∏ tₙ(fₙ), as far as inference needs it: one marginal a row and three numbers."""

    marginals: Gaussian
    distance: Float[Array, ""]
    """(m − μ)ᵀ K⁻¹ (m − μ): how far the mean has moved from the prior's."""
    log_det: Float[Array, ""]
    """log det(I + ΛK): how much the sites have narrowed it."""
    proper: Bool[Array, ""]


class Workspace(eqx.Module):
    """A prior at the data's inputs: all that inference needs of it, step after step.

    It does not hold the prior itself, so that one compiled loop serves all kernels.
    """

    mean: eqx.AbstractVar[Any]
    """The prior mean of every row, (N, D)."""

    @abc.abstractmethod
    def marginals(self, sites: Sites) -> Conditioned:
        """Condition on sites, for one step of inference (`eq:global-update`)."""


class Posterior(eqx.Module):
    """q(f): marginals at the data, and what is needed to predict and to sample anywhere."""

    marginals: eqx.AbstractVar[Gaussian]
    log_normaliser: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def predict(self, x: Float[Array, "M P"]) -> Gaussian:
        """The marginals of f at new inputs."""

    @abc.abstractmethod
    def joint(self, x: Float[Array, "M P"]) -> Gaussian:
        """The joint distribution of f at new inputs, latents within rows: mean (M·D,), covariance (M·D, M·D)."""


class Prior(eqx.Module):
    """A Gaussian prior over functions of x, with `num_latents` of them."""

    @property
    @abc.abstractmethod
    def num_latents(self) -> int:
        """How many latent functions there are."""

    @abc.abstractmethod
    def check_inputs(self, x: np.ndarray) -> None:
        """Raise ValueError if this prior cannot be used on these inputs."""

    @abc.abstractmethod
    def prepare(self, x: Float[Array, "N P"]) -> Workspace:
        """Whatever depends on the inputs alone, computed once."""

    @abc.abstractmethod
    def condition(self, workspace: Any, sites: Sites) -> Posterior:
        """Condition on sites for good, with all that prediction needs."""
