"""Estimates of quadrature error at the sites of a result.

`fit` starts compiling them while it waits for the compiler (`start_compiling_estimates`): a summary needs them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from ..inputs.data import Data
from ..likelihoods.base import (
    Likelihood,
    at_rows,
    in_size_class,
    one_row,
    over_rows,
    row_log_expected_power,
)
from ..methods.expectation import has_closed_form
from ..methods.nodes import Nodes, expected_at, moment_rule, place_nodes, powered_at, rule_for
from ..methods.rule import Method, evaluate, propose, residual
from ..methods.weights import copies_of, divided, times
from ..numerics.cubature import Adaptive, Cubature, GaussHermite, PointRule, QuasiRandom, SphericalRule, Unscented
from ..numerics.gaussian import Gaussian, Sites, add_covariance, cavity
from ..results.result import Result
from .problem import Setup


class Rows(NamedTuple):
    """Rows of a result, in the form in which a method processes them."""

    likelihood: Likelihood
    y: np.ndarray
    observed: np.ndarray
    marginal: Any
    site: Any
    residual_covariance: Any

    @classmethod
    def of(cls, result: Result, rows: np.ndarray) -> "Rows":
        """These rows of a result."""
        residual_covariance = None
        if result.site_marginals is not result.marginals:
            residual_covariance = (result.marginals.covariance - result.site_marginals.covariance)[rows]
        marginal, site = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (result.site_marginals, result.sites))
        return cls(*_data_at(result.model.likelihood, result.data, rows), marginal, site, residual_covariance)

    @classmethod
    def without_posterior(cls, setup: Setup, workspace: Any, rows: np.ndarray) -> "Rows":
        """These rows of data, in the shapes that those of a result will have; `workspace` may be shapes only."""
        latents = setup.model.prior.num_latents
        covariance = np.zeros((rows.size, latents, latents))
        has_residual = jax.eval_shape(lambda workspace: workspace.residual_covariance(), workspace) is not None
        residual = covariance if has_residual else None
        marginal, site = Gaussian(np.zeros((rows.size, latents)), covariance), Sites.constant(rows.size, latents, 0.0)
        return cls(*_data_at(setup.model.likelihood, setup.data, rows), marginal, site, residual)

    def map(self, function: Callable[["Rows"], Any]) -> Any:
        """`function(rows)`, with one entry per row, for rows that are filled up to a size class."""
        return in_size_class(lambda *parts: function(Rows(*parts)), *self)


def _data_at(likelihood: Likelihood, data: Data, rows: np.ndarray) -> tuple[Likelihood, np.ndarray, np.ndarray]:
    """The likelihood of these rows, with their weights; y; and whether they are observed."""
    observed_outputs = None if data.seen is None else data.seen[rows]
    weights = None if data.weights is None else data.weights[rows]
    taken = Data(data.x[rows], data.y[rows], data.observed[rows], observed_outputs, weights)
    return taken.weighted_likelihood(at_rows(likelihood, rows)), taken.y, taken.observed


class QuadratureError(NamedTuple):
    """The estimated quadrature error of a method, from the same integrals with a finer rule."""

    rule: Cubature
    finer: Cubature
    rows: np.ndarray
    """The rows that were checked."""
    energies: np.ndarray
    """The error of each row's contribution to the energy, in nats."""
    energy: float
    """The error of the total energy."""
    means: np.ndarray | None
    """The change of each row's mean by its own update with the finer rule, in posterior standard deviations."""
    precisions: np.ndarray | None
    """The change of the site's precision by the same update, relative to the marginal's precision."""

    @property
    def posterior(self) -> float | None:
        """The largest error of any mean, variance or site, in units of the posterior; None if unknown."""
        if self.means is None or self.precisions is None:
            return None
        return float(max(np.max(self.means), np.max(self.precisions)))


class NotEstimated(NamedTuple):
    """The reason why there is no estimate; None if there are no nodes."""

    reason: str | None


_MOST_NODES = 20_000
_MOST_VALUES = 4e6
"""The maximum number of log densities to evaluate: beyond it, a subset of the rows is used."""
_MANY_POINTS = 2**14
"""The number of nodes of the reference rule, where many latents need nodes."""
_LARGEST_ORDER = 200
_FINEST = 160
"""The number of nodes of the reference rule, where one latent needs nodes."""


