"""Fixed effects: a design matrix with one coefficient per column, and offsets."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..numerics.known import dependent_column
from ..parameters.constraints import Real, learned, never_learned
from ..validation.numbers import parameter
from .base import Encoder, Term, Units, Weights, columns_of, replaced
from .features import Feature, Numeric, bind_all, label_of
from .table import Table

_WIDE = 10.0
"""The standard deviation of the wide prior, in units of the data."""
_TYPICAL = 10.0
"""The size of a step of a search, in standard errors: logarithms of variances have errors of about a tenth."""
PRIORS = ("wide", "flat", "maximised")


def read_prior(given: Any, argument: str) -> str | float:
    """A prior of fixed effects, which is one of `PRIORS` or a standard deviation.

    >>> read_prior("flat", "prior"), read_prior(2, "prior")
    ('flat', 2.0)
    >>> read_prior("maximized", "effects")
    Traceback (most recent call last):
        ...
    ValueError: effects must be 'wide', 'flat', 'maximised' or a standard deviation, got 'maximized'
    """
    if not isinstance(given, str):
        return float(parameter(given, argument, lower=0.0))
    if given not in PRIORS:
        raise ValueError(f"{argument} must be 'wide', 'flat', 'maximised' or a standard deviation, got {given!r}")
    return given


@dataclasses.dataclass(frozen=True)
class DesignEncoder(Encoder):
    """A design matrix: bound features, and an intercept if there is one."""

    features: tuple[Feature, ...]
    intercept: bool

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for feature in self.features for source in feature.sources))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coefficients."""
        own = tuple(name for feature in self.features for name in feature.names)
        return ("intercept", *own) if self.intercept else own

    def encode(self, table: Table) -> np.ndarray:
        parts = [feature.columns(table) for feature in self.features]
        return np.concatenate([np.ones((table.rows, int(self.intercept))), *parts], axis=1)


class Linear(Term):
    """Effects of columns: numbers, factors and their interactions, with an intercept unless `intercept=False`.

    Each of `effects` is the name of a column (a factor if it holds text or categories, numbers otherwise), a tuple of
    names or "a:b" for an interaction, or one of `Numeric`, `Factor`, `Polynomial` and `Spline` of `terms.features`.
    `prior` says what is done with the coefficients:

    - `"wide"`, the default: they are integrated under a normal prior that is wide in units of the data. The intercept,
      at the means of the columns, has a standard deviation of ten times that of the latent (1 where a link is between
      it and y), and a coefficient has the same per standard deviation of its column.
    - a number: they are integrated under N(0, prior²), independent of each other.
    - `"flat"`: they are integrated without a prior, as by REML.
    - `"maximised"`: they are hyperparameters, which `fit` learns (`coefficients`), as by `glmer`. There the intercept
      is that at the means of the columns.

    >>> Linear("age", "treatment", "age:treatment").label
    'linear(age, treatment, age:treatment)'
    """

    effects: tuple[str | tuple | Feature, ...] = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)
    prior: str = eqx.field(static=True)
    """One of `PRIORS`, or "normal" if a standard deviation was given."""
    size: int = eqx.field(static=True)
    """The number of coefficients, once bound."""
    centres: Any = never_learned()
    """The means of the columns, which are subtracted if there is an intercept."""
    scales: Any = never_learned()
    """The standard deviations of the coefficients of centred columns under a wide prior, once bound."""
    location: Any = never_learned()
    """The prior mean of the intercept under a wide prior, once bound."""
    deviation: Any = never_learned(default=None)
    """The standard deviation under a normal prior: a number, so that programs do not depend on it."""
    errors: Any = never_learned()
    """Approximate standard errors of maximised coefficients, as units of their search."""
    coefficients: Any = learned(Real(), unit="f/column")

    def __init__(self, *effects: Any, intercept: bool = True, prior: Any = "wide"):
        if not effects and not intercept:
            raise ValueError("Linear needs at least one effect: name a column, or leave intercept=True")
        self.effects = tuple(_checked(effect) for effect in effects)
        self.intercept = bool(intercept)
        read = read_prior(prior, "prior")
        self.prior, self.deviation = (read, None) if isinstance(read, str) else ("normal", np.asarray(read))
        self.size = 0
        self.centres = self.scales = self.location = self.errors = self.coefficients = None

    @property
    def label(self) -> str:
        if not self.effects:
            return "intercept"
        return f"linear({', '.join(map(label_of, self.effects))})"

    @property
    def width(self) -> int:
        return self.size

    @property
    def count(self) -> int:
        return 0 if self.prior == "maximised" else self.size

    @property
    def is_known(self) -> bool:
        return True

    @property
    def units(self) -> np.ndarray:
        """The sizes of changes of the coefficients that matter, once bound."""
        return np.asarray(self.scales) / _WIDE if self.errors is None else _TYPICAL * np.asarray(self.errors)

    @property
    def is_flat(self) -> bool:
        return self.prior == "flat"

    def bind(self, table: Table, units: Units) -> tuple["Linear", DesignEncoder]:
        encoder = DesignEncoder(bind_all(self.effects, self.intercept, table), self.intercept)
        x = encoder.encode(table)
        centres = np.mean(x, axis=0) if self.intercept else np.zeros(x.shape[1])
        centres[:1] = 0.0 if self.intercept else centres[:1]
        _check_rank(x - centres, encoder.names)
        spread = np.sqrt(np.mean((x - centres) ** 2, axis=0))
        scales = _WIDE * units.scale / np.where(spread > 0.0, spread, 1.0)
        bound = replaced(self, size=x.shape[1], centres=centres, scales=scales, location=np.array(units.location))
        if self.prior == "maximised" and np.shape(self.coefficients) != scales.shape:
            start = np.zeros(scales.shape)
            start[:1] = units.location if self.intercept else 0.0
            bound = replaced(bound, coefficients=start)
        return bound, encoder

    def read_rows(self, x: np.ndarray) -> np.ndarray:
        return x - np.asarray(self.centres)

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        if self.prior == "maximised":
            return ()
        flat = self.prior == "flat"
        return (Weights(None, rows if flat else rows @ self._root(), None, 1, "", flat),)

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        return self.weights(x - jnp.asarray(self.centres)[None])

    def mean(self, rows: Any) -> Any:
        if self.prior == "maximised":
            return rows @ self.coefficients
        # A wide prior of the intercept is centred on the data.
        return self.location if self.prior == "wide" and self.intercept else 0.0

    def new_mean(self, x: Any) -> Any:
        return self.mean(x - jnp.asarray(self.centres)[None])

    def _root(self) -> Any:
        """L with LLᵀ the prior covariance of the coefficients of centred columns."""
        if self.prior == "wide":
            return jnp.diag(jnp.asarray(self.scales))
        # The intercept at the means of the columns is the one at zero plus all coefficients times these means.
        identity = jnp.eye(self.size)
        return self.deviation * (identity.at[0].add(self.centres) if self.intercept else identity)

    def at_zero(self) -> np.ndarray:
        """T with β = Tw: from coefficients of centred columns to those of columns as they are."""
        back = np.eye(self.size)
        if self.intercept:
            back[0] -= np.asarray(self.centres)
        return back


