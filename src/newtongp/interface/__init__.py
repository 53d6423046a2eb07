"""The methods of results, which call rooms above `results`."""

from .results import attach_all

__all__ = ["attach_all"]
