"""Summaries of results: status, hyperparameters, and findings."""

import html
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from .._runtime.lazy import is_a
from ..inputs.columns import Columns
from ..inputs.data import Data
from ..kernels import Product, Sum
from ..methods.rule import Method
from ..parameters.names import hyperparameters
from ..parameters.priors import Gamma, LogNormal, Normal, Plausible
from ..results.fit_result import FitResult
from ..results.result import Result
from ..results.wording import SEARCHES, in_words, inference_sentence, inference_status
from ..validation.arguments import flag
from ..validation.frames import make_frame
from ..validation.text import counted, shown
from .findings import Finding, find_all, range_words
from .tables import as_text, library_of_result

if TYPE_CHECKING:
    from rich.console import Group

    from .term_summary import TermSummary


class Summary:
    """A summary of a result on one page; created by `Result.summary`.

    It prints as a table. `warnings` are texts about what deserves a second look, and what to do; `not_checked` lists
    checks that could not be made, and why. `coefficients` are those of a linear model: the mean, standard deviation and
    central 95 % interval of each weight. `effects`, `terms` and `notes` are those of a model of terms. `as_dict()`
    returns everything as plain numbers and text.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> summary = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).summary()
    >>> summary.as_dict()["energy"]["name"], summary.warnings
    ('variational free energy, −ELBO', [])
    >>> [entry["name"] for entry in summary.parameters]
    ['kernel.lengthscale', 'kernel.variance']
    """

    def __init__(
        self,
        facts: dict[str, Any],
        parameters: list[dict[str, Any]],
        warnings: list[Finding],
        not_checked: list[str],
        coefficients: list[dict[str, Any]],
        of_terms: "TermSummary | None",
        library: str = "pandas",
    ):
        self._facts, self._library = facts, library
        self.parameters = parameters
        self.coefficients = coefficients
        self.warnings = warnings
        self.not_checked = not_checked
        self.effects, self.terms, self.notes = ([], [], []) if of_terms is None else of_terms

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers, text, lists and dictionaries, suitable for `json.dumps`."""
        warned = [{**finding._asdict(), "rows": list(finding.rows)} for finding in self.warnings]
        return {
            **self._facts,
            "coefficients": self.coefficients,
            "effects": self.effects,
            "terms": self.terms,
            "notes": self.notes,
            "parameters": self.parameters,
            "warnings": warned,
            "not_checked": self.not_checked,
        }

    def to_frame(self) -> Any:
        """A data frame of the hyperparameters, one row per number: `name`, `value`, `standard_error` and `treatment`.

        It is of the same library as the table of the model, or of pandas if it is not of a table. The entries of a
        vector are numbered, as in `kernel.lengthscale[0]`. Standard errors that are not known are NaN.
        """
        rows = [row for entry in self.parameters for row in _numbers(entry)]
        names = ("name", "value", "standard_error", "treatment")
        return make_frame({name: [row[name] for row in rows] for name in names}, self._library)

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def __rich__(self) -> "Group":
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for heading, words in _lines(self._facts):
            facts.add_row(Text(heading, style="bold"), Text(words))

        def table(headings: tuple[str, ...], rows: list[list[str]]) -> Table:
            made = Table(box=box.SIMPLE_HEAD)
            for number, heading in enumerate(headings):
                made.add_column(heading, justify="right" if number in (1, 2) else "left", no_wrap=number == 0)
            for row in rows:
                made.add_row(*(Text(cell) for cell in row))
            return made

        parts: list[Any] = [Text(self._facts["title"], style="bold"), facts]
        if self.coefficients:
            parts += [table(_OF_COEFFICIENTS, self._coefficient_rows()), Text(self._note(), style="dim")]
        parts += [table(headings, rows) for headings, rows in self._tables_of_terms()]
        parts += [Text(words, style="dim") for words in self._notes_on_terms()]
        parts += [table(_HEADINGS, [_cells(entry) for entry in self.parameters])] if self.parameters else []
        parts += [Text(words) for words in _reasons(self.parameters)]
        for finding in self.warnings:
            parts.append(Text(f"! {finding.text}", style="yellow"))
        if not self.warnings:
            parts.append(Text("No check gave a warning."))
        parts += [Text(f"Not checked: {words}.", style="dim") for words in self.not_checked]
        return Group(*parts)

    def _coefficient_rows(self) -> list[list[str]]:
        rows = [_coefficient_cells(entry) for entry in self.coefficients[:_MOST_COEFFICIENTS]]
        left = len(self.coefficients) - len(rows)
        return [*rows, [f"and {left} more in summary.coefficients", "", "", ""]] if left else rows

    def _tables_of_terms(self) -> Iterator[tuple[tuple[str, ...], list[list[str]]]]:
        """The tables of effects and of terms, for models that have terms."""
        if not (self.effects or self.terms):
            return
        from .term_summary import EFFECTS, TERMS, effect_cells, term_cells

        shown_here = [entry for entry in self.effects if entry["kind"] != "parameter"]
        if shown_here:
            rows = [effect_cells(entry) for entry in shown_here[:_MOST_COEFFICIENTS]]
            left = len(shown_here) - len(rows)
            yield EFFECTS, [*rows, [f"and {left} more in summary.effects", "", "", "", ""]] if left else rows
        if self.terms:
            yield TERMS, [term_cells(entry) for entry in self.terms]

    def _notes_on_terms(self) -> list[str]:
        return [*([_GIVEN_TERMS] if self.effects else []), *self.notes]

    def _note(self) -> str:
        learned = any(entry["treatment"] == "learned" for entry in self.parameters)
        return _GIVEN_LEARNED if learned else _GIVEN

    def _repr_html_(self) -> str:
        def table(rows: list[list[str]], head: str = "td") -> str:
            kinds = [head] + ["td"] * (len(rows) - 1)
            lines = [
                "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) + "</tr>"
                for kind, row in zip(kinds, rows, strict=True)
            ]
            return f"<table>{''.join(lines)}</table>"

        rows = [list(_HEADINGS), *(_cells(entry) for entry in self.parameters)]
        weights = ""
        if self.coefficients:
            weights = table([list(_OF_COEFFICIENTS), *self._coefficient_rows()], "th") + f"<p>{self._note()}</p>"
        for headings, lines in self._tables_of_terms():
            weights += table([list(headings), *lines], "th")
        weights += "".join(f"<p>{html.escape(words)}</p>" for words in self._notes_on_terms())
        warned = "".join(f"<li>{html.escape(words)}</li>" for words in _reasons(self.parameters))
        warned += "".join(f"<li>{html.escape(finding.text)}</li>" for finding in self.warnings)
        missed = "".join(f"<li>Not checked: {html.escape(words)}.</li>" for words in self.not_checked)
        return (
            f"<p><b>{html.escape(self._facts['title'])}</b></p>{table([list(line) for line in _lines(self._facts)])}"
            f"{weights}{table(rows, 'th') if self.parameters else ''}<ul>{warned}{missed}</ul>"
        )


def summarise(result: Result, checks: bool = True, names: Any = None) -> Summary:
    """The summary of a result. `checks=False` skips the checks that take some computation.

    `names` are those of the columns of x, for the coefficients of a linear model; a data frame has them already.
    """
    coefficients = list(_coefficients(result, names))
    warned, not_checked = find_all(result, flag(checks, "checks"))
    of_terms = None
    if result.model.prior.over_table:
        # Models without terms do not need them, whose import takes time.
        from .term_summary import summarise_terms

        of_terms = summarise_terms(result, checks)
    parameters, library = list(_parameters(result)), library_of_result(result)
    return Summary(_facts(result), parameters, warned, not_checked, coefficients, of_terms, library)


# Model, method and status ------------------------------------------------------------------------

_METHODS = {
    "newton": "Newton's method (Laplace)",
    "taylor": "Taylor linearisation",
    "vi": "VI",
    "pl": "posterior linearisation",
    "pl2": "posterior linearisation of second order",
}


def _facts(result: Result) -> dict[str, Any]:
    method, ended = result.method, inference_status(result)
    data = result.data
    search = None
    if isinstance(result, FitResult):
        search = {
            "status": result.status.name.lower(),
            "sentence": SEARCHES.get(result.status, result.status.sentence),
            "iterations": len(result.fit_history),
            "evaluations": int(result.evaluations),
            "seconds": _plain(result.seconds),
            "penalty": _plain(result.penalty),
        }
    what = "Inference" if search is None else "Fit"
    return {
        "title": f"{what} of {_model_words(result)} by {_method_words(result.method)}",
        "fit": search,
        "inference": {
            "status": ended.name.lower(),
            "sentence": inference_sentence(result),
            "steps": int(result.steps),
            "residual": _plain(result.residual),
        },
        "energy": {"name": _energy_words(method), "value": _plain(result.energy)},
        "rows": None if data is None else _count_rows(data),
        "structure": getattr(result.model.prior, "structure", None) if result.model.prior.over_table else None,
    }


def _energy_words(method: Method) -> str:
    return f"energy of {type(method.target).__name__}" if method.energy is None else method.energy.description


def _count_rows(data: Data) -> dict[str, Any]:
    observed = int(np.sum(data.observed))
    whole = observed if data.seen is None else int(np.sum(np.all(data.seen, axis=1)))
    counts = {"observed": observed, "missing": data.observed.size - observed, "partly_observed": observed - whole}
    return counts if data.weights is None else {**counts, "weight": float(np.sum(data.weights))}


def _model_words(result: Result) -> str:
    prior: Any = result.model.prior
    if prior.over_table:
        latents = [str(terms) for terms in prior.latents]
        named = [f"{name} = {words}" for name, words in zip(prior.names, latents, strict=True)]
        return f"{', '.join(named if len(named) > 1 else latents)} with {type(result.model.likelihood).__name__}"
    kernel = getattr(prior, "kernel", None)
    inside = "" if kernel is None else f"({_kernel_words(kernel)})"
    return f"{type(prior).__name__}{inside} with {type(result.model.likelihood).__name__}"


def _kernel_words(kernel: Any) -> str:
    parts = getattr(kernel, "kernels", None) or getattr(kernel, "parts", None)
    if not parts:
        return type(kernel).__name__
    joint = {"Sum": " + ", "Product": " × "}.get(type(kernel).__name__, ", ")
    words = [_kernel_words(part) for part in parts]
    if isinstance(kernel, Product):
        words = [f"({word})" if isinstance(part, Sum) else word for part, word in zip(parts, words, strict=True)]
    return joint.join(words)


def _method_words(method: Method) -> str:
    if method.curvature.moves_all_rows:
        return "first-order VI"
    words = _METHODS.get(method.target.name, type(method.target).__name__)
    if method.target.name == "power_ep":
        words = f"power EP with α = {method.target.power:g}"
    own = {"taylor": "gauss_newton", "pl": "gauss_newton"}.get(method.target.name, "exact")
    if method.curvature.name != own:
        words += f", {type(method.curvature).__name__}"
    return words if method.safeguard is None else f"{words}, {type(method.safeguard).__name__}"


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts as text, one line each."""
    search, inference, rows = facts["fit"], facts["inference"], facts["rows"]
    if search is not None:
        yield "fit", in_words(search["status"])
        done = counted(search["iterations"], "iteration"), counted(search["evaluations"], "evaluation")
        yield "", f"{', '.join(done)}, {search['seconds']:.1f} s"
    residual = "unknown" if inference["residual"] is None else f"{inference['residual']:.1e}"
    # A fit starts its last inference where the previous one ended, so its number of steps is not informative.
    after = f" after {counted(inference['steps'], 'step')}" if search is None else ""
    yield "inference", f"{in_words(inference['status'])}{after}, residual {residual}"
    value = "not finite" if facts["energy"]["value"] is None else f"{facts['energy']['value']:.4f}"
    yield "energy", f"{value} ({facts['energy']['name']})"
    if search is not None and abs(search["penalty"] or 0.0) >= 5e-5:
        yield "", f"and {search['penalty']:.4f} from priors on hyperparameters (minus their log density)"
    if rows is not None:
        partly = f", {rows['partly_observed']} in part" if rows["partly_observed"] else ""
        weight = f", sum of weights {rows['weight']:.6g}" if "weight" in rows else ""
        yield "rows", f"{rows['observed']} observed{partly}, {rows['missing']} missing{weight}"
    if facts["structure"] is not None:
        yield "terms", facts["structure"]


