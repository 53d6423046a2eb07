"""One fitted series: forecasts, components and effects of interventions."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from scipy.special import logsumexp, ndtri

from ..fitting.fit import fit
from ..inference.infer import infer
from ..inputs.tables import bind
from ..model import Model
from ..numerics.size_classes import SMALLEST_DATA, size_class
from ..parameters.names import hyperparameters, put
from ..terms.base import Terms, replaced
from ..terms.table import Table
from .calendar import Calendar
from .mixture import Mixture
from .rows import Rows, encode, structures_of
from .specification import Specification
from .structure import Mode, Structure, scale_of, terms_of

_TOLERANCE = 1e-2
"""Of the search: hyperparameters within a hundredth of their optimum, in logarithms, forecast the same."""


class Member(NamedTuple):
    """One structure of a series, its result, and its weight in the average."""

    structure: Structure
    result: Any
    energy: float
    """Minus the log evidence, and minus the log density of the logarithms of hyperparameters, up to constants."""
    weight: float = 1.0

    def parts(self) -> dict[str, list[str]]:
        """The components, each with the labels of its terms."""
        labels = [term.label for term in self.result.model.prior.latents[0].terms]
        level = 2 if self.structure.trend is not None else 1
        names = ["trend"] * level + list(self.structure.season_names)
        names += [kind for kind, columns in self.structure.effects if columns]
        found: dict[str, list[str]] = {}
        for name, label in zip(names, labels, strict=True):
            found.setdefault(name, []).append(label)
        return found


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A series, and the results of one or several structures, over which forecasts are averaged."""

    specification: Specification
    calendar: Calendar
    rows: Rows
    members: tuple[Member, ...]
    """Those with the largest weights first."""

    def __repr__(self) -> str:
        parts = ", ".join(self.parts())
        names = ", ".join(dict.fromkeys(type(one.structure.likelihood).__name__ for one in self.members))
        average = f"; average over {len(self.members)} structures" if len(self.members) > 1 else ""
        return f"Fitted, {self.rows.count} rows, one per {self.calendar.name}: {parts}; {names}{average}"

    @property
    def structure(self) -> Structure:
        """The structure with the largest weight."""
        return self.members[0].structure

    @property
    def result(self) -> Any:
        """The result of that structure."""
        return self.members[0].result

    def encode(self, times: np.ndarray, table: Any = None, structure: Structure | None = None) -> dict[str, np.ndarray]:
        """The columns of the model at some times."""
        read = None if table is None else Table(table)
        return encode(self.specification, structure or self.structure, self.calendar, times, read)

    def predict(self, times: np.ndarray, table: Any = None) -> Any:
        """The predictive distribution of y at some times."""
        found = [one.result.predict(self.encode(times, table, one.structure)) for one in self.members]
        if len(found) == 1:
            return found[0]
        lowest = 0.0 if np.nanmin(self.rows.y) >= 0.0 else -np.inf
        return Mixture(found, [one.weight for one in self.members], lowest)

    def forecast(self, times: np.ndarray, table: Any, levels: list[float]) -> dict[str, np.ndarray]:
        """Mean, median and intervals at some times."""
        return summarised(self.predict(times, table), levels)

    def components(self, times: np.ndarray, table: Any, level: float) -> dict[str, np.ndarray]:
        """The posterior of every component, on the scale of the latent: one row per component and time.

        They are averages over the structures with the scale of the first.
        """
        same = [one for one in self.members if one.structure.link == self.structure.link]
        weights = np.array([one.weight for one in same])
        weights, half, found = weights / np.sum(weights), float(ndtri(0.5 + 0.5 * level)), []
        for name in self.parts():
            moments = [self._moments(one, name, times, table, level) for one in same]
            means, sds = np.stack([mean for mean, _ in moments]), np.stack([sd for _, sd in moments])
            mean = weights @ means
            sd = np.sqrt(weights @ (sds**2 + (means - mean) ** 2))
            columns = {"mean": mean, "sd": sd, "lower": mean - half * sd, "upper": mean + half * sd}
            found.append({"component": np.full(times.size, name, dtype=object), **columns})
        return {column: np.concatenate([part[column] for part in found]) for column in found[0]}

    def _moments(self, one: Member, name: str, times: np.ndarray, table: Any, level: float) -> tuple[Any, Any]:
        """The mean and the standard deviation of a component of one structure."""
        encoded = self.encode(times, table, one.structure)
        frame = one.result.terms(encoded, only=one.parts()[name], sum=True, level=level)
        return frame["mean"].to_numpy(), frame["sd"].to_numpy()

    def parts(self) -> dict[str, list[str]]:
        """The components, each with the labels of its terms in the first structure."""
        return self.members[0].parts()

    def effects(self, level: float, draws: int, key: Any) -> list[dict[str, Any]]:
        """What every intervention has changed, on the scale of y: on average per active row, and in total.

        Intervals are those of normal distributions, if several structures are averaged over.
        """
        names = dict(self.structure.effects)["interventions"]
        return [self._effect(name, level, draws, key) for name in names]

    def _effect(self, name: str, level: float, draws: int, key: Any) -> dict[str, Any]:
        found = []
        for one in self.members:
            encoded = self.encode(self.rows.times, self.rows.table, one.structure)
            active = np.flatnonzero(encoded[name] != 0.0)
            with_it = {column: values[active] for column, values in encoded.items()}
            without = {**with_it, name: np.zeros(active.size)}
            frame = one.result.contrast(with_it, without, average=True, level=level, n=draws, key=key)
            found.append([float(frame[column].to_numpy()[0]) for column in ("estimate", "sd", "lower", "upper")])
        values, weights = np.array(found).T, np.array([one.weight for one in self.members])
        estimate, (lower, upper) = float(weights @ values[0]), (float(end @ weights) for end in values[2:])
        sd = float(np.sqrt(weights @ (values[1] ** 2 + (values[0] - estimate) ** 2)))
        if len(found) > 1:
            half = float(ndtri(0.5 + 0.5 * level)) * sd
            lower, upper = estimate - half, estimate + half
        ends = {"lower": lower, "upper": upper}
        rows = {"intervention": name, "rows": active.size, "estimate": estimate, "sd": sd}
        return {**rows, **ends, "total": estimate * active.size}

    def modes(self, structure: Structure) -> dict[str, Mode]:
        """The priors of the hyperparameters of a structure, which are relative to the size of the series."""
        return problem_of(self.specification, structure, self.calendar, self.rows)[1]

    def log_scores(self, rows: Rows) -> np.ndarray:
        """The log density of y in new rows."""
        found = [
            np.asarray(one.result.log_density(self.encode(rows.times, rows.table, one.structure), rows.y))
            for one in self.members
        ]
        return np.asarray(logsumexp(np.stack(found), axis=0, b=np.array([[one.weight] for one in self.members])))


