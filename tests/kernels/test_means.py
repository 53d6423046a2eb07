"""Mean functions, and what a user may give as one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp import means

X = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]])


def evaluate(mean, num_latents=1):
    values = means.as_mean(mean, num_latents).means(jnp.asarray(X))
    assert values.shape == (3, num_latents)
    assert values.dtype == np.float64
    return np.asarray(values)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (None, [0.0, 0.0, 0.0]),
        (2, [2.0, 2.0, 2.0]),
        (np.array(2.0), [2.0, 2.0, 2.0]),
        (means.Zero(), [0.0, 0.0, 0.0]),
        (means.Constant(1.5), [1.5, 1.5, 1.5]),
        (means.Linear([1.0, 2.0], 0.5), X @ [1.0, 2.0] + 0.5),
        (means.Linear([1.0, 2.0]) + means.Constant(1.0), X @ [1.0, 2.0] + 1.0),
        (3.0 + means.Linear([1.0, 2.0]) + 1, X @ [1.0, 2.0] + 4.0),
        (np.float64(3.0) + means.Zero() + (lambda x: x[0]), X[:, 0] + 3.0),
        (lambda x: jnp.sin(x[0]) * x[1], np.sin(X[:, 0]) * X[:, 1]),
        (lambda x: 2.0, [2.0, 2.0, 2.0]),
        (means.Independent([means.Constant(1.5)]), [1.5, 1.5, 1.5]),
    ],
)
def test_one_latent(mean, expected):
    np.testing.assert_allclose(evaluate(mean)[:, 0], expected, rtol=1e-14, atol=1e-15)


def test_several_latents():
    mean = means.Independent([means.Linear([1.0, 2.0]), 3.0, lambda x: x[1], None])
    assert mean.num_latents == 4
    expected = np.stack([X @ [1.0, 2.0], np.full(3, 3.0), X[:, 1], np.zeros(3)], axis=1)
    np.testing.assert_allclose(evaluate(mean, 4), expected, rtol=1e-14)
    np.testing.assert_array_equal(evaluate(None, 2), np.zeros((3, 2)))


def test_a_single_slope_for_a_single_column():
    values = means.as_mean(means.Linear(2.0, 1.0), 1).means(jnp.asarray(X[:, :1]))
    np.testing.assert_allclose(values[:, 0], 2.0 * X[:, 0] + 1.0)


def test_means_learn_and_functions_do_not():
    mean = means.as_mean(means.Linear([1.0, 2.0], 0.5) + jnp.sum, 1)
    gradient = jax.jit(jax.grad(lambda mean: jnp.sum(mean.means(jnp.asarray(X)))))(mean)
    slope, intercept = jax.tree.leaves(gradient)
    np.testing.assert_allclose(slope, X.sum(0))
    assert float(intercept) == 3.0


@pytest.mark.parametrize(
    ("mean", "num_latents", "message"),
    [
        (means.Zero(), 2, r"the mean has 1 latent\(s\), but the prior has 2"),
        (1.0, 3, r"the mean has 1 latent\(s\), but the prior has 3"),
        (means.Independent([0.0, 1.0, 2.0]), 2, r"the mean has 3 latent\(s\), but the prior has 2"),
        ("zero", 1, "a mean must be .* got 'zero'"),
        ([0.0, 1.0], 2, r"write `means.Independent"),
        (means.Zero, 1, "a mean must be"),
        (np.zeros(3), 1, r"value must be a single number, got an array of shape \(3,\)"),
        (np.nan, 1, "value must be finite"),
        (
            eqx.nn.Linear(2, "scalar", key=jax.random.PRNGKey(0)),
            1,
            "field of a subclass of newtongp.means.Mean",
        ),
    ],
)
def test_wrong_means(mean, num_latents, message):
    with pytest.raises(ValueError, match=message):
        means.as_mean(mean, num_latents)


@pytest.mark.parametrize(
    ("parts", "message"),
    [([], "empty"), ([0.0, "one"], r"got 'one' \(element 1\)"), (2.0, "got 2.0"), (means.Zero(), "got Zero")],
)
def test_wrong_lists(parts, message):
    with pytest.raises(ValueError, match=message):
        means.Independent(parts)


def test_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match="mean of latent 1: slope has length 1, but x has 2"):
        means.Independent([0.0, means.Linear(1.0) + 1.0]).means(jnp.asarray(X))
    with pytest.raises(ValueError, match=r"must return one number, .* shape \(2,\)"):
        means.as_mean(lambda x: 2.0 * x, 1).means(jnp.asarray(X))
