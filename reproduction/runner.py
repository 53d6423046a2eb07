"""The loop of the experiments: a constant step, and loss and test scores after iterations 1, 11, 21, ….

One compiled program a method serves all folds. A run that fails stays at its last sound iteration, and its curves at
their last recorded values.
"""

import abc
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from newtongp._runtime.compilation import compiled
from newtongp._runtime.double import in_double, to_host
from newtongp.likelihoods.base import Likelihood, over_rows, row_axes, row_log_prob, row_mean
from newtongp.likelihoods.partial import PartlyObserved
from newtongp.methods import first_order
from newtongp.methods.curvature import rows_of
from newtongp.methods.energy import VariationalFreeEnergy
from newtongp.methods.expectation import log_expected_density
from newtongp.methods.rule import residual
from newtongp.numerics.cubature import Cubature, nodes_and_weights
from newtongp.numerics.gaussian import Gaussian, Sites, cavity, interpolate, relative_log_expected_site_power
from newtongp.numerics.small import symmetrise
from newtongp.numerics.trees import select
from newtongp.priors.base import Conditioned, Workspace
from newtongp.results.status import Status

from .cases import Case, Split
from .published import PublishedAdam, RowRule, floored_log_density, jittered

EVERY = 10
"""Iterations from one recorded point to the next."""
START_PRECISION = 0.01
"""All sites start from λ = 0 and this times I."""
CONVERGED = 1e-6
"""A run whose rows' own updates would move their marginals by less than this has converged."""


# What is run --------------------------------------------------------------------------------------------


class Part(eqx.Module):
    """Some rows of a split, as the likelihood sees them."""

    likelihood: Likelihood
    y: Float[Array, "n P"]
    position: Any
    """Where they are among all rows."""
    rows_at_once: int | None = eqx.field(static=True)

    def each(self, function: Callable, *rows: Any) -> Any:
        """`function(likelihood, y, *row)` for every row."""
        every = (self.y, *rows)
        size = self.rows_at_once
        if size is None or self.y.shape[0] % size != 0:
            return over_rows(function, self.likelihood, every)
        axes = row_axes(self.likelihood)
        own, shared = eqx.partition(self.likelihood, jax.tree.map(lambda axis: axis == 0, axes, is_leaf=_is_none))
        cut = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), (own, every))
        found = jax.lax.map(lambda piece: over_rows(function, eqx.combine(piece[0], shared), piece[1]), cut)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


def _is_none(leaf: Any) -> bool:
    return leaf is None


class Fold(eqx.Module):
    """A split, ready for the compiled loop: test rows are rows of the prior that have no site."""

    workspace: Workspace
    train: Part
    test: Part
    nlpd_rows: int = eqx.field(static=True)
    """How many rows the published NLPD is a mean over."""
    truth: Float[Array, "N K"] | None
    truth_is: str | None = eqx.field(static=True)


@in_double
def make_fold(case: Case, split: Split) -> Fold:
    """One split of a case study on the compiled loop's side."""
    place = case.model.prior.layout(split.x[:, None])
    workspace = _prepare(case.model.prior, place.inputs)
    test = _part(case, split, split.test)
    # The published NLPD of partly removed outputs counts all rows, those without a test output as 0.
    rows = split.x.shape[0] if case.truth_is == "outputs" else test.y.shape[0]
    truth = None if split.truth is None else jnp.asarray(split.truth)
    return Fold(workspace, _part(case, split, split.train), test, rows, truth, case.truth_is)


@compiled
def _prepare(prior: Any, inputs: Any) -> Workspace:
    return prior.prepare(inputs)


def _part(case: Case, split: Split, chosen: np.ndarray) -> Part:
    likelihood = case.model.likelihood
    position = np.flatnonzero(np.any(chosen, axis=1))
    seen = chosen[position]
    if not np.all(seen):
        likelihood = PartlyObserved(likelihood, seen)
    y = jnp.asarray(np.where(seen, split.y[position], 0.0))
    return Part(likelihood, y, jnp.asarray(position), case.rows_at_once)


