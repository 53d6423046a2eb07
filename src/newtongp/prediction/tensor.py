"""Integrals over one or two latents by trapezoidal rules, for smooth integrands.

The error of the trapezoidal rule with a normal weight falls exponentially with 1/spacing, as long as the integrand has
no feature much narrower than the spacing. The result is accepted if two spacings agree; otherwise adaptive integrals
are used.
"""

import functools

import numpy as np

SPACINGS = (0.5, 0.37, 0.2)
_REACH = 8.5


@functools.lru_cache(maxsize=16)
def trapezoid(spacing: float, dimension: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nodes (dimension, S), weights (S,) for the standard normal, and which nodes are at the rim."""
    half = np.arange(spacing, _REACH, spacing)
    line = np.concatenate([-half[::-1], [0.0], half])
    nodes = np.stack([axis.ravel() for axis in np.meshgrid(*[line] * dimension, indexing="ij")])
    weights = np.exp(-0.5 * np.sum(nodes**2, axis=0))
    return nodes, weights / np.sum(weights), np.any(np.abs(nodes) == half[-1], axis=0)


_WIDEST, _HALVINGS = 0.5, 3
_FURTHEST = 9.5
"""Beyond it a normal variable has a probability of 2e-21."""


@functools.cache
def halved_trapezoids() -> list[tuple[np.ndarray, np.ndarray]]:
    """The nodes (1, S) that each halving of the spacing adds, and their weights (S,) for the standard normal.

    A rule is half the one before, plus what the new nodes add.
    """
    count = int(_FURTHEST / _WIDEST)
    rules = [(_WIDEST, _WIDEST * np.arange(-count, count + 1))]
    for halving in range(1, _HALVINGS + 1):
        spacing = _WIDEST / 2**halving
        most = int(_FURTHEST / spacing)
        rules.append((spacing, spacing * np.arange(-most + (most + 1) % 2, most + 1, 2)))
    return [(line[None], spacing * np.exp(-0.5 * line**2) / np.sqrt(2.0 * np.pi)) for spacing, line in rules]
