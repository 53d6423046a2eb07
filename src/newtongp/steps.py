"""How far the sites move towards the proposal, and when a move is refused.

A step sees numbers, not models: whether the trial is sound (posterior and cavities proper, all values
finite), the objective and the fixed-point residual before and after. It answers with a verdict.
"""

import abc
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .arguments import flag
from .gaussian import Sites, interpolate
from .linalg import solve_few
from .precision import parameter

_SHORTEST = 1e-9
"""A step below this changes nothing that double precision can see."""


class Outcome(eqx.Module):
    """What a step needs to know of one point."""

    sound: Bool[Array, ""]
    objective: Float[Array, ""]
    rounding: Float[Array, ""]
    """Changes of the objective below this are rounding."""
    residual: Float[Array, ""]
    """Root mean square of the fixed-point residual over rows, in marginal standard deviations."""


class Move(eqx.Module):
    """Where a step starts from and where it is asked to go, with the fixed-point residuals of every row."""

    sites: Sites
    proposal: Sites
    residuals: Float[Array, "N K"]


class Verdict(eqx.Module):
    """Whether the trial is accepted, the step's next state, and whether there is no point in going on."""

    accept: Bool[Array, ""]
    state: Any
    give_up: Bool[Array, ""]
    stalled: Bool[Array, ""] | None = None
    """Whether steps have been accepted for long without getting anywhere; None if this is not watched."""


class Step(eqx.Module):
    """A rule for step sizes."""

    monitors: ClassVar[str]
    """What `history.objective` holds: "objective" or "residual"."""

    @abc.abstractmethod
    def start(self, sites: Sites, stationary: bool, guardable: bool = False) -> Any:
        """The state before the first step.

        `stationary` says whether the same sites always have the same proposal, `guardable` whether proposals without
        negative curvature can be had as well.
        """

    def guards(self, state: Any) -> Bool[Array, ""] | None:
        """Whether the next proposal is to be made without negative curvature; None if this is never asked for."""
        return None

    @abc.abstractmethod
    def size(self, state: Any) -> Float[Array, ""]:
        """ρ for the next trial."""

    @abc.abstractmethod
    def trial(self, state: Any, move: Move) -> tuple[Sites, Any]:
        """The sites to try, and the state to judge them with."""

    @abc.abstractmethod
    def judge(self, state: Any, move: Move, before: Outcome, after: Outcome, psd: Bool[Array, ""]) -> Verdict:
        """Accept or refuse the trial; `psd` says whether its precisions are as PSD as the method promises."""


class Constant(Step):
    """The same ρ at every step, as in the paper. Stops at the first trial that is not sound.

    >>> Constant(1.5)
    Traceback (most recent call last):
        ...
    ValueError: rho must be greater than 0 and at most 1, got 1.5: use 1.0 for full steps, or less for shorter ones
    """

    monitors = "residual"
    rho: Any

    def __init__(self, rho: float = 1.0):
        remedy = "use 1.0 for full steps, or less for shorter ones"
        self.rho = parameter(rho, "rho", lower=0.0, upper=1.0, strict=(True, False), remedy=remedy)

    def start(self, sites, stationary, guardable=False):
        return None

    def size(self, state):
        return jnp.asarray(self.rho)

    def trial(self, state, move):
        return interpolate(move.sites, move.proposal, self.size(state)), state

    def judge(self, state, move, before, after, psd):
        return Verdict(after.sound, state, ~after.sound)


_MEMORY = 6
"""How many points are remembered, the present one included."""
_LARGEST_MEMORY = 2**23
"""Numbers that the acceleration may remember, 64 MB: for more rows it remembers fewer points, or does without."""
_PATIENCE = 100
"""Accepted steps without progress after which a damped run ends."""
_RECENT = 5
"""How many residuals a damped step compares with."""
_SLOW = 0.3
"""Acceleration is worth a trial where a step leaves more than this fraction of the residual."""


class _Acceleration(eqx.Module):
    """The last few points with their moves and residuals, from which Anderson's extrapolation is made."""

    points: Float[Array, "M V"]
    moves: Float[Array, "M V"]
    residuals: Float[Array, "M V"]
    filled: Any
    """How many entries can be used."""
    slot: Any
    """Where the next one goes: the oldest is overwritten, and nothing is moved."""
    next: Bool[Array, ""]
    """Whether the next trial is an accelerated one."""


