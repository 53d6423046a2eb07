"""Functions of time and of ordered levels: trends, seasons and random walks."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .. import kernels
from ..kernels import Kernel
from ..kernels.statespace import Block, OscillationBlock
from ..parameters.constraints import Positive, learned, never_learned
from ..validation.arguments import whole
from ..validation.numbers import parameter
from ..validation.times import Clock
from .base import Weights, columns_of
from .inputs import InputEncoder, numbers_of, read_period
from .kernel_term import KernelTerm, by_encoder, read_kernel
from .table import Table

_MOST_HARMONICS = 1000


class Trend(KernelTerm):
    """A function of time that changes slowly, over a column of time stamps or numbers.

    `kind` is one of

    - `"linear"`, a local linear trend: a level and a slope that are random walks;
    - `"smooth"`: only the slope is a random walk, so that the trend is a cubic smoothing spline;
    - `"level"`: only the level is a random walk;
    - `"damped"`: the level is a random walk, and the slope tends to zero (`kernels.IntegratedMatern12`), so that the
      trend levels off beyond the data;

    or give a `kernel`. Level and slope at the start have no prior, except for a damped slope; the level is the
    intercept of the model. `unit` is that of time stamps, days by default. With `by`, every level of a factor has its
    own trend.
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

    FORMS = ("linear", "smooth", "level", "damped", "kernel")

    def __init__(
        self, column: str, kind: str = "linear", *, kernel: Any = None, by: str | None = None, unit: Any = "D"
    ):
        self.columns = columns_of(column, "Trend")
        self.by = None if by is None else columns_of(by, "by")[0]
        if kind not in self.FORMS[:4]:
            raise ValueError(f"kind must be 'linear', 'smooth', 'level' or 'damped', got {kind!r}")
        self.form = kind if kernel is None else "kernel"
        walks = {
            "level": kernels.Brownian,
            "smooth": kernels.IntegratedBrownian,
            "linear": lambda: kernels.Brownian() + kernels.IntegratedBrownian(),
            "damped": lambda: kernels.Brownian() + kernels.IntegratedMatern12(),
        }
        self.kernel = walks[kind]() if kernel is None else read_kernel(kernel)[0]
        self.clock = unit if isinstance(unit, Clock) else Clock(unit)
        self.grouped, self.by_level, self.points, self.used = False, False, None, None

    def covariance(self) -> Kernel:
        return self.kernel

    @property
    def lines(self) -> bool:
        return self.form in ("linear", "smooth")

    def encoder(self, table: Table) -> InputEncoder:
        start = float(np.min(numbers_of(table, self.columns[0], self.clock)))
        return by_encoder(self, table, clock=self.clock, origin=start)


class Season(KernelTerm):
    """A pattern that repeats with a fixed `period`, over a column of time stamps or numbers.

    `period` is text such as "1y", "1w" or "12h", or a number in the unit of the column (days for time stamps, unless
    `unit` says otherwise). The pattern is a sum of `harmonics` sinusoids, so that it averages to zero over a period:
    the level is the intercept of the model. Their weights are those of a periodic kernel whose `lengthscale`, relative
    to the period, says how smooth the pattern is; `variance` is that of the pattern. `decay`, in periods, lets it
    change over time.
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
        return self.decay is not None and self.by is None  # few harmonics are cheaper as weights

    @property
    def is_harmonic(self) -> bool:
        """Whether the pattern is a sum of harmonics, whose weights are few."""
        return self.decay is None and not self.by_level

    @property
    def count(self) -> int:
        return 2 * self.harmonics if self.is_harmonic else super().count

    def read_rows(self, x: np.ndarray) -> Any:
        return x if self.is_harmonic else super().read_rows(x)

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        return self.new_weights(rows) if self.is_harmonic else super().weights(rows)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        if not self.is_harmonic:
            return super().new_weights(x)
        return (Weights(None, self._columns(x) * x[:, -1:], None, 1, "", False),)

    def _columns(self, x: Any) -> Any:
        """Cosines and sines at inputs, in units of their weights."""
        angles = (2.0 * jnp.pi / self.period) * jnp.asarray(x)[:, :1] * np.arange(1, self.harmonics + 1)[None]
        sizes = jnp.sqrt(self._pattern().variances())[None]
        return jnp.concatenate([sizes * jnp.cos(angles), sizes * jnp.sin(angles)], axis=1)

    def gram(self, one: Any, two: Any) -> Any:
        if self.decay is None or self.by_level:
            return super().gram(one, two)
        # A product of few columns takes a fraction of the time of as many cosines per entry.
        pattern = self._columns(one) @ self._columns(two).T
        return pattern * jnp.exp(-jnp.abs(one[:, None, 0] - two[None, :, 0]) / (self.period * self.decay))

    def new_covariance(self, x: Any) -> Any:
        return 0.0 if self.is_harmonic else super().new_covariance(x)

    def _pattern(self) -> "_Pattern":
        return _Pattern(self.period, self.harmonics, self.lengthscale, self.variance)

    def covariance(self) -> Kernel:
        if self.decay is None:
            return self._pattern()
        return self._pattern() * kernels.Matern12(self.period * self.decay, 1.0)

    def encoder(self, table: Table) -> InputEncoder:
        return by_encoder(self, table, clock=self.clock)


class _Pattern(Kernel):
    """A periodic kernel without its constant part: Σ_j v_j cos(2πj(x − x')/period), where Σ_j v_j is the variance."""

    period: float = eqx.field(static=True)
    harmonics: int = eqx.field(static=True)
    lengthscale: Any
    variance: Any

    def variances(self) -> Any:
        """The variances of the harmonics."""
        shares = jnp.asarray(kernels.Periodic(self.period, self.lengthscale, 1.0, self.harmonics).fractions())[1:]
        return self.variance * shares / jnp.sum(shares)

    def evaluate(self, x1, x2):
        angles = (2.0 * jnp.pi / self.period) * (x1[0] - x2[0]) * np.arange(1, self.harmonics + 1)
        return jnp.sum(self.variances() * jnp.cos(angles))

    def blocks(self) -> tuple[Block, ...]:
        """Two states per harmonic."""
        variances = self.variances()
        return tuple(OscillationBlock(variances[j], self.period, j + 1) for j in range(self.harmonics))


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
            return by_encoder(self, table, origin=float(np.min(column.numbers())), steps=True)
        if column.categories is None:
            times = column.times() is not None
            raise ValueError(
                f"RandomWalk is over ordered levels, but column {column.name!r} holds "
                + ("time stamps: use Trend, or number them" if times else "text without an order: use numbers, or an ")
                + ("" if times else "ordered categorical")
            )
        found = by_encoder(self, table)
        return dataclasses.replace(found, levels=(column.categories, *found.levels[1:]), closed=True)
