"""Inducing times: given by the user, or chosen from the data."""

from typing import Any

import numpy as np

from ..kernels.inducing import Sample, first_outside
from ..validation.arguments import whole
from ..validation.numbers import NotRealError, as_real
from ..validation.times import Clock, MixedError, read_times


def read_count(given: Any) -> int | None:
    """The number of inducing times, if that is what was given."""
    if given is None or isinstance(given, (list, tuple)) or np.ndim(given) > 0:
        return None
    return whole(given, "inducing", 2, such_as=100, otherwise="an array of times")


def read_inducing_times(given: Any, clock: Clock | None) -> np.ndarray:
    """Distinct times in ascending order, from numbers or time stamps in any order."""
    times = _numbers(given, clock)
    times = times[:, 0] if times.ndim == 2 and times.shape[1] == 1 else times
    if times.ndim != 1 or times.size == 0:
        raise ValueError(
            f"inducing must be a number of inducing times, or a list of at least two, got shape {times.shape}"
        )
    if not np.all(np.isfinite(times)):
        row = np.flatnonzero(~np.isfinite(times))[0]
        raise ValueError(f"inducing times must be finite, but entry {row} is {times[row]}: drop it")
    if times.size == 1:
        raise ValueError(
            f"inducing must have at least two times, the ends of an interval, got {times.tolist()}: for that many "
            f"inducing times write inducing={max(2, round(float(times[0])))}, without brackets"
        )
    times = np.sort(times)
    repeated = np.flatnonzero(np.diff(times) == 0.0)
    if repeated.size:
        raise ValueError(
            f"inducing times must differ, but {times[repeated[0]]} occurs more than once: use np.unique(times)"
        )
    return times


def _numbers(given: Any, clock: Clock | None) -> np.ndarray:
    try:
        stamps = read_times(given)
    except MixedError as error:
        raise ValueError(f"inducing must hold numbers, or time stamps of one kind: {error}") from None
    if stamps is not None:
        if clock is None:
            raise ValueError(
                f"inducing has time stamps, such as {stamps.first}, but the prior has no unit of time: state it, as in "
                'MarkovGP(kernel, unit="D", inducing=times)'
            )
        return stamps.numbers(clock)
    try:
        return np.asarray(as_real(given), dtype=float)
    except NotRealError:
        raise ValueError(f"inducing must be a number of inducing times or a list of them, got {given!r}") from None


class SampleOfTimes:
    """The first and last time of a data set that comes in parts, and a random sample of the others."""

    def __init__(self, seed: int):
        self._sample, self.first, self.last = Sample(seed), np.inf, -np.inf

    def see(self, x: np.ndarray) -> None:
        """Add the next rows of the data."""
        self._sample.see(x)
        self.first, self.last = min(self.first, float(np.min(x))), max(self.last, float(np.max(x)))

    @property
    def rows(self) -> np.ndarray:
        """A sample of the rows, as `Sample` has it."""
        return self._sample.rows

    def require_within(self, times: np.ndarray, clock: Clock | None) -> None:
        """Raise ValueError if all inducing times are on one side of the data, or one is far from all of it."""
        data = f"the data, {self.first} to {self.last}"
        if clock is not None:
            data += f" (in units of {clock.unit} since {clock.origin})"
        if times[0] > self.last or times[-1] < self.first:
            where = "after" if times[0] > self.last else "before"
            raise ValueError(
                f"all inducing times, {times[0]} to {times[-1]}, are {where} {data}: choose them within the data, in "
                "the same unit, or give their number"
            )
        far = first_outside(times[:, None], np.array([[self.first], [self.last]]))
        if far is not None:
            where = "after" if times[far] > self.last else "before"
            raise ValueError(
                f"inducing has the time {times[far]}, which is far {where} {data}: choose inducing times within the "
                "data or near it, in the same unit, or give their number"
            )

    def choose(self, count: int) -> np.ndarray:
        """`count` times from the first to the last, with equally many distinct times of the data between them.

        All distinct times, if there are no more than that.
        """
        times = np.unique(np.concatenate([self.rows[:, 0], [self.first, self.last]]))
        if len(times) <= count:
            return times
        return np.unique(np.interp(np.linspace(0.0, len(times) - 1.0, count), np.arange(len(times)), times))
