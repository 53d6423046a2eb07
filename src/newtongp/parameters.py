"""The hyperparameters of a model by their names, and what a user wants of each: free, fixed, tied, with a prior.

A name is the path to the number, as one would write it in Python: `kernel.lengthscale`, `kernel[1].variance` for the
second part of a sum or the second latent, `mean.value`, `likelihood.variance`. Any ending of it will do, and stands for
all parameters that end so.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .arguments import traced
from .constraints import Constraint, Covariance, Positive, Real
from .likelihoods.base import Likelihood
from .precision import in_double, parameter
from .redundant import Variance, redundant_variances

Path = tuple[str | int, ...]

_ELIDED = ("parts", "kernels", "base")
"""Fields that a name leaves out: `kernel[0]` is `kernel.parts[0]`."""


# What a user can say of a parameter --------------------------------------------------------------


class Fixed:
    """Keep the value that the model has.

    >>> Fixed()
    Fixed()
    """

    def __repr__(self) -> str:
        return "Fixed()"


class Free:
    """Learn the value, within bounds and with a prior density on it where they are given.

    `prior` is a distribution such as `LogNormal(median, spread)`, or any function of the value that returns the log of
    its density (up to a constant) and that JAX can trace. `start` is where to begin, in place of the model's value.

    >>> Free(lower=0.1, upper=10.0)
    Free(lower=0.1, upper=10.0)
    """

    def __init__(self, lower: Any = None, upper: Any = None, prior: Any = None, start: Any = None):
        self.lower = None if lower is None else parameter(lower, "lower", max_ndim=2)
        self.upper = None if upper is None else parameter(upper, "upper", max_ndim=2)
        if self.lower is not None and self.upper is not None and np.any(self.lower >= self.upper):
            raise ValueError(f"lower must be less than upper, got {lower!r} and {upper!r}: swap them, or leave one out")
        if prior is not None and not callable(prior):
            raise ValueError(f"prior must be such as LogNormal(1.0, 0.5), or a function of the value, got {prior!r}")
        self.prior = prior
        self.start = None if start is None else parameter(start, "start", max_ndim=2)

    def __repr__(self) -> str:
        given = {"lower": self.lower, "upper": self.upper, "start": self.start}
        said = [f"{name}={value.tolist()}" for name, value in given.items() if value is not None]
        said += [f"prior={self.prior!r}"] if self.prior is not None else []
        return f"Free({', '.join(said)})"


class Tied:
    """Always the same value as another parameter.

    >>> Tied("kernel[0].lengthscale")
    Tied('kernel[0].lengthscale')
    """

    def __init__(self, to: str):
        if not isinstance(to, str):
            raise ValueError(f'to must be the name of a parameter, got {to!r}: write Tied("kernel[0].lengthscale")')
        self.to = to

    def __repr__(self) -> str:
        return f"Tied({self.to!r})"


class LogNormal(eqx.Module):
    """A prior for positive parameters: log value ~ N(log median, spread²).

    >>> round(float(LogNormal(2.0, 0.5)(2.0)), 4)
    -0.9189
    """

    median: Any = eqx.field(converter=lambda value: parameter(value, "median", lower=0.0, max_ndim=1))
    spread: Any = eqx.field(converter=lambda value: parameter(value, "spread", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """The log density, with respect to the value itself."""
        gap = (jnp.log(value) - jnp.log(self.median)) / self.spread
        return -0.5 * gap**2 - jnp.log(value * self.spread) - 0.5 * np.log(2.0 * np.pi)


class Normal(eqx.Module):
    """A prior for real parameters: value ~ N(mean, deviation²).

    >>> round(float(Normal(0.0, 1.0)(0.0)), 4)
    -0.9189
    """

    mean: Any = eqx.field(converter=lambda value: parameter(value, "mean", max_ndim=1))
    deviation: Any = eqx.field(converter=lambda value: parameter(value, "deviation", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """The log density."""
        gap = (value - self.mean) / self.deviation
        return -0.5 * gap**2 - jnp.log(self.deviation) - 0.5 * np.log(2.0 * np.pi)


class Gamma(eqx.Module):
    """A prior for positive parameters, with density ∝ value^(shape − 1) exp(−rate · value).

    >>> round(float(Gamma(1.0, 2.0)(0.0)), 4)
    0.6931
    """

    shape: Any = eqx.field(converter=lambda value: parameter(value, "shape", lower=0.0))
    rate: Any = eqx.field(converter=lambda value: parameter(value, "rate", lower=0.0))

    def __call__(self, value):
        """The log density."""
        powers = jax.scipy.special.xlogy(self.shape - 1.0, value)
        return powers - self.rate * value + self.shape * jnp.log(self.rate) - jax.scipy.special.gammaln(self.shape)


class Plausible(eqx.Module):
    """Where the data may decide alone: flat between two positive numbers, and falling with the log beyond them.

    This is the default for what data cannot always decide, such as a lengthscale far larger than the range of x. `fit`
    keeps it only where the data do not: an optimum beyond the range that has a curvature of its own is not moved.

    >>> bool(Plausible(0.1, 10.0)(1.0) == 0.0), round(float(Plausible(0.1, 1.0)(np.e)), 6)
    (True, -0.5)
    """

    lower: Any = eqx.field(converter=lambda value: parameter(value, "lower", lower=0.0, max_ndim=1))
    upper: Any = eqx.field(converter=lambda value: parameter(value, "upper", lower=0.0, max_ndim=1))

    def __call__(self, value):
        """Zero inside; minus half the square of the log ratio to the nearest bound outside."""
        beyond = jnp.maximum(jnp.log(value / self.upper), 0.0) + jnp.maximum(jnp.log(self.lower / value), 0.0)
        return -0.5 * beyond**2


# Finding them -------------------------------------------------------------------------------------


class Parameter(NamedTuple):
    """One hyperparameter of a model: its name, where it is, its value, and what is declared of it."""

    name: str
    path: Path
    value: np.ndarray
    constraint: Constraint
    learned: bool
    """Whether it is learned unless something else is said."""
    unit: str | None
    declared: bool = True
    """Whether its class declares it with `newtongp.learned`; if not, it is learned only where `Free` asks for it."""


_UNDECLARED = Real(), False, None, False


def hyperparameters(model: Any) -> list[Parameter]:
    """All hyperparameters of a model, a kernel, a mean or a likelihood, with their names.

    Numbers in fields that are not declared with `newtongp.learned` are among them, with `declared` False.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF() + ng.kernels.Constant()), ng.likelihoods.Gaussian())
    >>> [found.name for found in ng.hyperparameters(model)]
    ['kernel[0].lengthscale', 'kernel[0].variance', 'kernel[1].variance', 'likelihood.variance']
    """
    if not isinstance(model, eqx.Module):
        raise ValueError(
            f"model must be a Model, or a part of one such as a kernel, got {model!r}: hyperparameters of a result are "
            "those of result.model"
        )
    return list(_walk(model, (), "", _UNDECLARED))


def _walk(node: Any, path: Path, name: str, inherited: tuple) -> Iterator[Parameter]:
    hidden = _hidden(node)
    for field in dataclasses.fields(node):
        value, declaration = vars(node).get(field.name), field.metadata
        # What a field holds (a neural network, say) is declared with the field, as far as it declares nothing itself.
        told = inherited
        if "constraint" in declaration:
            told = declaration["constraint"], declaration["learned"], declaration["unit"], True
        if declaration.get("static") or value is None or told[0] is None or field.name in hidden:
            continue
        yield from _visit(value, (*path, field.name), _longer(name, field.name), told)


def _visit(value: Any, path: Path, name: str, told: tuple) -> Iterator[Parameter]:
    if isinstance(value, eqx.Module):
        yield from _walk(value, path, name, told)
    elif isinstance(value, (tuple, list)):
        for index, entry in enumerate(value):
            # The only part needs no number: `mean.value`, not `mean[0].value`.
            yield from _visit(entry, (*path, index), name if len(value) == 1 else f"{name}[{index}]", told)
    elif _is_real(value):
        yield Parameter(name, path, np.asarray(value, dtype=float), *told)


def _is_real(value: Any) -> bool:
    if isinstance(value, float):
        return True
    return isinstance(value, (np.ndarray, np.floating, jax.Array)) and jnp.issubdtype(value.dtype, np.floating)


def _longer(name: str, field: str) -> str:
    if field == "prior" or field in _ELIDED:
        return name
    return f"{name}.{field}" if name else field


def _hidden(node: Any) -> tuple[str, ...]:
    """Numbers that come with the rows of the data, or that latents stand in for."""
    if not isinstance(node, Likelihood):
        return ()
    return tuple(node.row_parameters)


def look_up(tree: Any, path: Path) -> Any:
    """What is at this path."""
    for step in path:
        tree = tree[step] if isinstance(step, int) else getattr(tree, step)
    return tree


def put(tree: Any, path: Path, value: Any) -> Any:
    """The tree with something else at this path."""
    return eqx.tree_at(lambda whole: look_up(whole, path), tree, value)


# What is learned ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slot:
    """A parameter that is learned, or several that share one value: all that a compiled program must know of it."""

    name: str
    paths: tuple[Path, ...]
    constraint: Constraint
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many free numbers it has."""
        return self.constraint.size(self.shape)


