"""How good a model is: calibration of its predictions, cross-validation, and comparison of several models."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import kstest

from . import data as data_room
from . import predict as predictions
from .data import Data
from .infer import infer
from .likelihoods.base import Likelihood, row_cdf, rows_given, with_row_parameters
from .methods.presets import FirstOrderVI
from .methods.rule import Method
from .model import Model
from .precision import in_double
from .predict import Prediction, as_key
from .results import InferenceError, Result, Status
from .times import Clock

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""The central intervals whose coverage is reported."""


# Calibration ----------------------------------------------------------------------------------------


class Calibration:
    """Whether data fall where they were predicted to, one number a row; `calibration` of a `Result` makes it.

    `lower` and `upper` are P(Y < y) and P(Y ≤ y) under the prediction of each row, NaN where y is missing; they
    are equal unless y is discrete. `pit` is the randomised probability integral transform, uniform between the
    two: if the predictions are right it is uniform between 0 and 1, for discrete y too. `coverage` and
    `histogram` take its expectation over the randomisation in place of a draw, as Czado, Gneiting and Held (2009,
    Biometrics 65) do, so that no seed decides what they say.

    Predictions of rows that share what they were made from are not independent, which standard errors and `p_value`
    ignore: for leave-one-out they are a guide, not a test at a level.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> calibration = ng.infer(model, [0.0, 1.0, 2.0, 3.0], [1, 0, 3, 2]).calibration()
    >>> calibration.rows, calibration.pit.shape, sorted(calibration.coverage)
    (4, (4,), [0.5, 0.8, 0.9, 0.95])
    """

    def __init__(self, lower: np.ndarray, upper: np.ndarray, source: str, key: Any = 0):
        self.lower = np.minimum(lower, upper)
        self.upper = upper
        self.source = source
        """Which predictions these are: leave-one-out, of new data, or from cross-validation."""
        share = in_double(lambda: np.asarray(jax.random.uniform(as_key(key), lower.shape)))()
        self.pit = self.lower + share * (self.upper - self.lower)

    @property
    def rows(self) -> int:
        """How many rows have an observation and a prediction."""
        return int(np.sum(np.isfinite(self.pit)))

    @property
    def coverage(self) -> dict[float, float]:
        """The share of rows in the central 50, 80, 90 and 95 % intervals of their predictions."""
        return {level: self.covered(level) for level in LEVELS}

    @property
    def standard_errors(self) -> dict[float, float]:
        """Of each coverage, if the predictions are right: binomial, √(c (1 − c) / rows); less for discrete y."""
        return {level: float(np.sqrt(level * (1.0 - level) / self.rows)) for level in LEVELS}

    @property
    def p_value(self) -> float:
        """Of the Kolmogorov–Smirnov test of `pit` against the uniform distribution."""
        return float(kstest(self.pit[np.isfinite(self.pit)], "uniform").pvalue)

    def covered(self, level: float) -> float:
        """The share of rows in the central interval of this probability.

        A discrete y at an end of the interval counts with as much of its probability as belongs to the interval: if
        the predictions are right, the expected coverage is `level` itself, and not more.
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie strictly between 0 and 1, got {level!r}: write 0.9 for 90 %")
        return float(np.diff(self._distribution(np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level])))[0])

    def histogram(self, bins: int = 10) -> np.ndarray:
        """How many rows have their `pit` in each of so many equal parts of [0, 1]; not whole for discrete y."""
        if not isinstance(bins, (int, np.integer)) or isinstance(bins, bool) or bins < 1:
            raise ValueError(f"bins must be an integer of at least 1, got {bins!r}")
        return self.rows * np.diff(self._distribution(np.linspace(0.0, 1.0, int(bins) + 1)))

    def _distribution(self, points: np.ndarray) -> np.ndarray:
        """The mean over rows of P(pit ≤ point)."""
        kept = np.isfinite(self.pit)
        lower, width = self.lower[kept, None], (self.upper - self.lower)[kept, None]
        inside = (points - lower) / np.where(width > 0.0, width, 1.0)
        below = np.where(width > 0.0, np.clip(inside, 0.0, 1.0), points >= lower)
        # Rounding may put a pit on 0 or 1, and it belongs to the first or the last part.
        below = np.where(points <= 0.0, 0.0, np.where(points >= 1.0, 1.0, below))
        return below.mean(axis=0)

    def table(self) -> "Table":
        """Expected and observed coverage, for `rich.print`."""
        table = _table(f"Calibration, {self.source}", "central interval")
        for heading in ("coverage", "standard error", "deviation"):
            table.add_column(heading, justify="right")
        for level, found in self.coverage.items():
            error = self.standard_errors[level]
            cells = (f"{100 * found:.1f} %", f"{100 * error:.1f} %", f"{(found - level) / error:+.1f} s.e.")
            table.add_row(f"{100 * level:g} %", *cells)
        table.caption = f"{self.rows} rows; Kolmogorov–Smirnov p = {self.p_value:.2g}"
        return table

    def __str__(self) -> str:
        return _as_text(self.table())

    def __repr__(self) -> str:
        shares = ", ".join(f"{100 * found:.0f} % in {100 * level:g} %" for level, found in self.coverage.items())
        return f"Calibration of {self.rows} row(s), {self.source}: {shares}"

    def plot(self, axes: Any = None, bins: int | None = None) -> "Figure":
        """A histogram of PIT values and the coverage of central intervals, each with the band it should be in."""
        from . import plotting

        return plotting.plot_calibration(self, axes, bins)


def calibration(
    result: Result, x_new: Any = None, y_new: Any = None, key: Any = 0, **row_parameters: Any
) -> Calibration:
    """The calibration of predictions of new data or, without any, of each row given all others."""
    if x_new is None and y_new is None:
        if row_parameters:
            raise ValueError(
                f"{next(iter(row_parameters))} is for new rows, of which there are none: give x_new and y_new too"
            )
        prediction, usable = _left_out(result)
        return Calibration(*_around(prediction, result.data, usable), "leave-one-out", key)
    if x_new is None or y_new is None:
        missing, given = ("x_new", "y_new") if x_new is None else ("y_new", "x_new")
        raise ValueError(
            f"{missing} is missing: calibration on new data needs both inputs and outputs, got {given} only; "
            "leave out both for leave-one-out"
        )
    prediction = result.predict(x_new, **row_parameters)
    likelihood = prediction.likelihood
    read = data_room.read_data(x_new, y_new, Model(result.model.prior, likelihood), ("x_new", "y_new"))
    return Calibration(*_around(prediction, read, read.observed), "new data", key)


def _left_out(result: Result) -> tuple[Prediction, np.ndarray]:
    """The prediction of each row given all others, and which rows have one."""
    latent, usable = predictions.left_out(result, "leave-one-out", "give x_new and y_new")
    return Prediction(result.model.likelihood, latent, predictions.cubature_for(result)), usable


def _around(prediction: Prediction, data: Data, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(Y < y) and P(Y ≤ y) of each row; NaN where there is nothing to predict."""
    likelihood = prediction.likelihood
    if likelihood.num_outputs != 1:
        raise ValueError(
            f"calibration is for one output, and {type(likelihood).__name__} has {likelihood.num_outputs}: look at "
            "functions of them, with draws from sample_y"
        )
    y = data.y[:, 0]
    upper = prediction.cdf(y)
    lower = prediction.cdf(y - 1.0) if likelihood.support.integer else upper
    return np.where(usable, lower, np.nan), np.where(usable, upper, np.nan)


