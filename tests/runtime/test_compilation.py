"""Compiling the package's large programs: the same answers with and without our options, and a way out."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg  # noqa: F401  whose BLAS is then among those that are counted
import threadpoolctl

import newtongp as ng
from newtongp._runtime import compilation, compile_ahead
from newtongp._runtime.compilation import compiled
from newtongp._runtime.threads import one_blas_thread
from newtongp.numerics.gaussian import Sites
from newtongp.numerics.kalman import loops

pytestmark = pytest.mark.versions

SITES = Sites(np.linspace(-1.0, 1.0, 6).reshape(6, 1), np.ones((6, 1, 1)))


def scaled(sites, factor, times):
    return Sites(times * jnp.sin(sites.linear), sites.precision + factor)


@pytest.mark.parametrize("work", [None, 1.0, 1e6, 1e9])
@pytest.mark.parametrize("full", [True, False])
def test_the_effort_changes_no_answer(work, full):
    found = compiled(scaled, static_argnums=1, donate_argnums=0)(SITES, 2, 3.0, work=work, full=full)
    np.testing.assert_allclose(found.linear, 3.0 * np.sin(SITES.linear), rtol=1e-6)
    np.testing.assert_allclose(found.precision, SITES.precision + 2, rtol=1e-6)


def test_donated_arrays_of_the_caller_are_left_alone():
    before = jax.tree.map(np.copy, SITES)
    compiled(scaled, static_argnums=1, donate_argnums=0)(SITES, 2, 3.0)
    np.testing.assert_array_equal(SITES.linear, before.linear)


def test_an_unknown_option_is_left_out(monkeypatch):
    unknown = {"xla_no_such_option": True}
    monkeypatch.setattr(compilation, "_OPTIONS", {"low": unknown, "medium": unknown, "full": unknown})
    monkeypatch.setattr(compilation, "TRIED", False)
    compilation._try_options.cache_clear()
    try:
        assert not compilation.options_work("low")
        result = ng.infer(ng.Model(ng.GP("rbf"), "poisson"), [0.0, 1.0], [1, 2])
        assert result.status is ng.Status.CONVERGED
    finally:
        compilation._try_options.cache_clear()


@pytest.mark.versions
def test_what_was_tried_works():
    """Where options are not tried again, they must work with the versions that are installed."""
    assert all(compilation._are_accepted(effort) for effort in ("low", "medium", "full"))
    assert loops._try_attribute()


def test_the_environment_sets_the_effort(monkeypatch):
    efforts = []
    monkeypatch.setattr(compilation, "options_work", lambda effort: efforts.append(effort))
    monkeypatch.setenv("NEWTONGP_EFFORT", "full")
    compiled(scaled, static_argnums=1)(SITES, 2, 3.0, work=1.0)
    assert efforts == ["full"]
    monkeypatch.setenv("NEWTONGP_EFFORT", "some")
    with pytest.raises(ValueError, match="NEWTONGP_EFFORT must be low, medium, full or unset, got 'some'"):
        compiled(scaled, static_argnums=1)(SITES, 2, 3.0)


@pytest.mark.parametrize(
    ("options", "effort"),
    [
        ({}, "low"),
        ({"full": True}, "low"),
        ({"work": 2.0**17}, "low"),
        ({"work": 2.0**17 + 1}, "medium"),
        ({"work": 1e9, "full": True}, "full"),
    ],
)
def test_the_effort_follows_the_work(monkeypatch, options, effort):
    efforts = []
    monkeypatch.setattr(compilation, "options_work", lambda effort: efforts.append(effort))
    compiled(scaled, static_argnums=1)(SITES, 2, 3.0, **options)
    assert efforts == [effort]


def threads():
    return [library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]


def test_small_problems_use_one_thread_and_leave_the_setting_alone():
    seen = []
    observe = compiled(lambda x: jax.pure_callback(lambda y: seen.append(threads()) or y, x, x))
    with threadpoolctl.threadpool_limits(2):
        before = threads()
        observe(jnp.ones(3))
        observe(jnp.ones(3), work=1e9)
        observe(jnp.ones(3), work=1e9, matrix=100.0)  # much work on small matrices
        assert threads() == before
    assert set(seen[0]) == set(seen[2]) == {1} and seen[1] == before


def limited(_):
    with one_blas_thread():
        return None


def test_the_last_of_several_threads_resets_the_setting():
    with threadpoolctl.threadpool_limits(2):
        before = threads()
        with one_blas_thread():
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(limited, range(8)))
            assert set(threads()) == {1}
        assert threads() == before


@pytest.mark.slow
def test_predictions_inside_a_traced_function_are_constants():
    """Nothing in the call is traced, although a function around it is."""
    result = ng.infer(ng.Model(ng.MarkovGP("matern32"), "poisson"), [0.0, 1.0, 2.0], [1, 2, 0])
    new = np.array([[0.5], [1.5]])
    expected = result.posterior.predict(new).mean
    doubled = jax.jit(lambda scale: scale * result.posterior.predict(new).mean)(2.0)
    np.testing.assert_allclose(doubled, 2.0 * expected, rtol=1e-6)


FIRST_FIT = """
import sys
import threading

import jax

compiled = []


def listen(event, duration, fun_name="", **_):
    if event.endswith("backend_compile_duration"):
        compiled.append((fun_name, threading.current_thread() is threading.main_thread()))


jax.monitoring.register_event_duration_secs_listener(listen)

import newtongp as ng
from newtongp.fitting import objective

# However fast this machine compiles.
vars(objective.evaluate)["is_pending"] = lambda: True
result = ng.fit(ng.Model(ng.PRIOR("matern32"), "LIKELIHOOD"), range(30), [1, 1, 0, 0, 1] * 6)
uses_lapack = "scipy.linalg" in sys.modules
str(result.summary())
result.predict([31.0]).quantile(0.9)
parts = "_predict", "_condition", "_errors"
meanwhile = [is_main for name, is_main in compiled if any(part in name for part in parts)]
print(len(compiled), len(meanwhile), sum(meanwhile), int(uses_lapack))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "likelihood", "expected"), [("MarkovGP", "poisson", 2), ("GP", "poisson", 2), ("GP", "bernoulli", 3)]
)
def test_a_first_fit_compiles_few_programs_and_some_meanwhile(prior, likelihood, expected):
    """A first fit with its summary and a prediction compiles some twenty programs, not one for every operation.

    The posterior, predictions and estimates of quadrature error, if any, are compiled once, in threads, while `fit`
    waits for its own program. Small chains need no LAPACK, which takes a tenth of a second to import.
    """
    script = FIRST_FIT.replace("PRIOR", prior).replace("LIKELIHOOD", likelihood)
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    programs, meanwhile, by_main, uses_lapack = map(int, finished.stdout.split())
    assert programs <= 30
    assert uses_lapack == (prior == "GP")
    if compile_ahead.FINDS_COMPILED:
        assert (meanwhile, by_main) == (expected, 0)
