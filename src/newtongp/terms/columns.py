"""How the columns of a table are encoded, for all terms of a model."""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # reading arrays does not need terms, whose import takes time
    from .base import Encoder
    from .table import Table


@dataclasses.dataclass(frozen=True)
class TableColumns:
    """The encoders of all terms by latent, and the columns that hold parameters of rows (`exposure`, `trials`)."""

    encoders: "tuple[tuple[Encoder, ...], ...]"
    row_columns: tuple[tuple[str, str], ...] = ()
    """Names of row parameters of the likelihood, each with the column that holds it."""
    output: str | None = None
    """The column that holds y, if it was given by name."""
    library: str = "pandas"
    """The library of the table, of which tables of results are."""

    @property
    def sources(self) -> tuple[str, ...]:
        """All columns that terms use."""
        return tuple(dict.fromkeys(s for own in self.encoders for encoder in own for s in encoder.sources))

    def encode(self, table: "Table") -> np.ndarray:
        """The columns of all terms as numbers, one row per row of the table."""
        return np.concatenate([encoder.encode(table) for own in self.encoders for encoder in own], axis=1)

    def read(self, x: Any, name: str) -> np.ndarray:
        """The same of a user's table."""
        from .table import Table, is_table

        if isinstance(x, EncodedTable):
            return x.matrix
        if not isinstance(x, Table) and not is_table(x):
            raise ValueError(
                f"{name} must be a table with the columns {', '.join(map(repr, self.sources))}, as x was, got "
                f"{type(x).__name__}: give a data frame, or a mapping of columns"
            )
        return self.encode(x if isinstance(x, Table) else Table(x, name))


class EncodedTable:
    """A table whose columns have been encoded: numbers, and how they were made."""

    def __init__(self, matrix: np.ndarray, columns: TableColumns, table: Any):
        self.matrix, self.encoding, self.table = matrix, columns, table


def as_inputs(x: np.ndarray, columns: Any) -> Any:
    """Inputs that were read before, in the form in which inference takes them: rows of a table are encoded already."""
    return EncodedTable(x, columns, None) if isinstance(columns, TableColumns) else x
