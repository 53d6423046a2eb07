"""The command line, the demo and the plotting function behind it."""

import builtins
import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from newtongp import cli, demo, plotting

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.slow
def test_the_demo_prints_tables_and_findings_and_draws_a_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LONG", 5_000)
    monkeypatch.setattr(demo, "MILLISECONDS", np.linspace(0.0, 75.0, 9))  # quantiles take longest
    text = io.StringIO()
    accelerations, explosions = demo.run(tmp_path / "new" / "folder", Console(file=text, width=120))
    printed = text.getvalue()
    sentences = " ".join(printed.split())
    assert accelerations.status is explosions.status is ng.Status.CONVERGED
    for name in demo.METHODS:
        line = next(line for line in printed.splitlines() if line.startswith(f"│ {name} "))
        assert "converged" in line
    for words in ("grid of", "not learned", "decelerates most at", "outliers", "95 % interval", "demo.png"):
        assert words in sentences
    for words in ("in 1333 months", "the rate fell by a factor of", "rows a second", "5,000", "95 % intervals"):
        assert words in sentences
    picture = pyplot.imread(tmp_path / "new" / "folder" / "demo.png")
    assert min(picture.shape[:2]) > 500
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


def test_the_coal_data_are_the_source():
    dates = ng.datasets.coal()
    assert dates.dtype == np.dtype("datetime64[D]") and dates.shape == (191,)
    intervals = np.diff(dates).astype(int)
    assert np.all(intervals >= 0)
    # The first of Jarrett's intervals in days, and their sum.
    assert intervals[:13].tolist() == [157, 123, 2, 124, 12, 4, 10, 216, 80, 12, 33, 66, 232]
    assert intervals.sum() == 40549
    known = {
        "the Oaks": "1866-12-12",
        "Abercarn": "1878-09-11",
        "West Stanley": "1909-02-16",
        "Senghenydd": "1913-10-14",
        "Gresford": "1934-09-22",
        "Easington": "1951-05-29",
    }
    for name, date in known.items():
        assert np.datetime64(date) in dates, name


def test_the_months_of_the_coal_data():
    dates = ng.datasets.coal()
    months = demo.by_month(dates)
    assert months.count.sum() == 191
    days = months.years * 365.25
    np.testing.assert_allclose(days[[0, 1, 2, -2, -1]], [17, 30, 31, 28, 22])
    assert days.sum() == pytest.approx(40550)
    assert months.time[[0, 1, -1]].astype(str).tolist() == ["1851-03-23T12", "1851-04-16T00", "1962-03-12T00"]
    oaks = months.time.astype("datetime64[M]") == np.datetime64("1866-12")
    assert months.count[oaks] == 2


def test_simulated_counts_come_from_their_model():
    rows = 100_000
    model, x, y, f = demo.simulate(rows, seed=1)
    assert x.shape == y.shape == f.shape == (rows,)
    kernel = model.prior.kernel
    lags = np.array([0, 10, 50])
    products = np.array([np.mean(f[: rows - lag] * f[lag:]) for lag in lags])
    expected = np.array([kernel.evaluate(np.zeros(1), np.full(1, float(lag))) for lag in lags])
    np.testing.assert_allclose(products, expected, atol=0.15)  # of some thousand independent stretches
    few = slice(0, 3000)
    result = ng.infer(model, x[few], y[few], throw=False)
    miss = (result.marginals.mean[:, 0] - f[few]) / np.sqrt(result.marginals.covariance[:, 0, 0])
    assert 0.9 < np.mean(np.abs(miss) < 1.96) < 0.99


def test_the_model_in_data_units_is_that_of_standardised_data():
    x, y = ng.datasets.motorcycle()
    standard = demo.Standard(lengthscale=0.5, noise=0.3)
    model = ng.Model(
        ng.GP(ng.kernels.Matern52(lengthscale=0.5)),
        ng.likelihoods.StudentT(df=demo.DEGREES_OF_FREEDOM, scale=0.3),
    )
    own = ng.infer(demo.assemble(standard, x, y), x, y)
    standardised = ng.infer(model, (x - x.mean()) / x.std(), (y - y.mean()) / y.std())
    assert own.energy == pytest.approx(standardised.energy + len(y) * np.log(y.std()), rel=1e-9)


