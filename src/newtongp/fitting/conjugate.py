"""The exact energy and its gradient where y is a linear function of f plus Gaussian noise.

The sites are then the likelihood itself, p(y | f) = N(y | A f + b, Σ), so that λ = AᵀΣ⁻¹(y − b) and Λ = AᵀΣ⁻¹A whatever
the marginals. Nothing iterates, and every energy is

    −log p(y) = −Σₙ log p(yₙ | mₙ) + ½ (m − μ)ᵀK⁻¹(m − μ) + ½ log det(I + ΛK),

which is stationary in m: its gradient is that at a fixed m.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..inference.loop import Report, Trail
from ..inference.problem import Problem
from ..inference.steps.endings import failure_of, is_sound
from ..likelihoods.base import Likelihood, over_rows, row_log_prob
from ..likelihoods.weighted import Weighted, unweighted
from ..methods.rule import Method, constant_unless
from ..methods.weights import times
from ..numerics.gaussian import Sites
from ..numerics.small import small_solve_psd, symmetrise
from ..results.status import Status

_EXACT = ("exact", "gauss_newton")


def is_conjugate(problem: Problem, method: Method) -> bool:
    """Whether the method's sites are the likelihood itself."""
    likelihood = problem.likelihood
    linear = tuple(likelihood.linear_latents) == tuple(range(likelihood.num_latents))
    plain = method.curvature.name in _EXACT and method.safeguard is None and method.cubature is None
    return linear and plain and method.energy is not None and problem.workspace.residual_covariance() is None


def exact_energy(problem: Problem) -> tuple[Float[Array, ""], Report]:
    """−log p(y), differentiable in the hyperparameters, and the report of inference."""
    rows = problem.y, problem.observed
    sites = over_rows(_site, problem.likelihood, rows)
    found = problem.workspace.settled(sites, psd=True)
    marginals = jax.lax.stop_gradient(found.marginals)
    log_prob = over_rows(_log_prob, problem.likelihood, (*rows, marginals.mean))
    energy = 0.5 * (found.distance + found.log_det) - jnp.sum(log_prob)
    sound = is_sound(found.proper, True, energy)
    status = jnp.where(sound, Status.CONVERGED.value, failure_of(found.proper, True))
    nothing, none = jnp.zeros(()), jnp.zeros(0)
    report = Report(sites, marginals, None, energy, nothing, jnp.zeros((), dtype=int), status, Trail(none, none, none))
    return energy, jax.lax.stop_gradient(report)


def _site(likelihood: Likelihood, y: Float[Array, " P"], observed: Bool[Array, ""]) -> Sites:
    likelihood = constant_unless(observed, likelihood)
    matrix, offset, noise = unweighted(likelihood).linear_form(jnp.zeros(0))
    weights = small_solve_psd(noise, matrix)
    site = Sites(weights.T @ (y - offset), symmetrise(weights.T @ matrix))
    if isinstance(likelihood, Weighted):
        site = times(site, likelihood.weights)
    return jax.tree.map(lambda leaf: jnp.where(observed, leaf, 0.0), site)


def _log_prob(likelihood: Likelihood, y: Any, observed: Bool[Array, ""], mean: Float[Array, " D"]) -> Float[Array, ""]:
    likelihood = constant_unless(observed, likelihood)
    return jnp.where(observed, row_log_prob(likelihood, y, mean), 0.0)
