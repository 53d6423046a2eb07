"""Binding additive models to tables: columns become numbers, and terms learn their sizes."""

import itertools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np

from .._runtime.double import in_double
from ..likelihoods.base import Likelihood, named_columns, row_mean, rows_given, with_row_parameters
from ..likelihoods.weighted import unweighted
from ..terms.columns import EncodedTable, TableColumns
from ..validation.numbers import NotRealError, as_real

if TYPE_CHECKING:  # models without terms do not need them, whose import takes time
    from ..priors.additive import Additive
    from ..terms.base import Units
    from ..terms.table import Table


def bind(model: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """The model with its terms bound to the table x, the table encoded, and y, which may be the name of a column.

    Models without terms are returned as they are.
    """
    prior: Any = getattr(model, "prior", None)
    if not getattr(prior, "over_table", False) or isinstance(x, EncodedTable):
        return model, x, y
    from ..terms.table import Table, is_table

    if not is_table(x):
        raise ValueError(
            f"terms are over the named columns of a table, got x of type {type(x).__name__}: give a data frame of "
            'pandas, polars or pyarrow, or a mapping such as {"age": ages}'
        )
    table = Table(x, "x")
    if y is None:
        raise ValueError("y is missing: give the name of its column, as in fit(model, table, 'count'), or its values")
    _check_terms(prior)
    output = y if isinstance(y, str) else None
    if output is not None:
        y = table[output].numbers_or_missing()
    likelihood, row_columns = _with_columns(model.likelihood, table)
    bound, columns = prior.bind(table, _units(unweighted(likelihood), y))
    columns = TableColumns(columns.encoders, row_columns, output, table.library)
    if output is not None and output in columns.sources:
        raise ValueError(f"column {output!r} is y and cannot be part of a term: leave it out of the terms")
    encoded = EncodedTable(columns.encode(table), columns, x)
    return eqx.tree_at(lambda m: (m.prior, m.likelihood), model, (bound, likelihood)), encoded, y


def _check_terms(prior: "Additive") -> None:
    """Raise ValueError if a latent has the same term twice, or two intercepts."""
    from ..terms.linear import Linear

    for terms in prior.latents:
        same = [
            (a, b) for a, b in itertools.combinations(terms.terms, 2) if a.label == b.label and eqx.tree_equal(a, b)
        ]
        if same:
            raise ValueError(
                f"the model has the term {same[0][0].label} twice, so that its parts cannot be told apart: leave one "
                "out, or give them different kernels"
            )
        both = [term.label for term in terms.terms if isinstance(term, Linear) and term.intercept]
        if len(both) > 1:
            raise ValueError(
                f"{both[0]} and {both[1]} both have an intercept, which cannot be told apart: write one Linear with "
                "all columns, or intercept=False in one of them"
            )


def _with_columns(likelihood: Likelihood, table: "Table") -> tuple[Likelihood, tuple[tuple[str, str], ...]]:
    """The likelihood with the values of columns that were given by name."""
    named = named_columns(likelihood)
    values = {name: _checked(likelihood, name, table, column) for name, column in named.items()}
    # New rows need no weights.
    kept = unweighted(likelihood).row_parameters
    return with_row_parameters(likelihood, **values), tuple(pair for pair in named.items() if pair[0] in kept)


def _checked(likelihood: Likelihood, name: str, table: "Table", column: str) -> np.ndarray:
    """The values of a row parameter in a column; ValueError names the row of an invalid one."""
    values = table[column].numbers()
    try:
        likelihood.check_row_parameter(name, values)
    except ValueError:
        for row, value in enumerate(values.tolist()):
            try:
                likelihood.check_row_parameter(name, value)
            except ValueError as error:
                raise ValueError(f"row {row} of column {column!r}: {error}") from None
        raise
    return values


def row_values(likelihood: Likelihood, columns: Any, x_new: Any, given: dict[str, Any], name: str) -> dict[str, Any]:
    """Row parameters of new rows: those given, and others from the columns of the table that held them."""
    if not isinstance(columns, TableColumns):
        return given
    named = [(parameter, column) for parameter, column in columns.row_columns if parameter not in given]
    if not named:
        return given
    from ..terms.table import Table

    table = Table(x_new, name)
    return {**{name: _checked(likelihood, name, table, column) for name, column in named}, **given}


def outputs_of(columns: Any, x_new: Any, y_new: Any, names: tuple[str, str]) -> Any:
    """y of new rows, which may be the name of a column of their table."""
    if not isinstance(columns, TableColumns) or not isinstance(y_new, str):
        return y_new
    from ..terms.table import Table

    return Table(x_new, names[0])[y_new].numbers_or_missing()


@in_double
def _units(likelihood: Likelihood, y: Any) -> "tuple[Units, ...]":
    """For every latent its location and scale: those of y where the latent moves the mean of y one to one."""
    from ..terms.base import Units

    plain = tuple(Units() for _ in range(likelihood.num_latents))
    try:
        values = as_real(y)
    except NotRealError:
        return plain  # reading the data explains what is wrong with it
    values = values[np.isfinite(values)]
    if likelihood.num_outputs != 1 or values.size == 0 or rows_given(likelihood):
        one = likelihood.num_outputs == 1 and values.size > 0 and getattr(likelihood, "linear_latents", ()) == (0,)
        if not one:
            return plain
    location, scale = float(np.mean(values)), float(np.std(values))
    measured = Units(location, scale if scale > 0.0 else max(abs(location), 1.0))
    return tuple(measured if _moves_mean(likelihood, latent) else Units() for latent in range(likelihood.num_latents))


def _moves_mean(likelihood: Likelihood, latent: int) -> bool:
    if latent in tuple(likelihood.linear_latents) and likelihood.num_outputs == 1:
        return True
    zero = np.zeros(likelihood.num_latents)
    one = zero.copy()
    one[latent] = 1.0
    try:
        moved = np.asarray(row_mean(likelihood, one)) - np.asarray(row_mean(likelihood, zero))  # pyright: ignore
    except (NotImplementedError, TypeError, ValueError):
        return False
    return moved.size == 1 and abs(float(moved[0]) - 1.0) < 1e-9
