"""Numbers from R: kriging by gstat, and R-INLA's posteriors; `data/r/README.md` has conventions and tolerances."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

import newtongp as ng

DATA = Path(__file__).parent / "data" / "r"


def case_of(name):
    """The case and the columns of its data."""
    case = json.loads((DATA / f"{name}.json").read_text())
    return case, np.genfromtxt(DATA / case["data"], delimiter=",", names=True)


# Kriging ------------------------------------------------------------------------------------------------------------

MEUSE, PLACES = case_of("kriging_meuse")
AT = np.column_stack([PLACES["x"], PLACES["y"], PLACES["sqrtdist"]])
NEW = np.column_stack([MEUSE["new_points"]["x"], MEUSE["new_points"]["y"], np.sqrt(MEUSE["new_points"]["dist"])])


def kernel_and_nugget(variogram):
    nugget, (model, sill, length) = variogram["psill"][0], (variogram[part][1] for part in ("model", "psill", "range"))
    kernels = {
        "Exp": lambda: ng.kernels.Matern12(length, sill),
        "Mat": lambda: ng.kernels.Matern32(length * np.sqrt(3.0), sill),
        "Sph": lambda: ng.kernels.Spherical(length, sill),
    }
    return kernels[model]().on(0, 1), nugget


KRIGED = [(covariance, trend) for covariance, found in MEUSE["results"].items() for trend in found]


@pytest.mark.cases(
    thorough=["exponential-ordinary", "exponential-universal", "matern32-ordinary", "spherical_tutorial-ordinary"],
    others="slow",
)
@pytest.mark.parametrize(("covariance", "trend"), KRIGED)
def test_kriging_by_gstat(covariance, trend):
    expected = MEUSE["results"][covariance][trend]
    kernel, nugget = kernel_and_nugget(expected["variogram"])
    columns = [3] if trend == "ordinary" else [3, 2]
    design, new_design = (np.column_stack([x, np.ones(len(x))])[:, columns] for x in (AT, NEW))
    with jax.enable_x64(True):
        cross, own = (np.asarray(ng.kernels.gram(kernel, AT, x)) for x in (NEW, AT))
    # The coefficients of the mean, by generalised least squares.
    weights = np.linalg.solve(own + nugget * np.eye(len(AT)), design)
    of_beta = np.linalg.inv(design.T @ weights)
    beta = of_beta @ (weights.T @ PLACES["logzinc"])
    slope = [0.0, 0.0, 0.0 if trend == "ordinary" else beta[-1]]
    model = ng.Model(ng.GP(kernel, mean=ng.means.Linear(slope) + beta[0]), ng.likelihoods.Gaussian(nugget))
    result = ng.infer(model, AT, PLACES["logzinc"])
    prediction = result.predict(NEW)
    # At these coefficients: the best linear unbiased predictor, and the profile likelihood.
    np.testing.assert_allclose(prediction.mean, expected["mean"], atol=1e-9)
    gap = new_design - cross.T @ weights
    variance = prediction.std**2 + np.einsum("ij,jk,ik->i", gap, of_beta, gap)
    np.testing.assert_allclose(variance, expected["variance_of_new_observation"], atol=1e-9)
    if "beta" in expected:
        np.testing.assert_allclose(beta, expected["beta"]["mean"], rtol=1e-9)
        np.testing.assert_allclose(np.sqrt(np.diag(of_beta)), expected["beta"]["sd"], rtol=1e-9)
        np.testing.assert_allclose(-result.energy, expected["loglik_profile"], atol=1e-7)


# R-INLA -------------------------------------------------------------------------------------------------------------


def areas(name):
    """Rows (node, x, 1), counts and expected counts; the last column is 0 where the effect of the area is left out."""
    case, table = case_of(name)
    x = np.column_stack([np.arange(len(table)), table["x"], np.ones(len(table))])
    return case, np.array(case["edges_1_based"]) - 1, x, table["cases"], table["expected"]


def with_fixed_effects(effect):
    """f = intercept + slope · x + the effect of the area, with wide priors: their variances are not learned."""
    present = ng.kernels.Linear(1.0).on(2)
    return ng.GP(effect.on(0) * present + ng.kernels.Constant(100.0) + ng.kernels.Linear(1000.0).on(1))


FIXED = {
    name: ng.Fixed() for name in ("kernel[0][1].kernel.variance", "kernel[1].variance", "kernel[2].kernel.variance")
}


def fixed_effects(result):
    """Means and standard deviations of the intercept and the slope."""
    found = result.posterior.joint(np.array([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    means, covariance = np.ravel(found.mean), np.asarray(found.covariance)
    contrast = np.array([[1.0, 0.0], [-1.0, 1.0]])
    return contrast @ means, np.sqrt(np.diag(contrast @ covariance @ contrast.T))


@pytest.mark.cases(
    thorough=["inla_scotland_bym2-VI", "inla_scotland_bym2-PowerEP", "inla_pennsylvania_bym2-PowerEP"], others="slow"
)
@pytest.mark.parametrize("method", ["VI", "PowerEP"])
@pytest.mark.parametrize("name", ["inla_scotland_bym2", "inla_pennsylvania_bym2"])
def test_bym2_at_the_posterior_means_of_r_inla(name, method):
    case, edges, x, cases, expected = areas(name)
    tau, phi = case["summary_hyperpar"]["mean"]
    effect = ng.kernels.Graph(edges, "bym2", variance=1.0 / tau, phi=phi, nodes=len(x))
    model = ng.Model(with_fixed_effects(effect), ng.likelihoods.Poisson(exposure=expected))
    result = ng.infer(model, x, cases, getattr(ng, method)())
    means, deviations = fixed_effects(result)
    summary = case["summary_fixed"]
    errors = (means - summary["mean"]) / np.array(summary["sd"])
    assert np.all(np.abs(errors) < 0.1)
    # R-INLA's have the uncertainty of tau and phi too.
    np.testing.assert_allclose(deviations, summary["sd"], rtol=0.12)
    effects = np.ravel(result.marginals.mean) - means[0] - means[1] * x[:, 1]
    region = case["summary_random"]["region"]
    errors = (effects - region["mean"][: len(x)]) / np.array(region["sd"][: len(x)])
    assert np.max(np.abs(errors)) < 0.15


@pytest.mark.slow
def test_bym_at_the_posterior_medians_of_r_inla():
    case, edges, x, cases, expected = areas("inla_scotland_bym")
    # The mean of the first precision is that of a heavy tail.
    independent, smooth = 1.0 / np.array(case["summary_hyperpar"]["0.5quant"])
    effect = ng.kernels.Category(independent) + ng.kernels.Graph(edges, "icar", variance=smooth, nodes=len(x))
    model = ng.Model(with_fixed_effects(effect), ng.likelihoods.Poisson(exposure=expected))
    means, deviations = fixed_effects(ng.infer(model, x, cases, ng.VI()))
    summary = case["summary_fixed"]
    assert np.all(np.abs(means - summary["mean"]) < 0.15 * np.array(summary["sd"]))
    np.testing.assert_allclose(deviations, summary["sd"], rtol=0.12)


@pytest.mark.slow
@pytest.mark.thorough
def test_penalised_complexity_keeps_phi_inside():
    case, edges, x, cases, expected = areas("inla_scotland_bym2")
    effect = ng.kernels.Graph(edges, "bym2", nodes=len(x))
    model = ng.Model(with_fixed_effects(effect), ng.likelihoods.Poisson(exposure=expected))
    priors = {
        "kernel[0][0].kernel.variance": ng.Free(prior=ng.parameters.PCVariance(1.0, 0.01)),
        "phi": ng.Free(prior=effect.phi_prior(0.5, 2 / 3)),
    }
    learned = ng.fit(model, x, cases, parameters={**FIXED, **priors}).parameters
    variance, phi = learned["kernel[0][0].kernel.variance"], learned["kernel[0][0].kernel.phi"]
    summary = case["summary_hyperpar"]
    assert summary["0.025quant"][1] < phi < summary["0.975quant"][1]
    assert summary["0.025quant"][0] < 1.0 / variance < summary["0.975quant"][0]
    without = ng.fit(model, x, cases, parameters=FIXED)
    assert without.parameters["kernel[0][0].kernel.phi"] > 0.999
    assert "kernel[0][0].kernel.phi ended at 1" in str(without.summary())


@pytest.mark.slow
@pytest.mark.thorough
def test_beta_binomial_by_r_inla():
    case, table = case_of("inla_synthetic_betabinomial")
    design = np.column_stack([np.ones(len(table)), table["x"]])
    wide = 1e6
    # R-INLA integrates the correlation rho of two trials: logit rho ~ N(0, 2).
    logits = np.linspace(-2.0, -0.8, 13)
    energies, means, squares = [], [], []
    for logit in logits:
        likelihood = ng.likelihoods.BetaBinomial(table["n_trials"], concentration=np.exp(-logit))
        result = ng.infer(ng.Model(ng.LinearModel([wide, 1000.0]), likelihood), design, table["y"], ng.PowerEP())
        found = result.posterior.predict(np.eye(2))
        energies.append(result.energy)
        means.append(np.ravel(found.mean))
        squares.append(np.ravel(found.covariance) + means[-1] ** 2)
    log_density = -np.array(energies) - 0.25 * logits**2 - 0.5 * np.log(4.0 * np.pi)
    step = logits[1] - logits[0]
    # With a flat prior of density 1 for the intercept.
    evidence = np.logaddexp.reduce(log_density) + np.log(step) + 0.5 * np.log(2.0 * np.pi * wide)
    weights = np.exp(log_density - np.logaddexp.reduce(log_density))
    mean = weights @ np.array(means)
    deviation = np.sqrt(weights @ np.array(squares) - mean**2)
    summary, hyper = case["summary_fixed"], case["summary_hyperpar"]
    np.testing.assert_allclose((mean - summary["mean"]) / summary["sd"], 0.0, atol=0.01)
    np.testing.assert_allclose(deviation, summary["sd"], rtol=0.01)
    rho = 1.0 / (1.0 + np.exp(-logits))
    average = weights @ rho
    np.testing.assert_allclose((average - hyper["mean"]) / hyper["sd"], 0.0, atol=0.01)
    np.testing.assert_allclose(np.sqrt(weights @ rho**2 - average**2), hyper["sd"], rtol=0.01)
    np.testing.assert_allclose(evidence, case["mlik"][1], atol=0.05)
