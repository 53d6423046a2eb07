"""Gaussian likelihoods that are linear in some latents, at all nodes of the others, which are the last axis.

Given the others g, y = A(g) l + b(g) + noise, with noise covariance Σ(g). Over l ~ N(μ, RRᵀ), E[p(y | f)^α] is a normal
density of the residual r = y − b − Aμ with covariance S = Σ/α + ARRᵀAᵀ, up to a factor. Its derivatives in g are taken
by hand, because automatic differentiation of a factorisation takes ten times as long.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..likelihoods.base import Likelihood
from ..numerics.small import LOG_2PI, small_root


def linear_form(
    likelihood: Likelihood, y: Float[Array, " P"], others: Float[Array, "G S"], linear: Float[Array, "K S"]
) -> tuple[Float[Array, "P K S"], Float[Array, "P S"], Float[Array, "P P S"]]:
    """The matrix, the residual and the noise covariance at every node."""

    matrix, offset, noise = _form_at(likelihood, linear.shape[1])(others)
    return matrix, y[:, None] - offset - jnp.sum(matrix * linear[None], axis=1), noise


def _form_at(likelihood: Likelihood, count: int) -> Callable:
    """A, b and Σ as functions of g, at so many nodes."""

    def at(others):
        return tuple(jnp.asarray(part) for part in likelihood.linear_form(others))

    return jax.vmap(at, in_axes=1, out_axes=-1, axis_size=count)


def partial_derivatives(function: Callable, columns: Float[Array, "D S"]) -> Any:
    """∂h/∂f₁, ∂h/∂f₂, ... at all nodes at once, of a function h of all nodes that treats each by itself."""

    def along(direction: Float[Array, " D"]):
        return jax.jvp(function, (columns,), (jnp.broadcast_to(direction[:, None], columns.shape),))[1]

    return jax.vmap(along)(jnp.eye(columns.shape[0]))


def seen_through(
    covariance: Float[Array, "P P S"], matrix: Float[Array, "P K S"], residual: Float[Array, "P S"]
) -> tuple[Float[Array, "P K S"], Float[Array, "P S"], Float[Array, " S"]]:
    """A matrix and a residual in units of a covariance's root, and the covariance's log determinant."""
    root = _roots(covariance)
    right = jnp.concatenate([matrix, residual[:, None]], axis=1)
    rows: list[Array] = []
    for i in range(right.shape[0]):
        before = [root[i, k][None] * row for k, row in enumerate(rows)]
        rows.append((right[i] - sum(before)) * (1.0 / root[i, i])[None])
    solved = jnp.stack(rows)
    return solved[:, :-1], solved[:, -1], _log_det(root)


def _roots(covariance: Float[Array, "P P S"]) -> Float[Array, "P P S"]:
    return jax.vmap(small_root, in_axes=-1, out_axes=-1)(covariance)


def _log_det(root: Float[Array, "P P S"]) -> Float[Array, " S"]:
    """Of the covariance with this root."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)), axis=-1)


def slope_of(fit: Float[Array, "P K S"], miss: Float[Array, "P S"]) -> Float[Array, "K S"]:
    """The gradient in the means of the linear latents."""
    return jnp.sum(fit * miss[:, None], axis=0)


# log E[p^α] over the linear latents -----------------------------------------------------------------


class Powered(NamedTuple):
    """log E[p(y | f)^α] at nodes, with derivatives in g and in the means of the linear latents."""

    value: Float[Array, " S"]
    gradient: Float[Array, "D S"]
    """In g, then in the means."""
    second: Float[Array, "G G S"]
    cross: Float[Array, "G K S"]
    fit: Float[Array, "P K S"]
    """F that makes −FᵀF the Hessian in the means."""


class _Factored(NamedTuple):
    """What derivatives share with the value. W is the inverse root of S, and `noise_root` that of Σ unless α = 1."""

    value: Float[Array, " S"]
    matrix: Float[Array, "P K S"]
    spread: Float[Array, "P K S"]
    """AR."""
    miss: Float[Array, "P S"]
    """Wr."""
    inverse_root: Float[Array, "P P S"]
    noise_root: Float[Array, "P P S"] | None


