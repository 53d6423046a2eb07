"""A Gaussian process in space and time is the dense GP in another form: what can be asked of both has one answer."""

import datetime
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp.likelihoods import HeteroscedasticGaussian
from newtongp.numerics.gaussian import Sites

RNG = np.random.default_rng(5)
PLACES = RNG.uniform(size=(12, 2))
TIMES = np.sort(RNG.uniform(0.0, 10.0, 15))


def _rows():
    """All places at all times but a fifth, some of them several times, in no order."""
    x = np.array([[time, *place] for time in TIMES for place in PLACES])
    x = x[RNG.random(len(x)) < 0.8]
    x = np.concatenate([x, x[RNG.choice(len(x), 12)], x[:1].repeat(3, axis=0)])
    return x[RNG.permutation(len(x))]


X = _rows()
N = len(X)
F = np.sin(X[:, 0]) + X[:, 1]
MISSING = RNG.choice(N, 6, replace=False)
OUTPUTS = {
    "poisson": RNG.poisson(np.exp(F)).astype(float),
    "bernoulli": (F + RNG.normal(size=N) > 0.5).astype(float),
    "student": F + 0.2 * RNG.standard_t(2, N),
    "gaussian": F + 0.3 * RNG.normal(size=N),
    "heteroscedastic": F + 0.3 * np.exp(X[:, 2]) * RNG.normal(size=N),
}
for outputs in OUTPUTS.values():
    outputs[MISSING] = np.nan
LIKELIHOODS = {
    "poisson": ng.likelihoods.Poisson(),
    "bernoulli": ng.likelihoods.Bernoulli(),
    "student": ng.likelihoods.StudentT(df=3.0, scale=0.2),
    "gaussian": ng.likelihoods.Gaussian(0.1),
    "heteroscedastic": HeteroscedasticGaussian(),
}
METHODS = {
    "VI": ng.VI(),
    "Newton": ng.Newton(),
    "EP": ng.PowerEP(1.0),
    "PL": ng.PosteriorLinearisation(),
    "half EP": ng.PowerEP(0.5),
    "Taylor": ng.Taylor(),
    "variational Gauss-Newton": ng.VI(curvature=ng.GaussNewton()),
    "quasi-Newton": ng.Newton(curvature=ng.QuasiNewton()),
    "heuristic VI": ng.VI(safeguard=ng.Heuristic()),
    "Riemannian VI": ng.VI(safeguard=ng.Riemannian()),
}
TIME, SPACE = kernels.Matern32(lengthscale=2.0, variance=0.8), kernels.Matern52(lengthscale=0.5)
X_NEW = np.column_stack([RNG.uniform(-2.0, 12.0, 30), RNG.uniform(size=(30, 2))])
X_NEW[:6, 1:], X_NEW[6:10], X_NEW[10:14, 0] = PLACES[:6], X[:4], 3.3


def pair(likelihood="poisson", inducing=None):
    """The model with a dense GP, and with one in space and time.

    With fewer inducing places than places, the first has a sparse GP with all pairs of times and inducing places.
    """
    if LIKELIHOODS[likelihood].num_latents == 1:
        kernel, time, mean = TIME.on(0) * SPACE.on(1, 2), TIME, 0.2
    else:
        slow = kernels.Matern52(lengthscale=4.0, variance=0.5)
        kernel = kernels.Independent([TIME.on(0) * SPACE.on(1, 2), slow.on(0) * SPACE.on(1, 2)])
        time, mean = kernels.Independent([TIME, slow]), None
    if inducing is None or len(inducing) == len(PLACES):
        full = ng.GP(kernel, mean=mean)
    else:
        full = ng.SparseGP(kernel, np.array([[t, *place] for t in TIMES for place in inducing]), mean=mean)
    priors = full, ng.SpaceTimeGP(time, SPACE, inducing, mean=mean)
    return [ng.Model(prior, LIKELIHOODS[likelihood]) for prior in priors]


def both(method="VI", likelihood="poisson"):
    """Results of inference with both priors."""
    return [
        ng.infer(model, X, OUTPUTS[likelihood], METHODS[method], tol=1e-10, max_steps=300, throw=False)
        for model in pair(likelihood)
    ]


@pytest.fixture(scope="module")
def results():
    """Results with Poisson counts and VI."""
    return both()


def same_marginals(one, other, tolerance=1e-8):
    """Compare two sets of Gaussians."""
    np.testing.assert_allclose(other.mean, one.mean, atol=tolerance)
    np.testing.assert_allclose(other.covariance, one.covariance, atol=tolerance)


