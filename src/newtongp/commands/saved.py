"""`newtongp predict`, `compare`, `info` and `show`: commands on saved results."""

import argparse
from pathlib import Path
from typing import Any

from .files import (
    STANDARD_OUTPUT,
    CommandError,
    check_columns,
    check_level,
    holds_forecaster,
    load_result,
    read_table,
    write_table,
)
from .fit import with_columns
from .output import Output


def predict(given: argparse.Namespace, output: Output) -> int:
    """Predictions for the rows of a table, written to a file or printed."""
    check_level(given.level)
    if holds_forecaster(given.model):
        return _forecast(given, output)
    result, table = load_result(given.model), read_table(given.table)
    prediction = result.predict(table, without=given.without, new_levels=given.new_levels)
    frame = prediction.to_frame(given.level)
    if given.quantiles:
        values = prediction.quantile(given.quantiles)
        for level, row in zip(given.quantiles, values, strict=True):
            frame[f"quantile_{level:g}"] = row
    write_table(with_columns(table, frame), given.out)
    if given.out != STANDARD_OUTPUT:
        output.note(f"Predictions of {len(table)} row(s): {given.out}")
    return 0


def _forecast(given: argparse.Namespace, output: Output) -> int:
    """Forecasts at the times of a table, by a saved forecaster."""
    from ..forecasting import Forecaster

    wrong = [name for name in ("quantiles", "without") if getattr(given, name)]
    if wrong:
        raise CommandError(f"--{wrong[0]} is not for forecasts: leave it out, or use --level")
    table = read_table(given.table)
    forecaster = Forecaster.load(given.model)
    needed = [name for name in (forecaster.columns[0], forecaster.columns[2]) if name]
    check_columns(table, needed, "a forecast needs", given.table)
    ahead = forecaster.forecast(table, given.level)
    write_table(ahead, given.out)
    if given.out != STANDARD_OUTPUT:
        output.note(f"Forecasts of {len(ahead)} row(s): {given.out}")
    return 0


def compare(given: argparse.Namespace, output: Output) -> int:
    """Rank saved results of the same rows by their leave-one-out predictions."""
    from ..diagnostics import compare

    names = _distinct([Path(path) for path in given.models])
    comparison = compare(
        {name: load_result(path) for name, path in zip(names, given.models, strict=True)}, check_x=not given.any_columns
    )
    output.result("models", list(comparison.entries), comparison)
    return 0


def _distinct(files: list[Path]) -> list[str]:
    """The names of files without endings, or with folders where these are equal."""
    if len(files) < 2:
        raise CommandError(f"compare needs at least two models, got {len(files)}")
    if len({file.resolve() for file in files}) < len(files):
        raise CommandError("compare needs different files, and one of them is given twice")
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [str(file) for file in files]


def info(given: argparse.Namespace, output: Output) -> int:
    """What a saved result is: its model, data and status."""
    result = load_result(given.model)
    facts = _facts(given.model, result)
    output.result("result", facts, "\n".join(f"{name:<12} {value}" for name, value in facts.items()))
    return 0


def _facts(path: str, result: Any) -> dict[str, Any]:
    from ..parameters.names import hyperparameters

    model, data, columns = result.model, result.data, result.columns
    facts = {
        "file": f"{path}, {Path(path).stat().st_size / 1024:.0f} kB",
        "model": result.summary(checks=False).as_dict()["title"],
        "prior": type(model.prior).__name__,
        "likelihood": type(model.likelihood).__name__,
        "status": result.status.name.lower(),
        "energy": f"{result.energy:.6g}",
        "rows": "not kept" if data is None else f"{data.x.shape[0]}, of which {int(data.observed.sum())} with y",
    }
    sources = getattr(columns, "sources", None) or getattr(columns, "names", None)
    if sources:
        facts["columns"] = ", ".join(map(str, sources))
    if getattr(columns, "output", None):
        facts["y"] = columns.output
    facts["parameters"] = ", ".join(each.name for each in hyperparameters(model)) or "none"
    return facts


def show(given: argparse.Namespace, output: Output) -> int:
    """The summary of a saved result."""
    summary = load_result(given.model).summary()
    output.result("summary", summary.as_dict(), summary)
    return 0
