"""Errors about files that cannot be loaded."""

from typing import Any


class FileFormatError(ValueError):
    """A file cannot be loaded: it is damaged, of another kind, or needs a class that was not given."""


def require(holds: Any, otherwise: str) -> None:
    """Raise ValueError with this text unless the condition holds."""
    if not holds:
        raise ValueError(otherwise)


def short(value: Any) -> str:
    """A short text for any value, on one line.

    >>> short("x" * 100)[-5:]
    'xx...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
