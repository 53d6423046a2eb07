"""log Gamma and its derivatives against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from newtongp.likelihoods.special import gammaln, log_rising_factorial, polygamma

X = np.concatenate([np.geomspace(1e-8, 1e12, 401), np.linspace(0.9, 2.1, 101), np.arange(1.0, 30.0)])


@pytest.mark.parametrize("order", range(5))
def test_polygamma(order):
    with jax.enable_x64(True):
        ours = np.asarray(polygamma(order, jnp.asarray(X)))
    theirs = scipy.special.polygamma(order, X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-14 if order == 0 else 0.0)


def test_derivatives_of_log_gamma():
    function, expected = (
        gammaln,
        [scipy.special.gammaln, *(lambda x, n=n: scipy.special.polygamma(n, x) for n in range(4))],
    )
    with jax.enable_x64(True):
        for order, reference in enumerate(expected):
            ours = np.asarray(jax.vmap(function)(jnp.asarray(X)))
            np.testing.assert_allclose(ours, reference(X), rtol=1e-13, atol=1e-13, err_msg=f"derivative {order}")
            function = jax.grad(function) if order % 2 else jax.jacfwd(function)


@pytest.mark.parametrize("r", [1e-3, 0.7, 5.0, 99.0, 101.0, 1e5])
@pytest.mark.parametrize("y", [0.0, 1.0, 20.0, 1e4])
def test_slope_of_the_log_rising_factorial(r, y):
    """Its slope in r is a sum of 1 / (r + k) for k below y."""
    with jax.enable_x64(True):
        ours = float(jax.grad(log_rising_factorial)(r, y))
    np.testing.assert_allclose(ours, np.sum(1.0 / (r + np.arange(y))), rtol=1e-11, atol=2e-14)
