"""What is learned, as one vector of free numbers: their bounds, units and priors, and where to begin.

`fit` searches among free numbers (`constraints.py`), with all rows or in batches: both begin and end here.
"""

import copy
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.double import in_double
from ..model import Model
from ..parameters.priors import Plausible
from ..results.fit_result import FitResult
from ..results.result import InferenceError, Result
from ..results.status import ConvergenceWarning, FitWarning, Status
from ..results.wording import SEARCHES, inference_sentence
from .initial_values import Scales, guess, plausible, unit_of
from .learned import Learned, Slot, choose, left_alone, redundant, tied_names, values_of

_LARGEST_UNCONSTRAINED = 60.0
"""Logarithms do not go further than this from their start."""
_RELEASED = 14.0
"""And not further than this without a weak prior: a factor of a million."""
_SETTLED = 1e-6
"""A residual of inference with which `infer` by itself would have been content."""
_NO_SLOPE = 1e-14
"""A slope, as a share of the energy, that is nothing but rounding."""
_UNSEEN = (
    "Check that the model uses it, in operations that JAX can differentiate (not float(), NumPy functions, rounding, "
    "comparisons or stop_gradient), and that some rows are observed."
)
_RATIOS = (0.15, 0.5, 2.0, 6.0)
"""Lengthscales to look at before the search, in units of the first guess."""


