"""Posteriors of the terms of additive models at rows of a table: one by one, and sums of them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from .._runtime.double import in_double, to_host
from ..numerics.gaussian import Gaussian
from ..parameters.names import numbered_labels
from ..priors.additive import Additive
from ..priors.additive_posterior import AdditivePosterior
from ..priors.base import draws_of
from ..priors.chained import ChainedPosterior
from ..results.result import Result
from ..terms.base import Encoder, Term
from ..terms.columns import TableColumns
from ..terms.group import Group, GroupEncoder
from ..terms.inputs import InputEncoder, ProductEncoder
from ..terms.linear import Linear, Offset
from ..validation.frames import index_of, library_of, make_frame
from ..validation.text import short
from .integrals import explained
from .prediction import checked_level


class Entry(NamedTuple):
    """One term of a model: its latent, its number among the terms of it, and the columns of x that belong to it."""

    name: str
    """The label of the term, after the name of the latent if there are several: `scale.group(herd)`.

    Terms with the same label are numbered, as their hyperparameters are: `smooth(day)[0]`.
    """
    latent: int
    number: int
    term: Term
    encoder: Encoder
    place: slice

    @property
    def key(self) -> tuple[int, int]:
        """The latent and the number."""
        return self.latent, self.number


def parts_of(result: Result, what: str) -> tuple[Additive, TableColumns]:
    """The prior and the encoders of a model of terms; ValueError for other models."""
    prior, columns = result.model.prior, result.columns
    if not isinstance(prior, Additive) or not isinstance(columns, TableColumns):
        raise ValueError(
            f"{what} needs a model of terms, such as Model(terms.Linear('age') + terms.Group('clinic'), ...), got "
            f"{type(prior).__name__}"
        )
    return prior, columns


def entries_of(result: Result, what: str = "terms") -> list[Entry]:
    """All terms of a model, latent by latent."""
    prior, columns = parts_of(result, what)
    found = []
    for latent, (terms, places, encoders) in enumerate(zip(prior.latents, prior.places, columns.encoders, strict=True)):
        before = f"{prior.names[latent]}." if prior.num_latents > 1 else ""
        labels = numbered_labels(terms.terms)
        for number, (term, place, encoder) in enumerate(zip(terms.terms, places, encoders, strict=True)):
            found.append(Entry(f"{before}{labels[number]}", latent, number, term, encoder, place))
    return found


def select(result: Result, names: Any, argument: str) -> list[Entry]:
    """The terms with these names: labels, or the columns of groups and smooth terms."""
    entries = entries_of(result)
    if isinstance(names, str) or not isinstance(names, Iterable):
        names = [names]
    chosen: set[tuple[int, int]] = set()
    for name in names:
        by_label = [entry for entry in entries if name in (entry.name, entry.term.label)]
        matching = by_label or [entry for entry in entries if name in _columns_of(entry.term)]
        if not matching:
            known = ", ".join(repr(entry.name) for entry in entries)
            raise ValueError(
                f"{argument} must name terms, or columns of groups and smooth terms, got {short(name)}: terms are "
                f"{known}"
            )
        chosen |= {entry.key for entry in matching}
    return [entry for entry in entries if entry.key in chosen]


def _columns_of(term: Any) -> tuple[str, ...]:
    """The columns that stand for a term; fixed effects share theirs with each other and have none."""
    if isinstance(term, (Linear, Offset)):
        return ()
    joined = (":".join(term.columns),) if isinstance(term, Group) else ()
    by = getattr(term, "by", None)
    return (*term.columns, *joined, *(() if by is None else (by,)))


def choice_of(result: Result, entries: Iterable[Entry]) -> tuple[tuple[float, ...], ...]:
    """1 for these terms and 0 for others, as `AdditivePosterior.of_terms` takes it."""
    chosen = {entry.key for entry in entries}
    prior = result.model.prior
    assert isinstance(prior, Additive)
    return tuple(
        tuple(float((latent, number) in chosen) for number in range(len(terms.terms)))
        for latent, terms in enumerate(prior.latents)
    )


def posterior_of(result: Result) -> AdditivePosterior | ChainedPosterior:
    """q(f) of a model of terms."""
    posterior = result.posterior
    assert isinstance(posterior, (AdditivePosterior, ChainedPosterior))
    return posterior


NEW_LEVELS = ("integrate", "zero")


def without_new_levels(result: Result, x: np.ndarray, new_levels: Any) -> np.ndarray:
    """Encoded rows in which effects of levels that the data did not have are zero, if `new_levels` says so."""
    if new_levels not in NEW_LEVELS:
        raise ValueError(
            f"new_levels must be 'integrate' (over their prior) or 'zero' (no effect of their own), got {new_levels!r}"
        )
    if new_levels == "integrate":
        return x
    x = x.copy()
    for entry in entries_of(result, "new_levels"):
        own = x[:, entry.place]  # a view
        new = _is_new(entry.encoder, own)
        if isinstance(entry.encoder, GroupEncoder):
            own[new, 1:] = 0.0
        elif isinstance(entry.encoder, (InputEncoder, ProductEncoder)):
            own[new, -1] = 0.0
    return x


def _is_new(encoder: Encoder, x: np.ndarray) -> np.ndarray:
    """The rows with a level that the data did not have."""
    if isinstance(encoder, GroupEncoder):
        return x[:, 0] >= len(encoder.levels)
    parts = encoder.parts if isinstance(encoder, ProductEncoder) else (encoder,)
    levels = [own for part in parts if isinstance(part, InputEncoder) for own in part.levels]
    new = np.zeros(x.shape[0], dtype=bool)
    for place, own in enumerate(levels):
        if own is not None:
            new |= x[:, place] >= len(own)
    return new


def latent_without(result: Result, x: np.ndarray, without: Any) -> Gaussian:
    """The marginals of f at encoded rows, without some of its terms."""
    kept = kept_terms(result, without)
    with explained("x_new"):
        return to_host(posterior_of(result).of_terms(x, choice_of(result, kept)))


def kept_terms(result: Result, without: Any) -> list[Entry]:
    """All terms but those named."""
    left_out = {entry.key for entry in select(result, without, "without")}
    return [entry for entry in entries_of(result) if entry.key not in left_out]


@in_double
def draws_without(result: Result, key: Any, x: np.ndarray, n: int, without: Any) -> np.ndarray:
    """n joint draws of f at encoded rows, (n, M, D), without some of its terms."""
    if not without:
        return posterior_of(result).draw(key, x, n)
    joint = posterior_of(result).joint_of_terms(x, choice_of(result, kept_terms(result, without)))
    return draws_of(joint, key, n, x.shape[0])


# The frame of terms --------------------------------------------------------------------------------------


def terms(result: Result, table: Any, only: Any, sum: bool, level: float, new_levels: str) -> Any:
    """A data frame with the posterior of each term, or of a sum of terms, at every row."""
    _, columns = parts_of(result, "terms")
    if table is None:
        x, library, index = rows_of_data(result, "terms"), columns.library, None
    else:
        x, library, index = columns.read(table, "table"), library_of(table, columns.library), index_of(table)
    x = without_new_levels(result, x, new_levels)
    entries = entries_of(result) if only is None else select(result, only, "only")
    parts = _sums(result, entries) if sum else [(entry.latent, entry.name, [entry]) for entry in entries]
    found = [moments(result, x, latent, own) for latent, _, own in parts]
    names = [name for _, name, _ in parts]
    half = width_of(level)
    mean, sd = (np.concatenate(values) for values in zip(*found, strict=True))
    frame: dict[str, np.ndarray] = {
        "row": np.tile(np.arange(x.shape[0]), len(parts)),
        "term": np.repeat(np.array(names), x.shape[0]),
        "mean": mean,
        "sd": sd,
        "lower": mean - half * sd,
        "upper": mean + half * sd,
    }
    return make_frame(frame, library, None if index is None else index.take(frame["row"]))


def _sums(result: Result, entries: list[Entry]) -> list[tuple[int, str, list[Entry]]]:
    by_latent: dict[int, list[Entry]] = {}
    for entry in entries:
        by_latent.setdefault(entry.latent, []).append(entry)
    return [(latent, " + ".join(entry.name for entry in own), own) for latent, own in by_latent.items()]


def moments(result: Result, x: np.ndarray, latent: int, entries: list[Entry]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the standard deviation of a sum of terms of one latent, at encoded rows."""
    found = to_host(posterior_of(result).of_terms(x, choice_of(result, entries)))
    variance = np.asarray(found.covariance)[:, latent, latent]
    return np.asarray(found.mean)[:, latent], np.sqrt(np.maximum(variance, 0.0))


def has_joint(result: Result, entry: Entry) -> bool:
    """Whether the joint distribution of this term at several rows is available."""
    chained = getattr(result.model.prior, "chained", ())
    return entry.number not in chained or len(chained) == 1


def joint_moments(result: Result, x: np.ndarray, entry: Entry) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the joint covariance of one term at encoded rows."""
    count, latents = x.shape[0], result.model.prior.num_latents
    joint = posterior_of(result).joint_of_terms(x, choice_of(result, [entry]))
    covariance = joint.covariance.reshape(count, latents, count, latents)
    return joint.mean.reshape(count, latents)[:, entry.latent], covariance[:, entry.latent, :, entry.latent]


def rows_of_data(result: Result, what: str) -> np.ndarray:
    """The encoded rows of the data."""
    if result.data is None:
        raise ValueError(f"{what} needs a table, since the data were not kept")
    return result.data.x


def width_of(level: Any) -> float:
    """The half width of a central normal interval, in standard deviations."""
    return float(ndtri(0.5 + 0.5 * checked_level(level)))
