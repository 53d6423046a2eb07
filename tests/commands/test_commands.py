"""The command line on tables in files: results, exit codes, and one line for every wrong call."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp.cli import main
from newtongp.commands.outcomes import read_outcome
from newtongp.commands.output import Output

ROWS = 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables, good and bad."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(1)
    shop = np.repeat(["a", "b", "c", "d"], ROWS // 4)
    table = pd.DataFrame({"shop": shop, "price": rng.uniform(1.0, 5.0, ROWS), "open days": rng.integers(5, 8, ROWS)})
    table["sales"] = rng.poisson(np.exp(2.0 - 0.3 * table["price"]))
    table["date"] = pd.date_range("2024-01-01", periods=ROWS)
    table.to_csv(folder / "sales.csv", index=False)
    table.to_parquet(folder / "sales.parquet")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("a,b\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n1,2,3\n")
    (folder / "latin.csv").write_bytes("a,b\n1,\xe4\n".encode("latin-1"))
    (folder / "table.xlsx").write_bytes(b"PK")
    (folder / "text.ngp").write_text("not a model")
    table.assign(sales=np.where(table["sales"] > 3, "many", "few")).to_csv(folder / "text.csv", index=False)
    table.assign(sales=shop).to_csv(folder / "levels.csv", index=False)
    table.assign(price=np.where(np.arange(ROWS) == 7, np.nan, table["price"])).to_csv(folder / "gap.csv", index=False)
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Run a command in that folder: the exit code, standard output and standard error."""
    monkeypatch.chdir(folder)

    def call(*arguments):
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as ending:
            code = ending.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def fitted(folder):
    """The folder that one command wrote."""
    terms = ["--y", "sales", "--covariates", "price", "--groups", "shop"]
    others = ["--likelihood", "poisson", "--quiet", "--out", str(folder / "out")]
    assert main(["fit", str(folder / "sales.csv"), *terms, *others]) == 0
    return folder / "out"


