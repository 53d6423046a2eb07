"""Data frames and columns of polars and pyarrow are read as those of pandas are."""

import datetime

import numpy as np
import pandas as pd
import pytest

import newtongp as ng

X = {"east": [0.0, 1.0, 2.0, 4.0], "north": [3.0, -1.0, 0.5, 2.0]}
NEW = {"north": [1.0, 2.0], "east": [0.5, 3.0]}  # in another order than X
COUNTS = [1, None, 3, 0]
PLANE = ng.Model(ng.GP(ng.kernels.RBF([1.0, 2.0])), "poisson")
TIME = ng.Model(ng.MarkovGP(ng.kernels.Matern32(), unit="D"), "poisson")
HELSINKI = datetime.timezone(datetime.timedelta(hours=2))


class Library:
    """How a library makes frames and columns."""

    def __init__(self, name):
        if name == "polars":
            polars = pytest.importorskip("polars")
            self.frame, self.column = polars.DataFrame, polars.Series
        else:
            pyarrow = pytest.importorskip("pyarrow")
            self.frame, self.column = pyarrow.table, lambda values: pyarrow.chunked_array([values])


@pytest.fixture(params=["polars", "pyarrow"])
def library(request):
    return Library(request.param)


def stamps(zone=None):
    return [datetime.datetime(2020, 1, day, 6, tzinfo=zone) for day in (1, 2, 4, 9)]


def test_columns_are_matched_by_name_and_nulls_in_y_are_missing(library):
    wanted = ng.infer(PLANE, pd.DataFrame(X), pd.Series(COUNTS, dtype="Int64"))
    for y in (library.column(COUNTS), library.frame({"count": COUNTS})):
        result = ng.infer(PLANE, library.frame(X), y)
        assert result.energy == wanted.energy
        assert result.data.observed.tolist() == [True, False, True, True]
        np.testing.assert_array_equal(result.predict(library.frame(NEW)).mean, wanted.predict(pd.DataFrame(NEW)).mean)
    with pytest.raises(ValueError, match=r"x_new must have the columns of x, 'east', 'north', but 'east' is missing"):
        result.predict(library.frame({"north": [1.0]}))


def test_nulls_in_x_are_refused(library):
    with pytest.raises(ValueError, match="x must be finite, but row 1, column 0 is nan: drop that row"):
        ng.infer(PLANE, library.frame({**X, "east": [0.0, None, 2.0, 4.0]}), [1.0, 2.0, 3.0, 0.0])


@pytest.mark.parametrize("zone", [None, datetime.UTC, HELSINKI])
def test_time_stamps_are_the_same_times(library, zone):
    wanted = ng.infer(TIME, pd.Series(stamps(zone)), [1.0, 2.0, 3.0, 0.0])
    for x in (library.column(stamps(zone)), library.frame({"t": stamps(zone)})):
        result = ng.infer(TIME, x, [1.0, 2.0, 3.0, 0.0])
        np.testing.assert_array_equal(result.data.x, wanted.data.x)
        assert result.columns.kind == wanted.columns.kind


def test_dates_are_the_same_times(library):
    days = [stamp.date() for stamp in stamps()]
    found = ng.infer(TIME, library.column(days), [1.0, 2.0, 3.0, 0.0]).data.x
    np.testing.assert_array_equal(found, ng.infer(TIME, days, [1.0, 2.0, 3.0, 0.0]).data.x)


def test_times_and_numbers_are_not_mixed_in_a_frame(library):
    for other in ([1, 2, 3, 4], stamps(HELSINKI)):
        with pytest.raises(ValueError, match=r"x must hold numbers, or time stamps of one kind, got .* in row 0, "):
            ng.infer(TIME, library.frame({"t": stamps(), "other": other}), [1.0, 2.0, 3.0, 0.0])


def test_text_in_a_frame_is_refused(library):
    with pytest.raises(ValueError, match=r"x must hold real numbers, got .* with 'u'"):
        ng.infer(PLANE, library.frame({"east": [1.0, 2.0], "north": ["u", "v"]}), [1.0, 2.0])


def test_frames_are_read_in_batches(library):
    sparse = ng.Model(ng.SparseGP(ng.kernels.RBF([1.0, 2.0]), [[0.0, 1.0], [2.0, 0.0]]), "poisson")
    result = ng.infer(sparse, library.frame(X), library.column([1, 2, 3, 0]), batch_size=4)
    assert result.columns.names == ("east", "north")
    assert result.energy == ng.infer(sparse, pd.DataFrame(X), [1, 2, 3, 0], batch_size=4).energy


def test_arrays_and_batches_of_pyarrow_are_the_same_times():
    pyarrow = pytest.importorskip("pyarrow")
    wanted = ng.infer(TIME, stamps(HELSINKI), [1.0, 2.0, 3.0, 0.0])
    for x in (pyarrow.array(stamps(HELSINKI)), pyarrow.RecordBatch.from_pydict({"t": stamps(HELSINKI)})):
        result = ng.infer(TIME, x, [1.0, 2.0, 3.0, 0.0])
        np.testing.assert_array_equal(result.data.x, wanted.data.x)
        assert result.columns.kind == wanted.columns.kind


@pytest.mark.parametrize(("zone", "other"), [(None, datetime.UTC), (datetime.UTC, None)])
def test_stamps_with_and_without_a_zone_are_not_mixed(library, zone, other):
    result = ng.infer(TIME, library.column(stamps(zone)), [1.0, 2.0, 3.0, 0.0])
    with pytest.raises(ValueError, match="x_new must hold time stamps with"):
        result.predict(library.column(stamps(other)))
