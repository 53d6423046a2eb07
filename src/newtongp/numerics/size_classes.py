"""Size classes: numbers of rows to which arrays are filled up, so that one compiled program serves many sizes.

A program is compiled for arrays of one shape, and compiling takes longer than running it unless there are very many
rows. Rows are therefore filled up to the next of a few sizes with copies of the last row, which count as missing. A
missing row has no influence, so results are the same up to rounding.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

SMALLEST = 256
"""The smallest class. Below it, arithmetic takes milliseconds whatever the prior."""
_LARGEST_CUBIC_STEP = 128
_MANY = 4096

_state = {"exact": False}


def size_class(rows: int, cubic: bool = False, smallest: int = SMALLEST) -> int:
    """The number of rows to which so many are filled up.

    Above 256 rows there are four classes between one power of two and the next, and sixteen above 4096 rows, where
    arithmetic takes as long as compiling. If the time is `cubic` in the number of rows, there are eight, and at most
    128 rows are added.

    >>> [size_class(rows) for rows in (1, 256, 257, 1000, 100_000)]
    [256, 256, 320, 1024, 102400]
    >>> [size_class(rows, cubic=True) for rows in (150, 398, 2000)]
    [256, 416, 2048]
    """
    if _state["exact"] or rows == 0:
        return rows
    if rows <= smallest:
        return smallest
    octave = 2 ** ((rows - 1).bit_length() - 1)
    step = min(octave // 8, _LARGEST_CUBIC_STEP) if cubic else octave // (4 if octave < _MANY else 16)
    return -(-rows // step) * step


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
