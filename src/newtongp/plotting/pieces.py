"""Parts shared by all plots: colours, panels, bands, and reading of inputs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..results.result import Result
from ..validation.numbers import NotRealError, as_real
from ..validation.times import Clock

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "#2a6f97"
MEAN = "#013a63"
DATA = "#333333"
LATENT_BAND = "#7a5195"
LATENT_MEAN = "#4a2c6a"
_CLASSES = ("#2a6f97", "#c8553d", "#588157", "#7a5195", "#d8973c", "#5f6b6d", "#b56576", "#3d9a9a")


def require_matplotlib() -> None:
    """Raise an ImportError that says what to install if matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401 - only to check that it is installed
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'newtongp[plot]'") from None


def class_colour(label: int) -> str:
    """The colour of a class."""
    return _CLASSES[label % len(_CLASSES)]


def clock_of(result: Result) -> Clock | None:
    """The clock with which the model reads time stamps; None if it does not."""
    return getattr(result.model.prior, "clock", None)


def make_panels(axes: Any, count: int, main: int, side_by_side: bool = False) -> tuple["Figure", list["Axes"]]:
    """`count` axes, given or new, of which the first `main` are larger."""
    if axes is not None:
        given = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(given) != count or not all(hasattr(ax, "plot") for ax in given):
            raise ValueError(
                f"axes must be one matplotlib axes object per panel, {count}, got {len(given)}: create them with "
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


def in_order(grid: np.ndarray, row_parameters: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    """A sorted grid, and other arrays with one entry per point in the same order."""
    order = np.argsort(grid, kind="stable")
    moved = {
        name: np.asarray(value)[order] if np.shape(value) == grid.shape else value
        for name, value in row_parameters.items()
    }
    return grid[order], moved


def read_levels(levels: Any) -> list[float]:
    """Levels of bands, checked and sorted, the widest first."""
    try:
        given = as_real(levels).ravel()
    except NotRealError:
        raise ValueError(f"levels must be numbers such as 0.95, got {levels!r}") from None
    if given.size == 0:
        raise ValueError(f"levels must have at least one number such as 0.95, got {levels!r}: write levels=0.95")
    if not np.all((given > 0.0) & (given < 1.0)):
        raise ValueError(f"levels must lie strictly between 0 and 1, got {levels!r}: write 0.95 for 95 %")
    return sorted({float(level) for level in given}, reverse=True)


def tails_of(levels: list[float]) -> list[float]:
    """Both ends of every central interval, as probabilities."""
    return [0.5 + 0.5 * sign * level for level in levels for sign in (-1, 1)]


def fill_bands(
    ax: "Axes",
    grid: np.ndarray,
    ends: np.ndarray,
    levels: list[float],
    words: str = "",
    names: Sequence[str] | None = None,
    colour: str = BAND,
    step: Any = None,
) -> None:
    """Bands between pairs of quantiles, the widest first and palest."""
    for rank, level in enumerate(levels):
        shade = 0.16 + 0.2 * rank
        label = f"{100 * level:g} {words}" if names is None else names[rank]
        style: dict[str, Any] = {"color": colour, "alpha": shade, "linewidth": 0, "step": step}
        ax.fill_between(grid, ends[2 * rank], ends[2 * rank + 1], label=label, **style)
