"""State space models given by their matrices, against dense linear algebra on all states at once."""

import numpy as np
import pytest

import newtongp as ng

STEPS = 7
RNG = np.random.default_rng(3)
TRANSITIONS = 0.4 * RNG.normal(size=(STEPS - 1, 3, 3)) + 0.5 * np.eye(3)
ROOTS = RNG.normal(size=(STEPS - 1, 3, 3))
NOISES = 0.2 * ROOTS @ np.swapaxes(ROOTS, 1, 2) + 0.05 * np.eye(3)
OBSERVATIONS = RNG.normal(size=(STEPS, 2, 3))
OFFSETS, SHIFTS = RNG.normal(size=(STEPS - 1, 3)), RNG.normal(size=(STEPS, 2))
START_MEAN, START_COVARIANCE = np.array([0.5, -1.0, 0.2]), np.diag([1.0, 0.5, 2.0])
NOISE = np.array([[0.3, 0.1], [0.1, 0.4]])

PRIOR = ng.StateSpaceModel(
    TRANSITIONS,
    NOISES,
    OBSERVATIONS,
    START_MEAN,
    START_COVARIANCE,
    transition_offset=OFFSETS,
    observation_offset=SHIFTS,
)
MODEL = ng.Model(PRIOR, ng.likelihoods.MultivariateGaussian(NOISE))
# A step twice, one not at all, one row missing and one in part; not in order.
X = np.array([4, 0, 1, 1, 6, 5, 2])
Y = RNG.normal(size=(7, 2))
Y[5] = np.nan
Y[2, 1] = np.nan


def all_states():
    """Mean and covariance of the states of all steps a priori."""
    mean, covariance = np.zeros((STEPS, 3)), np.zeros((STEPS, 3, STEPS, 3))
    mean[0], covariance[0, :, 0] = START_MEAN, START_COVARIANCE
    for k, (transition, noise, offset) in enumerate(zip(TRANSITIONS, NOISES, OFFSETS, strict=True)):
        mean[k + 1] = transition @ mean[k] + offset
        for j in range(k + 1):
            covariance[k + 1, :, j] = transition @ covariance[k, :, j]
            covariance[j, :, k + 1] = covariance[k + 1, :, j].T
        covariance[k + 1, :, k + 1] = transition @ covariance[k, :, k] @ transition.T + noise
    return mean.ravel(), covariance.reshape(3 * STEPS, 3 * STEPS)


def exact(x=X, y=Y):
    """The states of all steps given the numbers that were observed, and log p(y)."""
    mean, covariance = all_states()
    rows, shift = np.zeros((len(x), 2, STEPS, 3)), SHIFTS[x]
    rows[np.arange(len(x)), :, x] = OBSERVATIONS[x]
    rows = rows.reshape(2 * len(x), 3 * STEPS)
    kept = np.flatnonzero(~np.isnan(y).ravel())
    rows, residual = rows[kept], (y - shift).ravel()[kept] - rows[kept] @ mean
    noise = np.kron(np.eye(len(x)), NOISE)[np.ix_(kept, kept)]
    total = rows @ covariance @ rows.T + noise
    gain = np.linalg.solve(total, rows @ covariance).T
    log_density = -0.5 * (
        kept.size * np.log(2 * np.pi) + np.linalg.slogdet(total)[1] + residual @ np.linalg.solve(total, residual)
    )
    return mean + gain @ residual, covariance - gain @ rows @ covariance, log_density


@pytest.fixture(scope="module")
def result():
    return ng.infer(MODEL, X, Y)


@pytest.mark.slow
@pytest.mark.thorough
def test_states_and_evidence(result):
    mean, covariance, log_density = exact()
    assert result.energy == pytest.approx(-log_density, abs=1e-9)
    order = np.array([3, 0, 6, 6])
    states = result.states(order)
    np.testing.assert_allclose(states.mean, mean.reshape(STEPS, 3)[order], atol=1e-10)
    blocks = covariance.reshape(STEPS, 3, STEPS, 3)
    np.testing.assert_allclose(states.covariance, [blocks[k, :, k] for k in order], atol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_latents_and_their_joint_covariance(result):
    mean, covariance, _ = exact()
    order = np.array([6, 3, 0])
    rows = np.zeros((3, 2, STEPS, 3))
    rows[np.arange(3), :, order] = OBSERVATIONS[order]
    rows = rows.reshape(6, 3 * STEPS)
    latent = result.predict(order).latent
    np.testing.assert_allclose(latent.mean, (rows @ mean).reshape(3, 2) + SHIFTS[order], atol=1e-10)
    wanted = rows @ covariance @ rows.T
    blocks = wanted.reshape(3, 2, 3, 2)
    np.testing.assert_allclose(latent.covariance, [blocks[k, :, k] for k in range(3)], atol=1e-10)
    joint = result.posterior.joint(order[:, None].astype(float))
    np.testing.assert_allclose(np.reshape(joint.covariance, (6, 6)), wanted, atol=1e-10)


@pytest.mark.thorough
@pytest.mark.slow
def test_draws_have_the_moments_of_the_latents(result):
    order = np.array([6, 3, 0])
    draws = result.sample(0, order, 4000)
    joint = result.posterior.joint(order[:, None].astype(float))
    covariance = np.reshape(joint.covariance, (6, 6))
    error = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)) / 4000)
    flat = draws.reshape(4000, 6)
    assert np.max(np.abs(flat.mean(axis=0) - np.ravel(joint.mean)) / np.sqrt(np.diag(covariance) / 4000)) < 4.5
    assert np.max(np.abs(np.cov(flat.T) - covariance) / error) < 6.0


@pytest.mark.slow
def test_forecasts_go_on_from_the_last_state():
    prior = ng.StateSpaceModel([[0.9]], [[0.1]], [[1.0]], [0.0], [[1.0]])
    result = ng.infer(ng.Model(prior, ng.likelihoods.Gaussian(0.2)), [0, 1, 2], [0.3, 0.5, 0.1])
    last, ahead = result.states([2]), result.states([4])
    np.testing.assert_allclose(ahead.mean, 0.81 * last.mean, rtol=1e-12)
    np.testing.assert_allclose(ahead.covariance, 0.81**2 * last.covariance + 0.1 * (1.0 + 0.81), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.thorough
def test_one_step_ahead_adds_up_to_the_evidence():
    """The rows in order of time, each given those before it."""
    x, y = np.arange(STEPS), RNG.normal(size=(STEPS, 2))
    _, _, log_density = exact(x, y)
    result = ng.infer(MODEL, x, y)
    assert np.sum(result.one_step_ahead()) == pytest.approx(log_density, abs=1e-9)


@pytest.mark.slow
def test_states_are_for_priors_in_time():
    model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian(0.1))
    with pytest.raises(ValueError, match="states needs a prior in time"):
        ng.infer(model, [0.0, 1.0], [0.0, 1.0]).states([0.5])
