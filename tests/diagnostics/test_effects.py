"""Effects of additive models: coefficients of columns as they are, groups, hyperparameters, and levels."""

import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import terms

from .. import tables


def gaussian(frame, own, noise=0.25):
    return ng.infer(ng.Model(own, ng.likelihoods.Gaussian(noise)), frame, "y")


def measured(rows=40, seed=1):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"year": rng.integers(1990, 2020, rows), "sex": rng.choice(["f", "m"], rows)})
    frame["y"] = 0.1 * (frame["year"] - 2000) + 0.5 * (frame["sex"] == "m") + rng.normal(0.0, 0.5, rows)
    return frame


def design(frame):
    return np.stack([np.ones(len(frame)), frame["year"], frame["sex"] == "m"], axis=1)


def test_flat_effects_are_least_squares():
    frame = measured()
    found = gaussian(frame, terms.Linear("year", "sex", prior="flat")).effects()
    x, y = design(frame), frame["y"].to_numpy()
    precision = x.T @ x / 0.25
    assert list(found["name"][:3]) == ["intercept", "year", "sex[m]"]
    np.testing.assert_allclose(found["estimate"][:3], np.linalg.solve(precision, x.T @ y / 0.25), rtol=1e-8)
    se = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    np.testing.assert_allclose(found["se"][:3], se, rtol=1e-7)
    np.testing.assert_allclose(found["z"][:3], found["estimate"][:3] / found["se"][:3], rtol=1e-12)
    np.testing.assert_allclose(found["upper"][:3] - found["estimate"][:3], 1.959963984540054 * se, rtol=1e-7)


def test_effects_with_a_prior_are_ridge_regression():
    frame = measured()
    found = gaussian(frame, terms.Linear("year", "sex", prior=2.0)).effects("linear(year, sex)")
    x, y = design(frame), frame["y"].to_numpy()
    precision = x.T @ x / 0.25 + np.eye(3) / 4.0
    np.testing.assert_allclose(found["estimate"], np.linalg.solve(precision, x.T @ y / 0.25), rtol=1e-7)
    np.testing.assert_allclose(found["se"], np.sqrt(np.diagonal(np.linalg.inv(precision))), rtol=1e-7)


@pytest.mark.slow
def test_maximised_effects_have_the_errors_of_fit():
    frame = measured()
    model = ng.Model(terms.Linear("year", "sex", prior="maximised"), ng.likelihoods.Gaussian(0.25))
    result = ng.fit(model, frame, "y", parameters={"likelihood.variance": ng.Fixed()})
    x, y = design(frame), frame["y"].to_numpy()
    precision = x.T @ x / 0.25
    for options in ({}, {"including_learned": True}):
        found = result.effects(**options)
        found = found[found["kind"] == "fixed"]
        np.testing.assert_allclose(found["estimate"], np.linalg.solve(precision, x.T @ y / 0.25), rtol=1e-4)
        np.testing.assert_allclose(found["se"], np.sqrt(np.diagonal(np.linalg.inv(precision))), rtol=1e-4)


@pytest.mark.slow
def test_levels_of_a_group_are_shrunken_means():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"herd": np.repeat([3, 1, 2], [4, 5, 6]), "y": rng.normal(size=15), "known": np.arange(15.0)})
    found = gaussian(frame, terms.Group("herd", covariance=0.7) + terms.Offset("known"), 0.3).effects("herd")
    assert found["herd"].tolist() == [1, 2, 3]
    counts = np.array([5, 6, 4])
    sums = [np.sum((frame["y"] - frame["known"])[frame["herd"] == herd]) for herd in (1, 2, 3)]
    precision = 1.0 / 0.7 + counts / 0.3
    np.testing.assert_allclose(found["estimate"], np.array(sums) / 0.3 / precision, rtol=1e-10)
    np.testing.assert_allclose(found["se"], 1.0 / np.sqrt(precision), rtol=1e-10)


@pytest.mark.slow
def test_nested_groups_and_slopes_have_their_columns():
    frame = measured().assign(school=np.repeat(["s", "t"], 20), room=np.tile([1, 2], 20))
    result = gaussian(frame, terms.Linear() + terms.Group("school", "room", slope="year", covariance=0.01 * np.eye(2)))
    found = result.effects("school:room")
    assert list(found.columns) == ["school", "room", "name", "estimate", "se", "lower", "upper"]
    assert found["school"].tolist() == ["s"] * 4 + ["t"] * 4 and found["room"].tolist() == [1, 1, 2, 2] * 2
    assert found["name"].tolist() == ["intercept", "year"] * 4


def test_standard_deviations_and_correlations():
    covariance = np.array([[4.0, 1.5], [1.5, 1.0]])
    frame = measured().assign(herd=np.arange(40) % 5)
    result = gaussian(frame, terms.Group("herd", slope="year", covariance=covariance))
    found = result.effects().set_index("name")
    np.testing.assert_allclose(found.loc["sd(intercept)", "estimate"], 2.0)
    np.testing.assert_allclose(found.loc["sd(year)", "estimate"], 1.0)
    np.testing.assert_allclose(found.loc["cor(intercept, year)", "estimate"], 0.75)
    assert np.isnan(found.loc["sd(year)", "se"])  # nothing was learned


