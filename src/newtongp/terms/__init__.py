"""Terms of additive models, over the columns of a table: fixed effects, groups, smooth functions, seasons, areas.

>>> import newtongp as ng
>>> terms = ng.terms.Linear("age", "treatment") + ng.terms.Group("clinic") + ng.terms.Smooth("day")
>>> print(terms)
linear(age, treatment) + group(clinic) + smooth(day)
"""

from .base import Term, Terms
from .features import Factor, Interaction, Numeric, Polynomial, Spline
from .formula import Formula, from_formula
from .group import Group
from .linear import Linear, Offset
from .smooth import Area, RandomWalk, Season, Smooth, Trend

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
