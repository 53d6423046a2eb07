"""What a summary shows, and that each of its warnings is given where it should be and only there."""

import io
import json
import re
import types

import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from newtongp.diagnostics import summary as room
from newtongp.parameters.priors import Gamma, LogNormal, Plausible

likelihoods = ng.likelihoods
X = np.linspace(0.0, 10.0, 30)
NOISE = np.random.default_rng(0).normal(size=X.size)
Y = np.sin(X) + 0.1 * NOISE
GAUSSIAN = ng.Model(ng.GP(ng.kernels.Matern52(lengthscale=2.0)), likelihoods.Gaussian(0.01))


@pytest.fixture(scope="module")
def result():
    return ng.infer(GAUSSIAN, X, np.where(np.arange(X.size) == 4, np.nan, Y))


@pytest.fixture(scope="module")
def robust():
    """An outlier under a likelihood that is not log-concave."""
    y = Y.copy()
    y[11] += 4.0
    return X, y, ng.Model(ng.GP(ng.kernels.Matern52(lengthscale=2.0)), likelihoods.StudentT(df=3.0, scale=0.1))


def fitted(result, **changes):
    """A FitResult without the fit."""
    learned = {each.name: each.value for each in ng.hyperparameters(result.model)}
    told = {
        "status": ng.Status.CONVERGED,
        "learned": learned,
        "priors": {},
        "standard_errors": {name: np.full(value.shape, 0.5) for name, value in learned.items()},
        "at_bound": [],
        "penalty": 0.0,
        "fit_history": np.array([3.0, 2.0]),
        "evaluations": 7,
        "seconds": 1.5,
    }
    return ng.results.FitResult(result, **{**told, **changes})


def about(summary):
    return [each.about for each in summary.warnings]


@pytest.mark.parametrize(("phi", "warned"), [(1.0 - 1e-7, True), (1e-6, True), (0.9, False)])
def test_a_share_at_an_end_of_its_range_is_told(phi, warned):
    kernel = ng.kernels.Graph([(0, 1), (1, 2), (2, 3)], phi=phi)
    areas = ng.infer(ng.Model(ng.GP(kernel), likelihoods.Gaussian(0.1)), np.arange(4), [0.1, 0.3, 0.2, 0.5])
    assert [each.about for each in fitted(areas).summary(checks=False).warnings] == ["kernel.phi"] * warned
    assert areas.summary(checks=False).warnings == []


def test_a_good_result_has_its_facts_and_no_warnings(result):
    summary = result.summary()
    facts = summary.as_dict()
    assert summary.warnings == [] and summary.not_checked == []
    assert facts["fit"] is None and facts["inference"]["status"] == "converged"
    assert facts["rows"] == {"observed": 29, "missing": 1, "partly_observed": 0}
    assert facts["energy"]["value"] == result.energy and "ELBO" in facts["energy"]["name"]
    assert facts["title"] == "Inference of GP(Matern52) with Gaussian by VI"
    assert [entry["treatment"] for entry in facts["parameters"]] == ["given"] * 3
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    text = str(summary)
    assert repr(summary) == text and "29 observed, 1 missing" in text and "No check gave a warning" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_sum_within_a_product_is_in_brackets():
    rbf, matern, periodic = ng.kernels.RBF(), ng.kernels.Matern32(), ng.kernels.Periodic()
    assert room._kernel_words((rbf + matern) * periodic) == "(RBF + Matern32) × Periodic"
    assert room._kernel_words(rbf + matern * periodic) == "RBF + Matern32 × Periodic"


