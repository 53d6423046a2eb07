"""Named covariances of the learned values, alone and together with a linear model's weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .._runtime.double import in_double
from ..inference.infer import infer
from ..model import Model
from ..numerics.known import depends_on, transformed_covariance
from ..parameters.constraints import Between
from ..priors.linear import LinearModel
from ..results.profiles import entry_name
from ..terms.columns import as_inputs
from .learned import Slot, slots_of, with_values
from .penalties import slopes_of, values_at


class NamedCovariance(NamedTuple):
    """Approximately Gaussian uncertainty of several numbers: their names, their values and their covariance.

    Rows and columns of `matrix` are in the order of `names`. Numbers that the data do not determine have an infinite
    variance and undefined (NaN) covariances.

    >>> NamedCovariance(["a", "b"], np.zeros(2), np.diag([4.0, 9.0])).standard_errors
    {'a': 2.0, 'b': 3.0}
    """

    names: list[str]
    values: np.ndarray
    matrix: np.ndarray

    @property
    def standard_errors(self) -> dict[str, float]:
        """The square roots of the diagonal, by name."""
        return dict(zip(self.names, np.sqrt(np.diagonal(self.matrix)).tolist(), strict=True))


def unconstrained_covariance(result: Any) -> NamedCovariance:
    """The covariance of the free numbers."""
    slots = _slots(result)
    names = [name for slot in slots for name in _free_names(slot)]
    return NamedCovariance(names, _free(slots, result), _spread(result))


def covariance(result: Any) -> NamedCovariance:
    """The covariance of the learned values, by the delta method."""
    slots = _slots(result)
    slope, names = _value_slopes(slots, _free(slots, result))
    matrix = transformed_covariance(slope, _spread(result))
    values = np.concatenate([np.ravel(result.learned[slot.name]) for slot in slots])
    return NamedCovariance(names, values, matrix)


@in_double
def joint_covariance(result: Any) -> NamedCovariance:
    """The covariance of a linear model's weights w and the learned θ: Cov[w] ≈ Cov[w | θ] + J Cov[θ] Jᵀ, J = dE[w]/dθ.

    J is computed by central differences, with inference from the present sites.
    """
    if not isinstance(result.model.prior, LinearModel):
        prior = type(result.model.prior).__name__
        raise ValueError(f"joint_covariance is for the weights of a LinearModel, but the prior is a {prior}")
    if result.data is None or result.sites is None:
        raise ValueError("joint_covariance needs the data and the sites, which were not kept: fit without batch_size")
    slots, spread = _slots(result), _spread(result)
    unconstrained = _free(slots, result)
    means = _mean_slopes(result, slots, unconstrained, spread, _weight_means)
    own, names = _value_slopes(slots, unconstrained)
    slope = np.concatenate([means, own])
    matrix = transformed_covariance(slope, spread)
    weights = result.posterior.weights
    count = weights.mean.shape[0]
    matrix[:count, :count] += weights.covariance
    values = np.concatenate([weights.mean, *(np.ravel(result.learned[slot.name]) for slot in slots)])
    return NamedCovariance([*_weight_names(result, count), *names], values, matrix)


def _slots(result: Any) -> tuple[Slot, ...]:
    return slots_of(result.model, list(result.learned), result.tied)


def _spread(result: Any) -> np.ndarray:
    spread = getattr(result, "spread", None)
    if spread is None:
        raise ValueError(
            "the curvature of the energy is not known: use fit with standard_errors=True, without batch_size, and with "
            "at most 40 numbers to learn"
        )
    return spread


def _free(slots: tuple[Slot, ...], result: Any) -> np.ndarray:
    return np.concatenate([slot.constraint.unconstrain(result.learned[slot.name]) for slot in slots])


def _free_names(slot: Slot) -> list[str]:
    if len(slot.shape) > 1:
        return [f"{slot.name}, free number {index}" for index in range(slot.size)]
    kind = "log odds of " if isinstance(slot.constraint, Between) else "log " if slot.constraint.is_positive else ""
    return [f"{kind}{name}" for name in _value_names(slot)]


def _value_names(slot: Slot) -> list[str]:
    """One name per entry of a value, in row-major order."""
    return [entry_name(slot.name, index) for index in np.ndindex(*slot.shape)]


def _value_slopes(slots: tuple[Slot, ...], unconstrained: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The derivatives of all values in the free numbers, and the names of the values."""
    return np.concatenate(slopes_of(slots, unconstrained)), [name for slot in slots for name in _value_names(slot)]


def _weight_names(result: Any, count: int) -> list[str]:
    latents = result.model.prior.num_latents
    if latents == 1:
        return [f"weight[{column}]" for column in range(count)]
    return [f"weight[{latent}, {column}]" for latent in range(latents) for column in range(count // latents)]


_SHARE = 0.01
"""The step of a finite difference, as a fraction of the standard error."""


def _mean_slopes(
    result: Any, slots: tuple[Slot, ...], unconstrained: np.ndarray, spread: np.ndarray, read: Callable
) -> np.ndarray:
    """The derivatives of posterior means, which `read` takes from a result, in the free numbers."""
    errors, columns = np.sqrt(np.diagonal(spread)), []
    for move in np.diag(np.where(np.isfinite(errors), _SHARE * errors, 1e-3)):
        above, below = (read(_result_at(result, slots, unconstrained + sign * move)) for sign in (1.0, -1.0))
        columns.append((above - below) / (2.0 * np.max(move)))
    return np.stack(columns, axis=1)


def _result_at(result: Any, slots: tuple[Slot, ...], unconstrained: np.ndarray) -> Any:
    """Inference with other values of the learned hyperparameters."""
    moved: Model = with_values(slots, result.model, values_at(slots, unconstrained))
    data = result.data
    x = as_inputs(data.x, result.columns)
    return infer(moved, x, data.outputs, result.method, sites=result.sites, tol=1e-9, throw=False)


def _weight_means(result: Any) -> np.ndarray:
    return result.posterior.weights.mean


@in_double
def carried_variances(result: Any, read: Callable[[Any], np.ndarray]) -> np.ndarray:
    """What the uncertainty of the learned θ adds to the variances of posterior means m: the diagonal of J Cov[θ] Jᵀ.

    `read` takes the means m from a result, and J = dm/dθ is computed by central differences.
    """
    if result.data is None or result.sites is None:
        raise ValueError("this needs the data and the sites, which were not kept: fit without batch_size")
    slots, spread = _slots(result), _spread(result)
    if not slots:
        return np.zeros(read(result).shape)
    slope = _mean_slopes(result, slots, _free(slots, result), spread, read)
    loose = np.isinf(np.diagonal(spread))
    known = np.where(loose[:, None] | loose[None, :], 0.0, spread)
    return np.where(depends_on(slope, loose), np.inf, np.sum((slope @ known) * slope, axis=1))
