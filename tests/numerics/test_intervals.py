"""Chains of intervals with one factor each, compared with dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp._runtime.double import in_double
from newtongp.numerics import kalman

T, D = 5, 2
RNG = np.random.default_rng(3)
STEP = RNG.normal(size=(T, D, 2 * D))
STEP[0, :, :D] = 0.0
STEP[:, 0, D + 1] = 0.0  # L is lower triangular
STEP[2, :, D:] = 0.0  # a state without noise
STEP[-1] = 0.0
LINEAR = RNG.normal(size=(T, 2 * D))
ROOTS = RNG.normal(size=(T, 2 * D, 3))
PSD = ROOTS @ np.swapaxes(ROOTS, 1, 2)


def map_of(step):
    """x of all intervals as a function of all w."""
    states, rows = np.zeros((D, T * D)), []
    for k in range(T):
        own = np.eye(T * D)[k * D : (k + 1) * D]
        x = np.concatenate([states, own])
        rows.append(x)
        states = step[k] @ x
    return np.concatenate(rows)


def dense(step, linear, precision):
    x, size = map_of(step), 2 * D
    whole = np.zeros((T * size, T * size))
    for k in range(T):
        whole[k * size : (k + 1) * size, k * size : (k + 1) * size] = precision[k]
    inverse = np.eye(T * D) + x.T @ whole @ x
    covariance = np.linalg.inv(inverse)
    mean = covariance @ (x.T @ linear.reshape(-1))
    of_x = (x @ covariance @ x.T).reshape(T, size, T, size)
    log_det = np.linalg.slogdet(inverse)[1]
    return {
        "mean": (x @ mean).reshape(T, size),
        "covariance": np.stack([of_x[k, :, k] for k in range(T)]),
        "distance": mean @ mean,
        "log_det": log_det,
        "proper": np.all(np.linalg.eigvalsh(inverse) > 0.0),
        "log_integral": 0.5 * (linear.reshape(-1) @ x @ mean - log_det),
        "joint": of_x,
    }


@pytest.fixture(scope="module")
def ours():
    @jax.jit
    def solve(step, linear, precision):
        chain, factors = kalman.Intervals(step), kalman.Factors(linear, precision)
        given = kalman.conditionals(chain, factors)
        moments = kalman.condition_intervals(chain, factors)
        forward = kalman.forward_intervals(chain, given)
        rows = jnp.broadcast_to(jnp.eye(2 * D)[None], (T, 2 * D, 2 * D))
        joint = kalman.joint_of_rows(forward, moments.covariance, rows, jnp.arange(T))
        value, slopes = jax.value_and_grad(kalman.log_integral, argnums=(0, 1))(chain, factors)
        return {**moments._asdict(), "log_integral": value, "joint": joint}, slopes

    return in_double(lambda *arrays: jax.tree.map(np.asarray, solve(*map(jnp.asarray, arrays))))


def indefinite():
    """Negative factors that are made up for by later ones."""
    precision = PSD.copy()
    precision[1] = -0.4 * np.eye(2 * D)
    precision[3] -= 0.3 * np.eye(2 * D)
    return precision


@pytest.mark.cases(slow=["precision0-True", "precision1-True"])
@pytest.mark.parametrize(("precision", "proper"), [(PSD, True), (indefinite(), True), (-2.0 * PSD, False)])
def test_moments_are_those_of_dense_algebra(ours, precision, proper):
    found, expected = ours(STEP, LINEAR, precision)[0], dense(STEP, LINEAR, precision)
    assert bool(found["proper"]) == expected["proper"] == proper
    for name in expected if proper else []:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_the_gradient_of_the_log_integral(ours):
    chain, factors = ours(STEP, LINEAR, indefinite())[1]
    directions = [RNG.normal(size=array.shape) for array in (STEP, LINEAR, PSD)]
    directions[0][-1] = directions[0][0, :, :D] = 0.0
    directions[0][:, 0, D + 1] = 0.0
    directions[2] = directions[2] + np.swapaxes(directions[2], 1, 2)
    at = STEP, LINEAR, indefinite()
    values = [
        dense(*(a + small * b for a, b in zip(at, directions, strict=True)))["log_integral"] for small in (1e-5, -1e-5)
    ]
    slope = sum(np.sum(a * b) for a, b in zip((chain.step, *factors), directions, strict=True))
    np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-5, rtol=1e-7)
