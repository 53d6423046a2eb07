"""Nested groups, and crossed groups with a singular covariance at the optimum, beside lme4 and glmmTMB."""

import json
from pathlib import Path

import numpy as np
import pytest

import newtongp as ng
from newtongp import terms

DATA = Path(__file__).parent / "data" / "groups"
CASES = json.loads((DATA / "groups.json").read_text())


def load(name):
    rows = np.genfromtxt(DATA / f"{name}.csv", delimiter=",", names=True, dtype=None)
    return CASES[name], {column: rows[column] for column in rows.dtype.names}


@pytest.fixture(scope="module")
def nested():
    groups = terms.Group("school") + terms.Group("class", slope="x") + terms.Group("pupil")
    case, table = load("nested")
    model = ng.Model(terms.Linear("x", prior="maximised") + groups, "poisson")
    return case, ng.fit(model, table, "y", ng.Newton(), tol=1e-6)


@pytest.fixture(scope="module")
def crossed():
    groups = terms.Group("a", slope="x") + terms.Group("b", slope="x")
    case, table = load("crossed")
    model = ng.Model(terms.Linear("x", prior="maximised") + groups, ng.likelihoods.Binomial(trials="n"))
    return case, ng.fit(model, table, "y", ng.Newton(), tol=1e-6)


def assert_same(case, result):
    assert result.status is ng.Status.CONVERGED
    for tool in ("", "glmmTMB_"):
        assert -result.energy == pytest.approx(case[f"{tool}logLik"], abs=1e-5)
        for name, covariance in case[f"{tool}covariances"].items():
            (found,) = [value for key, value in result.learned.items() if key.startswith(f"group({name}")]
            expected = np.sqrt(np.diagonal(covariance))
            np.testing.assert_allclose(np.sqrt(np.diagonal(np.atleast_2d(found))), expected, rtol=1e-4)
    effects = result.effects()
    found = np.asarray(effects["estimate"])[np.asarray(effects["kind"]) == "fixed"]
    np.testing.assert_allclose(found, case["beta"], atol=2e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_nested_groups(nested):
    case, result = nested
    assert result.model.prior.eliminated == ("pupil", "class", "school")
    assert_same(case, result)
    assert not any("singular" in finding.text for finding in result.summary(checks=False).warnings)


@pytest.mark.slow
@pytest.mark.thorough
def test_crossed_groups_with_a_singular_covariance(crossed):
    case, result = crossed
    assert result.model.prior.eliminated == ("a",)
    assert_same(case, result)
    singular = result.learned["group(b, slope=x).covariance"]
    assert singular[0, 1] / np.sqrt(singular[0, 0] * singular[1, 1]) > 1.0 - 1e-4
    found = [finding for finding in result.summary(checks=False).warnings if "singular" in finding.text]
    assert [finding.about for finding in found] == ["group(b, slope=x).covariance"]
    # A flat direction does not take the steps of a search.
    assert result.evaluations < 120
