"""Likelihoods p(y | f): what the data say about the latent."""

from .base import Likelihood
from .categorical import Bernoulli, Ordinal, Softmax
from .chained import Chained, HeteroscedasticStudentT, ZeroInflated
from .continuous import Beta, Exponential, Gamma, Gaussian, LogNormal, StudentT
from .counts import Binomial, NegativeBinomial, Poisson
from .multilatent import (
    AmplitudeDemodulation,
    HeteroscedasticGaussian,
    LinearCoregionalisation,
    MultivariateGaussian,
    Product,
    RegressionNetwork,
)

__all__ = [
    "AmplitudeDemodulation",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Chained",
    "Exponential",
    "Gamma",
    "Gaussian",
    "HeteroscedasticGaussian",
    "HeteroscedasticStudentT",
    "Likelihood",
    "LinearCoregionalisation",
    "LogNormal",
    "MultivariateGaussian",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Product",
    "RegressionNetwork",
    "Softmax",
    "StudentT",
    "ZeroInflated",
]
