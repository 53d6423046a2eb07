"""Formulas: models of tables in one line, as in R."""

import ast
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ..validation.text import short
from .base import Term, Terms
from .features import FUNCTIONS, Factor, Numeric, Polynomial, Spline
from .group import Group
from .linear import Linear, Offset, read_prior
from .smooth import Area, Smooth
from .times import RandomWalk, Season, Trend


@dataclasses.dataclass(frozen=True)
class Formula:
    """What a formula says: the terms, and the column that holds y."""

    terms: Terms
    output: str | None
    """The name on the left of `~`; None if there is nothing."""
    text: str

    def __str__(self) -> str:
        return self.text


def from_formula(formula: str, effects: Any = "wide", **objects: Any) -> Formula:
    """The terms that a formula stands for, and the name of y.

    `"y ~ a * b + (1 | g) + smooth(x)"` has fixed effects (`Linear`), groups in parentheses (`Group`), and calls of the
    other terms: `smooth`, `trend`, `season`, `walk`, `area` and `offset`. `effects` is the prior of the fixed effects,
    "wide", "flat", "maximised" or a standard deviation, as in `Linear`. `objects` are kernels, graphs of areas and
    others that the formula refers to by their names. It needs the package formulaic, which reads the formula.

    >>> formula = from_formula("seizures ~ treatment * base + (1 | patient) + smooth(age)")
    >>> formula.output, str(formula.terms)
    ('seizures', 'linear(treatment, base, treatment:base) + group(patient) + smooth(age)')
    """
    if not isinstance(formula, str):
        raise ValueError(f"a formula is text such as 'y ~ x + (1 | g)', got {short(formula)}")
    if "~" not in formula:
        left, equals, right = formula.partition("=")
        better = f"{left.strip()} ~ {right.strip()}" if equals and "(" not in left else f"y ~ {formula.strip() or 1}"
        raise ValueError(f"the formula {formula!r} has no ~: write '{better}'")
    left, _, right = formula.partition("~")
    if not right.strip():
        output = left.strip() or "y"
        raise ValueError(
            f"the formula {formula!r} has nothing to the right of ~: write its terms there, as in '{output} ~ x + "
            f"(1 | g)', or '{output} ~ 1' for an intercept alone"
        )
    prior = read_prior(effects, "effects")
    sides, reader = _expand(formula), _Reader(objects)
    read = {product: _read_product(product, reader) for product in sides.effects.products}
    linear = [found for found in read.values() if not isinstance(found, Term)]
    terms: list[Any] = []
    if linear or sides.effects.intercept:
        terms.append(Linear(*linear, intercept=sides.effects.intercept, prior=prior))
    for part in sides.in_order:
        terms += _groups(part, reader) if part not in read else [read[part]] if isinstance(read[part], Term) else []
    if not terms:
        raise ValueError(f"the formula {formula!r} has no terms: write 'y ~ 1' for an intercept alone")
    unused = next((name for name in objects if name not in reader.used), None)
    if unused is not None:
        raise ValueError(f"the formula {formula!r} does not use {unused!r}: leave it out, or name it in the formula")
    return Formula(Terms(tuple(terms)), _output(sides.output, formula), formula)


def is_formula(value: Any) -> bool:
    """Whether this is a formula, as text or read, or a mapping from the names of latents to formulas.

    >>> is_formula("y ~ x"), is_formula({"mean": "y ~ x", "scale": "~ z"}), is_formula(3.0)
    (True, True, False)
    """
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(entry, (str, Formula)) for entry in value.values())
    return isinstance(value, (str, Formula))


def read_formulas(given: Any, effects: Any = None) -> tuple[Any, str]:
    """The terms of a formula, or those of a mapping from the names of latents to formulas, and the name of y."""
    formulas = given if isinstance(given, Mapping) else {"f": given}
    read = {name: _with_effects(formula, effects) for name, formula in formulas.items()}
    outputs = list(dict.fromkeys(formula.output for formula in read.values() if formula.output is not None))
    if len(outputs) != 1:
        shown = "; ".join(map(str, read.values()))
        if not outputs:
            raise ValueError(f"the formula {shown!r} does not say what y is: write its column on the left, 'y {shown}'")
        raise ValueError(
            f"the formulas of one model must have one y, got {', '.join(outputs)}: write '~ x' for the others"
        )
    terms = {name: formula.terms for name, formula in read.items()}
    return terms if isinstance(given, Mapping) else terms["f"], outputs[0]


