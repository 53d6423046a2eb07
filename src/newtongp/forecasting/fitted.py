"""One fitted series: forecasts, components and effects of interventions."""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np

from ..fitting.fit import fit
from ..inference.infer import infer
from ..inputs.tables import bind
from ..model import Model
from ..numerics.size_classes import SMALLEST_DATA, size_class
from ..terms.base import Terms, replaced
from ..terms.table import Table
from .calendar import Calendar
from .rows import Rows, encode, structure_of
from .specification import Specification
from .structure import Structure, scale_of, terms_of

_TOLERANCE = 1e-2
"""Of the search: hyperparameters within a hundredth of their optimum, in logarithms, forecast the same."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A series, its structure, and the result of the fit."""

    specification: Specification
    structure: Structure
    calendar: Calendar
    rows: Rows
    result: Any

    def encode(self, times: np.ndarray, table: Any = None) -> dict[str, np.ndarray]:
        """The columns of the model at some times."""
        read = None if table is None else Table(table)
        return encode(self.specification, self.structure, self.calendar, times, read)

    def predict(self, times: np.ndarray, table: Any = None) -> Any:
        """The predictive distribution of y at some times."""
        return self.result.predict(self.encode(times, table))

    def forecast(self, times: np.ndarray, table: Any, levels: list[float]) -> dict[str, np.ndarray]:
        """Mean, median and intervals at some times."""
        return summarised(self.predict(times, table), levels)

    def components(self, times: np.ndarray, table: Any, level: float) -> dict[str, np.ndarray]:
        """The posterior of every component, on the scale of the latent: one row per component and time."""
        encoded, found = self.encode(times, table), []
        for name, labels in self.parts().items():
            frame = self.result.terms(encoded, only=labels, sum=True, level=level)
            columns = {column: frame[column].to_numpy() for column in ("mean", "sd", "lower", "upper")}
            found.append({"component": np.full(times.size, name, dtype=object), **columns})
        return {column: np.concatenate([part[column] for part in found]) for column in found[0]}

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

    def effects(self, level: float, draws: int, key: Any) -> list[dict[str, Any]]:
        """What every intervention has changed, on the scale of y: on average per active row, and in total."""
        encoded = self.encode(self.rows.times, self.rows.table)
        found = []
        for name in dict(self.structure.effects)["interventions"]:
            active = np.flatnonzero(encoded[name] != 0.0)
            with_it = {column: values[active] for column, values in encoded.items()}
            without = {**with_it, name: np.zeros(active.size)}
            frame = self.result.contrast(with_it, without, average=True, level=level, n=draws, key=key)
            row = {column: float(frame[column].to_numpy()[0]) for column in ("estimate", "sd", "lower", "upper")}
            found.append({"intervention": name, "rows": active.size, **row, "total": row["estimate"] * active.size})
        return found

    def log_scores(self, rows: Rows) -> np.ndarray:
        """The log density of y in new rows."""
        return np.asarray(self.result.log_density(self.encode(rows.times, rows.table), rows.y))


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


def fit_rows(specification: Specification, calendar: Calendar, rows: Rows, **options: Any) -> Fitted:
    """Learn the hyperparameters of a series and infer its components."""
    structure = structure_of(specification, calendar, rows)
    encoded = encode(specification, structure, calendar, rows.times, Table(rows.table))
    phases = [encoded[name] for name in structure.season_names]
    sum_of_terms, priors = terms_of(structure, scale_of(calendar.steps(rows.times), rows.y, phases, structure))
    chosen = {"tol": _TOLERANCE, "standard_errors": False, "throw": False, **options}
    parameters = {**priors, **chosen.pop("parameters", {})}
    model, table, y = bound(Model(sum_of_terms, structure.likelihood), encoded, rows.y)
    result = fit(model, table, y, parameters=parameters, **chosen)
    return Fitted(specification, structure, calendar, rows, result)


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
    encoded = encode(fitted.specification, fitted.structure, fitted.calendar, rows.times, Table(rows.table))
    result = infer(*bound(fitted.result.model, encoded, rows.y), throw=False)
    return dataclasses.replace(fitted, rows=rows, result=result)
