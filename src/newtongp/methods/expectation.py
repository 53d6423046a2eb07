"""Expectations of one row's log density and moments: closed form where there is one, nodes elsewhere.

Derivatives of expectations are expectations of derivatives (Bonnet's and Price's theorems):
∇ₘ E[h] = E[∇h], ∇²ₘ E[h] = E[∇²h], ∇_C E[h] = ½ E[∇²h].
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..likelihoods.base import Likelihood, one_row, row_expected_log_prob, row_log_expected_power
from ..likelihoods.weighted import Weighted
from ..numerics.cubature import Cubature, is_point
from ..numerics.gaussian import Gaussian
from ..numerics.small import outer, small_solve_lower_transposed, symmetrise
from .nodes import AtNodes, Derivatives, Integrand, Nodes, derivatives, expected_at, place_nodes, powered_at
from .weights import raised, times


def has_closed_form(likelihood: Likelihood) -> bool:
    """Whether the likelihood knows E[log p(y | f)] without nodes."""
    leaves, structure = jax.tree.flatten(likelihood)
    return _has_closed_form(structure, tuple(np.shape(leaf) for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _has_closed_form(structure: Any, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """`has_closed_form`, which depends on classes, static values and shapes; traced only, nothing is compiled."""
    row = one_row(jax.tree.unflatten(structure, [np.ones(shape) for shape in shapes]), 0)
    y, mean, covariance = np.zeros(row.num_outputs), np.zeros(row.num_latents), np.eye(row.num_latents)
    return jax.eval_shape(functools.partial(row_expected_log_prob, row), y, mean, covariance) is not None


def expected_log_density(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    cubature: Cubature | None,
    descent: bool = False,
) -> Derivatives:
    """E[log p(y | f)] and its first two derivatives in the mean, `eq:vi-target`.

    A closed form is used where the likelihood has one and the method names no rule. With `descent`, the
    Hessian is that of `_descent_hessian`.
    """
    if isinstance(likelihood, Weighted):
        expected = expected_log_density(likelihood.base, y, gaussian, cubature, descent)
        return times(expected, likelihood.weights)
    if cubature is None:

        def closed(mean):
            return row_expected_log_prob(likelihood, y, mean, gaussian.covariance)

        if closed(gaussian.mean) is not None:
            return derivatives(closed, gaussian.mean)
    nodes = place_nodes(likelihood, gaussian, cubature, density=False, y=y)
    at = expected_at(likelihood, y, nodes)
    at_nodes, weights = at.derivatives(nodes.points), nodes.weights
    parts = nodes.split
    expected = Derivatives(
        at_nodes.value @ weights,
        parts.project_columns(at_nodes.gradient @ weights),
        parts.project_matrix(at_nodes.hessian(weights)),
    )
    if descent and not is_point(nodes.rule, nodes.standard.shape[1]):
        slopes = parts.project_columns(at_nodes.gradient @ (weights[:, None] * nodes.standard))
        # For what is integrated in closed form, E[∇log p zᵀ] = E[∇² log p] L exactly.
        exact = expected.hessian[:, nodes.standard.shape[1] :] @ nodes.free_root
        slopes = jnp.concatenate([slopes, exact], axis=1)
        never_exact = nodes.standard.shape[1] > _LARGEST_PRODUCT
        expected = expected._replace(hessian=_descent_hessian(expected.hessian, slopes, nodes.root, never_exact))
    return _restore(nodes, expected)


def expected_log_value(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, cubature: Cubature | None
) -> Float[Array, ""]:
    """E[log p(y | f)] alone.

    If it is differentiated, derivatives that nobody uses need not be traced, which takes a second for long formulas.
    """
    if isinstance(likelihood, Weighted):
        return times(expected_log_value(likelihood.base, y, gaussian, cubature), likelihood.weights)
    if cubature is None:
        value = row_expected_log_prob(likelihood, y, gaussian.mean, gaussian.covariance)
        if value is not None:
            return value
    nodes = place_nodes(likelihood, gaussian, cubature, density=False, y=y)
    return jax.vmap(expected_at(likelihood, y, nodes).value)(nodes.points) @ nodes.weights


def _restore(nodes: Nodes, found: Derivatives) -> Derivatives:
    """In the order of the latents again."""
    if not nodes.split.linear and nodes.split.contrasts is None:
        return found
    return Derivatives(
        found.value, nodes.split.restore_vector(found.gradient), nodes.split.restore_matrix(found.hessian)
    )


_NODES_EXACT, _NODES_COARSE = 1e-6, 1e-4
_LARGEST_PRODUCT = 4
"""The number of latents up to which product rules are used, whose error may vanish."""


def _descent_hessian(
    hessian: Float[Array, "D D"], slopes: Float[Array, "D D"], root: Float[Array, "D D"], never_exact: bool
) -> Float[Array, "D D"]:
    """E[∇² log p], or where the nodes are too coarse for it, as they always are for many latents, twice the sum's own
    derivative in C.

    With f = m + Lz the sum over nodes changes with C as if LᵀHL were the lower triangle of LᵀE[∇log p zᵀ],
    mirrored. For exact integrals that is E[∇² log p] too; at nodes the two differ by quadrature error, and only
    with the second is a proposal sure to point downhill in the energy that is computed at the same nodes.
    """
    product = root.T @ slopes
    own = jnp.tril(product) + jnp.tril(product, -1).T
    usable = jnp.all(jnp.diagonal(root) > 0.0)
    safe_root = jnp.where(usable, root, jnp.eye(root.shape[0]))
    half = small_solve_lower_transposed(safe_root, own)
    of_sum = symmetrise(small_solve_lower_transposed(safe_root, half.T))
    if never_exact:
        return jnp.where(usable, of_sum, hessian)
    error = jnp.max(jnp.abs(root.T @ hessian @ root - own)) / (1.0 + jnp.max(jnp.abs(own)))
    return blend_by_error(jnp.where(usable, error, 0.0), _NODES_EXACT, _NODES_COARSE, hessian, of_sum)


def blend_by_error(error: Float[Array, ""], trusted: Any, useless: Any, first: Array, second: Array) -> Array:
    """`first` where the error is below `trusted`, `second` where it is above `useless`, a mixture in between.

    Continuous, because a map that jumps has no fixed point to converge to.
    """
    weight = jnp.clip((useless - error) / (useless - trusted), 0.0, 1.0)
    # Not a plain sum: 0 times the infinity of a useless expectation would be NaN.
    return jnp.where(weight > 0.0, weight * first, 0.0) + (1.0 - weight) * second


class Tilted(NamedTuple):
    """log E[p^α] with its derivatives in the mean, and the moments of the tilted distribution.

    All in the order of `nodes`.
    """

    nodes: Nodes
    derivatives: Derivatives
    mean_shift: Float[Array, " D"]
    """L⁻¹(E_t[f] − m)."""
    whitened_covariance: Float[Array, "D D"]
    """L⁻¹ Cov_t[f] L⁻ᵀ."""
    root: Float[Array, "D D"]

    def restore(self, found: Derivatives) -> Derivatives:
        """Derivatives in the order of the latents."""
        return _restore(self.nodes, found)


def log_expected_density(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    cubature: Cubature | None,
    power: Any = 1.0,
    refine: Callable[[Cubature, int], Cubature] | None = None,
) -> Float[Array, ""]:
    """log E[p(y | f)^α]: the value alone, with a rule that may be refined (`place_nodes`)."""
    likelihood, power = raised(likelihood, power)
    if cubature is None:
        closed = row_log_expected_power(likelihood, y, gaussian.mean, gaussian.covariance, power)
        if closed is not None:
            return closed
    nodes = place_nodes(likelihood, gaussian, cubature, density=True, refine=refine, y=y, power=power)
    powered = jax.vmap(powered_at(likelihood, y, nodes, power).value, in_axes=1)(nodes.points.T)
    return _log_normaliser(nodes, powered)[0]


def tilted_expectations(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, cubature: Cubature | None, power: Any
) -> Tilted:
    """log E[p(y | f)^α] at nodes, from expectations under the tilted weights t ∝ w p^α.

    ∇ log Z = α E_t[∇ log p] and ∇² log Z = α E_t[∇² log p] + α² Cov_t[∇ log p], which tends to
    variational inference as α → 0. Where nodes follow the density, the second is α Cov_t[∇ log p, f] C⁻¹, the same by
    partial integration.
    """
    likelihood, power = raised(likelihood, power)
    nodes = place_nodes(likelihood, gaussian, cubature, density=True, y=y, power=power)
    at = powered_at(likelihood, y, nodes, power)
    if nodes.log_weights is not None and not nodes.split.linear:
        return _followed_expectations(at, nodes)
    at_nodes = at.derivatives(nodes.points)
    log_z, tilted = _log_normaliser(nodes, at_nodes.value)
    gradient, hessian = at_nodes.gradient @ tilted, at_nodes.hessian(tilted)
    centred = at_nodes.gradient - gradient[:, None]
    shift, covariance = _tilted_moments(nodes, at_nodes, hessian, tilted)
    whole = hessian + _weighted_squares(centred, tilted)
    log_z = Derivatives(log_z, nodes.split.project_columns(gradient), nodes.split.project_matrix(whole))
    return Tilted(nodes, log_z, shift, covariance, nodes.root)


def _weighted_squares(columns: Float[Array, "D S"], weights: Float[Array, " S"]) -> Float[Array, "D D"]:
    """Σ wₛ vₛvₛᵀ; of few latents as sums, since XLA is slow with many small products of matrices."""
    if columns.shape[0] > _LARGEST_PRODUCT:
        return (columns * weights[None]) @ columns.T
    return jnp.sum(columns[:, None] * (columns * weights[None])[None], axis=-1)


def _tilted_moments(
    nodes: Nodes, at_nodes: AtNodes, hessian: Float[Array, "D D"], tilted: Float[Array, " S"]
) -> tuple[Float[Array, " Z"], Float[Array, "Z Z"]]:
    """Mean and covariance of z under the tilted distribution.

    The linear latents' part of z is Gaussian at every node, with mean Lᵀ∇ and covariance I + Lᵀ∇²L, where ∇ and ∇² are
    the derivatives in them of what is summed, and L is their root.
    """
    standard, free = nodes.standard.T, nodes.standard.shape[1]
    if nodes.split.linear:
        standard = jnp.concatenate([standard, nodes.free_root.T @ at_nodes.gradient[free:]])
    shift = standard @ tilted
    deviation = standard - shift[:, None]
    covariance = _weighted_squares(deviation, tilted)
    if nodes.split.linear:
        within = nodes.free_root.T @ hessian[free:, free:] @ nodes.free_root
        covariance = covariance.at[free:, free:].add(jnp.eye(within.shape[0]) + within)
    return shift, covariance


def _followed_expectations(at: Integrand, nodes: Nodes) -> Tilted:
    """Expectations of one latent, or of one contrast, from first derivatives alone."""
    along = nodes.split.points(jnp.zeros(1), jnp.eye(1), jnp.ones((1, 1)))[0]

    def value_and_slope(f):
        return jax.jvp(at.value, (f,), (along,))

    values, slopes = jax.vmap(value_and_slope)(nodes.points)
    log_z, tilted = _log_normaliser(nodes, values)
    z, scale = nodes.standard[:, 0], nodes.root[0, 0]
    # Where no node sees any density there is no slope either.
    slopes = jnp.where(tilted > 0.0, slopes, 0.0)
    slope, shift = tilted @ slopes, tilted @ z
    spread = tilted @ ((slopes - slope) * (z - shift))
    # Where there is no spread, the expectation is that at the mean.
    bend = nodes.split.project_matrix(derivatives(at.value, nodes.points[0]).hessian)[0, 0]
    hessian = jnp.where(scale > 0.0, spread / jnp.where(scale > 0.0, scale, 1.0), bend)
    return Tilted(
        nodes,
        Derivatives(log_z, slope[None], hessian[None, None]),
        shift[None],
        (tilted @ (z - shift) ** 2)[None, None],
        nodes.root,
    )


def closed_log_expected_density(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, power: Any
) -> Derivatives | None:
    """log E[p(y | f)^α] and its derivatives in the mean, where the likelihood knows them."""

    def closed(mean):
        return row_log_expected_power(likelihood, y, mean, gaussian.covariance, power)

    return None if closed(gaussian.mean) is None else derivatives(closed, gaussian.mean)


def covariance_gradient_of_log_expectation(log_z: Derivatives) -> Float[Array, "D D"]:
    """∇_C log Z = ½ (∇²ₘ log Z + ∇ₘ log Z ∇ₘ log Zᵀ), since ∇_C Z = ½ ∇²ₘ Z."""
    return 0.5 * (log_z.hessian + outer(log_z.gradient, log_z.gradient))


def _log_normaliser(nodes: Nodes, log_values: Float[Array, " S"]) -> tuple[Float[Array, ""], Float[Array, " S"]]:
    """log Σ wₛ exp(vₛ) and the normalised terms, for weights of either sign."""
    weights = nodes.weights
    if nodes.log_weights is not None:
        log_values, weights = log_values + nodes.log_weights, jnp.ones_like(log_values)
    largest = jax.lax.stop_gradient(jnp.max(log_values))
    # Where no node sees any density, the answer is −∞ and no NaN.
    largest = jnp.where(largest == -jnp.inf, 0.0, largest)
    # In a shape of their own: XLA does not vectorise a loop that writes over what it reads.
    terms = jnp.exp(log_values[None] - largest)[0]
    total = terms @ weights
    return largest + jnp.log(total), terms * (weights / total)
