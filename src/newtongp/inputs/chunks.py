"""Rows of data that need not be in memory: arrays, files mapped into memory, and chunks of either.

Data is read in chunks, each chunk is checked as `data.py` checks a whole data set, and batches are formed of rows in
random order: among all rows if they are in memory, otherwise among the rows of many chunks at a time.
"""

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..likelihoods.base import Likelihood, at_rows, rows_given
from ..likelihoods.weighted import unweighted, weights_of
from ..model import Model, weighted_model
from ..validation.frames import frame_array, read_frame
from ..validation.numbers import NotRealError, as_real
from .columns import Columns, names_of
from .data import Data, check_indexes, check_row_parameters, read_data

_CHUNK = 2**12
"""The number of rows that are read from an array at a time."""
_SHUFFLED = 2**16
"""The number of rows that are shuffled together if not all are in memory."""


class Batch(NamedTuple):
    """A batch of rows, padded to a fixed number with unobserved rows."""

    index: np.ndarray
    """The index of each row in the data; the largest integer for padding."""
    data: Data
    count: int
    """The number of rows that are not padding."""

    def likelihood(self, whole: Likelihood) -> Likelihood:
        """The likelihood with the row parameters of these rows."""
        rows = min(rows_given(whole).values(), default=1)
        return self.data.weighted_likelihood(at_rows(whole, np.minimum(self.index, rows - 1)))


class _Source(abc.ABC):
    """Chunks of rows, in their order."""

    names: tuple[str, ...] | None
    """The names of the columns of x."""

    @abc.abstractmethod
    def chunks(self, order: np.random.Generator | None) -> Iterator[tuple[int, Any, Any]]:
        """(first row, x, y) of every chunk, in random order if requested and possible."""


class _Arrays(_Source):
    """x and y that are sliced by rows instead of loaded: NumPy, memory maps, Zarr, HDF5."""

    def __init__(self, x: Any, y: Any, names: tuple[str, ...] | None):
        self.x, self.y, self.names = x, y, names

    def chunks(self, order):
        starts = np.arange(0, self.x.shape[0], _CHUNK)
        for start in starts if order is None else order.permutation(starts):
            stop = min(int(start) + _CHUNK, self.x.shape[0])
            yield int(start), _as_array(self.x[start:stop], "x"), _as_array(self.y[start:stop], "y")


class _Chunks(_Source):
    """Chunks (x, y) that can be iterated repeatedly."""

    def __init__(self, chunks: Any):
        self.given = chunks
        self.starts: list[int] = []
        self.names = names_of(chunks)

    def chunks(self, order):
        if order is not None and isinstance(self.given, Sequence) and self.starts:
            for number in order.permutation(len(self.given)):
                yield self.starts[number], *self._pair(self.given[int(number)], int(number))
            return
        start, starts = 0, []
        given: Any = self.given() if callable(self.given) else self.given
        for number, chunk in enumerate(given):
            x, y = self._pair(chunk, number)
            starts.append(start)
            yield start, x, y
            start += len(x)
        self.starts = starts

    def _pair(self, chunk: Any, number: int) -> tuple[Any, Any]:
        """A chunk as arrays, with columns in the order of the first chunk with names."""
        if not isinstance(chunk, (tuple, list)) or len(chunk) != 2:
            raise ValueError(f"chunks must be pairs (x, y), but chunk {number} is {type(chunk).__name__}")
        names = f"x of chunk {number}", f"y of chunk {number}"
        check_indexes(chunk[0], chunk[1], names)
        self.names = names_of(chunk[0]) if self.names is None else self.names
        order = Columns(self.names).order(chunk[0], names[0])
        x, y = _as_array(chunk[0], names[0]), _as_array(chunk[1], names[1])
        return x if order is None else x[:, order], y


