"""Formulas say the same as the terms that they stand for."""

import sys

import numpy as np
import pytest

import newtongp as ng
from newtongp.terms import (
    Area,
    Factor,
    Formula,
    Group,
    Linear,
    Numeric,
    Offset,
    Polynomial,
    RandomWalk,
    Season,
    Smooth,
    Spline,
    Trend,
    from_formula,
)

N = 60
_RNG = np.random.default_rng(3)
TABLE = {
    "a": np.array(["p", "q", "r"])[np.arange(N) % 3],
    "b": np.array(["u", "v"])[_RNG.integers(0, 2, N)],
    "x": _RNG.normal(size=N),
    "z": _RNG.uniform(1.0, 5.0, N),
    "g": np.arange(N) % 7,
    "h": np.array(list("klmn"))[_RNG.integers(0, 4, N)],
    "age": _RNG.integers(20, 32, N),
    "week": np.arange(N) // 5,
    "date": np.datetime64("2020-01-01") + 11 * np.arange(N),
    "district": np.array(["north", "south", "west"])[_RNG.integers(0, 3, N)],
    "n": _RNG.uniform(1.0, 3.0, N),
    "count": _RNG.poisson(2.0, N),
    "my column": _RNG.normal(size=N),
}
GRAPH = {"north": ["west"], "south": ["west"], "west": ["north", "south"]}
KERNEL = ng.kernels.Matern12(lengthscale=3.0)

SAME = {
    "a": Linear("a"),
    "1": Linear(),
    "0 + a + x": Linear("a", "x", intercept=False),
    "a - 1": Linear("a", intercept=False),
    "0 + x + 1": Linear("x"),
    "a * x": Linear("a", "x", ("a", "x")),
    "a:x + b": Linear("b", ("a", "x")),
    "a * b * x - a:b:x": Linear("a", "b", "x", ("a", "b"), ("a", "x"), ("b", "x")),
    "(a + b + x)^2": Linear("a", "b", "x", ("a", "b"), ("a", "x"), ("b", "x")),
    "(a + b + x)**2 - a:b": Linear("a", "b", "x", ("a", "x"), ("b", "x")),
    "b / a": Linear("b", ("b", "a")),
    "`my column` + x": Linear("my column", "x"),
    "log(z) + np.sqrt(z) + exp(x)": Linear(Numeric("z", "log"), Numeric("z", "sqrt"), Numeric("x", "exp")),
    "x + I(x**2)": Linear("x", Numeric("x", "square")),
    "poly(z, 3) + spline(x, df=4)": Linear(Polynomial("z", 3), Spline("x", 4)),
    "ns(x, 3)": Linear(Spline("x", 3)),
    "C(age)": Linear(Factor("age")),
    "C(a, 'q')": Linear(Factor("a", reference="q")),
    "C(a, reference='q') : x": Linear((Factor("a", reference="q"), "x")),
    "C(a, contr.treatment('r'))": Linear(Factor("a", reference="r")),
    "C(a, Treatment(reference='r'))": Linear(Factor("a", reference="r")),
    "C(a, contr.sum) + C(b, Sum)": Linear(Factor("a", coding="sum"), Factor("b", coding="sum")),
    "x + (1 | g)": Linear("x") + Group("g"),
    "x + (x | g)": Linear("x") + Group("g", slope="x"),
    "(1 + x | g)": Linear() + Group("g", slope="x"),
    "(0 + x | g)": Linear() + Group("g", slope="x", intercept=False),
    "(x - 1 | g)": Linear() + Group("g", slope="x", intercept=False),
    "(x || g)": Linear() + Group("g", slope="x", correlated=False),
    "(0 + a | g)": Linear() + Group("g", slope="a", intercept=False),
    "(x + log(z) | g)": Linear() + Group("g", slope=("x", Numeric("z", "log"))),
    "(a:x | g)": Linear() + Group("g", slope=(("a", "x"),)),
    "(1 | h / g)": Linear() + Group("h") + Group("h", "g"),
    "(1 | g) + (1 | h)": Linear() + Group("g") + Group("h"),
    "(1 | g + h)": Linear() + Group("g") + Group("h"),
    "(1 | g:h)": Linear() + Group("g", "h"),
    "0 + (1 | g)": Group("g"),
    "smooth(age)": Linear() + Smooth("age"),
    "smooth(x, z, kernel='matern32')": Linear() + Smooth("x", "z", kernel="matern32"),
    "smooth(age, by=a)": Linear() + Smooth("age", by="a"),
    "smooth(age, by=x)": Linear() + Smooth("age", by="x"),
    "smooth(age, by=C(g))": Linear() + Smooth("age") * Group("g"),
    "smooth(age, kernel=kernel)": Linear() + Smooth("age", kernel=KERNEL),
    "smooth(age):smooth(week)": Linear() + Smooth("age") * Smooth("week"),
    "trend(week)": Linear() + Trend("week"),
    "trend(date, 'level', unit='W')": Linear() + Trend("date", "level", unit="W"),
    'season(date, "1y") + trend(date, "smooth")': Linear() + Season("date", "1y") + Trend("date", "smooth"),
    "walk(week, 2)": Linear() + RandomWalk("week", 2),
    "area(district, graph, 'icar')": Linear() + Area("district", GRAPH, "icar"),
    "area(district, neighbours=graph)": Linear() + Area("district", GRAPH),
    "offset(log(n)) + x": Linear("x") + Offset("n", "log"),
    "x + offset(n)": Linear("x") + Offset("n"),
    "a * x + (1 | g) + smooth(age) + trend(week) + offset(log(n))": Linear("a", "x", ("a", "x"))
    + Group("g")
    + Smooth("age")
    + Trend("week")
    + Offset("n", "log"),
}
FAST = ("a * x + (1 | g) + smooth(age) + trend(week) + offset(log(n))", "(x || g)", "C(a, 'q')", "smooth(age, by=C(g))")


