"""First guesses of hyperparameters from the data, and the ranges in which values are plausible.

Lengthscales are relative to the range of x, and variances to the variance of the latents that would explain that of y.
The optimisation problem therefore does not depend on the units of the data.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from .._runtime.lazy import is_a
from ..inputs.data import Data
from ..kernels import Active, Product, Sum
from ..likelihoods.base import Likelihood, map_row_parameters, over_rows, row_covariance, row_log_prob, row_mean
from ..means import Constant
from ..model import Model
from ..numerics.size_classes import fill_rows, size_class
from ..parameters.constraints import Covariance, Real
from ..parameters.names import look_up
from ..parameters.priors import Plausible
from .constant_latents import constant_latent, is_linked
from .descent import descend
from .learned import Learned, choose, with_values

_SHARE = 0.2
"""The first guess of a lengthscale, as a fraction of the range of x. Others are tried as well."""


class Scales:
    """The scales of x by column, of y, and of latents that could explain y."""

    def __init__(self, model: Model, data: Data):
        self._likelihood, self._data, x = model.likelihood, data, data.x
        ranges = np.ptp(x, axis=0)
        self.ranges = np.where(ranges > 0.0, ranges, np.maximum(np.abs(x[0]), 1.0))
        self.spacings = np.array([_spacing(column, size) for column, size in zip(x.T, self.ranges, strict=True)])
        """The median distance between neighbours, by column."""
        with np.errstate(all="ignore"):
            variance = float(np.nanmean(np.nanvar(data.outputs, axis=0))) if np.any(data.observed) else 1.0
        self.output_variance = variance if np.isfinite(variance) and variance > 0.0 else 1.0

    @property
    def latent_means(self) -> np.ndarray:
        """The constant latents under which y is most likely."""
        return self._of_latents[0]

    @property
    def latent_variances(self) -> np.ndarray:
        """The variances of latents that would explain that of y."""
        return self._of_latents[1]

    @functools.cached_property
    def _of_latents(self) -> tuple[np.ndarray, np.ndarray]:
        """Both, which take a search of their own: parameters with starts and priors do not need them."""
        return _latent_scales(self._likelihood, self._data)


def _spacing(column: np.ndarray, size: float) -> float:
    gaps = np.diff(np.unique(column))
    return float(np.median(gaps)) if gaps.size else size


_MOST_ROWS = 2000
_WALL = 1e100
_MOST_STEPS, _SLOPE = 200, 1e-3
"""Of the search for constant latents."""
_SHIFTS = [0.0, *(sign * 2.0**power for power in range(-2, 20) for sign in (1.0, -1.0))]
"""Shifts of a start at which the density is zero."""


@in_double
def _latent_scales(likelihood: Likelihood, data: Data) -> tuple[np.ndarray, np.ndarray]:
    """The constant latents under which y is most likely, and the variances of latents that would explain that of y."""
    latents = likelihood.num_latents
    rows = np.flatnonzero(data.observed if data.seen is None else np.all(data.seen, axis=1))
    if rows.size == 0:
        return np.zeros(latents), np.ones(latents)
    known = constant_latent(likelihood, data.y[:, 0], rows)
    if known is not None:
        mean = np.array([known.latent])
        if np.ndim(known.slope) or np.ndim(known.noise):  # one per row
            return mean, _variances_of_other_latents(mean)
        slopes, linked = np.array([known.slope**2]), np.array([is_linked(likelihood)])
        return mean, _latent_variances(mean, data.y[rows], slopes, known.noise, linked)
    selected = np.zeros(data.y.shape[0], dtype=bool)
    selected[rows[:: max(1, rows.size // _MOST_ROWS)]] = True
    start = np.zeros(latents)
    if _is_location(likelihood):
        start[0] = np.median(data.y[selected])
    size = size_class(selected.size)
    filled = map_row_parameters(lambda values: fill_rows(values, size), likelihood)
    y = fill_rows(data.y, size)
    counted = np.append(selected, np.zeros(size - selected.size, dtype=bool))

    def loss(f: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = (np.asarray(part) for part in _loss_of_a_constant(f, filled, y, counted))
        # Where the density is zero or overflows, the search has to turn back.
        return (
            (float(value), slope) if np.isfinite(value) and np.all(np.isfinite(slope)) else (_WALL, np.zeros(latents))
        )

    for shift in _SHIFTS:
        if loss(start + shift)[0] < _WALL:
            start = start + shift
            break
    mean = descend(loss, start, max_steps=_MOST_STEPS, smallest_slope=_SLOPE, smallest_decrease=1e-12).x
    return mean, _latent_variances_by_moments(likelihood, mean, data.y[selected])


@compiled
@jax.value_and_grad
def _loss_of_a_constant(f, likelihood: Likelihood, y, selected):
    """Minus the mean log density of the selected rows, with latents f in every row."""
    terms = over_rows(lambda one, y: row_log_prob(one, y, f), likelihood, (y,))
    # A ridge, for likelihoods whose maximum is at infinity if all rows are equal.
    ridge = 1e-3 * jnp.sum(f**2) / (1.0 + jnp.sum(f**2))
    return -jnp.sum(jnp.where(selected, terms, 0.0)) / jnp.sum(selected) + ridge


def _is_location(likelihood: Likelihood) -> bool:
    """Whether the first latent has the units of y."""
    try:
        means = [_moments_at(np.full(likelihood.num_latents, at), likelihood)[0] for at in (0.0, 1.0)]
        probe = [float(np.ravel(mean)[0]) for mean in means]
    except (NotImplementedError, TypeError, ValueError, IndexError):
        return False
    return likelihood.num_outputs == 1 and abs(probe[1] - probe[0] - 1.0) < 1e-9


@compiled
def _moments_at(f, likelihood: Likelihood):
    """E[y | f], its derivatives in f, and Var[y | f]."""
    slopes = jax.jacfwd(lambda f: row_mean(likelihood, f))(f)
    return row_mean(likelihood, f), slopes, jnp.diagonal(row_covariance(likelihood, f))


def _latent_variances_by_moments(likelihood: Likelihood, mean: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The variances of latents that would explain that of y, from the moments of y given f."""
    still = _variances_of_other_latents(mean)
    if likelihood.moments_problem() is not None:
        return still
    try:
        _, jacobian, noise = (np.asarray(part) for part in _moments_at(mean, likelihood))
        elsewhere = np.asarray(_moments_at(mean + 1.0, likelihood)[1])
    except (TypeError, ValueError):
        # With one row parameter per row there are no moments to use.
        return still
    linked = np.any(np.abs(elsewhere - jacobian) > 1e-9 * np.abs(jacobian), axis=0)
    return _latent_variances(mean, y, np.sum(jacobian**2, axis=0), noise, linked)


