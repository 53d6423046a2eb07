"""Kernels: the covariance functions of Gaussian process priors.

They add (`+`), multiply (`*`), scale (`2.0 * k`) and restrict to columns of x (`k.on(0, 2)`). Kernels of one input with
a state space form have `blocks()`, linear Gaussian Markov processes that sum to f.
"""

from typing import TYPE_CHECKING

from .._runtime.lazy import on_demand
from .base import Active, Constant, Kernel, Product, Scaled, Sum, diagonal, gram
from .multilatent import Independent, diagonals, grams, latent_kernels, num_latents
from .statespace import Block, LinearSDE
from .stationary import RBF, Matern12, Matern32, Matern52, Matern72, RationalQuadratic, Stationary

if TYPE_CHECKING:
    from .brownian import Brownian, IntegratedBrownian, IntegratedMatern12
    from .category import Category
    from .globe import Chordal, GreatCircle
    from .graph import Graph
    from .periodic import Cosine, Periodic
    from .simple import Linear, White
    from .spherical import Spherical
    from .walk import SeasonalWalk, Walk

__getattr__, __dir__ = on_demand(
    __name__,
    {
        "brownian": "Brownian IntegratedBrownian IntegratedMatern12",
        "category": "Category",
        "globe": "Chordal GreatCircle",
        "graph": "Graph",
        "periodic": "Cosine Periodic",
        "simple": "Linear White",
        "spherical": "Spherical",
        "walk": "SeasonalWalk Walk",
    },
)

__all__ = [
    "RBF",
    "Active",
    "Block",
    "Brownian",
    "Category",
    "Chordal",
    "Constant",
    "Cosine",
    "Graph",
    "GreatCircle",
    "Independent",
    "IntegratedBrownian",
    "IntegratedMatern12",
    "Kernel",
    "Linear",
    "LinearSDE",
    "Matern12",
    "Matern32",
    "Matern52",
    "Matern72",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "SeasonalWalk",
    "Spherical",
    "Stationary",
    "Sum",
    "Walk",
    "White",
    "diagonal",
    "diagonals",
    "gram",
    "grams",
    "latent_kernels",
    "num_latents",
]