def _objects(formula):
    return {
        name: value
        for name, value in {"graph": GRAPH, "kernel": KERNEL}.items()
        if f"{name})" in formula or f"{name}," in formula
    }


@pytest.mark.parametrize("right", SAME)
def test_formula_has_the_same_terms(right):
    found = from_formula(f"count ~ {right}", **_objects(right))
    wanted = SAME[right] if not hasattr(SAME[right], "label") else ng.terms.Terms((SAME[right],))
    assert found.output == "count"
    assert str(found.terms) == str(wanted)
    one, two = (ng.terms.Terms(terms.terms) for terms in (found.terms, wanted))
    assert _described(one) == _described(two)


def _described(terms):
    """Everything that a term holds, as text: kernels and numbers with their values."""
    return [{field: repr(value) for field, value in sorted(vars(term).items())} for term in terms.terms]


def _energy(formula_or_model, y):
    return ng.infer(formula_or_model, TABLE, y, ng.Newton()).energy


@pytest.mark.cases(slow=["a * x + (1 | g) + smooth(age) + trend(week) + offset(log(n))", "(x || g)", "C(a, 'q')"])
@pytest.mark.parametrize("right", FAST)
def test_formula_has_the_same_energy(right):
    formula = from_formula(f"count ~ {right}", **_objects(right))
    energy = _energy(ng.Model(SAME[right], "poisson"), "count")
    assert abs(_energy(formula, "poisson") - energy) < 1e-12
    assert abs(_energy(f"count ~ {right}", ng.likelihoods.Poisson()) - energy) < 1e-12


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("right", [right for right in SAME if right not in FAST])
def test_every_formula_has_the_same_energy(right):
    formula = from_formula(f"count ~ {right}", **_objects(right))
    assert abs(_energy(formula, "poisson") - _energy(ng.Model(SAME[right], "poisson"), "count")) < 1e-12


@pytest.mark.cases(slow=["wide", "flat", "maximised"])
@pytest.mark.parametrize("prior", ["wide", "flat", "maximised", 3.0])
def test_prior_of_fixed_effects(prior):
    formula = "count ~ x + (1 | g)"
    model = ng.Model(Linear("x", prior=prior) + Group("g"), "poisson")
    found = ng.infer(formula, TABLE, "poisson", ng.Newton(), effects=prior)
    assert abs(found.energy - _energy(model, "count")) < 1e-12
    linear = from_formula(formula, prior).terms.terms[0]
    assert linear.prior == "normal" and linear.deviation == prior if prior == 3.0 else linear.prior == prior


