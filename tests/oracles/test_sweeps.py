"""Single-pass smoothers of other software; see README.md in this folder."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.numerics.size_classes import first_rows

CASES = {
    path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "data/sweeps").glob("*.json"))
}


class Sine(ng.Likelihood):
    """y = sin(f) + noise of variance 0.04."""

    gaussian_form = True

    def log_prob(self, y, f):
        return -0.5 * (y - jnp.sin(f)) ** 2 / 0.04 - 0.5 * jnp.log(2.0 * jnp.pi * 0.04)

    def mean(self, f):
        return jnp.sin(f)

    def covariance(self, f):
        return 0.04 * jnp.ones_like(f)


class StateUnscented(ng.cubature.Cubature):
    """Sigma points of a state of two entries with α = √3, β = 2, κ = 1, as the first entry sees them."""

    def rule(self, dimension):
        return np.array([[0.0], [3.0], [-3.0]]), np.array([8.0, 0.5, 0.5]) / 9.0


def method_of(name):
    if "ekf" in name:
        return ng.Taylor(), ng.cubature.PointRule()
    if "gauss_hermite" in name:
        return ng.PosteriorLinearisation(
            slope="regression", cubature=ng.cubature.GaussHermite(10)
        ), ng.cubature.GaussHermite(10)
    if "ukf" in name or "unscented" in name:
        return ng.PosteriorLinearisation(slope="regression", cubature=StateUnscented()), StateUnscented()
    return ng.VI(), None


def likelihood_of(words):
    return {
        "poisson": lambda: ng.likelihoods.Poisson(),
        "bernoulli_logit": lambda: ng.likelihoods.Bernoulli("logit"),
        "gaussian_nonlinear": Sine,
        "gaussian": lambda: ng.likelihoods.Gaussian(words["variance"]),
    }[words["type"]]()


def log_likelihood(result, rule, y):
    """Σ log N(yₙ | E[y], Var[y]) under what the rows before predict; the extended filter linearises at the mean."""
    latent, likelihood = result.posterior.one_step_ahead(), result.model.likelihood
    mean, variance = latent.mean[:, 0], latent.covariance[:, 0, 0]
    with jax.enable_x64(True):
        if isinstance(rule, ng.cubature.PointRule):
            centre, slope = likelihood.mean(mean), jax.vmap(jax.grad(likelihood.mean))(jnp.asarray(mean))
            spread = slope**2 * variance + likelihood.covariance(mean)
        else:
            nodes, weights = rule.rule(1)
            f = mean[:, None] + np.sqrt(variance)[:, None] * nodes[:, 0][None, :]
            means = likelihood.mean(f)
            centre = means @ weights
            spread = (means - centre[:, None]) ** 2 @ weights + likelihood.covariance(f) @ weights
        centre, spread = np.asarray(centre), np.asarray(spread)
    return float(np.nansum(-0.5 * (np.log(2.0 * np.pi * spread) + (y - centre) ** 2 / spread)))


@pytest.mark.cases(
    quick=["E_dynamax_poisson_m32_cmgf_ekf"],
    thorough=[
        "E_dynamax_bernoulli_logit_m32_cmgf_ekf",
        "E_dynamax_sine_observation_cmgf_ekf",
        "E_dynamax_sine_observation_cmgf_gauss_hermite_order10",
        "E_dynamax_sine_observation_cmgf_ukf",
        "E_statsmodels_kalman_smoother_missing_data_m32",
    ],
    others="slow",
)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_other_software(name):
    case = CASES[name]
    data, outputs, kernel = case["data"], case["outputs"], case["kernel"]
    t = np.ravel(data.get("t", data.get("X")))
    y = np.ravel(np.array(data["Y"], dtype=float))
    method, rule = method_of(case["method"]["name"])
    prior = ng.MarkovGP(ng.kernels.Matern32(kernel["lengthscale"], kernel["variance"]))
    result = ng.filter_sweep(ng.Model(prior, likelihood_of(case["likelihood"])), t, y, method)
    tol = case["tolerance"]["posterior_abs"]
    np.testing.assert_allclose(result.marginals.mean[:, 0], outputs["posterior_mean"], rtol=0.0, atol=tol)
    np.testing.assert_allclose(result.marginals.variance[:, 0], outputs["posterior_var"], rtol=0.0, atol=tol)
    units = np.array([1.0, np.sqrt(3.0) / kernel["lengthscale"]])  # our second state is f' in units of the rate
    filtered = first_rows(result.posterior.held, t.size)
    np.testing.assert_allclose(filtered.mean * units, outputs["filtered_state_mean"], rtol=0.0, atol=tol)
    np.testing.assert_allclose(
        filtered.covariance * np.outer(units, units), outputs["filtered_state_cov"], rtol=0.0, atol=tol
    )
    if "smoothed_state_mean" in outputs:
        states = result.posterior.states(t[:, None])
        np.testing.assert_allclose(states.mean * units, outputs["smoothed_state_mean"], rtol=0.0, atol=tol)
        np.testing.assert_allclose(
            states.covariance * np.outer(units, units), outputs["smoothed_state_cov"], rtol=0.0, atol=tol
        )
    evidence = -result.energy if rule is None else log_likelihood(result, rule, y)
    assert evidence == pytest.approx(outputs["marginal_log_likelihood"], abs=case["tolerance"]["loglik_abs"])
