"""Profiles of values that the data determine poorly, beside lme4 and beside densities computed with SciPy."""

import numpy as np
import pytest
import scipy.optimize

import newtongp as ng
from newtongp import terms

# Yield of dyestuff by batch: Davies and Goldsmith, Statistical Methods in Research and Production (1972), table 6.4;
# and data simulated by Box and Tiao (1973) in which the variance between batches is estimated as zero.
DYESTUFF = """
    1545 1440 1440 1520 1580  1540 1555 1490 1560 1495  1595 1550 1605 1510 1560
    1445 1440 1595 1465 1545  1595 1630 1515 1635 1625  1520 1455 1450 1480 1445
"""
DYESTUFF2 = """
    7.298 3.846 2.434 9.566 7.990   5.220 6.556 0.608 11.788 -0.892   0.110 10.386 13.434 5.510 8.166
    2.212 4.852 7.092 9.288 4.980   0.282 9.014 4.458 9.446 7.198     1.722 4.782 8.106 0.758 3.758
"""


def batches(text):
    return {"batch": np.repeat(list("ABCDEF"), 5), "amount": np.array(text.split(), dtype=float)}


def exact_end(table, rise, bracket, integrated):
    """The standard deviation between batches where the profile has this rise, from the density of a Gaussian vector.

    The mean is integrated (with a flat prior) or maximised.
    """
    y, ones = table["amount"], np.ones(30)
    groups = (table["batch"][:, None] == table["batch"][None, :]).astype(float)

    def energy(between, within):
        covariance = np.exp(between) * groups + np.exp(within) * np.eye(30)
        precision = np.linalg.inv(covariance)
        information = ones @ precision @ ones
        residual = y - ones @ precision @ y / information
        added = np.log(information) if integrated else 0.0
        return 0.5 * (np.linalg.slogdet(covariance)[1] + added + residual @ precision @ residual)

    def lowest(between):
        bounds = np.log(np.var(y)) + np.array([-5.0, 3.0])
        search = scipy.optimize.minimize_scalar
        return search(lambda within: energy(between, within), bounds=bounds, method="bounded").fun

    grid = np.linspace(np.log(np.var(y)) - 20.0, np.log(np.var(y)) + 3.0, 400)
    least = min(map(lowest, grid))
    end = scipy.optimize.brentq(lambda between: lowest(between) - least - rise, *(2.0 * np.log(bracket)), xtol=1e-10)
    return np.exp(0.5 * end)


def between(result, level=0.95):
    found = result.effects(level=level)
    return {name: values[list(found["name"]).index("sd(intercept)")] for name, values in found.items()}


@pytest.fixture(scope="module")
def maximised():
    model = ng.Model(terms.Linear(prior="maximised") + terms.Group("batch"), "gaussian")
    return ng.fit(model, batches(DYESTUFF), "amount")


@pytest.fixture(scope="module")
def at_zero():
    return ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")


def test_intervals_are_those_of_lme4(maximised):
    """confint of lmer(Yield ~ 1 + (1 | Batch), Dyestuff, REML = FALSE): Bates, lme4 (2010), section 1.5.1."""
    found = between(maximised)
    np.testing.assert_allclose([found["lower"], found["upper"]], [12.198539, 84.063050], rtol=1e-3)
    effects = maximised.effects()
    row = list(effects["name"]).index("variance")
    ends = np.sqrt([effects["lower"][row], effects["upper"][row]])
    np.testing.assert_allclose(np.log(ends), [3.643624, 4.214461], atol=2e-5)


@pytest.mark.parametrize(("level", "rise"), [(0.95, 1.920729), (0.9, 1.352772)])
def test_ends_are_where_the_energy_has_risen(maximised, level, rise):
    table, found = batches(DYESTUFF), between(maximised, level)
    low, high = (exact_end(table, rise, ends, False) for ends in ((1.0, 30.0), (40.0, 300.0)))
    np.testing.assert_allclose([found["lower"], found["upper"]], [low, high], rtol=1e-3)


