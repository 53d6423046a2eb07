"""Linear Gaussian state space models given by their matrices: one state per step, with a transition in between."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..numerics import kalman
from ..numerics.gaussian import Gaussian, Sites
from ..numerics.rounding import warn_of_lost
from ..numerics.size_classes import SMALLEST_DATA, data_size_class, fill_rows, first_rows, size_class
from ..parameters.constraints import Covariance, Real, learned, never_learned
from ..parameters.matrices import checked_covariance
from ..validation.numbers import NotRealError, as_real
from . import temporal
from .base import Layout, draws_by_row, first_of_joint, numbers_of
from .temporal import ChainWorkspace, TemporalPosterior, TemporalPrior

_MOST_STEPS = 10**8


class StateSpaceModel(TemporalPrior):
    """xₖ₊₁ = A xₖ + N(0, Q), fₖ = H xₖ, from x₀ ~ N(m₀, P₀) (`eq:state-space-model`), conditioned exactly in O(N).

    x in `infer(model, x, y)` are the numbers of the steps, integers from 0: a step may have several rows, or none.
    `transition` A and `noise` Q are (d, d), or (K, d, d) with entry k leading from step k to k + 1. `observation` H is
    (D, d) with one row per latent, (d,) for one latent, or (K + 1, D, d) if it differs between steps; the likelihood
    defines how y depends on f = H x, linearly or not. Offsets are added to A x and H x.

    Counts that depend on a point which moves with nearly constant speed:

    >>> import newtongp as ng
    >>> prior = ng.StateSpaceModel(
    ...     transition=[[1.0, 0.1], [0.0, 1.0]],
    ...     noise=[[1e-5, 1e-4], [1e-4, 1e-3]],
    ...     observation=[1.0, 0.0],
    ...     initial_covariance=[[1.0, 0.0], [0.0, 1.0]],
    ... )
    >>> result = ng.infer(ng.Model(prior, ng.likelihoods.Poisson()), [0, 1, 2, 3], [1, 0, 2, 3])
    >>> result.predict([4, 5]).mean.shape
    (2,)
    """

    selection: tuple[tuple[int, ...], ...] | None = eqx.field(static=True)
    pieces: int | None = eqx.field(static=True)
    transition: Any = learned(Real(), by_default=False)
    noise: Any = learned(Covariance(), by_default=False)
    observation: Any = never_learned()
    initial_mean: Any = learned(Real(), by_default=False)
    initial_covariance: Any = learned(Covariance(), by_default=False)
    transition_offset: Any = learned(Real(), by_default=False)
    observation_offset: Any = learned(Real(), by_default=False)

    def __init__(
        self,
        transition: Any,
        noise: Any,
        observation: Any,
        initial_mean: Any = None,
        initial_covariance: Any = None,
        transition_offset: Any = None,
        observation_offset: Any = None,
        pieces: int | None = None,
    ):
        self.transition = _matrices(transition, "transition")
        size = self.transition.shape[-1]
        if self.transition.shape[-2] != size:
            raise ValueError(f"transition must be square, (d, d) or (K, d, d), got shape {self.transition.shape}")
        self.noise = _covariance(noise, "noise", size)
        self.initial_covariance = _covariance(
            np.eye(size) if initial_covariance is None else initial_covariance, "initial_covariance", size, many=False
        )
        rows = _matrices(observation, "observation", vector=True)
        if rows.shape[-1] != size:
            raise ValueError(
                f"observation must have one column per state, {size} like transition, got shape {rows.shape}"
            )
        self.observation = rows
        latents = rows.shape[-2]
        self.initial_mean = _vectors(initial_mean, "initial_mean", size, many=False)
        self.transition_offset = _vectors(transition_offset, "transition_offset", size)
        self.observation_offset = _vectors(observation_offset, "observation_offset", latents)
        self.selection = _selection(rows)
        self.pieces = temporal.as_pieces(pieces)
        self._check_lengths()

    def _check_lengths(self) -> None:
        moves = {
            name: getattr(self, name).shape[0]
            for name, rank in (("transition", 3), ("noise", 3), ("transition_offset", 2))
            if getattr(self, name).ndim == rank
        }
        positions = {
            name: getattr(self, name).shape[0] - 1
            for name, rank in (("observation", 3), ("observation_offset", 2))
            if getattr(self, name).ndim == rank
        }
        lengths = {**moves, **positions}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                "matrices given per step must agree in the number of steps: K transitions and noises, and K + 1 "
                f"observations, for steps 0 to K; got K = {', '.join(f'{n} ({name})' for name, n in lengths.items())}"
            )

    @property
    def num_latents(self) -> int:
        return self.observation.shape[-2]

    @property
    def last_step(self) -> int | None:
        """The last step with matrices; None if they are the same for all steps."""
        for name, rank, extra in (
            ("transition", 3, 0),
            ("noise", 3, 0),
            ("transition_offset", 2, 0),
            ("observation", 3, 1),
            ("observation_offset", 2, 1),
        ):
            array = getattr(self, name)
            if array.ndim == rank:
                return array.shape[0] - extra
        return None

    def check_inputs(self, x: np.ndarray) -> None:
        if x.shape[1] != 1:
            raise ValueError(f"x must have one column, the numbers of the steps, got {x.shape[1]} columns")
        wrong = (x[:, 0] < 0) | (x[:, 0] != np.floor(x[:, 0]))
        if np.any(wrong):
            row = int(np.flatnonzero(wrong)[0])
            raise ValueError(
                f"x must hold the numbers of steps, integers from 0, but row {row} is {x[row, 0]:g}: number the steps, "
                "or use MarkovGP for continuous time"
            )
        largest = int(np.max(x))
        if self.last_step is not None and largest > self.last_step:
            raise ValueError(
                f"x has step {largest}, but there are matrices only up to step {self.last_step}: give more of them"
            )
        if largest > _MOST_STEPS:
            raise ValueError(
                f"x has step {largest}, and every step from 0 costs time and memory: number the steps from 0 on"
            )

    def size_class(self, rows: int) -> int:
        return size_class(rows, SMALLEST_DATA)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        x = fill_rows(x, size)
        length = max(x.shape[0], int(np.max(x)) + 1)
        return self.layout_in(
            x, self.pieces or kalman.choose_pieces(length, self.transition.shape[-1], self.num_latents)
        )

    def layout_in(self, x: np.ndarray, pieces: int) -> Layout:
        """The layout with this number of pieces, which run side by side."""
        steps = x[:, 0].astype(int)
        present = np.zeros(int(steps.max()) + 1, dtype=bool)
        present[steps] = True
        empty = np.flatnonzero(~present)
        all_steps = np.concatenate([steps, empty])
        # Steps without a row change the number of positions, which is filled up as well.
        all_steps = fill_rows(all_steps, size_class(all_steps.size) if empty.size else None)
        rows = np.concatenate([np.arange(steps.size), np.full(all_steps.size - steps.size, -1)])
        order = np.argsort(all_steps, kind="stable")
        positions, rows, position = kalman.cut(all_steps[order], rows[order], pieces)
        # The chain starts at step 0, whose state has the initial distribution.
        moved = kalman.from_time(np.diff(kalman.to_time(positions, pieces), prepend=0) > 0, pieces)
        in_order = pieces == 1 and np.array_equal(rows, np.arange(steps.size))
        return Layout(_Steps(positions, moved, position, pieces), None if in_order else rows)

    memory_remedy: ClassVar[str] = "number the steps from 0 without large gaps, or use fewer states"

    def memory(self, x: np.ndarray) -> float:
        steps = max(float(x.shape[0]), float(np.max(x)) + 1.0)
        positions = float(kalman.positions(steps, self.pieces or 1))
        return temporal.chain_memory(positions, self.transition.shape[-1], self.num_latents)

    def prepare(self, inputs: "_Steps") -> ChainWorkspace:
        def at(array, rank, index):
            return array[index] if array.ndim == rank else jnp.broadcast_to(array, (index.shape[0], *array.shape))

        size = self.transition.shape[-1]
        before = jnp.maximum(inputs.steps - 1, 0)
        moved = inputs.moved[:, None, None]
        transition = jnp.where(moved, at(self.transition, 3, before), jnp.eye(size)[None])
        noise = jnp.where(moved, at(self.noise, 3, before), 0.0)
        offset = jnp.where(inputs.moved[:, None], at(self.transition_offset, 2, before), 0.0)
        rows = at(self.observation, 3, inputs.steps)
        chain = kalman.make_chain(
            (transition,),
            (noise,),
            (jnp.asarray(self.initial_covariance),),
            self.selection or ((),) * self.num_latents,
            None if self.selection is not None else rows,
            inputs.pieces,
        )

        def in_time(leaf):
            return kalman.to_time(leaf, inputs.pieces)

        def advance(state, step):
            state = jnp.sum(step[0] * state[None, :], axis=1) + step[1]
            return state, state

        _, states = jax.lax.scan(advance, jnp.asarray(self.initial_mean), (in_time(transition), in_time(offset)))
        states = kalman.from_time(states, inputs.pieces)
        mean = jnp.einsum("tdi,ti->td", rows, states) + at(self.observation_offset, 2, inputs.steps)
        return ChainWorkspace(mean, chain, inputs.steps, inputs.position, states)

    def condition(self, workspace: ChainWorkspace, sites: Sites) -> "StateSpacePosterior":
        smoothed, _, _, lossy = kalman.marginals_and_states(
            workspace.chain, sites.precision, sites.centred_linear(workspace.mean)
        )
        conditioned = workspace.conditioned(smoothed)
        return StateSpacePosterior(
            workspace.at_rows(conditioned.marginals),
            conditioned.log_normaliser(sites),
            self,
            workspace.at_rows(workspace.times),
            workspace.at_rows(sites),
            lossy,
        )


class _Steps(eqx.Module):
    """The step of every position, whether it differs from the one before, and the position of every row."""

    steps: Any
    moved: Any
    position: Any
    pieces: int = eqx.field(static=True)


class StateSpacePosterior(TemporalPosterior):
    """q(f) of a state space model. Every method runs the filter and smoother over all steps again."""

    marginals: Gaussian
    log_normaliser: Any
    prior: StateSpaceModel
    steps: Any
    sites: Sites
    lossy: Any
    """Whether square roots have more digits than covariances."""

    @in_double
    def predict(self, x: Any) -> Gaussian:
        marginals, lost, lossy = self._at_inputs(_marginals_at, x)
        if temporal.holds(lossy):
            return self._carefully(x, "latents")
        warn_of_lost(lost)
        return marginals

    @in_double
    def states(self, x: Any) -> Gaussian:
        states, lossy = self._at_inputs(_states_at, x, pieces=1)
        return self._carefully(x, "states") if temporal.holds(lossy) else states

    @in_double
    def joint(self, x: Any) -> Gaussian:
        inputs, latents = numbers_of(x), self.prior.num_latents
        count = inputs.shape[0]
        filled = fill_rows(inputs, data_size_class(count, latents))
        chain = self._with(filled, pieces=1)
        joint, lossy = to_host(_joint_at(self.prior, *chain, np.asarray(count)))
        if temporal.holds(lossy):
            joint = to_host(_carefully(self.prior, *chain, "joint", np.asarray(count)))
        return first_of_joint(joint, count * latents)

    @in_double
    def draw(self, key: Any, x: Any, n: int) -> Any:
        carefully = temporal.holds(self.lossy)

        def draws(key: Any, number: int) -> Any:
            return self._at_inputs(lambda *chain: _draws_at(*chain, key, number, carefully), x, pieces=1)

        return draws_by_row(draws, key, n, self.marginals.mean.shape[0])

    def _carefully(self, x: Any, query: str) -> Gaussian:
        return self._at_inputs(lambda *chain: _carefully(*chain, query), x, pieces=1)

    @in_double
    def one_step_ahead(self) -> Gaussian:
        inputs, sites, _ = self._with(np.zeros((0, 1)), pieces=1)
        return first_rows(to_host(_one_step_ahead(self.prior, inputs, sites)), self.marginals.mean.shape[0])

    def _at_inputs(self, function: Callable, x: Any, pieces: int | None = None) -> Any:
        """One entry per row of x, which is filled up to a size class."""
        inputs = numbers_of(x)
        count = inputs.shape[0]
        filled = fill_rows(inputs, size_class(count))
        return first_rows(to_host(function(self.prior, *self._with(filled, pieces))), count)

    def _with(self, x: Any, pieces: int | None = None) -> tuple["_Steps", Sites, Any]:
        """The inputs and sites of a chain over the steps of the data and of x, and the positions of x."""
        known = np.asarray(self.steps, dtype=float)
        steps = np.concatenate([known[:, None], np.asarray(x, dtype=float)])
        layout = self.prior.layout(steps) if pieces is None else self.prior.layout_in(steps, pieces)
        inputs, latents = layout.inputs, self.prior.num_latents
        length, of_data = inputs.steps.shape[0], inputs.position[: known.size]
        linear, precision = np.zeros((length, latents)), np.zeros((length, latents, latents))
        linear[of_data], precision[of_data] = self.sites.linear, self.sites.precision
        return inputs, Sites(linear, precision), inputs.position[known.size :]


@compiled
def _marginals_at(
    prior: StateSpaceModel, inputs: _Steps, sites: Sites, chosen: Any
) -> tuple[Gaussian, Bool[Array, "M D"], Bool[Array, ""]]:
    """The marginals of f, which variances were lost to rounding, and whether square roots have more digits."""
    workspace = prior.prepare(inputs)
    smoothed, _, _, lossy = kalman.marginals_and_states(
        workspace.chain, sites.precision, sites.centred_linear(workspace.mean)
    )
    marginals = Gaussian(workspace.mean + smoothed.mean, smoothed.covariance), smoothed.lost
    return *jax.tree.map(lambda leaf: leaf[chosen], marginals), lossy


@compiled
def _states_at(prior: StateSpaceModel, inputs: _Steps, sites: Sites, chosen: Any) -> tuple[Gaussian, Bool[Array, ""]]:
    workspace = prior.prepare(inputs)
    mean, covariance, posterior = kalman.smoothed_states(
        workspace.chain, sites.precision, sites.centred_linear(workspace.mean)
    )
    return Gaussian((workspace.state_mean + mean)[chosen], covariance[chosen]), posterior.lossy


@functools.partial(compiled, static_argnums=4)
def _carefully(
    prior: StateSpaceModel, inputs: _Steps, sites: Sites, chosen: Any, query: str, count: Any = None
) -> Gaussian:
    """The results of `_marginals_at`, `_states_at` and `_joint_at`, by square roots."""
    workspace = prior.prepare(inputs)
    return temporal.careful_query(*_chain(workspace, sites, chosen), workspace.state_mean[chosen], query, count)


def _chain(workspace: ChainWorkspace, sites: Sites, chosen: Any) -> tuple[kalman.Chain, Any, Any, Any, Any]:
    """The chain, its sites as deviations from the prior mean, and the chosen positions with their prior means."""
    linear = sites.centred_linear(workspace.mean)
    return workspace.chain, sites.precision, linear, chosen, workspace.mean[chosen]


@compiled
def _one_step_ahead(prior: StateSpaceModel, inputs: _Steps, sites: Sites) -> Gaussian:
    workspace = prior.prepare(inputs)
    mean, covariance = kalman.predicted(workspace.chain, sites.precision, sites.centred_linear(workspace.mean))
    return Gaussian((workspace.mean + mean)[inputs.position], covariance[inputs.position])


@compiled
def _joint_at(
    prior: StateSpaceModel, inputs: _Steps, sites: Sites, chosen: Any, count: Any
) -> tuple[Gaussian, Bool[Array, ""]]:
    return temporal.joint_query(*_chain(prior.prepare(inputs), sites, chosen), count)


@functools.partial(compiled, static_argnums=(5, 6))
def _draws_at(
    prior: StateSpaceModel, inputs: _Steps, sites: Sites, chosen: Any, key: Any, n: int, carefully: bool
) -> Float[Array, "M n D"]:
    return temporal.draw_query(*_chain(prior.prepare(inputs), sites, chosen), key, n, carefully)


# Checks of arguments ------------------------------------------------------------------------------


def _array(value: Any, name: str) -> Any:
    if isinstance(value, jax.core.Tracer):
        return value
    try:
        array = as_real(value)
    except NotRealError as error:
        raise ValueError(f"{name} must hold real numbers, got {error.entry!r}") from None
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite, got {value!r}: replace NaN and infinity by numbers")
    return array


def _matrices(value: Any, name: str, vector: bool = False) -> Any:
    array = _array(value, name)
    if vector and array.ndim == 1:
        array = array[None, :]
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ValueError(f"{name} must be a matrix, or one per step, got shape {array.shape}")
    return array


def _covariance(value: Any, name: str, size: int, many: bool = True) -> Any:
    array = _matrices(value, name)
    if array.shape[-2:] != (size, size) or (array.ndim == 3 and not many):
        shape = f"({size}, {size})" + (f" or (K, {size}, {size})" if many else "")
        raise ValueError(f"{name} must have shape {shape} for {size} state(s), got shape {array.shape}")
    # The noise of a short step is often a difference of much larger matrices.
    return checked_covariance(array, name, in_units=False)


def _vectors(value: Any, name: str, size: int, many: bool = True) -> Any:
    array = np.zeros(size) if value is None else _array(value, name)
    array = np.full(size, array) if isinstance(array, np.ndarray) and array.ndim == 0 else array
    if array.shape[-1:] != (size,) or array.ndim > (2 if many else 1):
        raise ValueError(
            f"{name} must have {size} entries{', or as many per step' if many else ''}, got shape {array.shape}"
        )
    return array


def _selection(rows: Any) -> tuple[tuple[int, ...], ...] | None:
    """The states whose sum is each latent; None if the observation has other entries than 0 and 1."""
    if not isinstance(rows, np.ndarray) or rows.ndim == 3 or not np.all((rows == 0.0) | (rows == 1.0)):
        return None
    states = tuple(tuple(int(i) for i in np.flatnonzero(row)) for row in rows)
    return states if all(states) else None
