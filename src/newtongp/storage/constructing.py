"""Objects from their fields, through their own constructors and checks."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from scipy import sparse

from .. import means
from .._runtime.double import in_double
from ..kernels.graph import Graph
from ..likelihoods.categorical import Ordinal
from ..likelihoods.chained import Chained
from ..likelihoods.multilatent import LinearCoregionalisation, MultivariateGaussian, RegressionNetwork
from ..priors.by_name import is_named
from ..priors.dense import GP
from ..priors.linear import LinearModel
from ..priors.markov import MarkovGP
from ..priors.space_time import SpaceTimeGP
from ..priors.sparse import SparseGP
from ..validation.text import short
from .errors import require
from .terms import TERMS

_RENAMED: dict[type, dict[str, str]] = {
    LinearCoregionalisation: {"noise": "covariance"},
    LinearModel: {"latents": "num_latents"},
    MarkovGP: {"clock": "unit"},
    MultivariateGaussian: {"noise": "covariance"},
    RegressionNetwork: {"noise": "covariance"},
}
"""Fields whose constructor argument has another name."""


def construct(cls: Any, values: dict[str, Any]) -> Any:
    """The object that the constructor creates; its own error, or ValueError, if its fields would differ."""
    return in_double(_SPECIAL.get(cls, functools.partial(_plain, cls)))(values)


def _plain(cls: Any, values: dict[str, Any]) -> Any:
    """Call the constructor with its arguments; derived fields must equal the values that it derives."""
    renamed = _RENAMED.get(cls, {})
    arguments = {renamed.get(name, name): value for name, value in values.items()}
    signature = inspect.signature(cls.__init__).parameters
    given = {
        name: _as_given(name, arguments[name], signature[name].annotation) for name in signature if name in arguments
    }
    made = cls(**given)
    _require_derived(made, {name: value for name, value in values.items() if renamed.get(name, name) not in given})
    return made


def _as_given(name: str, value: Any, hint: Any) -> Any:
    """A field in the form of a constructor argument."""
    if name == "lapse" and value is None:
        return 0.0  # stored as None, because there is nothing to learn
    wants_float = float in (hint, *typing.get_args(hint))
    return value.item() if wants_float and isinstance(value, np.ndarray) and value.ndim == 0 else value


def _require_derived(made: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        require(same(getattr(made, name), value), f"{name} cannot be {short(value)} given the other fields")


def same(a: Any, b: Any) -> bool:
    """Whether two values have the same structure and bitwise equal numbers."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(_same_leaf(one, other) for one, other in pairs)


def _same_leaf(one: Any, other: Any) -> bool:
    if type(one) is str or type(other) is str:
        return type(one) is type(other) and one == other
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


# Classes whose fields are not the arguments of their constructors ---------------------------------------------------


def _of_a_kernel(cls: Any) -> Callable[[dict[str, Any]], Any]:
    """A prior with a kernel, which may have been given by its name."""

    def make(values: dict[str, Any]) -> Any:
        by_name, mean = values["by_name"], values["mean"]
        require(isinstance(mean, means.Independent), f"mean cannot be {short(mean)}")
        made = _plain(cls, {**values, "by_name": False})
        require(not by_name or is_named(values["kernel"]), f"{short(values['kernel'])} has no name to be given by")
        object.__setattr__(made, "by_name", by_name)
        return made

    return make


def _sparse(values: dict[str, Any]) -> SparseGP:
    count, inputs = values["count"], values["inducing"]
    require((count is None) != (inputs is None), "inducing inputs must be either given or counted")
    if inputs is None:
        return _of_a_kernel(SparseGP)({**values, "inducing": count})
    fine = all(isinstance(matrix, np.ndarray) and matrix.dtype.kind == "f" and matrix.ndim == 2 for matrix in inputs)
    require(fine and len(inputs) > 0, "inducing inputs must be matrices")
    given = inputs[0] if len(inputs) == 1 else list(inputs)
    made = _of_a_kernel(SparseGP)({**values, "inducing": given})
    require(same(made.inducing, inputs), "inducing inputs do not fit the kernel")
    return made


