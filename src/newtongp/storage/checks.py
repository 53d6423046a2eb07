"""What must hold of objects beyond the types of their fields."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import means
from ..data import Data
from ..gaussian import Gaussian, Sites
from ..model import Model
from ..precision import in_double
from ..priors.dense import GP
from ..priors.linear import LinearModel
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP, SparsePosterior
from ..priors.statespace import StateSpaceModel
from ..results import History
from ..times import Clock
from .errors import require, short
from .fields import is_finite


def _is_array(value: Any, kind: str, *shape: int | None) -> bool:
    """Whether this is an array of that kind and shape, with None for sides of any length."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != kind or value.ndim != len(shape):
        return False
    return all(side in (None, length) for side, length in zip(shape, value.shape, strict=True))


def _check_moments(vector: Any, matrix: Any) -> None:
    fine = all(isinstance(each, np.ndarray) and each.dtype.kind == "f" for each in (vector, matrix))
    require(fine and vector.ndim > 0, "it needs a vector and a matrix")
    require(matrix.shape == (*vector.shape, vector.shape[-1]), f"shapes are {vector.shape} and {matrix.shape}")


def _check_data(data: Data) -> None:
    require(_is_array(data.x, "f", None, None) and data.x.shape[0] > 0, "x must be a matrix with one row a datum")
    rows = data.x.shape[0]
    require(_is_array(data.y, "f", rows, None), f"y must be a matrix with {rows} row(s)")
    require(_is_array(data.observed, "b", rows), f"observed must have {rows} truth value(s)")
    require(data.seen is None or _is_array(data.seen, "b", *data.y.shape), "seen must be like y")
    require(is_finite(data.x) and is_finite(data.y), "x and y must be finite")


def _check_history(history: History) -> None:
    values = vars(history)
    require(set(values) == {"energy", "objective", "step_size"}, f"its parts are {', '.join(map(short, values))}")
    require(_is_array(history.energy, "f", None), "energy must be a vector")
    require(all(_is_array(v, "f", len(history.energy)) for v in values.values()), "its parts differ in length")


def _check_sparse_posterior(posterior: SparsePosterior) -> None:
    latents, inducing, whitening = posterior.prior.num_latents, posterior.inducing, posterior.projection.whitening
    require(len(inducing) == len(whitening) == latents, f"there must be {latents} set(s) of inducing inputs")
    for inputs, matrix in zip(inducing, whitening, strict=True):
        require(_is_array(inputs, "f", None, inducing[0].shape[1]) and inputs.size, "inducing inputs must be matrices")
        require(_is_array(matrix, "f", len(inputs), len(inputs)), "there must be one row of whitening for each input")
        posterior.prior.check_inputs(inputs)
    size = posterior.projection.size
    require(_is_array(posterior.whitened_mean, "f", latents, size), "whitened_mean does not fit inducing inputs")
    require(_is_array(posterior.half, "f", latents * size, latents, size), "half does not fit inducing inputs")


def _check_mean(prior: GP | MarkovGP | SparseGP) -> None:
    require(isinstance(prior.mean, means.Independent), f"mean cannot be {short(prior.mean)}")


def _check_gp(prior: GP) -> None:
    _check_mean(prior)
    GP(prior.kernel, prior.mean)


def _check_markov(prior: MarkovGP) -> None:
    _check_mean(prior)
    in_double(prior.as_one_piece)()


def _check_sparse(prior: SparseGP) -> None:
    _check_mean(prior)
    require((prior.count is None) != (prior.inducing is None), "inducing inputs are given or counted")
    inducing = prior.count if prior.inducing is None else list(prior.inducing)
    if prior.inducing is not None:
        require(all(_is_array(each, "f", None, None) for each in prior.inducing), "inducing inputs must be matrices")
        inducing = prior.inducing[0] if len(prior.inducing) == 1 else inducing
    SparseGP(prior.kernel, inducing, prior.mean, prior.selection, prior.seed, prior.storage)


def _check_state_space(prior: StateSpaceModel) -> None:
    fields = [field.name for field in dataclasses.fields(prior) if not field.metadata.get("static", False)]
    require(all(isinstance(getattr(prior, name), np.ndarray) for name in fields), "matrices must be arrays")
    again = in_double(prior.as_one_piece)()
    require(again.selection == prior.selection, "selection does not fit observation")


def _check_clock(clock: Clock) -> None:
    require(Clock(clock.unit, clock.origin) == clock, "its unit is not in its shortest form")


def _check_model(model: Model) -> None:
    latents = model.prior.num_latents, model.likelihood.num_latents
    require(latents[0] == latents[1], f"the prior has {latents[0]} latent(s), and the likelihood {latents[1]}")


# Constructors that take what their objects hold are asked whether they would have: by now all types are right.
CHECKS: dict[type, Callable[[Any], Any]] = {
    Clock: _check_clock,
    Data: _check_data,
    GP: _check_gp,
    Gaussian: lambda it: _check_moments(it.mean, it.covariance),
    History: _check_history,
    LinearModel: lambda it: in_double(LinearModel)(it.prior_covariance, it.mean, it.latents),
    MarkovGP: _check_markov,
    Model: _check_model,
    Sites: lambda it: _check_moments(it.linear, it.precision),
    SparseGP: _check_sparse,
    SparsePosterior: _check_sparse_posterior,
    StateSpaceModel: _check_state_space,
}
