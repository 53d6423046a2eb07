"""What a method came to, in a file of its own: an interrupted case study goes on from these."""

from pathlib import Path
from typing import Any

import numpy as np

from newtongp import __version__
from newtongp.numerics.gaussian import Gaussian, Sites
from newtongp.results.status import Status
from newtongp.storage import read_file, write_file

from .beyond import Ending
from .jobs import Job
from .runner import Run, Scores

_KIND = "newtongp case study"


class Shelf:
    """The folder that one case study keeps its methods in."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, job: Job) -> Path:
        """The file of a method.

        >>> Shelf(Path("out")).path(Job("gprn", "exact power EP (α = 1), damped", True, (0,), 10)).as_posix()
        'out/exact_power_ep_1_damped.ngp'
        """
        letters = "".join(each if each.isascii() and each.isalnum() else " " for each in job.name.lower())
        return self.folder / f"{'_'.join(letters.split())}.ngp"

    def put(self, job: Job, found: tuple[Any, ...]) -> None:
        """Keep what a method came to."""
        parts = [_parts_of_ending(each) if job.beyond_paper else _parts_of_run(each) for each in found]
        write_file(self.path(job), _KIND, {"mark": _mark(job), "found": parts})

    def get(self, job: Job) -> tuple[Any, ...] | None:
        """What was kept of the same job; None if there is nothing, or something else."""
        if not self.path(job).exists():
            return None
        kept = read_file(self.path(job), _KIND)
        if kept["mark"] != _mark(job):
            return None
        return tuple((_ending if job.beyond_paper else _run)(parts) for parts in kept["found"])


def _mark(job: Job) -> str:
    return repr((__version__, tuple(job)))


def _parts_of_run(run: Run) -> dict[str, Any]:
    return {
        **run._asdict(),
        "scores": {name: np.asarray(values) for name, values in run.scores._asdict().items()},
        "status": run.status.name,
        "sites": [np.asarray(run.sites.linear), np.asarray(run.sites.precision)],
        "marginals": [np.asarray(run.marginals.mean), np.asarray(run.marginals.covariance)],
    }


def _run(parts: dict[str, Any]) -> Run:
    objects = {
        "scores": Scores(**parts["scores"]),
        "status": Status[parts["status"]],
        "sites": Sites(*parts["sites"]),
        "marginals": Gaussian(*parts["marginals"]),
    }
    return Run(**{**parts, **objects})


def _parts_of_ending(ending: Ending) -> dict[str, Any]:
    return {**ending._asdict(), "status": ending.status.name}


def _ending(parts: dict[str, Any]) -> Ending:
    return Ending(**{**parts, "status": Status[parts["status"]]})
