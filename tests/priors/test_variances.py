"""Variances that are small beside the prior's: right to the digits that are promised, never negative, and PSD."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng
from newtongp.numerics import kalman, small
from newtongp.priors.dense import _predict
from tests import exact
from tests.campaigns import variances as campaign

EPS = np.finfo(float).eps


# The dense prior against 60 digits ------------------------------------------------------------------------------------

ROWS = 8
KERNELS = {
    "matern12": (ng.kernels.Matern12, exact.matern12),
    "matern32": (ng.kernels.Matern32, exact.matern32),
    "rbf": (ng.kernels.RBF, exact.rbf),
}


def conditioned(prior, x, precision):
    with jax.enable_x64(True):
        sites = ng.Sites(jnp.zeros(precision.shape[:2]), jnp.asarray(precision))
        return jax.tree.map(np.asarray, campaign._condition(prior, jnp.asarray(x[:, None]), sites))


@pytest.mark.cases(slow=["True-matern32", "True-rbf"], others="thorough")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("repeated", [False, True])
def test_dense_variances_against_60_digits(name, repeated):
    kind, exact_kind = KERNELS[name]
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 4.0, ROWS) + 0.1 * rng.normal(size=ROWS)
    new = np.array([x[0], x[3] + 1e-6, 1.3, 4.5, 9.0])
    if repeated:
        x[1], x[5] = x[0], x[4]
    kernel = exact_kind(1000.0, 1.0)
    gram, cross = exact.gram_of(kernel, x, x), exact.gram_of(kernel, x, new)
    prior = exact.gram_of(kernel, new, new)
    for ratio in (0.1, 1e2, 1e6, 1e10, 1e13, 1e16):
        precision = np.full((ROWS, 1, 1), ratio / 1000.0)
        precision[2] = 0.0
        wide = exact.block_diagonal(precision)
        wanted = np.diagonal(exact.covariance_given_sites(gram, wide)[0]).astype(float)
        posterior, proper, _, marginals = conditioned(ng.GP(kind(1.0, 1000.0)), x, precision)
        assert proper
        found = marginals.variance[:, 0]
        there = precision[:, 0, 0] > 0.0
        # What is promised: to rounding where inputs are apart, and to rounding times ΛK where they are not.
        lost = 8.0 * ROWS * EPS * ratio if repeated or name == "rbf" else 1e-9
        if lost < 0.1:
            np.testing.assert_allclose(found[there], wanted[there], rtol=1e-9 + lost)
        assert np.all(found[there] <= (1.0 + 1e-12) / precision[there, 0, 0])
        assert np.all(found[there] > wanted[there] / 2.0)
        full, weights = exact.covariance_given_sites(gram, wide, cross, prior)
        wanted_new = np.diagonal(full).astype(float)
        # Rounding relative to the prior variance, times how far the weights of the mean reach.
        reach = (1.0 + np.sum(np.abs(weights), axis=0).astype(float)) ** 2
        slack = (1.0 if posterior.lift == 0.0 else 4.0 * ROWS) * 10.0 * EPS * 1000.0 * reach
        with jax.enable_x64(True):
            predicted, gone = jax.tree.map(np.asarray, _predict(posterior, jnp.asarray(new[:, None])))
        assert np.all(np.abs(predicted.variance[:, 0] - wanted_new) <= slack)
        assert np.all(predicted.variance > 0.0)
        if ratio <= 1e6:
            assert not np.any(gone)


@pytest.mark.cases(thorough=["full", "mixed"], others="slow")
@pytest.mark.parametrize("kind", ["full", "mixed", "negative"])
def test_dense_covariances_of_two_latents_against_60_digits(kind):
    rng = np.random.default_rng(1)
    x = np.linspace(0.0, 6.0, ROWS) + 0.1 * rng.normal(size=ROWS)
    gram = exact.exact(np.zeros((2 * ROWS, 2 * ROWS)))
    gram[::2, ::2] = exact.gram_of(exact.matern32(1.0, 1.0), x, x)
    gram[1::2, 1::2] = exact.gram_of(exact.matern12(1.0, 1.0), x, x)
    prior = ng.GP(ng.kernels.Independent([ng.kernels.Matern32(), ng.kernels.Matern12()]))
    for ratio in (1e1, 1e5, 1e9, 1e15):
        turned = np.linalg.qr(rng.normal(size=(ROWS, 2, 2)))[0]
        other = {"full": 0.5 * ratio, "mixed": 1e-3 * ratio, "negative": -0.3}[kind]
        precision = np.einsum("nij,j,nkj->nik", turned, [ratio, other], turned)
        precision = 0.5 * (precision + np.swapaxes(precision, 1, 2))
        if kind == "negative" and ratio > 1e9:
            continue  # in 16 digits, the negative eigenvalue is not there
        wanted, _ = exact.covariance_given_sites(gram, exact.block_diagonal(precision))
        wanted = np.stack([wanted[i : i + 2, i : i + 2] for i in range(0, 2 * ROWS, 2)]).astype(float)
        _, proper, _, marginals = conditioned(prior, x, precision)
        assert proper
        # Eigenvalues of Λ have errors of rounding's size relative to the largest.
        slack = 1e-9 + 10.0 * EPS * ratio / abs(other)
        np.testing.assert_allclose(marginals.variance, np.diagonal(wanted, axis1=1, axis2=2), rtol=slack)
        assert np.all(np.linalg.eigvalsh(marginals.covariance) > 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("variance", "noise"), [(1e6, 1e-10), (1e3, 1e-13), (1.0, 1e-16)])
def test_precise_data_have_variances_and_densities(variance, noise):
    x = np.arange(6.0)
    model = ng.Model(ng.GP(ng.kernels.Matern32(1.0, variance)), ng.likelihoods.Gaussian(noise))
    result = ng.infer(model, x, np.sin(x))
    np.testing.assert_allclose(result.marginals.variance, noise, rtol=1e-9)
    with pytest.warns(ng.RoundingWarning, match="6 of 6 predicted variances") as caught:
        latent = result.predict(x).latent
    assert [each.filename for each in caught] == [__file__]
    assert np.all(latent.variance > 0.0) and np.all(latent.variance < 1e-14 * variance)
    with pytest.warns(ng.RoundingWarning):
        assert np.all(np.isfinite(result.log_density(x, np.sin(x))))
    with pytest.warns(ng.RoundingWarning):
        assert np.all(np.isfinite(result.sample(0, x, 2)))


# Chains ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.thorough
def test_precise_sites_on_turned_latents_of_a_chain_against_60_digits():
    """Two latents, sites in directions of their own, 1e21 times as precise as the prior, and several at one step."""
    rng = np.random.default_rng(2)
    steps = np.sort(np.concatenate([[0, 0, 0], rng.integers(1, 9, 7)]))
    transition, noise = np.array([[1.0, 0.1], [0.0, 0.95]]), 1e4 * np.diag([1e-3, 1e-2])
    turned = np.linalg.qr(rng.normal(size=(10, 2, 2)))[0]
    states, powers = [exact.exact(1e4 * np.eye(2))], [exact.exact(np.eye(2))]
    for _ in range(10):
        powers.append(exact.exact(transition) @ powers[-1])
        states.append(exact.exact(transition) @ states[-1] @ exact.exact(transition).T + exact.exact(noise))
    gram = exact.exact(np.zeros((20, 20)))
    for i, a in enumerate(steps):
        for j, b in enumerate(steps):
            between = powers[a - b] @ states[b] if a >= b else states[a] @ powers[b - a].T
            for k in range(2):
                gram[2 * i + k, 2 * j + k] = between[0, 0]
    moved = np.diff(steps, prepend=0)
    assert np.all(moved <= 10)
    blocks = [np.linalg.matrix_power(transition, int(move)) for move in moved]
    spreads = [np.zeros((2, 2)) for _ in moved]
    for spread, move in zip(spreads, moved, strict=True):
        for _ in range(move):
            spread[:] = transition @ spread @ transition.T + noise
    for size in (1e0, 1e6, 1e17):
        precision = np.einsum("nij,nj,nkj->nik", turned, size * rng.uniform(0.5, 2.0, (10, 2)), turned)
        precision = 0.5 * (precision + np.swapaxes(precision, 1, 2))
        wanted, _ = exact.covariance_given_sites(gram, exact.block_diagonal(precision))
        wanted = np.stack([wanted[i : i + 2, i : i + 2] for i in range(0, 20, 2)]).astype(float)
        with jax.enable_x64(True):
            chain = kalman.make_chain(
                (jnp.stack(blocks),) * 2, (jnp.stack(spreads),) * 2, (1e4 * jnp.eye(2),) * 2, ((0,), (2,))
            )
            found = jax.jit(kalman.marginals)(chain, jnp.asarray(precision), jnp.zeros((10, 2)))
        np.testing.assert_allclose(found.covariance, wanted, rtol=1e-7, atol=1e-9 * np.min(np.abs(wanted)))
        assert not np.any(found.lost)


def line_in_60_digits(x, new, noise):
    """The posterior covariance of 1 + x x' given rows with noise, at the rows and at new inputs."""
    every = exact.exact(np.concatenate([x, new]))
    gram = every[:, None] * every[None, :] + exact.exact(np.ones((every.size, every.size)))
    wide = exact.block_diagonal(np.where(np.isnan(noise), 0.0, 1.0 / noise)[:, None, None])
    rows = len(x)
    at_rows, _ = exact.covariance_given_sites(gram[:rows, :rows], wide)
    at_new, _ = exact.covariance_given_sites(gram[:rows, :rows], wide, gram[:rows, rows:], gram[rows:, rows:])
    return at_rows.astype(float), at_new.astype(float)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("noise", [1e-2, 1e-6, 1e-10, 1e-15])
