"""Power EP with Student-t noise against exact integrals: NumPy, a dense GP and adaptive quadrature."""

import functools

import numpy as np
import pytest
from scipy import integrate, special

import newtongp as ng
from newtongp.inference.quadrature import estimate_error

N, DF = 60, 3.0
X = np.linspace(0.0, 12.0, N)
SCALES = {"as the prior": 1.0, "a third": 1.0 / 3.0, "a tenth": 0.1}
POWERS = [0.5, 1.0]
RULES = {
    "default": None,
    "fine": ng.cubature.Adaptive(160),
    "20 nodes": ng.cubature.GaussHermite(20),
    "100 nodes": ng.cubature.GaussHermite(100),
}


def gram():
    s = np.sqrt(3.0) * np.abs(X[:, None] - X[None, :]) / 1.5
    return (1.0 + s) * np.exp(-s)


def data(scale):
    """A draw of the prior, of standard deviation 1, with Student-t noise and three outliers."""
    rng = np.random.default_rng(0)
    f = np.linalg.cholesky(gram() + 1e-10 * np.eye(N)) @ rng.normal(size=N)
    y = f + scale * rng.standard_t(DF, N)
    y[[10, 30, 47]] += [4.0, -5.0, 6.0]
    return y


def log_prob(y, f, scale):
    constant = special.gammaln(0.5 * DF + 0.5) - special.gammaln(0.5 * DF) - 0.5 * np.log(DF * np.pi) - np.log(scale)
    return constant - 0.5 * (DF + 1.0) * np.log1p(((y - f) / scale) ** 2 / DF)


def tilted(y, mean, variance, power, scale):
    """log E[p^α], and the mean and variance of the tilted density, for all rows at once."""
    root = np.sqrt(variance)
    top = power * log_prob(y, y, scale)

    def integrand(z):
        density = np.exp(power * log_prob(y, mean + root * z, scale) - top - 0.5 * z**2) / np.sqrt(2.0 * np.pi)
        return np.stack([density, density * z, density * z**2])

    points = np.unique(np.append(np.clip((y - mean) / root, -14.9, 14.9), 0.0))
    moments, _ = integrate.quad_vec(
        integrand, -15.0, 15.0, epsabs=1e-15, epsrel=1e-11, norm="max", points=points, limit=20_000
    )
    shift, square = moments[1] / moments[0], moments[2] / moments[0]
    return np.log(moments[0]) + top, mean + root * shift, variance * (square - shift**2)


def exact(y, power, scale, linear, precision):
    """The fixed point of power EP from these sites on, with its energy (`eq:pep-energy`)."""
    k = gram()
    for _ in range(100):
        covariance = np.linalg.solve(np.eye(N) + k * precision[None, :], k)
        mean, variance = covariance @ linear, np.diag(covariance)
        without = 1.0 / (1.0 / variance - power * precision)
        centre = without * (mean / variance - power * linear)
        log_z, tilted_mean, tilted_variance = tilted(y, centre, without, power, scale)
        steeper = (1.0 / tilted_variance - 1.0 / variance) / power
        shifted = (tilted_mean / tilted_variance - mean / variance) / power
        residuals = np.abs(steeper) * variance, np.abs(shifted - steeper * mean) * np.sqrt(variance)
        if np.max(residuals) < 1e-10:
            break
        precision, linear = precision + steeper, linear + shifted
    else:
        raise AssertionError("no fixed point was found")
    log_integral = 0.5 * linear @ mean - 0.5 * np.linalg.slogdet(np.eye(N) + precision[:, None] * k)[1]
    whole, weight = 1.0 / without + power * precision, centre / without + power * linear
    log_t = 0.5 * (weight**2 / whole - centre**2 / without - np.log(without * whole))
    energy = np.sum(log_t - log_z) / power - log_integral
    return {"energy": energy, "mean": mean, "variance": variance, "precision": precision}


@functools.cache
def run(scale, power, rule):
    model = ng.Model(ng.GP(ng.kernels.Matern32(1.5)), ng.likelihoods.StudentT(DF, scale))
    return ng.infer(model, X, data(scale), ng.PowerEP(power, cubature=RULES[rule]), tol=1e-10)


@functools.cache
def referee(scale, power):
    # It starts where the library came to rest, and stays there only if that is the fixed point of exact integrals.
    sites = run(scale, power, "default").sites
    return exact(data(scale), power, scale, sites.linear[:, 0], sites.precision[:, 0, 0])


