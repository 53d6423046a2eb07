"""Tables that a model cannot use: every message names the column, the row or value, and a remedy."""

import numpy as np
import pandas as pd
import pytest

import newtongp as ng
from newtongp import likelihoods as lk
from newtongp.terms import (
    Area,
    Factor,
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
)

N = 12
DAYS = np.datetime64("2020-01-01") + np.arange(N)
GRAPH = {"north": ["south"], "south": ["north"]}


def table(**changed):
    columns = {
        "age": np.linspace(20.0, 50.0, N),
        "dose": (np.arange(N) % 5) * 1.0,
        "drug": np.array(list("abc") * 4),
        "site": ["here"] * N,
        "day": DAYS,
        "level": np.arange(N) % 4,
        "district": np.array(["north", "south"] * 6),
        "n": np.full(N, 3.0),
        "y": np.arange(N) % 3,
    }
    return columns | changed


def at(row, value, of=3.0):
    """A column with the same number in all rows but one."""
    return np.where(np.arange(N) == row, value, of)


def entries(values, row, value):
    """A list with another entry in a row."""
    return [value if place == row else entry for place, entry in enumerate(values)]


def run(terms, x=None, y="y", likelihood="poisson"):
    return ng.infer(ng.Model(terms, likelihood), table() if x is None else x, y, ng.Newton())


TWO_CALLED_AGE = pd.DataFrame(np.ones((N, 3)), columns=["age", "age", "y"])
SOME = {"level": None, "category": pd.Categorical(["a", "b", None] * 4)}
GAUSSIAN2 = lk.HeteroscedasticGaussian()