def test_a_sum_of_states_without_noise_against_60_digits(noise):
    x, new = np.sort(np.random.default_rng(0).uniform(0.0, 10.0, 10)), np.array([0.0, 0.3, 2.5, 12.0])
    y = 1.0 + 0.5 * x
    y[[0, 6]] = np.nan
    wanted, wanted_new = line_in_60_digits(x, new, np.where(np.isnan(y), np.nan, noise))
    prior = ng.MarkovGP(ng.kernels.Linear() + ng.kernels.Constant())
    result = ng.infer(ng.Model(prior, ng.likelihoods.Gaussian(noise)), x, y)
    np.testing.assert_allclose(result.marginals.variance[:, 0], np.diagonal(wanted), rtol=1e-7)
    np.testing.assert_allclose(result.posterior.marginals.variance[:, 0], np.diagonal(wanted), rtol=1e-7)
    # Of values that are exactly on the line.
    np.testing.assert_allclose(result.marginals.mean[:, 0], 1.0 + 0.5 * x, rtol=0.0, atol=10.0 * np.sqrt(noise))
    predicted, joint = result.posterior.predict(new[:, None]), result.posterior.joint(new[:, None])
    np.testing.assert_allclose(predicted.variance[:, 0], np.diagonal(wanted_new), rtol=1e-7)
    np.testing.assert_allclose(joint.covariance, wanted_new, rtol=1e-6, atol=1e-6 * np.min(np.diagonal(wanted_new)))
    states = result.posterior.states(new[:, None]).covariance
    assert np.all(np.linalg.eigvalsh(states) >= -1e-15 * np.trace(states, axis1=1, axis2=2)[:, None])
    draws = result.posterior.draw(jax.random.key(0), new[:, None], 2000)[:, :, 0]
    np.testing.assert_allclose(np.var(draws, axis=0), np.diagonal(wanted_new), rtol=0.2)


