"""Backtracking leaves negative curvature out where it leads nowhere, and takes it back at the optimum."""

import numpy as np
import pytest

import newtongp as ng

N = 24
X = np.linspace(0.0, 6.0, N)
WAVE = 2.0 + np.sin(X)
Y = np.column_stack([WAVE * np.cos(0.5 * X), WAVE * (1.0 - 0.1 * X)])


def network():
    """y = W f with little noise: at the start, f = W = 0, all curvature is negative somewhere."""
    kernels = [ng.kernels.Matern52(lengthscale=3.0, variance=4.0), *(ng.kernels.Matern52(lengthscale=9.0),) * 2]
    likelihood = ng.likelihoods.RegressionNetwork(2, 1, 1e-3, weight_offset=0.1)
    return ng.Model(ng.MarkovGP(ng.kernels.Independent(kernels)), likelihood)


@pytest.mark.slow
def test_a_network_is_fitted_in_few_steps_to_an_optimum_with_negative_sites():
    result = ng.infer(network(), X, Y, ng.VI(), max_steps=200)
    assert result.status is ng.Status.CONVERGED
    assert np.max(np.diff(result.history.objective)) <= 1e-9
    assert np.min(np.linalg.eigvalsh(result.sites.precision)) < -1e-3


@pytest.mark.slow
def test_without_it_steps_are_tiny():
    """The same from the same start, with the step that knows no guard."""

    class Unguarded(ng.Backtracking):
        def start(self, sites, stationary, guardable=False):
            return super().start(sites, stationary, False)

    guarded = ng.infer(network(), X, Y, ng.VI(), max_steps=15, throw=False)
    unguarded = ng.infer(network(), X, Y, ng.VI(), Unguarded(), max_steps=15, throw=False)
    assert np.min(guarded.history.step_size) > np.min(unguarded.history.step_size)
    assert guarded.energy < 0.5 * unguarded.energy
