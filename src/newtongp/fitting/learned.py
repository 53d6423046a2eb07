"""The hyperparameters that `fit` learns, given the user's specifications."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..parameters.constraints import Constraint, Covariance, Positive
from ..parameters.names import Parameter, Path, hyperparameters, look_up, put_all
from ..parameters.specifications import Fixed, Free, Tied, _check_density, _inside, _of_its_shape
from .redundant import Variance, redundant_shift, redundant_variances


@dataclasses.dataclass(frozen=True)
class Slot:
    """A learned parameter, or several that share one value, as a static argument of compiled programs."""

    name: str
    paths: tuple[Path, ...]
    constraint: Constraint
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of free numbers."""
        return self.constraint.size(self.shape)


def values_of(slots: tuple[Slot, ...], unconstrained: Any) -> list[Any]:
    """The value of every slot, from the free numbers of all."""
    values, begin = [], 0
    for slot in slots:
        values.append(slot.constraint.constrain(unconstrained[begin : begin + slot.size], slot.shape))
        begin += slot.size
    return values


def with_values(slots: tuple[Slot, ...], tree: Any, values: Any) -> Any:
    """A copy of the tree, which has the paths of a model, with these values."""
    pairs = [(path, value) for slot, value in zip(slots, values, strict=True) for path in slot.paths]
    return put_all(tree, [path for path, _ in pairs], [value for _, value in pairs])


class Learned(NamedTuple):
    """A slot with its specification."""

    slot: Slot
    start: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None
    prior: Any
    unit: str | None
    given_start: bool

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The lower and upper bound, infinite where there is none."""
        return -np.inf if self.lower is None else self.lower, np.inf if self.upper is None else self.upper


def choose(model: Any, specifications: Mapping[str, Any] | None) -> list[Learned]:
    """The parameters of a model to learn, given the user's specifications by name."""
    known, specified, targets = _read(model, specifications)
    left_out = _redundant(model, known, specified, targets)
    chosen = []
    for name, item in known.items():
        specification = specified.get(name)
        if targets[name] != name or name in left_out:
            continue
        if isinstance(specification, Fixed) or (specification is None and not item.learned):
            for other in (other for other in known if targets[other] == name and other != name):
                raise ValueError(
                    f"{other} is tied to {name}, which is not learned: let {name} be Free(), or give {other} the same "
                    "value in the model and make both Fixed()"
                )
            continue
        paths = tuple(known[other].path for other in known if targets[other] == name)
        for other in (other for other in known if targets[other] == name):
            if known[other].value.shape != item.value.shape:
                raise ValueError(
                    f"{other} has shape {known[other].value.shape} and cannot be tied to {name} of shape "
                    f"{item.value.shape}: give both the same number of values"
                )
        chosen.append(_learned(item, paths, specification if isinstance(specification, Free) else Free()))
    return chosen


def redundant(model: Any, specifications: Mapping[str, Any] | None) -> dict[str, str]:
    """Parameters that are not learned because only they and another together are determined, each with the other.

    Variances are multiplied by the other, and a threshold is compared to an intercept.
    """
    return _redundant(model, *_read(model, specifications))


def _read(
    model: Any, specifications: Mapping[str, Any] | None
) -> tuple[dict[str, Parameter], dict[str, Any], dict[str, str]]:
    """All parameters by name, their specifications, and the parameter whose value each has."""
    known = _by_name(model)
    specified = _specified(known, specifications or {})
    return known, specified, {name: _tied_to(name, specified, known) for name in known}


def _by_name(model: Any) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in hyperparameters(model)}


def _redundant(
    model: Any, known: dict[str, Parameter], specified: dict[str, Any], targets: dict[str, str]
) -> dict[str, str]:
    shared = {target for name, target in targets.items() if target != name}
    names = {item.path: item.name for item in known.values()}
    learned = {}
    for name, item in known.items():
        is_learned = isinstance(specified[name], Free) if name in specified else item.learned
        if is_learned and item.constraint.is_positive and targets[name] == name:
            is_specified = name in specified or name in shared
            learned[item.path] = Variance(item.path, item.value.size, item.unit, is_specified)
    found = {names[path]: names[other] for path, other in redundant_variances(model, learned).items()}
    shift = redundant_shift(model)
    if shift is not None and names[shift[0]] not in {*specified, *shared}:
        found[names[shift[0]]] = shift[1]
    return found


def left_alone(model: Any, specifications: Mapping[str, Any] | None) -> dict[str, str]:
    """Parameters that are neither declared by their classes nor specified by the user, each with advice."""
    known = _by_name(model)
    specified = _specified(known, specifications or {})
    return {name: _advice(model, item) for name, item in known.items() if not item.declared and name not in specified}


def _advice(model: Any, item: Parameter) -> str:
    path = item.path
    while isinstance(path[-1], int):
        path = path[:-1]
    owner, field = type(look_up(model, path[:-1])).__name__, path[-1]
    return (
        f"{item.name} was not learned, because {owner} does not declare it. To learn it, declare the field in the "
        f"class, with the values that it may have: `{field}: Any = newtongp.learned(newtongp.Positive())`, or "
        "Between(lower, upper), Covariance() or Real(). To keep it fixed without this warning: "
        f'parameters={{"{item.name}": newtongp.Fixed()}}, or `{field}: Any = newtongp.learned(by_default=False)`.'
    )


