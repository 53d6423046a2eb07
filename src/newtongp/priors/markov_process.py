"""The state of a kernel with a state space form: blocks in order of their size, and the latents they add to."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from ..kernels import Independent, Kernel, latent_kernels, num_latents
from ..numerics import kalman


class Process(NamedTuple):
    """The state of all latents: blocks in order of their size, with the latent that each adds to."""

    blocks: tuple[Any, ...]
    latents: tuple[int, ...]
    num_latents: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(block.size for block in self.blocks)

    @property
    def dimension(self) -> int:
        return sum(self.sizes)

    @property
    def selection(self) -> tuple[tuple[int, ...], ...]:
        """The first state of every block of each latent."""
        first = np.cumsum((0, *self.sizes[:-1]))
        return tuple(
            tuple(int(at) for at, latent in zip(first, self.latents, strict=True) if latent == j)
            for j in range(self.num_latents)
        )

    @property
    def observation(self) -> np.ndarray:
        """H, (D, d)."""
        rows = np.zeros((self.num_latents, self.dimension))
        for row, states in zip(rows, self.selection, strict=True):
            row[list(states)] = 1.0
        return rows

    def chain(self, before: Float[Array, " T"], after: Float[Array, " T"], first: Any, pieces: int) -> kalman.Chain:
        """The chain of states at times `after`, each given the one at `before`."""
        return kalman.make_chain(
            tuple(jax.vmap(block.transition)(before, after) for block in self.blocks),
            tuple(jax.vmap(block.noise)(before, after) for block in self.blocks),
            tuple(block.covariance(first) for block in self.blocks),
            self.selection,
            pieces=pieces,
        )

    def transition(self, start: Any, end: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.transition(start, end) for block in self.blocks])

    def noise(self, start: Any, end: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.noise(start, end) for block in self.blocks])

    def covariance(self, time: Any) -> Float[Array, "d d"]:
        return kalman.block_diagonal([block.covariance(time) for block in self.blocks])


def process_of(kernel: Kernel | Independent) -> Process:
    """The state of all latents of a kernel."""
    pairs = [(block, latent) for latent, part in enumerate(latent_kernels(kernel)) for block in part.blocks()]
    # Neighbouring blocks of one size are multiplied together.
    pairs.sort(key=lambda pair: pair[0].size)
    blocks, latents = zip(*pairs, strict=True)
    return Process(blocks, latents, num_latents(kernel))
