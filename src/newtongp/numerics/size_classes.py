"""Size classes: numbers of rows to which arrays are filled up, so that one compiled program serves many sizes.

A program is compiled for arrays of one shape, and compiling takes longer than running it unless there are very many
rows. Rows are therefore filled up to the next of a few sizes with copies of the last row, which count as missing. A
missing row has no influence, so results are the same up to rounding.

The time of a small problem grows with the rows that fill it up all the same, so a number of rows that comes again and
again gets a size of its own (`inference/own_sizes.py`).
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

SMALLEST, SMALLEST_DATA, SMALLEST_CUBIC = 256, 160, 152
"""The smallest classes: of rows to predict, and of data. Below them, arithmetic takes milliseconds."""
STEP = 128
"""Larger classes are multiples of this, if they are not cubic: a hundred rows more take less time than compiling."""
_SMALL, _SMALL_CUBIC = (32, 64), (40, 104)
"""Smaller classes yet, for several latents: the time of a row grows with a power of their number."""
_MANY, _VERY_MANY, _MANY_CUBIC = 4096, 2**16, 536

_state = {"exact": False}


def size_class(rows: int, smallest: int = SMALLEST, step: int = STEP) -> int:
    """The size class of this number of rows: the number to which they are filled up.

    Above the smallest class there are four classes between one power of two and the next, sixteen above 4096 rows,
    where arithmetic takes as long as compiling, and 32 above 65 536. They are multiples of `step`, and above 65 536 odd
    multiples of 1024: loops over arrays whose sizes are multiples of a large power of two can take a quarter longer.

    >>> [size_class(rows) for rows in (1, 256, 257, 1000, 50_000, 100_000)]
    [256, 256, 384, 1024, 51200, 101376]
    >>> [size_class(levels, smallest=8, step=16) for levels in (5, 9, 17, 33, 70, 150)]
    [8, 16, 32, 48, 80, 160]
    """
    if _state["exact"] or rows == 0:
        return rows
    if rows <= smallest:
        return smallest
    octave = 2 ** ((rows - 1).bit_length() - 1)
    if octave >= _VERY_MANY:
        return _next(rows, 1024, octave // 32)
    return _next(rows, 0, max(step, octave // (4 if octave < _MANY else 16)))


def data_size_class(rows: int, latents: int) -> int:
    """The size class of rows of data. With several latents, classes are smaller below `SMALLEST_DATA`, and finer above.

    >>> [data_size_class(20, 1), data_size_class(20, 3), data_size_class(170, 3), data_size_class(170, 1)]
    [160, 32, 192, 256]
    """
    return _small(rows, latents, _SMALL) or size_class(rows, SMALLEST_DATA, STEP if latents == 1 else 1)


def cubic_size_class(rows: int, latents: int = 1) -> int:
    """The same, for priors whose time is cubic in the number of rows: smaller classes, in smaller steps.

    All are odd multiples of 8. Columns of matrices whose size is a multiple of a large power of two compete for the
    same places in the processor's cache, which can double the time of a factorisation.

    >>> [cubic_size_class(rows) for rows in (40, 150, 398, 2000)]
    [152, 152, 408, 2072]
    >>> [cubic_size_class(rows, latents=3) for rows in (40, 150, 398)]
    [40, 152, 408]
    """
    small = _small(rows, latents, _SMALL_CUBIC)
    if small is not None:
        return small
    if _state["exact"] or rows == 0:
        return rows
    if rows <= SMALLEST_CUBIC:
        return SMALLEST_CUBIC
    return _next(rows, 24, 64 if rows <= _MANY_CUBIC else 128)


def _small(rows: int, latents: int, classes: tuple[int, ...]) -> int | None:
    """The first of these classes that is large enough, with several latents."""
    if latents == 1 or _state["exact"] or rows == 0:
        return None
    return next((size for size in classes if rows <= size), None)


def own_size(rows: int) -> int:
    """The size of its own for a number of rows that comes again and again: the next multiple of 4.

    Multiples of 128 are avoided, because of the processor's cache.

    >>> [own_size(rows) for rows in (60, 97, 99, 125)]
    [60, 100, 100, 132]
    """
    size = _next(rows, 0, 4)
    return size if size % 128 else size + 4


def _next(rows: int, offset: int, step: int) -> int:
    return offset - (offset - rows) // step * step


@contextlib.contextmanager
def exact_sizes() -> Iterator[None]:
    """A context in which nothing is filled up: every new number of rows is compiled for."""
    before = _state["exact"]
    _state["exact"] = True
    try:
        yield
    finally:
        _state["exact"] = before


def fill_rows(tree: Any, size: int | None) -> Any:
    """Arrays with one entry per row, with copies of the last row up to `size` rows; as they are if that is None."""

    def filled(leaf: Any) -> Any:
        if size is None or leaf.shape[0] == size:
            return leaf
        array = np.asarray(leaf)
        return np.concatenate([array, np.repeat(array[-1:], size - array.shape[0], axis=0)])

    return jax.tree.map(filled, tree)


def first_rows(tree: Any, count: int) -> Any:
    """The first `count` entries of every array, and numbers as they are: the inverse of `fill_rows`."""
    return jax.tree.map(lambda leaf: leaf[:count] if leaf.ndim else leaf, tree)
