"""What results offer to their users: methods that call rooms above those in which results are made."""

from .results import attach_all

__all__ = ["attach_all"]
