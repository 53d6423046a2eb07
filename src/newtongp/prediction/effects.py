"""Effects of terms: coefficients of fixed effects, the levels of groups, and smooth terms at their known inputs."""

from typing import Any, NamedTuple

import numpy as np

from ..numerics.known import transformed_covariance
from ..parameters.names import hyperparameters
from ..priors.additive import Additive
from ..results.result import Result
from ..terms.group import Group, GroupEncoder
from ..terms.inputs import InputEncoder, ProductEncoder, as_entries
from ..terms.kernel_term import KernelTerm
from ..terms.linear import DesignEncoder, Linear
from .terms import Entry, entries_of, has_joint, joint_moments, moments, rows_of_data


class Coefficients(NamedTuple):
    """Coefficients of columns as they are, not centred: names, estimates and their covariance."""

    names: tuple[str, ...]
    mean: np.ndarray
    covariance: np.ndarray


def coefficients(result: Result, entry: Entry) -> Coefficients:
    """The coefficients of a `Linear` term, given the hyperparameters.

    Maximised coefficients are hyperparameters themselves: theirs is the covariance of the learned values.
    """
    term, encoder = entry.term, entry.encoder
    assert isinstance(term, Linear) and isinstance(encoder, DesignEncoder)
    back = term.at_zero()
    mean, covariance = _of_centred(result, entry)
    if term.prior == "maximised":
        covariance = _learned_covariance(result, entry)
    return Coefficients(encoder.names, back @ mean, transformed_covariance(back, covariance))


def coefficient_means(result: Result, entry: Entry) -> np.ndarray:
    """The estimates alone."""
    term = entry.term
    assert isinstance(term, Linear)
    return term.at_zero() @ _of_centred(result, entry)[0]


