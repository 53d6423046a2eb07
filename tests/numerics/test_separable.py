"""Filters and smoothers of separable chains against dense linear algebra in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp.numerics import separable
from newtongp.numerics.separable_normaliser import log_normaliser
from tests.exact import covariance_given_sites, exact

T, Q, B, M, P, R = 6, 3, 2, 3, 4, 3


def problem(latents, regular, negative):
    """Arrays of a random chain and its sites, with some slots empty."""
    rng = np.random.default_rng(7)
    transition = 0.7 * np.eye(Q) + 0.1 * rng.normal(size=(T, Q, Q))
    noise, initial = (0.3 * a @ np.swapaxes(a, -1, -2) for a in (rng.normal(size=(T, Q, Q)), rng.normal(size=(Q, Q))))
    transition[0], noise[0] = np.eye(Q), 0.0
    features = rng.normal(size=(P, latents, B * M))
    places = None if regular else np.stack([rng.choice(P, R, replace=False) for _ in range(T)])
    slots = P if regular else R
    root = rng.normal(size=(T, slots, latents, latents))
    precision = root @ np.swapaxes(root, -1, -2)
    precision[rng.random((T, slots)) < 0.3] = 0.0
    precision[2, 1] = -negative * np.eye(latents)
    arrays = transition, noise, initial, features, precision, rng.normal(size=(T, slots, latents))
    return arrays, places


def dense(arrays, places):
    """The covariance K of all slots, and the block diagonal matrix Λ."""
    transition, noise, initial, features, precision, _ = arrays
    slots, latents = precision.shape[1:3]
    size, eye = Q * M, np.eye(M)
    states = np.zeros((T, size, T, size))
    spread = np.kron(initial, eye)
    for t in range(T):
        spread = np.kron(transition[t], eye) @ spread @ np.kron(transition[t], eye).T + np.kron(noise[t], eye)
        block = spread
        for s in range(t, T):
            block = np.kron(transition[s], eye) @ block if s > t else block
            states[s, :, t], states[t, :, s] = block, block.T
    seen = np.stack([features if places is None else features[places[t]] for t in range(T)])
    seen = seen.reshape(T, slots * latents, B * M)
    covariance = np.einsum("tai,tisj,sbj->tasb", seen, states[:, : B * M, :, : B * M], seen)
    precisions = np.zeros((T, slots, latents, T, slots, latents))
    for t, r in np.ndindex(T, slots):
        precisions[t, r, :, t, r, :] = precision[t, r]
    count = T * slots * latents
    return covariance.reshape(count, count), precisions.reshape(count, count)


def chain_of(arrays, places, stores):
    return separable.SeparableChain(*arrays[:4], places, B, 3, stores)


@pytest.mark.cases(
    thorough=["2-False-False-0.0", "1-True-True-0.0", "1-False-True-0.05", "1-True-True-9.0"], slow=["2-True-True-0.05"]
)
@pytest.mark.parametrize(
    ("latents", "regular", "stores", "negative"),
    [(1, True, True, 0.0), (2, False, False, 0.0), (1, False, True, 0.05), (2, True, True, 0.05), (1, True, True, 9.0)],
)
def test_marginals_are_those_of_dense_algebra(latents, regular, stores, negative):
    arrays, places = problem(latents, regular, negative)
    covariance, precision = dense(arrays, places)
    whole = np.eye(len(covariance)) + precision @ covariance
    posterior = covariance @ np.linalg.inv(whole)
    with jax.enable_x64(True):
        found = jax.jit(separable.marginals)(chain_of(jax.tree.map(jnp.asarray, arrays), places, stores), *arrays[4:])
    assert bool(found.proper) == bool(np.all(np.linalg.eigvals(whole).real > 0.0)) == (negative < 1.0)
    assert found.log_det == pytest.approx(np.linalg.slogdet(whole)[1], abs=1e-10)
    if not found.proper:
        return
    slots = arrays[5].shape[1]
    blocks = np.einsum("tdte->tde", posterior.reshape(T * slots, latents, T * slots, latents))
    mean = posterior @ arrays[5].ravel()
    np.testing.assert_allclose(found.marginal.mean.ravel(), mean, atol=1e-10)
    np.testing.assert_allclose(found.marginal.covariance.reshape(blocks.shape), blocks, atol=1e-10)
    np.testing.assert_allclose(covariance @ np.ravel(found.marginal.weights), mean, atol=1e-10)


@pytest.mark.slow
def test_sites_that_are_precise_in_one_direction_keep_the_digits_of_small_variances():
    arrays, places = problem(2, True, 0.05)
    precision = arrays[4]
    precision[:, 0], precision[:, 3] = [[1e8, -6.0], [-6.0, 0.1]], [[0.2, 3.0], [3.0, 1e6]]
    covariance, dense_precision = dense(arrays, places)
    wanted = covariance_given_sites(exact(covariance), exact(dense_precision))[0].astype(float)
    wanted = np.diag(wanted).reshape(T, P, 2)
    with jax.enable_x64(True):
        found = jax.jit(separable.marginals)(chain_of(jax.tree.map(jnp.asarray, arrays), places, True), *arrays[4:])
    variances = np.einsum("tpdd->tpd", found.marginal.covariance)
    np.testing.assert_allclose(variances[:, 0, 0], wanted[:, 0, 0], rtol=1e-12)
    np.testing.assert_allclose(variances[:, 3, 1], wanted[:, 3, 1], rtol=1e-12)


@pytest.mark.slow
def test_a_filtered_state_may_be_improper_where_the_posterior_is_proper():
    # A negative site that later ones outweigh.
    arrays, places = problem(1, True, 0.0)
    precision = np.zeros_like(arrays[4])
    strength = 1.05 / dense(arrays, places)[0][0, 0]
    precision[0, 0], precision[1:] = -strength, 20.0
    arrays = (*arrays[:4], precision, arrays[5])
    covariance, dense_precision = dense(arrays, places)
    whole = np.eye(len(covariance)) + dense_precision @ covariance
    assert 1.0 - strength * covariance[0, 0] < 0.0 and np.all(np.linalg.eigvals(whole).real > 0.0)
    with jax.enable_x64(True):
        found = jax.jit(separable.marginals)(chain_of(jax.tree.map(jnp.asarray, arrays), places, True), *arrays[4:])
    assert bool(found.proper)
    np.testing.assert_allclose(
        found.marginal.mean.ravel(), covariance @ np.linalg.solve(whole, arrays[5].ravel()), atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("latents", "regular", "negative"), [(1, True, 0.0), (2, False, 0.05)])
def test_derivatives_of_the_log_normaliser(latents, regular, negative):
    arrays, places = problem(latents, regular, negative)

    def by_hand(*arrays):
        return log_normaliser(chain_of(arrays, places, True), *arrays[4:])

    def by_smoother(*arrays):
        found = separable.marginals(chain_of(arrays, places, False), *arrays[4:])
        return 0.5 * jnp.sum(arrays[5] * found.marginal.mean[..., 0]) - 0.5 * found.log_det

    with jax.enable_x64(True):
        given = tuple(map(jnp.asarray, arrays))
        value, slopes = jax.jit(jax.value_and_grad(by_hand, argnums=range(6)))(*given)
        wanted, wanted_slopes = jax.jit(jax.value_and_grad(by_smoother, argnums=range(6)))(*given)
    assert value == pytest.approx(float(wanted), abs=1e-10)
    for number, pair in enumerate(zip(slopes, wanted_slopes, strict=True)):
        slope, other = map(np.asarray, pair)
        if number in (1, 2, 4):  # derivatives in symmetric matrices
            slope, other = (0.5 * (one + np.swapaxes(one, -1, -2)) for one in (slope, other))
        if number == 4:  # sites of no precision are constants
            empty = np.all(arrays[4] == 0.0, axis=(2, 3))[:, :, None, None]
            slope, other = (np.where(empty, 0.0, one) for one in (slope, other))
        np.testing.assert_allclose(slope, other, atol=1e-9)
