"""`solve`: the answers of `infer` as a pure function, under jit, vmap and grad."""

import jax
import numpy as np
import pytest

import newtongp as ng
from newtongp.inference.solve import _rows_of

ROWS, SETS = 12, 100
RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(0.0, 5.0, ROWS))
COLUMNS = RNG.normal(size=(ROWS, 2))
COUNTS = RNG.poisson(np.exp(np.sin(X)), size=(SETS, ROWS)).astype(float)
INDUCING = np.linspace(0.0, 5.0, 5)[:, None]

PRIORS = {
    "dense": lambda variance: ng.GP(ng.kernels.Matern32(1.3, variance)),
    "markov": lambda variance: ng.MarkovGP(ng.kernels.Matern32(1.3, variance)),
    "sparse": lambda variance: ng.SparseGP(ng.kernels.Matern32(1.3, variance), inducing=INDUCING),
    "linear": lambda variance: ng.LinearModel(variance),
}
METHODS = {
    "vi": ng.VI(),
    "newton": ng.Newton(),
    "power-ep": ng.PowerEP(0.5),
    "pl": ng.PosteriorLinearisation(),
    "quasi": ng.VI(curvature=ng.QuasiNewton()),
}
QUICK = {("dense", "vi")}

# Every prior and every method once; the other pairs repeat that.
SLOW = {("dense", "power-ep"), ("markov", "newton"), ("markov", "pl"), ("sparse", "newton"), ("linear", "vi")}


def _marks(prior, method):
    if (prior, method) in QUICK:
        return ()
    return pytest.mark.slow if (prior, method) in SLOW else (pytest.mark.slow, pytest.mark.thorough)


PAIRS = [
    pytest.param(prior, method, marks=_marks(prior, method), id=f"{prior}-{method}")
    for prior in PRIORS
    for method in METHODS
    if method != "quasi"
]


def solved(prior, method, variance=0.9, y=COUNTS[0], tol=1e-9, **options):
    model = ng.Model(PRIORS[prior](variance), ng.likelihoods.Poisson())
    return ng.solve(model, (COLUMNS if prior == "linear" else X, y), METHODS[method], tol=tol, **options)


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def score(solution):
    """A number that depends on the energy, a mean and a variance."""
    marginals = solution.marginals
    return solution.energy + 2.0 * marginals.mean[3, 0] + 3.0 * marginals.covariance[5, 0, 0]


@pytest.mark.parametrize(("prior", "method"), PAIRS)
def test_it_is_infer_under_jit(prior, method):
    solution = jax.jit(lambda y: solved(prior, method, y=y, tol=1e-6))(COUNTS[0])
    model = ng.Model(PRIORS[prior](0.9), ng.likelihoods.Poisson())
    result = ng.infer(model, COLUMNS if prior == "linear" else X, COUNTS[0], METHODS[method])
    assert bool(solution.converged) and ng.Status(int(solution.status)) is ng.Status.CONVERGED
    assert int(solution.steps) == result.steps
    assert float(solution.energy) == pytest.approx(result.energy, rel=1e-12)
    np.testing.assert_allclose(solution.marginals.mean, result.marginals.mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solution.marginals.covariance, result.marginals.covariance, rtol=1e-9)
    np.testing.assert_allclose(solution.sites.precision, result.sites.precision, rtol=1e-9, atol=1e-12)


@pytest.mark.cases(thorough=["dense-vi", "markov-pl", "dense-power-ep", "markov-newton", "linear-vi"], others="slow")
@pytest.mark.parametrize(("prior", "method"), PAIRS)
def test_a_hundred_data_sets_at_once_are_a_hundred_calls(prior, method):
    one = jax.jit(lambda y: solved(prior, method, y=y))
    batch = jax.jit(jax.vmap(lambda y: solved(prior, method, y=y)))(COUNTS)
    singles = jax.tree.map(lambda *leaves: np.stack(leaves), *[one(y) for y in COUNTS])
    np.testing.assert_array_equal(batch.status, singles.status)
    assert np.all(np.asarray(batch.converged))
    for found, wanted in zip(jax.tree.leaves(batch), jax.tree.leaves(singles), strict=True):
        if np.issubdtype(found.dtype, np.floating) and found.ndim != 1:
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(batch.energy, singles.energy, rtol=1e-10)


@pytest.mark.cases(
    thorough=[
        "sparse-newton",
        "linear-vi",
        "markov-pl",
        "markov-newton",
        "dense-power-ep",
        "dense-vi",
        "dense-power-ep",
        "markov-pl",
        "linear-vi",
        "sparse-newton",
    ],
    others="slow",
)
@pytest.mark.parametrize(("prior", "method"), PAIRS)
def test_gradients_in_hyperparameters_are_central_differences(prior, method):
    at = jax.jit(lambda variance: score(solved(prior, method, variance)))
    slope = jax.jit(jax.grad(lambda variance: score(solved(prior, method, variance))))(0.9)
    step = 1e-5
    assert float(slope) == pytest.approx(float(at(0.9 + step) - at(0.9 - step)) / (2.0 * step), rel=1e-5, abs=1e-7)


