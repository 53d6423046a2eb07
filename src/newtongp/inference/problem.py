"""A model and its data, in the order in which the prior wants the rows."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from ..inputs import memory
from ..inputs.data import columns_of, read_data
from ..kernels.definite import check_definite
from ..likelihoods.base import Likelihood, map_row_parameters
from ..model import Model
from ..numerics.gaussian import Sites
from ..priors.base import Prior, Workspace
from ..priors.markov import MarkovGP


class Problem(eqx.Module):
    """Everything that stays the same from step to step."""

    workspace: Workspace
    likelihood: Likelihood
    y: Float[Array, "N P"]
    observed: Bool[Array, " N"]


class Order:
    """Between the rows of the data and the positions at which the prior wants them."""

    def __init__(self, rows: np.ndarray | None, count: int):
        self._rows = rows
        if rows is not None:
            self._position = np.empty(count, dtype=rows.dtype)
            self._position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)

    def positions(self, array: np.ndarray, fill: Any = None) -> np.ndarray:
        """One entry a row → one a position; those without a row get `fill`, or the first row's."""
        if self._rows is None:
            return array
        moved = array[np.maximum(self._rows, 0)]
        if fill is not None:
            moved[self._rows < 0] = fill
        return moved

    def sites(self, sites: Sites) -> Sites:
        """Sites of the rows → of the positions; zero where there is no row."""
        return jax.tree.map(lambda leaf: self.positions(np.asarray(leaf), fill=0.0), sites)

    def likelihood(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood with its row parameters moved."""
        return map_row_parameters(lambda values: self.positions(np.asarray(values)), likelihood)

    def row_at(self, position: int) -> int:
        """The row at a position."""
        return position if self._rows is None else int(self._rows[position])

    def rows(self, tree: Any) -> Any:
        """One entry a position → one a row, for every array."""
        return tree if self._rows is None else jax.tree.map(lambda leaf: leaf[self._position], tree)


class Setup:
    """A model at a data set: what came in, the order of the rows, and the problem in that order."""

    def __init__(self, model: Model, x: Any, y: Any):
        self.model = model
        self.data, self.columns = read_data(x, y, model), columns_of(x, model)
        self.memory = memory.require_rows(model.prior, self.data.x)
        kernel = getattr(model.prior, "kernel", None)
        if kernel is not None:
            check_definite(kernel, self.data.x, isinstance(model.prior, MarkovGP))
        place = model.prior.layout(self.data.x)
        self.inputs = place.inputs
        self.order = Order(place.rows, self.data.x.shape[0])
        likelihood = self.order.likelihood(self.data.likelihood(model.likelihood))
        y, observed = self.order.positions(self.data.y), self.order.positions(self.data.observed, fill=False)
        self.problem = Problem(_prepare(model.prior, place.inputs), likelihood, *jax.device_put((y, observed)))

    def with_model(self, model: Model) -> "Setup":
        """The same data with other hyperparameters."""
        other = object.__new__(Setup)
        other.model, other.data, other.order, other.memory = model, self.data, self.order, self.memory
        other.columns = self.columns
        other.inputs = model.prior.refresh_inputs(self.inputs)
        likelihood = self.order.likelihood(self.data.likelihood(model.likelihood))
        workspace = _prepare(model.prior, other.inputs)
        other.problem = Problem(workspace, likelihood, self.problem.y, self.problem.observed)
        return other


@compiled
def _prepare(prior: Prior, inputs: Any) -> Any:
    return prior.prepare(inputs)
