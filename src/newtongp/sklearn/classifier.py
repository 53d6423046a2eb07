"""Classification into two or more classes."""

from typing import Any, final

import numpy as np
from scipy.special import ndtri
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from ..likelihoods import Bernoulli, Ordinal, Softmax
from ..likelihoods.base import Likelihood
from ..validation.names import find
from .base import GPEstimator, read_weights, weighted_rows

_NAMES = ("Bernoulli", "Softmax", "Ordinal")


def _likelihood(given: Any, shares: np.ndarray) -> Likelihood:
    """The likelihood of classes with these shares of all rows."""
    classes = len(shares)
    if given is None:
        return Bernoulli() if classes == 2 else Softmax(classes)
    if isinstance(given, str):
        given = _named(find(given, _NAMES, "likelihood of classes"), shares)
    if not isinstance(given, Likelihood) or type(given).probabilities is Likelihood.probabilities:
        raise ValueError(
            f"likelihood must be one of classes, such as likelihoods.Softmax(num_classes={classes}), or its name, "
            f'"softmax", got {given!r}'
        )
    levels = _num_classes(given)
    if levels is not None and levels != classes:
        raise ValueError(f"{type(given).__name__} has {levels} classes, but y has {classes}")
    return given


def _named(name: str, shares: np.ndarray) -> Likelihood:
    if name == "Ordinal":
        # The thresholds with which f = 0 has the observed shares.
        return Ordinal(ndtri(np.cumsum(shares)[:-1]))
    return Bernoulli() if name == "Bernoulli" else Softmax(len(shares))


def _num_classes(likelihood: Likelihood) -> int | None:
    """The number of classes, as far as the support of y tells it."""
    support = likelihood.support
    return int(support.upper) + 1 if support.integer and np.isfinite(support.upper) else None


@final
class GPClassifier(ClassifierMixin, GPEstimator):
    """Gaussian process classification, as an estimator for scikit-learn.

    Labels may be numbers or strings. `likelihood` is Bernoulli (probit) for two classes and `Softmax`, with one latent
    per class, for more; "ordinal" is for classes whose order is that of their sorted labels, and any likelihood with
    `probabilities` of the classes 0, 1, ... may be given. All other arguments are those of `GPRegressor`.

    Every class has a kernel of its own if the number of classes times that of columns is at most 50, or if `parameters`
    are given. Otherwise a kernel that is given by name is shared by all classes, inducing inputs are centres of
    clusters of rows, and the search starts at the modes of the priors and ends at a slope of `tol` per ten rows. If a
    step would take long (N M² D² above 3·10⁸, with N rows, M inducing inputs and D classes), hyperparameters are
    learned from at most `max_learn` / D rows and 50 inducing inputs, and the posterior is that of all.

    After `fit`, `classes_` holds the labels, `result_` the result of `newtongp.fit` for the classes 0, 1, ... (of
    `newtongp.infer`, if hyperparameters were learned from less), and `prior_` says which prior was used.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0.0, "same", "other")
    >>> model = GPClassifier().fit(X, y)
    >>> model.predict([[1.0, 1.0], [1.0, -1.0]]).tolist(), model.predict_proba(X).shape
    (['same', 'other'], (60, 2))
    """

    classes_: np.ndarray

    def __init__(
        self,
        kernel: Any = "matern52",
        likelihood: Any = None,
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
        self.restarts = restarts
        self.max_steps = max_steps
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GPClassifier":
        """Learn the hyperparameters and infer the posterior, from rows X and one label y per row.

        A row with the weight 2 counts as two equal rows, and one with the weight 0 not at all.
        """
        x, y = validate_data(self, X, y, dtype=np.float64)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        x, y, weights = weighted_rows(x, y, read_weights(sample_weight, len(y)))
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must hold at least two classes, but there is one class only, {self.classes_.tolist()[0]!r}"
            )
        shares = np.bincount(codes, weights) / (len(y) if weights is None else np.sum(weights))
        self._fit_rows(x, codes.astype(float), _likelihood(self.likelihood, shares), weights)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of every class, in the order of `classes_`: one row per row of X."""
        probabilities = self._predict_in_pieces(X, lambda prediction: prediction.probabilities)
        return probabilities / np.sum(probabilities, axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        check_is_fitted(self)
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of labels, jointly for all rows: one row per row of X, one column per draw."""
        check_is_fitted(self)
        return self.classes_[self._draws(X, n_samples, random_state).astype(int)]

    def log_density(self, X: Any, y: Any) -> np.ndarray:
        """log P(y | X), one value per row. Minus its mean is the log loss."""
        check_is_fitted(self)
        y = column_or_1d(y)
        check_consistent_length(X, y)
        codes = np.searchsorted(self.classes_, y)
        known = self.classes_[np.minimum(codes, len(self.classes_) - 1)] == y
        if not np.all(known):
            names = ", ".join(repr(label) for label in self.classes_.tolist())
            raise ValueError(f"y holds {y[~known].tolist()[0]!r}, which is not one of the classes: {names}")
        return self._log_densities(X, codes.astype(float))
