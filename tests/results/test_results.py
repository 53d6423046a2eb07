"""Every ending has a name and a sentence, and nothing returns NaN as if it were an answer."""

import warnings

import numpy as np
import pytest

import newtongp as ng

X = np.linspace(0.0, 5.0, 12)
Y = np.sin(2.0 * X)
Y[[3, 7, 8]] += [6.0, -5.0, 7.0]
HARD = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=0.8, variance=4.0)), ng.likelihoods.StudentT(df=2.5, scale=0.1))
FULL = {"method": ng.VI(cubature=ng.cubature.GaussHermite(20)), "step": ng.Constant(1.0)}


def infer(**options):
    return ng.infer(HARD, X, Y, **options)


def test_every_status_has_a_sentence_of_its_own():
    sentences = [status.sentence for status in ng.Status]
    assert len(set(sentences)) == len(sentences)
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in sentences)


def test_every_status_is_one_kind_of_ending():
    assert [status for status in ng.Status if status.ok] == [ng.Status.CONVERGED]
    assert not any(status.ok and status.failed for status in ng.Status)
    for status in ng.Status:
        advice = ("raise", "Use", "use", "try", "Continue", "Converged", "not ended")
        assert any(word in status.sentence for word in advice)


def test_full_steps_on_a_hard_problem_end_with_a_named_failure():
    result = infer(**FULL, throw=False)
    assert result.status is ng.Status.IMPROPER_POSTERIOR and result.status.failed
    assert np.isfinite(result.energy) and np.isfinite(result.residual)


def test_a_failed_run_keeps_its_last_good_step():
    result = infer(**FULL, throw=False)
    assert 0 < result.steps < 100 and len(result.history) == result.steps
    assert np.all(np.isfinite(result.history.energy)) and result.history.energy[-1] == result.energy
    assert np.all(np.isfinite(result.sites.precision)) and np.all(result.marginals.covariance > 0.0)
    assert np.all(np.isfinite(result.predict(X).latent.mean))
    # The same number of steps without the failing one.
    stopped = infer(**FULL, throw=False, max_steps=result.steps)
    assert stopped.status is ng.Status.MAX_STEPS and stopped.energy == result.energy


def test_a_failure_is_raised_with_the_result_that_was_left():
    with pytest.raises(ng.InferenceError, match=r"improper_posterior: .*last good step.*smaller rho") as caught:
        infer(**FULL)
    assert caught.value.result.status is ng.Status.IMPROPER_POSTERIOR
    assert np.isfinite(caught.value.result.energy)


@pytest.mark.slow
def test_running_out_of_steps_warns():
    with pytest.warns(ng.ConvergenceWarning, match=r"max_steps \(residual .*raise max_steps"):
        result = infer(max_steps=3)
    assert result.status is ng.Status.MAX_STEPS and not result.status.failed and result.steps == 3


def test_the_warning_points_at_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        infer(max_steps=3)
    assert [warning.filename for warning in caught] == [__file__]


def test_nothing_is_raised_or_warned_when_asked_not_to():
    assert infer(max_steps=3, throw=False).status is ng.Status.MAX_STEPS


def test_a_run_can_be_continued_from_its_sites():
    whole = infer(throw=False)
    assert whole.status is ng.Status.CONVERGED
    # There are two optima close to each other: go on from where it is settled which one it will be.
    part = infer(max_steps=12, throw=False)
    rest = infer(sites=part.sites)
    np.testing.assert_allclose(rest.energy, whole.energy, rtol=1e-9)


@pytest.mark.parametrize("max_steps", [0, 1, 3, 100])
def test_history_has_one_entry_a_step(max_steps):
    result = infer(max_steps=max_steps, throw=False)
    history = result.history
    assert len(history) == result.steps <= max_steps
    assert history.energy.shape == history.objective.shape == history.step_size.shape == (result.steps,)
    assert all(np.all(np.isfinite(column)) for column in (history.energy, history.objective, history.step_size))
    assert f"{result.steps} step(s)" in repr(history)


def test_the_objective_of_backtracking_never_rises():
    history = infer(throw=False).history
    np.testing.assert_array_equal(history.objective, history.energy)
    assert np.all(np.diff(history.objective) <= 1e-9)


@pytest.mark.slow
def test_progress_shows_a_bar_and_changes_nothing(capsys):
    shown, quiet = infer(progress=True), infer()
    assert "inference" in capsys.readouterr().out
    # Not the same program, so rounding may differ.
    assert shown.energy == pytest.approx(quiet.energy, rel=1e-12)
    assert (shown.steps, shown.status) == (quiet.steps, quiet.status)
    np.testing.assert_allclose(shown.history.energy, quiet.history.energy, rtol=1e-12)


def test_a_result_says_what_it_is():
    result = infer()
    assert f"converged after {result.steps} step(s)" in repr(result) and f"{result.energy:.6g}" in repr(result)
    assert result.residual <= 1e-6
    assert result.posterior is result.posterior