@pytest.mark.slow
def test_fit_writes_a_report_a_model_and_predictions(fitted, folder):
    assert {"index.html", "model.ngp", "predictions.csv", "model_1.png"} <= {file.name for file in fitted.iterdir()}
    result = ng.load(fitted / "model.ngp")
    table = pd.read_csv(folder / "sales.csv")
    same = ng.fit("sales ~ price + (1 | shop)", table, "poisson")
    assert result.energy == pytest.approx(same.energy, abs=1e-6)
    predictions = pd.read_csv(fitted / "predictions.csv")
    assert list(predictions["sales"]) == list(table["sales"])
    np.testing.assert_allclose(predictions["mean"], same.predict(table).mean, rtol=1e-4)
    assert "http" not in (fitted / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_predict_compare_info_and_show(fitted, folder, run):
    model = fitted / "model.ngp"
    code, out, _ = run("predict", model, "sales.parquet", "--quantiles", 0.1, 0.9)
    lines = out.splitlines()
    assert code == 0 and len(lines) == ROWS + 1 and "quantile_0.1" in lines[0]
    code, out, err = run("predict", model, "sales.csv", "--out", folder / "new" / "predicted.parquet")
    assert (code, out) == (0, "") and len(pd.read_parquet(folder / "new" / "predicted.parquet")) == ROWS
    code, out, _ = run("info", model, "--json")
    facts = json.loads(out)["result"]
    assert code == 0 and facts["likelihood"] == "Poisson" and facts["y"] == "sales"
    code, out, _ = run("show", model)
    assert code == 0 and "group(shop)" in out
    code, out, err = run("fit", "sales.csv", "--formula", "sales ~ price", "--likelihood", "poisson", "--out", "other")
    assert code == 0 and "intercept" in out and "Report: other" in err
    code, out, _ = run("compare", model, "other/model.ngp", "--any-columns", "--json")
    # Both files have the same name, so their folders are part of the names.
    assert code == 0 and {entry["name"] for entry in json.loads(out)["models"]} == {str(model), "other/model.ngp"}
    code, _, err = run("predict", model, "header.csv")
    assert code == 1 and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fit nowhere.csv --y sales", "there is no such file"),
        ("fit table.xlsx --y sales", "end in .csv"),
        ("fit empty.csv --y a", "cannot be read as a table"),
        ("fit header.csv --y a", "the table has no rows"),
        ("fit ragged.csv --y a", "cannot be read as a table"),
        ("fit latin.csv --y a", "UTF-8"),
        ("fit sales.csv", "--y is missing"),
        ("fit sales.csv --y sale", "it has shop, price, open days, sales, date"),
        ("fit sales.csv --y sales --covariates cost", "--covariates cost: sales.csv has no such column"),
        ("fit sales.csv --y sales --groups Shop", "--groups Shop"),
        ("fit sales.csv --y date", "not numbers"),
        ("fit sales.csv --y sales --covariates date", "date"),
        ("fit levels.csv --y sales", "4 different value(s)"),
        ("fit sales.csv --y sales --likelihood poison --covariates price", "poisson"),
        ("fit sales.csv --y sales --likelihood binomial --covariates price", "needs --trials"),
        ("fit sales.csv --y sales --likelihood poisson --trials price --covariates price", "--trials is for binomial"),
        (
            "fit sales.csv --y sales --likelihood gaussian --exposure price --covariates shop",
            "--exposure is for poisson",
        ),
        ("fit sales.csv --y sales --method nuts --covariates price", "there is vi, newton"),
        ("fit sales.csv --formula sales~~price", "sales~~price"),
        ("fit sales.csv --formula sales~price+(1|market)", "market"),
        ("fit sales.csv --y sales --formula sales~", "nothing to the right of ~"),
        ("fit sales.csv --y sales --formula sales=price", "write 'sales ~ price'"),
        ("fit sales.csv --y sales --formula sales~price,shop", "is not an operator of formulas"),
        ("fit sales.csv --y sales --covariates price --effects fixed", "there is wide, flat, maximised"),
        ("fit sales.csv --y sales --covariates price --effects -1", "a standard deviation above 0"),
        ("fit sales.csv --y sales --time date --effects flat", "--effects is not for series"),
        ("fit sales.csv --y sales --level 95", "as in --level 0.95"),
        ("fit sales.csv --y sales --out text.ngp", "this is a file"),
        ("fit gap.csv --y sales --covariates price", "row 7"),
        ("fit sales.csv --y sales --time day", "--time day: sales.csv has no such column"),
        ("fit sales.csv --y sales --season 1w", "--season is for series"),
        ("fit sales.csv --y sales --time date --groups shop", "--groups is not for series"),
        ("fit sales.csv --y sales --time date --season 1x", "1x"),
        ("fit sales.csv --y sales --time date --trend up", "up"),
        ("fit sales.csv --y sales --time date --forecast soon", "end in .csv"),
        ("fit sales.csv --y sales --time date --forecast 0", "at least 1"),
        ("predict nowhere.ngp sales.csv", "there is no such file"),
        ("predict text.ngp sales.csv --level 0", "between 0 and 1"),
        ("predict text.ngp sales.csv", "not a newtongp file"),
        ("compare text.ngp", "at least two"),
        ("compare text.ngp text.ngp", "given twice"),
        ("info text.ngp", "not a newtongp file"),
    ],
)
def test_a_wrong_call_has_one_line_for_an_answer(run, arguments, words):
    code, out, err = run(*arguments.split())
    lines = [line for line in err.splitlines() if not line.startswith(("Likelihood:", "Model:"))]
    assert code == 1 and out == "" and len(lines) == 1, err
    assert lines[0].startswith("newtongp: ") and words in lines[0]


