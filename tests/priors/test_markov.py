"""A Markovian GP is the dense GP in another form: everything that can be asked of both has the same answer."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.inference.problem import Order
from newtongp.numerics import kalman
from newtongp.numerics.gaussian import Sites
from newtongp.numerics.kalman import loops, smoother

RNG = np.random.default_rng(12)
N = 23
TIMES = RNG.uniform(0.0, 6.0, N)  # in no order
TIMES[[5, 11, 17]] = TIMES[[2, 2, 8]]  # three rows at one time, two at another
LATENT = np.sin(1.5 * TIMES)
COUNTS = RNG.poisson(np.exp(LATENT)).astype(float)
VALUES = LATENT + 0.4 * RNG.standard_t(3.0, N)
COUNTS[[3, 11]] = VALUES[[3, 11]] = np.nan
NEW = np.array([7.3, 0.4, -0.8, TIMES[2], 3.1, 3.1, TIMES[6], -0.2, 9.0])  # after, between, before and at the data
NEW_COUNTS = np.array([1.0, 2.0, 0.0, 3.0, 1.0, 0.0, 1.0, np.nan, 2.0])

POISSON = ng.likelihoods.Poisson()
STUDENT = ng.likelihoods.StudentT(4.0, 0.4)
MATERN = kernels.Matern32(0.9, 1.3)
MEANS = {1: ng.means.Linear([0.1]), 2: ng.means.Independent([0.2, -0.5])}


def pair(kernel, likelihood, pieces=None):
    """The same model twice, with a prior mean that is not zero."""
    mean = MEANS[kernels.num_latents(kernel)]
    return (
        ng.Model(ng.MarkovGP(kernel, mean=mean, pieces=pieces), likelihood),
        ng.Model(ng.GP(kernel, mean=mean), likelihood),
    )


def same(ours, theirs, tolerance):
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def same_gaussian(ours, theirs, tolerance):
    same(ours.mean, theirs.mean, tolerance)
    same(ours.covariance, theirs.covariance, tolerance)


def same_sites(ours, theirs, tolerance):
    same(ours.linear, theirs.linear, tolerance)
    same(ours.precision, theirs.precision, tolerance)


def assert_same_result(ours, theirs, tolerance=1e-10, new=NEW, new_y=NEW_COUNTS, **row_parameters):
    """How it ended, the posterior at the data and elsewhere, and all that follows from it."""
    assert ours.status is theirs.status
    assert ours.steps == theirs.steps
    same(ours.energy, theirs.energy, tolerance)
    same(ours.history.energy, theirs.history.energy, tolerance)
    same_sites(ours.sites, theirs.sites, tolerance)
    same_gaussian(ours.marginals, theirs.marginals, tolerance)
    same_gaussian(ours.posterior.marginals, theirs.posterior.marginals, tolerance)
    same(ours.posterior.log_normaliser, theirs.posterior.log_normaliser, tolerance)
    same(ours.leave_one_out(), theirs.leave_one_out(), tolerance)
    found, wanted = ours.predict(new, **row_parameters), theirs.predict(new, **row_parameters)
    same_gaussian(found.latent, wanted.latent, tolerance)
    same(found.mean, wanted.mean, tolerance)
    same(found.variance, wanted.variance, tolerance)
    same(ours.log_density(new, new_y, **row_parameters), theirs.log_density(new, new_y, **row_parameters), tolerance)
    same_gaussian(ours.posterior.joint(new[:, None]), theirs.posterior.joint(new[:, None]), tolerance)


# Every kernel with a state space form -----------------------------------------------------------------

KERNELS = {
    "matern 1/2": kernels.Matern12(1.2, 0.8),
    "matern 3/2": MATERN,
    "matern 5/2": kernels.Matern52(1.1, 0.7),
    "matern 7/2": kernels.Matern72(1.4, 0.9),
    "cosine": kernels.Cosine(2.5, 0.6),
    "periodic": kernels.Periodic(2.1, 4.0, 0.8, harmonics=5),
    "quasi-periodic": kernels.Periodic(2.1, 4.0, 0.8, harmonics=5) * kernels.Matern12(3.0),
    "sub-band": kernels.Cosine(2.5) * kernels.Matern32(1.5, 0.7),
    "constant": kernels.Constant(0.7),
    "linear": kernels.Linear(0.2, centre=2.0),
    "white": kernels.White(0.5),
    "brownian": kernels.Brownian(0.6, origin=-1.0),
    "integrated brownian": kernels.IntegratedBrownian(0.05, origin=-1.0),
    "sum": kernels.Matern12(0.7, 0.4) + kernels.Matern32(2.0),
    "scaled": 0.6 * kernels.Matern32(1.3),
    "product": kernels.Matern12(2.0) * kernels.Matern32(1.5),
    "product with a trend": kernels.Linear(0.3, centre=-1.0) * kernels.Matern12(2.0) + 0.5,
    "everything": 0.5 * kernels.Cosine(2.5) * kernels.Matern12(1.5) + kernels.Linear(0.1) + kernels.White(0.2) + 0.3,
}


def slow_unless(names, everyday):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in everyday)) for name in names]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_unless(KERNELS, ["matern 3/2"]))
def test_every_kernel(name):
    ours, theirs = (ng.infer(model, TIMES, COUNTS, ng.VI()) for model in pair(KERNELS[name], POISSON))
    assert ours.status.ok
    # Harmonics beyond the fifth are left out, which is 1e-11 of the variance.
    assert_same_result(ours, theirs, 1e-9 if "periodic" in name else 1e-11)


# Every method ----------------------------------------------------------------------------------------

METHODS = {
    "newton": ng.Newton(),
    "newton heuristic": ng.Newton(safeguard=ng.Heuristic()),
    "newton riemannian": ng.Newton(safeguard=ng.Riemannian()),
    "gauss-newton": ng.Newton(curvature=ng.GaussNewton()),
    "quasi-newton": ng.Newton(curvature=ng.QuasiNewton()),
    "taylor": ng.Taylor(),
    "vi": ng.VI(),
    "vi heuristic": ng.VI(safeguard=ng.Heuristic()),
    "vi riemannian": ng.VI(safeguard=ng.Riemannian()),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "vi quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "ep": ng.PowerEP(1.0),
    "power ep": ng.PowerEP(0.5),
    "power ep heuristic": ng.PowerEP(0.5, safeguard=ng.Heuristic()),
    "power ep riemannian": ng.PowerEP(0.5, safeguard=ng.Riemannian()),
    "power ep quasi-newton": ng.PowerEP(0.5, curvature=ng.QuasiNewton()),
    "pl": ng.PosteriorLinearisation(),
    "pl regression": ng.PosteriorLinearisation(slope="regression"),
    "pl unscented": ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.Unscented(3)),
    "pl quasi-newton": ng.PosteriorLinearisation(curvature=ng.QuasiNewton()),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 heuristic": ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic()),
    "pl2 riemannian": ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian()),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
    "pl2 quasi-newton": ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton()),
    "first-order vi": ng.FirstOrderVI(),
}


def data_for(method):
    """Student-t makes sites negative, but is a Gaussian to methods that see its mean and covariance alone."""
    if method.startswith("pl2"):
        return ng.likelihoods.Bernoulli(), np.minimum(COUNTS, 1.0)
    return (POISSON, COUNTS) if method.startswith(("taylor", "pl")) else (STUDENT, VALUES)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:leave_one_out of a run that has not converged")
@pytest.mark.parametrize("name", slow_unless(METHODS, ["newton", "power ep", "pl2 heuristic", "first-order vi"]))
def test_every_method(name):
    likelihood, y = data_for(name)
    # BFGS remembers every step, and what rounding did to it.
    steps, tolerance = (12, 1e-6) if "quasi" in name else (30, 1e-10)
    ours, theirs = (
        ng.infer(model, TIMES, y, METHODS[name], max_steps=steps, throw=False) for model in pair(MATERN, likelihood)
    )
    assert ours.steps > 0
    if name == "newton":
        assert np.min(ours.sites.precision) < -0.5
    assert_same_result(ours, theirs, tolerance, new_y=np.minimum(NEW_COUNTS, 1.0))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", slow_unless(["newton", "vi", "ep", "pl", "vi quasi-newton", "first-order vi"], ["newton"])
)
def test_the_sites_are_the_same_step_by_step(name):
    likelihood, y = data_for(name)
    runs = [ng.iterate(model, TIMES, y, METHODS[name]) for model in pair(MATERN, likelihood)]
    for ours, theirs in itertools.islice(zip(*runs, strict=True), 5):
        same_sites(ours.sites, theirs.sites, 1e-10)
        same(ours.energy, theirs.energy, 1e-10)
        assert ours.step_size == theirs.step_size


# Every kind of data ------------------------------------------------------------------------------------


@pytest.mark.cases(thorough=["equally spaced", "sorted", "many missing", "one time", "close together"], others="slow")
@pytest.mark.parametrize(
    "kind", ["sorted", "equally spaced", "many missing", "one time", "far apart", "close together"]
)
def test_inputs_of_every_kind(kind):
    times, counts = TIMES.copy(), COUNTS.copy()
    if kind == "sorted":
        times = np.sort(times)
    if kind == "equally spaced":
        times = np.arange(N, dtype=float)
    if kind == "many missing":
        counts[RNG.permutation(N)[: N - 4]] = np.nan
    if kind == "one time":
        times[:] = 2.5
    if kind == "far apart":
        times = 12.0 * times
    if kind == "close together":
        times = 1e-5 * times
    ours, theirs = (ng.infer(model, times, counts, ng.VI()) for model in pair(MATERN, POISSON))
    assert ours.status.ok
    assert_same_result(ours, theirs, 1e-8 if kind == "close together" else 1e-11, new=np.append(times[:4], NEW[:5]))


@pytest.mark.slow
def test_the_order_of_the_rows_does_not_matter():
    order = RNG.permutation(N)
    model = pair(MATERN, POISSON)[0]
    first, second = ng.infer(model, TIMES, COUNTS), ng.infer(model, TIMES[order], COUNTS[order])
    same_gaussian(jax.tree.map(lambda leaf: leaf[order], first.marginals), second.marginals, 1e-12)
    same(first.leave_one_out()[order], second.leave_one_out(), 1e-12)
    same_gaussian(first.predict(NEW).latent, second.predict(NEW).latent, 1e-12)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("mean", [None, 1.2], ids=["zero", "constant"])
def test_other_means(mean):
    ours, theirs = (
        ng.infer(ng.Model(prior(MATERN, mean=mean), POISSON), TIMES, COUNTS) for prior in (ng.MarkovGP, ng.GP)
    )
    assert_same_result(ours, theirs, 1e-11)


@pytest.mark.thorough
@pytest.mark.slow
def test_parameters_of_every_row():
    exposure = np.linspace(0.5, 2.0, N)
    models = pair(MATERN, ng.likelihoods.Poisson(exposure=exposure))
    ours, theirs = (ng.infer(model, TIMES, COUNTS, ng.VI()) for model in models)
    assert_same_result(ours, theirs, 1e-11, exposure=np.linspace(1.0, 3.0, NEW.size))


# Several latents ---------------------------------------------------------------------------------------


class Heteroscedastic(ng.Likelihood):
    """N(y | f₁, softplus(f₂)²): exact sites are indefinite."""

    num_latents = 2
    gaussian_form = True

    def log_prob(self, y, f):
        scale = jax.nn.softplus(f[1])
        return -0.5 * jnp.log(2.0 * jnp.pi) - jnp.log(scale) - 0.5 * ((y - f[0]) / scale) ** 2

    def mean(self, f):
        return f[0]

    def covariance(self, f):
        return jax.nn.softplus(f[1]) ** 2


TWO = kernels.Independent([kernels.Matern32(1.0), kernels.Matern32(1.0)])
RULE = ng.cubature.GaussHermite(8)


def motorcycle():
    """Some rows of the motorcycle data, standardised, in no order."""
    x, y = ((column - column.mean()) / column.std() for column in ng.datasets.motorcycle())
    rows = np.random.default_rng(1).choice(x.size, N, replace=False)
    return x[rows], y[rows]


def in_order(prior, x, sites):
    """The inputs of a prior's workspace and sites in its order, and the way back to rows."""
    place = prior.layout(x[:, None])
    order = Order.of(place.rows, x.size)
    return place.inputs, order.sites(sites), order


