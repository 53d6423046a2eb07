"""Numbers from other software for two latents a row; see README.md in this folder."""

import json
from pathlib import Path

import numpy as np
import pytest

import newtongp as ng
from newtongp.methods.rule import Method
from reproduction import published, runner
from reproduction.cases import Case, Split

DATA = Path(__file__).parent / "data" / "latents"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("D_*.json"))}
SETS = {path.stem.removeprefix("set_"): json.loads(path.read_text()) for path in DATA.glob("set_*.json")}
RULE = ng.cubature.GaussHermite(20)


def departs_from_the_equations(words):
    """BayesNewton's power EP meets quadrature error by treating rows as missing, and has cavities of C + 1e-8."""
    return "ExpectationPropagation" in words


def scheme_of_power_ep():
    method = Method(published.PowerDensityAtNodes(0.5), ng.Exact(), ng.Heuristic(), RULE)
    rule = published.PublishedPowerEP(method, published.LOST_PRECISION * np.eye(2))
    return runner.RowByRow(rule, 0.3, runner.Loss("pep", RULE, 0.5, published.JITTER))


def method_of(words):
    """BayesNewton's exact curvatures went with the heuristic, whose VI has a q that factorises, as GPflow's."""
    if "VariationalGaussNewton" in words:
        return ng.VI(ng.GaussNewton("full"), cubature=RULE)
    if "PosteriorLinearisation" in words:
        return ng.PosteriorLinearisation(cubature=RULE)
    if "Newton" in words:
        return ng.Newton(safeguard=ng.Heuristic())
    assert "Variational" in words or words.startswith("variational")
    return ng.VI(safeguard=ng.Heuristic(), cubature=RULE)


def model_of(case):
    kernels = [ng.kernels.Matern32(words["lengthscale"], words["variance"]) for words in case["kernels"]]
    prior = ng.MarkovGP if "Markov" in case["method"] else ng.GP
    likelihood = ng.likelihoods.HeteroscedasticGaussian(case["likelihood"]["link"])
    return ng.Model(prior(ng.kernels.Independent(kernels)), likelihood)


def run(case):
    data = SETS[case["set"]]
    x, y, method = np.array(data["X"]), np.array(data["Y"]), method_of(case["method"])
    return ng.infer(model_of(case), x, y, method, max_steps=500, tol=1e-11)


def run_as_published(case):
    """The numbers under the file's names, but for sites."""
    data = SETS[case["set"]]
    x, y = (np.concatenate([np.ravel(data[name]), np.ravel(data["Xtest"])]) for name in ("X", "Y"))
    train = np.arange(x.size) < np.size(data["X"])
    order = np.argsort(x, kind="stable")
    back = np.argsort(order)
    given, held_out = train[order][:, None], ~train[order][:, None]
    split = Split("all", x[order], np.where(train, y, 0.0)[order][:, None], given, held_out)
    study = Case("all", "all", model_of(case), (split,), RULE, 0.5, {}, 400)
    found = runner.run(runner.make_fold(study, split), scheme_of_power_ep(), 391)
    mean, covariance = found.marginals.mean[back], found.marginals.covariance[back]
    return {
        "energy": found.scores.loss[-1],
        "posterior_mean": mean[train],
        "posterior_var": covariance[train],
        "test_latent_mean": mean[~train],
        "test_latent_var": covariance[~train],
    }


def energy_of(case, result):
    """BayesNewton's Laplace energy is −Σ log p(yₙ | mₙ) + KL[q‖p]: less by ½ Σ tr(ΛₙCₙ)."""
    if "Laplace energy" not in case["sign_convention"]:
        return result.energy
    return result.energy - 0.5 * np.sum(result.sites.precision * result.marginals.covariance)


def computed(case, result):
    wanted = case["outputs"]
    diagonal = np.ndim(wanted["posterior_var"]) == 2
    found = {
        "energy": energy_of(case, result),
        "posterior_mean": result.marginals.mean,
        "posterior_var": result.marginals.variance if diagonal else result.marginals.covariance,
        "site_nat1": result.sites.linear,
        "site_nat2_precision": result.sites.precision,
    }
    prediction = result.predict(np.array(SETS[case["set"]]["Xtest"]))
    found["test_latent_mean"] = prediction.latent.mean
    found["test_latent_var"] = prediction.latent.variance if diagonal else prediction.latent.covariance
    if "test_y_mean" in wanted:
        found["test_y_mean"], found["test_y_var"] = prediction.mean, prediction.variance
    return {name: found[name] for name in wanted}


def check(case, found):
    for key, value in found.items():
        allowed = case["tolerance"]["energy" if key == "energy" else "posterior"]
        np.testing.assert_allclose(value, case["outputs"][key], rtol=0.0, atol=allowed, err_msg=key)


@pytest.mark.cases(
    thorough=[
        "D_bn_mcycle40_hetero_exp_MarkovVariationalGP",
        "D_bn_mcycle40_hetero_softplus_MarkovVariationalGP",
        "D_bn_mcycle_unique_hetero_exp_MarkovNewtonGP",
        "D_bn_mcycle_unique_hetero_exp_MarkovVariationalGaussNewtonGP",
        "D_bn_mcycle_unique_hetero_softplus_MarkovVariationalGaussNewtonGP",
        "D_gpflow_mcycle40_hetero_exp_independent_q",
        "D_bn_mcycle_unique_hetero_exp_MarkovPosteriorLinearisationGP",
        "D_gpflow_mcycle40_hetero_softplus_independent_q",
        "D_gpflow_mcycle_unique_hetero_softplus_independent_q",
    ],
    others="slow",
)
@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not departs_from_the_equations(case["method"])]
)
def test_agrees_with_other_software(name):
    result = run(CASES[name])
    assert result.status is ng.Status.CONVERGED
    check(CASES[name], computed(CASES[name], result))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if departs_from_the_equations(case["method"])])
def test_agrees_with_what_the_published_code_did(name):
    check(CASES[name], run_as_published(CASES[name]))
