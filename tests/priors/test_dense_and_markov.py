"""A Markovian GP is the dense GP in another form: everything that can be asked of both has the same answer."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.numerics import kalman

RNG = np.random.default_rng(3)
N = 40
X = RNG.uniform(0.0, 8.0, N)
X[5], X[10:13] = X[6], X[10]  # repeated inputs, in no order
F = np.sin(X)
EXPOSURE = RNG.uniform(0.5, 2.0, N)
COUNTS = RNG.poisson(EXPOSURE * np.exp(F)).astype(float)
LABELS = (F + 0.5 * RNG.normal(size=N) > 0.0).astype(float)
ROBUST = F + 0.2 * RNG.standard_t(2, N)
for outputs in (COUNTS, LABELS, ROBUST):
    outputs[[3, 20]] = np.nan
X_NEW = np.concatenate([RNG.uniform(-3.0, 12.0, 12), X[:4], X[:1], [100.0]])

LIKELIHOODS = {
    "poisson": (ng.likelihoods.Poisson(exposure=EXPOSURE), COUNTS),
    "bernoulli": (ng.likelihoods.Bernoulli(), LABELS),
    "student": (ng.likelihoods.StudentT(df=3.0, scale=0.2), ROBUST),
}
METHODS = {
    "VI": ng.VI(),
    "Newton": ng.Newton(),
    "EP": ng.PowerEP(1.0),
    "PL": ng.PosteriorLinearisation(),
    "Taylor": ng.Taylor(),
    "variational Gauss-Newton": ng.VI(curvature=ng.GaussNewton()),
    "quasi-Newton": ng.Newton(curvature=ng.QuasiNewton()),
    "heuristic VI": ng.VI(safeguard=ng.Heuristic()),
    "Riemannian VI": ng.VI(safeguard=ng.Riemannian()),
}
CASES = [
    *((method, "poisson") for method in METHODS),
    ("VI", "student"),
    ("Newton", "student"),
    ("EP", "bernoulli"),
]
KERNEL = kernels.Matern32(lengthscale=1.5, variance=1.3)
KERNELS = {
    "Matern12": kernels.Matern12(lengthscale=1.5),
    "Matern52": kernels.Matern52(lengthscale=1.5),
    "Matern72": kernels.Matern72(lengthscale=1.5),
    "sub-band": kernels.Cosine(period=2.0) * kernels.Matern32(lengthscale=3.0),
    "level and cosine": kernels.Constant(0.5) + kernels.Cosine(period=3.0),
    "line": kernels.Linear(variance=0.1, centre=2.0) + kernels.Matern12(),
    "white": kernels.White(0.3) + kernels.Matern32(),
    "Brownian": kernels.Brownian(variance=0.3, origin=-5.0),
    "integrated Brownian": kernels.IntegratedBrownian(variance=0.05, origin=-5.0) + kernels.Constant(1.0),
    "scaled sum": 2.0 * (kernels.Matern32() + 0.5 * kernels.Matern52(lengthscale=3.0)),
    "product": kernels.Matern32(lengthscale=4.0) * kernels.Matern12(lengthscale=2.0),
}
SLOW_KERNELS = {
    "periodic": kernels.Periodic(period=3.0, lengthscale=1.5, harmonics=9),
    "quasi-periodic": kernels.Periodic(period=3.0, lengthscale=1.5, harmonics=9) * kernels.Matern32(lengthscale=5.0),
}


def both(kernel, likelihood, y, method, pieces=4, **settings):
    dense = ng.infer(ng.Model(ng.GP(kernel, mean=0.3), likelihood), X, y, method, **settings)
    markov = ng.infer(ng.Model(ng.MarkovGP(kernel, mean=0.3, pieces=pieces), likelihood), X, y, method, **settings)
    return dense, markov


def assert_same(dense, markov, tol=1e-8, **row_parameters):
    assert (dense.status, dense.steps) == (markov.status, markov.steps)
    assert markov.energy == pytest.approx(dense.energy, abs=tol)
    for found, wanted in ((markov.marginals, dense.marginals), (markov.sites, dense.sites)):
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=tol, atol=tol)
    assert float(markov.posterior.log_normaliser) == pytest.approx(float(dense.posterior.log_normaliser), abs=tol)
    found, wanted = (each.predict(X_NEW, **row_parameters).latent for each in (markov, dense))
    np.testing.assert_allclose(found.mean, wanted.mean, atol=tol)
    np.testing.assert_allclose(found.covariance, wanted.covariance, atol=tol)


@pytest.mark.cases(slow=["Riemannian VI-poisson"], others="thorough")
@pytest.mark.filterwarnings("ignore::newtongp.ConvergenceWarning")
@pytest.mark.parametrize(("method", "name"), CASES)
def test_every_method_gives_the_same_answer(method, name):
    likelihood, y = LIKELIHOODS[name]
    given = {"exposure": 1.0} if name == "poisson" else {}
    dense, markov = both(KERNEL, likelihood, y, METHODS[method], max_steps=30)
    assert_same(dense, markov, **given)
    densities = [each.log_density(X_NEW, np.ones_like(X_NEW), **given) for each in (dense, markov)]
    np.testing.assert_allclose(densities[1], densities[0], atol=1e-8)
    np.testing.assert_allclose(markov.leave_one_out(), dense.leave_one_out(), atol=1e-7)
    if name == "student":
        assert np.min(markov.sites.precision) < -0.1  # indefinite, and no harm done


@pytest.mark.cases(quick=["Brownian"], others="thorough")
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_gives_the_same_answer(name):
    assert_same(*both(KERNELS[name], ng.likelihoods.Bernoulli(), LABELS, None))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_KERNELS)
def test_kernels_with_many_states_give_the_same_answer(name):
    assert_same(*both(SLOW_KERNELS[name], ng.likelihoods.Bernoulli(), LABELS, None, pieces=1))


@pytest.mark.slow
@pytest.mark.thorough
def test_sites_agree_step_by_step_where_they_are_indefinite():
    likelihood, y = LIKELIHOODS["student"]
    priors = (ng.GP(KERNEL), ng.MarkovGP(KERNEL), ng.MarkovGP(KERNEL, pieces=4))
    paths = [list(itertools.islice(ng.iterate(ng.Model(prior, likelihood), X, y, ng.VI()), 8)) for prior in priors]
    for dense, *others in zip(*paths, strict=True):
        for other in others:
            np.testing.assert_allclose(other.sites.precision, dense.sites.precision, rtol=1e-8, atol=1e-8)
            np.testing.assert_allclose(other.sites.linear, dense.sites.linear, rtol=1e-8, atol=1e-8)
            assert other.energy == pytest.approx(dense.energy, abs=1e-8)
    assert np.min(paths[0][-1].sites.precision) < -0.1


def conditioned(prior, precision, linear):
    """The prior's marginals for sites in the order of the rows."""
    with jax.enable_x64(True):
        place = prior.layout(X[:, None])
        workspace = prior.prepare(jax.tree.map(jnp.asarray, place.inputs))
        rows = np.arange(N) if place.rows is None else place.rows
        held = (rows >= 0)[:, None]
        sites = ng.Sites(
            jnp.asarray(np.where(held, linear[rows, None], 0.0)),
            jnp.asarray(np.where(held[:, :, None], precision[rows, None, None], 0.0)),
        )
        found = jax.jit(lambda workspace, sites: workspace.marginals(sites))(workspace, sites)
        position = np.empty(N, dtype=int)
        position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        return found, jax.tree.map(lambda leaf: np.asarray(leaf)[position], found.marginals)


