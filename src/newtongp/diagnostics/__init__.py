"""How good a model is: calibration of its predictions, cross-validation, and comparison of several models."""

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
