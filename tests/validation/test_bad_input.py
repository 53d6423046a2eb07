"""Every bad input raises a ValueError that names the argument, the value and what to do."""

import datetime
import math
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp.fitting.learned import choose
from newtongp.inference.prior_check import check_prior
from newtongp.inputs.data import read_inputs

pytestmark = pytest.mark.versions

kernels, likelihoods = ng.kernels, ng.likelihoods
RBF = kernels.RBF()
X, Y = [0.0, 1.0, 2.0], [1.0, 2.0, 3.0]
TWO_COLUMNS = np.zeros((3, 2))


@pytest.fixture(autouse=True)
def _as_users_run_it(monkeypatch):
    """The library's own checks, not those of the strict test mode, are what a user meets."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


class OnlyLogProb(ng.Likelihood):
    def log_prob(self, y, f):
        return -0.5 * (y - f) ** 2


def model(likelihood=None, kernel=RBF, mean=None):
    return ng.Model(ng.GP(kernel, mean), likelihood or likelihoods.Poisson())


def infer(x=X, y=Y, likelihood=None, kernel=RBF, mean=None, **options):
    return ng.infer(model(likelihood, kernel, mean), x, y, **options)


@pytest.fixture(scope="module")
def results():
    """What the calls on results need; not to be changed by them."""
    return {
        "poisson": infer(),
        "exposed": infer(likelihood=likelihoods.Poisson(exposure=[1.0, 2.0, 3.0])),
        "log_prob": infer(likelihood=OnlyLogProb()),
        "heavy": infer(likelihood=likelihoods.StudentT(df=2.0)),
    }


def refuses(call, *fragments):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    message = str(caught.value)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


DATES = np.array(["2020-01-01", "2020-01-02", "2020-01-03"], dtype="datetime64[D]")
INPUTS = {
    "nan": ([0.0, np.nan, 1.0], "x must be finite", "row 1, column 0 is nan", "drop that row"),
    "inf": ([[0.0, 1.0], [2.0, -np.inf], [3.0, 4.0]], "row 1, column 1 is -inf"),
    "none entry": ([0.0, None, 1.0], "row 1, column 0 is nan"),
    "masked": (np.ma.array([0.0, 1.0, 2.0], mask=[0, 0, 1]), "row 2, column 0 is nan"),
    "NA": (pd.Series([0, 1, pd.NA], dtype="Int64"), "row 2, column 0 is nan"),
    "scalar": (1.5, "x must have one row per datum", "1.5", "write [1.5]"),
    "None": (None, "x must hold real numbers", "None"),
    "three dimensions": (np.zeros((3, 2, 1)), "got shape (3, 2, 1)", "x.reshape(3, -1)"),
    "no rows": ([], "x has no rows", "give at least one"),
    "no columns": (np.zeros((3, 0)), "x has no columns", "(3, 0)"),
    "strings": (["a", "b", "c"], "x must hold real numbers", "list with 'a'", "number names first"),
    "numbers as strings": (["1", "2", "3"], "with '1'"),
    "strings in a frame": (pd.DataFrame({"a": [1, 2, 3], "b": ["u", "v", "w"]}), "DataFrame with 'u'"),
    "categories": (pd.Series(["1", "2", "3"], dtype="category"), "Series with '1'"),
    "objects": ([print, print, print], "built-in function print"),
    "ragged": ([[0.0, 1.0], [2.0], [3.0]], "equally long"),
    "dict": ({"a": 1.0}, "dict with {'a': 1.0}"),
    "generator": ((value for value in X), "generator"),
    "complex": ([0.0, 1j, 2.0], "list with 0j", "real part"),
    "complex objects": (np.array([0.0, 1j, 2.0], dtype=object), "1j", "real part"),
    "integers beyond float": ([10**400, 1, 2], "x must hold real numbers"),
    "datetime64": (DATES, "2020-01-01", "np.timedelta64"),
    "timedelta64": (DATES - DATES[0], "np.timedelta64"),
    "datetime": ([datetime.datetime(2020, 1, day) for day in (1, 2, 3)], "np.timedelta64"),
    "pandas dates": (pd.Series(pd.to_datetime(DATES)), "2020-01-01", "np.timedelta64"),
    "dates in a frame": (pd.DataFrame({"a": [1, 2, 3], "t": DATES}), "np.timedelta64"),
}
OUTPUTS = {
    "infinite": ([1.0, np.inf, 2.0], "y must be finite", "row 1 is inf", "NaN if it is missing"),
    "too few": ([1.0, 2.0], "x and y", "got 3 and 2"),
    "two columns": (np.ones((3, 2)), "y must have shape (N,) or (N, 1) for Poisson", "(3, 2)"),
    "a row": (np.ones((1, 3)), "y must have shape", "(1, 3)"),
    "scalar": (1.0, "y must have shape", "got shape ()"),
    "None": (None, "y must hold real numbers", "None"),
    "complex": ([1.0 + 0.0j, 2.0, 3.0], "y must hold real numbers", "(1+0j)"),
    "strings": (["1", "2", "3"], "y must hold real numbers", "'1'"),
    "dates": (DATES, "y must hold real numbers", "2020-01-01"),
    "NaT": ([1.0, pd.NaT, 2.0], "y must hold real numbers", "NaT"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_bad_x_is_refused(case):
    x, *fragments = INPUTS[case]
    refuses(lambda: infer(x=x), *fragments)


@pytest.mark.cases(thorough=["nan"])
@pytest.mark.parametrize("case", ["nan", "scalar", "no rows", "three dimensions", "strings", "datetime64"])
def test_bad_x_new_is_refused_by_its_own_name(case, results):
    x = INPUTS[case][0]
    with pytest.raises(ValueError, match="x_new"):
        results["poisson"].predict(x)
    with pytest.raises(ValueError, match="x_new"):
        results["poisson"].sample(0, x, 2)


@pytest.mark.parametrize("case", OUTPUTS)
def test_bad_y_is_refused(case):
    y, *fragments = OUTPUTS[case]
    refuses(lambda: infer(y=y), *fragments)


@pytest.mark.parametrize(
    ("likelihood", "value", "words"),
    [
        (likelihoods.Poisson(), -1.0, "non-negative integers"),
        (likelihoods.Poisson(), 0.5, "non-negative integers"),
        (likelihoods.NegativeBinomial(), 2.5, "non-negative integers"),
        (likelihoods.NegativeBinomial(), -2.0, "non-negative integers"),
        (likelihoods.Binomial(trials=4), -1.0, "non-negative integers"),
        (likelihoods.Binomial(trials=4), 5.0, "at most the number of trials"),
        (likelihoods.Binomial(trials=[9, 9, 4]), 5.0, "with 4 trials"),
        (likelihoods.Bernoulli(), -1.0, "0 or 1"),
        (likelihoods.Bernoulli(), 0.5, "0 or 1"),
        (likelihoods.Bernoulli(), 2.0, "0 or 1"),
        (likelihoods.Gamma(), 0.0, "positive numbers"),
        (likelihoods.LogNormal(), -3.0, "positive numbers"),
        (likelihoods.Exponential(), -0.25, "non-negative numbers"),
        (likelihoods.Beta(), 0.0, "strictly between 0 and 1"),
        (likelihoods.Beta(), 1.0, "strictly between 0 and 1"),
    ],
)
def test_y_outside_the_support_is_refused(likelihood, value, words):
    fine = 0.5 if isinstance(likelihood, likelihoods.Beta) else 1.0
    refuses(lambda: infer(y=[fine, np.nan, value], likelihood=likelihood), "y must", words, f"row 2 is {value:g}")


@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(), likelihoods.StudentT()])
def test_y_on_the_real_line_must_be_finite(likelihood):
    refuses(lambda: infer(y=[0.0, -np.inf, 1.0], likelihood=likelihood), "y must be finite", "row 1 is -inf")


def sites(linear=0.0, precision=1.0, rows=3, latents=1):
    return ng.Sites(np.full((rows, latents), linear), np.full((rows, latents, latents), precision))


OPTIONS = {
    "negative steps": ({"max_steps": -1}, "max_steps must be an integer of at least 0", "got -1"),
    "half a step": ({"max_steps": 1.5}, "max_steps", "1.5"),
    "no steps": ({"max_steps": None}, "max_steps", "None"),
    "negative tol": ({"tol": -1.0}, "tol must be", "-1.0"),
    "nan tol": ({"tol": np.nan}, "tol must be", "nan"),
    "tol as a string": ({"tol": "small"}, "tol must be", "'small'"),
    "tol None": ({"tol": None}, "tol must be", "None"),
    "method by name": ({"method": "vi"}, "method must be one such as VI()", "'vi'"),
    "method without brackets": ({"method": ng.VI}, "method must be one such as VI()"),
    "step as a number": ({"step": 0.5}, "step must be Constant(rho), Backtracking(), Damped() or DoubleLoop()", "0.5"),
    "step without brackets": ({"step": ng.Constant}, "step must be Constant(rho)"),
    "sites of another kind": ({"sites": np.zeros(3)}, "sites must be Sites", "Sites.constant(3, 1, 0.01)"),
    "sites of another length": ({"sites": sites(rows=2)}, "sites", "3 row(s)", "(2, 1) and (2, 1, 1)"),
    "sites of two latents": ({"sites": sites(latents=2)}, "sites", "1 latent(s)", "(3, 2)"),
    "nan sites": ({"sites": sites(linear=np.nan)}, "sites must be finite", "row 0", "nan", "Sites.constant"),
    "infinite sites": ({"sites": sites(precision=np.inf)}, "sites must be finite", "row 0", "inf"),
    "backtracking power EP": (
        {"method": ng.PowerEP(0.5), "step": ng.Backtracking()},
        "step=Backtracking() needs an objective",
        "Damped()",
    ),
    "backtracking quasi-Newton": (
        {"method": ng.VI(curvature=ng.QuasiNewton()), "step": ng.Backtracking()},
        "step=Backtracking() needs an objective",
    ),
    "full Gauss-Newton": (
        {"method": ng.VI(curvature=ng.GaussNewton(kind="full"))},
        'GaussNewton(kind="full")',
        "Poisson",
        "generalised",
    ),
    "partial Gauss-Newton": (
        {"method": ng.Newton(curvature=ng.GaussNewton(kind="partial"))},
        'GaussNewton(kind="partial")',
        "Poisson",
    ),
    "kappa too small": ({"method": ng.VI(cubature=ng.cubature.Unscented(3, kappa=-1.0))}, "kappa", "-1"),
    "heavy tails": (
        {"method": ng.PosteriorLinearisation(), "likelihood": likelihoods.StudentT(df=2.0)},
        "StudentT with df = 2 has no covariance",
        "df > 2",
    ),
    "exposures of other rows": (
        {"likelihood": likelihoods.Poisson(exposure=[1.0, 2.0])},
        "exposure was given for 2 row(s)",
        "the data has 3",
        "a single number",
    ),
    "too many lengthscales": (
        {"x": TWO_COLUMNS, "kernel": kernels.RBF([1.0, 2.0, 3.0])},
        "lengthscale has length 3",
        "x has 2 column(s)",
    ),
    "cosine of two columns": ({"x": TWO_COLUMNS, "kernel": kernels.Cosine()}, "Cosine", "x has 2", ".on(0)"),
    "a column that is not there": ({"x": TWO_COLUMNS, "kernel": RBF.on(3)}, "column 3 of x", "2 column(s)"),
    "slopes of other columns": ({"mean": ng.means.Linear([1.0, 2.0])}, "slope has length 2", "x has 1 column(s)"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_bad_choices_are_refused(case):
    options, *fragments = OPTIONS[case]
    refuses(lambda: infer(**options), *fragments)


def test_complex_sites_are_refused():
    refuses(lambda: infer(sites=sites(linear=1j)), "sites.linear must hold real numbers", "1j")


@pytest.mark.parametrize(
    "method",
    [
        ng.Taylor(),
        ng.PosteriorLinearisation(),
        ng.PosteriorLinearisation(order=2),
        ng.VI(curvature=ng.GaussNewton()),
        ng.Newton(curvature=ng.GaussNewton()),
    ],
)
def test_methods_that_need_moments_say_so(method):
    refuses(
        lambda: infer(likelihood=OnlyLogProb(), method=method),
        "OnlyLogProb has no `mean` and no `covariance`",
        "define",
    )


CONSTRUCTIONS = {
    "model": (lambda: ng.infer(3, X, Y), "model must be a Model(prior, likelihood)", "3"),
    "prior": (lambda: ng.Model(RBF, likelihoods.Poisson()), "prior must be", "GP(kernels.Matern32())", "RBF"),
    "likelihood": (
        lambda: ng.Model(ng.GP(RBF), "poison"),
        "no likelihood with the name 'poison'",
        "did you mean 'poisson'",
    ),
    "swapped": (lambda: ng.Model("poisson", ng.GP(RBF)), "likelihood must be", "the prior comes first"),
    "likelihood class": (lambda: ng.Model(ng.GP(RBF), likelihoods.Poisson), "likelihood must be", "Poisson()"),
    "latents": (
        lambda: model(kernel=kernels.Independent([RBF, RBF])),
        "Poisson has 1 latent(s)",
        "prior has 2",
        "kernels.Independent",
    ),
    "kernel": (lambda: ng.GP("matern33"), "no kernel with the name 'matern33'", "did you mean 'matern32'"),
    "kernel class": (lambda: ng.GP(kernels.RBF), "kernel must be", "kernels.Matern32()"),
    "mean": (lambda: ng.GP(RBF, mean="zero"), "mean must be", "'zero'"),
    "two means": (lambda: ng.GP(RBF, mean=ng.means.Independent([0.0, 1.0])), "mean has 2 latent(s)", "prior has 1"),
    "power 0": (lambda: ng.PowerEP(0.0), "power must be greater than 0 and at most 1", "0.0"),
    "power 1.5": (lambda: ng.PowerEP(1.5), "power", "1.5"),
    "power nan": (lambda: ng.PowerEP(np.nan), "power must be finite", "nan"),
    "power as a string": (lambda: ng.PowerEP("0.5"), "power must be a number", "'0.5'"),
    "rho 0": (lambda: ng.Constant(0.0), "rho must be greater than 0 and at most 1", "0.0"),
    "rho 1.5": (lambda: ng.Constant(1.5), "rho", "1.5"),
    "rho nan": (lambda: ng.Constant(np.nan), "rho must be finite", "nan"),
    "rho None": (lambda: ng.Constant(None), "rho must be a number", "None"),
    "damped rho": (lambda: ng.Damped(rho=2.0), "rho", "2.0"),
    "patient": (lambda: ng.Damped(patient=1.0), "patient must be", "1.0"),
    "shorten": (lambda: ng.Backtracking(shorten=1.0), "shorten must be", "1.0"),
    "lengthen": (lambda: ng.Backtracking(lengthen=0.5), "lengthen must be at least 1", "0.5"),
    "damping 0": (lambda: ng.QuasiNewton(damping=0.0), "damping must be greater than 0 and less than 1", "0.0"),
    "damping 1": (lambda: ng.QuasiNewton(damping=1.0), "damping", "1.0"),
    "damping nan": (lambda: ng.QuasiNewton(damping=np.nan), "damping must be finite", "nan"),
    "initial": (lambda: ng.QuasiNewton(initial=0.0), "initial must be greater than 0", "0.0"),
    "kind": (lambda: ng.GaussNewton(kind="half"), "kind must be one of", "'half'"),
    "floor": (lambda: ng.Heuristic(floor=-1.0), "floor must be at least 0", "-1.0"),
    "learning rate": (lambda: ng.FirstOrderVI(learning_rate=0.0), "learning_rate must be greater than 0", "0.0"),
    "order 0": (lambda: ng.cubature.GaussHermite(0), "order must be an integer from 1 to 1000", "0"),
    "order 2.5": (lambda: ng.cubature.GaussHermite(2.5), "order", "2.5"),
    "unscented order": (lambda: ng.cubature.Unscented(4), "order must be 3 or 5", "4"),
    "kappa of order 5": (lambda: ng.cubature.Unscented(5, kappa=1.0), "kappa", "1.0", "leave it out"),
    "quasi-random count": (lambda: ng.cubature.QuasiRandom(100), "count must be a power of 2", "100"),
    "too few nodes": (lambda: ng.cubature.QuasiRandom(16).rule(5), "QuasiRandom(16) has too few nodes for 5 latents"),
    "too many nodes": (
        lambda: ng.cubature.GaussHermite(20).rule(6),
        "GaussHermite(20) in 6 dimensions",
        "Unscented(5)",
    ),
    "PEP x Gauss-Newton": (
        lambda: ng.PowerEP(0.5, curvature=ng.GaussNewton()),
        "power EP has no Gauss-Newton form",
        "use QuasiNewton()",
    ),
    "PL x exact": (lambda: ng.PosteriorLinearisation(curvature=ng.Exact()), "posterior linearisation", "order=2"),
    "Taylor x exact": (lambda: ng.Taylor(curvature=ng.Exact()), "Taylor is Gauss-Newton", "use Newton"),
    "Taylor x quasi-Newton": (lambda: ng.Taylor(curvature=ng.QuasiNewton()), "Taylor is Gauss-Newton", "use Newton"),
    "Newton's cubature": (lambda: ng.Newton(cubature=ng.cubature.GaussHermite(20)), "Newton", "leave cubature out"),
    "Taylor's cubature": (lambda: ng.Taylor(cubature=ng.cubature.Unscented()), "Taylor", "leave cubature out"),
    "PL order": (lambda: ng.PosteriorLinearisation(order=3), "order must be 1 or 2", "3"),
    "PL slope": (lambda: ng.PosteriorLinearisation(slope="steep"), "slope must be", "'steep'"),
    "curvature by name": (lambda: ng.VI(curvature="exact"), "curvature must be", "'exact'", "Exact()"),
    "curvature class": (lambda: ng.VI(curvature=ng.Exact), "curvature must be", "Exact()"),
    "safeguard by name": (lambda: ng.VI(safeguard="heuristic"), "safeguard must be", "'heuristic'", "Heuristic()"),
    "cubature as a number": (lambda: ng.VI(cubature=20), "cubature must be", "20", "GaussHermite(20)"),
    "first-order cubature": (lambda: ng.FirstOrderVI(cubature=20), "cubature must be", "20", "GaussHermite(20)"),
    "kappa nan": (lambda: ng.cubature.Unscented(3, kappa=np.nan), "kappa must be finite", "nan"),
    "exposure": (lambda: likelihoods.Poisson(exposure=[1.0, 0.0]), "exposure must be greater than 0", "[1.0, 0.0]"),
    "exposure matrix": (lambda: likelihoods.Poisson(exposure=np.ones((3, 1))), "exposure", "(3, 1)"),
    "exposure with None": (lambda: likelihoods.Poisson(exposure=[1.0, None]), "exposure must be finite", "None"),
    "complex scale": (lambda: likelihoods.StudentT(scale=np.array(1j)), "scale must be a number", "1.j"),
    "lengthscale as a string": (lambda: kernels.RBF(lengthscale="1.5"), "lengthscale must be a number", "'1.5'"),
    "lengthscale as a duration": (lambda: kernels.RBF(lengthscale=np.timedelta64(3, "D")), "lengthscale must be"),
    "trials": (lambda: likelihoods.Binomial(trials=2.5), "trials must be positive integers", "2.5"),
}


@pytest.mark.cases(
    thorough=[
        "exposure",
        "exposure matrix",
        "exposure with None",
        "complex scale",
        "lengthscale as a string",
        "lengthscale as a duration",
        "trials",
    ]
)
@pytest.mark.parametrize("case", CONSTRUCTIONS)
def test_bad_parts_are_refused_when_they_are_made(case):
    call, *fragments = CONSTRUCTIONS[case]
    refuses(call, *fragments)


AFTERWARDS = {
    "missing exposure": ("exposed", lambda r: r.predict(X), "one exposure per row", "pass exposure="),
    "missing exposure of y_new": ("exposed", lambda r: r.log_density(X, Y), "pass exposure="),
    "missing exposure of draws": ("exposed", lambda r: r.sample_y(0, X, 1), "pass exposure="),
    "unknown parameter": ("exposed", lambda r: r.predict(X, trials=3), "Poisson has no", "'trials'", "exposure"),
    "parameter of none": ("log_prob", lambda r: r.predict(X, exposure=3), "'exposure'", "it has: none"),
    "exposures of other rows": ("exposed", lambda r: r.predict(X, exposure=[1.0, 2.0]), "exposure", "2 value(s) for 3"),
    "negative exposure": ("exposed", lambda r: r.predict(X, exposure=-1.0), "exposure must be greater than 0", "-1.0"),
    "exposure None": ("exposed", lambda r: r.predict(X, exposure=None), "exposure must be a number", "None"),
    "ragged exposure": ("exposed", lambda r: r.predict(X, exposure=[[1.0], [1.0, 2.0]]), "exposure must be a number"),
    "two columns": ("poisson", lambda r: r.predict(TWO_COLUMNS), "x_new", "columns", "1 and 2"),
    "draws at two columns": ("poisson", lambda r: r.sample(0, TWO_COLUMNS, 1), "x_new", "columns", "1 and 2"),
    "no mean": ("log_prob", lambda r: r.predict(X).mean, "OnlyLogProb has no `mean`", "define"),
    "no cdf": ("log_prob", lambda r: r.predict(X).quantile(0.5), "OnlyLogProb has no `cdf`", "define"),
    "no sample": ("log_prob", lambda r: r.sample_y(0, X, 1), "OnlyLogProb has no `sample`", "define"),
    "no variance": ("heavy", lambda r: r.predict(X).variance, "StudentT with df = 2", "df > 2"),
    "n 0": ("poisson", lambda r: r.sample(0, X, 0), "n must be an integer of at least 1", "0"),
    "n 1.5": ("poisson", lambda r: r.sample_y(0, X, 1.5), "n must be an integer", "1.5"),
    "fewer y_new": ("poisson", lambda r: r.log_density(X, [1.0]), "x_new and y_new", "got 3 and 1"),
    "y_new outside": ("poisson", lambda r: r.log_density([0.5], [-1.0]), "y_new", "row 0 is -1"),
    "y_new of two columns": ("poisson", lambda r: r.log_density(X, TWO_COLUMNS), "y_new must have shape", "(3, 2)"),
    "infinite y_new": ("heavy", lambda r: r.log_density([0.5], [np.inf]), "y_new must be finite", "row 0 is inf"),
}


@pytest.mark.cases(thorough=["two columns"])
@pytest.mark.parametrize("case", AFTERWARDS)
def test_bad_questions_to_a_result_are_refused(case, results):
    which, call, *fragments = AFTERWARDS[case]
    refuses(lambda: call(results[which]), *fragments)


@pytest.mark.cases(thorough=["0.0"])
@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, 1.1, np.nan, [0.5, 1.2], "half", None, 1j])
def test_quantiles_lie_strictly_between_0_and_1(p, results):
    refuses(lambda: results["poisson"].predict(X).quantile(p), "p must", "between 0 and 1", repr(p))


@pytest.mark.parametrize(("p", "shape"), [([], "(0,)"), ([[0.5]], "(1, 1)")])
def test_quantiles_are_of_a_number_or_a_vector(p, shape, results):
    refuses(lambda: results["poisson"].predict(X).quantile(p), "p must be a number or a vector", shape)


@pytest.mark.parametrize(
    "key", [None, 1.5, "seed", True, 2**70, np.zeros(2), jnp.zeros(3), jax.random.split(jax.random.key(0))]
)
def test_a_key_is_one_key_or_a_seed(key, results):
    refuses(lambda: results["poisson"].sample(key, X, 1), "key must be a JAX key", "integer seed", repr(key))


@pytest.mark.parametrize("start", [ng.infer, ng.iterate])
def test_bad_input_is_refused_at_the_call(start):
    with pytest.raises(ValueError, match=re.escape("x must be finite")):
        start(model(), [0.0, np.nan, 1.0], Y)


# What users write themselves ------------------------------------------------------------------------


class NoNumbers(kernels.Kernel):
    """A kernel of a user's own that is NaN below 1."""

    scale: float = 1.0

    def evaluate(self, x1, x2):
        return self.scale * jnp.sqrt(x1[0] - 1.0) * jnp.sqrt(x2[0] - 1.0)


