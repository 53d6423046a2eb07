"""The step of one batch of rows: an estimate of the energy and its gradient, a step of Adam, and a step of t."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._runtime.devices import kept_everywhere
from ..inference.minibatch.belief import Product
from ..inference.minibatch.product import DeviceRows, Shared, nothing
from ..inference.minibatch.tied import Tied, energy_of_rows, propose_batch, shared_factor_energy, step_towards
from ..methods.rule import Method
from ..numerics.trees import select
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP
from .coordinates import ChainCoordinates, Coordinates, coordinates_of
from .learned import Slot
from .objective import replaced

_ROUNDS = 12
_SETTLING = 0.7
"""The number and the size of steps towards t(v) with which starts are compared."""


class Constants(eqx.Module):
    """What stays the same from batch to batch."""

    prior: SparseGP | MarkovGP
    method: Method
    units: Any
    low: Any
    high: Any
    """Bounds of the free numbers divided by their units."""
    total: Any
    """The number of rows."""
    observed: Any
    """The number of rows with some observed y, or the sum of their weights."""


class State(eqx.Module):
    """Between two batches: the free numbers over their units, Adam's moments, t(v), and sums over this stretch."""

    scaled: Float[Array, " K"]
    moments: Any
    product: Product
    iterates: Float[Array, " K"]
    energies: Float[Array, ""]
    """The sum of the energies of rows."""
    shared_energies: Float[Array, ""]
    """The sum of the energies of t(v), weighted by the rows of the batch."""
    rows: Float[Array, ""]
    steps: Float[Array, ""]
    refused: Float[Array, ""]
    """Batches whose gradient was not finite."""


def _adam() -> Any:
    # Imported here because it takes a tenth of a second and is rarely needed.
    import optax

    return optax.scale_by_adam(b2=0.99)


def begin(scaled: Any, product: Product) -> State:
    """The state before the first batch."""
    zeros, zero = jnp.zeros(scaled.shape), jnp.zeros(())
    return State(jnp.asarray(scaled), _adam().init(zeros), product, zeros, zero, zero, zero, zero, zero)


def sums(state: State) -> Any:
    """The sums over a stretch, which are reset at its end."""
    return state.iterates, state.energies, state.shared_energies, state.rows, state.steps, state.refused


def at(
    slots: tuple[Slot, ...], constants: Constants, rows: DeviceRows, unconstrained: Any
) -> tuple[Shared, DeviceRows, Coordinates | ChainCoordinates]:
    """The model and a batch with these hyperparameters, and the coordinates in which t is stored."""
    prior, likelihood = replaced(slots, constants.prior, rows.likelihood, unconstrained)
    projection, coordinates = coordinates_of(prior)
    here = eqx.tree_at(lambda batch: batch.likelihood, rows, likelihood)
    return Shared(prior, projection, constants.method), here, coordinates


@functools.partial(jax.jit, static_argnums=0)
def energy_and_gradient(
    slots: tuple[Slot, ...], constants: Constants, rows: DeviceRows, unconstrained: Any, product: Product, share: Any
) -> tuple[tuple[Float[Array, ""], Float[Array, ""]], Float[Array, " K"]]:
    """The energies of a batch and of t, and the gradient of an estimate of the whole energy in the free numbers.

    The estimate divides the batch's energy by `share`, the fraction of all rows that it has.
    """

    def energy(unconstrained):
        shared, here, coordinates = at(slots, constants, rows, unconstrained)
        tied = Tied.given(shared, coordinates.product_of_v(product), constants.observed)
        of_factor = shared_factor_energy(shared, tied, constants.observed)
        parts = energy_of_rows(shared, here, tied), of_factor
        return parts[0] / share + parts[1], parts

    (_, parts), gradient = jax.value_and_grad(energy, has_aux=True)(unconstrained)
    return parts, gradient


@functools.partial(jax.jit, static_argnums=0)
def advance(
    slots: tuple[Slot, ...],
    constants: Constants,
    rows: DeviceRows,
    state: State,
    pull: Float[Array, " K"],
    rate: Any,
    step_size: Any,
    size: Any,
) -> State:
    """One step of Adam, and one step of t(v) towards the proposals of a batch.

    `pull` is the gradient of minus the log prior density of the hyperparameters; `size` is the number of rows in a
    complete batch.
    """
    unconstrained = state.scaled * constants.units
    shared, here, coordinates = at(slots, constants, rows, unconstrained)
    tied = Tied.given(shared, coordinates.product_of_v(state.product), constants.observed)
    # The gradient is at the t of earlier batches: after an update with these rows, t would overfit them.
    share = rows.count / constants.total
    (energy, energy_of_product), slope = energy_and_gradient(
        slots, constants, rows, unconstrained, state.product, share
    )
    # The last batch of a pass may be smaller, and is weighted by its number of rows.
    weight = rows.count / size
    gradient = weight * (slope + pull) * constants.units
    # Unlike a step of inference, a step of Adam cannot be judged by the energy, which is a noisy estimate in a batch.
    # The gradient only has to be finite.
    fine = jnp.isfinite(energy) & jnp.all(jnp.isfinite(gradient))
    moves, moments = _adam().update(jnp.where(fine, gradient, 0.0), state.moments)
    scaled = jnp.clip(state.scaled - rate * moves, constants.low, constants.high)
    scaled, moments = select(fine, (scaled, moments), (state.scaled, state.moments))
    proposal = propose_batch(shared, here, tied).product.times(1.0 / share)
    moved = step_towards(shared, tied, proposal, weight * step_size, constants.observed)
    after = State(
        scaled,
        moments,
        coordinates.product_of_z(moved.product),
        state.iterates + scaled,
        state.energies + energy,
        state.shared_energies + rows.count * energy_of_product,
        state.rows + rows.count,
        state.steps + 1.0,
        state.refused + jnp.where(fine, 0.0, 1.0),
    )
    return kept_everywhere(after, rows.mesh)


@functools.partial(jax.jit, static_argnums=0)
def settle(slots: tuple[Slot, ...], constants: Constants, rows: DeviceRows, unconstrained: Any) -> tuple[Any, Product]:
    """The lowest energy after a few steps with these rows only, scaled to all rows, and its t(v)."""
    shared, here, coordinates = at(slots, constants, rows, unconstrained)
    scale, observed = constants.total / rows.count, constants.observed
    start = nothing(shared.prior, shared.projection)

    def step(_, carried):
        tied, lowest, best = carried
        proposal = propose_batch(shared, here, tied)
        total = scale * proposal.energy + shared_factor_energy(shared, tied, observed)
        lower = total < lowest
        lowest, best = jnp.where(lower, total, lowest), select(lower, tied.product, best)
        return step_towards(shared, tied, proposal.product.times(scale), _SETTLING, observed), lowest, best

    begin = Tied.given(shared, start, observed), jnp.asarray(jnp.inf, dtype=float), start
    _, lowest, best = jax.lax.fori_loop(0, _ROUNDS + 1, step, begin)
    return kept_everywhere((lowest, coordinates.product_of_z(best)), rows.mesh)