class Loss(eqx.Module):
    """What is plotted as the training loss.

    `kind` is "newton" for −Σ log p(yₙ | mₙ) + KL[q‖p], "vfe" for `eq:vfe`, "pep" for `eq:pep-energy` with the given
    power. The first is neither of the paper's Laplace energies: it is less by ½ Σ tr(ΛₙCₙ).
    """

    kind: str = eqx.field(static=True)
    cubature: Cubature
    power: float = eqx.field(static=True, default=1.0)
    jitter: float = eqx.field(static=True, default=0.0)
    floor: float = eqx.field(static=True, default=0.0)

    def total(self, fold: Fold, sites: Sites, conditioned: Conditioned) -> Float[Array, ""]:
        """The loss at these sites."""
        rows = fold.train.each(self._row, _at(conditioned, fold.train), sites)
        return jnp.sum(rows) + 0.5 * (conditioned.distance + conditioned.log_det)

    def _row(self, likelihood, y, marginal, site):
        if self.kind == "newton":
            return -row_log_prob(likelihood, y, marginal.mean) - 0.5 * jnp.sum(site.precision * marginal.covariance)
        if self.kind == "vfe":
            return VariationalFreeEnergy().row(likelihood, y, marginal, site, self.cubature).value
        marginal = jittered(marginal, self.jitter)
        without = cavity(marginal, site, self.power)
        log_t = relative_log_expected_site_power(without, marginal, site, self.power)
        log_p = floored_log_density(likelihood, y, without.gaussian, self.cubature, self.power, self.floor)
        return log_t - log_p / self.power


class Point(eqx.Module):
    """Sites, what goes with them, and how the run stands."""

    sites: Sites
    memory: Any
    conditioned: Conditioned
    steps: Any
    """Iterations done; −1 before the start has been looked at."""
    residual: Any
    """The largest entry of any row's fixed-point residual before the last iteration (`methods.rule.residual`)."""
    status: Any


class Update(NamedTuple):
    """The sites of the next iteration, what to carry on, and how the present ones were found."""

    sites: Sites
    memory: Any
    residual: Float[Array, ""]
    proper: Bool[Array, ""]
    """Whether all cavities that were needed are proper."""


class Scheme(eqx.Module):
    """How all sites are updated, and what is plotted as the loss."""

    loss: eqx.AbstractVar[Loss]
    loss_is_before: ClassVar[bool]
    """Whether the loss recorded with an iteration is that before its update."""

    @property
    @abc.abstractmethod
    def keeps_psd(self) -> bool:
        """Whether every site's precision is PSD."""

    @abc.abstractmethod
    def start(self, sites: Sites) -> Any:
        """What is carried from iteration to iteration, beside the sites."""

    @abc.abstractmethod
    def update(self, fold: Fold, point: Point) -> Update:
        """One iteration."""


class RowByRow(Scheme):
    """Every row's rule, then a constant step towards what it proposes (`eq:local-update`)."""

    rule: RowRule
    step_size: Any
    loss: Loss
    loss_is_before = False

    @property
    def keeps_psd(self) -> bool:
        return self.rule.method.keeps_psd

    def start(self, sites):
        return rows_of(self.rule.start(sites.linear.shape[1]), sites.linear.shape[0])

    def update(self, fold, point):
        step_size = jnp.asarray(self.step_size)
        marginals = _at(point.conditioned, fold.train)
        expansions, proper = fold.train.each(lambda *row: self.rule.look(*row), marginals, point.sites)
        proposed, memory = jax.vmap(
            lambda expansion, site, memory: self.rule.propose(expansion, site, memory, step_size)
        )(expansions, point.sites, point.memory)
        moves = jax.vmap(residual)(marginals, point.sites, proposed)
        return Update(
            interpolate(point.sites, proposed, step_size),
            self.rule.method.curvature.carry(point.memory, memory, step_size),
            jnp.max(jnp.abs(moves)),
            jnp.all(proper),
        )


class AdamOnSites(Scheme):
    """First-order VI: Adam on the VFE, over every site's mean and the root of its covariance."""

    learning_rate: Any
    loss: Loss
    loss_is_before = True

    @property
    def keeps_psd(self) -> bool:
        return True

    def start(self, sites):
        started = first_order.start(sites, self.learning_rate)
        return PublishedAdam.start((started.mean, started.root))

    def update(self, fold, point):
        def free_energy(parameters):
            sites = first_order.to_sites(*parameters)
            return self.loss.total(fold, sites, _condition(fold, sites, self.keeps_psd))

        memory = point.memory.advance(jax.grad(free_energy)(point.memory.parameters), self.learning_rate)
        # Adam proposes nothing, so that there is no residual either.
        unknown = jnp.full((), jnp.inf)
        return Update(first_order.to_sites(*memory.parameters), memory, unknown, jnp.ones((), dtype=bool))


