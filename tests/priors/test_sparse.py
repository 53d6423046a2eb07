"""The sparse prior against its definition, and against the dense GP where both are the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.kernels import inducing
from newtongp.numerics.gaussian import Sites
from newtongp.priors import sparse, weight_space
from newtongp.priors.sparse import SparseGP

RNG = np.random.default_rng(5)
N = 23
X = RNG.uniform(0.0, 6.0, N)
LATENT = np.sin(1.5 * X)
COUNTS = RNG.poisson(np.exp(LATENT)).astype(float)
VALUES = LATENT + 0.4 * RNG.standard_t(3.0, N)
COUNTS[[3, 11]] = VALUES[[3, 11]] = np.nan
NEW = np.array([7.3, 0.4, -0.8, X[2], 3.1, 3.1, X[6], 9.0])
FEW = np.linspace(0.3, 5.5, 6)

POISSON = ng.likelihoods.Poisson()
STUDENT = ng.likelihoods.StudentT(4.0, 0.4)
MATERN = kernels.Matern32(0.9, 1.3)


def slow_unless(names, everyday):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in everyday)) for name in names]


def same(ours, theirs, tolerance):
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def same_gaussian(ours, theirs, tolerance):
    same(ours.mean, theirs.mean, tolerance)
    same(ours.covariance, theirs.covariance, tolerance)


# With all rows as inducing inputs it is the dense GP ------------------------------------------------

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
    "pl quasi-newton": ng.PosteriorLinearisation(curvature=ng.QuasiNewton()),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 heuristic": ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic()),
    "pl2 riemannian": ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian()),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
    "pl2 quasi-newton": ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton()),
    "first-order vi": ng.FirstOrderVI(),
}


def data_for(method):
    """Student-t makes sites negative, but is a Gaussian to methods that see its mean and covariance alone.

    With lapses Bernoulli is not log-concave, so that the dense GP expects PL2's negative sites.
    """
    if method.startswith("pl2"):
        return ng.likelihoods.Bernoulli("probit", lapse=0.01), np.minimum(COUNTS, 1.0)
    return (POISSON, COUNTS) if method.startswith(("taylor", "pl")) else (STUDENT, VALUES)


def pair(likelihood, inputs=X):
    return ng.Model(SparseGP(MATERN, inputs, mean=0.3), likelihood), ng.Model(ng.GP(MATERN, mean=0.3), likelihood)


@pytest.mark.cases(others="thorough")
@pytest.mark.filterwarnings("ignore:leave_one_out of a run that has not converged")
@pytest.mark.parametrize("name", slow_unless(METHODS, ["newton", "power ep", "pl", "vi quasi-newton"]))
def test_every_method_is_that_of_the_dense_gp(name):
    likelihood, y = data_for(name)
    # BFGS remembers every step, and what rounding did to it.
    steps, tolerance = (12, 1e-6) if "quasi" in name else (30, 1e-8)
    ours, theirs = (ng.infer(model, X, y, METHODS[name], max_steps=steps, throw=False) for model in pair(likelihood))
    assert ours.steps == theirs.steps > 0 and ours.status is theirs.status
    if name == "newton":
        assert np.min(ours.sites.precision) < -0.2
    same(ours.energy, theirs.energy, tolerance)
    same(ours.history.energy, theirs.history.energy, tolerance)
    same(ours.sites.linear, theirs.sites.linear, tolerance)
    same(ours.sites.precision, theirs.sites.precision, tolerance)
    same_gaussian(ours.marginals, theirs.marginals, tolerance)
    same_gaussian(ours.site_marginals, theirs.site_marginals, tolerance)
    same_gaussian(ours.posterior.marginals, theirs.posterior.marginals, tolerance)
    same(ours.posterior.log_normaliser, theirs.posterior.log_normaliser, tolerance)
    same(ours.leave_one_out(), theirs.leave_one_out(), tolerance)
    same_gaussian(ours.predict(NEW).latent, theirs.predict(NEW).latent, tolerance)
    same_gaussian(ours.posterior.joint(NEW[:, None]), theirs.posterior.joint(NEW[:, None]), tolerance)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_unless(METHODS, ["newton", "power ep"]))
def test_every_method_is_that_of_the_dense_gp_step_by_step(name):
    likelihood, y = data_for(name)
    runs = [ng.iterate(model, X, y, METHODS[name]) for model in pair(likelihood)]
    count = 0
    for ours, theirs in itertools.islice(zip(*runs, strict=True), 5):
        same(ours.sites.linear, theirs.sites.linear, 1e-8)
        same(ours.sites.precision, theirs.sites.precision, 1e-8)
        same(ours.energy, theirs.energy, 1e-8)
        same_gaussian(ours.posterior.marginals, theirs.posterior.marginals, 1e-8)
        assert ours.step_size == theirs.step_size
        count += 1
    assert count == 5


# With fewer, its definition -------------------------------------------------------------------------


def sites_of(kind, n, d):
    """Random sites: PSD, singular, missing rows, or indefinite but with a proper posterior."""
    linear = RNG.normal(size=(n, d))
    root = RNG.normal(size=(n, d, d))
    precision = root @ np.swapaxes(root, 1, 2)
    if kind == "missing":
        linear[::2], precision[::2] = 0.0, 0.0
    if kind == "singular":
        precision = root[:, :, :1] @ np.swapaxes(root[:, :, :1], 1, 2)
    if kind == "indefinite":
        precision[::3] = -0.1 * np.eye(d) + 0.05 * root[::3][:, :, :1] @ np.swapaxes(root[::3][:, :, :1], 1, 2)
    return Sites(linear, precision)


TWO = kernels.Independent([kernels.Matern32(1.0, 1.5), kernels.RBF(0.7, 0.5)])


def grams_of(prior, x1, x2):
    with jax.enable_x64(True):
        each = kernels.latent_kernels(prior.kernel)
        return [np.asarray(kernels.gram(k, a, b)) for k, a, b in zip(each, x1, x2, strict=True)]


def definition(prior, x, inputs, sites):
    """The mean and covariance of g over (row, latent) pairs, Var e, and log ∫ p ∏ t, with plain inverses."""
    n, d = sites.linear.shape
    covariance, extra, features = np.zeros((n * d, n * d)), np.zeros((n, d, d)), np.zeros((n * d, n * d))
    for k, (across, within, own) in enumerate(
        zip(
            grams_of(prior, [x] * d, inputs),
            grams_of(prior, inputs, inputs),
            grams_of(prior, [x] * d, [x] * d),
            strict=True,
        )
    ):
        projected = across @ np.linalg.inv(within) @ across.T
        covariance[k::d, k::d] = projected
        extra[:, k, k] = np.diag(own - projected)
    precision = np.zeros_like(features)
    for i in range(n):
        precision[i * d : (i + 1) * d, i * d : (i + 1) * d] = sites.precision[i]
    with jax.enable_x64(True):
        mean = np.asarray(prior.mean.means(jnp.asarray(x))).reshape(-1)
    matrix = np.eye(n * d) + precision @ covariance
    posterior = covariance @ np.linalg.inv(matrix)
    tilt = sites.linear.reshape(-1) - precision @ mean
    linear = sites.linear.reshape(-1)
    sign, log_det = np.linalg.slogdet(matrix)
    assert sign > 0
    log_z = -0.5 * log_det + linear @ mean - 0.5 * mean @ precision @ mean + 0.5 * tilt @ posterior @ tilt
    return mean + posterior @ tilt, posterior, extra, log_z


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("kind", ["psd", "missing", "singular", "indefinite"])
@pytest.mark.parametrize("inputs", ["one latent", "shared", "own"])
def test_conditioning_is_what_the_definition_says(kind, inputs):
    n = 9
    x = RNG.uniform(0.0, 4.0, (n, 1))
    x[4:6] = x[2]
    latents = 1 if inputs == "one latent" else 2
    given = {"one latent": FEW[:4], "shared": FEW[:4], "own": [FEW[:4], FEW[:3] + 0.1]}[inputs]
    prior = SparseGP(
        kernels.Independent(TWO.kernels[:latents]), given, mean=ng.means.Independent([0.4, -1.0][:latents])
    )
    sites = sites_of(kind, n, latents)
    place = prior.layout(x)
    mean, covariance, extra, log_z = definition(prior, x, place.inputs.inducing, sites)
    with jax.enable_x64(True):
        held = jax.tree.map(jnp.asarray, sites)
        workspace = prior.prepare(place.inputs)
        stepwise = workspace.marginals(held)
        posterior = prior.condition(workspace, held)
        joint = posterior.joint(x)
        again = posterior.predict(x)
    blocks = np.stack([covariance[i * latents : (i + 1) * latents, i * latents : (i + 1) * latents] for i in range(n)])
    assert bool(stepwise.proper)
    same(stepwise.marginals.mean, mean.reshape(n, latents), 1e-10)
    same(stepwise.marginals.covariance, blocks, 1e-10)
    same(stepwise.residual_covariance, extra, 1e-10)
    for found in (posterior.marginals, again):
        same(found.mean, mean.reshape(n, latents), 1e-10)
        same(found.covariance, blocks + extra, 1e-10)
    own = np.stack(grams_of(prior, [x] * latents, [x] * latents))
    projected = np.stack(
        [
            a @ np.linalg.inv(b) @ a.T
            for a, b in zip(
                grams_of(prior, [x] * latents, place.inputs.inducing),
                grams_of(prior, place.inputs.inducing, place.inputs.inducing),
                strict=True,
            )
        ]
    )
    wanted = covariance.copy()
    for k in range(latents):
        wanted[k::latents, k::latents] += own[k] - projected[k]
    same(joint.covariance, wanted, 1e-10)
    same(joint.mean, mean, 1e-10)
    at = mean.reshape(n, latents)
    log_site = np.sum(sites.linear * at) - 0.5 * np.einsum("ni,nij,nj->", at, sites.precision, at)
    assert float(stepwise.distance + stepwise.log_det) == pytest.approx(2.0 * (log_site - log_z), abs=1e-9)
    assert float(posterior.log_normaliser) == pytest.approx(log_z, abs=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_an_improper_posterior_is_called_improper():
    prior = SparseGP(kernels.RBF(), [0.0, 10.0])
    x = np.array([[0.0], [10.0]])
    with jax.enable_x64(True):
        workspace = prior.prepare(prior.layout(x).inputs)
        for size in (-2.0, -0.5):
            found = workspace.marginals(Sites(jnp.zeros((2, 1)), jnp.full((2, 1, 1), size)))
            assert bool(found.proper) == (size > -1.0)


@pytest.mark.thorough
@pytest.mark.slow
def test_small_powers_are_vi_step_by_step():
    """Power EP tends to VI, with a difference of the size of its power."""
    model = ng.Model(SparseGP(MATERN, FEW, mean=0.3), ng.likelihoods.Bernoulli())
    labels = np.minimum(COUNTS, 1.0)
    rule = ng.cubature.GaussHermite(32)

    def path(method):
        return list(itertools.islice(ng.iterate(model, X, labels, method, ng.Constant(0.7)), 6))

    exact = path(ng.VI(cubature=rule))
    gaps = []
    for power in (1e-3, 1e-4):
        steps = path(ng.PowerEP(power, cubature=rule))
        for ours, theirs in zip(steps, exact, strict=True):
            same(ours.sites.precision, theirs.sites.precision, power)
            same(ours.sites.linear, theirs.sites.linear, power)
            same(ours.energy, theirs.energy, 10.0 * power)
        gaps.append(abs(steps[-1].energy - exact[-1].energy))
    assert gaps[1] == pytest.approx(0.1 * gaps[0], rel=0.05)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_bound_that_tightens_with_more_inducing_inputs():
    settings = dict(x=X, y=COUNTS, method=ng.VI())
    dense = ng.infer(ng.Model(ng.GP(MATERN), POISSON), **settings).energy
    energies = [
        ng.infer(ng.Model(SparseGP(MATERN, np.linspace(0.0, 6.0, m)), POISSON), **settings).energy for m in (3, 6, 23)
    ]
    assert energies[0] > energies[1] > energies[2] > dense


@pytest.mark.cases(thorough=["poisson"], others="slow")
@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_leaving_one_out(likelihood):
    """For Gaussian noise the sites of VI do not depend on other rows, so that it is exact."""
    if likelihood == "gaussian":
        model, y = ng.Model(SparseGP(MATERN, FEW), ng.likelihoods.Gaussian(0.1)), VALUES
    else:
        model, y = ng.Model(SparseGP(MATERN, FEW), POISSON), COUNTS
    whole = ng.infer(model, X, y)
    without = ng.infer(model, X, np.where(np.arange(N) == 7, np.nan, y))
    exact = without.log_density(X[7:8], y[7:8])[0]
    assert whole.leave_one_out()[7] == pytest.approx(exact, abs=1e-8 if likelihood == "gaussian" else 0.05)
    assert np.isnan(whole.leave_one_out()[3])


# Several latents -------------------------------------------------------------------------------------


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("inputs", ["shared", "own"])
def test_two_latents_with_all_rows_as_inducing_inputs(inputs):
    likelihood = ng.likelihoods.HeteroscedasticGaussian()
    kernel = kernels.Independent([kernels.Matern32(1.5), kernels.Matern12(3.0)])
    given = X if inputs == "shared" else [X, np.append(X[::-1], 2.2)]
    method = ng.VI(cubature=ng.cubature.GaussHermite(7))
    ours = ng.infer(ng.Model(SparseGP(kernel, given), likelihood), X, VALUES, method)
    theirs = ng.infer(ng.Model(ng.GP(kernel), likelihood), X, VALUES, method)
    assert ours.steps == theirs.steps and ours.status.ok
    same(ours.energy, theirs.energy, 1e-8)
    same_gaussian(ours.marginals, theirs.marginals, 1e-8)
    same_gaussian(ours.predict(NEW).latent, theirs.predict(NEW).latent, 1e-8)
    same_gaussian(ours.posterior.joint(NEW[:, None]), theirs.posterior.joint(NEW[:, None]), 1e-8)
    assert [each.shape[0] for each in ours.posterior.inducing] == ([N, N] if inputs == "shared" else [N, N + 1])


# Inducing inputs that are hard on K(Z, Z) -------------------------------------------------------------

HARD = {
    "every one three times": np.repeat(FEW, 3),
    "more than rows": np.concatenate([X, X, np.linspace(0.0, 6.0, 17)]),
    "nearly the same": np.concatenate([FEW, FEW + 1e-9]),
}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", slow_unless(["vi", "newton", "ep", "pl"], ["vi"]))
@pytest.mark.parametrize("name", HARD)
def test_repeated_inducing_inputs(name, method):
    model = ng.Model(SparseGP(MATERN, HARD[name]), POISSON)
    result = ng.infer(model, X, COUNTS, METHODS[method], max_steps=300)
    plain = FEW if name != "more than rows" else np.unique(HARD[name])
    wanted = ng.infer(ng.Model(SparseGP(MATERN, plain), POISSON), X, COUNTS, METHODS[method], max_steps=300)
    assert result.status.ok
    assert len(plain) <= result.posterior.rank[0] <= (len(plain) if name != "nearly the same" else len(HARD[name]))
    if name != "nearly the same":  # two inputs that are 1e-9 apart could tell of the slope there as well
        assert result.energy == pytest.approx(wanted.energy, abs=1e-6)
        same_gaussian(result.predict(NEW).latent, wanted.predict(NEW).latent, 1e-6)
    assert np.all(np.isfinite(result.predict(NEW).latent.covariance))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kernel", [kernels.RBF(500.0), kernels.RBF(6.0), kernels.Matern52(1e4), kernels.Linear(0.2)])
def test_lengthscales_far_larger_than_the_range(kernel):
    ours = ng.infer(ng.Model(SparseGP(kernel, X), POISSON), X, COUNTS)
    theirs = ng.infer(ng.Model(ng.GP(kernel), POISSON), X, COUNTS)
    assert ours.status.ok
    assert 1 <= ours.posterior.rank[0] < N
    same(ours.energy, theirs.energy, 1e-8)
    same_gaussian(ours.marginals, theirs.marginals, 1e-8)
    inside = NEW[(NEW >= 0.0) & (NEW <= 6.0)]
    same_gaussian(ours.predict(inside).latent, theirs.predict(inside).latent, 1e-7)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_unless(METHODS, ["vi quasi-newton", "ep"]))
def test_rows_far_from_all_inducing_inputs(name):
    """g does not vary there, so that sites change nothing and the prior is all there is."""
    likelihood, y = data_for(name)
    x = np.where(np.arange(N) % 4 == 0, X + 1e4, X)
    model = ng.Model(SparseGP(MATERN, FEW, mean=0.3), likelihood)
    result = ng.infer(model, x, y, METHODS[name], throw=False)
    assert not result.status.failed and np.isfinite(result.energy)
    same(result.marginals.mean[::4], 0.3, 1e-12)
    same(result.marginals.variance[::4], 1.3, 1e-12)


@pytest.mark.cases(quick=["100000000000.0"], others="thorough")
@pytest.mark.parametrize("precision", [1e4, 1e8, 1e11])
def test_precise_data_keep_their_digits(precision):
    x = np.linspace(0.0, 3.0, 12)
    model = ng.Model(SparseGP(kernels.Matern12(1.0), x), ng.likelihoods.Gaussian(1.0 / precision))
    result = ng.infer(model, x, np.sin(x), ng.VI(), ng.Constant(1.0))
    gram = np.exp(-np.abs(x[:, None] - x[None, :]))
    same(result.marginals.mean[:, 0], gram @ np.linalg.solve(gram + np.eye(12) / precision, np.sin(x)), 1e-9)
    assert np.all(result.marginals.covariance > 0.0)


# Blocks and chunks --------------------------------------------------------------------------------------


@pytest.mark.cases(thorough=["768-2"], others="slow")
@pytest.mark.parametrize(("rows", "latents"), [(600, 1), (768, 2)])
def test_rows_in_blocks(monkeypatch, rows, latents):
    x = RNG.uniform(0.0, 4.0, (rows, 1))
    prior = SparseGP(kernels.Independent(TWO.kernels[:latents]), FEW)
    sites = jax.tree.map(lambda leaf: 0.1 * leaf, sites_of("psd", rows, latents))

    def run(scale):
        workspace = prior.prepare(prior.layout(x).inputs)
        held = Sites(jnp.asarray(sites.linear), scale * jnp.asarray(sites.precision))
        return workspace.marginals(held), prior.condition(workspace, held).log_normaliser

    def both():
        with jax.enable_x64(True):
            return jax.lax.map(jax.jit(lambda scale: run(scale)), jnp.array([1.0, 1e7]))

    whole = both()
    monkeypatch.setattr(weight_space, "_BLOCK", 1)
    assert weight_space.block_of(5) == 256
    for one, other in zip(jax.tree.leaves(both()), jax.tree.leaves(whole), strict=True):
        same(one, other, 1e-9)


@pytest.mark.slow
def test_predictions_in_chunks(monkeypatch):
    result = ng.infer(ng.Model(SparseGP(MATERN, FEW), POISSON), X, COUNTS)
    new, counts, exposure = RNG.uniform(-1.0, 7.0, 2500), RNG.poisson(1.0, 2500), RNG.uniform(0.5, 2.0, 2500)
    whole = result.predict(new[1:])
    density = result.log_density(new[1:], counts[1:], exposure=exposure[1:])
    monkeypatch.setattr(weight_space, "block_of", lambda numbers: 256)
    monkeypatch.setattr("newtongp.prediction.integrals._MANY", 1000)
    monkeypatch.setattr("newtongp.prediction.integrals._BLOCK", 300)
    chunked = result.predict(new)
    assert isinstance(chunked.latent.mean, np.ndarray)
    same(chunked.latent.mean[1:], whole.latent.mean, 1e-12)
    same(chunked.latent.covariance[1:], whole.latent.covariance, 1e-12)
    same(chunked.variance[1:], whole.variance, 1e-10)
    same(result.log_density(new, counts, exposure=exposure)[1:], density, 1e-10)


@pytest.mark.slow
def test_draws_have_the_moments_of_the_joint():
    result = ng.infer(ng.Model(SparseGP(MATERN, FEW), POISSON), X, COUNTS)
    joint = result.posterior.joint(NEW[:, None])
    draws = result.sample(0, NEW, 20_000)[:, :, 0]
    same(draws.mean(0), joint.mean, 0.05)
    np.testing.assert_allclose(np.cov(draws.T), joint.covariance, atol=0.06)
    np.testing.assert_allclose(draws[:, 4], draws[:, 5], atol=1e-7)  # the same input twice
    assert result.sample_y(0, NEW, 3).shape == (3, len(NEW))


# Inducing inputs from the data --------------------------------------------------------------------------


@pytest.mark.cases(thorough=["kmeans"], others="slow")
@pytest.mark.parametrize("selection", ["greedy", "kmeans"])
def test_inducing_inputs_are_chosen_from_the_data(selection):
    rng = np.random.default_rng(12)
    x = rng.uniform(0.0, 4.0, (300, 2)) * np.array([1.0, 100.0])
    y = rng.poisson(np.exp(np.sin(x[:, 0])))
    kernel = kernels.RBF([1.0, 100.0])

    def chosen(seed):
        return SparseGP(kernel, 12, selection=selection, seed=seed).layout(x).inputs.inducing[0]

    np.testing.assert_array_equal(chosen(1), chosen(1))
    assert not np.array_equal(chosen(1), chosen(2))
    assert chosen(1).shape == (12, 2) and len(np.unique(chosen(1), axis=0)) == 12
    if selection == "greedy":
        assert all(np.any(np.all(x == row, axis=1)) for row in chosen(1))
    at_random = [x[rng.permutation(300)[:12]] for _ in range(5)]
    best, *others = (
        ng.infer(ng.Model(SparseGP(kernel, given, selection=selection), POISSON), x, y).energy
        for given in (12, *at_random)
    )
    assert best < np.median(others)


def test_clusters_do_not_depend_on_where_zero_is():
    x = np.random.default_rng(0).uniform(0.0, 30.0, (200, 1))
    near, far = (inducing.choose((kernels.RBF(),), x + shift, 10, "kmeans", 0)[0] - shift for shift in (0.0, 1.6e9))
    np.testing.assert_allclose(far, near, atol=1e-5)


def test_greedy_takes_what_is_least_known():
    x = np.array([0.0, 0.1, 0.2, 5.0, 5.1])[:, None]
    with jax.enable_x64(True):
        first, second = inducing.choose((kernels.RBF(),), x, 2, "greedy", 0)[0][:, 0]
    assert abs(first - second) > 4.0


@pytest.mark.cases(thorough=["greedy", "kmeans"], others="slow")
@pytest.mark.parametrize("selection", ["greedy", "kmeans"])
def test_no_more_are_chosen_than_there_are_different_rows(selection):
    model = ng.Model(SparseGP(TWO, 50, selection=selection), ng.likelihoods.HeteroscedasticGaussian())
    result = ng.infer(model, np.repeat(FEW, 4), RNG.normal(size=24))
    assert [each.shape for each in result.posterior.inducing] == [(6, 1), (6, 1)]
    assert result.status.ok


@pytest.mark.slow
def test_greedy_stops_where_nothing_is_left_to_know():
    x = np.linspace(0.0, 1.0, 40)
    result = ng.infer(ng.Model(SparseGP(kernels.Linear(1.0) + 0.5, 10), POISSON), x, np.ones(40))
    assert result.posterior.inducing[0].shape == (2, 1)


def test_many_rows_to_choose_from(monkeypatch):
    monkeypatch.setattr(inducing, "MOST_ROWS", 50)
    x = RNG.uniform(0.0, 4.0, (200, 1))
    for selection in inducing.SELECTIONS:
        assert SparseGP(MATERN, 5, selection=selection).layout(x).inputs.inducing[0].shape == (5, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseGP(MATERN, 0), "inducing must be an integer of at least 1"),
        (lambda: SparseGP(MATERN, 2.5), "inducing must be an integer"),
        (lambda: SparseGP(MATERN, True), "inducing must be an integer"),
        (lambda: SparseGP(MATERN, "many"), "inducing must be an integer"),
        (lambda: SparseGP(MATERN, None), "inducing must be an integer"),
        (lambda: SparseGP(MATERN, ["a", "b"]), "inducing must be a number of inducing inputs or an array"),
        (lambda: SparseGP(MATERN, np.zeros((2, 2, 2))), r"got shape \(2, 2, 2\)"),
        (lambda: SparseGP(MATERN, np.zeros((0, 1))), r"got shape \(0, 1\)"),
        (lambda: SparseGP(MATERN, [0.0, np.nan]), "row 1 is"),
        (lambda: SparseGP(MATERN, 3, selection="random"), "selection must be"),
        (lambda: SparseGP(MATERN, 3, seed=-1), "seed must be"),
        (lambda: SparseGP(TWO, [FEW]), r"1 array\(s\) for 2 latent"),
        (lambda: SparseGP(TWO, [FEW, np.zeros((3, 2))]), "columns of x for every latent"),
        (lambda: ng.infer(ng.Model(SparseGP(MATERN, np.zeros((3, 2))), POISSON), X, COUNTS), "2 column"),
        (lambda: ng.infer(ng.Model(SparseGP(TWO, FEW), POISSON), X, COUNTS), "latent"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_the_posterior_says_what_it_used():
    result = ng.infer(ng.Model(SparseGP(MATERN, FEW), POISSON), X, COUNTS)
    assert isinstance(result.posterior, sparse.SparsePosterior)
    np.testing.assert_array_equal(result.posterior.inducing[0][:, 0], FEW)
    assert result.posterior.rank.tolist() == [6]
    assert np.all(result.marginals.covariance >= result.site_marginals.covariance)
