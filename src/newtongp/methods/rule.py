"""One row's update: target → curvature → rescale → safeguard → proposed site.

Split in two, because the step decides in between: `evaluate` looks at the likelihood around the current
marginal (and is all that is ever recomputed), `propose` turns that into a site for a given step size.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..likelihoods.base import Likelihood
from ..numerics.cubature import Cubature, check_cubature
from ..numerics.gaussian import Gaussian, Sites, add_covariance, cavity
from ..numerics.small import small_root, small_solve, symmetrise
from ..numerics.trees import select
from .curvature import Curvature, QuasiNewton, keep_tilted_positive
from .energy import Energy, RowEnergy, declared_energy
from .local_expansion import LocalExpansion
from .safeguard import Riemannian, Safeguard
from .target import Target
from .weights import copies_of, divided, times


class Method(eqx.Module):
    """A target, a curvature, a safeguard and an integration rule: everything local about inference.

    The presets (`VI`, `Newton`, `PowerEP`, ...) are assignments of this class; a new method is one more.
    """

    target: Target
    curvature: Curvature
    safeguard: Safeguard | None = None
    cubature: Cubature | None = None

    def __check_init__(self):
        _check_part(self.target, Target, "target", "target.ExpectedLogDensity()")
        _check_part(self.curvature, Curvature, "curvature", "Exact(), GaussNewton() or QuasiNewton()")
        _check_part(self.safeguard, Safeguard, "safeguard", "None, Heuristic() or Riemannian()")
        check_cubature(self.cubature)
        reason = self.target.energy_problem or self.target.refuses(self.curvature.name)
        if reason is not None:
            raise ValueError(reason)

    @property
    def energy(self) -> Energy | None:
        """The energy that the target declares, with cavities of its power; None if the target brings one of its own.

        Posterior linearisation, which expands at the marginal, has the energy of EP.
        """
        declared = declared_energy(self.target.energy)
        return None if declared is None else declared.with_power(self.target.power or 1.0)

    @property
    def objective(self) -> str | None:
        """What its fixed points make stationary: "vfe", "log_joint", or "energy" for an energy of the target's own.

        None where there is no such thing.
        """
        if self.safeguard is not None:
            return None
        # The log joint depends on the mean alone, which Gauss-Newton moves along the exact gradient.
        exact = ("exact", "gauss_newton") if self.target.objective == "log_joint" else ("exact",)
        if self.curvature.name not in exact:
            return None
        declared = declared_energy(self.target.energy)
        is_free_energy = declared is not None and declared.is_free_energy
        return "vfe" if self.target.objective == "energy" and is_free_energy else self.target.objective

    def row_energy(
        self,
        likelihood: Likelihood,
        y: Float[Array, " P"],
        marginal: Gaussian,
        site: Sites,
        residual_covariance: Float[Array, "D D"] | None,
        known: Float[Array, ""] | None = None,
    ) -> RowEnergy:
        """One row's share of the energy that goes with the target; `known` is that of one copy of the row."""
        copies = copies_of(likelihood)
        likelihood, site = copies.likelihood, divided(site, copies.number)
        if self.energy is None:
            around = add_covariance(marginal, residual_covariance)
            value = self.target.row_energy(likelihood, y, around, marginal, site, self.cubature)
            return RowEnergy(times(jnp.asarray(value), copies.number), jnp.ones((), dtype=bool))
        one = self.energy.row(likelihood, y, marginal, site, self.cubature, residual_covariance, known)
        return one._replace(value=times(one.value, copies.number))

    @property
    def keeps_psd(self) -> bool:
        """Whether every site precision is PSD whatever the data."""
        return self.curvature.keeps_psd or (self.safeguard is not None and self.safeguard.keeps_psd)

    def expects_psd(self, likelihood: Likelihood) -> bool:
        """Whether site precisions are PSD, by the method or because log p(y | f) is concave in f.

        With several latents sums over nodes can bend a direction that is flat, as softmax has one, the wrong way.
        """
        concave = likelihood.log_concave and likelihood.num_latents == 1
        # PL2, and a target with an energy of its own, expand something else, which need not be concave with log p.
        follows = declared_energy(self.target.energy) is not None and self.target.name != "pl2"
        return self.keeps_psd or (concave and follows)

    @property
    def is_stationary(self) -> bool:
        """Whether the same sites always give the same proposal.

        Quasi-Newton and Adam remember, and the Riemannian term depends on the step size.
        """
        return not self.curvature.remembers and not isinstance(self.safeguard, Riemannian)

    @property
    def is_plain(self) -> bool:
        """Whether the target's own Hessian is used as it is."""
        return self.curvature.name == "exact" and self.safeguard is None

    @property
    def initial_precision(self) -> float:
        """Sites start from λ = 0 and this times I."""
        if self.safeguard is None:
            return self.curvature.initial_precision
        return max(self.curvature.initial_precision, self.safeguard.initial_precision)


def _check_part(value: Any, kind: type, name: str, examples: str) -> None:
    if not (isinstance(value, kind) or (value is None and name == "safeguard")):
        raise ValueError(f"{name} must be {examples}, got {value!r}")


class RowNumbers(eqx.Module):
    """One row's share of the energy, and whether the cavities that it and the update need are proper."""

    energy: Float[Array, "*rows"]
    proper: Bool[Array, "*rows"]


