"""The six surrogate targets that a method expands around one row's marginal (`tab:targets`).

A target answers two questions about one row: what are the value, gradient and Hessian of the target in the
mean, and what is its Gauss-Newton curvature. It knows nothing of priors, of other rows, or of steps.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..cubature import Cubature, nodes_and_weights, resolution
from ..gaussian import Gaussian
from ..likelihoods.base import Likelihood, row_covariance, row_log_prob, row_mean
from ..linalg import (
    outer,
    raise_eigenvalues,
    small_log_det,
    small_root,
    small_solve,
    small_solve_lower,
    small_solve_lower_transposed,
    small_solve_psd,
    smallest_eigenvalue,
    symmetrise,
)
from .expectation import (
    Derivatives,
    Tilted,
    closed_log_expected_density,
    covariance_gradient_of_log_expectation,
    derivatives,
    expected_log_density,
    hand_over,
    rule_or_default,
    tilted_expectations,
)


class Expansion(eqx.Module):
    """A target around one marginal: value, gradient and Hessian in the mean, gradient in the covariance."""

    value: Float[Array, "*rows"]
    gradient: Float[Array, "*rows D"]
    hessian: Float[Array, "*rows D D"]
    covariance_gradient: Float[Array, "*rows D D"]


class Target(eqx.Module):
    """What a method expands: L̄(m, C) for one row, `tab:targets`."""

    name: ClassVar[str]
    energy: ClassVar[str]
    """Which energy goes with it: "vfe", "laplace" or "pep"."""
    needs_moments: ClassVar[bool] = False
    """Whether the likelihood must give E[y | f] and Cov[y | f]."""
    uses_covariance: ClassVar[bool] = True
    """Whether the target depends on C, so that quasi-Newton acts on (m, vec C)."""

    @property
    def power(self) -> float:
        """The fraction of the site taken out before expanding: 0 for all but power EP."""
        return 0.0

    @abc.abstractmethod
    def expand(
        self, likelihood: Likelihood, y: Float[Array, " P"], marginal: Gaussian, cubature: Cubature | None
    ) -> Expansion:
        """The target around this marginal (or cavity)."""

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

    def refuses(self, curvature: str) -> str | None:
        """Why this target cannot go with "exact", "gauss_newton" or "quasi_newton"; None if it can."""
        return None


class LogDensity(Target):
    """log p(y | f) at the mean: Newton's method and the Laplace approximation, `eq:newton-target`."""

    name = "newton"
    energy = "laplace"
    uses_covariance = False

    def expand(self, likelihood, y, marginal, cubature):
        at_mean = derivatives(lambda f: row_log_prob(likelihood, y, f), marginal.mean)
        return Expansion(*at_mean, covariance_gradient=jnp.zeros_like(at_mean.hessian))

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        return log_density_gauss_newton(likelihood, y, marginal.mean, kind)


