"""Mixed models by glmer, glmmTMB and clmm; `data/r/README.md` has conventions and tolerances."""

import numpy as np
import pytest

import newtongp as ng

from . import mixed_models as mixed

GENERALISED = [name for name in mixed.MODELS if name not in ("mixed_penicillin_crossed", "mixed_sleepstudy_slopes")]
TINY = {"tol": 1e-10}
"""Inference is run until nothing moves, as the tolerances of fixed points ask."""


def blocks(case):
    """The optimum and the fixed point of a case: those with the smaller gradient where two packages fitted it."""
    return case.get("glmmTMB_same_model", case)


def natural(case):
    """Coefficients by R's names, standard deviations in the order of the groups, and the dispersion."""
    values, names = case["fixed_point"]["natural"], case["optimum"].get("beta", {}).get("name")
    beta = values["beta"] if isinstance(values["beta"], dict) else dict(zip(names, values["beta"], strict=True))
    sds = list(values["theta"].values()) if "theta" in values else [values["sd"]]
    dispersion = values.get("dispersion_sigma", values.get("zero_probability", values.get("alpha")))
    if "shape" in values:
        dispersion = values["shape"] ** -0.5
    return beta, np.asarray(sds), dispersion


def places(result, names):
    """Where these coefficients of R are among ours."""
    own = mixed.r_names(result)
    return [own.index(name) for name in names]


def assert_random_effects(result, expected, atol):
    found = mixed.random_effects(result)
    groups = expected.get("grouping", [next(iter(found))[0]] * len(expected["level"]))
    terms = expected.get("term", ["(Intercept)"] * len(expected["level"]))
    keys = list(zip(groups, expected["level"], terms, strict=True))
    assert sorted(keys) == sorted(found)
    np.testing.assert_allclose([found[key][0] for key in keys], expected["mode"], atol=atol, rtol=0.0)
    np.testing.assert_allclose([found[key][1] for key in keys], expected["sd"], atol=atol, rtol=0.0)


@pytest.mark.cases(
    thorough=[
        "mixed_grouseticks_poisson",
        "mixed_epil_poisson",
        "mixed_verbagg_crossed",
        "mixed_owls_nbinom2_offset",
        "mixed_salamanders_zip",
        "mixed_petrol_beta",
        "mixed_wine_ordinal",
    ],
    quick=["mixed_cbpp_binomial"],
    others="slow",
)
@pytest.mark.parametrize("name", GENERALISED)
def test_fixed_point(name):
    case, table, spec = mixed.read(name)
    beta, sds, dispersion = natural(case)
    model = spec.model(table, "maximised", sds**2, dispersion)
    values = [beta[each] for each in mixed.r_names_of(model, table, spec.y)]
    values[0] -= spec.shift(model.likelihood)
    model = mixed.with_coefficients(model, table, spec.y, values)
    result = ng.infer(model, table, spec.y, ng.Newton(), **TINY)
    expected = blocks(case)["fixed_point"]
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    assert_random_effects(result, expected["random"], 1e-5)


@pytest.mark.cases(slow=["mixed_petrol_beta"], others="thorough")
@pytest.mark.parametrize("name", [name for name in GENERALISED if "flat_beta" in mixed.load(name)[0]])
def test_flat_fixed_point(name):
    case, table, spec = mixed.read(name)
    _, sds, dispersion = natural(case)
    model = spec.model(table, "flat", sds**2, dispersion)
    result = ng.infer(model, table, spec.y, ng.Newton(), **TINY)
    expected = case["flat_beta"]["fixed_point"]
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    assert_random_effects(result, expected["random"], 1e-5)
    means, covariance = mixed.integrated(result)
    means[0] += spec.shift(model.likelihood)
    order = places(result, expected["beta"]["name"])
    np.testing.assert_allclose(means[order], expected["beta"]["mean"], atol=1e-5, rtol=0.0)
    np.testing.assert_allclose(covariance[np.ix_(order, order)], expected["beta_covariance"], atol=1e-5, rtol=0.0)


