"""A likelihood that is not log-concave: Student-t noise with gross outliers, from the default start."""

import numpy as np
import pytest
from scipy import optimize, special

import newtongp as ng

N, DF, SCALE = 100, 3.0, 0.1
NODES = 100


def data(seed):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, N))
    y = np.sin(x) + SCALE * rng.standard_t(DF, N)
    outliers = rng.choice(N, 5, replace=False)
    y[outliers] += rng.choice([-1.0, 1.0], 5) * rng.uniform(3.0, 8.0, 5)
    return x, y, outliers


MODEL = ng.Model(ng.GP(ng.kernels.Matern52(1.0)), ng.likelihoods.StudentT(DF, SCALE))
METHODS = {
    "vi": ng.VI(cubature=ng.cubature.GaussHermite(NODES)),
    "vi with few nodes": ng.VI(),
    "newton": ng.Newton(),
    "ep": ng.PowerEP(1.0, cubature=ng.cubature.GaussHermite(NODES)),
    "power ep": ng.PowerEP(0.5, cubature=ng.cubature.GaussHermite(NODES)),
}


@pytest.mark.cases(slow=["vi"], others="thorough")
@pytest.mark.parametrize("name", METHODS)
def test_exact_methods_converge_from_the_default_start(name):
    for seed in range(3):
        x, y, outliers = data(seed)
        result = ng.infer(MODEL, x, y, METHODS[name])
        assert result.status is ng.Status.CONVERGED
        assert np.max(np.abs(result.marginals.mean[:, 0] - np.sin(x))) < 0.5
        # Outliers are what makes sites negative: the data there are not believed.
        assert np.all(result.sites.precision[outliers, 0, 0] < 0.0)


@pytest.mark.slow
def test_no_direct_minimisation_improves_on_the_variational_answer():
    x, y, _ = data(0)
    result = ng.infer(MODEL, x, y, METHODS["vi"], tol=1e-8)
    s = np.sqrt(5.0) * np.abs(x[:, None] - x[None, :])
    gram = (1.0 + s + s**2 / 3.0) * np.exp(-s)
    root = np.linalg.cholesky(gram)
    z, w = np.polynomial.hermite_e.hermegauss(NODES)
    w = w / w.sum()
    constant = special.gammaln((DF + 1) / 2) - special.gammaln(DF / 2) - 0.5 * np.log(DF * np.pi) - np.log(SCALE)
    lower = np.tril_indices(N)

    def free_energy(parameters):
        """VFE over a whitened q: f = L(a + T z), any mean a and lower triangular T."""
        a, t = parameters[:N], np.zeros((N, N))
        t[lower] = parameters[N:]
        mean, spread = root @ a, root @ t
        deviation = np.sqrt(np.sum(spread**2, axis=1))
        nodes = mean[:, None] + deviation[:, None] * z[None, :]
        error = (y[:, None] - nodes) / SCALE
        expected = constant - 0.5 * (DF + 1) * np.log1p(error**2 / DF) @ w
        slope = (DF + 1) * error / (DF + error**2) / SCALE
        d_mean, d_deviation = slope @ w, (slope * z[None, :]) @ w
        diagonal = np.diag(t)
        kl = 0.5 * (np.sum(t**2) + np.sum(a**2) - N) - np.sum(np.log(np.abs(diagonal)))
        d_a = a - root.T @ d_mean
        d_t = t - root.T @ ((d_deviation / deviation)[:, None] * spread)
        d_t[np.diag_indices(N)] -= 1.0 / diagonal
        return kl - np.sum(expected), np.concatenate([d_a, d_t[lower]])

    precision = np.diag(result.sites.precision[:, 0, 0])
    covariance = np.linalg.inv(np.eye(N) + root.T @ precision @ root)
    a = np.linalg.solve(root, result.marginals.mean[:, 0])
    t = np.linalg.cholesky(covariance)
    start = np.concatenate([a, t[lower]])
    value, gradient = free_energy(start)
    assert value == pytest.approx(result.energy, abs=1e-7)
    found = optimize.minimize(free_energy, start, jac=True, method="L-BFGS-B", options={"maxiter": 500, "gtol": 1e-10})
    assert value - found.fun < 1e-4
    assert np.max(np.abs(gradient)) < 1e-4
