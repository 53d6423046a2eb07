"""`iterate` is the loop of `infer`, one step at a time."""

import itertools

import numpy as np
import pytest

import newtongp as ng

X = np.linspace(0.0, 5.0, 12)
Y = np.sin(2.0 * X)
Y[[3, 7, 8]] += [6.0, -5.0, 7.0]
MODEL = ng.Model(ng.GP(ng.kernels.Matern32(lengthscale=0.8, variance=4.0)), ng.likelihoods.StudentT(df=2.5, scale=0.1))
FEW_NODES = ng.VI(cubature=ng.cubature.GaussHermite(20))
"""Too few for this likelihood: full steps break down."""
CHOICES = {
    "backtracking vi": (ng.VI(), None),
    "damped power ep": (ng.PowerEP(0.5), ng.Damped()),
    "quasi-newton": (ng.VI(curvature=ng.QuasiNewton()), None),
    "constant": (ng.VI(safeguard=ng.Heuristic()), ng.Constant(0.5)),
}


def iterate(method, step=None, steps=None, **options):
    """No more than `steps` states, or all of them (but not for ever)."""
    return list(itertools.islice(ng.iterate(MODEL, X, Y, method, step, **options), steps or 500))


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("name", CHOICES)
def test_states_are_the_history_of_infer(name):
    method, step = CHOICES[name]
    result = ng.infer(MODEL, X, Y, method, step, max_steps=6, tol=0.0, throw=False)
    states = iterate(method, step, result.steps)
    assert [state.steps for state in states] == list(range(1, result.steps + 1))
    np.testing.assert_allclose([state.energy for state in states], result.history.energy, rtol=1e-10)
    np.testing.assert_allclose([state.step_size for state in states], result.history.step_size, rtol=1e-12)
    np.testing.assert_allclose(states[-1].sites.linear, result.sites.linear, rtol=1e-9)
    np.testing.assert_allclose(states[-1].sites.precision, result.sites.precision, rtol=1e-9)
    np.testing.assert_allclose(states[-1].residual, result.residual, rtol=1e-6)


@pytest.mark.slow
def test_a_state_has_a_posterior():
    *_, state = iterate(ng.VI(), steps=3)
    marginals = state.posterior.marginals
    result = ng.infer(MODEL, X, Y, max_steps=3, throw=False)
    np.testing.assert_allclose(marginals.mean, result.marginals.mean, rtol=1e-10)
    np.testing.assert_allclose(marginals.covariance, result.marginals.covariance, rtol=1e-10)


@pytest.mark.slow
def test_a_state_stays_what_it_was():
    states = ng.iterate(MODEL, X, Y, ng.VI())
    first = next(states)
    energy, precision = first.energy, first.sites.precision.copy()
    mean = first.posterior.marginals.mean
    next(states)
    assert first.energy == energy and first.steps == 1
    np.testing.assert_array_equal(first.sites.precision, precision)
    np.testing.assert_array_equal(first.posterior.marginals.mean, mean)


@pytest.mark.slow
def test_it_ends_at_the_tolerance():
    states = iterate(ng.VI(), tol=1e-6)
    result = ng.infer(MODEL, X, Y)
    assert states[-1].status is ng.Status.CONVERGED and states[-1].residual <= 1e-6
    assert {state.status for state in states[:-1]} == {ng.Status.RUNNING}
    assert len(states) == result.steps


@pytest.mark.slow
def test_it_ends_at_a_failure_with_the_last_good_step():
    with pytest.warns(ng.ConvergenceWarning, match="last good step was kept"):
        states = iterate(FEW_NODES, ng.Constant(1.0))
    result = ng.infer(MODEL, X, Y, FEW_NODES, ng.Constant(1.0), throw=False)
    assert result.status.failed and len(states) == result.steps
    assert states[-1].energy == pytest.approx(result.energy, rel=1e-12)


@pytest.mark.slow
def test_it_starts_from_sites():
    third = iterate(ng.VI(), steps=3)[-1]
    again = iterate(ng.VI(), steps=1, sites=third.sites)[0]
    assert again.steps == 1 and again.energy < third.energy