# Coefficients -----------------------------------------------------------------------------------------

_OF_COEFFICIENTS = ("coefficient", "mean", "std. dev.", "95 % interval")
_MOST_COEFFICIENTS = 50
_GIVEN = "Coefficients are conditional on the hyperparameters."
_GIVEN_LEARNED = (
    "Coefficients are conditional on the learned hyperparameters: standard deviations and intervals do not include "
    "their uncertainty, and are too small where the data determine them poorly. "
    "result.joint_covariance() includes it."
)
_GIVEN_TERMS = (
    "Effects are conditional on the hyperparameters. result.effects(including_learned=True) includes the uncertainty "
    "of learned ones."
)
_LEVEL = 0.95


def _coefficients(result: Result, names: Any) -> Iterator[dict[str, Any]]:
    """The weights of a linear model; empty for other priors."""
    if not is_a(result.model.prior, "priors.linear", "LinearModel"):
        if names is not None:
            raise ValueError(
                f"names are for the coefficients of a LinearModel, but the prior is "
                f"{type(result.model.prior).__name__}: leave them out"
            )
        return
    weights, latents = result.posterior.weights, result.model.prior.num_latents  # pyright: ignore[reportAttributeAccessIssue]
    means = np.asarray(weights.mean).reshape(latents, -1)
    deviations = np.sqrt(np.diagonal(np.asarray(weights.covariance))).reshape(means.shape)
    if names is None and isinstance(result.columns, Columns):
        names = result.columns.own_names
    columns = _column_names(names, means.shape[1])
    width = float(ndtri(0.5 + 0.5 * _LEVEL))
    for latent, column in np.ndindex(means.shape):
        mean, deviation = means[latent, column], deviations[latent, column]
        yield {
            "name": columns[column] if latents == 1 else f"{columns[column]}, latent {latent}",
            "mean": _plain(mean),
            "standard_deviation": _plain(deviation),
            "interval": [_plain(mean - width * deviation), _plain(mean + width * deviation)],
        }


