"""Hyperparameters of many series: what those of all of them say about each.

Priors of hyperparameters are relative to the size of a series. The logarithm of a hyperparameter, less that of the mode
of its prior, can therefore be compared between series, and its mean and spread over all of them are a prior that was
learned.
"""

from typing import Any, NamedTuple

import numpy as np

from .fitted import Fitted, Member
from .structure import Mode, Structure

POOLED = (None, "prior", "all")
_NARROWEST = 0.1
"""The smallest spread of a learned prior, in logarithms."""


class Pooled(NamedTuple):
    """The mean and the spread, over all series, of the logarithm of every hyperparameter of a structure."""

    centres: dict[Any, dict[str, tuple[float, float]]]

    def modes(self, structure: Structure, modes: dict[str, Mode]) -> dict[str, Mode]:
        """The priors of a series with this structure, as all series have them."""
        known = self.centres.get(_key(structure), {})

        def moved(name: str, mode: Mode) -> Mode:
            centre, spread = known.get(name, (0.0, mode.spread))
            return Mode(mode.value * float(np.exp(centre)), spread)

        return {name: moved(name, mode) for name, mode in modes.items()}


def learned_from(fits: list[Fitted]) -> Pooled:
    """What the hyperparameters of fitted series have in common."""
    found: dict[Any, dict[str, list[float]]] = {}
    for fitted in fits:
        for one in fitted.members:
            own = found.setdefault(_key(one.structure), {})
            for name, value in _logarithms(fitted, one).items():
                own.setdefault(name, []).append(value)
    return Pooled(
        {
            key: {
                name: (float(np.mean(values)), max(float(np.std(values)), _NARROWEST)) for name, values in own.items()
            }
            for key, own in found.items()
        }
    )


def _key(structure: Structure) -> Any:
    """What series must have in common for their hyperparameters to be comparable."""
    return structure.trend, type(structure.likelihood).__name__, structure.season_names, structure.changing


def _logarithms(fitted: Fitted, one: Member) -> dict[str, float]:
    """The logarithms of a series' hyperparameters, relative to the modes of its own priors."""
    values = one.result.parameters
    return {
        name: float(np.log(values[name] / mode.value))
        for name, mode in fitted.modes(one.structure).items()
        if name in values
    }
