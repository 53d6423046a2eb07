"""The three case studies of the paper (`sec:experiments`), reproduced: `make reproduce CASE=motorcycle`.

`cases` has their data and settings, `catalogue` their methods, `published` what the published code did beside or in
place of the paper's equations, `runner` the loop, `beyond` the library's own defaults on the same data, `jobs` who runs
what, `kept` what is kept in case of an interruption.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from .study import Study, conduct

__all__ = ["Study", "conduct", "reproduce"]


_WIDE = 170
"""Characters that the summary needs to keep each method on one line."""


def _wide_console() -> Console:
    """The terminal; or, into a file or a pipe, lines as long as they need to be."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def reproduce(
    name: str,
    methods: Sequence[str] | None = None,
    folds: Sequence[int] | None = None,
    iterations: int | None = None,
    out: str | Path = "reproduced",
    with_defaults: bool = True,
    processes: int = 1,
    console: Console | None = None,
    resume: bool = False,
) -> Study:
    """Run a case study, print its summary, and write numbers and figures to the folder `out`.

    Methods that are done are kept in a folder there, from which `resume` goes on after an interruption.
    """
    from newtongp.plotting import require_matplotlib

    from . import figures, report

    require_matplotlib()
    console = console or _wide_console()
    folder = Path(out)
    kept = folder / f"{name}_runs"
    study = conduct(name, methods, folds, iterations, with_defaults, processes, console, kept, resume)
    summary = report.table(study)
    console.print(summary)
    paths = report.write(study, folder)
    with (folder / f"{name}_summary.txt").open("w", encoding="utf-8") as file:
        Console(file=file, width=_WIDE).print(summary)
        paths.append(folder / f"{name}_summary.txt")
    paths += figures.draw(study, folder)
    console.print("Written: " + ", ".join(str(path) for path in paths), soft_wrap=True)
    return study
