"""From a series to its model: terms, a likelihood, and priors of hyperparameters that are relative to the data.

All priors are in units of the series: the size of the change from one row to the next once season and line are taken
off. The forecasts of 1000 y are therefore 1000 times those of y.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import kernels, likelihoods
from ..likelihoods.base import Likelihood
from ..numerics.known import ridge_regression
from ..parameters.priors import LogNormal
from ..parameters.specifications import Free
from ..terms.base import Terms
from ..terms.linear import Linear
from ..terms.times import Season, Trend
from .calendar import Calendar, Period

MOST_HARMONICS = {"y": 10, "q": 10, "M": 10, "w": 21, "d": 12}
"""The largest number of harmonics of a season, by its unit; 10 for others."""
_COUNTS = 1000.0
"""Whole numbers with a median below this are counts; the noise of counting is negligible above."""


class Mode(NamedTuple):
    """A prior of a positive hyperparameter: a normal distribution of its logarithm, with this mode and spread."""

    value: float
    spread: float

    def specification(self) -> Free:
        """As `fit` takes it. A density of the value, rather than of its logarithm, has its mode elsewhere."""
        value = max(self.value, _SMALLEST)
        return Free(prior=LogNormal(value * float(np.exp(self.spread**2)), self.spread), start=value)


_SMALLEST = 1e-12


@dataclasses.dataclass(frozen=True)
class Structure:
    """The columns and the model of one series."""

    trend: str | None
    nested: bool
    """Whether a trend without cycles has the parts of all, of which priors keep some at zero: they are one program."""
    seasons: tuple[Period, ...]
    harmonics: tuple[int, ...]
    lengths: tuple[float, ...]
    """The number of rows in a period of every season."""
    changing: tuple[bool, ...]
    """Whether the pattern of a season changes slowly from period to period."""
    effects: tuple[tuple[str, tuple[str, ...]], ...]
    """Kinds of effects ("regressors", "holidays", "interventions") and the columns of each."""
    likelihood: Likelihood
    link: str
    """How y is related to the latent: "log", "identity" or "other"."""

    @property
    def season_names(self) -> tuple[str, ...]:
        """The names of the columns with phases."""
        return tuple(f"season {period.label}" for period in self.seasons)


def guess_likelihood(y: np.ndarray, periods: Sequence[float] = ()) -> Likelihood:
    """Negative binomial for counts, log-normal for other positive numbers, Gaussian otherwise.

    Counts that are all zero are Poisson: they say nothing about a dispersion.

    >>> [type(guess_likelihood(np.array(y))).__name__ for y in ([0, 3, 2], [0.5, 2.0], [-1.0, 2.0])]
    ['NegativeBinomial', 'LogNormal', 'Gaussian']
    """
    values = y[np.isfinite(y)]
    whole = np.all((values >= 0.0) & (values == np.round(values))) and np.median(values) < _COUNTS
    if whole and (np.any(values == 0.0) or dispersion_of(y, periods) > _LEAST_DISPERSION):
        return likelihoods.NegativeBinomial() if np.any(values > 0.0) else likelihoods.Poisson()
    return likelihoods.LogNormal() if np.all(values > 0.0) else likelihoods.Gaussian()


_LEAST_DISPERSION = 0.5
"""Whole numbers whose variance is a smaller part of their mean are no counts, but an index or a rounded quantity."""


def dispersion_of(y: np.ndarray, periods: Sequence[float] = ()) -> float:
    """The variance of y around what is smooth in it, relative to its mean: of counts it is at least 1.

    It is the smallest of those that differences have, once and twice, from one row to the next and between periods.

    >>> y = np.random.default_rng(0).poisson(np.linspace(50.0, 80.0, 500)).astype(float)
    >>> 0.8 < dispersion_of(y) < 1.2, dispersion_of(np.round(0.2 * y + 100.0)) < 0.2
    (True, True)
    """
    lags = sorted({1, *(round(period) for period in periods)})
    found = [np.inf]
    for lag in (lag for lag in lags if y.size >= lag + _FEWEST_FOR_CYCLES):
        once = y[lag:] - y[:-lag]
        twice = once[1:] - once[:-1]
        # Independent values of variance v have differences of variance 2v, and differences of these 6v or 4v.
        for gaps, times in ((once, 2.0), (twice, 6.0 if lag == 1 else 4.0)):
            if np.any(np.isfinite(gaps)):
                found.append(float(np.nanmean(gaps**2)) / times)
    return min(found) / max(float(np.nanmean(y)), _SMALLEST)


def link_of(likelihood: Likelihood) -> str:
    """How the mean of y depends on the latent: "log", "identity" or "other"."""
    if tuple(likelihood.linear_latents) == (0,) or isinstance(likelihood, likelihoods.StudentT):
        return "identity"
    if isinstance(likelihood, likelihoods.LogNormal) or getattr(likelihood, "link", None) == "exp":
        return "log"
    return "other"


class Scale(NamedTuple):
    """Sizes in the units of the latent."""

    step: float
    """The size of changes from one row to the next, without season and line."""
    season: float
    """The variance of the season."""
    rest: float
    """The variance of what is left without season and line."""
    cycle: float
    """The number of rows in a cycle of what is left."""


def scale_of(steps: np.ndarray, y: np.ndarray, phases: list[np.ndarray], structure: Structure) -> Scale:
    """The sizes of a series, from a regression on a line and harmonics."""
    seen = np.isfinite(y)
    if structure.link == "other":
        return Scale(_OTHER_STEP, _OTHER_STEP**2, _OTHER_STEP**2, _USUAL_CYCLE)
    z = y[seen]
    if structure.link == "log":
        z = np.log(np.maximum(z, 0.0) + _HALF * (np.min(z) <= 0.0))
    time = steps[seen] - np.mean(steps[seen])
    columns = [np.ones_like(z), time / max(float(np.ptp(time)), 1.0)]
    for phase, harmonics in zip(phases, structure.harmonics, strict=True):
        angles = 2.0 * np.pi * phase[seen, None] * np.arange(1, harmonics + 1)
        columns += [*np.cos(angles).T, *np.sin(angles).T]
    design = np.stack(columns, axis=1)
    weights = ridge_regression(design, z, np.where(np.arange(design.shape[1]) < 2, 1e-9, _RIDGE))
    rest = z - design @ weights
    step = _ABSOLUTE * float(np.mean(np.abs(np.diff(rest)))) if rest.size > 1 else 0.0
    size = float(np.std(z))
    step = max(step, 1e-3 * size, 1e-6 * max(abs(float(np.mean(z))), _SMALLEST))
    season = max(float(np.var(design[:, 2:] @ weights[2:])), 0.1 * step**2)
    return Scale(step, season, max(float(np.var(rest)), 0.1 * step**2), cycle_of(rest))


def cycle_of(values: np.ndarray) -> float:
    """The number of rows in a cycle, by an autoregression on the last two values; the usual one if there is no cycle.

    >>> round(cycle_of(np.sin(2.0 * np.pi * np.arange(200) / 11.0)), 1)
    11.0
    """
    if values.size < _FEWEST_FOR_CYCLES or not np.any(values):
        return _USUAL_CYCLE
    before = np.stack([values[1:-1], values[:-2]], axis=1)
    one, two = ridge_regression(before, values[2:], np.full(2, 1e-9 * float(np.sum(values**2))))
    # Roots of z² − one z − two are a pair of conjugates r exp(±2πi/period).
    if one**2 + 4.0 * two >= 0.0:
        return _USUAL_CYCLE
    period = 2.0 * np.pi / float(np.arccos(np.clip(0.5 * one / np.sqrt(-two), -1.0, 1.0)))
    return float(np.clip(period, _SHORTEST_CYCLE, 0.5 * values.size))


_USUAL_CYCLE, _SHORTEST_CYCLE, _FEWEST_FOR_CYCLES = 10.0, 3.0, 12
_OTHER_STEP = 0.5
"""The size of changes of a latent behind a link such as the logistic function."""
_HALF = 0.5
_RIDGE = 0.1
_ABSOLUTE = float(np.sqrt(np.pi / 2.0))
"""The standard deviation of a normal variable, in units of its mean absolute value."""


# Terms and priors of hyperparameters --------------------------------------------------------------

TIME = "time"


def harmonics_of(calendar: Calendar, period: Period) -> int:
    """The number of harmonics of a season: as many as rows can tell apart, up to a limit."""
    rows = calendar.rows_per(period)
    if rows < 2.0:
        raise ValueError(
            f"a season of {period.label} has fewer than two rows per period, which are a {calendar.name} apart: leave "
            "it out"
        )
    return min(int(rows / 2.0 + 1e-6), MOST_HARMONICS.get(period.unit, 10))


def terms_of(structure: Structure, scale: Scale) -> tuple[Any, dict[str, Mode]]:
    """The terms of the model, and the priors of their hyperparameters by name."""
    terms: list[Any] = [Linear(prior="flat")]
    priors: dict[str, Mode] = {}
    if structure.trend is not None:
        trend, own = _trend(structure.trend, scale, structure.nested)
        terms.append(trend)
        priors |= {f"{trend.label}.{name}": mode for name, mode in own.items()}
    share = scale.season / max(len(structure.seasons), 1)
    for place, (name, harmonics) in enumerate(zip(structure.season_names, structure.harmonics, strict=True)):
        own = {"variance": Mode(share, 1.0), "lengthscale": Mode(0.6, 0.7)}
        if structure.changing[place]:
            # Over time, as the trend is: the model is then one function of time, or one chain.
            season = Season(TIME, structure.lengths[place], harmonics=harmonics, decay=_DECAY.value)
            own["decay"] = _DECAY
        else:
            season = Season(name, 1.0, harmonics=harmonics)
        terms.append(season)
        priors |= {f"{season.label}.{key}": mode for key, mode in own.items()}
    for kind, columns in structure.effects:
        if columns:
            prior = _HOLIDAY * max(scale.step, scale.season**0.5) if kind == "holidays" else "wide"
            terms.append(Linear(*columns, intercept=False, prior=prior))
    priors |= _noise_priors(structure, scale.step)
    return sum(terms[1:], Terms((terms[0],))), priors


_DECAY = Mode(30.0, 1.0)
"""The number of periods after which a pattern is another one."""
_HOLIDAY = 5.0
"""The standard deviation of a holiday's effect, relative to the larger of steps and season."""