def noisy(y, variance=0.3):
    model = ng.Model(ng.GP(ng.kernels.RBF(1.0)), ng.likelihoods.StudentT(df=4.0, scale=variance))
    return ng.solve(model, (X, y), tol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_in_y_are_central_differences_and_missing_rows_have_none():
    y = np.sin(X)
    y[4] = np.nan
    slope = np.asarray(jax.jit(jax.grad(lambda y: score(noisy(y))))(y))
    at = jax.jit(lambda y: score(noisy(y)))
    for row in (0, 7):
        move = 1e-5 * np.eye(ROWS)[row]
        assert slope[row] == pytest.approx(float(at(y + move) - at(y - move)) / 2e-5, rel=1e-5, abs=1e-7)
    assert slope[4] == 0.0


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_in_discrete_y_are_not_numbers():
    slope = jax.grad(lambda y: solved("dense", "vi", y=y).energy)(COUNTS[0])
    assert np.all(np.isnan(slope))


@pytest.mark.slow
@pytest.mark.thorough
def test_gradients_before_convergence_are_not_numbers():
    value, slope = jax.value_and_grad(lambda v: solved("dense", "vi", v, max_steps=1).energy)(0.9)
    assert np.isfinite(value) and np.isnan(slope)


@pytest.mark.slow
@pytest.mark.thorough
def test_forward_mode_agrees_with_reverse_mode():
    def energy(variance):
        return solved("dense", "vi", variance).energy

    assert float(jax.jacfwd(energy)(0.9)) == pytest.approx(float(jax.grad(energy)(0.9)), rel=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
def test_it_maps_over_hyperparameters():
    variances = np.array([0.5, 1.0, 2.0])
    energies = jax.vmap(lambda v: solved("dense", "vi", v).energy)(variances)
    for variance, energy in zip(variances, energies, strict=True):
        assert float(energy) == pytest.approx(float(solved("dense", "vi", variance).energy), rel=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_prepared_data_of_a_chain_go_back_to_their_rows():
    shuffled = RNG.permutation(ROWS)
    model = ng.Model(ng.MarkovGP(ng.kernels.Matern32(1.3)), ng.likelihoods.Poisson(exposure=1.0 + np.arange(ROWS)))
    y = COUNTS[0].copy()
    y[2] = np.nan
    prepared = ng.prepare(model, X[shuffled], y)
    solution = jax.jit(lambda prepared: ng.solve(model, prepared))(prepared)
    result = ng.infer(model, X[shuffled], y)
    np.testing.assert_allclose(solution.marginals.mean, result.marginals.mean, rtol=1e-9, atol=1e-12)
    assert float(solution.energy) == pytest.approx(result.energy, rel=1e-12)
    again = ng.solve(model, prepared, sites=solution.sites)
    assert int(again.steps) == 0 and bool(again.converged)


@pytest.mark.slow
@pytest.mark.thorough
def test_rows_with_some_outputs_missing():
    likelihood = ng.likelihoods.MultivariateGaussian([[1.0, 0.3], [0.3, 0.5]])
    model = ng.Model(ng.GP(ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.RBF(2.0)])), likelihood)
    y = RNG.normal(size=(ROWS, 2))
    y[1, 0], y[3] = np.nan, np.nan
    result = ng.infer(model, X, y)
    for solution in (ng.solve(model, (X, y)), jax.jit(lambda y: ng.solve(model, (X, y)))(y)):
        assert float(solution.energy) == pytest.approx(result.energy, rel=1e-10)


def test_single_precision_is_refused_with_the_line_to_add():
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"with jax.enable_x64\(True\)"):
        solved("dense", "vi")


def test_bad_input_is_named():
    model = ng.Model(PRIORS["markov"](1.0), ng.likelihoods.Poisson())
    with pytest.raises(ValueError, match=r"x cannot be traced for MarkovGP.*prepare"):
        jax.jit(lambda x: ng.solve(model, (x, COUNTS[0])).energy)(X)
    with pytest.raises(ValueError, match=r"data must be a pair \(x, y\)"):
        ng.solve(model, X)
    with pytest.raises(ValueError, match=r"y shape \(N, 1\)"):
        ng.solve(model, (X, COUNTS))
    with pytest.raises(ValueError, match="quasi-Newton"):
        jax.grad(lambda v: solved("dense", "quasi", v).energy)(1.0)
    with pytest.raises(ValueError, match=r"closes over values that JAX traces.*means.Mean"):
        jax.grad(shifted)(1.0)


def shifted(level):
    prior = ng.GP(ng.kernels.RBF(), mean=lambda row: level * row[0])
    return ng.solve(ng.Model(prior, ng.likelihoods.Poisson()), (X, COUNTS[0])).energy


LINE = np.linspace(0.0, 6.0, 40)
SWEPT = {
    "dense": (PRIORS["dense"](1.0), LINE),
    "sparse": (PRIORS["sparse"](1.0), LINE),
    "sparse chain": (ng.MarkovGP(ng.kernels.Matern32(1.3), inducing=10), LINE),
    "space and time": (
        ng.SpaceTimeGP(ng.kernels.Matern32(1.3), ng.kernels.Matern32(0.5)),
        np.column_stack([np.repeat(LINE[::4], 4), np.tile([0.0, 0.2, 0.5, 1.0], 10)]),
    ),
}


def test_sweeps_know_the_rows_of_every_prior():
    for prior, x in SWEPT.values():
        rows = x.reshape(len(x), -1)
        np.testing.assert_array_equal(_rows_of(prior.layout(rows).inputs), rows)
    assert _rows_of((LINE, LINE)) is None


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("prior", SWEPT)
def test_starts_from_a_sweep_are_those_of_infer(prior):
    chosen, x = SWEPT[prior]
    y = np.sin(LINE) + 0.1 * np.cos(9.0 * LINE)
    model = ng.Model(chosen, ng.likelihoods.StudentT(4.0, 0.3))
    wanted = ng.infer(model, x, y, METHODS["pl"])
    with jax.enable_x64(True):
        solution = ng.solve(model, (x, y), METHODS["pl"])
    assert int(solution.status) == wanted.status.value and int(solution.steps) == wanted.steps
    np.testing.assert_allclose(solution.energy, wanted.energy, rtol=1e-10)
