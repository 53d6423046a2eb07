"""Time stamps of NumPy, Python and pandas are the same numbers, exactly; and what is refused."""

import datetime
import fractions
import pickle
import re
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng
from newtongp.inputs.data import read_data, read_inputs
from newtongp.priors.base import Prior
from newtongp.validation.times import Clock, as_clock, read_times

pytestmark = pytest.mark.versions

HOURS = [0, 5, 30, 47]
STAMPS = np.datetime64("2024-02-28T06", "h") + np.array(HOURS) * np.timedelta64(1, "h")
HELSINKI = datetime.timezone(datetime.timedelta(hours=2))
PYTHON = [stamp.item() for stamp in STAMPS.astype("datetime64[us]")]
AWARE = [stamp.replace(tzinfo=datetime.UTC).astimezone(HELSINKI) for stamp in PYTHON]
DAYS = 365 * 24 + 6 + 31 + 27 + 0.25
"""From 2000-01-01 to 2024-02-28T06: 24 years, of which 2000 to 2020 in steps of four are leap years."""
NUMBERS = DAYS + np.array(HOURS) / 24.0


class Timed(Prior):
    """A GP over time, whose lengthscales have a unit."""

    gp: ng.GP
    clock: Clock | None = eqx.field(static=True)

    def __init__(self, unit=None, origin=None):
        self.gp = ng.GP(ng.kernels.Matern32(lengthscale=2.0))
        self.clock = as_clock(unit, origin)

    @property
    def num_latents(self):
        return 1

    def check_inputs(self, x):
        self.gp.check_inputs(x)

    def prepare(self, x):
        return self.gp.prepare(x)

    def condition(self, workspace, sites):
        return self.gp.condition(workspace, sites)


def model(unit="D", origin=None):
    return ng.Model(Timed(unit, origin), ng.likelihoods.Poisson())


