"""Programs that are compiled again, with more effort, once they have run for long."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp._runtime import tiers
from newtongp._runtime.compilation import compiled
from newtongp._runtime.tiers import Tiers, wait_for_compilations

pytestmark = pytest.mark.versions

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32)


def scaled(x, factor, shift):
    return factor * jnp.sin(x["x"]) + shift


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(tiers, "_PATIENCE", 0.0)
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)


def run_often(function, *args):
    found = []
    for _ in range(4):
        found.append(function(*args))
        wait_for_compilations()
    return found


def counted(calls):
    """Two ways of compiling the function, which note that they are called."""

    class Noted:
        def __init__(self, name):
            self.name, self.function = name, jax.jit(scaled, static_argnums=1)

        def __call__(self, *args):
            calls.append(self.name)
            return self.function(*args)

        def lower(self, *args):
            calls.append(f"{self.name} lowered")
            return self.function.lower(*args)

    quick, thorough = Noted("quick"), Noted("thorough")
    return Tiers(lambda: quick, lambda: thorough, 1)


def test_a_program_is_replaced_once_it_has_run_for_long(impatient):
    calls = []
    programs = counted(calls)
    found = run_often(lambda *args: programs.run(args, jax.block_until_ready), {"x": X}, 3, 0.5)
    assert calls == ["quick", "quick", "thorough lowered", "quick"]
    for answer in found:
        np.testing.assert_allclose(answer, 3.0 * np.sin(X) + 0.5, rtol=1e-6)


def test_other_shapes_and_static_values_are_other_programs(impatient):
    calls = []
    programs = counted(calls)
    run_often(lambda *args: programs.run(args, jax.block_until_ready), {"x": X}, 3, 0.5)
    before = len(calls)
    for args in (({"x": X[:4]}, 3, 0.5), ({"x": X}, 4, 0.5)):
        np.testing.assert_allclose(
            programs.run(args, jax.block_until_ready), args[1] * np.sin(args[0]["x"]) + 0.5, rtol=1e-6
        )
    assert calls[before:] == ["quick", "quick"]


def test_a_program_that_is_used_little_is_not_compiled_again(monkeypatch):
    monkeypatch.setattr(tiers, "_PATIENCE", np.inf)
    calls = []
    programs = counted(calls)
    run_often(lambda *args: programs.run(args, jax.block_until_ready), {"x": X}, 3, 0.5)
    assert calls == ["quick"] * 4


@pytest.mark.parametrize("effort", ["low", None])
def test_a_given_effort_is_kept(impatient, monkeypatch, effort):
    if effort is not None:
        monkeypatch.setenv("NEWTONGP_EFFORT", effort)
    lowered = []
    monkeypatch.setattr(tiers, "_in_background", lambda job: lowered.append(job) is None)
    run_often(compiled(scaled, static_argnums=1), {"x": X}, 3, 0.5)
    assert len(lowered) == (0 if effort else 1)


def test_donated_arrays_are_donated_by_both(impatient):
    function = compiled(scaled, static_argnums=1, donate_argnums=0)
    for _ in range(4):
        np.testing.assert_allclose(function({"x": jnp.asarray(X)}, 3, 0.5), 3.0 * np.sin(X) + 0.5, rtol=1e-6)
        wait_for_compilations()