def _with_effects(formula: Any, effects: Any) -> Formula:
    if isinstance(formula, str):
        return from_formula(formula, "wide" if effects is None else effects)
    if effects is not None:
        raise ValueError("effects belong to a formula as text: give them to from_formula, and leave them out here")
    return formula


def _expand(formula: str) -> Any:
    try:
        from .algebra import expand
    except ImportError:
        raise ImportError(
            "formulas are read by the package formulaic: install it with `pip install newtongp[formula]`, or write the "
            "terms themselves, as in terms.Linear('age') + terms.Group('clinic')"
        ) from None
    return expand(formula)


def _output(output: Any, formula: str) -> str | None:
    if output is None:
        return None
    if len(output) != 1 or len(output[0]) != 1:
        raise ValueError(f"the left side of {formula!r} must be one column, which holds y")
    (piece,) = output[0]
    if piece.is_call:
        raise ValueError(
            f"the left side of a formula must be a column, got {piece.text}: add it to the table as a column of its "
            "own, or choose a likelihood that does it (LogNormal for log(y), Binomial(trials='n') for proportions)"
        )
    return piece.text


def _read_product(product: Any, reader: "_Reader") -> Any:
    """What a product stands for: an effect of `Linear`, or a term."""
    found = [reader.read(piece) for piece in product]
    if len(found) == 1:
        return found[0]
    if not any(isinstance(entry, Term) for entry in found):
        return tuple(found)
    offset = next((piece.text for piece, e in zip(product, found, strict=True) if isinstance(e, Offset)), None)
    if offset is not None:
        raise ValueError(f"{offset} cannot be multiplied: add it as a term of its own")
    if all(isinstance(entry, Term) for entry in found):
        return functools.reduce(operator.mul, found)
    plain = next(piece.text for piece, e in zip(product, found, strict=True) if not isinstance(e, Term))
    smooth = next(piece.text for piece, e in zip(product, found, strict=True) if isinstance(e, Term))
    raise ValueError(
        f"{smooth}:{plain} multiplies a term by a column: write {smooth[:-1]}, by={plain}) for one function per level, "
        "or for a coefficient that varies"
    )


def _groups(grouped: Any, reader: "_Reader") -> list[Group]:
    slope = []
    for product in grouped.effects.products:
        entries = [reader.read(piece) for piece in product]
        special = next((e for e in entries if isinstance(e, Term)), None)
        if special is not None:
            column = grouped.groups[0][0].text
            raise ValueError(
                f"{grouped.text} has {product[0].text} on the left of |, which must be columns: write "
                f"{product[0].text[:-1]}, by=C({column})) for one function per level of {column}"
            )
        slope.append(entries[0] if len(entries) == 1 else tuple(entries))
    if not slope and not grouped.effects.intercept:
        raise ValueError(f"{grouped.text} has no effects: write (1 | g) for an intercept per level, (x | g) for slopes")
    found = []
    for group in grouped.groups:
        call = next((piece.text for piece in group if piece.is_call), None)
        if call is not None:
            raise ValueError(f"{grouped.text} has {call} on the right of |, which must be a column: name the column")
        columns = [piece.text for piece in group]
        options = {"correlated": grouped.correlated, "intercept": grouped.effects.intercept}
        found.append(Group(*columns, slope=tuple(slope), **options))
    return found


# Calls ------------------------------------------------------------------------------------------------

