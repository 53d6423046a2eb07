"""newtongp: approximate Bayesian inference for Gaussian priors and any likelihood.

A prior, a likelihood and a method are three independent choices:

>>> import newtongp as ng
>>> model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=1.0)), ng.likelihoods.Poisson())
>>> result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 4, 2, 0])
>>> result.status.name
'CONVERGED'
"""

from . import datasets, kernels, likelihoods, means
from .cubature import Cubature, GaussHermite, PointRule, Unscented
from .gaussian import Gaussian, Sites
from .infer import infer, iterate
from .likelihoods.base import Likelihood
from .methods.curvature import Exact, GaussNewton, QuasiNewton
from .methods.presets import VI, FirstOrderVI, Newton, PosteriorLinearisation, PowerEP, Taylor
from .methods.rule import Method
from .methods.safeguard import Heuristic, Riemannian
from .model import Model
from .predict import Prediction
from .priors.dense import GP
from .priors.linear import LinearModel
from .priors.markov import MarkovGP
from .priors.statespace import StateSpaceModel
from .results import ConvergenceWarning, InferenceError, Result, Status
from .steps import Backtracking, Constant, Damped
from .sweep import filter_sweep

__version__ = "0.1.0"

__all__ = [
    "GP",
    "VI",
    "Backtracking",
    "Constant",
    "ConvergenceWarning",
    "Cubature",
    "Damped",
    "Exact",
    "FirstOrderVI",
    "GaussHermite",
    "GaussNewton",
    "Gaussian",
    "Heuristic",
    "InferenceError",
    "Likelihood",
    "LinearModel",
    "MarkovGP",
    "Method",
    "Model",
    "Newton",
    "PointRule",
    "PosteriorLinearisation",
    "PowerEP",
    "Prediction",
    "QuasiNewton",
    "Result",
    "Riemannian",
    "Sites",
    "StateSpaceModel",
    "Status",
    "Taylor",
    "Unscented",
    "datasets",
    "filter_sweep",
    "infer",
    "iterate",
    "kernels",
    "likelihoods",
    "means",
]
