"""Results as their parts, and back: those that `infer` and `fit` return."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import data as data_room
from ..data import Data
from ..fitted import FitResult
from ..gaussian import Gaussian, Sites
from ..infer import posterior_of
from ..methods.presets import FirstOrderVI
from ..methods.rule import Method
from ..model import Model
from ..precision import in_double
from ..priors.base import Posterior
from ..priors.sparse import SparseGP, SparsePosterior
from ..problem import Setup
from ..results import History, Result, Status
from .errors import FileFormatError, require, short
from .fields import fits, is_finite

_PARTS: dict[str, Any] = {
    "model": Model,
    "method": Method | FirstOrderVI,
    "data": Data | None,
    "status": Status,
    "energy": float,
    "residual": float,
    "steps": int,
    "history": History,
    "sites": Sites | None,
    "marginals": Gaussian | None,
    "site_marginals": Gaussian | None,
    "posterior": Posterior | None,
}
"""What every result has; classes of results may have more."""

_FIT_PARTS: dict[str, Any] = {
    **_PARTS,
    "inference_status": Status,
    "learned": dict[str, np.ndarray],
    "priors": dict[str, Callable],
    "standard_errors": dict[str, np.ndarray],
    "at_bound": list[str],
    "penalty": float,
    "fit_history": np.ndarray,
    "evaluations": int,
    "seconds": float,
    "tied": dict[str, str],
}
"""What every `FitResult` has."""


def contents_of_result(result: Result) -> dict[str, Any]:
    """What a result is made of: its attributes, but for private ones and what is computed when it is asked for."""
    kept = {
        name: value
        for name, value in vars(result).items()
        if not name.startswith("_") and not isinstance(getattr(type(result), name, None), functools.cached_property)
    }
    if result.site_marginals is result.marginals:
        kept["site_marginals"] = None
    return {**kept, "posterior": result.posterior if _keeps_posterior(result.model, result) else None}


def _keeps_posterior(model: Model, result: Any) -> bool:
    """Whether the posterior itself is kept: where it does not follow from the sites, or inputs were chosen from data.

    A dense GP's has N² numbers, and is soon computed again.
    """
    return result.data is None or result.sites is None or isinstance(model.prior, SparseGP)


def make_result(cls: type, values: dict[str, Any], where: str) -> Result:
    """A result with these parts, checked."""
    parts = _FIT_PARTS if issubclass(cls, FitResult) else _PARTS
    wrong = [name for name in parts if name not in values]
    wrong += [name for name in values if not name.isidentifier() or name.startswith("_")]
    wrong += [name for name in values if name not in parts and hasattr(getattr(cls, name, None), "__get__")]
    if wrong:
        raise FileFormatError(f"{where}: {short(wrong[0])} cannot be, or cannot be missing, in a {cls.__name__}")
    for name, kind in parts.items():
        if not fits(values[name], kind):
            raise FileFormatError(f"{where}.{name} cannot be {short(values[name])}")
    made, posterior = object.__new__(cls), values.pop("posterior")
    vars(made).update(values)
    if made.site_marginals is None:
        made.site_marginals = made.marginals
    _check_result(made, posterior)
    if isinstance(made, FitResult):
        _check_fit(made)
    if posterior is None:
        made._condition = functools.partial(_conditioned, made.model, made.data, made.sites)
    else:
        made._condition = lambda: posterior
    return made


def _check_result(result: Result, posterior: Posterior | None) -> None:
    model, latents = result.model, result.model.prior.num_latents
    keeps = _keeps_posterior(model, result)
    require((posterior is not None) == keeps, "its posterior cannot be missing" if keeps else "it has two posteriors")
    if posterior is not None and isinstance(model.prior, SparseGP):
        require(isinstance(posterior, SparsePosterior), "the posterior is of another prior")
        require(posterior.prior.num_latents == latents, "the posterior has another number of latents")  # pyright: ignore
    require(result.steps >= 0, f"steps cannot be {result.steps}")
    rows = None
    if result.data is not None:
        data_room.read_data(result.data.x, result.data.outputs, model)
        rows = result.data.x.shape[0]
    for name in ("sites", "marginals", "site_marginals"):
        part = getattr(result, name)
        if part is not None:
            vector, matrix = vars(part).values()
            rows = vector.shape[0] if rows is None else rows
            require(vector.shape == (rows, latents), f"{name} must be of {rows} row(s) and {latents} latent(s)")
            # A run that broke down may have nothing better to show.
            fine = result.status.failed or (is_finite(vector) and is_finite(matrix))
            require(fine, f"{name} must be finite")


def _check_fit(result: FitResult) -> None:
    for name in ("learned", "standard_errors"):
        arrays = [np.asarray(value) for value in getattr(result, name).values()]
        require(all(array.dtype.kind == "f" for array in arrays), f"{name} must be numbers")
    history = np.asarray(result.fit_history)
    require(history.ndim == 1 and history.dtype.kind == "f", "fit_history must be a vector")
    require(result.evaluations >= 0, f"evaluations cannot be {result.evaluations}")
    require(is_finite(result.seconds), f"seconds cannot be {result.seconds}")


@in_double
def _conditioned(model: Model, data: Data, sites: Sites) -> Posterior:
    """q(f), as `infer` would have it for these sites."""
    setup = Setup(model, data.x, data.outputs)
    return posterior_of(model.prior, setup.problem.workspace, setup.order.sites(sites))
