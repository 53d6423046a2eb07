"""newtongp: approximate Bayesian inference for Gaussian priors and any likelihood.

A prior, a likelihood and a method are three independent choices:

>>> import newtongp as ng
>>> model = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=1.0)), ng.likelihoods.Poisson())
>>> result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 4, 2, 0])
>>> result.status.name
'CONVERGED'
"""

from typing import TYPE_CHECKING

from ._runtime import garbage as _garbage

with _garbage.imports():
    # Imported from here, not from the modules below: CPython maps memory for the frames of deep calls, and unmaps it
    # when they return. That happens tens of thousands of times if JAX, whose import makes very many calls, is imported
    # at the wrong depth.
    import equinox  # noqa: F401
    import jax.numpy  # noqa: F401

    from . import interface, kernels, likelihoods, means
    from ._runtime.lazy import on_demand
    from ._runtime.version import __version__ as __version__
    from .inference.infer import infer, iterate
    from .inference.steps import Backtracking, Constant, Damped, DoubleLoop
    from .likelihoods.base import Likelihood
    from .methods.curvature import Exact, GaussNewton, QuasiNewton
    from .methods.presets import VI, FirstOrderVI, Newton, PosteriorLinearisation, PowerEP, Taylor
    from .methods.rule import Method
    from .methods.safeguard import Heuristic, Riemannian
    from .model import Model
    from .numerics import cubature
    from .numerics.gaussian import Gaussian, Sites
    from .numerics.rounding import RoundingWarning
    from .priors.markov import MarkovGP
    from .results.result import InferenceError, Result
    from .results.status import ConvergenceWarning, FitWarning, Status

if TYPE_CHECKING:
    from . import datasets, diagnostics, forecasting, inputs, parameters, plotting, prediction, report, storage, terms
    from ._runtime.cache import use_cache
    from .diagnostics import compare, cross_validate
    from .fitting.fit import fit
    from .forecasting import Forecaster
    from .inference.solve import prepare, solve
    from .inference.sweep import filter_sweep
    from .parameters import Fixed, Free, Positive, Tied, hyperparameters, learned
    from .priors.dense import GP
    from .priors.linear import LinearModel
    from .priors.space_time import SpaceTimeGP
    from .priors.sparse import SparseGP
    from .priors.statespace import StateSpaceModel
    from .storage import load

interface.attach_all()

_MOVED = {
    **{
        name: f"newtongp.cubature.{name}"
        for name in ("Adaptive", "Cubature", "GaussHermite", "PointRule", "QuasiRandom", "Unscented")
    },
    **{name: f"newtongp.diagnostics.{name}" for name in ("Calibration", "Comparison", "CrossValidation")},
    **{name: f"newtongp.parameters.{name}" for name in ("Between", "Covariance", "Real")},
    "FitResult": "newtongp.results.FitResult",
    "ParquetChunks": "newtongp.inputs.ParquetChunks",
    "Prediction": "newtongp.prediction.Prediction",
    "checking": "newtongp.diagnostics",
    "experiments": "`make reproduce CASE=motorcycle` in the repository",
    "demo": "`make demo` in the repository",
}
"""What to write for names of version 0.1. They go with version 0.3."""

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "_runtime.cache": "use_cache",
        "": "datasets diagnostics forecasting inputs parameters plotting prediction report storage terms",
        "diagnostics": "compare cross_validate",
        "fitting.fit": "fit",
        "forecasting": "Forecaster",
        "inference.solve": "prepare solve",
        "inference.sweep": "filter_sweep",
        "parameters": "Fixed Free Positive Tied hyperparameters learned",
        "priors.dense": "GP",
        "priors.linear": "LinearModel",
        "priors.space_time": "SpaceTimeGP",
        "priors.sparse": "SparseGP",
        "priors.statespace": "StateSpaceModel",
        "storage": "load",
    },
    _MOVED,
)

__all__ = [
    "GP",
    "VI",
    "Backtracking",
    "Constant",
    "ConvergenceWarning",
    "Damped",
    "DoubleLoop",
    "Exact",
    "FirstOrderVI",
    "FitWarning",
    "Fixed",
    "Forecaster",
    "Free",
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
    "Positive",
    "PosteriorLinearisation",
    "PowerEP",
    "QuasiNewton",
    "Result",
    "Riemannian",
    "RoundingWarning",
    "Sites",
    "SpaceTimeGP",
    "SparseGP",
    "StateSpaceModel",
    "Status",
    "Taylor",
    "Tied",
    "compare",
    "cross_validate",
    "cubature",
    "datasets",
    "diagnostics",
    "filter_sweep",
    "fit",
    "forecasting",
    "hyperparameters",
    "infer",
    "inputs",
    "iterate",
    "kernels",
    "learned",
    "likelihoods",
    "load",
    "means",
    "parameters",
    "plotting",
    "prediction",
    "prepare",
    "report",
    "solve",
    "storage",
    "terms",
    "use_cache",
]
