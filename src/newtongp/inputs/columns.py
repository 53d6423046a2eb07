"""The columns of x: their names, and whether they are numbers or time stamps. New inputs must agree."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..validation.times import Clock, Times

NUMBERS, STAMPS, ZONED = "numbers", "time stamps without a time zone", "time stamps with a time zone"
KINDS = (NUMBERS, STAMPS, ZONED)


class Columns(NamedTuple):
    """The names of the columns of x, if it was a data frame, and their kind."""

    names: tuple[str, ...] | None = None
    kind: str = NUMBERS

    @property
    def own_names(self) -> tuple[str, ...] | None:
        """The names given by the user; None for the default names of pandas: 0, 1, 2 and so on."""
        return None if self.names is None or _is_made_up(self.names) else self.names

    def order(self, x: Any, name: str) -> np.ndarray | None:
        """The order of these columns in x; None if they are matched by position.

        Names are compared if both were given by the user.

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
            twice = [column for column in names if names.count(column) > 1]
            if twice:
                raise ValueError(f"{wanted}, but {where} has two called {twice[0]!r}: give columns different names")
        missing = [column for column in old if column not in new]
        if missing:
            raise ValueError(f"{wanted}, but {_listed(missing)} {_is_or_are(missing)} missing: it has {_listed(new)}")
        unknown = [column for column in new if column not in old]
        if unknown:
            raise ValueError(f"{wanted}, but also has {_listed(unknown)}: choose columns, as in {name}[{list(old)}]")
        return np.array([new.index(column) for column in old])

    def check_kind(self, x: Any, kind: str, clock: Clock | None, first: str, name: str) -> None:
        """Raise ValueError if new inputs are of a different kind than x: they would be other times."""
        if kind == self.kind:
            return
        if self.kind == STAMPS and kind == ZONED:
            advice = (
                "bring it to the zone of x and drop it there, as in "
                f'{name}.tz_convert("Europe/Helsinki").tz_localize(None)'
            )
        elif self.kind == ZONED and kind == STAMPS:
            advice = f'set its time zone, as in {name}.tz_localize("Europe/Helsinki")'
        elif kind == NUMBERS:
            origin = "" if clock is None else f", because numbers and durations would be counted from {clock.origin}"
            advice = f"give time stamps{origin}"
        else:
            advice = "give numbers, or infer from time stamps in the first place"
        raise ValueError(f"{name} must hold {self.kind}, as x did, got {type(x).__name__} with {first}: {advice}")


def kind_of(times: Times | None) -> str:
    """The kind of inputs. Durations since the origin count as numbers with a unit."""
    if times is None or isinstance(times.first, np.timedelta64):
        return NUMBERS
    return ZONED if times.zoned else STAMPS


def names_of(x: Any) -> tuple[str, ...] | None:
    """The column names of a data frame (pandas, polars and similar); None for anything else."""
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
