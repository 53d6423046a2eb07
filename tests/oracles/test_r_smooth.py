"""Latent GPs by glmmTMB and smooths by mgcv; `data/r/README.md` has conventions and tolerances."""

import equinox as eqx
import numpy as np
import pytest

import newtongp as ng

from . import mixed_models as mixed

EXACT = 1e-7

# Latent GPs by glmmTMB ----------------------------------------------------------------------------------------------


def gp_case(name):
    """The case, its table with a column t, the kernel as a function of its parameters, and glmmTMB's own as those."""
    case, table = mixed.load(name)
    if name == "gp_coal_matern32_poisson":
        return (
            case,
            {"t": table["year"] / 10.0, "y": table["y"]},
            ng.kernels.Matern32,
            lambda log_r: np.exp(log_r) * 3**0.5,
        )
    return case, {"t": table["year"].astype(float), "y": table["y"]}, ng.kernels.Matern12, lambda value: np.exp(-value)


SMOOTHS = [
    "smooth_airquality_gp_matern32",
    "smooth_airquality_tensor",
    "smooth_cbpp_re",
    "smooth_mcycle_spline",
]
GPS = ["gp_coal_matern32_poisson", "gp_discoveries_ou_poisson"]


def gp_model(prior, kernel):
    return ng.Model(ng.terms.Linear(prior=prior) + ng.terms.Smooth("t", kernel=kernel), ng.likelihoods.Poisson())


def assert_smooth(result, table, expected, atol):
    """The posterior of the smooth term at the rows of the table."""
    found = result.posterior.of_terms(result.columns.read(table, "x"), [[0.0, 1.0]])
    np.testing.assert_allclose(np.ravel(found.mean), expected["mode"], atol=atol, rtol=0.0)
    np.testing.assert_allclose(np.sqrt(np.ravel(found.covariance)), expected["sd"], atol=atol, rtol=0.0)


@pytest.mark.cases(slow=["gp_discoveries_ou_poisson-maximised"], others="thorough")
@pytest.mark.parametrize("prior", ["maximised", "flat"])
@pytest.mark.parametrize("name", GPS)
def test_gp_fixed_point(name, prior):
    case, table, kind, _ = gp_case(name)
    expected = case["fixed_point"] if prior == "maximised" else case["flat_beta"]["fixed_point"]
    values = expected["natural"]
    lengthscale = values.get("matern_lengthscale", values.get("lengthscale"))
    model = gp_model(prior, kind(lengthscale, values["sd"] ** 2))
    if prior == "maximised":
        model = mixed.with_coefficients(model, table, "y", [values["beta"]])
    result = ng.infer(model, table, "y", ng.Newton(), tol=1e-10)
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    assert_smooth(result, table, expected["random"], 1e-5)
    if prior == "flat":
        means, covariance = mixed.integrated(result)
        np.testing.assert_allclose(means, expected["beta"]["mean"], atol=1e-5)
        np.testing.assert_allclose(np.sqrt(covariance[0]), expected["beta"]["sd"], atol=1e-5)


@pytest.mark.cases(
    thorough=["gp_coal_matern32_poisson-maximised", "gp_coal_matern32_poisson-flat", "gp_discoveries_ou_poisson-flat"],
    others="slow",
)
@pytest.mark.parametrize("prior", ["maximised", "flat"])
@pytest.mark.parametrize("name", GPS)
def test_gp_optimum(name, prior):
    case, table, kind, lengthscale_of = gp_case(name)
    result = ng.fit(gp_model(prior, kind()), table, "y", ng.Newton(), tol=1e-7)
    best = case["optimum"] if prior == "maximised" else case["flat_beta"]["optimum"]
    np.testing.assert_allclose(-result.energy, best["loglik"], atol=1e-6, rtol=0.0)
    values = dict(zip(["log_sd", "length"], best["parameters_tmb"]["value"][-2:], strict=True))
    kernel = result.model.prior.latents[0].terms[1].kernel
    np.testing.assert_allclose(np.sqrt(kernel.variance), np.exp(values["log_sd"]), rtol=1e-4)
    np.testing.assert_allclose(kernel.lengthscale, lengthscale_of(values["length"]), rtol=1e-4)
    if prior == "flat":
        means, covariance = mixed.integrated(result)
        beta = best["at"]["beta"]
        np.testing.assert_allclose((means - beta["mean"]) / beta["sd"], 0.0, atol=1e-4)
        np.testing.assert_allclose(np.sqrt(covariance[0]), beta["sd"], rtol=1e-4)
        return
    estimates, errors = mixed.maximised(result, lambda likelihood: 0.0)
    np.testing.assert_allclose((estimates - best["beta"]["estimate"]) / best["beta"]["se"], 0.0, atol=1e-4)
    np.testing.assert_allclose(errors, best["beta"]["se"], rtol=1e-3)
    assert_smooth(result, table, best["conditional"]["random"], 1e-4)
    np.testing.assert_allclose(np.ravel(result.marginals.mean)[:10], case["fitted_first10"]["link"], atol=1e-4)


# Smooths by mgcv ----------------------------------------------------------------------------------------------------


