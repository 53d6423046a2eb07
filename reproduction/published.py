"""What the published code did beside the paper's equations, or in place of them. The library itself does none of this.

Beside them: cavities carry a jitter, power EP treats some rows as missing, quasi-Newton starts from an artificial pair
and blends its matrices, densities have a floor. In place of them: the Gauss-Newton curvature of `sec:hsced`, PL2
Gauss-Newton in its full form on product (`catalogue`), and power EP quasi-Newton. Not emulated: a jitter in the
interpolation to test inputs, which moves NLPDs by less than 1e-6.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from newtongp.likelihoods.base import Likelihood, row_covariance, row_log_prob
from newtongp.methods.curvature import Curvature, QuasiNewton, QuasiNewtonState
from newtongp.methods.energy import PowerEPEnergy
from newtongp.methods.expectation import log_expected_density, tilted_expectations
from newtongp.methods.linearisation import linearise
from newtongp.methods.local_expansion import LocalExpansion
from newtongp.methods.rule import Method, evaluate, propose, rescale
from newtongp.methods.target import Expansion, Target
from newtongp.numerics.cubature import Cubature, nodes_and_weights
from newtongp.numerics.gaussian import Gaussian, Sites
from newtongp.numerics.small import is_positive_definite, small_log_det, small_root, symmetrise

JITTER = 1e-8
"""Added to marginal variances before a cavity is taken."""

LOST_PRECISION = 1e-6
"""What the sites of lost rows get."""


def jittered(gaussian: Gaussian, jitter: float = JITTER) -> Gaussian:
    """The Gaussian with a jitter on its variances, one row or many.

    The cavity of the result is the published one: P = (C + 1e-8·I)⁻¹, C_cav = (P − αΛ)⁻¹, m_cav = C_cav(P m − αλ).
    """
    identity = jnp.eye(gaussian.mean.shape[-1])
    return Gaussian(gaussian.mean, gaussian.covariance + jitter * jnp.broadcast_to(identity, gaussian.covariance.shape))


def floored_log_density(
    likelihood: Likelihood,
    y: Float[Array, " P"],
    gaussian: Gaussian,
    cubature: Cubature | None,
    power: float,
    floor: float,
) -> Float[Array, ""]:
    """log max(E[p(y | f)^α], floor): a rule with negative weights can give a density that is negative."""
    if floor == 0.0 or cubature is None:
        return log_expected_density(likelihood, y, gaussian, cubature, power)
    return jnp.log(jnp.maximum(_expected_power(likelihood, y, gaussian, cubature, power), floor))


def _expected_power(
    likelihood: Likelihood, y: Float[Array, " P"], gaussian: Gaussian, cubature: Cubature, power: float
) -> Float[Array, ""]:
    """E[p(y | f)^α] as the sum over nodes, of either sign."""
    nodes, weights, _, _ = nodes_and_weights(cubature, gaussian)
    return weights @ jnp.exp(power * jax.vmap(lambda f: row_log_prob(likelihood, y, f))(nodes))


# Targets and curvatures -------------------------------------------------------------------------------


class PowerDensityAtNodes(Target):
    """(1/α) log max(E_cav[p(y | f)^α], floor) as its sum over nodes has it, `eq:pep-target`.

    Without the hand-over to tilted moments with which the library meets quadrature error. The gradient in the
    covariance is that of the sum itself. Below the floor all derivatives are zero.
    """

    name = "power_ep"
    energy = PowerEPEnergy
    alpha: float = eqx.field(static=True)
    floor: float = eqx.field(static=True, default=0.0)

    @property
    def power(self) -> float:
        return self.alpha

    def expand(self, likelihood, y, marginal, cubature):
        def in_covariance(covariance):
            gaussian = Gaussian(marginal.mean, covariance)
            return floored_log_density(likelihood, y, gaussian, cubature, self.alpha, self.floor)

        value, gradient, hessian = tilted_expectations(likelihood, y, marginal, cubature, self.alpha).derivatives
        if self.floor > 0.0 and cubature is not None:
            # The published code differentiates log max(Z, floor), which is flat where the floor is the larger.
            above = _expected_power(likelihood, y, marginal, cubature, self.alpha) > self.floor
            value = jnp.where(above, value, math.log(self.floor))
            gradient, hessian = (jnp.where(above, each, 0.0) for each in (gradient, hessian))
        slope = symmetrise(jax.grad(in_covariance)(marginal.covariance))
        return Expansion(value / self.alpha, gradient / self.alpha, hessian / self.alpha, slope / self.alpha)

    def gauss_newton(self, likelihood, y, marginal, cubature, kind):
        raise NotImplementedError("power EP has no Gauss-Newton form")


class ScalarGaussNewton(Curvature):
    """The Gauss-Newton curvature of the published motorcycle runs: −JᵀJ − ‖∇log Z‖² in *every* entry.

    `eq:pgn` has the outer product ∇log Z ∇log Zᵀ in the place of the scalar.
    """

    name = "gauss_newton"
    keeps_psd = True

    def evaluate(self, target, likelihood, y, marginal, cubature, expansion):
        full = target.gauss_newton(likelihood, y, marginal, cubature, "full")
        size = self._squared_slope(target, likelihood, marginal, cubature)
        return full - size * jnp.ones_like(full)

    def _squared_slope(self, target, likelihood, marginal, cubature):
        """E[‖∇log Z‖²], with log Z = −½ log det of the target's noise."""

        def of_likelihood(f):
            return -0.5 * small_log_det(row_covariance(likelihood, f))

        def of_linearisation(mean):
            return -0.5 * small_log_det(linearise(likelihood, Gaussian(mean, marginal.covariance), cubature)[1])

        if target.name == "newton":
            return jnp.sum(jax.jacfwd(of_likelihood)(marginal.mean) ** 2)
        if target.name == "pl2":
            return jnp.sum(jax.jacfwd(of_linearisation)(marginal.mean) ** 2)
        nodes, weights, _, _ = nodes_and_weights(cubature, marginal)
        return weights @ jnp.sum(jax.vmap(jax.jacfwd(of_likelihood))(nodes) ** 2, axis=1)

    def initial_state(self, target, num_latents):
        return None

    def advance(self, expansion, state):
        return expansion.hessian, state

    def carry(self, old, new, step_size):
        return new


