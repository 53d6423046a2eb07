"""Parameters of rows by the names of columns: an exposure, a number of trials, a known variance."""

import jax
import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import likelihoods as lk
from newtongp.terms import Group, Linear

N = 30
_RNG = np.random.default_rng(8)
TABLE = {
    "x": _RNG.normal(size=N),
    "g": np.arange(N) % 4,
    "rows": _RNG.integers(4, 9, N).astype(float),
    "y": _RNG.integers(1, 4, N).astype(float),
}
LIKELIHOODS = {
    "Poisson": lambda rows: lk.Poisson(exposure=rows),
    "NegativeBinomial": lambda rows: lk.NegativeBinomial(exposure=rows),
    "Binomial": lambda rows: lk.Binomial(rows),
    "BetaBinomial": lambda rows: lk.BetaBinomial(trials=rows),
    "Gaussian": lambda rows: lk.Gaussian(rows),
    "StudentT": lambda rows: lk.StudentT(scale=rows),
    "LogNormal": lambda rows: lk.LogNormal(rows),
    "ZeroInflated": lambda rows: lk.ZeroInflated(lk.Poisson(exposure=rows)),
}
PARAMETER = {"Binomial": "trials", "BetaBinomial": "trials", "Gaussian": "variance", "StudentT": "scale"}
PARAMETER |= {"LogNormal": "scale"}
NEW = {"x": [0.3, -1.0], "g": [2, 77], "rows": [5.0, 7.0]}


def _model(likelihood):
    return ng.Model(Linear("x") + Group("g"), likelihood)


@pytest.mark.cases(slow=["Binomial", "LogNormal"], others="thorough")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("Poisson", "Gaussian"))) for n in LIKELIHOODS]
)
def test_same_as_values(name):
    build = LIKELIHOODS[name]
    named = ng.infer(_model(build("rows")), TABLE, "y", ng.Newton())
    valued = ng.infer(_model(build(TABLE["rows"])), TABLE, "y", ng.Newton())
    assert named.energy == valued.energy
    parameter = PARAMETER.get(name, "exposure")
    wanted = valued.predict(NEW, **{parameter: NEW["rows"]})
    np.testing.assert_array_equal(named.predict(NEW).mean, wanted.mean)
    np.testing.assert_array_equal(
        named.predict(NEW, **{parameter: 4.0}).std, valued.predict(NEW, **{parameter: 4.0}).std
    )
    frame = pd.DataFrame(NEW | {"y": [1.0, 2.0]})
    density = valued.log_density(NEW, frame["y"], **{parameter: NEW["rows"]})
    np.testing.assert_array_equal(named.log_density(frame, frame["y"]), density)


@pytest.mark.thorough
@pytest.mark.slow
def test_parameters_of_other_latents():
    """The exposure of a wrapped likelihood, whose dispersion is a latent too."""

    def infer(rows):
        likelihood = lk.Chained(lk.NegativeBinomial(exposure=rows), dispersion="softplus")
        return ng.infer(ng.Model({"location": "~ x", "dispersion": "~ 1"}, likelihood), TABLE, "y", ng.Newton()).energy

    assert infer("rows") == infer(TABLE["rows"])


def test_models_that_are_not_bound():
    """A name is a leaf that is no number: models with one can be shown, compared and asked for their parameters."""
    model = _model(lk.Gaussian(variance="rows"))
    assert "variance='rows'" in repr(model)
    assert [p.name for p in ng.hyperparameters(model)] == [p.name for p in ng.hyperparameters(_model(lk.Poisson()))]
    assert jax.tree.structure(model) == jax.tree.structure(_model(lk.Gaussian(variance="rows")))
    assert _model(lk.Poisson(exposure="rows")).likelihood.exposure == "rows"


@pytest.mark.slow
def test_known_variances_are_not_learned():
    result = ng.fit(_model(lk.Gaussian(variance="rows")), TABLE, "y")
    assert not any(name.startswith("likelihood") for name in result.parameters)


@pytest.mark.parametrize("text", ["2", " 1e3 ", "", "nan"])
def test_numbers_as_text_are_still_errors(text):
    with pytest.raises(ValueError, match="exposure must be a number or an array of numbers"):
        lk.Poisson(exposure=text)


def test_latents_by_name():
    likelihood = lk.HeteroscedasticGaussian()
    one = ng.Model({"location": Linear("x"), "scale": Linear()}, likelihood)
    two = ng.Model({"scale": Linear(), "mean": Linear("x")}, likelihood)
    assert one.prior.labels == two.prior.labels and one.prior.names == two.prior.names == ("location", "scale")
    chained = lk.Chained(lk.StudentT(), scale="softplus", df="exp")
    assert chained.latent_names == ("location", "scale", "df")
    # Without names, the order counts.
    classes = ng.Model({"b": Linear(), "a": Linear("x"), "c": Linear()}, lk.Softmax(3))
    assert classes.prior.names == ("b", "a", "c")
