"""Filter and smoother of a process in space and time whose places move in the same way.

The state at a time is a q × M matrix: q states of a Markov chain in time for each of M independent columns, flattened
with the columns last. Transitions are A ⊗ I and noises Q ⊗ I. The first B of the q states are observed: a slot (a
place at a time, with D latents) sees f = H z, where z are the B·M observed numbers and H is a D × B·M block of
`features`. Sites exp(λᵀf − ½ fᵀΛf) of all slots of one time are conditioned on at once.

With C and signs J such that Λ = C J Cᵀ, S = H P Hᵀ, U = P Hᵀ and E = (J + CᵀSC)⁻¹, the update at a time is

    G = (I + ΛS)⁻¹Λ = C E Cᵀ,    P ← P − U G Uᵀ,    log det(I + ΛS) = log |det (J + CᵀSC)|,

which inverts no site precision and holds for any signs. The smoother carries the vector r and the matrix N of all later
sites backwards (Bryson and Frazier): a state with mean m and covariance P becomes N(m + P r, P − P N P). Means and
vectors have one column for each of several linear terms λ.

A posterior is proper exactly when Σ (the number of positive eigenvalues of J + CᵀSC − that of J) over all times is
zero, because each term counts how many negative directions of the posterior precision one time adds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from . import linalg, small


class SeparableChain(eqx.Module):
    """The chain: one entry per step, in `segments` of equal length that may be computed again to save memory."""

    transition: Float[Array, "T q q"]
    """From the step before; that of the first step is I."""
    noise: Float[Array, "T q q"]
    initial: Float[Array, "q q"]
    features: Float[Array, "P D BM"]
    """What each place sees of the observed numbers."""
    places: Any
    """The place of every slot, (T, R); None if slot r is place r at every step."""
    observed: int = eqx.field(static=True)
    """B."""
    segments: int = eqx.field(static=True)
    stores: bool = eqx.field(static=True)
    """Whether the smoother uses stored results of the filter, and does not compute them again."""

    @property
    def width(self) -> int:
        """M."""
        return self.features.shape[2] // self.observed

    @property
    def size(self) -> int:
        """q·M."""
        return self.transition.shape[1] * self.width

    @property
    def seen(self) -> int:
        """B·M."""
        return self.features.shape[2]

    def rows(self, places: Any) -> Float[Array, "RD BM"]:
        """H of the slots of a step."""
        features = self.features if places is None else self.features[places]
        return features.reshape(-1, self.seen)

    def start(self, columns: int = 1) -> "State":
        """The distribution of the first state, with mean zero."""
        return State(jnp.zeros((self.size, columns)), kronecker(self.initial, self.width))


class State(NamedTuple):
    """Means, one column per linear term, and their common covariance."""

    mean: Float[Array, "n C"]
    covariance: Float[Array, "n n"]


class Adjoint(NamedTuple):
    """The information in later sites: r, one column per linear term, and N."""

    vector: Float[Array, "n C"]
    matrix: Float[Array, "n n"]


class Step(NamedTuple):
    """What the loops read at one step: matrices, and the sites of its slots as roots and signs."""

    transition: Float[Array, "q q"]
    onward: Float[Array, "q q"]
    """The transition to the step after."""
    noise: Float[Array, "q q"]
    places: Any
    roots: Float[Array, "R D D"]
    signs: Float[Array, "R D"]
    precision: Float[Array, "R D D"]
    linear: Float[Array, "R D C"]
    extra: Any = None
    """Whatever else a caller needs."""


class Update(NamedTuple):
    """What the smoother needs of one step of the filter."""

    gains: Float[Array, "n 2RD"]
    """U G and, side by side, P Hᵀ after the update."""
    middle: Float[Array, "RD RD"]
    """G."""
    spread: Float[Array, "R D D"]
    """The covariance of each slot's latents given all sites so far."""
    mean: Float[Array, "RD C"]
    """The mean of f given all sites so far."""
    innovation: Float[Array, "RD C"]
    """(I + ΛS)⁻¹(λ − ΛHm)."""
    log_det: Float[Array, ""]
    excess: Any
    """The number of positive eigenvalues beyond those of J."""


# Products with A ⊗ I ------------------------------------------------------------------------------