@pytest.mark.slow
def test_errors_of_standard_deviations_are_those_of_fit():
    """Intervals, if they are large, are not: see `tests/fitting/test_profiles.py`."""
    result = tables.fitted()
    found = result.effects().set_index("name").loc["sd(intercept)"]
    variance, error = (table["group(patient).covariance"] for table in (result.parameters, result.standard_errors))
    np.testing.assert_allclose(found["estimate"], np.sqrt(variance))
    np.testing.assert_allclose(found["se"], error / (2.0 * np.sqrt(variance)))
    assert 0.0 < found["lower"] < found["estimate"] < found["upper"]


@pytest.mark.slow
def test_errors_that_include_learned_parameters():
    """Cov[β] ≈ Cov[β | θ] + (dβ/dθ)² Var[θ], with the derivative from two inferences."""
    result = tables.fitted()
    plain, more = result.effects(), result.effects(including_learned=True)
    name = "group(patient).covariance"
    value, error = result.learned[name], result.standard_errors[name]
    step, means = 0.02 * value, []
    for moved in (value + step, value - step):
        own = tables.two_terms()
        group = terms.Group("patient", covariance=float(moved))
        model = ng.Model(own.terms[0] + group + own.terms[2], ng.likelihoods.Poisson())
        means.append(ng.infer(model, tables.visits(), "y", tol=1e-9).effects()["estimate"][:4].to_numpy())
    slope = (means[0] - means[1]) / (2.0 * step)
    expected = np.sqrt(plain["se"][:4] ** 2 + (slope * error) ** 2)
    np.testing.assert_allclose(more["se"][:4], expected, rtol=1e-4)
    assert np.all(more["se"][:4] >= plain["se"][:4])
    levels = result.effects("patient", including_learned=True)
    assert np.all(levels["se"] > result.effects("patient")["se"])


@pytest.mark.slow
def test_what_has_no_effects_is_refused():
    result = tables.fitted()
    with pytest.raises(ValueError, match="is known and has no effects"):
        result.effects("offset(log(days))")
    with pytest.raises(ValueError, match="terms are 'linear"):
        result.effects("group(clinic)")
    inferred = gaussian(measured(), terms.Linear("year"))
    with pytest.raises(ValueError, match="infer learns nothing"):
        inferred.effects(including_learned=True)
    two = gaussian(measured(), terms.Linear() + terms.Smooth("year") + terms.Smooth("year", by="sex"))
    with pytest.raises(ValueError, match="names several terms"):
        two.effects("year")


@pytest.mark.slow
@pytest.mark.thorough
def test_effects_of_every_kind_of_term():
    result = tables.inferred()
    for label in result.model.prior.labels[0][:-1]:
        found = result.effects(label)
        assert np.all(np.isfinite(found["estimate"])) and np.all(found["se"] >= 0.0)
    assert result.effects("trend(date)")["date"].dtype.kind == "M"
    assert result.effects("area")["area"].tolist() == list("abcd")
    assert result.effects("randomwalk(drug)")["drug"].tolist() == ["none", "low", "high"]


@pytest.mark.slow
@pytest.mark.thorough
def test_summaries_have_effects_terms_and_what_is_determined_together():
    frame = measured()
    curve = terms.Smooth("year", kernel=ng.kernels.Matern52(20.0, 4.0))
    result = ng.infer(ng.Model(terms.Linear("sex") + curve, "gaussian"), frame, "y")
    summary = result.summary()
    facts = summary.as_dict()
    assert facts["title"].startswith("Inference of linear(sex) + smooth(year) with Gaussian")
    assert [entry["name"] for entry in facts["effects"][:2]] == ["intercept", "sex[m]"]
    assert [entry["name"] for entry in facts["terms"]] == ["linear(sex)", "smooth(year)"]
    (note,) = facts["notes"]
    assert "linear(sex) and smooth(year) are determined only together" in note
    for text in (str(summary), summary._repr_html_()):
        assert "linear(sex): sex[m]" in text and "determined" in text
    alone = ng.infer(ng.Model(terms.Linear("sex"), "gaussian"), frame, "y").summary()
    assert alone.notes == []
    assert result.summary(checks=False).terms == []


@pytest.mark.slow
@pytest.mark.thorough
def test_terms_with_the_same_label_are_numbered():
    frame = measured()
    short, long = ng.kernels.Matern32(2.0, 0.5), ng.kernels.RBF(30.0, 2.0)
    groups = terms.Group("sex", covariance=0.3) + terms.Group("sex", covariance=0.7)
    curves = terms.Smooth("year", kernel=short) + terms.Smooth("year", kernel=long)
    result = ng.infer(ng.Model(terms.Linear() + curves + groups, "gaussian"), frame, "y")
    effects = result.effects()
    found = {(row.term, row.name): row.estimate for row in effects.itertuples()}
    assert found["smooth(year)[0]", "kernel.lengthscale"] == 2.0
    assert found["smooth(year)[1]", "kernel.lengthscale"] == 30.0
    assert found["group(sex)[0]", "sd(intercept)"] == pytest.approx(np.sqrt(0.3))
    assert found["group(sex)[1]", "sd(intercept)"] == pytest.approx(np.sqrt(0.7))
    assert set(result.terms()["term"]) == {term for term, _ in found} - {"likelihood"}
    assert len(result.effects("smooth(year)[1]")) == len(set(frame["year"]))
    with pytest.raises(ValueError, match=r"choose one of 'smooth\(year\)\[0\]', 'smooth\(year\)\[1\]'"):
        result.effects("smooth(year)")
