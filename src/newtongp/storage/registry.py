"""The classes that a file may name: newtongp's own, and those that a user passes."""

import dataclasses
import functools
import importlib
from collections.abc import Iterable
from typing import Any

from ..results.result import History, Result

PACKAGE = __name__.partition(".")[0]
YOURS = "user"
"""The first part of the keys of custom classes."""

_CLASSES = {
    "kernels.base": ("kernels", "Active Constant Product Scaled Sum"),
    "kernels.brownian": ("kernels", "Brownian IntegratedBrownian IntegratedMatern12"),
    "kernels.category": ("kernels", "Category"),
    "kernels.globe": ("kernels", "Chordal GreatCircle"),
    "kernels.graph": ("kernels", "Graph"),
    "kernels.multilatent": ("kernels", "Independent"),
    "kernels.periodic": ("kernels", "Cosine Periodic"),
    "kernels.simple": ("kernels", "Linear White"),
    "kernels.spherical": ("kernels", "Spherical"),
    "kernels.statespace": (
        "kernels",
        "BrownianBlock ConstantBlock IntegratedBrownianBlock IntegratedMatern12Block LinearBlock LinearSDE",
        "OscillationBlock ProductBlock ScaledBlock WhiteBlock",
    ),
    "kernels.stationary": ("kernels", "Matern12 Matern32 Matern52 Matern72 RBF RationalQuadratic"),
    "kernels.stationary_blocks": ("kernels", "MaternBlock RBFBlock"),
    "kernels.walk": ("kernels", "SeasonalWalk SeasonalWalkBlock Walk"),
    "means": ("means", "Constant Function Independent Linear Sum Zero"),
    "likelihoods.categorical": ("likelihoods", "Bernoulli Ordinal Softmax"),
    "likelihoods.chained": ("likelihoods", "Chained ZeroInflated"),
    "likelihoods.continuous": ("likelihoods", "Beta Exponential Gamma Gaussian LogNormal StudentT"),
    "likelihoods.counts": ("likelihoods", "BetaBinomial Binomial NegativeBinomial Poisson"),
    "likelihoods.multilatent": (
        "likelihoods",
        "AmplitudeDemodulation HeteroscedasticGaussian LinearCoregionalisation",
        "MultivariateGaussian Product RegressionNetwork",
    ),
    "likelihoods.partial": ("likelihoods", "PartlyObserved"),
    "likelihoods.support": ("likelihoods", "Support"),
    "likelihoods.weighted": ("likelihoods", "Weighted"),
    "priors.additive": ("priors", "Additive"),
    "priors.dense": ("priors", "DensePosterior DenseWorkspace GP"),
    "priors.linear": ("priors", "LinearModel LinearPosterior LinearWorkspace"),
    "priors.markov": ("priors", "MarkovGP"),
    "priors.space_time": ("priors", "SpaceTimeGP"),
    "priors.sparse": ("priors", "Projection SparseGP SparseInputs SparsePosterior SparseWorkspace"),
    "priors.sparse_chain_posterior": ("priors", "SparseChainPosterior"),
    "priors.statespace": ("priors", "StateSpaceModel"),
    "priors.weight_space": ("priors", "Solved"),
    "model": ("model", "Model"),
    "methods.curvature": ("methods", "Exact FirstOrder GaussNewton QuasiNewton"),
    "methods.rule": ("methods", "Method"),
    "methods.safeguard": ("methods", "Heuristic Riemannian"),
    "methods.target": (
        "methods",
        "ExpectedLogDensity LinearisedDensity LogDensity PowerDensity",
        "SecondOrderLinearisation StatisticalLinearisation",
    ),
    "numerics.cubature": ("cubature", "Adaptive GaussHermite PartwiseRule PointRule QuasiRandom Unscented"),
    "numerics.gaussian": ("gaussian", "Gaussian Sites"),
    "numerics.kalman.intervals": ("kalman", "Factors"),
    "inference.steps": ("steps", "Backtracking Constant Damped DoubleLoop"),
    "parameters.constraints": ("constraints", "Between Covariance Positive Real"),
    "parameters.penalised": ("parameters", "PCMixing PCStandardDeviation PCVariance"),
    "parameters.priors": ("parameters", "Gamma LogNormal Normal Plausible"),
    "inputs.columns": ("columns", "Columns"),
    "inputs.data": ("data", "Data"),
    "terms.base": ("terms", "Terms"),
    "terms.columns": ("terms", "TableColumns"),
    "terms.features": ("terms", "Factor Interaction Numeric Polynomial Spline"),
    "terms.group": ("terms", "Group GroupEncoder"),
    "terms.linear": ("terms", "DesignEncoder FeatureEncoder Linear Offset"),
    "terms.inputs": ("terms", "InputEncoder ProductEncoder"),
    "terms.kernel_term": ("terms", "Product"),
    "terms.smooth": ("terms", "Area Smooth"),
    "terms.times": ("terms", "RandomWalk Season Trend"),
    "validation.times": ("times", "Clock"),
    "results.fit_result": ("fitted", "FitResult"),
    "results.result": ("results", "History Result"),
    "results.status": ("results", "Status"),
}
"""For each module, the first part of its keys and the classes that can be saved.

Files refer to classes by key, such as "priors.GP". Keys do not change when a class moves to another module: change the
module here, and never the key.
"""

