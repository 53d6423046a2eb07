"""The algebra of formulas: operators expanded to sums of products of columns and calls, by formulaic.

formulaic reads the text and expands `+ - * / : ^ **` and parentheses. Added to its operators are `|` and `||`, which
separate the effects of a group from its columns, and a memory of `0` and `- 1`, since left sides of `|` have an
intercept of their own.
"""

import re
from typing import Any, NamedTuple

from formulaic.errors import FormulaParsingError
from formulaic.parser import DefaultFormulaParser, DefaultOperatorResolver
from formulaic.parser.types import Factor, Operator, OrderedSet, Term

from ..validation.text import short


class Piece(NamedTuple):
    """One factor of a product: the name of a column, or a call such as `log(x)`."""

    text: str
    is_call: bool


class Effects(NamedTuple):
    """A sum of products, and whether an intercept is part of it."""

    products: tuple[tuple[Piece, ...], ...]
    intercept: bool


class Grouped(NamedTuple):
    """`(effects | group)`: effects whose coefficients differ between the levels of combinations of columns."""

    effects: Effects
    groups: tuple[tuple[Piece, ...], ...]
    correlated: bool
    text: str


class Sides(NamedTuple):
    """A formula: what is left of `~`, the effects on the right, and both effects and groups as they were written."""

    output: tuple[tuple[Piece, ...], ...] | None
    effects: Effects
    in_order: tuple[Any, ...]


_INTERCEPT = Term([Factor("1", eval_method="literal")])
_WITHOUT = Term([Factor("(no intercept)")])
"""Stands for `0` or `- 1` in a sum."""
_ABOUT_INTERCEPT = (_INTERCEPT, _WITHOUT)


class _GroupTerm(Term):
    def __init__(self, effects: Any, groups: Any, symbol: str):
        left, right = (" + ".join(map(_shown, side)) for side in (effects, groups))
        super().__init__([Factor(f"({left} {symbol} {right})")])
        self.effects, self.groups, self.symbol = effects, groups, symbol


def _plus(left: Any, right: Any) -> Any:
    """What is said last about the intercept holds, as in R."""
    if _WITHOUT in right:
        left = left - OrderedSet([_INTERCEPT])
    if _INTERCEPT in right:
        left = left - OrderedSet([_WITHOUT])
    return left | right


def _minus(left: Any, right: Any) -> Any:
    return _plus(left - right, _negated(right))


def _negated(right: Any) -> Any:
    return OrderedSet([_WITHOUT] if _INTERCEPT in right else [])


def _in_parentheses(context: Any) -> bool:
    return "(" in [str(outer) for outer in context]


def _everything(*_: Any, **__: Any) -> Any:
    raise ValueError("a formula cannot use . for all other columns: name the columns")


class _Operators(DefaultOperatorResolver):
    """formulaic's operators, with `|` and `||` inside parentheses."""

    @property
    def operators(self) -> list[Operator]:
        own = ("+", "-", "|", ".", "in")
        other = [operator for operator in super().operators if operator.symbol not in own]

        def bar(symbol: str) -> Operator:
            def to_terms(effects: Any, groups: Any) -> Any:
                return OrderedSet([_GroupTerm(effects, groups, symbol)])

            return Operator(
                symbol, arity=2, precedence=50, associativity=None, to_terms=to_terms, accepts_context=_in_parentheses
            )

        sums: dict[str, Any] = {"precedence": 100}
        return [
            *other,
            Operator(".", arity=0, precedence=1000, fixity="postfix", to_terms=_everything),
            bar("|"),
            bar("||"),
            Operator("+", arity=2, associativity="left", to_terms=_plus, **sums),
            Operator("-", arity=2, associativity="left", to_terms=_minus, **sums),
            Operator("+", arity=1, associativity="right", fixity="prefix", to_terms=lambda terms: terms, **sums),
            Operator("-", arity=1, associativity="right", fixity="prefix", to_terms=_negated, **sums),
        ]


