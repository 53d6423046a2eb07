"""Smooth functions of columns: Gaussian processes over numbers, time stamps, ordered levels and areas.

At the data, such a term is exact as weights at its distinct inputs: a hundred ages, 52 weeks, 400 districts.
"""

import abc
import dataclasses
import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import kernels
from ..kernels import Kernel, gram
from ..kernels.base import diagonal
from ..numerics import linalg
from ..numerics.size_classes import size_class
from ..parameters.constraints import Positive, learned, never_learned
from ..validation.arguments import whole
from ..validation.names import find
from ..validation.numbers import parameter
from ..validation.times import Clock
from .base import Encoder, Term, Units, Weights, columns_of, replaced
from .group import Group
from .table import Level, Table

_SMALLEST = 16
"""The smallest number of distinct inputs that programs are compiled for."""
_MOST_HARMONICS = 1000
_KERNELS = ("Matern12", "Matern32", "Matern52", "Matern72", "RBF", "RationalQuadratic")


# Encoding -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InputEncoder(Encoder):
    """The inputs of a smooth term: one number per column, and the value that multiplies the function.

    A column is encoded by its levels if they are given, as time in units of a clock if that is given, and as numbers
    otherwise, after an origin.
    """

    columns: tuple[str, ...]
    levels: tuple[tuple[Level, ...] | None, ...]
    clock: Clock | None = None
    origin: float = 0.0
    multiplier: str | None = None
    closed: bool = False
    """Whether levels that the data did not have are an error."""
    steps: bool = False
    """Whether the first column must be whole steps from the origin."""
    stamped: bool = False
    """Whether numbers are times of the clock."""

    @property
    def sources(self) -> tuple[str, ...]:
        own = () if self.multiplier is None else (self.multiplier,)
        return tuple(dict.fromkeys((*self.columns, *own)))

    def encode(self, table: Table) -> np.ndarray:
        parts = [self._column(table, place) for place in range(len(self.columns))]
        parts.append(np.ones(table.rows) if self.multiplier is None else table[self.multiplier].numbers())
        return np.stack(parts, axis=1)

    def decode(self, x: np.ndarray, place: int) -> np.ndarray:
        """The entries of one column from its numbers: levels, time stamps or numbers."""
        levels = self.levels[place]
        if levels is not None:
            return as_entries([levels[int(code)] for code in x])
        numbers = x + self.origin
        return numbers if not self.stamped or self.clock is None else self.clock.stamps(numbers)

    def _column(self, table: Table, place: int) -> np.ndarray:
        name, levels = self.columns[place], self.levels[place]
        if levels is None:
            numbers = numbers_of(table, name, self.clock) - self.origin
            if self.steps and place == 0:
                _check_steps(numbers, name, self.origin)
            return numbers
        codes, new = table[name].codes(levels)
        if new and self.closed:
            row = np.flatnonzero(codes >= len(levels))[0]
            raise ValueError(
                f"column {name!r} has {new[0]!r} in row {row}, which is not among the {len(levels)} known ones: "
                f"correct it, or add it where they are given (the first are {', '.join(map(repr, levels[:5]))})"
            )
        return codes.astype(float)


def _check_steps(numbers: np.ndarray, name: str, origin: float) -> None:
    wrong = np.flatnonzero((numbers < 0.0) | (numbers != np.round(numbers)))
    if wrong.size:
        raise ValueError(
            f"RandomWalk is over whole steps from its start, {origin:g}, but row {wrong[0]} of column {name!r} is "
            f"{numbers[wrong[0]] + origin:g}: number the levels 0, 1, 2, …, or use Trend({name!r}), which allows any"
        )


def as_entries(labels: list[Any]) -> np.ndarray:
    """Labels as a column: of numbers or text if all are alike, of objects otherwise."""
    kinds = {type(label) for label in labels}
    return np.array(labels, dtype=object) if len(kinds) > 1 or tuple in kinds else np.array(labels)


def numbers_of(table: Table, name: str, clock: Clock | None) -> np.ndarray:
    """A column of numbers, or of time stamps in units of a clock."""
    column = table[name]
    times = None if column.is_numeric else column.times()
    if times is None:
        return column.numbers()
    if clock is None:
        raise ValueError(
            f"column {name!r} holds time stamps: state the unit in which lengthscales are measured, as in unit='D' for "
            "days"
        )
    if np.any(times.missing):
        raise ValueError(f"column {name!r} has no time in row {np.flatnonzero(times.missing)[0]}: drop that row")
    return np.ravel(times.numbers(clock))


