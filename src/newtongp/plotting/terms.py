"""Plots of the terms of additive models: coefficients, levels of groups, curves, maps and areas."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..prediction.effects import at_inputs, centred_curve, coefficients, decoded, known_inputs, levels
from ..prediction.terms import Entry, entries_of, moments, select, width_of
from ..results.result import Result
from ..terms.group import Group, GroupEncoder
from ..terms.kernel_term import KernelTerm
from ..terms.linear import Linear, Offset
from ..terms.smooth import Area
from ..terms.times import RandomWalk, Season
from .pieces import BAND, DATA, MEAN, class_colour, require_matplotlib
from .shapes import draw_shapes, shapes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS, _SIDE = 120, 40
"""Points along a curve, and along each side of a map."""
_NAMED_LEVELS = 24
"""Levels whose names are written beside their intervals."""
_CURVES = 8
"""Curves with colours and names of their own; of more levels, all are drawn alike."""

Panel = tuple[str, Callable[["Axes"], None]]


def plot_terms(result: Result, axes: Any = None, only: Any = None, level: float = 0.95, places: Any = None) -> "Figure":
    """Draw every term of a model of terms, one panel each (a group with slopes has one per coefficient).

    Fixed effects are drawn as coefficients with intervals (an intercept only if it is alone), groups as their levels in
    order, smooth terms as curves with bands over their columns, with one curve per level of `by`, and as a map over two
    columns. Curves are centred: their average over the data is zero. Areas are drawn in order, or as a map if `places`
    maps each area to a point (x, y), to the corners of a polygon, (V, 2), or to a GeoJSON or shapely geometry (a
    FeatureCollection with the areas as ids will do).
    """
    require_matplotlib()
    half = width_of(level)
    entries = entries_of(result, "plot_terms") if only is None else select(result, only, "only")
    panels = [panel for entry in entries for panel in _panels(result, entry, half, places)]
    if not panels:
        raise ValueError("there is no term to draw: offsets are known")
    figure, made = _axes(axes, len(panels))
    for ax, (title, draw) in zip(made, panels, strict=False):
        draw(ax)
        ax.set_title(title, loc="left", fontsize="medium")
    for ax in made[len(panels) :]:
        ax.set_visible(False)
    return figure


def _axes(axes: Any, count: int) -> tuple["Figure", list["Axes"]]:
    if axes is not None:
        given = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(given) < count:
            raise ValueError(f"axes must be one per panel, {count}, got {len(given)}: leave axes out, or give more")
        return given[0].figure, given
    from matplotlib import pyplot

    columns = 1 if count == 1 else 2 if count <= 4 else 3
    rows = -(-count // columns)
    figure, made = pyplot.subplots(
        rows, columns, figsize=(5.2 * columns + 0.3, 3.6 * rows + 0.3), layout="constrained", squeeze=False
    )
    return figure, list(made.ravel())


def _panels(result: Result, entry: Entry, half: float, places: Any) -> list[Panel]:
    term = entry.term
    if isinstance(term, Offset):
        return []
    if isinstance(term, Linear):
        return [(entry.name, lambda ax: _coefficients(ax, result, entry, half))]
    if isinstance(term, Group):
        return _groups(result, entry, half)
    assert isinstance(term, KernelTerm)
    if isinstance(term, Area):
        if places is not None:
            return [(entry.name, lambda ax: _area_map(ax, result, entry, places))]
        return [(entry.name, lambda ax: _level_intervals(ax, result, entry, half, ordered=True))]
    inputs = np.asarray(term.points).shape[1] - int(term.by_level)
    if inputs == 1:
        draw = _walk if isinstance(term, RandomWalk) and _has_levels(entry) else _curves
        return [(entry.name, lambda ax: draw(ax, result, entry, half))]
    if inputs == 2 and not term.by_level:
        return [(entry.name, lambda ax: _map(ax, result, entry))]
    return [(entry.name, lambda ax: _level_intervals(ax, result, entry, half, ordered=True))]


# Coefficients and levels --------------------------------------------------------------------------------


def _intervals(ax: "Axes", names: Any, mean: np.ndarray, reach: np.ndarray, many: bool = False) -> None:
    """Points with intervals, one below the other, the first at the top."""
    height = np.arange(mean.size)[::-1]
    ax.hlines(height, mean - reach, mean + reach, color=BAND, linewidth=0.8 if many else 1.8, alpha=0.8)
    ax.plot(mean, height, "o", color=MEAN, markersize=2.0 if many else 4.5)
    ax.axvline(0.0, color=DATA, linewidth=0.8, linestyle=":")
    ax.set_ylim(-0.7, mean.size - 0.3)
    if many:
        ax.set_yticks([])
        ax.set_ylabel(f"{mean.size} levels, in order")
    else:
        ax.set_yticks(height, [str(name) for name in names], fontsize="small" if mean.size < 15 else "x-small")


def _coefficients(ax: "Axes", result: Result, entry: Entry, half: float) -> None:
    found = coefficients(result, entry)
    keep = [place for place, name in enumerate(found.names) if name != "intercept"] or [0]
    _intervals(
        ax, [found.names[k] for k in keep], found.mean[keep], half * np.sqrt(np.diagonal(found.covariance))[keep]
    )
    ax.set_xlabel("coefficient")


def _groups(result: Result, entry: Entry, half: float) -> list[Panel]:
    encoder = entry.encoder
    assert isinstance(encoder, GroupEncoder)
    found = levels(result, entry)
    size = len(encoder.names)
    labels = [":".join(map(str, level)) if isinstance(level, tuple) else level for level in encoder.levels]

    def panel(place: int) -> Panel:
        def draw(ax: "Axes") -> None:
            _ordered(ax, labels, found.mean[place::size], half * found.sd[place::size])
            ax.set_xlabel("effect" if size == 1 else f"effect on {encoder.names[place]}")

        return (entry.name if size == 1 else f"{entry.name}: {encoder.names[place]}", draw)

    return [panel(place) for place in range(size)]


def _ordered(ax: "Axes", labels: list[Any], mean: np.ndarray, reach: np.ndarray) -> None:
    order = np.argsort(-mean)
    _intervals(ax, [labels[k] for k in order], mean[order], reach[order], many=mean.size > _NAMED_LEVELS)


def _level_intervals(ax: "Axes", result: Result, entry: Entry, half: float, ordered: bool) -> None:
    found = levels(result, entry)
    labels = [", ".join(map(str, row)) for row in zip(*found.columns.values(), strict=True)]
    draw = _ordered if ordered else _intervals
    draw(ax, labels, found.mean, half * found.sd)
    ax.set_xlabel("effect")


# Curves and maps ----------------------------------------------------------------------------------------


def _has_levels(entry: Entry) -> bool:
    encoder: Any = entry.encoder
    return encoder.levels[0] is not None


def _levels_of(entry: Entry) -> list[tuple[float | None, str]]:
    """The codes and names of the levels that have a curve each; one without a name if there are none."""
    encoder, term = entry.encoder, entry.term
    assert isinstance(term, KernelTerm)
    if not term.by_level:
        return [(None, "")]
    levels: Any = getattr(encoder, "levels", ())
    return [(float(code), str(label)) for code, label in enumerate(levels[-1])]


def _curves(ax: "Axes", result: Result, entry: Entry, half: float) -> None:
    """One curve with its band, or one per level."""
    term: Any = entry.term
    known = known_inputs(result, entry)
    grid = _grid(term, known[:, 0])
    each = _levels_of(entry)
    varies = term.by is not None and not term.by_level  # a coefficient, whose average means something
    for number, (code, name) in enumerate(each):
        inputs = grid[:, None] if code is None else np.stack([grid, np.full(grid.size, code)], axis=1)
        if varies:
            mean, sd = moments(result, at_inputs(result, entry, inputs), entry.latent, [entry])
        else:
            mean, sd = centred_curve(result, entry, inputs, code)
        across = decoded(entry, inputs)[term.columns[0]]
        few = len(each) <= _CURVES
        colour = MEAN if code is None else class_colour(number) if few else BAND
        if few:
            shade = BAND if code is None else colour
            ax.fill_between(across, mean - half * sd, mean + half * sd, color=shade, alpha=0.22, linewidth=0)
        ax.plot(across, mean, color=colour, linewidth=1.8 if few else 0.9, label=name if few else None)
    _rug(ax, decoded(entry, known)[term.columns[0]])
    ax.axhline(0.0, color=DATA, linewidth=0.8, linestyle=":")
    if len(each) > 1 and len(each) <= _CURVES:
        ax.legend(title=term.by, fontsize="small", title_fontsize="small")
    ax.set_xlabel(term.columns[0])
    ax.set_ylabel(f"coefficient of {term.by}" if varies else "effect, centred")
    _turn_dates(ax, across)


def _grid(term: Any, values: np.ndarray) -> np.ndarray:
    """The inputs at which a curve is drawn: the range of the data, or one period of a season that repeats."""
    low, high = float(values.min()), float(values.max())
    if isinstance(term, Season) and term.decay is None:
        low = np.floor(low / term.period) * term.period
        high = low + term.period
    if isinstance(term, RandomWalk):
        return np.unique(values)
    # The inputs of the data as well: rough curves have their kinks there.
    inside = np.unique(values[(values >= low) & (values <= high)])
    return np.unique(np.concatenate([np.linspace(low, high, _POINTS), inside if inside.size <= 2 * _POINTS else []]))


def _rug(ax: "Axes", values: np.ndarray) -> None:
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(ax.transData, ax.transAxes)
    low, high = ax.get_xlim()
    ax.plot(np.unique(values), np.full(np.unique(values).size, 0.015), "|", color=DATA, transform=place, alpha=0.5)
    ax.set_xlim(low, high)


def _turn_dates(ax: "Axes", values: np.ndarray) -> None:
    if np.asarray(values).dtype.kind == "M":
        from matplotlib import dates

        locator = dates.AutoDateLocator(maxticks=6)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _walk(ax: "Axes", result: Result, entry: Entry, half: float) -> None:
    """A random walk over categories: points with intervals, in their order."""
    term: Any = entry.term
    for number, (code, name) in enumerate(_levels_of(entry)):
        known = np.unique(np.asarray(term.points)[np.asarray(term.used)], axis=0)
        known = known if code is None else known[known[:, -1] == code]
        mean, sd = centred_curve(result, entry, known, code)
        colour = MEAN if code is None else class_colour(number)
        ax.errorbar(known[:, 0], mean, half * sd, fmt="o-", color=colour, capsize=2, label=name or None)
        labels = [str(label) for label in decoded(entry, known)[term.columns[0]]]
        ax.set_xticks(known[:, 0], labels, rotation=30 if max(map(len, labels)) > 4 else 0, fontsize="small")
    ax.axhline(0.0, color=DATA, linewidth=0.8, linestyle=":")
    ax.set_xlabel(term.columns[0])
    ax.set_ylabel("effect, centred")


def _map(ax: "Axes", result: Result, entry: Entry) -> None:
    """The posterior mean over two columns, with the inputs of the data."""
    term: Any = entry.term
    known = known_inputs(result, entry)
    sides = [np.linspace(known[:, k].min(), known[:, k].max(), _SIDE) for k in (0, 1)]
    inputs = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    mean, _ = moments(result, at_inputs(result, entry, inputs), entry.latent, [entry])
    at_data, _ = moments(result, at_inputs(result, entry, known), entry.latent, [entry])
    values = (mean - at_data.mean()).reshape(_SIDE, _SIDE).T
    names = list(term.columns)
    across, up = (decoded(entry, np.tile(side[:, None], (1, 2)))[name] for side, name in zip(sides, names, strict=True))
    drawn = ax.pcolormesh(across, up, values, shading="gouraud", **_diverging(values))
    ax.figure.colorbar(drawn, ax=ax, label="effect, centred")
    at = decoded(entry, known)
    ax.plot(at[names[0]], at[names[1]], ".", color=DATA, markersize=2.5, alpha=0.6)
    ax.set(xlabel=names[0], ylabel=names[1])


def _diverging(values: np.ndarray) -> dict[str, Any]:
    size = float(np.max(np.abs(values), initial=1e-12))
    return {"cmap": "PuOr_r", "vmin": -size, "vmax": size}


def _area_map(ax: "Axes", result: Result, entry: Entry, places: Any) -> None:
    """Areas as points or polygons, coloured by their effects."""
    found = levels(result, entry)
    (labels,) = found.columns.values()
    drawn = draw_shapes(ax, shapes_of(places, labels.tolist()), found.mean, _diverging(found.mean))
    ax.figure.colorbar(drawn, ax=ax, label="effect")
