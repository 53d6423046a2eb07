"""Rows that are filled up to a size class: the same results, and no compilation for other numbers of rows."""

import contextlib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng
from newtongp import kernels, terms
from newtongp.numerics.size_classes import (
    cubic_size_class,
    data_size_class,
    exact_sizes,
    fill_rows,
    first_rows,
    size_class,
)
from newtongp.priors.base import Layout

RNG = np.random.default_rng(3)
N = 37
TIMES = RNG.permutation(np.sort(RNG.uniform(0.0, 9.0, N)))
COUNTS = RNG.poisson(np.exp(np.sin(TIMES))).astype(float)
COUNTS[[4, 20]] = np.nan
TWO_LATENTS = kernels.Independent([kernels.Matern32(2.0), kernels.Matern52(3.0)])
WALK = ng.StateSpaceModel(
    [[1.0, 0.1], [0.0, 1.0]], [[1e-5, 1e-4], [1e-4, 1e-3]], [1.0, 0.0], initial_covariance=np.eye(2)
)
DESIGN = np.stack([np.ones(N), np.sin(TIMES), TIMES / 9.0], axis=1)

PRIORS = {
    "dense": (ng.GP(kernels.Matern32(2.0)), TIMES),
    "markov": (ng.MarkovGP(kernels.Matern32(2.0)), TIMES),
    "sparse": (ng.SparseGP(kernels.Matern32(2.0), inducing=9), TIMES),
    "linear": (ng.LinearModel([10.0, 1.0, 1.0]), DESIGN),
    "state space": (WALK, 2 * np.arange(N)),
}
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "power ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "taylor": ng.Taylor(),
    "first order": ng.FirstOrderVI(),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
}
UNSTABLE = {
    "quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "riemannian": ng.VI(safeguard=ng.Riemannian()),
}


def both(run):
    """What `run` returns with rows that are filled up, and without."""
    filled = run()
    with exact_sizes():
        return filled, run()


def assert_same(ours, theirs, tolerance=1e-12):
    """Results that agree to this tolerance, means in posterior standard deviations."""
    assert (ours.status, ours.steps) == (theirs.status, theirs.steps)
    np.testing.assert_allclose(ours.energy, theirs.energy, rtol=max(tolerance, 1e-12), atol=1e-10)
    scale = np.sqrt(np.diagonal(theirs.marginals.covariance, axis1=1, axis2=2))
    assert np.max(np.abs(ours.marginals.mean - theirs.marginals.mean) / scale) < ours.steps * tolerance
    for part in ("marginals", "sites"):
        mine, other = getattr(ours, part), getattr(theirs, part)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=max(1e-8, 1e3 * tolerance), atol=1e-9)
    assert ours.posterior.marginals.mean.shape == theirs.posterior.marginals.mean.shape


@pytest.mark.cases(slow=["dense-taylor"], others="thorough")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prior", PRIORS)
def test_filled_rows_have_no_influence(prior, method):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())
    options = {"max_steps": 20, "throw": False} if method in ("first order", "vi gauss-newton") else {}
    ours, theirs = both(lambda: ng.infer(model, x, COUNTS, METHODS[method], **options))
    assert_same(ours, theirs)
    new = x[:5] + (0 if isinstance(prior, ng.StateSpaceModel) else 0.25)
    (ours, theirs), _ = both(lambda: (ours.predict(new), theirs.predict(new)))
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9)
    np.testing.assert_allclose(ours.quantile([0.1, 0.9]), theirs.quantile([0.1, 0.9]))
    np.testing.assert_allclose(ours.latent.covariance, theirs.latent.covariance, rtol=1e-8)


@pytest.mark.cases(
    slow=[
        "markov-quasi-newton",
    ],
    others="thorough",
)
@pytest.mark.parametrize("method", UNSTABLE)
@pytest.mark.parametrize("prior", PRIORS)
def test_runs_that_amplify_rounding_agree_in_their_first_steps(prior, method):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())
    arguments = model, x, COUNTS, UNSTABLE[method], ng.Constant(0.3)
    ours, theirs = both(lambda: ng.infer(*arguments, max_steps=20, throw=False))
    assert_same(ours, theirs, 1e-9)