_TERMS: dict[str, Callable[..., Any]] = {
    "smooth": Smooth,
    "trend": Trend,
    "season": Season,
    "walk": RandomWalk,
    "randomwalk": RandomWalk,
    "area": Area,
}
_FEATURES: dict[str, Callable[..., Any]] = {"poly": Polynomial, "spline": Spline, "ns": Spline}
_ADVICE = {
    "bs": "write spline(x, 4) for a natural cubic spline, or smooth(x) for a function whose smoothness is learned",
    "cr": "write spline(x, 4) for a natural cubic spline, or smooth(x) for a function whose smoothness is learned",
    "cc": "write season(x, period) for a function that repeats",
    "te": "write smooth(a, b) for a function of two columns, or smooth(a):smooth(b) for a tensor product",
    "ti": "write smooth(a):smooth(b) for a tensor product",
    "scale": "standardise the column in the table; wide priors are in units of the data already",
    "center": "subtract the mean in the table; the estimates of other effects do not depend on it",
    "standardize": "standardise the column in the table; wide priors are in units of the data already",
    "factor": "write C(x)",
    "cut": "add the bins to the table as a column of its own",
    "lag": "add the shifted column to the table",
    "mo": "write walk(level) for effects of ordered levels that are similar for neighbouring ones",
    "weights": "give weights='column' to fit or infer",
    "group": "write (1 | g)",
    "linear": "write its columns as terms of the formula",
}
_ADVICE |= dict.fromkeys(("s", "gp", "hsgp", "f"), "write smooth(x)")
_CODINGS = {"Treatment": "treatment", "treatment": "treatment", "Sum": "sum", "sum": "sum"}


