"""How inference and the search for hyperparameters ended, in words."""

from .fit_result import FitResult
from .result import Result
from .status import Status

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
