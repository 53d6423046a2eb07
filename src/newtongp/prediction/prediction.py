"""The predictive distribution of y at new inputs."""

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..likelihoods.base import Likelihood
from ..numerics.cubature import Cubature
from ..numerics.gaussian import Gaussian
from ..validation.frames import make_frame
from ..validation.numbers import NotRealError, as_real
from . import densities, distribution, quantiles
from .distribution import Points
from .integrals import POINTS, blocks, class_probabilities, explained, in_blocks, predictive_moments, warn_of_errors
from .rows import Rows


class Prediction:
    """The predictive distribution of y at new inputs, in y's own units; `.latent` is that of f.

    `mean`, `variance` and `std` have shape (M,), or (M, P) for likelihoods with P outputs (then `covariance`
    is (M, P, P)). They are computed on first use.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [4, 6, 5]).predict([0.5, 1.5])
    >>> bool((prediction.quantile(0.05) <= prediction.mean).all())
    True
    """

    def __init__(
        self,
        likelihood: Likelihood,
        latent: Gaussian,
        cubature: Cubature | None,
        library: str = "pandas",
        index: Any = None,
    ):
        self.likelihood = likelihood
        self.latent = latent
        self._cubature = cubature
        self._library, self._index = library, index

    @property
    def mean(self) -> np.ndarray:
        """E[y]."""
        return self._outputs(self._moments()[0])

    @property
    def covariance(self) -> np.ndarray:
        """Cov[y] between the outputs of each row, (M, P, P)."""
        return self._moments()[1]

    @property
    def variance(self) -> np.ndarray:
        """Var[y]."""
        return self._outputs(np.diagonal(self._moments()[1], axis1=1, axis2=2))

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y."""
        return np.sqrt(self.variance)

    @property
    def probabilities(self) -> np.ndarray:
        """P(y = k) of every class or level k, (M, K), for likelihoods of classes."""
        with explained():
            if self.likelihood.num_latents > 1:
                return class_probabilities(self.likelihood, self._cubature, self.latent)
            return in_blocks(densities.probabilities, Rows(self.likelihood, self.latent))

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ p, for each output by itself; inf where no number is large enough.

        It is accurate to 1e-6 in probability; otherwise a warning states the accuracy. The shape is that of `mean`,
        with a leading axis of len(p) for several p.
        """
        probabilities = _probabilities(p)
        levels = probabilities.reshape(-1)
        rows, outputs = self.latent.mean.shape[0], self.likelihood.num_outputs
        level, row, output = (part.ravel() for part in np.indices((levels.size, rows, outputs)))
        values = self._at_points(quantiles.quantiles, Points(row, output, levels[level]), "quantiles of y")
        values = values.reshape((levels.size, rows) if outputs == 1 else (levels.size, rows, outputs))
        return values[0] if probabilities.ndim == 0 else values

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the central interval: the quantiles at (1 − level)/2 and (1 + level)/2.

        >>> import newtongp as ng
        >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian(0.1))
        >>> lower, upper = ng.infer(model, [0.0, 1.0], [0.4, 0.6]).predict([0.5]).interval(0.95)
        >>> bool(lower[0] < 0.5 < upper[0])
        True
        """
        half = 0.5 * checked_level(level)
        lower, upper = self.quantile([0.5 - half, 0.5 + half])
        return lower, upper

    def cdf(self, y: Any) -> np.ndarray:
        """P(Y ≤ y) in every row, for each output by itself; `y` is a number, or one value per row and output.

        NaN gives NaN.

        >>> import newtongp as ng
        >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Exponential())
        >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [0.4, 0.6, 1.5]).predict([0.5, 1.5])
        >>> prediction.cdf(prediction.quantile(0.9)).round(6).tolist(), prediction.cdf(-1.0).tolist()
        ([0.9, 0.9], [0.0, 0.0])
        """
        rows, outputs = self.latent.mean.shape[0], self.likelihood.num_outputs
        values = _one_per_row(y, rows, outputs)
        finite = np.isfinite(values)
        inside = np.where(finite, values, self.likelihood.support.example)
        row, output = (part.ravel() for part in np.indices((rows, outputs)))
        points = Points(row, output, inside.ravel())
        below = self._at_points(distribution.distribution, points, "values of P(Y ≤ y)").reshape(rows, outputs)
        return self._outputs(np.where(finite, below, np.clip(values, 0.0, 1.0)))

    def _at_points(self, function: Callable, points: Points, what: str) -> np.ndarray:
        """`function` at all points, block by block, with a warning where it is not accurate."""
        rows = Rows(self.likelihood, self.latent)
        values, errors = np.empty(points.y.shape), np.empty(points.y.shape)
        with explained():
            for block in blocks(points.y.size, POINTS.get(rows.nodal, POINTS[2])):
                values[block], errors[block] = function(rows, points.take(block))
        warn_of_errors(what, errors, points.rows)
        return values

    def to_frame(self, level: float = 0.95) -> Any:
        """A data frame with one row per new input: `mean`, `std`, the interval's `lower` and `upper`.

        The frame is of the same library as the new inputs, such as polars, and has their index if they were of pandas;
        for arrays it is of pandas.
        `latent_mean` and `latent_std` are those of f. For several outputs or latents, names include an index, as in
        `mean_0`; classes have columns `probability_0` and so on. Columns that the likelihood does not provide are left
        out.
        """
        columns: dict[str, np.ndarray] = {}
        checked_level(level)
        if self.likelihood.moments_problem() is None:
            columns |= _numbered("mean", self.mean) | _numbered("std", self.std)
        with contextlib.suppress(ValueError):
            lower, upper = self.interval(level)
            columns |= _numbered("lower", lower) | _numbered("upper", upper)
        with contextlib.suppress(ValueError):
            columns |= _numbered("probability", self.probabilities)
        mean, std = (part[:, 0] if part.shape[1] == 1 else part for part in (self.latent.mean, self._latent_std()))
        columns |= _numbered("latent_mean", mean) | _numbered("latent_std", std)
        return make_frame(columns, self._library, self._index)

    def _latent_std(self) -> np.ndarray:
        return np.sqrt(np.maximum(self.latent.variance, 0.0))

    def __repr__(self) -> str:
        rows, name = self.latent.mean.shape[0], type(self.likelihood).__name__
        shown = min(rows, _SHOWN_ROWS)
        few = Rows(self.likelihood, self.latent).at(np.arange(shown))
        first = Prediction(few, Gaussian(self.latent.mean[:shown], self.latent.covariance[:shown]), self._cubature)
        if self.likelihood.moments_problem() is None:
            what, means, deviations = "y", first.mean, first.std
        else:
            what, means, deviations = "f", first.latent.mean, first._latent_std()
        pairs = [_plus_minus(mean, std) for mean, std in zip(means, deviations, strict=True)]
        more = ", ..." if rows > shown else ""
        return f"Prediction of {rows} row(s), {name}: {what} = {', '.join(pairs)}{more}"

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(self, "_cached_moments"):
            problem = self.likelihood.moments_problem()
            if problem is not None:
                raise ValueError(
                    f"the mean and covariance of y need `mean` and `covariance` of the likelihood: {problem}"
                )
            self._cached_moments = predictive_moments(self.likelihood, self._cubature, self.latent)
        return self._cached_moments

    def _outputs(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self.likelihood.num_outputs == 1 else array


def _probabilities(p: Any) -> np.ndarray:
    try:
        probabilities = as_real(p)
    except NotRealError:
        raise ValueError(f"p must hold numbers between 0 and 1, got {p!r}: write 0.95 for 95 %") from None
    if probabilities.ndim > 1 or probabilities.size == 0:
        raise ValueError(f"p must be a number or a vector, got shape {probabilities.shape}")
    if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
        raise ValueError(f"p must lie strictly between 0 and 1, got {p!r}: write 0.95 for 95 %")
    return probabilities


def checked_level(level: Any) -> float:
    """The level of a central interval; ValueError if it is not strictly between 0 and 1."""
    try:
        number = as_real(level)
    except NotRealError:
        number = np.array(np.nan)
    if number.ndim != 0 or not 0.0 < number < 1.0:
        raise ValueError(f"level must be a number strictly between 0 and 1, as in interval(0.95), got {level!r}")
    return float(number)


def _one_per_row(y: Any, rows: int, outputs: int) -> np.ndarray:
    """`y` as one value per row and output, (rows, outputs)."""
    wanted = "one number per row" if outputs == 1 else f"one number per row and output, ({rows}, {outputs})"
    try:
        values = as_real(y)
    except NotRealError:
        raise ValueError(f"y must be a number or {wanted}, got {y!r}") from None
    if outputs == 1 and values.shape == (rows,):
        values = values[:, None]
    if values.shape not in ((), (outputs,) if outputs > 1 else (), (rows, outputs)):
        raise ValueError(f"y must be a number or {wanted}, {rows} of them, got shape {values.shape}")
    return np.broadcast_to(values, (rows, outputs))


def _numbered(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """One column, or one per output."""
    return {name: values} if values.ndim == 1 else {f"{name}_{k}": column for k, column in enumerate(values.T)}


_SHOWN_ROWS = 3


def _plus_minus(mean: Any, std: Any) -> str:
    if np.ndim(mean) == 0:
        return f"{mean:.4g} ± {std:.2g}"
    return "(" + ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(mean, std, strict=True)) + ")"
