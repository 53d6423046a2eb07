"""The case studies against the published curves: means over the four folds, as read off the paper's figures."""

import csv
import io
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from newtongp import cli
from newtongp.experiments import beyond, cases, catalogue, jobs, report, reproduce, runner, study
from newtongp.experiments.kept import Shelf

MOTORCYCLE = cases.motorcycle()
ENTRIES = {entry.name: entry for entry in catalogue.ENTRIES}
COMPARED = [
    name
    for name, entry in ENTRIES.items()
    if entry.until != 0 and (entry.curve or name) in study.published_curves("motorcycle")
]
EQUATIONS = {
    "Gauss-Newton": (88.29414, 67.18769),
    "variational Gauss-Newton": (149.09748, 74.51589),
    "PL2 Gauss-Newton": (100.60412, 78.92220),
}
"""Mean losses after iterations 1 and 491 with the outer product of `eq:pgn`, which the published curves do not have."""


@pytest.fixture(scope="module")
def folds():
    return [runner.make_fold(MOTORCYCLE, split) for split in MOTORCYCLE.splits]


def run(name, folds, iterations):
    entry = ENTRIES[name]
    scheme = entry.make(MOTORCYCLE)
    runs = tuple(runner.run(fold, scheme, iterations) for fold in folds)
    outcome = study.Outcome(entry, runs)
    return outcome, study.Study(MOTORCYCLE, tuple(range(len(folds))), (outcome,)).agreement(outcome)


def test_every_published_curve_is_compared_with_or_known_to_depart():
    curves = set(study.published_curves("motorcycle"))
    followed = {ENTRIES[name].curve or name for name in COMPARED}
    # Its published run approximated a derivative.
    assert curves - followed == {"PL2 quasi-Newton"}


@pytest.mark.parametrize("name", COMPARED)
def test_curves_are_the_published_ones(name, folds):
    outcome, agreement = run(name, folds, 21)
    assert agreement.until == 21
    assert agreement.loss < 1e-6 and agreement.nlpd < 3e-6
    assert not any(each.status.failed for each in outcome.runs)


@pytest.mark.parametrize("name", EQUATIONS)
def test_gauss_newton_follows_the_equation(name, folds):
    outcome, agreement = run(name, folds, 1)
    assert agreement is None
    assert outcome.mean.loss[0] == pytest.approx(EQUATIONS[name][0], abs=5e-6)


@pytest.mark.parametrize("name", ["PEP quasi-Newton", "PL quasi-Newton", "PL2 quasi-Newton"])
def test_methods_without_a_curve_to_follow_stay_sound(name, folds):
    outcome, agreement = run(name, folds[:1], 21)
    assert agreement is None
    assert np.all(np.isfinite(outcome.mean.loss))
    if name != "PEP quasi-Newton":  # whose loss is nothing that it minimises, and rises before it falls
        assert outcome.mean.loss[2] < outcome.mean.loss[0]
    assert outcome.runs[0].status is ng.Status.MAX_STEPS and outcome.runs[0].steps == 21


def test_folds_are_the_published_ones():
    parts = np.split(np.random.RandomState(123).permutation(132), 4)
    times, _ = ng.datasets.motorcycle()
    standard = (times - times.mean()) / times.std()
    for split, part in zip(MOTORCYCLE.splits, parts, strict=True):
        np.testing.assert_array_equal(split.x[split.test[:, 0]], np.sort(standard[part]))
        assert np.all(split.train ^ split.test) and split.train.sum() == 99


def test_product_and_network_data_have_their_sizes_and_models():
    product, network = cases.product(), cases.gprn()
    assert [split.test.sum() for split in product.splits] == [250] * 4
    signal = product.splits[0]
    truth = signal.truth[:, 0] * np.logaddexp(0.0, signal.truth[:, 1])
    assert np.std(signal.y[:, 0] - truth) == pytest.approx(0.1, rel=0.1)
    for split in network.splits:
        assert split.test.sum() == 2 * 133 and not np.any(split.test[:, 0])
        noise = np.cov((split.y - split.truth).T)
        np.testing.assert_allclose(noise, cases.GPRN_NOISE, atol=0.01)


def test_a_run_that_fails_keeps_its_last_recorded_values():
    filled = runner._keep_last(np.array([3.0, 2.0, np.nan, np.nan]))
    np.testing.assert_array_equal(filled, [3.0, 2.0, 2.0, 2.0])


