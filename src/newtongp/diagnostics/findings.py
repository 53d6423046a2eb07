"""Findings: properties of a result that deserve a second look."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.compilation import compiled
from .._runtime.double import in_double
from .._runtime.lazy import is_a
from ..inference.quadrature import NotEstimated, Rows, estimate_error, rule_words
from ..inputs.data import Data
from ..likelihoods.base import over_rows
from ..likelihoods.categorical import Bernoulli
from ..methods.curvature import QuasiNewton
from ..methods.rule import Method, evaluate, propose
from ..methods.safeguard import Heuristic
from ..numerics.known import smallest_eigenvalue_given
from ..parameters.constraints import Between, Covariance
from ..parameters.names import Parameter, hyperparameters
from ..parameters.priors import Plausible
from ..prediction.predict import left_out
from ..results.fit_result import FitResult
from ..results.profiles import entry_name, interval
from ..results.result import Result
from ..results.wording import SEARCHES, in_words, inference_sentence, inference_status
from ..validation.text import in_a_sentence, number, shown


class Finding(NamedTuple):
    """A property that deserves a second look: its subject, and a text that says what to do."""

    about: str
    text: str
    rows: tuple[int, ...] = ()
    """The rows concerned, the worst first."""


def find_all(result: Result, checks: bool) -> tuple[list[Finding], list[str]]:
    """All findings, and what could not be checked; without `checks`, only those that need no computation."""
    warned = [*_warn_of_endings(result), *_warn_of_data(result), *_warn_of_parameters(result, checks)]
    warned += _warn_of_undetermined(result, warned)
    not_checked: list[str] = []
    if not checks:
        not_checked.append("integrals, sites, single rows and inducing inputs (checks=False)")
    elif result.data is None or result.sites is None:
        warned += _warn_of_rank(result)
        not_checked.append("integrals, sites and single rows, which were not kept")
    else:
        warned += [*_warn_of_rank(result), *_warn_of_clipping(result, not_checked)]
        warned += [*_warn_of_quadrature(result, not_checked), *_warn_of_rows(result)]
    return warned, not_checked


# The search and hyperparameters ------------------------------------------------------------------------


def _warn_of_endings(result: Result) -> Iterator[Finding]:
    if isinstance(result, FitResult) and not result.status.ok:
        yield Finding("fit", SEARCHES.get(result.status, result.status.sentence))
    ended = inference_status(result)
    if not ended.ok:
        yield Finding("inference", f"Inference ended with {in_words(ended.name.lower())}. {inference_sentence(result)}")


def _warn_of_data(result: Result) -> Iterator[Finding]:
    """Data from which little can be learned: y is constant, or classes can be separated."""
    data = result.data
    if data is None or not np.any(data.observed):
        return
    y, learned = data.y[data.observed], getattr(result, "learned", {})
    if y.shape[0] > 1 and np.all(y == y[0]):
        if learned:
            yield Finding(
                "y",
                f"All observed y are {shown(y[0])}: the data say nothing about how y varies, and learned values depend "
                "on priors or on where the search stopped. Check that y was read as intended.",
            )
    elif result.marginals is not None and _are_separated(result, data):
        yield Finding(
            "y",
            "The classes are separated: f has the sign of its class in every row, so larger effects would fit even "
            "better. Their sizes are those of their prior, or where the search stopped, and standard errors mean "
            "little. Give effects a prior with a plausible standard deviation, such as effects=2.5 with a formula, or "
            "leave a column out.",
        )


def _are_separated(result: Result, data: Data) -> bool:
    """Whether the linear effects of a table predict the class of every row."""
    prior: Any = result.model.prior
    if not isinstance(result.model.likelihood, Bernoulli) or not prior.over_table:
        return False
    return bool(np.all((result.marginals.mean[:, 0] > 0.0) == (data.y[:, 0] > 0.5), where=data.observed))


_RANGES = 10.0
"""A lengthscale of this many ranges of x cannot be distinguished from a constant."""


def _warn_of_parameters(result: Result, checks: bool) -> Iterator[Finding]:
    bounds = result.at_bound if isinstance(result, FitResult) else []
    priors = result.priors if isinstance(result, FitResult) else {}
    tied = result.tied if isinstance(result, FitResult) else {}
    for about, text in getattr(result, "notes", {}).items():
        yield Finding(about, text)
    for parameter in hyperparameters(result.model):
        if parameter.name in tied:
            continue
        if parameter.name in bounds:
            yield Finding(
                parameter.name,
                f"{parameter.name} ended at a bound that was set for it, {shown(parameter.value)}: the data favour a "
                "value beyond it. Widen the bound in Free(lower, upper), or use Fixed() if the bound is known to hold.",
            )
            continue
        problem = None
        if parameter.unit == "x" and result.data is not None:
            problem = _length_problem(parameter, result.data, _is_determined(parameter, result))
        prior = priors.get(parameter.name)
        if problem is None and isinstance(result, FitResult) and parameter.name in result.learned:
            problem = _end_problem(parameter) or _singular_problem(parameter, result, checks)
        if problem is None and isinstance(prior, Plausible):
            problem = _plausibility_problem(parameter, prior, parameter.name in getattr(result, "undetermined", []))
        if problem is not None:
            yield Finding(parameter.name, problem)


def _warn_of_undetermined(result: Result, warned: list[Finding]) -> Iterator[Finding]:
    """Learned values without a standard error, if nothing else was said about them."""
    errors = result.standard_errors if isinstance(result, FitResult) else {}
    known = {finding.about for finding in warned}
    names = [name for name, error in errors.items() if np.any(np.isinf(error)) and name not in known]
    if names and not known & {"y", "fit"}:
        yield Finding(
            "fit",
            f"The data do not determine {in_a_sentence(names)}: other values fit as well, and predictions away from "
            "the data depend on them. Fix them, give them priors in Free(prior=...), or use a simpler model.",
        )


_AT_END = 1e-4
"""The share of its range by which a learned value must differ from both ends."""


def _end_problem(parameter: Parameter) -> str | None:
    if not isinstance(parameter.constraint, Between):
        return None
    lower, upper = parameter.constraint.lower, parameter.constraint.upper
    gap = _AT_END * (upper - lower)
    for end in (lower, upper):
        if np.any(np.abs(parameter.value - end) < gap):
            return (
                f"{parameter.name} ended at {number(end)}, an end of its range: the data favour the simpler model that "
                "this limit is, or determine the value poorly, and its standard error means little. Give it a prior "
                "in Free(prior=...), or use the simpler model."
            )
    return None


_SINGULAR, _NOTHING = 1e-4, 1e-6
"""A smaller eigenvalue of a correlation matrix, and share of a variance, are those of a singular matrix."""


def _singular_problem(parameter: Parameter, result: FitResult, checks: bool) -> str | None:
    value = parameter.value
    if not isinstance(parameter.constraint, Covariance):
        return None
    if value.ndim < 2:
        return _zero_problem(parameter, result, checks)
    scales = np.sqrt(np.diagonal(value))
    correlations, shares = value / np.outer(scales, scales), _shares(parameter, result)
    is_singular = not smallest_eigenvalue_given(correlations) > _SINGULAR
    if not is_singular and (shares is None or np.all(shares > _NOTHING)):
        return None
    return (
        f"{parameter.name} is singular: a correlation ended at 1 or −1, or a variance at 0, the boundary of their "
        "ranges. The data favour the simpler model that this limit is, and standard errors mean little there. Leave a "
        "coefficient out, make the coefficients independent (correlated=False in a Group), or give it a prior in "
        "Free(prior=...)."
    )


_USUAL = 1.96
"""Half the width of an interval of 95 %, in standard deviations."""
_NEAR_ZERO = 0.1
"""A standard deviation that ended at 0, or just above it by a weak prior, is a smaller share of its interval's end."""


