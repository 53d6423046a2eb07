"""Plots of forecasts and of their components."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..plotting.pieces import BAND, DATA, MEAN, fill_bands, make_panels, require_matplotlib
from ..terms.table import Table, is_table
from ..validation.arguments import whole
from .calendar import Period, read_times
from .fitted import Fitted, summarised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_DATA = 2000
"""More rows than this are drawn as their last ones."""


def plot_forecast(fitted: Fitted, horizon: Any, level: float, axes: Any) -> "Figure":
    """The data, the fitted mean, and the forecast with its interval."""
    require_matplotlib()
    figure, (ax,) = make_panels(axes, 1, 1)
    rows = fitted.rows.take(np.arange(max(0, fitted.rows.count - _MOST_DATA), fitted.rows.count))
    inside = summarised(fitted.predict(rows.times, rows.table), [level])
    ax.plot(rows.times, rows.y, ".", color=DATA, markersize=4, label=rows.output)
    ax.plot(rows.times, inside["mean"], color=MEAN, linewidth=0.8)
    if horizon is not None:
        times, table = _future(fitted, horizon)
        ahead = fitted.forecast(times, table, [level])
        fill_bands(ax, times, np.stack([ahead["lower"], ahead["upper"]]), [level], "% interval")
        ax.plot(times, ahead["median"], color=BAND, label="median")
        ax.axvline(fitted.rows.times[-1], color=DATA, linewidth=0.6, linestyle=":")
    ax.set_xlabel(fitted.rows.time)
    ax.legend(loc="upper left", frameon=False)
    return figure


def _future(fitted: Fitted, horizon: Any) -> tuple[np.ndarray, Any]:
    if is_table(horizon):
        return read_times(Table(horizon), fitted.rows.time)[0], horizon
    return fitted.calendar.future(fitted.rows.times[-1], whole(horizon, "horizon", 1, such_as=12)), None


def plot_components(fitted: Fitted, level: float, axes: Any) -> "Figure":
    """One panel per component: over time, and seasons over their last period."""
    require_matplotlib()
    rows, names = fitted.rows, list(fitted.parts())
    columns = fitted.components(rows.times, rows.table, level)
    figure, panels = make_panels(axes, len(names), 1) if axes is not None else _stacked(len(names))
    periods = dict(zip(fitted.structure.season_names, fitted.structure.seasons, strict=True))
    for ax, name in zip(panels, names, strict=True):
        own = {key: values[columns["component"] == name] for key, values in columns.items()}
        x, order = _over(fitted, periods.get(name))
        fill_bands(ax, x, np.stack([own["lower"][order], own["upper"][order]]), [level], "% interval")
        ax.plot(x, own["mean"][order], color=MEAN)
        ax.set_ylabel(name)
    return figure


def _stacked(count: int) -> tuple["Figure", list[Any]]:
    from matplotlib import pyplot

    figure, made = pyplot.subplots(count, 1, figsize=(9.0, 0.6 + 2.2 * count), layout="constrained", squeeze=False)
    return figure, list(made.ravel())


def _over(fitted: Fitted, period: Period | None) -> tuple[np.ndarray, np.ndarray]:
    """What a component is drawn over, and the rows in that order: time, or the rows of the last whole period."""
    times = fitted.rows.times
    if period is None:
        return times, np.arange(times.size)
    phase = fitted.calendar.phase(times, period)
    last = np.flatnonzero(phase > phase[-1] - 1.0)
    _, first = np.unique(times[last], return_index=True)
    return times[last[first]], last[first]
