"""The models of `data/r/inla_*.json` as models of tables, with hyperparameters plugged in."""

from typing import Any

import numpy as np

import newtongp as ng

from . import mixed_models as mixed

LIKELIHOODS = {
    "inla_synthetic_beta": lambda table, phi: ng.likelihoods.Beta(phi, "logit"),
    "inla_synthetic_betabinomial": lambda table, rho: ng.likelihoods.BetaBinomial(table["n_trials"], (1.0 - rho) / rho),
    "inla_synthetic_gamma": lambda table, shape: ng.likelihoods.Gamma(shape),
    "inla_synthetic_nbinomial": lambda table, size: ng.likelihoods.NegativeBinomial(1.0 / size),
    # R-INLA's precision is that of the noise, not of its scale.
    "inla_synthetic_studentt": lambda table, tau, nu: ng.likelihoods.StudentT(nu, np.sqrt((nu - 2.0) / (nu * tau))),
    "inla_synthetic_zip1": lambda table, p: ng.likelihoods.ZeroInflated(ng.likelihoods.Poisson(), p),
}
NAMES = sorted(path.stem for path in mixed.DATA.glob("inla_*.json"))


def read(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], str]:
    """A case, its table with the columns that its file leaves implicit, and the name of y."""
    case, table = mixed.load(name)
    if "bym" in name:
        return case, {**table, "region": np.arange(len(table["x"]))}, "cases"
    if name == "inla_synthetic_replicate_ar1":
        series = np.repeat([f"series {number:02}" for number in range(30)], 20)
        return case, {**table, "t": np.tile(np.arange(20.0), 30), "series": series}, "y"
    if name == "inla_synthetic_seasonal":
        return case, {**table, "step": np.arange(48.0), "month": np.arange(48) % 6}, "y"
    return case, table, "y"


def model(name: str, case: dict[str, Any], table: dict[str, np.ndarray], values: Any) -> ng.Model:
    """The model with these hyperparameters, in the order and units of R-INLA. Fixed effects are flat."""
    terms = ng.terms
    if name in LIKELIHOODS:
        return ng.Model(terms.Linear("x", prior="flat"), LIKELIHOODS[name](table, *values))
    if "bym" in name:
        edges, areas = np.array(case["edges_1_based"]) - 1, table["region"].tolist()
        if name.endswith("bym2"):
            tau, phi = values
            effect = terms.Area("region", edges, areas=areas, variance=1.0 / tau, phi=phi)
        else:
            independent, smooth = values
            effect = terms.Area("region", edges, "icar", areas=areas, variance=1.0 / smooth)
            effect = effect + terms.Group("region", covariance=1.0 / independent)
        likelihood = ng.likelihoods.Poisson(exposure=table["expected"])
        return ng.Model(terms.Linear("x", prior="flat") + effect, likelihood)
    if name == "inla_synthetic_replicate_ar1":
        noise, tau, rho = values
        kernel = ng.kernels.Matern12(-1.0 / np.log(rho), 1.0 / tau)
        return ng.Model(terms.Smooth("t", kernel=kernel, by="series"), ng.likelihoods.Gaussian(1.0 / noise))
    noise, tau = values
    start = terms.Linear(terms.Factor("month", coding="sum"), prior="flat")
    season = terms.Smooth("step", kernel=ng.kernels.SeasonalWalk(6, 1.0 / tau))
    return ng.Model(start + season, ng.likelihoods.Gaussian(1.0 / noise))


def plugged_in(case: dict[str, Any]) -> np.ndarray:
    """R-INLA's posterior means of the hyperparameters; medians where a precision has a heavy tail."""
    summary = case["summary_hyperpar"]
    which = "0.5quant" if case["name"] in ("inla_scotland_bym", "inla_synthetic_seasonal") else "mean"
    return np.atleast_1d(summary[which])


def fixed_effects(result: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the first fixed effects, with the linear predictor that of R-INLA."""
    means, covariance = mixed.integrated(result)
    if isinstance(result.model.likelihood, ng.likelihoods.Gamma):
        means[0] += np.log(result.model.likelihood.shape)
    return means[:count], np.sqrt(np.diagonal(covariance))[:count]


def random_effects(result: Any, table: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of everything but the fixed effects, at the rows."""
    terms = result.model.prior.latents[0].terms
    x = result.columns.read(table, "x")
    chosen = [float(not isinstance(term, ng.terms.Linear)) for term in terms]
    if any(isinstance(term, ng.terms.Linear) and term.size > 2 for term in terms):
        # The season is all of f but the intercept: what is left at a row where the intercept is not.
        chosen, x = [1.0] * len(terms), x - np.eye(1, x.shape[1])
    found = result.posterior.of_terms(x, [chosen])
    return np.ravel(found.mean), np.sqrt(np.ravel(found.covariance))