@pytest.mark.slow
def test_maximised_effects_are_those_of_fit(run, folder):
    formula = "sales ~ price + (1 | shop)"
    code, out, _ = run("fit", "sales.csv", "--formula", formula, "--effects", "maximised", "--json")
    facts = json.loads(out)
    table = pd.read_csv(folder / "sales.csv")
    same = ng.fit(formula, table, "negative_binomial", effects="maximised")
    assert code == 0 and facts["effects"] == "maximised"
    assert facts["summary"]["energy"]["value"] == pytest.approx(same.energy, abs=1e-6)
    # Integrating with a wide prior costs some nats more.
    assert same.energy < ng.fit(formula, table, "negative_binomial").energy - 1.0


def test_a_status_is_shown_on_a_terminal_only(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    for stream, shown in ((Screen(), True), (io.StringIO(), False)):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with Output(False, False).working("Fitting sales"):
            pass
        assert ("Fitting sales" in stream.getvalue()) == shown


@pytest.mark.slow
def test_forecasts_of_a_series(run, folder):
    series = "fit sales.csv --y sales --time date --season none --trend level --likelihood poisson"
    wanted = "--forecast 3 --level 0.9 --out ahead --json"
    code, out, err = run(*series.split(), *wanted.split())
    assert code == 0, err
    facts = json.loads(out)
    ahead = pd.read_csv(folder / "ahead" / "forecast.csv")
    assert list(ahead.columns) == ["date", "mean", "median", "lower", "upper"] and len(ahead) == 3
    last = pd.read_csv(folder / "sales.csv")["date"].max()
    assert ahead["date"].min() > last
    np.testing.assert_allclose([row["mean"] for row in facts["forecast"]], ahead["mean"], rtol=1e-12)
    direct = ng.Forecaster("level", None, likelihood="poisson").fit(pd.read_csv(folder / "sales.csv"), "date", "sales")
    np.testing.assert_allclose(ahead["mean"], direct.forecast(3)["mean"], rtol=1e-8)
    ahead[["date"]].to_csv(folder / "future.csv", index=False)
    code, _, err = run("predict", "ahead/forecaster.ngp", "future.csv", "--level", "0.9", "--out", "again.csv")
    assert code == 0, err
    np.testing.assert_allclose(pd.read_csv(folder / "again.csv")["upper"], ahead["upper"], rtol=1e-9)
    parts = pd.read_csv(folder / "ahead" / "components.csv")
    assert set(parts["component"]) == {"trend"} and len(parts) == ROWS
    page = (folder / "ahead" / "index.html").read_text()
    assert 'href="forecast.csv"' in page and page.count(f"<td>{last[:4]}-") == 3
    assert "forecasts with 90 % intervals" in page and (folder / "ahead" / "model_1.png").exists()


@pytest.mark.parametrize("arguments", ["fit", "predict model.ngp", "fly", "fit sales.csv --level high", "compare"])
def test_wrong_arguments_are_explained_by_the_usage(run, arguments):
    code, _, err = run(*arguments.split())
    assert code == 2 and "usage: newtongp" in err


def test_no_command_prints_the_help(run):
    code, out, _ = run()
    assert code == 2 and "fit a model of a table" in out


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, np.nan, 1], "bernoulli"),
        ([True, False], "bernoulli"),
        (["yes", None, "no"], "bernoulli"),
        ([0, 3, 12], "negative_binomial"),
        ([1000, 250000, 3000], "log_normal"),
        ([0.2, 0.9], "beta"),
        ([0.5, 4.0], "gaussian"),
        ([0.0, 0.5], "gaussian"),
        ([-3, 4], "gaussian"),
    ],
)
def test_the_likelihood_follows_the_values(values, expected):
    assert read_outcome(np.array(values), "y").likelihood == expected


def test_text_becomes_zero_and_one(folder):
    outcome = read_outcome(pd.read_csv(folder / "text.csv")["sales"], "sales")
    assert set(outcome.values) == {0.0, 1.0} and "1 stands for 'many'" in outcome.reason