@pytest.mark.slow
@pytest.mark.thorough
def test_ill_conditioned_priors_agree_at_convergence():
    x = np.sort(np.concatenate([TIMES, TIMES + 1e-9]))
    y = np.sin(x) + 0.1 * RNG.standard_t(3.0, x.size)
    model = ng.Model(ng.GP(kernels.RBF(3.0, 100.0)), ng.likelihoods.StudentT(4.0, 0.1))
    ours, theirs = both(lambda: ng.infer(model, x, y))
    assert ours.status is theirs.status
    scale = np.sqrt(theirs.marginals.covariance[:, 0, 0])
    assert np.max(np.abs(ours.marginals.mean - theirs.marginals.mean)[:, 0] / scale) < 1e-8


@pytest.mark.slow
@pytest.mark.thorough
def test_several_latents_and_row_parameters():
    y = np.sin(TIMES) + 0.2 * RNG.standard_normal(N)
    model = ng.Model(ng.MarkovGP(TWO_LATENTS), ng.likelihoods.HeteroscedasticGaussian())
    assert_same(*both(lambda: ng.infer(model, TIMES, y)), 1e-11)
    exposure = RNG.uniform(0.5, 2.0, N)
    model = ng.Model(ng.GP(kernels.RBF(2.0)), ng.likelihoods.Poisson(exposure=exposure))
    ours, theirs = both(lambda: ng.infer(model, TIMES, COUNTS))
    assert_same(ours, theirs)
    np.testing.assert_allclose(*both(ours.leave_one_out), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["dense", "markov", "sparse"])
def test_fits_end_at_the_same_place(prior):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())
    ours, theirs = both(lambda: ng.fit(model, x, COUNTS))
    assert ours.status is theirs.status
    for name, value in theirs.learned.items():
        np.testing.assert_allclose(ours.learned[name], value, rtol=1e-5)
    np.testing.assert_allclose(ours.energy, theirs.energy, rtol=1e-9)


@pytest.mark.cases(thorough=["state space"], slow=["markov"])
@pytest.mark.parametrize("prior", ["markov", "state space"])
def test_one_step_ahead_and_states_are_of_the_data(prior):
    prior, x = PRIORS[prior]
    result = ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), x, COUNTS)
    ahead, exact = both(result.one_step_ahead)
    assert ahead.shape == (N,)
    np.testing.assert_allclose(ahead, exact, rtol=1e-9)
    np.testing.assert_allclose(*both(lambda: result.states(x[:4]).covariance), rtol=1e-8, atol=1e-12)


@contextlib.contextmanager
def compilations():
    """A list that gets one entry for every program that is compiled in the context."""
    names: list[str] = []

    def listen(event: str, duration: float, **_) -> None:
        if active and event.endswith("backend_compile_duration"):
            names.append(event)

    active = True
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        active = False


@pytest.mark.cases(quick=["markov", "dense"], others="slow")
@pytest.mark.parametrize("prior", ["dense", "markov", "sparse", "linear"])
def test_other_numbers_of_rows_compile_nothing(prior):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())

    def everything(rows, new):
        result = ng.infer(model, x[:rows], COUNTS[:rows])
        prediction = result.predict(x[:new])
        return prediction.mean, prediction.quantile([0.05] * new), result.leave_one_out(), str(result.summary())

    everything(30, 4)
    with compilations() as compiled:
        everything(29, 5)
        everything(21, 1)
    assert not compiled


