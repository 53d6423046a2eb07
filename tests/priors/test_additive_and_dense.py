"""Additive models agree with dense GPs on every structure and for every method.

Marginals, energies and terms are compared, with missing rows and new levels.
"""

import itertools

import numpy as np
import pytest

import newtongp as ng
from newtongp import kernels, terms
from newtongp._runtime.double import in_double
from newtongp.kernels import gram
from newtongp.priors import additive
from tests.repository.test_smoke import METHODS

N = 70
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 4)]


def table(rows=N, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "dose": rng.normal(size=rows).round(3),
        "age": rng.integers(20, 40, rows).astype(float),
        "week": rng.integers(0, 12, rows).astype(float),
        "clinic": rng.integers(0, 5, rows),
        "patient": np.concatenate([np.arange(40), rng.integers(0, 40, rows)])[:rows],
        "area": rng.integers(0, 5, rows),
        "time": np.sort(rng.uniform(0.0, 30.0, rows)).round(4),
    }


COLUMNS = ("dose", "age", "week", "clinic", "patient", "area", "time")
DOSE, AGE, WEEK, CLINIC, PATIENT, AREA, TIME = range(7)


@in_double
def covariance(kernel, one, two):
    return np.asarray(gram(kernel, one, two))


def matrix(table):
    return np.stack([np.asarray(table[name], dtype=float) for name in COLUMNS], axis=1)


def fixed():
    return terms.Linear("dose", prior=1.5), kernels.Constant(1.5**2) + kernels.Linear(1.5**2).on(DOSE)


def group(column, place, variance):
    return terms.Group(column, covariance=variance), kernels.Category(variance).on(place)


def smooth(place, **options):
    kernel = kernels.Matern52(6.0, 0.5)
    return terms.Smooth(COLUMNS[place], kernel=kernel, **options), kernel.on(place)


def small():
    return [fixed(), group("clinic", CLINIC, 0.4), smooth(AGE)]


def eliminated():
    slopes = terms.Group("patient", slope="dose", correlated=False, covariance=[0.6, 0.2])
    both = kernels.Category(0.6).on(PATIENT) + kernels.Category(0.2).on(PATIENT) * kernels.Linear().on(DOSE)
    kernel = kernels.Matern32(5.0, 0.3)
    by = terms.Smooth("age", kernel=kernel) * terms.Group("clinic"), kernel.on(AGE) * kernels.Category().on(CLINIC)
    return [fixed(), (slopes, both), group("clinic", CLINIC, 0.4), by]


def several():
    area = terms.Area("area", PAIRS, variance=0.5, phi=0.6)
    walk = terms.RandomWalk("week", variance=0.2)
    varying = kernels.Matern52(8.0, 0.2)
    product = terms.Smooth("age", kernel=kernels.Matern52(8.0, 0.3)) * terms.Smooth("week", kernel=kernels.RBF(4.0))
    return [
        fixed(),
        (area, area.kernel.on(AREA)),
        (walk, kernels.Walk(1, 0.2).on(WEEK)),
        (product, kernels.Matern52(8.0, 0.3).on(AGE) * kernels.RBF(4.0).on(WEEK)),
        (terms.Smooth("age", kernel=varying, by="dose"), varying.on(AGE) * kernels.Linear().on(DOSE)),
    ]


def chain():
    trend = terms.Trend("time", kernel=kernels.Matern32(6.0, 0.7))
    return [fixed(), group("clinic", CLINIC, 0.4), (trend, kernels.Matern32(6.0, 0.7).on(TIME))]


STRUCTURES = {"small": small, "eliminated": eliminated, "several": several, "chain": chain}


@pytest.fixture(params=STRUCTURES)
def parts(request, monkeypatch):
    if request.param == "chain":
        monkeypatch.setattr(additive, "_MANY_POINTS", 30)
    return STRUCTURES[request.param]()


def models(parts, likelihood):
    total = parts[0][0]
    for term, _ in parts[1:]:
        total = total + term
    kernel = sum(kernel for _, kernel in parts)
    return ng.Model(total, likelihood), ng.Model(ng.GP(kernel), likelihood)


def counts(seed=1):
    y = np.random.default_rng(seed).poisson(2.0, N).astype(float)
    y[[3, 17, 40]] = np.nan
    return y


_SLOWLY = ("quasi-newton", "riemannian", "first-order")
"""Methods whose fixed points are reached slowly, or on these data not at all: their first steps are compared."""
AT_FIXED_POINTS = [
    name
    for name in METHODS
    if name not in ("vi heuristic", "vi gauss-newton", "pl2") and not any(word in name for word in _SLOWLY)
]
STEP_BY_STEP = [name for name in METHODS if name not in AT_FIXED_POINTS]


def both(parts, method, tol=1e-10):
    own, dense = models(parts, ng.likelihoods.Poisson())
    data = table()
    found = ng.infer(own, data, counts(), method, tol=tol, max_steps=500)
    return found, ng.infer(dense, matrix(data), counts(), method, tol=tol, max_steps=500)


_FIRST = ("newton", "vi")


