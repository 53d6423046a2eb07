"""What both estimators have in common: reading data, fitting, and predictions in pieces."""

import abc
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..fitting.fit import fit
from ..inference.infer import infer
from ..likelihoods import Gaussian
from ..likelihoods.base import Likelihood
from ..model import Model
from ..parameters import Free
from ..results.result import Result
from ..validation.arguments import flag
from .choices import (
    Choice,
    Size,
    all_rows_inducing,
    as_seed,
    centres_of,
    coarse_for,
    method_for,
    per_row,
    prior_for,
    rows_to_learn_from,
    shares_kernel,
    with_inducing_of,
)
from .hyperpriors import with_priors
from .scaling import UNCHANGED, Scaling

_TOLERANCE = 1e-9
"""Of inference with given hyperparameters: the same data in another form, or order, give the same predictions."""
_COARSE_TOLERANCE = 1e-4
"""Of inference for many classes, as in the search for their hyperparameters."""
_PIECE = 4096
"""Rows that are predicted at a time, which bounds the memory."""


def read_weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Weights that are at least 0 and not all 0, one per row; None if there are none."""
    if sample_weight is None:
        return None
    kind: Any = np.float64
    weights = check_array(sample_weight, ensure_2d=False, dtype=kind, input_name="sample_weight")
    if weights.shape != (rows,):
        raise ValueError(f"sample_weight must have one value per row, {rows} of them, got shape {weights.shape}")
    if np.any(weights < 0.0):
        row = int(np.flatnonzero(weights < 0.0)[0])
        raise ValueError(f"sample_weight must be at least 0, but row {row} is {weights[row]:g}")
    if not np.any(weights > 0.0):
        raise ValueError("every sample_weight is zero: at least one row must have a positive weight")
    return weights


def weighted_rows(*parts: Any) -> tuple[Any, ...]:
    """The parts of data of which the last are the weights, without rows of weight 0; None stays None."""
    weights = parts[-1]
    if weights is None or np.all(weights > 0.0):
        return parts
    return tuple(part[weights > 0.0] for part in parts)


def _for_all_rows(sites: Any, few: np.ndarray | None, rows: int) -> Any:
    """Sites of some rows, and sites without information for all others."""

    def filled(part: Any) -> np.ndarray:
        whole = np.zeros((rows, *np.shape(part)[1:]))
        whole[few] = part
        return whole

    return sites if few is None else jax.tree.map(filled, sites)


class GPEstimator(BaseEstimator, abc.ABC):
    """An estimator of a model with a Gaussian process prior."""

    result_: Result
    prior_: str
    _x_scaling: Scaling
    n_features_in_: int

    def _fit_rows(
        self,
        x: np.ndarray,
        y: np.ndarray,
        likelihood: Likelihood,
        weights: np.ndarray | None,
        bounds: Mapping[str, Free] | None = None,
    ) -> None:
        """Fit numbers: x in the units of the user, y in those of the likelihood.

        `bounds` apply unless the user gives specifications of hyperparameters.
        """
        given: Any = self
        random = check_random_state(given.random_state)
        seed, method = as_seed(random), method_for(given.method)
        rows, columns = x.shape
        self._x_scaling = Scaling.of(x, weights) if flag(given.scale_x, "scale_x") else UNCHANGED
        x = self._x_scaling.apply(x)
        size = Size(rows, columns, likelihood.num_latents, isinstance(likelihood, Gaussian))
        shared = given.parameters is None and shares_kernel(given.kernel, given.prior, likelihood, columns)
        # A program is compiled for one seed of the choice of inducing inputs, so it does not change without need.
        of_prior = 0 if given.random_state is None else seed

        def prior_with(count: Any) -> Choice:
            inducing = centres_of(x, count, given.kernel, of_prior) if shared else all_rows_inducing(x, count)
            sizes = given.max_dense, inducing, given.batch_size
            return prior_for(given.kernel, given.prior, size, *sizes, method, of_prior)

        choice = prior_with(given.inducing)
        self.prior_ = choice.name
        model = Model(choice.prior, likelihood)
        batches: dict[str, Any] = {} if choice.batch_size is None else {"batch_size": choice.batch_size, "key": seed}
        if not flag(given.learn, "learn"):
            self.result_ = infer(model, x, y, method, weights=weights, **(batches or {"tol": _TOLERANCE}))
            return
        parameters = given.parameters
        if parameters is None:
            scales = Scaling.of(x, weights).scale
            parameters = with_priors(model, scales, isinstance(self, ClassifierMixin), bounds or {}, shared)
        options: dict[str, Any] = {"parameters": parameters, "restarts": given.restarts, "max_steps": given.max_steps}
        options |= {"tol": given.tol, "key": seed, "standard_errors": False, "weak_priors": "keep"}
        coarse = coarse_for(choice, size, given.inducing, given.max_learn) if shared else None
        few = rows_to_learn_from(choice, size, given.max_learn if coarse is None else coarse.rows, random)
        if shared:
            options["tol"] = per_row(given.tol, rows if few is None else len(few))
        if few is None and coarse is None:
            self.result_ = fit(model, x, y, method, weights=weights, batch_size=choice.batch_size, **options)
            return
        if coarse is not None:
            model = Model(prior_with(coarse.inducing).prior, likelihood)
        part = x, y, weights
        if few is not None:
            part = x[few], y[few], None if weights is None else weights[few]
        learned = fit(model, *part[:2], method, weights=part[2], **options)
        if coarse is not None and not batches:
            # From the sites of the rows that were learned from, which fewer inducing inputs change little.
            batches = {"sites": _for_all_rows(learned.sites, few, rows), "tol": _COARSE_TOLERANCE}
        self.result_ = infer(with_inducing_of(choice, learned.model), x, y, method, weights=weights, **batches)

    def _read_new(self, X: Any) -> np.ndarray:
        """New inputs in scaled units."""
        check_is_fitted(self)
        x: Any = validate_data(self, X, reset=False, dtype=np.float64)
        return self._x_scaling.apply(x)

    def _predict_in_pieces(self, X: Any, part: Callable[[Any], np.ndarray]) -> np.ndarray:
        """A part of the predictions, with rows along the first axis."""
        x = self._read_new(X)
        pieces = [x[start : start + _PIECE] for start in range(0, x.shape[0], _PIECE)]
        return np.concatenate([part(self.result_.predict(piece)) for piece in pieces])

    def _draws(self, X: Any, n_samples: int, random_state: Any) -> np.ndarray:
        """Joint draws of y in the likelihood's units, one column per draw."""
        x = self._read_new(X)
        seed = as_seed(check_random_state(random_state))
        return self.result_.sample_y(seed, x, n_samples).T

    def _log_densities(self, X: Any, y: np.ndarray) -> np.ndarray:
        x = self._read_new(X)
        starts = range(0, x.shape[0], _PIECE)
        return np.concatenate([self.result_.log_density(x[at : at + _PIECE], y[at : at + _PIECE]) for at in starts])
