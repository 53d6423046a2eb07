"""The command line, the demo and the plotting function behind it."""

import ast
import builtins
import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from examples import demo
from newtongp import cli, plotting
from newtongp.report.page import Picture

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=120)


@pytest.mark.slow
def test_the_demo_tells_three_stories_and_writes_a_report(tmp_path, console):
    motorcycle, coal, iris = demo.run(tmp_path / "new" / "folder", console)
    assert motorcycle.status is coal.status is iris.status is ng.Status.CONVERGED
    # Accelerations in g and ms; the rate of explosions; sepals in cm.
    assert motorcycle.energy == pytest.approx(594.064, abs=1e-2)
    assert coal.energy == pytest.approx(171.298, abs=1e-2)
    assert iris.energy == pytest.approx(60.245, abs=1e-2)
    sentences = " ".join(console.file.getvalue().split())
    for words in (
        "slowed down most at about 21 ms",
        "3.5 a year in 1870",
        "40177 rows",
        "ns per row",
        "73 of 100 flowers",
        "index.html",
    ):
        assert words in sentences
    folder = tmp_path / "new" / "folder" / "report"
    names = ("motorcycle_noise_that_changes", "coal_mines_counts_over_time", "iris_two_classes")
    pictures = [
        f"{name}_{number}.png" for name, count in zip(names, (3, 3, 2), strict=True) for number in range(1, count + 1)
    ]
    files = {"index.html", *pictures, *(f"{name}.ngp" for name in names)}
    assert {file.name for file in folder.iterdir()} == files
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert all(f'src="{picture}"' in text for picture in pictures)
    assert "http" not in text and "<script" not in text
    assert ng.load(folder / "iris_two_classes.ngp").energy == iris.energy
    assert not pyplot.get_fignums()


@pytest.mark.slow
def test_a_story_is_told_on_the_screen_and_on_the_page(tmp_path, console):
    code = """
import newtongp as ng

model = ng.Model(ng.GP(ng.kernels.Matern32()), "poisson")
result = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 0, 3, 2])
figure = result.plot(grid=[0.0, 1.0, 2.0, 3.0])
"""
    story = demo.Story(
        "Four counts",
        ("There are four.",),
        code,
        lambda result, figure: [Picture(figure, f"{len(result.data.y)} rows")],
        lambda result: ["The third is the largest."],
    )
    (result,) = demo.run(tmp_path, console, (story,))
    assert result.status.ok
    sentences = " ".join(console.file.getvalue().split())
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    for words in ("Four counts", "There are four.", "kernel.lengthscale", "The third is the largest."):
        assert words in sentences and words in text
    assert "4 rows" in text and "result = ng.infer(model" in text


@pytest.mark.parametrize("story", demo.STORIES, ids=lambda story: story.title)
def test_every_story_has_four_lines_of_code(story):
    imported, *lines = ast.parse(story.code).body
    assert isinstance(imported, ast.Import)
    assert len(lines) == 4 and [ast.unparse(line).partition(" = ")[0] for line in lines][1:] == [
        "model",
        "result",
        "figure",
    ]


def test_iris_is_the_source():
    datasets = pytest.importorskip("sklearn.datasets")
    source = datasets.load_iris()
    rows = source.target > 0
    sepals, is_virginica = ng.datasets.iris()
    np.testing.assert_array_equal(sepals, source.data[rows, :2])
    np.testing.assert_array_equal(is_virginica, source.target[rows] == 2)


def test_explosions_by_year_are_those_of_the_dates():
    dates = ng.datasets.coal()
    year, explosions = ng.datasets.coal_by_year()
    assert year.shape == explosions.shape == (110,)
    for index in (0, 23, 109):
        first = np.datetime64(f"{year[index]:.0f}-01-01")
        last = np.datetime64(f"{year[index]:.0f}-12-31")
        assert explosions[index] == np.sum((dates >= first) & (dates <= last))
    inside = (dates >= np.datetime64("1852-01-01")) & (dates < np.datetime64("1962-01-01"))
    assert explosions.sum() == inside.sum()


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


def test_version(capsys):
    with pytest.raises(SystemExit) as ending:
        cli.main(["--version"])
    assert ending.value.code == 0
    assert capsys.readouterr().out.strip() == f"newtongp {ng.__version__}"


def test_no_command_prints_the_help(capsys):
    assert cli.main([]) == 2
    assert "show" in capsys.readouterr().out


def test_a_saved_result_is_shown(tmp_path, capsys):
    model = ng.Model(ng.GP(ng.kernels.Matern32()), "poisson")
    ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 0, 3, 2]).save(tmp_path / "counts.ngp")
    assert cli.main(["show", str(tmp_path / "counts.ngp")]) == 0
    assert "GP(Matern32) with Poisson" in capsys.readouterr().out
    assert cli.main(["show", str(tmp_path / "nothing.ngp")]) == 1
    assert capsys.readouterr().err.startswith("newtongp: ")


@pytest.mark.slow
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
    assert demo.main(["--out", str(tmp_path / "out")]) == 1
    assert "pip install 'newtongp[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_one_line_of_error(tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    assert demo.main(["--out", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("demo: ")


@pytest.fixture(scope="module")
def counts():
    x = np.linspace(0.0, 4.0, 12)
    y = np.array([2.0, 3, 1, 4, 6, 5, np.nan, 7, 4, 2, 1, 0])
    model = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
    return ng.infer(model, x, y), x, y


@pytest.mark.slow
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
        ({"y": np.zeros(3)}, "x and y must have the same number of rows"),
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


@pytest.mark.thorough
@pytest.mark.slow
def test_a_plot_over_time_stamps(stamped):
    result, x, y = stamped
    grid = np.datetime64("2024-01-01") + np.arange(0, 20, 2)
    axes = plotting.plot_prediction(result, x, y, grid, exposure=1.5)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), result.predict(grid, exposure=1.5).mean)
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), grid)
    assert {text.get_text() for text in axes.texts} == {"after the data: forecast"}
    pyplot.close(axes.figure)


@pytest.mark.cases(slow=["exposure1"], others="thorough")
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


@pytest.mark.slow
def test_a_plot_of_the_rate_refuses_what_it_cannot_draw(stamped):
    result, x, _ = stamped
    with pytest.raises(ValueError, match="x holds durations"):
        plotting.plot_conditional_mean(result, x, x=x - x[0], exposure=1.0)

    class Pair(ng.Likelihood):
        num_latents = 2

        def log_prob(self, y, f):
            return -((y - f[0] * f[1]) ** 2)

    two = SimpleNamespace(model=SimpleNamespace(likelihood=Pair()))
    with pytest.raises(ValueError, match="one latent and one output, but Pair has 2 and 1"):
        plotting.plot_conditional_mean(two, x)
    pyplot.close("all")
