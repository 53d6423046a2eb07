"""newtongp: approximate Bayesian inference for Gaussian priors and any likelihood.

A prior, a likelihood and a method are three independent choices:

>>> import newtongp as ng
>>> model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=1.0)), ng.likelihoods.Poisson())
>>> result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 4, 2, 0])
>>> result.status.name
'CONVERGED'
"""

from typing import TYPE_CHECKING

from . import _imports

with _imports.without_collector():
    from . import kernels, likelihoods, means
    from .cubature import Adaptive, Cubature, GaussHermite, PointRule, QuasiRandom, Unscented
    from .gaussian import Gaussian, Sites
    from .infer import infer, iterate
    from .likelihoods.base import Likelihood
    from .methods.curvature import Exact, GaussNewton, QuasiNewton
    from .methods.presets import VI, FirstOrderVI, Newton, PosteriorLinearisation, PowerEP, Taylor
    from .methods.rule import Method
    from .methods.safeguard import Heuristic, Riemannian
    from .model import Model
    from .precision import RoundingWarning
    from .priors.markov import MarkovGP
    from .results import ConvergenceWarning, FitWarning, InferenceError, Result, Status
    from .steps import Backtracking, Constant, Damped, DoubleLoop

if TYPE_CHECKING:
    from . import datasets
    from .checking import Calibration, Comparison, CrossValidation, compare, cross_validate
    from .constraints import Between, Covariance, Positive, Real, learned
    from .fitted import FitResult
    from .fitting import fit
    from .parameters import Fixed, Free, Tied, hyperparameters
    from .predict import Prediction
    from .priors.dense import GP
    from .priors.linear import LinearModel
    from .priors.sparse import SparseGP
    from .priors.statespace import StateSpaceModel
    from .rows import ParquetChunks
    from .storage import load
    from .sweep import filter_sweep

__getattr__, __dir__ = _imports.on_demand(
    __name__,
    {
        "checking": "Calibration Comparison CrossValidation compare cross_validate",
        "datasets": "",
        "constraints": "Between Covariance Positive Real learned",
        "fitted": "FitResult",
        "fitting": "fit",
        "parameters": "Fixed Free Tied hyperparameters",
        "predict": "Prediction",
        "priors.dense": "GP",
        "priors.linear": "LinearModel",
        "priors.sparse": "SparseGP",
        "priors.statespace": "StateSpaceModel",
        "rows": "ParquetChunks",
        "storage": "load",
        "sweep": "filter_sweep",
    },
)

__version__ = "0.1.0"

__all__ = [
    "GP",
    "VI",
    "Adaptive",
    "Backtracking",
    "Between",
    "Calibration",
    "Comparison",
    "Constant",
    "ConvergenceWarning",
    "Covariance",
    "CrossValidation",
    "Cubature",
    "Damped",
    "DoubleLoop",
    "Exact",
    "FirstOrderVI",
    "FitResult",
    "FitWarning",
    "Fixed",
    "Free",
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
    "ParquetChunks",
    "PointRule",
    "Positive",
    "PosteriorLinearisation",
    "PowerEP",
    "Prediction",
    "QuasiNewton",
    "QuasiRandom",
    "Real",
    "Result",
    "Riemannian",
    "RoundingWarning",
    "Sites",
    "SparseGP",
    "StateSpaceModel",
    "Status",
    "Taylor",
    "Tied",
    "Unscented",
    "compare",
    "cross_validate",
    "datasets",
    "filter_sweep",
    "fit",
    "hyperparameters",
    "infer",
    "iterate",
    "kernels",
    "learned",
    "likelihoods",
    "load",
    "means",
]