@pytest.mark.cases(
    thorough=[
        "chain-newton",
        "several-vi",
        "several-newton",
        "eliminated-newton",
        "small-vi",
        "small-newton",
        "eliminated-vi",
    ],
    others="slow",
)
@pytest.mark.parametrize(
    "method", [name if name in _FIRST else pytest.param(name, marks=pytest.mark.thorough) for name in AT_FIXED_POINTS]
)
def test_structures_agree_with_dense_gps(parts, method):
    found, dense = both(parts, METHODS[method])
    assert found.energy == pytest.approx(dense.energy, abs=1e-8)
    np.testing.assert_allclose(found.marginals.mean, dense.marginals.mean, atol=1e-8)
    np.testing.assert_allclose(found.marginals.covariance, dense.marginals.covariance, atol=1e-8)
    new = table(12, seed=5)
    new["clinic"][:3] = [9, 9, 7]  # levels that the data do not have
    new["patient"][:4] = [100, 101, 100, 3]
    new["age"][5] = 55.0
    one, two = found.posterior.predict(_encoded(found, new)), dense.posterior.predict(matrix(new))
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-8)
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-8)
    one, two = found.posterior.joint(_encoded(found, new)), dense.posterior.joint(matrix(new))
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-8)
    np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-8)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("method", STEP_BY_STEP)
def test_structures_take_the_same_steps_as_dense_gps(parts, method):
    own, dense = models(parts, ng.likelihoods.Poisson())
    step = None if method == "first-order vi" else ng.Constant(0.5)
    ones = ng.iterate(own, table(), counts(), METHODS[method], step)
    twos = ng.iterate(dense, matrix(table()), counts(), METHODS[method], step)
    # Rounding errors grow tenfold with every step of quasi-Newton linearisation, from 1e-13 up.
    count = 10 if method in ("pl quasi-newton", "pl2 quasi-newton") else 20
    for one, two in itertools.islice(zip(ones, twos, strict=False), count):
        assert one.energy == pytest.approx(two.energy, abs=1e-8)
    assert one.steps == two.steps == count
    marginals, others = one.posterior.marginals, two.posterior.marginals
    np.testing.assert_allclose(marginals.mean, others.mean, atol=1e-8, rtol=0.0)
    np.testing.assert_allclose(marginals.covariance, others.covariance, atol=1e-8, rtol=0.0)


def _encoded(result, new):
    return result.columns.read(new, "x_new")


@pytest.mark.cases(thorough=["small", "several", "eliminated"], others="slow")
def test_terms_agree_with_dense_gps(parts):
    """Each term has the mean K_c(λ − Λm) and the covariance K_c − K_c S(I + SKS)⁻¹S K_c, with Λ = S²."""
    found, _ = both(parts, ng.VI())
    data, new = table(), table(12, seed=5)
    new["clinic"][:3] = [9, 9, 7]
    new["patient"][:4] = [100, 101, 100, 3]
    x, x_new = matrix(data), matrix(new)
    total = sum(covariance(kernel, x, x) for _, kernel in parts)
    root = np.sqrt(found.sites.precision[:, 0, 0])
    inner = np.linalg.inv(np.eye(N) + root[:, None] * total * root) * np.outer(root, root)
    pull = found.sites.linear[:, 0] - found.sites.precision[:, 0, 0] * found.marginals.mean[:, 0]
    for where, at in ((data, x), (new, x_new)):
        frame = found.terms(where)
        for number, (_, kernel) in enumerate(parts):
            cross = covariance(kernel, at, x)
            variance = np.diagonal(covariance(kernel, at, at)) - np.einsum("nm,mk,nk->n", cross, inner, cross)
            own = frame.iloc[number * len(at) : (number + 1) * len(at)]
            np.testing.assert_allclose(own["mean"], cross @ pull, atol=1e-8)
            np.testing.assert_allclose(own["sd"] ** 2, variance, atol=1e-8)
        pair = parts[-1][1] + parts[1][1]
        cross = covariance(pair, at, x)
        variance = np.diagonal(covariance(pair, at, at)) - np.einsum("nm,mk,nk->n", cross, inner, cross)
        labels = [found.model.prior.labels[0][k] for k in (1, len(parts) - 1)]
        added = found.terms(where, only=labels, sum=True)
        np.testing.assert_allclose(added["sd"] ** 2, variance, atol=1e-8)


@pytest.mark.cases(slow=["several"], others="thorough")
def test_terms_add_up_to_the_latent(parts):
    own, _ = models(parts, ng.likelihoods.Poisson())
    found = ng.infer(own, table(), counts())
    frame = found.terms()
    means = frame.groupby("row")["mean"].sum().to_numpy()
    np.testing.assert_allclose(means, found.marginals.mean[:, 0], atol=1e-10)
    added = found.terms(sum=True)
    np.testing.assert_allclose(added["mean"], found.marginals.mean[:, 0], atol=1e-10)
    np.testing.assert_allclose(added["sd"], np.sqrt(found.marginals.covariance[:, 0, 0]), atol=1e-10)
    new = table(9, seed=3)
    new["clinic"][:2] = 8
    latent = found.predict(new).latent
    means = found.terms(new).groupby("row")["mean"].sum().to_numpy()
    np.testing.assert_allclose(means, latent.mean[:, 0], atol=1e-10)
    np.testing.assert_allclose(found.terms(new, sum=True)["sd"], np.sqrt(latent.covariance[:, 0, 0]), atol=1e-10)
