"""Backtracking leaves negative curvature out where it leads nowhere, and takes it back at the optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import newtongp as ng
from newtongp._runtime.double import in_double
from newtongp.methods.curvature import guarded_hessian
from newtongp.methods.target import ExpectedLogDensity
from newtongp.numerics.gaussian import Gaussian

N = 24
X = np.linspace(0.0, 6.0, N)
WAVE = 2.0 + np.sin(X)
Y = np.column_stack([WAVE * np.cos(0.5 * X), WAVE * (1.0 - 0.1 * X)])


def network():
    """y = W f with little noise: at the start, f = W = 0, all curvature is negative somewhere."""
    kernels = [ng.kernels.Matern52(lengthscale=3.0, variance=4.0), *(ng.kernels.Matern52(lengthscale=9.0),) * 2]
    likelihood = ng.likelihoods.RegressionNetwork(2, 1, 1e-3, weight_offset=0.1)
    return ng.Model(ng.MarkovGP(ng.kernels.Independent(kernels)), likelihood)


@in_double
def guarded_and_exact(likelihood, y, mean):
    target, cubature = ExpectedLogDensity(), ng.cubature.GaussHermite(5)
    marginal = Gaussian(jnp.asarray(mean), 0.3 * jnp.eye(len(mean)))

    @jax.jit
    def both(y):
        exact = target.expand(likelihood, y, marginal, cubature).hessian
        return guarded_hessian(target, likelihood, y, marginal, cubature, exact), exact

    return tuple(np.asarray(hessian) for hessian in both(jnp.asarray(y)))


def test_where_y_is_gaussian_given_f_the_guard_is_gauss_newton():
    """For y = (w + 0.1) g with variance 0.2, E[JᵀJ]/0.2 is E[(w + 0.1)²], E[(w + 0.1) g] and E[g²] over 0.2."""
    guarded, exact = guarded_and_exact(
        ng.likelihoods.RegressionNetwork(1, 1, 0.2, weight_offset=0.1), [3.0], [0.5, -0.2]
    )
    assert np.max(np.linalg.eigvalsh(exact)) > 0.0
    expected = np.array([[0.3 + 0.1**2, -0.1 * 0.5], [-0.1 * 0.5, 0.3 + 0.5**2]]) / 0.2
    np.testing.assert_allclose(-guarded, expected, atol=1e-12)


def test_elsewhere_the_guard_cuts_positive_eigenvalues_off():
    guarded, exact = guarded_and_exact(ng.likelihoods.StudentT(3.0, 0.1), [4.0], [0.0])
    assert exact[0, 0] > 0.0 and guarded[0, 0] == 0.0
    guarded, exact = guarded_and_exact(ng.likelihoods.StudentT(3.0, 1.0), [0.1], [0.0])
    np.testing.assert_array_equal(guarded, exact)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_network_is_fitted_in_few_steps_to_an_optimum_with_negative_sites():
    result = ng.infer(network(), X, Y, ng.VI(), max_steps=200)
    assert result.status is ng.Status.CONVERGED
    assert np.max(np.diff(result.history.objective)) <= 1e-9
    assert np.min(np.linalg.eigvalsh(result.sites.precision)) < -1e-3
    gauss_newton = ng.infer(network(), X, Y, ng.VI(ng.GaussNewton()), ng.Constant(0.3), max_steps=300, throw=False)
    assert result.energy < gauss_newton.energy


@pytest.mark.thorough
@pytest.mark.slow
def test_without_it_steps_are_tiny():
    """The same from the same start, with the step that knows no guard."""

    class Unguarded(ng.Backtracking):
        def start(self, sites, stationary, allows_psd_fallback=False):
            return super().start(sites, stationary, False)

    guarded = ng.infer(network(), X, Y, ng.VI(), max_steps=15, throw=False)
    unguarded = ng.infer(network(), X, Y, ng.VI(), Unguarded(), max_steps=15, throw=False)
    assert np.min(guarded.history.step_size) > np.min(unguarded.history.step_size)
    assert guarded.energy < 0.5 * unguarded.energy
