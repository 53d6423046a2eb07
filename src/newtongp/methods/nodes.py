"""One row's log density as seen from nodes. Latents that enter a Gaussian likelihood linearly need none.

Given the other latents g, p(y | f) = N(y | A(g) l + b(g), Σ(g)) is integrated over the linear ones in closed form, so
that nodes are only needed for g: twenty in place of four hundred for a mean and a log variance. All of this is in the
order (others, linear), in which f = m + Lz has g depend on its own part of z alone.

A likelihood that depends on fewer linear combinations Af of its latents than there are latents, as softmax depends on
differences, needs nodes only for these: everything is then about Af, with mean Am and covariance ACAᵀ, and derivatives
in m are Aᵀ∇ and Aᵀ∇²A.

A method that names a rule gets that rule for all latents.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..likelihoods.base import (
    Likelihood,
    row_log_prob,
    row_log_prob_at_nodes,
    row_log_prob_derivatives,
    row_peak,
)
from ..likelihoods.weighted import unweighted
from ..numerics.cubature import (
    Adaptive,
    Cubature,
    GaussHermite,
    PartwiseRule,
    PointRule,
    QuasiRandom,
    SphericalRule,
    Unscented,
    default_cubature,
    has_negative_weights,
)
from ..numerics.gaussian import Gaussian
from ..numerics.small import LOG_2PI, small_root, symmetrise
from .linear_form import linear_form, partial_derivatives, powered_derivatives, powered_normal, seen_through, slope_of
from .mesh import mesh_for_density, mesh_for_expectation


class Split(NamedTuple):
    """What gets nodes, and what is integrated without: latents in another order, or combinations of them."""

    others: tuple[int, ...]
    """The latents with nodes, or the rows of `contrasts`."""
    linear: tuple[int, ...]
    contrasts: Any = None
    """The combinations of latents on which the likelihood depends, (G, D); None for all latents."""

    def arrange(self, gaussian: Gaussian) -> Gaussian:
        """In the order (others, linear), or of the contrasts."""
        if self.contrasts is not None:
            matrix = jnp.asarray(self.contrasts)
            return Gaussian(matrix @ gaussian.mean, symmetrise(matrix @ gaussian.covariance @ matrix.T))
        order = np.asarray(self.others + self.linear)
        if np.all(np.diff(order) == 1):
            return gaussian
        return Gaussian(gaussian.mean[order], gaussian.covariance[order][:, order])

    def points(
        self, mean: Float[Array, " G"], root: Float[Array, "G G"], standard: Float[Array, "S K"]
    ) -> Float[Array, "S D"]:
        """The points at which the likelihood is evaluated, for standard nodes of the others."""
        root = root[:, : standard.shape[1]]
        if self.contrasts is not None:
            mean, root = self.contrasts.T @ mean, self.contrasts.T @ root
        return (mean[:, None] + root @ standard.T).T

    def project_columns(self, columns: Float[Array, "D *S"]) -> Float[Array, "G *S"]:
        """Sums of gradients at nodes, which are those in f, as derivatives in what gets nodes."""
        return columns if self.contrasts is None else self.contrasts @ columns

    def project_matrix(self, matrix: Float[Array, "D D"]) -> Float[Array, "G G"]:
        """The same for sums of Hessians."""
        return matrix if self.contrasts is None else self.contrasts @ matrix @ self.contrasts.T

    def restore_vector(self, vector: Float[Array, " G"]) -> Float[Array, " D"]:
        """A gradient, in the order of the latents."""
        if self.contrasts is not None:
            return self.contrasts.T @ vector
        return vector[self._position()]

    def restore_matrix(self, matrix: Float[Array, "G G"]) -> Float[Array, "D D"]:
        """A Hessian, in the order of the latents."""
        if self.contrasts is not None:
            return symmetrise(self.contrasts.T @ matrix @ self.contrasts)
        position = self._position()
        return matrix[position][:, position]

    def _position(self) -> np.ndarray:
        return np.argsort(self.others + self.linear)


def split(likelihood: Likelihood, cubature: Cubature | None) -> Split:
    """The linear latents apart, or contrasts, unless the method names a rule that is for all latents."""
    if cubature is not None and not isinstance(cubature, Adaptive):
        return Split(tuple(range(likelihood.num_latents)), ())
    if likelihood.contrasts is not None:
        return Split(tuple(range(len(likelihood.contrasts))), (), np.asarray(likelihood.contrasts))
    linear = tuple(likelihood.linear_latents)
    return Split(tuple(k for k in range(likelihood.num_latents) if k not in linear), linear)


class Nodes(NamedTuple):
    """Nodes in the order (others, linear): the others at their nodes, the linear ones at their means given those.

    With contrasts, `points` are values of f, of which only the contrasts matter; `standard` and `root` are theirs.
    """

    split: Split
    points: Float[Array, "S D"]
    weights: Float[Array, " S"]
    standard: Float[Array, "S G"]
    root: Float[Array, "D D"]
    rule: Cubature
    log_weights: Float[Array, " S"] | None = None
    """Only of nodes for E[p^α] that follow it: so far from the Gaussian that weights underflow, they still count."""

    @property
    def latents(self) -> Float[Array, "S D"]:
        """The points in the order of the latents."""
        return self.points[:, np.argsort(self.split.others + self.split.linear)] if self.split.linear else self.points

    @property
    def free_root(self) -> Float[Array, "K K"]:
        """The root of the linear latents' covariance given the others."""
        free = len(self.split.others)
        return self.root[free:, free:]


