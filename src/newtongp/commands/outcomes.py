"""The column with y: as numbers, and a likelihood that suits them."""

from typing import Any, NamedTuple

import numpy as np

from ..validation.text import short
from .files import CommandError

_COUNTS = 1000.0
"""Whole numbers with a median below this are counts; the noise of counting is negligible above."""


class Outcome(NamedTuple):
    """y as numbers, the name of a likelihood, and why this one."""

    values: np.ndarray
    likelihood: str
    reason: str


def read_outcome(column: Any, name: str, trials: bool = False) -> Outcome:
    """y as numbers, and the likelihood that a rule chooses by its values.

    Two values are a Bernoulli variable; whole numbers from 0 on are counts, negative binomial; numbers between 0 and 1
    are proportions, beta; other positive numbers that vary by more than a factor of ten are log-normal; all others are
    Gaussian.

    >>> import numpy as np
    >>> [
    ...     read_outcome(np.array(y), "y").likelihood
    ...     for y in (["no", "yes"], [0, 3, 2], [0.2, 0.7], [0.5, 20.0], [-1, 4])
    ... ]
    ['bernoulli', 'negative_binomial', 'beta', 'log_normal', 'gaussian']
    """
    values, levels = _as_numbers(column, name)
    seen = values[np.isfinite(values)]
    if seen.size == 0:
        raise CommandError(f"--y {name}: the column has no values")
    if levels is not None:
        return Outcome(values, "bernoulli", f"{name} is {levels[0]!r} or {levels[1]!r}; 1 stands for {levels[1]!r}")
    if trials:
        return Outcome(values, "binomial", f"{name} counts successes among --trials")
    if np.all((seen == 0.0) | (seen == 1.0)):
        return Outcome(values, "bernoulli", f"{name} is 0 or 1")
    if np.all((seen >= 0.0) & (seen == np.round(seen))) and np.median(seen) < _COUNTS:
        return Outcome(values, "negative_binomial", f"{name} is a count")
    if np.all((seen > 0.0) & (seen < 1.0)):
        return Outcome(values, "beta", f"{name} lies between 0 and 1")
    if np.all(seen > 0.0) and np.max(seen) > 10.0 * np.min(seen):
        return Outcome(values, "log_normal", f"{name} is positive and varies by more than a factor of 10")
    return Outcome(values, "gaussian", f"{name} is a number")


def _as_numbers(column: Any, name: str) -> tuple[np.ndarray, list[str] | None]:
    """y as numbers, and its two levels if it is text."""
    entries = np.asarray(column)
    if entries.dtype.kind in "fiub":
        return entries.astype(float), None
    if entries.dtype.kind not in "OUST":
        raise CommandError(f"--y {name}: the column holds {entries.dtype}, not numbers")
    missing = np.array([entry is None or entry != entry for entry in entries.tolist()])
    levels = sorted({str(entry) for entry in entries[~missing]})
    if len(levels) != 2:
        example = short(levels[0]) if levels else "nothing"
        raise CommandError(
            f"--y {name}: the column holds text such as {example} with {len(levels)} different value(s): y must be "
            "numbers, or text with two values"
        )
    text = np.array([str(entry) for entry in entries.tolist()])
    return np.where(missing, np.nan, (text == levels[1]).astype(float)), levels
