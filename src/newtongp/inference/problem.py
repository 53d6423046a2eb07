"""A model and its data, in the order in which the prior processes the rows (positions)."""

import functools
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import to_host
from ..inputs import memory
from ..inputs.data import columns_of, read_data
from ..inputs.tables import bind
from ..kernels.definite import check_definite
from ..likelihoods.base import Likelihood, map_row_parameters
from ..likelihoods.weighted import weights_of
from ..model import Model, weighted_model, without_weights
from ..numerics.gaussian import Sites
from ..numerics.size_classes import fill_rows
from ..priors.base import Layout, Prior, Workspace


class Problem(eqx.Module):
    """Everything that stays the same from step to step, in the order of positions."""

    workspace: Workspace
    likelihood: Likelihood
    y: Float[Array, "N P"]
    observed: Bool[Array, " N"]


class BoundModel(eqx.Module):
    """A prior and a likelihood at their data, in the order of positions: a function of the hyperparameters and of y."""

    prior: Prior
    likelihood: Likelihood
    inputs: Any
    y: Any
    observed: Any

    def problem(self) -> Problem:
        """The problem with these hyperparameters."""
        workspace = self.prior.prepare(self.prior.refresh_inputs(self.inputs))
        return Problem(workspace, self.likelihood, self.y, self.observed)


class Order:
    """The map between rows of the data and positions in the prior's order."""

    def __init__(self, rows: Any, position: Any):
        """The row at each position, −1 where there is none, and the position of each row; None if they are the same."""
        self._rows, self._position = rows, position

    @classmethod
    def of(cls, rows: np.ndarray | None, count: int) -> "Order":
        """The order of a layout with `count` rows."""
        return cls(rows, None if rows is None else positions_of(rows, count))

    def positions(self, array: Any, fill: Any = None) -> Any:
        """From one entry per row to one per position; positions without a row get `fill`, or the last row's entry."""
        if self._rows is None:
            return array
        # Both may be traced, in `solve`.
        on_host = isinstance(array, np.ndarray) and isinstance(self._rows, np.ndarray)
        arrays, array = (np, array) if on_host else (jnp, jnp.asarray(array))
        moved = array[self._rows]
        if fill is None:
            return moved
        empty = (self._rows < 0).reshape((-1,) + (1,) * (moved.ndim - 1))
        return arrays.where(empty, fill, moved)

    def sites(self, sites: Sites) -> Sites:
        """From sites of rows to sites of positions; zero where there is no row."""
        return jax.tree.map(lambda leaf: self.positions(leaf, fill=0.0), sites)

    def likelihood(self, likelihood: Likelihood) -> Likelihood:
        """The likelihood with its row parameters in the order of positions."""
        return map_row_parameters(self.positions, likelihood)

    def row_at(self, position: int) -> int:
        """The row at a position."""
        return position if self._rows is None else int(self._rows[position])

    def rows(self, tree: Any) -> Any:
        """From one entry per position to one per row, in every array of a tree."""
        return tree if self._rows is None else jax.tree.map(lambda leaf: leaf[self._position], tree)


def positions_of(rows: np.ndarray, count: int) -> np.ndarray:
    """The position of each row, from the row at each position."""
    positions = np.empty(count, dtype=rows.dtype)
    positions[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    return positions


class Setup:
    """A model with the user's data: the data as read, the order of the rows, and the bound model."""

    def __init__(self, model: Model, x: Any, y: Any):
        model, x, y = bind(model, x, y)
        self.model = without_weights(model)
        self.data = read_data(x, y, weighted_model(self.model, weights_of(model.likelihood)))
        self.columns = columns_of(x, model)
        self.memory = memory.require_rows(model.prior, self.data.x)
        for kernel, inputs, in_time in model.prior.kernels_at(self.data.x):
            check_definite(kernel, inputs, in_time)
        # A subclass with a layout of its own may know nothing of size classes.
        fills = "size" in inspect.signature(model.prior.layout).parameters
        self.size_class = model.prior.size_class(self.rows) if fills else self.rows
        self.size = self.size_class
        """The number of rows with those that fill it up."""

    @property
    def rows(self) -> int:
        """The number of rows of the data."""
        return self.data.x.shape[0]

    @functools.cached_property
    def elements(self) -> float:
        """The approximate number of array elements that the prior processes in a step."""
        return self.model.prior.memory(fill_rows(self.data.x, self.size)) / 8.0

    @functools.cached_property
    def _layout(self) -> Layout:
        prior, x = self.model.prior, self.data.x
        return prior.layout(x) if self.size == self.rows else prior.layout(x, self.size)

    @functools.cached_property
    def order(self) -> Order:
        """The order of the rows."""
        return Order.of(_rows_of_data(self._layout.rows, self.rows, self.size), self.rows)

    @functools.cached_property
    def bound(self) -> BoundModel:
        """The model at the data."""
        y, observed = self.order.positions(self.data.y), self.order.positions(self.data.observed, fill=False)
        return BoundModel(self.model.prior, self._likelihood(), self._layout.inputs, *jax.device_put((y, observed)))

    def _likelihood(self) -> Likelihood:
        return self.order.likelihood(self.data.weighted_likelihood(self.model.likelihood))

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that inference solves, with the prior at the data's inputs."""
        bound = self.bound
        workspace = _prepare(bound.prior, bound.prior.refresh_inputs(bound.inputs))
        return Problem(workspace, bound.likelihood, bound.y, bound.observed)

    def start_compiling(self) -> Any:
        """Start compiling what makes `problem`, for this or other hyperparameters: the shapes of its workspace."""
        bound = self.bound
        return _prepare.start(bound.prior, bound.prior.refresh_inputs(bound.inputs))

    def with_model(self, model: Model) -> "Setup":
        """The same data with other hyperparameters."""
        other = self._copy(self.size)
        other.model, other.order, other.elements = model, self.order, self.elements
        inputs = model.prior.refresh_inputs(self.bound.inputs)
        other.bound = BoundModel(model.prior, other._likelihood(), inputs, self.bound.y, self.bound.observed)
        return other

    def with_size(self, size: int) -> "Setup":
        """The same data, filled up to another number of rows."""
        return self if size == self.size else self._copy(size)

    def _copy(self, size: int) -> "Setup":
        """This setup, to be laid out in another way."""
        other = object.__new__(Setup)
        other.model, other.data, other.columns, other.memory = self.model, self.data, self.columns, self.memory
        other.size_class, other.size = self.size_class, size
        return other

    def sites_from(self, other: "Setup", sites: Sites) -> Sites:
        """Sites of positions here, from those of the positions of another setup of the same data."""
        return sites if other is self else self.order.sites(other.order.rows(to_host(sites)))


def _rows_of_data(rows: np.ndarray | None, count: int, size: int) -> np.ndarray | None:
    """The rows of a layout of `size` rows, of which the first `count` are data: −1 for those that fill it up."""
    if size == count:
        return rows
    rows = np.arange(size) if rows is None else rows
    return np.where(rows < count, rows, -1)


@compiled
def _prepare(prior: Prior, inputs: Any) -> Any:
    return prior.prepare(inputs)
