"""Errors about files that cannot be loaded."""

from typing import Any


class FileFormatError(ValueError):
    """A file cannot be loaded: it is damaged, of another kind, or needs a class that was not given."""


def require(holds: Any, otherwise: str) -> None:
    """Raise ValueError with this text unless the condition holds."""
    if not holds:
        raise ValueError(otherwise)