def refuses(call, *fragments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


INDEX = pd.DatetimeIndex(STAMPS)
KINDS = {
    "datetime64[h]": STAMPS,
    "datetime64[ns]": STAMPS.astype("datetime64[ns]"),
    "big-endian": STAMPS.astype(">M8[us]"),
    "multiples": STAMPS.astype("datetime64[30m]"),
    "a column": STAMPS[:, None],
    "a list of datetime64": list(STAMPS),
    "a list of rows": [[stamp] for stamp in STAMPS],
    "a list of arrays": [np.array([stamp]) for stamp in STAMPS.astype("datetime64[ns]")],
    "several resolutions": [STAMPS[0].astype("datetime64[ns]"), *STAMPS[1:]],
    "objects": STAMPS.astype("datetime64[us]").astype(object),
    "datetime": PYTHON,
    "a tuple": tuple(PYTHON),
    "datetime in a zone": AWARE,
    "several zones": [*AWARE[:2], *(stamp.astimezone(datetime.UTC) for stamp in AWARE[2:])],
    "masked without a mask": np.ma.array(STAMPS),
    "index": INDEX,
    "index in a zone": INDEX.tz_localize("UTC").tz_convert("Europe/Helsinki"),
    "series": pd.Series(INDEX, index=[3, 2, 1, 0]),
    "series in a zone": pd.Series(INDEX.tz_localize("UTC").tz_convert("America/New_York")),
    "microseconds": pd.Series(INDEX.as_unit("us")),
    "microseconds in a zone": INDEX.as_unit("us").tz_localize("UTC"),
    "objects in a series": pd.Series(list(INDEX), dtype=object),
    "Timestamps": list(INDEX),
    "Timestamps in a zone": list(INDEX.tz_localize("UTC").tz_convert("Asia/Tokyo")),
    "frame": pd.DataFrame({"t": INDEX}),
    "frame in a zone": pd.DataFrame({"t": INDEX.tz_localize("UTC").tz_convert("Asia/Tokyo")}),
    "Timestamp and datetime": [INDEX[0], *PYTHON[1:]],
}


@pytest.mark.parametrize("kind", KINDS)
def test_stamps_of_many_kinds_are_the_same_numbers(kind):
    np.testing.assert_array_equal(read_inputs(KINDS[kind], model()), NUMBERS[:, None])


def test_dates_are_their_midnights():
    dates = [datetime.date(2000, 1, 3), datetime.date(1999, 12, 31)]
    np.testing.assert_array_equal(read_inputs(dates, model("h")), [[48.0], [-24.0]])
    months = np.array(["2000-02", "2001-01"], dtype="datetime64[M]")
    np.testing.assert_array_equal(read_inputs(months, model()), [[31.0], [366.0]])
    years = np.array(["2001", "1999"], dtype="datetime64[Y]")
    np.testing.assert_array_equal(read_inputs(years, model()), [[366.0], [-365.0]])


def test_durations_count_from_the_origin():
    wanted = np.array([[0.5], [36.0]])
    durations = np.array([30, 36 * 60], dtype="timedelta64[m]")
    for given_as in (
        durations,
        list(durations),
        [datetime.timedelta(minutes=30), datetime.timedelta(days=1.5)],
        pd.TimedeltaIndex(durations.astype("timedelta64[s]")),
        pd.Series(durations.astype("timedelta64[s]")),
        [pd.Timedelta("30min"), pd.Timedelta("36h")],
    ):
        np.testing.assert_array_equal(read_inputs(given_as, model("h", "2020-05-01")), wanted)


def test_numbers_are_taken_as_they_are():
    np.testing.assert_array_equal(read_inputs(NUMBERS, model()), NUMBERS[:, None])
    np.testing.assert_array_equal(read_inputs([1, 2], model("h")), [[1.0], [2.0]])


@pytest.mark.slow
def test_a_result_predicts_at_stamps_and_at_numbers_alike():
    y = [3, 1, 4, 1]
    stamps = ng.infer(model(), STAMPS, y)
    numbers = ng.infer(ng.Model(Timed().gp, ng.likelihoods.Poisson()), NUMBERS, y)
    assert stamps.energy == numbers.energy
    later = [datetime.datetime(2024, 3, 1), datetime.datetime(2024, 3, 2, 12)]
    expected = numbers.predict(read_inputs(later, model())).mean
    np.testing.assert_allclose(stamps.predict(later).mean, expected, rtol=1e-14)
    np.testing.assert_allclose(stamps.predict(np.array(later, dtype="datetime64[ns]")).mean, expected, rtol=1e-14)
    of_numbers = numbers.log_density(read_inputs(later, model()), [1, 2])
    np.testing.assert_allclose(stamps.log_density(later, [1, 2]), of_numbers, rtol=1e-13)


@pytest.mark.parametrize(
    ("unit", "length"),
    [
        ("W", np.timedelta64(7, "D")),
        ("D", np.timedelta64(1, "D")),
        ("h", np.timedelta64(1, "h")),
        ("m", np.timedelta64(60, "s")),
        ("s", np.timedelta64(1, "s")),
        ("ns", np.timedelta64(1, "ns")),
        (np.timedelta64(7, "D"), np.timedelta64(7, "D")),
        (np.timedelta64(90, "m"), np.timedelta64(5400, "s")),
        (np.timedelta64(2, "W"), np.timedelta64(14, "D")),
        (datetime.timedelta(hours=1), np.timedelta64(1, "h")),
        (datetime.timedelta(microseconds=5), np.timedelta64(5, "us")),
    ],
)
def test_units(unit, length):
    assert Clock(unit).unit == length
    assert as_clock(unit) == Clock(length)


def test_equal_clocks_are_equal_and_have_equal_hashes():
    clock = Clock("D", "2020-01-01")
    same = [
        Clock(np.timedelta64(24, "h"), np.datetime64("2020-01-01T00", "ns")),
        Clock(datetime.timedelta(days=1), datetime.datetime(2020, 1, 1)),
        Clock("D", datetime.datetime(2020, 1, 1, 2, tzinfo=HELSINKI)),
        Clock("D", "2020-01-01T02:00+02:00"),
        Clock("D", "20200101"),
        Clock("D", datetime.date(2020, 1, 1)),
        Clock("D", np.datetime64("2020")),
        pickle.loads(pickle.dumps(clock)),
        as_clock(clock),
    ]
    assert all(other == clock and hash(other) == hash(clock) for other in same)
    assert clock != Clock("D") and clock != Clock("h", "2020-01-01")
    # It is static to JAX.
    assert not any(isinstance(leaf, Clock) for leaf in jax.tree.leaves(Timed("D")))


def test_pandas_durations_are_units_too():
    assert Clock(pd.Timedelta("15min")) == Clock(np.timedelta64(15, "m"))
    assert Clock("D", pd.Timestamp("2020-01-01", tz="UTC")) == Clock("D", "2020-01-01")


@pytest.mark.slow
@given(
    st.integers(-(2**62), 2**62),
    st.sampled_from(["D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]),
    st.sampled_from(["W", "D", "h", "s", "ns", "as", np.timedelta64(7, "h"), np.timedelta64(13, "us")]),
    st.integers(-(2**62), 2**62),
    st.sampled_from(["s", "us", "ns", "as"]),
)
def test_numbers_are_exact_up_to_one_rounding(count, resolution, unit, origin, origin_resolution):
    """Whatever the resolutions: not even years that NumPy itself would overflow on go wrong."""
    lengths = {"D": 86400 * 10**18, "h": 3600 * 10**18, "m": 60 * 10**18, "s": 10**18, "ms": 10**15, "us": 10**12}
    lengths |= {"ns": 10**9, "ps": 10**6, "fs": 10**3, "as": 1}
    clock = Clock(unit, np.datetime64(origin, origin_resolution))
    name, size = np.datetime_data(clock.unit.dtype)[0], int(clock.unit.astype(np.int64))
    exact = fractions.Fraction(count * lengths[resolution] - origin * lengths[origin_resolution], size * lengths[name])
    found = clock.numbers(np.array([count], dtype=f"datetime64[{resolution}]"))[0]
    # A tick that the origin lies within is not resolved better than the tick itself.
    slack = max(abs(exact), fractions.Fraction(lengths[resolution], size * lengths[name]))
    assert abs(fractions.Fraction(found) - exact) <= slack * fractions.Fraction(4, 2**53)


def test_no_digits_are_lost_to_nanoseconds():
    """8e17 nanoseconds after 2000 have more digits than a double, but an origin near the data needs few."""
    stamps = np.datetime64("2026-03-01T00:00:00", "ns") + np.array([0, 1, 2, 1_000_000_007])
    clock = Clock("ns", origin="2026-03-01")
    np.testing.assert_array_equal(clock.numbers(stamps), [0.0, 1.0, 2.0, 1_000_000_007.0])
    np.testing.assert_array_equal(Clock("s", "2026-03-01").numbers(stamps), [0.0, 1e-9, 2e-9, 1.000000007])
    # With the default origin the documented resolution is what there is.
    seconds = Clock("s").numbers(stamps)
    assert np.spacing(seconds[0]) < 1.3e-7
    assert seconds[3] - seconds[0] == pytest.approx(1.0, abs=2e-7)


def test_resolutions_that_numpy_would_overflow_on_are_kept_apart():
    stamps = [np.datetime64("3000-01-01", "s"), np.datetime64("2000-01-02", "ns")]
    days = (datetime.date(3000, 1, 1) - datetime.date(2000, 1, 1)).days
    np.testing.assert_array_equal(read_inputs(stamps, model()), [[days], [1.0]])
    far = Clock("D", np.datetime64(1, "ns")).numbers(np.array(["9999-01-01"], dtype="datetime64[D]"))
    assert far[0] == pytest.approx((datetime.date(9999, 1, 1) - datetime.date(1970, 1, 1)).days, abs=1e-8)


def test_nat_is_nan_to_a_clock():
    stamps = np.array(["2000-01-02", "NaT"], dtype="datetime64[D]")
    np.testing.assert_array_equal(Clock("D").numbers(stamps), [1.0, np.nan])


def test_nothing_but_nat_and_none_is_missing_time():
    assert read_times([np.datetime64("NaT", "D"), None]).missing.tolist() == [True, True]


def test_things_without_time_hold_none():
    for value in (
        [1.0, 2.0],
        ["2020-01-01"],
        [None, None],
        [np.nan, None],
        np.zeros((2, 2)),
        None,
        [[1], [2, 3]],
        print,
    ):
        assert read_times(value) is None


BAD_UNITS = {
    "months": ("M", "fixed length", '"M"', 'use days, "D"', 'minutes are "m"'),
    "years": ("Y", "fixed length", '"Y"', "days", "8766"),
    "months as a duration": (np.timedelta64(3, "M"), "fixed length", "months"),
    "years as a duration": (np.timedelta64(1, "Y"), "fixed length", "years"),
    "a word": ("day", "unit must be", '"D"', "'day'"),
    "an old name": ("H", "unit must be", '"h"', "'H'"),
    "nothing": ("", "unit must be", "''"),
    "a number": (3.0, "unit must be", "3.0"),
    "a stamp": (np.datetime64("2020-01-01"), "unit must be", "2020-01-01"),
    "zero": (np.timedelta64(0, "D"), "positive", "0"),
    "negative": (datetime.timedelta(days=-1), "positive", "days=-1"),
    "NaT": (np.timedelta64("NaT", "D"), "positive", "NaT"),
    # NumPy warns of one that is made in any other way.
    "no unit of its own": (np.array([5], "timedelta64[D]").view("timedelta64")[0], "positive duration", "5"),
}


@pytest.mark.parametrize("case", BAD_UNITS)
def test_bad_units_are_refused(case):
    unit, *fragments = BAD_UNITS[case]
    refuses(lambda: Clock(unit), *fragments)
    refuses(lambda: as_clock(unit), *fragments)


@pytest.mark.parametrize(
    "origin",
    [
        "yesterday",
        "now",
        2020,
        np.timedelta64(1, "D"),
        np.datetime64("NaT", "D"),
        "2020-01-01T00:00:00.123456789",
        b"2020",
    ],
)
def test_bad_origins_are_refused(origin):
    refuses(lambda: Clock("D", origin), "origin must be a point in time", repr(origin))


def test_an_origin_needs_a_unit_and_a_clock_has_one():
    assert as_clock(None) is None
    refuses(lambda: as_clock(None, "2020-01-01"), "origin needs the unit", "'2020-01-01'")
    refuses(lambda: as_clock(Clock("D"), "2020-01-01"), "already has an origin")


BAD_INPUTS = {
    "NaT": (np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"), "row 1 is NaT", "drop that row"),
    "NaT of pandas": (pd.Series([pd.Timestamp("2020"), pd.NaT]), "row 1 is NaT"),
    "NaT in a list": ([pd.Timestamp("2020"), PYTHON[0], pd.NaT], "row 2 is NaT"),
    "only NaT": ([pd.NaT, pd.NaT], "row 0 is NaT"),
    "None": ([PYTHON[0], None], "row 1 is NaT"),
    "NaN": ([PYTHON[0], np.nan], "row 1 is NaT"),
    "masked": (np.ma.array(STAMPS, mask=[0, 0, 1, 0]), "row 2 is NaT"),
    "NaT in a zone": (pd.Series([pd.Timestamp("2020", tz="UTC"), pd.NaT]), "row 1 is NaT"),
    "NaT in the second column": (
        np.array([["2020-01-01", "2020-01-01"], ["2020-01-01", "NaT"]], dtype="datetime64[D]"),
        "row 1 is NaT",
    ),
    "a number among stamps": ([PYTHON[0], 3.0], "row 1, 3.0", "datetime.datetime(2024", "np.timedelta64"),
    "a stamp among numbers": ([1, 2, PYTHON[0]], "both 1 and, in row 2, datetime.datetime(2024"),
    "a number among durations": ([np.timedelta64(1, "D"), 3], "row 1, 3"),
    "a duration among stamps": ([STAMPS[0], np.timedelta64(1, "D")], "row 1, np.timedelta64(1,'D')"),
    "a string among stamps": ([STAMPS[0], "2024-02-29"], "row 1, '2024-02-29'"),
    "with and without a zone": ([PYTHON[0], AWARE[1]], "row 1", "give all of them a time zone, or none"),
    "a frame with numbers": (pd.DataFrame({"t": STAMPS, "a": range(4)}), "DataFrame", "row 0, 0"),
    "months": (np.array([1, 2], dtype="timedelta64[M]"), "months have no fixed length", "days"),
    "years in a list": ([np.timedelta64(1, "Y")], "years have no fixed length"),
    "durations without a unit": (np.array([1, 2], "timedelta64[D]").view("timedelta64"), "without a unit"),
    "one stamp": (STAMPS[0], "one row per datum", "2024-02-28T06", "list"),
    "one datetime": (PYTHON[0], "one row per datum", "list"),
    "no rows": (STAMPS[:0], "x has no rows"),
    "strings": (["2020-01-01", "2020-01-02"], "x must hold real numbers", "'2020-01-01'"),
    "periods": (pd.period_range("2020", periods=2, freq="D"), "Period", ".to_timestamp()"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs_are_refused(case):
    x, *fragments = BAD_INPUTS[case]
    refuses(lambda: read_inputs(x, model()), "x", *fragments)


@pytest.mark.parametrize("case", ["datetime64[h]", "datetime", "index in a zone", "Timestamps in a zone"])
def test_a_prior_without_a_unit_asks_for_it(case):
    stamps = KINDS[case]
    for prior in (ng.GP(ng.kernels.RBF()), Timed(None)):
        untimed = ng.Model(prior, ng.likelihoods.Poisson())
        refuses(
            lambda m=untimed: read_inputs(stamps, m), "x must", "unit of the lengthscales", 'MarkovGP(kernel, unit="D")'
        )
        with pytest.raises(ValueError, match=re.escape('np.timedelta64(1, "D")')):
            ng.infer(untimed, stamps, [3, 1, 4, 1])


@pytest.mark.slow
def test_x_new_goes_by_its_own_name():
    result = ng.infer(model(), STAMPS, [3, 1, 4, 1])
    refuses(lambda: result.predict([np.datetime64("NaT", "D")]), "x_new", "row 0 is NaT")
    refuses(lambda: result.predict([STAMPS[0], 3]), "x_new", "row 1, 3")


def test_y_holds_no_times():
    refuses(lambda: read_data(STAMPS, STAMPS, model()), "y must hold real numbers", "2024-02-28T06")


@pytest.mark.slow
def test_pandas_is_never_imported():
    code = """
import sys, datetime
import numpy as np
import newtongp as ng
from newtongp.validation.times import Clock
from newtongp.validation.times import read_times
for value in ([datetime.datetime(2020, 1, 1)], np.array(["2020-01-01"], dtype="M8[D]"), [1.0], [None]):
    read_times(value)
print("pandas" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
