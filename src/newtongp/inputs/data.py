"""Reading data: shapes, missing values, time stamps and support are checked once. Later code never gets NaN in y."""

import datetime
from typing import Any, NamedTuple

import numpy as np

from ..likelihoods import support as supports
from ..likelihoods.base import Likelihood, named_columns, rows_given
from ..likelihoods.partial import PartlyObserved, partly_problem
from ..likelihoods.weighted import Weighted, with_weight
from ..model import Model, weighted_model
from ..numerics.gaussian import Sites
from ..terms.columns import EncodedTable, TableColumns
from ..validation.frames import as_array
from ..validation.numbers import NotRealError, as_real
from ..validation.text import short
from ..validation.times import MixedError, read_times
from .columns import NUMBERS, Columns, kind_of, names_of


class Data(NamedTuple):
    """Inputs (N, P), outputs (N, num_outputs) without NaN, and which rows are observed."""

    x: np.ndarray
    y: np.ndarray
    observed: np.ndarray
    seen: np.ndarray | None = None
    """Which outputs of each row are observed, if some rows are partly missing."""
    weights: np.ndarray | None = None
    """The weight of each row, if they are not all 1. Rows of weight 0 are not observed."""

    def likelihood(self, whole: Likelihood) -> Likelihood:
        """The likelihood of the observed outputs."""
        return whole if self.seen is None else PartlyObserved(whole, self.seen)

    def weighted_likelihood(self, whole: Likelihood) -> Likelihood:
        """The likelihood of the observed outputs, with the weights of their rows."""
        observed = self.likelihood(whole)
        return observed if self.weights is None else with_weight(observed, self.weights)

    @property
    def outputs(self) -> np.ndarray:
        """y as it was given, with NaN for missing values."""
        return np.where(self.observed[:, None] if self.seen is None else self.seen, self.y, np.nan)


def columns_of(x: Any, model: Model) -> Columns | TableColumns:
    """The columns of x, for matching new inputs."""
    if isinstance(x, EncodedTable):
        return x.encoding
    clock = getattr(model.prior, "clock", None)
    return Columns(names_of(x), NUMBERS if clock is None else kind_of(read_times(_time_and_place(x, model)[0])))


def _time_and_place(x: Any, model: Model, order: Any = None) -> tuple[Any, np.ndarray | None]:
    """The part of x that may hold time stamps, and the columns of places beside it, if they are of different kinds.

    `order` is that of the columns of x in these parts.
    """
    if not model.prior.in_space:
        return x, None
    array = np.array(x, dtype=object) if isinstance(x, (list, tuple)) else as_array(x)
    if array.ndim != 2 or array.dtype.kind != "O":
        return x, None
    array = array if order is None else array[:, order]
    return array[:, 0], array[:, 1:]


def read_inputs(x: Any, model: Model, name: str = "x", like: Columns | TableColumns | None = None) -> np.ndarray:
    """x as a float64 matrix with one row per datum, checked against the prior.

    Time stamps are counted in units of the prior's clock; numbers are used unchanged, in those units. With `like`,
    columns are reordered to match, and must be of the same kind.
    """
    if isinstance(x, EncodedTable):
        return x.matrix
    if isinstance(like, TableColumns):
        return like.read(x, name)
    order = None if like is None else like.order(x, name)
    when, where = _time_and_place(x, model, order)
    times = _read_times(when, model, name, like)
    array = _as_float(when, name) if times is None else times
    if where is not None:
        array, order = np.column_stack([array, _as_float(where, name)]), None
    if array.ndim == 0:
        raise ValueError(f"{name} must have one row per datum, got the single number {array}: write [{array}]")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise ValueError(
            f"{name} must have one row per datum, shape (N,) or (N, P), got shape {array.shape}: "
            f"flatten the values of one row, as in {name}.reshape({array.shape[0]}, -1)"
        )
    if array.shape[0] == 0:
        raise ValueError(f"{name} has no rows, got shape {array.shape}: give at least one")
    if array.shape[1] == 0:
        raise ValueError(f"{name} has no columns, got shape {array.shape}: give at least one")
    if order is not None:
        array = array[:, order]
    wrong = ~np.isfinite(array)
    if np.any(wrong):
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{name} must be finite, but row {row}, column {column} is {array[row, column]}: drop that row "
            "(only y may be missing)"
        )
    if np.max(np.abs(array)) > _LARGEST:
        row, column = np.argwhere(np.abs(array) > _LARGEST)[0]
        raise ValueError(
            f"{name} must be at most {_LARGEST:g} in size, so that its powers are finite, but row {row}, column "
            f"{column} is {array[row, column]}: measure it in a larger unit"
        )
    try:
        model.prior.check_inputs(array)
    except ValueError as error:
        hint = "" if times is None else _about_origin(x, times, model)
        raise ValueError(f"{error}{hint}") from None
    return array


_LARGEST = 1e100


