"""What x was given as: the names of its columns, and whether it held numbers or time stamps. New inputs must agree."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..validation.times import Clock, Times

NUMBERS, STAMPS, ZONED = "numbers", "time stamps without a time zone", "time stamps with a time zone"
KINDS = (NUMBERS, STAMPS, ZONED)


class Columns(NamedTuple):
    """The names of the columns of x, where it was a data frame, and what was in them."""

    names: tuple[str, ...] | None = None
    kind: str = NUMBERS

    @property
    def own_names(self) -> tuple[str, ...] | None:
        """The names that the user has given; None for those that pandas makes up: 0, 1, 2 and so on."""
        return None if self.names is None or _is_made_up(self.names) else self.names

    def order(self, x: Any, name: str) -> np.ndarray | None:
        """Which column of x is which of these; None if they are taken by position.

        Names are compared where both have such of their own.

        >>> Columns(("east", "north")).order([[1.0, 2.0]], "x_new") is None
        True
        """
        new, old = names_of(x), self.names
        if new is None or old is None or new == old:
            return None
        if set(new) != set(old) and (_is_made_up(new) or _is_made_up(old)):
            return None
        wanted = f"{name} must have the columns of x, {_listed(old)}"
        for names, where in ((old, "x"), (new, name)):
            twice = [each for each in names if names.count(each) > 1]
            if twice:
                raise ValueError(f"{wanted}, but {where} has two called {twice[0]!r}: give columns different names")
        missing = [each for each in old if each not in new]
        if missing:
            raise ValueError(f"{wanted}, but {_listed(missing)} {_is_or_are(missing)} missing: it has {_listed(new)}")
        unknown = [each for each in new if each not in old]
        if unknown:
            raise ValueError(f"{wanted}, but has {_listed(unknown)} too: choose columns, as in {name}[{list(old)}]")
        return np.array([new.index(each) for each in old])

    def check_kind(self, x: Any, kind: str, clock: Clock | None, first: str, name: str) -> None:
        """Raise ValueError if new inputs are of another kind than x was: they would be other times."""
        if kind == self.kind:
            return
        if self.kind == STAMPS and kind == ZONED:
            advice = (
                "bring it to the zone of x and drop it there, as in "
                f'{name}.tz_convert("Europe/Helsinki").tz_localize(None)'
            )
        elif self.kind == ZONED and kind == STAMPS:
            advice = f'say in which time zone it is, as in {name}.tz_localize("Europe/Helsinki")'
        elif kind == NUMBERS:
            origin = "" if clock is None else f", since numbers and durations would be counted from {clock.origin}"
            advice = f"give time stamps{origin}"
        else:
            advice = "give numbers, or infer from time stamps in the first place"
        raise ValueError(f"{name} must hold {self.kind}, as x did, got {type(x).__name__} with {first}: {advice}")


def kind_of(times: Times | None) -> str:
    """What inputs hold. Durations since the origin are numbers with a unit."""
    if times is None or isinstance(times.first, np.timedelta64):
        return NUMBERS
    return ZONED if times.zoned else STAMPS


def names_of(x: Any) -> tuple[str, ...] | None:
    """The names of the columns of a data frame, of pandas, polars or the like; None for anything else."""
    names = getattr(x, "column_names", getattr(x, "columns", None))  # pyarrow has the columns themselves in `columns`
    if isinstance(x, np.ndarray) or isinstance(names, str) or not isinstance(names, Iterable):
        return None
    return tuple(map(str, names))


def _is_made_up(names: tuple[str, ...]) -> bool:
    return names == tuple(map(str, range(len(names))))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _is_or_are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
