"""Batches of rows come to rest where all rows at once do, however the data is stored and whatever is kept of it."""

import sys
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import newtongp as ng
from newtongp import kernels
from newtongp.inputs import chunks as rows
from newtongp.inputs.chunks import Rows

RNG = np.random.default_rng(8)
N = 330
X = RNG.uniform(0.0, 6.0, (N, 1))
COUNTS = RNG.poisson(np.exp(np.sin(X[:, 0]))).astype(float)
COUNTS[[3, 200]] = np.nan
INDUCING = np.linspace(0.0, 6.0, 8)
MATERN = kernels.Matern32(0.9, 1.3)
POISSON = ng.likelihoods.Poisson()
FULL = ng.Model(ng.SparseGP(MATERN, INDUCING, mean=0.3), POISSON)
TIED = ng.Model(ng.SparseGP(MATERN, INDUCING, mean=0.3, storage="tied"), POISSON)


def same(ours, theirs, tolerance):
    np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def slow_unless(names, everyday):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in everyday)) for name in names]


METHODS = {
    "vi": ng.VI(),
    "vi heuristic": ng.VI(safeguard=ng.Heuristic()),
    "vi gauss-newton": ng.VI(curvature=ng.GaussNewton()),
    "newton": ng.Newton(),
    "taylor": ng.Taylor(),
    "pl": ng.PosteriorLinearisation(),
    "power ep": ng.PowerEP(0.5),
    "vi riemannian": ng.VI(safeguard=ng.Riemannian()),
    "quasi-newton": ng.Newton(curvature=ng.QuasiNewton()),
}


# All sites kept ----------------------------------------------------------------------------------------


@pytest.mark.cases(others="thorough")
@pytest.mark.filterwarnings("ignore:leave_one_out of a run that has not converged")
@pytest.mark.parametrize("name", slow_unless(METHODS, ["vi", "power ep", "vi riemannian"]))
def test_batches_reach_the_fixed_point_of_all_rows(name):
    tolerance = 1e-4 if "riemannian" in name or "quasi" in name else 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.ConvergenceWarning)
        ours = ng.infer(FULL, X, COUNTS, METHODS[name], tol=1e-8, batch_size=64, key=1, max_steps=60)
        theirs = ng.infer(FULL, X, COUNTS, METHODS[name], tol=1e-8, max_steps=300)
    if "riemannian" not in name and "quasi" not in name:
        assert ours.status.ok and ours.residual <= 1e-8
    same(ours.energy, theirs.energy, tolerance)
    same(ours.marginals.mean, theirs.marginals.mean, tolerance)
    same(ours.marginals.covariance, theirs.marginals.covariance, tolerance)
    same(ours.sites.precision, theirs.sites.precision, 10.0 * tolerance)
    same(ours.posterior.log_normaliser, theirs.posterior.log_normaliser, 1000.0 * tolerance)
    same(ours.leave_one_out(), theirs.leave_one_out(), 10.0 * tolerance)
    same(ours.predict(X[:9]).variance, theirs.predict(X[:9]).variance, 10.0 * tolerance)


@pytest.mark.slow
@pytest.mark.thorough
def test_one_batch_of_all_rows_is_a_full_step():
    for steps in (1, 2, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ng.ConvergenceWarning)
            ours = ng.infer(FULL, X, COUNTS, step=ng.Constant(0.7), batch_size=N, max_steps=steps)
            theirs = ng.infer(FULL, X, COUNTS, step=ng.Constant(0.7), max_steps=steps)
        same(ours.energy, theirs.energy, 1e-9)
        same(ours.sites.linear, theirs.sites.linear, 1e-9)