def _of_centred(result: Result, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """The coefficients of centred columns: the term at the means of all columns, and one unit away in one of them."""
    term = entry.term
    assert isinstance(term, Linear)
    centres = np.asarray(term.centres)
    # Steps of the size of the centres: of a smaller one, rounding would leave few digits.
    steps = 2.0 ** np.ceil(np.log2(np.maximum(np.abs(centres), 1.0)))
    x = np.repeat(rows_of_data(result, "effects")[:1], centres.size + 1, axis=0)
    x[:, entry.place] = np.concatenate([centres[None], centres + np.diag(steps)])
    f, spread = joint_moments(result, x, entry)
    mean = (f[1:] - f[0]) / steps
    mean[:1] += f[0] if term.intercept else 0.0
    return mean, spread[1:, 1:] / np.outer(steps, steps)


def _learned_covariance(result: Result, entry: Entry) -> np.ndarray:
    """The covariance of maximised coefficients of centred columns; NaN if it is not known."""
    term = entry.term
    assert isinstance(term, Linear)
    size, name = term.size, parameter_name(result, entry, "coefficients")
    found = learned_covariance(result)
    if found is None or f"{name}[0]" not in found.names:
        return np.full((size, size), np.nan)
    places = [found.names.index(f"{name}[{index}]") for index in range(size)]
    return found.matrix[np.ix_(places, places)]


def learned_covariance(result: Result) -> Any:
    """The covariance of the learned values; None if nothing was learned, or the curvature is not known."""
    if getattr(result, "spread", None) is None:
        return None
    return result.covariance  # pyright: ignore[reportAttributeAccessIssue]


def parameter_name(result: Result, entry: Entry, field: str) -> str:
    """The name of a hyperparameter of a term; that of another if they are tied."""
    path = ("prior", "latents", entry.latent, "terms", entry.number, field)
    name = next(found.name for found in hyperparameters(result.model) if found.path == path)
    return getattr(result, "tied", {}).get(name, name)


# Levels ---------------------------------------------------------------------------------------------


class Levels(NamedTuple):
    """The effects of a term at its levels, or known inputs: the columns that tell them apart, and their moments."""

    columns: dict[str, np.ndarray]
    names: np.ndarray | None
    """The names of coefficients, if there are several per level."""
    mean: np.ndarray
    sd: np.ndarray


def levels(result: Result, entry: Entry) -> Levels:
    """The levels of a group, or the values of a smooth term at the inputs of the data, or at its inducing inputs."""
    columns, names, x = level_rows(result, entry)
    return Levels(columns, names, *moments(result, x, entry.latent, [entry]))


def level_rows(result: Result, entry: Entry) -> tuple[dict[str, np.ndarray], np.ndarray | None, np.ndarray]:
    """The labels of levels, the names of their coefficients, and the encoded rows at which the term is these."""
    if isinstance(entry.term, Group):
        return _group_rows(result, entry)
    assert isinstance(entry.term, KernelTerm)
    known = np.asarray(entry.term.points)[np.asarray(entry.term.used)]
    return decoded(entry, known), None, at_inputs(result, entry, known)


def known_inputs(result: Result, entry: Entry) -> np.ndarray:
    """The distinct inputs of a smooth term in the data; its inducing inputs if the data were not kept."""
    term: Any = entry.term
    if not term.is_sparse or result.data is None:
        return np.asarray(term.points)[np.asarray(term.used)]
    return np.unique(rows_of_data(result, "terms")[:, entry.place][:, :-1], axis=0)


def decoded(entry: Entry, inputs: np.ndarray) -> dict[str, np.ndarray]:
    """The entries of the columns of a smooth term, from their numbers."""
    encoder: Any = entry.encoder
    parts = encoder.parts if isinstance(encoder, ProductEncoder) else (encoder,)
    found, place = {}, 0
    for part in parts:
        for own, column in enumerate(part.columns):
            found[column] = part.decode(inputs[:, place], own)
            place += 1
    return found


def _group_rows(result: Result, entry: Entry) -> tuple[dict[str, np.ndarray], np.ndarray | None, np.ndarray]:
    encoder = entry.encoder
    assert isinstance(encoder, GroupEncoder)
    size, count = len(encoder.names), len(encoder.levels)
    codes = np.repeat(np.arange(count), size)
    x = np.repeat(rows_of_data(result, "effects")[:1], count * size, axis=0)
    x[:, entry.place] = np.concatenate([codes[:, None].astype(float), np.tile(np.eye(size), (count, 1))], axis=1)
    labels = {
        column: as_entries([(level[place] if isinstance(level, tuple) else level) for level in encoder.levels])[codes]
        for place, column in enumerate(encoder.columns)
    }
    return labels, np.tile(np.array(encoder.names), count) if size > 1 else None, x


# Curves -----------------------------------------------------------------------------------------------

_MOST_POINTS = 1000
"""The largest number of known inputs over which a curve is centred; of more, these are spread over all."""


def centred_curve(
    result: Result, entry: Entry, inputs: np.ndarray, level: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A smooth term at inputs, less its average over the rows of the data (of one level): means and deviations.

    The averages of several terms, and the intercept, are often determined only together. (Deviations are those of the
    term itself if it is one of several in a chain in time, whose joint distributions are not available.)
    """
    term = entry.term
    assert isinstance(term, KernelTerm)
    data = rows_of_data(result, "terms")[:, entry.place]
    own = data if level is None else data[data[:, -2] == level]
    known, counts = np.unique(own[:, :-1], axis=0, return_counts=True)
    kept = np.unique(np.linspace(0, len(known) - 1, min(len(known), _MOST_POINTS)).astype(int))
    known, share = known[kept], counts[kept] / np.sum(counts[kept])
    rows, size = at_inputs(result, entry, np.concatenate([inputs, known])), len(inputs)
    if not has_joint(result, entry):
        mean, sd = moments(result, rows, entry.latent, [entry])
        return mean[:size] - share @ mean[size:], sd[:size]
    mean, covariance = joint_moments(result, rows, entry)
    across = covariance[:size, size:] @ share
    variance = np.diagonal(covariance)[:size] - 2.0 * across + share @ covariance[size:, size:] @ share
    return mean[:size] - share @ mean[size:], np.sqrt(np.maximum(variance, 0.0))


def at_inputs(result: Result, entry: Entry, inputs: np.ndarray) -> np.ndarray:
    """Encoded rows with these inputs of a smooth term, which is multiplied by one."""
    x = np.repeat(rows_of_data(result, "terms")[:1], inputs.shape[0], axis=0)
    x[:, entry.place] = np.concatenate([inputs, np.ones((inputs.shape[0], 1))], axis=1)
    prior, encoder = result.model.prior, entry.encoder
    chained = prior.chained if isinstance(prior, Additive) else ()
    if entry.number in chained and isinstance(encoder, InputEncoder):
        # All terms of a chain in time have its times, each after its own origin.
        for other in (other for other in entries_of(result) if other.number in chained):
            assert isinstance(other.encoder, InputEncoder)
            x[:, other.place.start] = inputs[:, 0] + encoder.origin - other.encoder.origin
    return x