def _about_origin(x: Any, numbers: np.ndarray, model: Model) -> str:
    """An explanation for errors about stamps that precede the origin of their clock."""
    times, clock = read_times(_time_and_place(x, model)[0]), getattr(model.prior, "clock", None)
    first = None if times is None else times.entries.ravel()[np.argmin(numbers)]
    if not isinstance(first, np.datetime64) or clock is None or np.min(numbers) >= 0.0:
        return ""
    day, kernels = first.astype("datetime64[D]"), "time, space" if model.prior.in_space else "kernel"
    return (
        f". Time stamps are counted from the prior's origin, {clock.origin}: choose an origin that no stamp precedes, "
        f'as in {type(model.prior).__name__}({kernels}, unit=..., origin="{day}")'
    )


def _with_unit(model: Model) -> str:
    return 'SpaceTimeGP(time, space, unit="D")' if model.prior.in_space else 'MarkovGP(kernel, unit="D")'


def _read_times(x: Any, model: Model, name: str, like: Columns | None) -> np.ndarray | None:
    """The times in x as numbers; None if there are none."""
    try:
        times = read_times(x)
    except MixedError as error:
        raise ValueError(
            f"{name} must hold numbers, or time stamps of one kind, got {type(x).__name__} with both "
            f"{_short(error.first)} and, in row {error.row}, {_short(error.second)}: {error.advice or _IN_NUMBERS}"
        ) from None
    clock = getattr(model.prior, "clock", None)
    if times is None:
        if like is not None:
            like.check_kind(x, NUMBERS, clock, "numbers", name)
        return None
    if times.entries.size == 0:
        return np.zeros(times.entries.shape)
    if clock is None:
        raise ValueError(
            f"{name} must hold real numbers unless the prior has a unit of time, got {type(x).__name__} with "
            f"{_short(times.first)}: state the unit of the lengthscales, as in {_with_unit(model)}, or "
            f"{_IN_NUMBERS}"
        )
    if times.entries.ndim == 0:
        raise ValueError(
            f"{name} must have one row per datum, got the single time {_short(times.first)}: put it in a list"
        )
    if np.any(times.missing):
        row = np.argwhere(times.missing)[0][0]
        raise ValueError(f"{name} must be finite, but row {row} is NaT: drop that row (only y may be missing)")
    if like is not None:
        like.check_kind(x, kind_of(times), clock, _short(times.first), name)
    try:
        return times.numbers(clock)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def read_data(
    x: Any, y: Any, model: Model, names: tuple[str, str] = ("x", "y"), like: Columns | TableColumns | None = None
) -> Data:
    """x and y as arrays, checked against each other and the model; NaN in y is missing.

    Weights are those of the model's likelihood.
    """
    check_indexes(x.table if isinstance(x, EncodedTable) else x, y, names)
    if isinstance(x, EncodedTable) and x.encoding.output is not None and names[1] == "y":
        names = names[0], f"y, column {x.encoding.output!r},"
    inputs = read_inputs(x, model, names[0], like)
    outputs = _read_outputs(y, model.likelihood, inputs.shape[0], names)
    check_row_parameters(model.likelihood, inputs.shape[0])
    likelihood = model.likelihood
    if not isinstance(likelihood, Weighted):
        return _read_rows(inputs, outputs, likelihood, names)
    weights = np.broadcast_to(likelihood.weights, outputs.shape[:1]).copy()
    # Without weight, a row is as good as missing.
    read = _read_rows(inputs, np.where(weights[:, None] > 0.0, outputs, np.nan), likelihood.base, names)
    return read._replace(weights=weights)


def _read_rows(inputs: np.ndarray, outputs: np.ndarray, likelihood: Likelihood, names: tuple[str, str]) -> Data:
    """Rows whose shapes have been checked, with numbers in place of missing outputs."""
    seen = ~np.isnan(outputs)
    observed = np.any(seen, axis=1)
    _check_support(outputs, likelihood, names[1])
    filled = np.where(observed[:, None], outputs, _stand_in(outputs[np.all(seen, axis=1)], likelihood))
    partly = np.flatnonzero(observed & ~np.all(seen, axis=1))
    if partly.size == 0:
        return Data(inputs, filled, observed)
    problem = partly_problem(likelihood)
    if problem is not None:
        where = f"{names[1]} has rows with some outputs missing and some not, first row {partly[0]}"
        raise ValueError(f"{where}: {problem}")
    return Data(inputs, np.where(np.isnan(filled), 0.0, filled), observed, seen)


def with_weights(model: Any, x: Any, weights: Any) -> Any:
    """The model with these weights of the rows of x, unless they are None."""
    if weights is None or not isinstance(model, Model):
        return model
    check_indexes(x, weights, ("x", "weights"))
    return weighted_model(model, weights)


