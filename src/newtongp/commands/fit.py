"""`newtongp fit`: from a table in a file to a fitted model, a report and predictions."""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .files import CommandError, check_columns, check_folder, check_level, read_table, write_table
from .forecast import NOT_CONVERGED, check_options, forecast
from .outcomes import Outcome, read_outcome
from .output import Output

_ROW_COLUMNS = ("exposure", "trials", "weights")
_EFFECTS = ("wide", "flat", "maximised")


def fit(given: argparse.Namespace, output: Output) -> int:
    """Fit a model of a table; returns the exit code."""
    check_options(given)
    check_level(given.level)
    check_folder(given.out)
    table = read_table(given.table)
    formula = given.formula
    if formula is not None and given.y is None:
        given.y = formula.partition("~")[0].strip().strip("`")
    if not given.y:
        raise CommandError("--y is missing: name the column to be explained, as in --y sales")
    check_columns(table, [given.y], "--y", given.table)
    for option in ("covariates", "groups", "smooth"):
        check_columns(table, getattr(given, option), f"--{option}", given.table)
    if given.time is not None:
        given.method = _method(given.method)
        return forecast(given, table, output)
    for option in _ROW_COLUMNS:
        check_columns(table, [name for name in (getattr(given, option),) if name], f"--{option}", given.table)
    outcome = read_outcome(table[given.y], given.y, bool(given.trials))
    table = table.assign(**{given.y: outcome.values})
    likelihood = _likelihood(given, outcome, output)
    if formula is None:
        formula = _formula(given, table, output)
    result = _fitted(given, formula, likelihood, table, output)
    _report(given, result, table, output)
    return 0 if result.status.ok and result.settled else NOT_CONVERGED


def _likelihood(given: argparse.Namespace, outcome: Outcome, output: Output) -> Any:
    """The likelihood that was asked for or chosen, with its columns."""
    from ..likelihoods import BetaBinomial, Binomial
    from ..model import likelihood_named

    name = given.likelihood
    if name is None:
        name = outcome.likelihood
        output.note(f"Likelihood: {name}, because {outcome.reason} (--likelihood chooses another).")
    output.facts["likelihood"] = name
    plain = name.replace("_", "").replace("-", "").lower()
    if plain in ("binomial", "betabinomial"):
        if not given.trials:
            raise CommandError(f"--likelihood {name} needs --trials, the column with the number of trials")
        return (Binomial if plain == "binomial" else BetaBinomial)(trials=given.trials)
    likelihood = likelihood_named(name)
    if given.trials:
        raise CommandError(f"--trials is for binomial and beta_binomial, not for {name}")
    if given.exposure:
        if "exposure" not in likelihood.row_parameters:
            raise CommandError(f"--exposure is for poisson and negative_binomial, not for {name}")
        kind: Any = type(likelihood)
        return kind(exposure=given.exposure)
    return likelihood


def _formula(given: argparse.Namespace, table: Any, output: Output) -> str:
    """The formula of the terms that were asked for: all other columns as covariates if none were."""
    chosen = [*given.covariates, *given.groups, *given.smooth]
    covariates = given.covariates
    if not chosen:
        used = {given.y, *(getattr(given, option) for option in _ROW_COLUMNS)}
        covariates = [str(name) for name in table.columns if name not in used and table[name].dtype.kind != "M"]
        if not covariates:
            raise CommandError(f"{given.table} has no column besides {given.y}: there is nothing to explain it by")
    parts = [_quoted(name) for name in covariates]
    parts += [f"smooth({_quoted(name)})" for name in given.smooth]
    parts += [f"(1 | {_quoted(name)})" for name in given.groups]
    formula = f"{_quoted(given.y)} ~ {' + '.join(parts)}"
    if not chosen:
        output.note(f"Model: {formula} (--covariates, --smooth, --groups or --formula choose another).")
    return formula


def _quoted(name: str) -> str:
    return name if name.isidentifier() else f"`{name}`"


def _fitted(given: argparse.Namespace, formula: str, likelihood: Any, table: Any, output: Output) -> Any:
    from ..fitting.fit import fit

    output.facts["formula"] = formula
    options: dict[str, Any] = {"weights": given.weights} if given.weights else {}
    if given.effects is not None:
        options["effects"] = _effects(given.effects)
        output.facts["effects"] = options["effects"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fit(
            formula, table, likelihood, _method(given.method), progress=output.terminal, throw=False, **options
        )
    for sentence in dict.fromkeys(str(warning.message) for warning in caught):
        output.note(f"Warning: {sentence}")
    return result


def _effects(text: str) -> Any:
    """How fixed effects are treated: by name, or by the standard deviation of their prior."""
    if text in _EFFECTS:
        return text
    try:
        deviation = float(text)
    except ValueError:
        deviation = 0.0
    if not 0.0 < deviation < np.inf:
        raise CommandError(
            f"--effects {text}: there is {', '.join(_EFFECTS)}, or a standard deviation above 0, such as 2.5"
        )
    return deviation


def _method(name: str | None) -> Any:
    from ..methods import presets

    known = {"vi": presets.VI, "newton": presets.Newton, "laplace": presets.Newton, "ep": presets.PowerEP}
    if name is None:
        return None
    if name.lower() not in known:
        raise CommandError(f"--method {name}: there is {', '.join(known)}")
    return known[name.lower()]()


def _report(given: argparse.Namespace, result: Any, table: Any, output: Output) -> None:
    """Print the summary; write the report, the model and the predictions of the table's own rows."""
    from ..report import section_of, write_report

    summary = result.summary()
    output.result("summary", summary.as_dict(), summary)
    if given.out is None:
        return
    folder = Path(given.out)
    title = given.title or f"{given.y} in {Path(given.table).name}"
    with output.working("Writing the report"):
        section = section_of(result, title)._replace(summary=summary, files="model")
        page = write_report(folder, [section], title)
        predictions = folder / "predictions.csv"
        write_table(with_columns(table, result.predict(table).to_frame(given.level)), str(predictions))
    output.files({"report": page, "model": folder / "model.ngp", "predictions": predictions})


def with_columns(table: Any, predicted: Any) -> Any:
    """The columns of a table and those predicted for its rows, which take the place of columns with their names."""
    own = table.drop(columns=[name for name in predicted.columns if name in table.columns])
    return own.assign(**{name: np.asarray(predicted[name]) for name in predicted.columns})