def kronecker(matrix: Float[Array, "q q"], width: int) -> Float[Array, "n n"]:
    """Q ⊗ I."""
    size = matrix.shape[0] * width
    return (matrix[:, None, :, None] * jnp.eye(width)[None, :, None, :]).reshape(size, size)


def moved(matrix: Float[Array, "q q"], columns: Float[Array, "n K"]) -> Float[Array, "n K"]:
    """(A ⊗ I) X."""
    return (matrix @ columns.reshape(matrix.shape[0], -1)).reshape(columns.shape)


def congruence(matrix: Float[Array, "q q"], symmetric: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """(A ⊗ I) X (A ⊗ I)ᵀ for a symmetric X."""
    return small.symmetrise(moved(matrix, moved(matrix, symmetric).T))


def blocks(matrix: Float[Array, "RD RD"], slots: int) -> Float[Array, "R D D"]:
    """The diagonal blocks, one per slot."""
    latents = matrix.shape[0] // slots
    if latents == 1:
        return linalg.diagonals(matrix)[:, None, None]
    return jnp.einsum("rdre->rde", matrix.reshape(slots, latents, slots, latents))


def _times_roots(columns: Float[Array, "K RD"], roots: Float[Array, "R D D"]) -> Float[Array, "K RD"]:
    """X C."""
    if roots.shape[1] == 1:
        return columns * roots[:, 0, 0][None, :]
    return jnp.einsum("krd,rde->kre", columns.reshape(-1, *roots.shape[:2]), roots).reshape(columns.shape)


def _times_transposed(columns: Float[Array, "K RD"], roots: Float[Array, "R D D"]) -> Float[Array, "K RD"]:
    """X Cᵀ."""
    return _times_roots(columns, jnp.swapaxes(roots, 1, 2))


# The filter ---------------------------------------------------------------------------------------


def predict(chain: SeparableChain, state: State, step: Step) -> State:
    """The state at a step given the sites before it."""
    covariance = congruence(step.transition, state.covariance) + kronecker(step.noise, chain.width)
    return State(moved(step.transition, state.mean), covariance)


class _Solved(NamedTuple):
    inverse: Float[Array, "RD RD"]
    """E."""
    shrinkage: Float[Array, "n n"]
    """U G Uᵀ."""
    log_det: Float[Array, ""]
    excess: Any


def _solve(matrix: Float[Array, "RD RD"], signs: Float[Array, " RD"], turned: Float[Array, "n RD"], psd: bool):
    """E = (J + CᵀSC)⁻¹ and U G Uᵀ, from UC."""
    if psd:
        factor = linalg.cholesky(matrix)
        half = linalg.solve_lower(factor, jnp.eye(matrix.shape[0]))
        rows = half @ turned.T
        return _Solved(half.T @ half, rows.T @ rows, linalg.log_det_from_cholesky(factor), jnp.zeros(()))
    inverse, log_det, positive = linalg.symmetric_inverse(matrix)
    return _Solved(inverse, turned @ inverse @ turned.T, log_det, positive - jnp.sum(signs > 0.0))


class _Seen(NamedTuple):
    """What the slots of a step see of a state before their sites are included."""

    rows: Float[Array, "RD BM"]
    """H."""
    cross: Float[Array, "n RD"]
    """U."""
    spread: Float[Array, "RD RD"]
    """S."""
    turned: Float[Array, "n RD"]
    """UC."""
    half: Float[Array, "RD RD"]
    """SC."""
    inner: Float[Array, "RD RD"]
    """CᵀSC."""


def _seen(chain: SeparableChain, state: State, step: Step) -> _Seen:
    rows = chain.rows(step.places)
    cross = state.covariance[:, : chain.seen] @ rows.T
    spread = small.symmetrise(rows @ cross[: chain.seen])
    half = _times_roots(spread, step.roots)
    return _Seen(rows, cross, spread, _times_roots(cross, step.roots), half, _times_roots(half.T, step.roots))


def update(chain: SeparableChain, state: State, step: Step, psd: bool) -> tuple[State, Update]:
    """Condition on the sites of all slots of a step."""
    seen, signs = _seen(chain, state, step), step.signs.reshape(-1)
    solved = _solve(seen.inner + jnp.diag(signs), signs, seen.turned, psd)
    explained = seen.turned @ solved.inverse
    gain = _times_transposed(explained, step.roots)
    strong = linalg.diagonals(seen.inner).reshape(step.signs.shape) > 1.0
    inverse_roots = _inverse_roots(step.roots, strong)
    after, spread = _left(seen, step, solved.inverse, explained, gain, inverse_roots)
    innovation = _innovation(state, step, seen, inverse_roots, solved.inverse)
    state = State(state.mean + seen.cross @ innovation, state.covariance - solved.shrinkage)
    found = Update(
        jnp.concatenate([gain, after], axis=1),
        _times_transposed(_times_transposed(solved.inverse, step.roots).T, step.roots),
        spread,
        seen.rows @ state.mean[: chain.seen],
        innovation,
        solved.log_det,
        solved.excess,
    )
    return state, found


def _left(seen: _Seen, step: Step, inverse, explained, gain, inverse_roots) -> tuple[Any, Any]:
    """P Hᵀ after an update, and the covariance of each slot's latents.

    In directions in which a site is precise, the differences U₊ = U − UGS and S₊ = S − SGS are rounding errors.
    Products with C are differences of J alone, which are not: U₊C = UCEJ, S₊C = SCEJ and CᵀS₊C = J − JEJ. With F, which
    is C⁻ᵀ in these directions and zero in the others, Π = FCᵀ projects on them, and

        U₊ = U₊CFᵀ + U₊(I − Π)ᵀ,    S₊ = F CᵀS₊C Fᵀ + (I − Π)S₊C Fᵀ + (that)ᵀ + (I − Π)S₊(I − Π)ᵀ.
    """
    (slots, latents), signs = step.signs.shape, step.signs.reshape(-1)
    known = _times_transposed(explained * signs[None, :], inverse_roots)
    after, reduced = seen.cross - gain @ seen.spread, seen.half @ inverse
    left = blocks(jnp.diag(signs) - signs[:, None] * inverse * signs[None, :], slots)
    left = jnp.einsum("rdk,rkl,rel->rde", inverse_roots, left, inverse_roots)
    rest = blocks(seen.spread, slots) - _block_products(reduced, seen.half, slots)
    if latents == 1:  # I − Π is zero or one
        precise = inverse_roots != 0.0
        return jnp.where(precise[:, 0, 0][None, :], known, after), jnp.where(precise, left, rest)
    others = jnp.eye(latents)[None] - jnp.einsum("rdk,rek->rde", inverse_roots, step.roots)
    mixed = jnp.einsum("rdk,rkl,rel->rde", others, blocks(reduced * signs[None, :], slots), inverse_roots)
    # The second and the third term are transposes of each other, and only the symmetric part is kept.
    spread = left + 2.0 * mixed + jnp.einsum("rdk,rkl,rel->rde", others, rest, others)
    return known + _times_transposed(after, others), small.symmetrise(spread)


def _inverse_roots(roots: Float[Array, "R D D"], strong: Bool[Array, "R D"]) -> Float[Array, "R D D"]:
    """C⁻ᵀ of slots whose columns of C are all strong; those that are, divided by their squared lengths, of others."""
    lengths = jnp.where(strong, jnp.sum(roots**2, axis=1), 1.0)
    found = jnp.where(strong[:, None, :], roots / lengths[:, None, :], 0.0)
    if roots.shape[1] == 1:
        return found
    # Columns are orthogonal, but their derivatives are not: one step towards the inverse makes its derivative exact.
    missing = jnp.eye(roots.shape[1])[None] - jnp.einsum("rdk,rdl->rkl", roots, found)
    exact = found + jnp.einsum("rdk,rkl->rdl", found, missing)
    return jnp.where(jnp.all(strong, axis=1)[:, None, None], exact, found)


def _block_products(left: Float[Array, "RD K"], right: Float[Array, "RD K"], slots: int) -> Float[Array, "R D D"]:
    """The diagonal blocks of X Yᵀ."""
    if left.shape[0] == slots:
        return jnp.sum(left * right, axis=1)[:, None, None]
    return jnp.einsum("rdk,rek->rde", left.reshape(slots, -1, left.shape[1]), right.reshape(slots, -1, left.shape[1]))


def _innovation(state: State, step: Step, seen: _Seen, inverse_roots, inverse) -> Float[Array, "RD C"]:
    """v = (I + ΛS)⁻¹ y for y = λ − ΛHm: with y = C w + y₀, it is C E (J w − CᵀS y₀) + y₀."""
    ahead = seen.rows @ state.mean[: seen.rows.shape[1]]
    shape = *step.signs.shape, -1
    slope = step.linear - jnp.einsum("rde,rec->rdc", step.precision, ahead.reshape(shape))
    strong = jnp.einsum("rdk,rdc->rkc", inverse_roots, slope)
    rest = (slope - jnp.einsum("rdk,rkc->rdc", step.roots, strong)).reshape(ahead.shape)
    solved = inverse @ ((step.signs[:, :, None] * strong).reshape(ahead.shape) - seen.half.T @ rest)
    return jnp.einsum("rdk,rkc->rdc", step.roots, solved.reshape(shape)).reshape(ahead.shape) + rest


# The smoother -------------------------------------------------------------------------------------


class Marginal(NamedTuple):
    """The posterior of the latents of a step's slots, as deviations from the prior mean."""

    mean: Float[Array, "R D C"]
    covariance: Float[Array, "R D D"]
    weights: Float[Array, "R D C"]
    """K⁻¹ times the mean."""


def pulled_back(step: Step, adjoint: Adjoint) -> Adjoint:
    """The information at the next step, as information about the state at this one."""
    return Adjoint(moved(step.onward.T, adjoint.vector), congruence(step.onward.T, adjoint.matrix))


def absorb(chain: SeparableChain, adjoint: Adjoint, step: Step, found: Update) -> tuple[Adjoint, Marginal]:
    """Add the sites of a step to the information after it; the marginals of its slots."""
    rows, slots = chain.rows(step.places), step.signs.shape[0]
    size = rows.shape[0]
    products = adjoint.matrix @ found.gains
    gain, after = found.gains[:, :size], found.gains[:, size:]
    weights = found.innovation - gain.T @ adjoint.vector
    covariance = _not_below_rounding(found.spread - _block_products(after.T, products[:, size:].T, slots), found.spread)
    middle = found.middle + gain.T @ products[:, :size]
    # N − HᵀKᵀN − NKH + Hᵀ(G + KᵀNK)H, by one product with H.
    pull = products[:, :size].T.at[:, : chain.seen].add(-0.5 * (middle @ rows))
    change = jnp.pad(rows.T @ pull, ((0, adjoint.matrix.shape[0] - chain.seen), (0, 0)))
    vector = adjoint.vector.at[: chain.seen].add(rows.T @ weights)
    shape = *step.signs.shape, -1
    mean = (found.mean + after.T @ adjoint.vector).reshape(shape)
    earlier = Adjoint(vector, small.symmetrise(adjoint.matrix - change - change.T))
    return earlier, Marginal(mean, covariance, weights.reshape(shape))


def _not_below_rounding(covariance: Float[Array, "R D D"], sizes: Float[Array, "R D D"]) -> Float[Array, "R D D"]:
    """Symmetric covariances with variances of at least a rounding error of the variances that they are left of."""
    variances, least = linalg.diagonals(covariance), linalg.EPS * jax.lax.stop_gradient(linalg.diagonals(sizes))
    raised = jnp.where(variances < least, least - variances, 0.0)
    return small.symmetrise(covariance) + jax.vmap(jnp.diag)(raised)


# Loops over segments ------------------------------------------------------------------------------


def steps_of(chain: SeparableChain, precision: Any, linear: Any, psd: bool, extra: Any = None) -> Step:
    """The inputs of the loops, (T, ...), from sites with precision (T, R, D, D) and linear terms (T, R, D, C)."""
    slots = precision.shape[:2]
    positive, negative = jax.vmap(small.signed_roots)(precision.reshape(-1, *precision.shape[2:]))
    roots = positive if psd else positive + negative
    signs = jnp.ones(roots.shape[:2]) if psd else jnp.where(jnp.any(negative != 0.0, axis=1), -1.0, 1.0)
    onward = jnp.concatenate([chain.transition[1:], jnp.zeros_like(chain.transition[:1])])
    return Step(
        chain.transition,
        onward,
        chain.noise,
        chain.places,
        roots.reshape(precision.shape),
        signs.reshape(*slots, -1),
        precision,
        linear,
        extra,
    )


def cut(tree: Any, segments: int) -> Any:
    """Arrays with one entry per step, by segments."""
    return jax.tree.map(lambda leaf: leaf.reshape(segments, -1, *leaf.shape[1:]), tree)


def joined(tree: Any) -> Any:
    """The inverse of `cut`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def over_segments(chain: SeparableChain, body: Callable, start: Any, steps: Any, reverse: bool = False) -> Any:
    """`jax.lax.scan` over all steps, whose derivatives keep one state per segment; also these states."""

    @jax.checkpoint
    def segment(carry, steps):
        after, found = jax.lax.scan(body, carry, steps, reverse=reverse)
        return after, (found, carry)

    _, (found, starts) = jax.lax.scan(segment, start, cut(steps, chain.segments), reverse=reverse)
    return joined(found), starts


def nothing_later(chain: SeparableChain, columns: int = 1) -> Adjoint:
    """The information after the last step."""
    return Adjoint(jnp.zeros((chain.size, columns)), jnp.zeros((chain.size, chain.size)))


class Totals(NamedTuple):
    """What all steps of the filter add up to."""

    log_det: Float[Array, ""]
    excess: Any


def smooth(chain: SeparableChain, steps: Step, psd: bool) -> tuple[Marginal, Totals]:
    """The marginals of all slots, by one filter and one smoother."""

    def forward(state, step):
        return update(chain, predict(chain, state, step), step, psd)

    def backward(adjoint, step):
        step, found = step
        return absorb(chain, pulled_back(step, adjoint), step, found)

    columns = steps.linear.shape[3]
    later = nothing_later(chain, columns)
    if chain.stores:
        updates, _ = over_segments(chain, forward, chain.start(columns), steps)
        found, _ = over_segments(chain, backward, later, (steps, updates), reverse=True)
        return found, Totals(jnp.sum(updates.log_det), jnp.sum(updates.excess))
    starts, totals = segment_starts(chain, steps, psd)

    @jax.checkpoint
    def segment(adjoint, segment):
        state, steps = segment
        _, updates = jax.lax.scan(forward, state, steps)
        return jax.lax.scan(backward, adjoint, (steps, updates), reverse=True)

    _, found = jax.lax.scan(segment, later, (starts, cut(steps, chain.segments)), reverse=True)
    return joined(found), totals


def segment_starts(chain: SeparableChain, steps: Step, psd: bool) -> tuple[State, Totals]:
    """The states before every segment."""

    def body(state, step):
        state, found = update(chain, predict(chain, state, step), step, psd)
        return state, Totals(found.log_det, found.excess)

    totals, starts = over_segments(chain, body, chain.start(steps.linear.shape[3]), steps)
    return starts, jax.tree.map(jnp.sum, totals)


class Smoothed(NamedTuple):
    """One entry per step and slot, as deviations from the prior mean."""

    marginal: Marginal
    log_det: Float[Array, ""]
    """log det(I + ΛK)."""
    proper: Bool[Array, ""]


def marginals(
    chain: SeparableChain, precision: Float[Array, "T R D D"], linear: Float[Array, "T R D"], psd: bool = False
) -> Smoothed:
    """Condition on the sites of all slots. With `psd`, an indefinite one makes the result improper by definition."""

    def run(psd: bool) -> Smoothed:
        found, totals = smooth(chain, steps_of(chain, precision, linear[..., None], psd), psd)
        return Smoothed(found, totals.log_det, (totals.excess == 0.0) & jnp.isfinite(totals.log_det))

    negative = has_negative(precision)
    found = by_sign(run, negative, psd)
    return found._replace(proper=found.proper & ~negative) if psd else found


def has_negative(precision: Float[Array, "T R D D"]) -> Bool[Array, ""]:
    """Whether a precision has a negative eigenvalue (True for NaN)."""
    flat = precision.reshape(-1, *precision.shape[2:])
    return ~jnp.all(jax.vmap(small.smallest_eigenvalue)(flat) >= -_ROUNDING * jnp.max(jnp.abs(precision), initial=0.0))


_ROUNDING = 1e-14


def by_sign(run: Callable[[bool], Any], negative: Bool[Array, ""], psd: bool) -> Any:
    """`run(True)`, by Cholesky factors, if no site is negative, and otherwise `run(False)`."""
    return run(True) if psd else jax.lax.cond(negative, lambda: run(False), lambda: run(True))
