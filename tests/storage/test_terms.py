"""Models of terms in files: everything comes back, and what cannot be is refused."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import terms
from newtongp.storage import FileFormatError
from newtongp.storage.trees import decode, encode
from newtongp.terms.base import replaced

from .. import tables


def there_and_back(result, path):
    result.save(path)
    return ng.load(path)


@pytest.mark.cases(slow=["fitted"], others="thorough")
@pytest.mark.parametrize("make", [tables.inferred, tables.fitted, tables.distributional])
def test_results_come_back(make, tmp_path):
    result = make()
    loaded, rows = there_and_back(result, tmp_path / "result.ngp"), tables.visits().head(5).assign(patient="new")
    assert loaded.columns == result.columns and type(loaded) is type(result)
    one, two = result.predict(rows).latent, loaded.predict(rows).latent
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(one.covariance, two.covariance)
    pd.testing.assert_frame_equal(result.effects(), loaded.effects())
    pd.testing.assert_frame_equal(result.terms(rows), loaded.terms(rows))
    again = there_and_back(loaded, tmp_path / "again.ngp")
    np.testing.assert_array_equal(again.predict(rows).latent.mean, one.mean)


@pytest.mark.parametrize(
    "term",
    [
        terms.Linear(
            terms.Factor("drug", "low", "sum"), terms.Spline("age", 3), terms.Polynomial("dose", 2), prior=2.0
        ),
        terms.Linear(("age", "drug"), intercept=False, prior="maximised"),
        terms.Group("patient", "drug", slope=["dose"], correlated=False, intercept=False),
        terms.Trend("date", "smooth", unit="W"),
        terms.Trend("date", kernel=ng.kernels.Matern32(30.0)),
        terms.Season("date", "1y", decay=3.0, by="drug"),
        terms.RandomWalk("drug", 2),
        terms.Area("area", tables.PAIRS, "icar"),
        terms.Smooth("age") * terms.Group("patient"),
        terms.Smooth("age", by="drug", inducing=5),
        terms.Smooth("age", "dose", inducing=[[30.0, 1.0], [40.0, 2.0]]),
        terms.Offset("days", "log"),
    ],
    ids=lambda term: term.label,
)
def test_terms_come_back_bound_or_not(term):
    from newtongp.priors.additive import Additive
    from newtongp.terms.base import Units
    from newtongp.terms.table import Table

    prior = Additive(term)
    bound, columns = prior.bind(Table(tables.visits()), (Units(),))
    for value in (prior, bound):
        found = decode(*encode(value))
        assert found.labels == value.labels
        assert encode(found)[0] == encode(value)[0]
    assert decode(*encode(columns)) == columns


@pytest.mark.slow
def test_levels_may_be_numbers_truth_values_or_dates(tmp_path):
    frame = tables.visits()
    for levels in (frame["age"].astype(int) % 3, frame["age"] > 30, frame["date"].dt.to_period("Y").dt.start_time):
        own = frame.assign(level=levels)
        result = ng.infer(ng.Model(terms.Linear() + terms.Group("level"), "poisson"), own, "y")
        loaded = there_and_back(result, tmp_path / "result.ngp")
        pd.testing.assert_frame_equal(result.effects("level"), loaded.effects("level"))


def damaged(result, **changes):
    """A copy of a result with other parts."""
    copy = object.__new__(type(result))
    vars(copy).update({**vars(result), **changes})
    return copy


def with_term(result, number, **fields):
    """The model with other fields of one of its terms."""
    own = list(result.model.prior.latents[0].terms)
    own[number] = replaced(own[number], **fields)
    latents = (terms.Terms(tuple(own)),)
    return replaced(result.model, prior=replaced(result.model.prior, latents=latents))


@pytest.mark.slow
def test_damaged_results_are_refused():
    result = tables.fitted()
    own, x = result.columns.encoders[0], result.data.x.copy()
    x[0, result.model.prior.places[0][1].start] = 50.0
    columns = result.columns
    few = (own[0], dataclasses.replace(own[1], levels=own[1].levels[:3]), own[2])
    cases = {
        "cannot be|missing": {"columns": None},
        "one encoder per term": {"columns": dataclasses.replace(columns, encoders=(own[:2],))},
        "of another term": {"columns": dataclasses.replace(columns, encoders=((own[1], own[0], own[2]),))},
        "levels that": {"columns": dataclasses.replace(columns, encoders=(few,))},
        "levels that group": {"data": result.data._replace(x=x)},
        "one number per column": {"model": with_term(result, 0, centres=np.zeros(2))},
        "scales must be positive": {"model": with_term(result, 0, scales=np.zeros(4))},
        "of 0 level": {"model": with_term(result, 1, levels=0)},
        "cannot have the structure": {
            "model": replaced(result.model, prior=replaced(result.model.prior, eliminated=("patient",)))
        },
    }
    for message, changes in cases.items():
        with pytest.raises(FileFormatError, match=message):
            decode(*encode(damaged(result, **changes)))


@pytest.mark.slow
def test_fits_of_tables_are_resumed(tmp_path):
    model, path = ng.Model(tables.two_terms(), ng.likelihoods.Poisson()), tmp_path / "fit.checkpoint"
    whole = ng.fit(model, tables.visits(), "y", checkpoint=path)
    again = ng.fit(model, tables.visits(), "y", checkpoint=path)
    assert whole.learned == again.learned and again.evaluations <= whole.evaluations
    with pytest.raises(ValueError, match="belongs to another fit"):
        ng.fit(model, tables.visits(seed=1), "y", checkpoint=path)