def powered_normal(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    others: Float[Array, "G S"],
    linear: Float[Array, "K S"],
    root: Float[Array, "K K"],
    power: Any,
) -> Float[Array, " S"]:
    """log E[p(y | f)^α] of `eq:pep-target`, for linear latents with these means and this root R of their covariance."""
    return _factored(likelihood, y, others, linear, root, power).value


def _factored(likelihood, y, others, linear, root, power: Any) -> _Factored:
    matrix, residual, noise = linear_form(likelihood, y, others, linear)
    spread = _right_times(matrix, root)
    covariance = noise / power + _product(spread, _transposed(spread))
    inverse_root, log_det = _inverse_root(covariance)
    miss = _times(inverse_root, residual)
    outputs = y.shape[0]
    # A power that depends on the weight of the row is not known when this is compiled.
    whole = isinstance(power, float) and power == 1.0
    noise_root, noise_log_det = (None, 0.0) if whole else _inverse_root(noise)
    log_power = math.log(power) if isinstance(power, float) else jnp.log(power)
    scale = (1.0 - power) * (outputs * LOG_2PI + noise_log_det) - outputs * log_power
    value = 0.5 * (scale - outputs * LOG_2PI - log_det - jnp.sum(miss**2, axis=0))
    return _Factored(value, matrix, spread, miss, inverse_root, noise_root)


def powered_derivatives(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    others: Float[Array, "G S"],
    linear: Float[Array, "K S"],
    root: Float[Array, "K K"],
    power: Any,
) -> Powered:
    """`powered_normal` with derivatives, in g only if there is any."""
    parts = _factored(likelihood, y, others, linear, root, power)
    fit = _product(parts.inverse_root, parts.matrix)
    slope = slope_of(fit, parts.miss)
    if others.shape[0] == 0:
        none = jnp.zeros((0, 0, linear.shape[1]))
        return Powered(parts.value, slope, none, jnp.zeros((0, *linear.shape)), fit)
    first, second, cross = _derivatives_in_others(likelihood, others, linear, root, power, parts, fit)
    return Powered(parts.value, jnp.concatenate([first, slope]), second, cross, fit)


def _derivatives_in_others(
    likelihood, others, linear, root, power: Any, parts: _Factored, fit
) -> tuple[Float[Array, "G S"], Float[Array, "G G S"], Float[Array, "G K S"]]:
    """First and second derivatives in g, by which S₁, r₁, ... are meant, and mixed ones in g and the means.

    With β = S⁻¹r and Q = ββᵀ − S⁻¹:

    h₁ = ½⟨Q, S₁⟩ − βᵀr₁ and h₁₂ = ½⟨Q, S₁₂⟩ + ½⟨WS₁Wᵀ, WS₂Wᵀ⟩ − c₁ᵀc₂ − βᵀr₁₂, where c₁ = WS₁β − Wr₁.
    """
    _, _, spread, miss, inverse_root, noise_root = parts
    at, indices = _form_at(likelihood, linear.shape[1]), range(others.shape[0])
    forms = _moved(partial_derivatives(at, others), linear, root)
    curved = _moved(partial_derivatives(lambda g: partial_derivatives(at, g), others), linear, root)
    weights = _times(_transposed(inverse_root), miss)
    noise_part = _product(_transposed(inverse_root), inverse_root)
    inner = weights[:, None] * weights[None] - noise_part
    inner_spread = _product(inner, spread)
    # The density's own factor depends on Σ alone.
    inner_noise = inner / power
    if noise_root is not None:
        inner_noise = inner_noise + (1.0 - power) * _product(_transposed(noise_root), noise_root)

    def first(i):
        form = forms.at(i)
        along = _sum_of(inner_spread * form.spread) + 0.5 * _sum_of(inner_noise * form.noise)
        return along - jnp.sum(weights * form.residual, axis=0)

    def whitened(i):
        form = forms.at(i)
        half = _product(form.spread, _transposed(spread))
        moved = form.noise / power + half + _transposed(half)
        return _product(_product(inverse_root, moved), _transposed(inverse_root))

    turned = [whitened(i) for i in indices]
    changes = [_times(turned[i], miss) - _times(inverse_root, forms.at(i).residual) for i in indices]
    noises = None
    if noise_root is not None:
        noises = [_product(_product(noise_root, forms.at(i).noise), _transposed(noise_root)) for i in indices]

    def second(i, j):
        form = curved.at((i, j))
        total = _sum_of(_product(inner, forms.at(i).spread) * forms.at(j).spread) + _sum_of(inner_spread * form.spread)
        total = total + 0.5 * (_sum_of(inner_noise * form.noise) + _sum_of(turned[i] * turned[j]))
        if noises is not None:
            total = total - 0.5 * (1.0 - power) * _sum_of(noises[i] * noises[j])
        return total - jnp.sum(changes[i] * changes[j] + weights * form.residual, axis=0)

    upper = {(i, j): second(i, j) for i in indices for j in indices if i <= j}
    rows = [jnp.stack([upper[min(i, j), max(i, j)] for j in indices]) for i in indices]
    cross = [slope_of(forms.at(i).matrix, weights) - slope_of(fit, changes[i]) for i in indices]
    return jnp.stack([first(i) for i in indices]), jnp.stack(rows), jnp.stack(cross)


