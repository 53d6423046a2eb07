"""Backtracking near the fixed point, where an objective that is computed at nodes is lowest a little away from it."""

import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.inference.steps.base import Outcome


@in_double
def accepts(rise, residual):
    """Whether a step of this rise, from a point with an objective of 100 and a residual of 1, is accepted."""
    step = ng.Backtracking(accelerate=False)
    before, after = outcome(100.0, 1.0), outcome(100.0 + rise, residual)
    return bool(step.judge(step.start(None, False), None, before, after, jnp.ones((), dtype=bool)).accept)


def outcome(objective, residual):
    number = jnp.asarray
    return Outcome(jnp.ones((), dtype=bool), number(objective), number(1e-11), number(residual))


@pytest.mark.parametrize(
    ("rise", "residual", "accepted"),
    [
        (-1e-3, 2.0, True),  # lower
        (1e-12, 1.0, True),  # rounding, and no farther from the fixed point
        (1e-12, 1.1, False),
        (5e-8, 0.5, True),  # hardly higher, and closer
        (5e-8, 0.95, False),
        (5e-7, 0.1, False),  # higher
    ],
)
def test_what_is_accepted(rise, residual, accepted):
    assert accepts(rise, residual) is accepted


@pytest.mark.slow
def test_classes_with_full_steps_that_are_too_long():
    """Steps of 1 overshoot here; those of 0.5 raise the energy by its error at nodes, and were rejected for that."""
    x = np.linspace(0.0, 10.0, 151)
    y = np.digitize(np.sin(x) + 0.3 * np.random.default_rng(2).normal(size=x.size), [-0.5, 0.5])
    values = ((1.17886755, 10.49180835), (0.10823304, 1.11848686), (0.95930826, 18.08344859))
    kernels = [ng.kernels.Matern52(lengthscale=lengthscale, variance=variance) for lengthscale, variance in values]
    means = ng.means.Independent([ng.means.Constant(value) for value in (-0.52180102, 1.24865381, -0.72685279)])
    model = ng.Model(ng.GP(ng.kernels.Independent(kernels), means), ng.likelihoods.Softmax(3))
    for accelerate, most in ((False, 40), (True, 25)):
        result = ng.infer(model, x, y, step=ng.Backtracking(accelerate=accelerate), tol=1e-7, throw=False)
        assert result.status is ng.Status.CONVERGED and result.steps <= most
