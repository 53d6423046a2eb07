"""The command line: `newtongp show FILE` and `newtongp --version`."""

import argparse
import sys
from collections.abc import Sequence

from ._runtime.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 if it succeeded.

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
        _show(given.file)
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
    show = commands.add_parser("show", help="print the summary of a saved result")
    show.add_argument("file", metavar="FILE", help="a file that result.save(FILE) wrote")
    return parser


def _show(file: str) -> None:
    from .storage import load

    print(load(file).summary())
