"""Terms of additive models, over the columns of a table: fixed effects, groups, smooth functions, seasons, areas.

>>> import newtongp as ng
>>> terms = ng.terms.Linear("age", "treatment") + ng.terms.Group("clinic") + ng.terms.Smooth("day")
>>> print(terms)
linear(age, treatment) + group(clinic) + smooth(day)
"""

from typing import TYPE_CHECKING

from .._runtime.lazy import on_demand

if TYPE_CHECKING:
    from .base import Term, Terms
    from .features import Factor, Interaction, Numeric, Polynomial, Spline
    from .formula import Formula, from_formula
    from .group import Group
    from .linear import Linear, Offset
    from .smooth import Area, Smooth
    from .times import RandomWalk, Season, Trend

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "base": "Term Terms",
        "features": "Factor Interaction Numeric Polynomial Spline",
        "formula": "Formula from_formula",
        "group": "Group",
        "linear": "Linear Offset",
        "smooth": "Area Smooth",
        "times": "RandomWalk Season Trend",
    },
)

__all__ = [
    "Area",
    "Factor",
    "Formula",
    "Group",
    "Interaction",
    "Linear",
    "Numeric",
    "Offset",
    "Polynomial",
    "RandomWalk",
    "Season",
    "Smooth",
    "Spline",
    "Term",
    "Terms",
    "Trend",
    "from_formula",
]
