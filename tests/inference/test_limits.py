"""What cannot fit in memory is refused before it starts; what takes long can be interrupted; forks are noticed."""

import os
import signal
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.inference import loop
from newtongp.inference.compatibility import check_choices
from newtongp.inference.problem import Setup
from newtongp.inputs import memory
from newtongp.numerics.gaussian import Sites

infer_room: Any = sys.modules["newtongp.inference.infer"]
K, L = ng.kernels, ng.likelihoods
X = np.linspace(0.0, 5.0, 12)
COUNTS = np.random.default_rng(0).poisson(np.exp(np.sin(X)))
SERIES = ng.Model(ng.MarkovGP(K.Matern32()), L.Poisson())


@pytest.fixture
def little(monkeypatch):
    """A machine with 16 GB."""
    monkeypatch.setattr(memory, "available", lambda: 16e9)


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [ng.infer, ng.fit, ng.iterate])
@pytest.mark.parametrize("rows", [50_000, 200_000])
def test_a_dense_prior_with_too_many_rows_is_refused(run, rows, little):
    model = ng.Model(ng.GP(K.Matern32()), L.Poisson())
    with pytest.raises(
        MemoryError,
        match=rf"GP with 1 latent\(s\) and {rows} row\(s\) needs about .* (GB|TB) of memory, and "
        r"16 GB are available: use SparseGP.*MarkovGP.*check_memory=False",
    ):
        run(model, np.arange(float(rows)), np.zeros(rows))


def test_fit_takes_more_than_inference(little):
    model, x = ng.Model(ng.GP(K.Matern32()), L.Poisson()), np.arange(12_000.0)
    memory.require_rows(model.prior, x[:, None])
    with pytest.raises(MemoryError, match="12000 row"):
        ng.fit(model, x, np.zeros(12_000))


@pytest.mark.parametrize(
    ("prior", "x", "message"),
    [
        (lambda: ng.StateSpaceModel([[0.9]], [[1.0]], [[1.0]]), [0, 1, 10**8], "number the steps from 0"),
        (lambda: ng.MarkovGP(K.Periodic(harmonics=1000)), np.arange(1e3), "fewer harmonics"),
        (lambda: ng.MarkovGP(K.Matern32(), pieces=65521), np.arange(20_000.0), "MarkovGP with 1 latent"),
        (lambda: ng.SparseGP(K.RBF(), 40_000), np.arange(40_000.0), "fewer inducing inputs, or batches of rows"),
    ],
)
def test_other_priors_are_asked_too(prior, x, message, little):
    model = ng.Model(prior(), L.Poisson())
    with pytest.raises(MemoryError, match=message):
        ng.infer(model, x, np.zeros(len(x)))


def test_nodes_are_counted(little):
    model = ng.Model(ng.MarkovGP(K.Independent([K.Matern32(), K.Matern12()])), L.HeteroscedasticGaussian())
    with pytest.raises(MemoryError, match=r"QuasiRandom with 131072 nodes for each of 10000 row\(s\) needs about"):
        ng.infer(model, np.arange(1e4), np.zeros(10_000), ng.VI(cubature=ng.cubature.QuasiRandom(2**17)))


def test_a_flag_goes_on_regardless(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 0.0)
    monkeypatch.setattr(memory, "_LITTLE", 0.0)
    for run in (ng.infer, ng.fit, ng.iterate):
        with pytest.raises(MemoryError, match="0 MB are available"):
            run(SERIES, X, COUNTS)
        with pytest.raises(ValueError, match="check_memory must be True or False, got 'no'"):
            run(SERIES, X, COUNTS, check_memory="no")
    assert ng.infer(SERIES, X, COUNTS, check_memory=False).status.ok
    assert next(ng.iterate(SERIES, X, COUNTS, check_memory=False)).steps == 1
    with pytest.raises(MemoryError):
        ng.infer(SERIES, X, COUNTS)


