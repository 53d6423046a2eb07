"""Plots over one input: the mean of y with its bands, probabilities, latents."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from ..inputs.data import read_inputs
from ..likelihoods.base import Likelihood, has_distribution, row_parameters_of, rows_given, with_row_parameters
from ..prediction.predict import Prediction, predict_at
from ..prediction.rows import AccuracyWarning
from ..priors.statespace import StateSpaceModel
from ..results.result import Result
from .pieces import (
    DATA,
    LATENT_BAND,
    LATENT_MEAN,
    MEAN,
    class_colour,
    clock_of,
    fill_bands,
    in_order,
    make_panels,
    tails_of,
)
from .single import conditional_means, finite_column, mark_ends_of_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS_ON_A_LINE = 201


class _Line(NamedTuple):
    """Predictions along one input, and the coordinates to draw them at."""

    grid: np.ndarray
    prediction: Prediction
    likelihood: Likelihood
    """With its row parameters along the line."""
    to_axis: Callable[[np.ndarray], np.ndarray]


def plot_line(result, axes, grid, column: int, latents: bool, levels: list[float], row_parameters) -> "Figure":
    """Predictions over one column of x, one panel per output, and optionally one per latent."""
    line = _line(result, grid, column, row_parameters)
    kind = kind_of(line.likelihood)
    outputs = {"nothing": 0, "bands": line.likelihood.num_outputs}.get(kind, 1)
    hidden = line.likelihood.num_latents if latents or kind == "nothing" else 0
    figure, panels = make_panels(axes, outputs + hidden, main=outputs)
    for output, ax in enumerate(panels[:outputs]):
        if kind == "classes":
            _draw_classes(ax, line)
        elif kind == "binary":
            _draw_probability(ax, line, levels)
        else:
            _draw_bands(ax, line, output, levels)
        if result.data is not None:
            _draw_data(ax, result, column, output, kind, line)
        ax.set_ylabel("y" if outputs == 1 else f"y{subscript(output + 1)}")
        if kind in ("binary", "classes"):
            ax.set_ylabel("probability")
        _frame(ax, line, legend=output == 0)
    for latent, ax in enumerate(panels[outputs:]):
        _draw_latent(ax, line, latent, levels)
        ax.set_ylabel("latent f" if hidden == 1 else f"latent f{subscript(latent + 1)}")
        _frame(ax, line, legend=latent == 0)
    if result.data is not None:
        observed = line.to_axis(result.data.x[result.data.observed, column])
        for ax in panels:
            mark_ends_of_data(ax, observed, line.to_axis(line.grid))
    panels[-1].set_xlabel("time" if clock_of(result) else "x")
    return figure


def _line(result: Result, grid: Any, column: int, row_parameters: dict[str, Any]) -> _Line:
    likelihood = result.model.likelihood
    if grid is None and rows_given(likelihood) and not row_parameters:
        # Row parameters are known only at the rows of the data.
        order = np.argsort(result.data.x[:, column], kind="stable")
        inputs = result.data.x[order]
        row_parameters = row_parameters_of(likelihood, order)
    else:
        values, others = _read_grid(result, grid, column)
        values, row_parameters = in_order(values, row_parameters)
        inputs = np.repeat(others, values.size, axis=0)
        inputs[:, column] = values
    prediction = predict_at(result, inputs, **row_parameters)
    clock = clock_of(result)
    return _Line(
        inputs[:, column],
        prediction,
        with_row_parameters(likelihood, **row_parameters),
        (lambda numbers: numbers) if clock is None else clock.stamps,
    )


def _read_grid(result: Result, grid: Any, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The inputs along a column, and a row (1, P) with the fixed values of the other columns."""
    if result.data is None:
        whole = read_inputs(grid, result.model, "grid", result.columns)
        return whole[:, column], whole[:1]
    others = result.data.x[:1]
    if grid is None:
        return _default_grid(result.data.x[:, column], result.model.prior), others
    if others.shape[1] > 1:
        return finite_column(grid, "grid"), others
    whole = read_inputs(grid, result.model, "grid", result.columns)
    if whole.shape[1] > 1:
        raise ValueError(f"grid must have one column, as x has, got shape {whole.shape}")
    return whole[:, 0], others


def _default_grid(values: np.ndarray, prior: Any) -> np.ndarray:
    first, last = float(values.min()), float(values.max())
    if first == last and not isinstance(prior, StateSpaceModel):
        return np.array([first - 0.5, first, first + 0.5])
    grid = np.linspace(first, last, _POINTS_ON_A_LINE)
    return np.unique(np.round(grid)) if isinstance(prior, StateSpaceModel) else grid


def kind_of(likelihood: Likelihood) -> str:
    """How y is drawn: as bands, the probability of 1, probabilities of classes, or not at all."""
    support = likelihood.support
    has_moments = likelihood.moments_problem() is None
    if support.integer and (support.lower, support.upper) == (0.0, 1.0) and likelihood.num_latents == 1 and has_moments:
        return "binary"
    if not has_moments and type(likelihood).probabilities is not Likelihood.probabilities:
        return "classes"
    return "bands" if has_moments or has_distribution(likelihood) else "nothing"


