"""Numbers from other software for sparse GPs; see README.md in this folder."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp.methods.energy import VariationalFreeEnergy
from newtongp.priors.sparse import SparseInputs

DATA = Path(__file__).parent / "data" / "sparse"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(DATA.glob("[CG]_*.json"))}
SETS = {path.stem.removeprefix("set_"): json.loads(path.read_text()) for path in DATA.glob("set_*.json")}
NODES_100 = ng.cubature.GaussHermite(100)
EVERY_DAY = {
    "C_gpflow_sgpr_2d_gaussian_rbf_M40",
    "C_gpflow_svgp_2d_bernoulli_probit_m52_M40",
    "C_gpy_ep_sparse_bernoulli_1d_probit_m52_fitc_M40",
}


def some_slow(names):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in EVERY_DAY)) for name in names]


def likelihood_of(words):
    return {
        "bernoulli_logit": lambda: ng.likelihoods.Bernoulli("logit"),
        "bernoulli_probit": lambda: ng.likelihoods.Bernoulli("probit"),
        "poisson": lambda: ng.likelihoods.Poisson(),
        "gaussian": lambda: ng.likelihoods.Gaussian(words["variance"]),
    }[words["type"]]()


def kernel_of(words, lengthscale=None, variance=None):
    kind = getattr(ng.kernels, words["type"])
    return kind(
        words["lengthscale"] if lengthscale is None else lengthscale,
        words["variance"] if variance is None else variance,
    )


def run(case):
    prior = ng.SparseGP(kernel_of(case["kernel"]), np.array(case["inducing"]))
    model = ng.Model(prior, likelihood_of(case["likelihood"]))
    data = SETS[case["set"]]
    settings = dict(method=ng.VI(cubature=NODES_100), max_steps=500, tol=1e-10)
    if case["method"].startswith("EP"):
        settings["method"] = ng.PowerEP(1.0)
    if case["likelihood"]["type"] == "gaussian":
        settings = dict(method=ng.VI(), step=ng.Constant(1.0), max_steps=1, tol=1e-9)  # one full step is exact
    return ng.infer(model, np.array(data["X"]), np.array(data["Y"]), **settings)


def of_fitc(result):
    """The sites and marginals of EP on the FITC prior, whose sites act on f and so tell of e too.

    Integrated over e, a site on f is one on g: Λ_g = Λ/(1 + ΛE), λ_g = λ/(1 + ΛE) with E = Var e.
    """
    whole, seen = result.marginals.variance[:, 0], result.site_marginals.variance[:, 0]
    extra, mean = whole - seen, result.marginals.mean[:, 0]
    precision, linear = result.sites.precision[:, 0, 0], result.sites.linear[:, 0]
    variance = 1.0 / (1.0 / seen - precision)
    cavity = variance * (mean / seen - linear)
    shrink = 1.0 / (1.0 - precision * extra)
    site, tilt = precision * shrink, linear * shrink
    posterior = 1.0 / (1.0 / (variance + extra) + site)
    return {
        "posterior_mean": posterior * (cavity / (variance + extra) + tilt),
        "posterior_var": posterior,
        "site_nat1": tilt,
        "site_nat2_precision": site,
    }


def computed(case, result):
    found = {
        "energy": result.energy,
        "posterior_mean": result.marginals.mean[:, 0],
        "posterior_var": result.marginals.variance[:, 0],
    }
    if case["method"].startswith("EP"):
        found |= of_fitc(result)
    if "test_latent_mean" in case["outputs"]:
        latent = result.predict(np.array(SETS[case["set"]]["Xtest"])).latent
        found["test_latent_mean"], found["test_latent_var"] = latent.mean[:, 0], latent.variance[:, 0]
    if "inducing_posterior_mean" in case["outputs"]:
        joint = result.posterior.joint(np.array(case["inducing"]))
        found["inducing_posterior_mean"], found["inducing_posterior_cov"] = joint.mean, joint.covariance
    return found


@pytest.mark.cases(
    quick=["C_gpflow_sgpr_2d_gaussian_rbf_M40"],
    thorough=[
        "C_gpflow_sgpr_1d_gaussian_m32_M15",
        "C_gpflow_sgpr_1d_gaussian_m52_M40",
        "C_gpflow_sgpr_2d_gaussian_m52_M40",
        "C_gpflow_sgpr_2d_gaussian_rbf_M15",
        "C_gpflow_svgp_1d_bernoulli_probit_m32_M15",
        "C_gpflow_svgp_1d_poisson_m52_M15",
        "C_gpflow_svgp_1d_poisson_m52_M40",
        "C_gpflow_svgp_2d_bernoulli_probit_m52_M40",
        "C_gpflow_svgp_2d_poisson_rbf_M15",
        "C_gpy_ep_sparse_bernoulli_1d_probit_m52_fitc_M15",
        "C_gpy_ep_sparse_bernoulli_1d_probit_m52_fitc_M40",
        "G_bn_1d_gaussian_m52_SparseVariationalGP_M40",
        "G_bn_1d_poisson_m52_SparseVariationalGP_M40",
    ],
    others="slow",
)
@pytest.mark.parametrize("name", some_slow(CASES))
def test_agrees_with_other_software(name):
    case = CASES[name]
    result = run(case)
    assert result.status is ng.Status.CONVERGED
    found = computed(case, result)
    for key, value in found.items():
        allowed = case["tolerance"]["energy" if key == "energy" else "posterior"]
        np.testing.assert_allclose(value, case["outputs"][key], rtol=0.0, atol=allowed, err_msg=key)
    assert {key for key in case["outputs"] if not key.startswith("d_")} == set(found)


GRADIENTS = [name for name, case in CASES.items() if "d_elbo_d_Z" in case["outputs"]]


@pytest.mark.cases(
    slow=[
        "C_gpflow_sgpr_1d_gaussian_m32_M40",
        "C_gpflow_sgpr_2d_gaussian_rbf_M15",
        "C_gpflow_svgp_1d_poisson_m52_M15",
        "C_gpflow_svgp_2d_bernoulli_probit_m52_M40",
    ],
    others="thorough",
)
@pytest.mark.parametrize("name", some_slow(GRADIENTS))
def test_gradients_agree_with_other_software(name):
    """At the optimum over sites, the derivative of the energy is the one with sites held fixed."""
    case = CASES[name]
    result = run(case)
    data, likelihood = SETS[case["set"]], likelihood_of(case["likelihood"])
    x, y = np.array(data["X"]), np.array(data["Y"], dtype=float).reshape(-1, 1)

    def energy(lengthscale, variance, inducing):
        prior = ng.SparseGP(kernel_of(case["kernel"], lengthscale, variance), inducing)
        workspace = prior.prepare(SparseInputs(x, (inducing,)))
        conditioned = workspace.marginals(jax.tree.map(jnp.asarray, result.sites))

        def row(*row):
            return VariationalFreeEnergy().row(likelihood, *row[:3], NODES_100, row[3]).value

        rows = jax.vmap(row)(y, conditioned.marginals, result.sites, conditioned.residual_covariance)
        return jnp.sum(rows) + 0.5 * (conditioned.distance + conditioned.log_det)

    with jax.enable_x64(True):
        at = [jnp.asarray(case["kernel"][key]) for key in ("lengthscale", "variance")]
        value, found = jax.jit(jax.value_and_grad(energy, (0, 1, 2)))(*at, jnp.asarray(case["inducing"]))
    assert float(value) == pytest.approx(case["outputs"]["energy"], abs=case["tolerance"]["energy"])
    for key, gradient in zip(("lengthscale", "variance", "Z"), found, strict=True):
        wanted = -np.array(case["outputs"][f"d_elbo_d_{key}"])
        np.testing.assert_allclose(gradient, wanted, rtol=0.0, atol=case["tolerance"]["gradient"], err_msg=key)
