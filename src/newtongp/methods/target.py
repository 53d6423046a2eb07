"""The six surrogate targets that a method expands around one row's marginal (`tab:targets`).

A target answers two questions about one row: what are the value, gradient and Hessian of the target in the
mean, and what is its Gauss-Newton curvature. It knows nothing of priors, of other rows, or of steps.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..likelihoods.base import Likelihood, row_covariance, row_log_prob, row_mean
from ..numerics.cubature import Cubature, nodes_and_weights, resolution
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.small import (
    outer,
    small_eigh,
    small_log_det,
    small_normal_log_density,
    small_root,
    small_solve_lower,
    small_solve_psd,
    smallest_eigenvalue,
    symmetrise,
)
from .energy import Energy, LaplaceEnergy, PowerEPEnergy, VariationalFreeEnergy, declared_energy
from .expectation import (
    Derivatives,
    Tilted,
    blend_by_error,
    closed_log_expected_density,
    covariance_gradient_of_log_expectation,
    derivatives,
    expected_log_density,
    has_closed_form,
    tilted_expectations,
)
from .linearisation import (
    fitted_in_covariance,
    linearise,
    noise_in_covariance,
    slope_by_derivative,
    slope_by_regression,
)
from .nodes import moment_rule
from .weights import raised


class Expansion(eqx.Module):
    """A target around one marginal: value, gradient and Hessian in the mean, gradient in the covariance."""

    value: Float[Array, "*rows"]
    gradient: Float[Array, "*rows D"]
    hessian: Float[Array, "*rows D D"]
    covariance_gradient: Float[Array, "*rows D D"]


class Target(eqx.Module):
    """What a method expands: L̄(m, C) for one row, `tab:targets`."""

    name: ClassVar[str]
    energy: ClassVar[type[Energy] | str | None] = None
    """Which energy goes with it, a class of `energy.py` or its name; None if `row_energy` gives its own."""
    objective: ClassVar[str | None] = None
    """What its fixed points minimise with exact curvature: "energy", "log_joint" (without ½ log det), or None."""
    value_in_energy: ClassVar[bool] = False
    """Whether the value of the expansion is what the likelihood adds to the energy."""
    needs_moments: ClassVar[bool] = False
    """Whether the likelihood must give E[y | f] and Cov[y | f]."""
    uses_covariance: ClassVar[bool] = True
    """Whether the target depends on C, so that quasi-Newton acts on (m, vec C)."""

    @property
    def power(self) -> float:
        """The fraction of the site taken out before expanding: 0 for all but power EP."""
        return 0.0

    def integrates(self, likelihood: Likelihood, cubature: Cubature | None) -> bool:
        """Whether a row of this likelihood is looked at from many nodes."""
        declared = declared_energy(self.energy)
        return declared is None or declared.integrates

    @abc.abstractmethod
    def expand(
        self, likelihood: Likelihood, y: Float[Array, " P"], marginal: Gaussian, cubature: Cubature | None
    ) -> Expansion:
        """The target around this marginal (or cavity)."""

    def row_energy(
        self,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        around: Gaussian,
        marginal: Gaussian,
        site: Sites,
        cubature: Cubature | None,
    ) -> Float[Array, ""]:
        """One row's share of an energy of the target's own, for which `energy` is None.

        The prior adds ½ (m − μ)ᵀK⁻¹(m − μ) + ½ log det(I + ΛK) to the sum over rows. `around` is the marginal of f, and
        `marginal` that of what the site acts on: the same, except for sparse priors.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def gauss_newton(
        self,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        marginal: Gaussian,
        cubature: Cubature | None,
        kind: str,
    ) -> Float[Array, "D D"]:
        """A negative semi-definite stand-in for the Hessian, from first derivatives alone."""

    @property
    def energy_problem(self) -> str | None:
        """What is wrong with the energy that the target brings, in a sentence; None if nothing is."""
        name, own = type(self).__name__, type(self).row_energy is not Target.row_energy
        if self.energy is not None and declared_energy(self.energy) is None:
            return f'energy must be "vfe", "laplace", "pep" or None, got {self.energy!r} in {name}'
        if self.objective not in (None, "energy", "log_joint"):
            return f'objective must be "energy", "log_joint" or None, got {self.objective!r} in {name}'
        if self.energy is None and not own:
            return (
                f"the target {name} brings no energy: define `row_energy`, or set `energy` to "
                '"vfe", "laplace" or "pep" if one of these is what belongs to it'
            )
        if self.energy is not None and own:
            return f"the target {name} has two energies: leave out `energy` or `row_energy`"
        return None

    def refuses(self, curvature: str) -> str | None:
        """Why this target cannot go with "exact", "gauss_newton" or "quasi_newton"; None if it can."""
        return None


