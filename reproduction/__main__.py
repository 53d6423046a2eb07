"""`python -m reproduction CASE` runs a case study of the Bayes-Newton paper: numbers, and its figures."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import reproduce


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one case study; the exit code is 0 if it succeeded."""
    given = _parser().parse_args(arguments)
    try:
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
    except (ImportError, OSError, ValueError) as problem:
        print(f"reproduction: {problem}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description=(
            "Run a case study of the Bayes-Newton paper with every method: a summary table, all numbers as CSV and "
            "JSON, and the paper's figures, with the published curves where they are known."
        ),
    )
    parser.add_argument("case", choices=("motorcycle", "product", "gprn"), help="which case study")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help='such as "heuristic VI" (default: all)')
    parser.add_argument("--folds", nargs="+", type=int, metavar="K", help="folds or data sets, 1 to 4 (default: all)")
    parser.add_argument("--iterations", type=int, metavar="N", help="how many (default: as in the paper)")
    parser.add_argument("--out", default="reproduced", metavar="DIR", help="where the files go (default: reproduced)")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="P",
        help="methods at a time (default: processors)",
    )
    parser.add_argument(
        "--paper-only", action="store_true", help="leave out the library's own defaults, which the paper does not have"
    )
    parser.add_argument(
        "--resume", action="store_true", help="leave out methods that an interrupted run with the same DIR has done"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