@pytest.mark.slow
def test_a_fit_says_what_was_done_to_every_hyperparameter():
    x = np.linspace(0.0, 10.0, 20)
    kernel = ng.kernels.RBF() + ng.kernels.Matern12(lengthscale=0.5)
    wishes = {
        "kernel[1].lengthscale": ng.Fixed(),
        "kernel[1].variance": ng.Tied("likelihood.variance"),
        "kernel[0].lengthscale": ng.Free(prior=LogNormal(2.0, 0.5)),
    }
    y = np.sin(x) + 0.2 * np.random.default_rng(0).normal(size=20)
    result = ng.fit(ng.Model(ng.GP(kernel), likelihoods.Gaussian()), x, y, parameters=wishes, max_steps=40)
    summary = result.summary()
    found = {entry["name"]: entry for entry in summary.parameters}
    assert {name: entry["treatment"] for name, entry in found.items()} == {
        "kernel[0].lengthscale": "learned",
        "kernel[0].variance": "learned",
        "kernel[1].lengthscale": "fixed",
        "kernel[1].variance": "tied",
        "likelihood.variance": "learned",
    }
    assert found["kernel[1].variance"]["tied_to"] == "likelihood.variance"
    assert found["kernel[1].variance"]["value"] == found["likelihood.variance"]["value"]
    assert found["kernel[0].lengthscale"]["prior"] == "log-normal prior, median 2, spread 0.5"
    assert found["kernel[0].variance"]["prior"].startswith("weak prior outside ")
    assert found["kernel[1].lengthscale"]["standard_error"] is None
    facts = summary.as_dict()
    assert facts["fit"]["evaluations"] == result.evaluations and facts["fit"]["penalty"] == result.penalty
    lines = str(summary).splitlines()
    assert any(re.search(r"kernel\[1\].lengthscale +0.5 +- +x +fixed", line) for line in lines)
    assert any("tied to likelihood.variance" in line for line in lines)
    narrow = io.StringIO()
    Console(file=narrow, width=80).print(summary)
    assert all(name in narrow.getvalue() for name in found)
    assert f"{facts['fit']['iterations']} iterations, {result.evaluations} evaluations" in str(summary)
    assert "from priors on hyperparameters" in str(summary)


def test_what_the_data_do_not_determine_is_said(result):
    errors = {"kernel.lengthscale": np.array(np.inf), "kernel.variance": np.array(0.25)}
    summary = fitted(result, standard_errors=errors).summary(checks=False)
    length, variance, noise = summary.parameters
    assert length["standard_error"] is None and length["determined"] is False
    assert variance["standard_error"] == 0.25 and variance["determined"] is True
    assert noise["determined"] is None
    assert re.search(r"kernel.lengthscale +2 +not determined", str(summary))
    assert re.search(r"likelihood.variance +0.01 +-", str(summary))


def test_priors_of_all_kinds_have_words(result):
    def cautious(value):
        return -value

    priors = {"kernel.lengthscale": cautious, "kernel.variance": Gamma(2.0, 0.5)}
    summary = fitted(result, priors={**priors, "likelihood.variance": Plausible(1e-3, 10.0)}).summary(checks=False)
    assert [entry["prior"] for entry in summary.parameters] == [
        "custom prior, cautious",
        "gamma prior, shape 2, rate 0.5",
        "weak prior outside 0.001 to 10",
    ]


@pytest.mark.slow
def test_many_numbers_are_shown_as_their_range():
    kernel = ng.kernels.RBF(lengthscale=[1.0, 2.0])
    prior = ng.SparseGP(kernel, inducing=np.arange(10.0).reshape(5, 2))
    x = np.stack([X, -X], axis=1)
    summary = ng.infer(ng.Model(prior, likelihoods.Gaussian(0.1)), x, Y).summary(checks=False)
    text = str(summary)
    assert "5 × 2 values, 0 to 9" in text and re.search(r"kernel.lengthscale +1, 2 ", text)
    assert summary.as_dict()["parameters"][0]["value"] == [1.0, 2.0]


@pytest.mark.slow
def test_lengthscales_are_in_the_units_of_the_clock():
    times = np.datetime64("2024-01-01") + np.arange(10) * np.timedelta64(12, "h")
    model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(2.0), unit="D"), likelihoods.Gaussian())
    result = ng.infer(model, times, Y[:10])
    assert [entry["unit"] for entry in result.summary(checks=False).parameters] == ["days", "f²", "y²"]
    slow = types.SimpleNamespace(prior=ng.MarkovGP(ng.kernels.Brownian(), unit=np.timedelta64(36, "h")))
    assert room._unit_words("f2/x", types.SimpleNamespace(model=slow)) == "f²/(36 hours)"


def test_a_notebook_gets_a_table(result):
    page = fitted(result, at_bound=["kernel.variance"]).summary(checks=False)._repr_html_()
    assert "<th>hyperparameter</th>" in page and "<td>kernel.lengthscale</td>" in page
    assert "<li>kernel.variance ended at a bound" in page and "checks=False" in page


# Warnings of the search and of hyperparameters ----------------------------------------------------


def test_a_search_that_did_not_converge_is_warned_of(result):
    summary = fitted(result, status=ng.Status.MAX_STEPS).summary(checks=False)
    assert about(summary) == ["fit"] and "raise max_steps" in summary.warnings[0].text
    assert "max steps" in str(summary)


