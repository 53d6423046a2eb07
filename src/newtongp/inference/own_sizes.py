"""Sizes of their own for numbers of rows that come again and again.

Rows are filled up to size classes (`numerics/size_classes.py`), which costs time in every step. Once inference has run
with a number of rows for long enough, that number gets a size of its own, hardly larger than itself. Its program is
compiled in the background, and later calls of `infer` or `fit` use it when it is ready.

A program that was compiled with low effort would be compiled again in any case: half the time of its first call is long
enough. In place of any other program, one of the right size has to save as much time as its compilation takes.

Only the loop over steps runs in such a size. Sweeps, posteriors and predictions remain in the size class, whose
programs exist already, so results do not depend on the size.
"""

from collections.abc import Callable
from typing import Any

import jax

from .._runtime import jax_settings, tiers
from .._runtime.compilation import forced_effort, is_quick
from ..numerics.size_classes import own_size
from .problem import Setup

_GAIN = 1.1
"""How much smaller than its size class a size of its own has to be."""
_PATIENCE = 0.5
"""How long inference runs before a size of its own is compiled for, in durations of the first call, if that was quick.

It is less than 1, so that the program of the size class is not compiled again just before it is no longer needed.
"""


class _Program:
    """What is known of the program of one size class."""

    def __init__(self):
        self.first: float | None = None
        """The duration of its first call, which includes compilation."""
        self.uses: dict[int, Use] = {}


class Use:
    """How long the program of a size class has run for numbers of rows with one size of their own."""

    def __init__(self, program: _Program, needed: float = _PATIENCE):
        self.program, self.needed = program, needed
        self.seconds = 0.0
        self.prepared: tiers.Use | None = None

    def note(self, seconds: float) -> None:
        """Count a call of the program."""
        if self.program.first is None:
            self.program.first = seconds
        else:
            self.seconds += seconds

    @property
    def is_long(self) -> bool:
        """Whether it has run for so long that a size of its own is worthwhile."""
        first = self.program.first
        return first is not None and self.seconds > self.needed * max(first, tiers.LEAST)

    @property
    def is_last(self) -> bool:
        """Whether the program of the size class is used only until that of the size of its own is ready."""
        return self.prepared is not None

    @property
    def is_ready(self) -> bool:
        """Whether the program of the size of its own can be used."""
        return self.prepared is not None and self.prepared.successor is not None


_programs: dict[Any, _Program] = {}


def in_own_size(
    setup: Setup, choices: Any, static: Any, work: float, prepare: Callable[[Setup], tiers.Use | None]
) -> tuple[Setup, Use | None]:
    """The setup in a size of its own, if there is a program for it; otherwise as it is, and what counts its use.

    `choices`, a tree, and `static` are what the program depends on besides the setup, and `work` is that of a step.
    `prepare` starts compiling it.
    """
    size = own_size(setup.rows)
    if setup.size < _GAIN * size or forced_effort() is not None:
        return setup, None
    try:
        program = _programs.setdefault(_key(setup, choices, static), _Program())
    except TypeError:  # a static value that cannot be hashed
        return setup, None
    # What a step of the right size saves is at least the share of the rows that fill up.
    needed = _PATIENCE if is_quick(work) else max(_PATIENCE, setup.size / (setup.size - size))
    use = program.uses.setdefault(size, Use(program, needed))
    if use.prepared is None and use.is_long and not tiers.is_compiling():
        use.prepared = prepare(setup.with_size(size))
    return (setup.with_size(size), None) if use.is_ready else (setup, use)


def _key(setup: Setup, choices: Any, static: Any) -> Any:
    """What the program of a size class depends on."""
    data = setup.data
    structure = jax.tree.structure((setup.model.prior, data.weighted_likelihood(setup.model.likelihood), choices))
    shapes = setup.size, data.x.shape[1], data.y.shape[1:]
    return structure, static, shapes, jax_settings.circumstances()
