"""Smooth terms with inducing inputs: the same as `SparseGP`, as exact terms, and as dense matrices."""

import numpy as np
import pandas as pd
import pytest
import scipy.special

import newtongp as ng
from newtongp import kernels, terms
from newtongp._runtime.double import in_double
from newtongp.inference.problem import Setup
from newtongp.kernels import gram
from newtongp.priors import additive
from newtongp.terms.base import replaced
from tests.priors.test_additive import gradient_of

N = 60
rng = np.random.default_rng(0)
PLACES = rng.uniform(0.0, 10.0, (N, 2))
TABLE = {
    "lon": PLACES[:, 0],
    "lat": PLACES[:, 1],
    "age": rng.integers(20, 32, N).astype(float),
    "dose": rng.normal(size=N),
    "clinic": rng.integers(0, 6, N),
    "day": np.sort(rng.uniform(0.0, 50.0, N)),
}
TABLE["y"] = np.where(np.arange(N) % 11 == 3, np.nan, rng.poisson(np.exp(0.5 + np.sin(PLACES[:, 0]))))
NEW = {
    "lon": np.array([PLACES[0, 0], 3.0, 12.0, 3.1]),
    "lat": np.array([PLACES[0, 1], 4.0, -1.0, 4.0]),
    "age": [25.0, 20.0, 33.0, 27.5],
    "dose": np.array([0.5, -1.0, 0.0, 2.0]),
    "clinic": np.array([0, 5, 77, 77]),
    "day": np.array([10.0, 20.0, 60.0, 61.0]),
}
KERNEL, GIVEN = kernels.Matern52(2.5, 0.8), PLACES[::6] + 0.1
METHODS = {"vi": ng.VI(), "newton": ng.Newton(), "power_ep": ng.PowerEP(0.5), "linearised": ng.PosteriorLinearisation()}


def smooth(inducing=GIVEN):
    return terms.Smooth("lon", "lat", kernel=KERNEL, inducing=inducing)


def assert_close(one, two):
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-8, rtol=0.0)
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-8, rtol=0.0)


def assert_same(one, two, inputs=None):
    """`two` is a result over the same table, or over other `inputs`."""
    assert one.energy == pytest.approx(two.energy, abs=1e-8)
    assert_close(one.marginals, two.marginals)
    x = one.columns.read(NEW, "x_new")
    other = two.columns.read(NEW, "x_new") if inputs is None else inputs
    assert_close(one.posterior.predict(x), two.posterior.predict(other))
    assert_close(one.posterior.joint(x), two.posterior.joint(other))


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("inducing", [GIVEN, 12], ids=["given", "chosen"])
@pytest.mark.parametrize("method", METHODS)
def test_equal_to_a_sparse_gp(method, inducing):
    one = ng.infer(ng.Model(smooth(inducing), "poisson"), TABLE, "y", METHODS[method], tol=1e-10)
    gp = ng.Model(ng.SparseGP(KERNEL, inducing), "poisson")
    two = ng.infer(gp, PLACES, TABLE["y"], METHODS[method], tol=1e-10)
    assert_same(one, two, np.stack([NEW["lon"], NEW["lat"]], axis=1))
    np.testing.assert_array_equal(one.model.prior.latents[0].terms[0].points, two.posterior.inducing[0])
    assert_close(one.site_marginals, two.site_marginals)


