"""The preparation of a fit in batches: scales, inducing inputs, and rows drawn from the data."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..inference.minibatch.batching import WHOLE_PASS
from ..inputs.chunks import Batch, Rows
from ..inputs.data import Data
from ..kernels.inducing import MOST_ROWS, Sample
from ..likelihoods.weighted import unweighted
from ..model import Model
from ..priors.by_name import for_columns
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP
from .initial_values import Scales, guessed_model
from .space import Space


class FitStart(NamedTuple):
    """The model with chosen inducing inputs, its learned parameters, and rows drawn from the data."""

    model: Model
    rows: Rows
    space: Space
    drawn: Batch


def read_start(
    model: Model, x: Any, y: Any, specifications: Mapping[str, Any] | None, weak_priors: bool, rng: np.random.Generator
) -> FitStart:
    """Read the data once, for the scales of hyperparameters and the choice of inducing inputs."""
    prior = model.prior
    assert isinstance(prior, SparseGP | MarkovGP)
    # Needed even if inducing inputs are given, because it counts the columns.
    sample: Any = Sample(prior.seed) if isinstance(prior, SparseGP) else prior.new_sample()
    rows = Rows(x, y, model, sample.see)
    model = Model(for_columns(prior, sample.rows.shape[1]), unweighted(model.likelihood))
    drawn = _draw(rows, MOST_ROWS, rng)
    # The likelihood of whole rows, with the row parameters of the rows that were drawn.
    bare = drawn._replace(data=drawn.data._replace(seen=None, weights=None)).likelihood(model.likelihood)
    scales = Scales(Model(model.prior, bare), drawn.data)
    guessed: Any = guessed_model(model, scales).prior
    chosen = guessed.inducing_for(sample)
    if prior.inducing is None:
        model = Model(model.prior.with_inducing(chosen), model.likelihood)  # pyright: ignore[reportAttributeAccessIssue]
    return FitStart(model, rows, Space(model, scales, specifications, weak_priors), drawn)


def _draw(rows: Rows, most: int, rng: np.random.Generator) -> Batch:
    """At most `most` random rows, in the order of the data."""
    keys, drawn = np.zeros(0), None
    for batch in rows.batches(min(rows.count, WHOLE_PASS)):
        here = take_rows(batch.data, slice(0, batch.count))
        index = batch.index[: batch.count] if drawn is None else np.append(drawn[0], batch.index[: batch.count])
        data = here if drawn is None else _joined(drawn[1], here)
        keys = np.append(keys, rng.random(batch.count))
        first = np.sort(np.argsort(keys)[:most])
        keys, drawn = keys[first], (index[first], take_rows(data, first))
    assert drawn is not None
    order = np.argsort(drawn[0])
    return Batch(drawn[0][order], take_rows(drawn[1], order), len(order))


def take_rows(data: Data, rows: Any) -> Data:
    """A subset of the rows."""
    return Data(*(None if leaf is None else leaf[rows] for leaf in data))  # pyright: ignore[reportArgumentType]


def _joined(first: Data, second: Data) -> Data:
    pairs = zip(first, second, strict=True)
    return Data(*(None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs))  # pyright: ignore
