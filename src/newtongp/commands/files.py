"""Tables in files: CSV and Parquet, read and written with pandas."""

import re
import sys
from pathlib import Path
from typing import Any

_PARQUET = (".parquet", ".pq")
_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": None}
STANDARD_OUTPUT = "-"


class CommandError(Exception):
    """A command cannot be carried out; the message is shown without a traceback."""


def read_table(path: str) -> Any:
    """A table from a CSV or Parquet file, as a data frame of pandas."""
    pandas = _pandas()
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in (*_PARQUET, *_SEPARATORS):
        raise CommandError(f"{path}: tables are files that end in .csv, .tsv, .txt, .parquet or .pq")
    if not file.is_file():
        raise CommandError(f"{path}: there is no such file")
    try:
        table = pandas.read_parquet(file) if kind in _PARQUET else _read_text(pandas, file, _SEPARATORS[kind])
    except ImportError:
        raise CommandError(f"{path}: Parquet files need pyarrow: pip install pyarrow") from None
    except UnicodeDecodeError:
        raise CommandError(f"{path}: not a text file in UTF-8: save the table as CSV in UTF-8") from None
    except (ValueError, OSError) as problem:  # pandas' parser errors are ValueErrors
        raise CommandError(f"{path}: cannot be read as a table: {str(problem).splitlines()[0]}") from None
    if table.empty:
        raise CommandError(f"{path}: the table has no rows")
    return table


def _read_text(pandas: Any, file: Path, separator: str | None) -> Any:
    engine = "python" if separator is None else "c"
    table = pandas.read_csv(file, sep=separator, engine=engine, skipinitialspace=True)
    return table.assign(**{name: _dates(pandas, table[name]) for name in table.columns if isinstance(name, str)})


def _dates(pandas: Any, column: Any) -> Any:
    """Text in which every entry is a date such as 2024-01-31 as time stamps; other columns as they are."""
    entries = column.dropna()
    if pandas.api.types.is_numeric_dtype(column) or entries.empty or not entries.map(_is_date).all():
        return column
    try:
        return pandas.to_datetime(column, format="ISO8601")
    except ValueError:
        return column


def _is_date(entry: Any) -> bool:
    return isinstance(entry, str) and re.match(r"\d{4}-\d{2}(-\d{2})?\b", entry) is not None


def write_table(table: Any, path: str) -> None:
    """Write a data frame of pandas to a CSV or Parquet file, or to the standard output."""
    if path == STANDARD_OUTPUT:
        table.to_csv(sys.stdout, index=False)
        return
    file = Path(path)
    kind = file.suffix.lower()
    if kind not in (*_PARQUET, *_SEPARATORS):
        raise CommandError(f"--out {path}: tables are files that end in .csv, .tsv, .txt, .parquet or .pq")
    file.parent.mkdir(parents=True, exist_ok=True)
    if kind in _PARQUET:
        table.to_parquet(file, index=False)
    else:
        table.to_csv(file, index=False, sep=_SEPARATORS[kind] or "\t")


def check_columns(table: Any, names: list[str], option: str, path: str) -> None:
    """Raise CommandError if the table does not have a column."""
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise CommandError(
            f"{option} {missing[0]}: {path} has no such column; it has {', '.join(map(str, table.columns))}"
        )


def check_level(level: float) -> None:
    """Raise CommandError if this is not the level of an interval."""
    if not 0.0 < level < 1.0:
        better = f", as in --level {level / 100.0:g}" if 1.0 < level < 100.0 else ""
        raise CommandError(f"--level {level:g}: the level of intervals is between 0 and 1{better}")


def check_folder(path: str | None) -> None:
    """Raise CommandError if a report cannot be written here, before anything is computed for it."""
    if path is not None and Path(path).exists() and not Path(path).is_dir():
        raise CommandError(f"--out {path}: this is a file, and a report is a folder: choose another name")


def load_result(path: str) -> Any:
    """A saved result."""
    from ..storage import load

    if holds_forecaster(path):
        raise CommandError(f"{path} holds a forecaster, for newtongp predict: give the result of a fit")
    return load(path)


def holds_forecaster(path: str) -> bool:
    """Whether a file holds a forecaster, and not a result."""
    from ..storage import kind_of

    if not Path(path).is_file():
        raise CommandError(f"{path}: there is no such file")
    return kind_of(path) == "forecaster"


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise CommandError('tables in files need pandas: pip install "newtongp[cli]"') from None
    return pandas