class _Reader:
    """Reads the factors of products: names of columns, and calls of functions, features and terms."""

    def __init__(self, objects: Mapping[str, Any]):
        self._objects, self.used = objects, set()

    def read(self, piece: Any) -> Any:
        """The name of a column, a feature or a term."""
        if not piece.is_call:
            return piece.text
        if "`" in piece.text:
            raise ValueError(
                f"{piece.text} names a column in backquotes inside of a call, which cannot be read: rename the column "
                "to a word"
            )
        try:
            call = ast.parse(piece.text, mode="eval").body
        except SyntaxError:
            raise ValueError(
                f"{piece.text} cannot be read: write a call such as log(x), or C(x) for a factor"
            ) from None
        name = _name_of(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or name is None:
            raise ValueError(f"{piece.text} computes with columns: add the result to the table as a column of its own")
        return self._call(name, call, piece.text)

    def _call(self, name: str, call: ast.Call, text: str) -> Any:
        if name in FUNCTIONS:
            return Numeric(self._only_column(call, text), name)
        if name == "I":
            return _computed(call, text)
        if name == "C":
            return self._factor(call, text)
        if name == "offset":
            return self._offset(call, text)
        if name in _TERMS:
            return self._term(_TERMS[name], call, text)
        if name in _FEATURES:
            arguments = self._arguments(call, text, 1)
            return _made(_FEATURES[name], *arguments, text=text)
        if name == "cbind":
            raise ValueError(f"{text} is not read: give the successes as y, and Binomial(trials='n') with their column")
        advice = _ADVICE.get(name.split(".")[0])
        known = ", ".join([*FUNCTIONS, *_FEATURES, "C", *_TERMS, "offset"])
        raise ValueError(
            f"{text}: there is no {name}() in formulas: {advice or 'add its values to the table as a column'} "
            f"(there are {known})"
        )

    def _term(self, kind: Callable[..., Any], call: ast.Call, text: str) -> Any:
        positional, named = self._arguments(call, text, len(call.args) if kind is Smooth else 1)
        group = named.get("by")
        if isinstance(group, Factor):
            return _made(kind, positional, {k: v for k, v in named.items() if k != "by"}, text=text) * Group(
                group.column
            )
        if kind is Area and isinstance([*positional[1:], named.get("neighbours", "graph")][0], str):
            column, graph = positional[0] if positional else "district", [*positional[1:], "graph"][0]
            raise ValueError(
                f"{text} needs the graph of neighbours: write area({column}, {graph}), and give it to "
                f"from_formula(..., {graph}=neighbours)"
            )
        return _made(kind, positional, named, text=text)

    def _arguments(self, call: ast.Call, text: str, columns: int) -> tuple[list[Any], dict[str, Any]]:
        """The values of arguments: names of columns first, then literals and named objects."""
        if any(isinstance(argument, ast.Starred) for argument in call.args) or any(
            k.arg is None for k in call.keywords
        ):
            raise ValueError(f"{text} has arguments with stars: write them out")
        positional = [
            _column(argument, text) if place < columns else self._value(argument, text)
            for place, argument in enumerate(call.args)
        ]
        named = {
            str(k.arg): self._by(k.value, text) if k.arg == "by" else self._value(k.value, text) for k in call.keywords
        }
        return positional, named

    def _by(self, node: ast.expr, text: str) -> Any:
        if isinstance(node, ast.Call) and _name_of(node.func) == "C":
            return self._factor(node, text)
        return _column(node, text)

    def _value(self, node: ast.expr, text: str) -> Any:
        if isinstance(node, ast.Name):
            if node.id in self._objects:
                self.used.add(node.id)
                return self._objects[node.id]
            return node.id
        try:
            return ast.literal_eval(node)
        except ValueError:
            shown = ast.unparse(node)
            raise ValueError(
                f"{text} has the argument {shown}, which is neither a name nor a value: give it a name, as in "
                f"from_formula('... {text.replace(shown, 'this')} ...', this={shown})"
            ) from None

    def _only_column(self, call: ast.Call, text: str) -> str:
        if len(call.args) != 1 or call.keywords:
            raise ValueError(f"{text} must have one column: write {_name_of(call.func)}(x)")
        return _column(call.args[0], text)

    def _offset(self, call: ast.Call, text: str) -> Offset:
        if len(call.args) == 1 and isinstance(call.args[0], ast.Call) and not call.keywords:
            inner = call.args[0]
            name = _name_of(inner.func)
            if name not in FUNCTIONS:
                raise ValueError(f"{text}: an offset is a column or a function of one: {', '.join(FUNCTIONS)}")
            return Offset(self._only_column(inner, text), name)
        return Offset(self._only_column(call, text))

    def _factor(self, call: ast.Call, text: str) -> Factor:
        """`C(x)`, `C(x, reference="b")`, `C(x, coding="sum")`, and the spellings of formulaic and of patsy."""
        if not call.args:
            raise ValueError(f"{text} must have a column: write C(x)")
        options = {}
        for argument in [*call.args[1:], *(k.value for k in call.keywords if k.arg == "contr")]:
            options |= self._contrast(argument, text)
        options |= {str(k.arg): self._value(k.value, text) for k in call.keywords if k.arg != "contr"}
        return _made(Factor, [_column(call.args[0], text)], options, text=text)

    def _contrast(self, node: ast.expr, text: str) -> dict[str, Any]:
        name = _name_of(node.func) if isinstance(node, ast.Call) else _name_of(node)
        if name is None:
            return {"reference": self._value(node, text)}
        coding = _CODINGS.get(name.removeprefix("contr."))
        if coding is None:
            raise ValueError(f"{text}: there is no coding {name}: codings are contr.treatment('b') and contr.sum")
        given = [*node.args, *(k.value for k in node.keywords)] if isinstance(node, ast.Call) else []
        return {"coding": coding} | ({"reference": self._value(given[0], text)} if given else {})


def _name_of(node: ast.expr) -> str | None:
    """The name of a function; that of NumPy's and of `contr` without or with their module."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id in ("np", "numpy") else f"{node.value.id}.{node.attr}"
    return None


def _column(node: ast.expr, text: str) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise ValueError(
        f"{text} is over columns, got {ast.unparse(node)}: name a column, and add what is computed to the table first"
    )


def _computed(call: ast.Call, text: str) -> Numeric:
    """`I(x)` and `I(x ** 2)`."""
    inner = call.args[0] if len(call.args) == 1 else None
    if isinstance(inner, ast.Name):
        return Numeric(inner.id)
    if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Pow) and isinstance(inner.left, ast.Name):
        if isinstance(inner.right, ast.Constant) and inner.right.value == 2:
            return Numeric(inner.left.id, "square")
        raise ValueError(f"{text} is a power: write poly({inner.left.id}, 3), or add it to the table as a column")
    raise ValueError(f"{text} computes with columns: add the result to the table as a column of its own")


def _made(kind: Callable[..., Any], positional: list[Any], named: dict[str, Any], *, text: str) -> Any:
    try:
        return kind(*positional, **named)
    except TypeError as error:
        raise ValueError(f"{text} has wrong arguments: {str(error).split('__init__() ')[-1]}") from None
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
