"""Comparison of models by their predictions of unseen rows."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.data import Data
from ..results.result import Result
from ..results.wording import inference_status
from ..terms.base import Encoder
from ..terms.columns import TableColumns
from ..validation.arguments import flag
from ..validation.frames import make_frame
from ..validation.times import Clock, same_times
from .cross_validation import CrossValidation
from .tables import as_text, error_of_total, library_of_result, new_table

if TYPE_CHECKING:
    from rich.table import Table


_LEAVE_ONE_OUT = "leave-one-out"


@dataclasses.dataclass(eq=False, repr=False)
class Comparison:
    """A comparison of models, the best first; created by `compare`.

    `entries` has one dictionary per model: its `name`, the total `log_density` of held-out rows with its
    `standard_error`, the `difference` from the best with its standard error (`difference_error`), the `energy`, `steps`
    and `status`, and the number of observed rows without a log density (`improper`): in leave-one-out those with an
    improper cavity. `rows` is the number of rows in the sums: those with a log density under all models. A row that is
    impossible under a model has log density −∞, and so has the model. Results of runs that have not converged come
    last, without a log density, and with the `reason`; it is None for all others.
    """

    entries: list[dict[str, Any]]
    rows: int
    source: str
    library: str = "pandas"
    """The library of the tables that the models are of."""

    @property
    def best(self) -> str:
        """The name of the model that predicts best."""
        return self.entries[0]["name"]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.entries)

    def table(self) -> "Table":
        """One line per model, for `rich.print`."""
        table = new_table(f"Comparison, {self.source}", "model")
        for heading in ("log density", "difference", "energy", "steps", "status"):
            table.add_column(heading, justify="right")
        for entry in self.entries:
            first = entry is self.entries[0]
            table.add_row(
                entry["name"],
                "" if entry["reason"] else _with_error(entry["log_density"], entry["standard_error"]),
                "" if first or entry["reason"] else _with_error(entry["difference"], entry["difference_error"]),
                "" if entry["energy"] is None else f"{entry['energy']:.2f}",
                "" if entry["steps"] is None else str(entry["steps"]),
                entry["status"],
            )
        table.caption = f"sums over {self.rows} rows, ± standard errors; differences are paired, row by row"
        improper = {entry["name"]: entry["improper"] for entry in self.entries if entry["improper"]}
        if improper:
            left_out = ", ".join(f"{count} of {name}" for name, count in improper.items())
            which = "with an improper cavity" if self.source == _LEAVE_ONE_OUT else "without a log density"
            table.caption += f"; rows {which} are left out of all sums ({left_out})"
        if any(entry["log_density"] == -np.inf for entry in self.entries):
            table.caption += "; -inf where an observed row is impossible under a model"
        for entry in self.entries:
            if entry["reason"]:
                table.caption += f"; {entry['name']} is not ranked: {entry['reason']}"
        return table

    def to_frame(self) -> Any:
        """A data frame with one row per model and what `entries` hold, as far as it is known of any of them.

        It is of the same library as the table of the models, or of pandas if they are not of tables.
        """
        columns = {name: [entry[name] for entry in self.entries] for name in self.entries[0]}
        known = {name: values for name, values in columns.items() if any(value is not None for value in values)}
        return make_frame(known, self.library)

    def __str__(self) -> str:
        return as_text(self.table())

    def __repr__(self) -> str:
        return f"Comparison of {len(self)} model(s), {self.source}: best is {self.best!r}"


def compare(
    results: Mapping[str, Result | CrossValidation] | Sequence[Result | CrossValidation], check_x: bool = True
) -> Comparison:
    """Compare models of the same data by their predictions of unseen rows.

    `results` are Results, compared by their leave-one-out log densities (of the approximate posterior's cavities: no
    inference is repeated), or CrossValidations with equal folds; by name, or in a list. The standard error of a
    difference is computed from differences per row, which makes it far smaller than those of the sums if the models
    find the same rows difficult. Energies are comparable only between models with the same method. A Result whose
    inference has not converged (`Result.settled`) is not ranked, because its cavities are not leave-one-out
    predictions.

    All must be of the same rows. `check_x=False` allows different inputs, for models that use different columns.

    >>> import newtongp as ng
    >>> x, y = [0.0, 1.0, 2.0, 3.0, 4.0], [0, 1, 0, 12, 0]
    >>> prior = ng.GP(ng.kernels.RBF())
    >>> models = {"Poisson": ng.likelihoods.Poisson(), "negative binomial": ng.likelihoods.NegativeBinomial()}
    >>> comparison = ng.compare({name: ng.infer(ng.Model(prior, lk), x, y) for name, lk in models.items()})
    >>> comparison.best
    'negative binomial'
    >>> [entry["name"] for entry in comparison]
    ['negative binomial', 'Poisson']
    """
    named = _read_results(results)
    _check_same_data(named, flag(check_x, "check_x"))
    source = _LEAVE_ONE_OUT if isinstance(next(iter(named.values())), Result) else "cross-validation"
    ranked_by = {name: result for name, result in named.items() if not isinstance(result, Result) or result.settled}
    if not ranked_by:
        name, result = next(iter(named.items()))
        raise ValueError(
            f"results must include one whose inference has converged, but none has ({name!r}: {_unsettled(result)}): "
            "run inference to convergence, or compare by cross_validate"
        )
    densities = {
        name: result.leave_one_out() if isinstance(result, Result) else result.log_density
        for name, result in ranked_by.items()
    }
    observed = next(iter(named.values())).data.observed
    # A log density of -inf is a valid value, and the worst: only unknown ones are left out.
    usable = ~np.any([np.isnan(values) for values in densities.values()], axis=0)
    if not np.any(usable):
        raise ValueError("there is no row that all results can predict: use cross_validate")
    ranked = sorted(ranked_by, key=lambda name: -densities[name][usable].sum())
    best = densities[ranked[0]][usable]
    entries = []
    for name in ranked:
        values = densities[name][usable]
        with np.errstate(invalid="ignore"):  # The difference of two infinite values is undefined.
            gaps = values - best
            difference = float(gaps.sum())
        entries.append(
            {
                "name": name,
                "log_density": float(values.sum()),
                "standard_error": error_of_total(values),
                "difference": difference,
                "difference_error": error_of_total(gaps),
                **_ending(named[name]),
                "improper": int(np.sum(observed & np.isnan(densities[name]))),
                "reason": None,
            }
        )
    unknown = dict.fromkeys(("log_density", "standard_error", "difference", "difference_error"), np.nan)
    for name, result in named.items():
        if name not in ranked_by:
            entries.append({"name": name, **unknown, **_ending(result), "improper": 0, "reason": _unsettled(result)})
    return Comparison(entries, int(usable.sum()), source, library_of_result(next(iter(named.values()))))


def _ending(result: Result | CrossValidation) -> dict[str, Any]:
    return {
        "energy": result.energy if isinstance(result, Result) else None,
        "steps": result.steps if isinstance(result, Result) else None,
        "status": _status_in_words(result),
    }


def _unsettled(result: Any) -> str:
    """Why a result is not ranked."""
    return f"inference ended with {inference_status(result).name.lower()}, residual {result.residual:.1e}"


def _read_results(results: Any) -> dict[str, Result | CrossValidation]:
    if isinstance(results, Mapping):
        named = {str(name): result for name, result in results.items()}
    elif isinstance(results, Sequence) and not isinstance(results, str):
        named = {f"model {position}": result for position, result in enumerate(results)}
    else:
        raise ValueError(f"results must be a dictionary or a list of Results, got {results!r}")
    if not named:
        raise ValueError(f"results must not be empty, got {results!r}: give at least one")
    for name, result in named.items():
        if not isinstance(result, (Result, CrossValidation)):
            raise ValueError(f"results must be Results or CrossValidations, but {name!r} is {result!r}")
        if result.data is None:
            raise ValueError(
                f"results must have their data, but {name!r} was read in chunks: compare log_density at held-out rows"
            )
    if len({isinstance(result, Result) for result in named.values()}) > 1:
        raise ValueError(
            "results must be all Results or all CrossValidations: leave-one-out and cross-validation predict from "
            "different rows"
        )
    return named


def _check_same_data(named: dict[str, Result | CrossValidation], check_x: bool) -> None:
    (first, one), *others = named.items()
    for name, other in others:
        who = f"results must be of the same data, but {first!r} and {name!r}"
        if one.data.observed.shape != other.data.observed.shape:
            raise ValueError(
                f"{who} have {one.data.observed.size} and {other.data.observed.size} rows: infer from the same rows"
            )
        if not _same_outputs(one.data, other.data):
            raise ValueError(
                f"{who} differ in y: infer from the same y (densities of transformed y are not comparable either)"
            )
        if check_x and not _same_inputs(one, other):
            raise ValueError(
                f"{who} differ in x: infer from the same rows, or set check_x=False if the rows are the same"
            )
        if isinstance(one, CrossValidation) and isinstance(other, CrossValidation):
            _check_same_folds(who, one.folds, other.folds)


def _same_outputs(one: Data, other: Data) -> bool:
    if one.y.shape != other.y.shape:
        return False
    return np.array_equal(one.outputs, other.outputs, equal_nan=True)


def _same_inputs(one: Result | CrossValidation, other: Result | CrossValidation) -> bool:
    if isinstance(one.columns, TableColumns) and isinstance(other.columns, TableColumns):
        return _same_tables(one, other)
    if one.data.x.shape != other.data.x.shape:
        return False
    clock, other_clock = _clock(one), _clock(other)
    if clock == other_clock or clock is None or other_clock is None:
        return np.array_equal(one.data.x, other.data.x)
    return same_times(one.data.x, clock, other.data.x, other_clock)


def _same_tables(one: Result | CrossValidation, other: Result | CrossValidation) -> bool:
    """Whether terms that both models have are of the same values. Other columns of the tables are not kept."""
    parts = dict(_encoded_parts(one))
    return all(np.array_equal(parts[encoder], x) for encoder, x in _encoded_parts(other) if encoder in parts)


def _encoded_parts(result: Result | CrossValidation) -> Iterator[tuple[Encoder, np.ndarray]]:
    model = result.model if isinstance(result, Result) else result.models[0]
    places = [place for own in model.prior.places for place in own]  # pyright: ignore[reportAttributeAccessIssue]
    encoders = [encoder for own in result.columns.encoders for encoder in own]  # pyright: ignore
    for encoder, place in zip(encoders, places, strict=True):
        yield encoder, result.data.x[:, place]


def _clock(result: Result | CrossValidation) -> Clock | None:
    return result.clock if isinstance(result, CrossValidation) else getattr(result.model.prior, "clock", None)


def _check_same_folds(who: str, one: np.ndarray, other: np.ndarray) -> None:
    """Equal up to the names of the folds."""
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    if not len(pairs) == len(set(one.tolist())) == len(set(other.tolist())):
        raise ValueError(f"{who} have different folds: use the same folds and key")


def _status_in_words(result: Result | CrossValidation) -> str:
    if isinstance(result, Result):
        return result.status.name.lower()
    endings = [status.name.lower() for status in result.statuses]
    counts = {ending: endings.count(ending) for ending in sorted(set(endings))}
    return endings[0] if len(counts) == 1 else ", ".join(f"{count} {ending}" for ending, count in counts.items())


def _with_error(value: float, error: float) -> str:
    return f"{value:.2f}" if np.isnan(error) else f"{value:.2f} ± {error:.2f}"
