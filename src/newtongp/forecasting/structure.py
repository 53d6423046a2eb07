"""From a series to its model: terms, a likelihood, and priors of hyperparameters that are relative to the data.

All priors are in units of the series: the size of the change from one row to the next once season and line are taken
off. The forecasts of 1000 y are therefore 1000 times those of y.
"""

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from .. import kernels, likelihoods
from ..likelihoods.base import Likelihood
from ..numerics.linalg import ridge_regression
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
    """Whether the trend has the parts of all kinds, of which priors keep some at zero: all are then one program."""
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


def guess_likelihood(y: np.ndarray) -> Likelihood:
    """Negative binomial for counts, log-normal for other positive numbers, Gaussian otherwise.

    >>> [type(guess_likelihood(np.array(y))).__name__ for y in ([0, 3, 2], [0.5, 2.0], [-1.0, 2.0])]
    ['NegativeBinomial', 'LogNormal', 'Gaussian']
    """
    values = y[np.isfinite(y)]
    if np.all((values >= 0.0) & (values == np.round(values))) and np.median(values) < _COUNTS:
        return likelihoods.NegativeBinomial()
    return likelihoods.LogNormal() if np.all(values > 0.0) else likelihoods.Gaussian()


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


def scale_of(steps: np.ndarray, y: np.ndarray, phases: list[np.ndarray], structure: Structure) -> Scale:
    """The sizes of a series, from a regression on a line and harmonics."""
    seen = np.isfinite(y)
    if structure.link == "other":
        return Scale(_OTHER_STEP, _OTHER_STEP**2)
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
    return Scale(step, max(float(np.var(design[:, 2:] @ weights[2:])), 0.1 * step**2))


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
        trend, own = _trend(structure.trend, scale.step, structure.nested)
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


AVERAGED = ("linear", "damped", "local", "level")
"""The trends over which forecasts are averaged with trend="auto"."""


def _trend(kind: str, step: float, nested: bool) -> tuple[Trend, dict[str, Mode]]:
    """The trend, and the priors of its hyperparameters by their names in it; time is in rows.

    All sizes are relative to that of a step. The level is a random walk. Its slope is that of a line, if there is one,
    and deviations from it, which die out. Short-lived deviations come on top.
    """
    if kind == "smooth":
        return Trend(TIME, "smooth"), {"kernel.variance": Mode((0.03 * step) ** 2, 1.5)}
    nothing = {"variance": Mode((1e-4 * step) ** 2, 0.5)}
    level = {"variance": Mode(0.3 * step**2, 1.5)}
    short = {"variance": Mode(0.3 * step**2, 1.5), "lengthscale": Mode(3.0, 1.0)}
    slope = {"variance": Mode((0.1 * step) ** 2, 1.5), "lengthscale": Mode(20.0, 1.0)}
    if kind == "local":  # among others, as good as a random walk of the slope
        slope = {"variance": Mode((0.1 * step) ** 2, 1.5), "lengthscale": Mode(1000.0, 0.3)}
    if kind == "level":
        slope = {**nothing, "lengthscale": Mode(20.0, 1.0)}
    line = {"variance": Mode((0.3 * step) ** 2, 1.0)} if kind in ("linear", "local") else nothing
    parts: list[tuple[Any, dict[str, Mode]]] = [(kernels.Brownian(), level), (kernels.Matern12(), short)]
    if kind == "local" and not nested:
        parts.append((kernels.IntegratedBrownian(), {"variance": Mode((0.01 * step) ** 2, 1.5)}))
    elif nested or kind != "level":
        parts.append((kernels.IntegratedMatern12(), slope))
    if nested or kind in ("linear", "local"):
        parts.append((kernels.Linear(), line))
    kernel = functools.reduce(operator.add, [part for part, _ in parts])
    return Trend(TIME, kernel=kernel), {
        f"kernel[{place}].{name}": mode for place, (_, own) in enumerate(parts) for name, mode in own.items()
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
