"""The search by itself, on functions that are known."""

from typing import Any

import numpy as np

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

    def __call__(self, free):
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
            return sorted(((point, sum(point)) for point in points), key=lambda item: item[1])

        def at(self, free):
            return (np.inf, np.zeros(3)) if free[0] == 1.0 else self(free)

    class Space(Bowl.space):
        size, middle = 3, np.zeros(3)

        @staticmethod
        def starts():
            return starts

    evaluator: Any = Partial(0.0, 0.0)
    evaluator.space = Space
    assert next(starts_of(evaluator, 0, 0)).tolist() == [2.0, 2.0, 2.0]
    assert evaluator.sites == 6.0  # those that were found there
