"""Checks of objects whose constructors check nothing, because only inference creates them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..inputs.data import Data
from ..numerics.gaussian import Gaussian, Sites
from ..priors.markov import MarkovGP
from ..priors.markov_process import process_of
from ..priors.sparse import SparsePosterior
from ..priors.sparse_chain_posterior import SparseChainPosterior
from ..results.result import History
from ..validation.text import short
from .errors import require
from .fields import is_finite


def _is_array(value: Any, kind: str, *shape: int | None) -> bool:
    """Whether this is an array of that kind and shape, with None for any length."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != kind or value.ndim != len(shape):
        return False
    return all(side in (None, length) for side, length in zip(shape, value.shape, strict=True))


def _check_moments(vector: Any, matrix: Any) -> None:
    fine = all(isinstance(array, np.ndarray) and array.dtype.kind == "f" for array in (vector, matrix))
    require(fine and vector.ndim > 0, "it needs a vector and a matrix")
    require(matrix.shape == (*vector.shape, vector.shape[-1]), f"shapes are {vector.shape} and {matrix.shape}")


def _check_data(data: Data) -> None:
    require(_is_array(data.x, "f", None, None) and data.x.shape[0] > 0, "x must be a matrix with one row per datum")
    rows = data.x.shape[0]
    require(_is_array(data.y, "f", rows, None), f"y must be a matrix with {rows} row(s)")
    require(_is_array(data.observed, "b", rows), f"observed must have {rows} boolean(s)")
    require(data.seen is None or _is_array(data.seen, "b", *data.y.shape), "seen must be like y")
    require(data.weights is None or _is_array(data.weights, "f", rows), f"weights must have {rows} number(s)")
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
    require(is_finite(posterior.log_normaliser), "log_normaliser must be finite")
    require(all(map(is_finite, (*inducing, *whitening))), "inducing inputs and whitening must be finite")
    size = posterior.projection.size
    require(_is_array(posterior.whitened_mean, "f", latents, size), "whitened_mean does not fit inducing inputs")
    require(_is_array(posterior.half, "f", latents * size, latents, size), "half does not fit inducing inputs")
    require(is_finite(posterior.whitened_mean) and is_finite(posterior.half), "whitened moments must be finite")


def _check_chain_posterior(posterior: SparseChainPosterior) -> None:
    prior, times, factors = posterior.prior, posterior.times, posterior.factors
    require(isinstance(prior, MarkovGP) and prior.is_sparse, "its prior must have inducing times")
    require(_is_array(times, "f", None) and times.size > 0 and is_finite(times), "inducing times must be a vector")
    require(bool(np.all(np.diff(times) >= 0.0)), "inducing times must be in ascending order")
    prior.check_inputs(times[:, None])
    length, size = len(times) + 1, 2 * process_of(prior.kernel).dimension
    arrays = factors.linear, factors.precision, posterior.mean, posterior.covariance
    for name, array, shape in zip(
        ("linear", "precision", "mean", "covariance"), arrays, [(size,), (size, size)] * 2, strict=True
    ):
        require(_is_array(array, "f", length, *shape) and is_finite(array), f"{name} does not fit inducing times")
    require(is_finite(posterior.log_normaliser), "log_normaliser must be finite")


# Checks that no constructor makes. Types have been checked before.
CHECKS: dict[type, Callable[[Any], Any]] = {
    Data: _check_data,
    Gaussian: lambda it: _check_moments(it.mean, it.covariance),
    History: _check_history,
    SparseChainPosterior: _check_chain_posterior,
    Sites: lambda it: _check_moments(it.linear, it.precision),
    SparsePosterior: _check_sparse_posterior,
}
