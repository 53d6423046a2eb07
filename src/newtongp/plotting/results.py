"""The plot of a result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.data import read_inputs
from ..results.result import Result
from ..terms.columns import TableColumns
from ..validation.arguments import flag
from .lines import plot_line
from .maps import plot_map
from .pieces import read_levels, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_result(
    result: Result,
    axes: Any = None,
    grid: Any = None,
    *,
    latents: bool = False,
    levels: float | Sequence[float] = (0.5, 0.95),
    **row_parameters: Any,
) -> "Figure":
    """Plot the data and the predictions of y, over one input or as a map over two; `result.plot` calls this.

    Over one input (including time stamps) it draws the predictive mean of y and a band for each of `levels`, between
    quantiles of y, including noise; for 0 and 1, the probability of 1 with its uncertainty; for classes, their
    probabilities. Over two inputs it draws a map of the mean or the probability. Constant columns of x keep their
    value. `latents=True` adds a panel for every latent.

    `grid` holds the inputs to predict at, or a pair of vectors for a map; the default is the range of the data. `axes`
    are the matplotlib axes to draw on, one per panel; without them pyplot creates a figure. `row_parameters` are the
    likelihood's per-row values at the grid, as in `Result.predict`. If the model has some and none are given,
    predictions over one input are at the rows of the data, with their values; a map needs them.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> figure = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).plot(latents=True)
    >>> len(figure.axes)
    2
    """
    require_matplotlib()
    if isinstance(result.columns, TableColumns):
        raise ValueError(
            "plot is for one or two inputs, but this model has terms over a table: use plot_terms(), or predict a "
            "table with result.predict(...), and plot that"
        )
    widest_first, latents = read_levels(levels), flag(latents, "latents")
    if result.data is None:
        if grid is None:
            raise ValueError("grid is needed if the data was read in chunks: give the inputs to predict at")
        varying = _varying(read_inputs(grid, result.model, "grid", result.columns))
        if len(varying) != 1:
            raise ValueError(
                f"grid must vary in one column if the data was read in chunks, but it varies in {len(varying)}: hold "
                "the others at one value, or predict with result.predict(...), and plot that"
            )
    else:
        varying = _varying(result.data.x)
    if len(varying) == 1:
        return plot_line(result, axes, grid, varying[0], latents, widest_first, row_parameters)
    if len(varying) == 2 and result.model.likelihood.num_outputs == 1:
        return plot_map(result, axes, grid, varying, latents, row_parameters)
    outputs = result.model.likelihood.num_outputs
    raise ValueError(
        f"plot draws one input, or two with one output, but {len(varying)} inputs vary, with {outputs} output(s): "
        "choose a line, predict along it with result.predict(...), and plot that"
    )


def _varying(x: np.ndarray) -> list[int]:
    """The columns with more than one value; a single column always counts."""
    return [0] if x.shape[1] == 1 else [int(k) for k in np.flatnonzero(np.ptp(x, axis=0) > 0.0)]