def _as_array(value: Any, name: str) -> np.ndarray:
    """The value as an array, with its mask if it has one; entries are checked chunk by chunk."""
    frame = read_frame(value)
    try:
        return np.asanyarray(value) if frame is None else frame_array(frame)
    except ValueError:
        raise ValueError(
            f"{name} must hold one row per datum, got {type(value).__name__} with rows of different lengths: make all "
            "rows equally long"
        ) from None


def _is_sliced(value: Any) -> bool:
    """Whether this is an array that can be sliced by rows without loading it."""
    return hasattr(value, "shape") and hasattr(value, "__getitem__") and read_frame(value) is None


def _source(x: Any, y: Any) -> _Source:
    if y is None:
        if isinstance(x, Iterator):
            raise ValueError(
                "chunks are iterated several times, but an iterator allows it only once: give a list, or a "
                "function that returns a new iterator every time"
            )
        if not callable(x) and not isinstance(x, Iterable):
            raise ValueError(f"without y, x must be chunks (x, y) of the data, got {type(x).__name__}")
        return _Chunks(x)
    check_indexes(x, y)
    names = names_of(x)
    x, y = (values if _is_sliced(values) else _as_array(values, name) for values, name in ((x, "x"), (y, "y")))
    shapes = tuple(x.shape), tuple(y.shape)
    if () in shapes or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            f"x and y must have the same number of rows, got shapes {shapes[0]} and {shapes[1]}: give one y per "
            "row of x, NaN where it is missing"
        )
    return _Arrays(x, y, names)


class Rows:
    """A data set that is read in chunks: the number of rows, and batches in random order."""

    def __init__(self, x: Any, y: Any, model: Model, see: Callable[[np.ndarray], None] | None = None):
        """Reads everything once; `see` is called with the inputs of every chunk."""
        self._source = _source(x, y)
        self.held: Data | None = None
        """All rows, if they are in memory."""
        self.count, self.observed, self._partly = 0, 0.0, False
        self._columns: int | None = None
        # Row parameters are checked against the total number of rows, not that of a chunk.
        self._plain = Model(model.prior, at_rows(unweighted(model.likelihood), 0))
        self._weights = weights_of(model.likelihood)
        for start, data in self._read(None):
            self.count = max(self.count, start + data.x.shape[0])
            self.observed += float(np.sum(data.observed if data.weights is None else data.weights[data.observed]))
            self._partly |= data.seen is not None
            if see is not None:
                see(data.x)
        if self.count == 0:
            raise ValueError("x has no rows: give at least one")
        check_row_parameters(model.likelihood, self.count)
        if isinstance(self._source, _Arrays) and type(self._source.x) is np.ndarray:
            self.held = self._with_seen(read_data(self._source.x, self._source.y, self._model(0, self.count)))

    @property
    def columns(self) -> Columns:
        """The columns of x."""
        return Columns(self._source.names)

    def _read(self, order: np.random.Generator | None) -> Iterator[tuple[int, Data]]:
        for start, x, y in self._source.chunks(order):
            try:
                data = read_data(x, y, self._model(start, len(x)))
            except ValueError as error:
                raise ValueError(f"rows from {start} on: {error}") from None
            columns = data.x.shape[1]
            self._columns = columns if self._columns is None else self._columns
            if columns != self._columns:
                raise ValueError(
                    f"rows from {start} on: x has {columns} column(s), but the rows before have {self._columns}: give "
                    "every chunk the same columns"
                )
            yield start, self._with_seen(data)

    def _model(self, start: int, rows: int) -> Model:
        """The model for reading this many rows, with their weights."""
        weights = self._weights
        return weighted_model(self._plain, weights if np.ndim(weights) == 0 else weights[start : start + rows])

    def _with_seen(self, data: Data) -> Data:
        """Give all rows a mask if some are partly observed, so that one compiled program serves all batches."""
        if data.seen is not None or not self._partly:
            return data
        return data._replace(seen=np.broadcast_to(data.observed[:, None], data.y.shape))

    def batches(self, size: int, rng: np.random.Generator | None = None, filled: int | None = None) -> Iterator[Batch]:
        """Every row once, in batches of `size` rows padded to `filled`: in random order, or in order."""
        filled = size if filled is None else filled
        if self.held is not None:
            order = np.arange(self.count) if rng is None else rng.permutation(self.count)
            for start in range(0, self.count, size):
                rows = order[start : start + size]
                yield self._fill(rows, _take(self.held, rows), filled)
            return
        waiting: list[tuple[np.ndarray, Data]] = []
        for start, data in self._read(rng):
            waiting.append((np.arange(start, start + data.x.shape[0]), data))
            ready = sum(len(index) for index, _ in waiting)
            if ready >= max(size, _SHUFFLED if rng is not None else 0):
                waiting = yield from self._emit(waiting, size, filled, rng, ready - ready % size)
        ready = sum(len(index) for index, _ in waiting)
        if ready:
            yield from self._emit(waiting, size, filled, rng, ready)

    def _emit(self, waiting, size: int, filled: int, rng, count: int) -> Any:
        """Batches of the first `count` rows in a random order; returns the other rows."""
        index = np.concatenate([index for index, _ in waiting])
        data = jax.tree.map(lambda *parts: np.concatenate(parts), *(data for _, data in waiting))
        order = np.arange(len(index)) if rng is None else rng.permutation(len(index))
        for start in range(0, count, size):
            rows = order[start : min(start + size, count)]
            yield self._fill(index[rows], _take(data, rows), filled)
        rest = order[count:]
        return [(index[rest], _take(data, rest))] if len(rest) else []

    def _fill(self, index: np.ndarray, data: Data, size: int) -> Batch:
        count = len(index)
        if count == size:
            return Batch(index, data, count)
        rows = np.concatenate([np.arange(count), np.zeros(size - count, dtype=int)])
        filled = _take(data, rows)
        real = np.arange(size) < count
        return Batch(
            np.where(real, index[rows], np.iinfo(index.dtype).max),
            filled._replace(observed=real & filled.observed),
            count,
        )


