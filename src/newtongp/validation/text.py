"""Values as text, for messages and summaries."""

from collections.abc import Iterable
from typing import Any

import numpy as np

_FEW = 6


def shown(value: Any, otherwise: str = "not finite") -> str:
    """One number, a few numbers, or the range of many."""
    numbers = np.ravel(np.array(value, dtype=float))
    if numbers.size == 1 or (np.size(numbers) <= _FEW and np.ndim(value) < 2):
        words = [number(entry) if np.isfinite(entry) else otherwise for entry in numbers]
        return words[0] if len(set(words)) == 1 and not np.all(np.isfinite(numbers)) else ", ".join(words)
    shape = " × ".join(str(size) for size in np.shape(value))
    finite = numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return otherwise
    return f"{shape} values, {number(finite.min())} to {number(finite.max())}"


def short(value: Any, most: int = 80) -> str:
    """Any value as text on one line, of at most this many letters.

    >>> short("x" * 100)[-5:]
    'xx...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def number(value: Any) -> str:
    """A number with four digits."""
    return f"{float(value):.4g}"


def listed(values: Iterable[Any], most: int = 12) -> str:
    """Values as text, the first ones of many.

    >>> listed(["a", "b", "c"], most=2)
    "'a', 'b', … (3 in all)"
    """
    every = [repr(value) for value in values]
    return ", ".join(every) if len(every) <= most else f"{', '.join(every[:most])}, … ({len(every)} in all)"


def in_a_sentence(names: Iterable[str], most: int = 6) -> str:
    """Names as part of a sentence, the first ones of many.

    >>> in_a_sentence(["a"]), in_a_sentence(["a", "b", "c"]), in_a_sentence(["a", "b", "c"], most=2)
    ('a', 'a, b and c', 'a, b and 1 more')
    """
    every = list(names)
    if len(every) > most:
        every = [*every[:most], f"{len(every) - most} more"]
    return " and ".join([", ".join(every[:-1]), every[-1]]) if len(every) > 1 else every[0]


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "step"), counted(0, "step")
    ('1 step', '0 steps')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
