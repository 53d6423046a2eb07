"""A Markovian GP with inducing times: exact at all times of the data, and otherwise a sparse GP through its states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels
from newtongp._runtime.double import in_double
from newtongp.numerics.gaussian import Sites
from newtongp.numerics.size_classes import exact_sizes

RNG = np.random.default_rng(8)
X = RNG.uniform(0.0, 10.0, 40)
X = np.concatenate([X, X[:4]])[RNG.permutation(44)]
Y = RNG.poisson(np.exp(0.5 + np.sin(X))).astype(float)
Y[[3, 17]] = np.nan
NEW = np.array([-2.0, 4.1, 0.3, 9.99, 4.1, 13.0, 2.2])
INDUCING = np.array([6.1, 1.0, 2.5, 3.9, 5.0, 8.7, 7.4])
LENGTHSCALE, MEAN = 1.4, 0.4
METHODS = {"VI": ng.VI(), "power EP": ng.PowerEP(0.5), "Newton": ng.Newton()}


def model(inducing=None, kernel=None, likelihood="poisson", **arguments):
    kernel = kernels.Matern32(lengthscale=LENGTHSCALE, variance=1.3) if kernel is None else kernel
    return ng.Model(ng.MarkovGP(kernel, MEAN, inducing=inducing, **arguments), likelihood)


@pytest.fixture(scope="module")
def results():
    """Results by method, and the inducing times or None."""
    made = {}

    def of(method, inducing):
        key = method, None if inducing is None else len(inducing)
        if key not in made:
            made[key] = ng.infer(model(inducing), X, Y, METHODS[method], tol=1e-10)
        return made[key]

    return of


def same(one, other, tolerance=1e-8):
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def same_gaussian(one, other, tolerance=1e-8):
    same(one.mean, other.mean, tolerance)
    same(one.covariance, other.covariance, tolerance)


# All times of the data -------------------------------------------------------------------------


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", METHODS)
def test_inducing_at_all_times_is_the_markov_gp_step_by_step(results, method):
    exact, sparse = results(method, None), results(method, np.unique(X))
    assert exact.steps == sparse.steps
    for name in ("energy", "objective", "step_size"):
        same(getattr(exact.history, name), getattr(sparse.history, name))
    same_gaussian(exact.marginals, sparse.marginals)
    same(exact.energy, sparse.energy)
    same(exact.posterior.log_normaliser, sparse.posterior.log_normaliser)
    same_gaussian(exact.posterior.predict(NEW[:, None]), sparse.posterior.predict(NEW[:, None]))
    same_gaussian(exact.posterior.joint(NEW[:, None]), sparse.posterior.joint(NEW[:, None]))
    same_gaussian(exact.states(NEW), sparse.states(NEW))


# The same sparse model in NumPy, with states as inducing variables ------------------------------


def covariance(t, i, u, j):
    """Cov of the i-th and j-th derivative of a Matérn-3/2 process at times t and u."""
    rate, gap = np.sqrt(3.0) / LENGTHSCALE, t[:, None] - u[None, :]
    decay = 1.3 * np.exp(-rate * np.abs(gap))
    forms = {
        (0, 0): (1.0 + rate * np.abs(gap)) * decay,
        (0, 1): rate**2 * gap * decay,
        (1, 0): -(rate**2) * gap * decay,
        (1, 1): rate**2 * (1.0 - rate * np.abs(gap)) * decay,
    }
    return forms[i, j]


class Dense:
    """g = W u of a sparse GP whose inducing variables are values and derivatives, and e with its covariance."""

    def __init__(self, x):
        z = INDUCING
        self.prior = np.block([[covariance(z, i, z, j) for j in (0, 1)] for i in (0, 1)])
        self.weights = np.linalg.solve(self.prior, np.hstack([covariance(x, 0, z, j) for j in (0, 1)]).T).T
        self.residual = covariance(x, 0, x, 0) - self.weights @ self.prior @ self.weights.T

    def given(self, linear, precision):
        """Mean and covariance of u given scalar sites of centred g."""
        inverse = np.linalg.inv(self.prior) + self.weights.T @ (precision[:, None] * self.weights)
        found = np.linalg.inv(inverse)
        return found @ (self.weights.T @ linear), found


NODES, SHARES = np.polynomial.hermite_e.hermegauss(120)
SHARES = SHARES / SHARES.sum()


def proposed(method, mean, variance, residual, linear, precision):
    """The site of one row in terms of f, with mean and variance of g."""
    y = Y[~np.isnan(Y)]
    if method == "Newton":
        slope, curvature = y - np.exp(mean), np.exp(mean)
    elif method == "VI":
        rate = np.exp(mean + 0.5 * (variance + residual))
        slope, curvature = y - rate, rate
    else:
        cavity = 1.0 / (1.0 / variance - 0.5 * precision)
        mean = cavity * (mean / variance - 0.5 * linear)
        spread = cavity + residual
        nodes = mean[:, None] + np.sqrt(spread)[:, None] * NODES[None, :]
        weights = SHARES * np.exp(0.5 * (y[:, None] * nodes - np.exp(nodes)))
        weights = weights / weights.sum(axis=1, keepdims=True)
        middle = np.sum(weights * nodes, axis=1)
        width = np.sum(weights * (nodes - middle[:, None]) ** 2, axis=1)
        slope, hessian = (middle - mean) / spread, (width - spread) / spread**2
        # (1/α) log E[p^α] as a function of the cavity's mean, moved to the site by R = 1 / (1 + α⁻¹ H V α).
        scale = 1.0 / (1.0 + hessian * cavity)
        return (slope * scale - hessian * scale * mean) / 0.5, -hessian * scale / 0.5
    return slope + curvature * mean, curvature


def fixed_point(method):
    """The dense model's posterior at the method's fixed point: marginals of f, and f at new times."""
    seen = ~np.isnan(Y)
    dense, residual = Dense(X[seen]), np.diag(Dense(X[seen]).residual)
    linear, precision = np.zeros(seen.sum()), np.zeros(seen.sum())
    for _ in range(300):
        mean, found = dense.given(linear - precision * MEAN, precision)
        marginal = MEAN + dense.weights @ mean
        variance = np.sum((dense.weights @ found) * dense.weights, axis=1)
        new = proposed(method, marginal, variance, residual, linear, precision)
        linear, precision = (0.5 * (a + b) for a, b in zip((linear, precision), new, strict=True))
    at = [Dense(X), Dense(NEW)]
    means = [MEAN + part.weights @ mean for part in at]
    covariances = [part.weights @ found @ part.weights.T + part.residual for part in at]
    return means, covariances


@pytest.mark.cases(slow=["power EP"], others="thorough")
@pytest.mark.parametrize("method", METHODS)
def test_off_the_grid_it_is_the_sparse_gp_of_the_states(results, method):
    means, covariances = fixed_point(method)
    result = results(method, INDUCING)
    same(result.marginals.mean[:, 0], means[0])
    same(result.marginals.covariance[:, 0, 0], np.diag(covariances[0]))
    predicted = result.posterior.predict(NEW[:, None])
    same(predicted.mean[:, 0], means[1])
    same(predicted.covariance[:, 0, 0], np.diag(covariances[1]))
    joint = result.posterior.joint(NEW[:, None])
    same(joint.mean, means[1])
    same(joint.covariance, covariances[1])


# What a workspace says given sites -------------------------------------------------------------------------------

KERNELS = {
    "sum": kernels.Matern52(0.7) + kernels.Matern12(3.0) + kernels.Constant(0.5),
    "product": kernels.Matern32(2.0) * kernels.Matern52(1.3),
    "periodic": kernels.Periodic(period=2.0),
    "linear and white": kernels.Linear(0.3) + kernels.White(0.2) + kernels.Matern32(1.0),
    "brownian": kernels.Brownian(0.4),
    "two latents": kernels.Independent([kernels.Matern32(1.0), kernels.Matern12(2.0, variance=0.5)]),
}


def sites_of(latents, negative):
    """Sites of any sign, of which some are missing."""
    roots = RNG.normal(size=(len(X), latents, latents))
    precision = roots @ np.swapaxes(roots, 1, 2) - 0.02 * negative * np.eye(latents)
    observed = ~np.isnan(Y)
    return Sites(observed[:, None] * RNG.normal(size=(len(X), latents)), observed[:, None, None] * precision)


@jax.jit
def _conditioned(prior, inputs, sites):
    workspace = prior.prepare(inputs)
    return prior.condition(workspace, sites), workspace.log_normaliser(sites)


@in_double
def conditioned(prior, sites, x=X):
    with exact_sizes():
        layout = prior.layout(x[:, None])
    order = np.arange(len(x)) if layout.rows is None else layout.rows
    return jax.tree.map(np.asarray, _conditioned(prior, layout.inputs, jax.tree.map(lambda leaf: leaf[order], sites)))


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_latents_agree_with_the_markov_gp(name):
    kernel = KERNELS[name]
    latents = 2 if name == "two latents" else 1
    mean = ng.means.Independent([MEAN, -MEAN][:latents])
    sites = sites_of(latents, negative=name != "periodic")
    (exact, value), (sparse, same_value) = (
        conditioned(ng.MarkovGP(kernel, mean, pieces=1, inducing=times), sites) for times in (None, np.unique(X))
    )
    same_gaussian(exact.marginals, sparse.marginals)
    same(exact.log_normaliser, sparse.log_normaliser)
    same(value, same_value)
    new = np.abs(NEW[:, None])
    same_gaussian(exact.predict(new), sparse.predict(new))
    same_gaussian(exact.joint(new), sparse.joint(new))
    same_gaussian(exact.states(new), sparse.states(new))


@pytest.mark.slow
def test_gradients_in_hyperparameters():
    sites = sites_of(1, negative=True)
    with exact_sizes():
        inputs = ng.MarkovGP(kernels.Matern52(), inducing=INDUCING).layout(X[:, None]).inputs

    @jax.jit
    def value_and_slope(logs):
        def value(logs):
            kernel = kernels.Matern52(lengthscale=jnp.exp(logs[0]), variance=jnp.exp(logs[1]))
            workspace = ng.MarkovGP(kernel, MEAN, inducing=INDUCING).prepare(inputs)
            return workspace.log_normaliser(sites) + jnp.sum(workspace.residual_covariance())

        return jax.value_and_grad(value)(logs)

    gradient = in_double(lambda logs: jax.tree.map(np.asarray, value_and_slope(logs)))
    logs = np.log([1.4, 1.3])
    _, slope = gradient(logs)
    for k, direction in enumerate(np.eye(2)):
        up, down = (gradient(logs + small * direction)[0] for small in (1e-5, -1e-5))
        np.testing.assert_allclose(slope[k], (up - down) / 2e-5, rtol=1e-6)


# Choice of times, and bad input ---------------------------------------------------------------------------------


def test_a_number_of_times_is_chosen_from_the_data():
    prior = ng.MarkovGP("matern32", inducing=6)
    chosen = prior.layout(X[:, None]).inputs.inducing
    assert len(chosen) == 6
    assert chosen[0] == X.min() and chosen[-1] == X.max()
    # Equally many distinct times between any two.
    counts = np.histogram(np.unique(X), chosen)[0]
    assert np.ptp(counts) <= 1
    everything = ng.MarkovGP("matern32", inducing=1000).layout(X[:, None]).inputs.inducing
    np.testing.assert_array_equal(everything, np.unique(X))
    at_one_time = ng.MarkovGP("matern32", inducing=5).layout(np.full((3, 1), 2.0)).inputs.inducing
    np.testing.assert_array_equal(at_one_time, [2.0])


FEW = np.array([1.0, 2.5, 3.0, 2.5])
EXACT = {
    "more than there are": (FEW, 5),
    "more than there are, at one time": (np.full(4, 2.0), 5),
    "beyond the data": (FEW, np.array([-0.5, 1.0, 2.5, 3.0, 4.0])),
    "very close": (FEW, np.array([1.0, 2.5, np.nextafter(2.5, 3.0), 3.0])),
}


@pytest.mark.cases(slow=["beyond the data"], others="thorough")
@pytest.mark.parametrize("case", EXACT)
def test_inducing_times_that_include_those_of_the_data_are_exact(case):
    x, inducing = EXACT[case]
    sites = Sites(np.array([[0.3], [-1.0], [0.2], [2.0]]), np.array([0.5, 2.0, 0.0, 1.0])[:, None, None])
    exact, sparse = (conditioned(model(times, pieces=1).prior, sites, x)[0] for times in (None, inducing))
    same(sparse.log_normaliser, exact.log_normaliser, 1e-12)
    same_gaussian(sparse.marginals, exact.marginals, 1e-12)
    same_gaussian(sparse.predict(NEW[:, None]), exact.predict(NEW[:, None]), 1e-12)


def test_time_stamps_and_any_order():
    stamps = np.array(["2020-01-05", "2020-01-01", "2020-01-03"], dtype="datetime64[D]")
    prior = ng.MarkovGP("matern32", unit="D", origin="2020-01-01", inducing=stamps)
    np.testing.assert_array_equal(prior.inducing, [0.0, 2.0, 4.0])
    assert not ng.MarkovGP("matern32").is_sparse


def _infer(inducing, **arguments):
    return ng.infer(model(inducing, **arguments), X, Y)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: model([20.0, 30.0]).prior.layout(X[:, None]), "all inducing times, 20.0 to 30.0, are after the data"),
        (lambda: model([-3.0, -2.0]).prior.layout(X[:, None]), "are before the data"),
        (
            lambda: model([1.0, 5.0, 60.0, 70.0]).prior.layout(X[:, None]),
            "inducing has the time 60.0, which is far after the data, .*in the same unit, or give their number",
        ),
        (lambda: model([1.0, 5.0, -60.0]).prior.layout(X[:, None]), "the time -60.0, which is far before the data"),
        (
            lambda: model([1.0, 5.0, 600.0], unit="W").prior.layout(X[:, None]),
            r"far after the data, .* \(in units of 7 days since 2000-01-01\)",
        ),
        (lambda: ng.infer(model([1.0, 5.0, 60.0]), X, Y, batch_size=10), "the time 60.0, which is far after the data"),
        (lambda: model([1.0, np.nan]), "must be finite, but entry 1 is nan"),
        (lambda: model([1.0, 2.0, 1.0]), "1.0 occurs more than once"),
        (lambda: model([50.0]), "at least two times.*write inducing=50, without brackets"),
        (lambda: model([]), "a list of at least two, got shape"),
        (lambda: model(1), "inducing must be an integer of at least 2, or an array of times, got 1"),
        (lambda: model(2.5), "or an array of times, got 2.5"),
        (lambda: model(np.ones((3, 2))), r"got shape \(3, 2\)"),
        (lambda: model(["a", "b"]), "must be a number of inducing times or a list of them"),
        (lambda: model(np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")), "no unit of time"),
        (lambda: model(None, storage="tied"), "needs inducing times"),
        (lambda: model(INDUCING, storage="some"), 'storage must be "full" or "tied"'),
        (lambda: _infer(INDUCING - 2.0, kernel=kernels.Brownian()), "inducing times are times like those in x"),
        (lambda: ng.infer(model(), X, Y, batch_size=10), "got MarkovGP without them: give inducing="),
        (lambda: ng.filter_sweep(model(INDUCING), X, Y), "use MarkovGP without inducing="),
    ],
)
def test_bad_input_is_named(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


# Learning, draws, batches and files ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_fit_learns_what_the_markov_gp_would():
    exact, sparse = (ng.fit(model(times), X, Y) for times in (None, np.unique(X)))
    assert sparse.status.name == "CONVERGED"
    same(exact.energy, sparse.energy)
    for name, value in exact.parameters.items():
        same(value, sparse.parameters[name], 1e-4)


@pytest.mark.thorough
@pytest.mark.slow
def test_draws_have_the_moments_of_the_joint(results):
    posterior = results("VI", INDUCING).posterior
    joint, draws = posterior.joint(NEW[:, None]), posterior.draw(jax.random.key(1), NEW[:, None], 40_000)[:, :, 0]
    assert np.abs(draws[:, 1] - draws[:, 4]).max() < 1e-6  # the same time
    deviations = np.sqrt(np.diag(joint.covariance))
    np.testing.assert_allclose(draws.mean(axis=0), joint.mean, atol=5.0 * deviations.max() / 200.0)
    correlations = (np.cov(draws.T) - joint.covariance) / np.outer(deviations, deviations)
    assert np.abs(correlations).max() < 5.0 * np.sqrt(2.0 / 40_000)


MANY = RNG.uniform(0.0, 30.0, 1500)
COUNTS = RNG.poisson(np.exp(0.5 + np.sin(MANY))).astype(float)


@pytest.fixture(scope="module")
def whole():
    return ng.infer(model(25), MANY, COUNTS)


@pytest.mark.cases(thorough=["tied", "tied", "full"], others="slow")
@pytest.mark.parametrize("storage", ["full", "tied"])
def test_batches_reach_the_optimum_of_all_rows(whole, storage, tmp_path):
    for name, array in (("x", MANY), ("y", COUNTS)):
        np.save(tmp_path / f"{name}.npy", array)
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
    result = ng.infer(model(25, storage=storage), x, y, batch_size=200, key=0)
    assert result.status.name == "CONVERGED" and result.data is None
    same(result.energy, whole.energy)
    same(result.posterior.inducing, whole.posterior.inducing)
    same_gaussian(result.posterior.predict(NEW[:, None]), whole.posterior.predict(NEW[:, None]), 1e-5)
    result.save(tmp_path / "result.npz")
    loaded = ng.load(tmp_path / "result.npz")
    np.testing.assert_array_equal(loaded.predict(NEW).mean, result.predict(NEW).mean)


@pytest.mark.slow
def test_files_have_the_inducing_times(results, whole, tmp_path):
    for result in (results("VI", INDUCING), whole):
        result.save(tmp_path / "result.npz")
        loaded = ng.load(tmp_path / "result.npz")
        assert loaded.model.prior.count == result.model.prior.count
        np.testing.assert_array_equal(loaded.predict(NEW).mean, result.predict(NEW).mean)


@pytest.mark.slow
@pytest.mark.thorough
def test_learning_in_batches():
    fitted = ng.fit(model(25), MANY, COUNTS)
    in_batches = ng.fit(model(25), MANY, COUNTS, batch_size=150)
    assert abs(in_batches.energy - fitted.energy) < 1e-3 * abs(fitted.energy)
