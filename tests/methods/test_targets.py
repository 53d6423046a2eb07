"""A target of one's own brings its energy: nothing is tested against the energy of another method."""

import jax
import numpy as np
import pytest
from scipy import optimize

import newtongp as ng
from newtongp.methods.energy import Energy, LaplaceEnergy, PowerEPEnergy, VariationalFreeEnergy, share_of_divergence
from newtongp.methods.target import ExpectedLogDensity, Target

N, BETA = 12, 0.3
X = np.linspace(0.0, 5.0, N)
Y = np.array([0, 1, 0, 2, 1, 3, 9, 4, 2, 1, 0, 0])
MODEL = ng.Model(ng.GP(ng.kernels.RBF(1.0)), ng.likelihoods.Poisson())


class Tempered(Target):
    """β E_q[log p(y | f)], which with KL[q‖p] makes the variational free energy of p(y | f)^β."""

    name = "tempered"
    objective = "energy"
    beta: float = BETA

    def expand(self, likelihood, y, marginal, cubature):
        plain = ExpectedLogDensity().expand(likelihood, y, marginal, cubature)
        return jax.tree.map(lambda leaf: self.beta * leaf, plain)

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        return self.beta * ExpectedLogDensity().gauss_newton(likelihood, y, marginal, cubature, kind)

    def row_energy(self, likelihood, y, around, marginal, site, cubature):
        return share_of_divergence(marginal, site) - self.expand(likelihood, y, around, cubature).value


class WithoutEnergy(Tempered):
    row_energy = Target.row_energy


class WithoutObjective(Tempered):
    objective = None


class Unknown(WithoutEnergy):
    energy = "free"


@pytest.mark.slow
def test_backtracking_goes_downhill_in_the_energy_of_the_target():
    """The energy, its minimum over all Gaussians, and every step towards it."""
    result = ng.infer(MODEL, X, Y, ng.Method(Tempered(), ng.Exact()), ng.Backtracking(), tol=1e-9)
    assert result.status is ng.Status.CONVERGED
    assert np.max(np.diff(result.history.objective)) <= 1e-10
    gram = np.exp(-0.5 * (X[:, None] - X[None, :]) ** 2)
    root = np.linalg.cholesky(gram + 1e-12 * np.eye(N))
    lower = np.tril_indices(N)

    def free_energy(parameters):
        """KL[q‖p] − β Σ E_q[log p(y | f)] for q = N(La, LTTᵀLᵀ)."""
        a, t = parameters[:N], np.zeros((N, N))
        t[lower] = parameters[N:]
        mean, spread = root @ a, root @ t
        rate = np.exp(mean + 0.5 * np.sum(spread**2, axis=1))
        expected = Y @ mean - np.sum(rate) - np.sum(np.cumsum(np.log(np.arange(1, 10)))[np.maximum(Y, 1) - 1])
        d_mean = BETA * (Y - rate)
        d_a, d_t = a - root.T @ d_mean, t + BETA * root.T @ (rate[:, None] * spread)
        d_t[np.diag_indices(N)] -= 1.0 / np.diag(t)
        divergence = 0.5 * (np.sum(t**2) + a @ a - N) - np.sum(np.log(np.abs(np.diag(t))))
        return divergence - BETA * expected, np.concatenate([d_a, d_t[lower]])

    start = np.concatenate([np.zeros(N), np.eye(N)[lower]])
    found = optimize.minimize(free_energy, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "gtol": 1e-9})
    assert result.energy == pytest.approx(found.fun, abs=1e-6)
    # With the free energy of VI in its place, the numbers would have been others.
    assert abs(ng.infer(MODEL, X, Y, sites=result.sites, max_steps=0, throw=False).energy - result.energy) > 1.0


def test_a_target_without_an_energy_is_refused():
    with pytest.raises(ValueError, match=r"WithoutEnergy brings no energy: define `row_energy`"):
        ng.Method(WithoutEnergy(), ng.Exact())
    with pytest.raises(ValueError, match=r"energy must be .*'free' in Unknown"):
        ng.Method(Unknown(), ng.Exact())


@pytest.mark.parametrize(
    ("name", "kind"), [("vfe", VariationalFreeEnergy), ("laplace", LaplaceEnergy), ("pep", PowerEPEnergy)]
)
def test_an_energy_is_declared_as_a_class_or_by_its_name(name, kind):
    for declared in (name, kind):
        target = type("Declared", (WithoutEnergy,), {"energy": declared})
        assert ng.Method(target(), ng.Exact()).energy == kind()


@pytest.mark.parametrize("declared", [Energy, VariationalFreeEnergy(), 1.0, ng.VI])
def test_what_is_no_energy_is_refused(declared):
    target = type("Declared", (WithoutEnergy,), {"energy": declared})
    with pytest.raises(ValueError, match=r'energy must be "vfe", "laplace", "pep" or None, got .* in Declared'):
        ng.Method(target(), ng.Exact())


def test_the_energy_has_the_power_of_the_cavities():
    assert ng.PowerEP(0.3).energy == PowerEPEnergy(0.3)
    assert ng.PosteriorLinearisation().energy == PowerEPEnergy(1.0)


@pytest.mark.slow
def test_backtracking_needs_an_objective_that_is_declared():
    method = ng.Method(WithoutObjective(), ng.Exact())
    with pytest.raises(ValueError, match="targets that declare one"):
        ng.infer(MODEL, X, Y, method, ng.Backtracking())
    damped = ng.infer(MODEL, X, Y, method)
    declared = ng.infer(MODEL, X, Y, ng.Method(Tempered(), ng.Exact()))
    assert damped.energy == pytest.approx(declared.energy, abs=1e-8)
    assert np.all(damped.history.objective >= 0.0)  # residuals


@pytest.mark.slow
def test_the_summary_names_the_energy():
    summary = ng.infer(MODEL, X, Y, ng.Method(Tempered(), ng.Exact())).summary()
    assert "energy of Tempered" in str(summary)
    assert any("Tempered" in words for words in summary.not_checked)


def test_batches_refuse_an_energy_that_they_cannot_add_up():
    model = ng.Model(ng.SparseGP(ng.kernels.RBF(1.0), inducing=X[::3, None]), ng.likelihoods.Poisson())
    with pytest.raises(ValueError, match="Tempered has its own"):
        ng.infer(model, X, Y, ng.Method(Tempered(), ng.Exact()), batch_size=4)
