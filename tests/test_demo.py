"""The command line, the demo and the plotting function behind it."""

import builtins
import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from newtongp import cli, demo, plotting

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.mark.slow
def test_the_demo_prints_a_table_and_findings_and_draws_a_figure(tmp_path):
    text = io.StringIO()
    result = demo.run(tmp_path / "new" / "folder", Console(file=text, width=120))
    printed = text.getvalue()
    assert result.status is ng.Status.CONVERGED
    for name in demo.METHODS:
        line = next(line for line in printed.splitlines() if line.startswith(f"│ {name} "))
        assert "converged" in line
    for words in ("grid of", "not learned", "decelerates most at", "outliers", "95 % interval", "motorcycle.png"):
        assert words in printed
    picture = pyplot.imread(tmp_path / "new" / "folder" / "motorcycle.png")
    assert min(picture.shape[:2]) > 500
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


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
