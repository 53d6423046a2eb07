"""The parts of a Gaussian process in space and time: its products of kernels, their states, and rows in slots."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..kernels import Independent, Kernel
from ..kernels.multilatent import over_latents
from ..numerics import separable, separable_normaliser, small
from ..numerics.gaussian import Gaussian, Sites, add_covariance
from .base import Conditioned, Workspace
from .sparse import Projection


class Channel(NamedTuple):
    """One product of kernels, and the latent that it adds to."""

    latent: int
    time: Kernel
    space: Kernel

    def check(self, x: np.ndarray) -> None:
        """Raise ValueError unless both kernels can be used on these inputs."""
        for kernel, inputs, name in ((self.time, x[:, :1], "time"), (self.space, x[:, 1:], "space")):
            try:
                kernel.check_inputs(inputs.shape[1])
                kernel.check_values(inputs)
            except ValueError as error:
                raise ValueError(f"the kernel of {name}: {error}") from None


# The process in time ------------------------------------------------------------------------------


class Process(NamedTuple):
    """The states of all channels in time, in the order of the chain: the first of every block, then the others."""

    kernel: Independent
    """The time kernels."""
    latents: tuple[int, ...]
    """The latent of every channel."""
    sizes: tuple[tuple[int, ...], ...]
    """The sizes of the blocks of every channel."""

    @property
    def size(self) -> int:
        """q."""
        return sum(map(sum, self.sizes))

    @property
    def observed(self) -> int:
        """B, the number of blocks."""
        return sum(map(len, self.sizes))

    @property
    def places(self) -> list[np.ndarray]:
        """The positions of every channel's states in the chain."""
        found, first, other = [], 0, self.observed
        for sizes in self.sizes:
            own = []
            for size in sizes:
                own += [first, *range(other, other + size - 1)]
                first, other = first + 1, other + size - 1
            found.append(np.array(own))
        return found

    @property
    def channel_of_state(self) -> np.ndarray:
        """The channel of every state of the chain."""
        found = np.zeros(self.size, dtype=int)
        for channel, places in enumerate(self.places):
            found[places] = channel
        return found

    def transition(self, start: Float[Array, " T"], end: Float[Array, " T"]) -> Float[Array, "T q q"]:
        """A from one time to another, for every pair."""
        return self._joined(lambda block: jax.vmap(block.transition)(start, end))

    def noise(self, start: Float[Array, " T"], end: Float[Array, " T"]) -> Float[Array, "T q q"]:
        """Q from one time to another, for every pair."""
        return self._joined(lambda block: jax.vmap(block.noise)(start, end))

    def covariance(self, times: Float[Array, " T"]) -> Float[Array, "T q q"]:
        """The prior covariance at every time."""
        return self._joined(lambda block: jax.vmap(block.covariance)(times))

    def _joined(self, of_block: Any) -> Float[Array, "T q q"]:
        """The matrices of all blocks, in one of all states."""

        def of_channel(kernel):
            return tuple(jnp.asarray(of_block(block)) for block in kernel.blocks())

        entries, index, begin = [], np.zeros((self.size, self.size), dtype=int), 1
        for group in over_latents(of_channel, self.kernel):
            offset = 0
            for part in group.found:
                size = part.shape[-1]
                for number, channel in enumerate(group.latents):
                    own = self.places[channel][offset : offset + size]
                    index[np.ix_(own, own)] = begin + number * size**2 + np.arange(size**2).reshape(size, size)
                entries.append(jnp.moveaxis(part, 0, 1).reshape(part.shape[1], -1))
                offset, begin = offset + size, begin + entries[-1].shape[1]
        flat = jnp.concatenate([jnp.zeros((entries[0].shape[0], 1)), *entries], axis=1)
        return flat[:, index.reshape(-1)].reshape(-1, *index.shape)

    def features(self, features: Float[Array, "F P M"], latents: int) -> Float[Array, "P D BM"]:
        """What places see of the observed states, from the features of every channel."""
        channel = self.channel_of_state[: self.observed]
        latent = np.eye(latents)[np.asarray(self.latents)[channel]]
        found = jnp.einsum("bpm,bd->pdbm", features[channel], latent)
        return found.reshape(*found.shape[:2], -1)

    def state_features(self, features: Float[Array, "F P M"]) -> Float[Array, "q P M"]:
        """The features of the channel of every state."""
        return features[self.channel_of_state]


def process_of(channels: tuple[Channel, ...]) -> Process:
    """The process of these channels."""
    sizes = tuple(tuple(block.size for block in channel.time.blocks()) for channel in channels)
    return Process(
        Independent([channel.time for channel in channels]), tuple(channel.latent for channel in channels), sizes
    )


# The workspace ------------------------------------------------------------------------------------


class SpaceTimeWorkspace(Workspace):
    """Quantities that depend only on the inputs: prior means, the chain, and the slots of all rows."""

    mean: Float[Array, "N D"]
    chain: separable.SeparableChain
    projection: Projection
    residual: Float[Array, "N D D"] | None
    times: Any
    members: Any
    slots: Any

    def residual_covariance(self):
        return self.residual

    def marginals_of_f(self, marginals: Gaussian) -> Gaussian:
        return add_covariance(marginals, self.residual)

    def summed(self, sites: Sites) -> tuple[Float[Array, "T R D D"], Float[Array, "T R D"]]:
        """The sites of all slots, as functions of deviations from the prior mean."""

        def total(rows):
            none = jnp.zeros((1, *rows.shape[1:]), rows.dtype)
            return jnp.sum(jnp.concatenate([rows, none])[self.members], axis=2)

        return total(jnp.asarray(sites.precision)), total(sites.centred_linear(self.mean))

    def marginals(self, sites: Sites, psd: bool = False) -> Conditioned:
        return self.conditioned(separable.marginals(self.chain, *self.summed(sites), psd))

    def log_normaliser(self, sites: Sites, psd: bool = False) -> Float[Array, ""]:
        linear = jnp.sum((sites.linear + sites.centred_linear(self.mean)) * self.mean)
        return 0.5 * linear + separable_normaliser.log_normaliser(self.chain, *self.summed(sites), psd)

    def conditioned(self, smoothed: separable.Smoothed) -> Conditioned:
        """The marginals of all rows, with the prior mean added."""
        found = smoothed.marginal
        mean, covariance = self.of_rows(found.mean[..., 0]), self.of_rows(found.covariance)
        distance = jnp.sum(found.mean * found.weights)
        marginals = Gaussian(self.mean + mean, jax.vmap(small.small_covariance)(covariance))
        return Conditioned(marginals, distance, smoothed.log_det, smoothed.proper, self.residual)

    def of_rows(self, slots: Float[Array, "T R ..."]) -> Any:
        """The entry of every row's slot."""
        return slots.reshape(-1, *slots.shape[2:])[self.slots]