@jax.jit
def conditioned(prior, inputs, sites):
    return prior.prepare(inputs).marginals(sites)


def condition(prior, x, sites, function=conditioned):
    """Marginals in the order of the rows, and the numbers, as one step of inference has them."""
    with jax.enable_x64(True):
        inputs, placed, order = in_order(prior, x, sites)
        found = jax.tree.map(np.asarray, function(prior, inputs, placed))
    return order.rows(found.marginals), float(found.distance), float(found.log_det), bool(found.proper)


def assert_same_conditioning(ours, theirs, tolerance):
    assert ours[3] == theirs[3]
    if theirs[3]:
        same_gaussian(ours[0], theirs[0], tolerance)
        same(ours[1:3], theirs[1:3], tolerance)


@jax.jit
def shrinkage(prior, inputs, sites):
    """1 / (1 + w s) of every scalar site, as the filter meets it."""
    workspace = prior.prepare(inputs)
    steps = smoother.steps_of(workspace.chain, sites.precision, sites.centred_linear(workspace.mean))
    _, filtered = smoother.run_filter(workspace.chain, steps, None)
    return jnp.stack([update.shrink for update in filtered.updates])


@pytest.mark.thorough
@pytest.mark.slow
def test_exact_variational_inference_passes_through_indefinite_filtered_covariances():
    x, y = motorcycle()
    models = pair(TWO, Heteroscedastic())
    prior = models[0].prior
    runs = [ng.iterate(model, x, y, ng.VI(cubature=RULE), ng.Backtracking()) for model in models]
    crossings = 0
    for ours, theirs in itertools.islice(zip(*runs, strict=True), 8):
        same_sites(ours.sites, theirs.sites, 1e-9)
        same(ours.energy, theirs.energy, 1e-10)
        # Accepted steps have proper posteriors. The filter's own covariances need not be.
        found, wanted = (condition(model.prior, x, ours.sites) for model in models)
        assert wanted[3]
        assert_same_conditioning(found, wanted, 1e-9)
        with jax.enable_x64(True):
            crossings += float(np.min(np.asarray(shrinkage(prior, *in_order(prior, x, ours.sites)[:2])))) < 0.0
    assert crossings >= 2


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", ["vi", "ep", "vi heuristic", "pl"])
def test_two_latents(method):
    x, y = motorcycle()
    y[[2, 9]] = np.nan
    x[5] = x[4]
    chosen = {
        "vi": ng.VI(cubature=RULE),
        "ep": ng.PowerEP(1.0, cubature=RULE),
        "vi heuristic": ng.VI(safeguard=ng.Heuristic(), cubature=RULE),
        "pl": ng.PosteriorLinearisation(cubature=RULE),
    }[method]
    ours, theirs = (
        ng.infer(model, x, y, chosen, max_steps=60, throw=False)
        for model in pair(kernels.Independent([kernels.Matern12(2.0), MATERN]), Heteroscedastic())
    )
    assert_same_result(ours, theirs, 1e-7, new=np.linspace(-3.0, 3.0, 9)[::-1], new_y=np.linspace(-1.0, 1.0, 9))