class _Moved(NamedTuple):
    """Derivatives of A, AR, r and Σ."""

    matrix: Any
    spread: Any
    residual: Any
    noise: Any

    def at(self, index: Any) -> "_Moved":
        return _Moved(*(part[index] for part in self))


def _moved(form: Any, linear: Float[Array, "K S"], root: Float[Array, "K K"]) -> _Moved:
    matrix, offset, noise = form
    return _Moved(matrix, _right_times(matrix, root), -offset - _sum_over_linear(matrix, linear), noise)


def _sum_over_linear(matrix: Float[Array, "*n P K S"], linear: Float[Array, "K S"]) -> Float[Array, "*n P S"]:
    return jnp.sum(matrix * jnp.reshape(linear, (1,) * (matrix.ndim - 2) + linear.shape), axis=-2)


# Products of small matrices, node by node: sums of arrays, since XLA is slow with many small products.


def _right_times(matrix: Float[Array, "*n P K S"], root: Float[Array, "K K"]) -> Float[Array, "*n P K S"]:
    """AR, of the same R at all nodes."""
    return jnp.moveaxis(jnp.tensordot(root, matrix, axes=((0,), (matrix.ndim - 2,))), 0, -2)


def _product(first: Float[Array, "M K S"], second: Float[Array, "K N S"]) -> Float[Array, "M N S"]:
    terms = [first[:, k, None] * second[None, k] for k in range(first.shape[1])]
    return sum(terms[1:], start=terms[0])


def _times(matrix: Float[Array, "M K S"], vector: Float[Array, "K S"]) -> Float[Array, "M S"]:
    terms = [matrix[:, k] * vector[k][None] for k in range(vector.shape[0])]
    return sum(terms[1:], start=terms[0])


def _transposed(matrix: Float[Array, "M K S"]) -> Float[Array, "K M S"]:
    return jnp.swapaxes(matrix, 0, 1)


def _sum_of(matrix: Float[Array, "M K S"]) -> Float[Array, " S"]:
    return jnp.sum(matrix, axis=(0, 1))


def _inverse_root(covariance: Float[Array, "P P S"]) -> tuple[Float[Array, "P P S"], Float[Array, " S"]]:
    """L⁻¹ of S = LLᵀ, and log det S."""
    size, nodes = covariance.shape[0], covariance.shape[2]
    identity = jnp.broadcast_to(jnp.eye(size)[:, :, None], (size, size, nodes))
    inverse, _, log_det = seen_through(covariance, identity, jnp.zeros((size, nodes)))
    return inverse, log_det