AVERAGED = ("linear", "damped", "cyclic")
"""The trends over which forecasts are averaged with trend="auto"."""


def _trend(kind: str, scale: Scale, nested: bool) -> tuple[Trend, dict[str, Mode]]:
    """The trend, and the priors of its hyperparameters by their names in it; time is in rows.

    All sizes are relative to that of a step. The level is a random walk. Its slope is that of a line, if there is one,
    and deviations from it, which die out. Short-lived deviations come on top; those of a cyclic trend swing.
    """
    step = scale.step
    if kind == "smooth":
        return Trend(TIME, "smooth"), {"kernel.variance": Mode((0.03 * step) ** 2, 1.5)}
    nothing = Mode((1e-4 * step) ** 2, 0.5)  # of parts that are only there for others
    walk, cyclic = Mode(0.3 * step**2, 1.5), kind == "cyclic"
    # A slope with a long memory is, among other parts, as good as a random walk of the slope.
    memory = Mode(1000.0, 0.3) if kind == "local" else Mode(20.0, 1.0)
    line = Mode((0.1 * step) ** 2, 1.0) if cyclic else Mode((0.3 * step) ** 2, 1.0)
    cycle = {
        "[0].variance": Mode(0.5 * scale.rest, 1.0),
        "[0].lengthscale": Mode(2.0 * scale.cycle, 1.0),
        "[1].period": Mode(scale.cycle, 0.3),
    }
    parts: list[tuple[Any, dict[str, Mode], bool]] = [
        (kernels.Brownian(), {".variance": Mode(0.03 * step**2, 1.5) if cyclic else walk}, True),
        (kernels.Matern12(), {".variance": walk, ".lengthscale": Mode(3.0, 1.0)}, not cyclic),
    ]
    if kind == "local" and not nested:
        parts.append((kernels.IntegratedBrownian(), {".variance": Mode((0.01 * step) ** 2, 1.5)}, True))
    else:
        sloping = kind in ("linear", "damped", "local")
        slope = Mode((0.1 * step) ** 2, 1.5) if sloping else nothing
        parts.append((kernels.IntegratedMatern12(), {".variance": slope, ".lengthscale": memory}, sloping))
    lined = kind in ("linear", "local", "cyclic")
    parts.append((kernels.Linear(), {".variance": line if lined else nothing}, lined))
    parts.append((kernels.Matern12() * kernels.Cosine(), cycle, cyclic))
    # Cycles are not nested: they would take time in the programs of all other trends.
    used = [(kernel, own) for kernel, own, needed in parts if needed or (nested and not cyclic and own is not cycle)]
    return Trend(TIME, kernel=functools.reduce(operator.add, [kernel for kernel, _ in used])), {
        f"kernel[{place}]{name}": mode for place, (_, own) in enumerate(used) for name, mode in own.items()
    }


def _noise_priors(structure: Structure, step: float) -> dict[str, Mode]:
    """The priors of the likelihood's own hyperparameters."""
    deviation = Mode(0.3 * step, 0.75)
    found = {
        "Gaussian": {"variance": Mode(0.1 * step**2, 1.5)},
        "StudentT": {"scale": deviation},
        "LogNormal": {"scale": deviation},
        "NegativeBinomial": {"dispersion": Mode(max(0.1 * step**2, 1e-4), 1.5)},
    }
    known, likelihood = found.get(type(structure.likelihood).__name__, {}), structure.likelihood
    return {f"likelihood.{name}": mode for name, mode in known.items() if np.ndim(getattr(likelihood, name)) == 0}