@pytest.mark.slow
def test_fit_of_a_formula():
    found = ng.fit("count ~ x + (1 | g)", TABLE, "poisson", effects="flat")
    wanted = ng.fit(ng.Model(Linear("x", prior="flat") + Group("g"), "poisson"), TABLE, "count")
    assert found.energy == wanted.energy and found.parameters == wanted.parameters
    assert found.predict({"x": [0.0], "g": [3]}).mean.shape == (1,)


@pytest.mark.slow
def test_formulas_of_several_latents():
    likelihood = ng.likelihoods.HeteroscedasticGaussian()
    found = ng.infer({"scale": "~ z", "location": "x ~ a + (1 | g)"}, TABLE, likelihood)
    model = ng.Model({"location": Linear("a") + Group("g"), "scale": Linear("z")}, likelihood)
    assert abs(found.energy - ng.infer(model, TABLE, "x").energy) < 1e-12
    mixed = ng.Model({"location": "~ a + (1 | g)", "scale": Linear("z")}, likelihood)
    assert abs(found.energy - ng.infer(mixed, TABLE, "x").energy) < 1e-12


def test_model_of_a_formula():
    model = ng.Model("~ x + (1 | g)", "poisson")
    assert model.prior.labels == (("linear(x)", "group(g)"),)
    assert isinstance(from_formula("y ~ x"), Formula) and str(from_formula("y ~ x")) == "y ~ x"
    assert from_formula("~ x").output is None


BAD = {
    "y ~ (x": ("'y ~ (x' cannot be read", "(⧚x"),
    "y ~ x + ": ("cannot be read", "'+'", "⧛+⧚"),
    "y ~ a b": ("no operator between a and b", "⧛a b⧚"),
    "y ~ x == 2": ("is not an operator of formulas", "⧛==⧚"),
    "y ~ x ~ z": ("there must be one ~", "⧛~⧚"),
    "count ~ ": ("'count ~ ' has nothing to the right of ~", "'count ~ 1' for an intercept alone"),
    "y ~ log(x": ("a parenthesis or quote is opened and not closed", "⧛log(x⧚"),
    "y ~ x | g": ("'|'", "parentheses, as (1 | clinic)"),
    "y ~ (x | g | h)": ("(x | (g | h))", "write (effects | column)"),
    "y ~ (1 | 1)": ("(1 | 1)", "no column as its group"),
    "y ~ (0 | g)": ("(0 | g) has no effects", "write (1 | g)"),
    "y ~ (1 | log(g))": ("log(g) on the right of |", "name the column"),
    "y ~ (smooth(x) | g)": ("(smooth(x) | g)", "write smooth(x, by=C(g))"),
    "y ~ (1 | g) * b": ("(1 | g) cannot be multiplied", "term of its own"),
    "y ~ (0 + a) * b": ("0 cannot be multiplied", "term of its own"),
    "y ~ .": ("cannot use .", "name the columns"),
    "y ~ 2 * x": ("Numeric literals", "⧛2⧚"),
    "y ~ 2:x": ("2:x", "rescale that column"),
    "y ~ 0": ("'y ~ 0' has no terms", "'y ~ 1'"),
    "x + z": ("'x + z' has no ~", "write 'y ~ x + z'"),
    "log(y) ~ x": ("got log(y)", "LogNormal"),
    "y + z ~ x": ("left side of 'y + z ~ x' must be one column",),
    "y ~ {x + 1}": ("x + 1 computes with columns", "add the result to the table"),
    "y ~ I(x + z)": ("I(x + z)", "add the result to the table"),
    "y ~ I(x ** 3)": ("I(x ** 3) is a power", "write poly(x, 3)"),
    "y ~ bs(x, 4)": ("there is no bs()", "write spline(x, 4)"),
    "y ~ s(x)": ("there is no s()", "write smooth(x)"),
    "y ~ te(x, z)": ("there is no te()", "write smooth(a, b)"),
    "y ~ scale(x)": ("there is no scale()", "standardise the column"),
    "y ~ as.factor(x)": ("as.factor(x) cannot be read", "C(x) for a factor"),
    "y ~ tan(x)": ("there is no tan()", "add its values to the table"),
    "cbind(s, n) ~ x": ("got cbind(s, n)", "Binomial(trials='n')"),
    "y ~ log(x, 2)": ("log(x, 2) must have one column", "write log(x)"),
    "y ~ log(`my column`)": ("log(`my column`)", "rename the column"),
    "y ~ smooth(log(x))": ("smooth(log(x)) is over columns, got log(x)", "name a column"),
    "y ~ smooth(x):z": ("smooth(x):z", "write smooth(x, by=z)"),
    "y ~ smooth(x, kernel=Matern32(2))": ("the argument Matern32(2)", "this=Matern32(2)"),
    "y ~ smooth(x, kernel='matern33')": ("smooth(x, kernel='matern33')", "did you mean 'matern3"),
    "y ~ smooth(x, degree=2)": ("smooth(x, degree=2) has wrong arguments", "'degree'"),
    "y ~ smooth(*x)": ("arguments with stars", "write them out"),
    "y ~ walk(x, 3)": ("walk(x, 3): order must be 1 or 2",),
    "y ~ season(x, 'year')": ("season(x, 'year')", "'1y'"),
    "y ~ trend(x):smooth(z)": ("no prior cannot be a factor", "give it a kernel"),
    "y ~ area(d)": ("area(d) needs the graph of neighbours", "from_formula(..., graph=neighbours)"),
    "y ~ area(d, map)": ("area(d, map) needs the graph", "from_formula(..., map=neighbours)"),
    "y ~ C(g, contr.helmert)": ("no coding contr.helmert", "contr.sum"),
    "y ~ C(g, coding='helmert')": ("C(g, coding='helmert')", "'treatment' or 'sum'"),
    "y ~ C()": ("C() must have a column", "write C(x)"),
    "y ~ offset(n + 1)": ("offset(n + 1)", "add what is computed to the table"),
    "y ~ offset(poly(n, 2))": ("an offset is a column or a function of one", "log"),
    "y ~ offset(n):x": ("offset(n) cannot be multiplied", "term of its own"),
    "y ~ f(x)(z)": ("f(x)(z) computes with columns",),
    "y ~ poly(x, 0)": ("poly(x, 0): degree",),
}


