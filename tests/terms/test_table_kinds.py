"""The same table in every library: the same columns, levels, answers and predictions."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import newtongp as ng
from newtongp.terms import Group, Linear, RandomWalk, Season, Smooth
from newtongp.terms.table import Table

N = 24
_RNG = np.random.default_rng(5)
WORDS = [str(word) for word in np.array(["low", "mid", "high"])[_RNG.integers(0, 3, N)]]
AGES = [int(age) for age in _RNG.integers(20, 26, N)]
DATES = [datetime.date(2020, 1, 1) + datetime.timedelta(days=9 * i) for i in range(N)]
STAMPS = [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=7 * i) for i in range(N)]
SEEN = [bool(flag) for flag in _RNG.integers(0, 2, N)]
COUNTS = [int(count) for count in _RNG.poisson(2.0, N)]
COLUMNS = {
    "word": WORDS,
    "age": AGES,
    "date": DATES,
    "stamp": STAMPS,
    "seen": SEEN,
    "patient": [17 + i % 5 for i in range(N)],
    "count": COUNTS,
}
ORDER = ["low", "mid", "high"]

TABLES = {
    "lists": COLUMNS,
    "arrays": {name: np.asarray(values) for name, values in COLUMNS.items()},
    "pandas": pd.DataFrame(COLUMNS).assign(stamp=lambda t: pd.to_datetime(t["stamp"])),
    "pandas, its own types": pd.DataFrame(COLUMNS).astype(
        {"word": "string", "age": "Int64", "seen": "boolean", "patient": "Int32", "count": "Float64"}
    ),
    "pandas, categories": pd.DataFrame(COLUMNS).astype({"word": "category", "patient": "category"}),
    "pandas, another index": pd.DataFrame(COLUMNS, index=np.arange(N)[::-1] + 100),
    "pandas, Arrow types": pd.DataFrame(COLUMNS).astype({"word": "string[pyarrow]", "age": "int64[pyarrow]"}),
    "polars": pl.DataFrame(COLUMNS),
    "polars, categories": pl.DataFrame(COLUMNS).with_columns(pl.col("word").cast(pl.Categorical)),
    "pyarrow": pa.table(COLUMNS),
    "pyarrow, dictionaries": pa.table({**COLUMNS, "word": pa.array(WORDS).dictionary_encode()}),
    "pyarrow, a batch": pa.RecordBatch.from_pydict(COLUMNS),
}
TERMS = Linear("word", "seen", "age") + Group("patient") + Season("stamp", "1w") + Season("date", "1y")
NEW = {name: values[:3] for name, values in COLUMNS.items()}
NEW["patient"] = [17, 18, 99]


@pytest.fixture(scope="module")
def wanted():
    return _answers(COLUMNS)


def _answers(table):
    result = ng.infer(ng.Model(TERMS, "poisson"), table, "count", ng.Newton())
    return result.energy, result.predict(NEW).mean


@pytest.mark.parametrize("kind", TABLES)
def test_same_answers(kind, wanted):
    energy, mean = _answers(TABLES[kind])
    assert abs(energy - wanted[0]) < 1e-10
    np.testing.assert_allclose(mean, wanted[1], rtol=1e-9)


@pytest.mark.parametrize("kind", TABLES)
def test_same_columns(kind):
    table = Table(TABLES[kind])
    assert table.rows == N and set(table.names) == set(COLUMNS)
    assert table["word"].levels() == ("high", "low", "mid") and not table["word"].is_numeric
    assert table["patient"].levels() == (17, 18, 19, 20, 21)
    assert table["age"].numbers().tolist() == AGES
    assert table["seen"].numbers().tolist() == [float(flag) for flag in SEEN]
    assert [int(level) for level in table["seen"].levels()] == [0, 1]
    assert table["count"].numbers_or_missing().tolist() == COUNTS
    assert table["stamp"].times() is not None and table["date"].times() is not None


ORDERED = {
    "pandas": pd.DataFrame({"word": pd.Categorical(WORDS, ORDER, ordered=True), "count": COUNTS}),
    "pandas, without an order": pd.DataFrame({"word": pd.Categorical(WORDS, [*ORDER, "never"]), "count": COUNTS}),
    "polars": pl.DataFrame({"word": WORDS, "count": COUNTS}).with_columns(pl.col("word").cast(pl.Enum(ORDER))),
    "pyarrow": pa.table(
        {
            "word": pa.DictionaryArray.from_arrays(pa.array([ORDER.index(w) for w in WORDS]), ORDER, ordered=True),
            "count": COUNTS,
        }
    ),
}


@pytest.mark.parametrize("kind", ORDERED)
def test_declared_order_of_levels(kind):
    column = Table(ORDERED[kind])["word"]
    assert column.levels() == tuple(ORDER)  # a category without rows has no effect
    assert column.categories is not None and column.categories[:3] == tuple(ORDER)


@pytest.mark.slow
def test_walk_over_declared_order():
    answers = [
        ng.infer(ng.Model(Linear() + RandomWalk("word"), "poisson"), ORDERED[kind], "count").energy for kind in ORDERED
    ]
    assert np.ptp(answers) < 1e-10
    numbers = {"word": [ORDER.index(word) for word in WORDS], "count": COUNTS}
    assert (
        abs(ng.infer(ng.Model(Linear() + RandomWalk("word"), "poisson"), numbers, "count").energy - answers[0]) < 1e-10
    )


MISSING = {
    "lists": {"x": [1, None, 3, 4], "g": ["a", None, "b", "b"]},
    "masked": {"x": np.ma.array([1.0, 2.0, 3.0, 4.0], mask=[0, 1, 0, 0]), "g": ["a", None, "b", "b"]},
    "pandas": pd.DataFrame({"x": pd.array([1, None, 3, 4], "Int64"), "g": pd.array(["a", None, "b", "b"], "string")}),
    "pandas, floats": pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "g": pd.Categorical(["a", None, "b", "b"])}),
    "polars": pl.DataFrame({"x": [1, None, 3, 4], "g": ["a", None, "b", "b"]}),
    "pyarrow": pa.table({"x": [1, None, 3, 4], "g": ["a", None, "b", "b"]}),
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_entries(kind):
    table = Table(MISSING[kind])
    np.testing.assert_array_equal(table["x"].numbers_or_missing(), [1.0, np.nan, 3.0, 4.0])
    with pytest.raises(ValueError, match="column 'x' must be finite, but row 1 is missing"):
        table["x"].numbers()
    with pytest.raises(ValueError, match="column 'g' has no level in row 1"):
        table["g"].levels()


@pytest.mark.parametrize("kind", ["lists", "pandas", "polars", "pyarrow"])
def test_missing_y_is_a_missing_row(kind):
    table = {"x": [1.0, 2.0, 3.0, 4.0], "y": [1, None, 3, 4]}
    make = {"lists": dict, "pandas": lambda t: pd.DataFrame(t), "polars": pl.DataFrame, "pyarrow": pa.table}[kind]
    result = ng.infer(ng.Model(Linear("x"), "poisson"), make(table), "y", ng.Newton())
    assert result.data.observed.tolist() == [True, False, True, True]


@pytest.mark.slow
def test_y_is_aligned():
    frame = TABLES["pandas, another index"]
    model = ng.Model(Linear("age"), "poisson")
    energy = ng.infer(model, frame, "count").energy
    assert ng.infer(model, frame, frame["count"]).energy == energy
    with pytest.raises(ValueError, match="different indexes"):
        ng.infer(model, frame, frame["count"].sort_index())
    assert ng.infer(model, frame, frame["count"].to_numpy()).energy == energy
    assert ng.infer(model, pl.DataFrame(COLUMNS), pl.Series(COUNTS)).energy == energy


def test_numbers_as_levels():
    """Whole numbers are levels of a group, numbers of Linear, and levels of a smooth function's group."""
    table = Table({"g": [1.0, 2.0, 1.0], "h": np.array([True, False, True])})
    assert table["g"].levels() == (1, 2) and table["h"].levels() == (False, True)
    codes, new = table["g"].codes((1, 2))
    assert codes.tolist() == [0, 1, 0] and new == []
    codes, new = Table({"g": [2, 7]})["g"].codes((1, 2))
    assert codes.tolist() == [1, 2] and new == [7]


def test_large_identifiers_are_exact():
    identifiers = np.array([2**60, 2**60 + 1, 2**60])
    assert Table({"g": identifiers})["g"].levels() == (2**60, 2**60 + 1)
    assert Table(pd.DataFrame({"g": pd.array(identifiers, "Int64")}))["g"].levels() == (2**60, 2**60 + 1)
    assert Table(pl.DataFrame({"g": identifiers}))["g"].levels() == (2**60, 2**60 + 1)


@pytest.mark.slow
def test_dates_of_one_kind_predict_another():
    """A model of dates predicts at time stamps, whatever library holds them."""
    model = ng.Model(Linear() + Smooth("date", unit="D"), "poisson")
    result = ng.infer(model, pl.DataFrame(COLUMNS), "count", ng.Newton())
    wanted = result.predict({"date": [np.datetime64("2020-02-01")]}).mean
    assert result.predict(pd.DataFrame({"date": pd.to_datetime(["2020-02-01"])})).mean == wanted
    assert result.predict(pa.table({"date": [datetime.date(2020, 2, 1)]})).mean == wanted
