"""The numbers of a case study: a summary table on the screen, and everything as CSV and JSON."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from newtongp.results.status import Status

from .study import Outcome, Study

COLUMNS = (
    "method",
    "energy",
    "NLPD",
    "RMSE",
    "steps",
    "time, s",
    "status",
    "loss vs paper",
    "NLPD vs paper",
    "RMSE vs paper",
)


def _statuses(statuses: Sequence[Status]) -> str:
    counted = Counter(status.name.lower() for status in statuses)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count} {name}" for name, count in counted.most_common())


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else "–"


def _nlpd(outcome: Outcome) -> float:
    return float(outcome.mean.sound_nlpd[-1])


def rows(study: Study) -> list[dict[str, Any]]:
    """One row a method, with numbers as numbers."""
    found = []
    for outcome in study.outcomes:
        agreement, mean = study.agreement(outcome), outcome.mean
        found.append(
            {
                "method": outcome.entry.name,
                "family": outcome.entry.family,
                "energy": float(mean.loss[-1]),
                "nlpd": _nlpd(outcome),
                "published_nlpd": float(mean.nlpd[-1]),
                "rmse": float(mean.rmse[-1]),
                "steps": [run.steps for run in outcome.runs],
                "seconds": sum(run.seconds for run in outcome.runs),
                "status": [run.status.name.lower() for run in outcome.runs],
                "residual": [run.residual for run in outcome.runs],
                "compared_until": None if agreement is None else agreement.until,
                "loss_difference": None if agreement is None else agreement.loss,
                "nlpd_difference": None if agreement is None else agreement.nlpd,
                "rmse_difference": None if agreement is None else agreement.rmse,
            }
        )
    for name, endings in study.defaults.items():
        found.append(
            {
                "method": name,
                "family": "beyond the paper",
                "energy": float(np.mean([ending.energy for ending in endings])),
                "nlpd": float(np.mean([ending.nlpd for ending in endings])),
                "published_nlpd": None,
                "rmse": float(np.mean([ending.rmse for ending in endings])),
                "steps": [ending.steps for ending in endings],
                "seconds": sum(ending.seconds for ending in endings),
                "status": [ending.status.name.lower() for ending in endings],
                "residual": [ending.residual for ending in endings],
                "compared_until": None,
                "loss_difference": None,
                "nlpd_difference": None,
                "rmse_difference": None,
            }
        )
    return found


def table(study: Study) -> Table:
    """The summary: means over splits, after the last recorded iteration."""
    made = Table(title=study.case.title)
    truth = study.case.truth_is is not None
    compared = any(study.agreement(outcome) is not None for outcome in study.outcomes)
    shown = [name for name in COLUMNS if (truth or "RMSE" not in name) and (compared or not name.endswith("vs paper"))]
    for name in shown:
        made.add_column(name, justify="left" if name in ("method", "status") else "right")
    family = None
    for row in rows(study):
        if row["family"] != family and family is not None:
            made.add_section()
        family = row["family"]
        cells = _cells(row)
        made.add_row(*(cells[name] for name in shown))
    made.caption = _caption(study, compared)
    return made


def _cells(row: dict[str, Any]) -> dict[str, str]:
    until = row["compared_until"]

    def difference(value):
        return "–" if value is None else f"{value:.0e}"

    return {
        "method": row["method"],
        "energy": _number(row["energy"], 5),
        "NLPD": _number(row["nlpd"]),
        "RMSE": _number(row["rmse"]),
        "steps": _range(row["steps"]),
        "time, s": f"{row['seconds']:.1f}",
        "status": _statuses([Status[name.upper()] for name in row["status"]]),
        "loss vs paper": difference(row["loss_difference"]) + (f" (k ≤ {until})" if until else ""),
        "NLPD vs paper": difference(row["nlpd_difference"]),
        "RMSE vs paper": difference(row["rmse_difference"]),
    }


def _caption(study: Study, compared: bool) -> str:
    words = [
        f"Means over {len(study.chosen)} of {len(study.case.splits)} splits, after the last recorded iteration. Time "
        "is that of all splits, without compilation (beyond the paper: with it)."
    ]
    if compared:
        words.append("vs paper: largest relative difference from the published curve, up to iteration k.")
    if study.case.density_floor > 0.0:
        words.append("NLPD is over the removed outputs, with the weights integrated out; curves.csv has both forms.")
    return " ".join(words)


# Files ----------------------------------------------------------------------------------------------


def write(study: Study, folder: Path) -> list[Path]:
    """The summary and all curves, as CSV and JSON."""
    name = study.case.name
    paths = [folder / f"{name}_{what}" for what in ("summary.csv", "curves.csv", "results.json")]
    summary = rows(study)
    with paths[0].open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(summary[0]))
        writer.writeheader()
        for row in summary:
            writer.writerow({key: _flat(value) for key, value in row.items()})
    with paths[1].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "split", "iteration", "loss", "nlpd", "sound_nlpd", "rmse"])
        for outcome in study.outcomes:
            for split, run in zip(study.chosen, outcome.runs, strict=True):
                for at, iteration in enumerate(run.iteration):
                    values = (repr(float(column[at])) for column in run.scores)
                    writer.writerow([outcome.entry.name, study.case.splits[split].name, int(iteration), *values])
    paths[2].write_text(json.dumps(_everything(study, summary), indent=1, allow_nan=False), encoding="utf-8")
    return paths


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _everything(study: Study, summary: list[dict[str, Any]]) -> dict[str, Any]:
    case = study.case
    return _jsonable(
        {
            "case": case.name,
            "splits": [case.splits[k].name for k in study.chosen],
            "step_size": case.step_size,
            "power": case.power,
            "damping": case.damping,
            "cubature": repr(case.cubature),
            "summary": summary,
            "curves": {
                outcome.entry.name: {
                    "iteration": outcome.iteration,
                    "splits": [run.scores._asdict() for run in outcome.runs],
                    "mean": outcome.mean._asdict(),
                }
                for outcome in study.outcomes
            },
            "beyond": {
                name: [{**ending._asdict(), "status": ending.status.name.lower()} for ending in endings]
                for name, endings in study.defaults.items()
            },
        }
    )


def _jsonable(value: Any) -> Any:
    """Arrays as lists, and None for what is not finite."""
    if isinstance(value, dict):
        return {key: _jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_jsonable(entry) for entry in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
