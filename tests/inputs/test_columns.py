"""New inputs are matched with x: columns by name, and time stamps only with time stamps."""

import copy

import numpy as np
import pandas as pd
import polars as pl
import pytest

import newtongp as ng
from newtongp import storage
from newtongp.inputs.columns import STAMPS, Columns

pytestmark = pytest.mark.versions

KERNEL = ng.kernels.RBF([1.0, 2.0])
SPARSE = ng.Model(ng.SparseGP(KERNEL, [[0.0, 1.0], [2.0, 0.0]]), "poisson")
COUNTS = [1.0, 2.0, 3.0]


def refuses(call, *fragments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


def polars(frame):
    return pl.DataFrame({name: pl.Series(frame[name].to_list()) for name in frame.columns})


SITES = pd.DataFrame({"east": [0.0, 1.0, 2.0, 4.0], "north": [3.0, -1.0, 0.5, 2.0]})
NEW = pd.DataFrame({"east": [0.5, 3.0], "north": [1.0, 2.0]})
AT_SITES = [1.0, 2.0, 3.0, 0.0]
ASKED = {
    "predict": lambda result, x: result.predict(x).mean,
    "log_density": lambda result, x: result.log_density(x, [1.0, 2.0]),
    "sample": lambda result, x: result.sample(0, x, 2),
    "sample_y": lambda result, x: result.sample_y(0, x, 2),
    "calibration": lambda result, x: result.calibration(x, [1.0, 2.0]).upper,
}


@pytest.fixture(scope="module")
def on_a_frame():
    return ng.infer(ng.Model(ng.GP(KERNEL), "poisson"), SITES, AT_SITES)


def columns_are_matched(result, ask):
    wanted = ask(result, NEW.to_numpy())
    for same in (NEW, NEW[["north", "east"]], polars(NEW[["north", "east"]]), pd.DataFrame(NEW.to_numpy())):
        np.testing.assert_array_equal(ask(result, same), wanted)
    columns = "x_new must have the columns of x, 'east', 'north'"
    refuses(lambda: ask(result, NEW[["north"]]), columns, "'east' is missing", "it has 'north'")
    renamed = NEW.rename(columns={"east": "x", "north": "y"})
    refuses(lambda: ask(result, renamed), columns, "'east', 'north' are missing")
    refuses(lambda: ask(result, NEW.assign(place="u")), columns, "also has 'place'", "x_new[['east', 'north']]")
    refuses(lambda: ask(result, NEW[["north", "north"]]), columns, "x_new has two called 'north'")
    refuses(lambda: ask(result, polars(NEW[["north"]])), columns, "'east' is missing")


@pytest.mark.cases(slow=["log_density", "sample"], thorough=["predict", "sample_y"])
@pytest.mark.parametrize("ask", ASKED)
def test_columns_of_new_inputs_are_matched_by_name(on_a_frame, ask):
    columns_are_matched(on_a_frame, ASKED[ask])


def test_names_of_columns_are_in_files(on_a_frame, tmp_path):
    on_a_frame.save(tmp_path / "result.ngp")
    columns_are_matched(ng.load(tmp_path / "result.ngp"), ASKED["predict"])


def test_files_without_names_of_columns_are_read_by_position(on_a_frame):
    tree, arrays = storage.encode(on_a_frame)
    fields = tree["fields"]
    del fields["columns"]
    older = storage.decode(tree, arrays)
    assert older.columns is None
    np.testing.assert_array_equal(older.predict(NEW).mean, on_a_frame.predict(NEW.to_numpy()).mean)


@pytest.mark.parametrize(
    "columns",
    [Columns(("east",)), Columns(("east", 3)), Columns("ab"), Columns(None, "years"), Columns(None, STAMPS)],
)
def test_columns_that_x_cannot_have_had_are_refused(on_a_frame, columns):
    damaged = copy.copy(on_a_frame)
    damaged.columns = columns
    with pytest.raises(storage.FileFormatError, match=r"column|x cannot hold"):
        storage.decode(*storage.encode(damaged))


@pytest.mark.cases(slow=["True"], others="thorough")
@pytest.mark.parametrize("chunks", [False, True])
def test_columns_are_matched_where_data_are_read_in_batches(chunks):
    parts = [(SITES[:2], AT_SITES[:2]), (SITES[2:][["north", "east"]], AT_SITES[2:])]
    data = (parts, None) if chunks else (SITES, AT_SITES)
    columns_are_matched(ng.infer(SPARSE, *data, batch_size=4), ASKED["predict"])


@pytest.mark.slow
def test_chunks_have_the_columns_of_the_first():
    chunks = [(SITES[:2], AT_SITES[:2]), (SITES[2:].rename(columns={"north": "y"}), AT_SITES[2:])]
    refuses(lambda: ng.infer(SPARSE, chunks, batch_size=4), "x of chunk 1 must have the columns", "'north' is missing")
    swapped = [(SITES[:2], AT_SITES[:2]), (SITES[2:][["north", "east"]], AT_SITES[2:])]
    in_order = [(SITES[:2], AT_SITES[:2]), (SITES[2:], AT_SITES[2:])]
    energies = [ng.infer(SPARSE, each, batch_size=4).energy for each in (swapped, in_order)]
    assert energies[0] == energies[1]


def test_columns_without_names_of_their_own_are_taken_by_position():
    model, numbered = ng.Model(ng.GP(KERNEL), "poisson"), pd.DataFrame(SITES.to_numpy())
    result, there = ng.infer(model, numbered, AT_SITES), pd.DataFrame(NEW.to_numpy())
    wanted = result.predict(NEW.to_numpy()).mean
    for same in (NEW, there, there[[1, 0]]):
        np.testing.assert_array_equal(result.predict(same).mean, wanted)
    by_array = ng.infer(model, SITES.to_numpy(), AT_SITES)
    np.testing.assert_array_equal(by_array.predict(NEW).mean, wanted)


@pytest.mark.slow
def test_a_linear_model_has_its_coefficients_by_the_names_of_a_frame():
    linear = ng.Model(ng.LinearModel(1.0), "poisson")
    assert "north" in str(ng.infer(linear, SITES, AT_SITES).summary())
    assert "x[1]" in str(ng.infer(linear, pd.DataFrame(SITES.to_numpy()), AT_SITES).summary())


HOURS = pd.date_range("2024-03-01", periods=3, freq="h")
HELSINKI = HOURS.tz_localize("Europe/Helsinki")
KINDS_OF_TIME = {
    "naive": [HOURS, HOURS.to_numpy(), list(HOURS), pd.DataFrame({"t": HOURS}), polars(pd.DataFrame({"t": HOURS}))],
    "zoned": [
        HELSINKI,
        HELSINKI.tz_convert("UTC"),
        HELSINKI.to_series(),
        list(HELSINKI),
        [stamp.to_pydatetime() for stamp in HELSINKI],
        pd.DataFrame({"t": HELSINKI}),
        polars(pd.DataFrame({"t": HELSINKI})),
    ],
    "numbers": [[0.0, 1.0, 2.0], pd.Series([0.0, 1.0, 2.0]), HOURS - HOURS[0], pd.DataFrame({"t": [0.0, 1.0, 2.0]})],
}
NAMED = {
    "naive": ("time stamps without a time zone, as x did",),
    "zoned": ("time stamps with a time zone, as x did",),
    "numbers": ("numbers, as x did",),
}
REMEDIES = {
    ("naive", "zoned"): ("x_new.tz_convert(", ".tz_localize(None)"),
    ("zoned", "naive"): ('x_new.tz_localize("Europe/Helsinki")',),
    ("naive", "numbers"): ("give time stamps", "counted from 2000-01-01"),
    ("zoned", "numbers"): ("give time stamps", "counted from 2000-01-01"),
    ("numbers", "naive"): ("give numbers",),
    ("numbers", "zoned"): ("give numbers",),
}


@pytest.fixture(scope="module")
def in_time(tmp_path_factory):
    """Results from x of every kind, and the same from files."""
    timed = ng.Model(ng.MarkovGP(ng.kernels.Matern32(), unit="h"), "poisson")
    results = {kind: ng.infer(timed, given[0], COUNTS) for kind, given in KINDS_OF_TIME.items()}
    for kind in tuple(results):
        path = tmp_path_factory.mktemp("times") / "result.ngp"
        results[kind].save(path)
        results[f"{kind}, loaded"] = ng.load(path)
    return results


@pytest.mark.parametrize("loaded", ["", ", loaded"])
@pytest.mark.parametrize("new", KINDS_OF_TIME)
@pytest.mark.parametrize("fitted", KINDS_OF_TIME)
def test_new_inputs_are_of_the_kind_that_x_was(in_time, fitted, new, loaded):
    result = in_time[fitted + loaded]
    for given in KINDS_OF_TIME[new]:
        if fitted == new:
            found, wanted = result.predict(given).latent.mean, result.marginals.mean
            np.testing.assert_allclose(found, wanted, rtol=0.0, atol=1e-6)
        else:
            words = "x_new must hold", *NAMED[fitted], *REMEDIES[fitted, new]
            refuses(lambda given=given: result.predict(given), *words)
            refuses(lambda given=given: result.sample(0, given, 1), *words)


def test_plots_are_of_the_kind_that_x_was(in_time):
    pyplot, plotting = pytest.importorskip("matplotlib.pyplot"), pytest.importorskip("newtongp.plotting")
    for kind in ("naive", "zoned", "numbers"):
        pyplot.close(in_time[kind].plot(grid=KINDS_OF_TIME[kind][0]))
    axes = plotting.plot_prediction(in_time["zoned"], HELSINKI, COUNTS, HELSINKI)
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), in_time["zoned"].predict(HELSINKI).mean)
    pyplot.close(axes.figure)
    refuses(lambda: in_time["zoned"].plot(grid=HOURS), "grid must hold time stamps with a time zone")
    refuses(
        lambda: plotting.plot_prediction(in_time["zoned"], HELSINKI, COUNTS, HOURS), "grid must hold time stamps with"
    )
