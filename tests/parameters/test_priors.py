"""Prior densities whose slopes are known without JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp.parameters import LogNormal, Plausible


@pytest.mark.parametrize("prior", [LogNormal(np.array([1.0, 3.0]), 0.7), Plausible(0.5, np.array([1.0, 2.0]))])
def test_densities_and_slopes_are_those_of_jax(prior):
    values = np.array([0.3, 5.0])
    density, slope = prior.with_slope(values)
    with jax.enable_x64():
        np.testing.assert_allclose(density, prior(jnp.asarray(values)), rtol=1e-12)
        np.testing.assert_allclose(slope, jax.grad(lambda at: jnp.sum(prior(at)))(jnp.asarray(values)), rtol=1e-12)
