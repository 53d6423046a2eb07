"""Programs that are compiled again, with more effort, once they have run for long."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from newtongp._runtime import compile_ahead, tiers
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
    return Tiers(quick, lambda: thorough, 1)


def call(programs, *args, **options):
    return programs.run(args, *jax.tree.flatten(programs.dynamic(args)), jax.block_until_ready, **options)


def prepared(programs, *args):
    return programs.prepared(args, *jax.tree.flatten(programs.dynamic(args)))


def test_a_program_is_replaced_once_it_has_run_for_long(impatient):
    calls = []
    programs = counted(calls)
    found = run_often(functools.partial(call, programs), {"x": X}, 3, 0.5)
    assert calls == ["quick", "quick", "thorough lowered", "quick"]
    for answer in found:
        np.testing.assert_allclose(answer, 3.0 * np.sin(X) + 0.5, rtol=1e-6)


def test_other_shapes_and_static_values_are_other_programs(impatient):
    calls = []
    programs = counted(calls)
    run_often(functools.partial(call, programs), {"x": X}, 3, 0.5)
    before = len(calls)
    for args in (({"x": X[:4]}, 3, 0.5), ({"x": X}, 4, 0.5)):
        np.testing.assert_allclose(call(programs, *args), args[1] * np.sin(args[0]["x"]) + 0.5, rtol=1e-6)
    assert calls[before:] == ["quick", "quick"]


def test_a_program_that_is_used_little_is_not_compiled_again(monkeypatch):
    monkeypatch.setattr(tiers, "_PATIENCE", np.inf)
    calls = []
    programs = counted(calls)
    run_often(functools.partial(call, programs), {"x": X}, 3, 0.5)
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


def test_a_program_is_compiled_before_it_is_called(impatient):
    calls = []
    programs = counted(calls)
    args = {"x": X}, 3, 0.5
    assert prepared(programs, *args) is None
    use = programs.prepare(args)
    wait_for_compilations()
    assert use is not None and use.successor is not None and programs.prepare(args) is use
    np.testing.assert_allclose(call(programs, *args), 3.0 * np.sin(X) + 0.5, rtol=1e-6)
    ready = prepared(programs, *args)
    assert ready is not None and prepared(programs, {"x": X[:4]}, 3, 0.5) is None
    np.testing.assert_allclose(ready(), 3.0 * np.sin(X) + 0.5, rtol=1e-6)
    assert calls == ["thorough lowered"]


def test_nothing_is_prepared_while_something_is_compiled(impatient, monkeypatch):
    monkeypatch.setattr(tiers, "is_compiling", lambda: True)
    calls = []
    assert counted(calls).prepare(({"x": X}, 3, 0.5)) is None
    assert not calls


def test_a_program_that_is_soon_to_be_unused_is_not_compiled_again(impatient):
    calls = []
    programs = counted(calls)
    run_often(functools.partial(call, programs, again=False), {"x": X}, 3, 0.5)
    assert calls == ["quick"] * 4


def test_programs_of_more_effort_are_prepared_too(impatient):
    function = compiled(scaled, static_argnums=1)
    args = {"x": X}, 3, 0.5
    function.prepare(*args)
    wait_for_compilations()
    np.testing.assert_allclose(function(*args, work=1e9), 3.0 * np.sin(X) + 0.5, rtol=1e-6)


def test_a_compilation_that_was_started_is_found_by_the_call(impatient, monkeypatch):
    monkeypatch.setattr(compile_ahead, "FINDS_COMPILED", True)
    calls = []
    programs = counted(calls)
    args = {"x": X}, 3, 0.5
    for _ in range(2):  # only the first has an effect
        programs.start(args, programs._quick)
    np.testing.assert_allclose(call(programs, *args), 3.0 * np.sin(X) + 0.5, rtol=1e-6)
    programs.start(args, programs._quick)
    assert calls == ["quick lowered", "quick"]


@pytest.mark.skipif(not compile_ahead.FINDS_COMPILED, reason="calls compile again")
def test_a_program_whose_compilation_was_started_is_compiled_once(monkeypatch):
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)
    compilations = []

    def note(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compilations.append(duration)

    function = compiled(scaled, static_argnums=1)
    for work in (1.0, 1e9):  # with low and with medium effort
        function({"x": X}, 2, 0.5, work=work)  # which tries the options of the compiler
        args = {"x": np.linspace(0.0, 1.0, 11, dtype=np.float32)}, 3 if work == 1.0 else 4, 0.5
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            function.start(*args, work=work)
            found = function(*args, work=work)
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
        np.testing.assert_allclose(found, args[1] * np.sin(args[0]["x"]) + 0.5, rtol=1e-6)
    assert len(compilations) == 2


def test_an_error_in_a_function_is_raised_by_the_call(monkeypatch):
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)

    def wrong(x):
        raise ValueError("wrong")

    function = compiled(wrong)
    function.start(X, work=1.0)
    with pytest.raises(ValueError, match="wrong"):
        function(X, work=1.0)


class Lowered:
    """A stand-in for a program: notes when it is compiled, and by which thread."""

    def __init__(self, name, log, until=None):
        self.name, self.log, self.until = name, log, until

    def compile(self):
        if self.until is not None:
            self.until.wait(10.0)
        self.log.append((self.name, threading.current_thread() is threading.main_thread()))
        return self.name


def test_programs_wait_for_their_turn_but_not_those_that_are_needed(monkeypatch):
    """With one thread, the second program is compiled after the first, or at once by the caller that needs it."""
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(compile_ahead, "_workers", lambda: pool)
        log, free = [], threading.Event()
        first, second, third = (
            compile_ahead.Compilation(Lowered(name, log, free if name == "first" else None))
            for name in ("first", "second", "third")
        )
        assert first.is_running and second.is_running
        assert second.result() == "second" and second.wait() >= 0.0 and not second.is_running
        free.set()
        assert first.result() == "first" and third.result() == "third"
    assert log[0] == ("second", True) and ("first", False) in log and len(log) == 3
