"""Random walks over whole steps: against their recursions, and their state space forms."""

import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels

STEPS = np.arange(14.0)


def responses(recursion, count):
    """The matrix R with f = R w for independent w at steps 1, 2, …, from a recursion for f with zeros before."""
    found = np.zeros((count, count - 1))
    for step in range(1, count):
        move = np.zeros(count)
        for t in range(step, count):
            move[t] = recursion(lambda k, t=t, move=move: move[t - k] if t >= k else 0.0) + (t == step)
        found[:, step - 1] = move
    return found


RECURSIONS = {
    "level": (kernels.Walk(1, 0.7), lambda before: before(1)),
    "season of 2": (kernels.SeasonalWalk(2, 0.7), lambda before: -before(1)),
    "season of 4": (kernels.SeasonalWalk(4, 0.7), lambda before: -sum(before(k) for k in range(1, 4))),
    "season of 7": (kernels.SeasonalWalk(7, 0.7), lambda before: -sum(before(k) for k in range(1, 7))),
}


@pytest.mark.parametrize("name", RECURSIONS)
def test_covariances_follow_from_the_recursion(name):
    kernel, recursion = RECURSIONS[name]
    expected = responses(recursion, len(STEPS))
    with jax.enable_x64(True):
        found = kernels.gram(kernel, STEPS[:, None], STEPS[:, None])
    np.testing.assert_allclose(found, 0.7 * expected @ expected.T, atol=1e-13)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_season_is_the_same_as_a_chain():
    season = kernels.SeasonalWalk(4, 0.7)
    x, y = STEPS[[0, 1, 2, 5, 6, 7, 8, 9, 12, 13]], np.sin(np.arange(10.0))
    dense, chain = (
        ng.infer(ng.Model(prior(season + kernels.Constant(2.0)), ng.likelihoods.Gaussian(0.1)), x, y)
        for prior in (ng.GP, ng.MarkovGP)
    )
    np.testing.assert_allclose(dense.energy, chain.energy, rtol=1e-10)
    for part in ("mean", "std"):
        found, expected = (getattr(result.predict(np.arange(20.0)), part) for result in (chain, dense))
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", [kernels.SeasonalWalk(4), kernels.Walk(1)])
def test_walks_are_over_whole_steps(kernel):
    model = ng.Model(ng.GP(kernel), ng.likelihoods.Gaussian())
    with pytest.raises(ValueError, match=r"whole steps from its start, but row 1 is 0\.5 steps after"):
        ng.infer(model, [0.0, 0.5], [1.0, 2.0])
