"""Cross-validation: every row predicted from the rows of other folds."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inference.infer import infer
from ..inputs.data import Data, columns_of, read_data, with_weights
from ..inputs.tables import bind
from ..likelihoods.base import at_rows, has_distribution, row_parameters_of
from ..likelihoods.weighted import unweighted
from ..methods.rule import Method
from ..model import Model
from ..results.result import InferenceError, Result
from ..results.status import Status
from ..terms.columns import EncodedTable, as_inputs
from ..terms.table import Table as UserTable
from ..terms.table import is_table, take_rows
from ..validation.arguments import generator, is_whole, whole
from ..validation.times import Clock
from .calibration import Calibration, calibration
from .tables import as_text, error_of_total, new_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class CrossValidation:
    """Held-out predictions of a model; created by `cross_validate`.

    `log_density` is log p(yₙ | rows of the other folds), in the order of the rows, NaN where y is missing. `folds` is
    the fold of each row, `labels` are the folds, and `models` and `statuses` are the model with its learned values and
    the status of inference for each fold. `calibration` is that of the held-out rows, or None if the likelihood has no
    distribution function.
    """

    data: Data
    clock: Clock | None
    log_density: np.ndarray
    folds: np.ndarray
    labels: list[Any]
    models: list[Model]
    statuses: list[Status]
    calibration: Calibration | None
    columns: Any = None

    @property
    def rows(self) -> int:
        """The number of observed rows, each of which was held out once."""
        return int(np.sum(self.data.observed))

    @property
    def total(self) -> float:
        """The sum of the log densities; higher is better."""
        return float(np.sum(self.log_density[self.data.observed]))

    @property
    def mean(self) -> float:
        """The mean log density per row."""
        return self.total / self.rows

    @property
    def standard_error(self) -> float:
        """The standard error of `total`, from the spread of the rows; divided by `rows`, that of `mean`."""
        return error_of_total(self.log_density[self.data.observed])

    def table(self) -> "Table":
        """One line per fold, for `rich.print`."""
        table = new_table("Cross-validation", "fold")
        for heading in ("rows", "mean log density", "status"):
            table.add_column(heading, justify="right")
        for label, status in zip(self.labels, self.statuses, strict=True):
            densities = self.log_density[(self.folds == label) & self.data.observed]
            table.add_row(str(label), str(densities.size), f"{densities.mean():.3f}", status.name.lower())
        table.caption = f"total {self.total:.2f} ± {self.standard_error:.2f} over {self.rows} rows"
        return table

    def __str__(self) -> str:
        return as_text(self.table())

    def __repr__(self) -> str:
        return (
            f"CrossValidation of {self.rows} row(s) in {len(self.labels)} folds: log density {self.total:.6g} ± "
            f"{self.standard_error:.2g}, {self.mean:.4g} per row"
        )


def cross_validate(
    model: Model,
    x: Any,
    y: Any,
    method: Method | None = None,
    folds: Any = 5,
    key: Any = 0,
    learn: Callable[[Model, np.ndarray, np.ndarray], Result] | None = None,
    weights: Any = None,
    **infer_arguments: Any,
) -> CrossValidation:
    """Predict every row from the rows of other folds.

    `folds` is the number of folds, filled at random with `key` (a JAX key or an integer seed), or one label per row:
    blocks of time, or groups that must not be split. If x is a table, `folds` may be the name of a column, each level
    of which is a fold, or such a name and a number, as in `folds=("patient", 5)`, for levels at random in that many
    folds. Effects of levels that are in no other fold are integrated over their prior.

    `infer` is called once per fold with `method` and `infer_arguments`, and hyperparameters are not learned. To learn
    them for each fold, pass `learn`, a function of a model, x and y (as arrays of numbers, NaN where missing; x is a
    table if it was one) that returns a `Result`. Per-row values of the likelihood, such as exposures, are split with
    the rows, and so are `weights`, with which rows count for the predictions of others (see `infer`). Rows of weight 0
    are not predicted, and the log densities of all others count equally.

    >>> import numpy as np
    >>> import newtongp as ng
    >>> x = np.linspace(0.0, 5.0, 12)
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian(0.01))
    >>> found = ng.cross_validate(model, x, np.sin(x), folds=3)
    >>> found.log_density.shape, found.labels, bool(found.mean > 0.0)
    ((12,), [0, 1, 2], True)
    >>> halves = ng.cross_validate(model, x, np.sin(x), folds=np.where(x < 2.5, "early", "late"))
    >>> halves.total < found.total
    True
    """
    if not isinstance(model, Model):
        raise ValueError(f"model must be a Model(prior, likelihood), got {model!r}")
    if "sites" in infer_arguments:
        raise ValueError("sites belong to all rows, but every fold uses different rows: leave sites out")
    if learn is None:

        def fit(model: Model, x: np.ndarray, y: np.ndarray) -> Result:
            return infer(model, x, y, method, **infer_arguments)

    else:
        fit = _check_learn(learn, {"method": method, **infer_arguments} if method is not None else infer_arguments)
    model = with_weights(model, x, weights)
    source = _Source(model, x, y, encoded=learn is None)
    model, data = source.model, source.data
    assignment, labels = _read_folds(_by_column(folds, x, key), key, data.observed)
    outputs = data.outputs[:, 0] if model.likelihood.num_outputs == 1 else data.outputs

    # Folds of equal size are compiled once: training rows are padded with held-out rows without their y, whose
    # predictions are then computed several times. A prior that chooses inducing inputs would choose from those rows
    # too.
    held_out = [np.flatnonzero((assignment == label) & data.observed) for label in labels]
    most_held = max(held.size for held in held_out)
    fills_up = learn is None and getattr(model.prior, "count", None) is None
    most_trained = max(int(np.sum(assignment != label)) for label in labels) if fills_up else 0

    log_density = np.full(data.observed.shape, np.nan)
    lower, upper = np.full((2, *data.observed.shape), np.nan)
    models, statuses, has_pit = [], [], has_distribution(model.likelihood)
    for label, held in zip(labels, held_out, strict=True):
        others, own = np.flatnonzero(assignment != label), np.flatnonzero(assignment == label)
        filled = np.concatenate([others, own[: max(0, most_trained - others.size)]])
        training = outputs[filled]
        training[others.size :] = np.nan
        own_model = Model(model.prior, at_rows(model.likelihood, filled))
        fitted = _fit_fold(fit, own_model, source.inputs(filled), training, label)
        test = np.resize(held, most_held)
        given = row_parameters_of(unweighted(model.likelihood), test)
        log_density[held] = fitted.log_density(source.inputs(test), outputs[test], **given)[: held.size]
        if has_pit:
            held_calibration = calibration(fitted, source.inputs(test), outputs[test], **given)
            lower[held], upper[held] = held_calibration.lower[: held.size], held_calibration.upper[: held.size]
        models.append(fitted.model)
        statuses.append(fitted.status)
    return CrossValidation(
        data=data,
        clock=getattr(model.prior, "clock", None),
        log_density=log_density,
        folds=assignment,
        labels=labels,
        models=models,
        statuses=statuses,
        calibration=Calibration(lower, upper, "cross-validation", key) if has_pit else None,
        columns=source.columns,
    )


class _Source:
    """The rows of the data, from which those of every fold are taken.

    Those of a table are encoded once, with all its levels: effects of levels that a fold does not have are then those
    of their prior, as for new levels. A function that learns gets tables, and encodes each by itself.
    """

    def __init__(self, model: Model, x: Any, y: Any, encoded: bool):
        bound, inputs, y = bind(model, x, y)
        self.data = read_data(inputs, y, bound)
        self.columns = columns_of(inputs, bound)
        self._table = x if isinstance(inputs, EncodedTable) and not encoded else None
        self.model = bound if self._table is None else model

    def inputs(self, rows: np.ndarray) -> Any:
        """x of these rows."""
        if self._table is not None:
            return take_rows(self._table, rows)
        return as_inputs(self.data.x[rows], self.columns)


def _by_column(folds: Any, x: Any, key: Any) -> Any:
    """Folds that are given by a column of the table: one per level, or levels at random in a number of folds."""
    name, count = folds if isinstance(folds, tuple) and len(folds) == 2 and isinstance(folds[0], str) else (folds, None)
    if not isinstance(name, str):
        return folds
    if not is_table(x):
        raise ValueError(f"folds={name!r} is the name of a column, but x is not a table: give one label per row")
    labels, which = UserTable(x, "x")[name].labels()
    if count is None:
        return np.array([str(label) for label in labels])[which] if _mixed(labels) else np.array(labels)[which]
    whole(count, "the number of folds", 2, len(labels), 5)
    order = generator(key).permutation(len(labels))
    return np.argsort(order)[which] % count


def _mixed(labels: list[Any]) -> bool:
    return len({type(label) for label in labels}) > 1


def _check_learn(learn: Any, others: dict[str, Any]) -> Any:
    if not callable(learn):
        raise ValueError(f"learn must be a function of a model, x and y that returns a Result, got {learn!r}")
    if others:
        name = next(iter(others))
        raise ValueError(
            f"learn replaces infer, so {name} is not used: pass it inside, as in "
            f"learn=lambda model, x, y: infer(model, x, y, {name}=...)"
        )
    return learn


def _fit_fold(fit: Callable[..., Any], model: Model, x: np.ndarray, y: np.ndarray, label: Any) -> Result:
    try:
        fitted = fit(model, x, y)
    except InferenceError as error:
        error.add_note(f"This was without the rows of fold {label!r}.")
        raise
    if not isinstance(fitted, Result):
        raise ValueError(f"learn must return a Result, as infer does, got {fitted!r}")
    return fitted


def _read_folds(folds: Any, key: Any, observed: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """One label per row, and the labels of folds with observed rows."""
    rows, usable = observed.size, int(observed.sum())
    if is_whole(folds):
        if not 2 <= folds <= usable:
            raise ValueError(
                f"folds must be at least 2 and at most the number of observed rows, {usable}, got {folds}: "
                "5 or 10 are usual"
            )
        order = generator(key).permutation(usable)
        assignment = np.full(rows, -1)
        # Assigned in turn in a random order, so fold sizes differ by at most one. Missing rows are never held out.
        assignment[np.flatnonzero(observed)[order]] = np.arange(usable) % folds
        return assignment, list(range(int(folds)))
    assignment = np.asarray(folds)
    if assignment.shape != (rows,):
        raise ValueError(
            f"folds must be an integer, or one label per row: {rows} of them, got {type(folds).__name__} of shape "
            f"{assignment.shape}"
        )
    for row, label in enumerate(assignment if assignment.dtype.kind in "fmMO" else ()):
        if _is_missing(label):
            value = "NaN" if isinstance(label, (float, np.floating)) else label
            raise ValueError(f"folds must have a label for every row, but row {row} is {value}: give it a label too")
    distinct = np.unique(assignment[observed])
    # NumPy turns stamps in nanoseconds into integers, which equal none of them.
    labels = list(distinct) if distinct.dtype.kind in "mM" else list(distinct.tolist())
    if len(labels) < 2:
        raise ValueError(
            f"folds must have at least two labels among the observed rows, got {labels}: each fold is predicted from "
            "the others"
        )
    return assignment, labels


def _is_missing(label: Any) -> bool:
    """Whether this is None, NaN, NaT or pandas' NA. (pandas itself is never imported.)"""
    return label is None or type(label).__name__ == "NAType" or bool(label != label)
