"""Intervals from a profile: how much the energy rises along a positive value, with all others at their best."""

import math
from collections.abc import Mapping

import numpy as np

LOOSE = 1.0
"""A standard error larger than its value says nothing: an interval from it would span factors of fifty and more."""
HIGHEST = 5.5
"""The rise at which a profile ends: half of the 99.9 % quantile of a chi-squared distribution, rounded up.

If its last rise is lower, the energy does not rise further on that side.
"""


def entry_name(name: str, index: tuple[int, ...]) -> str:
    """The name of an entry of a value.

    >>> entry_name("covariance", (1, 1))
    'covariance[1, 1]'
    """
    return f"{name}[{', '.join(str(place) for place in index)}]" if index else name


def interval(profile: np.ndarray, half: float) -> tuple[float, float]:
    """The values at which the root of twice the rise is `half`; 0 and infinity where the energy does not rise so far.

    By a chi-squared distribution with one degree of freedom, `half` is 1.96 for an interval of 95 %. A profile, (2, n),
    has ascending values and the rises of the energy there.

    >>> values = np.exp(np.linspace(-2.0, 2.0, 101))
    >>> low, high = interval(np.stack([values, 2.0 * np.maximum(np.log(values), 0.0) ** 2]), 1.96)
    >>> low, round(float(np.log(high)), 3)
    (0.0, 0.98)
    """
    logarithms, roots = np.log(profile[0]), np.sqrt(2.0 * profile[1])
    lowest = int(np.argmin(roots))
    low = _crossing(logarithms[lowest::-1], roots[lowest::-1], half)
    high = _crossing(logarithms[lowest:], roots[lowest:], half)
    return (0.0 if low is None else math.exp(low)), (math.inf if high is None else math.exp(high))


def _crossing(logarithms: np.ndarray, roots: np.ndarray, half: float) -> float | None:
    """Where a root outwards from the lowest reaches `half`, beyond the end of the profile by a straight line."""
    beyond = np.flatnonzero(roots >= half)
    is_open = 0.5 * roots[-1] ** 2 < HIGHEST
    if roots.size < 2 or (beyond.size == 0 and is_open):
        return None
    after = max(int(beyond[0]) if beyond.size else roots.size - 1, 1)
    (near, far), (low, high) = logarithms[after - 1 : after + 1], roots[after - 1 : after + 1]
    return float(near + (half - low) / (high - low) * (far - near))


def are_needed(values: Mapping[str, np.ndarray], errors: Mapping[str, np.ndarray]) -> bool:
    """Whether any value is so poorly determined that intervals are those of profiles."""
    return any(np.any(error > LOOSE * np.abs(values[name])) for name, error in errors.items())
