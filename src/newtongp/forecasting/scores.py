"""Scores of probabilistic forecasts."""

from typing import Any

import numpy as np

LEVELS = (np.arange(99) + 0.5) / 99.0
"""The levels of the quantiles from which the CRPS is computed."""


def crps_from_quantiles(quantiles: np.ndarray, y: np.ndarray, levels: np.ndarray = LEVELS) -> np.ndarray:
    """The continuous ranked probability score of every y, 2 ∫ (1{y < q_p} − p)(q_p − y) dp, by the midpoint rule.

    `quantiles` has one row per level. The score of a forecast without uncertainty is the absolute error.

    >>> crps_from_quantiles(np.zeros((99, 1)), np.array([2.0])).round(6).tolist()
    [2.0]
    """
    gap = y[None, :] - quantiles
    weight = np.where(gap >= 0.0, levels[:, None], levels[:, None] - 1.0)
    return 2.0 * np.mean(weight * gap, axis=0)


def naive_error(y: np.ndarray, period: int) -> float:
    """The mean absolute error, in the data, of the value a period before, which scales errors.

    It is that of the value before if the data have no two periods.

    >>> naive_error(np.array([1.0, 2.0, 4.0, 7.0]), 1)
    2.0
    """
    lag = period if y.size > 2 * period else 1
    gaps = np.abs(y[lag:] - y[:-lag])
    gaps = gaps[np.isfinite(gaps)]
    return float(np.mean(gaps)) if gaps.size and np.any(gaps > 0.0) else np.nan


def averages(columns: dict[str, np.ndarray], where: np.ndarray) -> dict[str, float]:
    """The mean scores of some rows."""
    with np.errstate(all="ignore"):
        found: dict[str, Any] = {name: _mean(columns[name][where]) for name in SCORES}
    return {**found, "rows": int(np.sum(np.isfinite(columns["crps"][where])))}


SCORES = ("crps", "scaled_crps", "log_score", "coverage", "mae", "mase")


def _mean(values: np.ndarray) -> float:
    seen = values[np.isfinite(values)]
    return float(np.mean(seen)) if seen.size else np.nan