@pytest.mark.slow
def test_the_key_decides_the_order_and_nothing_else_is_random():
    first, again, other = (ng.infer(FULL, X, COUNTS, batch_size=50, key=key) for key in (0, jax.random.key(0), 1))
    assert first.energy == again.energy and np.array_equal(first.history.energy, again.history.energy)
    assert not np.array_equal(first.history.energy, other.history.energy)
    same(first.energy, other.energy, 1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_indefinite_sites_in_batches():
    y = np.sin(X[:, 0]) + 0.3 * RNG.standard_t(2.0, N)
    model = ng.Model(ng.SparseGP(MATERN, INDUCING), ng.likelihoods.StudentT(3.0, 0.2))
    ours = ng.infer(model, X, y, batch_size=100, max_steps=200)
    theirs = ng.infer(model, X, y)
    assert np.min(ours.sites.precision) < -0.1
    assert ours.status.ok
    same(ours.energy, theirs.energy, 1e-4)


@pytest.mark.slow
@pytest.mark.thorough
def test_two_latents_and_row_parameters():
    kernel = kernels.Independent([kernels.Matern32(1.5), kernels.Matern12(3.0)])
    model = ng.Model(ng.SparseGP(kernel, INDUCING), ng.likelihoods.HeteroscedasticGaussian())
    y = np.sin(X[:, 0]) + 0.3 * RNG.normal(size=N)
    ours, theirs = ng.infer(model, X, y, batch_size=100), ng.infer(model, X, y)
    same(ours.energy, theirs.energy, 1e-5)
    exposed = ng.Model(FULL.prior, ng.likelihoods.Poisson(exposure=RNG.uniform(0.5, 2.0, N)))
    ours, theirs = ng.infer(exposed, X, COUNTS, batch_size=100), ng.infer(exposed, X, COUNTS)
    same(ours.energy, theirs.energy, 1e-5)
    with pytest.raises(ValueError, match="exposure was given for 330"):
        ng.infer(exposed, X[:100], COUNTS[:100], batch_size=10)


@pytest.mark.thorough
@pytest.mark.slow
def test_partly_missing_rows():
    likelihood = ng.likelihoods.MultivariateGaussian([[0.2, 0.1], [0.1, 0.3]])
    y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.3 * RNG.normal(size=(N, 2))
    y[::7, 0] = np.nan
    kernel = kernels.Independent([MATERN, MATERN])
    for storage in ("full", "tied"):
        model = ng.Model(ng.SparseGP(kernel, INDUCING, storage=storage), likelihood)
        ours = ng.infer(model, X, y, batch_size=100)
        theirs = ng.infer(ng.Model(ng.SparseGP(kernel, INDUCING), likelihood), X, y)
        same(ours.energy, theirs.energy, 1e-6)


# Tied --------------------------------------------------------------------------------------------------


@pytest.mark.cases(slow=["vi"], others="thorough")
@pytest.mark.parametrize("name", slow_unless(list(METHODS)[:6], ["vi", "newton"]))
def test_tied_is_full_where_cavities_do_not_matter(name):
    """The sum of interpolated sites is the interpolated sum, step by step."""
    for steps in (1, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ng.ConvergenceWarning)
            settings = dict(method=METHODS[name], step=ng.Constant(0.8), max_steps=steps)
            ours, theirs = ng.infer(TIED, X, COUNTS, **settings), ng.infer(FULL, X, COUNTS, **settings)
        assert ours.steps == theirs.steps == steps
        found, wanted = ours.predict(X[:20]).latent, theirs.predict(X[:20]).latent
        same(found.mean, wanted.mean, 1e-9)
        same(found.covariance, wanted.covariance, 1e-9)
        if name != "pl":  # whose energy is one of cavities
            same(ours.energy, theirs.energy, 1e-8)
            same(ours.history.energy, theirs.history.energy, 1e-8)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_unless(list(METHODS)[:7], ["vi", "power ep"]))
def test_tied_batches_reach_the_fixed_point_of_tied_passes(name):
    """Noise cannot end a run early: what is called converged is, at a fixed q and over all rows."""
    ours = ng.infer(TIED, X, COUNTS, METHODS[name], batch_size=60, key=3)
    theirs = ng.infer(TIED, X, COUNTS, METHODS[name])
    assert ours.status.ok and ours.residual <= 1e-6
    same(ours.energy, theirs.energy, 1e-6)
    same(ours.predict(X[:20]).latent.mean, theirs.predict(X[:20]).latent.mean, 1e-5)
    assert ours.sites is None and ours.marginals is None and ours.posterior.marginals is None
    assert np.isfinite(ours.posterior.log_normaliser)


@pytest.mark.slow
@pytest.mark.thorough
def test_small_powers_of_tied_power_ep_are_vi():
    rule = ng.cubature.GaussHermite(20)
    exact = ng.infer(TIED, X, COUNTS, ng.VI(cubature=rule))
    gaps = [ng.infer(TIED, X, COUNTS, ng.PowerEP(power, cubature=rule)).energy - exact.energy for power in (1e-3, 1e-4)]
    assert abs(gaps[1]) < 1e-2
    assert gaps[1] == pytest.approx(0.1 * gaps[0], rel=0.05)


