"""A model: a prior and a likelihood that fit together."""

from typing import Any

import equinox as eqx

from .likelihoods.base import Likelihood
from .priors.base import Prior


class Model(eqx.Module):
    """A Gaussian prior over latent functions and a likelihood of the data given them (`eq:model`).

    >>> from newtongp import GP, kernels, likelihoods
    >>> Model(GP(kernels.RBF()), likelihoods.Poisson()).prior.num_latents
    1
    """

    prior: Prior
    likelihood: Likelihood

    def __init__(self, prior: Any, likelihood: Any):
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a prior such as GP(kernels.Matern32()), got {prior!r}")
        if not isinstance(likelihood, Likelihood):
            raise ValueError(f"likelihood must be one such as likelihoods.Poisson(), got {likelihood!r}")
        if prior.num_latents != likelihood.num_latents:
            raise ValueError(
                f"the likelihood {type(likelihood).__name__} has {likelihood.num_latents} latent(s), but the "
                f"prior has {prior.num_latents}: give one kernel a latent with kernels.Independent([...]), or "
                "num_latents= to a LinearModel"
            )
        self.prior = prior
        self.likelihood = likelihood
