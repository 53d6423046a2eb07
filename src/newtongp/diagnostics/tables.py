"""Helpers for tables."""

import io
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rich.table import Table


def error_of_total(values: np.ndarray) -> float:
    """The standard error of a sum of independent values, from their spread; NaN for a single or infinite values."""
    if values.size < 2 or not np.all(np.isfinite(values)):
        return float("nan")
    return float(np.sqrt(values.size) * np.std(values, ddof=1))


def library_of_result(result: Any) -> str:
    """The library of the table that a result, or a cross-validation, is of; pandas if it is not of a table."""
    return getattr(result.columns, "library", "pandas")


def new_table(title: str, first_column: str) -> "Table":
    """A new table with its first column."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column(first_column)
    return table


def as_text(table: Any) -> str:
    """A table, or anything else that rich prints, as text."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=120, color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