@pytest.mark.slow
@pytest.mark.thorough
def test_functions_of_levels_and_varying_coefficients_are_sparse_gps():
    """A curve per level is a product with `Category`, and a coefficient that varies one with `Linear`."""
    ages = np.array([20.0, 24.0, 29.0])
    kernel = kernels.Matern52(6.0, 0.5)
    table = {**TABLE, "sex": np.where(TABLE["clinic"] % 2 == 0, "f", "m")}
    codes = (table["sex"] == "m").astype(float)
    cases = [
        ("sex", kernels.Category().on(1), codes, [[a, level] for level in (0.0, 1.0) for a in ages]),
        ("dose", kernels.Linear().on(1), TABLE["dose"], [[a, 1.0] for a in ages]),
    ]
    for by, factor, column, inputs in cases:
        own = ng.Model(terms.Smooth("age", kernel=kernel, by=by, inducing=ages), "poisson")
        gp = ng.Model(ng.SparseGP(kernel.on(0) * factor, np.array(inputs)), "poisson")
        one = ng.infer(own, table, "y", tol=1e-10)
        two = ng.infer(gp, np.stack([TABLE["age"], column], axis=1), TABLE["y"], tol=1e-10)
        assert one.energy == pytest.approx(two.energy, abs=1e-8)
        assert_close(one.marginals, two.marginals)


def others():
    return terms.Linear("dose", prior=2.0) + terms.Group("clinic", covariance=0.4)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("structure", ["plain", "eliminated"])
def test_with_all_distinct_inputs_the_term_is_exact(structure, monkeypatch):
    monkeypatch.setattr(additive, "_FEW_LEVELS", 2 if structure == "eliminated" else 10**9)
    exact = terms.Smooth("age", kernel=kernels.Matern32(5.0, 0.7))
    two = ng.infer(ng.Model(others() + exact, "poisson"), TABLE, "y", tol=1e-10)
    sparse = terms.Smooth("age", kernel=kernels.Matern32(5.0, 0.7), inducing=np.unique(TABLE["age"]))
    one = ng.infer(ng.Model(others() + sparse, "poisson"), TABLE, "y", tol=1e-10)
    assert one.model.prior.latents[0].terms[2].is_sparse and bool(one.model.prior.eliminated) == (
        structure == "eliminated"
    )
    assert_same(one, two)


def test_a_number_above_that_of_distinct_inputs_changes_nothing():
    term = terms.Smooth("age", inducing=100)
    prior = ng.infer(ng.Model(term, "gaussian"), TABLE, "dose").model.prior
    assert not prior.latents[0].terms[0].is_sparse
    assert prior.structure == "smooth(age): weights (exact)"


# Dense matrices -------------------------------------------------------------------------------------


@in_double
def covariance(kernel, one, two):
    return np.asarray(gram(kernel, one, two))