def _zero_problem(parameter: Parameter, result: FitResult, checks: bool) -> str | None:
    """The problem with independent variances of which some ended at 0, by their profiles or by their weak prior."""
    errors = result.standard_errors.get(parameter.name)
    if errors is None or not np.any(np.isinf(errors)):
        return None
    profiles = result.profiles if checks else vars(result).get("profiles", {})
    largest, names, is_zero = [], [], True
    for index in zip(*np.nonzero(np.isinf(errors)), strict=True) if errors.ndim else [()]:
        names.append(entry_name(parameter.name, index))
        profile = profiles.get(names[-1])
        if profile is None:
            prior = result.priors.get(parameter.name)
            if not isinstance(prior, Plausible) or np.any(parameter.value[index] >= prior.lower):
                return None
            continue
        low, high = interval(profile, _USUAL)
        if low > 0.0 or np.isinf(high):
            return None
        largest.append(np.sqrt(high))
        is_zero = is_zero and parameter.value[index] < _NEAR_ZERO**2 * high
    name = in_a_sentence(names)
    if not is_zero:
        return (
            f"The data determine {name} poorly: all standard deviations up to {number(max(largest))} (95 %) fit nearly "
            "as well. Perhaps they determine only its sum with another variance, as where two groups have the same "
            "levels, or every level has one row. Leave one of the two out, or give it a prior in Free(prior=...)."
        )
    allowed = f", and allow standard deviations of up to {number(max(largest))} (95 %)" if largest else ""
    return (
        f"{name} is singular: a variance ended at 0, the boundary of its range. The data favour the simpler model that "
        f"this limit is{allowed}. Leave that part of the model out, or give it a prior in Free(prior=...)."
    )