_DAYS = {"y": 365.2425, "M": 365.2425 / 12.0, "w": 7.0, "d": 1.0, "h": 1.0 / 24.0, "m": 1.0 / 1440.0}


def read_period(period: Any, unit: Clock) -> float:
    """A period in units of a clock: a number, or text such as "1y", "1w", "12h".

    >>> read_period("1w", Clock("D")), read_period(7.0, Clock("D"))
    (7.0, 7.0)
    """
    if not isinstance(period, str):
        return float(parameter(period, "period", lower=0.0))
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)?\s*([a-zA-Z])\s*", period)
    key = None if found is None else found[2] if found[2] in ("M", "m") else found[2].lower()
    if found is None or key not in _DAYS:
        raise ValueError(
            f"period must be a number or text such as '1y', '1M' (month), '1w', '1d', '12h', '30m', got {period!r}"
        )
    in_days = unit.unit / np.timedelta64(1, "D")
    return float(found[1] or 1.0) * _DAYS[key] / float(in_days)


# Terms with a kernel ------------------------------------------------------------------------------


class KernelTerm(Term):
    """A term with a kernel over encoded columns."""

    columns: eqx.AbstractVar[tuple[str, ...]]
    by: eqx.AbstractVar[str | None]
    points: eqx.AbstractVar[Any]
    """The distinct inputs of the data, filled up to a size class, once bound."""
    used: eqx.AbstractVar[Any]
    """Which of them are not fill."""
    grouped: eqx.AbstractVar[bool]
    """Whether numbers in the column `by` are levels too."""
    by_level: eqx.AbstractVar[bool]
    """Whether the last input is a level, each of which has a function of its own."""

    def __mul__(self, other: Any) -> Term:
        return product_of(self, other)

    def __rmul__(self, other: Any) -> Term:
        return product_of(other, self)

    @abc.abstractmethod
    def covariance(self) -> Kernel:
        """The kernel over the inputs."""

    @abc.abstractmethod
    def encoder(self, table: Table) -> InputEncoder:
        """The encoder of the inputs."""

    @property
    def kind(self) -> str:
        """The word for such terms in labels."""
        return type(self).__name__.lower()

    @property
    def lines(self) -> bool:
        """Whether a line is added that has no prior."""
        return False

    @property
    def count(self) -> int:
        return self.points.shape[0] + int(self.lines)

    @property
    def is_flat(self) -> bool:
        return self.lines

    @property
    def label(self) -> str:
        inside = [*self.columns, *([f"by={self.by}"] if self.by else [])]
        return f"{self.kind}({', '.join(inside)})"

    @property
    def width(self) -> int:
        return len(self.columns) + 1 + int(self.by_level)

    def bind(self, table: Table, units: Units) -> tuple[Any, InputEncoder]:
        encoder = self.encoder(table)
        x = encoder.encode(table)[:, :-1]
        distinct = self._points_of(x, encoder)
        points, used = filled_points(distinct)
        bound = replaced(self, points=points, used=used, by_level=len(encoder.columns) > len(self.columns))
        bound = bound.adapted(distinct, units)
        bound.covariance().check_inputs(bound.dimension)
        bound.covariance().check_values(distinct[:, : bound.dimension])
        return bound, encoder

    def adapted(self, distinct: np.ndarray, units: Units) -> Any:
        """The term with hyperparameters whose sizes depend on the data."""
        return self

    def _points_of(self, x: np.ndarray, encoder: InputEncoder) -> np.ndarray:
        return np.unique(x, axis=0)

    @property
    def dimension(self) -> int:
        """The number of inputs of the kernel."""
        return len(self.columns)

    def read_rows(self, x: np.ndarray) -> Any:
        inputs, known = x[:, :-1], np.asarray(self.points)[np.asarray(self.used)]
        both, where = np.unique(np.concatenate([known, inputs]), axis=0, return_inverse=True)
        where = where.reshape(-1)
        codes = np.full(both.shape[0], -1)
        codes[where[: known.shape[0]]] = np.arange(known.shape[0])
        found = codes[where[known.shape[0] :]]
        assert np.all(found >= 0), "rows of other data than the term was bound to"
        return found.astype(np.int32), x[:, -1:], inputs[:, :1] if self.lines else None

    @property
    def is_chain(self) -> bool:
        """Whether the function is that of one column, with a kernel that has a state space form."""
        if len(self.columns) != 1 or self.by is not None:
            return False
        try:
            return len(self.covariance().blocks()) > 0
        except (NotImplementedError, ValueError):
            return False

    def chain_weights(self, times: Any) -> tuple[Weights, ...]:
        """The weights that are not part of a chain over the column: the line, if there is one."""
        return (self._line(times[:, None], 1.0),) if self.lines else ()

    def gram(self, one: Any, two: Any) -> Float[Array, "N M"]:
        """The covariance of the function at inputs."""
        dimension = self.dimension
        found = gram(self.covariance(), one[:, :dimension], two[:, :dimension])
        if self.by_level:
            found = jnp.where(one[:, None, -1] == two[None, :, -1], found, 0.0)
        return found

    def root(self) -> Float[Array, "L L"]:
        """L with LLᵀ the covariance at the distinct inputs; the identity where these are fill."""
        used = jnp.asarray(self.used)
        both = used[:, None] & used[None, :]
        matrix = jnp.where(both, self.gram(self.points, self.points), jnp.diag(jnp.where(used, 0.0, 1.0)))
        # Smooth kernels are singular up to rounding: this is as much as rounding changes the matrix itself.
        lift = 4.0 * matrix.shape[0] * linalg.EPS * jnp.max(jnp.where(used, jnp.diagonal(matrix), 0.0))
        return linalg.cholesky(matrix + lift * jnp.eye(matrix.shape[0]))

    @property
    def over(self) -> str:
        """The name of the codes of distinct inputs."""
        return self.label

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        codes, multiplier, line = rows
        own = Weights(codes, multiplier, self.root(), self.points.shape[0], self.over, False)
        return (own,) if line is None else (own, self._line(line, multiplier))

    def _line(self, x: Any, multiplier: Any) -> Weights:
        used = jnp.asarray(self.used)
        values = jnp.where(used, jnp.asarray(self.points)[:, 0], 0.0)
        centre = jnp.sum(values) / jnp.sum(used)
        return Weights(None, (x - centre) * multiplier, None, 1, "", True)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        inputs, multiplier = x[:, :-1], x[:, -1:]
        rows, left = self._projected(inputs)
        own = Weights(None, rows * multiplier, None, 1, self.over, False, left * multiplier[:, 0] ** 2)
        return (own, self._line(inputs[:, :1], multiplier)) if self.lines else (own,)

    def _projected(self, inputs: Any) -> tuple[Any, Any]:
        """What the weights of the distinct inputs say about others: rows of R⁻¹k, and the variance that is left."""
        cross = jnp.where(jnp.asarray(self.used)[:, None], self.gram(jnp.asarray(self.points), inputs), 0.0)
        root = self.root()
        rows = linalg.solve_lower(root, cross).T
        # At the inputs of the data these are rows of R, here without rounding: terms add up to the latent.
        same = jnp.all(inputs[:, None, :] == jnp.asarray(self.points)[None], axis=2) & jnp.asarray(self.used)[None]
        known = jnp.any(same, axis=1)
        rows = jnp.where(known[:, None], root[jnp.argmax(same, axis=1)], rows)
        left = jnp.maximum(self.variance_at(inputs) - jnp.sum(rows**2, axis=1), 0.0)
        return rows, jnp.where(known, 0.0, left)

    def variance_at(self, inputs: Any) -> Float[Array, " N"]:
        """The prior variance of the function at inputs."""
        return diagonal(self.covariance(), inputs[:, : self.dimension])

    def new_covariance(self, x: Any) -> Any:
        inputs, multiplier = x[:, :-1], x[:, -1:]
        rows, left = self._projected(inputs)
        found = self.gram(inputs, inputs) - rows @ rows.T
        found = found + jnp.diag(left - jnp.diagonal(found))
        return found * (multiplier @ multiplier.T)