@pytest.mark.slow
def test_inference_that_did_not_converge_is_warned_of(robust):
    x, y, model = robust
    unfinished = ng.infer(model, x, y, max_steps=1, throw=False)
    summary = unfinished.summary(checks=False)
    assert about(summary) == ["inference"] and "max steps" in summary.warnings[0].text
    assert about(fitted(unfinished).summary(checks=False)) == ["inference"]


def test_a_parameter_at_its_bound_is_warned_of(result):
    [found] = fitted(result, at_bound=["kernel.variance"]).summary(checks=False).warnings
    assert found.about == "kernel.variance" and "bound" in found.text and "Widen" in found.text


def test_a_parameter_beyond_its_plausible_range_is_warned_of(result):
    priors = {"likelihood.variance": Plausible(0.1, 10.0), "kernel.variance": Plausible(0.1, 10.0)}
    [found] = fitted(result, priors=priors).summary(checks=False).warnings
    assert found.about == "likelihood.variance" and "0.01, outside its plausible range of 0.1 to 10" in found.text


@pytest.mark.parametrize(("lengthscale", "words"), [(500.0, "50 times the range of x"), (0.05, "acts as noise")])
def test_lengthscales_that_the_data_cannot_tell_are_warned_of(lengthscale, words):
    model = ng.Model(ng.GP(ng.kernels.Matern52(lengthscale)), likelihoods.Gaussian(0.01))
    [found] = ng.infer(model, X, Y).summary(checks=False).warnings
    assert found.about == "kernel.lengthscale" and words in found.text


def test_one_lengthscale_a_column_is_held_against_its_own_column():
    x = np.stack([X, 100.0 * X], axis=1)
    model = ng.Model(ng.GP(ng.kernels.RBF([200.0, 200.0])), likelihoods.Gaussian(0.01))
    [found] = ng.infer(model, x, Y).summary(checks=False).warnings
    assert "20 times the range of x" in found.text
    model = ng.Model(ng.GP(ng.kernels.RBF(200.0)), likelihoods.Gaussian(0.01))
    assert ng.infer(model, x, Y).summary(checks=False).warnings == []


def test_columns_that_never_vary_are_not_called_long():
    def warned(lengthscales):
        kernel = ng.kernels.RBF(lengthscales)
        x = np.stack([X, np.ones(X.size)], axis=1)
        [found] = ng.infer(ng.Model(ng.GP(kernel), likelihoods.Gaussian(0.01)), x, Y).summary(checks=False).warnings
        return found.text

    only = warned([2.0, 1.0])
    assert "Column 1 of x is constant" in only and "times the range" not in only
    both = warned([200.0, 1.0])
    assert "20 times the range of x" in both and "on column 0, which" in both and "Column 1 of x is constant" in both


# Warnings of the posterior ------------------------------------------------------------------------


@pytest.mark.slow
def test_inducing_inputs_that_repeat_each_other_are_warned_of():
    inducing = np.concatenate([np.linspace(0.0, 10.0, 10), np.linspace(0.0, 10.0, 5)])[:, None]
    prior = ng.SparseGP(ng.kernels.Matern52(lengthscale=2.0), inducing)
    result = ng.infer(ng.Model(prior, likelihoods.Gaussian(0.05)), X, Y)
    distinct = len(np.unique(np.round(inducing, 12)))
    [found] = [each for each in result.summary().warnings if each.about == "inducing"]
    assert f"Of the 15 inducing inputs only {distinct} directions" in found.text


@pytest.mark.slow
@pytest.mark.thorough
def test_rows_that_the_heuristic_clips_are_counted(robust):
    x, y, model = robust
    clipped = ng.infer(model, x, y, ng.VI(safeguard=ng.Heuristic()), throw=False)
    [found] = [each for each in clipped.summary().warnings if each.about == "safeguard"]
    exact = np.flatnonzero(ng.infer(model, x, y).sites.precision[:, 0, 0] < 0.0)
    assert 11 in found.rows and found.rows[0] in exact and f"of {X.size} rows" in found.text
    assert "safeguard" not in about(ng.infer(model, x, y).summary())
    learning = ng.infer(model, x, y, ng.VI(ng.QuasiNewton(), ng.Heuristic()), max_steps=2, throw=False).summary()
    assert any("quasi-Newton" in words for words in learning.not_checked)


