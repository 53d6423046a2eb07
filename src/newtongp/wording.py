"""Numbers and endings in words, as summaries and warnings say them."""

from typing import Any

import numpy as np

from .fitted import FitResult
from .parameters import Plausible
from .results import Result, Status

SEARCHES = {
    Status.CONVERGED: "The search converged: no hyperparameter can be moved to lower the energy any further.",
    Status.MAX_STEPS: (
        "The search for hyperparameters ran out of iterations before it converged: raise max_steps, or go on with "
        "fit(result.model, ...)."
    ),
    Status.STEP_TOO_SMALL: (
        "The search for hyperparameters got stuck before it converged: energies and gradients disagree. If inference "
        "did not converge on the way, raise inference_steps, or use a cubature with more nodes or another method. If a "
        "noise variance is many orders of magnitude below that of f, rounding decides: fix it, or give it a lower "
        "bound. Otherwise try restarts."
    ),
    Status.NON_FINITE: (
        "The search for hyperparameters could not start where it was to: the best that was seen is kept. Give "
        "Free(start=...) to the parameters that matter, or try restarts."
    ),
    Status.INTERRUPTED: (
        "The search for hyperparameters was interrupted: the best that was seen is kept. Go on with fit(result.model, "
        "...), or use checkpoint."
    ),
}


def in_words(status: str) -> str:
    """The name of a status without underscores."""
    return status.replace("_", " ")


def inference_status(result: Result) -> Status:
    """How inference ended, whatever became of a search for hyperparameters."""
    return result.inference_status if isinstance(result, FitResult) else result.status


def inference_sentence(result: Result) -> str:
    """How inference ended, and what to do about it: within a fit, the number of its steps has a name of its own."""
    status = inference_status(result)
    if isinstance(result, FitResult) and status is Status.MAX_STEPS:
        return "Inference with the learned hyperparameters ran out of steps: raise inference_steps."
    return status.sentence


def range_words(prior: Plausible) -> str:
    """The range of values outside which a weak prior acts."""
    if np.ptp(prior.lower) == 0.0 and np.ptp(prior.upper) == 0.0:
        return f"{number(np.min(prior.lower))} to {number(np.max(prior.upper))}"
    return f"{shown(prior.lower)} to {shown(prior.upper)}"


_FEW = 6


def shown(value: Any, otherwise: str = "not finite") -> str:
    """A number, a few, or the range of many."""
    numbers = np.ravel(np.array(value, dtype=float))
    if numbers.size == 1 or (np.size(numbers) <= _FEW and np.ndim(value) < 2):
        words = [number(each) if np.isfinite(each) else otherwise for each in numbers]
        return words[0] if len(set(words)) == 1 and not np.all(np.isfinite(numbers)) else ", ".join(words)
    shape = " × ".join(str(size) for size in np.shape(value))
    finite = numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return otherwise
    return f"{shape} values, {number(finite.min())} to {number(finite.max())}"


def number(value: Any) -> str:
    """Four digits of a number."""
    return f"{float(value):.4g}"