def errors(scale, power, rule):
    """Of the energy in nats, the means in posterior deviations, variances, and sites relative to 1/C: the largest."""
    found, wanted = run(scale, power, rule), referee(scale, power)
    variance = wanted["variance"]
    return (
        found.energy - wanted["energy"],
        np.max(np.abs(found.marginals.mean[:, 0] - wanted["mean"]) / np.sqrt(variance)),
        np.max(np.abs(found.marginals.variance[:, 0] / variance - 1.0)),
        np.max(np.abs(found.sites.precision[:, 0, 0] - wanted["precision"]) * variance),
    )


@pytest.mark.cases(
    slow=["a tenth-0.5", "as the prior-1.0"], thorough=["as the prior-0.5", "a third-0.5", "a third-1.0", "a tenth-1.0"]
)
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("width", SCALES)
def test_the_default_rule_is_exact_for_practical_purposes(width, power):
    assert np.max(np.abs(errors(SCALES[width], power, "default"))) < 1e-6


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("width", SCALES)
def test_more_nodes_are_as_exact_as_the_referee(width, power):
    assert np.max(np.abs(errors(SCALES[width], power, "fine"))) < 1e-9


LARGEST = {("20 nodes", 0.5): 1e-3, ("20 nodes", 1.0): 0.1, ("100 nodes", 0.5): 1e-5, ("100 nodes", 1.0): 1e-4}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("rule", ["20 nodes", "100 nodes"])
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("width", SCALES)
def test_the_error_of_a_named_rule_is_known(width, power, rule):
    energy, *others = errors(SCALES[width], power, rule)
    assert max(abs(energy), *others) < LARGEST[rule, power]
    estimate = estimate_error(run(SCALES[width], power, rule))
    if abs(energy) > 1e-10:  # below, it is that of the referee
        assert 1.0 / 3.0 < estimate.energy / energy < 3.0
    if max(others) > 1e-10:
        assert 1.0 / 3.0 < estimate.posterior / max(others) < 3.0


@pytest.mark.thorough
@pytest.mark.slow
def test_coarse_nodes_are_in_the_summary():
    warned = {each.about: each.text for each in run(0.1, 1.0, "20 nodes").summary().warnings}
    assert "Adaptive(160) instead of GaussHermite(20)" in warned["cubature"]
    assert "cubature" not in {each.about for each in run(0.1, 1.0, "default").summary().warnings}


@pytest.mark.slow
def test_coarse_moments_are_in_the_summary():
    """Between 20 nodes that are far apart, the slope of a probability is lost: nothing is learned from the data."""
    x = np.linspace(0.0, 3.0, 30)
    for variance, is_coarse in ((1000.0, True), (1.0, False)):
        model = ng.Model(ng.GP(ng.kernels.RBF(1.0, variance)), ng.likelihoods.Bernoulli())
        result = ng.infer(model, x, x > 1.5, ng.PosteriorLinearisation())
        assert result.status is ng.Status.CONVERGED
        warned = {each.about: each.text for each in result.summary().warnings}
        assert ("cubature" in warned) == is_coarse
        if is_coarse:
            assert "Adaptive(160) instead of GaussHermite(20)" in warned["cubature"]
            assert estimate_error(result).posterior > 0.5


@pytest.mark.slow
def test_variational_inference_by_default_is_near_exact_integrals():
    """The energy and the optimum: at exact integrals no row's own update would move its site."""
    scale = 0.1
    y, k = data(scale), gram()
    model = ng.Model(ng.GP(ng.kernels.Matern32(1.5)), ng.likelihoods.StudentT(DF, scale))
    result = ng.infer(model, X, y, tol=1e-8)
    assert result.status is ng.Status.CONVERGED
    mean, variance = result.marginals.mean[:, 0], result.marginals.variance[:, 0]
    root = np.sqrt(variance)

    def integrand(z):
        terms = log_prob(y, mean + root * z, scale) * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        return np.stack([terms, terms * z, terms * (z**2 - 1.0)])

    points = np.unique(np.append(np.clip((y - mean) / root, -11.9, 11.9), 0.0))
    moments, _ = integrate.quad_vec(
        integrand, -12.0, 12.0, epsabs=1e-12, epsrel=1e-11, norm="max", points=points, limit=20_000
    )
    precision = result.sites.precision[:, 0, 0]
    # By Stein's identity, E[∇ log p] and E[∇² log p] without any derivative.
    assert np.max(np.abs(-moments[2] - precision * variance)) < 1e-5
    assert np.max(np.abs(moments[1] - (result.sites.linear[:, 0] - precision * mean) * root)) < 1e-5
    covariance = np.linalg.solve(np.eye(N) + k * precision[None, :], k)
    divergence = 0.5 * (mean @ np.linalg.solve(k, mean) - precision @ variance)
    divergence += 0.5 * np.linalg.slogdet(np.eye(N) + precision[:, None] * k)[1]
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-6)
    assert result.energy == pytest.approx(divergence - np.sum(moments[0]), abs=1e-5)
