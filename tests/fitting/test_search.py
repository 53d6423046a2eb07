"""The search by itself, on functions that are known."""

from typing import Any

import numpy as np

import newtongp as ng
from newtongp.fitting.evaluator import FINEST, Candidate, Evaluator
from newtongp.fitting.search import search, starts_of
from newtongp.results.status import Status


class Bowl:
    """A stand-in for an evaluator: a quadratic energy, with noise of a given size, and a count."""

    class space:
        units = np.ones(3)

        @staticmethod
        def bounds(start):
            return [(-50.0, 50.0)] * 3

    work = matrix = 0.0

    def __init__(self, noise, tilt):
        self.noise, self.tilt, self.count = noise, tilt, 0
        self.rng = np.random.default_rng(0)

    def __call__(self, free, steepest=0.0):
        self.count += 1
        weights = np.array([1.0, 10.0, 100.0])
        energy = 100.0 + 0.5 * float(weights @ free**2) + self.noise * self.rng.normal()
        return energy, weights * free + self.tilt

    at = __call__


def test_a_search_ends_where_energies_differ_by_rounding():
    """The slope never falls below the tolerance, and no step lowers the energy: few evaluations are spent on that."""
    bowl: Any = Bowl(noise=1e-11, tilt=5e-5)
    found = search(bowl, np.array([1.0, -1.0, 0.5]), 100, 1e-5, [])
    assert found.status is Status.CONVERGED
    assert bowl.count < 25
    assert abs(found.total - 100.0) < 1e-8


def test_the_flatter_of_equal_energies_is_the_end():
    bowl: Any = Bowl(noise=1e-13, tilt=0.0)
    found = search(bowl, np.array([1.0, -1.0, 0.5]), 100, 1e-5, [])
    assert found.status is Status.CONVERGED
    assert np.max(np.abs(np.array([1.0, 10.0, 100.0]) * found.unconstrained)) < 1e-5


def test_a_start_without_a_gradient_is_passed_over():
    """Starts are compared by their energies alone; the best of them must have a gradient as well."""
    starts = [np.full(3, 2.0), np.full(3, 1.0), np.full(3, 3.0)]

    class Partial(Bowl):
        sites = None

        def ranked(self, points):
            return sorted((Candidate(sum(point), point, sum(point)) for point in points), key=lambda item: item.total)

        def at(self, free, steepest=0.0):
            return (np.inf, np.zeros(3)) if free[0] == 1.0 else self(free)

    class Space(Bowl.space):
        size, middle = 3, np.zeros(3)

        @staticmethod
        def starts():
            return starts

    evaluator: Any = Partial(0.0, 0.0)
    evaluator.space = Space
    start, curvature = next(starts_of(evaluator, 0, 0))
    assert start.tolist() == [2.0, 2.0, 2.0]
    assert curvature == 1.0
    assert evaluator.sites == 6.0  # those that were found there


def test_energies_on_a_line_of_starts_give_the_curvature():
    """The lowest start lies between two others; those on another line do not count."""
    direction, units = np.array([0.6, 0.8, 0.0]), np.array([1.0, 2.0, 1.0])

    class Line(Bowl):
        sites = None

        def ranked(self, points):
            totals = [20.0 * float(np.sum(((point - 0.1) / units) ** 2)) for point in points]
            pairs = zip(totals, points, strict=True)
            return sorted((Candidate(total, point, None) for total, point in pairs), key=lambda item: item.total)

    class Space(Bowl.space):
        size, middle = 3, np.zeros(3)

        @staticmethod
        def starts():
            near = -1e-15 * direction * units  # the difference of two roundings says nothing
            return [np.ones(3), np.zeros(3), near, -2.0 * direction * units, 1.5 * direction * units]

    Space.units = units
    evaluator: Any = Line(0.0, 0.0)
    evaluator.space = Space
    start, curvature = next(starts_of(evaluator, 0, 0))
    assert start.tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(curvature, 40.0, rtol=1e-12)


def test_a_search_that_expects_far_too_much_curvature_goes_on():
    bowl: Any = Bowl(noise=0.0, tilt=0.0)
    found = search(bowl, np.array([1.0, -1.0, 0.5]), 100, 1e-5, [], expected_curvature=1e13)
    assert found.status is Status.CONVERGED
    assert bowl.count < 40