def _take(data: Data, rows: np.ndarray) -> Data:
    return jax.tree.map(lambda leaf: leaf[rows], data)


class ParquetChunks(Sequence):
    """The row groups of a Parquet file as chunks `(x, y)` of the data, read one at a time (needs pyarrow).

    `x` and `y` name the columns of inputs and outputs: a name, or a list of them.

    >>> chunks = ParquetChunks("rows.parquet", x=["east", "north"], y="count")  # doctest: +SKIP
    >>> infer(model, chunks, batch_size=1000)  # doctest: +SKIP
    """

    def __init__(self, path: Any, x: Sequence[str] | str, y: Sequence[str] | str):
        try:
            import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ImportError("ParquetChunks needs pyarrow: install it, or pass your own chunks") from None
        self._file = parquet.ParquetFile(path)
        # A string is a sequence of letters too.
        self._x, self._y = ([names] if isinstance(names, str) else list(names) for names in (x, y))
        missing = sorted({*self._x, *self._y} - set(self._file.schema_arrow.names))
        if missing:
            raise ValueError(
                f"the file has no column {missing[0]!r}; it has: {', '.join(self._file.schema_arrow.names)}"
            )

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns of x."""
        return tuple(self._x)

    def __len__(self) -> int:
        return self._file.num_row_groups

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        table = self._file.read_row_group(int(number), columns=[*self._x, *self._y])
        x, y = (np.column_stack([_column(table, name) for name in names]) for names in (self._x, self._y))
        return x, y


def _column(table: Any, name: str) -> np.ndarray:
    try:
        return as_real(table[name].to_numpy())
    except NotRealError as error:
        raise ValueError(
            f"column {name!r} must hold real numbers, got {error.entry!r}: convert it before it is written"
        ) from None