class LogDensity(Target):
    """log p(y | f) at the mean: Newton's method and the Laplace approximation, `eq:newton-target`."""

    name = "newton"
    energy = LaplaceEnergy
    objective = "log_joint"
    value_in_energy = True
    uses_covariance = False

    def expand(self, likelihood, y, marginal, cubature):
        at_mean = derivatives(lambda f: row_log_prob(likelihood, y, f), marginal.mean)
        return Expansion(*at_mean, covariance_gradient=jnp.zeros_like(at_mean.hessian))

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        return log_density_gauss_newton(likelihood, y, marginal.mean, kind)


class LinearisedDensity(Target):
    """log N(y | E[y|f], Cov[y|f]) linearised at the mean: the extended Kalman smoother, `eq:taylor-target`."""

    name = "taylor"
    energy = LaplaceEnergy
    needs_moments = True
    uses_covariance = False

    def expand(self, likelihood, y, marginal, cubature):
        slope = jax.jacfwd(lambda f: row_mean(likelihood, f))(marginal.mean)
        residual = y - row_mean(likelihood, marginal.mean)
        noise = row_covariance(likelihood, marginal.mean)
        hessian = -slope.T @ small_solve_psd(noise, slope)
        return Expansion(
            small_normal_log_density(residual, noise),
            slope.T @ small_solve_psd(noise, residual),
            hessian,
            jnp.zeros_like(hessian),
        )

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        return self.expand(likelihood, y, marginal, cubature).hessian

    def refuses(self, curvature):
        if curvature == "gauss_newton":
            return None
        return (
            "Taylor is Gauss-Newton by construction: leave curvature out, "
            "or use Newton(curvature=...) for the exact or quasi-Newton Hessian"
        )


class ExpectedLogDensity(Target):
    """E_q[log p(y | f)]: variational inference, `eq:vi-target`.

    `descent` keeps the Hessian consistent with the energy where nodes are too coarse for both, so that a short
    enough step always lowers the energy.
    """

    name = "vi"
    energy = VariationalFreeEnergy
    objective = "energy"
    value_in_energy = True
    descent: bool = eqx.field(static=True, default=False)

    def integrates(self, likelihood, cubature):
        return cubature is not None or not has_closed_form(likelihood)

    def expand(self, likelihood, y, marginal, cubature):
        expected = expected_log_density(likelihood, y, marginal, cubature, self.descent)
        return Expansion(*expected, covariance_gradient=0.5 * expected.hessian)

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        nodes, weights, _, _ = nodes_and_weights(moment_rule(likelihood, cubature), marginal)
        at_nodes = jax.vmap(lambda f: log_density_gauss_newton(likelihood, y, f, kind))(nodes)
        return jnp.tensordot(weights, at_nodes, axes=1)


class PowerDensity(Target):
    """(1/α) log E_cav[p(y | f)^α]: power expectation propagation, `eq:pep-target`."""

    name = "power_ep"
    energy = PowerEPEnergy
    value_in_energy = True
    alpha: float = eqx.field(static=True)

    def __check_init__(self):
        if not 0.0 < self.alpha <= 1.0:
            raise ValueError(f"alpha must be greater than 0 and at most 1, got {self.alpha!r}: use 1.0 for EP")

    @property
    def power(self) -> float:
        return self.alpha

    def expand(self, likelihood, y, marginal, cubature):
        closed = closed_log_expected_density(likelihood, y, marginal, self.alpha) if cubature is None else None
        if closed is not None:
            log_z = closed
        else:
            tilted = tilted_expectations(likelihood, y, marginal, cubature, self.alpha)
            log_z = _safe_log_z(tilted, raised(likelihood, self.alpha)[1])
        return Expansion(
            log_z.value / self.alpha,
            log_z.gradient / self.alpha,
            log_z.hessian / self.alpha,
            covariance_gradient_of_log_expectation(log_z) / self.alpha,
        )

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        raise NotImplementedError(self.refuses("gauss_newton"))

    def refuses(self, curvature):
        if curvature != "gauss_newton":
            return None
        return (
            "power EP has no Gauss-Newton form, because Bonnet's and Price's theorems do not apply to "
            "log E[p^α]: use QuasiNewton(), Heuristic() or Riemannian() instead"
        )


