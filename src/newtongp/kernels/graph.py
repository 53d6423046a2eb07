"""Kernels over the nodes of a graph, such as districts with common borders."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..parameters.constraints import Between, Positive, learned, never_learned
from ..parameters.penalised import PCMixing
from ..validation.arguments import whole
from ..validation.numbers import parameter
from .adjacency import read_edges, scaled_structure
from .base import Kernel, check_one_column
from .category import check_codes

KINDS = ("bym2", "icar", "leroux")


class Graph(Kernel):
    """Effects of the nodes of a graph, similar for neighbours, over a column of node numbers 0, 1, …

    With R the Laplacian of the graph (the precision of the intrinsic autoregression, ICAR) and Σ = R⁻ its generalised
    inverse, the covariance of all nodes is

    | kind | covariance | |
    |---|---|---|
    | "icar" | variance · Σ | smooth: f sums to zero |
    | "bym2" | variance · ((1 − phi) I + phi Σ) | a share phi of the variance is smooth (Riebler et al., 2016) |
    | "leroux" | variance · ((1 − rho) I + rho R)⁻¹ | 0 is independent, 1 is the ICAR (Leroux et al., 2000) |

    R is scaled in every connected component so that the geometric mean of the diagonal of Σ is 1. `variance` then means
    the same on every graph and is that of a typical node, except with "leroux", where it is so for rho = 0 only. The
    smooth part sums to zero in every component, so that it does not compete with an intercept; the sum of all nodes is
    free in "leroux". A node without neighbours is a component of its own, in which R = Σ = 1: its effect is independent
    with this variance in all kinds. Constraints and islands are those of R-INLA with `scale.model = TRUE` and
    `adjust.for.con.comp = TRUE`.

    >>> path = Graph([(0, 1), (1, 2)], kind="icar")
    >>> [round(float(path.evaluate(jnp.zeros(1), jnp.full(1, node))), 4) for node in (0.0, 1.0, 2.0)]
    [1.3572, -0.2714, -1.0858]
    """

    kind: str = eqx.field(static=True)
    nodes: int = eqx.field(static=True)
    """The number of nodes."""
    pairs: Any = never_learned()
    """The edges, an (E, 2) array of nodes, the smaller one first."""
    weights: Any = never_learned()
    """The weights of the edges."""
    structure: Any = never_learned()
    """Σ."""
    eigenvalues: Any = never_learned()
    """The eigenvalues of Σ, one per node."""
    vectors: Any = never_learned()
    """The eigenvectors of Σ, where the kind needs them."""
    variance: Any = learned(Positive(), unit="f2")
    phi: Any = learned(Between(0.0, 1.0))
    rho: Any = learned(Between(0.0, 1.0))

    def __init__(
        self,
        adjacency: Any,
        kind: str = "bym2",
        variance: Any = 1.0,
        phi: Any = None,
        rho: Any = None,
        nodes: int | None = None,
    ):
        """`adjacency` says which nodes are neighbours.

        It is an array of pairs of node numbers, a symmetric matrix of weights (dense or sparse), a dict of lists of
        neighbours, or an object of libpysal. `nodes` is the number of nodes, for pairs that leave out the last ones.
        `phi` and `rho` are 0.5 if they are not given.
        """
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
        edges = read_edges(adjacency, None if nodes is None else whole(nodes, "nodes"))
        found = scaled_structure(edges)
        self.kind, self.nodes = kind, edges.count
        self.pairs, self.weights = edges.pairs, edges.weights
        self.structure, self.eigenvalues = found.covariance, found.eigenvalues
        self.vectors = found.vectors if kind == "leroux" else None
        self.variance = parameter(variance, "variance", lower=0.0)
        self.phi, self.rho = _share(phi, "phi", kind, "bym2"), _share(rho, "rho", kind, "leroux")

    def covariance(self) -> Float[Array, "M M"]:
        """The covariance of the effects of all nodes."""
        if self.kind == "icar":
            return self.variance * self.structure
        if self.kind == "bym2":
            return self.variance * ((1.0 - self.phi) * jnp.eye(self.nodes) + self.phi * self.structure)
        inside = self.eigenvalues > 0.0
        precisions = jnp.where(inside, 1.0 / jnp.where(inside, self.eigenvalues, 1.0), 0.0)
        spread = self.variance / ((1.0 - self.rho) + self.rho * precisions)
        return (self.vectors * spread[None, :]) @ self.vectors.T

    def evaluate(self, x1, x2):
        first, second = (jnp.asarray(x[0]).astype(int) for x in (x1, x2))
        if self.kind == "leroux":
            return self.covariance()[first, second]
        smooth = self.variance * jnp.asarray(self.structure)[first, second]
        if self.kind == "icar":
            return smooth
        return self.phi * smooth + (1.0 - self.phi) * jnp.where(first == second, self.variance, 0.0)

    def phi_prior(self, bound: Any = 0.5, probability: Any = 2 / 3) -> PCMixing:
        """The penalised complexity prior of phi on this graph, P(phi < bound) = probability, for `Free(prior=...)`."""
        if self.kind != "bym2":
            raise ValueError(f'phi_prior is for the kind "bym2", but kind is "{self.kind}", which has no phi')
        return PCMixing(self.eigenvalues, bound, probability)

    def check_inputs(self, dimension: int) -> None:
        """Raise ValueError unless x has one column."""
        check_one_column("Graph", dimension)

    def check_values(self, x: np.ndarray) -> None:
        """Raise ValueError unless all inputs are nodes of the graph."""
        check_codes("Graph", x)
        codes = x[:, 0]
        outside = np.flatnonzero((codes < 0) | (codes >= self.nodes))
        if outside.size:
            raise ValueError(
                f"Graph has the nodes 0 to {self.nodes - 1}, but row {outside[0]} of its column is "
                f"{codes[outside[0]]:g}: number the nodes from 0, in the order of the adjacency (or give nodes=, if "
                "the last ones have no neighbours)"
            )


def _share(value: Any, name: str, kind: str, of: str) -> Any:
    """A parameter between 0 and 1 that only one kind has."""
    if kind != of:
        if value is not None:
            raise ValueError(f'{name} is a parameter of the kind "{of}", but kind is "{kind}": leave {name} out')
        return None
    return parameter(0.5 if value is None else value, name, lower=0.0, upper=1.0)
