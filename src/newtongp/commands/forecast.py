"""`newtongp fit --time`: from a table with a time column to forecasts, their components, and a report."""

import argparse
import contextlib
import warnings
from pathlib import Path
from typing import Any

from .files import CommandError, check_columns, read_table, write_table
from .output import Output

_NOT_WITH_TIME = ("formula", "groups", "smooth", "exposure", "trials", "weights", "effects")
_ONLY_WITH_TIME = ("season", "trend", "holidays", "series", "forecast")
NOT_CONVERGED = 3
"""The exit code of a fit that has not converged; everything is written nevertheless."""


def check_options(given: argparse.Namespace) -> None:
    """Raise CommandError if options of series are given without a time column, or others with one."""
    if given.time is None:
        wrong = [name for name in _ONLY_WITH_TIME if getattr(given, name)]
        if wrong:
            raise CommandError(f"--{wrong[0]} is for series: name the column of times, as in --time date")
        return
    wrong = [name for name in _NOT_WITH_TIME if getattr(given, name)]
    if wrong:
        raise CommandError(
            f"--{wrong[0]} is not for series: leave it out, or leave --time out for a model of a table; --covariates "
            "are regressors of a series"
        )


def forecast(given: argparse.Namespace, table: Any, output: Output) -> int:
    """Fit one series, or one per label of a column, and forecast; returns the exit code."""
    from ..forecasting import Forecaster

    for option in ("time", "series"):
        check_columns(table, [name for name in (getattr(given, option),) if name], f"--{option}", given.table)
    where = _horizon(given)
    settings: dict[str, Any] = {"regressors": given.covariates, "holidays": given.holidays, "method": given.method}
    if given.trend:
        settings["trend"] = None if given.trend == "none" else given.trend
    if given.season:
        settings["season"] = None if given.season == ["none"] else [_period(text) for text in given.season]
    if given.likelihood:
        settings["likelihood"] = given.likelihood
    several = given.series is not None
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as shown:
        warnings.simplefilter("always")
        if not several:  # several series have a bar of their own
            shown.enter_context(output.working(f"Fitting {given.y} ({len(table)} rows)"))
        forecaster = Forecaster(**settings).fit(
            table, given.time, given.y, given.series, progress=output.terminal and several
        )
        ahead = None if where is None else forecaster.forecast(where, given.level)
    for sentence in dict.fromkeys(str(warning.message) for warning in caught):
        output.note(f"Warning: {sentence}")
    output.note(f"{forecaster}.")
    output.facts["model"] = repr(forecaster)
    if given.series is None:
        summary = forecaster.result.summary()
        output.result("summary", summary.as_dict(), summary)
    if ahead is not None:
        rows = ahead.assign(**{given.time: ahead[given.time].astype(str)}).to_dict("records")
        output.result("forecast", rows, None if given.out else ahead.to_string(index=False))
    if given.out:
        with output.working("Writing the report"):
            written = _write(given, forecaster, where, ahead, output)
        output.files(written)
    return 0 if all(one.result.status.ok for one in forecaster.fits.values()) else NOT_CONVERGED


def _period(text: str) -> Any:
    """A period such as 1w, or a number for a numeric time column."""
    try:
        return float(text)
    except ValueError:
        return text


def _horizon(given: argparse.Namespace) -> Any:
    """How many steps to forecast, or the table of future rows; None if no forecast is asked for."""
    if given.forecast is None:
        return None
    try:
        steps = int(given.forecast)
    except ValueError:
        future = read_table(given.forecast)
        check_columns(future, [given.time, *given.covariates], "--forecast needs", given.forecast)
        return future
    if steps < 1:
        raise CommandError(f"--forecast {steps}: give the number of steps to forecast, at least 1")
    return steps


def _write(given: argparse.Namespace, forecaster: Any, where: Any, ahead: Any, output: Output) -> dict[str, Path]:
    """Write the forecasts, the components, and the report (of a single series)."""
    folder = Path(given.out)
    written = {}
    if ahead is not None:
        written["forecast"] = folder / "forecast.csv"
        write_table(ahead, str(written["forecast"]))
    written["components"] = folder / "components.csv"
    write_table(forecaster.components(level=given.level), str(written["components"]))
    try:
        forecaster.save(folder / "forecaster.ngp")
        written["forecaster"] = folder / "forecaster.ngp"
    except ValueError as error:  # hundreds of series are more than a file may describe
        output.note(f"Warning: {error}")
    if given.series is None:
        written["report"] = _report(given, forecaster, where, ahead, folder)
    return written


_SHOWN = 60
"""How many rows of forecasts the report shows; the file has all."""


def _report(given: argparse.Namespace, forecaster: Any, where: Any, ahead: Any, folder: Path) -> Path:
    from ..report import Picture, Section, Table, calibration_picture, write_report

    title = given.title or f"{given.y} in {Path(given.table).name}"
    percent = f"{100.0 * given.level:g} %"
    pictures = [
        Picture(
            forecaster.plot(where, given.level), f"The data, the fitted mean, and forecasts with {percent} intervals."
        ),
        Picture(
            forecaster.plot_components(given.level),
            f"The components, on the scale of the latent, with {percent} intervals.",
        ),
        calibration_picture(forecaster.result),
    ]
    tables = []
    if ahead is not None:
        rows = ahead.head(_SHOWN).astype({given.time: str}).to_numpy(object).tolist()
        tables.append(Table(f"Forecasts, with {percent} intervals", list(ahead.columns), rows, "forecast.csv"))
    section = Section(title, forecaster.result, [f"{forecaster}."], pictures, files="model", tables=tables)
    return write_report(folder, [section], title)
