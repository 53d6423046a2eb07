"""Pictures of results. They need matplotlib, which comes with `pip install 'newtongp[plot]'`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import binom, norm

from . import data as data_room
from .checking import LEVELS, Calibration, has_distribution
from .likelihoods.base import Likelihood, row_axes, row_mean, rows_given, with_row_parameters
from .precision import in_double
from .predict import Prediction
from .priors.statespace import StateSpaceModel
from .results import Result
from .times import Clock, read_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = "#2a6f97"
_MEAN = "#013a63"
_DATA = "#333333"
_LATENT_BAND = "#7a5195"
_LATENT_MEAN = "#4a2c6a"
_CLASSES = ("#2a6f97", "#c8553d", "#588157", "#7a5195", "#d8973c", "#5f6b6d", "#b56576", "#3d9a9a")
_POINTS_ON_A_LINE = 201
_POINTS_ON_A_SIDE = 80


def require_matplotlib() -> None:
    """An ImportError that says what to install, where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'newtongp[plot]'") from None


def plot_result(
    result: Result,
    axes: Any = None,
    grid: Any = None,
    *,
    latents: bool = False,
    levels: Sequence[float] = (0.5, 0.95),
    **row_parameters: Any,
) -> "Figure":
    """The data and the predictions of y, over one input or as a map over two; what `result.plot` draws.

    Over one input (time stamps too) there is the predictive mean of y and a band for each of `levels`, between
    quantiles of y, noise included; for 0 and 1, what is known of the probability of 1; for classes, their
    probabilities. Over two inputs there is a map of the mean or the probability. Columns of x that never vary are held
    where they are. `latents=True` adds a panel for every latent.

    `grid` is where to predict: inputs of your own choice, or a pair of vectors for a map; by default the range of the
    data. `axes` are the matplotlib axes to draw on, as many as panels; without them pyplot makes a figure.
    `row_parameters` are the likelihood's numbers at the grid, as in `Result.predict`. If the model has one a row and
    none is given, predictions are at the rows of the data, with their own.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> figure = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).plot(latents=True)
    >>> len(figure.axes)
    2
    """
    require_matplotlib()
    widest_first = _widest_first(levels)
    if result.data is None:
        if grid is None:
            raise ValueError("grid is needed where the data was read in chunks: give the inputs to predict at")
        varying = [0]
    else:
        x = result.data.x
        varying = [0] if x.shape[1] == 1 else [int(k) for k in np.flatnonzero(np.ptp(x, axis=0) > 0.0)]
    if len(varying) == 1:
        return _plot_line(result, axes, grid, varying[0], latents, widest_first, row_parameters)
    if len(varying) == 2 and result.model.likelihood.num_outputs == 1:
        return _plot_map(result, axes, grid, varying, latents, row_parameters)
    outputs = result.model.likelihood.num_outputs
    raise ValueError(
        f"plot draws one input, or two with one output, and here are {len(varying)} that vary and {outputs} output(s): "
        "predict along a line of your own with result.predict(...), and plot that"
    )


# Over one input -----------------------------------------------------------------------------------------


class _Line(NamedTuple):
    """Predictions along one input, and how its numbers are to be drawn."""

    grid: np.ndarray
    prediction: Prediction
    likelihood: Likelihood
    """With its row parameters along the line."""
    to_axis: Callable[[np.ndarray], np.ndarray]


