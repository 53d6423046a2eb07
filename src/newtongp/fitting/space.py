"""The learned hyperparameters as one vector of unconstrained ("free") numbers: bounds, units, priors and starts.

`fit` searches over free numbers (`parameters/constraints.py`), with all rows or in batches; this module serves both.
"""

import copy
import functools
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .._runtime.double import in_double
from ..model import Model
from ..parameters.priors import Plausible
from ..results.fit_result import FitResult
from ..results.result import InferenceError, Result
from ..results.status import ConvergenceWarning, FitWarning, Status
from ..results.wording import SEARCHES, inference_sentence
from .initial_values import Scales, guess, plausible, unit_of
from .learned import Learned, Slot, choose, left_alone, redundant, tied_names
from .penalties import Penalty, values_at

_LARGEST_UNCONSTRAINED = 60.0
"""The largest distance of a logarithm from its start."""
_RELEASED = 14.0
"""The same without a weak prior: a factor of a million."""
_SETTLED = 1e-6
"""The default tolerance of `infer`: with a residual below it there is no warning."""
_NO_SLOPE = 1e-14
"""A slope, relative to the energy, that is only rounding."""
_UNSEEN = (
    "Check that the model uses it, in operations that JAX can differentiate (not float(), NumPy functions, rounding, "
    "comparisons or stop_gradient)."
)
_RATIOS = (0.15, 0.5, 2.0, 6.0)
"""Lengthscales to try before the search, as multiples of the first guess."""


_known_slots: dict[tuple[Slot, ...], tuple[Slot, ...]] = {}
"""The slots of earlier fits, a few per model."""


