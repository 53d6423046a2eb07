"""Smooth functions of columns, and effects of areas: Gaussian processes."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import kernels
from ..kernels import Kernel
from ..kernels.inducing import Sample, choose, is_number, read_count, read_inducing
from ..numerics import linalg
from ..parameters.constraints import never_learned
from ..validation.times import Clock
from .areas import read_neighbours
from .base import Units, Weights, columns_of, replaced
from .inputs import InputEncoder
from .kernel_term import KernelTerm, by_encoder, read_kernel
from .table import Level, Table


class Smooth(KernelTerm):
    """A smooth function of one or more columns: a Gaussian process.

    `kernel` is a kernel over these columns, or the name of one; without it, a Matérn-5/2. Kernels given by name have
    one lengthscale per column. With `by`, the function is multiplied by a column of numbers (a coefficient that
    varies), or every level of a factor has a function of its own, with the same hyperparameters. Time stamps need the
    `unit` in which lengthscales are measured.

    Without `inducing`, the function is exact, through its values at all distinct inputs. With it, the function is
    sparse, as in `SparseGP`: `inducing` is a number of inputs that are chosen from the data (over all levels of `by`),
    or an array of them, with one column per column of the term (for every level of `by`). If the data have no more
    distinct inputs than that number, the function is exact.

    >>> Smooth("age").label, Smooth("lon", "lat", kernel="matern32").label, Smooth("age", by="sex").label
    ('smooth(age)', 'smooth(lon, lat)', 'smooth(age, by=sex)')
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    by_name: bool = eqx.field(static=True)
    clock: Clock | None = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    kernel: Kernel
    points: Any = never_learned()
    used: Any = never_learned()
    inducing: Any = never_learned(default=None)
    """The inducing inputs, if they were given."""
    inducing_count: int | None = eqx.field(static=True, default=None)
    """The number of inducing inputs that are chosen from the data."""
    sparse: bool = eqx.field(static=True, default=False)
    """Whether the points are inducing inputs, once bound."""

    def __init__(
        self, *columns: str, kernel: Any = None, by: str | None = None, unit: Any = None, inducing: Any = None
    ):
        self.columns = columns_of(columns, "Smooth")
        self.by = None if by is None else columns_of(by, "by")[0]
        self.kernel, self.by_name = read_kernel(kernel)
        self.clock = unit if unit is None or isinstance(unit, Clock) else Clock(unit)
        self.inducing_count, self.inducing = _read_inducing(inducing, self.columns)
        self.grouped, self.by_level, self.points, self.used, self.sparse = False, False, None, None, False

    @property
    def asks_for_inducing(self) -> bool:
        """Whether inducing inputs were asked for."""
        return self.inducing_count is not None or self.inducing is not None

    @property
    def is_sparse(self) -> bool:
        return self.sparse

    @property
    def is_chain(self) -> bool:
        return not self.sparse and super().is_chain

    def covariance(self) -> Kernel:
        return self.kernel

    def encoder(self, table: Table) -> InputEncoder:
        return by_encoder(self, table, clock=self.clock)

    def bind(self, table: Table, units: Units) -> tuple["Smooth", InputEncoder]:
        bound, encoder = super().bind(table, units)
        bound = replaced(bound, sparse=False)
        if self.inducing is not None:
            return bound._with_given(encoder), encoder
        if self.inducing_count is not None and int(np.sum(bound.used)) > self.inducing_count:
            return replaced(bound, sparse=True).with_chosen(encoder.encode(table)), encoder
        return bound, encoder

    def with_chosen(self, x: np.ndarray) -> "Smooth":
        """The term with inducing inputs chosen from encoded rows, if they are not given; greedily, as in `SparseGP`."""
        if not self.sparse or self.inducing_count is None:
            return self
        kernel, sample = self.kernel, Sample(0)
        if self.by_level:
            kernel = kernel.on(*range(self.dimension)) * kernels.Category().on(self.dimension)
        sample.see(x[:, :-1])
        return self._with_points(choose((kernel,), sample.rows, self.inducing_count, "greedy", 0)[0])

    def _with_given(self, encoder: InputEncoder) -> "Smooth":
        if encoder.stamped:
            raise ValueError(
                f"{self.label} is over time stamps, for which inducing inputs cannot be given: give their number"
            )
        self.kernel.check_values(self.inducing)
        if not self.by_level:
            return self._with_points(np.array(self.inducing))
        codes = np.arange(float(len(encoder.levels[-1] or ())))
        levels = np.repeat(codes, len(self.inducing))[:, None]
        return self._with_points(np.concatenate([np.tile(self.inducing, (codes.size, 1)), levels], axis=1))

    def _with_points(self, points: np.ndarray) -> "Smooth":
        return replaced(self, points=points, used=np.ones(len(points), dtype=bool), sparse=True)

    def read_rows(self, x: np.ndarray) -> Any:
        return x if self.sparse else super().read_rows(x)

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        return self.new_weights(rows) if self.sparse else super().weights(rows)

    def _projected(self, inputs: Any) -> tuple[Any, Any]:
        if not self.sparse:
            return super()._projected(inputs)
        points = jnp.asarray(self.points)
        rows = self.gram(inputs, points) @ linalg.whitening(self.gram(points, points)).T
        return rows, jnp.maximum(self.variance_at(inputs) - jnp.sum(rows**2, axis=1), 0.0)

    def adapted(self, distinct: np.ndarray, units: Units) -> "Smooth":
        scale: Any = getattr(self.kernel, "lengthscale", None)
        if not self.by_name or len(self.columns) == 1 or np.ndim(scale) > 0:
            return self
        wide = eqx.tree_at(lambda k: k.lengthscale, self.kernel, np.full(len(self.columns), float(scale)))
        return replaced(self, kernel=wide)


def _read_inducing(given: Any, columns: tuple[str, ...]) -> tuple[int | None, np.ndarray | None]:
    """The number of inducing inputs, or the inputs themselves."""
    if given is None:
        return None, None
    if is_number(given):
        return read_count(given), None
    (inputs,) = read_inducing(given, 1)
    if inputs.shape[1] != len(columns):
        raise ValueError(
            f"inducing has {inputs.shape[1]} column(s), but the term is over {', '.join(columns)}: give one column for "
            "each of these"
        )
    return None, np.asarray(inputs, dtype=float)


class Area(KernelTerm):
    """Effects of areas, similar for neighbours: BYM2, ICAR or Leroux over a graph.

    `neighbours` is a mapping from each area to its neighbours, pairs of areas, a matrix (then `areas` names its rows),
    or an object of libpysal. `kind` is "bym2", "icar" or "leroux", as in `kernels.Graph`, which is scaled and has
    islands. An area that is not in the graph is an error; one without rows is predicted from its neighbours.
    """

    takes_by: ClassVar[bool] = False
    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    areas: tuple[Level, ...] = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    kernel: Kernel
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(self, column: str, neighbours: Any, kind: str = "bym2", *, areas: Any = None, **parameters: Any):
        self.columns = columns_of(column, "Area")
        self.by = None
        names, pairs = read_neighbours(neighbours, areas)
        self.areas = names
        self.kernel = kernels.Graph(pairs, kind, nodes=len(names) if pairs.ndim == 2 else None, **parameters)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return self.kernel

    def encoder(self, table: Table) -> InputEncoder:
        return InputEncoder(self.columns, (self.areas,), closed=True)

    def _points_of(self, x: np.ndarray, encoder: InputEncoder) -> np.ndarray:
        return np.arange(float(len(self.areas)))[:, None]
