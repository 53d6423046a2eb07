"""Programs that are kept: the same answers, for the same question only, and never an obstacle."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import programs
from newtongp.compilation import compiled
from newtongp.gaussian import Sites
from newtongp.kalman import plain_loops

SITES = Sites(np.linspace(-1.0, 1.0, 6).reshape(6, 1), np.ones((6, 1, 1)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Programs are kept in this folder, however quickly they were made."""
    mine = {"compilation_cache_dir": str(tmp_path), "persistent_cache_min_compile_time_secs": 0.0}
    theirs = programs._setting
    monkeypatch.setattr(programs, "_setting", lambda name: mine[name] if name in mine else theirs(name))
    monkeypatch.delenv("NEWTONGP_KEEP_PROGRAMS", raising=False)
    monkeypatch.setattr(programs, "_ready", {})
    # JAX would keep them once more, for good.
    seconds = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1e6)
    yield tmp_path / "newtongp"
    jax.config.update("jax_persistent_cache_min_compile_time_secs", seconds)


def as_new_process():
    programs._ready.clear()


def kept(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


def example():
    """A compiled function, and a list that gets longer whenever it is traced."""
    traces = []

    def scaled(sites, factor, times):
        traces.append(factor)
        return Sites(times * jnp.sin(sites.linear), sites.precision + factor), (times * sites.linear[-1, 0], None)

    return compiled(scaled, static_argnums=1, donate_argnums=0), traces


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_what_is_kept_is_not_traced_again(folder):
    first, traces = example()
    with programs.set_aside():
        wanted = first(SITES, 2, 3.0)
    assert (len(traces), kept(folder)) == (1, [])
    same(first(SITES, 2, 3.0), wanted)
    same(first(SITES, 2, 3.0), wanted)
    assert (len(traces), len(kept(folder))) == (2, 1)
    as_new_process()
    second, traces = example()
    same(second(SITES, 2, 3.0), wanted)
    assert float(second(SITES, 2, 4.0)[1][0]) == 4.0
    assert traces == []


def test_donated_arrays_of_the_caller_are_left_alone(folder):
    before = jax.tree.map(np.copy, SITES)
    example()[0](SITES, 2, 3.0)
    same(SITES, before)
    call, _ = example()
    given = jax.tree.map(jnp.asarray, SITES)
    wanted = jax.tree.map(np.array, given)
    # What is attempted first may fail, and is given copies.
    call(given, 2, 3.0)
    same(given, wanted)
    assert len(kept(folder)) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda call: call(SITES, 3, 3.0),
        lambda call: call(SITES, 2.0, 3.0),
        lambda call: call(SITES, 2, 3),
        lambda call: call(SITES, 2, np.float32(3.0)),
        lambda call: call(Sites.constant(5, 1, 1.0), 2, 3.0),
        lambda call: call(Sites(SITES.linear.astype(np.float32), SITES.precision), 2, 3.0),
        lambda call: call(SITES, 2, 3.0, quickly=False),
    ],
)
def test_another_question_is_another_program(folder, change):
    with jax.enable_x64(True):
        example()[0](SITES, 2, 3.0)
        as_new_process()
        call, traces = example()
        change(call)
    assert (len(traces), len(kept(folder))) == (1, 2)


def test_other_settings_are_another_program(folder):
    example()[0](SITES, 2, 3.0)
    for setting in (jax.enable_x64(True), jax.default_matmul_precision("float32")):
        call, traces = example()
        with setting:
            call(SITES, 2, 3.0)
        assert len(traces) == 1
    call, traces = example()
    with jax.debug_nans(True):
        call(SITES, 2, 3.0)
    with plain_loops():
        call(SITES, 2, 3.0)
    assert (len(traces), len(kept(folder))) == (2, 3)


def test_other_sources_are_another_program(folder, monkeypatch):
    example()[0](SITES, 2, 3.0)
    as_new_process()
    before = programs._installation()
    programs._installation.cache_clear()
    assert programs._installation() == before
    programs._installation.cache_clear()
    monkeypatch.setattr(programs, "__file__", str(folder / "programs.py"))
    assert programs._installation() != before
    call, traces = example()
    call(SITES, 2, 3.0)
    assert (len(traces), len(kept(folder))) == (1, 2)


class Pulled(Sites):
    """What a user might have written."""


@pytest.mark.parametrize("foreign", [Pulled(SITES.linear, SITES.precision), {"linear": SITES.linear}])
def test_what_others_wrote_is_not_kept(folder, foreign):
    double = compiled(lambda tree: 2.0 * jax.tree.leaves(tree)[0])
    np.testing.assert_allclose(double(foreign), 2.0 * SITES.linear)
    assert kept(folder) == []


def test_a_model_with_a_function_in_it_is_not_kept(folder):
    def conditioning_is_kept(mean):
        model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(), mean=mean), ng.likelihoods.Gaussian(0.1))
        assert ng.infer(model, [0.0, 1.0], [0.0, 1.0]).posterior is not None
        return any(file.name.startswith("condition") for file in kept(folder))

    assert not conditioning_is_kept(lambda x: x[0])
    assert conditioning_is_kept(0.5)