def summarised(prediction: Any, levels: list[float]) -> dict[str, np.ndarray]:
    """Mean, median and central intervals of a prediction; names of several intervals end in their level."""
    tails = [0.5 * (1.0 - level) for level in levels]
    quantiles = prediction.quantile([0.5, *tails, *(1.0 - tail for tail in tails)])
    columns = {"mean": prediction.mean, "median": quantiles[0]}
    for place, level in enumerate(levels):
        ending = "" if len(levels) == 1 else f"_{100.0 * level:g}"
        columns[f"lower{ending}"] = quantiles[1 + place]
        columns[f"upper{ending}"] = quantiles[1 + len(levels) + place]
    return columns


def fit_rows(
    specification: Specification, calendar: Calendar, rows: Rows, options: dict[str, Any], change: Any = None
) -> Fitted:
    """Learn the hyperparameters of a series and infer its components, for every structure.

    `change` replaces the priors of the hyperparameters of a structure.
    """

    def learned(structure: Structure) -> Member:
        problem, modes = problem_of(specification, structure, calendar, rows)
        modes = modes if change is None else change(structure, modes)
        priors = {name: mode.specification() for name, mode in modes.items()}
        chosen = {"tol": _TOLERANCE, "standard_errors": False, "throw": False, **options}
        parameters = {**priors, **chosen.pop("parameters", {})}
        result = fit(*problem, parameters=parameters, **chosen)
        return Member(structure, result, float(result.energy) + distance_from(modes, result.parameters))

    found = [learned(structure) for structure in structures_of(specification, calendar, rows)]
    weights = weights_of([one.energy for one in found])
    members = [one._replace(weight=float(weight)) for one, weight in zip(found, weights, strict=True)]
    members.sort(key=lambda one: -one.weight)
    return Fitted(specification, calendar, rows, tuple(members))


