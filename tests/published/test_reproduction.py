"""The case studies against the published curves: means over the four folds, as read off the paper's figures."""

import csv
import functools
import io
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.numerics.gaussian import Gaussian
from reproduction import beyond, cases, catalogue, jobs, report, reproduce, runner, study
from reproduction.__main__ import main
from reproduction.kept import Shelf
from reproduction.published import PowerDensityAtNodes, floored_log_density

CASES = {name: make() for name, make in cases.CASES.items()}
MOTORCYCLE = CASES["motorcycle"]
ENTRIES = {entry.name: entry for entry in catalogue.ENTRIES}
COMPARED = {
    case.name: [
        name
        for name, entry in ENTRIES.items()
        if case.name in entry.only
        and entry.last_compared(case) > 0
        and (entry.curve or name) in study.published_curves(case.name)
    ]
    for case in CASES.values()
}
DEPARTING = {"motorcycle": {"PL2 quasi-Newton"}, "product": {"PL2 quasi-Newton"}, "gprn": set()}
"""Curves that no method follows: the published runs approximated a derivative."""
ITERATIONS = {"motorcycle": 21, "product": 1, "gprn": 1}
"""How far the tests go; `tests/campaigns/curves.py` goes as far as runs can be compared."""
QUICK = ("PL2 Gauss-Newton (as published)",)
SLOW = ("Gauss-Newton", "quasi-Newton", "variational Gauss-Newton", "heuristic PEP", "PL", "Riemannian grads PL2")
"""What is compared on product in every run of the tests, and in slow runs; all else takes a thorough one."""
EQUATIONS = {
    "Gauss-Newton": (88.29414, 67.18769),
    "variational Gauss-Newton": (149.09748, 74.51589),
    "PL2 Gauss-Newton": (100.60412, 78.92220),
}
"""Mean losses after iterations 1 and 491 with the outer product of `eq:pgn`, which the published curves do not have."""


@functools.cache
def folds_of(name):
    return [runner.make_fold(CASES[name], split) for split in CASES[name].splits]


@pytest.fixture(scope="module")
def folds():
    return folds_of("motorcycle")


def run(name, folds, iterations, case=MOTORCYCLE):
    entry = ENTRIES[name]
    scheme = entry.make(case)
    runs = tuple(runner.run(fold, scheme, iterations, case.density_floor) for fold in folds)
    outcome = study.Outcome(entry, runs)
    return outcome, study.Study(case, tuple(range(len(folds))), (outcome,)).agreement(outcome)


@pytest.mark.parametrize("case", CASES)
def test_every_published_curve_is_compared_with_or_known_to_depart(case):
    curves = set(study.published_curves(case))
    followed = {ENTRIES[name].curve or name for name in COMPARED[case]}
    assert curves - followed == DEPARTING[case]


def compared(case):
    for name in COMPARED[case]:
        marks = []
        if case == "gprn" or (case == "product" and name not in QUICK):
            marks.append(pytest.mark.slow)
        if case == "product" and name not in QUICK + SLOW:
            marks.append(pytest.mark.thorough)
        yield pytest.param(case, name, marks=marks)


@pytest.mark.cases(
    quick=["motorcycle-PL"], slow=["motorcycle-heuristic PL2", "product-Gauss-Newton"], others="thorough"
)
@pytest.mark.parametrize(("case", "name"), [pair for case in CASES for pair in compared(case)])
def test_curves_are_the_published_ones(case, name):
    outcome, agreement = run(name, folds_of(case), ITERATIONS[case], CASES[case])
    assert agreement.until == ITERATIONS[case]
    assert agreement.loss < (1e-6 if case == "motorcycle" else 1e-10)
    # The published predictions carry a jitter of 1e-8.
    assert agreement.nlpd < 3e-6 and (agreement.rmse or 0.0) < 1e-6
    assert not any(each.status.failed for each in outcome.runs)


@pytest.mark.slow
@in_double
def test_below_the_floor_the_published_power_ep_target_is_flat():
    """As the published code differentiates log max(Z, 1e-6); above the floor, against central differences of log Z."""
    case = CASES["gprn"]
    likelihood, latents = case.model.likelihood, case.model.likelihood.num_latents
    target = PowerDensityAtNodes(case.power, case.density_floor)
    y = jnp.asarray([0.5, -0.2, 0.1])
    mean = jnp.asarray(np.random.default_rng(0).normal(size=latents))
    wide, narrow = Gaussian(mean, jnp.eye(latents)), Gaussian(0.1 * mean, 0.01 * jnp.eye(latents))

    @jax.jit
    def log_density(gaussian):
        return floored_log_density(likelihood, y, gaussian, case.cubature, case.power, case.density_floor)

    expand = jax.jit(lambda gaussian: target.expand(likelihood, y, gaussian, case.cubature))
    below = expand(wide)
    assert float(log_density(wide)) == pytest.approx(np.log(1e-6))
    assert float(below.value) == pytest.approx(np.log(1e-6) / case.power)
    for flat in (below.gradient, below.hessian, below.covariance_gradient):
        np.testing.assert_array_equal(flat, 0.0)

    above = expand(narrow)
    width = 1e-5
    for k, direction in enumerate(width * np.eye(latents)):
        ends = [Gaussian(narrow.mean + sign * direction, narrow.covariance) for sign in (1.0, -1.0)]
        slope = (log_density(ends[0]) - log_density(ends[1])) / (2.0 * width * case.power)
        assert float(above.gradient[k]) == pytest.approx(float(slope), abs=1e-6)
    assert np.max(np.abs(above.gradient)) > 0.1 and np.max(np.abs(above.hessian)) > 0.1


@pytest.mark.cases(slow=["Gauss-Newton"], others="thorough")
@pytest.mark.parametrize("name", EQUATIONS)
def test_gauss_newton_follows_the_equation(name, folds):
    outcome, agreement = run(name, folds, 1)
    assert agreement is None
    assert outcome.mean.loss[0] == pytest.approx(EQUATIONS[name][0], abs=5e-6)


@pytest.mark.thorough
@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert main(["motorcycle", "--out", str(out), *arguments]) == 1
    assert message in capsys.readouterr().err and not out.exists()
    with pytest.raises(ValueError, match="unknown case study 'tides': choose from motorcycle, product, gprn"):
        reproduce("tides", out=out)
    assert not out.exists()


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    assert (agreement is not None) == (name in COMPARED["motorcycle"])
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
