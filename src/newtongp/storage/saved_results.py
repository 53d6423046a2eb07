"""Conversion of results to their parts, and back."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .._runtime.double import in_double
from ..inference.infer import posterior_of
from ..inference.problem import Setup
from ..inputs.columns import KINDS, NUMBERS, Columns
from ..inputs.data import Data, read_data
from ..methods.rule import Method
from ..model import Model, weighted_model
from ..numerics.gaussian import Gaussian, Sites
from ..priors.additive import Additive
from ..priors.base import Posterior
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP, SparsePosterior
from ..priors.sparse_chain_posterior import SparseChainPosterior
from ..results.fit_result import FitResult
from ..results.result import History, Result
from ..results.status import Status
from ..results.wording import inference_status
from ..terms.columns import TableColumns, as_inputs
from ..validation.text import short
from .constructing import same
from .errors import FileFormatError, require
from .fields import fits, is_finite
from .terms import check_table_columns

_PARTS: dict[str, Any] = {
    "model": Model,
    "method": Method,
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
    "columns": Columns | TableColumns | None,
}
"""The parts of every result; subclasses may have more."""

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
"""The additional parts of every `FitResult`."""


def contents_of_result(result: Result) -> dict[str, Any]:
    """The parts of a result: its attributes, except private and lazily computed ones."""
    if isinstance(result, FitResult):
        _ = result.standard_errors  # an attribute from its first use on
        if isinstance(result.model.prior, Additive):
            _ = result.profiles  # which its effects are shown with
    fields = {
        name: value
        for name, value in vars(result).items()
        if not name.startswith("_") and not isinstance(getattr(type(result), name, None), functools.cached_property)
    }
    if result.site_marginals is result.marginals:
        fields["site_marginals"] = None
    return {**fields, "posterior": result.posterior if _keeps_posterior(result.model, result) else None}


def _keeps_posterior(model: Model, result: Any) -> bool:
    """Whether the posterior itself is saved: if it does not follow from the sites, or inputs were chosen from data.

    That of a dense GP has N² numbers and is quickly recomputed.
    """
    return result.data is None or result.sites is None or isinstance(model.prior, SparseGP)


def make_result(cls: type, values: dict[str, Any], where: str) -> Result:
    """Create a result from these parts, and check it."""
    parts = _FIT_PARTS if issubclass(cls, FitResult) else _PARTS
    values.setdefault("columns", None)  # absent in files of older versions
    wrong = [name for name in parts if name not in values]
    wrong += [name for name in values if not name.isidentifier() or name.startswith("_")]
    wrong += [name for name in values if name not in parts and hasattr(getattr(cls, name, None), "__get__")]
    if wrong:
        raise FileFormatError(f"{where}: {short(wrong[0])} is unexpected or missing in a {cls.__name__}")
    for name, kind in parts.items():
        if not fits(values[name], kind):
            raise FileFormatError(f"{where}.{name} cannot be {short(values[name])}")
        if kind is float:
            values[name] = float(values[name])
    made = restored(cls, values)
    _check_result(made, values["posterior"])
    if isinstance(made, FitResult):
        _check_fit(made)
    return made


def restored(cls: type, values: dict[str, Any]) -> Result:
    """A result with these parts, which are not checked; also what pickle calls."""
    made, posterior = object.__new__(cls), values["posterior"]
    vars(made).update({name: value for name, value in values.items() if name != "posterior"})
    if made.site_marginals is None:
        made.site_marginals = made.marginals
    if posterior is None:
        made._condition = functools.partial(_conditioned, made.model, made.data, made.sites, made.columns)
    else:
        made._condition = lambda: posterior
    return made


def _check_result(result: Result, posterior: Posterior | None) -> None:
    ending = inference_status(result)
    require(Status.RUNNING not in (result.status, ending), "status must be final, not RUNNING")
    # A run that broke down may have no finite energy.
    require(ending.failed or is_finite(result.energy), f"energy must be finite, got {result.energy}")
    fine = ending.failed or result.residual >= 0.0
    require(fine, f"residual must be at least 0, got {result.residual}")
    history = len(result.history)
    require(result.steps == history, f"steps cannot be {result.steps} with a history of {history}")
    _check_posterior(result, posterior)
    _check_rows(result, ending.failed)
    _check_columns(result)


def _check_rows(result: Result, failed: bool) -> None:
    """Check the parts with one entry per row of the data."""
    model, rows = result.model, None if result.data is None else result.data.x.shape[0]
    latents = model.prior.num_latents
    for name in ("sites", "marginals", "site_marginals"):
        part = getattr(result, name)
        if part is not None:
            vector, matrix = vars(part).values()
            rows = vector.shape[0] if rows is None else rows
            require(vector.shape == (rows, latents), f"{name} must be of {rows} row(s) and {latents} latent(s)")
            require(failed or (is_finite(vector) and is_finite(matrix)), f"{name} must be finite")
    parts = result.sites, result.marginals, result.site_marginals
    require(len({part is None for part in parts}) == 1, "sites and marginals can be missing only together")
    if result.data is not None:
        read = read_data(result.data.x, result.data.outputs, weighted_model(model, result.data.weights))
        require(same(tuple(read), tuple(result.data)), "data differ from what would have been read")


def _check_columns(result: Result) -> None:
    if isinstance(result.columns, TableColumns) or isinstance(result.model.prior, Additive):
        check_table_columns(result)
        return
    if result.columns is None:
        return
    names, kind = result.columns
    require(fits(names, tuple[str, ...] | None), f"names of columns cannot be {short(names)}")
    count = None if result.data is None else result.data.x.shape[1]
    fine = names is None or count is None or len(names) == count
    require(fine, f"there must be one name per column of x, got {short(names)}")
    timed = getattr(result.model.prior, "clock", None) is not None
    require(kind in (KINDS if timed else (NUMBERS,)), f"x cannot hold {short(kind)}")


def _check_posterior(result: Result, posterior: Posterior | None) -> None:
    prior, keeps = result.model.prior, _keeps_posterior(result.model, result)
    require(
        (posterior is not None) == keeps,
        "its posterior cannot be missing" if keeps else "an unexpected posterior is present",
    )
    if posterior is not None:
        kind = _POSTERIORS.get(type(prior))
        require(kind is not None, f"the posterior of a {type(prior).__name__} follows from data and sites")
        require(type(posterior) is kind, "the posterior is of another prior")
        assert isinstance(posterior, SparsePosterior | SparseChainPosterior)
        require(same(posterior.prior, prior), "the posterior is of another prior")


_POSTERIORS: dict[type, type] = {SparseGP: SparsePosterior, MarkovGP: SparseChainPosterior}
"""Posteriors that are saved, by their priors."""


def _check_fit(result: FitResult) -> None:
    model = result.parameters
    for name in ("learned", "standard_errors"):
        arrays = getattr(result, name)
        for key, array in arrays.items():
            require(np.asarray(array).dtype.kind == "f", f"{name} must be numbers")
            require(key in model, f"{name} has {short(key)}, which the model does not")
            require(np.shape(array) == np.shape(model[key]), f"{name} has {short(key)} with shape {np.shape(array)}")
    for name, value in result.learned.items():
        fine = np.allclose(value, model[name], rtol=1e-9, atol=0.0)
        require(fine, f"{short(name)} is {short(value)} in learned, but {short(model[name])} in the model")
    for name, error in result.standard_errors.items():
        require(np.all(np.asarray(error) >= 0.0), f"standard_errors must not be negative, but that of {short(name)} is")
    for name, names in (("standard_errors", result.standard_errors), ("at_bound", result.at_bound)):
        stray = [key for key in names if key not in result.learned]
        require(not stray, f"{name} has {short(stray)}, which was not learned")
    require(isinstance(result.profiles, dict), "profiles must have names")
    for name, profile in result.profiles.items():
        known = isinstance(name, str) and (name in result.learned or name.rpartition("[")[0] in result.learned)
        require(known, f"profiles has {short(name)}, which was not learned")
        require(_is_profile(profile), f"the profile of {short(name)} must have ascending values and rises from 0")
    stray = [key for key in (*result.priors, *result.tied, *result.tied.values()) if key not in model]
    require(not stray, f"the model has no hyperparameters {short(stray)}")
    history = np.asarray(result.fit_history)
    require(history.ndim == 1 and history.dtype.kind == "f", "fit_history must be a vector")
    require(not np.any(np.isnan(history)), "fit_history must hold energies")
    require(result.evaluations >= 0, f"evaluations cannot be {result.evaluations}")
    require(is_finite(result.penalty), f"penalty must be finite, got {result.penalty}")
    require(is_finite(result.seconds) and result.seconds >= 0.0, f"seconds cannot be {result.seconds}")


def _is_profile(profile: Any) -> bool:
    """Whether this is (2, n), with positive values that ascend, and numbers from 0."""
    profile = np.asarray(profile)
    if profile.dtype.kind != "f" or profile.ndim != 2 or profile.shape[0] != 2 or profile.shape[1] == 0:
        return False
    values, rises = profile
    ascends = values[0] > 0.0 and np.all(np.diff(values) > 0.0)
    return bool(ascends and np.min(rises) == 0.0 and np.all(np.isfinite(profile)))


@in_double
def _conditioned(model: Model, data: Data, sites: Sites, columns: Any) -> Posterior:
    """q(f), as `infer` would compute it for these sites."""
    setup = Setup(model, as_inputs(data.x, columns), data.outputs)
    return posterior_of(model.prior, setup.problem.workspace, setup.order.sites(sites), data.x.shape[0])
