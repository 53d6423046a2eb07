"""Profiles of values that the data determine poorly, beside lme4 and beside densities computed with SciPy."""

import copy
from concurrent.futures import ThreadPoolExecutor

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
def at_zero():
    return ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")


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


def test_profiles_are_saved_with_a_result(tmp_path):
    """Those of a result that nobody has looked at: nothing can be computed after loading."""
    fresh = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")
    fresh.save(tmp_path / "result.ngp")
    loaded = ng.load(tmp_path / "result.ngp")
    assert list(loaded.profiles) == ["group(batch).covariance", "likelihood.variance"]
    np.testing.assert_array_equal(list(between(loaded).values())[3:], list(between(fresh).values())[3:])
    assert str(loaded.summary()) == str(fresh.summary())


@pytest.mark.parametrize("damage", [lambda p: p[:1], lambda p: p[:, ::-1], lambda p: -p, lambda p: np.nan * p])
def test_damaged_profiles_are_refused(at_zero, tmp_path, damage):
    """Saving makes the checks of loading."""
    broken = copy.copy(at_zero)
    broken.profiles = {name: damage(profile) for name, profile in at_zero.profiles.items()}
    with pytest.raises(ValueError, match=r"the profile of .* must have ascending values"):
        broken.save(tmp_path / "result.ngp")


def test_profiles_of_hyperparameters_of_a_kernel_in_a_list_are_saved(tmp_path):
    rng = np.random.default_rng(0)
    table = {"week": np.arange(60) // 3 * 1.0, "s": rng.poisson(3.0, 60)}
    result = ng.fit("s ~ trend(week)", table, "poisson")
    assert "trend(week).kernel[0].variance" in result.profiles
    result.save(tmp_path / "fit.ngp")
    assert list(ng.load(tmp_path / "fit.ngp").profiles) == list(result.profiles)


def test_profiles_that_take_long_are_not_made(monkeypatch):
    """The interval then has no end."""
    monkeypatch.setattr("newtongp.fitting.profiles._MOST_WORK", 2.0**18)
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")
    evaluations = []
    find = result._find_profiles
    evaluator = find.args[0]
    before = len(evaluator.record)
    assert result.profiles == {} and 0 < len(evaluator.record) - before < 40, evaluations
    assert (between(result)["lower"], between(result)["upper"]) == (0.0, np.inf)
    (warning,) = result.summary().warnings
    assert "singular" in warning.text and "%" not in warning.text


def test_other_values_have_intervals_from_their_standard_errors():
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF), "gaussian")
    found = between(result)
    assert result.profiles == {}
    spread = np.log(found["upper"] / found["estimate"])
    np.testing.assert_allclose(spread, 1.959963984540054 * found["se"] / found["estimate"])
    np.testing.assert_allclose(np.log(found["estimate"] / found["lower"]), spread)


def groups_nearly_alike(seed):
    """Two groups of which four rows of sixty differ, and the effects of the first."""
    rng = np.random.default_rng(seed)
    one = np.repeat(np.arange(10), 6)
    other = one.copy()
    moved = rng.choice(60, 4, replace=False)
    other[moved] = (other[moved] + 1) % 10
    return one, other, rng.normal(size=10)[one] + 0.7 * rng.normal(size=60)