def indefinite_sites(latents, shift, rng, count=N):
    """Random sites, of which some are negative."""
    root = rng.normal(size=(count, latents, latents))
    precision = root @ np.swapaxes(root, 1, 2) - shift * np.eye(latents)
    return Sites(rng.normal(size=(count, latents)), precision)


@pytest.mark.slow
@pytest.mark.thorough
def test_improper_posteriors_are_called_so():
    rng = np.random.default_rng(3)
    outcomes = set()
    for shift in np.linspace(0.0, 1.5, 16):
        sites = indefinite_sites(2, shift, rng)
        ours, theirs = (condition(model.prior, TIMES, sites) for model in pair(TWO, Heteroscedastic()))
        assert_same_conditioning(ours, theirs, 1e-8)
        outcomes.add(theirs[3])
    assert outcomes == {True, False}


@pytest.mark.thorough
@pytest.mark.slow
def test_full_steps_end_with_the_same_improper_posterior():
    x, y = motorcycle()
    ours, theirs = (
        ng.infer(model, x, y, ng.VI(cubature=RULE), ng.Constant(1.0), throw=False)
        for model in pair(TWO, Heteroscedastic())
    )
    assert ours.status is theirs.status is ng.Status.IMPROPER_POSTERIOR
    assert ours.steps == theirs.steps
    same_gaussian(ours.marginals, theirs.marginals, 1e-8)