@pytest.mark.cases(slow=["mixed_cbpp_binomial"], others="thorough")
@pytest.mark.parametrize("name", [name for name in GENERALISED if "proper_prior" in mixed.load(name)[0]])
def test_proper_prior(name):
    case, table, spec = mixed.read(name)
    expected = case["proper_prior"]
    sds = expected["sd"]
    sds = [sds[group] for group in spec.groups] if isinstance(sds, dict) else [sds]
    result = ng.infer(spec.model(table, 10.0, np.square(sds)), table, spec.y, ng.Newton(), **TINY)
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    means, covariance = mixed.integrated(result)
    np.testing.assert_allclose(means, expected["beta"]["mode"], atol=1e-5, rtol=0.0)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), expected["beta"]["sd"], atol=1e-5, rtol=0.0)
    if "random" in expected:
        assert_random_effects(result, expected["random"], 1e-5)
    predictor = expected.get("linear_predictor", expected.get("linear_predictor_first20"))
    count = len(predictor["mean"])
    np.testing.assert_allclose(np.ravel(result.marginals.mean)[:count], predictor["mean"], atol=1e-5, rtol=0.0)
    sds = np.sqrt(np.ravel(result.marginals.covariance))[:count]
    np.testing.assert_allclose(sds, predictor["sd"], atol=1e-5, rtol=0.0)


# Optima -------------------------------------------------------------------------------------------------------------


def dispersion_of(likelihood):
    """The parameter of a likelihood that R calls the dispersion, or the zero probability."""
    kinds = {
        "NegativeBinomial": lambda: 1.0 / likelihood.dispersion,
        "Beta": lambda: likelihood.concentration,
        "Gamma": lambda: likelihood.shape**-0.5,
        "ZeroInflated": lambda: likelihood.probability,
    }
    return kinds.get(type(likelihood).__name__, lambda: None)()


def assert_groups(result, covariance, rtol):
    """`covariance` has sds by group, as glmmTMB prints them."""
    found = mixed.variances(result)
    assert sorted(found) == sorted(covariance)
    for group, expected in covariance.items():
        np.testing.assert_allclose(np.sqrt(found[group]), expected["sd"], rtol=rtol)


@pytest.mark.cases(
    thorough=[
        "mixed_verbagg_crossed",
        "mixed_petrol_beta",
        "mixed_salamanders_nbinom2",
        "mixed_salamanders_zip",
        "mixed_cbpp_binomial",
        "mixed_sleepstudy_gamma",
        "mixed_epil_poisson",
        "mixed_verbagg_crossed",
        "mixed_petrol_beta",
        "mixed_salamanders_nbinom2",
        "mixed_salamanders_zip",
        "mixed_cbpp_binomial",
        "mixed_grouseticks_poisson",
        "mixed_seeds_binomial",
        "mixed_owls_nbinom2_offset",
    ],
    others="slow",
)
@pytest.mark.parametrize("name", [name for name in GENERALISED if name != "mixed_wine_ordinal"])
def test_optimum(name):
    case, table, spec = mixed.read(name)
    result = ng.fit(spec.model(table, "maximised"), table, spec.y, ng.Newton(), tol=1e-7)
    best = blocks(case)["optimum"]
    np.testing.assert_allclose(-result.energy, best["loglik"], atol=1e-6, rtol=0.0)
    order = places(result, best["beta"]["name"])
    estimates, errors = (values[order] for values in mixed.maximised(result, spec.shift))
    se = np.array(best["beta"]["se"])
    np.testing.assert_allclose((estimates - best["beta"]["estimate"]) / se, 0.0, atol=1e-4)
    np.testing.assert_allclose(errors, se, rtol=1e-3)
    assert_groups(result, best["covariance"], 1e-4)
    if best.get("dispersion_sigma", 1) != 1:
        np.testing.assert_allclose(dispersion_of(result.model.likelihood), best["dispersion_sigma"], rtol=1e-4)
    if best.get("betazi"):
        p = dispersion_of(result.model.likelihood)
        np.testing.assert_allclose(np.log(p / (1.0 - p)), best["betazi"]["estimate"][0], atol=1e-4)
    assert_random_effects(result, best.get("random") or best["conditional"]["random"], 1e-4)
    assert_predictions(result, spec, table, case["predictions"], 1e-3 * np.min(se))