def _markov(values: dict[str, Any]) -> MarkovGP:
    count, times = values["count"], values["inducing"]
    require(count is None or times is None, "inducing times must be either given or counted")
    fine = times is None or (isinstance(times, np.ndarray) and times.dtype.kind == "f" and times.ndim == 1)
    require(fine, "inducing times must be a vector")
    made = _of_a_kernel(MarkovGP)({**values, "inducing": count if times is None else times})
    require(same(made.inducing, times), "inducing times must be in ascending order")
    return made


def _space_time(values: dict[str, Any]) -> SpaceTimeGP:
    count, places, mean = values["count"], values["inducing"], values["mean"]
    require(count is None or places is None, "inducing places must be either given or counted")
    require(isinstance(mean, means.Independent), f"mean cannot be {short(mean)}")
    fine = places is None or (isinstance(places, np.ndarray) and places.dtype.kind == "f" and places.ndim == 2)
    require(fine, "inducing places must be a matrix")
    inducing = count if places is None else places
    return SpaceTimeGP(values["time"], values["space"], inducing, values["clock"], mean)


def _ordinal(values: dict[str, Any]) -> Ordinal:
    first, gaps = values["first"], values["gaps"]
    require(np.ndim(first) == 0 and (gaps is None or np.ndim(gaps) == 1), "thresholds must be numbers")
    rises = np.zeros(0) if gaps is None else np.cumsum(gaps)
    made = Ordinal(np.concatenate([[first], first + rises]), values["scale"], values["link"])
    require((made.gaps is None) == (gaps is None), "there are no gaps without thresholds")
    # As they were written: differences of sums are not bitwise equal.
    for name in ("first", "gaps"):
        object.__setattr__(made, name, None if values[name] is None else np.array(values[name], dtype=np.float64))
    require(made.gaps is None or np.all(made.gaps > 0.0), f"gaps must be positive, got {short(gaps)}")
    return made


def _chained(values: dict[str, Any]) -> Chained:
    names, links = values["names"], values["link_names"]
    require(len(set(names)) == len(names) == len(links), f"there must be one link for each of {short(names)}")
    made = Chained(values["base"], **dict(zip(names, links, strict=True)))
    _require_derived(made, {"names": names, "link_names": links})
    return made


def _graph(values: dict[str, Any]) -> Graph:
    """A kernel of a graph, from its edges. What is derived from them is kept: other machines round differently."""
    pairs, weights, count = values["pairs"], values["weights"], values["nodes"]
    matrix = sparse.coo_array((weights, (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    made = Graph(matrix + matrix.T, values["kind"], values["variance"], values["phi"], values["rho"])
    for name in ("pairs", "weights"):
        require(same(getattr(made, name), values[name]), f"{name} cannot be {short(values[name])}")
    vectors = values["vectors"]
    require((vectors is None) == (made.vectors is None), f"vectors cannot be {short(vectors)} in this kind")
    # Eigenvectors of equal eigenvalues are determined only together.
    spanned = values["structure"] if vectors is None else (vectors * values["eigenvalues"]) @ vectors.T
    for name, found in (("structure", values["structure"]), ("vectors", spanned)):
        require(_close(found, made.structure), f"{name} cannot be {short(values[name])} given the edges")
    require(_close(values["eigenvalues"], made.eigenvalues), "eigenvalues cannot be others than those of the edges")
    require(vectors is None or _close(vectors.T @ vectors, np.eye(count)), "vectors must be orthonormal")
    for name in ("structure", "eigenvalues", "vectors"):
        object.__setattr__(made, name, values[name])
    return made


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-6, atol=1e-9)


_SPECIAL: dict[Any, Callable[[dict[str, Any]], Any]] = {
    **TERMS,
    Chained: _chained,
    GP: _of_a_kernel(GP),
    Graph: _graph,
    MarkovGP: _markov,
    Ordinal: _ordinal,
    SpaceTimeGP: _space_time,
    SparseGP: _sparse,
}

IN_PLACE = 0.25
"""A value within the range of every built-in parameter that can be a latent."""


def prepare(cls: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The nodes of an object's fields, completed for the constructors.

    A parameter that `Chained` replaces by a latent is None, which no constructor accepts. It gets a value here, which
    `Chained` removes again.
    """
    match fields if cls is Chained else None:
        case {"base": {"object": _, "fields": dict(inside)} as base, "names": {"tuple": list(names)}}:
            filled = {name: IN_PLACE if name in names and part is None else part for name, part in inside.items()}
            return {**fields, "base": {**base, "fields": filled}}
    return fields
