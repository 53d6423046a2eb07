"""Where the rows of data in space and time go: steps in time, slots within a step, and distinct places."""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from ..numerics.size_classes import size_class

_MOST_PER_SLOT = 64
"""Rows at one place and time are summed in one slot, up to so many."""
_SMALLEST_STEPS = 8
_STORED = 1.5e9
"""The largest number of bytes of results of the filter that are stored for the smoother."""


class SpaceTimeInputs(eqx.Module):
    """The data's inputs: rows, their slots, times of the steps, distinct places, and inducing places."""

    x: Any
    """All rows, (N, 1 + P)."""
    times: Any
    """One per step."""
    members: Any
    """The rows of every slot, (T, R, K), N where there are none."""
    slots: Any
    """The slot of every row, among all T·R."""
    places: Any
    """Distinct places."""
    slot_places: Any
    """The place of every slot, (T, R); None if slot r is place r in every step."""
    inducing: Any
    """Inducing places; None if f is represented by its values at all places."""
    segments: int = eqx.field(static=True)


class Places(NamedTuple):
    """Distinct places, and the number of each row's."""

    distinct: np.ndarray
    codes: np.ndarray


def places_of(space: np.ndarray) -> Places:
    """The distinct places of rows."""
    distinct, codes = np.unique(space, axis=0, return_inverse=True)
    return Places(distinct, codes.reshape(-1))


def check_places(distinct: np.ndarray) -> None:
    """Raise ValueError if two places differ by no more than rounding."""
    same = _same(distinct)
    if same is not None:
        one, other = same
        raise ValueError(
            f"two places cannot be told apart, {_shown(distinct[one])} and {_shown(distinct[other])}: they differ by "
            "rounding alone. Give rows of one place the same numbers, for example by np.round"
        )


def check_inducing_places(places: np.ndarray) -> None:
    """Raise ValueError if two inducing places are the same, or differ by no more than rounding."""
    same = _same(places)
    if same is not None:
        one, other = same
        if np.array_equal(places[one], places[other]):
            raise ValueError(
                f"inducing places must differ, but rows {one} and {other} are both {_shown(places[one])}: give every "
                "place once, as in np.unique(places, axis=0)"
            )
        raise ValueError(
            f"inducing places must differ, but rows {one} and {other} are {_shown(places[one])} and "
            f"{_shown(places[other])}, which differ by rounding alone: drop one of them"
        )


def _same(places: np.ndarray) -> tuple[int, int] | None:
    """The first place that agrees with an earlier one up to rounding, after that one; None if all differ."""
    # The range of a column may itself be rounding.
    sizes = np.maximum(np.ptp(places, axis=0), 1e-4 * np.max(np.abs(places), axis=0))
    scaled = places / np.where(sizes > 0.0, sizes, 1.0)
    cells = np.stack([_classes(column) for column in scaled.T], axis=1)
    _, first, codes = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    earliest = first[codes.reshape(-1)]
    repeated = np.flatnonzero(earliest < np.arange(len(places)))
    return (int(earliest[repeated[0]]), int(repeated[0])) if repeated.size else None


_SAME = 1e-10


def _classes(values: np.ndarray) -> np.ndarray:
    """A number for every value; values that agree up to rounding have the same."""
    order = np.argsort(values)
    found = np.empty(values.size, dtype=int)
    found[order] = np.cumsum(np.diff(values[order], prepend=values[order[0]]) > _SAME)
    return found


def _shown(place: np.ndarray) -> str:
    return "[" + ", ".join(str(float(value)).removesuffix(".0") for value in place) + "]"


def lay_out(x: np.ndarray, rows: int, inducing: np.ndarray | None) -> SpaceTimeInputs:
    """The slots of the first `rows` rows of x; the others only fill up a size class."""
    times, steps = np.unique(x[:rows, 0], return_inverse=True)
    places = places_of(x[:rows, 1:])
    steps = steps.reshape(-1)
    segments, count = segments_of(times.size)
    slot, members, regular, slot_places = _slots(steps, places.codes, count, len(places.distinct), rows)
    filled = np.concatenate([slot, np.repeat(slot[-1:], x.shape[0] - rows)])
    members = np.where(members < 0, x.shape[0], members)
    all_times = np.concatenate([times, np.repeat(times[-1:], count - times.size)])
    return SpaceTimeInputs(
        x, all_times, members, filled, places.distinct, None if regular else slot_places, inducing, segments
    )


def segments_of(steps: int) -> tuple[int, int]:
    """The number of segments, and that of steps with those that fill it up."""
    steps = size_class(steps, _SMALLEST_STEPS, step=1)
    length = max(1, int(np.sqrt(steps)))
    segments = -(-steps // length)
    return segments, segments * length


def _slots(steps: np.ndarray, codes: np.ndarray, count: int, places: int, rows: int) -> tuple[Any, ...]:
    """The slot of every row, the rows of every slot (−1 for none), whether slots are places, and their places."""
    order = np.lexsort((np.arange(rows), codes, steps))
    cell = steps[order] * places + codes[order]
    # The number of each row among those of its place and time.
    starts = np.flatnonzero(np.diff(cell, prepend=-1))
    number = np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))
    many = int(number.max()) + 1
    per_slot = min(many, _MOST_PER_SLOT)
    part, member = number // per_slot, number % per_slot
    # Slots within a step: one for each place, and more if a place has too many rows.
    group = (np.diff(cell, prepend=-1) != 0) | (np.diff(part, prepend=0) != 0)
    first_of_step = np.flatnonzero(np.diff(steps[order], prepend=-1))
    index = np.cumsum(group) - 1
    within = index - np.repeat(index[first_of_step], np.diff(np.append(first_of_step, rows)))
    width = int(within.max()) + 1
    regular = many <= _MOST_PER_SLOT and 2 * width >= places
    if regular:
        width, within = places, codes[order]
    slot_of = steps[order] * width + within
    slot = np.empty(rows, dtype=np.int32)
    slot[order] = slot_of
    members = np.full((count * width, per_slot), -1, dtype=np.int32)
    members[slot_of, member] = order
    slot_places = np.zeros(count * width, dtype=np.int32)
    slot_places[slot_of] = codes[order]
    return slot, members.reshape(count, width, per_slot), regular, slot_places.reshape(count, width)


def stored_bytes(steps: int, slots: int, latents: int, size: int) -> float:
    """The number of bytes of what the smoother needs of the filter."""
    seen = slots * latents
    return 8.0 * steps * (2.0 * size * seen + float(seen) ** 2 + 6.0 * seen * latents)


def is_stored(needed: float) -> bool:
    """Whether results of the filter are stored, and not computed again."""
    return needed <= _STORED
