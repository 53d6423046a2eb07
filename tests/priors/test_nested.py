"""Nested groups, eliminated from the inside out, are the same model as one whose weights are solved for together."""

import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp import terms
from newtongp.fitting.initial_values import Scales
from newtongp.fitting.objective import evaluate
from newtongp.fitting.space import Space
from newtongp.inference.compatibility import check_choices
from newtongp.inference.problem import Setup
from newtongp.priors import additive
from newtongp.priors.nesting import is_nested, largest_nest

rng = np.random.default_rng(3)
N, CLASS_OF, SCHOOL_OF = 120, rng.integers(0, 9, 30), rng.integers(0, 4, 9)
PUPIL = np.concatenate([np.arange(30), rng.integers(0, 30, N - 30)])
TABLE = {
    "x": rng.normal(size=N),
    "pupil": PUPIL,
    "class": CLASS_OF[PUPIL],
    "school": SCHOOL_OF[CLASS_OF[PUPIL]],
    "test": rng.integers(0, 7, N),
    "y": np.where(np.arange(N) % 13 == 5, np.nan, rng.poisson(2.0, N)),
}
# A known pupil in another class of another school, a new pupil in a known class, known ones, and everything new.
NEW = {
    "x": [0.5, -1.0, 1.0, 0.3, 0.7],
    "pupil": [0, 99, 1, 1, 98],
    "class": [(CLASS_OF[0] + 1) % 9, 3, CLASS_OF[1], CLASS_OF[1], 97],
    "school": [(SCHOOL_OF[CLASS_OF[0]] + 1) % 4, SCHOOL_OF[3], SCHOOL_OF[CLASS_OF[1]], 96, 96],
    "test": [0, 1, 2, 3, 4],
}
NEST = ("pupil", "class", "school")


def model(prior=2.0, likelihood="poisson"):
    groups = (
        terms.Group("school", covariance=0.4)
        + terms.Group("class", slope="x", covariance=[[0.3, 0.1], [0.1, 0.2]])
        + terms.Group("pupil", slope="x", intercept=False, covariance=0.3)
        + terms.Group("pupil", covariance=0.5)
    )
    return ng.Model(terms.Linear("x", prior=prior) + groups + terms.Group("test", covariance=0.2), likelihood)


def structured(monkeypatch, few):
    monkeypatch.setattr(additive, "_FEW_LEVELS", few)


@pytest.fixture(scope="module")
def both():
    """The same inference with three groups eliminated, and with none."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for few in (2, 10**9):
            structured(patch, few)
            found.append(ng.infer(model(), TABLE, "y", ng.Newton(), tol=1e-10))
    assert [result.model.prior.eliminated for result in found] == [NEST, ()]
    assert "pupil" in found[0].model.prior.structure and "from the inside out" in found[0].model.prior.structure
    return found


@pytest.mark.slow
@pytest.mark.thorough
def test_energies_and_marginals_agree(both):
    one, two = both
    assert one.energy == pytest.approx(two.energy, abs=1e-9)
    np.testing.assert_allclose(one.marginals.mean, two.marginals.mean, atol=1e-9, rtol=0.0)
    np.testing.assert_allclose(one.marginals.covariance, two.marginals.covariance, atol=1e-9, rtol=0.0)


@pytest.mark.cases(thorough=["chosen1", "chosen0", "chosen0"], others="slow")
@pytest.mark.parametrize("chosen", [(1.0,) * 6, (1.0, 0.0, 1.0, 0.0, 1.0, 0.0)])
def test_predictions_agree_whether_or_not_levels_are_nested(both, chosen):
    found = []
    for result in both:
        x = result.columns.read(NEW, "x_new")
        found.append((result.posterior.of_terms(x, (chosen,)), result.posterior.joint_of_terms(x, (chosen,))))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one.mean, two.mean, atol=1e-9, rtol=0.0)
        np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-9, rtol=0.0)
    marginal, joint = found[0]
    np.testing.assert_allclose(np.diagonal(joint.covariance), marginal.covariance[:, 0, 0], atol=1e-12)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", ["newton", "vi", "ep"])
def test_gradients_agree(method, monkeypatch):
    found = []
    for few in (2, 10**9):
        structured(monkeypatch, few)
        found.append(_gradient({"newton": ng.Newton(), "vi": ng.VI(), "ep": ng.PowerEP(1.0)}[method]))
    (energy, gradient), (expected, slope) = found
    assert energy == pytest.approx(expected, abs=1e-8)
    np.testing.assert_allclose(gradient, slope, atol=1e-6, rtol=0.0)
    assert np.max(np.abs(slope)) > 0.1


def _gradient(method):
    """The energy and its gradient at the model's own hyperparameters."""
    with jax.enable_x64(True):
        setup = Setup(model(), TABLE, "y")
        method, step = check_choices(setup.model, method, None)
        space = Space(setup.model, Scales(setup.model, setup.data), None, False)
        start = space.free_of([np.asarray(item.start) for item in space.learned])
        sites = ng.Sites.constant(*setup.problem.workspace.mean.shape, 0.0)
        found = evaluate(space.slots, setup.bound, start, method, step, sites, 1.0, 200, 1e-12)
        return float(found.report.energy), np.asarray(found.gradient)


@pytest.mark.slow
@pytest.mark.thorough
def test_one_level_of_every_row_and_several_latents(monkeypatch):
    """Groups of both latents over the same columns are eliminated together; some groups have one row per level."""
    table = {**TABLE, "row": np.arange(N)}
    location = terms.Linear("x", prior=2.0) + terms.Group("school") + terms.Group("row", covariance=0.3)
    scale = terms.Linear(prior=1.0) + terms.Group("school", covariance=0.2)
    found = []
    for few in (2, 10**9):
        structured(monkeypatch, few)
        given = ng.Model({"location": location, "scale": scale}, ng.likelihoods.HeteroscedasticGaussian())
        result = ng.infer(given, table, "y", ng.VI(), tol=1e-9, throw=False)
        assert result.model.prior.eliminated == (("row", "school") if few == 2 else ())
        found.append(result)
    one, two = found
    assert one.energy == pytest.approx(two.energy, abs=1e-8)
    np.testing.assert_allclose(one.marginals.covariance, two.marginals.covariance, atol=1e-7, rtol=0.0)


def test_nests_are_found_from_codes():
    a, b, c = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 1, 1]), np.array([0, 1, 0, 1, 0, 1])
    assert is_nested(a, b) and not is_nested(b, a) and not is_nested(a, c)
    codes = {"b": b, "a": a, "c": c, "row": np.arange(6), "same": 5 - np.arange(6)}
    assert largest_nest({"b": 2, "a": 3, "c": 2}, codes) == ("a", "b")
    # More weights together than in the largest group.
    assert largest_nest({"b": 2, "a": 3, "c": 4}, codes) == ("a", "b")
    assert largest_nest({"b": 2, "a": 3, "c": 9}, codes) == ("c",)
    assert set(largest_nest({"b": 2, "row": 6, "same": 6}, codes)[:2]) == {"row", "same"}
    assert largest_nest({"b": 2}, codes) == ("b",)