wide = {"u": np.sqrt(np.arange(10_500.0)), "v": np.ones(10_500)}
BAD = {
    # Names
    "unknown column": (lambda: run(Linear("aeg")), "x has no column 'aeg'", "did you mean 'age'?", "add it"),
    "unknown y": (lambda: run(Linear("age"), y="yy"), "no column 'yy'", "did you mean 'y'?"),
    "unknown by": (lambda: run(Smooth("age", by="sex")), "no column 'sex'", "'drug', 'site'"),
    "unknown slope": (lambda: run(Group("drug", slope="does")), "no column 'does'", "did you mean 'dose'?"),
    "unknown part of an interaction": (lambda: run(Linear("age:dosis")), "no column 'dosis'", "'dose'"),
    "unknown exposure": (
        lambda: run(Linear("age"), likelihood=lk.Poisson(exposure="population")),
        "no column 'population'",
        "add it",
    ),
    "two columns with one name": (lambda: run(Linear("age"), TWO_CALLED_AGE), "two columns called 'age'", "different"),
    "two keys with one name": (lambda: run(Linear("1"), {1: [1.0], "1": [2.0], "y": [0]}), "two columns called '1'"),
    "a number as a column": (lambda: Linear(3), "must be the name of a column", "got 3"),
    "a number as a group": (lambda: Group(3), "given by their names, got 3", "write Group('age')"),
    "y in a term": (lambda: run(Linear("y", "age")), "column 'y' is y", "leave it out of the terms"),
    # Kinds of columns
    "factor in Smooth": (lambda: run(Smooth("drug")), "column 'drug' must hold numbers", "'a'", "Group('drug')"),
    "factor in a polynomial": (lambda: run(Linear(Polynomial("drug"))), "column 'drug'", "'a'", "convert it"),
    "factor in an offset": (lambda: run(Linear() + Offset("drug")), "column 'drug' must hold numbers", "'a'"),
    "factor as exposure": (lambda: run(Linear(), likelihood=lk.Poisson(exposure="drug")), "column 'drug'", "'a'"),
    "factor in Trend": (lambda: run(Linear() + Trend("drug")), "column 'drug' must hold numbers", "'a'"),
    "numbers as text": (
        lambda: run(Smooth("age"), table(age=["1.5"] * N)),
        "column 'age'",
        "'1.5'",
        "convert the column to numbers",
    ),
    "numbers as text with a typo": (
        lambda: run(Linear("age"), table(age=entries([f"{age}.5" for age in range(N)], 3, "n/a"))),
        "column 'age' holds text, though 11 of its 12 distinct entries are numbers: row 3 is 'n/a'",
        "write Factor('age')",
    ),
    "text as y": (lambda: run(Linear("age"), y="drug"), "column 'drug' must hold numbers to be y", "'a'", "0 and 1"),
    "text without order": (lambda: run(Linear() + RandomWalk("drug")), "column 'drug'", "ordered categorical"),
    "complex numbers": (lambda: run(Linear("age"), table(age=np.ones(N) * 1j)), "column 'age'", "1j", "real part"),
    "a matrix as a column": (
        lambda: run(Linear("age"), table(age=np.ones((N, 2)))),
        "'age'",
        "(12, 2)",
        "one dimension",
    ),
    "a ragged column": (
        lambda: run(Linear("age"), table(age=entries([[1, 2]] * N, 3, [1]))),
        "column 'age' has rows of different lengths",
        "one value per row",
    ),
    # Levels
    "one level": (lambda: run(Linear("site")), "column 'site' has only one level, 'here'", "leave it out"),
    "one level of a group": (lambda: run(Linear() + Group("site")), "'site' has only 'here'", "leave the term out"),
    "unknown reference": (lambda: run(Linear(Factor("drug", reference="z"))), "'drug'", "got 'z'", "'a', 'b', 'c'"),
    "missing level": (
        lambda: run(Linear() + Group("drug"), table(drug=entries(list("abc") * 4, 3, None))),
        "column 'drug' has no level in row 3",
        "drop that row",
    ),
    "missing category": (
        lambda: run(Linear("drug"), pd.DataFrame(table(drug=SOME["category"]))),
        "column 'drug' has no level in row 2",
        "give its level a name",
    ),
    "unequal steps": (
        lambda: run(Linear() + RandomWalk("level"), table(level=np.array([0, 1, 2, 4.5] * 3))),
        "row 3 of column 'level' is 4.5",
        "use Trend('level')",
    ),
    "unknown area": (
        lambda: run(Linear() + Area("district", {"north": ["east"], "east": ["north"]})),
        "column 'district' has 'south' in row 1",
        "correct it, or add it",
    ),
    "one-sided neighbours": (
        lambda: Area("district", {"a": ["b"], "b": []}),
        "'b' is a neighbour of 'a'",
        "correct one",
    ),
    "unknown neighbour": (lambda: Area("district", {"a": ["b"]}), "unknown area 'b'", "add it to the mapping"),
    "own neighbour": (lambda: Area("district", {"a": ["a"]}), "'a' is given as its own neighbour", "leave it out"),
    "asymmetric matrix": (
        lambda: Area("district", np.array([[0, 1], [0, 0]]), areas=["a", "b"]),
        "has 1 between 'a' and 'b' and 0",
        "correct one of them",
    ),
    # Values
    "missing covariate": (
        lambda: run(Linear("age"), table(age=at(4, np.nan))),
        "column 'age'",
        "row 4 is missing",
        "drop that row, or fill it in",
    ),
    "missing covariate in a list": (
        lambda: run(Smooth("age"), table(age=entries([1, 2, 3] * 4, 5, None))),
        "column 'age'",
        "row 5 is missing",
        "drop that row",
    ),
    "infinite covariate": (lambda: run(Linear("age"), table(age=at(5, np.inf))), "'age'", "row 5 is inf", "correct it"),
    "huge covariate": (lambda: run(Linear("age"), table(age=at(5, 1e200))), "'age'", "row 5 is 1e+200", "1e+100"),
    "logarithm of zero": (
        lambda: run(Linear(Numeric("dose", "log"))),
        "log(dose)",
        "row 0 of column 'dose' is 0",
        "drop",
    ),
    "negative exposure": (
        lambda: run(Linear(), table(n=at(7, -1.0)), likelihood=lk.Poisson(exposure="n")),
        "row 7 of column 'n'",
        "greater than 0, got -1.0",
        "give a positive number",
    ),
    "missing variance": (
        lambda: run(Linear(), table(n=at(7, np.nan)), likelihood=lk.Gaussian(variance="n")),
        "column 'n'",
        "row 7 is missing",
    ),
    "trials that are not whole": (
        lambda: run(Linear(), table(n=at(7, 2.5)), likelihood=lk.Binomial(trials="n")),
        "row 7 of column 'n'",
        "integers, got 2.5",
        "round them",
    ),
    "fewer trials than successes": (
        lambda: run(Linear(), table(n=at(8, 1.0)), likelihood=lk.Binomial(trials="n")),
        "column 'y'",
        "row 8 is 2, with 1 trials",
        "correct one of them",
    ),
    "y outside of its support": (
        lambda: run(Linear("age"), table(y=at(2, -1.0))),
        "column 'y'",
        "row 2 is -1",
        "choose a likelihood that allows it",
    ),
    "infinite y": (lambda: run(Linear("age"), table(y=at(2, np.inf))), "column 'y'", "row 2 is inf", "write NaN"),
    # Time
    "time stamps without a unit": (lambda: run(Smooth("day")), "column 'day' holds time stamps", "unit='D'"),
    "time stamps in Linear": (lambda: run(Linear("day")), "column 'day' holds time stamps", "use Trend('day')"),
    "time stamps in a polynomial": (lambda: run(Linear(Polynomial("day"))), "'day'", "2020", "Trend('day')"),
    "time stamps in RandomWalk": (lambda: run(Linear() + RandomWalk("day")), "column 'day' holds time stamps", "Trend"),
    "missing time": (
        lambda: run(Linear() + Trend("day"), table(day=np.where(np.arange(N) == 6, np.datetime64("NaT"), DAYS))),
        "column 'day' has no time in row 6",
        "drop that row",
    ),
    "numbers among time stamps": (
        lambda: run(Linear() + Trend("day"), table(day=entries(list(DAYS), 11, 3.0))),
        "column 'day'",
        "row 11 is 3.0",
        "make them all alike",
    ),
    "time zones in some rows": (
        lambda: run(
            Linear() + Trend("day"),
            table(day=entries(list(pd.to_datetime(DAYS)), 5, pd.Timestamp("2020-03-01", tz="UTC"))),
        ),
        "column 'day'",
        "row 5 is Timestamp('2020-03-01 00:00:00+0000'",
        "make them all alike",
    ),
    "unknown period": (lambda: Season("day", "1 year"), "got '1 year'", "'1y'"),
    "periods of pandas": (
        lambda: run(Linear() + Trend("day"), pd.DataFrame(table(day=pd.period_range("2020-01", periods=N, freq="M")))),
        "column 'day'",
        "2020-01",
        "start_time",
    ),
    # Sizes
    "collinear columns": (
        lambda: run(Linear("age", "older"), table(older=np.linspace(21.0, 51.0, N))),
        "older is a linear combination of the effects before it (intercept, age)",
        "leave it out",
    ),
    "collinear factors": (
        lambda: run(Linear("drug", "same"), table(same=np.array(list("klm") * 4))),
        "same[l] is a linear combination",
        "leave it out",
    ),
    "a constant column": (lambda: run(Linear("n")), "n is the same in all rows", "leave it out"),
    "an effect twice": (lambda: run(Linear("age", "age")), "age is a linear combination", "leave it out"),
    "more effects than rows": (
        lambda: run(Linear("id", "age"), table(id=[f"p{i:02}" for i in range(N)])),
        "13 effects (intercept, id[p01]",
        "only 12 row(s)",
        "use Group(...)",
    ),
    "a high degree": (lambda: run(Linear(Polynomial("level", 5))), "column 'level', which has 4", "lower the degree"),
    "many knots": (lambda: run(Linear(Spline("level", 8))), "column 'level'", "4 different values", "lower df"),
    "columns of different lengths": (lambda: run(Linear("age"), table(age=[1.0])), "'age' has 1", "one value per row"),
    "y of another length": (lambda: run(Linear("age"), y=np.ones(5)), "got 12 and 5", "one y per row"),
    "no rows": (lambda: run(Linear("a"), {"a": [], "y": []}), "x has no rows", "at least one"),
    "no columns": (lambda: run(Linear("a"), {}), "x has no columns", "data frame"),
    "an array instead of a table": (lambda: run(Linear("age"), np.ones((N, 2))), "got x of type ndarray", "data frame"),
    "no y": (lambda: run(Linear("age"), y=None), "y is missing", "name of its column"),
    "lengthscales of another number of columns": (
        lambda: run(Smooth("age", kernel=ng.kernels.RBF([1.0, 2.0]))),
        "lengthscale has length 2, but x has 1 column(s)",
        "one lengthscale per column",
    ),
    # Models
    "a term twice": (lambda: run(Linear() + Group("drug") + Group("drug")), "group(drug) twice", "leave one out"),
    "two intercepts": (lambda: run(Linear("age") + Linear("dose")), "linear(age) and linear(dose)", "intercept=False"),
    "one latent of two": (lambda: run(Linear(), likelihood=GAUSSIAN2), "2 latent(s), 'location' and 'scale'", "write"),
    "three latents of two": (
        lambda: run({"location": Linear(), "scale": Linear(), "shape": Linear()}, likelihood=GAUSSIAN2),
        "got terms of 'location', 'scale', 'shape'",
        "write Model({'location': ..., 'scale': ...}",
    ),
    "unknown latent": (
        lambda: run({"location": Linear(), "variance": Linear()}, likelihood=GAUSSIAN2),
        "'location' and 'scale', got terms of 'location', 'variance'",
        "write Model",
    ),
    "two latents of one": (lambda: run({"a": Linear(), "b": Linear()}), "Poisson has 1 latent(s)", "Model(terms, "),
    "no latents": (lambda: run({}), "got terms of none", "write Model(terms, "),
    "a column of a model without terms": (
        lambda: ng.infer(ng.Model(ng.GP("rbf"), lk.Poisson(exposure="n")), np.arange(3.0), [1, 2, 3]),
        "exposure is given by the column 'n'",
        "give one value per row",
    ),
    "too many weights": (
        lambda: ng.infer(ng.Model(Smooth("u", "v"), lk.Poisson()), wide, np.ones(10_500)),
        "at most 10000 are practical",
        "most are of smooth(u, v), with 10",
        "fewer levels or distinct values",
    ),
    "another index": (
        lambda: run(Linear("age"), pd.DataFrame(table()), pd.Series(np.ones(N), index=np.arange(N) + 1)),
        "different indexes, in row 0 0 and 1",
        "y.loc[x.index]",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_message(kind):
    build, *parts = BAD[kind]
    with pytest.raises(ValueError) as info:  # noqa: PT011
        build()
    for part in parts:
        assert part in str(info.value), str(info.value)


@pytest.fixture(scope="module")
def result():
    terms = Linear("drug", "age") + Group("site2") + RandomWalk("level") + Area("district", GRAPH)
    return run(terms, table(site2=list("uvwx") * 3), likelihood=lk.Poisson(exposure="n"))


NEW = {
    "drug": ["a"],
    "age": [30.0],
    "site2": ["u"],
    "level": [2],
    "district": ["north"],
    "n": [2.0],
}
BAD_NEW = {
    "new level of a fixed effect": (
        {"drug": ["z"]},
        "'drug' has the level 'z' in row 0",
        "'a', 'b', 'c'",
        "Group('drug')",
    ),
    "missing column": ({"age": None}, "x_new has no column 'age'", "add it"),
    "missing value": ({"age": [np.nan]}, "column 'age'", "row 0 is missing"),
    "text for numbers": ({"age": ["old"]}, "column 'age' must hold numbers", "'old'"),
    "part of a step": ({"level": [1.5]}, "row 0 of column 'level' is 1.5", "Trend('level')"),
    "unknown area": ({"district": ["east"]}, "'district' has 'east' in row 0", "not among the 2 known ones"),
    "missing exposure": ({"n": None}, "x_new has no column 'n'"),
    "negative exposure": ({"n": [-2.0]}, "row 0 of column 'n'", "got -2.0"),
    "columns of different lengths": ({"age": [1.0, 2.0]}, "'drug' has 1 and 'age' has 2", "one value per row"),
}


@pytest.mark.parametrize("kind", BAD_NEW)
def test_message_about_new_rows(kind, result):
    changed, *parts = BAD_NEW[kind]
    new = {name: values for name, values in (NEW | changed).items() if values is not None}
    with pytest.raises(ValueError) as info:  # noqa: PT011
        result.predict(new)
    for part in parts:
        assert part in str(info.value), str(info.value)


def test_new_rows_that_are_not_a_table(result):
    with pytest.raises(ValueError, match=r"x_new must be a table with the columns 'drug', 'age'.*got ndarray"):
        result.predict(np.ones((2, 3)))


@pytest.mark.slow
def test_good_new_rows(result):
    assert result.predict(NEW).mean.shape == (1,)
    assert result.predict(NEW | {"site2": ["new"]}).mean.shape == (1,)  # a new level of a group is no error


@pytest.mark.parametrize(
    ("entries", "row", "entry"),
    [([0, 1, "many", 3], 2, "'many'"), (["0", "1", "2", "n/a"], 3, "'n/a'"), (["0", "1", "2", "3"], 0, "'0'")],
)
def test_the_entry_that_is_no_number_is_named(entries, row, entry):
    with pytest.raises(ValueError, match=f"column 'y' must hold numbers to be y, but row {row} is {entry}: correct it"):
        ng.fit("y ~ x", {"y": np.array(entries, dtype=object), "x": np.arange(4.0)}, "poisson")


def test_the_entry_that_is_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"exposure must be greater than 0, but entry 2 is -1\.0: give a positive"):
        ng.likelihoods.Poisson(exposure=np.array([1.0, 2.0, -1.0, 3.0]))
    days = ["2020-01-01", "2020-01-02", "2020-13-01", "2020-01-04", "2020-01-05"]
    with pytest.raises(ValueError, match=r"column 'day' must hold times: .*, but row 2 is '2020-13-01': correct it"):
        ng.Forecaster().fit({"day": days, "sold": np.arange(5.0)}, time="day", y="sold")


@pytest.mark.parametrize("codes", [[*range(9), "none"], [*range(6), *"abcdef"], range(N)])
def test_text_with_few_levels_or_all_or_few_numbers_is_a_factor(codes):
    levels = [str(code) for code in codes]
    x = {"site": levels * 4, "y": np.arange(4 * len(levels)) % 3}
    effects = ng.infer(ng.Model(Linear("site"), "gaussian"), x, "y").effects()
    assert (effects.kind == "fixed").sum() == len(levels)
