"""The textbook smoothers, written here in NumPy from their equations, are `filter_sweep` and `infer`.

Equations and names are those of S. Särkkä and L. Svensson, Bayesian Filtering and Smoothing (2nd edition, 2023):
xₖ = A xₖ₋₁ + qₖ₋₁ and yₖ = h(xₖ) + rₖ, with moments of the whole state throughout. newtongp's sigma points are over the
latents f = H x alone. Where these are the first entries of the state, the unscented transform of all n entries with
parameter κ' puts 2 (n − D) of its points at the same f as its centre: as a rule for f it is `Unscented(3, κ)` with
n + κ' = D + κ. (Both take Cholesky's root.) So the same rule is used, and nothing else is shared.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import newtongp as ng

ONE_PASS, FIXED_POINT = 1e-12, 1e-9
"""How closely the two agree: after as many operations as each other, and where each has stopped to iterate."""


class Textbook(NamedTuple):
    """A model with linear dynamics and a nonlinear observation of the first entries of the state."""

    transition: np.ndarray
    noise: np.ndarray
    initial_mean: np.ndarray
    initial_covariance: np.ndarray
    observe: Callable[[np.ndarray], np.ndarray]
    jacobian: Callable[[np.ndarray], np.ndarray]
    observation_noise: np.ndarray


class Case(NamedTuple):
    """A textbook model with observations of all steps, and the same as a newtongp model and its rows."""

    textbook: Textbook
    observations: np.ndarray
    """(steps, outputs); NaN where there is none."""
    model: ng.Model
    x: np.ndarray
    y: np.ndarray
    latents: int

    @property
    def steps(self):
        return np.arange(len(self.observations))


# Two models ---------------------------------------------------------------------------------------

SENSORS = np.array([[-1.5, 0.5], [1.0, 1.0]])
BEARING_NOISE = np.diag([0.05, 0.1]) ** 2


class Bearings(ng.Likelihood):
    """The directions in which two sensors see a target in the plane."""

    num_latents = 2
    num_outputs = 2
    gaussian_form = True

    def mean(self, f):
        return jnp.arctan2(f[1] - SENSORS[:, 1], f[0] - SENSORS[:, 0])

    def covariance(self, f):
        return jnp.asarray(BEARING_NOISE)

    def log_prob(self, y, f):
        scaled = (y - self.mean(f)) / np.sqrt(np.diag(BEARING_NOISE))
        return -0.5 * jnp.sum(scaled**2) - 0.5 * np.log(np.linalg.det(2.0 * np.pi * BEARING_NOISE))


def bearings():
    """A target of nearly constant velocity; its state is (position, velocity)."""
    step, density = 0.1, 0.3
    eye = np.eye(2)
    textbook = Textbook(
        transition=np.block([[eye, step * eye], [0.0 * eye, eye]]),
        noise=density * np.block([[step**3 / 3 * eye, step**2 / 2 * eye], [step**2 / 2 * eye, step * eye]]),
        initial_mean=np.array([0.2, -0.3, 0.5, -0.2]),
        initial_covariance=np.diag([0.3, 0.2, 0.5, 0.5]) ** 2,
        observe=lambda x: np.arctan2(x[1] - SENSORS[:, 1], x[0] - SENSORS[:, 0]),
        jacobian=_bearing_jacobian,
        observation_noise=BEARING_NOISE,
    )
    return _case(textbook, Bearings(), latents=2, length=60, seed=2)


def _bearing_jacobian(x):
    away = x[:2] - SENSORS
    squared = np.sum(away**2, axis=1)
    return np.column_stack([-away[:, 1] / squared, away[:, 0] / squared, np.zeros((2, 2))])


SINE_NOISE = 0.1


class Sine(ng.Likelihood):
    """The horizontal position of a pendulum with angle f."""

    gaussian_form = True

    def mean(self, f):
        return jnp.sin(f)

    def covariance(self, f):
        return SINE_NOISE + jnp.zeros_like(f)

    def log_prob(self, y, f):
        return -0.5 * (y - jnp.sin(f)) ** 2 / SINE_NOISE - 0.5 * np.log(2.0 * np.pi * SINE_NOISE)


def pendulum():
    """A damped spring with random pushes: the pendulum of the book, with its own linear dynamics; (angle, speed)."""
    step, drift, density = 0.05, np.array([[0.0, 1.0], [-9.8, -0.2]]), 0.3
    # Q by the matrix fraction decomposition.
    pushed = np.block([[drift, np.diag([0.0, density])], [np.zeros((2, 2)), -drift.T]])
    exponential = expm(step * pushed)
    transition = exponential[:2, :2]
    noise = exponential[:2, 2:] @ transition.T
    textbook = Textbook(
        transition=transition,
        noise=0.5 * (noise + noise.T),
        initial_mean=np.array([1.2, 0.0]),
        initial_covariance=np.diag([0.3, 0.4]) ** 2,
        observe=lambda x: np.sin(x[:1]),
        jacobian=lambda x: np.array([[np.cos(x[0]), 0.0]]),
        observation_noise=np.array([[SINE_NOISE]]),
    )
    return _case(textbook, Sine(), latents=1, length=100, seed=0)


def _case(textbook, likelihood, latents, length, seed):
    """Simulated data with two kinds of gaps: rows whose y is missing, and steps without a row."""
    rng = np.random.default_rng(seed)
    size = len(textbook.initial_mean)
    state = rng.multivariate_normal(textbook.initial_mean, textbook.initial_covariance)
    observations = []
    for _ in range(length):
        outputs = rng.multivariate_normal(textbook.observe(state), textbook.observation_noise)
        observations.append(outputs)
        state = textbook.transition @ state + rng.multivariate_normal(np.zeros(size), textbook.noise)
    observations = np.array(observations)
    observations[[7, 20, 21, 22, length - 1]] = np.nan
    observations[30:38] = np.nan
    x = np.delete(np.arange(length), np.arange(30, 38))
    prior = ng.StateSpaceModel(
        textbook.transition,
        textbook.noise,
        np.eye(size)[:latents],
        initial_mean=textbook.initial_mean,
        initial_covariance=textbook.initial_covariance,
    )
    return Case(textbook, observations, ng.Model(prior, likelihood), x, observations[x], latents)


CASES = {"bearings": bearings(), "pendulum": pendulum()}


# The textbook -------------------------------------------------------------------------------------


def kalman_filter(book: Textbook, observations, update):
    """Predict, update, predict, ...: means and covariances of all filtered states."""
    mean, covariance = book.initial_mean, book.initial_covariance
    means, covariances = [], []
    for k, y in enumerate(observations):
        if k > 0:
            mean = book.transition @ mean
            covariance = book.transition @ covariance @ book.transition.T + book.noise
        if not np.any(np.isnan(y)):
            mean, covariance = update(k, mean, covariance, y)
        means.append(mean)
        covariances.append(covariance)
    return np.array(means), np.array(covariances)


def rts_smoother(book: Textbook, means, covariances):
    """Rauch, Tung and Striebel's recursion back from the last filtered state."""
    means, covariances = means.copy(), covariances.copy()
    for k in reversed(range(len(means) - 1)):
        predicted = book.transition @ covariances[k] @ book.transition.T + book.noise
        gain = np.linalg.solve(predicted, book.transition @ covariances[k]).T
        means[k] = means[k] + gain @ (means[k + 1] - book.transition @ means[k])
        covariances[k] = covariances[k] + gain @ (covariances[k + 1] - predicted) @ gain.T
    return means, covariances


