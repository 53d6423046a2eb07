"""Sites that are predicted from those of hyperparameters nearby."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.fitting.evaluator import Evaluator
from newtongp.fitting.known_sites import KnownSites
from newtongp.numerics.gaussian import Sites


def sites_at(place, latents=1):
    """Two rows whose sites change smoothly with two numbers."""
    size = np.exp(0.3 * place[0] - 0.2 * place[1])
    linear = np.outer([1.0, -2.0], np.full(latents, size)) + 0.1 * place[1]
    return Sites(linear, size * np.stack([np.eye(latents), 3.0 * np.eye(latents)]))


@pytest.mark.parametrize("latents", [1, 2])
def test_predictions_are_exact_to_second_order(latents):
    known, units = KnownSites(np.array([1.0, 2.0])), np.array([1.0, 2.0])
    middle = np.array([0.3, -0.4])
    errors = []
    for distance in (0.1, 0.05):
        known = KnownSites(units)
        for move in ([0.0, 0.0], [1.0, 0.0], [0.0, 1.0]):
            place = middle + distance * units * move
            known.add(place, sites_at(place, latents))
        new = middle - distance * units * np.array([0.5, 0.7])
        found, expected = known.at(new, sites_at(np.zeros(2), latents)), sites_at(new, latents)
        nearest = sites_at(middle, latents)
        errors.append(np.max(np.abs(found.precision - expected.precision)))
        assert errors[-1] < 0.3 * np.max(np.abs(nearest.precision - expected.precision))
    assert errors[1] < 0.3 * errors[0]


def test_nothing_nearby_is_what_was_given():
    known, otherwise = KnownSites(np.ones(2)), sites_at(np.zeros(2))
    assert known.at(np.zeros(2), otherwise) is otherwise
    known.add(np.full(2, 5.0), sites_at(np.full(2, 5.0)))
    assert known.at(np.zeros(2), otherwise) is otherwise
    near = sites_at(np.full(2, 5.1))
    known.add(np.full(2, 5.1), near)
    assert known.at(np.full(2, 5.1), otherwise).linear == pytest.approx(near.linear)


@pytest.mark.parametrize("latents", [1, 3])
def test_positive_precisions_stay_positive(latents):
    """The second row would be extrapolated below zero."""
    known = KnownSites(np.ones(1))
    for place, weak in ((0.0, 0.1), (0.1, 0.3)):
        precision = np.stack([(2.0 + place) * np.eye(latents), weak * np.eye(latents)])
        known.add(np.array([place]), Sites(np.full((2, latents), weak), precision))
    found = known.at(np.array([-0.1]), sites_at(np.zeros(2), latents))
    np.testing.assert_allclose(found.precision[0], 1.9 * np.eye(latents))
    np.testing.assert_allclose(found.precision[1], 0.1 * np.eye(latents))
    np.testing.assert_allclose(found.linear[:, 0], [-0.1, 0.1])


def test_a_fit_takes_fewer_steps(monkeypatch):
    rng = np.random.default_rng(0)
    x = np.arange(60.0)
    y = rng.poisson(np.exp(1.0 + np.sin(x / 6.0)))
    steps = []
    for predicts in (True, False):
        if not predicts:
            monkeypatch.setattr(KnownSites, "at", lambda self, unconstrained, otherwise: otherwise)
        taken = []
        before = Evaluator._next

        def noted(self, *args, before=before, taken=taken, **kwargs):
            entry = before(self, *args, **kwargs)
            taken.append(entry.steps)
            return entry

        with monkeypatch.context() as patch:
            patch.setattr(Evaluator, "_next", noted)
            result = ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), x, y)
            assert result.standard_errors  # which take evaluations too
        assert result.status is ng.Status.CONVERGED
        steps.append((sum(taken), result.energy))
    assert steps[0][0] < 0.85 * steps[1][0]
    assert steps[0][1] == pytest.approx(steps[1][1], abs=1e-6)
