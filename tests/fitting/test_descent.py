"""L-BFGS within bounds, beside SciPy's."""

import numpy as np
import pytest
import scipy.optimize

from newtongp.fitting.descent import Curvature, descend

LIMITS = {"max_steps": 500, "smallest_slope": 1e-7, "smallest_decrease": 1e-15}


def banana(size, seed):
    return lambda x: (scipy.optimize.rosen(x), scipy.optimize.rosen_der(x)), np.random.default_rng(seed).normal(
        size=size
    )


def bowl(size, seed):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
    matrix, tilt = basis @ np.diag(np.logspace(0.0, 3.0, size)) @ basis.T, rng.normal(size=size)
    return lambda x: (0.5 * x @ matrix @ x - tilt @ x, matrix @ x - tilt), rng.normal(size=size)


def logistic(size, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(100, size))
    signs = np.sign(rows @ rng.normal(size=size) + rng.normal(size=100))

    def function(x):
        margin = signs * (rows @ x)
        return np.sum(np.logaddexp(0.0, -margin)) + 0.05 * x @ x, -rows.T @ (signs / (1 + np.exp(margin))) + 0.1 * x

    return function, rng.normal(size=size)


class Counted:
    def __init__(self, function):
        self.function, self.count = function, 0

    def __call__(self, x):
        self.count += 1
        return self.function(x)


def by_scipy(function, start, bounds):
    counted = Counted(function)
    limits = {"maxiter": 500, "gtol": 1e-7, "ftol": 1e-15, "maxcor": 50}
    pairs = None if bounds is None else list(zip(*bounds, strict=True))
    return scipy.optimize.minimize(counted, start, jac=True, method="L-BFGS-B", bounds=pairs, options=limits), counted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [2, 12])
@pytest.mark.parametrize("problem", [banana, bowl, logistic])
@pytest.mark.parametrize("bounded", [False, True])
def test_the_minimum_is_that_of_scipy_with_about_as_many_evaluations(problem, size, seed, bounded):
    function, start = problem(size, seed)
    bounds = None
    if bounded:
        room = np.random.default_rng(seed).uniform(0.0, 0.5, size=(2, size))
        bounds = start - room[0], start + room[1]
    counted = Counted(function)
    found = descend(counted, start, bounds, **LIMITS)
    expected, other = by_scipy(function, start, bounds)
    assert found.ended in ("slope", "decrease")
    if bounds is not None:
        assert np.all((bounds[0] <= found.x) & (found.x <= bounds[1]))
    np.testing.assert_allclose(found.value, expected.fun, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.x, expected.x, atol=1e-4)
    assert found.value == function(found.x)[0]
    assert counted.count <= 1.3 * other.count + 10


def test_the_first_step_is_as_long_as_the_expected_curvature_says():
    function = Counted(lambda x: (float(500.0 * (x @ x)), 1000.0 * x))
    found = descend(function, np.array([0.3, -0.4]), **LIMITS, expected_curvature=1000.0)
    assert found.ended == "slope"
    assert function.count == 2


def test_numbers_at_their_bounds_stay_there_or_leave():
    """The first number is pushed against its bound, and the second starts at a bound that it has to leave."""

    def function(x):
        return (x[0] + 3.0) ** 2 + (x[1] - 2.0) ** 2 + x[0] * x[1], np.array(
            [2.0 * (x[0] + 3.0) + x[1], 2.0 * (x[1] - 2.0) + x[0]]
        )

    bounds = np.array([0.0, 0.0]), np.array([5.0, 5.0])
    found = descend(function, np.array([1.0, 0.0]), bounds, **LIMITS)
    np.testing.assert_allclose(found.x, [0.0, 2.0], atol=1e-7)
    assert found.ended == "slope"


def test_a_wall_is_turned_back_from():
    """log is not defined below 0, where the function says so with a number that is far too high."""

    def function(x):
        if x[0] <= 0.0:
            return 1e6, np.array([-1e6])
        return x[0] - 3.0 * np.log(x[0]), np.array([1.0 - 3.0 / x[0]])

    found = descend(function, np.array([0.01]), **LIMITS)
    np.testing.assert_allclose(found.x, [3.0], rtol=1e-6)


def test_a_descent_can_be_stopped_and_reported():
    function, start = banana(2, 0)
    counted, reports = Counted(function), []
    found = descend(
        counted, start, **LIMITS, report=lambda: reports.append(counted.count), stop=lambda: counted.count >= 6
    )
    assert found.ended == "stopped" and counted.count == 6
    assert len(reports) == found.iterations > 0
    limited = descend(function, start, **{**LIMITS, "max_steps": 3})
    assert limited.ended == "steps" and limited.iterations == 3


def test_the_curvature_of_a_bowl_is_found():
    function, start = bowl(4, 1)
    found = descend(function, start, max_steps=100, smallest_slope=1e-12, smallest_decrease=0.0)
    slope = np.random.default_rng(0).normal(size=4)
    matrix = np.stack([function(row)[1] - function(np.zeros(4))[1] for row in np.eye(4)])
    np.testing.assert_allclose(found.curvature.apply(slope), np.linalg.solve(matrix, slope), rtol=0.05)
    empty = Curvature()
    np.testing.assert_array_equal(empty.apply(slope), slope)
    empty.add(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))  # negative curvature
    assert len(empty) == 0
