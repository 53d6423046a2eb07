"""Plots of Gaussian processes in space and time: maps at chosen times, and the series of places."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..prediction.predict import Prediction, predict_at
from ..priors.space_time import SpaceTimeGP
from ..results.result import Result
from ..validation.numbers import NotRealError, as_real
from ..validation.times import read_times
from .pieces import DATA, MEAN, clock_of, fill_bands, make_panels, read_levels, require_matplotlib, tails_of
from .shapes import draw_shapes, shapes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDE = 50
"""Points along each side of a map."""
_MAPS, _PANELS = 4, 12
"""Times and places that are drawn if none are given."""
_POINTS = 201
_WHAT = {
    "mean": ("mean of y", lambda prediction: prediction.mean),
    "sd": ("sd of y", lambda prediction: prediction.std),
    "latent": ("mean of latent f", lambda prediction: prediction.latent.mean[:, 0]),
    "latent sd": ("sd of latent f", lambda prediction: np.sqrt(prediction.latent.covariance[:, 0, 0])),
}


def plot_maps(
    result: Result,
    times: Any = None,
    places: Any = None,
    *,
    what: str = "mean",
    axes: Any = None,
    **row_parameters: Any,
) -> "Figure":
    """Maps of a `SpaceTimeGP` at some times, with one scale of colours; `result.plot_maps` calls this.

    `times` may be time stamps, and lie before, between and after those of the data; by default four of the data are
    shown. Areas are drawn where `places` says: a mapping from codes to points (x, y), to corners (V, 2) or to
    geometries, a list of these, or a GeoJSON FeatureCollection. Places with two coordinates need no `places`: the map
    covers their range, and points are the data at that time. `what` is "mean" (of y), "sd", "latent" or "latent sd".
    """
    x, shown = _data_of(result, "plot_maps"), _times(result, times)
    name, values_of = _what(what)
    figure, panels = _panels(axes, len(shown), share=False)
    if places is None:
        inputs, sides = _grid(x)
    else:
        inputs, sides = _areas(x), None
    at = np.concatenate([np.column_stack([np.full(len(inputs), time), inputs]) for time in shown])
    values = np.asarray(values_of(predict_at(result, at, **row_parameters))).reshape(len(shown), -1)
    style = {"cmap": "viridis", "vmin": float(values.min()), "vmax": float(values.max())}
    drawn: Any = None
    for ax, time, here in zip(panels, shown, values, strict=True):
        if sides is None:
            drawn = draw_shapes(ax, shapes_of(places, [int(code) for code in inputs[:, 0]]), here, style)
        else:
            drawn = ax.pcolormesh(*sides, here.reshape(_SIDE, _SIDE).T, shading="gouraud", **style)
            _draw_rows(ax, result, time, style if what == "mean" else None)
        ax.set_title(_words(result, time), loc="left", fontsize="medium")
    figure.colorbar(drawn, ax=panels, label=name, shrink=0.8)
    return figure


def plot_places(
    result: Result,
    places: Any = None,
    *,
    until: Any = None,
    names: Any = None,
    levels: float | Sequence[float] = (0.5, 0.95),
    axes: Any = None,
    **row_parameters: Any,
) -> "Figure":
    """The series of places of a `SpaceTimeGP`, one panel each: data, mean of y, and bands; `result.plot_places`.

    `places` are area codes, or rows of coordinates, which need not be in the data; by default the twelve places with
    the most observed rows. Bands are between quantiles of new data. `until` extends the series to a later time, and
    `names` maps codes to titles, or is a list with the titles of `places`.
    """
    x = _data_of(result, "plot_places")
    chosen, widest_first = _places(result, x, places), read_levels(levels)
    first, last = float(x[:, 0].min()), float(x[:, 0].max())
    if until is not None:
        last = float(_numbers(result, until, "until")[0])
        if not last > first:
            raise ValueError(f"until must be a time after the first one of the data, got {until!r}")
    grid = np.linspace(first, last, _POINTS)
    if last <= float(x[:, 0].max()) and len(np.unique(x[:, 0])) > _POINTS:
        grid = np.unique(x[:, 0])
    clock = clock_of(result)
    to_axis = (lambda numbers: numbers) if clock is None else clock.stamps
    figure, panels = _panels(axes, len(chosen), share=True)
    titles = _titles(chosen, names)
    for place, (ax, own) in enumerate(zip(panels, chosen, strict=True)):
        at = np.column_stack([grid, np.repeat(own[None], grid.size, axis=0)])
        prediction: Prediction = predict_at(result, at, **row_parameters)
        fill_bands(ax, to_axis(grid), prediction.quantile(tails_of(widest_first)), widest_first, "% of new data")
        ax.plot(to_axis(grid), prediction.mean, color=MEAN, linewidth=1.6, label="mean of y")
        rows = result.data.observed & np.all(x[:, 1:] == own, axis=1)
        ax.plot(to_axis(x[rows, 0]), result.data.y[rows, 0], "o", color=DATA, markersize=2.8, alpha=0.75, label="data")
        ax.set_title(titles[place], loc="left", fontsize="medium")
        ax.tick_params(axis="x", rotation=0 if clock is None else 30)
    panels[0].legend(fontsize="x-small", framealpha=0.85)
    return figure


def _data_of(result: Result, what: str) -> np.ndarray:
    """x of the data; raises ValueError unless the prior is one of space and time, with one output."""
    require_matplotlib()
    if not isinstance(result.model.prior, SpaceTimeGP):
        raise ValueError(
            f"{what} is for models in space and time, with SpaceTimeGP as their prior, but this one has "
            f"{type(result.model.prior).__name__}: use plot()"
        )
    outputs = result.model.likelihood.num_outputs
    if outputs != 1:
        raise ValueError(
            f"{what} draws one output, but y has {outputs}: predict with result.predict(...), and plot that"
        )
    return result.data.x


def _numbers(result: Result, times: Any, name: str) -> np.ndarray:
    """Times as numbers, whether given as numbers or as time stamps."""
    clock, stamps = clock_of(result), read_times(np.atleast_1d(np.asarray(times)))
    if stamps is not None:
        if clock is None:
            raise ValueError(f"{name} must be numbers, as the times of the data are, got time stamps")
        return stamps.numbers(clock).reshape(-1)
    try:
        found = np.atleast_1d(as_real(times)).reshape(-1)
    except NotRealError:
        raise ValueError(
            f"{name} must be numbers or time stamps, got {times!r}: make time stamps of strings, for example with "
            "np.datetime64 or pandas.to_datetime"
        ) from None
    if found.size == 0 or not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be one or more finite times, got {times!r}")
    return found


def _times(result: Result, times: Any) -> np.ndarray:
    if times is not None:
        return _numbers(result, times, "times")
    known = np.unique(result.data.x[:, 0])
    return known[np.unique(np.linspace(0, known.size - 1, _MAPS).round().astype(int))]


def _what(what: str) -> Any:
    if what not in _WHAT:
        raise ValueError(f"what must be one of {', '.join(map(repr, _WHAT))}, got {what!r}")
    return _WHAT[what]


def _grid(x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """A grid over the range of two coordinates, as rows, and its sides."""
    if x.shape[1] != 3:
        raise ValueError(
            f"without places, maps are over two coordinates, but x has {x.shape[1] - 1} column(s) after the time: give "
            "places, a mapping from area codes to points or polygons"
        )
    sides = []
    for values in x[:, 1:].T:
        margin = 0.05 * float(np.ptp(values))
        sides.append(np.linspace(values.min() - margin, values.max() + margin, _SIDE))
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2), sides


def _areas(x: np.ndarray) -> np.ndarray:
    if x.shape[1] != 2:
        raise ValueError(
            f"places is for areas, which are codes in one column, but x has {x.shape[1] - 1} columns after the time: "
            "leave it out"
        )
    return np.unique(x[:, 1])[:, None]


def _draw_rows(ax: "Axes", result: Result, time: float, style: Any) -> None:
    """The places of the data at this time, in the colours of their y; in grey if the map shows something else."""
    rows = result.data.observed & (result.data.x[:, 0] == time)
    across, up = result.data.x[rows, 1:].T
    look: dict[str, Any] = {"color": DATA} if style is None else {"c": result.data.y[rows, 0], **style}
    ax.scatter(across, up, s=18, edgecolors="white", linewidths=0.6, zorder=3, **look)


def _places(result: Result, x: np.ndarray, places: Any) -> np.ndarray:
    """The places to draw, one per row."""
    columns = x.shape[1] - 1
    if places is None:
        distinct, codes = np.unique(x[:, 1:], axis=0, return_inverse=True)
        counts = np.bincount(codes.reshape(-1), weights=result.data.observed, minlength=len(distinct))
        most = np.sort(np.argsort(-counts, kind="stable")[:_PANELS])
        return distinct[most]
    try:
        given = as_real(places)
    except NotRealError:
        raise ValueError(f"places must be area codes or coordinates, got {places!r}") from None
    given = given.reshape(-1, 1) if columns == 1 else np.atleast_2d(given)
    if given.shape[1] != columns or given.size == 0 or not np.all(np.isfinite(given)):
        raise ValueError(
            f"places must have {columns} finite number(s) per place, as x has after the time, got {places!r}"
        )
    return given


def _titles(places: np.ndarray, names: Any) -> list[str]:
    if isinstance(names, (list, tuple, np.ndarray)):
        if len(names) != len(places):
            raise ValueError(f"names must have one title per place, {len(places)}, got {len(names)}")
        return [str(name) for name in names]
    plain = [", ".join(f"{value:g}" for value in place) for place in places]
    if names is None:
        return plain
    return [str(names.get(int(place[0]), label)) for place, label in zip(places, plain, strict=True)]


def _words(result: Result, time: float) -> str:
    clock = clock_of(result)
    return f"time {time:g}" if clock is None else str(clock.stamps(np.array([time]))[0])[:16].removesuffix("T00:00")


def _panels(axes: Any, count: int, share: bool) -> tuple["Figure", list["Axes"]]:
    if axes is not None:
        return make_panels(axes, count, main=count)
    from matplotlib import pyplot

    columns = min(count, 4)
    rows = -(-count // columns)
    size = (3.1 * columns + 0.8, (2.0 if share else 3.0) * rows + 0.4)
    figure, made = pyplot.subplots(rows, columns, figsize=size, sharex=share, layout="constrained", squeeze=False)
    for ax in made.ravel()[count:]:
        ax.set_axis_off()
    for ax in made.ravel()[count - columns : count]:  # the lowest panel of every column
        ax.tick_params(axis="x", labelbottom=True)
    return figure, list(made.ravel()[:count])
