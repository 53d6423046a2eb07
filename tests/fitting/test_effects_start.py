"""Maximised fixed effects beside terms that have a line without a prior."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.terms import Linear, RandomWalk, Trend


def _table(rows):
    rng = np.random.default_rng(1)
    table = {"x": rng.normal(size=rows), "day": np.arange(rows) * 1.0, "month": np.arange(rows) % 12}
    return table | {"y": rng.poisson(np.exp(1.0 + 0.3 * table["x"]))}


@pytest.mark.cases(thorough=["1500-term2", "60-term1", "60-term0", "1500-term2"], others="slow")
@pytest.mark.parametrize(
    ("rows", "term"), [(60, RandomWalk("month", 2)), (60, Trend("day", "smooth")), (1500, Trend("day", "smooth"))]
)
def test_maximised_effects_beside_a_line(rows, term):
    model = ng.Model(Linear("x", prior="maximised") + term, "poisson")
    result = ng.fit(model, _table(rows), "y", standard_errors=False)
    assert result.status.ok
    assert abs(result.parameters["linear(x).coefficients"][1] - 0.3) < 4.0 / np.sqrt(rows)


@pytest.mark.slow
def test_effects_with_a_wide_prior_start_as_in_infer():
    rng = np.random.default_rng(1)
    price = rng.uniform(1.0, 5.0, 300)
    table = {"price": price, "sales": rng.poisson(np.exp(2.2 - 0.3 * price))}
    fitted, inferred = (run("sales ~ price", table, "poisson") for run in (ng.fit, ng.infer))
    assert fitted.status.ok and fitted.inference_status.ok
    np.testing.assert_allclose(fitted.energy, inferred.energy, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", [ng.VI(), ng.Newton(), ng.PowerEP(0.5)])
def test_maximised_effects_alone_are_a_generalised_linear_model(method):
    table = _table(60)
    start = {"linear(x).coefficients": ng.Free(start=np.array([0.5, 0.1]))}
    result = ng.fit(ng.Model(Linear("x", prior="maximised"), "poisson"), table, "y", method, parameters=start)
    design = np.stack([np.ones(60), table["x"] - np.mean(table["x"])], axis=1)
    beta = np.zeros(2)
    for _ in range(30):
        mean = np.exp(design @ beta)
        beta += np.linalg.solve(design.T * mean @ design, design.T @ (table["y"] - mean))
    information = design.T * np.exp(design @ beta) @ design
    np.testing.assert_allclose(result.learned["linear(x).coefficients"], beta, atol=1e-6)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose(result.standard_errors["linear(x).coefficients"], errors, rtol=1e-4)
