"""Model checks: calibration, cross-validation, comparison of models, and summaries of results."""

from .calibration import LEVELS, Calibration, calibration
from .comparison import Comparison, compare
from .cross_validation import CrossValidation, cross_validate

__all__ = [
    "LEVELS",
    "Calibration",
    "Comparison",
    "CrossValidation",
    "calibration",
    "compare",
    "cross_validate",
]