def evaluate(
    method: Method,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    observed: Bool[Array, ""],
    marginal: Gaussian,
    site: Sites,
    residual_covariance: Float[Array, "D D"] | None = None,
) -> tuple[LocalExpansion, RowNumbers]:
    """Look at one row's likelihood around its marginal. A row that is not observed contributes nothing.

    With `residual_covariance`, the site and the marginal are those of g, and the likelihood is that of f = g + e, where
    e has this covariance.
    """
    target, whole = method.target, marginal
    likelihood, marginal, site, residual_covariance = constant_unless(
        observed, (likelihood, marginal, site, residual_covariance)
    )
    point, proper = marginal, jnp.ones((), dtype=bool)
    if target.power > 0.0:
        without = cavity(marginal, divided(site, copies_of(likelihood).number), target.power)
        point, proper = without.gaussian, without.proper
    expansion, value = expand_around(method, likelihood, y, observed, whole, point, residual_covariance)
    known = value if target.value_in_energy else None
    energy = method.row_energy(likelihood, y, marginal, site, residual_covariance, known)
    return expansion, RowNumbers(
        jnp.where(observed, energy.value, jnp.zeros(())),
        ~observed | (proper & energy.proper),
    )


def expansion_around(
    method: Method,
    likelihood: Likelihood,
    y: Float[Array, " P"],
    observed: Bool[Array, ""],
    marginal: Gaussian,
    point: Gaussian,
    residual_covariance: Float[Array, "D D"] | None = None,
) -> LocalExpansion:
    """Look at one row's likelihood around a point: its marginal, or its cavity."""
    return expand_around(method, likelihood, y, observed, marginal, point, residual_covariance)[0]


def expand_around(
    method, likelihood, y, observed, marginal, point, residual_covariance
) -> tuple[LocalExpansion, Float[Array, ""]]:
    """The view around a point, and the value of the target there, both of one copy of the row."""
    target, copies = method.target, copies_of(likelihood)
    # Targets without cavities are proportional to log p; power EP's integrates p^α.
    likelihood, share = (copies.likelihood, None) if target.power > 0.0 else (copies.base, copies.share)
    # A derivative in the mean of g, or in its covariance, is one in that of f.
    around = add_covariance(point, residual_covariance)
    derivatives = target.expand(likelihood, y, around, method.cubature)
    hessian = method.curvature.evaluate(target, likelihood, y, around, method.cubature, derivatives)
    derivatives, hessian = times((derivatives, hessian), share)
    wanted = method.curvature.looks_at_covariance and target.uses_covariance
    slope = derivatives.covariance_gradient if wanted else None
    expansion = LocalExpansion(
        select(observed, point, marginal),
        jnp.where(observed, derivatives.gradient, 0.0),
        jnp.where(observed, hessian, 0.0),
        None if slope is None else jnp.where(observed, slope, 0.0),
        copies.number,
    )
    return expansion, derivatives.value


def constant_unless(observed: Bool[Array, ""], tree: Any) -> Any:
    """The same values, constant to derivatives where nothing is observed.

    Far from the data an expectation may be infinite. Its weight is zero there, but zero times its derivative is NaN.
    """
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda leaf: _hold_unless(observed, leaf), numbers), rest)


@jax.custom_jvp
def _hold_unless(observed: Bool[Array, ""], leaf: Array) -> Array:
    """The leaf itself, without a derivative unless observed. Values shared by all rows stay shared."""
    return leaf


@_hold_unless.defjvp
def _(primals, tangents):
    (observed, leaf), (_, change) = primals, tangents
    return leaf, jnp.where(observed, change, 0.0)


def propose(
    method: Method,
    expansion: LocalExpansion,
    observed: Bool[Array, ""],
    site: Sites,
    state: Any,
    step_size: Float[Array, ""],
) -> tuple[Sites, Any]:
    """One row's proposed site (`eq:local-update` with ρ = 1) and the curvature state to carry.

    A row that consists of copies has the product of their sites, which are all the same.
    """
    hessian, carried = method.curvature.advance(expansion, state)
    gradient = expansion.gradient
    power = method.target.power
    if power > 0.0:
        if isinstance(method.curvature, QuasiNewton):
            root = small_root(expansion.point.covariance)
            hessian = keep_tilted_positive(hessian, expansion.hessian, root, power)
        gradient, hessian = rescale(gradient, hessian, expansion.point.covariance, power)
    if method.safeguard is not None:
        hessian = method.safeguard.correct(hessian, divided(site, expansion.copies), step_size)
    proposed = times(Sites(gradient - hessian @ expansion.point.mean, -hessian), expansion.copies)
    return jax.tree.map(lambda leaf: jnp.where(observed, leaf, jnp.zeros_like(leaf)), proposed), carried


def rescale(
    gradient: Float[Array, " D"], hessian: Float[Array, "D D"], covariance: Float[Array, "D D"], power: float
) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """R∇L̄ and R∇²L̄ with R = C⁻¹(α∇²L̄ + C⁻¹)⁻¹ = (I + α∇²L̄ C)⁻¹, from the cavity to the posterior."""
    matrix = jnp.eye(gradient.shape[0]) + power * hessian @ covariance
    return small_solve(matrix, gradient), symmetrise(small_solve(matrix, hessian))


def residual(marginal: Gaussian, site: Sites, proposed: Sites) -> Float[Array, " K"]:
    """How far one row is from its fixed point, in units of its own marginal.

    The first D entries are Lᵀ(λ* − λ − (Λ* − Λ)m), the move of the mean in posterior standard deviations;
    the others Lᵀ(Λ* − Λ)L, the relative change of the precision (C = LLᵀ).
    """
    return residual_in(small_root(marginal.covariance), marginal.mean, site, proposed)


def residual_in(
    root: Float[Array, "D D"], mean: Float[Array, " D"], site: Sites, proposed: Sites
) -> Float[Array, " K"]:
    """`residual`, of a marginal with this mean and this root L of its covariance."""
    gap = proposed.precision - site.precision
    move = proposed.linear - site.linear - gap @ mean
    return jnp.concatenate([root.T @ move, jnp.ravel(root.T @ gap @ root)])