_QUADRATURE_TRUSTED, _QUADRATURE_USELESS = 1e-6, 1e-4
_LARGEST_TRUSTED, _LEAST_USELESS = 0.01, 0.1
_NARROW, _WIDE = 0.2, 0.8
"""Tilted variances, in units of the cavity's, of densities that are narrow and wide against it."""


def _safe_log_z(tilted: Tilted, power: Any) -> Derivatives:
    """Derivatives of log Z such that C⁻¹ + ∇² log Z is positive definite.

    V = I + Lᵀ(∇² log Z)L is the tilted covariance in units of the cavity's (C = LLᵀ). There are two ways to it:
    expectations of derivatives, which tend to VI as α → 0 but can lose positive definiteness to quadrature
    error, and the tilted moments at the nodes, which keep it for non-negative weights. They differ by quadrature
    error alone, of which the moments have less: they are taken where the two disagree. As α → 0 both forms of the
    site differ by a quadrature error that does not vanish, and expectations of derivatives are what VI has.

    Nodes that follow the density make both accurate, the first where it is wide against the cavity and V near I, the
    second where it is narrow and V near 0. No other rule can see a variance below its own resolution: where one node
    takes all the weight, that is what is left.
    """
    log_z, root = tilted.derivatives, tilted.root
    identity = jnp.eye(root.shape[0])
    # Where C is singular its root has zeros on the diagonal, and the first form is the only one there is.
    usable = jnp.all(jnp.diagonal(root) > 0.0)
    inverse_root = small_solve_lower(jnp.where(usable, root, identity), identity)
    followed = tilted.nodes.log_weights is not None
    resolved, floor = _resolve(tilted)
    moment_gradient = inverse_root.T @ tilted.mean_shift
    moment_hessian = inverse_root.T @ (resolved - identity) @ inverse_root

    covariance_error = identity + root.T @ log_z.hessian @ root - resolved
    shift_error = root.T @ log_z.gradient - tilted.mean_shift
    disagreement = (jnp.max(jnp.abs(covariance_error)) * root.shape[0] + jnp.sum(shift_error**2)) / floor
    trusted = jnp.minimum(_QUADRATURE_TRUSTED / power, _LARGEST_TRUSTED)
    useless = jnp.minimum(_QUADRATURE_USELESS / power, _LEAST_USELESS)
    if followed and not tilted.nodes.split.linear:
        disagreement, trusted, useless = -floor, -_WIDE, -_NARROW
    error = jnp.where(usable, disagreement, -jnp.inf)

    def mix(first, second):
        return blend_by_error(error, trusted, useless, first, second)

    mixed = Derivatives(log_z.value, mix(log_z.gradient, moment_gradient), mix(log_z.hessian, moment_hessian))
    return tilted.restore(mixed)


def _resolve(tilted: Tilted) -> tuple[Float[Array, "D D"], Float[Array, ""]]:
    """The tilted covariance, no smaller than the resolution of a fixed rule in latents with nodes; least eigenvalue."""
    count, whole = tilted.nodes.standard.shape[1], tilted.whitened_covariance
    if count == 0 or tilted.nodes.log_weights is not None:
        return whole, smallest_eigenvalue(whole)
    values, vectors = small_eigh(whole[:count, :count])
    values = jnp.maximum(values, resolution(tilted.nodes.rule, count))
    raised = symmetrise((vectors * values[None, :]) @ vectors.T)
    if count == whole.shape[0]:
        return raised, jnp.min(values)
    whole = whole.at[:count, :count].set(raised)
    return whole, smallest_eigenvalue(whole)


