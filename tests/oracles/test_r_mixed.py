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


def assert_random_effects(result, expected, atol):
    found = mixed.random_effects(result)
    groups = expected.get("grouping", [next(iter(found))[0]] * len(expected["level"]))
    terms = expected.get("term", ["(Intercept)"] * len(expected["level"]))
    keys = list(zip(groups, expected["level"], terms, strict=True))
    assert sorted(keys) == sorted(found)
    np.testing.assert_allclose([found[key][0] for key in keys], expected["mode"], atol=atol, rtol=0.0)
    np.testing.assert_allclose([found[key][1] for key in keys], expected["sd"], atol=atol, rtol=0.0)


@pytest.mark.parametrize("name", GENERALISED)
def test_fixed_point(name):
    case, table, spec = mixed.read(name)
    beta, sds, dispersion = natural(case)
    model = spec.model(table, "maximised", sds**2, dispersion)
    plain = ng.infer(model, table, spec.y, ng.Newton(), max_steps=1, throw=False)
    values = [beta[each] for each in mixed.r_names(plain)]
    values[0] -= spec.shift(model.likelihood)
    model = mixed.with_coefficients(model, table, spec.y, values)
    result = ng.infer(model, table, spec.y, ng.Newton(), **TINY)
    expected = blocks(case)["fixed_point"]
    np.testing.assert_allclose(-result.energy, expected["loglik"], atol=1e-6, rtol=0.0)
    assert_random_effects(result, expected["random"], 1e-5)


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
    assert mixed.r_names(result) == expected["beta"]["name"]
    np.testing.assert_allclose(means, expected["beta"]["mean"], atol=1e-5, rtol=0.0)
    np.testing.assert_allclose(covariance, expected["beta_covariance"], atol=1e-5, rtol=0.0)


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
