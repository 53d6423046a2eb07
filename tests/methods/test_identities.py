"""What must be equal: methods that are the same method, energies that are the same number."""

import itertools

import numpy as np
import pytest

import newtongp as ng

N = 14
RNG = np.random.default_rng(7)
X = np.sort(RNG.uniform(0.0, 6.0, N))
LATENT = np.sin(X)
KERNEL = ng.kernels.Matern52(lengthscale=1.3, variance=0.8)
PRIOR = ng.GP(KERNEL, mean=0.3)
NODES = ng.cubature.GaussHermite(60)

FAMILIES = {
    "gaussian": (ng.likelihoods.Gaussian(0.2), LATENT + 0.4 * RNG.normal(size=N)),
    "bernoulli logit": (ng.likelihoods.Bernoulli("logit"), RNG.binomial(1, 0.5, N)),
    "binomial": (ng.likelihoods.Binomial(5), RNG.binomial(5, 0.4, N)),
    "poisson": (ng.likelihoods.Poisson(), RNG.poisson(np.exp(LATENT))),
    "negative binomial": (ng.likelihoods.NegativeBinomial(0.5), RNG.poisson(np.exp(LATENT))),
    "gamma": (ng.likelihoods.Gamma(2.0), RNG.gamma(2.0, np.exp(LATENT))),
    "exponential": (ng.likelihoods.Exponential(), RNG.exponential(np.exp(LATENT))),
    "student": (ng.likelihoods.StudentT(4.0, 0.5), LATENT + 0.5 * RNG.standard_t(4.0, N)),
}
CANONICAL = [name for name in FAMILIES if name != "student"]


def states(method, family, step, count):
    likelihood, y = FAMILIES[family]
    model = ng.Model(PRIOR, likelihood)
    return list(itertools.islice(ng.iterate(model, X, y, method, step), count))


def assert_same_path(first, second, family, step=None, count=4, rtol=1e-10, energy=True):
    step = ng.Constant(0.7) if step is None else step
    for a, b in zip(states(first, family, step, count), states(second, family, step, count), strict=True):
        np.testing.assert_allclose(a.sites.linear, b.sites.linear, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(a.sites.precision, b.sites.precision, rtol=rtol, atol=rtol)
        if energy:
            np.testing.assert_allclose(a.energy, b.energy, rtol=rtol)


@pytest.mark.cases(slow=["poisson"], others="thorough")
@pytest.mark.parametrize("family", ["poisson", "student", "bernoulli logit"])
def test_variational_inference_with_the_point_rule_is_newton(family):
    rule = ng.VI(cubature=ng.cubature.PointRule())
    assert_same_path(rule, ng.Newton(), family, step=ng.Constant(0.3), energy=False)


@pytest.mark.cases(thorough=["student"], others="slow")
@pytest.mark.parametrize("family", ["poisson", "student"])
def test_posterior_linearisation_with_the_point_rule_is_taylor(family):
    assert_same_path(ng.PosteriorLinearisation(cubature=ng.cubature.PointRule()), ng.Taylor(), family, energy=False)


@pytest.mark.cases(thorough=["poisson", "student"], others="slow")
@pytest.mark.parametrize("family", ["poisson", "student"])
def test_second_order_linearisation_with_generalised_gauss_newton_is_posterior_linearisation(family):
    second = ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton("generalised"), cubature=NODES)
    assert_same_path(second, ng.PosteriorLinearisation(cubature=NODES), family)


