"""Hyperparameter learning: `fit`, with all rows at once (`whole.py`) or some at a time (`batches.py`)."""

from .whole import fit

__all__ = ["fit"]