@pytest.mark.cases(thorough=["VI", "PowerEP"], others="slow")
@pytest.mark.parametrize("method", [ng.VI, ng.PowerEP])
def test_nodes_that_are_too_coarse_are_warned_of(robust, method):
    x, y, model = robust
    coarse = ng.infer(model, x, y, method(cubature=ng.cubature.GaussHermite(4)), throw=False)
    [found] = [each for each in coarse.summary().warnings if each.about == "cubature"]
    change = float(re.search(r"changes by ([+-][\d.e+-]+)", found.text).group(1))
    finer = method(cubature=ng.cubature.Adaptive(160))
    again = ng.infer(model, x, y, finer, sites=coarse.sites, max_steps=0, throw=False)
    assert change == pytest.approx(again.energy - coarse.energy, rel=1e-2)
    assert found.rows and "Adaptive(160) instead of GaussHermite(4)" in found.text


@pytest.mark.slow
@pytest.mark.thorough
def test_nodes_are_for_the_latents_that_need_some():
    """Of the two latents one enters linearly: twice the nodes for the other, and nothing to warn of."""
    kernel = ng.kernels.Independent([ng.kernels.RBF(2.0), ng.kernels.RBF(5.0)])
    model = ng.Model(ng.GP(kernel, ng.means.Independent([0.0, -2.0])), likelihoods.HeteroscedasticGaussian())
    summary = ng.infer(model, X, Y).summary()
    assert summary.warnings == [] and summary.not_checked == []


@pytest.mark.slow
def test_rules_that_cannot_be_refined_are_said():
    model = ng.Model(ng.GP(ng.kernels.Matern52(2.0)), likelihoods.Poisson())
    summary = ng.infer(model, X, np.round(1.0 + Y), ng.VI(cubature=ng.cubature.PointRule())).summary()
    assert "cubature" not in about(summary) and "PointRule()" in summary.not_checked[0]


def test_rows_against_all_others_are_listed():
    y = Y.copy()
    y[[7, 20]] += [3.0, -6.0]
    summary = ng.infer(GAUSSIAN, X, y).summary()
    assert about(summary) == ["rows"]
    [found] = summary.warnings
    assert set(found.rows[:2]) == {7, 20} and "far from the prediction" in found.text and "StudentT" in found.text


@pytest.mark.parametrize("rows", [30, 5])
def test_rows_that_the_model_calls_impossible_are_listed(result, monkeypatch, rows):
    """Also where there are too few others to speak of a typical row."""
    densities = np.where(np.arange(X.size) < rows, result.leave_one_out(), np.nan)
    densities[2] = -np.inf
    # Of the class: undone on the instance, it would stay there as an attribute, which is saved with it.
    monkeypatch.setattr(type(result), "leave_one_out", lambda self: densities)
    [found] = result.summary().warnings
    assert found.about == "rows" and found.rows == (2,)
    assert "observation in row 2 is impossible" in found.text and "typical row" not in found.text


@pytest.mark.slow
def test_little_noise_alone_is_nothing_to_warn_of():
    """Every row moves its own mean by many posterior standard deviations, as the prior expects it to."""
    x = np.linspace(0.0, 10.0, 12)
    model = ng.Model(ng.GP(ng.kernels.Matern12(1.0)), likelihoods.Gaussian(1e-6))
    draws = ng.infer(model, x, np.full(x.size, np.nan)).sample(3, x, 1)[0, :, 0]
    assert ng.infer(model, x, draws).summary().warnings == []


@pytest.mark.slow
def test_without_rows_there_is_less_to_check():
    prior = ng.SparseGP(ng.kernels.Matern52(2.0), inducing=8, storage="tied")
    result = ng.infer(ng.Model(prior, likelihoods.Gaussian(0.05)), X, Y, batch_size=10, key=0, throw=False)
    assert result.sites is None
    summary = result.summary()
    assert "not kept" in summary.not_checked[0] and "rows" not in about(summary)


def test_a_loaded_fit_has_the_same_summary(result, tmp_path):
    tied = {"kernel.variance": "likelihood.variance"}
    fit = fitted(
        result, tied=tied, priors={"kernel.lengthscale": LogNormal(2.0, 0.5)}, at_bound=["likelihood.variance"]
    )
    fit.save(tmp_path / "fit.ngp")
    assert ng.load(tmp_path / "fit.ngp").summary(checks=False).as_dict() == fit.summary(checks=False).as_dict()
