"""Which groups of a model are eliminated: those that are nested in each other, from the inside out."""

from collections.abc import Mapping

import numpy as np


def is_nested(inner: np.ndarray, outer: np.ndarray) -> bool:
    """Whether all rows of a level of `inner` are in the same level of `outer`, by the codes of the rows.

    >>> is_nested(np.array([0, 0, 1, 2]), np.array([5, 5, 5, 3])), is_nested(np.array([0, 0]), np.array([1, 2]))
    (True, False)
    """
    level = np.zeros(int(np.max(inner, initial=-1)) + 1, dtype=np.asarray(outer).dtype)
    level[inner] = outer
    return bool(np.array_equal(level[inner], outer))


def largest_nest(weights: Mapping[str, int], codes: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """The groups, each nested in the next, that have the most weights together.

    `weights` has the number of weights of every group, and `codes` the levels of the rows.

    >>> codes = {"school": np.array([0, 0, 0, 1]), "pupil": np.array([0, 1, 2, 3]), "test": np.array([0, 1, 0, 1])}
    >>> largest_nest({"school": 2, "pupil": 4, "test": 2}, codes)
    ('pupil', 'school')
    """
    # A group with more levels is never nested in one with fewer; groups with the same levels are nested both ways.
    levels = {name: np.unique(codes[name]).size for name in weights} if len(weights) > 1 else dict.fromkeys(weights, 1)
    order = sorted(weights, key=lambda name: -levels[name])
    best: dict[str, tuple[str, ...]] = {}
    for place, name in enumerate(order):
        inside = [other for other in order[:place] if is_nested(codes[other], codes[name])]
        # What is nested in a group inside this one is nested in this one too.
        longest = max((best[other] for other in inside), key=lambda nest: _total(nest, weights), default=())
        best[name] = (*longest, name)
    return max(best.values(), key=lambda nest: _total(nest, weights), default=())


def _total(nest: tuple[str, ...], weights: Mapping[str, int]) -> int:
    return sum(weights[name] for name in nest)