def expand(formula: str) -> Sides:
    """The sums of products that a formula stands for."""
    try:
        found = DefaultFormulaParser(_Operators(), include_intercept=False).get_terms(formula)
    except FormulaParsingError as error:
        raise ValueError(f"the formula {formula!r} cannot be read: {_reason(error)}") from None
    except SyntaxError as error:
        part = (error.text or formula).strip()
        raise ValueError(f"{part} cannot be read: write a call such as log(x), or C(x) for a factor") from None
    output = getattr(found, "lhs", None)
    right = list(found.rhs if output is not None else found)
    effects = _effects([term for term in right if not isinstance(term, _GroupTerm)], formula)
    in_order = [_grouped(t) if isinstance(t, _GroupTerm) else _pieces(t) for t in right if t not in _ABOUT_INTERCEPT]
    return Sides(None if output is None else tuple(map(_pieces, output)), effects, tuple(in_order))


def _grouped(term: _GroupTerm) -> Grouped:
    text = term.factors[0].expr
    groups = [group for group in term.groups if group != _INTERCEPT]
    inner = next((t for t in [*term.effects, *groups] if isinstance(t, _GroupTerm)), None)
    if inner is not None or not groups:
        raise ValueError(f"{text} has no column as its group: write (effects | column), as in (1 | clinic)")
    effects = _effects(list(term.effects), text)
    return Grouped(effects, tuple(_pieces(group) for group in groups), term.symbol == "|", text)


def _effects(terms: list[Any], text: str) -> Effects:
    """The terms in the order of their degrees, as R has them."""
    intercept = _WITHOUT not in terms
    products = [term for term in terms if term not in _ABOUT_INTERCEPT]
    for term in products:
        wrong = next((f for f in term.factors if f.expr == _WITHOUT.factors[0].expr or f.expr.startswith("(")), None)
        if wrong is not None:
            what = "0" if wrong.expr == _WITHOUT.factors[0].expr else wrong.expr
            raise ValueError(f"{what} cannot be multiplied, in {text!r}: add it as a term of its own")
    return Effects(tuple(_pieces(term) for term in sorted(products, key=lambda term: term.degree)), intercept)


def _pieces(term: Any) -> tuple[Piece, ...]:
    found = []
    for factor in term.factors:
        if factor.eval_method is Factor.EvalMethod.LITERAL:
            if factor.expr == "1":
                continue
            raise ValueError(
                f"{_shown(term)} multiplies a column by a number: rescale that column in the table instead"
            )
        found.append(Piece(factor.expr, factor.eval_method is Factor.EvalMethod.PYTHON))
    return tuple(found)


def _shown(term: Any) -> str:
    return "0" if term == _WITHOUT else ":".join(factor.expr for factor in term.factors)


_GROUPS = " (groups are written in parentheses, as (1 | clinic))"


def _reason(error: Exception) -> str:
    """What is wrong, in one line, and the formula with that part between two marks."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    reason, _, where = plain.partition("\n\n")
    reason = _explained(re.sub(r"\s*\(tip:.*", "", reason).strip().rstrip(".").replace("`", "'"))
    return f"{reason}, here: {short(where.strip(), 200)[1:-1]}" if where.strip() else reason


def _explained(reason: str) -> str:
    """formulaic's reason in words that say what to write; its own words where it is none of the usual ones."""
    operator = re.match(r"Operator '(.+?)' (has|is) ", reason)
    if operator is not None:
        symbol = operator.group(1)
        if symbol == "~":
            return "there must be one ~, with the terms to its right, and y, if it is said, to its left"
        advice = _GROUPS if "|" in symbol else ""
        return f"'{symbol}' must be between two terms: write what is missing, or leave it out{advice}"
    if "context" in reason:
        return "a parenthesis or quote is opened and not closed, or closed and not opened"
    unknown = re.match(r"Unknown operator '(.+)'", reason)
    if unknown is not None:
        return f"{unknown.group(1)!r} is not an operator of formulas, which are + - * / : ^ ** and (1 | g)"
    between = re.match(r"Missing operator between '(.+)' and '(.+)'", reason)
    if between is not None:
        one, two = between.groups()
        return f"there is no operator between {one} and {two}: write {one} + {two}, or {one}:{two} for their product"
    return reason