def check_indexes(x: Any, y: Any, names: tuple[str, str] = ("x", "y")) -> None:
    """Raise ValueError if both are pandas objects with different indexes. (pandas is never imported.)"""
    one: Any = getattr(x, "index", None)
    other: Any = getattr(y, "index", None)
    if not (hasattr(one, "equals") and hasattr(other, "equals")) or len(one) != len(other) or one.equals(other):
        return
    labels = enumerate(zip(one, other, strict=True))
    row = next((row for row, (a, b) in labels if a != b and not (a != a and b != b)), None)
    if row is None:  # equal labels of different types
        return
    first, second = names
    raise ValueError(
        f"{first} and {second} have different indexes, in row {row} {one[row]} and {other[row]}: align them, as in "
        f"{second}.loc[{first}.index], or pair rows by position, with {second}.to_numpy()"
    )


def _stand_in(observed: np.ndarray, likelihood: Likelihood) -> np.ndarray:
    """A possible row that replaces missing ones: they are masked out, but NaN would propagate through gradients.

    A likelihood without a declared support may still not allow every number, so an observed row is safer.
    """
    undeclared = likelihood.support is supports.real
    return observed[:1] if undeclared and observed.shape[0] > 0 else missing_value(likelihood)


def missing_value(likelihood: Likelihood) -> np.ndarray:
    """A possible row of outputs, whatever the data are, that replaces missing rows."""
    return np.full((1, likelihood.num_outputs), likelihood.support.example)


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
    wrong = ~(np.all(np.isfinite(linear), axis=1) & np.all(np.isfinite(precision), axis=(1, 2)))
    if np.any(wrong):
        row = np.flatnonzero(wrong)[0]
        raise ValueError(
            f"sites must be finite, but row {row} has linear {linear[row].tolist()} and precision "
            f"{precision[row].tolist()}: start from Sites.constant(...) or from another result's sites"
        )
    return Sites(linear, 0.5 * (precision + np.swapaxes(precision, 1, 2)))


def _read_outputs(y: Any, likelihood: Likelihood, n: int, names: tuple[str, str]) -> np.ndarray:
    array = _as_float(y, names[1])
    columns = likelihood.num_outputs
    if array.ndim == 1 and columns == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != columns:
        wanted = "(N,) or (N, 1)" if columns == 1 else f"(N, {columns})"
        raise ValueError(
            f"{names[1]} must have shape {wanted} for {type(likelihood).__name__}, got shape {array.shape}: "
            f"give {columns} value(s) per row"
        )
    if array.shape[0] != n:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same number of rows, got {n} and {array.shape[0]}: "
            f"give one {names[1]} per row of {names[0]}, NaN where it is missing"
        )
    if np.any(np.isinf(array)):
        row, column = np.argwhere(np.isinf(array))[0]
        raise ValueError(
            f"{names[1]} must be finite, but row {row} is {array[row, column]}: write NaN if it is missing"
        )
    return array


def _check_support(y: np.ndarray, likelihood: Likelihood, name: str) -> None:
    try:
        likelihood.check_support(y)
    except ValueError as error:
        where = "" if name == "y" else f"{name.rstrip(',')}: "
        raise ValueError(f"{where}{error}") from None


def check_row_parameters(likelihood: Likelihood, n: int) -> None:
    """Raise ValueError if a parameter of the likelihood has one value per row, but for another number of rows."""
    for name, column in named_columns(likelihood).items():
        raise ValueError(
            f"{name} is given by the column {column!r} of a table, but x is not the table of a model of terms: give "
            f"one value per row, as in {name}=table[{column!r}]"
        )
    for name, given in rows_given(likelihood).items():
        if given != n:
            raise ValueError(
                f"{name} was given for {given} row(s), but the data has {n}: give one value per row, or a single number"
            )


def _as_float(value: Any, name: str) -> np.ndarray:
    try:
        return as_real(value)
    except NotRealError as error:
        raise ValueError(
            f"{name} must hold real numbers, got {type(value).__name__} with {_short(error.entry)}: "
            f"{_remedy(error.entry)}"
        ) from None


def _short(entry: Any) -> str:
    return short(entry, 60)


_IN_NUMBERS = 'measure time in numbers, for example (t - t[0]) / np.timedelta64(1, "D")'


def _remedy(entry: Any) -> str:
    if isinstance(entry, (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)):
        return _IN_NUMBERS
    if type(entry).__name__ == "Period":
        return "take the time at which each period starts, with .to_timestamp()"
    if isinstance(entry, (complex, np.complexfloating)):
        return "take its real part or its modulus first"
    if isinstance(entry, (list, tuple)):
        return "make all rows equally long"
    if isinstance(entry, str) and not _is_numeric(entry):
        if _is_date(entry):
            return "make time stamps of the strings first, for example with pandas.to_datetime or np.datetime64"
        return "number names first, for example with names, codes = np.unique(column, return_inverse=True)"
    return "convert it to an array of floats first"


def _is_numeric(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _is_date(entry: str) -> bool:
    try:
        return not np.isnat(np.datetime64(entry.strip()))
    except ValueError:
        return False