def assert_predictions(result, spec, table, expected, atol):
    """They are plugged in: at the estimates and modes, with no effect of a new level."""
    columns = {key: values for key, values in expected.items() if key not in ("link", "response", "mean")}
    rows = {key: np.asarray(values).astype(table[key].dtype) for key, values in columns.items()}
    likelihood = result.model.likelihood
    trials = {name: np.ones(len(expected["link"]), dtype=int) for name in likelihood.row_parameters if name == "trials"}
    latent = np.ravel(result.predict(rows, **trials).latent.mean)
    np.testing.assert_allclose(latent + spec.shift(likelihood), expected["link"], atol=atol)
    if trials:
        likelihood = ng.likelihoods.Binomial(1)
    response = [float(np.ravel(likelihood.mean(f))[0]) for f in latent]
    np.testing.assert_allclose(response, expected["response"], rtol=atol)


@pytest.mark.cases(
    others="thorough",
)
@pytest.mark.parametrize("name", [name for name in GENERALISED if "flat_beta" in mixed.load(name)[0]])
def test_flat_optimum(name):
    case, table, spec = mixed.read(name)
    result = ng.fit(spec.model(table, "flat"), table, spec.y, ng.Newton(), tol=1e-7, standard_errors=False)
    best = case["flat_beta"]["optimum"]
    np.testing.assert_allclose(-result.energy, best["loglik"], atol=1e-6, rtol=0.0)
    sds = np.atleast_1d(best["sd"]) if "sd" in best else [best["covariance"][group]["sd"] for group in spec.groups]
    assert_groups(result, {group: {"sd": sd} for group, sd in zip(spec.groups, sds, strict=True)}, 1e-4)
    if best.get("dispersion_sigma", 1) != 1:
        np.testing.assert_allclose(dispersion_of(result.model.likelihood), best["dispersion_sigma"], rtol=1e-4)
    beta = best.get("beta") or best["at"]["beta"]
    means, covariance = mixed.integrated(result)
    means[0] += spec.shift(result.model.likelihood)
    order = places(result, beta["name"])
    np.testing.assert_allclose((means[order] - beta["mean"]) / beta["sd"], 0.0, atol=1e-4)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance))[order], beta["sd"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_optimum_of_ordered_levels():
    case, table, spec = mixed.read("mixed_wine_ordinal")
    result = ng.fit(spec.model(table, "maximised"), table, spec.y, ng.Newton(), tol=1e-7)
    best = case["optimum"]
    np.testing.assert_allclose(-result.energy, best["loglik"], atol=1e-6, rtol=0.0)
    likelihood, named = result.model.likelihood, result.covariance
    beta = mixed.linear_of(result.model).coefficients
    np.testing.assert_allclose([*likelihood.thresholds, *beta], best["coefficients"]["estimate"], atol=1e-3, rtol=0.0)
    # Thresholds are sums of the first one and of gaps.
    sums = np.zeros((6, len(named.names)))
    sums[:4, named.names.index("likelihood.first")] = 1.0
    for place, name in enumerate(named.names):
        if "gaps" in name:
            sums[int(name[-2]) + 1 : 4, place] = 1.0
        if "coefficients" in name:
            sums[4 + int(name[-2]), place] = 1.0
    errors = np.sqrt(np.diagonal(sums @ named.matrix @ sums.T))
    # clmm's are off by up to 1.2 %: differences of the Laplace log likelihood, by hand in NumPy, give these.
    np.testing.assert_allclose(errors, [0.682438, 0.603736, 0.808956, 0.972456, 0.595391, 0.512558], atol=1e-5)
    np.testing.assert_allclose(errors, best["coefficients"]["se"], rtol=0.015)
    np.testing.assert_allclose(np.sqrt(mixed.variances(result)["judge"]), best["sd"], atol=1e-3, rtol=0.0)
    assert_random_effects(result, best["random"], 1e-3)


# Linear models ------------------------------------------------------------------------------------------------------

LINEAR = ["mixed_penicillin_crossed", "mixed_sleepstudy_slopes"]


def covariances(factors, groups):
    """Covariances of the groups, from Cholesky factors by columns as lme4 names them."""
    found = []
    for group in groups:
        own = [value for key, value in factors.items() if key.startswith(f"{group}.")]
        if len(own) == 1:
            found.append(own[0] ** 2)
        else:
            root = np.array([[own[0], 0.0], [own[1], own[2]]])
            found.append(root @ root.T)
    return found


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", LINEAR)
def test_linear_fixed_point(name):
    case, table, spec = mixed.read(name)
    expected = case["fixed_point"]
    values = expected["natural"]
    given = covariances(values["cholesky_of_random_covariance"], spec.groups), values["noise_sd"] ** 2
    found = {}
    for prior in ("maximised", "flat", 100.0):
        model = spec.model(table, prior, *given)
        if prior == "maximised":
            model = mixed.with_coefficients(model, table, spec.y, list(values["beta"].values()))
        found[prior] = ng.infer(model, table, spec.y)
    np.testing.assert_allclose(-found["maximised"].energy, expected["loglik_given_beta"], atol=1e-7, rtol=0.0)
    np.testing.assert_allclose(-found["flat"].energy, expected["loglik_flat_beta"], atol=1e-7, rtol=0.0)
    np.testing.assert_allclose(-found[100.0].energy, expected["loglik_beta_normal_sd100"], atol=1e-7, rtol=0.0)
    means, covariance = mixed.integrated(found["flat"])
    np.testing.assert_allclose(means, expected["flat_beta"]["mean"], atol=1e-7)
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance)), expected["flat_beta"]["sd"], atol=1e-7)
    random = expected["flat_random"]
    assert_random_effects(found["flat"], {**random, "mode": random["mean"]}, 1e-7)


