"""A Markovian GP with inducing times: exact at all times of the data, and otherwise a sparse GP through its states."""

import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels

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


@pytest.mark.cases(quick=["VI"], others="thorough")
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


@pytest.mark.cases(quick=["VI"], others="slow")
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