def _draw_bands(ax: "Axes", line: _Line, output: int, levels: list[float]) -> None:
    prediction, likelihood = line.prediction, line.likelihood
    has_quantiles, has_moments = has_distribution(likelihood), likelihood.moments_problem() is None
    grid = line.to_axis(line.grid)
    if has_moments:
        centre, label = _column(prediction.mean, output), "mean of y"
    else:
        centre, label = prediction.quantile(0.5), "median of y"
    if has_quantiles:
        step = "mid" if likelihood.support.integer else None
        with warnings.catch_warnings():
            # Values that cannot be drawn.
            warnings.simplefilter("ignore", AccuracyWarning)
            ends = prediction.quantile(tails_of(levels))
        fill_bands(ax, grid, ends, levels, "% of new data", step=step)
    else:
        scores, std = ndtri(tails_of(levels)), _column(prediction.std, output)
        names = [f"mean ± {ndtri(0.5 + 0.5 * level):.2g} standard deviations" for level in levels]
        fill_bands(ax, grid, centre + scores[:, None] * std, levels, names=names)
    ax.plot(grid, centre, color=MEAN, linewidth=1.8, label=label)


def _draw_probability(ax: "Axes", line: _Line, levels: list[float]) -> None:
    grid = line.to_axis(line.grid)
    curves = conditional_means(line.likelihood, _latent_quantiles(line.prediction, 0, tails_of(levels)))
    fill_bands(ax, grid, np.sort(curves, axis=0)[_nested(len(levels))], levels, "% interval")
    ax.plot(grid, line.prediction.mean, color=MEAN, linewidth=1.8, label="P(y = 1)")
    ax.set_ylim(-0.06, 1.06)


def _nested(count: int) -> list[int]:
    """The positions of the ends of `count` nested intervals, the widest first, in sorted order."""
    return [position for rank in range(count) for position in (rank, 2 * count - 1 - rank)]


def _draw_classes(ax: "Axes", line: _Line) -> None:
    grid = line.to_axis(line.grid)
    for label, curve in enumerate(line.prediction.probabilities.T):
        ax.plot(grid, curve, color=class_colour(label), linewidth=1.8, label=f"P(y = {label})")
    ax.set_ylim(-0.06, 1.06)


def _draw_latent(ax: "Axes", line: _Line, latent: int, levels: list[float]) -> None:
    grid = line.to_axis(line.grid)
    ends = _latent_quantiles(line.prediction, latent, tails_of(levels))
    fill_bands(ax, grid, ends, levels, "% interval", colour=LATENT_BAND)
    ax.plot(grid, line.prediction.latent.mean[:, latent], color=LATENT_MEAN, linewidth=1.8, label="mean of f")


def _frame(ax: "Axes", line: _Line, legend: bool) -> None:
    """Add margins for points at the ends, and a legend above the axes."""
    ends = line.grid[[0, -1]]
    if ends[0] == ends[1]:
        ends = ends + np.array([-0.5, 0.5])
    first, last = line.to_axis(ends)
    margin = (last - first) * 0.012
    ax.set_xlim(first - margin, last + margin)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        style = {"frameon": False, "fontsize": "small", "handlelength": 1.6, "columnspacing": 1.4}
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2, ncols=5, **style)


def _latent_quantiles(prediction: Prediction, latent: int, probabilities: list[float]) -> np.ndarray:
    mean, variance = prediction.latent.mean[:, latent], prediction.latent.covariance[:, latent, latent]
    return mean + ndtri(probabilities)[:, None] * np.sqrt(variance)


def _draw_data(ax: "Axes", result: Result, column: int, output: int, kind: str, line: _Line) -> None:
    data = result.data
    observed = data.observed if data.seen is None else data.seen[:, output]
    x, y = line.to_axis(data.x[observed, column]), data.y[observed, output]
    size, alpha = _marker(y.size)
    if kind == "binary":
        heights = np.where(y > 0.5, 1.03, -0.03)
        ax.plot(x, heights, "|", color=DATA, markersize=7.0, alpha=alpha, label="data")
    elif kind == "classes":
        for label in np.unique(y).astype(int):
            ticks = x[y == label]
            ax.plot(ticks, np.full(ticks.size, -0.03), "|", color=class_colour(label), markersize=7.0)
    else:
        style = {"color": DATA, "markeredgewidth": 0, "rasterized": y.size > 10_000}
        ax.plot(x, y, "o", markersize=size, alpha=alpha, label="data", zorder=3, **style)


def _marker(count: int) -> tuple[float, float]:
    """Size and opacity for this many points."""
    return float(np.clip(60.0 / np.sqrt(count + 1.0), 1.0, 4.0)), float(np.clip(20.0 / np.sqrt(count + 1.0), 0.2, 0.75))


def _column(array: np.ndarray, output: int) -> np.ndarray:
    return array if array.ndim == 1 else array[:, output]


def subscript(number: int) -> str:
    """A number in small digits below the line."""
    return "".join(chr(ord("₀") + int(digit)) for digit in str(number))
