"""Model checks: calibration, cross-validation, comparison of models, and summaries of results."""

from typing import TYPE_CHECKING

from .._runtime.lazy import on_demand
from .calibration import LEVELS, Calibration, calibration

if TYPE_CHECKING:
    from .comparison import Comparison, compare
    from .cross_validation import CrossValidation, cross_validate

__getattr__, __dir__ = on_demand(
    __name__, {"comparison": "Comparison compare", "cross_validation": "CrossValidation cross_validate"}
)

__all__ = [
    "LEVELS",
    "Calibration",
    "Comparison",
    "CrossValidation",
    "calibration",
    "compare",
    "cross_validate",
]