PRIORS = (ng.GP(KERNEL), ng.MarkovGP(KERNEL, pieces=1), ng.MarkovGP(KERNEL, pieces=4))


@pytest.mark.slow
@pytest.mark.thorough
def test_an_indefinite_filtered_covariance_does_no_harm():
    """The first site in time makes the filtered variance negative; those after it make the posterior proper."""
    precision, linear = np.full(N, 5.0), RNG.normal(size=N)
    first = np.argmin(X)
    precision[first] = -2.0
    assert 1.0 + precision[first] * float(KERNEL.variance) < 0.0
    (dense, wanted), *others = (conditioned(prior, precision, linear) for prior in PRIORS)
    assert bool(dense.proper)
    for markov, found in others:
        assert bool(markov.proper)
        np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(found.covariance, wanted.covariance, rtol=1e-9, atol=1e-10)
        assert float(markov.log_det) == pytest.approx(float(dense.log_det), abs=1e-9)
        assert float(markov.distance) == pytest.approx(float(dense.distance), abs=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
def test_both_say_when_a_posterior_is_improper():
    verdicts = set()
    for seed in range(12):
        precision = np.random.default_rng(seed).normal(0.6, 1.5, N)
        said = {bool(conditioned(prior, precision, np.zeros(N))[0].proper) for prior in PRIORS}
        assert len(said) == 1
        verdicts |= said
    for size in (0.01, 3.0):
        said = {bool(conditioned(prior, np.full(N, -size), np.zeros(N))[0].proper) for prior in PRIORS}
        assert said == {size < 0.1}
        verdicts |= said
    assert verdicts == {True, False}


@pytest.mark.thorough
@pytest.mark.slow
def test_pieces_do_not_matter():
    likelihood, y = LIKELIHOODS["student"]
    results = [ng.infer(ng.Model(ng.MarkovGP(KERNEL, pieces=p), likelihood), X, y) for p in (1, 3, 16, 64)]
    with kalman.plain_loops():
        results.append(ng.infer(ng.Model(ng.MarkovGP(KERNEL), likelihood), X, y))
    for other in results[1:]:
        assert other.energy == pytest.approx(results[0].energy, abs=1e-9)
        np.testing.assert_allclose(other.marginals.mean, results[0].marginals.mean, atol=1e-9)
        np.testing.assert_allclose(other.marginals.covariance, results[0].marginals.covariance, atol=1e-9)


@pytest.mark.slow
@pytest.mark.thorough
def test_joint_and_draws():
    likelihood, y = LIKELIHOODS["bernoulli"]
    dense, markov = both(KERNEL, likelihood, y, None)
    wanted, found = (each.posterior.joint(X_NEW[:, None]) for each in (dense, markov))
    np.testing.assert_allclose(found.mean, wanted.mean, atol=1e-10)
    np.testing.assert_allclose(found.covariance, wanted.covariance, atol=1e-10)
    draws = markov.sample(0, X_NEW, 20_000)[:, :, 0]
    spread = np.sqrt(np.diag(found.covariance))
    np.testing.assert_allclose(draws.mean(0), found.mean, atol=5.0 * np.max(spread) / np.sqrt(20_000))
    np.testing.assert_allclose(np.cov(draws.T), found.covariance, atol=0.06)
    np.testing.assert_allclose(draws[:, 12], draws[:, 16], atol=1e-10)  # the same input twice


@pytest.mark.slow
@pytest.mark.thorough
def test_two_latents():
    class Heteroscedastic(ng.Likelihood):
        num_latents = 2

        def log_prob(self, y, f):
            scale = jax.nn.softplus(f[1])
            return -0.5 * ((y - f[0]) / scale) ** 2 - jnp.log(scale)

    kernel = kernels.Independent([kernels.Matern32(lengthscale=1.5), kernels.Matern12(lengthscale=3.0)])
    rule = ng.cubature.GaussHermite(7)
    for method in (ng.VI(cubature=rule), ng.PowerEP(0.5, cubature=rule)):
        dense = ng.infer(ng.Model(ng.GP(kernel), Heteroscedastic()), X, ROBUST, method)
        markov = ng.infer(ng.Model(ng.MarkovGP(kernel), Heteroscedastic()), X, ROBUST, method)
        assert_same(dense, markov, tol=1e-7)


@pytest.mark.slow
@pytest.mark.thorough
def test_log_normaliser_and_its_gradient():
    with jax.enable_x64(True):
        precision, tilt = jnp.asarray(RNG.uniform(0.1, 3.0, N)), jnp.asarray(RNG.normal(size=N))

        def markov(logs, precision, tilt, pieces):
            prior = ng.MarkovGP(kernels.Matern32(*jnp.exp(logs)), pieces=pieces)
            place = prior.layout(np.sort(X)[:, None])
            workspace = prior.prepare(jax.tree.map(jnp.asarray, place.inputs))
            rows = np.arange(N) if place.rows is None else place.rows
            return kalman.log_normaliser(workspace.chain, precision[rows, None, None], tilt[rows, None])

        def dense(logs, precision, tilt):
            prior = ng.GP(kernels.Matern32(*jnp.exp(logs)))
            workspace = prior.prepare(jnp.asarray(np.sort(X)[:, None]))
            sites = ng.Sites(tilt[:, None], precision[:, None, None])
            conditioned = workspace.marginals(sites, True)
            return 0.5 * (jnp.sum(tilt * conditioned.marginals.mean[:, 0]) - conditioned.log_det)

        logs = jnp.array([0.2, 0.1])
        wanted = jax.value_and_grad(dense, argnums=(0, 1, 2))(logs, precision, tilt)
        for pieces in (1, 4):
            found = jax.value_and_grad(markov, argnums=(0, 1, 2))(logs, precision, tilt, pieces)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.thorough
@pytest.mark.slow
def test_one_step_ahead_adds_up_to_the_evidence():
    result = ng.infer(ng.Model(ng.MarkovGP(KERNEL, pieces=4), ng.likelihoods.Gaussian(0.1)), X, ROBUST)
    assert np.nansum(result.one_step_ahead()) == pytest.approx(-result.energy, abs=1e-8)
    dense = ng.infer(ng.Model(ng.GP(KERNEL), ng.likelihoods.Gaussian(0.1)), X, ROBUST)
    with pytest.raises(ValueError, match="prior in time"):
        dense.one_step_ahead()
    without = np.where(np.arange(N) == 7, np.nan, ROBUST)
    left_out = ng.infer(ng.Model(ng.GP(KERNEL), ng.likelihoods.Gaussian(0.1)), X, without)
    assert result.leave_one_out()[7] == pytest.approx(left_out.log_density(X[7:8], ROBUST[7:8])[0], abs=1e-8)


@pytest.mark.slow
def test_time_stamps():
    days = np.array([0, 1, 3, 10, 11])
    stamps = np.datetime64("2020-01-01") + days
    y = [1, 0, 2, 4, 1]
    model = ng.Model(ng.MarkovGP(KERNEL, unit="D", origin="2020-01-01"), ng.likelihoods.Poisson())
    plain = ng.Model(ng.MarkovGP(KERNEL), ng.likelihoods.Poisson())
    found, wanted = ng.infer(model, stamps, y), ng.infer(plain, days, y)
    np.testing.assert_allclose(found.marginals.mean, wanted.marginals.mean, rtol=1e-12)
    later = found.predict(np.array(["2020-01-20"], dtype="datetime64[D]")).mean
    np.testing.assert_allclose(later, wanted.predict([19.0]).mean, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ng.MarkovGP(KERNEL, pieces=0), "pieces must be"),
        (lambda: ng.MarkovGP(kernels.RationalQuadratic()), "state space form"),
        (
            lambda: ng.infer(ng.Model(ng.MarkovGP(KERNEL), ng.likelihoods.Poisson()), np.ones((3, 2)), [1, 2, 3]),
            "one column",
        ),
        (
            lambda: ng.infer(
                ng.Model(ng.MarkovGP(KERNEL), ng.likelihoods.Poisson()), np.array(["2020-01-01"], "datetime64[D]"), [1]
            ),
            "unit",
        ),
        (lambda: ng.filter_sweep(ng.Model(ng.GP(KERNEL), ng.likelihoods.Poisson()), [0.0], [1]), "prior in time"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
@pytest.mark.thorough
def test_a_state_space_model_is_the_same_process_on_a_grid():
    step, rate = 0.3, np.sqrt(3.0) / 1.5
    A = np.exp(-rate * step) * np.array([[1 + rate * step, step], [-(rate**2) * step, 1 - rate * step]])
    P = np.diag([1.3, 1.3 * rate**2])
    steps, y = np.array([5, 0, 1, 2, 2, 7, 9, 3, 12]), np.array([2.0, 1, 0, 3, np.nan, 4, 2, 1, 0])
    grid = ng.Model(
        ng.StateSpaceModel(A, P - A @ P @ A.T, [1.0, 0.0], None, P, observation_offset=0.2), ng.likelihoods.Poisson()
    )
    continuous = ng.Model(ng.MarkovGP(KERNEL, mean=0.2), ng.likelihoods.Poisson())
    found, wanted = ng.infer(grid, steps, y), ng.infer(continuous, step * steps, y)
    assert found.energy == pytest.approx(wanted.energy, abs=1e-9)
    asked = np.array([0, 4, 20, 3, 3, 13, 8])
    one, other = found.predict(asked).latent, wanted.predict(step * asked).latent
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-10)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-10)
    joints = [found.posterior.joint(asked[:, None]), wanted.posterior.joint(step * asked[:, None])]
    np.testing.assert_allclose(joints[0].covariance, joints[1].covariance, atol=1e-10)
    np.testing.assert_allclose(found.one_step_ahead(), wanted.one_step_ahead(), atol=1e-9)
    with pytest.raises(ValueError, match="integers from 0"):
        ng.infer(grid, [0.5], [1])
    with pytest.raises(ValueError, match="positive semi-definite"):
        ng.StateSpaceModel(A, -P, [1.0, 0.0])