FIRST_VARIANCE = 100.0
"""The artificial first pair's point has mean 0 and this variance; also the size of B₀."""


def published_quasi_newton(damping: float) -> QuasiNewton:
    """Damped BFGS as in the experiments: B₀ = −100·I, and the B that is carried on blended like the sites."""
    return QuasiNewton(damping=damping, initial=FIRST_VARIANCE, blend=True, steepest=None)


def first_pair(target: Target, latents: int) -> QuasiNewtonState:
    """Quasi-Newton's memory before the first update: η = (0, vec(100·I)) with gradient 0, and B₀ = −100·I."""
    point = jnp.zeros(latents)
    if target.uses_covariance:
        point = jnp.concatenate([point, jnp.ravel(FIRST_VARIANCE * jnp.eye(latents))])
    matrix = -FIRST_VARIANCE * jnp.eye(point.shape[0])
    return QuasiNewtonState(matrix, point, jnp.zeros_like(point), jnp.ones((), dtype=bool))


class PublishedAdam(eqx.Module):
    """Adam as in the published runs: β₂ = 0.99, and its small constant inside the root, before bias is corrected."""

    parameters: Any
    first: Any
    second: Any
    count: Float[Array, ""]

    @classmethod
    def start(cls, parameters: Any) -> "PublishedAdam":
        """No moments yet."""
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return cls(parameters, zeros, zeros, jnp.zeros(()))

    def advance(self, gradient: Any, learning_rate: Any) -> "PublishedAdam":
        """One step."""
        count = self.count + 1.0
        first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), self.first, gradient)
        second = jax.tree.map(lambda v, g: v + 0.01 * (g**2 - v), self.second, gradient)
        rate = learning_rate * jnp.sqrt(1.0 - 0.99**count) / (1.0 - 0.9**count)
        moved = jax.tree.map(lambda p, m, v: p - rate * m * jax.lax.rsqrt(v + 1e-8), self.parameters, first, second)
        return PublishedAdam(moved, first, second, count)