def has_distribution(likelihood: Likelihood) -> bool:
    """Whether y has one output with a distribution function.

    >>> from newtongp import likelihoods
    >>> has_distribution(likelihoods.Poisson(exposure=[1.0, 2.0])), has_distribution(likelihoods.Softmax(3))
    (True, False)
    """
    if likelihood.num_outputs != 1:
        return False
    first = {name: values[0] for name, values in _row_parameters(likelihood, np.array([0])).items()}
    one = with_row_parameters(likelihood, **first)
    try:
        jax.eval_shape(lambda f: row_cdf(one, jnp.asarray(one.support.example), f), jnp.zeros(one.num_latents))
    except NotImplementedError:
        return False
    return True


# Cross-validation -----------------------------------------------------------------------------------


class CrossValidation:
    """What rows that were held out say of a model; `cross_validate` makes it.

    `log_density` is log p(yₙ | rows of the other folds), in the order of the rows, NaN where y is missing. `folds` says
    which fold each row was held out with, `labels` which folds there are, and `models` and `statuses` with what the
    rows of each were predicted: the model with whatever was learned, and how its inference ended. `calibration` is
    that of the held-out rows, or None where the likelihood has no distribution function.
    """

    def __init__(
        self,
        *,
        data: Data,
        clock: Clock | None,
        log_density: np.ndarray,
        folds: np.ndarray,
        labels: list[Any],
        models: list[Model],
        statuses: list[Status],
        calibration: Calibration | None,
    ):
        self.data = data
        self.clock = clock
        self.log_density = log_density
        self.folds = folds
        self.labels = labels
        self.models = models
        self.statuses = statuses
        self.calibration = calibration

    @property
    def rows(self) -> int:
        """How many rows were observed, and so held out once each."""
        return int(np.sum(self.data.observed))

    @property
    def total(self) -> float:
        """The sum of the log densities: the higher, the better."""
        return float(np.sum(self.log_density[self.data.observed]))

    @property
    def mean(self) -> float:
        """The log density of a row on average."""
        return self.total / self.rows

    @property
    def standard_error(self) -> float:
        """That of `total`, from the spread of the rows; the one of `mean` is this over the number of rows."""
        return _error_of_total(self.log_density[self.data.observed])

    def table(self) -> "Table":
        """One line a fold, for `rich.print`."""
        table = _table("Cross-validation", "fold")
        for heading in ("rows", "mean log density", "status"):
            table.add_column(heading, justify="right")
        for label, status in zip(self.labels, self.statuses, strict=True):
            found = self.log_density[(self.folds == label) & self.data.observed]
            table.add_row(str(label), str(found.size), f"{found.mean():.3f}", status.name.lower())
        table.caption = f"total {self.total:.2f} ± {self.standard_error:.2f} over {self.rows} rows"
        return table

    def __str__(self) -> str:
        return _as_text(self.table())

    def __repr__(self) -> str:
        return (
            f"CrossValidation of {self.rows} row(s) in {len(self.labels)} folds: log density {self.total:.6g} ± "
            f"{self.standard_error:.2g}, {self.mean:.4g} a row"
        )


