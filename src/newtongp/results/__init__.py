"""What inference returns: `Result`, `FitResult` and `Status`."""

from .fit_result import FitResult
from .result import History, InferenceError, Result
from .status import ConvergenceWarning, FitWarning, Status

__all__ = ["ConvergenceWarning", "FitResult", "FitWarning", "History", "InferenceError", "Result", "Status"]