def _plot_line(result, axes, grid, column: int, latents: bool, levels: list[float], row_parameters) -> "Figure":
    line = _line(result, grid, column, row_parameters)
    kind = _kind(line.likelihood)
    outputs = {"nothing": 0, "bands": line.likelihood.num_outputs}.get(kind, 1)
    hidden = line.likelihood.num_latents if latents or kind == "nothing" else 0
    figure, panels = _panels(axes, outputs + hidden, main=outputs)
    for output, ax in enumerate(panels[:outputs]):
        if kind == "classes":
            _draw_classes(ax, line)
        elif kind == "binary":
            _draw_probability(ax, line, levels)
        else:
            _draw_bands(ax, line, output, levels)
        if result.data is not None:
            _draw_data(ax, result, column, output, kind, line)
        ax.set_ylabel("y" if outputs == 1 else f"y{_subscript(output + 1)}")
        if kind in ("binary", "classes"):
            ax.set_ylabel("probability")
        _frame(ax, line, legend=output == 0)
    for latent, ax in enumerate(panels[outputs:]):
        _draw_latent(ax, line, latent, levels)
        ax.set_ylabel("latent f" if hidden == 1 else f"latent f{_subscript(latent + 1)}")
        _frame(ax, line, legend=latent == 0)
    if result.data is not None:
        observed = line.to_axis(result.data.x[result.data.observed, column])
        for ax in panels:
            _mark_ends_of_data(ax, observed, line.to_axis(line.grid))
    panels[-1].set_xlabel("time" if _clock(result) else "x")
    return figure


def _line(result: Result, grid: Any, column: int, row_parameters: dict[str, Any]) -> _Line:
    model, likelihood = result.model, result.model.likelihood
    own = rows_given(likelihood)
    if grid is None and own and not row_parameters:
        # Only at the rows of the data is it known what they are.
        order = np.argsort(result.data.x[:, column], kind="stable")
        inputs = result.data.x[order]
        row_parameters = {name: np.asarray(likelihood.row_parameter(name))[order] for name in own}
    else:
        if grid is None:
            values = _default_grid(result.data.x[:, column], model.prior)
        elif result.data is None or result.data.x.shape[1] == 1:
            values = data_room.read_inputs(grid, model, "grid")[:, 0]
        else:
            values = _one_column(grid, "grid")
        values, row_parameters = _in_order(values, row_parameters)
        inputs = values[:, None]
        if result.data is not None:
            inputs = np.repeat(result.data.x[:1], values.size, axis=0)
            inputs[:, column] = values
    prediction = result.predict(inputs, **row_parameters)
    clock = _clock(result)
    return _Line(
        inputs[:, column],
        prediction,
        with_row_parameters(likelihood, **row_parameters),
        (lambda numbers: numbers) if clock is None else (lambda numbers: _as_stamps(numbers, clock)),
    )


def _default_grid(values: np.ndarray, prior: Any) -> np.ndarray:
    first, last = float(values.min()), float(values.max())
    if first == last and not isinstance(prior, StateSpaceModel):
        return np.array([first - 0.5, first, first + 0.5])
    grid = np.linspace(first, last, _POINTS_ON_A_LINE)
    return np.unique(np.round(grid)) if isinstance(prior, StateSpaceModel) else grid


def _kind(likelihood: Likelihood) -> str:
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
        _fill_bands(ax, grid, prediction.quantile(_tails(levels)), levels, "% of new data", step=step)
    else:
        scores, std = norm.ppf(_tails(levels)), _column(prediction.std, output)
        names = [f"mean ± {norm.ppf(0.5 + 0.5 * level):.2g} standard deviations" for level in levels]
        _fill_bands(ax, grid, centre + scores[:, None] * std, levels, names=names)
    ax.plot(grid, centre, color=_MEAN, linewidth=1.8, label=label)


def _draw_probability(ax: "Axes", line: _Line, levels: list[float]) -> None:
    grid = line.to_axis(line.grid)
    curves = _conditional_means(line.likelihood, _latent_quantiles(line.prediction, 0, _tails(levels)))
    _fill_bands(ax, grid, np.sort(curves, axis=0)[_nested(len(levels))], levels, "% interval")
    ax.plot(grid, line.prediction.mean, color=_MEAN, linewidth=1.8, label="P(y = 1)")
    ax.set_ylim(-0.06, 1.06)


def _nested(count: int) -> list[int]:
    """Where the ends of `count` nested intervals, the widest first, are among their ends in rising order."""
    return [position for rank in range(count) for position in (rank, 2 * count - 1 - rank)]


