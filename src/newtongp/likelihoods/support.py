"""The values that y may take: checked once when data is read, and used to search for quantiles."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Support:
    """An interval of the real line, or of the integers.

    >>> counts.check(np.array([[0.0], [2.5]]))
    Traceback (most recent call last):
        ...
    ValueError: y must hold non-negative integers (or NaN for missing), but row 1 is 2.5: correct it, or choose a ...
    """

    words: str
    lower: float = -np.inf
    upper: float = np.inf
    lower_included: bool = False
    upper_included: bool = False
    integer: bool = False
    example: float = 0.0
    """A value in the support, which replaces missing values while they are masked out."""

    def contains(self, y: np.ndarray) -> np.ndarray:
        """Whether each value is in the support; NaN (missing) counts as contained."""
        low = y >= self.lower if self.lower_included else y > self.lower
        high = y <= self.upper if self.upper_included else y < self.upper
        inside = low & high & np.isfinite(y)
        if self.integer:
            inside &= y == np.round(y)
        return inside | np.isnan(y)

    def check(self, y: np.ndarray) -> None:
        """Raise ValueError, naming the first row outside the support, if there is one."""
        wrong = ~self.contains(y)
        if np.any(wrong):
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"y must hold {self.words} (or NaN for missing), but row {row} is {y[row, column]:g}: correct it, or "
                "choose a likelihood that allows it"
            )


real = Support("finite numbers")
positive = Support("positive numbers", lower=0.0, example=1.0)
non_negative = Support("non-negative numbers", lower=0.0, lower_included=True, example=1.0)
unit_interval = Support("numbers strictly between 0 and 1", lower=0.0, upper=1.0, example=0.5)
binary = Support("0 or 1", lower=0.0, upper=1.0, lower_included=True, upper_included=True, integer=True, example=0.0)
counts = Support("non-negative integers", lower=0.0, lower_included=True, integer=True, example=0.0)


def levels(number: int) -> Support:
    """The integers from 0 to number - 1.

    >>> levels(3).check(np.array([[2.0], [3.0]]))
    Traceback (most recent call last):
        ...
    ValueError: y must hold integers from 0 to 2 (or NaN for missing), but row 1 is 3: correct it, or choose a ...
    """
    last = number - 1
    return Support(
        f"integers from 0 to {last}", lower=0.0, upper=last, lower_included=True, upper_included=True, integer=True
    )