def _variances_of_other_latents(mean: np.ndarray) -> np.ndarray:
    """Of latents that do not change the mean of y, and may vary by about half their size."""
    return np.maximum(1.0, 0.25 * mean**2)


def _latent_variances(mean: np.ndarray, y: np.ndarray, slopes: np.ndarray, noise: Any, linked: np.ndarray) -> Any:
    """(Var y − noise)/slope² for every latent that changes the mean of y, with squared `slopes`."""
    still = _variances_of_other_latents(mean)
    if y.shape[0] < 2:
        return still
    spread = np.var(y, axis=0)
    explained = np.sum(np.where(noise < 0.9 * spread, spread - noise, 0.5 * spread))
    with np.errstate(all="ignore"):
        variances = np.where(slopes > 0.0, explained / slopes / max(1, np.sum(slopes > 0.0)), still)
    variances = np.where(np.isfinite(variances) & (variances > 0.0), variances, still)
    # A latent behind a link does not vary by many units, whatever the moments are, because its slope changes.
    return np.where(linked, np.clip(variances, 0.1, 10.0), variances)


def guess(model: Model, scales: Scales, learned: list[Learned]) -> list[np.ndarray]:
    """A starting value of every learned parameter; the model's own where there is no guess."""
    return [item.start if item.given_start else _guess_one(model, scales, item) for item in learned]


def guessed_model(model: Model, scales: Scales) -> Any:
    """The model with guesses of all hyperparameters, for the choice of inducing inputs."""
    learned = choose(model, None)
    return with_values(tuple(item.slot for item in learned), model, guess(model, scales, learned))


def _guess_one(model: Model, scales: Scales, item: Learned) -> np.ndarray:
    path = item.slot.paths[0]
    value = _guessed_value(model, scales, item, path)
    if value is None:
        return item.start
    if isinstance(item.slot.constraint, Covariance) and len(item.slot.shape) == 2:
        value = value * np.eye(item.slot.shape[0])
    value = np.broadcast_to(value, item.slot.shape).astype(float)
    lower, upper = item.bounds
    return item.start if np.any(value <= lower) or np.any(value >= upper) else value


