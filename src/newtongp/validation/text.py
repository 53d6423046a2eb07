"""Numbers as text, for messages and summaries."""

from typing import Any

import numpy as np

_FEW = 6


def shown(value: Any, otherwise: str = "not finite") -> str:
    """One number, a few numbers, or the range of many."""
    numbers = np.ravel(np.array(value, dtype=float))
    if numbers.size == 1 or (np.size(numbers) <= _FEW and np.ndim(value) < 2):
        words = [number(each) if np.isfinite(each) else otherwise for each in numbers]
        return words[0] if len(set(words)) == 1 and not np.all(np.isfinite(numbers)) else ", ".join(words)
    shape = " × ".join(str(size) for size in np.shape(value))
    finite = numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return otherwise
    return f"{shape} values, {number(finite.min())} to {number(finite.max())}"


def number(value: Any) -> str:
    """A number with four digits."""
    return f"{float(value):.4g}"
