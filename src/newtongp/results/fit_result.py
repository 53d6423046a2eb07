"""The result of `fit`: a result of inference, with the learned hyperparameters."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..parameters.names import hyperparameters
from .profiles import are_needed
from .result import Result
from .status import Status

if TYPE_CHECKING:
    from ..interface.results import FitResultMethods


_lazy = threading.RLock()
"""Held while attributes of any result are computed, so that no two threads do that."""


class FitResult(Result):
    """A `Result` with learned hyperparameters: `model` holds them.

    `status` says how the search ended, and `inference_status` how inference with the learned values ended. `learned`
    holds the learned values by name, `standard_errors` their approximate standard errors from the curvature of the
    energy (infinite for values that the data do not determine; after a quick search they are computed when they are
    first used), and `fit_history` the lowest energy after each iteration of the search (including `penalty`, minus the
    log prior density of the values). `tied` maps parameters to
    those whose value they share, `redundant` maps those that were not learned because only they and another together
    are determined (their product, or a threshold minus an intercept) to the other, and `notes` lists what else was not
    learned and why. `covariance` and `joint_covariance` are joint covariances (with the curvature of weak priors),
    `undetermined` names values that only a weak prior determines, and `summary()` shows all of this. `profiles` has
    the profiles of positive values, if the standard error of any is larger than the value, by name, (2, n): values, and
    how much the energy rises there with all others at their best. They are computed when first used, if that takes no
    more than a few seconds.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian())
    >>> result = ng.fit(model, [0.0, 1.0, 2.0, 3.0], [0.1, 1.2, 0.8, -0.2], parameters={"lengthscale": ng.Fixed()})
    >>> sorted(result.learned), float(result.parameters["kernel.lengthscale"])
    (['kernel.variance', 'likelihood.variance'], 1.0)
    """

    standard_errors: dict[str, np.ndarray]
    spread: np.ndarray | None
    """The covariance of the free numbers, if the curvature is known."""
    profiles: dict[str, np.ndarray]

    def __init__(
        self,
        result: Result,
        *,
        status: Status,
        learned: dict[str, np.ndarray],
        priors: dict[str, Any],
        standard_errors: dict[str, np.ndarray] | Callable[[], tuple[dict[str, np.ndarray], np.ndarray | None]],
        at_bound: list[str],
        penalty: float,
        fit_history: np.ndarray,
        evaluations: int,
        seconds: float,
        tied: dict[str, str] | None = None,
        notes: dict[str, str] | None = None,
        undetermined: list[str] | None = None,
        spread: np.ndarray | None = None,
        redundant: dict[str, str] | None = None,
        profiles: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    ):
        self.__dict__.update(result.__dict__)
        self.inference_status = result.status
        self.status = status
        self.learned = learned
        self.priors = priors
        self.at_bound = at_bound
        self.penalty = penalty
        self.fit_history = fit_history
        self.evaluations = evaluations
        self.seconds = seconds
        self.tied = {} if tied is None else tied
        self.notes = {} if notes is None else notes
        self.undetermined = [] if undetermined is None else undetermined
        self.redundant = {} if redundant is None else redundant
        self._find_profiles = profiles
        if callable(standard_errors):
            self._find_errors = standard_errors
        else:
            self._set_errors(standard_errors, spread)

    def _set_errors(self, errors: dict[str, np.ndarray], spread: np.ndarray | None) -> None:
        if not are_needed(self.learned, errors):
            self._find_profiles = None  # which holds on to what was evaluated
        self.standard_errors, self.spread = errors, spread

    def __getattr__(self, name: str) -> Any:
        own = vars(self)
        with _lazy:
            # If it is interrupted, it is computed by the next use.
            if name in ("standard_errors", "spread") and "_find_errors" in own:
                self._set_errors(*self._find_errors())
                del self._find_errors
            elif name == "profiles" and name not in own:
                errors, find = self.standard_errors, own.get("_find_profiles")
                self.profiles = {} if find is None else find(errors)
                self._find_profiles = None
            if name not in own:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return own[name]

    def __repr__(self) -> str:
        return (
            f"FitResult: {self.status.name.lower()} after {len(self.fit_history)} iteration(s) and {self.evaluations} "
            f"evaluation(s), energy {self.energy:.6g}"
        )

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """All hyperparameters by name, learned or not."""
        return {parameter.name: parameter.value for parameter in hyperparameters(self.model)}

    if TYPE_CHECKING:
        covariance = FitResultMethods.covariance
        unconstrained_covariance = FitResultMethods.unconstrained_covariance
        joint_covariance = FitResultMethods.joint_covariance