def test_version(capsys):
    with pytest.raises(SystemExit) as ending:
        cli.main(["--version"])
    assert ending.value.code == 0
    assert capsys.readouterr().out.strip() == f"newtongp {ng.__version__}"


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_python_dash_m():
    command = [sys.executable, "-m", "newtongp", "--version"]
    assert ng.__version__ in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_without_matplotlib_the_demo_says_what_to_install(tmp_path, monkeypatch, capsys):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    assert cli.main(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "pip install 'newtongp[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line_of_error(tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert cli.main(["demo", "--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("newtongp: ")


@pytest.fixture(scope="module")
def counts():
    x = np.linspace(0.0, 4.0, 12)
    y = np.array([2.0, 3, 1, 4, 6, 5, np.nan, 7, 4, 2, 1, 0])
    model = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
    return ng.infer(model, x, y), x, y


def test_a_plot_has_the_data_the_mean_and_a_band_for_each_level(counts):
    result, x, y = counts
    grid = np.linspace(-1.0, 6.0, 8)
    axes = plotting.plot_prediction(result, x[:, None], y, grid[::-1], levels=(0.5, 0.8, 0.95), data_label="counts")
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["95 % of new data", "80 % of new data", "50 % of new data", "mean of y", "counts"]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), result.predict(grid).mean)
    assert {text.get_text() for text in axes.texts} == {"before the data", "after the data: forecast"}
    pyplot.close(axes.figure)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"levels": (0.5, 1.0)}, "levels must lie strictly between 0 and 1"),
        ({"y": np.zeros(3)}, "x and y must have as many rows"),
        ({"grid": np.zeros((3, 2))}, "grid must be a vector"),
    ],
)
def test_a_plot_refuses_what_it_cannot_draw(counts, changed, message):
    result, x, y = counts
    with pytest.raises(ValueError, match=message):
        plotting.plot_prediction(**{"result": result, "x": x, "y": y, "grid": x, **changed})


@pytest.fixture(scope="module")
def stamped():
    x = np.datetime64("2024-01-01") + np.arange(12)
    exposure = np.linspace(1.0, 2.0, 12)
    model = ng.Model(
        ng.MarkovGP(ng.kernels.Matern32(lengthscale=3.0), unit="D"), ng.likelihoods.Poisson(exposure=exposure)
    )
    y = np.array([2.0, 3, 1, 4, 6, 5, np.nan, 7, 4, 2, 1, 0])
    return ng.infer(model, x, y), x, y


def test_a_plot_over_time_stamps(stamped):
    result, x, y = stamped
    grid = np.datetime64("2024-01-01") + np.arange(0, 20, 2)
    axes = plotting.plot_prediction(result, x, y, grid, exposure=1.5)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), result.predict(grid, exposure=1.5).mean)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), grid)
    assert {text.get_text() for text in axes.texts} == {"after the data: forecast"}
    pyplot.close(axes.figure)


@pytest.mark.parametrize("exposure", [1.5, np.linspace(1.0, 3.0, 10)])
def test_a_plot_of_the_rate_has_the_quantiles_of_its_draws(stamped, exposure):
    result, x, _ = stamped
    grid = np.datetime64("2024-01-01") + np.arange(0, 20, 2)
    axes = plotting.plot_conditional_mean(result, grid, x=x, levels=(0.8,), label="rate", exposure=exposure)
    latent = result.predict(grid, exposure=exposure).latent
    np.testing.assert_allclose(axes.lines[0].get_ydata(), exposure * np.exp(latent.mean[:, 0]))
    rates = exposure * np.exp(result.sample(0, grid, 20_000)[:, :, 0])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(corners.max(), np.quantile(rates, 0.9, axis=0).max(), rtol=0.05)
    np.testing.assert_allclose(corners.min(), np.quantile(rates, 0.1, axis=0).min(), rtol=0.05)
    assert axes.get_legend_handles_labels()[1] == ["80 % interval", "rate"]
    pyplot.close(axes.figure)


def test_a_plot_of_the_rate_refuses_what_it_cannot_draw(stamped):
    result, x, _ = stamped
    with pytest.raises(ValueError, match="x holds durations"):
        plotting.plot_conditional_mean(result, x, x=x - x[0], exposure=1.0)

    class Pair(ng.Likelihood):
        num_latents = 2

        def log_prob(self, y, f):
            return -((y - f[0] * f[1]) ** 2)

    two = SimpleNamespace(model=SimpleNamespace(likelihood=Pair()))
    with pytest.raises(ValueError, match="one latent and one output, and Pair has 2 and 1"):
        plotting.plot_conditional_mean(two, x)
    pyplot.close("all")
