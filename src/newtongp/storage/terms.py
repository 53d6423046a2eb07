"""Terms of additive models from their fields: through their constructors, and then as they were bound to a table."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..priors.additive import Additive, chained_terms, large_groups
from ..terms.columns import TableColumns
from ..terms.group import Group, GroupEncoder
from ..terms.inputs import InputEncoder, ProductEncoder
from ..terms.kernel_term import KernelTerm, Product
from ..terms.linear import DesignEncoder, FeatureEncoder, Linear, Offset
from ..terms.smooth import Area, Smooth
from ..terms.times import RandomWalk, Season, Trend
from ..validation.text import short
from .errors import require


def _is_floats(value: Any, *shape: int | None) -> bool:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.ndim != len(shape):
        return False
    return all(side in (None, length) for side, length in zip(shape, value.shape, strict=True))


def _with(made: Any, values: dict[str, Any], *names: str) -> Any:
    """The object with these fields as they were written, and the others as its constructor made them."""
    for name in names:
        object.__setattr__(made, name, values[name])
    for name, value in values.items():
        found = getattr(made, name)
        if isinstance(value, (str, bool, int, tuple)) and name not in names:
            require(jax.tree.leaves(found) == jax.tree.leaves(value), f"{name} cannot be {short(value)}")
    return made


def _linear(values: dict[str, Any]) -> Linear:
    deviation = values.get("deviation")
    prior = values["prior"] if deviation is None else float(deviation)
    made = Linear(*values["effects"], intercept=values["intercept"], prior=prior)
    size, coefficients = values["size"], values["coefficients"]
    require(size >= 0, f"size cannot be {size}")
    for name in ("centres", "scales"):
        fine = _is_floats(values[name], size) if size else values[name] is None
        require(fine, f"{name} must have one number per column, {size}")
    location = values["location"]
    require(_is_floats(location) if size else location is None, f"location cannot be {short(location)}")
    require(size == 0 or np.all(values["scales"] > 0.0), "scales must be positive")
    learned = size > 0 and made.prior == "maximised"
    fine = _is_floats(coefficients, size) if learned else coefficients is None
    require(fine, f"coefficients cannot be {short(coefficients)}")
    return _with(made, values, "size", "centres", "scales", "location", "coefficients")


def _group(values: dict[str, Any]) -> Group:
    flags = {name: values[name] for name in ("correlated", "intercept", "covariance")}
    made = Group(values["columns"], slope=values["slope"], **flags)
    size, levels, covariance = values["size"], values["levels"], values["covariance"]
    require((size > 0) == (levels > 0) and size >= 0, f"{size} coefficient(s) of {levels} level(s) are impossible")
    if size > 0:
        shapes = [(size, size)] if size > 1 and made.correlated else [(), (size,)] if size == 1 else [(size,)]
        require(np.shape(covariance) in shapes, f"covariance cannot be {short(covariance)}")
    return _with(made, values, "size", "levels", "covariance")


# Smooth terms -------------------------------------------------------------------------------------------


def _bound(made: Any, values: dict[str, Any], width: int, *names: str) -> Any:
    """A term with the points to which it was bound, which have this number of inputs and perhaps a level."""
    points, used, by_level = values["points"], values["used"], values["by_level"]
    require((points is None) == (used is None), "points and used belong together")
    require(not by_level or values["by"] is not None, "there are no levels without `by`")
    if points is not None:
        require(_is_floats(points, None, width + int(by_level)), f"points must have {width + int(by_level)} column(s)")
        fine = isinstance(used, np.ndarray) and used.dtype.kind == "b" and used.shape == points.shape[:1]
        require(fine and np.all(used == (np.arange(used.size) < used.sum())) and used.any(), "used must mark points")
    return _with(made, values, "points", "used", "by_level", "grouped", *names)


def _smooth(values: dict[str, Any]) -> Smooth:
    count, inputs, sparse = values["inducing_count"], values["inducing"], values["sparse"]
    require(count is None or inputs is None, "inducing inputs must be either given or counted")
    require(inputs is None or _is_floats(inputs, None, None), "inducing inputs must be a matrix")
    inducing = count if inputs is None else inputs
    made = Smooth(*values["columns"], kernel=values["kernel"], by=values["by"], unit=values["clock"], inducing=inducing)
    require(not sparse or (made.asks_for_inducing and values["points"] is not None), "there are no inducing inputs")
    return _bound(made, values, len(made.columns), "by_name", "sparse")


def _trend(values: dict[str, Any]) -> Trend:
    form, kernel = values["form"], values["kernel"]
    require(form in Trend.FORMS and len(values["columns"]) == 1, f"form cannot be {short(form)}")
    given = {"kernel": kernel} if form == "kernel" else {"kind": form}
    made = Trend(values["columns"][0], by=values["by"], unit=values["clock"], **given)
    fine = jax.tree.structure(made.kernel) == jax.tree.structure(kernel)
    require(fine, f"kernel cannot be {short(kernel)} in a trend of this kind")
    return _bound(made, values, 1, "kernel")


def _season(values: dict[str, Any]) -> Season:
    numbers = {name: values[name] for name in ("lengthscale", "variance", "decay")}
    require(len(values["columns"]) == 1, "a season is over one column")
    others = {"by": values["by"], "harmonics": values["harmonics"], "unit": values["clock"]}
    made = Season(values["columns"][0], values["period"], **others, **numbers)
    return _bound(made, values, 1)


def _random_walk(values: dict[str, Any]) -> RandomWalk:
    require(len(values["columns"]) == 1, "a walk is over one column")
    made = RandomWalk(values["columns"][0], values["order"], variance=values["variance"], by=values["by"])
    return _bound(made, values, 1)


def _area(values: dict[str, Any]) -> Area:
    kernel, areas = values["kernel"], values["areas"]
    count = getattr(kernel, "nodes", None)
    require(len(set(areas)) == len(areas) == count, f"there must be one name for each of {count} areas")
    require(values["by"] is None and len(values["columns"]) == 1, "areas are of one column")
    # The graph has been checked already; the constructor would only compute its structure again.
    made = object.__new__(Area)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return _bound(made, values, 1)


def _product(values: dict[str, Any]) -> Product:
    require(len(values["parts"]) > 1, "a product has at least two factors")
    made, widths = Product(values["parts"]), values["widths"]
    require(len(widths) in (0, len(made.parts)) and all(w > 0 for w in widths), f"widths cannot be {short(widths)}")
    require((len(widths) == 0) == (values["points"] is None), "widths and points belong together")
    return _bound(made, values, sum(widths), "widths")


def _offset(values: dict[str, Any]) -> Offset:
    feature = values["feature"]
    return _with(Offset(feature.column, feature.function), values, "feature")


def _additive(values: dict[str, Any]) -> Additive:
    names, latents = values["names"], values["latents"]
    require(len(set(names)) == len(names) == len(latents) > 0, f"names cannot be {short(names)}")
    require(all(terms.terms for terms in latents), "every latent needs a term")
    made = Additive(dict(zip(names, latents, strict=True)))
    is_bound = all(term.width > 0 and getattr(term, "points", 0) is not None for own in latents for term in own.terms)
    chained, eliminated = values["chained"], values["eliminated"]
    found = chained_terms(made.latents) if is_bound else ()
    large = set(large_groups(made.latents)) if is_bound and not found else set()
    fits = chained == found and isinstance(eliminated, tuple) and set(eliminated) <= large
    # Which groups are nested in each other depends on the rows, which are compared with this later.
    fits = fits and len(set(eliminated)) == len(eliminated) and bool(eliminated) == bool(large)
    require(fits, f"these terms cannot have the structure {short({'eliminated': eliminated, 'chained': chained})}")
    return _with(made, values, "latents", "chained", "eliminated")


TERMS: dict[Any, Callable[[dict[str, Any]], Any]] = {
    Additive: _additive,
    Area: _area,
    Group: _group,
    Linear: _linear,
    Offset: _offset,
    Product: _product,
    RandomWalk: _random_walk,
    Season: _season,
    Smooth: _smooth,
    Trend: _trend,
}
"""Functions that construct terms from their fields."""


# Encoders ----------------------------------------------------------------------------------------------


def check_table_columns(result: Any) -> None:
    """Raise an error if the encoders of a result do not fit its terms."""
    prior, columns = result.model.prior, result.columns
    require(isinstance(prior, Additive) and isinstance(columns, TableColumns), "terms and their encoders are missing")
    require(len(columns.encoders) == prior.num_latents, "there must be one set of encoders per latent")
    for terms, encoders in zip(prior.latents, columns.encoders, strict=True):
        require(len(terms.terms) == len(encoders), "there must be one encoder per term")
        for term, encoder in zip(terms.terms, encoders, strict=True):
            require(_fits(term, encoder), f"the encoder of {term.label} is of another term")
    if result.data is not None:
        _check_codes(prior, columns, result.data.x)


def _check_codes(prior: Additive, columns: TableColumns, x: np.ndarray) -> None:
    """Raise an error if rows of the data have levels or inputs that the terms do not have."""
    prior.check_inputs(x)
    nested = prior.structured(lambda latent, number: x[:, prior.places[latent][number].start].astype(int)).eliminated
    require(
        nested == prior.eliminated, f"these groups are eliminated as {short(nested)}, not {short(prior.eliminated)}"
    )
    for terms, encoders, places in zip(prior.latents, columns.encoders, prior.places, strict=True):
        for term, encoder, place in zip(terms.terms, encoders, places, strict=True):
            own = x[:, place]
            if isinstance(encoder, GroupEncoder):
                codes = own[:, 0]
                fine = np.all((codes == np.round(codes)) & (codes >= 0) & (codes < len(encoder.levels)))
                require(fine, f"rows have levels that {term.label} does not have")
            elif isinstance(term, KernelTerm) and not term.is_sparse:
                known = {row.tobytes() for row in np.asarray(term.points)[np.asarray(term.used)]}
                fine = all(row.tobytes() in known for row in np.unique(own[:, :-1], axis=0))
                require(fine, f"rows have inputs that {term.label} does not have")


def _fits(term: Any, encoder: Any) -> bool:
    if isinstance(term, Linear):
        return isinstance(encoder, DesignEncoder) and len(encoder.names) == term.size > 0
    if isinstance(term, Offset):
        return isinstance(encoder, FeatureEncoder) and len(encoder.features) == 1
    if isinstance(term, Group):
        if not isinstance(encoder, GroupEncoder) or encoder.columns != term.columns:
            return False
        return (
            len(encoder.names) == term.size > 0 and 2 <= len(set(encoder.levels)) == len(encoder.levels) <= term.levels
        )
    if not isinstance(term, KernelTerm) or term.points is None:
        return False
    parts = encoder.parts if isinstance(encoder, ProductEncoder) else (encoder,)
    if isinstance(term, Product) != isinstance(encoder, ProductEncoder):
        return False
    if not all(isinstance(part, InputEncoder) and len(part.columns) == len(part.levels) for part in parts):
        return False
    return sum(len(part.columns) for part in parts) == np.shape(term.points)[1]
