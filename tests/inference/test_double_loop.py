"""Power EP that does not come to rest: its status says so, and the double loop finds the fixed point."""

import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.inference.steps.base import Move, Outcome

N = 60
RNG = np.random.default_rng(0)
X = np.linspace(0.0, 12.0, N)
DISTANCE = np.sqrt(3.0) * np.abs(X[:, None] - X[None, :]) / 1.5
LATENT = np.linalg.cholesky((1.0 + DISTANCE) * np.exp(-DISTANCE) + 1e-10 * np.eye(N)) @ RNG.normal(size=N)
Y = LATENT + RNG.standard_t(3.0, N) / 3.0
Y[[10, 30, 47]] += [4.0, -5.0, 6.0]
MODEL = ng.Model(ng.GP(ng.kernels.Matern32(1.5)), ng.likelihoods.StudentT(3.0, 1.0 / 3.0))


@in_double
def verdicts(residuals):
    """What Damped says of steps that lead to these residuals."""
    step, sites = ng.Damped(), ng.Sites.constant(2, 1, 0.0)
    state, before, found = step.start(sites, False), residuals[0], []
    move = Move(sites, sites, jnp.zeros((2, 2)))

    def outcome(residual):
        zero = jnp.zeros(())
        return Outcome(jnp.ones((), dtype=bool), zero, zero, jnp.asarray(residual))

    for after in residuals[1:]:
        verdict = step.judge(state, move, outcome(before), outcome(after), jnp.ones((), dtype=bool))
        found.append((bool(verdict.accept), bool(verdict.stalled)))
        state, before = verdict.state, after if verdict.accept else before
    return found


@pytest.mark.slow
def test_a_cycle_is_noticed_and_slow_progress_is_not():
    cycle = verdicts([1.0] * 120)
    assert all(accepted for accepted, _ in cycle)
    assert not any(stalled for _, stalled in cycle[:99]) and cycle[-1][1]
    assert not any(stalled for _, stalled in verdicts(list(0.995 ** np.arange(150))))


def test_the_ending_names_the_remedy():
    assert "DoubleLoop()" in ng.Status.STALLED.sentence
    assert not ng.Status.STALLED.ok and not ng.Status.STALLED.failed


@pytest.mark.parametrize("method", [ng.VI(), ng.PowerEP(0.5, ng.QuasiNewton()), ng.PowerEP(0.5, None, ng.Heuristic())])
def test_the_double_loop_is_for_exact_power_ep(method):
    with pytest.raises(ValueError, match=r"DoubleLoop\(\) is for power EP"):
        ng.infer(MODEL, X, Y, method, ng.DoubleLoop())


def test_the_double_loop_is_not_for_fit():
    with pytest.raises(ValueError, match=r"DoubleLoop\(\) is for infer"):
        ng.fit(MODEL, X, Y, method=ng.PowerEP(0.5), step=ng.DoubleLoop())
    with pytest.raises(ValueError, match="most must be an integer of at least 1"):
        ng.DoubleLoop(0)


@pytest.mark.cases(thorough=["GP", "GP", "MarkovGP"], others="slow")
@pytest.mark.parametrize("prior", [ng.GP, ng.MarkovGP])
def test_the_double_loop_converges_where_plain_updates_do_not(prior):
    model = ng.Model(prior(ng.kernels.Matern32(1.5)), MODEL.likelihood)
    plain = ng.infer(model, X, Y, ng.PowerEP(0.5), ng.Constant(1.0), throw=False)
    assert not plain.status.ok
    sure = ng.infer(model, X, Y, ng.PowerEP(0.5), ng.DoubleLoop())
    # Hardly anything is left for damped steps to do.
    assert sure.status is ng.Status.CONVERGED and sure.steps <= 15
    damped = ng.infer(model, X, Y, ng.PowerEP(0.5))
    assert sure.energy == pytest.approx(damped.energy, abs=1e-6)
    np.testing.assert_allclose(sure.marginals.mean, damped.marginals.mean, atol=1e-4)