def test_a_mended_covariance_of_small_variances_is_psd():
    """Between two variances of 1e-18, rounding has left a covariance of 1e-6."""
    for given_one in (np.array([[1e-18, 1e-6], [1e-6, 2e-18]]), np.diag(np.full(9, 1e-18)) + 1e-6 * np.eye(9)[::-1]):
        np.fill_diagonal(given_one, 1e-18)
        with jax.enable_x64(True):
            mended = np.asarray(jax.jit(small.small_covariance)(jnp.asarray(given_one)))
        assert np.all(np.linalg.eigvalsh(mended) >= -1e-15 * 1e-18)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_state_space_model_far_too_wide_for_its_data_stays_proper():
    transition = np.kron(np.eye(2), [[1.0, 0.1], [0.0, 0.95]])
    noise = 1e4 * np.kron(np.eye(2), np.diag([1e-3, 1e-2]))
    observation = np.kron(np.eye(2), [[1.0, 0.0]])
    prior = ng.StateSpaceModel(transition, noise, observation, initial_covariance=1e4 * np.eye(4))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 24, size=12).astype(float)
        y = 1e-6 * rng.normal(size=12)
        y[3] *= 1e4
        x[0], x[-1] = 0, 23
        result = ng.infer(ng.Model(prior, ng.likelihoods.Product(1e-13, None)), x, y, max_steps=40, throw=False)
        assert np.all(result.marginals.variance > 0.0)
        assert result.steps > 1 and np.all(np.diff(result.history.objective) < 0.0)


