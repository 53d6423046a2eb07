"""Data frames and columns of pandas, polars, pyarrow and similar libraries, read through narwhals."""

import numbers
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    import narwhals as nw

_PLAIN = (np.ndarray, np.generic, jax.Array, numbers.Number, str, list, tuple, type(None))


def read_frame(value: Any) -> "nw.DataFrame[Any] | nw.Series[Any] | None":
    """A data frame or column as one of narwhals; None for anything else, and for frames with repeated names.

    >>> read_frame([1.0, 2.0]) is None
    True
    """
    if isinstance(value, _PLAIN):  # Arrays do not need narwhals, whose import takes time.
        return None
    import narwhals as nw

    try:
        frame = nw.from_native(_supported(value), pass_through=True, eager_only=True, allow_series=True)
    except ValueError:
        return None
    return frame if isinstance(frame, (nw.DataFrame, nw.Series)) else None


def _supported(value: Any) -> Any:
    """Indexes of pandas, and arrays and batches of pyarrow, as objects that narwhals knows."""
    from narwhals import dependencies

    if dependencies.is_pandas_like_index(value):
        return value.to_series()
    pyarrow = dependencies.get_pyarrow()
    if pyarrow is not None and isinstance(value, pyarrow.Array):
        return pyarrow.chunked_array([value])
    if pyarrow is not None and isinstance(value, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([value])
    return value


def as_array(value: Any) -> np.ndarray:
    """`value` as NumPy reads it; columns of a frame side by side, and time stamps with a time zone in UTC."""
    frame = read_frame(value)
    return np.asarray(value) if frame is None else frame_array(frame)


def frame_array(frame: "nw.DataFrame[Any] | nw.Series[Any]") -> np.ndarray:
    """A frame or column as an array, of objects if its columns are of several kinds, such as numbers and times."""
    columns = _columns(frame)
    arrays = [column.to_numpy() for column in columns]
    if len({(_kind(array), _zoned(column)) for array, column in zip(arrays, columns, strict=True)}) > 1:
        # As one array of numbers or of text, they could not be told apart.
        arrays = [np.fromiter(column.to_list(), object, len(column)) for column in columns]
    if len(frame.shape) == 1:
        return arrays[0]
    return np.column_stack(arrays) if arrays else np.empty(frame.shape)


def has_zone(frame: "nw.DataFrame[Any] | nw.Series[Any]") -> bool:
    """Whether any column holds time stamps with a time zone."""
    return any(_zoned(column) for column in _columns(frame))


def make_frame(columns: dict[str, Any], library: str, index: Any = None) -> Any:
    """A data frame of this library with these columns, and with this index, which only pandas and the like have."""
    import narwhals as nw

    try:
        frame: Any = nw.from_dict(columns, backend=library).to_native()  # pyright: ignore[reportArgumentType]
    except ImportError:
        raise ImportError(f"to_frame needs {library}: install it with `pip install {library}`") from None
    if index is not None:
        frame.index = index
    return frame


def index_of(value: Any) -> Any:
    """The index of a data frame or column of pandas; None for anything else, which has none.

    >>> index_of([1.0, 2.0]) is None
    True
    """
    frame = read_frame(value)
    if frame is None:
        return None
    import narwhals as nw

    return nw.maybe_get_index(frame)


def library_of(value: Any, otherwise: str = "pandas") -> str:
    """The name of the library of a frame or column; `otherwise` for anything else.

    >>> library_of([1.0, 2.0])
    'pandas'
    """
    frame = read_frame(value)
    return otherwise if frame is None else frame.implementation.name.lower()


def _columns(frame: Any) -> list["nw.Series[Any]"]:
    return [frame] if len(frame.shape) == 1 else list(frame.iter_columns())


def _kind(array: np.ndarray) -> str:
    return "number" if array.dtype.kind in "fiub" else array.dtype.kind


def _zoned(column: Any) -> bool:
    return getattr(column.dtype, "time_zone", None) is not None
