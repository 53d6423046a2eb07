"""`Forecaster`: forecasts of series by trend, seasons, holidays, regressors and interventions."""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..prediction.prediction import checked_level
from ..terms.table import Table, is_table, take_rows
from ..validation.arguments import flag, whole
from ..validation.frames import library_of, make_frame
from ..validation.text import listed
from . import many
from .backtest import Backtest, assembled, backtest_one, joined
from .calendar import read_times, written
from .fitted import Fitted, fit_rows, with_modes
from .pooling import POOLED, learned_from
from .rows import calendar_for, read_rows, warn_of_several_series
from .specification import AUTO, checked_options, read_specification

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Forecaster:
    """A model of a series, or of many: a trend, seasons, holidays, regressors and interventions.

    - `trend`: "linear" (the default; the slope returns to that of a line), "damped" (it returns to zero), "level" (no
      slope), "local" (a slope that is a random walk), "smooth" (the same without steps of the level), "cyclic" (swings
      around a line) or None; "auto" averages forecasts over "linear", "damped" and "cyclic" and, for positive y, over
      the scales of y and log y: see `structures`.
    - `season`: periods such as "1y", "1w", "1d" or ["1d", "1w"]; numbers, in its units, for a numeric time column;
      "auto" (the default), those that are usual for the step of the series and of which the data have at least two;
      None for no season.
    - `changing`: whether the patterns of seasons change slowly, in series of fewer than 300 rows.
    - `holidays`: a country of the package holidays, as in "DE" or "DE-BY", or a mapping from dates to names.
    - `regressors`: names of columns with numbers or labels. Forecasts then need a table with their future values.
    - `intervention`: a mapping from names to times: a start, or a start and an end, or an `Intervention`.
    - `likelihood`: a likelihood or its name; "auto" (the default): negative binomial for counts (whole numbers whose
      median is below 1000 and which vary as counts do), log-normal for other positive y, and Gaussian otherwise.

    - `pooled`: how hyperparameters of many series depend on each other. None (the default): not at all; "prior": they
      have a prior that is learned from all series, which helps short ones; "all": all series have the same, relative
      to their sizes.

    All other arguments are those of `newtongp.fit`.

    >>> import numpy as np
    >>> months = np.arange("2015-01", "2021-01", dtype="datetime64[M]")
    >>> sales = np.exp(4.0 + 0.3 * np.sin(np.arange(72) * np.pi / 6.0)) + np.arange(72)
    >>> forecaster = Forecaster().fit({"month": months, "sales": sales}, time="month", y="sales")
    >>> forecaster.forecast(12).columns.tolist()
    ['month', 'mean', 'median', 'lower', 'upper']
    """

    def __init__(
        self,
        trend: Any = "linear",
        season: Any = AUTO,
        *,
        changing: bool = True,
        holidays: Any = None,
        regressors: Any = (),
        intervention: Any = None,
        likelihood: Any = AUTO,
        pooled: str | None = None,
        **options: Any,
    ):
        self.specification = read_specification(trend, season, changing, holidays, regressors, intervention, likelihood)
        if pooled not in POOLED:
            raise ValueError(f"pooled must be 'prior', 'all' or None, got {pooled!r}")
        self.options, self.pooled = checked_options(options), pooled
        self.fits: dict[Any, Fitted] = {}
        """The fitted series by label; without a series column there is one, whose label is None."""
        self.failures: dict[Any, str] = {}
        """Series that could not be fitted, and why."""
        self.columns: tuple[str, str, str | None, str] = "", "", None, "pandas"
        """The columns of times, of y and of series, and the library of the table, once fitted."""

    def fit(
        self,
        table: Any,
        time: str,
        y: str,
        series: str | None = None,
        *,
        workers: int | None = None,
        progress: bool = False,
    ) -> "Forecaster":
        """Learn from a table: its columns of times and of y, and of the labels of series if there are several.

        Series are fitted on `workers` threads, by default one per core. One that fails is left out, with a warning; see
        `failures`.
        """
        if not is_table(table):
            raise ValueError(f"give a data frame, or a mapping of columns, got {type(table).__name__}")
        parts = {None: None} if series is None else many.split(table, series)

        def learn(chosen: Any) -> Fitted:
            own = table if chosen is None else take_rows(table, chosen)
            rows, flavour = read_rows(own, time, y)
            if chosen is None:
                warn_of_several_series(rows, self.specification.regressors)
            return fit_rows(self.specification, calendar_for(rows, flavour), rows, self.options)

        if series is None:
            fits, failures = {None: learn(None)}, {}
        else:
            fits, failures = many.for_each(learn, parts, workers, flag(progress, "progress"), "fitted")
            if self.pooled is not None:
                fits, more = self._pooled(fits, workers, progress)
                failures = {**failures, **more}
        self.fits, self.failures = fits, failures
        self.columns = time, y, series, library_of(table)
        return self

    def _pooled(self, fits: dict[Any, Fitted], workers: int | None, progress: bool) -> tuple[Any, dict[Any, str]]:
        """The series again, with what the hyperparameters of all have in common."""
        change = learned_from(list(fits.values())).modes

        def again(fitted: Fitted) -> Fitted:
            if self.pooled == "all":
                return with_modes(fitted, change)
            return fit_rows(fitted.specification, fitted.calendar, fitted.rows, self.options, change)

        return many.for_each(again, fits, workers, progress, "pooled")

    @property
    def result(self) -> Any:
        """The result of `newtongp.fit`, if there is one series: summaries, effects and everything else.

        Of several structures it is that of the one with the largest weight.
        """
        fits = self._fitted()
        label = next(iter(fits))
        if len(fits) > 1:
            raise ValueError(
                f"result is of one series, and this forecaster has {len(fits)}: use forecaster.fits[{label!r}].result"
            )
        return fits[label].result

    @property
    def structures(self) -> Any:
        """A data frame with what forecasts are averaged over: trend, likelihood, weight and energy of every structure.

        The energy is minus the log evidence, plus what the logarithms of hyperparameters are away from their priors.
        """
        rows = []
        for label, fitted in self._fitted().items():
            own = {} if self._series is None else {self._series: label}
            rows += [
                {
                    **own,
                    "trend": str(one.structure.trend),
                    "likelihood": type(one.structure.likelihood).__name__,
                    "weight": one.weight,
                    "energy": one.energy,
                }
                for one in fitted.members
            ]
        return make_frame({name: np.array([row[name] for row in rows]) for name in rows[0]}, self._library)

    def forecast(self, horizon: Any, level: Any = 0.9) -> Any:
        """A data frame with the mean, the median and an interval of future y, for each series.

        `horizon` is a number of steps after the last row, or a table with the times to forecast (and regressors, and
        the column of series). With several levels, names of intervals end in their level, as in `lower_80`.
        """
        levels = _levels(level)
        return self._frames(horizon, lambda fitted, times, table: fitted.forecast(times, table, levels))

    def components(self, table: Any = None, level: float = 0.9) -> Any:
        """A data frame with the posterior of trend, seasons and effects, at the rows of the data or of a table.

        They are on the scale of the latent, on which they add up: with counts and log-normal y, that of log y, so that
        exp of a component is a factor. `table` may also be a number of steps after the last row.
        """
        level = checked_level(level)

        def found(fitted: Fitted, times: np.ndarray, own: Any) -> dict[str, Any]:
            columns = fitted.components(times, own, level)
            return {self._time: np.tile(times, columns["mean"].size // times.size), **columns}

        return self._frames(table, found)

    def effects(self, level: float = 0.9, n: int = 2000, key: Any = 0) -> Any:
        """A data frame with what every intervention has changed in the data, on the scale of y.

        `estimate` is the average difference of expected y per active row, with and without it, `lower` and `upper` its
        interval, from `n` joint draws, and `total` the sum over all active rows.
        """
        rows = []
        for label, fitted in self._fitted().items():
            own = {} if self._series is None else {self._series: label}
            rows += [{**own, **row} for row in fitted.effects(checked_level(level), n, key)]
        if not rows:
            raise ValueError(
                "there are no interventions that the data have seen: give intervention={'law': '2013-02-01'}"
            )
        return make_frame({name: np.array([row[name] for row in rows]) for name in rows[0]}, self._library)

    def backtest(
        self,
        horizon: int,
        every: int | None = None,
        *,
        origins: int | None = None,
        level: float = 0.9,
        refit: bool = True,
        workers: int | None = None,
        progress: bool = False,
    ) -> Backtest:
        """Forecast from earlier origins, every `every` steps (by default `horizon`), and score the forecasts.

        The data before an origin are at least two periods of the longest season, and ten rows. `origins` is the largest
        number of origins. Hyperparameters are learned again at every origin; with `refit=False` they stay as they are.
        """
        horizon = whole(horizon, "horizon", 1, such_as=12)
        every = horizon if every is None else whole(every, "every", 1, such_as=12)
        origins = None if origins is None else whole(origins, "origins", 1, such_as=5)
        fits = self._fitted()

        def test(fitted: Fitted) -> dict[str, np.ndarray]:
            return backtest_one(fitted, horizon, every, origins, checked_level(level), refit, self.options)

        if self._series is None:
            found, failures = {None: test(fits[None])}, {}
        else:
            found, failures = many.for_each(test, fits, workers, flag(progress, "progress"), "tested")
        return assembled(found, fits, (self._time, self._series), float(level), self._library, failures)

    def plot(self, horizon: Any = None, level: float = 0.9, axes: Any = None, *, series: Any = None) -> "Figure":
        """The data, the fitted mean, and the forecast with its interval; of several series, that with this label."""
        from .plots import plot_forecast

        label = self._label(series)
        if is_table(horizon) and self._series is not None:
            places = self._places(horizon)
            if label not in places:
                raise ValueError(f"the table has no rows of the series {label!r}: leave it out, or give its times")
            horizon = places[label][2]
        return plot_forecast(self._fitted()[label], horizon, checked_level(level), axes)

    def plot_components(self, level: float = 0.9, axes: Any = None, *, series: Any = None) -> "Figure":
        """One panel per component: the trend over time, seasons over one period, and effects."""
        from .plots import plot_components

        return plot_components(self._fitted()[self._label(series)], checked_level(level), axes)

    @property
    def _time(self) -> str:
        return self.columns[0]

    @property
    def _series(self) -> str | None:
        return self.columns[2]

    @property
    def _library(self) -> str:
        return self.columns[3]

    def save(self, path: Any) -> None:
        """Save the fitted forecaster, with its data, in a file that contains no code.

        A file describes up to some hundred results: of more series, save parts.
        """
        from .saved import save

        self._fitted()
        save(self, path)

    @classmethod
    def load(cls, path: Any, classes: Iterable[Any] = ()) -> "Forecaster":
        """Load what `save` wrote; `classes` are those of `newtongp.load`."""
        from .saved import load

        return load(cls, path, classes)

    def __repr__(self) -> str:
        if not self.fits:
            return "Forecaster, not fitted"
        if self._series is not None:
            return f"Forecaster of {len(self.fits)} series ({len(self.failures)} failed)"
        return repr(self.fits[None]).replace("Fitted", "Forecaster", 1)

    def _fitted(self) -> dict[Any, Fitted]:
        if not self.fits:
            raise ValueError("this forecaster has not been fitted: call fit(table, time='date', y='sales') first")
        return self.fits

    def _label(self, series: Any) -> Any:
        """The label of the only series, or of the one that is wanted."""
        fits = self._fitted()
        if series is None and len(fits) == 1:
            return next(iter(fits))
        if isinstance(series, Hashable):
            if series in fits:
                return series
            if series in self.failures:
                raise ValueError(f"the series {series!r} was not fitted: {self.failures[series]}")
        if self._series is None:
            raise ValueError(f"this forecaster has one series without a label, got series={series!r}: leave it out")
        problem = "" if series is None else f", none of which has the label {series!r}"
        raise ValueError(
            f"a plot is of one series, and this forecaster has {len(fits)}{problem}: choose one with series=, of "
            f"{listed(fits)}"
        )

    def _frames(self, where: Any, columns_of: Any) -> Any:
        """A data frame with the columns of every series at its future times, or at the rows of a table."""

        def frame(place: Any) -> dict[str, Any]:
            label, (fitted, times, own) = place
            found = columns_of(fitted, times, own)
            count = next(iter(found.values())).size
            stamps = found.pop(self._time, times)
            labels = {} if self._series is None else {self._series: [label] * count}
            return {**labels, self._time: written(fitted.calendar, stamps), **found}

        return joined(many.in_threads(frame, list(self._places(where).items())), self._library)

    def _places(self, where: Any) -> dict[Any, tuple[Fitted, np.ndarray, Any]]:
        """For every series the times that a horizon or a table stands for, and its own table."""
        fits = self._fitted()
        if where is None:
            return {label: (fitted, fitted.rows.times, fitted.rows.table) for label, fitted in fits.items()}
        if not is_table(where):
            steps = whole(where, "horizon", 1, such_as=12)
            return {
                label: (fitted, fitted.calendar.future(fitted.rows.times[-1], steps), None)
                for label, fitted in fits.items()
            }
        tables = {None: where}
        if self._series is not None:
            tables = {label: take_rows(where, rows) for label, rows in many.split(where, self._series).items()}
            unknown = [label for label in tables if label not in fits]
            if unknown:
                raise ValueError(f"the series {unknown[0]!r} was not fitted: leave its rows out")
        return {label: (fits[label], read_times(Table(own), self._time)[0], own) for label, own in tables.items()}


def _levels(level: Any) -> list[float]:
    given = level if isinstance(level, (list, tuple, np.ndarray)) else [level]
    return [checked_level(one) for one in given]