def _column_names(names: Any, columns: int) -> list[str]:
    if names is None:
        return [f"x[{column}]" for column in range(columns)]
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"names must be a list with one name per column of x, got {names!r}: write names=[...]")
    listed = [str(name) for name in names]
    if len(listed) != columns:
        raise ValueError(f"names must have one name per column of x, {columns}, got {len(listed)}: {listed}")
    return listed


def _coefficient_cells(entry: dict[str, Any]) -> list[str]:
    low, high = entry["interval"]
    return [entry["name"], shown(entry["mean"]), shown(entry["standard_deviation"]), f"{shown(low)} to {shown(high)}"]


# Hyperparameters --------------------------------------------------------------------------------------

_HEADINGS = ("hyperparameter", "value", "std. error", "unit", "how")


def _parameters(result: Result) -> Iterator[dict[str, Any]]:
    """Every hyperparameter, and how it was treated."""
    parameters = hyperparameters(result.model)
    names = {parameter.name for parameter in parameters}
    for parameter in parameters:
        entry: dict[str, Any] = {
            "name": parameter.name,
            "value": _plain(parameter.value),
            "standard_error": None,
            "determined": None,
            "unit": _unit_words(parameter.unit, result),
            "treatment": "given",
            "tied_to": None,
            "prior": None,
            "reason": None,
        }
        if isinstance(result, FitResult):
            whose = result.tied.get(parameter.name, parameter.name)
            entry["treatment"] = "learned" if whose in result.learned else "fixed"
            partner = getattr(result, "redundant", {}).get(parameter.name)
            if partner is not None:
                how = "product with" if partner in names else "difference from"
                entry["reason"] = f"only its {how} {partner} is determined"
            if whose != parameter.name:
                entry["treatment"], entry["tied_to"] = "tied", whose
            error = result.standard_errors.get(whose)
            if error is not None:
                entry["standard_error"], entry["determined"] = _plain(error), bool(np.all(np.isfinite(error)))
            if whose in result.priors:
                entry["prior"] = _prior_words(result.priors[whose])
        yield entry