def test_what_is_available(tmp_path, monkeypatch):
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0.0 < memory.available() <= total
    for name, content in (("max", "5000000\n"), ("current", "2000000\n"), ("none", "max\n")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(memory, "_CGROUPS", ((tmp_path / "none", tmp_path / "current"), (tmp_path / "gone", "gone")))
    assert memory.available() > 5e6
    monkeypatch.setattr(memory, "_CGROUPS", ((tmp_path / "max", tmp_path / "current"),))
    assert memory.available() == 3e6


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("prior", "rows"),
    [
        (ng.GP(K.Matern32()), 600),
        (ng.MarkovGP(K.Matern32(), pieces=1), 5000),
        (ng.MarkovGP(K.Periodic(harmonics=5)), 1000),
        (ng.SparseGP(K.Matern32(), 60), 5000),
    ],
)
def test_estimates_are_of_the_size_that_the_compiler_finds(prior, rows):
    x = np.linspace(0.0, 50.0, rows)
    model = ng.Model(prior, L.StudentT())
    with jax.enable_x64(True):
        setup = Setup(model, x, np.sin(x))
        method, step = check_choices(model, ng.VI(cubature=ng.cubature.GaussHermite(20)), None)
        sites = Sites.constant(setup.problem.observed.shape[0], 1, 0.0)

        def run(problem, sites):
            return loop.converge(problem, method, step, sites, 100, 1e-6)[1]

        found: Any = jax.jit(run).lower(setup.problem, sites).compile().memory_analysis()
    taken = found.temp_size_in_bytes + found.argument_size_in_bytes + found.output_size_in_bytes
    assert 0.5 < model.prior.memory(setup.data.x) / taken < 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: K.Periodic(harmonics=10**6), "harmonics must be an integer from 0 to 1000, got 1000000"),
        (lambda: ng.MarkovGP(K.Matern32(), pieces=10**6), "pieces must be an integer from 1 to 65536, or None"),
        (lambda: ng.cubature.GaussHermite(10**6), "order must be an integer from 1 to 1000, got 1000000"),
        (lambda: ng.cubature.QuasiRandom(2**30), "count must be an integer from 4 to 1048576, got 1073741824"),
    ],
)
def test_sizes_that_nobody_can_mean_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Slices -----------------------------------------------------------------------------------------------------------


def outcome(result):
    history = result.history
    parts = result.energy, result.residual, result.steps, int(result.status), result.sites, result.marginals
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((parts, history.energy, history.step_size))]


def test_any_number_of_steps_can_be_asked_for():
    wanted = outcome(ng.infer(SERIES, X, COUNTS))
    assert outcome(ng.infer(SERIES, X, COUNTS, max_steps=10**12)) == wanted
    assert outcome(ng.infer(SERIES, X, COUNTS, max_steps=10**30)) == wanted


@pytest.mark.cases(thorough=["None", "method1"], others="slow")
@pytest.mark.parametrize(
    "method", [None, pytest.param(ng.PowerEP(0.5, curvature=ng.QuasiNewton()), marks=pytest.mark.slow)]
)
def test_slices_give_the_bits_of_a_single_run(method, monkeypatch):
    model, slices = ng.Model(ng.MarkovGP(K.Matern32()), L.StudentT(scale=0.1)), []
    y = np.sin(X) + 3.0 * (np.arange(12) == 5)
    monkeypatch.setattr(infer_room, "_FIRST_TRIALS", 10**6)
    monkeypatch.setattr(infer_room, "_SLICE", 1e9)
    right = infer_room.run_slice
    monkeypatch.setattr(infer_room, "run_slice", lambda *a, **b: slices.append(a[-1]) or right(*a, **b))
    whole = ng.infer(model, X, y, method, throw=False)
    # One trial to see where it starts, and all others.
    assert len(slices) <= 2
    slices.clear()
    monkeypatch.setattr(infer_room, "_FIRST_TRIALS", 1)
    monkeypatch.setattr(infer_room, "_SLICE", 0.0)
    assert outcome(ng.infer(model, X, y, method, throw=False)) == outcome(whole)
    assert len(slices) > whole.steps and set(slices) == {1}


def test_histories_are_longer_than_a_slice_can_keep():
    result = ng.infer(SERIES, X, COUNTS, step=ng.Constant(0.01), max_steps=300, throw=False)
    assert result.steps == len(result.history) == 300
    assert np.all(np.diff(result.history.energy) < 0.0) and np.all(result.history.step_size == 0.01)
    again = ng.infer(SERIES, X, COUNTS, step=ng.Constant(0.01), max_steps=150, throw=False)
    assert np.array_equal(again.history.energy, result.history.energy[:150])


@pytest.mark.slow
def test_slices_are_traced_once(monkeypatch):
    traces = []

    class Counted(ng.Likelihood):
        def log_prob(self, y, f):
            traces.append(1)
            return -0.5 * (y - jnp.sinh(f)) ** 2

    monkeypatch.setattr(infer_room, "_SLICE", 0.0)
    monkeypatch.setattr(infer_room, "_FIRST_TRIALS", 1)
    model = ng.Model(ng.MarkovGP(K.Matern32()), Counted())
    states = ng.iterate(model, X, np.sin(X))
    next(states)
    before = len(traces)
    next(states)
    ng.infer(model, X, np.sin(X))
    assert len(traces) == before