def place_nodes(
    likelihood: Likelihood,
    gaussian: Gaussian,
    cubature: Cubature | None,
    density: bool,
    refine: Callable[[Cubature, int], Cubature] | None = None,
    y: Float[Array, " P"] | None = None,
    power: Any = 1.0,
) -> Nodes:
    """Nodes for this Gaussian: for E[log p], or where p^α is integrated (`density`).

    `refine` says what takes the place of a rule for so many latents. With `y`, the nodes of an `Adaptive` rule follow
    the density; without, they are those for the Gaussian alone.
    """
    parts, rule = rule_for(likelihood, cubature, density)
    rule = rule if refine is None else refine(rule, len(parts.others))
    arranged = parts.arrange(gaussian)
    root = small_root(arranged.covariance)
    if isinstance(rule, Adaptive) and y is not None and len(parts.others) == 1:
        return _follow(likelihood, y, arranged, parts, rule, root, density, power)
    standard, weights = rule.rule(len(parts.others))
    points = parts.points(arranged.mean, root, jnp.asarray(standard))
    return Nodes(parts, points, jnp.asarray(weights), jnp.asarray(standard), root, rule)


def rule_for(likelihood: Likelihood, cubature: Cubature | None, density: bool) -> tuple[Split, Cubature]:
    """Which latents need nodes, and the rule that `place_nodes` uses for them."""
    parts = split(likelihood, cubature)
    return parts, cubature if cubature is not None else _default(likelihood, len(parts.others), density)


def numbers_per_row(likelihood: Likelihood, cubature: Cubature | None, density: bool) -> int:
    """The number of second derivatives at all nodes of one row."""
    likelihood = unweighted(likelihood)
    parts, rule = rule_for(likelihood, cubature, density)
    nodes, count = rule.rule(len(parts.others))[1].size, len(parts.others) + len(parts.linear)
    formulas = parts.linear or _overrides(likelihood, "log_prob_derivatives")
    return nodes * count * (2 if formulas else count)


def _overrides(likelihood: Likelihood, method: str) -> bool:
    """Whether the likelihood brings its own derivatives, by this method."""
    return getattr(type(likelihood), method) is not getattr(Likelihood, method)


def _follow(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    parts: Split,
    rule: Adaptive,
    root,
    density,
    power,
) -> Nodes:
    """Nodes that follow the density as well as the Gaussian, for one latent and linear ones besides."""
    # Where nodes are changes nothing but their error: no derivative is taken of it.
    likelihood, y, mean, still, power = jax.tree.map(_hold, (likelihood, y, gaussian.mean, root, power))
    at_mean = Nodes(parts, parts.points(mean, still, jnp.zeros((1, 1))), jnp.ones(1), jnp.zeros((1, 1)), still, rule)
    integrand = powered_at(likelihood, y, at_mean, power) if density else expected_at(likelihood, y, at_mean)

    def log_density(z):
        value = integrand.value(parts.points(mean, still, jnp.reshape(z, (1, 1)))[0])
        return value / power if density else value

    peak = None if parts.linear else row_peak(likelihood, y, mean, still[0, 0])
    if density:
        concave = bool(likelihood.log_concave) and likelihood.num_latents == 1
        z, log_weights = mesh_for_density(log_density, rule.reach, power, concave, peak).nodes(rule.count)
        weights = jnp.exp(log_weights)
    else:
        z, weights = mesh_for_expectation(log_density, rule.reach, peak).nodes_of_whole(rule.count)
        log_weights = None
    points = parts.points(gaussian.mean, root, z[:, None])
    return Nodes(parts, points, weights, z[:, None], root, rule, log_weights)