@pytest.mark.cases(thorough=["null_space_1_x-reml", "null_space_1_x-fixed_point", "null_space_1-reml"], others="slow")
@pytest.mark.parametrize("at", ["fixed_point", "reml"])
@pytest.mark.parametrize("space", ["null_space_1_x", "null_space_1"])
def test_gp_with_a_flat_null_space(space, at):
    case, table = mixed.load("smooth_airquality_gp_matern32")
    expected = case["cases"][space][at]
    effects = ["temp"] if space == "null_space_1_x" else []
    kernel = ng.kernels.Matern32(1.5 * np.sqrt(3.0), expected["process_variance"])
    terms = ng.terms.Linear(*effects, prior="flat") + ng.terms.Smooth("temp", kernel=kernel)
    model = ng.Model(terms, ng.likelihoods.Gaussian(expected["noise_variance"]))
    result = ng.infer(model, table, "y")
    np.testing.assert_allclose(-result.energy, expected["loglik_flat"], atol=EXACT, rtol=0.0)
    latent = result.predict({"temp": np.array(expected["x"])}).latent
    mean, sd = (
        (expected["mean"], expected["sd"]) if at == "fixed_point" else (expected["fitted_exact"], expected["se_exact"])
    )
    np.testing.assert_allclose(np.ravel(latent.mean), mean, atol=EXACT, rtol=0.0)
    np.testing.assert_allclose(np.sqrt(np.ravel(latent.covariance)), sd, atol=EXACT, rtol=0.0)
    if at == "reml":
        # mgcv's score is that of its finite basis.
        learned = ng.fit(model, table, "y", parameters={"lengthscale": ng.Fixed()}, standard_errors=False)
        np.testing.assert_allclose(-learned.energy, expected["loglik_flat"], atol=1e-6)
        fitted = np.ravel(learned.predict({"temp": np.array(expected["x"])}).latent.mean)
        np.testing.assert_allclose(fitted, expected["fitted_mgcv"], atol=1e-4)


# A cubic smoothing spline: level and slope are flat.
SPLINE = ng.terms.Linear(prior="flat") + ng.terms.Trend("x", "smooth")


def spline(noise, intensity):
    model = ng.Model(SPLINE, ng.likelihoods.Gaussian(noise))
    return eqx.tree_at(lambda m: m.prior.latents[0].terms[1].kernel.variance, model, np.array(intensity))


@pytest.mark.cases(slow=["reml"], others="thorough")
@pytest.mark.parametrize("at", ["fixed_point", "reml", "ml"])
def test_smoothing_spline(at):
    case, table = mixed.load("smooth_mcycle_spline")
    expected = case[at]
    result = ng.infer(spline(expected["noise_variance"], expected["process_intensity_q"]), table, "y")
    loglik = expected.get("loglik_flat", expected.get("exact_loglik_flat"))
    np.testing.assert_allclose(-result.energy, loglik, atol=EXACT, rtol=0.0)
    latent = result.predict({"x": np.array(expected["x"])}).latent
    np.testing.assert_allclose(np.ravel(latent.mean), expected["fitted"], atol=EXACT, rtol=0.0)
    np.testing.assert_allclose(np.sqrt(np.ravel(latent.covariance)), expected["se"], atol=EXACT, rtol=0.0)


@pytest.mark.slow
def test_smoothing_parameter():
    case, table = mixed.load("smooth_mcycle_spline")
    model = ng.Model(SPLINE, ng.likelihoods.Gaussian())
    result = ng.fit(model, table, "y", tol=1e-7, standard_errors=False)
    noise, intensity = result.model.likelihood.variance, result.model.prior.latents[0].terms[1].kernel.variance
    np.testing.assert_allclose(noise / intensity, case["reml"]["lambda"], rtol=1e-5)
    np.testing.assert_allclose(noise, case["reml"]["noise_variance"], rtol=1e-5)