class NoPairs(kernels.Kernel):
    """Finite at every row, but not between them."""

    def evaluate(self, x1, x2):
        return jnp.where(x1[0] == x2[0], 1.0, jnp.nan)


class NoBlocks(kernels.Matern12):
    """A state space form that is not finite, of a kernel that is."""

    def evaluate(self, x1, x2):
        return jnp.exp(-jnp.abs(x1[0] - x2[0]))

    def blocks(self):
        return (kernels.LinearSDE(np.full((1, 1), np.nan), np.ones((1, 1)), np.ones((1, 1))),)


class Returns(ng.Likelihood):
    """A likelihood of a user's own whose methods return what they are told to."""

    what: Any = eqx.field(static=True)

    def log_prob(self, y, f):
        return self.what(-((y - f) ** 2))

    def mean(self, f):
        return jnp.stack([f, f])

    def covariance(self, f):
        return jnp.ones((2, 2))

    def cdf(self, y, f):
        return jnp.stack([y, f])

    def sample(self, key, f):
        return np.sin(f)


def user_model(kernel=RBF, mean=None, prior=ng.GP):
    return ng.Model(prior(kernel, mean=mean), likelihoods.Poisson())


FINITE = "must return finite numbers, but it is nan"
NOT_TRACED = "cannot be traced by JAX: use the functions of jax.numpy"
OF_USERS = {
    "nan kernel": (lambda: infer(kernel=NoNumbers()), "the kernel NoNumbers", FINITE, "at row 0 of x, [0.0]"),
    "nan kernel in a sum": (
        lambda: check_prior(ng.GP(RBF + 2.0 * NoNumbers(0.5).on(0)), np.array([[2.0], [0.0]])),
        "the kernel NoNumbers must",
        "at row 1 of x, [0.0]",
    ),
    "nan kernel of a latent": (
        lambda: check_prior(ng.GP(kernels.Independent([RBF, NoNumbers()])), np.zeros((1, 1))),
        "the kernel NoNumbers of latent 1",
        FINITE,
    ),
    "nan between rows": (lambda: infer(kernel=NoPairs()), "NoPairs", "between rows 0 and 1 of x, [0.0] and [1.0]"),
    "nan kernel in a fit": (lambda: ng.fit(user_model(NoNumbers()), X, Y), "the kernel NoNumbers", FINITE),
    "nan kernel, sparse": (
        lambda: ng.infer(ng.Model(ng.SparseGP(NoNumbers(), [[1.5]]), "poisson"), X, Y),
        "the kernel NoNumbers",
        FINITE,
    ),
    "nan kernel in batches": (
        lambda: ng.infer(ng.Model(ng.SparseGP(NoNumbers(), [[1.5]]), "poisson"), X, Y, batch_size=2),
        "the kernel NoNumbers",
        FINITE,
    ),
    "nan blocks": (lambda: ng.infer(user_model(NoBlocks(), prior=ng.MarkovGP), X, Y), "drift must be finite"),
    "nan mean": (
        lambda: infer(mean=lambda x: jnp.log(x[0] - 5.0)),
        "the mean function",
        FINITE,
        "at row 0 of x, [0.0]",
    ),
    "NumPy in a mean": (lambda: infer(mean=lambda x: np.sin(x[0])), "the mean function", NOT_TRACED),
    "math in a mean": (lambda: infer(mean=lambda x: math.sin(x[0])), "the mean function", NOT_TRACED),
    "if in a mean": (lambda: infer(mean=lambda x: 1.0 if x[0] > 0.0 else 0.0), "the mean function", "jnp.where"),
    "a row from a mean": (lambda: infer(mean=lambda x: x), "the mean function must return one number", "shape (1,)"),
    "log_prob of two": (
        lambda: infer(likelihood=Returns(lambda value: jnp.stack([value, value]))),
        "`log_prob` of Returns must return one number, not an array of shape (2,)",
        "summed over its outputs",
    ),
    "log_prob of one entry": (lambda: infer(likelihood=Returns(jnp.atleast_1d)), "`log_prob`", "shape (1,)"),
    "log_prob of two, Newton": (
        lambda: infer(likelihood=Returns(lambda value: jnp.stack([value, value])), method=ng.Newton()),
        "`log_prob` of Returns must return one number",
    ),
    "NumPy in log_prob": (lambda: infer(likelihood=Returns(np.abs)), "`log_prob` of Returns", NOT_TRACED),
    "mean of two": (
        lambda: infer(likelihood=Returns(jnp.sum), method=ng.Taylor()),
        "`mean` of Returns must return one number for one row of data, got shape (2,)",
    ),
}


