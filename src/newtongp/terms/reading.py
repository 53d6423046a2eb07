"""Terms as users give them: one term, a sum of terms, or a formula."""

from typing import Any

from .base import Term, Terms


def as_terms(value: Any) -> Terms:
    """A term, a sum of terms or a formula as a sum; ValueError for anything else."""
    if isinstance(value, Term):
        return Terms((value,))
    if isinstance(value, Terms):
        return value
    if isinstance(value, str):
        from .formula import from_formula

        value = from_formula(value)
    if isinstance(getattr(value, "terms", None), Terms):  # a formula
        return value.terms
    raise ValueError(f"expected a term such as terms.Linear('age'), a sum of terms, or a formula, got {value!r}")