class Space:
    """The free numbers of all learned parameters, with their bounds and the prior densities of the values."""

    def __init__(self, model: Model, scales: Scales, specifications: Mapping[str, Any] | None, weak_priors: bool):
        self.learned = learned = choose(model, specifications)
        self.notes = left_alone(model, specifications)
        """Notes for the user, by the parameter that they are about."""
        self.redundant = redundant(model, specifications)
        """Variances that are not learned, each with one that it is multiplied by."""
        self.guessed = guess(model, scales, learned)
        """Guesses made from the data."""
        has_own = not getattr(model.prior, "by_name", False)
        self.own = [
            item.start if has_own or item.given_start or item.slot.paths[0][0] == "likelihood" else value
            for item, value in zip(learned, self.guessed, strict=True)
        ]
        """The model's own values."""
        self.priors = [
            item.prior if item.prior is not None or not weak_priors else plausible(model, scales, item, start)
            for item, start in zip(learned, self.guessed, strict=True)
        ]
        self.weak = [prior is not None and item.prior is None for prior, item in zip(self.priors, learned, strict=True)]
        """Which priors were not given by the user."""
        self.undetermined: list[str] = []
        """Parameters that only a weak prior determines, as far as known."""
        self.held = np.zeros(0, dtype=bool)
        """Which free numbers weak priors pull at, where only they determine them."""
        slots = tuple(item.slot for item in learned)
        # Programs are found by the slots they are for: those of earlier fits are compared faster than equal ones.
        self.slots: tuple[Slot, ...] = _known_slots.setdefault(slots, slots)
        self.size = sum(slot.size for slot in self.slots)
        parts = [np.zeros(item.slot.size) + np.ravel(unit_of(model, scales, item)) for item in learned]
        self.units = np.concatenate(parts) if parts else np.zeros(0)
        margins = [
            np.where(slot.constraint.logarithms(slot.shape), _LARGEST_UNCONSTRAINED, np.inf) for slot in self.slots
        ]
        self.margins = np.concatenate(margins) if margins else np.zeros(0)
        """How far from its start a search may take each free number."""
        parts = [np.broadcast_to(slot.constraint.limits(slot.shape)[1], (slot.size,)) for slot in self.slots]
        self.limits = np.concatenate(parts) if parts else np.zeros(0)
        """The largest value of each free number, infinite for most."""

    def free_of(self, values: list[np.ndarray]) -> np.ndarray:
        """From values to free numbers."""
        parts = [slot.constraint.unconstrain(value) for slot, value in zip(self.slots, values, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def values_at(self, unconstrained: np.ndarray) -> list[np.ndarray]:
        """From free numbers to values, within the user's bounds."""
        values = values_at(self.slots, unconstrained)
        return [_clip(value, item) for value, item in zip(values, self.learned, strict=True)]

    def bounds(self, start: np.ndarray) -> list[tuple[float, float]]:
        """The lower and upper bound of every free number."""
        bounds, begin = [], 0
        for item in self.learned:
            size, constraint = item.slot.size, item.slot.constraint
            here = start[begin : begin + size]
            margin = self.margins[begin : begin + size]
            least, largest = constraint.limits(item.slot.shape)
            low, high = np.maximum(here - margin, least), np.minimum(here + margin, largest)
            if item.lower is not None:
                low = np.maximum(low, _finite(constraint.unconstrain(item.lower), -np.inf))
            if item.upper is not None:
                high = np.minimum(high, _finite(constraint.unconstrain(item.upper), np.inf))
            bounds += list(zip(low.tolist(), high.tolist(), strict=True))
            begin += size
        return bounds

    @in_double
    def penalty(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log prior density of the values, and its gradient in the free numbers."""
        return self._penalty(unconstrained)

    @in_double
    def pull(self, unconstrained: np.ndarray) -> tuple[float, np.ndarray]:
        """The part of the penalty that is due to weak priors, and its gradient."""
        return self._pull(unconstrained)

    @functools.cached_property
    def _penalty(self) -> Penalty:
        return Penalty(self.priors, self.slots)

    @functools.cached_property
    def _pull(self) -> Penalty:
        priors = [prior if weak else None for prior, weak in zip(self.priors, self.weak, strict=True)]
        return Penalty(priors, self.slots)

    def release(self, chosen: np.ndarray) -> "Space":
        """The same space without weak priors on these free numbers, and with narrower bounds for them."""
        other = copy.copy(self)
        for name in ("_penalty", "_pull"):  # of other priors
            vars(other).pop(name, None)
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
        """The user's specifications, for the mark of a checkpoint: numbers and prior densities."""
        return [(item.start, item.lower, item.upper) for item in self.learned], self.priors

    @property
    def middle(self) -> np.ndarray:
        """The guesses as free numbers."""
        return self.free_of(self.guessed)

    def starts(self) -> Iterator[np.ndarray]:
        """Points to try before the search: the model's own values, the guesses, and these with other lengthscales.

        A prior whose kernel was given by name has no values of its own.
        """
        yield self.free_of(self.own)
        yield self.middle
        for ratio in _RATIOS:
            moved = [
                _clip(value * ratio, item) if item.unit == "x" and not item.given_start else value
                for item, value in zip(self.learned, self.guessed, strict=True)
            ]
            yield self.free_of(moved)

    def at_bound(self, unconstrained: np.ndarray) -> list[str]:
        """The names of parameters at a bound that the user has set."""
        names, begin = [], 0
        for item in self.learned:
            here = unconstrained[begin : begin + item.slot.size]
            for bound in (item.lower, item.upper):
                if bound is not None and np.any(np.abs(item.slot.constraint.unconstrain(bound) - here) < 1e-6):
                    names.append(item.slot.name)
            begin += item.slot.size
        return list(dict.fromkeys(names))

    def names_of(self, chosen: np.ndarray) -> list[str]:
        """The names of the parameters to which these free numbers belong."""
        parts = np.split(chosen, np.cumsum([slot.size for slot in self.slots])[:-1])
        return [slot.name for slot, part in zip(self.slots, parts, strict=True) if np.any(part)]

    def note_undetermined(self, held: np.ndarray) -> None:
        """Note which free numbers only weak priors determine."""
        self.held, self.undetermined = held, self.names_of(held)

    def without_influence(self, evaluations: list[tuple[float, np.ndarray]]) -> list[str]:
        """Parameters whose slope was zero, up to rounding, wherever it was computed."""
        known = [(energy, slope) for energy, slope in evaluations if np.isfinite(energy + np.sum(slope))]
        slopes = [self.units * np.abs(slope) / (1.0 + abs(energy)) for energy, slope in known]
        if not slopes or self.size == 0:
            return []
        moving = self.names_of(np.max(slopes, axis=0) > _NO_SLOPE)
        return [slot.name for slot in self.slots if slot.name not in moving]

    def note_without_influence(self, evaluations: list[tuple[float, np.ndarray]], observed: np.ndarray) -> None:
        """Add notes on those parameters, given the rows of y that are observed."""
        still = self.without_influence(evaluations)
        if observed.shape[0] == 0:
            self.notes["fit"] = (
                "Nothing was learned: y is missing (NaN) in every row, so hyperparameters have their starting values. "
                "Check that y was read as intended."
            )
        elif observed.shape[0] > 1 and np.all(observed == observed[0]):
            return  # it is y that has none, and the summary says so
        elif len(still) < len(self.slots):
            for name in still:
                self.notes[name] = (
                    f"{name} has no influence on the energy: its gradient was zero wherever it was computed, so the "
                    f"data do not determine it. {_UNSEEN} Or make it Fixed()."
                )
        elif still:
            self.notes["fit"] = (
                f"Nothing was learned: the gradient of the energy in {', '.join(still)} was zero wherever it was "
                f"computed, so these are their starting values. {_UNSEEN}"
            )

    def finish(
        self,
        unconstrained: np.ndarray,
        result: Result,
        status: Status,
        trace: list[float],
        evaluations: int,
        started: float,
        standard_errors: Any = None,
        spread: np.ndarray | None = None,
        profiles: Any = None,
    ) -> FitResult:
        """The result of `fit`, from the result of inference at these free numbers."""
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
            spread=spread,
            redundant=self.redundant,
            profiles=profiles,
        )


def _opened(prior: Plausible, chosen: np.ndarray) -> Plausible | None:
    """A plausible range without limits for the chosen entries."""
    if not np.any(chosen):
        return prior
    if np.all(chosen):
        return None
    return Plausible(np.where(chosen, 1e-280, prior.lower), np.where(chosen, 1e280, prior.upper))


def _finite(values: np.ndarray, otherwise: float) -> np.ndarray:
    return np.where(np.isfinite(values), values, otherwise)


def _clip(value: np.ndarray, item: Learned) -> np.ndarray:
    return np.asarray(np.clip(value, *item.bounds))


def report_failure(result: FitResult, throw: bool, stacklevel: int) -> None:
    """Raise if inference failed; warn if inference or the search did not converge, and of notes. Only with `throw`."""
    if not throw:
        return
    if result.inference_status.failed:
        raise InferenceError(result)
    if not result.status.ok:
        sentence = SEARCHES.get(result.status, result.status.sentence)
        warnings.warn(f"{result.status.name.lower()}: {sentence}", ConvergenceWarning, stacklevel=stacklevel + 1)
    if result.notes:
        warnings.warn(" ".join(result.notes.values()), FitWarning, stacklevel=stacklevel + 1)
    if not result.inference_status.ok and not result.residual <= _SETTLED:
        ended = result.inference_status.name.lower()
        message = f"{ended} (residual {result.residual:.1e}): {inference_sentence(result)}"
        warnings.warn(message, ConvergenceWarning, stacklevel=stacklevel + 1)