class StatisticalLinearisation(Target):
    """log N(y | E_q[E[y|f]], Ω): posterior linearisation, `eq:pl-target`.

    `slope="derivative"` takes ∇ₘ E_q[E[y|f]] at the nodes, as the paper does; `"regression"` takes
    QᵀC⁻¹, as the sigma-point smoothers of the signal-processing literature do.
    """

    name = "pl"
    energy = PowerEPEnergy
    needs_moments = True
    slope: str = eqx.field(static=True, default="derivative")

    def __check_init__(self):
        if self.slope not in ("derivative", "regression"):
            raise ValueError(f'slope must be "derivative" or "regression", got {self.slope!r}')

    def expand(self, likelihood, y, marginal, cubature):
        rule = moment_rule(likelihood, cubature)
        fitted, noise = linearise(likelihood, marginal, rule)
        by = slope_by_regression if self.slope == "regression" else slope_by_derivative
        slope = by(likelihood, marginal, rule)

        def with_fixed_noise(covariance):
            return small_normal_log_density(y - fitted_in_covariance(likelihood, marginal, covariance, rule), noise)

        return Expansion(
            small_normal_log_density(y - fitted, noise),
            slope.T @ small_solve_psd(noise, y - fitted),
            -slope.T @ small_solve_psd(noise, slope),
            symmetrise(jax.grad(with_fixed_noise)(marginal.covariance)),
        )

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        return self.expand(likelihood, y, marginal, cubature).hessian

    def refuses(self, curvature):
        if curvature != "exact":
            return None
        return (
            "posterior linearisation is Gauss-Newton by construction: leave curvature out, "
            "or use PosteriorLinearisation(order=2) for its exact Hessian"
        )


class SecondOrderLinearisation(Target):
    """The target of posterior linearisation with Ω's own derivatives: PL2, `eq:pl-newton-target`.

    For likelihoods that are not Gaussian given f the normaliser and the gradient of Ω are left out, so that
    its Gauss-Newton form is posterior linearisation itself.
    """

    name = "pl2"
    energy = PowerEPEnergy
    needs_moments = True

    def expand(self, likelihood, y, marginal, cubature):
        rule = moment_rule(likelihood, cubature)
        _, fixed_noise = linearise(likelihood, marginal, rule)

        def in_mean(mean):
            fitted, noise = linearise(likelihood, Gaussian(mean, marginal.covariance), rule)
            return small_normal_log_density(y - fitted, noise if likelihood.gaussian_form else fixed_noise)

        def in_covariance(covariance):
            fitted = fitted_in_covariance(likelihood, marginal, covariance, rule)
            noise = fixed_noise
            if likelihood.gaussian_form:
                noise = noise_in_covariance(likelihood, marginal, covariance, rule)
            return small_normal_log_density(y - fitted, noise)

        value, gradient, hessian = derivatives(in_mean, marginal.mean)
        return Expansion(value, gradient, hessian, symmetrise(jax.grad(in_covariance)(marginal.covariance)))

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        rule = moment_rule(likelihood, cubature)
        if _resolve_kind(kind, likelihood) == "generalised":
            return StatisticalLinearisation().gauss_newton(likelihood, y, marginal, rule, kind)

        def moments(mean):
            return linearise(likelihood, Gaussian(mean, marginal.covariance), rule)

        return _gauss_newton_of_gaussian(moments, y, marginal.mean, _resolve_kind(kind, likelihood))


# Gauss-Newton curvature of log p(y | f) ---------------------------------------------------------


def _resolve_kind(kind: str, likelihood: Likelihood) -> str:
    """What "auto" means: partial for Gaussian likelihoods, generalised for all others."""
    if kind != "auto":
        return kind
    return "partial" if likelihood.gaussian_form else "generalised"


def log_density_gauss_newton(
    likelihood: Likelihood, y: Float[Array, " P"], f: Float[Array, " D"], kind: str
) -> Float[Array, "D D"]:
    """Full `eq:gauss-newton`, partial `eq:pgn` or generalised `eq:ggn` Gauss-Newton Hessian at f."""
    kind = _resolve_kind(kind, likelihood)
    if kind == "generalised":
        slope = jax.jacfwd(lambda g: row_mean(likelihood, g))(f)
        half = small_solve_lower(small_root(row_covariance(likelihood, f)), slope)
        return -half.T @ half

    return _gauss_newton_of_gaussian(lambda g: (row_mean(likelihood, g), row_covariance(likelihood, g)), y, f, kind)


def _gauss_newton_of_gaussian(
    moments: Callable, y: Float[Array, " P"], at: Float[Array, " D"], kind: str
) -> Float[Array, "D D"]:
    """Full or partial Gauss-Newton Hessian of log N(y | mean, noise), both functions of where it is taken."""

    def residual(point):
        mean, noise = moments(point)
        return small_solve_lower(small_root(noise), y - mean)

    jacobian = jax.jacfwd(residual)(at)
    hessian = -jacobian.T @ jacobian
    if kind == "partial":
        slope = jax.jacfwd(lambda point: -0.5 * small_log_det(moments(point)[1]))(at)
        hessian = hessian - outer(slope, slope)
    return hessian