# Pieces ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(N, marks=pytest.mark.slow), 5])
def test_pieces_change_nothing(count):
    """Whether or not the rows fill them, and whether or not there are as many."""
    rng = np.random.default_rng(4)
    for shift in (0.0, 0.3):
        sites = indefinite_sites(1, shift, rng, count)
        whole, *cut = (condition(ng.MarkovGP(MATERN, mean=0.4, pieces=k), TIMES[:count], sites) for k in (1, 4, 16))
        assert whole[3]
        for each in cut:
            assert_same_conditioning(each, whole, 1e-11)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("pieces", [4, 16])
@pytest.mark.parametrize(
    "kernel", [kernels.Matern12(1.0), kernels.Matern52(1.3), KERNELS["sum"], KERNELS["periodic"], TWO]
)
def test_pieces_change_nothing_for_any_kernel(kernel, pieces):
    rng = np.random.default_rng(4)
    latents = kernels.num_latents(kernel)
    for shift in (0.0, 0.1):
        sites = indefinite_sites(latents, shift, rng)
        whole, cut = (condition(ng.MarkovGP(kernel, pieces=k), TIMES, sites) for k in (1, pieces))
        assert_same_conditioning(cut, whole, 1e-9)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 4])
def test_plain_loops_change_nothing(pieces, monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # what others have compiled is left alone
    sites = indefinite_sites(1, 0.2, np.random.default_rng(5))
    prior = ng.MarkovGP(MATERN, pieces=pieces)
    marked = condition(prior, TIMES, sites)
    with kalman.plain_loops():
        assert not loops.compiles_whole()
        afresh = jax.jit(lambda *args: conditioned.__wrapped__(*args))
        plain = condition(prior, TIMES, sites, afresh)
    assert marked[3]
    assert_same_conditioning(plain, marked, 1e-11)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("pieces", [4, 16])
def test_inference_in_pieces(pieces):
    ours, theirs = (ng.infer(model, TIMES, COUNTS, ng.VI()) for model in pair(MATERN, POISSON, pieces=pieces))
    assert_same_result(ours, theirs, 1e-11)
    whole = ng.infer(pair(MATERN, POISSON)[0], TIMES, COUNTS, ng.VI())
    same(ours.one_step_ahead(), whole.one_step_ahead(), 1e-11)


# Draws ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["matern 3/2", "everything"])
def test_draws_have_the_moments_of_the_joint_distribution(name):
    result = ng.infer(pair(KERNELS[name], POISSON)[0], TIMES, COUNTS, ng.VI())
    count = 20_000
    draws = result.sample(0, NEW, count)
    assert draws.shape == (count, NEW.size, 1)
    # 3.1 is asked for twice, and is between the data; TIMES[2] is where three rows are.
    np.testing.assert_array_equal(draws[:, 4], draws[:, 5])
    joint = result.posterior.joint(NEW[:, None])
    spread = np.sqrt(np.diag(joint.covariance))
    assert np.all(np.abs(draws[:, :, 0].mean(axis=0) - joint.mean) < 5.0 * spread / np.sqrt(count))
    off = np.cov(draws[:, :, 0].T) - joint.covariance
    assert np.all(np.abs(off) < 5.0 * np.sqrt(2.0 / count) * np.outer(spread, spread))


@pytest.mark.thorough
@pytest.mark.slow
def test_draws_of_two_latents_have_the_moments_of_the_joint_distribution():
    x, y = motorcycle()
    result = ng.infer(pair(TWO, Heteroscedastic())[0], x, y, ng.VI(cubature=RULE), max_steps=60)
    draws = result.sample(0, NEW[:5], 20_000)
    joint = result.posterior.joint(NEW[:5, None])
    spread = np.sqrt(np.diag(joint.covariance))
    flat = draws.reshape(20_000, 10)
    assert np.all(np.abs(flat.mean(axis=0) - joint.mean) < 5.0 * spread / np.sqrt(20_000))
    assert np.all(np.abs(np.cov(flat.T) - joint.covariance) < 0.05 * np.outer(spread, spread))


# Time stamps ---------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
def test_time_stamps_are_numbers_of_days():
    hours = np.round(24.0 * TIMES).astype(int)
    stamps = np.datetime64("2024-03-01T00") + hours * np.timedelta64(1, "h")
    days = hours / 24.0 + (np.datetime64("2024-03-01") - np.datetime64("2000-01-01")) / np.timedelta64(1, "D")
    new = np.datetime64("2024-03-04T12") + np.arange(3) * np.timedelta64(30, "m")
    number = (new - np.datetime64("2000-01-01T00")) / np.timedelta64(1, "D")
    wanted = ng.infer(ng.Model(ng.MarkovGP(MATERN), POISSON), days, COUNTS)
    model = ng.Model(ng.MarkovGP(MATERN, unit="D"), POISSON)
    for given in (stamps, pd.DatetimeIndex(stamps), pd.Series(stamps), days):
        found = ng.infer(model, given, COUNTS)
        same_gaussian(found.marginals, wanted.marginals, 0.0)
        there = number if given is days else pd.DatetimeIndex(new)
        same_gaussian(found.predict(there).latent, wanted.predict(number).latent, 1e-15)
    near = ng.Model(ng.MarkovGP(MATERN, unit="D", origin="2024-03-01"), POISSON)
    same_gaussian(ng.infer(near, stamps, COUNTS).marginals, wanted.marginals, 1e-9)


# What cannot be ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ng.MarkovGP(kernels.RationalQuadratic()),
            "RationalQuadratic has no state space form: use it with `GP`",
        ),
        (lambda: ng.MarkovGP(MATERN + kernels.RationalQuadratic()), "has no state space form"),
        (lambda: ng.MarkovGP(MATERN.on(1)), "a state space form has one column of x"),
        (lambda: ng.MarkovGP(kernels.Matern32([1.0, 2.0])), "lengthscale has length 2"),
        (lambda: ng.MarkovGP(MATERN, pieces=0), "pieces must be an integer from 1 to 65536, or None"),
        (lambda: ng.StateSpaceModel([[0.9]], [[1.0]], [[1.0]], pieces=0), "pieces must be an integer from 1 to 65536"),
        (lambda: ng.MarkovGP(MATERN, pieces=True), "pieces must be an integer from 1 to 65536, or None"),
        (lambda: ng.MarkovGP(MATERN, unit="month"), "unit must be"),
        (lambda: ng.MarkovGP(MATERN, origin="2020-01-01"), "origin needs the unit of time"),
        (lambda: ng.Model(ng.MarkovGP(TWO), POISSON), "has 1 latent"),
    ],
)
def test_priors_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


