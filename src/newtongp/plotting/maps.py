"""Plots over two inputs."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..prediction.predict import predict_at
from ..results.result import Result
from .lines import kind_of, subscript
from .pieces import DATA, class_colour, make_panels
from .single import finite_column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS_ON_A_SIDE = 80


def plot_map(result: Result, axes, grid, columns: list[int], latents: bool, row_parameters) -> "Figure":
    """Maps over two columns of x, one panel per output, and optionally one per latent."""
    sides = _sides(result, grid, columns)
    inputs = np.repeat(result.data.x[:1], sides[0].size * sides[1].size, axis=0)
    inputs[:, columns] = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    prediction = predict_at(result, inputs, **row_parameters)
    likelihood = result.model.likelihood
    kind = kind_of(likelihood)
    hidden = likelihood.num_latents if latents or kind == "nothing" else 0
    shown = 0 if kind == "nothing" else 1
    figure, panels = make_panels(axes, shown + hidden, main=shown, side_by_side=True)

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
        name = "mean of latent f" if hidden == 1 else f"mean of latent f{subscript(latent + 1)}"
        ax.figure.colorbar(drawn, ax=ax, label=name)
        x, _ = _points(result, columns)
        ax.plot(x[:, 0], x[:, 1], ".", color=DATA, markersize=2.5, alpha=0.6)
    for ax in panels:
        ax.set(xlim=(sides[0][0], sides[0][-1]), ylim=(sides[1][0], sides[1][-1]))
        ax.set(xlabel=f"x{subscript(columns[0] + 1)}", ylabel=f"x{subscript(columns[1] + 1)}")
    return figure


def _sides(result: Result, grid: Any, columns: list[int]) -> list[np.ndarray]:
    if grid is not None:
        if not isinstance(grid, (list, tuple)) or len(grid) != 2:
            raise ValueError(
                f"grid must be a pair of vectors, one for each input that varies, got {type(grid).__name__}: write "
                "grid=(np.linspace(...), np.linspace(...))"
            )
        sides = [np.unique(finite_column(side, "grid")) for side in grid]
        if min(side.size for side in sides) < 2:
            raise ValueError(
                "grid must have at least two values for each of the two inputs, got "
                f"{sides[0].size} and {sides[1].size} different ones"
            )
        return sides
    sides = []
    for column in columns:
        values = result.data.x[:, column]
        margin = 0.05 * np.ptp(values)
        sides.append(np.linspace(values.min() - margin, values.max() + margin, _POINTS_ON_A_SIDE))
    return sides


def _map_of_probability(ax: "Axes", sides: list[np.ndarray], values: np.ndarray) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    # Paler than the points of the classes, so that these stand out.
    ramp = LinearSegmentedColormap.from_list("classes", ["#7fa9c1", "#f7f4ee", "#de9988"])
    drawn = ax.pcolormesh(*sides, values, cmap=ramp, vmin=0.0, vmax=1.0, shading="gouraud")
    ax.figure.colorbar(drawn, ax=ax, label="P(y = 1)")
    lines = ax.contour(*sides, values, levels=[0.1, 0.5, 0.9], colors=DATA, linewidths=[0.8, 1.6, 0.8])
    ax.clabel(lines, fontsize="small", fmt="%g")


def _map_of_classes(ax: "Axes", sides: list[np.ndarray], probabilities: np.ndarray) -> None:
    """The colours of the classes, mixed by their probabilities, and boundaries between the most probable ones."""
    from matplotlib.colors import to_rgb

    colours = np.array([to_rgb(class_colour(label)) for label in range(probabilities.shape[-1])])
    # Paler, so that points of the same class stand out.
    mixed = np.clip(0.35 + 0.65 * probabilities @ colours, 0.0, 1.0)
    ax.pcolormesh(*sides, mixed, rasterized=True)
    for label in range(probabilities.shape[-1] - 1):
        rest = np.max(np.delete(probabilities, label, axis=-1), axis=-1)
        lead = probabilities[..., label] - rest
        if lead.min() < 0.0 < lead.max():
            ax.contour(*sides, lead, levels=[0.0], colors=DATA, linewidths=1.2)


def _map_of_values(ax: "Axes", sides: list[np.ndarray], values: np.ndarray, x, y: np.ndarray, name: str) -> None:
    from matplotlib.colors import Normalize

    together = values.ravel() if y.size == 0 else np.concatenate([values.ravel(), np.quantile(y, [0.02, 0.98])])
    style: dict[str, Any] = {"cmap": "viridis", "norm": Normalize(together.min(), together.max())}
    drawn = ax.pcolormesh(*sides, values, shading="gouraud", **style)
    ax.figure.colorbar(drawn, ax=ax, label=f"{name}; points: data" if y.size else name)
    if y.size:
        ax.scatter(x[:, 0], x[:, 1], c=y, **style, **_dots(y.size))


def _scatter_classes(ax: "Axes", x: np.ndarray, y: np.ndarray) -> None:
    for label in np.unique(y).astype(int):
        here = x[y == label]
        ax.scatter(here[:, 0], here[:, 1], color=class_colour(label), label=f"y = {label}", **_dots(y.size))
    if y.size:
        ax.legend(loc="upper right", fontsize="small", framealpha=0.85)


def _points(result: Result, columns: list[int]) -> tuple[np.ndarray, np.ndarray]:
    data = result.data
    return data.x[data.observed][:, columns], data.y[data.observed, 0]


def _dots(count: int) -> dict[str, Any]:
    area = float(np.clip(4500.0 / (count + 1.0), 8.0, 40.0))
    return {"s": area, "edgecolors": "white", "linewidths": 0.6, "zorder": 3}
