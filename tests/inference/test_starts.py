"""Where inference starts from, what it cannot start from, and rules too coarse for what they integrate."""

import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.methods import first_order

N = 12
X = np.linspace(0.0, 5.0, N)
Y = np.sin(X)
MODEL = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.StudentT(4.0, 0.5))


class TwoOutputs(ng.Likelihood):
    """Two outputs of one latent."""

    num_outputs = 2

    def log_prob(self, y, f):
        return -0.5 * jnp.sum((y - f) ** 2)


@pytest.mark.parametrize(
    ("method", "fragment"),
    [
        (ng.PowerEP(1.0, cubature=ng.cubature.PointRule()), "a single node at its mean"),
        (ng.PowerEP(0.5, cubature=ng.cubature.GaussHermite(1)), "a single node at its mean"),
        (
            ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.GaussHermite(1)),
            "a single node at its mean",
        ),
    ],
    ids=["point", "one node", "regression on one node"],
)
def test_rules_that_see_no_spread_are_refused_where_spread_is_needed(method, fragment):
    with pytest.raises(ValueError, match=fragment):
        ng.infer(MODEL, X, Y, method)


@pytest.mark.slow
def test_sites_with_an_improper_posterior_are_refused():
    with pytest.raises(
        ValueError, match=r"inference cannot start from these sites \(improper_posterior\).*Sites\.constant"
    ):
        ng.infer(MODEL, X, Y, sites=ng.Sites.constant(N, 1, -5.0))


@pytest.mark.parametrize("method", [ng.FirstOrderVI(), ng.VI(safeguard=ng.Riemannian())], ids=["adam", "riemannian"])
def test_methods_that_invert_precisions_need_positive_ones(method):
    with pytest.raises(ValueError, match="positive definite"):
        ng.infer(MODEL, X, Y, method, sites=ng.Sites.constant(N, 1, 0.0))


@pytest.mark.parametrize(
    "step", [ng.Damped(), ng.Backtracking(), ng.Constant(0.5)], ids=["damped", "backtracking", "half"]
)
def test_first_order_vi_has_its_own_step(step):
    with pytest.raises(ValueError, match="learning_rate"):
        ng.infer(MODEL, X, Y, ng.FirstOrderVI(), step)


def test_partly_missing_rows_are_refused_and_not_dropped():
    y = np.column_stack([Y, Y])
    y[4, 1] = np.nan
    with pytest.raises(ValueError, match="row 4"):
        ng.infer(ng.Model(ng.GP(ng.kernels.RBF()), TwoOutputs()), X, y)


def test_a_tolerance_of_zero_never_converges():
    model = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.Gaussian(0.1))
    result = ng.infer(model, X, Y, ng.VI(), ng.Constant(1.0), max_steps=7, tol=0.0, throw=False)
    assert result.steps == 7 and result.status is ng.Status.MAX_STEPS


@pytest.mark.slow
def test_a_prior_too_wide_for_the_likelihood_starts_from_sites_that_hold_it():
    """E[exp f] overflows under this prior, so nothing is finite at the prior itself."""
    model = ng.Model(ng.GP(ng.kernels.Matern32(variance=4000.0)), ng.likelihoods.Poisson())
    result = ng.infer(model, X, np.arange(N), max_steps=300)
    assert result.status.ok
    assert np.all(np.isfinite(result.history.energy))


@pytest.mark.slow
def test_the_start_does_not_depend_on_who_watches():
    """Everything is finite at this prior, but no step leads on from it."""
    model = ng.Model(ng.GP(ng.kernels.Matern32(variance=200.0)), ng.likelihoods.Gamma(400.0))
    silent, shown = (ng.infer(model, X, np.exp(Y), progress=progress) for progress in (False, True))
    assert silent.status.ok and shown.status.ok
    assert shown.energy == pytest.approx(silent.energy, abs=1e-6)
    *_, last = ng.iterate(model, X, np.exp(Y), tol=1e-6)
    assert last.energy == pytest.approx(silent.energy, abs=1e-6)


@pytest.mark.cases(thorough=["1.0"], others="slow")
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_power_ep_survives_a_likelihood_narrower_than_the_gaps_between_nodes(power):
    rng = np.random.default_rng(0)
    model = ng.Model(ng.GP(ng.kernels.Matern32()), ng.likelihoods.Gamma(400.0))
    result = ng.infer(model, X, rng.gamma(400.0, np.exp(Y)), ng.PowerEP(power))
    assert result.status.ok
    np.testing.assert_allclose(result.marginals.mean[:, 0], Y, atol=0.2)


def test_nodes_that_overflow_are_an_error():
    with pytest.raises(ValueError, match="order 400"):
        ng.cubature.GaussHermite(400).rule(1)
    assert np.isclose(ng.cubature.GaussHermite(250).rule(1)[1].sum(), 1.0)


COUNTS = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X)))


@pytest.mark.slow
def test_a_start_that_leads_only_to_absurd_sites_is_left_for_another():
    """E[exp f] is e¹⁰⁰ at this prior. It is finite, and from there every step only halves the absurd precisions."""
    inducing = np.linspace(0.0, 5.0, 10)[:, None]
    prior = ng.SparseGP(ng.kernels.Matern32(lengthscale=4.0, variance=200.0), inducing)
    result = ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), X, COUNTS)
    assert result.status.ok and result.steps < 30


@pytest.mark.cases(thorough=["4000.0-full", "200.0-tied", "200.0-full"], slow=["4000.0-tied"])
@pytest.mark.parametrize("storage", ["full", "tied"])
@pytest.mark.parametrize("variance", [200.0, 4000.0])
def test_batches_start_from_sites_that_hold_f_where_the_prior_is_far_too_wide(storage, variance):
    inducing = np.linspace(0.0, 5.0, 10)[:, None]
    kernel = ng.kernels.Matern32(lengthscale=4.0, variance=variance)
    whole = ng.infer(ng.Model(ng.SparseGP(kernel, inducing), ng.likelihoods.Poisson()), X, COUNTS)
    prior = ng.SparseGP(kernel, inducing, storage=storage)
    result = ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), X, COUNTS, batch_size=5, max_steps=200)
    assert whole.status.ok and result.status.ok
    assert result.energy == pytest.approx(whole.energy, rel=1e-10)


@pytest.mark.slow
@in_double
def test_first_order_vi_steps_over_a_covariance_of_zero():
    # The root of the site's covariance is 0.1, and Adam's first step under a steep slope is as long as that.
    state = first_order.start(ng.Sites(jnp.zeros((1, 1)), jnp.full((1, 1, 1), 100.0)), 0.1)
    sites, _ = first_order.advance(lambda sites: -1e20 * jnp.sum(jnp.log(sites.precision)), state, 0.1)
    assert np.all(np.isfinite(sites.precision)) and np.all(sites.precision > 100.0)
