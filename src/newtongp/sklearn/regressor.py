"""Regression, with any likelihood."""

from typing import Any, final

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from ..likelihoods import Chained, Gaussian, HeteroscedasticGaussian, StudentT
from ..likelihoods.base import Likelihood
from ..model import likelihood_named
from ..parameters import Free
from ..validation.arguments import flag
from ..validation.text import short
from .base import GPEstimator, read_weights, weighted_rows
from .scaling import UNCHANGED, Scaling

_LOCATION_SCALE = (Gaussian, StudentT, HeteroscedasticGaussian)
"""Likelihoods for which y may be shifted and scaled, whatever their scale is a function of."""


def _likelihood(given: Any) -> Likelihood:
    likelihood = likelihood_named(given) if isinstance(given, str) else given
    if not isinstance(likelihood, Likelihood):
        raise ValueError(
            f'likelihood must be one such as likelihoods.Poisson(), or its name, "poisson", got {short(given)}'
        )
    if likelihood.num_outputs != 1:
        name = type(likelihood).__name__
        raise ValueError(f"{name} has {likelihood.num_outputs} outputs, and estimators have one: use newtongp.fit")
    return likelihood


_LEAST_NOISE = 1e-6


def _above_rounding(likelihood: Likelihood) -> dict[str, Free] | None:
    """A lower bound of the noise variance: data without noise have none, and rounding would end the search."""
    known = isinstance(likelihood, Gaussian) and np.ndim(likelihood.variance) == 0
    return {"likelihood.variance": Free(lower=_LEAST_NOISE)} if known else None


@final
class GPRegressor(RegressorMixin, GPEstimator):
    """Gaussian process regression with any likelihood, as an estimator for scikit-learn.

    `likelihood` is a likelihood with one output or its name ("gaussian", "student_t", "poisson", "negative_binomial",
    "gamma", "heteroscedastic_gaussian", ...), `kernel` a kernel or its name, and `method` a method or its name ("vi",
    "newton", "ep", ...), VI by default. All hyperparameters are learned, or only those that `parameters` leaves free
    (see `newtongp.fit`, also for `restarts`); with `learn=False` all keep their values. The search ends when the slope
    of the energy, in logarithms of hyperparameters, is below `tol`, or after `max_steps` steps. Lengthscales have a
    log-normal prior with the mode 3√P, in standard deviations of their columns, of which there are P, and variances of
    latents of classes one with the mode 4; `parameters={}` leaves these priors out.

    The prior depends on the data. If X has one column and the kernel has a state space form, it is a `MarkovGP`, for
    any number of rows. Otherwise it is a dense `GP` if the likelihood has one latent and there are at most `max_dense`
    rows (by default 1000 with Gaussian noise and 500 with other likelihoods), and else a `SparseGP`. Its inducing
    inputs are all rows, with which it is exact, or `inducing` of them, chosen from the data, if there are more. It is
    conditioned on batches of `batch_size` rows ("auto": all rows at once up to 20 000, then 4096). Of more than
    `max_learn` rows, its hyperparameters are learned from so many random ones, and the posterior is that of all rows;
    with `max_learn=None` they are learned from all rows, in batches. `prior` may also be "markov", "dense", "sparse",
    or a prior, which then replaces `kernel`.

    The variance of Gaussian noise is at least 1e-6 times that of y, unless `parameters` are given.

    Columns of X are scaled to mean 0 and variance 1, and so is y with the Gaussian and Student-t likelihoods. Kernels,
    likelihoods and `parameters` are therefore in these units; `scale_x=False` and `scale_y=False` change that.
    Predictions are in the units of y. `random_state` determines restarts, inducing inputs and the order of batches.

    After `fit`, `result_` is the result of `newtongp.fit`, in scaled units (of `newtongp.infer`, if not all rows were
    used to learn from), and `prior_` says which prior was used.

    >>> import numpy as np
    >>> X = np.linspace(0.0, 10.0, 40)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPRegressor(likelihood="poisson").fit(X, y)
    >>> model.prior_, model.predict_quantiles(X[:2], [0.05, 0.95]).shape
    ('markov', (2, 2))
    """

    _y_scaling: Scaling

    def __init__(
        self,
        kernel: Any = "matern52",
        likelihood: Any = "gaussian",
        method: Any = None,
        *,
        prior: Any = "auto",
        learn: bool = True,
        parameters: Any = None,
        max_dense: int | None = None,
        inducing: Any = 100,
        max_learn: int | None = 10_000,
        batch_size: Any = "auto",
        scale_x: bool = True,
        scale_y: bool = True,
        restarts: int = 0,
        max_steps: int = 100,
        tol: float = 1e-2,
        random_state: Any = None,
    ):
        self.kernel = kernel
        self.likelihood = likelihood
        self.method = method
        self.prior = prior
        self.learn = learn
        self.parameters = parameters
        self.max_dense = max_dense
        self.inducing = inducing
        self.max_learn = max_learn
        self.batch_size = batch_size
        self.scale_x = scale_x
        self.scale_y = scale_y
        self.restarts = restarts
        self.max_steps = max_steps
        self.tol = tol
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        try:
            tags.target_tags.positive_only = _likelihood(self.likelihood).support.lower >= 0.0
        except ValueError:
            tags.target_tags.positive_only = False  # `fit` says what is wrong
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GPRegressor":
        """Learn the hyperparameters and infer the posterior, from rows X and one number y per row.

        A row with the weight 2 counts as two equal rows, and one with the weight 0 not at all.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = column_or_1d(y, warn=True, dtype=np.float64)
        x, y, weights = weighted_rows(x, y, read_weights(sample_weight, len(y)))
        likelihood = _likelihood(self.likelihood)
        inner = likelihood.base if isinstance(likelihood, Chained) else likelihood
        scaled = flag(self.scale_y, "scale_y") and isinstance(inner, _LOCATION_SCALE)
        self._y_scaling = Scaling.of(y, weights) if scaled else UNCHANGED
        bounds = _above_rounding(likelihood) if scaled else None
        self._fit_rows(x, self._y_scaling.apply(y), likelihood, weights, bounds)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y], one value per row; with `return_std=True` also the standard deviation of y, noise included."""
        check_is_fitted(self)
        if not flag(return_std, "return_std"):
            return self._y_scaling.undo(self._predict_in_pieces(X, lambda prediction: prediction.mean))
        both = self._predict_in_pieces(X, lambda prediction: np.stack([prediction.mean, prediction.std], axis=1))
        return self._y_scaling.undo(both[:, 0]), self._y_scaling.scale * both[:, 1]

    def predict_quantiles(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of y, noise included: one row per row of X, one column per probability in `quantiles`."""
        check_is_fitted(self)
        levels = np.atleast_1d(quantiles)
        return self._y_scaling.undo(self._predict_in_pieces(X, lambda prediction: prediction.quantile(levels).T))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of y, noise included, jointly for all rows: one row per row of X, one column per draw."""
        check_is_fitted(self)
        return self._y_scaling.undo(self._draws(X, n_samples, random_state))

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """log p(y | X), one value per row. Minus its mean is the negative log predictive density (NLPD)."""
        check_is_fitted(self)
        y = column_or_1d(y, dtype=np.float64)
        check_consistent_length(X, y)
        values = self._log_densities(X, self._y_scaling.apply(y))
        return values - np.log(self._y_scaling.scale)
