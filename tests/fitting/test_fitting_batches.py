"""Hyperparameters learned from batches of rows are those learned from all rows at once, and runs can be resumed."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp._runtime.double import in_double
from newtongp.fitting import checkpoint, coordinates, objective
from newtongp.fitting import minibatch as batches
from newtongp.fitting import minibatch_step as batch
from newtongp.fitting.minibatch import is_level
from newtongp.inference.minibatch import product
from newtongp.inference.problem import Setup
from newtongp.inference.steps.backtracking import Backtracking
from newtongp.numerics.size_classes import exact_sizes

RNG = np.random.default_rng(0)
N = 1000
X = RNG.uniform(0.0, 6.0, (N, 1))
Y = RNG.poisson(np.exp(0.5 * np.sin(2.0 * X[:, 0]) + 0.25 * X[:, 0])).astype(float)
Y[[3, 200]] = np.nan


def model(storage="full", likelihood=None, **options):
    prior = ng.SparseGP(kernels.Matern52(1.0, 1.0), 15, mean=ng.means.Constant(0.0), storage=storage)
    return ng.Model(prior, ng.likelihoods.Poisson(**options) if likelihood is None else likelihood)


def learn(x: Any = X, y: Any = Y, which: Any = None, **options):
    """A short run, of which it does not matter where it ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.ConvergenceWarning)
        return ng.fit(model() if which is None else which, x, y, **{"batch_size": 100, "max_steps": 3, **options})


def chunks(size=256):
    return [(X[start : start + size], Y[start : start + size]) for start in range(0, N, size)]


# Where it ends ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_batches_learn_what_all_rows_do():
    wanted = ng.fit(model(), X, Y, standard_errors=False)
    found = ng.fit(model(), X, Y, batch_size=100)
    assert found.status.ok and found.inference_status.ok
    # The result is of inference with all rows, since there are few of them.
    assert abs(found.energy - wanted.energy) < 2e-4 * abs(wanted.energy)
    assert found.learned.keys() == wanted.learned.keys() and found.penalty == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(found.learned["mean.value"], wanted.learned["mean.value"], atol=0.1)
    np.testing.assert_allclose(found.learned["kernel.lengthscale"], wanted.learned["kernel.lengthscale"], rtol=0.2)
    assert found.evaluations == 10 * len(found.fit_history) and found.standard_errors == {}
    assert found.fit_history[-1] < found.fit_history[0]


@in_double
def gradients(method, values):
    """By a batch of all rows at the fixed point of inference, and as `fit` without batches has it."""
    start = batches.read_start(model(), X, Y, None, True, np.random.default_rng(0))
    slots = start.space.slots
    unconstrained = start.space.free_of([np.asarray(value) for value in values])
    with exact_sizes():
        setup = Setup(start.model, X, Y)
    sites = ng.Sites.constant(N, 1, 0.0)
    wanted = objective.evaluate(slots, setup.bound, unconstrained, method, Backtracking(), sites, -1.0, 200, 1e-11)
    schedule = batches._Schedule.of(start, method, None, N, 0.05, 0)
    constants = batches.constants_at(start, schedule, unconstrained)
    rows = jax.device_put(product.on_devices(next(start.rows.batches(N)), start.model.likelihood, None))
    shared, here, places = batch.at(slots, constants, rows, jnp.asarray(unconstrained))
    features, _, mean = product.look_up(shared, here)
    stored = places.product_of_z(shared.product_of(features, mean, wanted.report.sites))
    parts, found = batch.energy_and_gradient(slots, constants, rows, jnp.asarray(unconstrained), stored, 1.0)
    return np.asarray(found), np.asarray(wanted.gradient), float(sum(parts)), float(wanted.report.energy)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_batch_of_all_rows_has_the_gradient_of_the_energy():
    found, wanted, energy, as_wanted = gradients(ng.VI(), [0.7, 1.9, 0.4])
    assert np.max(np.abs(wanted)) > 1.0
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(energy, as_wanted, rtol=1e-9)