@pytest.mark.cases(
    slow=[
        "nan kernel in a sum",
        "nan between rows",
        "nan kernel in a fit",
        "nan kernel, sparse",
        "nan kernel in batches",
    ]
)
@pytest.mark.parametrize("case", OF_USERS)
def test_what_users_write_is_named_where_it_fails(case):
    call, *fragments = OF_USERS[case]
    refuses(call, *fragments)


def test_a_kernel_that_is_not_finite_is_bad_input_with_and_without_throw():
    refuses(lambda: infer(kernel=NoNumbers(), throw=False), "the kernel NoNumbers")
    refuses(lambda: next(ng.iterate(model(kernel=NoNumbers()), X, Y)), "the kernel NoNumbers")


def fit(**options):
    return ng.fit(model(), X, Y, **options)


PRIOR = "the prior of kernel.lengthscale"
FITS = {
    "nan prior": (ng.Free(prior=lambda value: jnp.log(-value)), PRIOR, "it is nan at 1.0", "return -inf"),
    "infinite prior": (ng.Free(prior=lambda value: value / 0.0), PRIOR, "it is inf"),
    "NumPy in a prior": (ng.Free(prior=lambda value: np.log(value)), PRIOR, NOT_TRACED),
    "prior of two": (ng.Free(prior=lambda value: jnp.stack([value, value])), PRIOR, "shape (2,)"),
    "tied to itself": (ng.Tied("lengthscale"), "kernel.lengthscale is tied to itself", "leave it out"),
}


