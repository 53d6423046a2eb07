"""Likelihoods p(y | f)."""

from typing import TYPE_CHECKING

from .._runtime.lazy import on_demand
from .base import Likelihood

if TYPE_CHECKING:
    from .categorical import Bernoulli, Ordinal, Softmax
    from .chained import Chained, HeteroscedasticStudentT, ZeroInflated
    from .continuous import Beta, Exponential, Gamma, Gaussian, LogNormal, StudentT
    from .counts import BetaBinomial, Binomial, NegativeBinomial, Poisson
    from .multilatent import (
        AmplitudeDemodulation,
        HeteroscedasticGaussian,
        LinearCoregionalisation,
        MultivariateGaussian,
        Product,
        RegressionNetwork,
    )
    from .weighted import Weighted

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "categorical": "Bernoulli Ordinal Softmax",
        "chained": "Chained HeteroscedasticStudentT ZeroInflated",
        "continuous": "Beta Exponential Gamma Gaussian LogNormal StudentT",
        "counts": "BetaBinomial Binomial NegativeBinomial Poisson",
        "multilatent": "AmplitudeDemodulation HeteroscedasticGaussian LinearCoregionalisation MultivariateGaussian "
        "Product RegressionNetwork",
        "weighted": "Weighted",
    },
)

__all__ = [
    "AmplitudeDemodulation",
    "Bernoulli",
    "Beta",
    "BetaBinomial",
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
    "Weighted",
    "ZeroInflated",
]
