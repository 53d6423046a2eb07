"""Calibration of predictions: PIT values, and coverage of central intervals."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.data import Data, read_data
from ..inputs.tables import outputs_of
from ..model import Model
from ..prediction import predict as predictions
from ..prediction.predict import Prediction
from ..results.result import Result
from ..validation.arguments import generator, whole
from .tables import as_text, new_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""The central intervals whose coverage is reported."""
_NO_ROWS = "none is both observed and predictable"


class Calibration:
    """Calibration of predictions, with one value per row; created by `Result.calibration`.

    `lower` and `upper` are P(Y < y) and P(Y ≤ y) under the prediction of each row, NaN where y is missing; they
    are equal unless y is discrete. `pit` is the randomised probability integral transform, uniform between the two: if
    the predictions are correct, it is uniform between 0 and 1, for discrete y too. `coverage` and `histogram` use its
    expectation over the randomisation instead of a draw, following Czado, Gneiting and Held (2009, Biometrics 65), and
    so do not depend on the seed. If no row is both observed and predictable, they and `p_value` raise a ValueError.

    Standard errors and `p_value` treat predictions of different rows as independent. Leave-one-out predictions are not,
    so they are a guide rather than a formal test.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> calibration = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 0, 3, 2]).calibration()
    >>> calibration.rows, calibration.pit.shape, sorted(calibration.coverage)
    (4, (4,), [0.5, 0.8, 0.9, 0.95])
    """

    def __init__(self, lower: np.ndarray, upper: np.ndarray, source: str, key: Any = 0):
        self.lower = np.minimum(lower, upper)
        self.upper = upper
        self.source = source
        """The kind of predictions: leave-one-out, new data, or cross-validation."""
        share = generator(key).random(lower.shape)
        self.pit = self.lower + share * (self.upper - self.lower)

    @property
    def rows(self) -> int:
        """The number of rows with an observation and a prediction."""
        return int(np.sum(np.isfinite(self.pit)))

    @property
    def coverage(self) -> dict[float, float]:
        """The fraction of rows in the central 50, 80, 90 and 95 % intervals of their predictions."""
        return {level: self.covered(level) for level in LEVELS}

    @property
    def standard_errors(self) -> dict[float, float]:
        """Standard errors of `coverage` if the predictions are correct: √(c (1 − c) / rows), less for discrete y."""
        self._require_rows()
        return {level: float(np.sqrt(level * (1.0 - level) / self.rows)) for level in LEVELS}

    @property
    def p_value(self) -> float:
        """The p-value of the Kolmogorov–Smirnov test of `pit` against the uniform distribution."""
        from scipy.stats import kstest  # takes half a second to import

        self._require_rows()
        return float(kstest(self.pit[np.isfinite(self.pit)], "uniform").pvalue)

    def covered(self, level: float) -> float:
        """The fraction of rows in the central interval of this probability.

        A discrete y at an end of the interval counts in proportion to the part of its probability that belongs to the
        interval. If the predictions are correct, the expected coverage is `level` exactly.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}: write 0.9 for 90 %")
        return float(np.diff(self._distribution(np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level])))[0])

    def histogram(self, bins: int = 10) -> np.ndarray:
        """The number of rows with `pit` in each of `bins` equal parts of [0, 1]; fractional for discrete y."""
        bins = whole(bins, "bins", such_as=10)
        return self.rows * np.diff(self._distribution(np.linspace(0.0, 1.0, bins + 1)))

    def _distribution(self, points: np.ndarray) -> np.ndarray:
        """The mean over rows of P(pit ≤ point)."""
        self._require_rows()
        usable = np.isfinite(self.pit)
        lower, width = self.lower[usable, None], (self.upper - self.lower)[usable, None]
        inside = (points - lower) / np.where(width > 0.0, width, 1.0)
        below = np.where(width > 0.0, np.clip(inside, 0.0, 1.0), points >= lower)
        # Rounding may put a PIT value at 0 or 1; it belongs to the first or the last part.
        below = np.where(points <= 0.0, 0.0, np.where(points >= 1.0, 1.0, below))
        return below.mean(axis=0)

    def _require_rows(self) -> None:
        if self.rows == 0:
            raise ValueError(f"calibration has no rows: {_NO_ROWS}")

    def table(self) -> "Table":
        """Expected and observed coverage, for `rich.print`."""
        table = new_table(f"Calibration, {self.source}", "central interval")
        for heading in ("coverage", "standard error", "deviation"):
            table.add_column(heading, justify="right")
        if self.rows == 0:
            table.caption = f"no rows: {_NO_ROWS}"
            return table
        for level, share in self.coverage.items():
            error = self.standard_errors[level]
            cells = (f"{100 * share:.1f} %", f"{100 * error:.1f} %", f"{(share - level) / error:+.1f} s.e.")
            table.add_row(f"{100 * level:g} %", *cells)
        table.caption = f"{self.rows} rows; Kolmogorov–Smirnov p = {self.p_value:.2g}"
        return table

    def __str__(self) -> str:
        return as_text(self.table())

    def __repr__(self) -> str:
        if self.rows == 0:
            return f"Calibration of no rows, {self.source}: {_NO_ROWS}"
        shares = ", ".join(f"{100 * share:.0f} % in {100 * level:g} %" for level, share in self.coverage.items())
        return f"Calibration of {self.rows} row(s), {self.source}: {shares}"

    def plot(self, axes: Any = None, bins: int | None = None) -> "Figure":
        """Plot a histogram of PIT values and the coverage of central intervals, with the expected bands."""
        from .. import plotting

        return plotting.plot_calibration(self, axes, bins)


def calibration(
    result: Result, x_new: Any = None, y_new: Any = None, key: Any = 0, **row_parameters: Any
) -> Calibration:
    """The calibration of predictions of new data or, without any, of each row given all others."""
    if x_new is None and y_new is None:
        if row_parameters:
            raise ValueError(
                f"{next(iter(row_parameters))} is for new rows, but none were given: give x_new and y_new too"
            )
        prediction, usable = _left_out(result)
        return Calibration(*around(prediction, result.data, usable), "leave-one-out", key)
    if x_new is None or y_new is None:
        missing, given = ("x_new", "y_new") if x_new is None else ("y_new", "x_new")
        raise ValueError(
            f"{missing} is missing: calibration on new data needs both inputs and outputs, got {given} only; "
            "omit both for leave-one-out"
        )
    y_new = outputs_of(result.columns, x_new, y_new, ("x_new", "y_new"))
    prediction = result.predict(x_new, **row_parameters)
    likelihood = prediction.likelihood
    model = Model(result.model.prior, likelihood)
    read = read_data(x_new, y_new, model, ("x_new", "y_new"), result.columns)
    return Calibration(*around(prediction, read, read.observed), "new data", key)


def _left_out(result: Result) -> tuple[Prediction, np.ndarray]:
    """The prediction of each row from all others, and which rows have one."""
    latent, usable = predictions.left_out(result, "leave-one-out", "give x_new and y_new")
    return Prediction(result.model.likelihood, latent, predictions.cubature_for(result)), usable


def around(prediction: Prediction, data: Data, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(Y < y) and P(Y ≤ y) of each row; NaN where there is no prediction."""
    likelihood = prediction.likelihood
    if likelihood.num_outputs != 1:
        raise ValueError(
            f"calibration needs one output, but {type(likelihood).__name__} has {likelihood.num_outputs}: check "
            "functions of them, with draws from sample_y"
        )
    y = data.y[:, 0]
    upper = prediction.cdf(y)
    lower = prediction.cdf(y - 1.0) if likelihood.support.integer else upper
    return np.where(usable, lower, np.nan), np.where(usable, upper, np.nan)