@pytest.mark.slow
def test_tensor_product_spline():
    """The basis and its penalty: the null space of the penalty is flat, the rest has a normal prior."""
    case, table = mixed.load("smooth_airquality_tensor")
    expected = case["reml"]
    basis = np.genfromtxt(mixed.DATA / case["design"], delimiter=",", skip_header=1)
    penalties = [np.array(case["penalty_1"]), np.array(case["penalty_2"])]

    def solved(sp, noise):
        sizes, vectors = np.linalg.eigh(sp[0] * penalties[0] + sp[1] * penalties[1])
        free, bound = vectors[:, :3], vectors[:, 3:] / np.sqrt(sizes[3:])
        maps = {"free": free, "bound": bound}
        names = {part: [f"{part}{k}" for k in range(maps[part].shape[1])] for part in maps}
        columns = {
            name: column
            for part in maps
            for name, column in zip(names[part], (basis[:, 1:] @ maps[part]).T, strict=True)
        }
        terms = ng.terms.Linear(*names["free"], prior="flat") + ng.terms.Linear(
            *names["bound"], intercept=False, prior=float(np.sqrt(noise))
        )
        return ng.infer(ng.Model(terms, ng.likelihoods.Gaussian(noise)), {**columns, "y": table["y"]}, "y"), maps

    result, maps = solved(expected["sp"], expected["noise_variance"])
    # The intercept and the coefficients, from the fixed part of f at unit vectors.
    rows = np.eye(25)
    rows[1:, 0] = 1.0
    contrast = np.eye(25)
    contrast[1:, 0] = -1.0
    joint = result.posterior.joint_of_terms(rows, [[1.0, 1.0]])
    back = np.zeros((25, 25))
    back[0, 0], back[1:, 1:4], back[1:, 4:] = 1.0, maps["free"], maps["bound"]
    means = back @ contrast @ np.ravel(joint.mean)
    covariance = back @ contrast @ np.asarray(joint.covariance) @ contrast.T @ back.T
    np.testing.assert_allclose(means, expected["coefficients"], atol=EXACT, rtol=0.0)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), expected["coefficient_sd"], atol=EXACT, rtol=0.0)
    # mgcv's optimum is one of ours: the penalty's determinant and the flat part are the same up to a constant.
    sp, noise, step = np.array(expected["sp"]), expected["noise_variance"], 1e-2
    here = result.energy
    for change in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
        factors = np.exp(step * np.array(change))
        up, down = (solved(sp * f[:2], noise * f[2])[0].energy for f in (factors, 1.0 / factors))
        slope, bend = (up - down) / (2.0 * step), (up - 2.0 * here + down) / step**2
        assert bend > 0.0 and abs(slope) < 1e-4 * bend


@pytest.mark.cases(slow=["ml"], others="thorough")
@pytest.mark.parametrize("criterion", ["reml", "ml"])
def test_random_intercepts_as_a_penalty(criterion):
    case, table = mixed.load("smooth_cbpp_re")
    expected, spec = case[criterion], mixed.MODELS["mixed_cbpp_binomial"]
    # mgcv's ML is another criterion than glmer's, but the modes and sds at its estimate are the same.
    result = ng.infer(spec.model(table, "flat", [expected["sd"] ** 2]), table, spec.y, ng.Newton(), tol=1e-10)
    effects = mixed.random_effects(result).values()
    means, covariance = mixed.integrated(result)
    coefficients = expected["coefficients"]
    np.testing.assert_allclose([*means, *(e[0] for e in effects)], coefficients["mode"], atol=1e-7, rtol=0.0)
    sds = [*np.sqrt(np.diagonal(covariance)), *(e[1] for e in effects)]
    np.testing.assert_allclose(sds, coefficients["sd"], atol=1e-7, rtol=0.0)
    if criterion == "reml":
        np.testing.assert_allclose(result.energy, expected["mgcv_score"], atol=1e-7)
        np.testing.assert_allclose(np.ravel(result.marginals.mean), case["link_fitted"], atol=1e-7)
        np.testing.assert_allclose(np.sqrt(np.ravel(result.marginals.covariance)), case["link_se"], atol=1e-7)


# Kriging by gstat ---------------------------------------------------------------------------------------------------

KRIGED = ["exponential-ordinary", "exponential-universal", "matern32-ordinary", "matern32-universal"]
KRIGED = [*KRIGED, "spherical_tutorial-ordinary"]


@pytest.mark.cases(slow=["exponential-universal", "matern32-universal"], others="thorough")
@pytest.mark.parametrize("which", KRIGED)
def test_kriging_with_a_flat_mean(which):
    """The mean is integrated; test_r.py has the same with its estimate."""
    case, table = mixed.load("kriging_meuse")
    covariance, trend = which.split("-")
    expected = case["results"][covariance][trend]
    nugget, sill = expected["variogram"]["psill"]
    length = expected["variogram"]["range"][1]
    kernel = {
        "exponential": lambda: ng.kernels.Matern12(length, sill),
        "matern32": lambda: ng.kernels.Matern32(length * np.sqrt(3.0), sill),
        "spherical_tutorial": lambda: ng.kernels.Spherical(length, sill),
    }[covariance]()
    effects = [] if trend == "ordinary" else ["sqrtdist"]
    terms = ng.terms.Linear(*effects, prior="flat") + ng.terms.Smooth("x", "y", kernel=kernel)
    result = ng.infer(ng.Model(terms, ng.likelihoods.Gaussian(nugget)), table, "logzinc")
    places = {key: np.array(values) for key, values in case["new_points"].items()}
    found = result.predict({**places, "sqrtdist": np.sqrt(places["dist"])})
    np.testing.assert_allclose(found.mean, expected["mean"], atol=1e-9, rtol=0.0)
    np.testing.assert_allclose(found.std**2, expected["variance_of_new_observation"], atol=1e-9, rtol=0.0)
    if "beta" in expected:
        np.testing.assert_allclose(-result.energy, expected["loglik_flat"], atol=EXACT, rtol=0.0)
        means, covariance_of_beta = mixed.integrated(result)
        np.testing.assert_allclose(means, expected["beta"]["mean"], atol=1e-9, rtol=0.0)
        deviations = np.sqrt(np.diagonal(covariance_of_beta))
        np.testing.assert_allclose(deviations, expected["beta"]["sd"], atol=1e-9, rtol=0.0)