@pytest.mark.parametrize("case", FITS)
def test_bad_wishes_are_refused(case):
    wish, *fragments = FITS[case]
    refuses(lambda: fit(parameters={"lengthscale": wish}), *fragments)


ARGUMENTS = {
    "parameters as a name": (
        lambda r: fit(parameters="lengthscale"),
        "parameters must be a dictionary",
        "'lengthscale'",
        'parameters={"lengthscale": Fixed()}',
    ),
    "parameters as a list": (lambda r: fit(parameters=["lengthscale"]), "parameters must be a dictionary"),
    "parameters by number": (lambda r: fit(parameters={3: ng.Fixed()}), "names as keys, got 3", "kernel.lengthscale"),
    "checkpoint": (lambda r: fit(checkpoint=3), "checkpoint must be the name of a file, got 3", '"fit.checkpoint"'),
    "report": (lambda r: r.report(None), "folder must be the name of a folder, got None", '"report"'),
    "report in a file": (lambda r: r.report(__file__), "folder must be the name of a folder", "choose another name"),
    "title": (lambda r: r.report("never_written", title=5), "title must be a string, got 5", 'title="5"'),
    "save": (lambda r: r.save(None), "path must be the name of a file, got None", '"result.ngp"'),
    "load": (lambda r: ng.load(7), "path must be the name of a file, got 7"),
    "hyperparameters of nothing": (lambda r: ng.hyperparameters(None), "model must be a Model", "None"),
    "hyperparameters of a result": (lambda r: ng.hyperparameters(r), "model must be a Model", "result.model"),
    "hyperparameters of a class": (lambda r: ng.hyperparameters(kernels.RBF), "model must be a Model"),
    "key": (lambda r: infer(key="a"), "key must be a JAX key", "'a'", "write key=0"),
    "throw": (lambda r: infer(throw="no"), "throw must be True or False, got 'no'", "throw=False"),
    "throw of a fit": (lambda r: fit(throw="no"), "throw must be True or False"),
    "progress": (lambda r: infer(progress=None), "progress must be True or False, got None"),
    "weak_priors": (lambda r: fit(weak_priors=1), "weak_priors must be True or False, got 1"),
    "standard_errors": (lambda r: fit(standard_errors="yes"), "standard_errors must be True or False"),
    "checks": (lambda r: r.summary(checks="all"), "checks must be True or False"),
    "check_x": (lambda r: ng.compare([r, r], check_x=0), "check_x must be True or False"),
    "accelerate": (lambda r: ng.Damped(accelerate="yes"), "accelerate must be True or False"),
    "columns of a linear model": (
        lambda r: ng.infer(ng.Model(ng.LinearModel(1.0), "poisson"), TWO_COLUMNS, Y).predict(np.zeros((1, 3))),
        "x and x_new must have the same number of columns, got 2 and 3",
        "in the same order",
    ),
    "large x": (lambda r: infer(x=[0.0, 1.0, 1e308]), "x must be at most 1e+100", "row 2, column 0", "a larger unit"),
    "large x_new": (lambda r: r.predict([-1e308]), "x_new must be at most 1e+100", "row 0, column 0 is -1e+308"),
    "subnormal lengthscale": (lambda r: kernels.RBF(1e-320), "lengthscale must be at least 2.2e-308", "smaller unit"),
    "true lengthscale": (lambda r: kernels.RBF(True), "lengthscale must be a number, not True or False", "True"),
    "true lengthscales": (lambda r: kernels.RBF([1.0, True]), "not True or False", "[1.0, True]"),
    "true variance": (lambda r: likelihoods.Gaussian(np.True_), "variance must be a number, not True or False"),
    "true tol": (lambda r: infer(tol=True), "tol must be a number, not True", "1e-6"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_of_another_kind_are_refused(case, results):
    call, *fragments = ARGUMENTS[case]
    refuses(lambda: call(results["poisson"]), *fragments)


REMEDIES = {
    "negative": (lambda: kernels.RBF(-1.0), "greater than 0, got -1.0: give a positive number, such as 1.0"),
    "share": (lambda: likelihoods.ZeroInflated(likelihoods.Poisson(), 1.5), "got 1.5: give a number between 0 and 1"),
    "power": (lambda: ng.PowerEP(0.0), "got 0.0: PowerEP(1.0) is expectation propagation, and VI() the limit"),
    "rho": (lambda: ng.Constant(2.0), "got 2.0: use 1.0 for full steps"),
    "lapse": (lambda: likelihoods.Bernoulli(lapse=0.7), "got 0.7: it is a small share of y, such as 0.01"),
    "tol": (lambda: infer(tol=-1.0), "got -1.0: give a small number, such as 1e-6"),
    "steps": (lambda: infer(max_steps=-1), "got -1: give a whole number, such as 100"),
    "classes": (lambda: likelihoods.Softmax(1), "got 1: give a whole number, such as 2"),
    "text": (lambda: kernels.RBF("1.5"), "got '1.5': write 1.5, without quotes"),
    "duration": (
        lambda: kernels.RBF(np.timedelta64(3, "D")),
        "divide it by the unit of time, as in duration / np.time",
    ),
    "nan": (lambda: kernels.RBF(np.nan), "must be finite, got nan: give a positive number, such as 1.0"),
    "empty": (lambda: kernels.RBF([]), "must not be empty, got []: give a positive number"),
    "trials": (lambda: likelihoods.Binomial(2.5), "got 2.5: round them"),
    "inference steps": (lambda: fit(inference_steps=10**9), "got 1000000000: give a whole number, such as 200"),
    "nodes": (lambda: ng.cubature.QuasiRandom(100), "got 100: use 128"),
    "bounds": (lambda: ng.Free(2.0, 1.0), "got 2.0 and 1.0: swap them"),
}


@pytest.mark.parametrize("case", REMEDIES)
def test_errors_of_range_say_what_to_do(case):
    call, *fragments = REMEDIES[case]
    refuses(call, *fragments)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("binomial", "likelihoods.Binomial(trials=10)"),
        ("ordinal", "likelihoods.Ordinal(thresholds=[-1.0, 0.0, 1.0])"),
        ("Softmax", "likelihoods.Softmax(num_classes=3)"),
        ("categorical", "likelihoods.Softmax(num_classes=3)"),
        ("normal", '"gaussian"'),
        ("logistic", 'likelihoods.Bernoulli("logit")'),
        ("zero_inflated", "likelihoods.ZeroInflated(likelihoods.Poisson())"),
    ],
)
def test_likelihoods_that_need_arguments_are_named_with_them(name, words):
    refuses(lambda: ng.Model(ng.GP(RBF), name), f"no likelihood with the name {name!r} alone: write {words}")
    if words.startswith("likelihoods"):
        ng.Model(ng.GP("rbf"), eval(words.split(",")[0] if "trials" in words else words))