@pytest.mark.slow
@in_double
def test_the_roots_of_a_matrix_follow_it():
    """Also where it is singular, and eigenvalues are equal."""
    place = np.linspace(0.0, 1.0, 6)
    matrix = np.exp(-np.abs(place[:, None] - place[None, :]))
    move = 0.1 * np.cos(place[:, None] + place[None, :]) * (1.0 - np.eye(6))
    for start in (matrix, np.eye(6)):
        _, slopes = jax.jvp(coordinates.roots, (jnp.asarray(start),), (jnp.asarray(move),))
        above, below = (coordinates.roots(jnp.asarray(start + step * move)) for step in (1e-5, -1e-5))
        for slope, up, down in zip(slopes, above, below, strict=True):
            np.testing.assert_allclose(slope, (up - down) / 2e-5, atol=1e-7)
    singular = np.kron(matrix[:3, :3], np.ones((2, 2)))
    inverse_root, root, inverse_of_root = coordinates.roots(jnp.asarray(singular))
    np.testing.assert_allclose(inverse_root @ singular @ inverse_root @ singular, singular, atol=1e-9)
    np.testing.assert_allclose(root @ inverse_of_root, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(root @ root, singular + coordinates.SMALL * np.eye(6), atol=1e-9)


def test_noise_does_not_pass_for_progress_nor_progress_for_noise():
    noise = np.random.default_rng(0).normal(size=(400, 8))
    falling = 1000.0 - np.arange(8.0)
    assert np.mean([is_level(1000.0 + row, 1e-9) for row in noise]) > 0.7
    assert np.mean([is_level(falling + 0.2 * row, 1e-9) for row in noise]) < 0.01
    assert is_level(falling, 2e-3) and not is_level(falling, 1e-5)


@pytest.mark.slow
def test_a_start_without_an_energy_is_passed_over(monkeypatch):
    before, energies, places = batches.settle, [], []

    def settle(slots, constants, rows, unconstrained):
        energy, product = before(slots, constants, rows, unconstrained)
        energies.append(float(energy) if energies else np.nan)
        places.append(unconstrained)
        return energies[-1], product

    monkeypatch.setattr(batches, "settle", settle)
    start = batches.read_start(model(), X, Y, None, False, np.random.default_rng(0))
    fit = in_double(batches._BatchFit)(start, batches._Schedule.of(start, ng.VI(), None, 100, 0.05, 0))
    np.testing.assert_allclose(fit.unconstrained, places[np.nanargmin(energies)], rtol=1e-12)


# One run like another ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_the_key_decides_the_order_and_nothing_else_is_random():
    first, again, other = (learn(key=key) for key in (0, jax.random.key(0), 1))
    assert first.energy == again.energy and np.array_equal(first.fit_history, again.fit_history)
    assert not np.array_equal(first.fit_history, other.fit_history)
    assert first.status is ng.Status.MAX_STEPS and len(first.fit_history) == 3


class Interrupted:
    """Rows that can be sliced, until someone has had enough of it."""

    def __init__(self, error, after):
        self.shape, self.error, self.left = X.shape, error, after

    def __getitem__(self, rows):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return X[rows]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_killed_run_is_resumed_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.Checkpoint, "PATIENCE", 0.0)
    path, on_disk = tmp_path / "fit.ngp", Interrupted(None, 1000)
    wanted = learn(on_disk, max_steps=4)
    with pytest.raises(OSError, match="gone"):
        # Two reads are for a first look at the data.
        learn(Interrupted(OSError("gone"), 4), max_steps=4, checkpoint=path)
    assert path.exists()
    found = learn(Interrupted(None, 1000), max_steps=4, checkpoint=path)
    assert found.energy == pytest.approx(wanted.energy, abs=1e-8, rel=0.0)
    np.testing.assert_allclose(found.fit_history, wanted.fit_history, rtol=1e-12)
    # Everything is there already.
    assert learn(on_disk, max_steps=4, checkpoint=path).energy == found.energy
    with pytest.raises(ValueError, match="another fit"):
        learn(max_steps=4, checkpoint=path, learning_rate=0.1)
    for other in ({"tol": 1e-3}, {"parameters": {"lengthscale": ng.Free(lower=3.0)}}, {"weak_priors": False}):
        with pytest.raises(ValueError, match="another fit"):
            learn(max_steps=4, checkpoint=path, **other)