def dense(table):
    """Covariances of g and of e, with f = g + e, over the rows of a table."""
    places = np.stack([table["lon"], table["lat"]], axis=1)
    across = covariance(KERNEL, places, GIVEN)
    through = across @ np.linalg.solve(covariance(KERNEL, GIVEN, GIVEN), across.T)
    left = covariance(KERNEL, places, places) - through
    fixed = 4.0 * (1.0 + np.outer(table["dose"], table["dose"]))
    group = 0.4 * (table["clinic"][:, None] == table["clinic"][None, :])
    trend = covariance(kernels.Matern32(8.0, 0.3), table["day"][:, None], table["day"][:, None])
    return fixed + group + through + trend, left


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("structure", ["plain", "eliminated", "chain"])
def test_equal_to_dense_matrices(structure, monkeypatch):
    """VI of counts: its sites are a fixed point in NumPy, where the energy, terms and predictions are the same too."""
    monkeypatch.setattr(additive, "_FEW_LEVELS", 2 if structure == "eliminated" else 10**9)
    monkeypatch.setattr(additive, "_MANY_POINTS", 2 if structure == "chain" else 10**9)
    trend = terms.Trend("day", kernel=kernels.Matern32(8.0, 0.3))
    result = ng.infer(ng.Model(others() + smooth() + trend, "poisson"), TABLE, "y", tol=1e-11)
    prior = result.model.prior
    assert (bool(prior.eliminated), bool(prior.chained)) == (structure == "eliminated", structure == "chain")
    both = {name: np.concatenate([TABLE[name], np.asarray(NEW[name])]) for name in NEW}
    whole, left = dense(both)
    seen, y = np.isfinite(TABLE["y"]), TABLE["y"][np.isfinite(TABLE["y"])]
    linear = np.asarray(result.sites.linear)[seen, 0]
    precision = np.asarray(result.sites.precision)[seen, 0, 0]
    place = np.flatnonzero(np.append(seen, np.zeros(4, dtype=bool)))
    solved = np.linalg.solve(np.diag(1.0 / precision) + whole[np.ix_(place, place)], whole[place])
    of_g = whole - whole[:, place] @ solved
    mean = of_g[:, place] @ linear
    of_f = of_g + left
    # E[exp(f)] is the precision of a site, and y − E[exp(f)] its slope.
    rate = np.exp(mean[place] + 0.5 * np.diagonal(of_f)[place])
    np.testing.assert_allclose(precision, rate, rtol=1e-8)
    np.testing.assert_allclose(linear, y - rate + rate * mean[place], rtol=0.0, atol=1e-8)
    np.testing.assert_allclose(result.marginals.mean[:, 0], mean[:N], atol=1e-8)
    np.testing.assert_allclose(result.marginals.covariance[:, 0, 0], np.diagonal(of_f)[:N], atol=1e-8)
    own, spread = mean[place], np.diagonal(of_g)[place]
    log_det = np.linalg.slogdet(np.eye(place.size) + precision[:, None] * whole[np.ix_(place, place)])[1]
    divergence = np.sum(linear * own - 0.5 * precision * (own**2 + spread)) - 0.5 * (linear @ own - log_det)
    energy = divergence - np.sum(y * own - rate - scipy.special.gammaln(y + 1.0))
    assert result.energy == pytest.approx(energy, abs=1e-8)
    joint = result.posterior.joint(result.columns.read(NEW, "x_new"))
    np.testing.assert_allclose(joint.mean, mean[N:], atol=1e-8)
    np.testing.assert_allclose(joint.covariance, of_f[N:, N:], atol=1e-8)
    latent = result.predict(NEW).latent
    np.testing.assert_allclose(latent.variance[:, 0], np.diagonal(of_f)[N:], atol=1e-8)
    # Terms add up, and one of them has the variance that inducing inputs leave.
    by_term = result.terms()
    total = by_term.groupby("row")["mean"].sum()
    np.testing.assert_allclose(total, mean[:N], atol=1e-10)
    alone = result.predict(NEW, without=["clinic", "linear(dose)", "day"]).latent
    across = covariance(KERNEL, np.stack([both["lon"], both["lat"]], axis=1), GIVEN)
    through = across @ np.linalg.solve(covariance(KERNEL, GIVEN, GIVEN), across.T)
    inner = np.linalg.inv(np.diag(1.0 / precision) + whole[np.ix_(place, place)])
    expected = np.diagonal(through + left - through[:, place] @ inner @ through[place])[N:]
    np.testing.assert_allclose(alone.variance[:, 0], expected, atol=1e-8)


@pytest.mark.cases(others="thorough")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("structure", ["plain", "eliminated", "chain"])
def test_gradients_of_the_energy(method, structure, monkeypatch):
    monkeypatch.setattr(additive, "_FEW_LEVELS", 2 if structure == "eliminated" else 10**9)
    monkeypatch.setattr(additive, "_MANY_POINTS", 2 if structure == "chain" else 10**9)
    trend = terms.Trend("day", kernel=kernels.Matern32(8.0, 0.3))
    model = ng.Model(terms.Group("clinic", covariance=0.4) + smooth() + trend, "poisson")
    gradient, slopes = gradient_of(model, TABLE, METHODS[method])
    assert gradient.size == 5
    np.testing.assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-6)


# What users see -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    frame = pd.DataFrame(TABLE).assign(lon=TABLE["lon"] * 1000.0)
    return ng.fit("y ~ dose + (1 | clinic) + smooth(lon, lat, inducing=15)", frame, "poisson", progress=False)