STAMPS = np.datetime64("2024-03-01") + np.arange(3) * np.timedelta64(1, "D")


@pytest.mark.parametrize(
    ("kernel", "x", "message"),
    [
        (MATERN, np.zeros((3, 2)), "MarkovGP works on one column of x, the time, but x has 2: use GP"),
        (MATERN, STAMPS, 'state the unit of the lengthscales, as in MarkovGP\\(kernel, unit="D"\\)'),
        (MATERN, [0.0, np.nan, 1.0], "x must be finite, but row 1"),
        (kernels.Brownian(origin=1.0), [2.0, 0.5, 3.0], "Brownian starts at its origin, 1, but x has the value 0.5"),
    ],
)
def test_inputs_that_cannot_be(kernel, x, message):
    with pytest.raises(ValueError, match=message):
        ng.infer(ng.Model(ng.MarkovGP(kernel), POISSON), x, [1, 2, 0])


@pytest.mark.slow
def test_predictions_before_the_origin_are_refused():
    result = ng.infer(ng.Model(ng.MarkovGP(KERNELS["brownian"]), POISSON), TIMES, COUNTS)
    with pytest.raises(ValueError, match="starts at its origin"):
        result.predict([-2.0])


# Rows left out, and rows to come ---------------------------------------------------------------------------


