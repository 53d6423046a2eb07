"""Likelihoods p(y | f): what the data say about the latent."""

from .base import Likelihood
from .categorical import Bernoulli
from .continuous import Beta, Exponential, Gamma, Gaussian, LogNormal, StudentT
from .counts import Binomial, NegativeBinomial, Poisson

__all__ = [
    "Bernoulli",
    "Beta",
    "Binomial",
    "Exponential",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "LogNormal",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
]
