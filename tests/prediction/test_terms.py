"""Terms of additive models at rows: sums, choices, new levels, contrasts, and predictions without terms."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import newtongp as ng
from newtongp import terms
from newtongp.prediction.effects import centred_curve
from newtongp.prediction.terms import entries_of

from .. import tables


@pytest.mark.slow
@pytest.mark.thorough
def test_terms_add_up_to_the_latent_for_every_kind_of_term():
    result = tables.inferred()
    frame = result.terms()
    assert list(frame.columns) == ["row", "term", "mean", "sd", "lower", "upper"]
    assert frame["term"].nunique() == len(result.model.prior.labels[0])
    sums = frame.groupby("row")["mean"].sum().to_numpy()
    np.testing.assert_allclose(sums, result.marginals.mean[:, 0], atol=1e-10)
    whole = result.terms(sum=True)
    np.testing.assert_allclose(whole["sd"], np.sqrt(result.marginals.covariance[:, 0, 0]), atol=1e-10)
    np.testing.assert_allclose(whole["upper"] - whole["lower"], 2 * 1.959963984540054 * whole["sd"], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.thorough
def test_latents_of_several_have_their_names():
    result = tables.distributional()
    frame = result.terms()
    assert set(frame["term"]) == {"location.linear(dose)", "location.group(patient)", "scale.linear(drug)"}
    whole = result.terms(sum=True)
    found = whole["mean"].to_numpy().reshape(2, -1).T
    np.testing.assert_allclose(found, result.marginals.mean, atol=1e-10)
    assert set(result.terms(only="scale.linear(drug)")["term"]) == {"scale.linear(drug)"}


@pytest.mark.slow
def test_frames_are_of_the_users_kind():
    result = tables.fitted()
    rows = tables.visits().head(3)
    assert isinstance(result.terms(pl.from_pandas(rows)), pl.DataFrame)
    assert isinstance(result.terms(rows), pd.DataFrame)
    labelled = rows.set_axis(["c", "a", "b"], axis=0)
    by_term = result.terms(labelled)
    assert by_term.index.tolist() == ["c", "a", "b"] * by_term["term"].nunique()
    assert result.contrast(labelled, labelled, n=100).index.tolist() == ["c", "a", "b"]
    assert result.contrast(labelled, labelled, n=100, average=True).index.tolist() == [0]
    summary = result.summary(checks=False).to_frame()
    assert isinstance(summary, pd.DataFrame) and summary["treatment"].tolist().count("learned") == len(result.learned)
    in_polars = ng.infer(ng.Model(tables.two_terms(), "poisson"), pl.from_pandas(tables.visits()), "y")
    assert isinstance(in_polars.effects(), pl.DataFrame) and isinstance(in_polars.terms(), pl.DataFrame)
    assert isinstance(in_polars.summary(checks=False).to_frame(), pl.DataFrame)
    assert isinstance(ng.compare({"one": in_polars}).to_frame(), pl.DataFrame)


@pytest.mark.slow
def test_terms_are_chosen_by_label_or_column():
    result, rows = tables.fitted(), tables.visits().head(4)
    by_label = result.terms(rows, only="group(patient)")
    assert by_label.equals(result.terms(rows, only=["patient"]))
    with pytest.raises(ValueError, match="only must name terms, or columns of groups and smooth terms, got 'dose'"):
        result.terms(rows, only=["dose"])  # shared with other fixed effects
    with pytest.raises(ValueError, match="level must be a number"):
        result.terms(rows, level=95)
    with pytest.raises(ValueError, match="sum must be True or False"):
        result.terms(rows, sum="all")


@pytest.mark.slow
def test_other_models_have_no_terms():
    result = ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), "poisson"), [0.0, 1.0], [1, 2])
    for call in (result.terms, result.effects, result.plot_terms, lambda: result.contrast({}, {})):
        with pytest.raises(ValueError, match="needs a model of terms"):
            call()
    with pytest.raises(ValueError, match="needs a model of terms"):
        result.predict([0.5], without=["patient"])


@pytest.mark.slow
def test_predictions_without_terms():
    result, rows = tables.fitted(), tables.visits().head(5)
    some = result.terms(rows, only=["linear(dose, drug)", "offset(log(days))"], sum=True)
    latent = result.predict(rows, without=["patient"]).latent
    np.testing.assert_allclose(latent.mean[:, 0], some["mean"], atol=1e-12)
    np.testing.assert_allclose(latent.covariance[:, 0, 0], some["sd"] ** 2, atol=1e-12)


@pytest.mark.slow
def test_new_levels_are_integrated_or_zero():
    result, rows = tables.fitted(), tables.visits().head(2).assign(patient=["new", "p1"])
    without = result.predict(rows, without="patient").latent
    zero = result.predict(rows, new_levels="zero").latent
    integrated = result.predict(rows).latent
    variance = float(result.model.prior.latents[0].terms[1].covariance)
    np.testing.assert_allclose(zero.mean[0], without.mean[0], atol=1e-12)
    np.testing.assert_allclose(zero.covariance[0], without.covariance[0], atol=1e-12)
    np.testing.assert_allclose(integrated.covariance[0], without.covariance[0] + variance, rtol=1e-10)
    np.testing.assert_array_equal(zero.mean[1], integrated.mean[1])
    with pytest.raises(ValueError, match="new_levels must be 'integrate'"):
        result.predict(rows, new_levels="drop")


@pytest.mark.slow
def test_new_levels_of_curves_can_be_zero():
    model = ng.Model(terms.Linear() + terms.Smooth("age") * terms.Group("patient"), "poisson")
    result = ng.infer(model, tables.visits(), "y")
    rows = tables.visits().head(1).assign(patient="new")
    one = result.terms(rows, only="age", new_levels="zero")
    assert one["mean"][0] == 0.0 and one["sd"][0] == 0.0
    assert result.terms(rows, only="age")["sd"][0] > 0.1


@pytest.mark.slow
def test_centred_curves_have_the_uncertainty_of_differences():
    """A curve less its average over the rows: variances are those of Af, with A = I − 11ᵀ/N."""
    result = ng.infer(ng.Model(terms.Linear() + terms.Smooth("age"), "poisson"), tables.visits(), "y")
    _, entry = entries_of(result)
    x = result.data.x
    mean, sd = centred_curve(result, entry, x[:, entry.place][:, :1])
    joint = result.posterior.joint_of_terms(x, ((0.0, 1.0),))
    average = np.eye(len(x)) - 1.0 / len(x)
    np.testing.assert_allclose(mean, average @ joint.mean, atol=1e-10)
    np.testing.assert_allclose(sd**2, np.diagonal(average @ joint.covariance @ average.T), atol=1e-10)


# Contrasts --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_contrasts_are_differences_of_expected_y():
    result, rows = tables.fitted(), tables.visits().head(6)
    high, none = rows.assign(drug="high"), rows.assign(drug="none")
    found = result.contrast(high, none, n=4000)
    expected = result.predict(high).mean - result.predict(none).mean
    np.testing.assert_allclose(found["estimate"], expected, rtol=1e-10)
    # The draws are of E[y | f] at both rows, jointly.
    draws = np.exp(result.sample(3, pd.concat([high, none]), 4000)[:, :, 0])
    sd = np.std(draws[:, :6] - draws[:, 6:], axis=0)
    np.testing.assert_allclose(found["sd"], sd, rtol=0.1)
    assert np.all(found["lower"] < found["estimate"]) and np.all(found["estimate"] < found["upper"])
    average = result.contrast(high, none, average=True, n=4000)
    assert len(average) == 1
    np.testing.assert_allclose(average["estimate"], expected.mean(), rtol=1e-10)
    again = result.contrast(high, none, average=True, n=4000)
    assert average.equals(again) and not average.equals(result.contrast(high, none, average=True, n=4000, key=1))


@pytest.mark.slow
def test_a_new_level_is_the_same_in_both_tables():
    model = ng.Model(tables.two_terms(), ng.likelihoods.Gaussian(1.0))
    result = ng.infer(model, tables.visits(), "y")
    rows = tables.visits().head(2).assign(patient=["new", "other"])
    same = result.contrast(rows, rows)
    np.testing.assert_allclose(same["sd"], 0.0, atol=1e-6)
    others = result.contrast(rows, rows.assign(patient=["other", "new"]))
    variance = float(result.model.prior.latents[0].terms[1].covariance)
    np.testing.assert_allclose(others["sd"], np.sqrt(2.0 * variance), rtol=0.1)


@pytest.mark.slow
def test_contrasts_of_many_rows_are_drawn_in_parts(monkeypatch):
    from newtongp.prediction import contrasts

    result, rows = tables.fitted(), tables.visits().head(6)
    whole = result.contrast(rows.assign(dose=4.0), rows.assign(dose=3.0))
    monkeypatch.setattr(contrasts, "_PAIRS", 4)
    parts = result.contrast(rows.assign(dose=4.0), rows.assign(dose=3.0))
    np.testing.assert_array_equal(whole["estimate"], parts["estimate"])
    np.testing.assert_allclose(whole["sd"], parts["sd"], rtol=0.1)


def test_contrasts_need_equal_rows():
    result, rows = tables.fitted(), tables.visits()
    with pytest.raises(ValueError, match="have 3 and 4 rows"):
        result.contrast(rows.head(3), rows.head(4))
    with pytest.raises(ValueError, match="two tables"):
        result.contrast(np.ones((3, 2)), rows.head(3))
