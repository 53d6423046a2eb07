"""Kernels: the covariance functions of Gaussian process priors.

They add (`+`), multiply (`*`), scale (`2.0 * k`) and restrict to columns of x (`k.on(0, 2)`). Kernels of one input with
a state space form have `blocks()`, the linear Gaussian Markov processes whose sum f is.
"""

from .base import Active, Kernel, Product, Scaled, Sum, diagonal, gram
from .brownian import Brownian, IntegratedBrownian
from .multilatent import Independent, diagonals, grams, latent_kernels, num_latents
from .periodic import Cosine, Periodic
from .simple import Constant, Linear, White
from .statespace import Block, LinearSDE
from .stationary import RBF, Matern12, Matern32, Matern52, Matern72, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "Active",
    "Block",
    "Brownian",
    "Constant",
    "Cosine",
    "Independent",
    "IntegratedBrownian",
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
    "Stationary",
    "Sum",
    "White",
    "diagonal",
    "diagonals",
    "gram",
    "grams",
    "latent_kernels",
    "num_latents",
]