def test_the_model_s_own_values_may_be_a_guess_up_to_rounding(monkeypatch):
    """The own lengthscale, 1, is the first guess, 10 / 5 * 0.5, up to rounding: one of the two is tried."""
    recorder = Recorder(monkeypatch)
    t = np.linspace(0.0, 10.0, 60)
    y = np.digitize(np.sin(t) + 0.3 * np.random.default_rng(0).normal(size=60), [-0.7, 0.7])
    kernel = ng.kernels.Independent([ng.kernels.Matern32()] * 3)
    result = ng.fit(ng.Model(ng.MarkovGP(kernel), ng.likelihoods.Softmax(3)), t, y)
    assert result.status is Status.CONVERGED
    rough = [entry.unconstrained for entry in recorder.evaluators[-1].record if entry.is_rough]
    apart = [np.max(np.abs(a - b)) for k, a in enumerate(rough) for b in rough[:k]]
    assert min(apart) > 0.1


def test_a_kernel_given_by_name_has_no_values_to_start_from(monkeypatch):
    """Its lengthscale and variance were not chosen by anybody; those of a kernel that was given were."""
    recorder = Recorder(monkeypatch)
    x = np.linspace(0.0, 40.0, 60)
    y = np.random.default_rng(2).poisson(np.exp(1.0 + np.sin(x)))
    for prior in (ng.GP("matern32"), ng.GP(ng.kernels.Matern32(lengthscale=1.0), ng.means.Constant(0.0))):
        ng.fit(ng.Model(prior, "poisson"), x, y)
    named, given = (evaluator.record for evaluator in recorder.evaluators)
    assert np.array_equal(given[0].unconstrained, np.zeros(3))
    assert not any(np.array_equal(entry.unconstrained, np.zeros(3)) for entry in named)


class Recorder:
    """The evaluators of fits, of which some can be made to be exact everywhere."""

    def __init__(self, monkeypatch, adapts=None):
        self.evaluators = []
        before = Evaluator.__init__

        def init(evaluator, *args):
            before(evaluator, *args)
            if adapts is not None:
                evaluator.adapts = adapts
            self.evaluators.append(evaluator)

        monkeypatch.setattr(Evaluator, "__init__", init)

    @property
    def entries(self):
        return [entry for entry in self.evaluators[-1].record if not entry.is_rough]

    @property
    def steps(self):
        return sum(entry.steps for entry in self.entries)


def test_evaluations_far_from_the_optimum_are_less_exact(monkeypatch):
    x = np.linspace(0.0, 10.0, 60)
    y = np.random.default_rng(3).poisson(np.exp(1.0 + np.sin(x)))
    model = ng.Model(ng.MarkovGP("matern32"), "poisson")
    with monkeypatch.context() as patch:
        exact = Recorder(patch, adapts=False)
        wanted = ng.fit(model, x, y)
    recorder = Recorder(monkeypatch)
    found = ng.fit(model, x, y)
    tolerances = [entry.tol for entry in recorder.entries]
    assert tolerances[0] == 1e-4 and min(tolerances) == FINEST == max(entry.tol for entry in exact.entries)
    evaluator = recorder.evaluators[-1]
    assert evaluator.best_tolerance == FINEST and evaluator.best_report.residual <= FINEST
    assert len(tolerances) <= len(exact.entries) + 3 and recorder.steps < 0.8 * exact.steps
    assert found.status is wanted.status is ng.Status.CONVERGED
    np.testing.assert_allclose(found.energy, wanted.energy, rtol=1e-11)
    for name, value in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], value, rtol=1e-4)


def test_a_method_whose_energy_is_not_stationary_stays_exact(monkeypatch):
    recorder = Recorder(monkeypatch)
    x = np.linspace(0.0, 10.0, 40)
    y = np.random.default_rng(3).poisson(np.exp(1.0 + np.sin(x)))
    ng.fit(ng.Model(ng.MarkovGP("matern32"), "poisson"), x, y, method=ng.Newton())
    assert {entry.tol for entry in recorder.entries} == {FINEST}