def values_of(slots: tuple[Slot, ...], free: Any) -> list[Any]:
    """The value of every slot, from the free numbers of all."""
    found, begin = [], 0
    for slot in slots:
        found.append(slot.constraint.from_free(free[begin : begin + slot.size], slot.shape))
        begin += slot.size
    return found


def with_values(slots: tuple[Slot, ...], tree: Any, values: Any) -> Any:
    """The tree (with the paths of a model) with these values in it."""
    for slot, value in zip(slots, values, strict=True):
        for path in slot.paths:
            tree = put(tree, path, value)
    return tree


class Learned(NamedTuple):
    """A slot with what was said of it."""

    slot: Slot
    start: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None
    prior: Any
    unit: str | None
    given_start: bool

    @property
    def free_start(self) -> np.ndarray:
        """The free numbers to start from."""
        return self.slot.constraint.to_free(self.start)


def choose(model: Any, wishes: Mapping[str, Any] | None) -> list[Learned]:
    """What is to be learned of a model, given what a user says of its parameters by name."""
    found = {each.name: each for each in hyperparameters(model)}
    said = _said(found, wishes or {})
    targets = {name: _tied_to(name, said, found) for name in found}
    left_out = _redundant(model, found, said, targets)
    chosen = []
    for name, each in found.items():
        wish = said.get(name)
        if targets[name] != name or name in left_out:
            continue
        if isinstance(wish, Fixed) or (wish is None and not each.learned):
            for other in (other for other in found if targets[other] == name and other != name):
                raise ValueError(
                    f"{other} is tied to {name}, which is not learned: let {name} be Free(), or give {other} the same "
                    "value in the model and say Fixed() of both"
                )
            continue
        paths = tuple(found[other].path for other in found if targets[other] == name)
        for other in (other for other in found if targets[other] == name):
            if found[other].value.shape != each.value.shape:
                raise ValueError(
                    f"{other} has shape {found[other].value.shape} and cannot be tied to {name} of shape "
                    f"{each.value.shape}: give both as many values"
                )
        chosen.append(_learned(each, paths, wish if isinstance(wish, Free) else Free()))
    return chosen