def problem_of(
    specification: Specification, structure: Structure, calendar: Calendar, rows: Rows
) -> tuple[tuple[Model, Any, np.ndarray], dict[str, Mode]]:
    """The model of a structure with its table and y, and the priors of its hyperparameters."""
    encoded = encode(specification, structure, calendar, rows.times, Table(rows.table))
    phases = [encoded[name] for name in structure.season_names]
    sum_of_terms, modes = terms_of(structure, scale_of(calendar.steps(rows.times), rows.y, phases, structure))
    return bound(Model(sum_of_terms, structure.likelihood), encoded, rows.y), modes


def with_modes(fitted: Fitted, change: Any) -> Fitted:
    """The series inferred with hyperparameters at the modes of their priors, as `change` replaces these."""

    def inferred(one: Member) -> Member:
        (model, table, y), modes = problem_of(fitted.specification, one.structure, fitted.calendar, fitted.rows)
        values = {name: mode.value for name, mode in change(one.structure, modes).items()}
        for item in hyperparameters(model):
            if item.name in values:
                model = put(model, item.path, np.full(np.shape(item.value), values[item.name]))
        return one._replace(result=infer(model, table, y, throw=False))

    return dataclasses.replace(fitted, members=tuple(map(inferred, fitted.members)))


def distance_from(modes: dict[str, Mode], values: Any) -> float:
    """Minus the log density of the logarithms of hyperparameters, relative to that of their modes.

    Densities of the values themselves would favour structures whose hyperparameters are small.
    """
    scores = [np.log(values[name] / mode.value) / mode.spread for name, mode in modes.items() if name in values]
    return 0.5 * float(np.sum(np.square(scores)))


_POWER = 0.125
"""The power of posterior probabilities that are weights of structures; chosen by backtests."""


def weights_of(energies: list[float]) -> np.ndarray:
    """The weights of structures: powers of their posterior probabilities, given hyperparameters at their modes.

    Probabilities themselves are nearly 0 or 1 in long series, although all structures are wrong and an average of
    several forecasts better than the most probable one.

    >>> weights_of([3.0, 3.0, 500.0]).round(3).tolist()
    [0.5, 0.5, 0.0]
    """
    weights = np.exp(_POWER * (np.min(energies) - np.asarray(energies)))
    return weights / np.sum(weights)


def bound(model: Model, table: Any, y: np.ndarray) -> tuple[Model, Any, np.ndarray]:
    """The model bound to a table, with terms filled up to the size class of its rows.

    Terms alone would have smaller classes, and series of different lengths more programs to compile.
    """
    model, encoded, y = bind(model, table, y)
    prior: Any = model.prior
    size = size_class(len(y), SMALLEST_DATA)
    latents = tuple(Terms(tuple(_filled(term, size) for term in terms.terms)) for terms in prior.latents)
    prior = eqx.tree_at(lambda p: p.latents, prior, latents)
    return eqx.tree_at(lambda m: m.prior, model, prior), encoded, y


def _filled(term: Any, size: int) -> Any:
    points = getattr(term, "points", None)
    if points is None or points.shape[0] >= size:
        return term
    more = size - points.shape[0]
    filled = np.concatenate([points, np.repeat(points[-1:], more, axis=0)])
    return replaced(term, points=filled, used=np.append(term.used, np.zeros(more, dtype=bool)))


def update(fitted: Fitted, rows: Rows) -> Fitted:
    """The series with other rows, inferred with the same hyperparameters."""

    def inferred(one: Member) -> Member:
        encoded = encode(fitted.specification, one.structure, fitted.calendar, rows.times, Table(rows.table))
        return one._replace(result=infer(*bound(one.result.model, encoded, rows.y), throw=False))

    return dataclasses.replace(fitted, rows=rows, members=tuple(map(inferred, fitted.members)))
