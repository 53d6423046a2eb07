"""Contrasts: differences of expected y between two tables, with intervals from joint draws."""

import dataclasses
from typing import Any

import jax
import numpy as np

from .._runtime.double import in_double
from ..inputs.tables import row_values
from ..likelihoods.base import Likelihood, at_rows
from ..numerics.gaussian import Gaussian
from ..results.result import Result
from ..terms.base import Encoder
from ..terms.columns import EncodedTable, TableColumns
from ..terms.group import GroupEncoder, codes_of
from ..terms.inputs import InputEncoder, ProductEncoder
from ..terms.table import Table, is_table
from ..validation.arguments import as_key, flag, whole
from ..validation.frames import index_of, library_of, make_frame
from .integrals import explained, means_given
from .predict import cubature_for, likelihood_at
from .prediction import Prediction, checked_level
from .terms import choice_of, draws_without, entries_of, kept_terms, parts_of, posterior_of, without_new_levels

_PAIRS = 500
"""The number of pairs of rows that are drawn together; only averages need all rows at once."""
_MOST = 4000
"""The largest number of pairs for an average."""


def contrast(
    result: Result,
    table_a: Any,
    table_b: Any,
    average: bool,
    without: Any,
    new_levels: str,
    level: float,
    n: int,
    key: Any,
    row_parameters: dict[str, Any],
) -> Any:
    """A data frame of E[y] at the rows of `table_a` minus that at the rows of `table_b`."""
    _, columns = parts_of(result, "contrast")
    average, n, tail = flag(average, "average"), whole(n, "n", 100, such_as=2000), 0.5 - 0.5 * checked_level(level)
    if result.model.likelihood.num_outputs > 1:
        raise ValueError("contrast is for one output per row: use sample and the likelihood's own mean for several")
    encoded = _encode_together(columns, table_a, table_b)
    xs = [without_new_levels(result, x, new_levels) for x in encoded]
    rows = xs[0].shape[0]
    if average and rows > _MOST:
        raise ValueError(f"an average is over at most {_MOST} rows, got {rows}: give a sample of the rows")
    likelihoods = [
        likelihood_at(result.model, rows, row_values(result.model.likelihood, columns, table, row_parameters, name))
        for table, name in ((table_a, "table_a"), (table_b, "table_b"))
    ]
    size = rows if average else _PAIRS
    keys = jax.random.split(as_key(key), -(-rows // size))
    spread = [
        _differences(
            result, own, [x[begin : begin + size] for x in xs], likelihoods, slice(begin, begin + size), n, without
        )
        for own, begin in zip(keys, range(0, rows, size), strict=True)
    ]
    means = [_expected(result, x, likelihood, without) for x, likelihood in zip(xs, likelihoods, strict=True)]
    draws, estimate = np.concatenate(spread, axis=1), means[0] - means[1]
    if average:
        draws, estimate = draws.mean(axis=1, keepdims=True), estimate.mean(keepdims=True)
    lower, upper = np.quantile(draws, [tail, 1.0 - tail], axis=0)
    frame = {"estimate": estimate, "sd": draws.std(axis=0, ddof=1), "lower": lower, "upper": upper}
    return make_frame(frame, library_of(table_a, columns.library), None if average else index_of(table_a))


def _expected(result: Result, x: np.ndarray, likelihood: Likelihood, without: Any) -> np.ndarray:
    """E[y] at encoded rows."""
    kept = kept_terms(result, without) if without else entries_of(result)
    latent: Gaussian = posterior_of(result).of_terms(x, choice_of(result, kept))
    return Prediction(likelihood, latent, cubature_for(result)).mean


@in_double
def _differences(
    result: Result,
    key: Any,
    xs: list[np.ndarray],
    likelihoods: list[Likelihood],
    rows: slice,
    n: int,
    without: Any,
) -> np.ndarray:
    """Draws of the differences of E[y | f], (n, M)."""
    count = xs[0].shape[0]
    latents = draws_without(result, key, np.concatenate(xs), n, without)
    places = np.arange(rows.start, rows.start + count)
    with explained():
        one, two = (
            means_given(at_rows(likelihood, places), own)[:, :, 0]
            for likelihood, own in zip(likelihoods, (latents[:, :count], latents[:, count:]), strict=True)
        )
    return one - two


# Encoding ---------------------------------------------------------------------------------------------


def _encode_together(columns: TableColumns, one: Any, two: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both tables as numbers, in which a level that the data did not have has the same number in both."""
    if isinstance(one, EncodedTable) or isinstance(two, EncodedTable) or not is_table(one) or not is_table(two):
        raise ValueError("contrast compares two tables with the columns of the data: give data frames, or mappings")
    first, second = Table(one, "table_a"), Table(two, "table_b")
    if first.rows != second.rows:
        raise ValueError(
            f"table_a and table_b are compared row by row, but have {first.rows} and {second.rows} rows: give them the "
            "same number of rows"
        )
    later = TableColumns(tuple(tuple(_extended(encoder, first) for encoder in own) for own in columns.encoders))
    return columns.encode(first), later.encode(second)


def _extended(encoder: Encoder, table: Table) -> Encoder:
    """The encoder with the levels of another table after its own."""
    if isinstance(encoder, GroupEncoder):
        _, new = codes_of(encoder.columns, encoder.levels, table)
        return dataclasses.replace(encoder, levels=(*encoder.levels, *new))
    if isinstance(encoder, ProductEncoder):
        return ProductEncoder(tuple(_extended(part, table) for part in encoder.parts))  # pyright: ignore
    if isinstance(encoder, InputEncoder) and not encoder.closed:
        levels = tuple(
            None if own is None else (*own, *table[name].codes(own)[1])
            for name, own in zip(encoder.columns, encoder.levels, strict=True)
        )
        return dataclasses.replace(encoder, levels=levels)
    return encoder
