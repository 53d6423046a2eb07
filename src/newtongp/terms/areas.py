"""Graphs of named areas."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse


def read_neighbours(neighbours: Any, areas: Any) -> tuple[tuple[Any, ...], np.ndarray]:
    """The names of the areas, and pairs of their numbers."""
    given = getattr(neighbours, "neighbors", neighbours)
    if isinstance(given, Mapping):
        names = tuple(given) if areas is None else tuple(areas)
        place = {name: number for number, name in enumerate(names)}
        pairs = []
        for name, others in given.items():
            for other in others:
                for area in (name, other):
                    if area not in place:
                        raise ValueError(f"neighbours of {name!r} has the unknown area {area!r}: add it to the mapping")
                if name == other:
                    raise ValueError(f"{name!r} is given as its own neighbour: leave it out of its neighbours")
                if name not in (given.get(other) or ()):
                    raise ValueError(
                        f"neighbours must be mutual, but {other!r} is a neighbour of {name!r} and not the other way "
                        "round: correct one of them"
                    )
                if place[name] < place[other]:
                    pairs.append((place[name], place[other]))
        return names, np.array(pairs, dtype=float).reshape(-1, 2)
    if sparse.issparse(given):
        given = given.toarray()
    array = np.asarray(given)
    if array.ndim == 2 and array.shape[0] == array.shape[1] and array.dtype.kind in "fiub":
        names = tuple(range(array.shape[0])) if areas is None else tuple(areas)
        if len(names) != array.shape[0]:
            raise ValueError(f"areas must name the rows of the matrix, got {len(names)} name(s) for {array.shape[0]}")
        if np.any(array != array.T):
            one, two = np.argwhere(array != array.T)[0]
            raise ValueError(
                f"the matrix of neighbours must be symmetric, but has {array[one, two]} between {names[one]!r} and "
                f"{names[two]!r} and {array[two, one]} the other way round: correct one of them"
            )
        pairs = np.argwhere(np.triu(array != 0, 1))
        return names, pairs.astype(float).reshape(-1, 2)
    if array.ndim == 2 and array.shape[1] == 2:
        found = sorted(set(array.ravel().tolist()), key=lambda value: (str(type(value)), value))
        names = tuple(found) if areas is None else tuple(areas)
        place = {name: number for number, name in enumerate(names)}
        unknown = next((name for name in found if name not in place), None)
        if unknown is not None:
            raise ValueError(
                f"the pair of neighbours with {unknown!r} has an area that is not among areas: add it there"
            )
        return names, np.array([[place[a], place[b]] for a, b in array.tolist()], dtype=float)
    raise ValueError(
        "neighbours must be a mapping from each area to its neighbours, pairs of areas, a symmetric matrix, or an "
        f"object with `neighbors`, got {type(neighbours).__name__}"
    )