class LinearisedDensity(Target):
    """log N(y | E[y|f], Cov[y|f]) linearised at the mean: the extended Kalman smoother, `eq:taylor-target`."""

    name = "taylor"
    energy = "laplace"
    needs_moments = True
    uses_covariance = False

    def expand(self, likelihood, y, marginal, cubature):
        mean = lambda f: row_mean(likelihood, f)  # noqa: E731
        slope = jax.jacfwd(mean)(marginal.mean)
        residual = y - mean(marginal.mean)
        noise = row_covariance(likelihood, marginal.mean)
        hessian = -slope.T @ small_solve_psd(noise, slope)
        return Expansion(
            _gaussian_log_density(residual, noise),
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
    energy = "vfe"
    descent: bool = eqx.field(static=True, default=False)

    def expand(self, likelihood, y, marginal, cubature):
        expected = expected_log_density(likelihood, y, marginal, cubature, self.descent)
        return Expansion(*expected, covariance_gradient=0.5 * expected.hessian)

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        rule = rule_or_default(cubature, marginal.mean.shape[0])
        nodes, weights, _, _ = nodes_and_weights(rule, marginal)
        at_nodes = jax.vmap(lambda f: log_density_gauss_newton(likelihood, y, f, kind))(nodes)
        return jnp.tensordot(weights, at_nodes, axes=1)


class PowerDensity(Target):
    """(1/α) log E_cav[p(y | f)^α]: power expectation propagation, `eq:pep-target`."""

    name = "power_ep"
    energy = "pep"
    alpha: float = eqx.field(static=True)

    @property
    def power(self) -> float:
        return self.alpha

    def expand(self, likelihood, y, marginal, cubature):
        closed = closed_log_expected_density(likelihood, y, marginal, self.alpha) if cubature is None else None
        if closed is not None:
            log_z = closed
        else:
            rule = rule_or_default(cubature, marginal.mean.shape[0])
            tilted = tilted_expectations(likelihood, y, marginal, rule, self.alpha)
            log_z = _safe_log_z(tilted, resolution(rule, marginal.mean.shape[0]))
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


_QUADRATURE_TRUSTED, _QUADRATURE_USELESS = 0.01, 0.1


def _safe_log_z(tilted: Tilted, resolution: float) -> Derivatives:
    """Derivatives of log Z such that C⁻¹ + ∇² log Z is positive definite.

    V = I + Lᵀ(∇² log Z)L is the tilted covariance in units of the cavity's (C = LLᵀ). There are two ways to it:
    expectations of derivatives, which tend to VI as α → 0 but can lose positive definiteness to quadrature
    error, and the tilted moments at the nodes, which keep it for non-negative weights. They differ by quadrature
    error alone, so that error decides: the first where they agree, the second where they do not.

    No rule can see a variance below its own `resolution`: where one node takes all the weight, that is what is left.
    """
    log_z, root = tilted.derivatives, tilted.root
    identity = jnp.eye(root.shape[0])
    # Where C is singular its root has zeros on the diagonal, and the first form is the only one there is.
    usable = jnp.all(jnp.diagonal(root) > 0.0)
    inverse_root = small_solve_lower(jnp.where(usable, root, identity), identity)
    resolved = raise_eigenvalues(tilted.whitened_covariance, resolution)
    moment_gradient = inverse_root.T @ tilted.mean_shift
    moment_hessian = inverse_root.T @ (resolved - identity) @ inverse_root

    floor = smallest_eigenvalue(resolved)
    covariance_error = identity + root.T @ log_z.hessian @ root - resolved
    shift_error = root.T @ log_z.gradient - tilted.mean_shift
    disagreement = (jnp.max(jnp.abs(covariance_error)) * root.shape[0] + jnp.sum(shift_error**2)) / floor
    error = jnp.where(usable, disagreement, 0.0)

    def mix(first, second):
        return hand_over(error, _QUADRATURE_TRUSTED, _QUADRATURE_USELESS, first, second)

    return Derivatives(log_z.value, mix(log_z.gradient, moment_gradient), mix(log_z.hessian, moment_hessian))


class StatisticalLinearisation(Target):
    """log N(y | E_q[E[y|f]], Ω): posterior linearisation, `eq:pl-target`.

    `slope="derivative"` takes ∇ₘ E_q[E[y|f]] at the nodes, as the paper does; `"regression"` takes
    QᵀC⁻¹, as the sigma-point smoothers of the signal-processing literature do.
    """

    name = "pl"
    energy = "pep"
    needs_moments = True
    slope: str = eqx.field(static=True, default="derivative")

    def expand(self, likelihood, y, marginal, cubature):
        rule = rule_or_default(cubature, marginal.mean.shape[0])
        moments = _linearise(likelihood, marginal, rule, self.slope)
        residual = y - moments.mean
        noise = jax.lax.stop_gradient(moments.noise)

        def with_fixed_noise(covariance):
            fitted = _expected_mean(likelihood, marginal, covariance, rule)
            return _gaussian_log_density(y - fitted, noise)

        return Expansion(
            _gaussian_log_density(residual, noise),
            moments.slope.T @ small_solve_psd(noise, residual),
            -moments.slope.T @ small_solve_psd(noise, moments.slope),
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
    energy = "pep"
    needs_moments = True

    def expand(self, likelihood, y, marginal, cubature):
        rule = rule_or_default(cubature, marginal.mean.shape[0])
        in_mean = lambda m: self._value(likelihood, y, m, marginal, rule)  # noqa: E731
        value, gradient, hessian = derivatives(in_mean, marginal.mean)

        def in_covariance(covariance):
            return self._value(likelihood, y, marginal.mean, marginal, rule, covariance)

        return Expansion(value, gradient, hessian, symmetrise(jax.grad(in_covariance)(marginal.covariance)))

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        rule = rule_or_default(cubature, marginal.mean.shape[0])
        if _resolve_kind(kind, likelihood) == "generalised":
            return StatisticalLinearisation().gauss_newton(likelihood, y, marginal, rule, kind)

        def residual(m):
            moments = _linearise(likelihood, Gaussian(m, marginal.covariance), rule, "none")
            return small_solve_lower(small_root(moments.noise), y - moments.mean)

        def log_normaliser(m):
            return -0.5 * small_log_det(_linearise(likelihood, Gaussian(m, marginal.covariance), rule, "none").noise)

        jacobian = jax.jacfwd(residual)(marginal.mean)
        hessian = -jacobian.T @ jacobian
        if _resolve_kind(kind, likelihood) == "partial":
            slope = jax.jacfwd(log_normaliser)(marginal.mean)
            hessian = hessian - outer(slope, slope)
        return hessian

    def _value(self, likelihood, y, mean, marginal, rule, covariance=None):
        """L̄ as a function of the mean, and of the covariance where one is given."""
        here = Gaussian(mean, marginal.covariance)
        if covariance is None:
            moments = _linearise(likelihood, here, rule, "none")
            fitted, noise = moments.mean, moments.noise
        else:
            fitted = _expected_mean(likelihood, here, covariance, rule)
            noise = _expected_noise(likelihood, here, covariance, rule)
        if not likelihood.gaussian_form:
            fixed = _linearise(likelihood, marginal, rule, "none").noise
            noise = jax.lax.stop_gradient(fixed)
        return _gaussian_log_density(y - fitted, noise)


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

    def residual(g):
        return small_solve_lower(small_root(row_covariance(likelihood, g)), y - row_mean(likelihood, g))

    jacobian = jax.jacfwd(residual)(f)
    hessian = -jacobian.T @ jacobian
    if kind == "partial":
        slope = jax.jacfwd(lambda g: -0.5 * small_log_det(row_covariance(likelihood, g)))(f)
        hessian = hessian - outer(slope, slope)
    return hessian


# Statistical linear regression ------------------------------------------------------------------


class _Linearisation(eqx.Module):
    """E_q[E[y|f]], the slope, and Ω = S − QᵀC⁻¹Q with the rule's own S and Q (`eq:gauss-filt-components`)."""

    mean: Float[Array, " P"]
    slope: Float[Array, "P D"]
    noise: Float[Array, "P P"]


def _linearise(likelihood: Likelihood, marginal: Gaussian, rule: Cubature, slope: str) -> _Linearisation:
    # The root is held fixed: derivatives in the mean do not pass through it.
    nodes, weights, standard, root = nodes_and_weights(rule, marginal)
    at_nodes = jax.vmap(lambda f: row_mean(likelihood, f))(nodes)
    noises = jax.vmap(lambda f: row_covariance(likelihood, f))(nodes)
    mean = weights @ at_nodes
    centred = at_nodes - mean[None, :]
    # With f = m + Lz: QᵀC⁻¹Q = E[z ν]ᵀ E[z ν], which needs no inverse of C.
    whitened = jnp.einsum("s,si,sj->ij", weights, standard, centred)
    total = jnp.einsum("s,si,sj->ij", weights, centred, centred) + jnp.tensordot(weights, noises, axes=1)
    noise = total - whitened.T @ whitened
    if slope == "derivative":
        jacobians = jax.vmap(jax.jacfwd(lambda f: row_mean(likelihood, f)))(nodes)
        matrix = jnp.tensordot(weights, jacobians, axes=1)
    elif slope == "regression":
        matrix = small_solve_lower_transposed(root, whitened).T
    else:
        matrix = jnp.zeros((mean.shape[0], root.shape[0]))  # nobody asked
    return _Linearisation(mean, matrix, noise)


def _price(function, marginal: Gaussian, covariance: Float[Array, "D D"], rule: Cubature):
    """E[h(f)] whose derivative in the covariance is ½ E[∇²h] (Price), and in the mean E[∇h] (Bonnet)."""
    nodes, weights, _, _ = nodes_and_weights(rule, jax.lax.stop_gradient(marginal))
    nodes = nodes + (marginal.mean - jax.lax.stop_gradient(marginal.mean))[None, :]
    change = covariance - jax.lax.stop_gradient(covariance)

    def at(f):
        second = jax.jacfwd(jax.jacfwd(function))(f)
        return function(f) + 0.5 * jnp.tensordot(second, change, axes=2)

    return jnp.tensordot(weights, jax.vmap(at)(nodes), axes=1)


def _expected_mean(likelihood, marginal: Gaussian, covariance, rule):
    return _price(lambda f: row_mean(likelihood, f), marginal, covariance, rule)


def _expected_noise(likelihood, marginal: Gaussian, covariance, rule):
    """Ω with its true derivative in the covariance."""

    def second_moment(f):
        fitted = row_mean(likelihood, f)
        return outer(fitted, fitted) + row_covariance(likelihood, f)

    mean = _expected_mean(likelihood, marginal, covariance, rule)
    total = _price(second_moment, marginal, covariance, rule) - outer(mean, mean)
    cross = _price(lambda f: outer(f - marginal.mean, row_mean(likelihood, f)), marginal, covariance, rule)
    return total - cross.T @ small_solve(covariance, cross)


def _gaussian_log_density(residual: Float[Array, " P"], noise: Float[Array, "P P"]) -> Float[Array, ""]:
    size = residual.shape[0]
    quadratic = residual @ small_solve_psd(noise, residual)
    return -0.5 * (size * np.log(2.0 * np.pi) + small_log_det(noise) + quadratic)