def _draw_classes(ax: "Axes", line: _Line) -> None:
    grid = line.to_axis(line.grid)
    for label, curve in enumerate(line.prediction.probabilities.T):
        ax.plot(grid, curve, color=_class_colour(label), linewidth=1.8, label=f"P(y = {label})")
    ax.set_ylim(-0.06, 1.06)


def _draw_latent(ax: "Axes", line: _Line, latent: int, levels: list[float]) -> None:
    grid = line.to_axis(line.grid)
    ends = _latent_quantiles(line.prediction, latent, _tails(levels))
    _fill_bands(ax, grid, ends, levels, "% interval", colour=_LATENT_BAND)
    ax.plot(grid, line.prediction.latent.mean[:, latent], color=_LATENT_MEAN, linewidth=1.8, label="mean of f")


def _frame(ax: "Axes", line: _Line, legend: bool) -> None:
    """Room for points at the ends, and a legend above the axes, where it hides nothing."""
    first, last = line.to_axis(line.grid[[0, -1]])
    margin = (last - first) * 0.012
    ax.set_xlim(first - margin, last + margin)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        style = {"frameon": False, "fontsize": "small", "handlelength": 1.6, "columnspacing": 1.4}
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), borderaxespad=0.2, ncols=5, **style)


def _latent_quantiles(prediction: Prediction, latent: int, probabilities: list[float]) -> np.ndarray:
    mean, variance = prediction.latent.mean[:, latent], prediction.latent.covariance[:, latent, latent]
    return mean + norm.ppf(probabilities)[:, None] * np.sqrt(variance)


def _draw_data(ax: "Axes", result: Result, column: int, output: int, kind: str, line: _Line) -> None:
    data = result.data
    seen = data.observed if data.seen is None else data.seen[:, output]
    x, y = line.to_axis(data.x[seen, column]), data.y[seen, output]
    size, alpha = _marker(y.size)
    if kind == "binary":
        heights = np.where(y > 0.5, 1.03, -0.03)
        ax.plot(x, heights, "|", color=_DATA, markersize=7.0, alpha=alpha, label="data")
    elif kind == "classes":
        for label in range(line.likelihood.num_latents):
            ticks = x[y == label]
            ax.plot(ticks, np.full(ticks.size, -0.03), "|", color=_class_colour(label), markersize=7.0)
    else:
        style = {"color": _DATA, "markeredgewidth": 0, "rasterized": y.size > 10_000}
        ax.plot(x, y, "o", markersize=size, alpha=alpha, label="data", zorder=3, **style)


def _marker(count: int) -> tuple[float, float]:
    """Size and opacity of that many points: few are easy to see, many do not hide what is behind."""
    return float(np.clip(60.0 / np.sqrt(count + 1.0), 1.0, 4.0)), float(np.clip(20.0 / np.sqrt(count + 1.0), 0.2, 0.75))


def _class_colour(label: int) -> str:
    return _CLASSES[label % len(_CLASSES)]


def _column(array: np.ndarray, output: int) -> np.ndarray:
    return array if array.ndim == 1 else array[:, output]


def _subscript(number: int) -> str:
    return "".join(chr(ord("₀") + int(digit)) for digit in str(number))


def _clock(result: Result) -> Clock | None:
    return getattr(result.model.prior, "clock", None)


def _as_stamps(numbers: np.ndarray, clock: Clock) -> np.ndarray:
    microseconds = np.round(numbers * (clock.unit / np.timedelta64(1, "us"))).astype(np.int64)
    return clock.origin.astype("datetime64[us]") + microseconds.astype("timedelta64[us]")


# Over two inputs ------------------------------------------------------------------------------------------