def same_results(one, other):
    """Compare everything that inference returns."""
    assert other.status == one.status
    assert other.energy == pytest.approx(one.energy, abs=1e-8)
    same_marginals(one.marginals, other.marginals)


@pytest.mark.cases(thorough=["PL", "EP", "PL", "EP"], quick=["Newton"], others="slow")
@pytest.mark.parametrize("method", ["Newton", "EP", "PL"])
def test_methods_agree_with_the_dense_prior(method):
    same_results(*both(method))


@pytest.mark.slow
@pytest.mark.thorough
def test_inference_agrees_with_the_dense_prior(results):
    dense, found = results
    same_results(dense, found)
    assert found.status is ng.Status.CONVERGED
    assert found.posterior.log_normaliser == pytest.approx(float(dense.posterior.log_normaliser), abs=1e-8)
    np.testing.assert_allclose(found.leave_one_out(), dense.leave_one_out(), atol=1e-8)


CASES = [
    *((method, "poisson") for method in list(METHODS)[4:]),
    *((method, likelihood) for likelihood in ("bernoulli", "student", "gaussian") for method in list(METHODS)[:4]),
    *((method, "heteroscedastic") for method in ("VI", "PL", "variational Gauss-Newton")),
]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("method", "likelihood"), CASES)
def test_other_methods_and_likelihoods_agree(method, likelihood):
    same_results(*both(method, likelihood))


