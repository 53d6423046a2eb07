"""Inducing inputs: given by the user, or chosen from the data."""

import functools
import warnings
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from ..numerics import linalg
from ..numerics.size_classes import fill_rows, size_class
from ..validation.arguments import whole
from ..validation.numbers import NotRealError, as_real
from .base import Kernel, diagonal, gram

SELECTIONS = ("greedy", "kmeans")

MOST_ROWS = 2**14
"""The largest number of rows to choose from; of more rows, a random sample of this size is used."""
_ROUNDS = 20


def is_number(given: Any) -> bool:
    """Whether inducing inputs are given by their number, and not as an array."""
    return not isinstance(given, (list, tuple, jax.core.Tracer)) and np.ndim(given) == 0


def read_count(given: Any) -> int:
    """A number of inducing inputs."""
    try:
        return whole(given, "inducing", such_as=100)
    except ValueError as error:
        raise ValueError(f"{error}, or an array of inducing inputs") from None


def as_storage(storage: Any) -> str:
    """A user's form of storage of sites, checked."""
    if storage not in ("full", "tied"):
        raise ValueError(f'storage must be "full" or "tied", got {storage!r}')
    return storage


def read_inducing(given: Any, latents: int) -> tuple[Any, ...]:
    """One (M, P) array for all latents, or one per latent."""
    if not _is_per_latent(given, latents):
        return (_read(given, "inducing"),)
    if len(given) != latents:
        raise ValueError(
            f"inducing must be one array for all latents, or a list with one per latent, got {len(given)} array(s) for "
            f"{latents} latent(s)"
        )
    arrays = tuple(_read(array, f"inducing[{d}]") for d, array in enumerate(given))
    if len({array.shape[1] for array in arrays}) > 1:
        raise ValueError(
            "inducing must have the columns of x for every latent, got shapes "
            f"{', '.join(str(array.shape) for array in arrays)}"
        )
    return arrays


def _is_per_latent(given: Any, latents: int) -> bool:
    """Whether this is a list of arrays, and not one array written as a list of its rows."""
    if not isinstance(given, (list, tuple)) or not given:
        return False
    if not all(isinstance(array, (np.ndarray, jax.Array)) and array.ndim >= 1 for array in given):
        return False
    return latents > 1 or given[0].ndim == 2


def _read(given: Any, name: str) -> Any:
    if isinstance(given, jax.core.Tracer):
        return given
    try:
        array = as_real(given)
    except NotRealError:
        raise ValueError(f"{name} must be a number of inducing inputs or an array of them, got {given!r}") from None
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"{name} must be a number of inducing inputs, or an array with one per row and the columns of x, got "
            f"shape {array.shape}"
        )
    if not np.all(np.isfinite(array)):
        row = np.argwhere(~np.isfinite(array))[0][0]
        raise ValueError(f"{name} must be finite, but row {row} is {array[row].tolist()}: drop that row")
    return array


_FAR = 2.0


def first_outside(inducing: np.ndarray, x: np.ndarray) -> int | None:
    """The first inducing input outside the range of the data, by more than twice that range; None if there is none."""
    low, high = x.min(axis=0), x.max(axis=0)
    reach = _FAR * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    wrong = np.flatnonzero(np.any((inducing < low - reach) | (inducing > high + reach), axis=1))
    return int(wrong[0]) if wrong.size else None


class Sample:
    """A random sample of the rows of a data set that comes in parts; it does not depend on how the data is cut."""

    def __init__(self, seed: int):
        self._rng, self._keys, self._rows = np.random.default_rng(seed), np.zeros(0), np.zeros((0, 0))

    def see(self, x: np.ndarray) -> None:
        """Add the next rows of the data."""
        keys = np.append(self._keys, self._rng.random(x.shape[0]))
        rows = np.concatenate([self._rows.reshape(-1, x.shape[1]), x])
        first = np.argsort(keys)[:MOST_ROWS]
        self._keys, self._rows = keys[first], rows[first]

    @property
    def rows(self) -> np.ndarray:
        """At most `MOST_ROWS` of the rows so far, in random order."""
        return self._rows


def choose(
    kernels: tuple[Kernel, ...], rows: np.ndarray, count: int, selection: str, seed: int
) -> tuple[np.ndarray, ...]:
    """Inducing inputs of every latent, from a sample of rows; fewer than `count` if more would add nothing."""
    distinct = np.unique(rows, axis=0)
    if distinct.shape[0] <= count:
        return (distinct,) * len(kernels)
    if selection == "kmeans":
        centres = _kmeans(rows, count, np.random.default_rng([seed, 1]))
        _check_centres(kernels, centres)
        return (centres,) * len(kernels)
    return tuple(_greedy(kernel, rows, count) for kernel in kernels)


def _check_centres(kernels: tuple[Kernel, ...], centres: np.ndarray) -> None:
    """Raise ValueError if a kernel is not defined at averages of rows, such as those of integer codes."""
    for kernel in kernels:
        try:
            kernel.check_values(centres)
        except ValueError as error:
            raise ValueError(f'selection "kmeans" averages rows: use selection="greedy", since {error}') from None


_NOTHING_LEFT = 1e-12
"""Rows with a smaller conditional variance, relative to the largest variance, are determined by the rows before."""


@in_double
def _greedy(kernel: Kernel, x: np.ndarray, count: int) -> np.ndarray:
    """Rows of x, each with the largest variance of f given the rows before it (a pivoted Cholesky factor)."""
    filled = fill_rows(x, size_class(x.shape[0]))
    rows, variances = _pivots(kernel, filled, np.arange(filled.shape[0]) < x.shape[0], count)
    useful = np.asarray(variances) > _NOTHING_LEFT * float(variances[0])
    useful[0] = True
    return x[np.asarray(rows)[useful]]


@functools.partial(compiled, static_argnums=3)
def _pivots(kernel: Kernel, x: Float[Array, "N P"], present: Bool[Array, " N"], count: int):
    variances = jnp.where(present, diagonal(kernel, x), 0.0)
    return linalg.greedy_pivots(lambda row: gram(kernel, x, x[row][None])[:, 0], variances, count)


def _kmeans(x: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The centres of clusters of rows, with every column divided by its standard deviation."""
    from scipy.cluster.vq import kmeans2  # takes a tenth of a second to import

    middle, spread = x.mean(axis=0), x.std(axis=0)
    scale = np.where(spread > 0.0, spread, 1.0)
    # Centred, because squared distances lose digits if all rows are far from zero.
    scaled = (x - middle) / scale
    with warnings.catch_warnings():
        # A centre with an empty cluster stays where it was, which does no harm here.
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        centres, _ = kmeans2(scaled, count, iter=_ROUNDS, minit="++", rng=rng)
    return middle + centres * scale
