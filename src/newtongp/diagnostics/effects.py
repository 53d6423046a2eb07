"""Tables of the effects of additive models: coefficients, standard deviations of groups, and hyperparameters."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..parameters.constraints import Between
from ..parameters.names import Parameter, hyperparameters
from ..prediction.effects import coefficient_means, coefficients, learned_covariance, level_rows, levels
from ..prediction.terms import Entry, entries_of, moments, parts_of, select, width_of
from ..results.profiles import entry_name, interval
from ..results.result import Result
from ..terms.group import Group, GroupEncoder
from ..terms.linear import Linear, Offset
from ..validation.frames import make_frame

Carried = Callable[[Result, Callable[[Result], np.ndarray]], np.ndarray]
"""What the uncertainty of learned values adds to the variances of means; see `fitting/covariances.py`."""


class Effect(NamedTuple):
    """One number of a model with its uncertainty; `kind` is "fixed", "sd", "correlation" or "parameter"."""

    term: str
    name: str
    kind: str
    estimate: float
    se: float
    lower: float
    upper: float

    @property
    def z(self) -> float:
        """The estimate in standard errors, for fixed effects."""
        return self.estimate / self.se if self.kind == "fixed" and self.se > 0.0 else float("nan")


def effects(result: Result, term: Any = None, level: float = 0.95, carried: Carried | None = None) -> Any:
    """A data frame of all effects, or of those of one term: its coefficients, its levels, or its known inputs."""
    _, columns = parts_of(result, "effects")
    if term is None:
        return make_frame(_as_columns(all_effects(result, level, carried)), columns.library)
    found = select(result, [term], "term")
    if len(found) > 1:
        raise ValueError(
            f"{term!r} names several terms: choose one of {', '.join(repr(entry.name) for entry in found)}"
        )
    (entry,) = found
    if isinstance(entry.term, Offset):
        raise ValueError(f"{entry.name} is known and has no effects to estimate")
    if isinstance(entry.term, Linear):
        rows = [effect for effect in _fixed(result, width_of(level), carried) if effect.term == entry.name]
        return make_frame(_as_columns(rows), columns.library)
    return make_frame(_level_columns(result, entry, level, carried), columns.library)


def all_effects(result: Result, level: float = 0.95, carried: Carried | None = None) -> list[Effect]:
    """Fixed effects, standard deviations and correlations of groups, and other hyperparameters of the model."""
    half = width_of(level)
    return [*_fixed(result, half, carried), *_of_parameters(result, half)]


def _as_columns(found: list[Effect]) -> dict[str, np.ndarray]:
    columns = {name: np.array([getattr(effect, name) for effect in found]) for name in ("term", "name", "kind")}
    for name in ("estimate", "se", "z", "lower", "upper"):
        columns[name] = np.array([getattr(effect, name) for effect in found], dtype=float)
    return columns


# Fixed effects and levels -------------------------------------------------------------------------------


def _fixed(result: Result, half: float, carried: Carried | None) -> Iterator[Effect]:
    entries = [entry for entry in entries_of(result) if isinstance(entry.term, Linear)]
    if not entries:
        return
    found = [coefficients(result, entry) for entry in entries]
    variances = [np.diagonal(own.covariance) for own in found]
    if carried is not None:
        places = [entry.key for entry in entries]
        added = np.split(carried(result, lambda other: _means(other, places)), np.cumsum([len(v) for v in variances]))
        # Maximised coefficients are learned: their covariance is that of the learned values already.
        given = [0.0 if _is_learned(entry) else own for entry, own in zip(entries, variances, strict=True)]
        variances = [own + more for own, more in zip(given, added[:-1], strict=True)]
    for entry, own, variance in zip(entries, found, variances, strict=True):
        for name, estimate, se in zip(own.names, own.mean, np.sqrt(variance), strict=True):
            yield Effect(entry.name, name, "fixed", estimate, se, estimate - half * se, estimate + half * se)


def _is_learned(entry: Entry) -> bool:
    return isinstance(entry.term, Linear) and entry.term.prior == "maximised"


def _means(result: Result, places: list[tuple[int, int]]) -> np.ndarray:
    own = {entry.key: entry for entry in entries_of(result)}
    return np.concatenate([coefficient_means(result, own[place]) for place in places])


def _level_columns(result: Result, entry: Entry, level: float, carried: Carried | None) -> dict[str, np.ndarray]:
    found, half = levels(result, entry), width_of(level)
    se = found.sd
    if carried is not None:
        _, _, x = level_rows(result, entry)

        def means(other: Result) -> np.ndarray:
            own = {at.key: at for at in entries_of(other)}[entry.key]
            return moments(other, x, own.latent, [own])[0]

        se = np.sqrt(se**2 + carried(result, means))
    own = {"estimate": found.mean, "se": se, "lower": found.mean - half * se, "upper": found.mean + half * se}
    named = {} if found.names is None else {"name": found.names}
    labels = {f"{name}_level" if name in own or name in named else name: v for name, v in found.columns.items()}
    return {**labels, **named, **own}


# Hyperparameters -------------------------------------------------------------------------------------------


def _of_parameters(result: Result, half: float) -> Iterator[Effect]:
    entries: dict[Any, Entry] = {entry.key: entry for entry in entries_of(result)}
    spread = _Spread(result)
    for parameter in hyperparameters(result.model):
        entry = entries.get((parameter.path[2], parameter.path[4])) if parameter.path[0] == "prior" else None
        if entry is None:
            yield from _plain("likelihood", parameter.name.removeprefix("likelihood."), parameter, spread, half)
        elif isinstance(entry.term, Group):
            yield from _of_group(entry, parameter, spread, half)
        elif not isinstance(entry.term, Linear):
            yield from _plain(entry.name, _name_inside(entry, parameter), parameter, spread, half)


def _name_inside(entry: Entry, parameter: Parameter) -> str:
    """The name of a hyperparameter among those of its term."""
    own = parameter.path[5:]  # after prior, latents, a number, terms and a number
    return next(inner.name for inner in hyperparameters(entry.term) if inner.path == own)


class _Spread:
    """The uncertainty of learned values, by the parameter and the index of the entry."""

    def __init__(self, result: Result):
        self._tied, self._result = getattr(result, "tied", {}), result
        found = learned_covariance(result)
        self._matrix = None if found is None else found.matrix
        self._place = {} if found is None else {name: place for place, name in enumerate(found.names)}

    def error_of(self, parameter: Parameter, index: tuple[int, ...]) -> float:
        """The standard error of an entry of a value; NaN if it was not learned."""
        errors = getattr(self._result, "standard_errors", {})
        return float(errors.get(self._name(parameter), np.full(parameter.value.shape, np.nan))[index])

    def profile_interval(self, parameter: Parameter, index: tuple[int, ...], half: float) -> tuple[float, float] | None:
        """The interval of an entry from the profile of the energy, if there is one.

        Without a profile, it is from 0 to infinity if the standard error is infinite.
        """
        error = self.error_of(parameter, index)
        if np.isnan(error):
            return None
        profile = getattr(self._result, "profiles", {}).get(entry_name(self._name(parameter), index))
        if profile is None:
            return (0.0, np.inf) if np.isinf(error) else None
        return interval(profile, half)

    def _name(self, parameter: Parameter) -> str:
        return self._tied.get(parameter.name, parameter.name)

    def of(self, parameter: Parameter, indices: list[tuple[int, ...]]) -> np.ndarray:
        """The covariance of entries of a value; NaN if it was not learned."""
        names = [entry_name(self._name(parameter), index) for index in indices]
        if self._matrix is None or any(own not in self._place for own in names):
            return np.full((len(indices), len(indices)), np.nan)
        places = [self._place[own] for own in names]
        return self._matrix[np.ix_(places, places)]


def _plain(term: str, name: str, parameter: Parameter, spread: _Spread, half: float) -> Iterator[Effect]:
    for index in np.ndindex(parameter.value.shape):
        value, se = float(parameter.value[index]), spread.error_of(parameter, index)
        ends = spread.profile_interval(parameter, index, half) if parameter.constraint.is_positive else None
        ends = _interval(parameter, value, half * se) if ends is None else ends
        yield Effect(term, entry_name(name, index), "parameter", value, se, *ends)


def _interval(parameter: Parameter, value: float, reach: float) -> tuple[float, float]:
    """An interval that respects the range of a value: on the scale of logarithms, or of log odds."""
    if isinstance(parameter.constraint, Between):
        low, high = float(parameter.constraint.lower), float(parameter.constraint.upper)
        if not low < value < high:
            return float("nan"), float("nan")
        at, step = np.log((value - low) / (high - value)), reach * (high - low) / ((value - low) * (high - value))
        ends = [low + (high - low) / (1.0 + np.exp(-np.clip(at + side * step, -700, 700))) for side in (-1, 1)]
        return float(ends[0]), float(ends[1])
    if parameter.constraint.is_positive:
        return _around(value, reach)
    return value - reach, value + reach


def _around(value: float, reach: float) -> tuple[float, float]:
    """value · exp(±reach/value), for positive values."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factor = np.exp(np.float64(reach) / value)
    return float(value / factor), float(value * factor)


