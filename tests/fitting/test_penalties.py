"""Penalties of free numbers by priors, beside the same computed by JAX from the densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp.fitting.learned import Slot, values_of
from newtongp.fitting.penalties import Penalty
from newtongp.parameters.constraints import Between, Positive, Real
from newtongp.parameters.priors import Gamma, LogNormal, Normal, Plausible

SLOTS = (
    Slot("a", (("a",),), Positive(), ()),
    Slot("b", (("b",),), Positive(), (3,)),
    Slot("c", (("c",),), Between(0.0, 2.0), ()),
    Slot("d", (("d",),), Real(), ()),
    Slot("e", (("e",),), Positive(), ()),
)


@pytest.mark.parametrize(
    "priors",
    [
        [LogNormal(2.0, 0.5), LogNormal(np.array([1.0, 2.0, 3.0]), 0.7), None, None, Plausible(0.5, 0.6)],
        [None, Plausible(np.array([0.1, 5.0, 0.1]), 10.0), LogNormal(1.0, 0.3), None, LogNormal(3.0, 2.0)],
        [None, None, Plausible(0.1, 0.2), None, Plausible(2.0, 3.0)],
        [Gamma(2.0, 1.0), None, None, Normal(1.0, 2.0), LogNormal(3.0, 2.0)],
        [None, None, None, None, None],
    ],
    ids=["log-normal", "both", "plausible", "others", "none"],
)
def test_penalties_are_those_of_the_densities(priors):
    at = np.array([0.3, -0.4, 1.2, 0.1, 0.7, -0.5, 0.9])

    def penalty(unconstrained):
        values = values_of(SLOTS, unconstrained)
        terms = [jnp.sum(prior(value)) for prior, value in zip(priors, values, strict=True) if prior is not None]
        return -sum(terms, jnp.zeros(()))

    with jax.enable_x64(True):
        expected, slope = jax.value_and_grad(penalty)(jnp.asarray(at))
        found, gradient = Penalty(priors, SLOTS)(at)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-12, atol=1e-14)
