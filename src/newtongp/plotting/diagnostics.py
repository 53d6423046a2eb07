"""Plots of convergence and calibration."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from ..results.result import Result
from .pieces import BAND, DATA, MEAN, make_panels, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..diagnostics.calibration import Calibration


def plot_convergence(result: Result, axes: Any = None) -> "Figure":
    """Plot the energy over the steps, and below it the distance from convergence.

    The distance is the residual if the step controls it (methods without an objective, such as power EP), otherwise the
    objective minus its last value. If hyperparameters were learned, the search for them is shown.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> len(ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).plot_convergence().axes)
    2
    """
    require_matplotlib()
    learning = np.asarray(getattr(result, "fit_history", ()))
    energy, objective = np.asarray(result.history.energy), np.asarray(result.history.objective)
    word = "step"
    if learning.size:
        energy, objective, word = learning, learning, "iteration"
    if energy.size == 0:
        raise ValueError("plot_convergence has nothing to draw: no step was taken (result.history is empty)")
    from matplotlib.ticker import MaxNLocator

    figure, (above, below) = make_panels(axes, 2, main=2)
    steps = np.arange(1, energy.size + 1)
    style = {"color": MEAN, "linewidth": 1.5, "marker": "o", "markersize": 3.5 if steps.size <= 60 else 0.0}
    above.plot(steps, energy, **style)
    above.set_ylabel("energy")
    words = f"{result.status.name.lower().replace('_', ' ')} after {steps.size} {word}(s): energy {result.energy:.6g}"
    above.set_title(f"{words}, residual {result.residual:.1e}", loc="left", fontsize="medium")
    name, distance = _distance_from_the_end(result, energy, objective)
    positive = distance > 0.0
    below.plot(steps[positive], distance[positive], **style)
    if np.any(positive):
        below.set_yscale("log")
    below.set(ylabel=name, xlabel=word)
    for ax in (above, below):
        ax.set_xlim(0.5, steps[-1] + 0.5)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", color="0.92", linewidth=0.8)
        ax.set_axisbelow(True)
    return figure


def _distance_from_the_end(result: Result, energy: np.ndarray, objective: np.ndarray) -> tuple[str, np.ndarray]:
    if np.allclose(objective, energy, rtol=1e-12, atol=0.0):
        return "energy above its last value", energy - energy[-1]
    # The RMS residual is at most the largest residual; a log joint density would be so only by accident.
    if np.all(objective >= 0.0) and objective[-1] <= result.residual * (1.0 + 1e-9):
        return "residual (RMS)", objective
    return "objective above its last value", objective - objective[-1]


def plot_calibration(calibration: "Calibration", axes: Any = None, bins: int | None = None) -> "Figure":
    """Plot a histogram of PIT values and the coverage of central intervals, as `Calibration.plot` does.

    If the predictions are correct, a bar is in its grey band with probability 95 %, and so is the curve at any given
    point. A U shape and a curve below the diagonal indicate overconfident predictions; a hump and a curve above the
    diagonal indicate predictions that are too wide; a slope indicates bias.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> len(ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).calibration().plot().axes)
    2
    """
    require_matplotlib()
    if calibration.rows == 0:
        raise ValueError("calibration has no rows to draw: none is both observed and predictable")
    bins = int(np.clip(np.sqrt(calibration.rows), 4, 20)) if bins is None else bins
    heights = calibration.histogram(bins)
    figure, (left, right) = make_panels(axes, 2, main=2, side_by_side=True)
    _draw_histogram(left, heights, calibration.rows)
    _draw_coverage(right, calibration)
    for ax in (left, right):
        ax.set_xlim(0.0, 1.0)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize="small")
    words = f"{calibration.rows} rows, {calibration.source}; Kolmogorov–Smirnov p = {calibration.p_value:.2g}"
    left.set_title(words, loc="left", fontsize="medium")
    return figure


def _draw_histogram(ax: "Axes", heights: np.ndarray, rows: int) -> None:
    bins = heights.size
    low, high = binom.ppf([0.025, 0.975], rows, 1.0 / bins)
    ax.bar((np.arange(bins) + 0.5) / bins, heights, width=0.92 / bins, color=BAND, alpha=0.75, label="rows")
    ax.axhspan(low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % band if calibrated")
    ax.axhline(rows / bins, color=DATA, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.set(xlabel="probability integral transform", ylabel="rows", ylim=(0.0, 1.25 * max(high, heights.max())))


def _draw_coverage(ax: "Axes", calibration: "Calibration") -> None:
    nominal = np.linspace(0.01, 0.99, 99)
    low, high = binom.ppf([[0.025], [0.975]], calibration.rows, nominal) / calibration.rows
    ax.fill_between(nominal, low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % band if calibrated")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=DATA, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.plot(nominal, [calibration.covered(level) for level in nominal], color=MEAN, linewidth=1.8, label="coverage")
    ax.plot(list(calibration.coverage), list(calibration.coverage.values()), "o", color=MEAN, markersize=4.5)
    ax.set(xlabel="probability of the central interval", ylabel="fraction of rows inside", ylim=(0.0, 1.02))