@pytest.mark.slow
@pytest.mark.thorough
def test_tied_cavities_leave_an_nth_part_out():
    """With one row, the N-th part is all there is: power EP is that with a site for the row."""
    x, y = X[:1], np.array([3.0])
    ours, theirs = (ng.infer(model, x, y, ng.PowerEP(1.0), tol=1e-9) for model in (TIED, FULL))
    same(ours.energy, theirs.energy, 1e-8)
    same(ours.predict(X[:5]).latent.mean, theirs.predict(X[:5]).latent.mean, 1e-8)


def log_integral(precision, linear):
    """log ∫ exp(linearᵀu − ½ uᵀ precision u) du, up to a constant."""
    return 0.5 * (linear @ np.linalg.solve(precision, linear) - np.linalg.slogdet(precision)[1])


def sparse_pep_energy(belief, power):
    """`eq:sparse-pep-energy` of q(u) on the rows of COUNTS, where a row's cavity is q / t^(α/N)."""

    def covariance(a, b):
        distance = np.sqrt(3.0) * np.abs(a[:, None] - b[None, :]) / 0.9
        return 1.3 * (1.0 + distance) * np.exp(-distance)

    seen = ~np.isnan(COUNTS)
    x, y, mean = X[seen, 0], COUNTS[seen], np.full(INDUCING.size, 0.3)
    weights = np.linalg.solve(covariance(INDUCING, INDUCING), covariance(INDUCING, x)).T
    residual_variance = 1.3 - np.sum(weights * covariance(x, INDUCING), axis=1)
    prior, posterior = np.linalg.inv(covariance(INDUCING, INDUCING)), np.linalg.inv(belief.covariance)
    site = posterior - prior, posterior @ belief.mean - prior @ mean

    def without(share):
        return posterior - share * site[0], posterior @ belief.mean - share * site[1]

    precision, linear = without(power / y.size)
    means = 0.3 + weights @ (np.linalg.solve(precision, linear) - mean)
    variances = np.sum(weights * np.linalg.solve(precision, weights.T).T, axis=1) + residual_variance
    nodes, masses = np.polynomial.hermite_e.hermegauss(40)
    log_density = scipy.stats.poisson.logpmf(y[:, None], np.exp(means[:, None] + np.sqrt(variances)[:, None] * nodes))
    of_rows = -np.sum(np.log(np.exp(power * log_density) @ (masses / np.sum(masses)))) / power
    of_site = (log_integral(*without(0.0)) - log_integral(*without(power))) / power
    return of_rows + of_site - (log_integral(*without(0.0)) - log_integral(prior, prior @ mean))


@pytest.mark.cases(slow=["method1"], others="thorough")
@pytest.mark.parametrize("method", [ng.PosteriorLinearisation(), ng.PowerEP(0.5)])
def test_the_tied_energy_has_one_global_cavity(method):
    result = ng.infer(TIED, X, COUNTS, method)
    power = method.target.power or 1.0
    same(result.energy, sparse_pep_energy(result.posterior.joint(INDUCING[:, None]), power), 1e-8)


# Within a tenth of a per cent in five passes --------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("storage", ["full", "tied"])
@pytest.mark.parametrize("size", [pytest.param("large", marks=pytest.mark.slow), "small"])
def test_five_passes_are_enough(storage, size):
    count, inducing, batch = (20_000, 100, 500) if size == "large" else (2000, 30, 100)
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (count, 2))
    y = rng.binomial(1, 1.0 / (1.0 + np.exp(-2.0 * np.sin(2.0 * x[:, 0]) * x[:, 1])))

    def model(storage):
        prior = ng.SparseGP(kernels.Matern52(1.0, 4.0), inducing, storage=storage)
        return ng.Model(prior, ng.likelihoods.Bernoulli("logit"))

    wanted = ng.infer(model("full"), x, y).energy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ng.ConvergenceWarning)
        for seed in range(5 if size == "large" else 2):
            found = ng.infer(model(storage), x, y, batch_size=batch, key=seed, max_steps=5)
            assert found.steps <= 5
            assert found.energy == pytest.approx(wanted, rel=1e-3)


# Data that is not in memory ---------------------------------------------------------------------------


class OnDisk:
    """Only slices of it can be had, as of Zarr and HDF5 arrays."""

    def __init__(self, array):
        self.array, self.shape, self.largest = array, array.shape, 0

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        self.largest = max(self.largest, rows.stop - rows.start)
        return self.array[rows]