def redundant(model: Any, wishes: Mapping[str, Any] | None) -> dict[str, str]:
    """Variances that are not learned because only their product with another is determined, each with that one."""
    found = {each.name: each for each in hyperparameters(model)}
    said = _said(found, wishes or {})
    return _redundant(model, found, said, {name: _tied_to(name, said, found) for name in found})


def _redundant(
    model: Any, found: dict[str, Parameter], said: dict[str, Any], targets: dict[str, str]
) -> dict[str, str]:
    shared = {target for name, target in targets.items() if target != name}
    names = {each.path: each.name for each in found.values()}
    learned = {}
    for name, each in found.items():
        is_learned = isinstance(said[name], Free) if name in said else each.learned
        if is_learned and each.constraint.is_positive and targets[name] == name:
            is_said = name in said or name in shared
            learned[each.path] = Variance(each.path, each.value.size, each.unit, is_said)
    return {names[path]: names[other] for path, other in redundant_variances(model, learned).items()}


def left_alone(model: Any, wishes: Mapping[str, Any] | None) -> dict[str, str]:
    """What is not learned because its class does not declare it, with a sentence on how to; not what a wish names."""
    found = {each.name: each for each in hyperparameters(model)}
    said = _said(found, wishes or {})
    return {
        name: _undeclared_words(model, each) for name, each in found.items() if not each.declared and name not in said
    }