@pytest.mark.cases(slow=["mixed_sleepstudy_slopes-maximum_likelihood"], others="thorough")
@pytest.mark.parametrize("criterion", ["maximum_likelihood", "reml"])
@pytest.mark.parametrize("name", LINEAR)
def test_linear_optimum(name, criterion):
    case, table, spec = mixed.read(name)
    expected, prior = case[criterion], {"maximum_likelihood": "maximised", "reml": "flat"}[criterion]
    result = ng.fit(spec.model(table, prior), table, spec.y, standard_errors=False)
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    found = mixed.variances(result)
    for group, best in zip(spec.groups, covariances(expected["theta_times_sigma"], spec.groups), strict=True):
        np.testing.assert_allclose(found[group], best, rtol=1e-4)
    variance = result.model.likelihood.variance
    np.testing.assert_allclose(np.sqrt(variance), expected["sigma"], rtol=1e-4)
    # lmer's standard errors and modes are those at the estimated variances.
    flat = ng.infer(spec.model(table, "flat", list(found.values()), float(variance)), table, spec.y)
    means, covariance = mixed.integrated(flat)
    se = np.array(expected["beta"]["se"])
    np.testing.assert_allclose((means - expected["beta"]["estimate"]) / se, 0.0, atol=1e-3)
    np.testing.assert_allclose(covariance, expected["beta_covariance"], rtol=2e-4, atol=2e-4 * np.min(se) ** 2)
    at_means = spec.model(table, "maximised", list(found.values()), float(variance))
    plugged = ng.infer(mixed.with_coefficients(at_means, table, spec.y, means), table, spec.y)
    assert_random_effects(plugged, expected["random"], 1e-3 * np.min(se))
    fitted = np.ravel(plugged.marginals.mean)[:10]
    np.testing.assert_allclose(fitted, expected["fitted_first10"], atol=1e-3 * np.min(se))
    rows = {key: np.asarray(values) for key, values in expected["predictions"].items() if key != "mean"}
    np.testing.assert_allclose(plugged.predict(rows).mean, expected["predictions"]["mean"], atol=1e-3 * np.min(se))