def stored(kind, tmp_path):
    cut = [slice(0, 100), slice(100, 130), slice(130, N)]
    if kind == "memory map":
        for name, array in (("x", X), ("y", COUNTS)):
            np.save(tmp_path / f"{name}.npy", array)
        return tuple(np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
    if kind == "sliced":
        return OnDisk(X), OnDisk(COUNTS)
    if kind == "list of chunks":
        return ([(X[rows], COUNTS[rows]) for rows in cut],)
    return (lambda: iter([(X[rows], COUNTS[rows]) for rows in cut]),)


@pytest.mark.cases(thorough=["memory map-full", "memory map-tied", "sliced-full"])
@pytest.mark.parametrize("storage", ["full", "tied"])
@pytest.mark.parametrize("kind", ["memory map", "sliced", "list of chunks", "function"])
def test_data_of_every_kind(kind, storage, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_CHUNK", 40)
    monkeypatch.setattr(rows, "_SHUFFLED", 100)
    model = ng.Model(ng.SparseGP(MATERN, 8, mean=0.3, storage=storage), POISSON)
    given = stored(kind, tmp_path)
    ours = ng.infer(model, *given, batch_size=64, tol=1e-6)
    theirs = ng.infer(model, X, COUNTS, batch_size=64, tol=1e-6)
    np.testing.assert_array_equal(ours.posterior.inducing[0], theirs.posterior.inducing[0])
    assert ours.status.ok
    same(ours.energy, theirs.energy, 1e-6)
    if storage == "full":
        same(ours.marginals.mean, theirs.marginals.mean, 1e-5)
    if kind == "sliced":
        assert given[0].largest == 40
    assert ours.data is None
    with pytest.raises(ValueError, match="leave_one_out needs the rows"):
        ours.leave_one_out()


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["memory", "list of chunks", "sliced"])
def test_every_row_comes_once(kind, shuffled, monkeypatch):
    monkeypatch.setattr(rows, "_CHUNK", 40)
    monkeypatch.setattr(rows, "_SHUFFLED", 100)
    given = (X, COUNTS) if kind == "memory" else stored(kind, None)
    data = Rows(*(given if len(given) == 2 else (*given, None)), FULL)
    batches = list(data.batches(64, np.random.default_rng(0) if shuffled else None))
    assert all(batch.data.x.shape == (64, 1) for batch in batches)
    index = np.concatenate([batch.index[: batch.count] for batch in batches])
    np.testing.assert_array_equal(np.sort(index), np.arange(N))
    assert np.array_equal(index, np.arange(N)) != shuffled
    for batch in batches:
        np.testing.assert_array_equal(batch.data.x[: batch.count], X[batch.index[: batch.count]])
        assert np.all(batch.index[batch.count :] > 2 * N) and not np.any(batch.data.observed[batch.count :])
    assert (data.count, data.observed) == (N, N - 2)


@pytest.mark.parametrize("kind", ["arrays", "chunks"])
def test_masked_rows_are_missing(kind):
    y = np.ma.masked_array([1.0, 2.0, 99.0, 4.0], [False, False, True, False])
    given = (X[:4], y) if kind == "arrays" else ([(X[:4], y)], None)
    data = Rows(*given, FULL)
    assert data.observed == 3
    (batch,) = data.batches(4)
    assert batch.data.observed.tolist() == [True, True, False, True]


def test_rows_of_different_lengths_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^x must hold .* make all rows equally long"):
        Rows([[1.0], [2.0, 3.0]], [1, 2], FULL)
    with pytest.raises(ValueError, match=r"^y of chunk 0 must hold"):
        Rows([(X[:2], [[1.0], [2.0, 3.0]])], None, FULL)


def test_chunks_have_the_same_columns():
    chunks = [(np.zeros((4, 1)), np.ones(4)), (np.zeros((2, 2)), np.ones(2))]
    prior = ng.SparseGP(MATERN, 3)
    with pytest.raises(ValueError, match=r"rows from 4 on: x has 2 column\(s\), but the rows before have 1"):
        Rows(chunks, None, ng.Model(prior, POISSON), prior.new_sample().see)


@pytest.mark.slow
def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"t": X[:, 0], "n": COUNTS})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    chunks = ng.inputs.ParquetChunks(tmp_path / "rows.parquet", x=["t"], y="n")
    assert len(chunks) == 4 and chunks[3][0].shape == (30, 1)
    same(ng.infer(FULL, chunks, batch_size=64).energy, ng.infer(FULL, X, COUNTS).energy, 1e-5)
    with pytest.raises(ValueError, match="no column 'm'"):
        ng.inputs.ParquetChunks(tmp_path / "rows.parquet", x=["t"], y="m")


