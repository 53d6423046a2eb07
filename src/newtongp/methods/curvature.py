"""How the Hessian of a target is had: exactly, by Gauss-Newton, or by quasi-Newton (BFGS) updates."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ..likelihoods.base import Likelihood
from ..numerics.cubature import Cubature, has_negative_weights
from ..numerics.gaussian import Gaussian
from ..numerics.small import outer, project_psd, small_root, smallest_eigenvalue
from ..validation.arguments import flag
from ..validation.numbers import parameter
from .local_expansion import LocalExpansion
from .nodes import moment_rule
from .target import Expansion, Target
from .weights import copies_of, times


class Curvature(eqx.Module):
    """Where the matrix that becomes minus the site precision comes from."""

    name: ClassVar[str]
    keeps_psd: ClassVar[bool] = False
    """Whether the precision is PSD whatever the likelihood."""
    remembers: ClassVar[bool] = False
    """Whether proposals depend on earlier steps, so that the same sites need not have the same proposal."""
    moves_all_rows: ClassVar[bool] = False
    """Whether proposals come from the gradient of the energy in all sites, not from each row's own expansion."""
    initial_precision: ClassVar[float] = 0.0
    """Sites start from λ = 0 and this times I."""
    looks_at_covariance: ClassVar[bool] = False
    """Whether `advance` uses the target's gradient in the covariance, where there is one."""

    @abc.abstractmethod
    def evaluate(
        self,
        target: Target,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        marginal: Gaussian,
        cubature: Cubature | None,
        expansion: Expansion,
    ) -> Float[Array, "D D"]:
        """The part that needs the likelihood: one row's Hessian, or what quasi-Newton starts from."""

    @abc.abstractmethod
    def initial_state(self, target: Target, num_latents: int) -> Any:
        """What one row carries from step to step; None where there is nothing to carry."""

    @abc.abstractmethod
    def advance(self, expansion: LocalExpansion, state: Any) -> tuple[Float[Array, "D D"], Any]:
        """One row's Hessian for the next proposal, and the state to carry if that is accepted."""

    @abc.abstractmethod
    def carry(self, old: Any, new: Any, step_size: Float[Array, ""]) -> Any:
        """The states of all rows after a step of this size."""


class Exact(Curvature):
    """The target's own Hessian. Not PSD for likelihoods that are not log-concave: the step keeps q proper."""

    name = "exact"

    def evaluate(self, target, likelihood, y, marginal, cubature, expansion):
        return expansion.hessian

    def initial_state(self, target, num_latents):
        return None

    def advance(self, expansion, state):
        return expansion.hessian, state

    def carry(self, old, new, step_size):
        return new


class FirstOrder(Curvature):
    """No curvature at all: Adam on each site's mean and the root of its covariance (`first_order.py`).

    The target's own Hessian says how far a row is from its fixed point.
    """

    name = "first_order"
    remembers = True
    moves_all_rows = True
    initial_precision = 0.01
    learning_rate: Any

    def __init__(self, learning_rate: float = 0.1):
        self.learning_rate = parameter(learning_rate, "learning_rate", lower=0.0)

    def evaluate(self, target, likelihood, y, marginal, cubature, expansion):
        return expansion.hessian

    def initial_state(self, target, num_latents):
        return None

    def advance(self, expansion, state):
        return expansion.hessian, state

    def carry(self, old, new, step_size):
        return new


class GaussNewton(Curvature):
    """Curvature from first derivatives alone, PSD by construction (`sec:bayes-gauss-newton`).

    `kind` is "full" (`eq:gauss-newton`), "partial" (`eq:pgn`), "generalised" (`eq:ggn`), or "auto":
    partial for likelihoods that are Gaussian given f, generalised for all others.

    >>> GaussNewton("partial").kind
    'partial'
    """

    name = "gauss_newton"
    keeps_psd = True
    kind: str = eqx.field(static=True, default="auto")

    def __check_init__(self):
        kinds = ("auto", "full", "partial", "generalised")
        if self.kind not in kinds:
            raise ValueError(f"kind must be one of {', '.join(map(repr, kinds))}, got {self.kind!r}")

    def evaluate(self, target, likelihood, y, marginal, cubature, expansion):
        return _gauss_newton_hessian(target, likelihood, y, marginal, cubature, self.kind)

    def initial_state(self, target, num_latents):
        return None

    def advance(self, expansion, state):
        return expansion.hessian, state

    def carry(self, old, new, step_size):
        return new


