"""Terms over the same column are conditioned as one function, or one chain: the same posterior as with weights each."""

import numpy as np
import pytest

import newtongp as ng
from newtongp.terms import Linear, Season, Trend


def _models(kind):
    """The same model with both terms over one column, and over two columns with the same entries."""
    return [
        ng.Model(
            Linear("price") + Trend("t", kind) + Season(column, 12.0, variance=0.1, decay=3.0, harmonics=4),
            ng.likelihoods.Poisson(),
        )
        for column in ("t", "s")
    ]


def _table(size, seed=0):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.choice(np.arange(2 * size), size, replace=False)).astype(float)
    return {"t": t, "s": t, "price": rng.normal(size=size)}, rng.poisson(3.0, size=size)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["level", "linear"])
def test_terms_over_one_column_are_those_over_two(kind):
    table, y = _table(30)
    table["t"][4] = table["s"][4] = table["t"][5]  # a time with two rows
    one, two = (ng.infer(model, table, y, method=ng.Newton()) for model in _models(kind))
    assert one.model.prior.joined == ((1, 2),) and two.model.prior.joined == ((),)
    np.testing.assert_allclose(one.energy, two.energy, rtol=1e-9)
    later = np.array([20.5, 31.5, 70.0])
    some = np.append(table["t"][1:4], later)  # at the origin, weights of one term leave rounding of what is zero
    new = {"t": some, "s": some, "price": np.ones(6)}
    found, expected = one.predict(new).latent, two.predict(new).latent
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-7)
    for frames in (one.terms(new), two.terms(new)), (one.terms(new, sum=True), two.terms(new, sum=True)):
        for column in ("mean", "sd"):
            np.testing.assert_allclose(frames[0][column], frames[1][column], rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_terms_of_one_function_add_up():
    table, y = _table(25)
    result = ng.infer(_models("damped")[0], table, y, method=ng.Newton())
    frame = result.terms(table)
    total = frame.groupby("row")["mean"].sum().to_numpy()
    np.testing.assert_allclose(total, result.marginals.mean[:, 0], atol=1e-10)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_season_that_changes_is_part_of_a_chain():
    table, y = _table(310, seed=1)
    one, two = (ng.infer(model, table, y, method=ng.Newton()) for model in _models("level"))
    assert one.model.prior.chained == (1, 2) and two.model.prior.chained == (1,)
    np.testing.assert_allclose(one.energy, two.energy, rtol=1e-9)
    new = {"t": np.array([3.5, 640.0]), "s": np.array([3.5, 640.0]), "price": np.zeros(2)}
    for column in ("mean", "sd"):
        np.testing.assert_allclose(one.terms(new)[column], two.terms(new)[column], rtol=1e-6, atol=1e-8)