def estimate_error(result: Result) -> QuadratureError | NotEstimated:
    """Estimate the quadrature error of a result, at its sites.

    To first order, the energies of power EP and VI do not change with the sites, so the error of the integrals is the
    error of the energy. Where one latent needs nodes, the finer rule follows the density and is nearly exact; elsewhere
    it has twice the number of nodes per latent, or very many quasi-random nodes.
    """
    plan = _plan_of(result.model.likelihood, result.method, result.data)
    if isinstance(plan, NotEstimated):
        return plan
    method, rows, means, precisions = result.method, plan.rows, None, None
    checked = Rows.of(result, rows)
    estimate = plan.estimate(method, checked.likelihood)
    if estimate is None:
        energies = np.zeros(rows.size)
    else:
        energies, means, precisions = checked.map(estimate)
    energies = np.where(np.isfinite(energies), energies, 0.0)
    energy = float(np.sum(energies)) * float(np.sum(result.data.observed)) / rows.size
    return QuadratureError(plan.rule, plan.finer, rows, energies, energy, means, precisions)


def start_compiling_estimates(setup: Setup, method: Method, workspace: Any) -> None:
    """Start compiling what `estimate_error` will need, given the shapes of a workspace."""
    plan = _plan_of(setup.model.likelihood, method, setup.data)
    if not isinstance(plan, NotEstimated):
        rows = Rows.without_posterior(setup, workspace, plan.rows)
        estimate = plan.estimate(method, rows.likelihood)
        if estimate is not None:
            rows.map(lambda rows: _start(estimate, rows))


def _start(estimate: functools.partial, rows: Rows) -> None:
    vars(estimate.func)["start"](*estimate.args, rows)


class _Plan(NamedTuple):
    """How an error is estimated."""

    rule: Cubature
    finer: Cubature
    count: int
    """The number of latents that need nodes."""
    rows: np.ndarray
    """The rows to check."""
    power: float | None

    def estimate(self, method: Method, likelihood: Likelihood) -> functools.partial | None:
        """The compiled function of rows that estimates their errors; None if there are none."""
        linearises = _uses_moments(method, likelihood)
        if method.cubature is None and not linearises and _is_closed(likelihood, self.power):
            return None
        simple = method.is_stationary and method.safeguard is None
        if self.count == 1 and simple and (linearises or method.target.name in ("vi", "power_ep")):
            return functools.partial(_update_errors, method, self.finer)
        return functools.partial(_energy_errors, method.cubature, self.finer, self.power)


def _plan_of(likelihood: Likelihood, method: Method, data: Data) -> _Plan | NotEstimated:
    declared = method.energy
    if declared is None:
        return NotEstimated(f"integrals of {type(method.target).__name__}, which brings its own energy")
    if not declared.integrates:
        return NotEstimated(None)
    rule, count = _rule_of(likelihood, method.cubature, declared.power)
    if count == 0:
        return NotEstimated(None)
    if _uses_moments(method, likelihood):
        rule = moment_rule(likelihood, method.cubature)
    finer = _finer(rule, count)
    if finer is None:
        return NotEstimated(
            f"integrals over {count} latent(s), for which there is no finer rule than {rule_words(rule)}"
        )
    rows = np.flatnonzero(data.observed)
    rows = rows[:: max(1, round(rows.size * finer.rule(count)[1].size / _MOST_VALUES))]
    return NotEstimated(None) if rows.size == 0 else _Plan(rule, finer, count, rows, declared.power)


def _uses_moments(method: Method, likelihood: Likelihood) -> bool:
    """Whether updates are integrals of moments of y given f, for which closed forms of the energy are of no use."""
    return method.target.name == "pl" and likelihood.log_prob_degree is None


@in_double
def _is_closed(likelihood: Likelihood, power: float | None) -> bool:
    """Whether the likelihood knows its share of the energy without nodes: the VFE's, or power EP's."""
    if power is None:
        return has_closed_form(likelihood)
    one = one_row(likelihood, 0)
    y, mean, covariance = np.zeros(one.num_outputs), np.zeros(one.num_latents), np.eye(one.num_latents)
    return jax.eval_shape(lambda: row_log_expected_power(one, y, mean, covariance, power)) is not None


@in_double
def _rule_of(likelihood: Likelihood, cubature: Cubature | None, power: float | None) -> tuple[Cubature, int]:
    """The rule that a method uses, and its number of latents."""
    parts, rule = rule_for(likelihood, cubature, power is not None)
    return rule, len(parts.others)