def _specified(known: dict[str, Parameter], specifications: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(specifications, Mapping):
        example = specifications if isinstance(specifications, str) else "lengthscale"
        raise ValueError(
            f"parameters must be a dictionary from names to Fixed(), Free(...) or Tied(name), got {specifications!r}: "
            f'write parameters={{"{example}": Fixed()}} to keep one as it is (all others are learned)'
        )
    for name in specifications:
        if not isinstance(name, str):
            raise ValueError(f"parameters must have names as keys, got {name!r}: the model has {_listed(known)}")
    specified: dict[str, Any] = {}
    # Longer names are more specific and take precedence.
    for name in sorted(specifications, key=len):
        specification = specifications[name]
        if not isinstance(specification, (Fixed, Free, Tied)):
            raise ValueError(f'parameters["{name}"] must be Fixed(), Free(...) or Tied(name), got {specification!r}')
        matches = _matches(known, name)
        for match in matches:
            # If `Tied` applies to several parameters by their ending, and its target is one of them, that is left out.
            if not (
                isinstance(specification, Tied) and len(matches) > 1 and _matches(known, specification.to) == [match]
            ):
                specified[match] = specification
    return specified


def _matches(known: Mapping[str, Any], name: str) -> list[str]:
    matches = [name] if name in known else [item for item in known if item.endswith(f".{name}")]
    if not matches:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"the model has no parameter {name!r}{hint}: it has {_listed(known)}")
    return matches


def _listed(known: Mapping[str, Any]) -> str:
    return ", ".join(known) or "none"


def _tied_to(name: str, specified: dict[str, Any], known: dict[str, Parameter]) -> str:
    """The parameter whose value this one has, after following all ties."""
    chain = [name]
    while isinstance(specified.get(chain[-1]), Tied):
        matches = _matches(known, specified[chain[-1]].to)
        if len(matches) > 1:
            raise ValueError(
                f"{name} is tied to {specified[chain[-1]].to!r}, which may be {' or '.join(matches)}: specify one"
            )
        if matches[0] == chain[-1]:
            raise ValueError(f"{chain[-1]} is tied to itself: name another parameter, or leave it out to learn it")
        if matches[0] in chain:
            raise ValueError(f"{' and '.join(chain)} are tied to each other: let one of them be free")
        chain.append(matches[0])
    return chain[-1]


def _learned(item: Parameter, paths: tuple[Path, ...], specification: Free) -> Learned:
    constraint = item.constraint
    if isinstance(constraint, Covariance) and item.value.ndim > 2:
        raise ValueError(f"{item.name} has one matrix per step, which cannot be learned: give one for all steps")
    is_matrix = isinstance(constraint, Covariance) and item.value.ndim == 2
    bounds = []
    for name, bound in (("lower", specification.lower), ("upper", specification.upper)):
        if bound is not None and is_matrix:
            raise ValueError(f"{item.name} is a matrix: it has no {name} bound, leave it out")
        bounds.append(None if bound is None else _of_its_shape(bound, item, name))
    lower, upper = bounds
    if constraint.is_positive and lower is not None and np.any(lower < 0.0):
        raise ValueError(
            f"{item.name} is positive: its lower bound must be at least 0, got {specification.lower!r}: leave it out"
        )
    if constraint.is_positive and upper is not None and np.any(upper <= 0.0):
        raise ValueError(
            f"{item.name} is positive: its upper bound must be greater than 0, got {specification.upper!r}: leave "
            "it out"
        )
    start = item.value if specification.start is None else _of_its_shape(specification.start, item, "start")
    if not np.all(np.isfinite(constraint.unconstrain(start))):
        raise ValueError(
            f"{item.name} cannot start from {start.tolist()}, which is at a limit of its possible values: start inside"
        )
    if lower is not None or upper is not None:
        inside = _inside(start, lower, upper, constraint)
        if specification.start is not None and not np.array_equal(inside, start):
            raise ValueError(f"{item.name} cannot start from {start.tolist()}, not strictly between its bounds")
        start = inside
    if specification.prior is not None:
        _check_density(specification.prior, item.name, start)
    return Learned(
        _slot(item, paths), start, lower, upper, specification.prior, item.unit, specification.start is not None
    )


def _slot(item: Parameter, paths: tuple[Path, ...]) -> Slot:
    is_matrix = isinstance(item.constraint, Covariance) and item.value.ndim == 2
    constraint = Positive() if item.constraint.is_positive and not is_matrix else item.constraint
    return Slot(item.name, paths, constraint, item.value.shape)


def slots_of(model: Any, learned: list[str], tied: Mapping[str, str]) -> tuple[Slot, ...]:
    """The slots of the parameters that were learned, given which others share their values."""
    known = _by_name(model)
    return tuple(
        _slot(known[name], tuple(item.path for item in known.values() if tied.get(item.name, item.name) == name))
        for name in learned
    )


def tied_names(slots: tuple[Slot, ...], model: Any) -> dict[str, str]:
    """The names of parameters that share the value of another, each with the name of the other."""
    names = {item.path: item.name for item in hyperparameters(model)}
    return {names[path]: slot.name for slot in slots for path in slot.paths if names[path] != slot.name}