def _gauss_newton_hessian(
    target: Target,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    marginal: Gaussian,
    cubature: Cubature | None,
    kind: str,
) -> Float[Array, "D D"]:
    """The target's Gauss-Newton Hessian, negative semi-definite even where the rule has negative weights."""
    hessian = target.gauss_newton(likelihood, y, marginal, cubature, kind)
    if has_negative_weights(moment_rule(likelihood, cubature), marginal.mean.shape[0]):
        hessian = -project_psd(-hessian)
    return hessian


def guarded_hessian(
    target: Target,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    marginal: Gaussian,
    cubature: Cubature | None,
    hessian: Float[Array, "D D"],
) -> Float[Array, "D D"]:
    """A negative semi-definite stand-in for the exact Hessian, for steps that are to do without negative curvature.

    Where y is Gaussian given f it is Gauss-Newton's, which leaves out the whole of what is indefinite; elsewhere the
    exact Hessian without its positive eigenvalues, which keeps whatever the indefinite part adds to the others. Both
    are those of one copy of the row.
    """
    if likelihood.gaussian_form and likelihood.moments_problem() is None:
        copies = copies_of(likelihood)
        return times(_gauss_newton_hessian(target, copies.base, y, marginal, cubature, "auto"), copies.share)
    return -project_psd(-hessian)


class QuasiNewtonState(eqx.Module):
    """One row's Hessian approximation B, and the last accepted point and gradient."""

    matrix: Float[Array, "*rows E E"]
    point: Float[Array, "*rows E"]
    gradient: Float[Array, "*rows E"]
    started: Bool[Array, "*rows"]


class QuasiNewton(Curvature):
    """BFGS updates of each row's Hessian, over m or over (m, vec C) (`sec:bayes-quasi-newton`).

    `damping` is ξ of `sec:damped-quasi-newton`; None is plain BFGS, which skips updates that would lose
    negative definiteness. `initial` is a number b for B₀ = −b·I; None starts from the size of the target's
    own curvature. `blend` carries (1−ρ)·B_old + ρ·B_new on instead of B_new, as the paper's experiments did.

    Over (m, vec C) the target is not concave, and a pair that moves mostly in C can leave B with a steepness in m
    that nothing in the target has. Its exact Hessian is known there, being twice its gradient in C or close to it:
    the proposal takes B no steeper than `steepest` times that (None: B as it is, as in the paper).

    >>> QuasiNewton(damping=1.5)
    Traceback (most recent call last):
        ...
    ValueError: damping must be greater than 0 and less than 1, got 1.5: ...
    """

    name = "quasi_newton"
    remembers = True
    keeps_psd = True
    looks_at_covariance = True
    damping: Any
    initial: Any
    blend: bool = eqx.field(static=True)
    steepest: Any

    def __init__(
        self,
        damping: float | None = 0.8,
        initial: float | None = None,
        blend: bool = False,
        steepest: float | None = 2.0,
    ):
        self.steepest = None if steepest is None else parameter(steepest, "steepest", lower=1.0, strict=False)
        self.damping = None if damping is None else parameter(damping, "damping", lower=0.0, upper=1.0)
        self.initial = None if initial is None else parameter(initial, "initial", lower=0.0)
        self.blend = flag(blend, "blend")

    def evaluate(self, target, likelihood, y, marginal, cubature, expansion):
        return expansion.hessian

    def initial_state(self, target, num_latents):
        size = num_latents + num_latents**2 if target.uses_covariance else num_latents
        return QuasiNewtonState(jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(size), jnp.zeros((), dtype=bool))

    def advance(self, expansion, state):
        dimension = expansion.gradient.shape[0]
        point, gradient = expansion.point.mean, expansion.gradient
        if expansion.covariance_gradient is not None:
            point = jnp.concatenate([point, jnp.ravel(expansion.point.covariance)])
            gradient = jnp.concatenate([gradient, jnp.ravel(expansion.covariance_gradient)])
        updated = bfgs(state.matrix, point - state.point, gradient - state.gradient, self.damping)
        start = self._start(expansion.hessian, expansion.point, point.shape[0])
        matrix = jnp.where(state.started, updated, start)
        carried = QuasiNewtonState(matrix, point, gradient, jnp.ones((), dtype=bool))
        proposed = matrix[:dimension, :dimension]
        if self.steepest is not None and expansion.covariance_gradient is not None:
            root = small_root(expansion.point.covariance)
            limit = self.steepest * jnp.maximum(_steepness(expansion.hessian, root), 0.01)
            proposed = _limit_steepness(proposed, root, limit)
        return proposed, carried

    def carry(self, old, new, step_size):
        if not self.blend:
            return new
        started = old.started[:, None, None]
        mixed = (1.0 - step_size) * old.matrix + step_size * new.matrix
        return eqx.tree_at(lambda s: s.matrix, new, jnp.where(started, mixed, new.matrix))

    def _start(self, hessian, marginal, size):
        """B₀, diagonal: the size of the target's curvature, but no less than 1 % of the marginal's precision."""
        if self.initial is not None:
            return -self.initial * jnp.eye(size)
        curvature = jnp.abs(jnp.diagonal(hessian))
        variance = jnp.diagonal(marginal.covariance)
        # A row that its site cannot move, far from all inducing inputs of a sparse prior, has no variance.
        least = jnp.where(variance > 0.0, 0.01 / jnp.where(variance > 0.0, variance, 1.0), 0.0)
        diagonal = jnp.maximum(curvature, least)
        rest = jnp.full(size - diagonal.shape[0], jnp.mean(diagonal))
        return -jnp.diag(jnp.concatenate([diagonal, rest]))


