"""The command line: `newtongp demo --out DIR`, `newtongp reproduce CASE` and `newtongp --version`."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 if it did what it was asked to.

    >>> main(["--version"])
    Traceback (most recent call last):
        ...
    SystemExit: 0
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    try:
        if given.command == "demo":
            _demo(given.out)
        else:
            _reproduce(given)
    except (ImportError, OSError, ValueError) as problem:
        print(f"newtongp: {problem}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="newtongp", description="Approximate Bayesian inference for Gaussian priors and any likelihood."
    )
    parser.add_argument("--version", action="version", version=f"newtongp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    demo = commands.add_parser(
        "demo",
        help="fit three data sets, and write a report with figures, tables and saved results",
        description=(
            "Fit measurements with changing noise, counts over time and two classes; print what was found, and write "
            "DIR/report/index.html with figures, tables, saved results, and the code to do the same."
        ),
    )
    demo.add_argument("--out", default="demo", metavar="DIR", help="where the folder report goes (default: demo)")
    reproduce = commands.add_parser(
        "reproduce",
        help="run a case study of the Bayes-Newton paper: numbers, and its figures with the published curves",
        description=(
            "Run a case study of the Bayes-Newton paper with every method: a summary table, all numbers as CSV and "
            "JSON, and the paper's figures, with the published curves where they are known."
        ),
    )
    reproduce.add_argument("case", choices=("motorcycle", "product", "gprn"), help="which case study")
    reproduce.add_argument("--methods", nargs="+", metavar="NAME", help='such as "heuristic VI" (default: all)')
    reproduce.add_argument(
        "--folds", nargs="+", type=int, metavar="K", help="folds or data sets, 1 to 4 (default: all)"
    )
    reproduce.add_argument("--iterations", type=int, metavar="N", help="how many (default: as in the paper)")
    reproduce.add_argument("--out", default="reproduction", metavar="DIR", help="where the files go")
    reproduce.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="P",
        help="methods at a time (default: processors)",
    )
    reproduce.add_argument(
        "--paper-only", action="store_true", help="leave out the library's own defaults, which the paper does not have"
    )
    reproduce.add_argument(
        "--resume", action="store_true", help="leave out methods that an interrupted run with the same DIR has done"
    )
    return parser


def _reproduce(given: argparse.Namespace) -> None:
    from .experiments import reproduce

    reproduce(
        given.case,
        given.methods,
        given.folds,
        given.iterations,
        given.out,
        not given.paper_only,
        given.processes,
        resume=given.resume,
    )


def _demo(out: str) -> None:
    from .demo import run

    run(out)