def _plot_map(result: Result, axes, grid, columns: list[int], latents: bool, row_parameters) -> "Figure":
    sides = _sides(result, grid, columns)
    inputs = np.repeat(result.data.x[:1], sides[0].size * sides[1].size, axis=0)
    inputs[:, columns] = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    prediction = result.predict(inputs, **row_parameters)
    likelihood = result.model.likelihood
    kind = _kind(likelihood)
    hidden = likelihood.num_latents if latents or kind == "nothing" else 0
    shown = 0 if kind == "nothing" else 1
    figure, panels = _panels(axes, shown + hidden, main=shown, side_by_side=True)

    def as_map(values: np.ndarray) -> np.ndarray:
        return values.reshape(sides[0].size, sides[1].size, *values.shape[1:]).swapaxes(0, 1)

    if shown:
        if kind == "classes":
            _map_of_classes(panels[0], sides, as_map(prediction.probabilities))
            _scatter_classes(panels[0], *_points(result, columns))
        elif kind == "binary":
            _map_of_probability(panels[0], sides, as_map(prediction.mean))
            _scatter_classes(panels[0], *_points(result, columns))
        else:
            has_moments = likelihood.moments_problem() is None
            values = prediction.mean if has_moments else prediction.quantile(0.5)
            name = "mean of y" if has_moments else "median of y"
            _map_of_values(panels[0], sides, as_map(values), *_points(result, columns), name)
    for latent, ax in enumerate(panels[shown:]):
        drawn = ax.pcolormesh(*sides, as_map(prediction.latent.mean[:, latent]), cmap="PuOr_r", shading="gouraud")
        name = "mean of latent f" if hidden == 1 else f"mean of latent f{_subscript(latent + 1)}"
        ax.figure.colorbar(drawn, ax=ax, label=name)
        seen = result.data.x[result.data.observed]
        ax.plot(seen[:, columns[0]], seen[:, columns[1]], ".", color=_DATA, markersize=2.5, alpha=0.6)
    for ax in panels:
        ax.set(xlim=(sides[0][0], sides[0][-1]), ylim=(sides[1][0], sides[1][-1]))
        ax.set(xlabel=f"x{_subscript(columns[0] + 1)}", ylabel=f"x{_subscript(columns[1] + 1)}")
    return figure


def _sides(result: Result, grid: Any, columns: list[int]) -> list[np.ndarray]:
    if grid is not None:
        if not isinstance(grid, (list, tuple)) or len(grid) != 2:
            raise ValueError(
                f"grid must be a pair of vectors, one for each input that varies, got {type(grid).__name__}: write "
                "grid=(np.linspace(...), np.linspace(...))"
            )
        return [np.unique(_one_column(side, "grid")) for side in grid]
    sides = []
    for column in columns:
        values = result.data.x[:, column]
        margin = 0.05 * np.ptp(values)
        sides.append(np.linspace(values.min() - margin, values.max() + margin, _POINTS_ON_A_SIDE))
    return sides


def _map_of_probability(ax: "Axes", sides: list[np.ndarray], values: np.ndarray) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    # Paler than the points of the classes, which so stand out.
    ramp = LinearSegmentedColormap.from_list("classes", ["#7fa9c1", "#f7f4ee", "#de9988"])
    drawn = ax.pcolormesh(*sides, values, cmap=ramp, vmin=0.0, vmax=1.0, shading="gouraud")
    ax.figure.colorbar(drawn, ax=ax, label="P(y = 1)")
    lines = ax.contour(*sides, values, levels=[0.1, 0.5, 0.9], colors=_DATA, linewidths=[0.8, 1.6, 0.8])
    ax.clabel(lines, fontsize="small", fmt="%g")


def _map_of_classes(ax: "Axes", sides: list[np.ndarray], probabilities: np.ndarray) -> None:
    """The colours of the classes, mixed as their probabilities are, and lines between the most probable ones."""
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(_class_colour(label)) for label in range(probabilities.shape[-1])])
    # On the way to white, so that points of the same class stand out.
    mixed = np.clip(0.35 + 0.65 * probabilities @ colours, 0.0, 1.0)
    ax.pcolormesh(*sides, mixed, rasterized=True)
    for label in range(probabilities.shape[-1] - 1):
        rest = np.max(np.delete(probabilities, label, axis=-1), axis=-1)
        lead = probabilities[..., label] - rest
        if lead.min() < 0.0 < lead.max():
            ax.contour(*sides, lead, levels=[0.0], colors=_DATA, linewidths=1.2)


