"""The command line: `newtongp demo --out DIR` and `newtongp --version`."""

import argparse
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
        _demo(given.out)
    except (ImportError, OSError) as problem:
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
        help="fit motorcycle data robustly and counts over time, compare methods, and draw the result",
        description="Fit motorcycle data robustly and counts over time, compare methods, and draw the result.",
    )
    demo.add_argument("--out", default="demo", metavar="DIR", help="where the figure goes (default: demo)")
    return parser


def _demo(out: str) -> None:
    from .demo import run

    run(out)