_SMALLEST_CURVATURE = 1e-14
"""Pairs with −sᵀr below this carry no information above rounding, and are skipped."""


def bfgs(
    matrix: Float[Array, "E E"],
    step: Float[Array, " E"],
    change: Float[Array, " E"],
    damping: Float[Array, ""] | np.ndarray | None,
) -> Float[Array, "E E"]:
    """The BFGS update of a negative definite B with the pair s, g; damped where `damping` is given.

    Undamped it satisfies the secant equation B s = g, damped B s = r with r = ψ g + (1 − ψ) B s. The update
    is skipped where sᵀr is not safely negative, so B stays negative semi-definite.
    """
    product = matrix @ step
    curvature = step @ product
    if damping is not None:
        slope = step @ change
        weak = slope > (1.0 - damping) * curvature
        gap = jnp.where(weak, curvature - slope, 1.0)
        weight = jnp.where(weak, damping * curvature / jnp.where(gap == 0.0, 1.0, gap), 1.0)
        change = weight * change + (1.0 - weight) * product
    slope = step @ change
    useful = (slope < -_SMALLEST_CURVATURE) & (curvature < 0.0)
    safe_slope = jnp.where(useful, slope, -1.0)
    safe_curvature = jnp.where(useful, curvature, -1.0)
    updated = matrix - outer(product, product) / safe_curvature + outer(change, change) / safe_slope
    return jnp.where(useful, updated, matrix)


def _steepness(matrix: Float[Array, "D D"], root: Float[Array, "D D"]) -> Float[Array, ""]:
    """The largest eigenvalue of −LᵀBL, or 0 if it has no positive one."""
    return jnp.maximum(-smallest_eigenvalue(root.T @ matrix @ root), 0.0)


def _limit_steepness(
    matrix: Float[Array, "D D"], root: Float[Array, "D D"], limit: Float[Array, ""]
) -> Float[Array, "D D"]:
    """B scaled down until its steepness is at most the limit."""
    steepness = _steepness(matrix, root)
    too_steep = steepness > limit
    return matrix * jnp.where(too_steep, limit / jnp.where(too_steep, steepness, 1.0), 1.0)


def keep_tilted_positive(
    matrix: Float[Array, "D D"], hessian: Float[Array, "D D"], root: Float[Array, "D D"], power: float
) -> Float[Array, "D D"]:
    """B scaled down until αB + C⁻¹ is safely positive definite, as power EP's rescaling R needs it.

    I + αLᵀHL is the tilted covariance in units of the cavity's (C = LLᵀ). B is kept from claiming a tilted
    variance below half of the smallest one that the exact H gives.
    """
    exact = 1.0 - power * _steepness(hessian, root)
    return _limit_steepness(matrix, root, (1.0 - jnp.clip(0.5 * exact, 1e-4, 0.5)) / power)


def rows_of(state: Any, n: int) -> Any:
    """One row's initial state, repeated for n rows."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (n, *np.shape(leaf))), state)