def filled_points(distinct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct inputs, filled up to a size class, and which of them are not fill."""
    size = size_class(distinct.shape[0], _SMALLEST)
    filled = np.concatenate([distinct, np.repeat(distinct[-1:], size - distinct.shape[0], axis=0)])
    return filled, np.arange(size) < distinct.shape[0]


def _by_encoder(term: Any, table: Table, **fields: Any) -> InputEncoder:
    """The encoder of a term that may have one function per level, or one that is multiplied by a number."""
    columns, levels = term.columns, (None,) * len(term.columns)
    fields["stamped"] = fields.get("clock") is not None and not table[columns[0]].is_numeric
    if term.by is not None and (term.grouped or not table[term.by].is_numeric):
        known = table[term.by].levels()
        return InputEncoder((*columns, term.by), (*levels, known), **fields)
    return InputEncoder(columns, levels, multiplier=term.by, **fields)


def _kernel(given: Any) -> tuple[Kernel, bool]:
    """A kernel, and whether it was given by name or not at all."""
    if given is None or isinstance(given, str):
        return getattr(kernels, find("matern52" if given is None else given, _KERNELS, "kernel"))(), True
    if not isinstance(given, Kernel):
        raise ValueError(f"kernel must be a kernel such as kernels.Matern52(), or its name, got {given!r}")
    return given, False


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
        self.kernel, self.by_name = _kernel(kernel)
        self.clock = unit if unit is None or isinstance(unit, Clock) else Clock(unit)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return self.kernel

    def encoder(self, table: Table) -> InputEncoder:
        return _by_encoder(self, table, clock=self.clock)

    def adapted(self, distinct: np.ndarray, units: Units) -> "Smooth":
        scale = getattr(self.kernel, "lengthscale", None)
        if not self.by_name or len(self.columns) == 1 or np.ndim(scale) > 0:
            return self
        wide = eqx.tree_at(lambda k: k.lengthscale, self.kernel, np.full(len(self.columns), float(scale)))
        return replaced(self, kernel=wide)


class Trend(KernelTerm):
    """A function of time that changes slowly, over a column of time stamps or numbers.

    `kind` is one of

    - `"linear"`, a local linear trend: a level and a slope that are random walks;
    - `"smooth"`: only the slope is a random walk, so that the trend is a cubic smoothing spline;
    - `"level"`: only the level is a random walk;

    or give a `kernel`. Level and slope at the start have no prior; the level is the intercept of the model. `unit` is
    that of time stamps, days by default. With `by`, every level of a factor has its own trend.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    form: str = eqx.field(static=True)
    clock: Clock = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    kernel: Kernel
    points: Any = never_learned()
    used: Any = never_learned()

    FORMS = ("linear", "smooth", "level", "kernel")

    def __init__(
        self, column: str, kind: str = "linear", *, kernel: Any = None, by: str | None = None, unit: Any = "D"
    ):
        self.columns = columns_of(column, "Trend")
        self.by = None if by is None else columns_of(by, "by")[0]
        if kind not in self.FORMS[:3]:
            raise ValueError(f"kind must be 'linear', 'smooth' or 'level', got {kind!r}")
        self.form = kind if kernel is None else "kernel"
        walks = {
            "level": kernels.Brownian,
            "smooth": kernels.IntegratedBrownian,
            "linear": lambda: kernels.Brownian() + kernels.IntegratedBrownian(),
        }
        self.kernel = walks[kind]() if kernel is None else _kernel(kernel)[0]
        self.clock = unit if isinstance(unit, Clock) else Clock(unit)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return self.kernel

    @property
    def lines(self) -> bool:
        return self.form in ("linear", "smooth")

    def encoder(self, table: Table) -> InputEncoder:
        start = float(np.min(numbers_of(table, self.columns[0], self.clock)))
        return _by_encoder(self, table, clock=self.clock, origin=start)


class Season(KernelTerm):
    """A pattern that repeats with a fixed `period`, over a column of time stamps or numbers.

    `period` is text such as "1y", "1w" or "12h", or a number in the unit of the column (days for time stamps, unless
    `unit` says otherwise). The pattern is a sum of `harmonics` sinusoids, with the weights of a periodic kernel whose
    `lengthscale`, relative to the period, says how smooth it is. `decay`, in periods, lets the pattern change over
    time. It is then exact, and `harmonics` has no effect.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    clock: Clock = eqx.field(static=True)
    period: float = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    lengthscale: Any = learned(Positive())
    variance: Any = learned(Positive(), unit="f2")
    decay: Any = learned(Positive())
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(
        self,
        column: str,
        period: Any,
        *,
        lengthscale: Any = 1.0,
        variance: Any = 1.0,
        decay: Any = None,
        by: str | None = None,
        harmonics: int = 10,
        unit: Any = "D",
    ):
        self.columns = columns_of(column, "Season")
        self.harmonics = whole(harmonics, "harmonics", 1, _MOST_HARMONICS, 10)
        self.by = None if by is None else columns_of(by, "by")[0]
        self.clock = unit if isinstance(unit, Clock) else Clock(unit)
        self.period = read_period(period, self.clock)
        self.lengthscale = parameter(lengthscale, "lengthscale", lower=0.0)
        self.variance = parameter(variance, "variance", lower=0.0)
        self.decay = None if decay is None else parameter(decay, "decay", lower=0.0)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    @property
    def label(self) -> str:
        inside = [*self.columns, f"{self.period:g}", *([f"by={self.by}"] if self.by else [])]
        return f"season({', '.join(inside)})"

    @property
    def is_chain(self) -> bool:
        return False  # few harmonics are cheaper as weights

    @property
    def is_harmonic(self) -> bool:
        """Whether the pattern is a sum of harmonics, whose weights are few."""
        return self.decay is None and not self.by_level

    @property
    def count(self) -> int:
        return 2 * self.harmonics + 1 if self.is_harmonic else super().count

    def read_rows(self, x: np.ndarray) -> Any:
        return x if self.is_harmonic else super().read_rows(x)

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        return self.new_weights(rows) if self.is_harmonic else super().weights(rows)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        if not self.is_harmonic:
            return super().new_weights(x)
        angles = (2.0 * jnp.pi / self.period) * x[:, :1] * np.arange(1, self.harmonics + 1)[None]
        level, *rest = self.covariance().fractions()
        sizes = jnp.sqrt(self.variance * jnp.asarray(rest))[None]
        waves = [jnp.full((x.shape[0], 1), jnp.sqrt(self.variance * level)), sizes * jnp.cos(angles)]
        columns = jnp.concatenate([*waves, sizes * jnp.sin(angles)], axis=1)
        return (Weights(None, columns * x[:, -1:], None, 1, "", False),)

    def new_covariance(self, x: Any) -> Any:
        return 0.0 if self.is_harmonic else super().new_covariance(x)

    def covariance(self) -> Kernel:
        pattern = kernels.Periodic(self.period, self.lengthscale, self.variance, self.harmonics)
        if self.decay is None:
            return pattern
        return pattern * kernels.Matern12(self.period * self.decay, 1.0)

    def encoder(self, table: Table) -> InputEncoder:
        return _by_encoder(self, table, clock=self.clock)


class RandomWalk(KernelTerm):
    """A random walk over the ordered levels of a column, of order 1 (a level) or 2 (a level and a slope).

    Levels are numbers in equal steps, or ordered categories. The start of the walk has no prior: its level is the
    intercept of the model, and for order 2 a line is added. `variance` is that of one step.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    order: int = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    variance: Any = learned(Positive(), unit="f2")
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(self, column: str, order: int = 1, *, variance: Any = 1.0, by: str | None = None):
        self.columns = columns_of(column, "RandomWalk")
        self.by = None if by is None else columns_of(by, "by")[0]
        if order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {order!r}")
        self.order = int(order)
        self.variance = parameter(variance, "variance", lower=0.0)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return kernels.Walk(self.order, self.variance)

    @property
    def lines(self) -> bool:
        return self.order == 2

    def encoder(self, table: Table) -> InputEncoder:
        column = table[self.columns[0]]
        if column.is_numeric:
            return _by_encoder(self, table, origin=float(np.min(column.numbers())), steps=True)
        if column.categories is None:
            times = column.times() is not None
            raise ValueError(
                f"RandomWalk is over ordered levels, but column {column.name!r} holds "
                + ("time stamps: use Trend, or number them" if times else "text without an order: use numbers, or an ")
                + ("" if times else "ordered categorical")
            )
        found = _by_encoder(self, table)
        return dataclasses.replace(found, levels=(column.categories, *found.levels[1:]), closed=True)


class Area(KernelTerm):
    """Effects of areas, similar for neighbours: BYM2, ICAR or Leroux over a graph.

    `neighbours` is a mapping from each area to its neighbours, pairs of areas, a matrix (then `areas` names its rows),
    or an object of libpysal. `kind` is "bym2", "icar" or "leroux", as in `kernels.Graph`, which is scaled and has
    islands. An area that is not in the graph is an error; one without rows is predicted from its neighbours.
    """

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    areas: tuple[Level, ...] = eqx.field(static=True)
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    kernel: Kernel
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(self, column: str, neighbours: Any, kind: str = "bym2", *, areas: Any = None, **parameters: Any):
        from .areas import read_neighbours

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


@dataclasses.dataclass(frozen=True)
class ProductEncoder(Encoder):
    """The inputs of all factors of a product side by side, and the product of their multipliers."""

    parts: tuple[InputEncoder, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for part in self.parts for source in part.sources))

    def encode(self, table: Table) -> np.ndarray:
        parts = [part.encode(table) for part in self.parts]
        multiplier = np.prod([part[:, -1] for part in parts], axis=0)
        return np.concatenate([*(part[:, :-1] for part in parts), multiplier[:, None]], axis=1)