def _numbers(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The entry of a hyperparameter for every number that it consists of."""
    values = np.asarray(entry["value"], dtype=float)
    error = entry["standard_error"]
    errors = np.broadcast_to(np.nan if error is None else np.asarray(error, dtype=float), values.shape)
    for place in np.ndindex(values.shape):
        numbers = f"[{', '.join(map(str, place))}]" if place else ""
        own = {"value": float(values[place]), "standard_error": float(errors[place])}
        yield {**entry, **own, "name": f"{entry['name']}{numbers}"}


def _reasons(entries: list[dict[str, Any]]) -> list[str]:
    """The reasons why hyperparameters that were not fixed were not learned."""
    return [f"{entry['name']} was not learned: {entry['reason']}." for entry in entries if entry["reason"]]


def _plain(value: Any) -> Any:
    """A number, or nested lists, with None for values that are not finite."""
    if np.ndim(value) > 0:
        return [_plain(entry) for entry in np.asarray(value)]
    number = float(value)
    return number if np.isfinite(number) else None


_TIMES = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds", "W": "weeks"}


def _unit_words(unit: str | None, result: Result) -> str | None:
    """The unit of a hyperparameter: of x (a name, for time stamps), of y, or of the latents f."""
    if unit is None:
        return None
    clock = getattr(result.model.prior, "clock", None)
    words = unit.replace("2", "²").replace("3", "³")
    if clock is None:
        return words
    name, count = np.datetime_data(clock.unit.dtype)[0], int(clock.unit.astype(np.int64))
    time = _TIMES.get(name, name) if count == 1 else f"{count} {_TIMES.get(name, name)}"
    return words.replace("x", time if unit == "x" else f"({time})")


_WEAK = "weak prior outside"


def _prior_words(prior: Any) -> str:
    if isinstance(prior, Plausible):
        return f"{_WEAK} {range_words(prior)}"
    names = {
        LogNormal: ("log-normal", "median", "spread"),
        Normal: ("normal", "mean", "deviation"),
        Gamma: ("gamma", "shape", "rate"),
    }
    if type(prior) in names:
        name, *fields = names[type(prior)]
        return f"{name} prior, " + ", ".join(f"{field} {shown(getattr(prior, field))}" for field in fields)
    return f"custom prior, {getattr(prior, '__name__', type(prior).__name__)}"


def _cells(entry: dict[str, Any]) -> list[str]:
    error = "-"
    if entry["determined"] is not None:
        error = shown(entry["standard_error"], "not determined")
    how = f"tied to {entry['tied_to']}" if entry["treatment"] == "tied" else entry["treatment"]
    if entry["prior"] and entry["treatment"] != "tied":
        # The ranges of weak priors are in `as_dict()`: two more numbers per line would make the table too wide.
        how += ", weak prior" if entry["prior"].startswith(_WEAK) else f", {entry['prior']}"
    return [entry["name"], shown(entry["value"]), error, entry["unit"] or "", how]
