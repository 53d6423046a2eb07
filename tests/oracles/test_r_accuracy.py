"""How far the log likelihood of each method is from adaptive quadrature: the figures of docs/tables.md."""

import numpy as np
import pytest

import newtongp as ng

from . import mixed_models as mixed

METHODS = {"Laplace": ng.Newton(), "VI": ng.VI(), "EP": ng.PowerEP(1.0), "power EP": ng.PowerEP(0.5)}

# Errors of the log likelihood at the fixed point and at the optimum of Laplace's method, as in the documentation.
ERRORS = {
    "mixed_cbpp_binomial": {
        "Laplace": (-0.0681, -0.0425),
        "VI": (-0.0517, -0.0337),
        "EP": (-0.0353, -0.0229),
        "power EP": (-0.0435, -0.0283),
    },
    "mixed_epil_poisson": {
        "Laplace": (-0.1009, -0.0676),
        "VI": (-0.1655, -0.1314),
        "EP": (-0.1232, -0.0979),
        "power EP": (-0.1443, -0.1146),
    },
    "mixed_seeds_binomial": {
        "Laplace": (-0.0591, -0.0120),
        "VI": (-0.0040, -0.0005),
        "EP": (0.0, 0.0),
        "power EP": (-0.0020, -0.0003),
    },
    "mixed_wine_ordinal": {
        "Laplace": (-0.0247, -0.0329),
        "VI": (-0.0002, -0.0003),
        "EP": (0.0006, 0.0007),
        "power EP": (0.0002, 0.0002),
    },
}


def points(case, spec):
    """For the fixed point and the optimum: coefficients by R's names, sd, dispersion, and the exact log likelihood."""
    values, best = case["fixed_point"]["natural"], case["optimum"]
    if spec.intercept:
        fitted = case["glmmTMB_same_model"]["optimum"]
        beta = dict(zip(fitted["beta"]["name"], fitted["beta"]["estimate"], strict=True))
        sd = fitted["covariance"][spec.groups[0]]["sd"]
        exact = case["exact"]
        yield values["beta"], next(iter(values["theta"].values())), None, exact["at_fixed_point"]
        yield beta, sd, None, exact["at_laplace_optimum"]
        return
    estimates = best["coefficients"]["estimate"]
    yield values["beta"], values["sd"], values["alpha"], case["fixed_point"]["loglik_exact"]
    yield dict(zip(values["beta"], estimates[4:], strict=True)), best["sd"], estimates[:4], best["exact_loglik_here"]


def errors(name, method):
    case, table, spec = mixed.read(name)
    found = []
    for beta, sd, dispersion, exact in points(case, spec):
        model = spec.model(table, "maximised", [sd**2], dispersion)
        values = [beta[each] for each in mixed.r_names_of(model, table, spec.y)]
        model = mixed.with_coefficients(model, table, spec.y, values)
        found.append(-ng.infer(model, table, spec.y, METHODS[method], tol=1e-9).energy - exact)
    return found


@pytest.mark.cases(slow=["mixed_epil_poisson-power EP"], others="thorough")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_the_documentation(name, method):
    np.testing.assert_allclose(errors(name, method), ERRORS[name][method], atol=5.1e-5)


# Errors of the estimated sd of the group, relative to that by quadrature, in the order of the methods.
ESTIMATES = {
    "mixed_cbpp_binomial": (-0.0081, -0.0055, -0.0037, -0.0046),
    "mixed_epil_poisson": (-0.0025, -0.0024, -0.0018, -0.0021),
    "mixed_seeds_binomial": (-0.0070, -0.0004, 0.0, -0.0002),
    "mixed_wine_ordinal": (-0.0032, 0.0, 0.0002, 0.0001),
}


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_are_close_to_those_by_quadrature(name, method):
    case, table, spec = mixed.read(name)
    model = spec.model(table, "maximised")
    result = ng.fit(model, table, spec.y, METHODS[method], standard_errors=False)
    linear, exact = mixed.linear_of(result.model), case["exact"]
    beta = linear.at_zero() @ linear.coefficients
    if spec.intercept:
        best = exact["optimum"]
        assert mixed.r_names(result) == best["beta"]["name"]
        errors, sd = (beta - best["beta"]["estimate"]) / best["beta"]["se"], best["sd"]
    else:
        errors, sd = (beta - exact["beta"]) / case["optimum"]["coefficients"]["se"][4:], exact["sd"]
    assert np.max(np.abs(errors)) < 0.0055
    found = float(np.sqrt(np.ravel(mixed.variances(result)[spec.groups[0]])[0]))
    expected = dict(zip(METHODS, ESTIMATES[name], strict=True))[method]
    np.testing.assert_allclose(found / sd - 1.0, expected, atol=1.5e-4)
