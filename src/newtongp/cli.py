"""The command line: arguments, and errors in one line. The room `commands` does the work.

Exit codes are 0 for success, 1 for an error, 2 for wrong arguments, 3 for a fit that has not converged, and 130 if the
command was interrupted.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

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
    from .commands.files import CommandError
    from .commands.output import Output

    output = Output(given.json, given.quiet)
    try:
        code = _command(given.command)(given, output)
        output.close()
        return code
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except BrokenPipeError:  # as in `newtongp show FILE | head`
        sys.stderr.close()
        return 0
    except (CommandError, ImportError, OSError, ValueError, MemoryError) as problem:
        if given.traceback:
            raise
        return _failed(" ".join(str(problem).split()))
    except Exception as problem:
        if given.traceback:
            raise
        return _failed(f"{type(problem).__name__}: {' '.join(str(problem).split())} (--traceback shows where)")


def _failed(sentence: str, code: int = 1) -> int:
    print(f"newtongp: {sentence}", file=sys.stderr)
    return code


def _command(name: str) -> Callable:
    from .commands import fit, saved

    return {
        "fit": fit.fit,
        "predict": saved.predict,
        "compare": saved.compare,
        "info": saved.info,
        "show": saved.show,
    }[name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="newtongp", description="Approximate Bayesian inference for Gaussian priors and any likelihood."
    )
    parser.add_argument("--version", action="version", version=f"newtongp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object")
    common.add_argument("--quiet", action="store_true", help="print results only")
    common.add_argument("--traceback", action="store_true", help="show where an error occurred")
    _add_fit(commands, common)
    _add_predict(commands, common)
    compare = commands.add_parser("compare", parents=[common], help="rank saved results by their predictions")
    compare.add_argument("models", metavar="MODEL", nargs="+", help="files with results of the same rows")
    compare.add_argument("--any-columns", action="store_true", help="models may use different columns")
    for name, words in (("info", "say what a saved result is"), ("show", "print the summary of a saved result")):
        command = commands.add_parser(name, parents=[common], help=words)
        command.add_argument("model", metavar="MODEL", help="a file that `newtongp fit` or result.save wrote")
    return parser


def _add_fit(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:
    fit = commands.add_parser(
        "fit",
        parents=[common],
        help="fit a model of a table in a CSV or Parquet file",
        description="Fit a model of a table; print its summary, and write a report, the model and predictions.",
    )
    fit.add_argument("table", metavar="TABLE", help="a CSV or Parquet file, with names of columns in its first line")
    fit.add_argument("--y", metavar="COLUMN", help="the column to be explained")
    fit.add_argument("--formula", help='the model as a formula, as in "sales ~ price + (1 | shop)"')
    fit.add_argument("--covariates", metavar="COLUMN", nargs="+", default=[], help="linear effects")
    fit.add_argument("--smooth", metavar="COLUMN", nargs="+", default=[], help="smooth functions of numbers")
    fit.add_argument("--groups", metavar="COLUMN", nargs="+", default=[], help="columns with one effect per level")
    fit.add_argument("--time", metavar="COLUMN", help="the column of times: y is a series, with trend and seasons")
    fit.add_argument("--season", metavar="PERIOD", nargs="+", help="periods such as 1w 1y, or none (by the step)")
    fit.add_argument(
        "--trend", help="linear (the default), damped, level, local, smooth, cyclic, auto (an average) or none"
    )
    fit.add_argument("--holidays", metavar="COUNTRY", help="of a country, such as DE or DE-BY")
    fit.add_argument("--series", metavar="COLUMN", help="the column that tells several series apart")
    fit.add_argument("--forecast", metavar="STEPS", help="how many steps to forecast, or a file with future rows")
    fit.add_argument("--likelihood", metavar="NAME", help="such as poisson or student_t (chosen by the values of y)")
    fit.add_argument("--exposure", metavar="COLUMN", help="of counts, such as population or days")
    fit.add_argument("--trials", metavar="COLUMN", help="of binomial counts")
    fit.add_argument("--weights", metavar="COLUMN", help="how many rows each row stands for")
    fit.add_argument("--method", metavar="NAME", help="vi (the default), newton or ep")
    fit.add_argument(
        "--effects",
        metavar="HOW",
        help="linear effects: wide (integrated, with a wide prior; the default), flat (as in REML), maximised (as in "
        "glmer), or the standard deviation of their prior",
    )
    fit.add_argument("--level", type=float, default=0.95, help="of intervals (0.95)")
    fit.add_argument("--title", help="of the report")
    fit.add_argument("--out", metavar="FOLDER", help="write the report, the model and predictions here")


def _add_predict(commands: argparse._SubParsersAction, common: argparse.ArgumentParser) -> None:
    predict = commands.add_parser("predict", parents=[common], help="predict the rows of a table with a saved result")
    predict.add_argument("model", metavar="MODEL", help="a file that `newtongp fit` or result.save wrote")
    predict.add_argument("table", metavar="TABLE", help="a CSV or Parquet file with the columns of the model")
    predict.add_argument("--out", metavar="FILE", default="-", help="a CSV or Parquet file (standard output)")
    predict.add_argument("--level", type=float, default=0.95, help="of intervals (0.95)")
    predict.add_argument("--quantiles", metavar="P", type=float, nargs="+", default=[], help="as in 0.1 0.5 0.9")
    predict.add_argument("--without", metavar="TERM", nargs="+", default=[], help="terms to leave out")
    predict.add_argument(
        "--new-levels", choices=["integrate", "zero"], default="integrate", help="effects of new levels"
    )