def _shares(parameter: Parameter, result: Result) -> np.ndarray | None:
    """The share of each coefficient of a group in the variance of f; None if the term is not a group."""
    prior: Any = result.model.prior
    if not getattr(prior, "over_table", False) or parameter.path[0] != "prior" or result.data is None:
        return None
    _, _, latent, _, number, *_ = parameter.path
    columns = result.data.x[:, prior.places[latent][number]][:, 1:]
    made = np.diagonal(parameter.value) * np.mean(columns**2, axis=0)
    return made / np.sum(made)


def range_words(prior: Plausible) -> str:
    """The range outside which a weak prior acts, as text."""
    if np.ptp(prior.lower) == 0.0 and np.ptp(prior.upper) == 0.0:
        return f"{number(np.min(prior.lower))} to {number(np.max(prior.upper))}"
    return f"{shown(prior.lower)} to {shown(prior.upper)}"


def _plausibility_problem(parameter: Parameter, prior: Plausible, is_open: bool) -> str | None:
    if np.all((parameter.value >= prior.lower) & (parameter.value <= prior.upper)):
        return None
    beyond = f"{parameter.name} is {shown(parameter.value)}, outside its plausible range of {range_words(prior)}"
    if not is_open:
        return (
            f"{beyond}, where a weak prior pulls it back. It was not checked whether the data determine it: compare "
            "with weak_priors=False, or give it its own prior in Free(prior=...)."
        )
    return (
        f"{beyond}: the data do not determine it, and only a weak prior keeps it there. Fix it, give it its own "
        "prior in Free(prior=...), or remove the part of the model to which it belongs."
    )


_SURE = 0.5
"""The largest relative standard error of a value that counts as well determined."""


def _is_determined(parameter: Parameter, result: Result) -> bool:
    """Whether the data determine a value well, according to the curvature of the energy."""
    error = result.standard_errors.get(parameter.name) if isinstance(result, FitResult) else None
    return error is not None and bool(np.all(error < _SURE * np.abs(parameter.value)))


def _length_problem(parameter: Parameter, data: Data, is_determined: bool) -> str | None:
    """The problem with a lengthscale, given the inputs of the data; a long one may be supported by the data."""
    columns = data.x.shape[1]
    ranges = np.ptp(data.x, axis=0)
    spacings = np.array([_spacing(column) for column in data.x.T])
    if parameter.value.shape != (columns,):
        # Its columns are not known here, so use the bounds that raise no false alarm for any of them.
        ranges, spacings = np.max(ranges), np.min(spacings)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_range, in_spacings = parameter.value / ranges, np.min(parameter.value / spacings)
    in_ranges = np.max(by_range)
    if columns > 1 and parameter.value.shape == (columns,) and in_ranges > _RANGES:
        return _columns_problem(parameter, by_range)
    if in_ranges > _RANGES and np.any(ranges > 0.0) and not is_determined:
        return (
            f"{parameter.name} is {shown(parameter.value)}, {in_ranges:.3g} times the range of x: this part of the "
            "model hardly changes over the data, which say little about its lengthscale and variance, but forecasts "
            "depend on both. Fix the lengthscale, give it a prior, or use a constant mean in place of this part."
        )
    if in_spacings < 1.0:
        return (
            f"{parameter.name} is {shown(parameter.value)}, {in_spacings:.2g} of the typical distance between "
            "neighbouring inputs: rows are nearly independent, and it acts as noise. Check whether the likelihood has "
            "enough noise, give the lengthscale a prior or a lower bound, or try restarts."
        )
    return None


