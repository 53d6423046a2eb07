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