_MODULES = {f"{part}.{name}": module for module, (part, *names) in _CLASSES.items() for name in " ".join(names).split()}


def key_of(cls: type) -> str | None:
    """The key of a class; None if its objects cannot be saved.

    >>> from newtongp import GP
    >>> key_of(GP)
    'priors.GP'
    """
    module = cls.__module__.removeprefix(f"{PACKAGE}.")
    for place in (module, module.rpartition(".")[0]):
        key = f"{_CLASSES[place][0]}.{cls.__name__}" if place in _CLASSES else None
        if key in _MODULES and class_of(key) is cls:
            return key
    return None


@functools.cache
def class_of(key: str) -> type | None:
    """The newtongp class with this key, if there is one."""
    if key not in _MODULES:
        return None
    return getattr(importlib.import_module(f"{PACKAGE}.{_MODULES[key]}"), key.partition(".")[2])


_REPLACED = {"methods.FirstOrderVI": "methods.presets"}
"""Keys of classes of version 0.1 that are functions now, and their modules. The fields are the arguments."""


def replacement_of(key: str) -> Any:
    """The function that replaces the class with this key; None if the class was not replaced."""
    if key not in _REPLACED:
        return None
    return getattr(importlib.import_module(f"{PACKAGE}.{_REPLACED[key]}"), key.partition(".")[2])


def known_classes() -> dict[str, Any]:
    """All newtongp classes that can be saved, by key."""
    return {key: class_of(key) for key in _MODULES}


def is_record(cls: type) -> bool:
    """Whether objects of a class are determined by their fields."""
    return dataclasses.is_dataclass(cls) or is_named_tuple(cls) or issubclass(cls, (Result, History))


def is_named_tuple(cls: type) -> bool:
    """Whether a class is a named tuple."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def by_name(classes: Iterable[Any]) -> dict[str, Any]:
    """The user's `classes`, by name."""
    if isinstance(classes, (str, type)) or not isinstance(classes, Iterable):
        raise ValueError(f"classes must be a list of classes, as in classes=[MyLikelihood], got {classes!r}")
    named: dict[str, Any] = {}
    for item in classes:
        if not callable(item) or not isinstance(getattr(item, "__name__", None), str):
            raise ValueError(f"classes must hold classes, or functions with a name, got {item!r}")
        if named.setdefault(item.__name__, item) is not item:
            raise ValueError(f"classes must have different names, got two called {item.__name__}")
    return named