def _hold(leaf: Any) -> Any:
    """The same, as a constant for all derivatives."""
    return jax.lax.stop_gradient(leaf) if isinstance(leaf, jax.Array) else leaf


def moment_rule(likelihood: Likelihood, cubature: Cubature | None) -> Cubature:
    """The rule for moments of y given f, and for quantities computed from its first derivatives.

    Where latents enter linearly these are quadratic in them: a rule of degree 3 does for those.
    """
    if cubature is not None:
        return cubature
    if likelihood.log_prob_degree is not None:
        return exact_rule(likelihood.log_prob_degree, likelihood.num_latents)
    parts = split(likelihood, cubature)
    if not parts.linear:
        return default_cubature(likelihood.num_latents)
    return PartwiseRule(parts.others, _default(likelihood, len(parts.others), False), Unscented(3))


def exact_rule(degree: int, dimension: int) -> Cubature:
    """The rule with the fewest nodes that is exact for polynomials of this degree."""
    order = degree // 2 + 1
    if dimension == 0:
        return PointRule()
    if degree <= 5 and 2 * dimension**2 + 1 < order**dimension:
        return Unscented(5)
    return GaussHermite(order)


def _default(likelihood: Likelihood, dimension: int, density: bool) -> Cubature:
    if dimension == 0:
        return PointRule()
    if not density and likelihood.log_prob_degree is not None:
        return exact_rule(likelihood.log_prob_degree, dimension)
    # Of one latent p(y | f) may be far narrower than the Gaussian, and log p where it is not concave.
    if likelihood.num_latents == 1 and (density or not likelihood.log_concave):
        return Adaptive()
    return _without_negative_weights(default_cubature(dimension), dimension)


_ENOUGH, _MOST_NODES = 512, 1024
"""The numbers of nodes for many latents: with more than the first, rules have no copies, and none has more than the
second."""