@pytest.mark.slow
@pytest.mark.thorough
def test_an_interrupted_run_keeps_what_it_has(tmp_path):
    class Impatient(list):
        """Chunks, of which the first pass after the fifth is not to be had."""

        times = 0

        def __iter__(self):
            self.times += 1
            if self.times == 5:
                raise KeyboardInterrupt
            return super().__iter__()

    given = Impatient(chunks())
    found = learn(lambda: iter(given), None, max_steps=9, checkpoint=tmp_path / "fit.ngp")
    assert found.status is ng.Status.INTERRUPTED and found.inference_status.ok
    assert len(found.fit_history) == 2 and np.isfinite(found.energy)
    wanted = learn(chunks(), None, max_steps=2)
    assert found.energy == pytest.approx(wanted.energy, rel=0.05)


# Data and models of other kinds -----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
def test_chunks_arrays_and_tied_sites():
    in_memory, in_chunks = learn(), learn(chunks(), None)
    assert in_chunks.data is None and in_memory.data is not None
    assert in_chunks.energy == pytest.approx(in_memory.energy, rel=2e-3)
    tied = learn(which=model("tied"), batch_size=None)
    assert tied.sites is None and tied.evaluations == 3 * 8
    assert tied.energy == pytest.approx(in_memory.energy, rel=2e-3)


@pytest.mark.slow
@pytest.mark.thorough
def test_what_is_fixed_tied_or_bounded_stays_so():
    wishes = {"variance": ng.Fixed(), "lengthscale": ng.Free(lower=0.2, upper=0.5)}
    found = learn(parameters=wishes, max_steps=4, learning_rate=0.2)
    assert found.parameters["kernel.variance"] == 1.0 and "kernel.variance" not in found.learned
    assert 0.2 <= found.learned["kernel.lengthscale"] <= 0.5 and found.at_bound == ["kernel.lengthscale"]
    nothing = learn(parameters={"variance": ng.Fixed(), "lengthscale": ng.Fixed(), "value": ng.Fixed()})
    assert nothing.status.ok and nothing.learned == {}


@pytest.mark.thorough
@pytest.mark.slow
def test_power_ep_two_latents_row_parameters_and_inducing_inputs():
    wanted = ng.fit(model(), X, Y, ng.PowerEP(0.5), standard_errors=False)
    found = ng.fit(model(), X, Y, ng.PowerEP(0.5), batch_size=100)
    assert found.energy == pytest.approx(wanted.energy, rel=2e-3)
    exposed = model(exposure=np.linspace(0.5, 1.5, N))
    wishes = {"inducing": ng.Free()}
    moved = ng.fit(exposed, X, Y, batch_size=100, parameters=wishes)
    still = ng.fit(exposed, X, Y, batch_size=100)
    assert moved.learned["inducing"].shape == (15, 1) and moved.energy < still.energy + 0.5
    both = ng.Model(ng.SparseGP("matern52", 10), "heteroscedastic_gaussian")
    y = np.sin(X[:, 0]) + np.exp(0.3 * X[:, 0] - 2.0) * np.random.default_rng(1).normal(size=N)
    all_rows, batches = ng.fit(both, X, y, standard_errors=False), ng.fit(both, X, y, batch_size=100)
    assert batches.energy == pytest.approx(all_rows.energy, abs=2e-3 * N)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"batch_size": True}, "batch_size must be an integer"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"restarts": 2}, "restarts must be 0 in batches, got 2"),
        ({"method": ng.VI(curvature=ng.QuasiNewton())}, "quasi-Newton methods keep a state per row"),
        ({"method": ng.VI(safeguard=ng.Riemannian())}, "Riemannian methods keep a state per row"),
        ({"method": ng.Newton()}, "use VI"),
        ({"method": ng.FirstOrderVI()}, "use VI"),
        ({"step": ng.Damped()}, "in batches the step is Constant"),
        ({"which": ng.Model(ng.GP(kernels.RBF()), "poisson")}, "inducing times, got GP"),
        ({"x": iter([]), "y": None}, "an iterator allows it only once"),
    ],
)
def test_bad_input_is_explained(options, says):
    with pytest.raises(ValueError, match=says):
        learn(**options)