def gaussian_evidence(gram, y):
    """log N(y | 0, gram)."""
    return -0.5 * (np.linalg.slogdet(2.0 * np.pi * gram)[1] + y @ np.linalg.solve(gram, y))


def noisy_gram(x, noise):
    s = np.sqrt(3.0) * np.abs(x[:, None] - x[None, :]) / 0.9
    return 1.3 * (1.0 + s) * np.exp(-s) + noise * np.eye(x.size)


def gaussian_results():
    noise = 0.3
    models = pair(MATERN, ng.likelihoods.Gaussian(noise))
    return noise, [ng.infer(model, TIMES, VALUES, ng.VI(), ng.Constant(1.0)) for model in models]


@pytest.mark.thorough
@pytest.mark.slow
def test_one_step_ahead_adds_up_to_the_evidence():
    noise, (ours, theirs) = gaussian_results()
    seen = ~np.isnan(VALUES)
    x, y = TIMES[seen], VALUES[seen] - 0.1 * TIMES[seen]
    evidence = gaussian_evidence(noisy_gram(x, noise), y)
    found = ours.one_step_ahead()
    np.testing.assert_array_equal(np.isnan(found), ~seen)
    assert np.nansum(found) == pytest.approx(evidence, abs=1e-10)
    assert -ours.energy == pytest.approx(evidence, abs=1e-10)
    # One after the other, rows at the same time in the order of the data.
    order = np.argsort(x, kind="stable")
    totals = [gaussian_evidence(noisy_gram(x[order[:k]], noise), y[order[:k]]) for k in range(1, order.size + 1)]
    same(found[seen][order], np.diff(totals, prepend=0.0), 1e-10)
    with pytest.raises(
        ValueError, match="one_step_ahead needs a prior in time, MarkovGP, StateSpaceModel or SpaceTimeGP, got GP"
    ):
        theirs.one_step_ahead()