def _check_rank(x: np.ndarray, names: tuple[str, ...]) -> None:
    """Raise ValueError, naming the column, if a column is a linear combination of those before it."""
    size = np.sqrt(np.sum(x**2, axis=0))
    for place in np.flatnonzero(size == 0.0):
        raise ValueError(
            f"{names[place]} is the same in all rows, so its effect cannot be told from the intercept: leave it out"
        )
    if x.shape[1] > x.shape[0]:
        raise ValueError(
            f"there are {x.shape[1]} effects ({', '.join(names[:4])}, …) but only {x.shape[0]} row(s): leave some out, "
            "or use Group(...) for a factor with many levels, whose effects share a variance"
        )
    place = dependent_column(x)
    if place is not None:
        raise ValueError(
            f"{names[place]} is a linear combination of the effects before it ({', '.join(names[:place][-6:])}), so "
            "their effects cannot be told apart: leave it out"
        )


def _checked(effect: Any) -> Any:
    if isinstance(effect, (tuple, list)):
        return tuple(map(_checked, effect))
    if not isinstance(effect, (str, Feature)):
        raise ValueError(f"an effect must be the name of a column, or one such as Factor('drug'), got {effect!r}")
    return effect


@dataclasses.dataclass(frozen=True)
class FeatureEncoder(Encoder):
    """The columns of bound features."""

    features: tuple[Feature, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source for feature in self.features for source in feature.sources))

    def encode(self, table: Table) -> np.ndarray:
        return np.concatenate([feature.columns(table) for feature in self.features], axis=1)


class Offset(Term):
    """A known part of the latent: a column of numbers, or a function of one, whose coefficient is 1.

    >>> Offset("population", "log").label
    'offset(log(population))'
    """

    feature: Numeric = eqx.field(static=True)

    def __init__(self, column: str, function: str | None = None):
        (name,) = columns_of(column, "Offset")
        self.feature = Numeric(name, function)

    @property
    def label(self) -> str:
        return f"offset({self.feature.label})"

    @property
    def width(self) -> int:
        return 1

    @property
    def count(self) -> int:
        return 0

    @property
    def is_known(self) -> bool:
        return True

    def bind(self, table: Table, units: Units) -> tuple["Offset", FeatureEncoder]:
        encoder = FeatureEncoder((self.feature,))
        encoder.encode(table)
        return self, encoder

    def read_rows(self, x: np.ndarray) -> np.ndarray:
        return x

    def weights(self, rows: Any) -> tuple[Weights, ...]:
        return ()

    def new_weights(self, x: Any) -> tuple[Weights, ...]:
        return ()

    def mean(self, rows: Any) -> Any:
        return rows[:, 0]

    def new_mean(self, x: Any) -> Any:
        return x[:, 0]