def cross_validate(
    model: Model,
    x: Any,
    y: Any,
    method: Method | FirstOrderVI | None = None,
    folds: Any = 5,
    key: Any = 0,
    learn: Callable[[Model, np.ndarray, np.ndarray], Result] | None = None,
    **infer_arguments: Any,
) -> CrossValidation:
    """Predict every row from the rows of other folds.

    `folds` is how many, filled at random as `key` (a JAX key or an integer seed) decides, or a label a row: blocks of
    time, or groups that must not be split. `infer` is called once a fold with `method` and `infer_arguments`, so
    hyperparameters stay what they are; to learn them anew without the fold, give `learn`, which takes a model, x
    and y (as arrays of numbers, NaN where missing) to a `Result`. Numbers that the likelihood has for each row, such as
    exposures, go with their rows.

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
        raise ValueError("sites belong to all rows, and every fold has others: leave sites out")
    if learn is None:

        def fit(model: Model, x: np.ndarray, y: np.ndarray) -> Result:
            return infer(model, x, y, method, **infer_arguments)

    else:
        fit = _check_learn(learn, {"method": method, **infer_arguments} if method is not None else infer_arguments)
    data = data_room.read_data(x, y, model)
    assignment, labels = _read_folds(folds, key, data.observed)
    outputs = _outputs(data)[:, 0] if model.likelihood.num_outputs == 1 else _outputs(data)

    # Folds of one size are compiled once: some of the rows that are held out fill the others up, without their y, and
    # their predictions are made several times.
    held_out = [np.flatnonzero((assignment == label) & data.observed) for label in labels]
    most_held = max(held.size for held in held_out)
    most_trained = max(int(np.sum(assignment != label)) for label in labels) if learn is None else 0

    log_density = np.full(data.observed.shape, np.nan)
    lower, upper = np.full((2, *data.observed.shape), np.nan)
    models, statuses, has_pit = [], [], has_distribution(model.likelihood)
    for label, held in zip(labels, held_out, strict=True):
        others, own = np.flatnonzero(assignment != label), np.flatnonzero(assignment == label)
        filled = np.concatenate([others, own[: max(0, most_trained - others.size)]])
        seen = outputs[filled]
        seen[others.size :] = np.nan
        fitted = _fit_fold(fit, _with_rows(model, filled), data.x[filled], seen, label)
        asked = np.resize(held, most_held)
        given = _row_parameters(model.likelihood, asked)
        log_density[held] = fitted.log_density(data.x[asked], outputs[asked], **given)[: held.size]
        if has_pit:
            found = calibration(fitted, data.x[asked], outputs[asked], **given)
            lower[held], upper[held] = found.lower[: held.size], found.upper[: held.size]
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
    )


def _check_learn(learn: Any, others: dict[str, Any]) -> Any:
    if not callable(learn):
        raise ValueError(f"learn must be a function of a model, x and y that returns a Result, got {learn!r}")
    if others:
        name = next(iter(others))
        raise ValueError(
            f"learn takes the place of infer, so {name} is not used: give it inside, as in "
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


def _row_parameters(likelihood: Likelihood, rows: np.ndarray) -> dict[str, np.ndarray]:
    """What the likelihood was given for each row, at these rows."""
    return {name: np.asarray(likelihood.row_parameter(name))[rows] for name in rows_given(likelihood)}


def _with_rows(model: Model, rows: np.ndarray) -> Model:
    """The model for these rows of the data alone."""
    own = _row_parameters(model.likelihood, rows)
    return Model(model.prior, with_row_parameters(model.likelihood, **own)) if own else model


def _read_folds(folds: Any, key: Any, observed: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """A label a row, and the labels of folds with observed rows."""
    rows, usable = observed.size, int(observed.sum())
    if isinstance(folds, (int, np.integer)) and not isinstance(folds, bool):
        if not 2 <= folds <= usable:
            raise ValueError(
                f"folds must be at least 2 and at most the number of observed rows, {usable}, got {folds}: "
                "5 or 10 are usual"
            )
        order = in_double(lambda: np.asarray(jax.random.permutation(as_key(key), usable)))()
        assignment = np.full(rows, -1)
        # In turn along a random order, so that folds differ by one row at most. Missing rows are never held out.
        assignment[np.flatnonzero(observed)[order]] = np.arange(usable) % folds
        return assignment, list(range(int(folds)))
    assignment = np.asarray(folds)
    if assignment.shape != (rows,):
        raise ValueError(
            f"folds must be an integer, or one label a row: {rows} of them, got {type(folds).__name__} of shape "
            f"{assignment.shape}"
        )
    wrong = assignment != assignment if assignment.dtype.kind in "fO" else np.zeros(rows, dtype=bool)
    if np.any(wrong):
        raise ValueError(f"folds must have a label for every row, but row {np.flatnonzero(wrong)[0]} is NaN")
    labels = list(np.unique(assignment[observed]).tolist())
    if len(labels) < 2:
        raise ValueError(
            f"folds must have at least two labels among the observed rows, got {labels}: each fold is predicted from "
            "the others"
        )
    return assignment, labels


# Comparison -----------------------------------------------------------------------------------------


class Comparison:
    """Models side by side, the best first; `compare` makes it.

    `entries` has a dictionary a model: its `name`, the total `log_density` of rows that were left out with its
    `standard_error`, the `difference` to the best with its own (`difference_error`), the `energy`, `steps` and
    `status`, and how many of its rows had an improper cavity (`improper`). `rows` is how many rows the sums are over:
    those that all models can predict.
    """

    def __init__(self, entries: list[dict[str, Any]], rows: int, source: str):
        self.entries = entries
        self.rows = rows
        self.source = source

    @property
    def best(self) -> str:
        """The name of the model that predicts best."""
        return self.entries[0]["name"]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.entries)

    def table(self) -> "Table":
        """One line a model, for `rich.print`."""
        table = _table(f"Comparison, {self.source}", "model")
        for heading in ("log density", "difference", "energy", "steps", "status"):
            table.add_column(heading, justify="right")
        for entry in self.entries:
            first = entry is self.entries[0]
            table.add_row(
                entry["name"],
                _with_error(entry["log_density"], entry["standard_error"]),
                "" if first else _with_error(entry["difference"], entry["difference_error"]),
                "" if entry["energy"] is None else f"{entry['energy']:.2f}",
                "" if entry["steps"] is None else str(entry["steps"]),
                entry["status"],
            )
        table.caption = f"sums over {self.rows} rows, ± standard errors; differences are paired, row by row"
        improper = {entry["name"]: entry["improper"] for entry in self.entries if entry["improper"]}
        if improper:
            left_out = ", ".join(f"{count} of {name}" for name, count in improper.items())
            table.caption += f"; rows with an improper cavity are left out of all sums ({left_out})"
        return table

    def __str__(self) -> str:
        return _as_text(self.table())

    def __repr__(self) -> str:
        return f"Comparison of {len(self)} model(s), {self.source}: best is {self.best!r}"


def compare(
    results: Mapping[str, Result | CrossValidation] | Sequence[Result | CrossValidation], check_x: bool = True
) -> Comparison:
    """Which model of the same data predicts rows best that it has not seen.

    `results` are Results, compared by their leave-one-out log densities (of the approximate posterior's cavities: no
    inference is repeated), or CrossValidations with equal folds; by name, or in a list. The standard error of a
    difference is that of a sum of differences row by row, which is far smaller than those of the sums where the models
    find the same rows difficult. Energies are comparable between models by the same method only.

    All must be of the same rows. `check_x=False` lets their inputs differ, for models that see other columns.

    >>> import newtongp as ng
    >>> x, y = [0.0, 1.0, 2.0, 3.0, 4.0], [0, 1, 0, 12, 0]
    >>> prior = ng.GP(ng.kernels.RBF())
    >>> models = {"Poisson": ng.likelihoods.Poisson(), "negative binomial": ng.likelihoods.NegativeBinomial()}
    >>> comparison = ng.compare({name: ng.infer(ng.Model(prior, each), x, y) for name, each in models.items()})
    >>> comparison.best
    'negative binomial'
    >>> [entry["name"] for entry in comparison]
    ['negative binomial', 'Poisson']
    """
    named = _read_results(results)
    _check_same_data(named, check_x)
    source = "leave-one-out" if isinstance(next(iter(named.values())), Result) else "cross-validation"
    densities = {
        name: each.leave_one_out() if isinstance(each, Result) else each.log_density for name, each in named.items()
    }
    observed = next(iter(named.values())).data.observed
    usable = np.all([np.isfinite(values) for values in densities.values()], axis=0)
    if not np.any(usable):
        raise ValueError("results have no row in common that all of them can predict: use cross_validate")
    ranked = sorted(named, key=lambda name: -densities[name][usable].sum())
    best = densities[ranked[0]][usable]
    entries = []
    for name in ranked:
        values, each = densities[name][usable], named[name]
        entries.append(
            {
                "name": name,
                "log_density": float(values.sum()),
                "standard_error": _error_of_total(values),
                "difference": float((values - best).sum()),
                "difference_error": _error_of_total(values - best),
                "energy": each.energy if isinstance(each, Result) else None,
                "steps": each.steps if isinstance(each, Result) else None,
                "status": _status_in_words(each),
                "improper": int(np.sum(observed & ~np.isfinite(densities[name]))),
            }
        )
    return Comparison(entries, int(usable.sum()), source)


def _read_results(results: Any) -> dict[str, Result | CrossValidation]:
    if isinstance(results, Mapping):
        named = {str(name): each for name, each in results.items()}
    elif isinstance(results, Sequence) and not isinstance(results, str):
        named = {f"model {position}": each for position, each in enumerate(results)}
    else:
        raise ValueError(f"results must be a dictionary or a list of Results, got {results!r}")
    if not named:
        raise ValueError(f"results must not be empty, got {results!r}: give at least one")
    for name, each in named.items():
        if not isinstance(each, (Result, CrossValidation)):
            raise ValueError(f"results must be Results or CrossValidations, but {name!r} is {each!r}")
        if each.data is None:
            raise ValueError(
                f"results must have their data, but {name!r} was read in chunks: compare log_density at rows left out"
            )
    if len({isinstance(each, Result) for each in named.values()}) > 1:
        raise ValueError(
            "results must be all Results or all CrossValidations: leave-one-out and folds are predictions from "
            "different rows"
        )
    return named


def _check_same_data(named: dict[str, Result | CrossValidation], check_x: bool) -> None:
    (first, one), *others = named.items()
    for name, other in others:
        who = f"results must be of the same data, but {first!r} and {name!r}"
        if one.data.observed.shape != other.data.observed.shape:
            raise ValueError(
                f"{who} have {one.data.observed.size} and {other.data.observed.size} rows: infer from the same rows"
            )
        if not _same_outputs(one.data, other.data):
            raise ValueError(
                f"{who} differ in y: infer from the same y (densities of transformed y are not comparable either)"
            )
        if check_x and not _same_inputs(one, other):
            raise ValueError(f"{who} differ in x: infer from the same rows, or say check_x=False if they are the same")
        if isinstance(one, CrossValidation) and isinstance(other, CrossValidation):
            _check_same_folds(who, one.folds, other.folds)


def _same_outputs(one: Data, other: Data) -> bool:
    if one.y.shape != other.y.shape:
        return False
    return np.array_equal(_outputs(one), _outputs(other), equal_nan=True)


def _outputs(data: Data) -> np.ndarray:
    """y as it came in, with NaN for what is missing."""
    return np.where(data.observed[:, None] if data.seen is None else data.seen, data.y, np.nan)


def _same_inputs(one: Result | CrossValidation, other: Result | CrossValidation) -> bool:
    if one.data.x.shape != other.data.x.shape:
        return False
    clock, other_clock = _clock(one), _clock(other)
    if clock == other_clock or clock is None or other_clock is None:
        return np.array_equal(one.data.x, other.data.x)
    # The same stamps, measured in other units or from another origin.
    return np.allclose(_seconds(one.data.x, clock), _seconds(other.data.x, other_clock), rtol=1e-12, atol=0.0)


def _clock(each: Result | CrossValidation) -> Clock | None:
    return each.clock if isinstance(each, CrossValidation) else getattr(each.model.prior, "clock", None)


def _seconds(x: np.ndarray, clock: Clock) -> np.ndarray:
    second = np.timedelta64(1, "s")
    return x * (clock.unit / second) + (clock.origin - np.datetime64(0, "s")) / second


def _check_same_folds(who: str, one: np.ndarray, other: np.ndarray) -> None:
    """Equal up to the names of the folds."""
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    if not len(pairs) == len(set(one.tolist())) == len(set(other.tolist())):
        raise ValueError(f"{who} have other folds: use the same folds and key")


def _status_in_words(each: Result | CrossValidation) -> str:
    if isinstance(each, Result):
        return each.status.name.lower()
    endings = [status.name.lower() for status in each.statuses]
    counts = {ending: endings.count(ending) for ending in sorted(set(endings))}
    return endings[0] if len(counts) == 1 else ", ".join(f"{count} {ending}" for ending, count in counts.items())


def _error_of_total(values: np.ndarray) -> float:
    """The standard error of the sum of independent values, from their spread; NaN of a single one."""
    return float(np.sqrt(values.size) * np.std(values, ddof=1)) if values.size > 1 else float("nan")


# Tables -----------------------------------------------------------------------------------------------


def _with_error(value: float, error: float) -> str:
    return f"{value:.2f} ± {error:.2f}"


def _table(title: str, first_column: str) -> "Table":
    from rich.table import Table

    table = Table(title=title)
    table.add_column(first_column)
    return table


def _as_text(table: "Table") -> str:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=120, color_system=None, force_jupyter=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