def test_parquet_columns_are_named_one_by_one_and_hold_numbers(monkeypatch):
    columns = {
        "east": np.array([1, 2]),
        "n": np.array([3.0, np.nan]),
        "day": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
    }
    group = {name: types.SimpleNamespace(to_numpy=lambda values=values: values) for name, values in columns.items()}
    file = types.SimpleNamespace(
        schema_arrow=types.SimpleNamespace(names=list(columns)),
        num_row_groups=1,
        read_row_group=lambda number, columns: group,
    )
    parquet = types.ModuleType("pyarrow.parquet")
    monkeypatch.setattr(parquet, "ParquetFile", lambda path: file, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", types.SimpleNamespace(parquet=parquet))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    x, y = ng.inputs.ParquetChunks("rows.parquet", x="east", y="n")[0]
    np.testing.assert_array_equal(x, [[1.0], [2.0]])
    np.testing.assert_array_equal(y, [[3.0], [np.nan]])
    with pytest.raises(ValueError, match="column 'day' must hold real numbers"):
        ng.inputs.ParquetChunks("rows.parquet", x=["east", "day"], y="n")[0]


@pytest.mark.slow
def test_progress_tells_rows_per_second(capsys):
    ng.infer(FULL, X, COUNTS, batch_size=100, progress=True)
    assert "rows/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ng.infer(ng.Model(ng.GP(MATERN), POISSON), X, COUNTS, batch_size=10),
            "MarkovGP with inducing times, got GP",
        ),
        (lambda: ng.infer(FULL, X, COUNTS, batch_size=0), "batch_size must be an integer of at least 1"),
        (lambda: ng.infer(FULL, X, COUNTS, batch_size=2.5), "batch_size must be an integer"),
        (lambda: ng.infer(FULL, X, COUNTS, ng.FirstOrderVI(), batch_size=10), "use VI"),
        (lambda: ng.infer(FULL, X, COUNTS, step=ng.Backtracking(), batch_size=10), "Constant"),
        (lambda: ng.infer(FULL, X, COUNTS, batch_size=10, key="a"), "key must be"),
        (lambda: ng.infer(FULL, X, COUNTS, batch_size=10, sites=ng.Sites.constant(N, 1, 0.1)), "leave sites out"),
        (lambda: ng.infer(FULL, X, COUNTS[:5], batch_size=10), "the same number of rows"),
        (lambda: ng.infer(FULL, iter([(X, COUNTS)]), batch_size=10), "function that returns a new iterator"),
        (lambda: ng.infer(FULL, [X, COUNTS], batch_size=10), "pairs"),
        (lambda: ng.infer(FULL, 3, batch_size=10), "must be chunks"),
        (lambda: ng.infer(FULL, [(X, -COUNTS)], batch_size=10), "rows from 0 on"),
        (lambda: ng.infer(TIED, X, COUNTS, METHODS["quasi-newton"]), "quasi-Newton methods keep a state per row"),
        (
            lambda: ng.infer(TIED, X, COUNTS, METHODS["vi riemannian"], batch_size=10),
            "Riemannian methods keep a state",
        ),
        (lambda: next(ng.iterate(TIED, X, COUNTS)), 'storage="tied" does not keep'),
        (lambda: ng.SparseGP(MATERN, 3, storage="none"), "storage must be"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class UndefinedSlope(ng.Likelihood):
    """A density with a slope that is not a number where y is 0."""

    def log_prob(self, y, f):
        return -0.5 * (y - f) ** 2 + jnp.where(y == 0.0, jnp.sqrt(jnp.maximum(0.0 * f, 0.0)), 0.0)


@pytest.mark.cases(slow=["tied"], others="thorough")
@pytest.mark.parametrize("storage", ["full", "tied"])
def test_a_row_without_an_update_is_no_converged_row(storage):
    y = np.sin(X[:, 0]) + 1.5
    y[7] = 0.0
    model = ng.Model(ng.SparseGP(MATERN, INDUCING, storage=storage), UndefinedSlope())
    result = ng.infer(model, X, y, batch_size=110, max_steps=3, throw=False)
    assert result.status is ng.Status.NON_FINITE and not np.isfinite(result.residual)
