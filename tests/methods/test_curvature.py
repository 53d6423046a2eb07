"""BFGS updates, and the rules for what B may become."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from newtongp.methods.curvature import bfgs, keep_tilted_positive


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def random_pair(seed, size):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size))
    return -root @ root.T - 0.1 * np.eye(size), rng.normal(size=size), rng.normal(size=size)


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 2, 6]))
def test_undamped_bfgs_satisfies_the_secant_equation_or_skips(seed, size):
    matrix, step, change = random_pair(seed, size)
    updated = np.asarray(bfgs(jnp.asarray(matrix), jnp.asarray(step), jnp.asarray(change), None))
    if step @ change < -1e-6:
        np.testing.assert_allclose(updated @ step, change, rtol=1e-9, atol=1e-9)
    elif step @ change >= 0.0:
        np.testing.assert_array_equal(updated, matrix)
    assert np.max(np.linalg.eigvalsh(updated)) < 1e-9 * np.max(np.abs(updated))


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 2, 6]), damping=st.floats(0.05, 0.95))
def test_damped_bfgs_satisfies_its_own_equation_and_stays_negative(seed, size, damping):
    matrix, step, change = random_pair(seed, size)
    updated = np.asarray(bfgs(jnp.asarray(matrix), jnp.asarray(step), jnp.asarray(change), jnp.asarray(damping)))
    curvature, slope = step @ matrix @ step, step @ change
    weight = 1.0 if slope <= (1.0 - damping) * curvature else damping * curvature / (curvature - slope)
    target = weight * change + (1.0 - weight) * matrix @ step
    np.testing.assert_allclose(updated @ step, target, rtol=1e-8, atol=1e-8)
    assert step @ target <= (1.0 - damping) * curvature * (1.0 - 1e-9)
    assert np.max(np.linalg.eigvalsh(updated)) < 1e-9 * np.max(np.abs(updated))


def test_a_pair_without_information_changes_nothing():
    matrix = jnp.asarray([[-2.0]])
    for damping in (None, jnp.asarray(0.8)):
        np.testing.assert_array_equal(bfgs(matrix, jnp.zeros(1), jnp.zeros(1), damping), matrix)


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), size=st.sampled_from([1, 2]), power=st.sampled_from([0.1, 0.5, 1.0]))
def test_the_tilted_covariance_stays_positive(seed, size, power):
    matrix, _, _ = random_pair(seed, size)
    root = np.tril(np.random.default_rng(seed).normal(size=(size, size))) + 2.0 * np.eye(size)
    kept = np.asarray(keep_tilted_positive(jnp.asarray(100.0 * matrix), jnp.asarray(matrix), jnp.asarray(root), power))
    assert np.min(np.linalg.eigvalsh(np.eye(size) + power * root.T @ kept @ root)) > 0.9e-4
