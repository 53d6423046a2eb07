"""Hyperparameters: constraints, names, specifications and prior densities."""

from .constraints import Between, Covariance, Positive, Real, learned
from .names import hyperparameters
from .penalised import PCMixing, PCStandardDeviation, PCVariance
from .priors import Gamma, LogNormal, Normal, Plausible
from .specifications import Fixed, Free, Tied

__all__ = [
    "Between",
    "Covariance",
    "Fixed",
    "Free",
    "Gamma",
    "LogNormal",
    "Normal",
    "PCMixing",
    "PCStandardDeviation",
    "PCVariance",
    "Plausible",
    "Positive",
    "Real",
    "Tied",
    "hyperparameters",
    "learned",
]