def _map_of_values(ax: "Axes", sides: list[np.ndarray], values: np.ndarray, x, y: np.ndarray, name: str) -> None:
    from matplotlib.colors import Normalize

    together = np.concatenate([values.ravel(), np.quantile(y, [0.02, 0.98])])
    style: dict[str, Any] = {"cmap": "viridis", "norm": Normalize(together.min(), together.max())}
    drawn = ax.pcolormesh(*sides, values, shading="gouraud", **style)
    ax.figure.colorbar(drawn, ax=ax, label=f"{name}; points: data")
    ax.scatter(x[:, 0], x[:, 1], c=y, **style, **_dots(y.size))


def _scatter_classes(ax: "Axes", x: np.ndarray, y: np.ndarray) -> None:
    for label in np.unique(y).astype(int):
        here = x[y == label]
        ax.scatter(here[:, 0], here[:, 1], color=_class_colour(label), label=f"y = {label}", **_dots(y.size))
    ax.legend(loc="upper right", fontsize="small", framealpha=0.85)


def _points(result: Result, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    data = result.data
    return data.x[data.observed][:, columns], data.y[data.observed, 0]


def _dots(count: int) -> dict[str, Any]:
    area = float(np.clip(4500.0 / (count + 1.0), 8.0, 40.0))
    return {"s": area, "edgecolors": "white", "linewidths": 0.6, "zorder": 3}


# How it went, and how good it is ----------------------------------------------------------------------------


def plot_convergence(result: Result, axes: Any = None) -> "Figure":
    """The energy over the steps, and below it how far each was from the end.

    That is the residual where the step controls it (methods with fixed points alone, such as power EP), else how much
    the objective was above its last value. Where hyperparameters were learned, it is the search for them that is shown.

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

    figure, (above, below) = _panels(axes, 2, main=2)
    steps = np.arange(1, energy.size + 1)
    style = {"color": _MEAN, "linewidth": 1.5, "marker": "o", "markersize": 3.5 if steps.size <= 60 else 0.0}
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
    # A root mean square is no more than the largest, which a log joint density would be by accident only.
    if np.all(objective >= 0.0) and objective[-1] <= result.residual * (1.0 + 1e-9):
        return "residual (RMS)", objective
    return "objective above its last value", objective - objective[-1]


def plot_calibration(calibration: Calibration, axes: Any = None, bins: int | None = None) -> "Figure":
    """A histogram of PIT values and the coverage of central intervals; what `Calibration.plot` draws.

    Where the predictions are right, a bar is in its grey band with probability 95 %, and so is the curve at any one
    place. A U shape, and a curve below the diagonal, are predictions that are too sure of themselves; a hump, and a
    curve above it, are ones that are too wide; a slope is bias.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> len(ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).calibration().plot().axes)
    2
    """
    require_matplotlib()
    if calibration.rows == 0:
        raise ValueError("calibration has no rows to draw: none is observed and can be predicted")
    bins = int(np.clip(np.sqrt(calibration.rows), 4, 20)) if bins is None else bins
    heights = calibration.histogram(bins)
    figure, (left, right) = _panels(axes, 2, main=2, side_by_side=True)
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
    ax.bar((np.arange(bins) + 0.5) / bins, heights, width=0.92 / bins, color=_BAND, alpha=0.75, label="rows")
    ax.axhspan(low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % band if calibrated")
    ax.axhline(rows / bins, color=_DATA, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.set(xlabel="probability integral transform", ylabel="rows", ylim=(0.0, 1.25 * max(high, heights.max())))


def _draw_coverage(ax: "Axes", calibration: Calibration) -> None:
    nominal = np.linspace(0.01, 0.99, 99)
    low, high = binom.ppf([[0.025], [0.975]], calibration.rows, nominal) / calibration.rows
    ax.fill_between(nominal, low, high, color="0.5", alpha=0.25, linewidth=0, label="95 % band if calibrated")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=_DATA, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.plot(nominal, [calibration.covered(level) for level in nominal], color=_MEAN, linewidth=1.8, label="coverage")
    ax.plot(LEVELS, list(calibration.coverage.values()), "o", color=_MEAN, markersize=4.5)
    ax.set(xlabel="probability of the central interval", ylabel="share of rows inside", ylim=(0.0, 1.02))


# Pieces ---------------------------------------------------------------------------------------------------


def _panels(axes: Any, count: int, main: int, side_by_side: bool = False) -> tuple["Figure", list["Axes"]]:
    """So many axes, given or new, of which the first `main` are the larger ones."""
    if axes is not None:
        given = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(given) != count or not all(hasattr(ax, "plot") for ax in given):
            raise ValueError(
                f"axes must be as many matplotlib axes as panels, {count}, got {len(given)}: make them with "
                f"plt.subplots({count}), or leave axes out"
            )
        return given[0].figure, given
    from matplotlib import pyplot

    if side_by_side:
        figure, made = pyplot.subplots(1, count, figsize=(5.2 * count + 0.6, 4.4), layout="constrained", squeeze=False)
    else:
        heights = [3.0 if panel < main else 1.8 for panel in range(count)]
        size = (9.0, max(4.2, 0.6 + sum(heights) * (1.0 if count > 1 else 1.4)))
        figure, made = pyplot.subplots(
            count, 1, figsize=size, sharex=True, layout="constrained", squeeze=False, height_ratios=heights
        )
    return figure, list(made.ravel())


def _in_order(grid: np.ndarray, row_parameters: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """A grid in rising order, and whatever has one entry a point of it in the same."""
    order = np.argsort(grid, kind="stable")
    moved = {
        name: np.asarray(value)[order] if np.shape(value) == grid.shape else value
        for name, value in row_parameters.items()
    }
    return grid[order], moved


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
    Where `grid` goes beyond the data, a line marks the end of the data. `x` and `grid` may be time stamps if the model
    takes them. `ax` are the axes to draw on; without them pyplot makes a figure. `row_parameters` are the
    likelihood's numbers a row of `grid`, as in `Result.predict`.
    """
    require_matplotlib()
    inputs = _inputs(x, "x")
    outputs = _one_column(y, "y")
    new_inputs, row_parameters = _in_order(_inputs(grid, "grid"), row_parameters)
    if inputs.shape != outputs.shape:
        raise ValueError(f"x and y must have as many rows as each other, got {inputs.size} and {outputs.size}")
    widest_first = _widest_first(levels)
    ax = ax or _new_axes()

    prediction = result.predict(new_inputs, **row_parameters)
    ends = prediction.quantile(_tails(widest_first))
    _fill_bands(ax, new_inputs, ends, widest_first, "% of new data")
    ax.plot(new_inputs, prediction.mean, color=_MEAN, linewidth=2.0, label="mean of y")
    ax.plot(inputs, outputs, "o", color=_DATA, markersize=3.5, markeredgewidth=0, alpha=0.75, label=data_label)
    _mark_ends_of_data(ax, inputs[np.isfinite(outputs)], new_inputs)
    _finish(ax, new_inputs)
    return ax


