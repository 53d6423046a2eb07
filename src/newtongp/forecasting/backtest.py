"""Backtests: forecasts from earlier origins, and their scores."""

import dataclasses
from typing import Any

import numpy as np

from ..validation.frames import make_frame
from .calendar import written
from .fitted import Fitted, fit_rows, summarised, update
from .rows import Rows
from .scores import LEVELS, SCORES, averages, crps_from_quantiles, naive_error


@dataclasses.dataclass(frozen=True)
class Backtest:
    """Forecasts from rolling origins, and their scores.

    `forecasts` has one row per origin and step ahead: the forecast, y, and its scores. `scores` has their averages, by
    series if there are several, and `by_step` those of every number of steps ahead. Scores are

    - `crps`, the continuous ranked probability score, in the units of y, and `scaled_crps`, divided by the mean
      absolute error, in the data before the origin, of the value one season before;
    - `log_score`, minus the log density of y;
    - `coverage`, the share of y inside the interval;
    - `mae`, the mean absolute error of the median, and `mase`, divided as above.
    """

    forecasts: Any
    scores: Any
    by_step: Any
    level: float
    failures: dict[Any, str]

    def __repr__(self) -> str:
        return f"Backtest, {100.0 * self.level:g} % intervals\n{self.scores}"


def origins_of(rows: Rows, horizon: int, every: int, origins: int | None, least: int) -> list[int]:
    """Numbers of rows before each origin, in order; the last has `horizon` times after it."""
    times = np.unique(rows.times)
    last = times.size - horizon
    places = list(range(last, least - 1, -every))[::-1]
    if origins is not None:
        places = places[-origins:]
    if not places:
        raise ValueError(
            f"a backtest over {horizon} steps needs at least {horizon + least} different times, got {times.size}: "
            "choose a shorter horizon"
        )
    return [int(np.searchsorted(rows.times, times[place])) for place in places]


def least_rows(fitted: Fitted) -> int:
    """The number of times before the first origin: two periods of the longest season, and at least ten."""
    periods = [fitted.calendar.rows_per(period) for period in fitted.structure.seasons]
    return max(10, int(np.ceil(2.0 * max(periods, default=0.0))))


def backtest_one(
    fitted: Fitted, horizon: int, every: int, origins: int | None, level: float, refit: bool, options: dict[str, Any]
) -> dict[str, np.ndarray]:
    """All forecasts of one series, with their scores: one column per name."""
    rows = fitted.rows
    found = []
    for before in origins_of(rows, horizon, every, origins, least_rows(fitted)):
        past = rows.take(np.arange(before))
        known = fit_rows(fitted.specification, fitted.calendar, past, options) if refit else update(fitted, past)
        found.append(_scored(known, _ahead(rows, before, horizon), level))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _ahead(rows: Rows, before: int, horizon: int) -> Rows:
    """The rows of the next times."""
    later = np.unique(rows.times[before:])[:horizon]
    return rows.take(np.flatnonzero((rows.times >= later[0]) & (rows.times <= later[-1])))


def _scored(known: Fitted, ahead: Rows, level: float) -> dict[str, np.ndarray]:
    prediction = known.predict(ahead.times, ahead.table)
    columns = summarised(prediction, [level])
    y, steps = ahead.y, np.unique(ahead.times, return_inverse=True)[1].ravel() + 1
    scale = naive_error(known.rows.y, main_period(known))
    crps = crps_from_quantiles(prediction.quantile(LEVELS), y)
    error = np.abs(columns["median"] - y)
    covered = np.where(np.isfinite(y), (columns["lower"] <= y) & (y <= columns["upper"]), np.nan)
    origin = np.repeat(known.rows.times[-1:], y.size)
    return {
        "origin": origin,
        "time": ahead.times,
        "step": steps,
        "y": y,
        **columns,
        "crps": crps,
        "scaled_crps": crps / scale,
        "log_score": -known.log_scores(ahead),
        "coverage": covered.astype(float),
        "mae": error,
        "mase": error / scale,
    }


def main_period(fitted: Fitted) -> int:
    """The period of the seasonal naive forecast, in rows: that of the shortest season."""
    periods = [fitted.calendar.rows_per(period) for period in fitted.structure.seasons]
    return max(1, round(min(periods, default=1.0)))


def assembled(
    found: dict[Any, dict[str, np.ndarray]],
    fits: dict[Any, Fitted],
    names: tuple[str, str | None],
    level: float,
    library: str,
    failures: dict[Any, str],
) -> Backtest:
    """The tables of a backtest: of one series, whose key is None, or of several."""
    time, series = names
    frames, scores, steps = [], [], []
    for key, columns in found.items():
        own = {} if series is None else {series: key}
        calendar = fits[key].calendar
        count = columns["y"].size
        stamps = {name: written(calendar, columns[which]) for name, which in (("origin", "origin"), (time, "time"))}
        rest = {name: values for name, values in columns.items() if name not in ("origin", "time")}
        frames.append({**{name: [value] * count for name, value in own.items()}, **stamps, **rest})
        scores.append({**own, **averages(columns, np.ones(count, dtype=bool))})
        steps += [
            {**own, "step": int(step), **averages(columns, columns["step"] == step)}
            for step in np.unique(columns["step"])
        ]
    return Backtest(joined(frames, library), _table(scores, library), _table(steps, library), level, failures)


def _table(rows: list[dict[str, Any]], library: str) -> Any:
    return make_frame({name: np.array([row[name] for row in rows]) for name in rows[0]}, library)


def joined(frames: list[dict[str, Any]], library: str) -> Any:
    """Tables with the same columns, below each other, as one data frame."""
    if len(frames) == 1:
        return make_frame(frames[0], library)
    import narwhals as nw

    parts = [nw.from_native(make_frame(frame, library), eager_only=True) for frame in frames]
    return nw.maybe_reset_index(nw.concat(parts, how="vertical")).to_native()


__all__ = ["SCORES", "Backtest", "assembled", "backtest_one", "joined"]
