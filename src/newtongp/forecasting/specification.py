"""What a forecaster is made of: trend, seasons, holidays, regressors, interventions and a likelihood."""

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..fitting.fit import fit
from ..likelihoods.base import Likelihood
from ..model import likelihood_named
from ..validation.arguments import flag
from ..validation.text import short
from .calendar import Period, read_period

TRENDS = ("linear", "damped", "level", "local", "smooth", "cyclic")
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Intervention:
    """Something that changes the level of the series, from a time on or between two times (both included).

    With `ramp` the level changes in proportion to the time since the start, instead of at once.
    """

    name: str
    start: Any
    end: Any = None
    ramp: bool = False

    def column(self, times: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """What multiplies the effect at these times: 0 before the start, and 1, or the number of steps since."""
        start, end = (_as_time(value, times, self.name) for value in (self.start, self.end))
        active = times >= start
        if not self.ramp:
            return (active if end is None else active & (times <= end)).astype(float)
        if not np.any(active):
            return np.zeros(times.size)
        since = steps - np.min(steps[active]) + 1.0
        last = np.inf if end is None else np.max(since[times <= end], initial=0.0)
        return np.where(active, np.minimum(since, last), 0.0)


def _as_time(value: Any, times: np.ndarray, name: str) -> Any:
    """A time of the user's as an entry of a column of times."""
    if value is None:
        return None
    try:
        if times.dtype.kind != "M":
            return float(value)
        value = getattr(value, "start_time", value)
        return np.datetime64(value.replace(tzinfo=None) if getattr(value, "tzinfo", None) else value, "us")
    except (TypeError, ValueError):
        kind = "a date such as '2020-03-16'" if times.dtype.kind == "M" else "a number, as the times are"
        raise ValueError(f"the time of the intervention {name!r} must be {kind}, got {short(value)}") from None


@dataclasses.dataclass(frozen=True)
class Specification:
    """The arguments of a `Forecaster`, read and checked."""

    trend: str | None
    seasons: tuple[Period, ...] | None
    """None: those that are usual for the step of the series."""
    changing: bool
    """Whether patterns of seasons may change slowly, in series that are not long."""
    holidays: Any
    regressors: tuple[str, ...]
    interventions: tuple[Intervention, ...]
    likelihood: Likelihood | None
    """None: guessed from y."""


def read_specification(
    trend: Any, season: Any, changing: Any, holidays: Any, regressors: Any, intervention: Any, likelihood: Any
) -> Specification:
    """Check all arguments that can be checked without data."""
    if trend is not None and trend not in (AUTO, *TRENDS):
        raise ValueError(f"trend must be one of {', '.join(map(repr, (AUTO, *TRENDS)))}, or None, got {short(trend)}")
    names = _names(regressors)
    interventions = _interventions(intervention)
    twice = [name for name in {*names} if [*names, *(one.name for one in interventions)].count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is both a regressor and an intervention: give them different names")
    known = _likelihood(likelihood)
    if known is not None and (known.num_latents != 1 or known.num_outputs != 1):
        raise ValueError(f"a forecaster has one latent and one y, but {type(known).__name__} has several: use Model")
    return Specification(trend, _seasons(season), flag(changing, "changing"), holidays, names, interventions, known)


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Further arguments, which have to be those of `newtongp.fit`."""
    known = [name for name in inspect.signature(fit).parameters if name not in ("model", "x", "y")]
    for name in options:
        if name not in known:
            own = ("trend", "season", "changing", "holidays", "regressors", "intervention", "likelihood", "pooled")
            near = difflib.get_close_matches(name, [*own, *known], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(
                f"Forecaster has no argument {name!r}{hint}: its own are {', '.join(own)}, and the others are those of "
                "newtongp.fit"
            )
    return options


def _likelihood(given: Any) -> Likelihood | None:
    if given is None or (isinstance(given, str) and given == AUTO):
        return None
    known = likelihood_named(given) if isinstance(given, str) else given
    if not isinstance(known, Likelihood):
        raise ValueError(f"likelihood must be one such as likelihoods.Poisson(), or its name, got {short(given)}")
    return known


def _seasons(given: Any) -> tuple[Period, ...] | None:
    if isinstance(given, str) and given == AUTO:
        return None
    if given is None:
        return ()
    several = isinstance(given, Iterable) and not isinstance(given, str)
    periods = tuple(read_period(one) for one in (given if several else [given]))
    if len(set(periods)) < len(periods):
        raise ValueError(f"season has the same period twice, got {given!r}: leave one out")
    return periods


def _names(regressors: Any) -> tuple[str, ...]:
    given = () if regressors is None else (regressors,) if isinstance(regressors, str) else tuple(regressors)
    if any(not isinstance(name, str) for name in given):
        raise ValueError(f"regressors must be names of columns, got {regressors!r}: write regressors=['price']")
    return tuple(dict.fromkeys(given))


def _interventions(given: Any) -> tuple[Intervention, ...]:
    if given is None:
        return ()
    if isinstance(given, Intervention):
        return (given,)
    if isinstance(given, Mapping):
        return tuple(_intervention(str(name), when) for name, when in given.items())
    if isinstance(given, (list, tuple)) and all(isinstance(one, Intervention) for one in given):
        return tuple(given)
    if isinstance(given, (list, tuple)):
        raise ValueError(
            f"intervention must be a mapping from names to times, got {short(given)}: write "
            "intervention={'law': '2013-02-01', 'strike': ('2015-05-01', '2015-06-30')}"
        )
    return (_intervention("intervention", given),)


def _intervention(name: str, when: Any) -> Intervention:
    if isinstance(when, Intervention):
        return dataclasses.replace(when, name=name)
    if isinstance(when, (list, tuple)):
        if len(when) == 3 and isinstance(when[2], bool):
            return Intervention(name, *when)
        if len(when) != 2:
            raise ValueError(f"the intervention {name!r} has a start, or a start and an end, got {short(when)}")
        return Intervention(name, when[0], when[1])
    return Intervention(name, when)