@pytest.mark.parametrize("seed", [0, 3])
def test_another_variance_may_come_back_from_zero(seed):
    """With one of two nearly equal groups at 0: its profile ends where that of a Gaussian vector does, by SciPy."""
    one, other, y = groups_nearly_alike(seed)
    table = {"one": [f"level {k}" for k in one], "other": [f"level {k}" for k in other], "y": y}
    prior = terms.Linear(prior="maximised") + terms.Group("one") + terms.Group("other")
    result = ng.fit(ng.Model(prior, "gaussian"), table, "y")
    loose = {name for name, error in result.standard_errors.items() if np.any(error > result.learned[name])}
    (name,) = loose & set(result.profiles)
    same = {key: (codes[:, None] == codes[None, :]).astype(float) for key, codes in (("one", one), ("other", other))}
    inner = name.removeprefix("group(").partition(")")[0]
    outer = {"one": "other", "other": "one"}[inner]

    def energy(variance, free):
        covariance = variance * same[inner] + np.exp(free[0]) * same[outer] + np.exp(free[1]) * np.eye(60)
        precision = np.linalg.inv(covariance)
        residual = y - np.sum(precision @ y) / np.sum(precision)
        return 0.5 * (np.linalg.slogdet(covariance)[1] + residual @ precision @ residual)

    def lowest(variance):
        starts, options = ([0.0, -0.7], [-8.0, -0.7]), {"fatol": 1e-10, "xatol": 1e-7}
        found = [
            scipy.optimize.minimize(lambda free: energy(variance, free), start, method="Nelder-Mead", options=options)
            for start in starts
        ]
        return min(each.fun for each in found)

    effects = result.effects()
    row = list(effects["term"]).index(name.removesuffix(".covariance"))
    energy_at_best = min(map(lowest, [1e-12, float(result.learned[name])]))
    assert effects["lower"][row] == 0.0 and lowest(1e-12) - energy_at_best < 1.9
    np.testing.assert_allclose(lowest(effects["upper"][row] ** 2) - energy_at_best, 1.920729, atol=2e-3)
    # Where the first is larger, the other comes back: the curvature at 0 knows nothing of that.
    inner, outer = outer, inner
    row = list(effects["term"]).index(f"group({inner})")
    for end in ("lower", "upper"):
        rise = lowest(max(effects[end][row] ** 2, 1e-12)) - energy_at_best
        if effects[end][row] > 0.0:
            np.testing.assert_allclose(rise, 1.920729, atol=1e-2)
        else:
            assert rise < 1.920729


def test_a_standard_deviation_beside_a_correlation_of_one():
    """Coefficients that are proportional: the sd that ended at 0 may rise with any correlation, beside SciPy's."""
    rng = np.random.default_rng(5)
    group, x = np.repeat(np.arange(8), 6), np.tile(np.linspace(-1.0, 1.0, 6), 8)
    y = rng.normal(size=8)[group] + 0.7 * rng.normal(size=48)
    model = ng.Model(terms.Group("g", slope="x"), ng.likelihoods.Gaussian(0.5))
    fixed = {"likelihood.variance": ng.Fixed()}
    result = ng.fit(model, {"g": group, "x": x, "y": y}, "y", parameters=fixed, throw=False)
    columns, rows = np.stack([np.ones(6), np.linspace(-1.0, 1.0, 6)], axis=1), y.reshape(8, 6)

    def energy(sds, angle):
        both = np.tanh(angle) * sds[0] * sds[1]
        covariance = columns @ np.array([[sds[0] ** 2, both], [both, sds[1] ** 2]]) @ columns.T + 0.5 * np.eye(6)
        return 0.5 * (8 * np.linalg.slogdet(covariance)[1] + np.sum(rows @ np.linalg.inv(covariance) * rows))

    def lowest(slope):
        def of(free):
            return energy((np.exp(free[0]), slope), free[1])

        starts, options = ([0.0, 0.0], [0.0, 3.0], [0.0, -3.0]), {"fatol": 1e-9, "xatol": 1e-6}
        return min(scipy.optimize.minimize(of, s, method="Nelder-Mead", options=options).fun for s in starts)

    effects = result.effects()
    row = list(effects["name"]).index("sd(x)")
    least = min(map(lowest, np.linspace(1e-7, 0.3, 31)))
    assert effects["lower"][row] == 0.0 and lowest(1e-7) - least < 1.920729
    np.testing.assert_allclose(lowest(effects["upper"][row]) - least, 1.920729, atol=2e-3)


@pytest.mark.parametrize("name", ["standard_errors", "profiles"])
def test_what_is_interrupted_is_computed_by_the_next_use(name):
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian", weak_priors=False)
    function = {"standard_errors": "_find_errors", "profiles": "_find_profiles"}[name]
    find = getattr(result, function)

    def interrupted(*args):
        setattr(result, function, find)
        raise KeyboardInterrupt

    setattr(result, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        result.effects()
    assert np.isinf(result.standard_errors["group(batch).covariance"]) and list(result.profiles)


def test_threads_compute_profiles_once():
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian")
    with ThreadPoolExecutor(4) as pool:
        uppers = list(pool.map(lambda _: float(between(result)["upper"]), range(4)))
    assert len(set(uppers)) == 1 and 2.0 < uppers[0] < 3.0


def test_values_with_bounds_of_the_user_have_no_profiles():
    bounded = {"group(batch).covariance": ng.Free(upper=1e3)}
    result = ng.fit("amount ~ 1 + (1 | batch)", batches(DYESTUFF2), "gaussian", parameters=bounded, throw=False)
    assert result.profiles == {}
