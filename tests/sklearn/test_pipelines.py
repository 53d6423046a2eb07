"""Pipelines, grids and cross-validation on a table like that of the Titanic's passengers, with categories."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from newtongp.sklearn import GPClassifier, GPRegressor


@pytest.fixture(scope="module")
def passengers():
    rng = np.random.default_rng(3)
    rows = 150
    table = pd.DataFrame(
        {
            "sex": rng.choice(["female", "male"], rows, p=[0.35, 0.65]),
            "class": pd.Categorical(rng.choice(["1st", "2nd", "3rd"], rows, p=[0.25, 0.2, 0.55])),
            "age": np.where(rng.random(rows) < 0.2, np.nan, rng.uniform(1.0, 70.0, rows).round()),
            "fare": np.exp(rng.normal(3.0, 1.0, rows)),
        }
    )
    score = 2.5 * (table["sex"] == "female") - 1.2 * (table["class"] == "3rd") - 0.02 * table["age"].fillna(30.0)
    survived = np.where(rng.random(rows) < 1.0 / (1.0 + np.exp(-score)), "yes", "no")
    return table, pd.Series(survived, name="survived")


def columns():
    return make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["sex", "class"]),
        (SimpleImputer(add_indicator=True), ["age"]),
        ("passthrough", ["fare"]),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::newtongp.ConvergenceWarning")  # 20 steps are enough for what is tested
def test_a_grid_over_likelihoods_and_kernels_in_a_pipeline(passengers):
    table, survived = passengers
    pipeline = make_pipeline(columns(), GPClassifier(random_state=0, max_steps=20))
    choices = [("matern32", "vi"), ("rbf", "newton")]
    grid = [{"gpclassifier__kernel": [kernel], "gpclassifier__method": [method]} for kernel, method in choices]
    search = GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(table, survived)
    assert len(search.cv_results_["params"]) == 2 and np.all(np.isfinite(search.cv_results_["mean_test_score"]))
    # The entropy of the labels is what the shares alone give.
    share = np.mean(survived == "yes")
    entropy = -share * np.log(share) - (1.0 - share) * np.log(1.0 - share)
    assert -search.best_score_ < entropy - 0.05
    assert set(search.predict(table)) == {"yes", "no"}
    roc = cross_val_score(pipeline, table, survived, cv=3, scoring="roc_auc")
    assert np.all(roc > 0.6)


@pytest.mark.slow
def test_frames_of_pandas_and_polars_keep_their_names(passengers):
    table, survived = passengers
    features = columns().set_output(transform="pandas")
    pipeline = make_pipeline(features, GPClassifier(learn=False)).fit(table, survived)
    names = pipeline[-1].feature_names_in_
    assert list(names) == list(pipeline[0].get_feature_names_out()) and pipeline[-1].n_features_in_ == len(names)
    new = pipeline[0].transform(table)
    with pytest.raises(ValueError, match="feature names"):
        pipeline[-1].predict(new.rename(columns={names[0]: "other"}))
    again = make_pipeline(columns().set_output(transform="polars"), GPClassifier(learn=False))
    same = again.fit(pl.from_pandas(table), survived.to_numpy()).predict_proba(pl.from_pandas(table))
    np.testing.assert_allclose(same, pipeline.predict_proba(table), rtol=1e-8)


@pytest.mark.slow
def test_counts_are_cross_validated():
    rng = np.random.default_rng(1)
    x = rng.uniform(0.0, 10.0, (200, 1))  # unsorted: folds are blocks of rows
    counts = rng.poisson(np.exp(1.0 + np.sin(x[:, 0])))
    model = GPRegressor(likelihood="poisson", random_state=0)
    predicted = cross_val_predict(model, x, counts, cv=5)
    rate = np.exp(1.0 + np.sin(x[:, 0]))
    assert np.corrcoef(predicted, rate)[0, 1] > 0.9 and np.all(predicted > 0.0)
    deviance = -cross_val_score(model, x, counts, cv=5, scoring="neg_mean_poisson_deviance").mean()
    assert 0.8 < deviance < 1.5  # about 1 for the true rate
    fitted = model.fit(x, counts)
    lower, upper = fitted.predict_quantiles(x, [0.05, 0.95]).T
    assert fitted.prior_ == "markov" and 0.85 < np.mean((counts >= lower) & (counts <= upper)) <= 1.0


@pytest.mark.slow
@pytest.mark.thorough
def test_sparse_and_in_batches():
    rng = np.random.default_rng(2)
    x = rng.uniform(-2.0, 2.0, size=(1200, 2))
    f = np.sin(2.0 * x[:, 0]) * x[:, 1]
    y = f + 0.1 * rng.standard_t(3.0, size=1200)
    model = GPRegressor(likelihood="student_t", inducing=50, batch_size=300, random_state=0).fit(x, y)
    assert model.prior_ == "sparse" and model.result_.posterior.inducing[0].shape == (50, 2)
    assert np.sqrt(np.mean((model.predict(x) - f) ** 2)) < 0.05
    again = GPRegressor(likelihood="student_t", inducing=50, batch_size=300, random_state=0).fit(x, y)
    np.testing.assert_array_equal(again.predict(x[:5]), model.predict(x[:5]))


@pytest.mark.thorough
@pytest.mark.slow
def test_ordered_classes():
    rng = np.random.default_rng(4)
    x = rng.uniform(-2.0, 2.0, size=(150, 1))
    grades = np.array(["a", "b", "c", "d"])[np.digitize(x[:, 0] + 0.5 * rng.normal(size=150), [-1.0, 0.0, 1.0])]
    model = GPClassifier(likelihood="ordinal").fit(x, grades)
    assert model.prior_ == "markov" and model.predict([[-1.9], [1.9]]).tolist() == ["a", "d"]
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1.0)