def test_leave_one_out_is_the_evidence_without_the_row():
    noise, results = gaussian_results()
    seen = ~np.isnan(VALUES)
    x, y = TIMES[seen], VALUES[seen] - 0.1 * TIMES[seen]
    whole = gaussian_evidence(noisy_gram(x, noise), y)
    without = [gaussian_evidence(noisy_gram(np.delete(x, k), noise), np.delete(y, k)) for k in range(x.size)]
    for result in results:
        found = result.leave_one_out()
        np.testing.assert_array_equal(np.isnan(found), ~seen)
        same(found[seen], whole - np.array(without), 1e-10)


# Derivatives -------------------------------------------------------------------------------------------------

WEIGHTS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 2, 2))


def number(prior, inputs, sites, rows):
    """One number that depends on everything that conditioning gives."""
    found = prior.prepare(inputs).marginals(sites)
    latents = sites.linear.shape[1]
    mean = jnp.sum(found.marginals.mean[rows] * WEIGHTS[0][:, :latents])
    covariance = jnp.sum(found.marginals.covariance[rows] * WEIGHTS[1][:, :latents, :latents])
    return found.distance + found.log_det + mean + covariance


def positions(prior, x):
    """Where every row is."""
    place = prior.layout(x[:, None])
    rows = np.arange(x.size) if place.rows is None else np.argsort(place.rows)[-x.size :]
    return jax.tree.map(jnp.asarray, place.inputs), rows


def spread_out(sites, rows, length):
    """Sites of rows → of positions."""
    latents = sites.linear.shape[1]
    return Sites(
        jnp.zeros((length, latents)).at[rows].set(sites.linear),
        jnp.zeros((length, latents, latents)).at[rows].set(sites.precision),
    )


def derivatives(make, parameters, sites, length):
    """`number` as a function of a kernel's parameters, and its derivatives in those and in the sites."""
    inputs, rows = positions(make(parameters), TIMES)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def both(parameters, sites):
        return number(make(parameters), inputs, spread_out(sites, rows, length), rows)

    return lambda parameters: both(parameters, sites)[0], both(parameters, sites)[1]


def central_differences(value, parameters, step=1e-5):
    found = []
    for k in range(parameters.size):
        move = step * np.eye(parameters.size)[k]
        found.append((float(value(parameters + move)) - float(value(parameters - move))) / (2.0 * step))
    return np.array(found)


def markov_of(kernel, pieces, parameters):
    return ng.MarkovGP(kernel(parameters), mean=0.2, pieces=pieces)


def kernel_of(parameters):
    return kernels.Matern32(parameters[0], parameters[1])


def sum_of(parameters):
    return kernels.Matern12(parameters[0]) + parameters[1] * kernels.Cosine(2.5) * kernels.Matern12(parameters[2])