# All priors -----------------------------------------------------------------------------------------------------

QUICK = {"GP, matern32, 2 latent(s)", "MarkovGP, matern12, 1 latent(s)", "LinearModel, -, 1 latent(s)"}


def structures():
    """All of the campaign's; those that compile much run with the slow tests."""
    for structure in campaign.STRUCTURES:
        marks = [] if str(structure) in QUICK else [pytest.mark.slow]
        yield pytest.param(structure, marks=marks, id=str(structure))


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("structure", list(structures()))
def test_no_variance_is_negative_and_every_covariance_is_psd(structure):
    @given(seed=st.integers(0, 2**31))
    def run(seed):
        case = campaign.draw(structure, seed)
        ending, found = campaign.faults_of(case)
        assert not found, (ending, found, case)

    run()


# Draws in which digits were lost once: chains whose latent is a sum of states, singular sites on two latents, and
# nearly repeated inputs of a dense GP with two.
LOST = {5: (71,), 13: (61, 98, 152, 176), 14: (36, 116), 16: (80, 100), 18: (196, 215), 10: (2412, 2745, 3444)}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("index", LOST)
def test_no_digits_are_lost_in_draws_that_once_lost_them(index):
    for seed in LOST[index]:
        case = campaign.draw(campaign.STRUCTURES[index], seed)
        assert campaign.faults_of(case) == ("proper", [])


@pytest.mark.thorough
@pytest.mark.slow
def test_very_precise_sites_on_a_chain_in_pieces_whose_observation_changes():
    rng = np.random.default_rng(0)
    seen = np.stack([np.ones(24), rng.normal(size=24)], axis=1)[:, None, :]
    y = rng.normal(size=24)
    found = []
    for pieces in (1, 3):
        prior = ng.StateSpaceModel(np.eye(2), 1e-3 * np.eye(2), seen, initial_covariance=np.eye(2), pieces=pieces)
        found.append(ng.infer(ng.Model(prior, ng.likelihoods.Gaussian(1e-9)), np.arange(24.0), y))
    one, several = (each.marginals for each in found)
    np.testing.assert_allclose(several.mean, one.mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(several.variance, one.variance, rtol=1e-6)
    np.testing.assert_allclose(one.mean[:, 0], y, atol=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_data_far_from_the_prior_mean_are_not_taken_for_precise_ones():
    x = np.linspace(0.0, 5.0, 12)
    model = ng.Model(ng.MarkovGP(ng.kernels.Matern32()), ng.likelihoods.Gaussian(0.01))
    sites = ng.infer(model, x, 1e3 + np.sin(x)).sites
    with jax.enable_x64(True):
        workspace = eqx.filter_jit(model.prior.prepare)(model.prior.layout(x[:, None]).inputs)
        assert workspace.refined(sites) is None
        assert workspace.refined(ng.Sites(sites.linear, 1e9 * sites.precision)) is not None


def test_the_campaign_sees_faults():
    assert campaign._of_matrix("a", np.array([[-1.0]])) == ["a variance negative"]
    assert campaign._of_matrix("a", np.array([[1.0, 1.1], [1.1, 1.0]])) == ["a covariance not PSD"]
    assert campaign._of_matrix("a", np.array([[np.nan]])) == ["a covariance not finite"]
    assert not campaign._of_matrix("a", np.array([[1.0, 1.0], [1.0, 1.0]]))
    assert len(campaign.STRUCTURES) * campaign.DRAWS >= 5000
    assert {each.prior for each in campaign.STRUCTURES} == {
        "GP",
        "SparseGP",
        "MarkovGP",
        "StateSpaceModel",
        "LinearModel",
    }