def test_a_variance_at_zero_has_an_interval_from_zero(at_zero):
    """A weak prior keeps the estimate above zero; it has no influence on the interval, and the error is not its own."""
    found, table = between(at_zero), batches(DYESTUFF2)
    assert found["lower"] == 0.0 and np.isinf(found["se"]) and found["estimate"] < 0.1
    assert at_zero.undetermined == ["group(batch).covariance"]
    np.testing.assert_allclose(found["upper"], exact_end(table, 1.920729, (1.0, 20.0), True), rtol=1e-3)
    np.testing.assert_allclose(
        between(at_zero, 0.99)["upper"], exact_end(table, 3.317448, (1.0, 20.0), True), rtol=1e-3
    )
    free = ng.fit("amount ~ 1 + (1 | batch)", table, "gaussian", weak_priors=False)
    assert free.undetermined == [] and between(free)["lower"] == 0.0
    np.testing.assert_allclose(between(free)["upper"], found["upper"], rtol=1e-3)
    for result in (at_zero, free):
        (warning,) = result.summary().warnings
        assert warning.about == "group(batch).covariance"
        assert "singular: a variance ended at 0" in warning.text and "up to 2.51" in warning.text


def test_profiles_are_saved_with_a_result(at_zero, tmp_path):
    at_zero.save(tmp_path / "result.ngp")
    loaded = ng.load(tmp_path / "result.ngp")
    np.testing.assert_array_equal(list(between(loaded).values())[3:], list(between(at_zero).values())[3:])
    assert str(loaded.summary()) == str(at_zero.summary())


def test_a_large_model_has_no_profiles(monkeypatch):
    """Intervals are then those of the curvature."""
    monkeypatch.setattr("newtongp.fitting.fit._LONG", 0)
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF), "gaussian")
    found = between(result)
    assert result.profiles == {}
    spread = np.log(found["upper"] / found["estimate"])
    np.testing.assert_allclose(spread, 1.959963984540054 * found["se"] / found["estimate"])
    np.testing.assert_allclose(np.log(found["estimate"] / found["lower"]), spread)
    nothing = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")
    assert (between(nothing)["lower"], between(nothing)["upper"]) == (0.0, np.inf)
    (warning,) = nothing.summary().warnings
    assert "singular" in warning.text and "%" not in warning.text


def test_standard_deviations_of_correlated_coefficients_have_profiles():
    """Those of a matrix, with the correlation at its best: two coefficients beside SciPy's Nelder-Mead."""
    rng = np.random.default_rng(3)
    group, x = np.repeat(np.arange(12), 5), np.tile(np.linspace(-1.0, 1.0, 5), 12)
    effects = rng.normal(size=(12, 2)) * [1.0, 0.6]
    table = {"g": group, "x": x, "y": effects[group, 0] + effects[group, 1] * x + 0.5 * rng.normal(size=60)}
    model = ng.Model(terms.Group("g", slope="x"), ng.likelihoods.Gaussian(0.25))
    result = ng.fit(model, table, "y", parameters={"likelihood.variance": ng.Fixed()})
    columns = np.stack([np.ones(5), np.linspace(-1.0, 1.0, 5)], axis=1)
    rows = table["y"].reshape(12, 5)

    def energy(sds, angle):
        both = np.tanh(angle) * sds[0] * sds[1]
        covariance = columns @ np.array([[sds[0] ** 2, both], [both, sds[1] ** 2]]) @ columns.T + 0.25 * np.eye(5)
        return 0.5 * (12 * np.linalg.slogdet(covariance)[1] + np.sum(rows @ np.linalg.inv(covariance) * rows))

    def lowest(slope):
        def of(free):
            return energy((np.exp(free[0]), slope), free[1])

        return scipy.optimize.minimize(of, [0.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-9, "xatol": 1e-6}).fun

    least = scipy.optimize.minimize_scalar(lowest, bounds=(0.1, 2.0), method="bounded")
    ends = [
        scipy.optimize.brentq(lambda slope: lowest(slope) - least.fun - 1.920729, *bracket)
        for bracket in ((0.05, least.x), (least.x, 3.0))
    ]
    found = result.effects()
    row = list(found["name"]).index("sd(x)")
    np.testing.assert_allclose([found["lower"][row], found["upper"][row]], ends, rtol=1e-3)