@pytest.mark.slow
@pytest.mark.thorough
def test_predictions_agree(results):
    dense, found = results
    same_marginals(dense.posterior.predict(X_NEW), found.posterior.predict(X_NEW))
    same_marginals(dense.posterior.predict(X), found.posterior.predict(X))
    np.testing.assert_allclose(found.posterior.predict(X).mean, found.marginals.mean, atol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_joint_distributions_and_draws_agree(results):
    dense, found = results
    wanted, joint = dense.posterior.joint(X_NEW), found.posterior.joint(X_NEW)
    same_marginals(wanted, joint)
    draws = found.sample(0, X_NEW, 2000)[:, :, 0]
    scales = np.sqrt(np.diagonal(wanted.covariance))
    errors = (np.cov(draws.T) - wanted.covariance) / scales[:, None] / scales[None, :]
    assert np.max(np.abs(errors)) < 5.0 * np.sqrt(2.0 / 2000)
    assert np.max(np.abs(draws.mean(axis=0) - wanted.mean) / scales) < 5.0 / np.sqrt(2000)


@pytest.mark.thorough
@pytest.mark.slow
def test_states_are_those_in_time_at_each_place(results):
    found = results[1]
    states, latents = found.states(X_NEW), found.posterior.predict(X_NEW)
    np.testing.assert_allclose(states.mean[:, 0] + 0.2, latents.mean[:, 0], atol=1e-10)
    np.testing.assert_allclose(states.covariance[:, 0, 0], latents.covariance[:, 0, 0], atol=1e-10)
    # The second state is the slope in units of the lengthscale, sqrt(3) / 2.
    ahead = X_NEW + np.array([1e-4, 0.0, 0.0])
    slope = (found.posterior.predict(ahead).mean - latents.mean)[:, 0] / 1e-4
    np.testing.assert_allclose(states.mean[:, 1] * np.sqrt(3.0) / 2.0, slope, atol=2e-3)


@pytest.mark.slow
@pytest.mark.thorough
def test_one_step_ahead_predicts_from_earlier_times(results):
    found = results[1]
    late = np.flatnonzero(X[:, 0] >= TIMES[9])
    ahead = found.posterior.one_step_ahead()
    # Without the sites of a time and of all later ones, predictions of that time are those from earlier rows.
    rows = np.flatnonzero(X[:, 0] == TIMES[9])
    linear, precision = found.sites.linear.copy(), found.sites.precision.copy()
    linear[late], precision[late] = 0.0, 0.0
    with jax.enable_x64(True):
        workspace = pair()[0].prior.prepare(jnp.asarray(X))
        earlier = workspace.marginals(Sites(jnp.asarray(linear), jnp.asarray(precision))).marginals
    np.testing.assert_allclose(ahead.mean[rows], earlier.mean[rows], atol=1e-8)
    np.testing.assert_allclose(ahead.covariance[rows], earlier.covariance[rows], atol=1e-8)


def _gradient(make, method):
    """The energy as a function of three logarithms, with its gradient."""
    data = ng.prepare(make(np.zeros(3)), X, OUTPUTS["poisson"])

    def energy(logs):
        return ng.solve(make(logs), data, METHODS[method], tol=1e-10, max_steps=300).energy

    with jax.enable_x64(True):
        return jax.jit(jax.value_and_grad(energy))(jnp.zeros(3))


def _dense(logs):
    time = kernels.Matern32(2.0 * jnp.exp(logs[0]), 0.8 * jnp.exp(logs[1])).on(0)
    return ng.Model(ng.GP(time * kernels.Matern52(0.5 * jnp.exp(logs[2])).on(1, 2)), "poisson")


def _separable(logs):
    time = kernels.Matern32(2.0 * jnp.exp(logs[0]), 0.8 * jnp.exp(logs[1]))
    return ng.Model(ng.SpaceTimeGP(time, kernels.Matern52(0.5 * jnp.exp(logs[2]))), "poisson")


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("method", ["VI", "Newton", "EP", "PL"])
def test_gradients_agree(method):
    (value, slope), (wanted, wanted_slope) = _gradient(_separable, method), _gradient(_dense, method)
    assert value == pytest.approx(float(wanted), abs=1e-8)
    np.testing.assert_allclose(slope, wanted_slope, atol=1e-7)


@pytest.fixture(scope="module")
def fitted():
    """A fit with VI."""
    return ng.fit(pair()[1], X, OUTPUTS["poisson"])


@pytest.mark.slow
@pytest.mark.thorough
def test_fit_learns_what_the_dense_prior_would(fitted, results):
    found = {parameter.name: parameter.value for parameter in ng.hyperparameters(fitted.model)}
    # Only the product of the two variances matters, so that one of them stays as it is.
    assert found["space.variance"] == 1.0 and found["time.variance"] != 0.8
    prior = fitted.model.prior
    dense = ng.GP(prior.time[0].on(0) * prior.space[0].on(1, 2), mean=prior.mean)
    energies = [
        ng.infer(ng.Model(model, "poisson"), X, OUTPUTS["poisson"], tol=1e-9).energy
        for model in (dense, *_moved(prior))
    ]
    assert fitted.energy == pytest.approx(energies[0], abs=1e-6)
    assert min(energies[1:]) > energies[0]
    assert fitted.energy < results[0].energy


def _moved(prior):
    """Dense priors with other hyperparameters, whose energies must be higher."""
    time, space = prior.time[0], prior.space[0]
    for factors in itertools.chain(*((1.0 + move * np.eye(3)) for move in (-0.1, 0.1))):
        kernel = kernels.Matern32(factors[0] * time.lengthscale, factors[1] * time.variance).on(0)
        yield ng.GP(kernel * kernels.Matern52(factors[2] * space.lengthscale).on(1, 2), mean=prior.mean)


@pytest.mark.slow
def test_a_fit_survives_saving(fitted, tmp_path):
    fitted.save(tmp_path / "fit.ngp")
    loaded = ng.load(tmp_path / "fit.ngp")
    same_marginals(fitted.posterior.predict(X_NEW), loaded.posterior.predict(X_NEW), 1e-12)


# Other structures ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_sums_of_products_and_rows_that_are_all_elsewhere(monkeypatch):
    # Every row has a time and a place of its own, but one, which has more rows than fit in a slot.
    monkeypatch.setattr("newtongp.priors.space_time_layout._MOST_PER_SLOT", 2)
    x = np.concatenate([np.column_stack([RNG.uniform(0.0, 5.0, 24), RNG.uniform(size=24)]), [[2.0, 0.5]] * 5])
    y = RNG.poisson(np.exp(np.sin(x[:, 0])), len(x))
    level, near = kernels.Constant(0.5) + kernels.Matern12(lengthscale=3.0), kernels.RBF(lengthscale=0.3)
    dense = ng.GP(TIME.on(0) * near.on(1) + level.on(0) * SPACE.on(1))
    models = [ng.Model(prior, "poisson") for prior in (dense, ng.SpaceTimeGP([TIME, level], [near, SPACE]))]
    one, other = (ng.infer(model, x, y, tol=1e-10) for model in models)
    same_results(one, other)
    x_new = np.column_stack([RNG.uniform(-1.0, 7.0, 10), RNG.uniform(size=10)])
    same_marginals(one.posterior.joint(x_new), other.posterior.joint(x_new))


TIME_KERNELS = {
    "level and cosine": kernels.Constant(0.5) + kernels.Cosine(period=3.0),
    "season": kernels.Periodic(period=4.0, lengthscale=2.0) * kernels.Matern32(lengthscale=6.0),
    "white": kernels.White(0.3) + kernels.Matern12(),
    "Brownian": kernels.Brownian(variance=0.3, origin=-5.0),
    "integrated Brownian": kernels.IntegratedBrownian(variance=0.05, origin=-5.0) + kernels.Constant(1.0),
}


def _given_sites(prior, precision):
    """Marginals given sites of this precision at every row, and the log normaliser."""
    rng = np.random.default_rng(2)
    precisions = precision * rng.uniform(0.5, 2.0, size=(N, 1, 1))
    with jax.enable_x64(True):
        workspace = prior.prepare(jax.tree.map(jnp.asarray, prior.layout(X).inputs))
        sites = Sites(jnp.asarray(precisions[:, :, 0] * F[:, None]), jnp.asarray(precisions))
        found = jax.jit(lambda sites: workspace.marginals(sites, True))(sites)
        return found.marginals, float(found.log_normaliser(sites))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("kernel", TIME_KERNELS)
def test_time_kernels_agree_with_the_dense_prior(kernel):
    time = TIME_KERNELS[kernel]
    one, log_normaliser = _given_sites(ng.GP(time.on(0) * SPACE.on(1, 2)), 3.0)
    other, found = _given_sites(ng.SpaceTimeGP(time, SPACE), 3.0)
    same_marginals(one, other)
    assert found == pytest.approx(log_normaliser, abs=1e-8)


@pytest.mark.cases(thorough=["10000.0"], others="slow")
@pytest.mark.parametrize("precision", [1e4, 1e8])
def test_precise_sites_keep_their_digits(precision):
    one, _ = _given_sites(ng.GP(TIME.on(0) * SPACE.on(1, 2)), precision)
    other, _ = _given_sites(ng.SpaceTimeGP(TIME, SPACE), precision)
    scale = np.sqrt(np.asarray(one.covariance)[:, :, 0])
    np.testing.assert_allclose(np.asarray(other.mean) / scale, np.asarray(one.mean) / scale, atol=1e-5)
    np.testing.assert_allclose(other.covariance, one.covariance, rtol=1e-6)


INDUCING = PLACES[[0, 3, 7, 9, 11]] + 0.01


@pytest.fixture(scope="module")
def sparse():
    """A model that is sparse in space, and the same as a sparse GP with all pairs of times and inducing places."""
    grid = np.array([[time, *place] for time in TIMES for place in INDUCING])
    priors = ng.SparseGP(TIME.on(0) * SPACE.on(1, 2), grid), ng.SpaceTimeGP(TIME, SPACE, inducing=INDUCING)
    return [ng.infer(ng.Model(prior, "poisson"), X, OUTPUTS["poisson"], tol=1e-10) for prior in priors]


@pytest.mark.slow
@pytest.mark.thorough
def test_inducing_places_are_those_of_a_sparse_gp(sparse):
    same_results(*sparse)
    np.testing.assert_array_equal(sparse[1].posterior.inducing, INDUCING)


@pytest.mark.slow
@pytest.mark.thorough
def test_predictions_with_inducing_places_are_those_of_a_sparse_gp(sparse):
    one, other = (result.posterior.joint(X_NEW) for result in sparse)
    same_marginals(one, other)
    one, other = (result.leave_one_out() for result in sparse)
    np.testing.assert_allclose(other, one, atol=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
def test_inducing_at_all_places_is_exact(results):
    for inducing in (PLACES, 100):
        model = ng.Model(ng.SpaceTimeGP(TIME, SPACE, inducing, mean=0.2), "poisson")
        same_results(results[0], ng.infer(model, X, OUTPUTS["poisson"], tol=1e-10))


@pytest.mark.slow
@pytest.mark.thorough
def test_a_number_of_inducing_places_is_chosen_from_the_data():
    model = ng.Model(ng.SpaceTimeGP(TIME, SPACE, inducing=6), "gaussian")
    result = ng.infer(model, X, OUTPUTS["gaussian"])
    chosen = result.posterior.inducing
    assert chosen.shape == (6, 2)
    assert all(np.any(np.all(place == PLACES, axis=1)) for place in chosen)


# Inputs -------------------------------------------------------------------------------------------

ADJACENCY = np.array([(0, 1), (1, 2), (2, 3), (3, 0)])


def _weeks(kind):
    """Counts of four areas in six weeks, as a list of rows with stamps, a data frame, or numbers of days."""
    days = [datetime.datetime(2020, 1, 6) + datetime.timedelta(weeks=week) for week in range(6)]
    rows = [(day, area) for day in days for area in range(4)]
    if kind == "list":
        return [[day, area] for day, area in rows]
    if kind == "numbers":
        return np.array([[(day - datetime.datetime(2000, 1, 1)).days, area] for day, area in rows], dtype=float)
    frame = pytest.importorskip(kind).DataFrame({"week": [day for day, _ in rows], "area": [area for _, area in rows]})
    return frame


@pytest.fixture(scope="module")
def areas():
    """A model of counts in areas, with its result for numbers of days."""
    prior = ng.SpaceTimeGP(kernels.Matern32(lengthscale=20.0), kernels.Graph(ADJACENCY), unit="D")
    model = ng.Model(prior, "poisson")
    y = np.random.default_rng(1).poisson(3.0, 24)
    return model, y, ng.infer(model, _weeks("numbers"), y)


@pytest.mark.cases(thorough=["list", "pandas"], others="slow")
@pytest.mark.parametrize("kind", ["list", "pandas", "polars"])
def test_time_stamps_beside_areas(areas, kind):
    model, y, numbers = areas
    result = ng.infer(model, _weeks(kind), y)
    assert result.energy == numbers.energy
    ahead = datetime.datetime(2020, 2, 24)
    # Columns of a frame are matched by name.
    new = [[ahead, 2]] if kind == "list" else pytest.importorskip(kind).DataFrame({"area": [2], "week": [ahead]})
    days = (ahead - datetime.datetime(2000, 1, 1)).days
    assert result.predict(new).mean == numbers.predict(np.array([[float(days), 2.0]])).mean


@pytest.mark.slow
def test_areas_agree_with_the_dense_prior(areas):
    model, y, result = areas
    time, space = model.prior.time[0], model.prior.space[0]
    dense = ng.infer(ng.Model(ng.GP(time.on(0) * space.on(1)), "poisson"), _weeks("numbers"), y)
    assert result.energy == pytest.approx(dense.energy, abs=1e-8)


def _infer(prior, x):
    return ng.infer(ng.Model(prior, "gaussian"), x, np.zeros(len(x)))


PLAIN = ng.SpaceTimeGP(TIME, SPACE)
AREAS = ng.SpaceTimeGP(TIME, kernels.Graph(ADJACENCY))
CLOSE = np.array([[t, s, 0.0] for t in (0.0, 1.0) for s in (0.1, 0.1 + 1e-13, 0.7)])
GRID = np.array([[t, a, b] for t in (0.0, 1.0) for a in (0.1, 0.1 + 1e-13, 0.7) for b in (1.0, 2.0, 3.0)])
TWO = np.array([[t, 5.0, b] for t in (0.0, 1.0) for b in (0.3, 0.1 + 0.2)])


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: _infer(PLAIN, CLOSE), r"two places cannot be told apart, \[0.1, 0\] and \[0.1000000000001\d*, 0\]"),
        (lambda: _infer(PLAIN, GRID), r"two places cannot be told apart, \[0.1, 1\] and \[0.1000000000001\d*, 1\]"),
        (lambda: _infer(PLAIN, TWO), r"two places cannot be told apart, \[5, 0.3\] and \[5, 0.30000000000000004\]"),
        (lambda: _infer(PLAIN, X * [1.0, 0.0, 0.0]), r"all rows are at one place.*use MarkovGP\(time\)"),
        (lambda: _infer(PLAIN, X * [0.0, 1.0, 1.0]), r"all rows are at one time.*use GP\(space\)"),
        (lambda: _infer(PLAIN, X[:, :1]), "works on the time and the place of every row, but x has one column"),
        (lambda: _infer(AREAS, X[:, :2]), "the kernel of space: Graph works on integer codes, but row 0"),
        (lambda: _infer(AREAS, np.array([[0.0, 1.0], [1.0, 4.0]])), "Graph has the nodes 0 to 3, but row 1"),
        (lambda: _infer(AREAS, X), "the kernel of space: Graph works on one column of x, but x has 2"),
        (lambda: kernels.Graph([[0.0, 1.0, 0.0], [0.5, 0.0, 1.0], [0.0, 1.0, 0.0]]), "symmetric"),
        (
            lambda: _infer(AREAS, _weeks("list")),
            r'the unit of the lengthscales, as in SpaceTimeGP\(time, space, unit="D"\)',
        ),
        (lambda: _infer(AREAS, [[0.0, "Leer"], [1.0, "Emden"]]), "got ndarray with 'Leer': number names first"),
        (
            lambda: _infer(AREAS, [["2024-05-01", 0], ["2024-05-02", 1]]),
            "'2024-05-01': make time stamps of",
        ),
        (lambda: _infer(ng.SpaceTimeGP(TIME, SPACE, PLACES[:, :1]), X), "inducing has 1 column.*but x has 2 after"),
        (lambda: _infer(ng.SpaceTimeGP(TIME, SPACE, PLACES + 50.0), X), "far from all places of the data, row 0"),
        (
            lambda: _infer(ng.SpaceTimeGP(TIME, kernels.Graph(ADJACENCY), [[7.0]]), X[:, :2] // 1.0),
            "inducing places are",
        ),
        (
            lambda: ng.SpaceTimeGP(TIME, SPACE, [[0.0, 1.0], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]),
            r"rows 0 and 2 are both \[0, 1\]: give every place once, as in np.unique\(places, axis=0\)",
        ),
        (
            lambda: ng.SpaceTimeGP(TIME, SPACE, [[1.0, 0.3], [1.0, 0.1 + 0.2], [2.0, 0.5]]),
            r"rows 0 and 1 are \[1, 0.3\] and \[1, 0.30000000000000004\], which differ by rounding alone: drop one",
        ),
        (lambda: ng.SpaceTimeGP(TIME, kernels.Graph(ADJACENCY), [0, 1, 1]), r"rows 1 and 2 are both \[1\]"),
        (
            lambda: _infer(ng.SpaceTimeGP(TIME, SPACE, [*PLACES[:3].tolist(), [0.5, 9.0]]), X),
            r"far from all places of the data, row 3, \[0.5, 9.0\]",
        ),
        (
            lambda: ng.SpaceTimeGP(TIME),
            "needs a kernel of space too, as in .*: for functions of time alone use MarkovGP",
        ),
        (lambda: ng.SpaceTimeGP(TIME, SPACE, 0), "inducing must be an integer of at least 1.*or an array of places"),
        (lambda: ng.SpaceTimeGP(TIME, "matern33"), "matern33"),
        (lambda: ng.SpaceTimeGP(TIME, 1.0), r"space must be a kernel such as kernels.Matern32\(\), its name"),
        (lambda: ng.SpaceTimeGP([TIME, TIME], SPACE), "one kernel for each product of a sum, got 2 and 1"),
        (lambda: ng.SpaceTimeGP([], []), "time must have at least one kernel"),
        (lambda: ng.SpaceTimeGP(kernels.RationalQuadratic(), SPACE), "RationalQuadratic has no state space form"),
        (
            lambda: ng.SpaceTimeGP(kernels.Independent([TIME] * 2), kernels.Independent([SPACE] * 3)),
            r"the same number of latents, got \[2, 3\]",
        ),
        (lambda: ng.SpaceTimeGP(TIME, SPACE, unit="month"), "unit must be"),
    ],
)
def test_bad_input_is_named(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


@pytest.mark.thorough
@pytest.mark.slow
def test_priors_with_inducing_places_survive_saving(sparse, tmp_path):
    sparse[1].save(tmp_path / "result.ngp")
    loaded = ng.load(tmp_path / "result.ngp")
    np.testing.assert_array_equal(loaded.model.prior.inducing, INDUCING)
    assert loaded.energy == sparse[1].energy


@pytest.mark.slow
def test_predictions_of_some_rows_are_one_program():
    """At few and many times and places; each row has the prediction that it has among all."""
    model = ng.Model(ng.SpaceTimeGP(TIME, SPACE), LIKELIHOODS["poisson"])
    posterior = ng.infer(model, X[:80], OUTPUTS["poisson"][:80]).posterior
    new = np.concatenate([X[80:120], X[80:81] + np.array([[0.25, 0.0, 0.0]])])
    wanted, compiled = posterior.predict(new), []

    def listen(event, duration, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    for rows in ([0], [1, 2], np.arange(7), np.arange(20), [40, 3]):
        found = posterior.predict(new[rows])
        np.testing.assert_allclose(found.mean, wanted.mean[rows], rtol=1e-12)
        np.testing.assert_allclose(found.covariance, wanted.covariance[rows], rtol=1e-12)
    assert compiled == []