@pytest.mark.cases(quick=["full"], others="slow")
@pytest.mark.parametrize("storage", ["full", "tied"])
def test_other_sizes_of_batches_compile_nothing(storage):
    """Nor do other numbers of rows, and the results are those of batches that are not filled up."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2))
    counts = rng.poisson(np.exp(0.5 * np.sin(x[:, 0])))
    model = ng.Model(ng.SparseGP(ng.kernels.RBF(1.0), x[:10], storage=storage), ng.likelihoods.Poisson())

    def run(rows, size):
        return ng.infer(model, x[:rows], counts[:rows], batch_size=size, key=1, max_steps=20, tol=1e-4, throw=False)

    run(300, 100)
    with compilations() as compiled:
        run(300, 97)
        found = run(290, 99)
    assert not compiled
    with exact_sizes():
        other = run(290, 99)
    assert found.steps == other.steps and found.status == other.status
    if storage == "full":
        np.testing.assert_allclose(found.sites.linear, other.sites.linear, atol=1e-10)
    else:
        assert found.sites is None
    prediction, exact = found.predict(x[:4]), other.predict(x[:4])
    np.testing.assert_allclose(prediction.latent.mean, exact.latent.mean, atol=1e-10)
    np.testing.assert_allclose(found.energy, other.energy, rtol=1e-10)


def test_other_numbers_of_levels_and_distinct_inputs_compile_nothing():
    rng = np.random.default_rng(4)
    model = ng.Model(terms.Group("group") + terms.Smooth("x"), "poisson")

    def run(rows, levels):
        groups = np.append(np.arange(levels), rng.integers(0, levels, rows - levels))
        table = {"group": groups.astype(str), "x": np.arange(float(rows)), "y": rng.poisson(3.0, size=rows)}
        result = ng.infer(model, table, "y")
        new = {name: values[:3] for name, values in table.items()}
        return result.predict(new).quantile([0.05, 0.95]), str(result.summary())

    run(60, 9)
    with compilations() as compiled:
        run(41, 16)
        run(64, 12)
    assert not compiled


@given(st.integers(1, 10**7))
def test_classes_are_large_enough_and_not_much_larger(rows):
    for classes, least in ((size_class, 256), (cubic_size_class, 152)):
        size = classes(rows)
        assert rows <= size <= max(least, 1.3 * rows, rows + 128)
        assert classes(size) == size
        assert classes(rows + 1) >= size
    assert rows < 4096 or size_class(rows) <= 1.07 * rows
    if rows > 65536:
        assert size_class(rows) <= rows + rows / 32 and size_class(rows) % 2048 == 1024
    assert rows < 536 or cubic_size_class(rows) < rows + 128


@given(st.integers(1, 10**4))
def test_several_latents_have_smaller_classes(rows):
    for classes, usual, least in ((data_size_class, 160, 32), (cubic_size_class, 152, 40)):
        sizes = [classes(rows, latents) for latents in (1, 2, 3)]
        assert rows <= sizes[1] == sizes[2] <= sizes[0]
        assert sizes[1] == sizes[0] or least <= sizes[1] < usual or usual < rows < 4 * usual
    assert data_size_class(rows, 2) <= max(64, 1.3 * rows, min(rows + 96, 160))
    assert data_size_class(rows, 1) == size_class(rows, 160)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["dense", "sparse"])
def test_three_classes_on_few_rows_are_those_without_filling(prior):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 2)), np.arange(20) % 3
    kernel = kernels.Independent([kernels.Matern52(lengthscale=[1.0, 2.0])] * 3)
    model = ng.Model(ng.GP(kernel) if prior == "dense" else ng.SparseGP(kernel, x[:8]), ng.likelihoods.Softmax(3))
    filled = ng.infer(model, x, y, tol=1e-9)
    with exact_sizes():
        plain = ng.infer(model, x, y, tol=1e-9)
    np.testing.assert_allclose(filled.energy, plain.energy, rtol=1e-9)
    np.testing.assert_allclose(filled.marginals.mean, plain.marginals.mean, rtol=1e-6, atol=1e-8)


def test_filling_repeats_the_last_row():
    rows = np.arange(6.0).reshape(3, 2)
    filled = fill_rows({"x": rows}, 5)["x"]
    np.testing.assert_array_equal(filled[3:], [rows[2], rows[2]])
    np.testing.assert_array_equal(first_rows(filled, 3), rows)
    assert fill_rows(rows, None) is rows and fill_rows(rows, 3) is rows


@pytest.mark.slow
def test_a_subclass_with_a_layout_of_its_own_is_used_with_the_rows_that_are_given():
    class Shifted(ng.GP):
        def layout(self, x):
            return Layout(x + 1.0, None)

    model = ng.Model(Shifted(kernels.Matern32(2.0)), ng.likelihoods.Poisson())
    ours = ng.infer(ng.Model(PRIORS["dense"][0], ng.likelihoods.Poisson()), TIMES, COUNTS)
    np.testing.assert_allclose(ng.infer(model, TIMES, COUNTS).energy, ours.energy, rtol=1e-10)


@pytest.mark.slow
def test_a_prior_of_ones_own_is_used_with_the_rows_that_are_given():
    class Own(ng.LinearModel):
        def size_class(self, rows):
            return rows

    own = ng.infer(ng.Model(Own([10.0, 1.0, 1.0]), ng.likelihoods.Poisson()), DESIGN, COUNTS)
    ours = ng.infer(ng.Model(PRIORS["linear"][0], ng.likelihoods.Poisson()), DESIGN, COUNTS)
    assert_same(ours, own)
