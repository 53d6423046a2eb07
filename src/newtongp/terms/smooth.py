"""Smooth functions of columns, and effects of areas: Gaussian processes."""

from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from .. import kernels
from ..kernels import Kernel
from ..parameters.constraints import never_learned
from ..validation.times import Clock
from .areas import read_neighbours
from .base import Units, columns_of, replaced
from .inputs import InputEncoder
from .kernel_term import KernelTerm, by_encoder, read_kernel
from .table import Level, Table


class Smooth(KernelTerm):
    """A smooth function of one or more columns: a Gaussian process.

    `kernel` is a kernel over these columns, or the name of one; without it, a Matérn-5/2. Kernels given by name have
    one lengthscale per column. With `by`, the function is multiplied by a column of numbers (a coefficient that
    varies), or every level of a factor has a function of its own, with the same hyperparameters. Time stamps need the
    `unit` in which lengthscales are measured.

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

    def __init__(self, *columns: str, kernel: Any = None, by: str | None = None, unit: Any = None):
        self.columns = columns_of(columns, "Smooth")
        self.by = None if by is None else columns_of(by, "by")[0]
        self.kernel, self.by_name = read_kernel(kernel)
        self.clock = unit if unit is None or isinstance(unit, Clock) else Clock(unit)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return self.kernel

    def encoder(self, table: Table) -> InputEncoder:
        return by_encoder(self, table, clock=self.clock)

    def adapted(self, distinct: np.ndarray, units: Units) -> "Smooth":
        scale: Any = getattr(self.kernel, "lengthscale", None)
        if not self.by_name or len(self.columns) == 1 or np.ndim(scale) > 0:
            return self
        wide = eqx.tree_at(lambda k: k.lengthscale, self.kernel, np.full(len(self.columns), float(scale)))
        return replaced(self, kernel=wide)


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