def _columns_problem(parameter: Parameter, by_range: np.ndarray) -> str:
    """Columns with such long lengthscales that they can be left out; constant columns have an infinite one."""
    constant, flat = np.flatnonzero(np.isinf(by_range)), np.flatnonzero(np.isfinite(by_range) & (by_range > _RANGES))
    sentences = []
    if flat.size:
        sentences.append(
            f"{parameter.name} is {shown(parameter.value)}, up to {np.max(by_range[flat]):.3g} times the range of x: "
            f"the model hardly depends on column {_listed(flat)}, which can be left out."
        )
    if constant.size:
        sentences.append(
            f"Column {_listed(constant)} of x is constant, so the data do not determine its entry in {parameter.name}: "
            "leave the column out, or fix the lengthscale."
        )
    return " ".join(sentences)


def _listed(numbers: np.ndarray) -> str:
    return ", ".join(str(number) for number in numbers)


def _spacing(column: np.ndarray) -> float:
    gaps = np.diff(np.unique(column))
    return float(np.median(gaps)) if gaps.size else 0.0


# Findings about the posterior -----------------------------------------------------------------------------


def _warn_of_rank(result: Result) -> Iterator[Finding]:
    if not is_a(result.model.prior, "priors.sparse", "SparseGP"):
        return
    posterior: Any = result.posterior
    for latent, (rank, inputs) in enumerate(zip(posterior.rank, posterior.inducing, strict=True)):
        if rank < inputs.shape[0]:
            whose = f" of latent {latent}" if len(posterior.inducing) > 1 else ""
            yield Finding(
                "inducing",
                f"Of the {inputs.shape[0]} inducing inputs{whose} only {rank} directions exceed rounding; the "
                "others were left out. This is not an error, but fewer would give as good a posterior: use fewer "
                "inducing inputs, and check that the lengthscale is not far too large.",
            )


def _warn_of_clipping(result: Result, not_checked: list[str]) -> Iterator[Finding]:
    method = result.method
    if not isinstance(method, Method) or not isinstance(method.safeguard, Heuristic):
        return
    if isinstance(method.curvature, QuasiNewton):
        not_checked.append("where the heuristic clips, because the quasi-Newton matrices were not kept")
        return
    bare = Method(method.target, method.curvature, None, method.cubature)
    rows = Rows.of(result, np.arange(result.data.observed.size))
    lowest = np.asarray(rows.map(functools.partial(_lowest_precisions, bare)))
    clipped = _worst_first(lowest < 0.0, -lowest)
    if clipped.size:
        yield Finding(
            "safeguard",
            f"The heuristic clips {clipped.size} of {int(np.sum(result.data.observed))} rows, "
            f"{_list_rows(clipped)}: the method's own precision is negative there, and "
            f"{number(method.safeguard.floor)} is used instead, so this is not a fixed point of the method itself. "
            "Compare with the method without a safeguard, whose steps are controlled instead, or with QuasiNewton().",
            tuple(clipped[:_LISTED].tolist()),
        )


@in_double
@compiled
def _lowest_precisions(method: Method, rows: Rows) -> Float[Array, " N"]:
    """The smallest diagonal entry of every row's proposed precision."""

    def row(likelihood, y, observed, marginal, site, residual_covariance):
        view, _ = evaluate(method, likelihood, y, observed, marginal, site, residual_covariance)
        proposed, _ = propose(method, view, observed, site, None, jnp.zeros(()))
        return jnp.min(jnp.diagonal(proposed.precision))

    return over_rows(row, rows.likelihood, tuple(rows[1:]))


_TOLERATED, _TOLERATED_SHARE = 1e-3, 1e-4
_TOLERATED_MOVE = 0.01
"""Tolerance in posterior standard deviations, and in fractions of a marginal's precision."""
_LISTED = 5
"""The maximum number of row numbers in a warning."""