def _of_group(entry: Entry, parameter: Parameter, spread: _Spread, half: float) -> Iterator[Effect]:
    """Standard deviations of the coefficients of a level, and their correlations."""
    encoder = entry.encoder
    assert isinstance(encoder, GroupEncoder)
    value, names = parameter.value, encoder.names
    places = list(range(len(names)))
    where = [(k, k) if value.ndim == 2 else (k,) if value.ndim == 1 else () for k in places]
    for k in places:
        sd = float(np.sqrt(value[where[k]]))
        se = spread.error_of(parameter, where[k]) / (2.0 * sd)
        ends = spread.profile_interval(parameter, where[k], half)
        ends = _around(sd, half * se) if ends is None else (float(np.sqrt(ends[0])), float(np.sqrt(ends[1])))
        yield Effect(entry.name, f"sd({names[k]})", "sd", sd, se, *ends)
    for i, j in itertools.combinations(places if value.ndim == 2 else [], 2):
        one, two, both = value[i, i], value[j, j], value[i, j]
        r = float(both / np.sqrt(one * two))
        slope = np.array([1.0 / np.sqrt(one * two), -0.5 * r / one, -0.5 * r / two])
        variance = slope @ spread.of(parameter, [(i, j), (i, i), (j, j)]) @ slope
        se = float(np.sqrt(np.maximum(variance, 0.0)))
        reach = half * se / (1.0 - r**2)
        ends = [float(np.tanh(np.arctanh(r) + side * reach)) for side in (-1, 1)]
        yield Effect(entry.name, f"cor({names[i]}, {names[j]})", "correlation", r, se, ends[0], ends[1])