def _finer(rule: Cubature, count: int) -> Cubature | None:
    """A finer rule for this number of latents, if there is one."""
    if isinstance(rule, (QuasiRandom, SphericalRule)) and 4 * rule.rule(count)[1].size <= _MANY_POINTS:
        return QuasiRandom(_MANY_POINTS)
    if count == 1 and not isinstance(rule, PointRule):
        return Adaptive(max(_FINEST, 4 * rule.count) if isinstance(rule, Adaptive) else _FINEST)
    if not isinstance(rule, (GaussHermite, Unscented)):
        return None
    before, wanted = (rule.order, 2 * rule.order) if isinstance(rule, GaussHermite) else (3, 20)
    order = min(wanted, int(_MOST_NODES ** (1.0 / count) + 1e-9), _LARGEST_ORDER)
    return GaussHermite(order) if order > before else None


def rule_words(rule: Cubature) -> str:
    """A rule as Python code."""
    numbers = [getattr(rule, name) for name in ("order", "count", "radii", "copies") if hasattr(rule, name)]
    number = ", ".join(map(str, numbers))
    return f"{type(rule).__name__}({number})"


_Errors = tuple[Float[Array, " N"], Float[Array, " N"] | None, Float[Array, " N"] | None]
"""The errors of rows: of their energies, of their means and of the precisions of their sites."""


@in_double
@functools.partial(compiled, static_argnums=(1, 2))
def _energy_errors(cubature: Cubature | None, finer: Cubature, power: float | None, rows: Rows) -> _Errors:
    """The error of every row's contribution to the energy, the VFE or the power EP energy, and of nothing else."""

    def row(likelihood, y, observed, marginal, site, residual_covariance):
        copies = copies_of(likelihood)
        around = marginal if power is None else cavity(marginal, divided(site, copies.number), power).gaussian
        around = add_covariance(around, residual_covariance)
        share, base = 1.0 if copies.share is None else copies.share, copies.base
        raised = None if power is None else power * share
        ours = place_nodes(base, around, cubature, power is not None, y=y, power=1.0 if raised is None else raised)
        if isinstance(finer, Adaptive):
            other = place_nodes(base, around, finer, power is not None, y=y, power=1.0 if raised is None else raised)
        else:
            other = _at_other(ours, around, finer)
        error = _integral(base, y, other, raised) - _integral(base, y, ours, raised)
        return times(share * error, copies.number)

    return over_rows(row, rows.likelihood, tuple(rows[1:])), None, None


def _at_other(nodes: Nodes, around: Gaussian, rule: Cubature) -> Nodes:
    """The same latents at the nodes of another rule."""
    standard, weights = (jnp.asarray(part) for part in rule.rule(len(nodes.split.others)))
    points = nodes.split.points(nodes.split.arrange(around).mean, nodes.root, standard)
    return nodes._replace(points=points, weights=weights, standard=standard, rule=rule, log_weights=None)


def _integral(likelihood: Likelihood, y: Float[Array, " P"], nodes: Nodes, power: Any) -> Float[Array, ""]:
    """E[log p], or (1/α) log E[p^α]."""
    if power is None:
        return nodes.weights @ jax.vmap(expected_at(likelihood, y, nodes).value)(nodes.points)
    values = jax.vmap(powered_at(likelihood, y, nodes, power).value)(nodes.points)
    if nodes.log_weights is not None:
        return jax.scipy.special.logsumexp(values + nodes.log_weights) / power
    return jax.scipy.special.logsumexp(values, b=nodes.weights) / power


@in_double
@functools.partial(compiled, static_argnums=1)
def _update_errors(method: Method, finer: Cubature, rows: Rows) -> _Errors:
    """`_energy_errors`, and how far every row's own update with the finer rule moves its mean and site precision."""
    by_finer = Method(method.target, method.curvature, None, finer)
    count = rows.likelihood.num_latents

    def row(likelihood, y, observed, marginal, site, residual_covariance):
        def proposal(method):
            expansion, numbers = evaluate(method, likelihood, y, observed, marginal, site, residual_covariance)
            return propose(method, expansion, observed, site, None, jnp.zeros(()))[0], numbers.energy

        (ours, energy), (other, finer_energy) = proposal(method), proposal(by_finer)
        # Relative to the method's own proposal: the rest of the residual is not quadrature error.
        gap = residual(marginal, ours, other)
        return energy - finer_energy, jnp.max(jnp.abs(gap[:count])), jnp.max(jnp.abs(gap[count:]))

    return over_rows(row, rows.likelihood, tuple(rows[1:]))