def _no_acceleration(sites: Sites, wanted: bool) -> _Acceleration:
    rows, latents = sites.linear.shape
    size = rows * (latents + latents**2)
    count = min(_MEMORY, _LARGEST_MEMORY // (3 * size)) if wanted else 0
    count = count if count >= 3 else 0
    return _Acceleration(
        jnp.zeros((count, size)),
        jnp.zeros((count, size)),
        jnp.zeros((count, size)),
        jnp.zeros((), dtype=int),
        jnp.zeros((), dtype=int),
        jnp.zeros((), dtype=bool),
    )


def _trial(state: "_Progress", move: Move) -> tuple[Sites, "_Progress"]:
    """The plain step (1 − ρ) site + ρ proposal, or the extrapolation where it is due; and the move is noted down."""
    memory, size = state.memory, state.size
    plain = interpolate(move.sites, move.proposal, size)
    if memory.points.shape[0] == 0:
        return plain, state
    vectors = _as_vectors(move)
    # What was remembered is written first and only then read, in a loop that runs once or not at all: in any other
    # order, or with `cond`, XLA copies all of it at every step.
    kept = tuple(
        jax.lax.dynamic_update_index_in_dim(old, new, memory.slot, 0)
        for old, new in zip(_kept(memory), vectors, strict=True)
    )
    memory = eqx.tree_at(_kept, memory, kept)

    def extrapolate(_):
        return _unflatten(_anderson(memory, size, *vectors), move.sites), jnp.zeros((), dtype=bool)

    trial, _ = jax.lax.while_loop(lambda carry: carry[1], extrapolate, (plain, memory.next))
    return trial, eqx.tree_at(lambda progress: progress.memory, state, memory)


def _kept(memory: Any) -> Any:
    return memory.points, memory.moves, memory.residuals


def _remember(memory: _Acceleration, accept: Bool[Array, ""], slow: Bool[Array, ""]) -> _Acceleration:
    """Keep the point that an accepted step started from; forget everything after a refusal."""
    count = memory.points.shape[0]
    if count == 0:
        return memory
    filled = jnp.where(accept, jnp.minimum(memory.filled + 1, count - 1), 0)
    return _Acceleration(
        memory.points,
        memory.moves,
        memory.residuals,
        filled,
        (memory.slot + 1) % count,
        accept & slow & (filled >= 2),
    )


def _anderson(memory: _Acceleration, size, point, move, residual) -> Float[Array, " V"]:
    """The combination of remembered points whose linearised residual is smallest, one step further."""
    count = memory.points.shape[0]
    age = (memory.slot - jnp.arange(count)) % count
    usable = ((age >= 1) & (age <= memory.filled))[:, None]
    residuals = jnp.where(usable, residual[None, :] - memory.residuals, 0.0)
    points = jnp.where(usable, point[None, :] - memory.points, 0.0)
    moves = jnp.where(usable, move[None, :] - memory.moves, 0.0)
    normal = residuals @ residuals.T
    ridge = 1e-12 * jnp.trace(normal) + jnp.where(usable[:, 0], 1e-300, 1.0)
    mix = solve_few(normal + jnp.diag(ridge), residuals @ residual)
    return point + size * move - mix @ (points + size * moves)


def _as_vectors(move: Move) -> tuple[Array, Array, Array]:
    """A move's point, its direction and its residuals, each as one vector."""
    point = _flatten(move.sites)
    return point, _flatten(move.proposal) - point, jnp.ravel(move.residuals)


def _flatten(sites: Sites) -> Float[Array, " V"]:
    return jnp.concatenate([jnp.ravel(sites.linear), jnp.ravel(sites.precision)])


def _unflatten(vector: Float[Array, " V"], like: Sites) -> Sites:
    cut = like.linear.size
    return Sites(vector[:cut].reshape(like.linear.shape), vector[cut:].reshape(like.precision.shape))


def unless(first: Bool[Array, ""], before: Any, after: Any) -> Any:
    """The state after a trial, or as it was where the trial was only a look at the starting point.

    What the acceleration remembers is not copied for that: `filled` says how much of it counts.
    """
    return jax.tree.map(lambda old, new: new if new.ndim == 2 else jnp.where(first, old, new), before, after)


class _Guard(eqx.Module):
    """Whether negative curvature is left out at present, and for how long."""

    on: Bool[Array, ""]
    left: Any
    """Accepted steps until the other way is tried again."""
    pause: Any
    """How many of them there will be next time with the guard on."""


_GUARD_BELOW = 0.2
"""A step this short is a sign that negative curvature leads nowhere from here."""
_UNGUARD_BELOW = 0.01
_PAUSE, _LONGEST_PAUSE = 5, 40


def _next_guard(guard: _Guard, accept: Bool[Array, ""], refused: Bool[Array, ""], size: Float[Array, ""]):
    """The guard after a trial, and the ρ to go on with; `size` is what ρ would be by itself."""
    left = jnp.where(accept, jnp.maximum(guard.left - 1, 0), guard.left)
    put_on = refused & ~guard.on & (left == 0) & (size < _GUARD_BELOW)
    useless = refused & guard.on & (size < _UNGUARD_BELOW)
    take_off = accept & guard.on & (left == 0)
    helped = accept & ~guard.on & (size >= 1.0)
    on = jnp.where(put_on, True, jnp.where(useless | take_off, False, guard.on))
    size = jnp.where(put_on | take_off, 1.0, jnp.where(useless, 0.5 * _GUARD_BELOW, size))
    pause = jnp.where(take_off, jnp.minimum(2 * guard.pause, _LONGEST_PAUSE), jnp.where(helped, _PAUSE, guard.pause))
    left = jnp.where(put_on, guard.pause, jnp.where(useless, _PAUSE, left))
    return _Guard(on, left, pause), size, put_on | useless | take_off


class _Progress(eqx.Module):
    """ρ, the last accepted residuals (Damped only), the memory of the acceleration, and the guard (Backtracking)."""

    size: Float[Array, ""]
    recent: Float[Array, " R"]
    memory: _Acceleration
    guard: _Guard | None = None
    best: Float[Array, ""] | None = None
    """The residual that the next ones have to be below to count as progress (Damped only)."""
    since: Any = None
    """Accepted steps since there was any."""


class Backtracking(Step):
    """Full steps, halved until the trial is sound and the objective has not risen; doubled after success.

    For methods whose fixed points are the stationary points of an objective. Where the objective can no
    longer tell two points apart, the fixed-point residual must not grow instead. Where convergence is slow,
    Anderson acceleration is tried first, and kept only if it passes the same test.

    Far from the optimum, negative curvature can allow only tiny steps before the posterior is improper. Then it is left
    out of the proposals for some steps, and tried again from time to time: at the optimum it belongs. In its place
    comes Gauss-Newton curvature where y is Gaussian given f, and elsewhere the exact one with every negative
    eigenvalue of a row's precision set to zero.

    >>> float(Backtracking(shorten=0.25).shorten)
    0.25
    """

    monitors = "objective"
    shorten: Any
    lengthen: Any
    accelerate: bool = eqx.field(static=True)

    def __init__(self, shorten: float = 0.5, lengthen: float = 2.0, accelerate: bool = True):
        self.shorten = parameter(shorten, "shorten", lower=0.0, upper=1.0)
        self.lengthen = parameter(lengthen, "lengthen", lower=1.0, strict=False)
        self.accelerate = flag(accelerate, "accelerate")

    def start(self, sites, stationary, guardable=False):
        guard = _Guard(jnp.zeros((), dtype=bool), jnp.zeros((), dtype=int), jnp.asarray(_PAUSE)) if guardable else None
        return _Progress(jnp.ones(()), jnp.zeros(0), _no_acceleration(sites, self.accelerate and stationary), guard)

    def size(self, state):
        return state.size

    def guards(self, state):
        return None if state.guard is None else state.guard.on

    def trial(self, state, move):
        return _trial(state, move)

    def judge(self, state, move, before, after, psd):
        change = after.objective - before.objective
        flat = jnp.abs(change) <= after.rounding
        fallen = jnp.where(flat, after.residual <= before.residual, change < 0.0)
        accelerated = state.memory.next
        accept = after.sound & fallen & (psd | ~accelerated)
        # A failed acceleration costs one trial and the memory, not step length.
        shorter = jnp.where(accelerated, state.size, self.shorten * state.size)
        longer = jnp.minimum(1.0, self.lengthen * state.size)
        memory = _remember(state.memory, accept, after.residual > _SLOW * before.residual)
        size, guard = jnp.where(accept, longer, shorter), state.guard
        if guard is not None:
            guard, size, changed = _next_guard(guard, accept, ~accept & ~accelerated, size)
            # What was remembered belongs to the other kind of proposals.
            memory = eqx.tree_at(lambda m: m.filled, memory, jnp.where(changed, 0, memory.filled))
            memory = eqx.tree_at(lambda m: m.next, memory, memory.next & ~changed)
        return Verdict(accept, _Progress(size, state.recent, memory, guard), ~accept & (size < _SHORTEST))


class Damped(Step):
    """Steps for methods that have fixed points but no objective: power EP, posterior linearisation, ...

    A trial is accepted when it is sound and its fixed-point residual does not exceed the largest of the last
    few; otherwise ρ is halved. Once ρ is down to `patient` a growing residual is put up with, since it may
    have to grow on the way to the fixed point. Where convergence is slow, Anderson acceleration is tried
    first, and kept only if it is sound and lowers the residual.

    >>> Damped(accelerate=False).accelerate
    False
    """

    monitors = "residual"
    rho: Any
    patient: Any
    accelerate: bool = eqx.field(static=True)

    def __init__(self, rho: float = 1.0, patient: float = 0.05, accelerate: bool = True):
        self.rho = Constant(rho).rho
        self.patient = parameter(patient, "patient", lower=0.0, upper=1.0)
        self.accelerate = flag(accelerate, "accelerate")

    def start(self, sites, stationary, guardable=False):
        # A method that remembers (quasi-Newton) is no fixed map, and has nothing to extrapolate from.
        memory = _no_acceleration(sites, self.accelerate and stationary)
        rho, recent = jnp.asarray(self.rho, dtype=float), jnp.full(_RECENT, jnp.inf)
        return _Progress(rho, recent, memory, best=jnp.asarray(jnp.inf), since=jnp.zeros((), dtype=int))

    def size(self, state):
        return state.size

    def trial(self, state, move):
        return _trial(state, move)

    def judge(self, state, move, before, after, psd):
        lower = after.residual < before.residual
        progress = after.sound & (after.residual < 0.9 * state.best)
        limit = jnp.max(jnp.where(jnp.isfinite(state.recent), state.recent, before.residual))
        bearable = (after.residual <= limit) | (state.size <= self.patient)
        accelerated = state.memory.next
        accept = after.sound & jnp.where(accelerated, lower & psd, bearable)
        shorter = jnp.where(accelerated, state.size, 0.5 * state.size)
        longer = jnp.where(lower, jnp.minimum(1.0, 1.5 * state.size), state.size)
        recent = jnp.concatenate([state.recent[1:], after.residual[None]])
        judged = _Progress(
            jnp.where(accept, longer, shorter),
            jnp.where(accept, recent, state.recent),
            _remember(state.memory, accept, after.residual > _SLOW * before.residual),
            best=jnp.where(progress, after.residual, state.best),
            since=jnp.where(progress, 0, state.since + accept),
        )
        return Verdict(accept, judged, ~accept & (shorter < _SHORTEST), judged.since >= _PATIENCE)


class DoubleLoop(Step):
    """For power EP that does not come to rest: the double loop, slow but sure, and `Damped` steps from where it ends.

    An inner loop climbs a concave function of the sites, with the marginals that cavities are made from held; an outer
    loop renews those. It takes at most `most` conditionings of the prior.

    >>> DoubleLoop(most=500).most
    500
    """

    monitors = "residual"
    most: int = eqx.field(static=True)
    then: Damped

    def __init__(self, most: int = 5000):
        if not isinstance(most, (int, np.integer)) or isinstance(most, bool) or most < 1:
            raise ValueError(f"most must be an integer of at least 1, got {most!r}")
        self.most = int(most)
        self.then = Damped()

    def start(self, sites, stationary, guardable=False):
        return self.then.start(sites, stationary, guardable)

    def size(self, state):
        return self.then.size(state)

    def trial(self, state, move):
        return self.then.trial(state, move)

    def judge(self, state, move, before, after, psd):
        return self.then.judge(state, move, before, after, psd)