@pytest.mark.cases(thorough=["kernel_of-parameters0", "kernel_of-parameters0", "sum_of-parameters1"], others="slow")
@pytest.mark.parametrize(
    ("kernel", "parameters"),
    [(kernel_of, [0.9, 1.3]), pytest.param(sum_of, [0.9, 1.3, 2.0], marks=pytest.mark.slow)],
)
def test_derivatives_in_hyperparameters_and_sites(kernel, parameters):
    parameters = np.array(parameters)
    sites = indefinite_sites(1, 0.2, np.random.default_rng(6))
    with jax.enable_x64(True):
        _, wanted = derivatives(lambda p: ng.GP(kernel(p), mean=0.2), parameters, sites, N)
        for pieces in (1, 4):
            length = -(-N // pieces) * pieces
            value, found = derivatives(functools.partial(markov_of, kernel, pieces), parameters, sites, length)
            differences = central_differences(value, parameters)
            scale = np.max(np.abs(differences))
            np.testing.assert_allclose(found[0], differences, rtol=1e-6, atol=1e-6 * scale)
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-8, atol=1e-8 * scale)
            same_sites(found[1], wanted[1], 1e-8)


SPECIAL = {
    "equal eigenvalues": 0.6 * np.eye(2),
    "no site": np.zeros((2, 2)),
    "a singular site": np.outer([1.0, 2.0], [1.0, 2.0]),
}


@pytest.mark.thorough
@pytest.mark.slow
def test_derivatives_in_the_sites_of_two_latents():
    """Also where eigenvectors have no derivative, but what is made of them has."""
    sites = indefinite_sites(2, 0.1, np.random.default_rng(7))
    with jax.enable_x64(True):
        markov, dense = of_two_latents(ng.MarkovGP), of_two_latents(ng.GP)
        _, found = markov(sites)
        same_sites(found, dense(sites)[1], 1e-8)
        for kind, special in SPECIAL.items():
            sites.precision[::4] = special
            _, found = markov(sites)
            if kind == "equal eigenvalues":
                same_sites(found, dense(sites)[1], 1e-8)
            # Along symmetric directions in the site of one row: a special one and an ordinary one.
            for row, change in itertools.product([4, 5], [np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), 1.0 - np.eye(2)]):
                if kind == "no site" and row == 4 and change[0, 1] != 0.0:
                    continue  # a row without a site has derivatives along the axes only
                move = 1e-5 * np.where((np.arange(N) == row)[:, None, None], change, 0.0)
                ahead, behind = (markov(Sites(sites.linear, sites.precision + each))[0] for each in (move, -move))
                difference = (float(ahead) - float(behind)) / 2e-5
                assert float(np.sum(found.precision[row] * change)) == pytest.approx(difference, rel=1e-6, abs=1e-7)


def of_two_latents(kind):
    """`number` and its derivatives along symmetric changes of the sites."""
    prior = kind(TWO)
    inputs, rows = positions(prior, TIMES)

    @jax.jit
    def both(sites):
        value, slope = jax.value_and_grad(lambda each: number(prior, inputs, spread_out(each, rows, N), rows))(sites)
        return value, Sites(slope.linear, 0.5 * (slope.precision + jnp.swapaxes(slope.precision, 1, 2)))

    return both


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 4])
def test_derivatives_inside_a_loop(pieces):
    """Gradient descent in one program: XLA is particular about loops within loops."""
    sites = indefinite_sites(1, 0.1, np.random.default_rng(8))
    with jax.enable_x64(True):
        prior = ng.MarkovGP(MATERN, pieces=pieces)
        inputs, rows = positions(prior, TIMES)
        length = -(-N // pieces) * pieces

        def value(parameters):
            return number(
                ng.MarkovGP(kernel_of(parameters), pieces=pieces), inputs, spread_out(sites, rows, length), rows
            )

        def descend(_, state):
            energy, slope = jax.value_and_grad(value)(state[0])
            return state[0] - 1e-4 * slope, energy

        start = (jnp.array([0.9, 1.3]), jnp.zeros(()))
        looped = jax.jit(lambda state: jax.lax.fori_loop(0, 3, descend, state))(start)
        state, single = start, jax.jit(descend)
        for _ in range(3):
            state = single(0, state)
    same(looped[0], state[0], 1e-12)
    same(looped[1], state[1], 1e-12)