@pytest.mark.cases(slow=["poisson"], others="thorough")
@pytest.mark.parametrize("family", CANONICAL)
def test_taylor_is_generalised_gauss_newton_for_exponential_families_in_y(family):
    assert_same_path(ng.Taylor(), ng.Newton(curvature=ng.GaussNewton("generalised")), family, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.thorough
def test_taylor_and_gauss_newton_share_hessians_but_not_gradients_elsewhere():
    taylor = states(ng.Taylor(), "student", ng.Constant(1.0), 1)[0].sites
    newton = states(ng.Newton(curvature=ng.GaussNewton()), "student", ng.Constant(1.0), 1)[0].sites
    np.testing.assert_allclose(taylor.precision, newton.precision, rtol=1e-12)
    assert np.max(np.abs(taylor.linear - newton.linear)) > 1e-2


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("family", ["poisson", "bernoulli logit", "student"])
def test_power_ep_tends_to_variational_inference_linearly_in_the_power(family):
    variational = states(ng.VI(cubature=NODES), family, ng.Constant(0.5), 4)
    gaps = {}
    for power in (1e-4, 1e-5):
        powered = states(ng.PowerEP(power, cubature=NODES), family, ng.Constant(0.5), 4)
        gaps[power] = max(
            max(np.max(np.abs(a.sites.precision - b.sites.precision)), abs(a.energy - b.energy))
            for a, b in zip(powered, variational, strict=True)
        )
    assert gaps[1e-4] < 100.0 * 1e-4
    assert gaps[1e-5] / gaps[1e-4] == pytest.approx(0.1, rel=0.02)


ONE_STEP = {
    "newton": ng.Newton(),
    "newton heuristic": ng.Newton(safeguard=ng.Heuristic()),
    "gauss-newton full": ng.Newton(curvature=ng.GaussNewton("full")),
    "gauss-newton partial": ng.Newton(curvature=ng.GaussNewton("partial")),
    "taylor": ng.Taylor(),
    "vi": ng.VI(),
    "vi at nodes": ng.VI(cubature=NODES),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "ep": ng.PowerEP(1.0),
    "power ep at nodes": ng.PowerEP(0.5, cubature=NODES),
    "power ep heuristic": ng.PowerEP(0.5, safeguard=ng.Heuristic()),
    "pl": ng.PosteriorLinearisation(),
    "pl regression": ng.PosteriorLinearisation(slope="regression"),
    "pl unscented": ng.PosteriorLinearisation(slope="regression", cubature=ng.cubature.Unscented(3)),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
}


@pytest.mark.cases(
    slow=[
        "pl2",
        "newton heuristic",
        "gauss-newton partial",
        "taylor",
        "vi at nodes",
        "vi gauss-newton",
        "power ep at nodes",
        "power ep heuristic",
        "pl unscented",
    ],
    thorough=["pl regression", "pl2 gauss-newton"],
)
@pytest.mark.parametrize("name", ONE_STEP)
def test_one_full_step_is_exact_regression_for_a_gaussian_likelihood(name):
    likelihood, y = FAMILIES["gaussian"]
    result = ng.infer(ng.Model(PRIOR, likelihood), X, y, ONE_STEP[name], ng.Constant(1.0))
    gram = gram_matrix(X)
    noisy = gram + 0.2 * np.eye(N)
    mean = 0.3 + gram @ np.linalg.solve(noisy, y - 0.3)
    covariance = gram - gram @ np.linalg.solve(noisy, gram)
    sign, log_det = np.linalg.slogdet(2.0 * np.pi * noisy)
    evidence = 0.5 * log_det + 0.5 * (y - 0.3) @ np.linalg.solve(noisy, y - 0.3)
    assert result.steps == 1 and result.status.ok and sign == 1.0
    np.testing.assert_allclose(result.marginals.mean[:, 0], mean, atol=1e-10)
    np.testing.assert_allclose(result.marginals.covariance[:, 0, 0], np.diag(covariance), atol=1e-10)
    if name != "pl unscented":  # two nodes integrate the linearisation exactly, but not the density itself
        assert result.energy == pytest.approx(evidence, abs=1e-9)


# Energies, from the textbook's dense formulas ------------------------------------------------------


def gram_matrix(x):
    r = np.abs(x[:, None] - x[None, :]) / 1.3
    s = np.sqrt(5.0) * r
    return 0.8 * (1.0 + s + s**2 / 3.0) * np.exp(-s)


def dense_posterior(result):
    """Mean and covariance of q, and KL[q || p], from inverses."""
    precision = np.diag(result.sites.precision[:, 0, 0])
    gram = gram_matrix(X)
    covariance = np.linalg.inv(np.linalg.inv(gram) + precision)
    mean = covariance @ (np.linalg.solve(gram, np.full(N, 0.3)) + result.sites.linear[:, 0])
    gap = mean - 0.3
    kl = 0.5 * (
        np.trace(np.linalg.solve(gram, covariance))
        - N
        + gap @ np.linalg.solve(gram, gap)
        + np.linalg.slogdet(gram)[1]
        - np.linalg.slogdet(covariance)[1]
    )
    return mean, covariance, kl


def log_prob_student(y, f):
    from scipy import stats

    return stats.t.logpdf(y, 4.0, loc=f, scale=0.5)


@pytest.mark.cases(slow=["3", "1", "30"])
@pytest.mark.parametrize("steps", [1, 3, 30])
def test_the_laplace_energy_is_the_gpml_form_also_before_convergence(steps):
    likelihood, y = FAMILIES["student"]
    result = ng.infer(ng.Model(PRIOR, likelihood), X, y, ng.Newton(), max_steps=steps, throw=False)
    mean, covariance, kl = dense_posterior(result)
    gram = gram_matrix(X)
    precision = np.diag(result.sites.precision[:, 0, 0])
    log_p = np.sum(log_prob_student(y, mean))
    gpml = (
        -log_p
        + 0.5 * (mean - 0.3) @ np.linalg.solve(gram, mean - 0.3)
        + 0.5 * np.linalg.slogdet(np.eye(N) + gram @ precision)[1]
    )
    assert result.energy == pytest.approx(gpml, abs=1e-9)
    third = -log_p + kl + 0.5 * np.sum(np.diag(precision) * np.diag(covariance))
    assert result.energy == pytest.approx(third, abs=1e-8)
    joint = -log_p + 0.5 * (mean - 0.3) @ np.linalg.solve(gram, mean - 0.3)
    assert result.history.objective[-1] == pytest.approx(joint, abs=1e-9)


@pytest.mark.cases(slow=["30"], others="thorough")
@pytest.mark.parametrize("steps", [1, 30])
def test_the_variational_free_energy_is_expectation_plus_divergence(steps):
    likelihood, y = FAMILIES["student"]
    method = ng.VI(cubature=ng.cubature.GaussHermite(150))
    result = ng.infer(ng.Model(PRIOR, likelihood), X, y, method, max_steps=steps, throw=False)
    mean, covariance, kl = dense_posterior(result)
    z, w = np.polynomial.hermite_e.hermegauss(150)
    nodes = mean[:, None] + np.sqrt(np.diag(covariance))[:, None] * z[None, :]
    expected = np.sum(log_prob_student(y[:, None], nodes) @ (w / w.sum()))
    assert result.energy == pytest.approx(kl - expected, abs=1e-8)


@pytest.mark.cases(slow=["1.0"], others="thorough")
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_power_ep_energy_is_the_paper_s_with_normalised_sites(power):
    likelihood, y = FAMILIES["poisson"]
    method = ng.PowerEP(power, cubature=NODES)
    result = ng.infer(ng.Model(PRIOR, likelihood), X, y, method, max_steps=2, throw=False)
    mean, covariance, _ = dense_posterior(result)
    site_covariance = 1.0 / result.sites.precision[:, 0, 0]
    site_mean = result.sites.linear[:, 0] * site_covariance
    gram = gram_matrix(X)
    total = gram + np.diag(site_covariance)
    log_z = -0.5 * np.linalg.slogdet(2 * np.pi * total)[1]
    log_z -= 0.5 * (site_mean - 0.3) @ np.linalg.solve(total, site_mean - 0.3)
    variance = np.diag(covariance)
    cavity_variance = 1.0 / (1.0 / variance - power / site_covariance)
    cavity_mean = cavity_variance * (mean / variance - power * site_mean / site_covariance)
    z, w = np.polynomial.hermite_e.hermegauss(100)
    nodes = cavity_mean[:, None] + np.sqrt(cavity_variance)[:, None] * z[None, :]
    from scipy import special, stats

    log_p = stats.poisson.logpmf(y[:, None], np.exp(nodes))
    log_t = stats.norm.logpdf(nodes, site_mean[:, None], np.sqrt(site_covariance)[:, None])
    tilted = special.logsumexp(power * log_p, b=(w / w.sum())[None, :], axis=1)
    projected = special.logsumexp(power * log_t, b=(w / w.sum())[None, :], axis=1)
    energy = np.sum(projected - tilted) / power - log_z
    assert result.energy == pytest.approx(energy, abs=1e-8)


@pytest.mark.cases(slow=["poisson-closed0-nodes0"], others="thorough")
@pytest.mark.parametrize(
    ("family", "closed", "nodes"),
    [
        ("poisson", ng.VI(), ng.VI(cubature=NODES)),
        ("gamma", ng.VI(), ng.VI(cubature=NODES)),
        ("gaussian", ng.PowerEP(0.5), ng.PowerEP(0.5, cubature=NODES)),
    ],
)
def test_closed_forms_follow_the_same_path_as_quadrature(family, closed, nodes):
    assert_same_path(closed, nodes, family, rtol=1e-9)