def plot_conditional_mean(
    result: Result,
    grid: Any,
    *,
    x: Any = None,
    levels: Sequence[float] = (0.5, 0.95),
    ax: "Axes | None" = None,
    label: str = "E[y | f]",
    **row_parameters: Any,
) -> "Axes":
    """What is known of E[y | f], the rate of counts or the probability of a class: its median and central intervals.

    Without the noise of y: a share of `levels` is the probability that the curve is in the band at a given input. For
    likelihoods with one latent, whose mean rises or falls with it. With the data's inputs as `x`, a line marks where
    `grid` goes beyond them.
    """
    require_matplotlib()
    new_inputs, row_parameters = _in_order(_inputs(grid, "grid"), row_parameters)
    likelihood = result.model.likelihood
    if likelihood.num_latents != 1 or likelihood.num_outputs != 1:
        raise ValueError(
            f"plot_conditional_mean is for one latent and one output, and {type(likelihood).__name__} has "
            f"{likelihood.num_latents} and {likelihood.num_outputs}: plot result.predict(...).latent instead"
        )
    widest_first = _widest_first(levels)
    ax = ax or _new_axes()

    latent = result.predict(new_inputs, **row_parameters).latent
    scores = norm.ppf([*_tails(widest_first), 0.5])
    quantiles = latent.mean[:, 0] + scores[:, None] * np.sqrt(latent.covariance[:, 0, 0])
    curves = _conditional_means(with_row_parameters(likelihood, **row_parameters), quantiles)
    _fill_bands(ax, new_inputs, curves[:-1], widest_first, "% interval")
    ax.plot(new_inputs, curves[-1], color=_MEAN, linewidth=2.0, label=label)
    if x is not None:
        _mark_ends_of_data(ax, _inputs(x, "x"), new_inputs)
    _finish(ax, new_inputs)
    return ax