# The loop -----------------------------------------------------------------------------------------------


def _at(conditioned: Conditioned, part: Part) -> Gaussian:
    return jax.tree.map(lambda leaf: leaf[part.position], conditioned.marginals)


def _condition(fold: Fold, sites: Sites, psd: bool) -> Conditioned:
    """The posterior at all rows: those without a site are predictions."""
    return fold.workspace.marginals(_everywhere(fold, sites), psd)


def _everywhere(fold: Fold, sites: Sites) -> Sites:
    rows, latents = fold.workspace.mean.shape
    linear = jnp.zeros((rows, latents)).at[fold.train.position].set(sites.linear)
    precision = jnp.zeros((rows, latents, latents)).at[fold.train.position].set(sites.precision)
    return Sites(linear, precision)


def _all_finite(tree: Any) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _iterate(fold: Fold, scheme: Scheme, point: Point) -> Point:
    """One iteration; the first time round, a look at the start."""
    first = point.steps < 0
    update = scheme.update(fold, point)
    sites, memory = select(first, (point.sites, point.memory), (update.sites, update.memory))
    sites = Sites(sites.linear, symmetrise(sites.precision))
    conditioned = _condition(fold, sites, scheme.keeps_psd)
    cavities = update.proper | first
    finite = _all_finite((sites, conditioned.marginals, conditioned.distance, conditioned.log_det))
    failure = jnp.where(finite, Status.IMPROPER_POSTERIOR.value, Status.NON_FINITE.value)
    failure = jnp.where(cavities, failure, Status.IMPROPER_CAVITY.value)
    sound = finite & conditioned.proper & cavities
    moved = jnp.where(first, jnp.inf, update.residual)
    kept = select(sound, Point(sites, memory, conditioned, point.steps + 1, moved, point.status), point)
    return eqx.tree_at(lambda p: p.status, kept, jnp.where(sound, point.status, failure))


class Scores(NamedTuple):
    """What is plotted: one entry a recorded iteration."""

    loss: Any
    nlpd: Any
    sound_nlpd: Any
    """NLPD over the test rows alone, with latents that enter linearly integrated out exactly."""
    rmse: Any


def _scores(fold: Fold, scheme: Scheme, loss: Float[Array, ""], point: Point, floor: float) -> Scores:
    predicted = _at(point.conditioned, fold.test)

    def log_density(likelihood, y, latent):
        return floored_log_density(likelihood, y, latent, scheme.loss.cubature, 1.0, floor)

    nlpd = -jnp.sum(fold.test.each(log_density, predicted)) / fold.nlpd_rows
    sound = nlpd
    if floor > 0.0:
        rows = fold.test.each(lambda likelihood, y, q: log_expected_density(likelihood, y, q, None), predicted)
        sound = -jnp.mean(rows)
    return Scores(loss, nlpd, sound, _rmse(fold, scheme.loss.cubature, point.conditioned))


def _rmse(fold: Fold, cubature: Cubature, conditioned: Conditioned) -> Float[Array, ""]:
    """Of the latents' posterior means everywhere, or of the predicted mean of outputs that were removed."""
    if fold.truth is None:
        return jnp.full((), jnp.nan)
    if fold.truth_is == "latents":
        return jnp.sqrt(jnp.mean((conditioned.marginals.mean - fold.truth) ** 2))
    removed = fold.test.likelihood
    assert isinstance(removed, PartlyObserved)

    def predicted(latent):
        nodes, weights, _, _ = nodes_and_weights(cubature, latent)
        return weights @ jax.vmap(lambda f: row_mean(removed.whole, f))(nodes)

    error = jax.vmap(predicted)(_at(conditioned, fold.test)) - fold.truth[fold.test.position]
    seen = jnp.asarray(removed.seen)
    return jnp.sqrt(jnp.sum(jnp.where(seen, error, 0.0) ** 2) / jnp.sum(seen))


