"""Random kernels, inputs and data: sites stay PSD where they are promised to, and every run ends well."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng

N = 10


def draw_counts(rng, f):
    return rng.poisson(np.exp(np.clip(f, -5.0, 5.0)))


LIKELIHOODS = {
    "poisson": (lambda s: ng.likelihoods.Poisson(exposure=s), draw_counts),
    "bernoulli": (lambda s: ng.likelihoods.Bernoulli(), lambda rng, f: rng.binomial(1, 1 / (1 + np.exp(-f)))),
    "student": (
        lambda s: ng.likelihoods.StudentT(3.0, s),
        lambda rng, f: f + rng.standard_t(1.2, f.shape),
    ),
    "gamma": (
        lambda s: ng.likelihoods.Gamma(s),
        lambda rng, f: rng.gamma(1.0, np.exp(np.clip(f, -5.0, 5.0))) + 1e-3,
    ),
}
PROMISED = {
    "newton heuristic": ng.Newton(safeguard=ng.Heuristic()),
    "gauss-newton": ng.Newton(curvature=ng.GaussNewton()),
    "quasi-newton": ng.Newton(curvature=ng.QuasiNewton()),
    "plain quasi-newton": ng.Newton(curvature=ng.QuasiNewton(damping=None)),
    "taylor": ng.Taylor(),
    "vi heuristic": ng.VI(safeguard=ng.Heuristic()),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "vi quasi-newton": ng.VI(curvature=ng.QuasiNewton()),
    "power ep heuristic": ng.PowerEP(0.5, safeguard=ng.Heuristic()),
    "power ep quasi-newton": ng.PowerEP(0.5, curvature=ng.QuasiNewton()),
    "pl": ng.PosteriorLinearisation(),
    "pl quasi-newton": ng.PosteriorLinearisation(curvature=ng.QuasiNewton()),
    "pl2 heuristic": ng.PosteriorLinearisation(order=2, safeguard=ng.Heuristic()),
    "pl2 gauss-newton": ng.PosteriorLinearisation(order=2, curvature=ng.GaussNewton()),
    "pl2 quasi-newton": ng.PosteriorLinearisation(order=2, curvature=ng.QuasiNewton()),
}
UNPROMISED = {
    "newton": ng.Newton(),
    "newton riemannian": ng.Newton(safeguard=ng.Riemannian()),
    "vi": ng.VI(),
    "vi riemannian": ng.VI(safeguard=ng.Riemannian()),
    "ep": ng.PowerEP(1.0),
    "power ep": ng.PowerEP(0.5),
    "power ep riemannian": ng.PowerEP(0.5, safeguard=ng.Riemannian()),
    "pl2": ng.PosteriorLinearisation(order=2),
    "pl2 riemannian": ng.PosteriorLinearisation(order=2, safeguard=ng.Riemannian()),
}


@st.composite
def problems(draw):
    """A seed for inputs and data, hyperparameters over orders of magnitude, and some trouble."""
    return {
        "seed": draw(st.integers(0, 2**31)),
        "roughness": draw(st.sampled_from([1e-9, 0.3, 1.0 - 1e-9])),
        "lengthscale": 10.0 ** draw(st.floats(-1.5, 1.5)),
        "variance": 10.0 ** draw(st.floats(-2.0, 1.5)),
        "scale": 10.0 ** draw(st.floats(-1.0, 1.0)),
        "gross": draw(st.booleans()),
        "repeated": draw(st.booleans()),
        "missing": draw(st.integers(0, 3)),
    }


def build(problem, likelihood):
    rng = np.random.default_rng(problem["seed"])
    x = rng.uniform(-3.0, 3.0, N)
    if problem["repeated"]:
        x[1:4] = x[0]
    make, draw = LIKELIHOODS[likelihood]
    f = rng.normal(scale=np.sqrt(problem["variance"]), size=N)
    y = np.asarray(draw(rng, f), dtype=float)
    if problem["gross"] and likelihood in ("student", "poisson"):
        y[0] += 40.0
    y[N - problem["missing"] :] = np.nan
    # One structure for all draws, so that one compilation serves them: from very smooth to very rough.
    rough, length, variance = problem["roughness"], problem["lengthscale"], problem["variance"]
    kernel = (1.0 - rough) * ng.kernels.RBF(length, variance) + rough * ng.kernels.Matern12(length, variance)
    return ng.Model(ng.GP(kernel), make(problem["scale"])), x, y


def smallest_eigenvalues(sites):
    return np.min(np.linalg.eigvalsh(sites.precision)), max(1.0, np.max(np.abs(sites.precision)))


def check_ending(result):
    assert result.status in (ng.Status.CONVERGED, ng.Status.MAX_STEPS, ng.Status.STEP_TOO_SMALL)
    assert np.isfinite(result.energy)
    assert np.all(np.isfinite(result.marginals.mean))
    assert np.all(np.linalg.eigvalsh(result.marginals.covariance) > -1e-9)
    assert np.all(np.isfinite(result.history.energy)) and np.all(np.isfinite(result.history.objective))


def some_slow(names, quick):
    """All likelihoods, with those that add least to the others left to the slow run."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("rho", [None, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("likelihood", some_slow(LIKELIHOODS, ["student"]))
@pytest.mark.parametrize("name", PROMISED)
def test_promised_methods_keep_their_sites_psd(name, likelihood, rho):
    step = None if rho is None else ng.Constant(rho)

    @given(problem=problems())
    def run(problem):
        model, x, y = build(problem, likelihood)
        result = ng.infer(model, x, y, PROMISED[name], step, max_steps=30, throw=False)
        smallest, size = smallest_eigenvalues(result.sites)
        assert smallest >= -1e-10 * size
        if rho is None:
            check_ending(result)

    run()


@pytest.mark.cases(slow=["newton-student"], others="thorough")
@pytest.mark.parametrize("likelihood", some_slow(LIKELIHOODS, ["student", "poisson"]))
@pytest.mark.parametrize("name", UNPROMISED)
def test_every_run_with_default_steps_ends_with_a_proper_posterior(name, likelihood):
    @given(problem=problems())
    def run(problem):
        model, x, y = build(problem, likelihood)
        result = ng.infer(model, x, y, UNPROMISED[name], max_steps=60, throw=False)
        check_ending(result)
        if name in ("newton", "vi"):
            objective = result.history.objective
            rises = np.diff(objective)
            rounding = 1e-12 * (np.abs(objective[:-1]) + 100.0 * N)
            assert np.all(rises <= rounding)

    run()