def test_a_slice_takes_about_a_second():
    track = infer_room._Track(1)
    for _ in range(30):
        track.note(loop.Loop(None, None, 0, 0, None), 0, 0, 0.002 * track.trials)  # pyright: ignore
    assert track.trials == 500
    track.note(loop.Loop(None, None, 0, 0, None), 0, 0, 50.0)  # pyright: ignore
    assert track.trials == 10


ENDLESS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore it, as in a background job
import numpy as np, newtongp as ng
x = np.linspace(0.0, 50.0, 2000)
model = ng.Model(ng.MarkovGP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
arguments = dict(step=ng.Constant(0.5), tol=0.0, throw=False)
ng.infer(model, x, np.ones(2000), max_steps=1, **arguments)
print("ready", flush=True)
ng.infer(model, x, np.ones(2000), max_steps=10**12, **arguments)
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_an_interrupt_ends_the_process():
    running = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None and running.stdout.readline() == "ready\n"
    time.sleep(3.0)
    running.send_signal(signal.SIGINT)
    try:
        _, said = running.communicate(timeout=30.0)
    finally:
        running.kill()
    assert "KeyboardInterrupt" in said and "Fatal" not in said
    assert running.returncode in (1, -signal.SIGINT, 130)


# Forks ------------------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, warnings
import numpy as np, newtongp as ng
model = ng.Model(ng.MarkovGP(ng.kernels.Matern32()), ng.likelihoods.Poisson())
if sys.argv[1] == "after":
    result = ng.infer(model, [0.0, 1.0], [1, 2])
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    try:
        result.predict([0.5]) if sys.argv[1] == "after" else ng.infer(model, [0.0, 1.0], [1, 2])
        os._exit(0)
    except RuntimeError as error:
        os._exit(3 if 'get_context("spawn")' in str(error) else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.cases(thorough=["before-0", "after-3"], others="slow")
@pytest.mark.parametrize(("when", "ended"), [("before", "0"), ("after", "3")])
def test_a_fork_after_the_first_computation_is_refused(when, ended):
    found = subprocess.run(
        [sys.executable, "-c", FORKED, when], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.strip() == ended


# Debugging --------------------------------------------------------------------------------------------------------

GAPS = np.where(np.arange(12) == 3, np.nan, COUNTS)
DEBUGGED = {
    "dense": (ng.GP(K.Matern32()), X),
    "markov": (ng.MarkovGP(K.Matern32()), X),
    "sparse": (ng.SparseGP(K.Matern32(), 5), X),
    "steps": (ng.StateSpaceModel([[0.9]], [[0.3]], [[1.0]]), np.arange(12.0)),
    "linear": (ng.LinearModel([1.0, 1.0]), np.stack([np.ones(12), X], axis=1)),
}
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "first-order": ng.FirstOrderVI(),
}
PAIRS = [(prior, method) for prior in DEBUGGED for method in METHODS if method == "vi" or prior in ("dense", "markov")]


@pytest.mark.cases(quick=["markov-vi"], others="thorough")
@pytest.mark.parametrize(
    ("prior", "method"),
    [pytest.param(*pair, marks=() if pair == ("markov", "vi") else pytest.mark.slow) for pair in PAIRS],
)
def test_nothing_is_filled_with_nan(prior, method):
    given, x = DEBUGGED[prior]
    with jax.debug_nans(True):
        result = ng.infer(ng.Model(given, L.Poisson()), x, GAPS, METHODS[method], throw=False)
        predicted = result.predict(x[:3])
        assert np.all(np.isfinite(predicted.mean)) and np.all(np.isfinite(predicted.latent.covariance))
        assert np.isnan(result.log_density(x[2:5], GAPS[2:5])).tolist() == [False, True, False]
    # The setting is what stops at a NaN: it is not just ignored.
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jnp.log(-jnp.ones(()))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("prior", "method"), [("dense", "vi"), ("markov", "newton"), ("sparse", "ep")])
def test_nothing_is_filled_with_nan_in_fit(prior, method):
    given, x = DEBUGGED[prior]
    with jax.debug_nans(True):
        result = ng.fit(ng.Model(given, L.Poisson()), x, GAPS, METHODS[method], max_steps=2, throw=False)
        assert np.all(np.isfinite(result.predict(x[:3]).quantile([0.1, 0.9])))