def test_programs_can_be_called_while_tracing(folder):
    call, _ = example()
    slope = jax.grad(lambda times: jnp.sum(call(SITES, 2, times, quickly=False)[0].linear))(3.0)
    np.testing.assert_allclose(slope, np.sum(np.sin(SITES.linear)), atol=1e-6)
    assert kept(folder) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"something else",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-10] + bytes(10),
        lambda content: content.replace(b"tuple", b"table", 1),
    ],
)
def test_damaged_files_are_written_anew(folder, damage):
    wanted = example()[0](SITES, 2, 3.0)
    [file] = kept(folder)
    good = file.read_bytes()
    file.write_bytes(damage(good))
    assert file.read_bytes() != good
    as_new_process()
    call, traces = example()
    same(call(SITES, 2, 3.0), wanted)
    assert len(traces) == 1
    as_new_process()
    call, traces = example()
    same(call(SITES, 2, 3.0), wanted)
    assert traces == []


def failing(monkeypatch, times):
    """Let programs fail so many times, as those do that XLA cannot write down."""
    run, failures = programs._Program.__call__, []

    def call(self, leaves):
        if len(failures) < times:
            failures.append(True)
            raise RuntimeError("not here")
        return run(self, leaves)

    monkeypatch.setattr(programs._Program, "__call__", call)


def test_a_program_that_fails_is_compiled_again(folder, monkeypatch):
    with programs.set_aside():
        wanted = example()[0](SITES, 2, 3.0)
    failing(monkeypatch, times=1)
    same(example()[0](SITES, 2, 3.0), wanted)
    as_new_process()
    call, traces = example()
    same(call(SITES, 2, 3.0), wanted)
    assert traces == []


def test_a_program_that_always_fails_is_given_up(folder, monkeypatch):
    with programs.set_aside():
        wanted = example()[0](SITES, 2, 3.0)
    failing(monkeypatch, times=1000)
    same(example()[0](SITES, 2, 3.0), wanted)
    as_new_process()
    call, traces = example()
    same(call(SITES, 2, 3.0), wanted)
    same(call(SITES, 2, 3.0), wanted)
    assert len(traces) == 1


def test_a_folder_that_cannot_be_written_to_is_no_obstacle(folder):
    folder.write_text("in the way")
    call, traces = example()
    same(call(SITES, 2, 3.0), call(SITES, 2, 3.0))
    assert len(traces) == 1


def test_errors_are_those_of_tracing(folder):
    def wrong(x):
        raise ValueError(f"no {x.shape}")

    with pytest.raises(ValueError, match=r"no \(3,\)"):
        compiled(wrong)(np.ones(3))


def test_a_test_that_was_passed_is_remembered(folder):
    asked = []

    def pass_now():
        asked.append(True)
        return True

    def fail_now():
        asked.append(False)
        return False

    for _ in range(2):  # as in two processes
        assert programs.remembered(pass_now)()
        assert not programs.remembered(fail_now)()
    assert asked == [True, False, False]


def series(rows):
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.gamma(2.0, 0.05, size=rows))
    return times, rng.poisson(np.exp(np.sin(times)))


PRIORS = {
    "markov": lambda: ng.MarkovGP(ng.kernels.Matern32(lengthscale=2.0), unit="D"),
    "dense": lambda: ng.GP(ng.kernels.Matern32(lengthscale=2.0)),
}


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", [ng.VI(), ng.PowerEP(0.5)])
def test_inference_gives_the_same_answers(folder, prior, method):
    model = ng.Model(PRIORS[prior](), ng.likelihoods.Poisson())
    data = series(30)

    def answers():
        found = ng.infer(model, *data, method=method)
        history = found.history
        return found.energy, found.steps, history.energy, found.sites, found.marginals, found.posterior

    with programs.set_aside():
        wanted = answers()
    same(answers(), wanted)
    written = kept(folder)
    assert len([file for file in written if file.name.startswith("run_slice")]) == (prior == "markov")
    as_new_process()
    same(answers(), wanted)
    assert kept(folder) == written


@pytest.mark.slow
def test_the_next_process_does_not_trace(tmp_path):
    script = """
import numpy as np
import newtongp as ng
from newtongp.priors.markov import MarkovGP

traced, prepare = [], MarkovGP.prepare
MarkovGP.prepare = lambda *args: (traced.append(True), prepare(*args))[1]
model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(lengthscale=2.0)), ng.likelihoods.Poisson())
result = ng.infer(model, np.arange(20.0), np.arange(20) % 3)
print(len(traced), result.energy.hex(), result.posterior.marginals.mean.tobytes().hex())
"""
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "NEWTONGP_KEEP_PROGRAMS": "1",
    }
    said = [
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (each.stdout.split() for each in said)
    assert (first[0], second[0]) == ("1", "0")
    assert first[1:] == second[1:]
