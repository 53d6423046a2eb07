"""Gaussian processes in space and time with separable covariances, conditioned in time linear in the number of times.

f(t, s) = ψ(s)ᵀ z(t) + e(t, s), where ψ(s) = T K(Z, s) whitens the space kernel at the places Z, and the entries of z
are independent Markov processes with the time kernel: transitions act on the time part alone, in the same way for
every entry. If Z are all places of the data, e is zero there. Otherwise sites act on the first part, and e, whose
covariance is k_time · (k_space − ψᵀψ), is independent of it, as in a sparse GP.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..kernels import Independent, Kernel, diagonals, latent_kernels, num_latents
from ..kernels.base import Sum
from ..kernels.inducing import choose, first_outside, read_inducing
from ..means import as_mean
from ..numerics import separable
from ..numerics.gaussian import Sites
from ..numerics.size_classes import SMALLEST_DATA, fill_rows, size_class
from ..parameters.constraints import never_learned
from ..validation.arguments import whole
from ..validation.times import Clock, as_clock
from .base import Layout, Prior
from .by_name import named
from .space_time_layout import (
    SpaceTimeInputs,
    check_inducing_places,
    check_places,
    is_stored,
    lay_out,
    places_of,
    segments_of,
    stored_bytes,
)
from .space_time_posterior import SpaceTimePosterior, posterior_of
from .space_time_process import Channel, SpaceTimeWorkspace, process_of
from .sparse import Projection


class SpaceTimeGP(Prior):
    """A Gaussian process prior over functions of time and space with covariance k_time(t, t') · k_space(s, s').

    x has the time in its first column, and the place in the others: coordinates, or one column of area codes for
    `kernels.Graph` or `kernels.Category`. `time` is any kernel with a state space form (see `MarkovGP`), and `space`
    any kernel; names such as "matern32" will do. For a sum of such products, both are lists of the same length. For
    several latents, either is `kernels.Independent([...])`; a single kernel is used for all latents. Rows may be in any
    order, repeat places and times, and be missing. Time stamps need `unit`, and are counted from `origin`, as for
    `MarkovGP`.

    The cost of a step of inference is linear in the number of times and cubic in the number of places. `inducing` makes
    it cubic in a smaller number: an array of different places through which f is represented, or a number, and then
    that many are chosen from the data, or all of them if there are no more. Without it, the posterior is exact.

    >>> import numpy as np
    >>> import newtongp as ng
    >>> weeks, stations = np.arange(20.0), np.array([[0.0, 0.0], [0.3, 0.1], [1.0, 0.8]])
    >>> x = np.array([[week, *place] for week in weeks for place in stations])
    >>> y = np.random.default_rng(0).poisson(np.exp(np.sin(x[:, 0] / 3.0) + x[:, 1]))
    >>> prior = ng.SpaceTimeGP(ng.kernels.Matern32(lengthscale=4.0), ng.kernels.Matern52(lengthscale=0.8))
    >>> model = ng.Model(prior, ng.likelihoods.Poisson())  # ready for ng.infer(model, x, y)
    >>> x.shape, y.shape
    ((60, 3), (60,))
    """

    time: tuple[Any, ...]
    """The kernel of time of every product."""
    space: tuple[Any, ...]
    """The kernel of space of every product."""
    mean: Any
    clock: Clock | None = eqx.field(static=True)
    count: int | None = eqx.field(static=True)
    inducing: Any = never_learned()
    """Inducing places; None if all places are used, or if they are chosen from the data."""

    def __init__(
        self, time: Any, space: Any = None, inducing: Any = None, unit: Any = None, mean: Any = None, origin: Any = None
    ):
        if space is None:
            raise ValueError(
                'SpaceTimeGP needs a kernel of space too, as in SpaceTimeGP("matern32", "matern52"): for functions of '
                "time alone use MarkovGP"
            )
        self.time, self.space = _kernels(time, "time"), _kernels(space, "space")
        if len(self.time) != len(self.space):
            raise ValueError(
                f"time and space must have one kernel for each product of a sum, got {len(self.time)} and "
                f"{len(self.space)}"
            )
        self.clock = as_clock(unit, origin)
        self.count = _count(inducing)
        self.inducing = None if inducing is None or self.count is not None else _read_places(inducing)
        _check_latents((*self.time, *self.space))
        self.mean = as_mean(mean, self.num_latents)
        process_of(self.channels)

    @property
    def num_latents(self) -> int:
        return max(num_latents(kernel) for kernel in (*self.time, *self.space))

    @property
    def channels(self) -> tuple[Channel, ...]:
        """All products of all latents."""
        return tuple(
            Channel(latent, _of_latent(time, latent), _of_latent(space, latent))
            for latent in range(self.num_latents)
            for time, space in zip(self.time, self.space, strict=True)
        )

    def check_inputs(self, x: np.ndarray) -> None:
        if x.shape[1] < 2:
            raise ValueError(
                "SpaceTimeGP works on the time and the place of every row, but x has one column: put the time first, "
                "and then coordinates or an area code; for functions of time alone use MarkovGP"
            )
        for channel in self.channels:
            channel.check(x)
        if self.inducing is None:
            return
        if self.inducing.shape[1] != x.shape[1] - 1:
            raise ValueError(
                f"inducing has {self.inducing.shape[1]} column(s), but x has {x.shape[1] - 1} after the time: inducing "
                "places are places like those in x, without the time"
            )
        for channel in self.channels:
            try:
                channel.space.check_values(np.asarray(self.inducing))
            except ValueError as error:
                raise ValueError(f"inducing places are places like those in x: {error}") from None

    def kernels_at(self, x: np.ndarray) -> list[tuple[Any, np.ndarray, bool]]:
        return [*((kernel, x[:, :1], True) for kernel in self.time), *((k, x[:, 1:], False) for k in self.space)]

    def _check_data(self, x: np.ndarray) -> None:
        """Raise ValueError unless the data have several places and times, which can be told apart."""
        distinct = places_of(x[:, 1:]).distinct
        if len(distinct) == 1:
            raise ValueError(
                "all rows are at one place, so that there is nothing to learn about space: use MarkovGP(time) on the "
                "first column of x"
            )
        if np.ptp(x[:, 0]) == 0.0:
            raise ValueError(
                "all rows are at one time, so that there is nothing to learn about time: use GP(space) on the columns "
                "of x after the first"
            )
        check_places(distinct)
        if self.inducing is None:
            return
        far = first_outside(np.asarray(self.inducing), distinct)
        if far is not None:
            raise ValueError(
                f"inducing has a place far from all places of the data, row {far}, "
                f"{np.asarray(self.inducing)[far].tolist()}: inducing places are in the units of x, without the time"
            )

    def size_class(self, rows: int) -> int:
        return size_class(rows, SMALLEST_DATA)

    def layout(self, x: Any, size: int | None = None) -> Layout:
        x = np.asarray(x)
        self._check_data(x)
        return Layout(lay_out(fill_rows(x, size), x.shape[0], self.inducing_for(x)), None)

    def inducing_for(self, x: np.ndarray) -> Any:
        """The inducing places, as given or chosen from the data; None if all places are used."""
        if self.count is None:
            return self.inducing
        distinct = places_of(x[:, 1:]).distinct
        if self.count >= len(distinct):
            return None
        kernels = tuple(channel.space for channel in self.channels)
        kernel = kernels[0] if len(kernels) == 1 else Sum(kernels)
        return choose((kernel,), distinct, self.count, "greedy", 0)[0]

    def with_inducing(self, inducing: Any) -> "SpaceTimeGP":
        """The same prior with these inducing places."""
        return SpaceTimeGP(self.time, self.space, inducing, self.clock, self.mean)

    def refresh_inputs(self, inputs: SpaceTimeInputs) -> SpaceTimeInputs:
        return inputs if self.inducing is None else eqx.tree_at(lambda i: i.inducing, inputs, self.inducing)

    in_space: ClassVar[bool] = True
    memory_remedy: ClassVar[str] = "use fewer inducing places, as in SpaceTimeGP(time, space, inducing=50)"

    def memory(self, x: np.ndarray) -> float:
        places, (_, steps) = len(places_of(x[:, 1:]).distinct), segments_of(len(np.unique(x[:, 0])))
        width = places if self.count is None else min(self.count, places)
        width = width if self.inducing is None else self.inducing.shape[0]
        size, latents = process_of(self.channels).size * width, self.num_latents
        stored = stored_bytes(steps, places, latents, size)
        if not is_stored(stored):
            stored = stored / np.sqrt(steps)
        states = 16.0 * np.sqrt(steps) * float(size) ** 2
        return stored + states + 8.0 * x.shape[0] * 40.0 * latents**2

    def matrix_size(self, x: np.ndarray) -> float | None:
        return float(len(places_of(x[:, 1:]).distinct) * self.num_latents) ** 2

    def prepare(self, inputs: SpaceTimeInputs) -> SpaceTimeWorkspace:
        channels = self.channels
        kernel = Independent([channel.space for channel in channels])
        places = jnp.asarray(inputs.places)
        if inputs.inducing is None:
            projection, own = Projection.with_features(kernel, places, len(channels))
        else:
            projection = Projection.to(kernel, (jnp.asarray(inputs.inducing),) * len(channels))
            own = projection.features(kernel, places)
        process, (steps, slots) = process_of(channels), inputs.members.shape[:2]
        features = process.features(own, self.num_latents)
        before = jnp.concatenate([inputs.times[:1], inputs.times[:-1]])
        needed = stored_bytes(steps, slots, self.num_latents, process.size * projection.size)
        chain = separable.SeparableChain(
            process.transition(before, inputs.times),
            process.noise(before, inputs.times),
            process.covariance(inputs.times[:1])[0],
            features,
            inputs.slot_places,
            process.observed,
            inputs.segments,
            is_stored(needed),
        )
        residual = None
        if inputs.inducing is not None:
            residual = self.residual(projection, jnp.asarray(inputs.x))
        mean = self.mean.means(jnp.asarray(inputs.x))
        return SpaceTimeWorkspace(
            mean, chain, projection, residual, jnp.asarray(inputs.times), inputs.members, inputs.slots
        )

    def residual(self, projection: Projection, x: Float[Array, "N P"]) -> Float[Array, "N D D"]:
        """The covariance of e at every row."""
        channels = self.channels
        _, left = projection.at(Independent([channel.space for channel in channels]), x[:, 1:])
        variances = diagonals(Independent([channel.time for channel in channels]), x[:, :1])
        products = jnp.einsum("nff,fn->nf", left, variances)
        latent = np.eye(self.num_latents)[[channel.latent for channel in channels]]
        return jax.vmap(jnp.diag)(products @ latent)

    def condition(self, workspace: SpaceTimeWorkspace, sites: Sites) -> SpaceTimePosterior:
        return posterior_of(self, workspace, sites)


def _kernels(given: Any, name: str) -> tuple[Any, ...]:
    parts = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    kernels = tuple(named(part) if isinstance(part, str) else part for part in parts)
    for kernel in kernels:
        if not isinstance(kernel, (Kernel, Independent)):
            raise ValueError(
                f"{name} must be a kernel such as kernels.Matern32(), its name, kernels.Independent([...]) for several "
                f"latents, or a list of them for a sum of products, got {kernel!r}"
            )
    if not kernels:
        raise ValueError(f"{name} must have at least one kernel, got an empty list")
    return kernels


def _check_latents(kernels: Sequence[Any]) -> None:
    counts = {num_latents(kernel) for kernel in kernels} - {1}
    if len(counts) > 1:
        raise ValueError(
            f"time and space must have kernels for the same number of latents, got {sorted(counts)}: give one kernel "
            "per latent in every kernels.Independent([...])"
        )


def _of_latent(kernel: Any, latent: int) -> Kernel:
    """The kernel of one latent; a single kernel is that of all latents."""
    parts = latent_kernels(kernel)
    return parts[min(latent, len(parts) - 1)]


def _count(inducing: Any) -> int | None:
    if inducing is None or isinstance(inducing, (list, tuple, jax.core.Tracer)) or np.ndim(inducing) > 0:
        return None
    try:
        return whole(inducing, "inducing", such_as=50)
    except ValueError as error:
        raise ValueError(f"{error}, or an array of places") from None


def _read_places(given: Any) -> Any:
    """An array of inducing places, which differ."""
    places = read_inducing(given, 1)[0]
    if not isinstance(places, jax.core.Tracer):
        check_inducing_places(np.asarray(places))
    return places
