"""One curve on one pair of axes: predictions of y, or its mean given the latents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from .._runtime.double import in_double
from ..likelihoods.base import Likelihood, row_axes, row_mean, with_row_parameters
from ..prediction.predict import new_inputs, predict_at
from ..results.result import Result
from ..validation.times import read_times
from .pieces import DATA, MEAN, fill_bands, in_order, read_levels, require_matplotlib, tails_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_prediction(
    result: Result,
    x: Any,
    y: Any,
    grid: Any,
    *,
    levels: float | Sequence[float] = (0.5, 0.95),
    ax: "Axes | None" = None,
    data_label: str = "data",
    **row_parameters: Any,
) -> "Axes":
    """Plot the data, the predictive mean of y and its central bands, over one input.

    Bands are between quantiles of y, including noise, so that each should contain a fraction of new data given by
    `levels`. If `grid` extends beyond the data, a line marks the end of the data. `x` and `grid` may be time stamps if
    the model accepts them. `ax` are the axes to draw on; without them pyplot creates a figure. `row_parameters` are
    the likelihood's values per row of `grid`, as in `Result.predict`.
    """
    require_matplotlib()
    inputs = _inputs(x, "x")
    outputs = one_column(y, "y")
    drawn, at, row_parameters = _drawn(result, grid, row_parameters)
    if inputs.shape != outputs.shape:
        raise ValueError(f"x and y must have the same number of rows, got {inputs.size} and {outputs.size}")
    widest_first = read_levels(levels)
    ax = ax or _new_axes()

    prediction = predict_at(result, at, **row_parameters)
    ends = prediction.quantile(tails_of(widest_first))
    fill_bands(ax, drawn, ends, widest_first, "% of new data")
    ax.plot(drawn, prediction.mean, color=MEAN, linewidth=2.0, label="mean of y")
    ax.plot(inputs, outputs, "o", color=DATA, markersize=3.5, markeredgewidth=0, alpha=0.75, label=data_label)
    mark_ends_of_data(ax, inputs[np.isfinite(outputs)], drawn)
    _finish(ax, drawn)
    return ax


def plot_conditional_mean(
    result: Result,
    grid: Any,
    *,
    x: Any = None,
    levels: float | Sequence[float] = (0.5, 0.95),
    ax: "Axes | None" = None,
    label: str = "E[y | f]",
    **row_parameters: Any,
) -> "Axes":
    """Plot E[y | f], such as the rate of counts or the probability of a class: its median and central intervals.

    Bands exclude the noise of y: at a given input, the curve is in a band with the probability in `levels`. This is for
    likelihoods with one latent and a mean that is monotonic in it. If the data's inputs are given as `x`, a line marks
    where `grid` extends beyond them.
    """
    require_matplotlib()
    likelihood = result.model.likelihood
    if likelihood.num_latents != 1 or likelihood.num_outputs != 1:
        raise ValueError(
            f"plot_conditional_mean needs one latent and one output, but {type(likelihood).__name__} has "
            f"{likelihood.num_latents} and {likelihood.num_outputs}: plot result.predict(...).latent instead"
        )
    drawn, at, row_parameters = _drawn(result, grid, row_parameters)
    widest_first = read_levels(levels)
    ax = ax or _new_axes()

    latent = predict_at(result, at, **row_parameters).latent
    scores = ndtri([*tails_of(widest_first), 0.5])
    quantiles = latent.mean[:, 0] + scores[:, None] * np.sqrt(latent.covariance[:, 0, 0])
    curves = conditional_means(with_row_parameters(likelihood, **row_parameters), quantiles)
    fill_bands(ax, drawn, curves[:-1], widest_first, "% interval")
    ax.plot(drawn, curves[-1], color=MEAN, linewidth=2.0, label=label)
    if x is not None:
        mark_ends_of_data(ax, _inputs(x, "x"), drawn)
    _finish(ax, drawn)
    return ax


@in_double
def conditional_means(likelihood: Likelihood, latents: np.ndarray) -> np.ndarray:
    """E[y | f] for several f per row, (Q, M)."""

    def row(likelihood, values):
        return jax.vmap(lambda f: row_mean(likelihood, f[None])[0])(values)

    rows = jax.vmap(row, in_axes=(row_axes(likelihood), 1), out_axes=1)
    return np.asarray(rows(likelihood, jnp.asarray(latents)))


def _drawn(result: Result, grid: Any, row_parameters: dict) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """The grid in rising order, as it is drawn and as the model reads it, and row parameters in the same order."""
    drawn, moved = in_order(_grid(grid), row_parameters)
    return drawn, np.sort(new_inputs(result, grid, row_parameters, "grid"), axis=0), moved


def _new_axes() -> "Axes":
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9.0, 5.0), layout="constrained")[1]


def _finish(ax: "Axes", grid: np.ndarray) -> None:
    if grid[0] != grid[-1]:
        ax.set_xlim(grid[0], grid[-1])
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)


def _inputs(values: Any, name: str) -> np.ndarray:
    """One column of numbers, or of time stamps in UTC, as matplotlib draws them."""
    times = read_times(values)
    if times is None:
        return one_column(values, name)
    if isinstance(times.first, np.timedelta64):
        raise ValueError(f'{name} holds durations: plot numbers, as in {name} / np.timedelta64(1, "h")')
    return _as_column(times.entries.astype("datetime64[us]"), name)


def one_column(values: Any, name: str) -> np.ndarray:
    """Numbers as a vector; ValueError if they have several columns."""
    return _as_column(np.asarray(values, dtype=np.float64), name)


def finite_column(values: Any, name: str) -> np.ndarray:
    """Finite numbers as a vector; ValueError if one is not, or if they have several columns."""
    return _check_finite(one_column(values, name), name)


def _grid(values: Any) -> np.ndarray:
    return _check_finite(_inputs(values, "grid"), "grid")


def _check_finite(array: np.ndarray, name: str) -> np.ndarray:
    wrong = np.flatnonzero(~np.isfinite(array))
    if wrong.size:
        raise ValueError(f"{name} must be finite, but row {wrong[0]} is {array[wrong[0]]}: drop that row")
    return array


def _as_column(array: np.ndarray, name: str) -> np.ndarray:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a vector or one column with at least one row, got shape {array.shape}")
    return array


def mark_ends_of_data(ax: "Axes", observed: np.ndarray, grid: np.ndarray) -> None:
    """Draw a dashed line where the grid extends beyond the data by more than a twentieth of its length."""
    if observed.size == 0:
        return
    width = grid[-1] - grid[0]
    first, last = observed.min(), observed.max()
    if 0.05 * width < first - grid[0] <= width:
        _mark(ax, first, first - 0.01 * width, "right", "before the data")
    if 0.05 * width < grid[-1] - last <= width:
        _mark(ax, last, last + 0.01 * width, "left", "after the data: forecast")


def _mark(ax: "Axes", end: Any, place: Any, align: str, text: str) -> None:
    ax.axvline(end, color=DATA, linewidth=0.8, linestyle=(0, (4, 4)))
    style: dict[str, Any] = {"ha": align, "va": "top", "color": DATA, "fontsize": "small"}
    ax.text(place, 0.98, text, transform=ax.get_xaxis_transform(), **style)