def _guessed_value(model: Model, scales: Scales, item: Learned, path: tuple) -> Any:
    if path[0] == "likelihood":
        return {"y2": _SHARE * scales.output_variance, "y": np.sqrt(_SHARE * scales.output_variance)}.get(
            item.unit or ""
        )
    if path[1] == "mean" and path[-1] == "value" and isinstance(look_up(model, path[:-1]), Constant):
        return scales.latent_means[path[3]] if len(path) > 4 else None
    place = _place(model, path, scales.ranges.size)
    if item.unit == "x":
        return _SHARE * _columns(scales.ranges, place.columns, item.slot.shape)
    variance = 1.0 if place.is_factor else scales.latent_variances[place.latent] / max(place.summands, 1)
    powers = {"f2": 0, "f2/x": 1, "f2/x2": 2, "f2/x3": 3}
    power = powers.get(item.unit or "")
    if power is None:
        return None
    return variance / _columns(scales.ranges, place.columns, ()) ** power if power else variance


class _Place(NamedTuple):
    latent: int
    columns: np.ndarray | None
    summands: int
    is_factor: bool
    """Whether the variance belongs to another factor of a product."""


def _place(model: Model, path: tuple, width: int) -> _Place:
    """Where in the kernel a parameter is: its latent, its columns of `width`, and the number of summands."""
    latent, columns, summands, is_factor = 0, None, 1, False
    node: Any = model
    additive: Any = None
    for step, following in itertools.pairwise(path):
        if step in ("kernels", "latents"):
            latent = following
            additive = node
        elif step in ("time", "space") and getattr(node, "in_space", False):
            columns = np.arange(1) if step == "time" else np.arange(1, width)
            summands *= len(getattr(node, step))
            is_factor = is_factor or step == "space"
        elif step == "terms":
            columns = np.arange(*_inputs_of(additive.places[latent][following]))
            summands *= sum(not term.is_known for term in node.terms)
        elif step == "parts" and is_a(node, "terms.kernel_term", "Product"):
            ends = np.cumsum([0, *node.widths])
            columns = None if columns is None else columns[ends[following] : ends[following + 1]]
            is_factor = is_factor or following != 0
        elif step == "parts" and isinstance(node, Sum):
            summands *= len(node.parts)
        elif step == "parts" and isinstance(node, Product):
            is_factor = is_factor or following != 0
        elif isinstance(node, Active):
            chosen = np.asarray(node.dimensions)
            columns = chosen if columns is None else columns[chosen]
        node = look_up(node, (step,))
    return _Place(latent, columns, summands, is_factor)


def _inputs_of(place: slice) -> tuple[int, int]:
    """The columns of a smooth term's inputs: all but the last, which multiplies it."""
    return place.start, place.stop - 1


def _columns(values: np.ndarray, columns: np.ndarray | None, shape: tuple[int, ...]) -> Any:
    """Values per column in the shape of a parameter: one per column, or their geometric mean."""
    chosen = values if columns is None else values[columns]
    return chosen if shape and shape[0] == chosen.shape[0] else np.exp(np.mean(np.log(chosen)))


def unit_of(model: Model, scales: Scales, item: Learned) -> Any:
    """The scale of steps in the free numbers of a parameter: 1 for logarithms and log odds."""
    path = item.slot.paths[0]
    name = path[-1]
    if not isinstance(item.slot.constraint, Real):
        return 1.0
    if path[0] == "prior" and path[1] == "mean" and len(path) > 4:
        size = np.sqrt(scales.latent_variances[path[3]])
        return size / _columns(scales.ranges, None, item.slot.shape) if name == "slope" else size
    if name == "coefficients":
        return look_up(model, path[:-1]).units
    if path[:2] == ("prior", "inducing"):
        return np.broadcast_to(scales.ranges, item.slot.shape)
    return 1.0


def plausible(model: Model, scales: Scales, item: Learned, start: np.ndarray) -> Plausible | None:
    """The range within which a weak prior has no influence."""
    if not item.slot.constraint.is_positive or len(item.slot.shape) > 1:
        return None
    path = item.slot.paths[0]
    if item.unit == "x":
        place = _place(model, path, scales.ranges.size)
        smallest = _columns(np.minimum(scales.spacings, 0.1 * scales.ranges), place.columns, item.slot.shape)
        largest = _columns(scales.ranges, place.columns, item.slot.shape)
        return Plausible(smallest / 3.0, 30.0 * largest)
    if item.unit == "y2":
        return Plausible(1e-6 * scales.output_variance, 1e2 * scales.output_variance)
    if item.unit == "y":
        return Plausible(1e-3 * np.sqrt(scales.output_variance), 10.0 * np.sqrt(scales.output_variance))
    reach = 1e4 if item.unit is not None else 1e3
    return Plausible(start / reach, start * reach)