def _warn_of_quadrature(result: Result, not_checked: list[str]) -> Iterator[Finding]:
    """Compare energies and sites with those of a finer rule, with everything else unchanged."""
    estimate = estimate_error(result)
    if isinstance(estimate, NotEstimated):
        not_checked += [] if estimate.reason is None else [estimate.reason]
        return
    coarse = abs(estimate.energy) > max(_TOLERATED, _TOLERATED_SHARE * abs(result.energy))
    if coarse or (estimate.posterior or 0.0) > _TOLERATED_MOVE:
        size, moved = np.abs(estimate.energies), ""
        if estimate.means is not None and estimate.precisions is not None:
            size = size if coarse else np.maximum(estimate.means, estimate.precisions)
            moved = (
                f", and updates with it would move means by up to {np.max(estimate.means):.2g} posterior standard "
                f"deviations and precisions of sites by up to {np.max(estimate.precisions):.2g} of the marginals'"
            )
        worst = estimate.rows[np.argsort(-size)[:_LISTED]]
        yield Finding(
            "cubature",
            f"With {rule_words(estimate.finer)} instead of {rule_words(estimate.rule)}, the energy of this posterior "
            f"changes by {-estimate.energy:+.3g}{moved}, most in {_list_rows(worst)}: the nodes are too coarse for the "
            f"likelihood. Repeat with cubature={rule_words(estimate.finer)} in the method and compare.",
            tuple(worst.tolist()),
        )


_FAR = 5.0
"""The most posterior standard deviations by which a row may move the mean at its own input."""
_SURPRISING = 3.0
"""The same in standard deviations of the prediction from the other rows: data with little noise move every mean far."""
_BELOW = 10.0
"""The largest difference in log density from a typical row, given all others."""


def _warn_of_rows(result: Result) -> Iterator[Finding]:
    """Unusual rows: by their observation, or by how far they move the posterior."""
    if not result.settled:
        # Cavities are then not predictions from the other rows. The status already reports this.
        return
    unlikely, below = _unlikely_rows(result.leave_one_out())
    overruling, moves = _overruling_rows(result)
    sentences = []
    impossible, unusual = (unlikely[np.isinf(below[unlikely]) == infinite] for infinite in (True, False))
    if impossible.size:
        sentences.append(
            f"The {_observations(impossible)} impossible under the prediction from the other rows: the log density is "
            "-inf."
        )
    if unusual.size:
        sentences.append(
            f"The {_observations(unusual)} unlikely under the prediction from the other rows: the log density is up to "
            f"{below[unusual[0]]:.3g} below that of a typical row."
        )
    if overruling.size:
        sentences.append(
            f"The posterior at {_list_rows(overruling)} is far from the prediction from the other rows: without the "
            f"row itself the posterior mean there would move by up to {moves[overruling[0]]:.3g} posterior standard "
            "deviations."
        )
    if sentences:
        listed = dict.fromkeys([*unlikely[:_LISTED].tolist(), *overruling[:_LISTED].tolist()])
        yield Finding("rows", " ".join([*sentences, _LOOK]), tuple(listed))


def _unlikely_rows(densities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose log density given all others is far below the typical one, the worst first; and the differences."""
    known, impossible = np.isfinite(densities), np.isneginf(densities)
    if np.sum(known) < _ENOUGH:
        return np.flatnonzero(impossible), np.where(impossible, np.inf, 0.0)
    low, middle, high = np.quantile(densities[known], [0.25, 0.5, 0.75])
    below = middle - np.where(known | impossible, densities, np.inf)
    return _worst_first(below > max(_BELOW, 6.0 * (high - low)), below), below


def _overruling_rows(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Rows that move the mean at their own input far from the others' prediction, the worst first; and how far."""
    latent, usable = left_out(result, "summary", "checks=False")
    gap = np.abs(latent.mean - result.marginals.mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        moves, surprises = gap / np.sqrt(result.marginals.variance), gap / np.sqrt(latent.variance)
    moves = np.max(np.where(surprises > _SURPRISING, moves, 0.0), axis=1)
    return _worst_first(usable & (moves > _FAR), moves), moves


def _worst_first(chosen: np.ndarray, size: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(-size[rows])]


_LOOK = (
    "Check these data; if they are correct, a likelihood with heavier tails (StudentT in place of Gaussian, "
    "NegativeBinomial in place of Poisson) gives them less weight."
)
_ENOUGH = 8
"""The smallest number of rows for which a typical row is defined."""


def _observations(rows: np.ndarray) -> str:
    """Observations of these rows, as the subject of a sentence."""
    subject, verb = ("observation", "is") if rows.size == 1 else ("observations", "are")
    return f"{subject} in {_list_rows(rows)} {verb}"


def _list_rows(rows: np.ndarray) -> str:
    """The first row numbers as text, and the number of others."""
    numbers = ", ".join(str(row) for row in rows[:_LISTED])
    rest = f" and {rows.size - _LISTED} more" if rows.size > _LISTED else ""
    return f"{'row' if rows.size == 1 else 'rows'} {numbers}{rest}"