@pytest.mark.parametrize("kernel", [kernels.Brownian(), kernels.IntegratedBrownian()])
def test_stamps_before_the_origin_are_told_how_to_move_it(kernel):
    days = np.arange("1990-01-02", "1990-01-05", dtype="datetime64[D]")
    before = ng.Model(ng.MarkovGP(kernel, unit="D"), "poisson")
    refuses(lambda: ng.infer(before, days, Y), "prior's origin, 2000-01-01", 'origin="1990-01-02"')
    moved = ng.Model(ng.MarkovGP(kernel, unit="D", origin="1990-01-02"), "poisson")
    np.testing.assert_array_equal(read_inputs(days, moved)[:, 0], [0.0, 1.0, 2.0])


def test_pandas_rows_with_different_labels_are_refused(results):
    x, y = pd.Series(X, index=[0, 1, 2]), pd.Series(Y, index=[2, 1, 0])
    words = "have different indexes, in row 0 0 and 2", "y.loc[x.index]", "y.to_numpy()"
    refuses(lambda: infer(x=x, y=y), "x and y", *words)
    refuses(lambda: ng.fit(model(), pd.DataFrame({"t": x}), y), "x and y", *words)
    sparse = ng.Model(ng.SparseGP(RBF, [[1.0]]), "poisson")
    refuses(lambda: ng.infer(sparse, x, y, batch_size=2), "x and y", *words)
    refuses(lambda: ng.infer(sparse, [(x, y)], batch_size=2), "x of chunk 0 and y of chunk 0 have different indexes")
    refuses(lambda: ng.cross_validate(model(), x, y, folds=3), "x and y", *words)
    refuses(lambda: results["poisson"].log_density(x, y), "x_new and y_new have different indexes")
    refuses(lambda: results["poisson"].calibration(x, y), "x_new and y_new have different indexes")
    refuses(lambda: results["exposed"].predict(x, exposure=y), "x_new and exposure have different indexes")


def test_pandas_rows_with_equal_labels_go_together(results):
    labels = [np.nan, 1.0, 2.0]
    x, y = pd.DataFrame({"t": X}, index=labels), pd.Series(Y, index=labels)
    assert infer(x=x, y=y).energy == results["poisson"].energy
    aligned = y.sample(frac=1.0, random_state=0).loc[[np.nan, 1.0, 2.0]]
    assert infer(x=x, y=aligned).energy == results["poisson"].energy
    assert infer(x=x, y=list(Y)).energy == results["poisson"].energy


def test_a_status_prints_its_name_and_its_sentence(results):
    status = results["poisson"].status
    assert str(status) == f"{status}" == f"CONVERGED: {status.sentence}"
    assert status == 1 and int(status) == 1


def test_tied_said_of_an_ending_leaves_its_target_free():
    both = model(kernel=RBF + kernels.Matern32())
    (found,) = choose(both, {"lengthscale": ng.Tied("kernel[0].lengthscale"), "variance": ng.Fixed()})
    assert found.slot.name == "kernel[0].lengthscale" and len(found.slot.paths) == 2