class Space:
    """The free numbers of all that is learned, with their bounds and the prior densities of their values."""

    def __init__(self, model: Model, scales: Scales, specifications: Mapping[str, Any] | None, weak_priors: bool):
        self.learned = learned = choose(model, specifications)
        self.notes = left_alone(model, specifications)
        """What a user is to be told, by the parameter that it is about."""
        self.redundant = redundant(model, specifications)
        """Variances that are not learned, each with the one that it is multiplied by."""
        self.guessed = guess(model, scales, learned)
        """Values made from the data."""
        self.priors = [
            each.prior if each.prior is not None or not weak_priors else plausible(model, scales, each, start)
            for each, start in zip(learned, self.guessed, strict=True)
        ]
        self.weak = [prior is not None and each.prior is None for prior, each in zip(self.priors, learned, strict=True)]
        """Which of the priors nobody asked for."""
        self.undetermined: list[str] = []
        """What only a weak prior keeps where it is, as far as that was looked into."""
        self.slots: tuple[Slot, ...] = tuple(each.slot for each in learned)
        self.size = sum(slot.size for slot in self.slots)
        parts = [
            np.zeros(slot.size) + np.ravel(unit_of(model, scales, each))
            for slot, each in zip(self.slots, learned, strict=True)
        ]
        self.units = np.concatenate(parts) if parts else np.zeros(0)
        margins = [
            np.where(slot.constraint.logarithms(slot.shape), _LARGEST_UNCONSTRAINED, np.inf) for slot in self.slots
        ]
        self.margins = np.concatenate(margins) if margins else np.zeros(0)
        """How far from where it starts a search may take a free number."""

    def free_of(self, values: list[np.ndarray]) -> np.ndarray:
        """Values as free numbers."""
        parts = [slot.constraint.unconstrain(value) for slot, value in zip(self.slots, values, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0)

    @in_double
    def values_at(self, unconstrained: np.ndarray) -> list[np.ndarray]:
        """Free numbers as values, within the bounds that were set."""
        values = zip(_values(self.slots, unconstrained), self.learned, strict=True)
        return [_kept_inside(np.asarray(value), each) for value, each in values]

    def bounds(self, start: np.ndarray) -> list[tuple[float, float]]:
        """The least and largest free numbers."""
        found, begin = [], 0
        for each in self.learned:
            size, constraint = each.slot.size, each.slot.constraint
            here = start[begin : begin + size]
            margin = self.margins[begin : begin + size]
            least, largest = constraint.limits()
            low, high = np.maximum(here - margin, least), np.minimum(here + margin, largest)
            if each.lower is not None:
                low = np.maximum(low, _finite(constraint.unconstrain(each.lower), -np.inf))
            if each.upper is not None:
                high = np.minimum(high, _finite(constraint.unconstrain(each.upper), np.inf))
            found += list(zip(low.tolist(), high.tolist(), strict=True))
            begin += size
        return found

    @in_double
    def penalty(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log of the prior density of the values, and its gradient in the free numbers."""
        return self._penalty(unconstrained, self.priors)

    @in_double
    def pull(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """The part of the penalty that weak priors have, and its gradient."""
        priors = [prior if weak else None for prior, weak in zip(self.priors, self.weak, strict=True)]
        return self._penalty(unconstrained, priors)

    def _penalty(self, unconstrained: np.ndarray, priors: list[Any]) -> tuple[float, np.ndarray]:
        if not any(prior is not None for prior in priors):
            return 0.0, np.zeros(self.size)
        value, slope = _negative_log_prior(jnp.asarray(unconstrained), priors, self.slots)
        return float(value), np.asarray(slope)

    def release(self, chosen: np.ndarray) -> "Space":
        """The same without weak priors on these free numbers, which may not go quite as far in return."""
        other = copy.copy(self)
        other.margins = np.where(chosen, np.minimum(self.margins, _RELEASED), self.margins)
        parts = np.split(chosen, np.cumsum([slot.size for slot in self.slots])[:-1])
        others = zip(self.priors, self.weak, parts, self.slots, strict=True)
        other.priors = [
            _opened(prior, np.reshape(part, slot.shape)) if isinstance(prior, Plausible) and weak else prior
            for prior, weak, part, slot in others
        ]
        other.weak = [weak and prior is not None for weak, prior in zip(self.weak, other.priors, strict=True)]
        return other

    @property
    def specifications(self) -> tuple[list[Any], list[Any]]:
        """All that was said of what is learned, for a checkpoint's mark: numbers, and prior densities."""
        return [(each.start, each.lower, each.upper) for each in self.learned], self.priors

    @property
    def middle(self) -> np.ndarray:
        """The guesses as free numbers."""
        return self.free_of(self.guessed)

    def starts(self) -> Iterator[np.ndarray]:
        """Places to look at before the search: the model's own values, the guesses, and those with other lengths."""
        yield self.free_of([each.start for each in self.learned])
        yield self.middle
        for ratio in _RATIOS:
            moved = [
                _kept_inside(value * ratio, each) if each.unit == "x" and not each.given_start else value
                for each, value in zip(self.learned, self.guessed, strict=True)
            ]
            yield self.free_of(moved)

    def at_bound(self, unconstrained: np.ndarray) -> list[str]:
        """The names of what ended at a bound that was set."""
        names, begin = [], 0
        for each in self.learned:
            here = unconstrained[begin : begin + each.slot.size]
            for bound in (each.lower, each.upper):
                if bound is not None and np.any(np.abs(each.slot.constraint.unconstrain(bound) - here) < 1e-6):
                    names.append(each.slot.name)
            begin += each.slot.size
        return list(dict.fromkeys(names))

    def names_of(self, chosen: np.ndarray) -> list[str]:
        """The names of the parameters that one of these free numbers belongs to."""
        parts = np.split(chosen, np.cumsum([slot.size for slot in self.slots])[:-1])
        return [slot.name for slot, part in zip(self.slots, parts, strict=True) if np.any(part)]

    def note_without_influence(self, seen: list[tuple[float, np.ndarray]]) -> None:
        """Note parameters whose slope was zero, up to rounding, wherever an energy was computed."""
        slopes = [np.abs(slope) / (1.0 + abs(energy)) for energy, slope in seen if np.isfinite(energy)]
        if not slopes or self.size == 0:
            return
        moving = self.names_of(np.max(slopes, axis=0) > _NO_SLOPE)
        still = [slot.name for slot in self.slots if slot.name not in moving]
        for name in still if moving else []:
            self.notes[name] = (
                f"{name} has no influence on the energy: its gradient was zero wherever it was computed, so that the "
                f"data say nothing of it. {_UNSEEN} Or say Fixed() of it."
            )
        if not moving:
            self.notes["fit"] = (
                f"Nothing was learned: the gradient of the energy in {', '.join(still)} was zero wherever it was "
                f"computed, so that these are their starting values. {_UNSEEN}"
            )

    def finish(
        self,
        unconstrained: np.ndarray,
        result: Result,
        status: Status,
        trace: list[float],
        evaluations: int,
        started: float,
        standard_errors: dict[str, np.ndarray] | None = None,
    ) -> FitResult:
        """What was found, with the result of inference at these free numbers."""
        named = list(zip(self.slots, self.values_at(unconstrained), self.priors, strict=True))
        return FitResult(
            result,
            status=status,
            learned={slot.name: value for slot, value, _ in named},
            priors={slot.name: prior for slot, _, prior in named if prior is not None},
            standard_errors={} if standard_errors is None else standard_errors,
            at_bound=self.at_bound(unconstrained),
            penalty=self.penalty(unconstrained)[0],
            fit_history=np.asarray(trace),
            evaluations=evaluations,
            seconds=time.perf_counter() - started,
            tied=tied_names(self.slots, result.model),
            notes=self.notes,
            undetermined=self.undetermined,
            redundant=self.redundant,
        )


def _opened(prior: Plausible, chosen: np.ndarray) -> Plausible | None:
    """A plausible range that no longer ends for these entries."""
    if not np.any(chosen):
        return prior
    if np.all(chosen):
        return None
    return Plausible(np.where(chosen, 1e-280, prior.lower), np.where(chosen, 1e280, prior.upper))


_values = jax.jit(values_of, static_argnums=0)


@eqx.filter_jit
@jax.value_and_grad
def _negative_log_prior(unconstrained, priors: list[Any], slots: tuple[Slot, ...]):
    values = values_of(slots, unconstrained)
    terms = [jnp.sum(prior(value)) for prior, value in zip(priors, values, strict=True) if prior is not None]
    return -jnp.sum(jnp.stack(terms))


def _finite(values: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isfinite(values), values, otherwise)


def _kept_inside(value: np.ndarray, each: Learned) -> np.ndarray:
    low = -np.inf if each.lower is None else each.lower
    high = np.inf if each.upper is None else each.upper
    return np.asarray(np.clip(value, low, high))


def report_failure(found: FitResult, throw: bool, stacklevel: int) -> None:
    """Raise if inference failed, warn if it or the search did not converge or was left with nothing to learn.

    Without `throw`, nothing.
    """
    if not throw:
        return
    if found.inference_status.failed:
        raise InferenceError(found)
    if not found.status.ok:
        sentence = SEARCHES.get(found.status, found.status.sentence)
        warnings.warn(f"{found.status.name.lower()}: {sentence}", ConvergenceWarning, stacklevel=stacklevel + 1)
    if found.notes:
        warnings.warn(" ".join(found.notes.values()), FitWarning, stacklevel=stacklevel + 1)
    if not found.inference_status.ok and not found.residual <= _SETTLED:
        ended = found.inference_status.name.lower()
        message = f"{ended} (residual {found.residual:.1e}): {inference_sentence(found)}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel + 1)