@in_double
def _conditional_means(likelihood: Likelihood, latents: np.ndarray) -> np.ndarray:
    """E[y | f] for several f a row, (Q, M)."""

    def row(likelihood, values):
        return jax.vmap(lambda f: row_mean(likelihood, f[None])[0])(values)

    rows = jax.vmap(row, in_axes=(row_axes(likelihood), 1), out_axes=1)
    return np.asarray(rows(likelihood, jnp.asarray(latents)))


def _widest_first(levels: Sequence[float]) -> list[float]:
    ordered = sorted({float(level) for level in levels}, reverse=True)
    if not all(0.0 < level < 1.0 for level in ordered):
        raise ValueError(f"levels must lie strictly between 0 and 1, got {levels!r}")
    return ordered


def _tails(levels: list[float]) -> list[float]:
    """Both ends of every central interval, as probabilities."""
    return [0.5 + 0.5 * sign * level for level in levels for sign in (-1, 1)]


def _fill_bands(
    ax: "Axes",
    grid: np.ndarray,
    ends: np.ndarray,
    levels: list[float],
    words: str = "",
    names: Sequence[str] | None = None,
    colour: str = _BAND,
    step: Any = None,
) -> None:
    for rank, level in enumerate(levels):
        shade = 0.16 + 0.2 * rank
        label = f"{100 * level:g} {words}" if names is None else names[rank]
        style: dict[str, Any] = {"color": colour, "alpha": shade, "linewidth": 0, "step": step}
        ax.fill_between(grid, ends[2 * rank], ends[2 * rank + 1], label=label, **style)


def _new_axes() -> "Axes":
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9.0, 5.0), layout="constrained")[1]


def _finish(ax: "Axes", grid: np.ndarray) -> None:
    ax.set_xlim(grid[0], grid[-1])
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)


def _inputs(values: Any, name: str) -> np.ndarray:
    """One column of numbers, or of time stamps in UTC, which matplotlib knows how to draw."""
    times = read_times(values)
    if times is None:
        return _one_column(values, name)
    if isinstance(times.first, np.timedelta64):
        raise ValueError(f'{name} holds durations: plot numbers, as in {name} / np.timedelta64(1, "h")')
    return _as_column(times.entries.astype("datetime64[us]"), name)


def _one_column(values: Any, name: str) -> np.ndarray:
    return _as_column(np.asarray(values, dtype=np.float64), name)


def _as_column(array: np.ndarray, name: str) -> np.ndarray:
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


def _mark(ax: "Axes", end: Any, place: Any, align: str, text: str) -> None:
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