def extended_update(book: Textbook):
    """h linearised at the predicted mean."""

    def update(k, mean, covariance, y):
        slope = book.jacobian(mean)
        innovation = slope @ covariance @ slope.T + book.observation_noise
        gain = covariance @ slope.T @ np.linalg.inv(innovation)
        return mean + gain @ (y - book.observe(mean)), covariance - gain @ innovation @ gain.T

    return update


def sigma_points(mean, covariance, kappa):
    """The 2n + 1 points of the unscented transform, and their weights."""
    size = len(mean)
    root = np.linalg.cholesky(covariance)
    points = [mean, *(mean + sign * np.sqrt(size + kappa) * column for column in root.T for sign in (1.0, -1.0))]
    weights = np.full(2 * size + 1, 0.5 / (size + kappa))
    weights[0] = kappa / (size + kappa)
    return np.array(points), weights


def gauss_hermite_points(mean, covariance, order):
    """The product rule over all entries of the state."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    grid = np.array(list(itertools.product(nodes, repeat=len(mean))))
    products = np.prod(list(itertools.product(weights / weights.sum(), repeat=len(mean))), axis=1)
    return mean + grid @ np.linalg.cholesky(covariance).T, products


def unscented_moments(book: Textbook, mean, covariance, kappa):
    return moments(book, mean, *sigma_points(mean, covariance, kappa))


def moments(book: Textbook, mean, points, weights):
    """Mean of h(x), its covariance with the noise added, and the covariance of x with h(x)."""
    observed = np.array([book.observe(point) for point in points])
    fitted = weights @ observed
    centred = observed - fitted
    spread = (weights[:, None] * centred).T @ centred + book.observation_noise
    return fitted, spread, (weights[:, None] * (points - mean)).T @ centred


def unscented_update(book: Textbook, kappa):
    return gaussian_update(book, lambda mean, covariance: sigma_points(mean, covariance, kappa))


def gaussian_update(book: Textbook, rule):
    """Of the Gaussian filter: x and y are taken to be jointly normal with these moments; nothing is linearised."""

    def update(k, mean, covariance, y):
        fitted, spread, cross = moments(book, mean, *rule(mean, covariance))
        gain = cross @ np.linalg.inv(spread)
        return mean + gain @ (y - fitted), covariance - gain @ spread @ gain.T

    return update


def assumed_density_update(book: Textbook):
    """The moments of p(y | x) times the prediction, for an observation of the first state, by the trapezoidal rule."""
    nodes = np.linspace(-8.0, 8.0, 2001)

    def update(k, mean, covariance, y):
        f = mean[0] + np.sqrt(covariance[0, 0]) * nodes
        residual = y[0] - np.array([book.observe(np.array([value, 0.0]))[0] for value in f])
        weights = np.exp(-0.5 * nodes**2 - 0.5 * residual**2 / book.observation_noise[0, 0])
        weights = weights / weights.sum()
        tilted = weights @ f
        gain = covariance[:, 0] / covariance[0, 0]
        change = weights @ (f - tilted) ** 2 - covariance[0, 0]
        return mean + gain * (tilted - mean[0]), covariance + change * np.outer(gain, gain)

    return update


def affine_update(slopes, offsets, noises):
    """Of the model y ≈ Hₖ x + bₖ + N(0, Ωₖ)."""

    def update(k, mean, covariance, y):
        slope = slopes[k]
        innovation = slope @ covariance @ slope.T + noises[k]
        gain = covariance @ slope.T @ np.linalg.inv(innovation)
        return mean + gain @ (y - slope @ mean - offsets[k]), covariance - gain @ innovation @ gain.T

    return update


def smooth(case: Case, update):
    return rts_smoother(case.textbook, *kalman_filter(case.textbook, case.observations, update))


def iterate_smoother(case: Case, linearise, first):
    """Linearise everywhere at the last smoothed path, smooth, and again until nothing moves."""
    means, covariances = smooth(case, first)
    for _ in range(200):
        parts = [linearise(mean, covariance) for mean, covariance in zip(means, covariances, strict=True)]
        moved = smooth(case, affine_update(*zip(*parts, strict=True)))
        change = np.max(np.abs(moved[0] - means))
        means, covariances = moved
        if change < 1e-13:
            return means, covariances
    raise AssertionError(f"the textbook's iteration has not converged: it still moves by {change:.1e}")


def extended_linearisation(book: Textbook):
    """Of the iterated extended Kalman smoother: a Gauss–Newton step on the whole path."""

    def linearise(mean, covariance):
        slope = book.jacobian(mean)
        return slope, book.observe(mean) - slope @ mean, book.observation_noise

    return linearise


def regression(book: Textbook, kappa):
    """Statistical linear regression of h on x, over a smoothed state."""

    def linearise(mean, covariance):
        fitted, spread, cross = unscented_moments(book, mean, covariance, kappa)
        slope = np.linalg.solve(covariance, cross).T
        return slope, fitted - slope @ mean, spread - slope @ covariance @ slope.T

    return linearise


# The comparison -----------------------------------------------------------------------------------


def check(case: Case, result: Any, means, covariances, tolerance):
    """States and latents at all steps, those without a row among them, relative to the largest."""
    states = result.posterior.states(case.steps[:, None])
    latents = result.predict(case.steps).latent
    first = slice(0, case.latents)
    pairs = {
        "state means": (states.mean, means),
        "state covariances": (states.covariance, covariances),
        "latent means": (latents.mean, means[:, first]),
        "latent covariances": (latents.covariance, covariances[:, first, first]),
        "means of the rows": (result.marginals.mean, means[case.x][:, first]),
        "covariances of the rows": (result.marginals.covariance, covariances[case.x][:, first, first]),
    }
    for name, (own, book) in pairs.items():
        np.testing.assert_allclose(own, book, rtol=0.0, atol=tolerance * np.max(np.abs(book)), err_msg=name)


# With n + κ' = n, the last is the cubature Kalman filter and smoother too.
RULES = [("bearings", 0.0), ("pendulum", 0.0), ("pendulum", 1.0)]


def unscented(kappa):
    return ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.Unscented(3, kappa=kappa))


def whole_state_kappa(case: Case, kappa):
    """κ' with n + κ' = D + κ."""
    return case.latents + kappa - len(case.textbook.initial_mean)


@pytest.mark.cases(thorough=["bearings", "pendulum"], others="slow")
@pytest.mark.parametrize("name", CASES)
def test_extended_kalman_filter_and_smoother(name):
    case = CASES[name]
    result = ng.filter_sweep(case.model, case.x, case.y, ng.Taylor())
    assert result.status is ng.Status.SINGLE_PASS
    check(case, result, *smooth(case, extended_update(case.textbook)), ONE_PASS)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(("name", "kappa"), RULES)
def test_unscented_kalman_filter_and_smoother(name, kappa):
    case = CASES[name]
    result = ng.filter_sweep(case.model, case.x, case.y, unscented(kappa))
    path = smooth(case, unscented_update(case.textbook, whole_state_kappa(case, kappa)))
    check(case, result, *path, ONE_PASS)


@pytest.mark.slow
@pytest.mark.thorough
def test_gauss_hermite_filter_and_smoother():
    case = CASES["pendulum"]
    method = ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.GaussHermite(3))
    result = ng.filter_sweep(case.model, case.x, case.y, method)
    update = gaussian_update(case.textbook, lambda mean, covariance: gauss_hermite_points(mean, covariance, 3))
    check(case, result, *smooth(case, update), ONE_PASS)


@pytest.mark.slow
@pytest.mark.thorough
def test_assumed_density_filter_and_smoother():
    case = CASES["pendulum"]
    result = ng.filter_sweep(case.model, case.x, case.y, ng.PowerEP(1.0, cubature=ng.cubature.GaussHermite(40)))
    check(case, result, *smooth(case, assumed_density_update(case.textbook)), FIXED_POINT)


@pytest.mark.cases(thorough=["bearings"], others="slow")
@pytest.mark.parametrize("name", CASES)
def test_iterated_extended_kalman_smoother(name):
    case = CASES[name]
    result = ng.infer(case.model, case.x, case.y, ng.Taylor(), tol=1e-11)
    assert result.status is ng.Status.CONVERGED
    path = iterate_smoother(case, extended_linearisation(case.textbook), extended_update(case.textbook))
    check(case, result, *path, FIXED_POINT)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize(("name", "kappa"), RULES)
def test_iterated_posterior_linearisation_smoother(name, kappa):
    case, whole = CASES[name], whole_state_kappa(CASES[name], kappa)
    result = ng.infer(case.model, case.x, case.y, unscented(kappa), tol=1e-11)
    assert result.status is ng.Status.CONVERGED
    path = iterate_smoother(case, regression(case.textbook, whole), unscented_update(case.textbook, whole))
    check(case, result, *path, FIXED_POINT)


@pytest.mark.cases(thorough=["bearings"])
@pytest.mark.parametrize("name", CASES)
def test_the_smoothers_are_not_all_the_same(name):
    """Agreement with the right one says something, because the others are far away."""
    case, book = CASES[name], CASES[name].textbook
    kappa = whole_state_kappa(case, 0.0)
    extended, sigma_point = extended_update(book), unscented_update(book, kappa)
    paths = [
        smooth(case, extended)[0],
        smooth(case, sigma_point)[0],
        iterate_smoother(case, extended_linearisation(book), extended)[0],
        iterate_smoother(case, regression(book, kappa), sigma_point)[0],
    ]
    for one, other in itertools.combinations(paths, 2):
        assert np.max(np.abs(one - other)) > 0.01


@pytest.mark.cases(thorough=["bearings"])
@pytest.mark.parametrize("name", CASES)
def test_the_iterated_extended_smoother_ends_at_the_most_probable_path(name):
    """The gradient of −log p(x, y) is zero there, in every state of every step."""
    case, book = CASES[name], CASES[name].textbook
    path, _ = iterate_smoother(case, extended_linearisation(book), extended_update(book))
    precision = np.linalg.inv(book.noise)
    gradient, size = np.zeros_like(path), np.zeros_like(path)

    def add(k, term):
        gradient[k] += term
        size[k] += np.abs(term)

    add(0, np.linalg.solve(book.initial_covariance, path[0] - book.initial_mean))
    for k in range(len(path) - 1):
        pushed = precision @ (path[k + 1] - book.transition @ path[k])
        add(k + 1, pushed)
        add(k, -book.transition.T @ pushed)
    for k in np.flatnonzero(~np.isnan(case.observations[:, 0])):
        residual = case.observations[k] - book.observe(path[k])
        add(k, -book.jacobian(path[k]).T @ np.linalg.solve(book.observation_noise, residual))
    assert np.max(np.abs(gradient)) < 1e-8 * np.max(size)
