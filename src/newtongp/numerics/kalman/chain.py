"""A chain of Gaussian states and its layout in the loops.

x₁ ~ N(0, P₀), xₙ = Aₙ xₙ₋₁ + N(0, Qₙ), fₙ = Hₙ xₙ: the deviation of the states from their prior means
(`eq:state-space-model`). A and Q are block diagonal. The first step has A = I and Q = 0.

A chain is cut into `pieces` of equal length that run side by side. Arrays with one entry per position are in the order
of the loops: step l of piece c is at l · pieces + c. With one piece, this is the order of time.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import loops
from .algebra import Form
from .arrays import Arrays
from .unrolled import Unrolled

_LARGEST_UNROLLED, _OF_SEVERAL = 4, 3
"""The largest unrolled states of one latent and of several. Above, arrays compile in half the time and are as fast.

At 6 states, a step of inference takes 0.6 to 1.2 times as long with arrays, at 8 states a third to a half.
"""


class Chain(eqx.Module):
    """A chain at a data set's inputs, ready for the loops."""

    form: Form
    pieces: int = eqx.field(static=True)
    transition: Any
    noise: Any
    weights: Any
    """Observation weights per step; None if each latent is the sum of selected states."""
    initial: Float[Array, "d d"]

    @property
    def num_latents(self) -> int:
        """The number of latents per position."""
        return len(self.form.selection)

    @property
    def is_whole(self) -> bool:
        """Whether loops over the chain can be compiled as one kernel."""
        return self.form.is_whole(self.pieces)


def make_chain(
    transition: tuple[Any, ...],
    noise: tuple[Any, ...],
    initial: tuple[Any, ...],
    selection: tuple[tuple[int, ...], ...],
    weights: Any = None,
    pieces: int = 1,
) -> Chain:
    """A chain from its blocks, each with `transition` and `noise` (T, b, b) and `initial` (b, b).

    T is a multiple of `pieces`, and positions are in the order of the loops. `weights` (T, D, d) are needed only if f
    is not a sum of selected states.
    """
    sizes = tuple(int(block.shape[-1]) for block in initial)
    kind = Unrolled if sum(sizes) <= (_LARGEST_UNROLLED if len(selection) <= 1 else _OF_SEVERAL) else Arrays
    form = kind(sizes, selection)

    def cut(array):
        return lay_out(array, pieces)

    return Chain(
        form,
        pieces,
        form.steps(tuple(cut(block) for block in transition)),
        form.symmetric_steps(tuple(cut(block) for block in noise)),
        None if weights is None else form.weight_steps(cut(weights)),
        block_diagonal(initial),
    )


def lay_out(array: Any, pieces: int) -> Any:
    """(T, ...) reshaped to (steps, pieces, ...), the inputs of the loops; unchanged for one piece."""
    return array if pieces == 1 else array.reshape((-1, pieces, *array.shape[1:]))


def flatten(array: Any, pieces: int) -> Any:
    """The inverse of `lay_out`."""
    return array if pieces == 1 else array.reshape((-1, *array.shape[2:]))


def in_time(chain: Chain) -> Chain:
    """The same chain as one piece."""
    if chain.pieces == 1:
        return chain
    steps = (chain.transition, chain.noise, chain.weights)
    transition, noise, weights = jax.tree.map(loops.time_axis_first, steps)
    return Chain(chain.form, 1, transition, noise, weights, chain.initial)


def to_time(array: Any, pieces: int) -> Any:
    """Reorder one entry per position from the order of the loops to the order of time."""
    return array if pieces == 1 else loops.time_axis_first(lay_out(array, pieces))


def time_of(position: Any, length: int, pieces: int) -> Any:
    """The index in order of time of a position in the order of the loops."""
    return position if pieces == 1 else (position % pieces) * (length // pieces) + position // pieces


def from_time(array: Any, pieces: int) -> Any:
    """Reorder one entry per position from the order of time to the order of the loops."""
    if pieces == 1:
        return array
    return array.reshape((pieces, -1, *array.shape[1:])).swapaxes(0, 1).reshape(array.shape)


def observation_rows(chain: Chain) -> Any:
    """H as an array: (1, D, d) if it is the same at all positions, otherwise (T, D, d)."""
    if chain.weights is None:
        return jnp.asarray(chain.form.selection_rows[None])
    rows = chain.form.observation(chain.weights)
    return jnp.stack([chain.form.join_vector(row) for row in rows], axis=-2)


def choose_pieces(length: int, dimension: int, latents: int) -> int:
    """The fastest number of pieces.

    On a CPU, 16 pieces of a long chain of a few states fill the vector units, which outweighs the cost of the extra
    loop; larger states fill them alone. If loops cannot be compiled as one kernel, and on devices with many threads,
    more pieces are faster as long as each has work to do.
    """
    if loops.compiles_whole():
        return 16 if length >= 4096 and dimension <= 3 and latents == 1 else 1
    most = 256 if jax.default_backend() == "cpu" else 4096
    return 2 ** int(np.log2(np.clip(length / 16, 1, most)))


def positions(count: Any, pieces: int) -> Any:
    """The number of positions of a chain with `count` rows in this number of pieces."""
    # Long chains are padded to a multiple of the blocks of rows that other parts of the library use.
    whole = pieces if count < 2**14 else math.lcm(pieces, 1024)
    return -(-count // whole) * whole


def cut(times: np.ndarray, rows: np.ndarray, pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The positions of a chain in pieces, from times in ascending order and the row of each.

    Returns the times of the positions, the row at each (−1 for padding), and the position of every row.
    """
    count = times.shape[0]
    length = positions(count, pieces)
    fill = length - count
    times = from_time(np.concatenate([times, np.full(fill, times[-1])]), pieces)
    rows = from_time(np.concatenate([rows, np.full(fill, -1)]), pieces)
    rows = rows.astype(np.int32 if length < 2**31 else np.int64)
    position = np.empty(np.count_nonzero(rows >= 0), dtype=rows.dtype)
    position[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    return times, rows, position


def block_diagonal(blocks: Sequence[Any]) -> Float[Array, "d d"]:
    """The matrix with these blocks on its diagonal."""
    size = sum(int(block.shape[-1]) for block in blocks)
    full, at = jnp.zeros((size, size)), 0
    for block in blocks:
        width = block.shape[-1]
        full = full.at[at : at + width, at : at + width].set(block)
        at += width
    return full
