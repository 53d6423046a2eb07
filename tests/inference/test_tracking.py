"""A target's range and bearing: y is a non-linear function of f, of which the prior knows little after a few steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng

COUNT, STEP, DIFFUSION = 200, 0.5, 0.05
EYE, NONE = np.eye(2), np.zeros((2, 2))
TRANSITION = np.block([[EYE, STEP * EYE], [NONE, EYE]])
NOISE = DIFFUSION * np.block([[STEP**3 / 3 * EYE, STEP**2 / 2 * EYE], [STEP**2 / 2 * EYE, STEP * EYE]])
START, SPREAD = np.array([50.0, 30.0, -1.0, 0.5]), np.diag([5.0, 5.0, 1.0, 1.0]) ** 2
ERRORS = np.array([0.5, 0.02])


class RangeBearing(ng.Likelihood):
    """The distance and the direction of a position in the plane, seen from the origin."""

    num_latents = 2
    num_outputs = 2
    gaussian_form = True

    def mean(self, f):
        return jnp.array([jnp.hypot(f[0], f[1]), jnp.arctan2(f[1], f[0])])

    def covariance(self, f):
        return jnp.diag(ERRORS**2)

    def log_prob(self, y, f):
        return -0.5 * jnp.sum(((y - self.mean(f)) / ERRORS) ** 2) - jnp.sum(jnp.log(ERRORS)) - jnp.log(2.0 * jnp.pi)


def path_and_data(seed, count=COUNT):
    rng = np.random.default_rng(seed)
    path = np.zeros((count, 4))
    path[0] = rng.multivariate_normal(START, SPREAD)
    for k in range(1, count):
        path[k] = TRANSITION @ path[k - 1] + rng.multivariate_normal(np.zeros(4), NOISE)
    seen = np.stack([np.hypot(path[:, 0], path[:, 1]), np.arctan2(path[:, 1], path[:, 0])], axis=1)
    return path[:, :2], seen + rng.normal(size=(count, 2)) * ERRORS


TRACKING = ng.Model(
    ng.StateSpaceModel(TRANSITION, NOISE, np.block([EYE, NONE]), initial_mean=START, initial_covariance=SPREAD),
    RangeBearing(),
)
IPLS = ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.Unscented(3))


def error_of(result, path):
    return np.sqrt(np.mean((result.marginals.mean - path) ** 2))


def agree(errors):
    return max(errors) - min(errors) <= 0.05 * max(errors)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", [IPLS, ng.Taylor()], ids=["IPLS", "IEKS"])
def test_iterated_smoothers_find_the_path_from_where_they_start(method):
    """From the prior, IPLS ended 26 to 60 m off on seeds 0, 4, 5 and 9, and IEKS 20 m off on 12."""
    steps = np.arange(COUNT)
    for seed in (0, 4, 5, 9, 12):
        path, y = path_and_data(seed)
        result = ng.infer(TRACKING, steps, y, method)
        assert result.status.ok and result.steps <= 5
        assert error_of(result, path) < 0.5


@pytest.mark.thorough
@pytest.mark.slow
def test_twenty_paths_by_four_smoothers():
    steps = np.arange(COUNT)
    for seed in range(20):
        path, y = path_and_data(seed)
        found = {
            "IPLS": ng.infer(TRACKING, steps, y, IPLS),
            "IEKS": ng.infer(TRACKING, steps, y, ng.Taylor()),
            "UKS": ng.filter_sweep(TRACKING, steps, y, IPLS),
            "VI": ng.infer(TRACKING, steps, y, ng.VI(), throw=False),
        }
        errors = {name: error_of(result, path) for name, result in found.items()}
        assert agree(list(errors.values())), (seed, errors)
        assert found["IPLS"].status.ok and found["IEKS"].status.ok
        # The last positions of seed 12 are within 2 posterior standard deviations of the negative x axis, where the
        # bearing jumps by 2π: E_q[log p] has no smooth optimum there, and VI ends where no step is acceptable.
        assert found["VI"].status.ok or seed == 12


def dense_tracking(prior):
    """The same dynamics as a GP: an integrated random walk from an unknown start, around a known line."""

    line = ng.means.Independent([lambda x: 50.0 - x[0], lambda x: 30.0 + 0.5 * x[0]])

    def kernel():
        walk = ng.kernels.IntegratedBrownian(DIFFUSION, origin=0.0)
        return walk + ng.kernels.Linear(1.0) + ng.kernels.Constant(25.0)

    return ng.Model(prior(ng.kernels.Independent([kernel(), kernel()]), mean=line), RangeBearing())


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("seed", [0, 4, 12])
def test_priors_without_an_order_of_time_start_from_a_sweep_too(seed):
    path, y = path_and_data(seed)
    times = STEP * np.arange(COUNT)
    dense, markov = (ng.infer(dense_tracking(prior), times, y, IPLS) for prior in (ng.GP, ng.MarkovGP))
    assert dense.status.ok and markov.status.ok
    assert error_of(dense, path) < 0.5
    np.testing.assert_allclose(dense.marginals.mean, markov.marginals.mean, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.slow
def test_progress_and_iterate_start_from_the_same_sweep():
    path, y = path_and_data(0)
    steps = np.arange(COUNT)
    *_, last = ng.iterate(TRACKING, steps, y, IPLS, tol=1e-6)
    assert last.steps <= 5
    assert error_of(last.posterior, path) < 0.5
    shown = ng.infer(TRACKING, steps, y, IPLS, progress=True)
    assert shown.energy == pytest.approx(last.energy, abs=1e-6)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_chain_in_pieces_is_swept_in_order_of_time():
    _, y = path_and_data(0)
    prior = ng.StateSpaceModel(
        TRANSITION, NOISE, np.block([EYE, NONE]), initial_mean=START, initial_covariance=SPREAD, pieces=8
    )
    swept = [
        ng.filter_sweep(ng.Model(each, RangeBearing()), np.arange(COUNT), y, IPLS) for each in (TRACKING.prior, prior)
    ]
    np.testing.assert_allclose(swept[1].sites.precision, swept[0].sites.precision, rtol=1e-10)
    np.testing.assert_allclose(swept[1].marginals.mean, swept[0].marginals.mean, rtol=1e-9)
