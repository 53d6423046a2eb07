"""The scripts in examples/ run, and do what they say."""

import numpy as np
import pandas as pd
import pytest

from examples import (
    areas,
    bakery,
    batch_of_data_sets,
    distributional,
    measles,
    monthly,
    network_as_mean,
    outliers,
    proportions,
    sampling_hyperparameters,
    seizures,
    tracking,
)


@pytest.mark.slow
def test_a_batch_of_data_sets(capsys):
    rates = batch_of_data_sets.main(sets=8, rows=20)
    assert rates.shape == (8, 20) and np.all(rates > 0.0)
    assert "8 of 8 series converged" in capsys.readouterr().out


@pytest.mark.slow
def test_a_network_as_mean():
    energies = network_as_mean.main(steps=40)
    assert energies[-1] < energies[0] - 1.0


@pytest.mark.slow
def test_sampling_hyperparameters():
    pytest.importorskip("blackjax")
    draws = sampling_hyperparameters.main(draws=30, warmup=30)
    assert draws.shape == (30, 2) and np.all(np.isfinite(draws)) and np.all(np.std(draws, axis=0) > 0.0)


def estimates(result):
    """Estimates and intervals by name."""
    frame = result.effects()
    return {row["name"]: (row["estimate"], row["lower"], row["upper"]) for _, row in frame.iterrows()}


def drawn(folder, name):
    path = folder / name
    return path.stat().st_size > 10_000


@pytest.mark.slow
def test_seizures(tmp_path, capsys):
    found = estimates(seizures.main(tmp_path / "seizures.png"))
    for name, truth in {"base": 1.0, "treatment[drug]": -0.4, "visit": -0.08, "sd(intercept)": 0.5}.items():
        assert found[name][1] < truth < found[name][2]
    assert drawn(tmp_path, "seizures.png") and "a new patient" in capsys.readouterr().out


@pytest.mark.slow
def test_areas(tmp_path):
    result = areas.main(tmp_path / "areas.png")
    found = estimates(result)
    assert found["poverty"][1] < 0.03 < found["poverty"][2]
    assert 0.0 < found["kernel.phi"][0] < 1.0
    effects = result.effects("district").set_index("district")["estimate"]
    assert effects["d70"] > 0.0 > effects["d00"]  # as the smooth risk is
    assert drawn(tmp_path, "areas.png")


@pytest.mark.slow
def test_a_monthly_series(tmp_path):
    found = estimates(monthly.main(tmp_path / "monthly.png"))
    for name, truth in {"law": -0.22, "log_price": -0.5 * 1.2}.items():
        assert found[name][1] < truth < found[name][2]
    assert drawn(tmp_path, "monthly.png")


@pytest.mark.slow
def test_distributional_regression(tmp_path):
    result = distributional.main(tmp_path / "distributional.png")
    frame = result.effects().set_index(["term", "name"])
    location = frame.loc["location.linear(sex)", "sex[m]"]
    assert location["lower"] < 0.5 < location["upper"]
    assert frame.loc["scale.linear(sex)", "sex[m]"]["lower"] > 0.0
    assert drawn(tmp_path, "distributional.png")


@pytest.mark.slow
def test_measles():
    x, y, districts = measles.read_data()
    assert len(districts) == 17 and y.size == 104 * 17
    scores = measles.score(measles.make_model(), x, y, range(21, 22))
    assert 0.0 < scores.log_score < 3.0 and 0.0 < scores.rps < 10.0


@pytest.mark.slow
@pytest.mark.thorough
def test_measles_of_all_weeks(tmp_path):
    files = [tmp_path / "maps.png", tmp_path / "series.png"]
    scores = measles.main(*files)
    # The best of the models of surveillance::hhh4 that are refitted every week have 1.102 and 0.748.
    assert scores.log_score < 1.03 and scores.rps < 0.70
    assert all(file.stat().st_size > 10_000 for file in files)


@pytest.mark.slow
def test_proportions(tmp_path):
    _, doses = proportions.main(tmp_path / "proportions.png")
    low, high = np.quantile(doses, [0.025, 0.975])
    assert low < 1.772 < high < low + 0.03  # by maximum likelihood and a logit link: 1.772
    assert drawn(tmp_path, "proportions.png")


@pytest.mark.slow
def test_outliers(tmp_path, capsys):
    results = outliers.main(tmp_path / "outliers.png")
    slopes = {name: estimates(result)["year"][0] for name, result in results.items()}
    assert slopes["Gaussian"] == pytest.approx(5.04, abs=0.1)  # least squares
    assert 0.5 < slopes["Student-t"] < 1.5  # least median of squares: 1.1
    assert "1964, 1965, 1966, 1967, 1968, 1969" in capsys.readouterr().out
    assert drawn(tmp_path, "outliers.png")


@pytest.mark.slow
@pytest.mark.thorough
def test_tracking(tmp_path):
    errors = tracking.main(tmp_path / "tracking.png")
    assert errors["VI, Student-t noise"] < 0.5 * errors["extended Kalman smoother"]
    assert drawn(tmp_path, "tracking.png")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_decision(tmp_path):
    profits = bakery.main(tmp_path / "bakery.png")
    assert profits["quantile that pays"] == max(profits.values())
    assert drawn(tmp_path, "bakery.png")


def test_the_table_of_the_tutorial_is_the_one_that_is_made():
    table = pd.read_csv(bakery.DATA, parse_dates=["date"])
    made = bakery.make_data()
    assert list(table.columns) == list(made.columns)
    for name in table.columns:
        assert list(table[name]) == list(made[name])
