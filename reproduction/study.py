"""A whole case study: every method on every split."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import beyond
from .cases import CASES, Case
from .catalogue import ENTRIES, Entry
from .jobs import Job, perform_all
from .kept import Shelf
from .runner import Run, Scores


def published_curves(case: str) -> dict[str, Any]:
    """The curves of the paper's figures, by method."""
    text = resources.files(__name__.rpartition(".")[0]).joinpath("published_curves.json").read_text(encoding="utf-8")
    return json.loads(text)[case]


@dataclass(frozen=True)
class Agreement:
    """The largest relative differences from a published curve, over the points that are to be compared.

    Relative to the published value, or to a tenth of the curve's median size where that is larger.
    """

    loss: float
    nlpd: float
    rmse: float | None
    """None where the study has no truth to compare with."""
    until: int
    """The last iteration that was compared."""


@dataclass(frozen=True)
class Outcome:
    """One method on all splits that were asked for."""

    entry: Entry
    runs: tuple[Run, ...]

    @property
    def iteration(self) -> np.ndarray:
        """The recorded iterations."""
        return self.runs[0].iteration

    @property
    def mean(self) -> Scores:
        """Scores averaged over splits."""
        return Scores(*(np.mean(columns, axis=0) for columns in zip(*(run.scores for run in self.runs), strict=True)))


@dataclass(frozen=True)
class Study:
    """What was run, and what came of it."""

    case: Case
    chosen: tuple[int, ...]
    """Which splits, counting from 0."""
    outcomes: tuple[Outcome, ...]
    defaults: dict[str, tuple[beyond.Ending, ...]] = field(default_factory=dict)

    def agreement(self, outcome: Outcome) -> Agreement | None:
        """How far the mean curves are from the published ones; None where there is nothing to compare."""
        entry = outcome.entry
        curve = published_curves(self.case.name).get(entry.curve or entry.name)
        last = entry.last_compared(self.case)
        if curve is None or last == 0 or len(self.chosen) != len(self.case.splits):
            return None
        ours = {int(k): at for at, k in enumerate(outcome.iteration)}
        shared = [(ours[k], at) for at, k in enumerate(curve["iteration"]) if k in ours and k <= last]
        mine, theirs = (np.array(column) for column in zip(*shared, strict=True))

        def largest(values, name):
            published = np.array(curve[name])
            # Losses and NLPDs may pass through zero.
            size = np.maximum(np.abs(published), 0.1 * np.median(np.abs(published)))
            return float(np.max(np.abs(values[mine] - published[theirs]) / size[theirs]))

        mean = outcome.mean
        return Agreement(
            largest(mean.loss, "training_loss"),
            largest(mean.nlpd, "test_nlpd"),
            largest(mean.rmse, "truth_rmse") if "truth_rmse" in curve else None,
            curve["iteration"][theirs[-1]],
        )


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def choose_entries(case: str, names: Sequence[str] | None) -> tuple[Entry, ...]:
    """The methods of that name (spaces, dashes and capitals do not matter), or all.

    >>> [entry.name for entry in choose_entries("motorcycle", ["heuristic-vi", "PL"])]
    ['heuristic VI', 'PL']
    """
    here = [entry for entry in ENTRIES if case in entry.only]
    if not names:
        return tuple(here)
    by_name = {_plain(entry.name): entry for entry in here}
    unknown = [name for name in names if _plain(name) not in by_name]
    if unknown:
        known = ", ".join(entry.name for entry in here)
        raise ValueError(f"unknown method {unknown[0]!r} for {case}: choose from {known}")
    wanted = {_plain(name) for name in names}
    return tuple(entry for entry in here if _plain(entry.name) in wanted)


def choose_splits(case: Case, folds: Sequence[int] | None) -> tuple[int, ...]:
    """Splits by their numbers from 1, or all, counting from 0."""
    count = len(case.splits)
    wrong = [fold for fold in folds or () if not 1 <= fold <= count]
    if wrong:
        raise ValueError(f"folds must lie between 1 and {count}, got {wrong[0]}: leave them out for all")
    return tuple(sorted({fold - 1 for fold in folds})) if folds else tuple(range(count))


def conduct(
    name: str,
    methods: Sequence[str] | None = None,
    folds: Sequence[int] | None = None,
    iterations: int | None = None,
    with_defaults: bool = True,
    processes: int = 1,
    console: Console | None = None,
    keep: str | Path | None = None,
    resume: bool = False,
) -> Study:
    """Run a case study: "motorcycle", "product" or "gprn".

    With several `processes`, the program that calls this must be safe to import (`if __name__ == "__main__":`). In the
    folder `keep` every method has its own file as soon as it is done; with `resume`, what the same case study left
    there when it was interrupted is not run again.
    """
    if name not in CASES:
        raise ValueError(f"unknown case study {name!r}: choose from {', '.join(CASES)}")
    case = CASES[name]()
    entries, chosen = choose_entries(name, methods), choose_splits(case, folds)
    count = case.iterations if iterations is None else iterations
    if count < 1:
        raise ValueError(f"iterations must be at least 1, got {count}: give a whole number, such as 100")
    if resume and keep is None:
        raise ValueError("resume=True needs the folder in which an earlier run has kept its methods: give keep")
    defaults = beyond.defaults_for(name) if with_defaults else ()
    todo = [Job(name, entry.name, False, chosen, count) for entry in entries]
    todo += [Job(name, default.name, True, chosen, count) for default in defaults]
    shelf = None if keep is None else Shelf(Path(keep))
    if shelf is not None:
        # Once it is known what to run, and before hours of it would be lost for want of a folder.
        shelf.folder.mkdir(parents=True, exist_ok=True)
    known = {job: shelf.get(job) for job in todo} if resume and shelf is not None else {}
    known = {job: kept for job, kept in known.items() if kept is not None}
    left = [job for job in todo if job not in known]
    with _Bars(case, todo, console) as bars:
        for job in known:
            bars.report_progress(job, job.size)
        known |= zip(
            left,
            perform_all(left, processes, bars.report_progress, _ignore if shelf is None else shelf.put),
            strict=True,
        )
    found = [known[job] for job in todo]
    outcomes = tuple(Outcome(entry, runs) for entry, runs in zip(entries, found, strict=False))
    endings = found[len(entries) :]
    named = {default.name: ending for default, ending in zip(defaults, endings, strict=True)}
    return Study(case, chosen, outcomes, named)


def _ignore(job: Job, found: tuple[Any, ...]) -> None:
    pass


class _Bars:
    """One bar for all methods, and one for each that is running."""

    def __init__(self, case: Case, jobs: Sequence[Job], console: Console | None):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console)
        self._all = self._bars.add_task(f"[bold]{case.name}[/bold]: methods", total=len(jobs))
        self._running: dict[Job, Any] = {}
        self._finished: set[Job] = set()

    def __enter__(self) -> "_Bars":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def report_progress(self, job: Job, done: int) -> None:
        if job in self._finished:
            return
        if job not in self._running:
            self._running[job] = self._bars.add_task(f"  {job.name}", total=job.size)
        self._bars.update(self._running[job], completed=done)
        if done >= job.size:
            self._bars.remove_task(self._running.pop(job))
            self._finished.add(job)
            self._bars.advance(self._all)