def test_the_command_writes_numbers_and_figures(tmp_path):
    text = io.StringIO()
    reproduce("motorcycle", ["heuristic-newton"], [1, 2], 11, tmp_path, False, console=Console(file=text, width=160))
    assert "heuristic Newton" in text.getvalue() and "max_steps" in text.getvalue()
    numbers = json.loads((tmp_path / "motorcycle_results.json").read_text())
    assert numbers["splits"] == ["fold 1", "fold 2"]
    assert numbers["curves"]["heuristic Newton"]["iteration"] == [1, 11]
    with (tmp_path / "motorcycle_curves.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    for name in ("motorcycle_results.png", "motorcycle_results.pdf", "motorcycle_summary.csv"):
        assert (tmp_path / name).stat().st_size > 100


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    def again(**choices):
        console = Console(file=io.StringIO())
        names = ["heuristic Newton", "Gauss-Newton"]
        return study.conduct("motorcycle", names, [1], 11, console=console, keep=tmp_path, **choices)

    performed = []

    def perform(job, tell):
        performed.append(job.name)
        if job.name == "Gauss-Newton" and len(performed) == 2:
            raise KeyboardInterrupt
        if job.beyond_paper:
            return tuple(beyond.Ending(1.0, 2.0, np.nan, 3, 4.0, ng.Status.CONVERGED, 0.0, 5.0) for _ in job.splits)
        return before(job, tell)

    before = jobs.perform
    monkeypatch.setattr(jobs, "perform", perform)
    with pytest.raises(ValueError, match="resume=True needs the folder"):
        study.conduct("motorcycle", resume=True)
    with pytest.raises(KeyboardInterrupt):
        again()
    [kept] = tmp_path.iterdir()
    resumed = again(resume=True)
    assert performed.count("heuristic Newton") == 1 and performed.count("Gauss-Newton") == 2
    everything = len(performed)
    whole = again(resume=True)
    assert len(performed) == everything and kept.name == "heuristic_newton.ngp"
    for one, other in zip(resumed.outcomes, whole.outcomes, strict=True):
        jax.tree.map(
            np.testing.assert_array_equal, one.runs[0]._replace(status=None), other.runs[0]._replace(status=None)
        )
        assert one.runs[0].status is other.runs[0].status is ng.Status.MAX_STEPS
    assert len(whole.defaults) > 3 and str(resumed.defaults) == str(whole.defaults)
    assert Shelf(tmp_path).get(jobs.Job("motorcycle", "Gauss-Newton", False, (0,), 12)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "simplex"], "unknown method 'simplex'"),
        (["--folds", "5"], "folds must lie between 1 and 4"),
        (["--iterations", "0"], "iterations must be at least 1"),
    ],
)
def test_the_command_says_what_it_does_not_know(arguments, message, tmp_path, capsys):
    out = tmp_path / "new"
    assert cli.main(["reproduce", "motorcycle", "--out", str(out), *arguments]) == 1
    assert message in capsys.readouterr().err and not out.exists()
    with pytest.raises(ValueError, match="unknown case study 'tides': choose from motorcycle, product, gprn"):
        reproduce("tides", out=out)
    assert not out.exists()


@pytest.mark.slow
def test_exact_variational_inference_goes_below_the_best_of_its_family_on_the_network(monkeypatch):
    """The lowest run of variational Gauss-Newton, the best of the VI methods, is at −42.68 after 1000 iterations here.

    Rounding would decide which optimum is found from the usual start, hence two that are perturbed by more than that.
    """
    monkeypatch.setenv("XLA_FLAGS", "")  # it runs longer than it compiles
    network, default = cases.gprn(), beyond.Default("exact VI", ng.VI(), starts=2)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        ending = pool.submit(beyond.run, network, default, network.splits[2], 80).result()
    assert ending.energy < -42.68
    assert ending.steps == 80 and ending.largest_rise == 0.0


# The whole ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_of_it(monkeypatch):
    """One test, so that the runs are made once however tests are shared out."""
    monkeypatch.setenv("XLA_FLAGS", "")  # its processes run long: let them compile well
    whole = study.conduct("motorcycle", processes=2, console=Console(file=io.StringIO()))
    assert len(report.rows(whole)) == len(whole.outcomes) + len(beyond.defaults_for("motorcycle"))
    for outcome in whole.outcomes:
        check_curves(whole, outcome)
    check_exact_vi(whole.defaults["exact VI, backtracking"])
    for power in ("0.5", "1"):
        damped = whole.defaults[f"exact power EP (α = {power}), damped"]
        assert all(ending.status.ok and ending.residual < 1e-6 for ending in damped)
        undamped = whole.defaults[f"exact power EP (α = {power}), undamped"]
        assert any(ending.status.failed for ending in undamped)


def check_curves(whole, outcome):
    agreement = whole.agreement(outcome)
    name = outcome.entry.name
    assert (agreement is not None) == (name in COMPARED)
    if agreement is not None:
        assert agreement.loss < 1e-6 and agreement.nlpd < 3e-6, name
    if name in EQUATIONS:
        found = outcome.mean.loss[[0, -1]]
        np.testing.assert_allclose(found, EQUATIONS[name], atol=5e-6, rtol=0.0)
    assert all(each.status is not ng.Status.RUNNING for each in outcome.runs)


def check_exact_vi(endings):
    """It goes below every published curve."""
    assert np.mean([ending.energy for ending in endings]) == pytest.approx(74.3553, abs=5e-4)
    for ending in endings:
        assert ending.status.ok and ending.steps <= 60 and ending.largest_rise <= 1e-10
