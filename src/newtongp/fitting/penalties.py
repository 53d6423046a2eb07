"""Prior densities of hyperparameters as a penalty of the free numbers, with its gradient."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..numerics.small import LOG_2PI
from ..parameters.constraints import Positive
from ..parameters.priors import LogNormal, Plausible
from .learned import Slot, values_of


class Penalty:
    """Minus the log prior density of values, as a function of the free numbers; a prior may be None.

    Log-normal and plausible priors of positive parameters are quadratic functions of logarithms. They are computed for
    all parameters at once, because every evaluation of an energy needs them and a call per prior would take as long as
    the evaluation of a small problem.
    """

    def __init__(self, priors: list[Any], slots: tuple[Slot, ...]):
        self.priors, self.slots = priors, slots
        self.size = sum(slot.size for slot in slots)
        self.is_zero = all(prior is None for prior in priors)
        self.is_compiled = not all(prior is None or isinstance(prior, (Plausible, LogNormal)) for prior in priors)
        """Whether slopes are not known in closed form."""
        self._medians, self._precisions = np.zeros(self.size), np.zeros(self.size)
        self._lower, self._upper = np.full(self.size, -np.inf), np.full(self.size, np.inf)
        self._constants, self._slopes = 0.0, np.zeros(self.size)
        self._others = []
        """The numbers of priors of values that are not parametrised by their logarithms."""
        begin = 0
        for number, (prior, slot) in enumerate(zip(priors, slots, strict=True)):
            here, begin = slice(begin, begin + slot.size), begin + slot.size
            if prior is None or self.is_compiled:
                continue
            if not isinstance(slot.constraint, Positive):
                self._others.append(number)
            elif isinstance(prior, LogNormal):
                spread = _ravelled(prior.spread, slot)
                self._medians[here] = np.log(_ravelled(prior.median, slot))
                self._precisions[here], self._slopes[here] = spread**-2, 1.0
                self._constants += float(np.sum(np.log(spread) + 0.5 * LOG_2PI))
            else:
                with np.errstate(divide="ignore"):
                    self._lower[here], self._upper[here] = (
                        np.log(_ravelled(prior.lower, slot)),
                        np.log(_ravelled(prior.upper, slot)),
                    )

    def __call__(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """The penalty and its gradient."""
        if self.is_zero:
            return 0.0, np.zeros(self.size)
        if self.is_compiled:
            value, slope = _negative_log_prior(jnp.asarray(unconstrained), self.priors, self.slots)
            return float(value), np.asarray(slope)
        gap = unconstrained - self._medians
        pull = self._precisions * gap
        beyond = np.maximum(unconstrained - self._upper, 0.0) - np.maximum(self._lower - unconstrained, 0.0)
        total = 0.5 * (pull @ gap + beyond @ beyond) + self._slopes @ unconstrained + self._constants
        gradient = pull + beyond + self._slopes
        if self._others:
            values, slopes = values_at(self.slots, unconstrained), slopes_of(self.slots, unconstrained)
            for number in self._others:
                density, derivative = self.priors[number].with_slope(values[number])
                total -= np.sum(density)
                gradient -= np.ravel(derivative) @ slopes[number]
        return float(total), gradient


def _ravelled(value: Any, slot: Slot) -> np.ndarray:
    return np.ravel(np.broadcast_to(np.asarray(value), slot.shape))


def values_at(slots: tuple[Slot, ...], unconstrained: np.ndarray) -> list[np.ndarray]:
    """The value of every slot."""
    with np.errstate(over="ignore"):
        return [np.asarray(value) for value in values_of(slots, np.asarray(unconstrained))]


_STEP = 1e-30


def slopes_of(slots: tuple[Slot, ...], unconstrained: np.ndarray) -> list[np.ndarray]:
    """The derivatives of every slot's value, flattened, in the free numbers.

    They are the imaginary parts of values at a tiny imaginary distance, which have no error of a difference.
    """
    moves = 1j * _STEP * np.eye(unconstrained.shape[0])
    with np.errstate(over="ignore", invalid="ignore"):
        columns = [values_of(slots, unconstrained + move) for move in moves]
    return [
        np.stack([np.ravel(value.imag) / _STEP for value in values], axis=1) for values in zip(*columns, strict=True)
    ]


@eqx.filter_jit
@jax.value_and_grad
def _negative_log_prior(unconstrained, priors: list[Any], slots: tuple[Slot, ...]):
    values = values_of(slots, unconstrained)
    terms = [jnp.sum(prior(value)) for prior, value in zip(priors, values, strict=True) if prior is not None]
    return -jnp.sum(jnp.stack(terms))
