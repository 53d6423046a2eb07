"""Pictures of results. They need matplotlib, which comes with `pip install 'newtongp[plot]'`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND = "#2a6f97"
_MEAN = "#013a63"
_DATA = "#333333"


def require_matplotlib() -> None:
    """An ImportError that says what to install, where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'newtongp[plot]'") from None


def plot_prediction(
    result: Result,
    x: Any,
    y: Any,
    grid: Any,
    *,
    levels: Sequence[float] = (0.5, 0.95),
    ax: "Axes | None" = None,
    data_label: str = "data",
    **row_parameters: Any,
) -> "Axes":
    """The data, the predictive mean of y and its central bands, over one input.

    Bands are between quantiles of y, noise included, so that a share of `levels` of new data is expected in each.
    Where `grid` goes beyond the data, a line marks the end of the data. `ax` are the axes to draw on; without them
    pyplot makes a figure. `row_parameters` are the likelihood's numbers a row of `grid`, as in `Result.predict`.
    """
    require_matplotlib()
    inputs = _one_column(x, "x")
    outputs = _one_column(y, "y")
    new_inputs = np.sort(_one_column(grid, "grid"))
    if inputs.shape != outputs.shape:
        raise ValueError(f"x and y must have as many rows as each other, got {inputs.size} and {outputs.size}")
    widest_first = sorted({float(level) for level in levels}, reverse=True)
    if not all(0.0 < level < 1.0 for level in widest_first):
        raise ValueError(f"levels must lie strictly between 0 and 1, got {levels!r}")
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots(figsize=(9.0, 5.0), layout="constrained")[1]

    prediction = result.predict(new_inputs, **row_parameters)
    ends = prediction.quantile([0.5 + 0.5 * sign * level for level in widest_first for sign in (-1, 1)])
    for rank, level in enumerate(widest_first):
        lower, upper = ends[2 * rank], ends[2 * rank + 1]
        shade = 0.16 + 0.2 * rank
        ax.fill_between(
            new_inputs, lower, upper, color=_BAND, alpha=shade, linewidth=0, label=f"{100 * level:g} % of new data"
        )
    ax.plot(new_inputs, prediction.mean, color=_MEAN, linewidth=2.0, label="mean of y")
    ax.plot(inputs, outputs, "o", color=_DATA, markersize=3.5, markeredgewidth=0, alpha=0.75, label=data_label)
    _mark_ends_of_data(ax, inputs[np.isfinite(outputs)], new_inputs)
    ax.set_xlim(new_inputs[0], new_inputs[-1])
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return ax


def _one_column(values: Any, name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a vector or one column with at least one row, got shape {array.shape}")
    return array


def _mark_ends_of_data(ax: "Axes", observed: np.ndarray, grid: np.ndarray) -> None:
    """A dashed line where the grid leaves the data by more than a twentieth of its length."""
    if observed.size == 0:
        return
    width = grid[-1] - grid[0]
    first, last = observed.min(), observed.max()
    if first - grid[0] > 0.05 * width:
        _mark(ax, first, first - 0.01 * width, "right", "before the data")
    if grid[-1] - last > 0.05 * width:
        _mark(ax, last, last + 0.01 * width, "left", "after the data: forecast")


def _mark(ax: "Axes", end: float, place: float, align: str, text: str) -> None:
    ax.axvline(end, color=_DATA, linewidth=0.8, linestyle=(0, (4, 4)))
    ax.text(
        place,
        0.98,
        text,
        transform=ax.get_xaxis_transform(),
        ha=align,
        va="top",
        color=_DATA,
        fontsize="small",
    )