def _without_negative_weights(rule: Cubature, dimension: int) -> Cubature:
    """Another rule for many latents, if sums over this one may be negative: log p may be far from a polynomial."""
    if not has_negative_weights(rule, dimension):
        return rule
    size = SphericalRule().rule(dimension)[1].size if 2 * dimension**2 < _MOST_NODES else _MOST_NODES + 1
    return SphericalRule(copies=max(1, _ENOUGH // size)) if size <= _MOST_NODES else QuasiRandom(_MOST_NODES)


# Functions of one point in the order (others, linear) --------------------------------------------


class Derivatives(NamedTuple):
    """A function of f with its gradient and Hessian."""

    value: Float[Array, "*rows"]
    gradient: Float[Array, "*rows D"]
    hessian: Float[Array, "*rows D D"]


def derivatives(function: Callable, f: Float[Array, " D"]) -> Derivatives:
    """Value, gradient and Hessian at f, forward mode (D is small)."""
    gradient = jax.jacfwd(function)
    return Derivatives(function(f), gradient(f), jax.jacfwd(gradient)(f))


class AtNodes(NamedTuple):
    """A function of f with its derivatives at all nodes, which are the last axis, because the other axes are short."""

    value: Float[Array, " S"]
    gradient: Float[Array, "D S"]
    hessian: Callable[[Float[Array, " S"]], Float[Array, "D D"]]
    """From weights to the weighted sum of the Hessians."""


class Integrand(NamedTuple):
    """What is summed over nodes: its value at one of them, and its values with derivatives at all."""

    value: Callable[[Float[Array, " D"]], Float[Array, ""]]
    derivatives: Callable[[Float[Array, "S D"]], AtNodes]

    @classmethod
    def plain(cls, function: Callable) -> "Integrand":
        """Any function of f."""
        at_nodes = jax.vmap(function, in_axes=1)

        def gradient(columns):
            return partial_derivatives(at_nodes, columns)

        def with_derivatives(points):
            second = partial_derivatives(gradient, points.T)
            return AtNodes(at_nodes(points.T), gradient(points.T), lambda weights: second @ weights)

        return cls(function, with_derivatives)

    @classmethod
    def quadratic(cls, at_nodes: Callable, count: int) -> "Integrand":
        """A function of g, the first `count` entries of f, that is quadratic in the rest.

        It is given as `at_nodes(g, rest)` for all nodes, which has to return the value, the gradient in the rest and a
        matrix F that makes −FᵀF the Hessian in the rest: then only g is left to differentiate in.
        """

        def with_derivatives(points):
            g, rest = points.T[:count], points.T[count:]
            value, slope, fit = at_nodes(g, rest)

            def curvature(weights):
                return -jnp.tensordot(fit * weights[None, None, :], fit, axes=((0, 2), (0, 2)))

            if count == 0:
                return AtNodes(value, slope, curvature)
            first, cross = partial_derivatives(lambda g: at_nodes(g, rest)[:2], g)
            second = partial_derivatives(lambda g: partial_derivatives(lambda g: at_nodes(g, rest)[0], g), g)

            def hessian(weights):
                mixed = cross @ weights
                return jnp.block([[second @ weights, mixed], [mixed.T, curvature(weights)]])

            return AtNodes(value, jnp.concatenate([first, slope]), hessian)

        return cls(lambda f: at_nodes(f[:count, None], f[count:, None])[0][0], with_derivatives)


def expected_at(likelihood: Likelihood, y: Float[Array, " P"], nodes: Nodes) -> Integrand:
    """E[log p(y | f)] over the linear latents, given the others and the means of the linear ones."""
    if not nodes.split.linear:
        return _nonlinear(likelihood, y, 1.0)

    def at(others, linear):
        matrix, residual, noise = linear_form(likelihood, y, others, linear)
        fit, miss, log_det = seen_through(noise, matrix, residual)
        spread = jnp.tensordot(nodes.free_root, fit, axes=((0,), (1,)))
        squares = jnp.sum(miss**2, axis=0) + jnp.sum(spread**2, axis=(0, 1))
        return -0.5 * (y.shape[0] * LOG_2PI + log_det + squares), slope_of(fit, miss), fit

    return Integrand.quadratic(at, len(nodes.split.others))


def powered_at(likelihood: Likelihood, y: Float[Array, " P"], nodes: Nodes, power: Any) -> Integrand:
    """log E[p(y | f)^α] over the linear latents, given the others and the means of the linear ones."""
    if not nodes.split.linear:
        return _nonlinear(likelihood, y, power)
    count = len(nodes.split.others)

    def value(f):
        return powered_normal(likelihood, y, f[:count, None], f[count:, None], nodes.free_root, power)[0]

    def with_derivatives(points):
        others, linear = points.T[:count], points.T[count:]
        value, gradient, second, cross, fit = powered_derivatives(likelihood, y, others, linear, nodes.free_root, power)

        def hessian(weights):
            curvature = -jnp.tensordot(fit * weights[None, None, :], fit, axes=((0, 2), (0, 2)))
            if count == 0:
                return curvature
            mixed = cross @ weights
            return jnp.block([[second @ weights, mixed], [mixed.T, curvature]])

        return AtNodes(value, gradient, hessian)

    return Integrand(value, with_derivatives)


def _nonlinear(likelihood: Likelihood, y: Float[Array, " P"], power: Any) -> Integrand:
    """α log p(y | f), with the likelihood's own derivatives if it has them."""

    def value(f):
        return power * row_log_prob(likelihood, y, f)

    def at_all(points):
        at_nodes: Any = row_log_prob_at_nodes(likelihood, y, points.T)
        if at_nodes is None:
            return Integrand.plain(value).derivatives(points)
        values, gradient, second = at_nodes
        return AtNodes(power * values, power * gradient, lambda weights: power * (second @ weights))

    if _overrides(likelihood, "log_prob_at_nodes"):
        return Integrand(value, at_all)
    if not _overrides(likelihood, "log_prob_derivatives"):
        return Integrand.plain(value)

    def with_derivatives(points):
        at_nodes: Any = jax.vmap(lambda f: row_log_prob_derivatives(likelihood, y, f), in_axes=1, out_axes=-1)(points.T)
        values, gradient, diagonal, factor = at_nodes

        def hessian(weights):
            return power * (
                jnp.diag(diagonal @ weights) + jnp.einsum("drs,ers->de", factor * weights[None, None], factor)
            )

        return AtNodes(power * values, power * gradient, hessian)

    return Integrand(value, with_derivatives)