class Product(KernelTerm):
    """The product of several terms over different columns, with the product of their covariances."""

    columns: tuple[str, ...] = eqx.field(static=True)
    by: str | None = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    """The number of inputs of every factor, once bound."""
    grouped: bool = eqx.field(static=True)
    by_level: bool = eqx.field(static=True)
    parts: tuple[KernelTerm, ...]
    points: Any = never_learned()
    used: Any = never_learned()

    def __init__(self, parts: Any):
        self.parts = tuple(parts)
        self.columns = tuple(column for part in self.parts for column in part.columns)
        self.widths = ()
        self.by, self.grouped, self.by_level, self.points, self.used = None, False, False, None, None

    @property
    def label(self) -> str:
        return " * ".join(part.label for part in self.parts)

    @property
    def width(self) -> int:
        return sum(self.widths) + 1

    def covariance(self) -> Kernel:
        raise NotImplementedError("a product has one kernel per factor")

    def encoder(self, table: Table) -> Any:
        return ProductEncoder(tuple(part.encoder(table) for part in self.parts))

    def bind(self, table: Table, units: Units) -> tuple[Any, Any]:
        bound = [part.bind(table, units)[0] for part in self.parts]
        encoder = self.encoder(table)
        distinct = np.unique(encoder.encode(table)[:, :-1], axis=0)
        points, used = filled_points(distinct)
        parts = tuple(replaced(part, points=None, used=None) for part in bound)
        widths = tuple(part.width - 1 for part in bound)
        return replaced(self, parts=parts, widths=widths, points=points, used=used), encoder

    def gram(self, one: Any, two: Any) -> Float[Array, "N M"]:
        ends, total = np.cumsum([0, *self.widths]), 1.0
        for part, begin, end in zip(self.parts, ends[:-1], ends[1:], strict=True):
            total = total * part.gram(one[:, begin:end], two[:, begin:end])
        return total

    def variance_at(self, inputs: Any) -> Any:
        ends, total = np.cumsum([0, *self.widths]), 1.0
        for part, begin, end in zip(self.parts, ends[:-1], ends[1:], strict=True):
            total = total * part.variance_at(inputs[:, begin:end])
        return total


def product_of(one: Any, two: Any) -> Term:
    """The product of two terms: with a group, one function per level of it."""
    if isinstance(one, Group):
        one, two = two, one
    if isinstance(two, Group) and isinstance(one, KernelTerm) and not isinstance(one, (Product, Area)):
        if two.slope or len(two.columns) > 1 or one.by is not None:
            raise ValueError(
                f"{one.label} cannot be multiplied by {two.label}: use a group of one column, without slope"
            )
        return replaced(one, by=two.columns[0], grouped=True)
    if not (isinstance(one, KernelTerm) and isinstance(two, KernelTerm)):
        raise ValueError(
            f"only smooth terms can be multiplied with each other or with a Group, got {_shown(one)} and {_shown(two)}"
        )
    if one.lines or two.lines:
        raise ValueError("a trend or a walk whose slope has no prior cannot be a factor: give it a kernel instead")
    parts = [*(one.parts if isinstance(one, Product) else [one]), *(two.parts if isinstance(two, Product) else [two])]
    return Product(parts)


def _shown(value: Any) -> str:
    return value.label if isinstance(value, Term) else repr(value)