# One row's update -------------------------------------------------------------------------------------


class RowRule(eqx.Module):
    """How an experiment updates one row's site."""

    method: eqx.AbstractVar[Method]

    def start(self, latents: int) -> Any:
        """What one row carries from iteration to iteration."""
        curvature, target = self.method.curvature, self.method.target
        if isinstance(curvature, QuasiNewton):
            return first_pair(target, latents)
        return curvature.initial_state(target, latents)

    @abc.abstractmethod
    def look(
        self, likelihood: Likelihood, y: Float[Array, " P"], marginal: Gaussian, site: Sites
    ) -> tuple[LocalExpansion, Bool[Array, ""]]:
        """The row's likelihood around its marginal, and whether the cavity that this needs is proper."""

    @abc.abstractmethod
    def propose(
        self, expansion: LocalExpansion, site: Sites, memory: Any, step_size: Float[Array, ""]
    ) -> tuple[Sites, Any]:
        """The proposed site, and what to carry on."""


_OBSERVED = True


def _expand(method: Method, likelihood, y, marginal, site) -> tuple[LocalExpansion, Bool[Array, ""]]:
    expansion, numbers = evaluate(method, likelihood, y, jnp.asarray(_OBSERVED), marginal, site)
    always = jnp.ones((), dtype=bool)
    return expansion, numbers.proper if method.target.power > 0.0 else always


class ByTheEquations(RowRule):
    """The library's own rule."""

    method: Method

    def look(self, likelihood, y, marginal, site):
        return _expand(self.method, likelihood, y, marginal, site)

    def propose(self, expansion, site, memory, step_size):
        return propose(self.method, expansion, jnp.asarray(_OBSERVED), site, memory, step_size)


class PublishedPowerEP(RowRule):
    """The library's rule on jittered cavities, with rows treated as missing where αH + C_cav⁻¹ is not PSD.

    Exact integrals never lose positive definiteness there; nodes can. `lost` is the precision that such a row's
    site gets, with λ = 0.
    """

    method: Method
    lost: Any

    def look(self, likelihood, y, marginal, site):
        return _expand(self.method, likelihood, y, jittered(marginal), site)

    def propose(self, expansion, site, memory, step_size):
        proposed, carried = propose(self.method, expansion, jnp.asarray(_OBSERVED), site, memory, step_size)
        root = small_root(expansion.point.covariance)
        tilted = jnp.eye(root.shape[0]) + self.method.target.power * root.T @ expansion.hessian @ root
        usable = is_positive_definite(tilted)
        return (
            Sites(
                jnp.where(usable, proposed.linear, 0.0),
                jnp.where(usable, proposed.precision, self.lost),
            ),
            carried,
        )


class PublishedPowerEPQuasiNewton(RowRule):
    """Power EP quasi-Newton as published: B approximates the Hessian of log E_cav[p^α], without the 1/α.

    R = C⁻¹(−B + C⁻¹)⁻¹, J = (1/α) R ∇log E[p^α], H = (1/α) R B; `eq:quasi-newton-pep-target` has +αB in R.
    """

    method: Method

    def look(self, likelihood, y, marginal, site):
        return _expand(self.method, likelihood, y, jittered(marginal), site)

    def propose(self, expansion, site, memory, step_size):
        power = self.method.target.power
        slope = expansion.covariance_gradient
        scaled = LocalExpansion(
            expansion.point,
            power * expansion.gradient,
            power * expansion.hessian,
            None if slope is None else power * slope,
        )
        matrix, carried = self.method.curvature.advance(scaled, memory)
        gradient, hessian = rescale(scaled.gradient, matrix, expansion.point.covariance, -1.0)
        precision = -hessian / power
        return Sites(gradient / power + precision @ expansion.point.mean, precision), carried
