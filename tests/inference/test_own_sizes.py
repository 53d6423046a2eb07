"""Numbers of rows that come again and again: sizes of their own, with the same results and programs compiled once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import newtongp as ng
from newtongp._runtime import tiers
from newtongp._runtime.tiers import wait_for_compilations
from newtongp.inference import own_sizes
from newtongp.inference.problem import Setup
from newtongp.numerics.size_classes import cubic_size_class, exact_sizes, own_size, size_class
from tests.inference.test_size_classes import COUNTS, PRIORS, TIMES, assert_same, compilations

N = TIMES.size


@pytest.fixture
def sizes(monkeypatch):
    """The sizes in which inference runs, which are those of their own as soon as possible."""
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)
    monkeypatch.setattr(own_sizes, "_PATIENCE", 0.0)
    monkeypatch.setattr(own_sizes, "is_quick", lambda work: True)
    monkeypatch.setattr(own_sizes, "_programs", {})
    used = []
    right = own_sizes.in_own_size

    def noted(*args):
        setup, use = right(*args)
        used.append(setup.size)
        return setup, use

    for room in ("newtongp.inference.infer", "newtongp.fitting.fit"):
        monkeypatch.setattr(f"{room}.in_own_size", noted)
    return used


def thrice(run):
    """What `run` returns in the size class, at the end of which a size of its own is due; then, there and back."""
    found = [run(), run()]
    wait_for_compilations()
    return [*found, run()]


@pytest.mark.cases(thorough=["state space", "sparse", "dense"], others="slow")
@pytest.mark.parametrize("prior", PRIORS)
def test_results_are_the_same_in_a_size_of_its_own(sizes, prior):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())
    first, _, last = thrice(lambda: ng.infer(model, x, COUNTS))
    assert sizes == [prior.size_class(N)] * 2 + [own_size(N)]
    assert_same(last, first)
    new = x[:5] + (0 if isinstance(prior, ng.StateSpaceModel) else 0.25)
    ours, theirs = last.predict(new).latent, first.predict(new).latent
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-9)
    np.testing.assert_allclose(ours.covariance, theirs.covariance, rtol=1e-8)
    np.testing.assert_allclose(last.leave_one_out(), first.leave_one_out(), rtol=1e-9)


@pytest.mark.cases(thorough=["markov"], others="slow")
@pytest.mark.parametrize("prior", ["dense", "markov"])
def test_a_size_of_its_own_needs_no_other_programs_for_what_follows(sizes, prior):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())

    def everything(rows=36):
        result = ng.infer(model, x[:rows], COUNTS[:rows])
        prediction = result.predict(x[:4])
        return prediction.mean, prediction.quantile([0.05]), result.leave_one_out(), str(result.summary())

    thrice(everything)
    with compilations() as compiled:
        everything()
        everything(35)
    assert not compiled
    assert sizes[2:] == [36] * 3
    ng.infer(model, x[:20], COUNTS[:20])
    assert sizes[-1] == prior.size_class(20)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["dense", "markov", "sparse"])
def test_fits_in_a_size_of_its_own_end_at_the_same_place(sizes, prior):
    prior, x = PRIORS[prior]
    model = ng.Model(prior, ng.likelihoods.Poisson())
    first, _, last = thrice(lambda: ng.fit(model, x, COUNTS))
    assert sizes == [prior.size_class(N), prior.size_class(N), own_size(N)]
    assert last.status is first.status
    np.testing.assert_allclose(last.energy, first.energy, rtol=1e-9)
    for name, value in first.learned.items():
        np.testing.assert_allclose(last.learned[name], value, rtol=1e-5)
    np.testing.assert_allclose(last.predict(x[:5]).mean, first.predict(x[:5]).mean, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.thorough
@pytest.mark.parametrize("prior", ["dense", "markov"])
def test_starts_by_sweep_are_those_of_the_size_class(sizes, prior):
    prior, x = PRIORS[prior]
    y = np.sin(TIMES) + 0.1 * np.random.default_rng(5).standard_t(3.0, N)
    model = ng.Model(prior, ng.likelihoods.StudentT(4.0, 0.1))
    first, _, last = thrice(lambda: ng.infer(model, x, y, ng.PosteriorLinearisation()))
    assert sizes[-1] == own_size(N)
    np.testing.assert_allclose(last.energy, first.energy, rtol=1e-10)
    np.testing.assert_allclose(last.marginals.mean, first.marginals.mean, atol=1e-10)


@pytest.mark.slow
def test_results_with_a_size_of_their_own_are_saved_and_loaded(sizes, tmp_path):
    model = ng.Model(PRIORS["markov"][0], ng.likelihoods.Poisson())
    *_, result = thrice(lambda: ng.infer(model, TIMES, COUNTS))
    assert sizes[-1] == own_size(N)
    result.save(tmp_path / "result")
    again = ng.load(tmp_path / "result")
    np.testing.assert_allclose(again.predict(TIMES[:3]).mean, result.predict(TIMES[:3]).mean, rtol=1e-12)


@pytest.mark.slow
def test_fits_with_a_checkpoint_stay_in_their_class(sizes, tmp_path):
    model = ng.Model(PRIORS["markov"][0], ng.likelihoods.Poisson())
    thrice(lambda: ng.fit(model, TIMES, COUNTS, max_steps=1, checkpoint=tmp_path / "checkpoint", throw=False))
    assert not sizes and not own_sizes._programs


@pytest.mark.slow
def test_nothing_is_counted_where_nothing_is_to_be_compiled_twice(sizes, monkeypatch):
    model = ng.Model(PRIORS["markov"][0], ng.likelihoods.Poisson())
    with exact_sizes():
        ng.infer(model, TIMES, COUNTS)
    monkeypatch.setenv("NEWTONGP_EFFORT", "low")
    ng.infer(model, TIMES, COUNTS)
    monkeypatch.delenv("NEWTONGP_EFFORT")
    # Rows that hardly fill their class up would gain nothing.
    ng.infer(model, np.arange(150.0), np.ones(150))
    assert not own_sizes._programs


def test_a_size_of_its_own_is_compiled_for_after_half_the_time_of_the_first_call(monkeypatch):
    monkeypatch.setattr(own_sizes, "_PATIENCE", 0.5)
    program = own_sizes._Program()
    one, other = own_sizes.Use(program), own_sizes.Use(program)
    one.note(4.0)  # compiles
    assert not one.is_long
    for _ in range(3):
        one.note(0.7)
        other.note(0.6)
    assert one.is_long and not other.is_long
    quick = own_sizes.Use(own_sizes._Program())
    for seconds in (0.1, 0.3):
        quick.note(seconds)
    assert not quick.is_long
    quick.note(0.3)
    assert quick.is_long


@pytest.mark.parametrize(("work", "most"), [(1.0, 0.5), (1e9, 160.0 / 60.0)], ids=["quick", "long"])
def test_a_size_of_its_own_has_to_pay_for_a_long_compilation(monkeypatch, work, most):
    monkeypatch.delenv("NEWTONGP_EFFORT", raising=False)
    monkeypatch.setattr(own_sizes, "_programs", {})
    monkeypatch.setattr(own_sizes, "_PATIENCE", 0.5)
    setup = Setup(ng.Model(ng.MarkovGP("matern32"), "poisson"), np.arange(100.0), np.ones(100))
    assert setup.size == 160
    started = []

    def use():
        return own_sizes.in_own_size(setup, (), "test", work, started.append)[1]

    use().note(5.0)  # compiles
    use().note(0.99 * 5.0 * most)
    assert use() is not None and not started
    use().note(0.02 * 5.0 * most)
    use()
    assert [own.size for own in started] == [100]


@pytest.mark.slow
@pytest.mark.thorough
def test_many_numbers_of_rows_stay_in_their_class(sizes, monkeypatch):
    monkeypatch.setattr(own_sizes, "_PATIENCE", 5.0)
    monkeypatch.setattr(tiers, "_PATIENCE", np.inf)  # on a slow machine, programs would be compiled with more effort
    model = ng.Model(ng.MarkovGP("matern32"), "poisson")
    with compilations() as compiled:
        for rows in range(40, 70):
            if rows == 41:
                compiled.clear()
            ng.fit(model, np.arange(float(rows)), np.ones(rows) + np.arange(rows) % 3, throw=False)
    assert set(sizes) == {160}
    assert not compiled


@pytest.mark.slow
@given(st.integers(1, 10**6))
def test_sizes_of_their_own_are_hardly_larger(rows):
    assert rows <= own_size(rows) < rows + 8
    assert own_size(rows) % 128
    assert all(own_size(rows) <= classes(rows) + 4 for classes in (size_class, cubic_size_class))
