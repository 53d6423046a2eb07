"""What comes in: shapes, missing values and support, checked once. Nothing later sees a NaN in y."""

from typing import Any, NamedTuple

import numpy as np

from .gaussian import Sites
from .likelihoods.base import Likelihood, rows_given
from .model import Model


class Data(NamedTuple):
    """Inputs (N, P), outputs (N, num_outputs) without NaN, and which rows are observed."""

    x: np.ndarray
    y: np.ndarray
    observed: np.ndarray


def read_inputs(x: Any, model: Model, name: str = "x") -> np.ndarray:
    """x as a float64 matrix with one row a datum, checked against the prior."""
    array = _as_float(x, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(f"{name} must have one row a datum, shape (N,) or (N, P), got shape {array.shape}")
    if array.shape[0] == 0:
        raise ValueError(f"{name} has no rows: give at least one")
    if array.shape[1] == 0:
        raise ValueError(f"{name} has no columns, got shape {array.shape}: give at least one")
    wrong = ~np.isfinite(array)
    if np.any(wrong):
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name} must be finite, but row {row}, column {column} is {array[row, column]}: "
            "drop that row, or mark its y as missing with NaN and give it a finite input"
        )
    model.prior.check_inputs(array)
    return array


def read_data(x: Any, y: Any, model: Model, names: tuple[str, str] = ("x", "y")) -> Data:
    """x and y as arrays that fit each other and the model; NaN in y is a missing row."""
    inputs = read_inputs(x, model, names[0])
    outputs = _read_outputs(y, model.likelihood, inputs.shape[0], names)
    _check_row_parameters(model.likelihood, inputs.shape[0])
    observed = ~np.any(np.isnan(outputs), axis=1)
    model.likelihood.check_support(outputs)
    # Any value of the support serves in place of a missing one: its row is masked out.
    stand_in = outputs[observed][0] if np.any(observed) else np.full(outputs.shape[1], model.likelihood.support.example)
    return Data(inputs, np.where(observed[:, None], outputs, stand_in[None, :]), observed)


def read_sites(sites: Any, n: int, d: int) -> Sites:
    """Sites to start from, checked against the data."""
    if not isinstance(sites, Sites):
        raise ValueError(f"sites must be Sites, for example Sites.constant({n}, {d}, 0.01), got {sites!r}")
    linear, precision = _as_float(sites.linear, "sites.linear"), _as_float(sites.precision, "sites.precision")
    if linear.shape != (n, d) or precision.shape != (n, d, d):
        raise ValueError(
            f"sites must have linear of shape {(n, d)} and precision of shape {(n, d, d)} for {n} row(s) and "
            f"{d} latent(s), got {linear.shape} and {precision.shape}"
        )
    if not (np.all(np.isfinite(linear)) and np.all(np.isfinite(precision))):
        raise ValueError("sites must be finite: start from Sites.constant(...) or from another result's sites")
    return Sites(linear, 0.5 * (precision + np.swapaxes(precision, 1, 2)))


def _read_outputs(y: Any, likelihood: Likelihood, n: int, names: tuple[str, str]) -> np.ndarray:
    array = _as_float(y, names[1])
    columns = likelihood.num_outputs
    if array.ndim == 1 and columns == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != columns:
        wanted = "(N,) or (N, 1)" if columns == 1 else f"(N, {columns})"
        raise ValueError(
            f"{names[1]} must have shape {wanted} for {type(likelihood).__name__}, got shape {array.shape}"
        )
    if array.shape[0] != n:
        raise ValueError(
            f"{names[0]} and {names[1]} must have as many rows as each other, got {n} and {array.shape[0]}"
        )
    if np.any(np.isinf(array)):
        row = np.argwhere(np.isinf(array))[0][0]
        raise ValueError(f"{names[1]} must be finite or NaN for missing, but row {row} is infinite")
    return array


def _check_row_parameters(likelihood: Likelihood, n: int) -> None:
    for name, given in rows_given(likelihood).items():
        if given != n:
            raise ValueError(
                f"{name} was given for {given} row(s), but the data has {n}: give one value a row, or a single number"
            )


def _as_float(value: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            array = np.asarray(value, dtype=object)
            if any(isinstance(entry, (str, bytes)) for entry in array.ravel()):
                raise TypeError
        return np.array(array, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must hold numbers, got {type(value).__name__} with entries like {_first(value)!r}: "
            "convert it to float first"
        ) from None


def _first(value: Any) -> Any:
    try:
        return np.asarray(value, dtype=object).ravel()[0]
    except (IndexError, ValueError):
        return value