def _begin(fold: Fold, scheme: Scheme) -> Point:
    """The start, before anything has been looked at."""
    rows, latents = fold.train.y.shape[0], fold.workspace.mean.shape[1]
    precision = jnp.broadcast_to(START_PRECISION * jnp.eye(latents), (rows, latents, latents))
    sites = Sites(jnp.zeros((rows, latents)), precision)
    everywhere = fold.workspace.mean.shape[0]
    unseen = Gaussian(fold.workspace.mean, jnp.broadcast_to(jnp.eye(latents), (everywhere, latents, latents)))
    nothing = Conditioned(unseen, jnp.zeros(()), jnp.zeros(()), jnp.ones((), dtype=bool))
    running = jnp.asarray(Status.RUNNING.value)
    point = Point(sites, scheme.start(sites), nothing, jnp.asarray(-1), jnp.asarray(jnp.inf), running)
    # A weakly typed leaf would come back strongly typed, and the loop be compiled a second time for that.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype=leaf.dtype), point)


_begin_compiled = compiled(_begin)


def _advance(fold: Fold, scheme: Scheme, point: Point, curves: Scores, until: Any, floor: float):
    """Iterations up to number `until`, or to where the run fails; scores are recorded after number 1, 11, 21, …."""

    def body(state):
        point, curves = state
        new = _iterate(fold, scheme, point)
        scored = point if scheme.loss_is_before else new

        def record(curves):
            loss = scheme.loss.total(fold, scored.sites, scored.conditioned)
            found = _scores(fold, scheme, loss, new, floor)
            return jax.tree.map(lambda column, value: column.at[(new.steps - 1) // EVERY].set(value), curves, found)

        due = (new.status == Status.RUNNING.value) & (new.steps % EVERY == 1)
        return new, jax.lax.cond(due, record, lambda curves: curves, curves)

    def goes_on(state):
        return (state[0].status == Status.RUNNING.value) & (state[0].steps < until)

    return jax.lax.while_loop(goes_on, body, (point, curves))


_advance_compiled = compiled(_advance, static_argnums=5)


class Run(NamedTuple):
    """One method on one split."""

    iteration: np.ndarray
    scores: Scores
    steps: int
    status: Status
    residual: float
    sites: Sites
    """The last sound ones, of all rows of the split: zero where nothing is trained on."""
    marginals: Gaussian
    """The posterior at all rows of the split."""
    seconds: float
    """Without compilation."""


@in_double
def run(
    fold: Fold,
    scheme: Scheme,
    iterations: int,
    floor: float = 0.0,
    quickly: bool = True,
    advanced: Callable[[int], None] = lambda iterations: None,
) -> Run:
    """Run one method on one split; `advanced` is told how many iterations have been done.

    `quickly` compiles in less time a program that is slower for many states (`compilation.compiled`).
    """
    # Hundreds of iterations: worth more than the least effort.
    compile_for = {"work": 1e7, "full": not quickly}
    blocks = max(1, -(-iterations // EVERY))
    point = _begin_compiled(fold, scheme)
    empty = jnp.full(blocks, jnp.nan)
    curves = Scores(empty, empty, empty, empty)
    point, curves = _advance_compiled(fold, scheme, point, curves, 0, floor, **compile_for)
    start = time.perf_counter()
    for until in np.unique(np.linspace(0, iterations, 11).astype(int))[1:]:
        state = _advance_compiled(fold, scheme, point, curves, int(until), floor, **compile_for)
        point, curves = jax.block_until_ready(state)
        advanced(int(until))
    seconds = time.perf_counter() - start
    status, moves = Status(int(point.status)), float(point.residual)
    if status is Status.RUNNING:
        status = Status.CONVERGED if moves <= CONVERGED else Status.MAX_STEPS
    scores, sites, marginals = to_host((curves, _everywhere(fold, point.sites), point.conditioned.marginals))
    scores = Scores(*(_keep_last(column) for column in scores))
    return Run(1 + EVERY * np.arange(blocks), scores, int(point.steps), status, moves, sites, marginals, seconds)


@in_double
def predict(case: Case, fold: Fold, sites: Sites, x: np.ndarray) -> Gaussian:
    """The latents at new inputs, given the sites of all rows."""
    return _condition_for_good(case.model.prior, fold.workspace, sites).predict(x[:, None])


@compiled
def _condition_for_good(prior: Any, workspace: Workspace, sites: Sites) -> Any:
    return prior.condition(workspace, sites)


def _keep_last(column: np.ndarray) -> np.ndarray:
    """Entries that are not finite replaced by the last one before them that is."""
    filled = column.copy()
    for k in range(1, len(filled)):
        if not np.isfinite(filled[k]):
            filled[k] = filled[k - 1]
    return filled