@pytest.mark.parametrize("formula", BAD)
def test_what_a_formula_cannot_say(formula):
    with pytest.raises(ValueError) as info:  # noqa: PT011
        from_formula(formula)
    message = str(info.value)
    for part in BAD[formula]:
        assert part in message, message
    assert "\x1b" not in message and "\n" not in message


def test_objects_must_be_used():
    with pytest.raises(ValueError, match="does not use 'graph': leave it out"):
        from_formula("y ~ x", graph=GRAPH)
    with pytest.raises(ValueError, match=r"a formula is text such as .* got 3"):
        from_formula(3)  # pyright: ignore[reportArgumentType]


def test_likelihood_follows_the_table():
    with pytest.raises(ValueError, match=r"got none as the third argument: write fit\(formula, table"):
        ng.fit("count ~ x", TABLE)
    with pytest.raises(ValueError, match="got a ndarray as the third argument"):
        ng.infer("count ~ x", TABLE, TABLE["count"])
    with pytest.raises(ValueError, match="does not say what y is: write its column on the left, 'y ~ x'"):
        ng.fit("~ x", TABLE, "poisson")
    with pytest.raises(ValueError, match="must have one y, got x, z: write '~ x' for the others"):
        ng.infer({"location": "x ~ a", "scale": "z ~ a"}, TABLE, ng.likelihoods.HeteroscedasticGaussian())
    with pytest.raises(ValueError, match=r"write Linear\(\.\.\., prior=\.\.\.\)"):
        ng.fit(ng.Model(Linear("x"), "poisson"), TABLE, "count", effects="flat")
    with pytest.raises(ValueError, match="give them to from_formula"):
        ng.infer(from_formula("count ~ x"), TABLE, "poisson", effects="flat")
    with pytest.raises(ValueError, match="effects must be 'wide', 'flat', 'maximised' or a standard deviation"):
        ng.infer("count ~ x", TABLE, "poisson", effects="reml")


def test_without_formulaic(monkeypatch):
    monkeypatch.delitem(sys.modules, "newtongp.terms.algebra", raising=False)
    monkeypatch.setitem(sys.modules, "formulaic", None)
    monkeypatch.setitem(sys.modules, "formulaic.errors", None)
    with pytest.raises(ImportError, match=r"pip install newtongp\[formula\]"):
        from_formula("y ~ x")