@pytest.mark.slow
@pytest.mark.thorough
def test_fits_are_chosen_saved_and_drawn(fitted, tmp_path):
    term = fitted.model.prior.latents[0].terms[2]
    assert fitted.status.ok and term.is_sparse and term.points.shape == (15, 2)
    # Chosen with lengthscales in units of the data, and so from all over it: with lengthscales of 1 m, any 15 rows.
    spread = np.ptp(term.points, axis=0) / np.ptp(np.stack([1000.0 * TABLE["lon"], TABLE["lat"]], axis=1), axis=0)
    assert np.all(spread > 0.9)
    text = fitted.summary()
    assert "15 inducing inputs" in str(text) and "smooth(lon, lat): weights of inducing inputs" in str(text)
    fitted.save(tmp_path / "fit.ngp")
    loaded, new = ng.load(tmp_path / "fit.ngp"), pd.DataFrame(NEW)
    np.testing.assert_array_equal(loaded.predict(new).latent.mean, fitted.predict(new).latent.mean)
    np.testing.assert_array_equal(loaded.predict(new).latent.covariance, fitted.predict(new).latent.covariance)
    pd.testing.assert_frame_equal(loaded.terms(new, only=["lon"]), fitted.terms(new, only=["lon"]))
    assert len(fitted.effects("lon")) == 15
    figure = fitted.plot_terms(only=["lon"])
    assert figure is not None


def test_terms_that_are_too_large_are_to_be_made_sparse(monkeypatch):
    monkeypatch.setattr(additive, "_MOST_WEIGHTS", 40)
    with pytest.raises(
        ValueError, match=r"smooth\(lon, lat\).*make it sparse, as Smooth\('lon', 'lat', inducing=200\)"
    ):
        ng.infer(ng.Model(terms.Smooth("lon", "lat"), "poisson"), TABLE, "y")
    with pytest.raises(ValueError, match="use fewer inducing inputs"):
        ng.infer(ng.Model(smooth(50), "poisson"), TABLE, "y")


def test_functions_of_time_with_levels_and_of_several_latents_are_weights(monkeypatch):
    """They are no chain, but exact at their distinct inputs; too many of these are to be made sparse."""
    monkeypatch.setattr(additive, "_MANY_POINTS", 2)
    trend, by = terms.Trend("day", "level"), terms.Trend("day", "level", by="clinic")
    located = ng.Model({"location": trend, "scale": terms.Linear()}, ng.likelihoods.HeteroscedasticGaussian())
    for model in (ng.Model(terms.Linear() + by, "gaussian"), located):
        prior = Setup(model, TABLE, "dose").model.prior
        assert prior.chained == () and prior.structure.endswith("weights (exact)")
    monkeypatch.setattr(additive, "_MOST_WEIGHTS", 40)
    with pytest.raises(ValueError, match=r"one latent has a chain .* as Smooth\('day', inducing=200\)"):
        Setup(located, TABLE, "dose")
    with pytest.raises(ValueError, match=r"without `by`: .* as Smooth\('day', by='clinic', inducing=200\)"):
        Setup(ng.Model(terms.Linear() + by, "gaussian"), TABLE, "dose")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: terms.Smooth("lon", "lat", inducing=[[1.0]]), "one column for each"),
        (lambda: terms.Smooth("lon", inducing=0), "at least 1"),
        (lambda: terms.Smooth("lon", inducing="many"), "or an array of inducing inputs"),
        (lambda: terms.Smooth("lon", inducing=5) * terms.Smooth("lat"), "over all columns"),
    ],
)
def test_wrong_inducing_inputs(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_time_stamps_have_no_given_inducing_inputs():
    table = {"date": pd.date_range("2024-01-01", periods=9), "y": np.arange(9.0)}
    with pytest.raises(ValueError, match="give their number"):
        ng.infer(ng.Model(terms.Smooth("date", unit="D", inducing=[1.0]), "gaussian"), table, "y")
    chosen = terms.Smooth("date", unit="D", inducing=4) * terms.Group("y")
    assert replaced(chosen, by=None).asks_for_inducing
