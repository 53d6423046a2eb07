"""Cross-validation and comparison of models of tables."""

import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import terms

from .. import tables


def measured(rows=30, seed=4):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"herd": rng.choice(["b", "a", "c", "d"], rows), "x": rng.normal(size=rows)})
    return frame.assign(y=frame["x"] + rng.normal(size=rows))


def model(**options):
    own = terms.Linear("x", prior=2.0, **options) + terms.Group("herd", covariance=0.5)
    return ng.Model(own, ng.likelihoods.Gaussian(1.0))


def exact(frame, label):
    """log p(y | rows of other herds) of a herd, from the joint normal distribution."""
    x = np.stack([np.ones(len(frame)), frame["x"]], axis=1)
    same = frame["herd"].to_numpy()[:, None] == frame["herd"].to_numpy()[None]
    covariance = 4.0 * x @ x.T + 0.5 * same + np.eye(len(frame))
    held = (frame["herd"] == label).to_numpy()
    pull = np.linalg.solve(covariance[np.ix_(~held, ~held)], covariance[np.ix_(~held, held)]).T
    mean = pull @ frame["y"][~held]
    variance = np.diagonal(covariance)[held] - np.sum(pull * covariance[np.ix_(held, ~held)], axis=1)
    return -0.5 * ((frame["y"][held] - mean) ** 2 / variance + np.log(2.0 * np.pi * variance))


@pytest.mark.slow
def test_folds_by_a_column_predict_new_groups():
    frame = measured()
    found = ng.cross_validate(model(), frame, "y", folds="herd")
    assert found.labels == ["a", "b", "c", "d"]
    for label in found.labels:
        np.testing.assert_allclose(found.log_density[frame["herd"] == label], exact(frame, label), atol=1e-8)


@pytest.mark.slow
def test_functions_that_learn_get_tables():
    frame = measured()
    seen = []

    def learn(model, x, y):
        seen.append(x)
        return ng.infer(model, x, y)

    found = ng.cross_validate(model(), frame, "y", folds="herd", learn=learn)
    assert all(isinstance(x, pd.DataFrame) and x["herd"].nunique() == 3 for x in seen)
    for label in found.labels:
        np.testing.assert_allclose(found.log_density[frame["herd"] == label], exact(frame, label), atol=1e-8)


def test_levels_are_dealt_into_folds():
    frame = measured()
    found = ng.cross_validate(model(), frame, "y", folds=("herd", 2), key=1)
    assert sorted(found.labels) == [0, 1]
    assert pd.Series(found.folds).groupby(frame["herd"]).nunique().eq(1).all()
    with pytest.raises(ValueError, match="the number of folds must be an integer from 2 to 4"):
        ng.cross_validate(model(), frame, "y", folds=("herd", 9))
    with pytest.raises(ValueError, match="has no column 'flock'"):
        ng.cross_validate(model(), frame, "y", folds="flock")
    with pytest.raises(ValueError, match="x is not a table"):
        ng.cross_validate(ng.Model(ng.GP(ng.kernels.RBF()), "gaussian"), [0.0, 1.0], [0.0, 1.0], folds="herd")


def test_models_of_the_same_table_are_compared():
    frame = measured()
    with_group = ng.infer(model(), frame, "y")
    without = ng.infer(ng.Model(terms.Linear("x", prior=2.0), ng.likelihoods.Gaussian(1.0)), frame, "y")
    found = ng.compare({"group": with_group, "none": without})
    assert {entry["name"] for entry in found} == {"group", "none"} and found.rows == len(frame)
    total = next(entry["log_density"] for entry in found if entry["name"] == "none")
    np.testing.assert_allclose(total, np.sum(without.leave_one_out()))
    others = frame.assign(x=frame["x"] + 1.0)
    with pytest.raises(ValueError, match="differ in x"):
        ng.compare({"one": with_group, "other": ng.infer(model(), others, "y")})


def test_y_of_new_rows_may_be_a_column():
    frame = measured()
    result = ng.infer(model(), frame.head(20), "y")
    new = frame.tail(10)
    np.testing.assert_array_equal(result.log_density(new, "y"), result.log_density(new, new["y"]))
    assert result.calibration(new, "y").rows == 10


@pytest.mark.slow
def test_leave_one_out_and_calibration():
    result = tables.fitted()
    density = result.leave_one_out()
    assert np.flatnonzero(np.isnan(density)).tolist() == [4, 11]
    assert result.calibration().rows == len(density) - 2
