"""Sentences on how inference and the search for hyperparameters ended."""

from .fit_result import FitResult
from .result import Result
from .status import Status

SEARCHES = {
    Status.CONVERGED: "The search converged: no change of the hyperparameters lowers the energy further.",
    Status.MAX_STEPS: (
        "The search for hyperparameters reached max_steps before it converged: raise max_steps, or continue with "
        "fit(result.model, ...)."
    ),
    Status.STEP_TOO_SMALL: (
        "The search for hyperparameters got stuck before it converged: energies and gradients disagree. If inference "
        "did not converge on the way, raise inference_steps, or use a cubature with more nodes or another method. If a "
        "noise variance is many orders of magnitude below that of f, rounding dominates: fix it, or give it a lower "
        "bound. Otherwise try restarts."
    ),
    Status.NON_FINITE: (
        "The search for hyperparameters could not begin at its start: the best point so far is returned. Give "
        "Free(start=...) to the parameters that matter, or try restarts."
    ),
    Status.INTERRUPTED: (
        "The search for hyperparameters was interrupted: the best point so far is returned. Continue with "
        "fit(result.model, ...), or use checkpoint."
    ),
}


def in_words(status: str) -> str:
    """The name of a status without underscores."""
    return status.replace("_", " ")


def inference_status(result: Result) -> Status:
    """How inference ended, regardless of the search for hyperparameters."""
    return result.inference_status if isinstance(result, FitResult) else result.status


def inference_sentence(result: Result) -> str:
    """How inference ended, and what to do. Within a fit, its number of steps is called inference_steps."""
    status = inference_status(result)
    if isinstance(result, FitResult) and status is Status.MAX_STEPS:
        return "Inference with the learned hyperparameters reached the maximum number of steps: raise inference_steps."
    return status.sentence