def _undeclared_words(model: Any, each: Parameter) -> str:
    path = each.path
    while isinstance(path[-1], int):
        path = path[:-1]
    owner, field = type(look_up(model, path[:-1])).__name__, path[-1]
    return (
        f"{each.name} was left as it is, since {owner} does not declare it. To learn it, declare the field in the "
        f"class, with the values that it may have: `{field}: Any = newtongp.learned(newtongp.Positive())`, or "
        "Between(lower, upper), Covariance() or Real(). To keep it, say so: "
        f'parameters={{"{each.name}": newtongp.Fixed()}}, or `{field}: Any = newtongp.learned(by_default=False)`.'
    )


def _said(found: dict[str, Parameter], wishes: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(wishes, Mapping):
        example = wishes if isinstance(wishes, str) else "lengthscale"
        raise ValueError(
            f"parameters must be a dictionary from names to Fixed(), Free(...) or Tied(name), got {wishes!r}: write "
            f'parameters={{"{example}": Fixed()}} to keep one as it is (all others are learned)'
        )
    for name in wishes:
        if not isinstance(name, str):
            raise ValueError(f"parameters must have names as keys, got {name!r}: the model has {_listed(found)}")
    said: dict[str, Any] = {}
    # Longer names are more particular, and have the last word.
    for name in sorted(wishes, key=len):
        wish = wishes[name]
        if not isinstance(wish, (Fixed, Free, Tied)):
            raise ValueError(f'parameters["{name}"] must be Fixed(), Free(...) or Tied(name), got {wish!r}')
        matches = _matches(found, name)
        for match in matches:
            # `Tied` said of several parameters by their ending leaves its target as it is, where that is one of them.
            if not (isinstance(wish, Tied) and len(matches) > 1 and _matches(found, wish.to) == [match]):
                said[match] = wish
    return said


def _matches(found: Mapping[str, Any], name: str) -> list[str]:
    matches = [name] if name in found else [each for each in found if each.endswith(f".{name}")]
    if not matches:
        near = difflib.get_close_matches(name, found, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"the model has no parameter {name!r}{hint}: it has {_listed(found)}")
    return matches


def _listed(found: Mapping[str, Any]) -> str:
    return ", ".join(found) or "none"


def _tied_to(name: str, said: dict[str, Any], found: dict[str, Parameter]) -> str:
    """The parameter whose value this one has, in the end."""
    seen = [name]
    while isinstance(said.get(seen[-1]), Tied):
        matches = _matches(found, said[seen[-1]].to)
        if len(matches) > 1:
            raise ValueError(f"{name} is tied to {said[seen[-1]].to!r}, which may be {' or '.join(matches)}: name one")
        if matches[0] == seen[-1]:
            raise ValueError(f"{seen[-1]} is tied to itself: name another parameter, or leave it out to learn it")
        if matches[0] in seen:
            raise ValueError(f"{' and '.join(seen)} are tied to each other: let one of them be free")
        seen.append(matches[0])
    return seen[-1]


def _learned(each: Parameter, paths: tuple[Path, ...], wish: Free) -> Learned:
    constraint = each.constraint
    if isinstance(constraint, Covariance) and each.value.ndim > 2:
        raise ValueError(f"{each.name} has one matrix a step, which cannot be learned: give one for all steps")
    is_matrix = isinstance(constraint, Covariance) and each.value.ndim == 2
    bounds = []
    for name, bound in (("lower", wish.lower), ("upper", wish.upper)):
        if bound is not None and is_matrix:
            raise ValueError(f"{each.name} is a matrix: it has no {name} bound, leave it out")
        bounds.append(None if bound is None else _of_its_shape(bound, each, name))
    lower, upper = bounds
    if constraint.is_positive and lower is not None and np.any(lower < 0.0):
        raise ValueError(
            f"{each.name} is positive: its lower bound must be at least 0, got {wish.lower!r}: leave it out"
        )
    if constraint.is_positive and upper is not None and np.any(upper <= 0.0):
        raise ValueError(
            f"{each.name} is positive: its upper bound must be greater than 0, got {wish.upper!r}: leave it out"
        )
    start = each.value if wish.start is None else _of_its_shape(wish.start, each, "start")
    if not np.all(np.isfinite(constraint.to_free(start))):
        raise ValueError(
            f"{each.name} cannot be learned from {start.tolist()}, which is at the edge of what it may be: start inside"
        )
    if lower is not None or upper is not None:
        inside = _inside(start, lower, upper, constraint)
        if wish.start is not None and not np.array_equal(inside, start):
            raise ValueError(f"{each.name} cannot start from {start.tolist()}, not strictly between its bounds")
        start = inside
    if wish.prior is not None:
        _check_density(wish.prior, each.name, start)
    return Learned(_slot(each, paths), start, lower, upper, wish.prior, each.unit, wish.start is not None)


def _slot(each: Parameter, paths: tuple[Path, ...]) -> Slot:
    is_matrix = isinstance(each.constraint, Covariance) and each.value.ndim == 2
    constraint = Positive() if each.constraint.is_positive and not is_matrix else each.constraint
    return Slot(each.name, paths, constraint, each.value.shape)


def slots_of(model: Any, learned: list[str], tied: Mapping[str, str]) -> tuple[Slot, ...]:
    """The slots of what was learned of a model, by name, given which parameters share the value of another."""
    found = {each.name: each for each in hyperparameters(model)}
    return tuple(
        _slot(found[name], tuple(each.path for each in found.values() if tied.get(each.name, each.name) == name))
        for name in learned
    )


@in_double
def _check_density(prior: Any, name: str, value: np.ndarray) -> None:
    """Raise ValueError unless a prior, which may be a user's own function, is the log of a density at this value."""
    what = f"the prior of {name}"
    with traced(what):
        found = np.asarray(jax.jit(lambda at: jnp.asarray(prior(at)))(value))
    if found.shape not in ((), value.shape):
        raise ValueError(
            f"{what} must return one number and not an array of shape {found.shape}: return the log of a density, "
            "summed over all values"
        )
    if not np.all(found < np.inf):
        raise ValueError(
            f"{what} must return the log of a density, but it is {found.tolist()} at {value.tolist()}: check "
            "its formula, and return -inf where the density is 0"
        )


def _of_its_shape(value: Any, each: Parameter, what: str) -> np.ndarray:
    try:
        return np.broadcast_to(value, each.value.shape).copy()
    except ValueError:
        raise ValueError(
            f"{what} of {each.name} has shape {value.shape}, the parameter {each.value.shape}: give a number, or one "
            "for each of its values"
        ) from None


def _inside(start: np.ndarray, lower: Any, upper: Any, constraint: Constraint) -> np.ndarray:
    """The start, moved to the middle of the bounds where it is not between them."""
    low = np.full(start.shape, -np.inf) if lower is None else lower
    high = np.full(start.shape, np.inf) if upper is None else upper
    outside = (start <= low) | (start >= high)
    if not np.any(outside):
        return start
    both = np.isfinite(low) & np.isfinite(high)
    with np.errstate(all="ignore"):
        geometric = constraint.is_positive & (low > 0.0)
        middle = np.where(geometric, np.sqrt(np.abs(low) * high), 0.5 * (low + high))
        above = np.where(geometric | (low > 0.0), 2.0 * low, low + 1.0)
        below = np.where(constraint.is_positive, 0.5 * high, high - 1.0)
    inside = np.where(both, middle, np.where(np.isfinite(low), above, below))
    return np.where(outside, inside, start)
