"""Compiling the package's large programs: the same answers with and without our options, and a way out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime import compilation
from newtongp._runtime.compilation import compiled
from newtongp.numerics.gaussian import Sites

pytestmark = pytest.mark.versions

SITES = Sites(np.linspace(-1.0, 1.0, 6).reshape(6, 1), np.ones((6, 1, 1)))


def scaled(sites, factor, times):
    return Sites(times * jnp.sin(sites.linear), sites.precision + factor)


@pytest.mark.parametrize("quickly", [True, False])
def test_the_options_change_no_answer(quickly):
    found = compiled(scaled, static_argnums=1, donate_argnums=0)(SITES, 2, 3.0, quickly=quickly)
    np.testing.assert_allclose(found.linear, 3.0 * np.sin(SITES.linear), rtol=1e-6)
    np.testing.assert_allclose(found.precision, SITES.precision + 2, rtol=1e-6)


def test_donated_arrays_of_the_caller_are_left_alone():
    before = jax.tree.map(np.copy, SITES)
    compiled(scaled, static_argnums=1, donate_argnums=0)(SITES, 2, 3.0)
    np.testing.assert_array_equal(SITES.linear, before.linear)


def test_an_unknown_option_is_left_out(monkeypatch):
    monkeypatch.setattr(compilation, "_OPTIONS", {"xla_no_such_option": True})
    compilation._try_options.cache_clear()
    try:
        assert not compilation.options_work()
        result = ng.infer(ng.Model(ng.GP("rbf"), "poisson"), [0.0, 1.0], [1, 2])
        assert result.status is ng.Status.CONVERGED
    finally:
        compilation._try_options.cache_clear()
