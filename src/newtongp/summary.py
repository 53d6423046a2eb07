"""What a fit or an inference found, on one page: how it ended, all hyperparameters, and what deserves a second look."""

import functools
import html
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .choices import local_rule
from .cubature import Cubature, GaussHermite, Unscented
from .data import Data
from .fitted import FitResult
from .gaussian import Gaussian, cavity, widened
from .likelihoods.base import (
    Likelihood,
    over_rows,
    row_expected_log_prob,
    row_log_expected_power,
    rows_given,
    with_row_parameters,
)
from .methods.curvature import QuasiNewton
from .methods.nodes import Nodes, expected_at, place_nodes, powered_at
from .methods.presets import FirstOrderVI
from .methods.rule import Method, evaluate, propose
from .methods.safeguard import Heuristic
from .parameters import Gamma, LogNormal, Normal, Parameter, Plausible, hyperparameters
from .precision import in_double
from .predict import left_out
from .priors.sparse import SparseGP, SparsePosterior
from .results import Result, Status

if TYPE_CHECKING:
    from rich.console import Group


class Warned(NamedTuple):
    """Something that deserves a second look: what it is about, and a sentence on it with what to do."""

    about: str
    text: str
    rows: tuple[int, ...] = ()
    """Rows of the data that it is about, the worst first."""


class Summary:
    """What a fit or an inference found, on one page; `summary` of a `Result` makes it.

    Printed it is a table. `warnings` are what deserves a second look, in sentences that say what to do; `not_checked`
    are things that could not be looked at, and why. `as_dict()` has all of it as plain numbers and texts.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> summary = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3]).summary()
    >>> summary.as_dict()["energy"]["name"], summary.warnings
    ('variational free energy, −ELBO', [])
    >>> [entry["name"] for entry in summary.parameters]
    ['kernel.lengthscale', 'kernel.variance']
    """

    def __init__(
        self, facts: dict[str, Any], parameters: list[dict[str, Any]], warnings: list[Warned], not_checked: list[str]
    ):
        self._facts = facts
        self.parameters = parameters
        self.warnings = warnings
        self.not_checked = not_checked

    def as_dict(self) -> dict[str, Any]:
        """Everything as numbers, texts, lists and dictionaries, as `json.dumps` takes them."""
        warned = [{"about": each.about, "text": each.text, "rows": list(each.rows)} for each in self.warnings]
        return {**self._facts, "parameters": self.parameters, "warnings": warned, "not_checked": self.not_checked}

    def __str__(self) -> str:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=120, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    __repr__ = __str__

    def __rich__(self) -> "Group":
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for heading, words in _lines(self._facts):
            facts.add_row(Text(heading, style="bold"), Text(words))
        table = Table(box=box.SIMPLE_HEAD)
        for heading in _HEADINGS:
            table.add_column(
                heading, justify="right" if heading in _HEADINGS[1:3] else "left", no_wrap=heading == _HEADINGS[0]
            )
        for entry in self.parameters:
            table.add_row(*(Text(cell) for cell in _cells(entry)))
        parts: list[Any] = [Text(self._facts["title"], style="bold"), facts]
        parts += [table] if self.parameters else []
        for each in self.warnings:
            parts.append(Text(f"! {each.text}", style="yellow"))
        if not self.warnings:
            parts.append(Text("Nothing that was looked at deserves a warning."))
        parts += [Text(f"Not checked: {words}.", style="dim") for words in self.not_checked]
        return Group(*parts)

    def _repr_html_(self) -> str:
        def table(rows: list[list[str]], head: str = "td") -> str:
            kinds = [head] + ["td"] * (len(rows) - 1)
            lines = [
                "<tr>" + "".join(f"<{kind}>{html.escape(cell)}</{kind}>" for cell in row) + "</tr>"
                for kind, row in zip(kinds, rows, strict=True)
            ]
            return f"<table>{''.join(lines)}</table>"

        rows = [list(_HEADINGS), *(_cells(entry) for entry in self.parameters)]
        warned = "".join(f"<li>{html.escape(each.text)}</li>" for each in self.warnings)
        missed = "".join(f"<li>Not checked: {html.escape(words)}.</li>" for words in self.not_checked)
        return (
            f"<p><b>{html.escape(self._facts['title'])}</b></p>{table([list(line) for line in _lines(self._facts)])}"
            f"{table(rows, 'th') if self.parameters else ''}<ul>{warned}{missed}</ul>"
        )


def summarise(result: Result, checks: bool = True) -> Summary:
    """The summary of a result. `checks=False` leaves out the warnings that take some computing."""
    parameters = list(_parameters(result))
    warned = [*_warn_of_endings(result), *_warn_of_parameters(result)]
    not_checked: list[str] = []
    if not checks:
        not_checked.append("integrals, sites, single rows and inducing inputs (checks=False)")
    elif result.data is None or result.sites is None:
        warned += _warn_of_rank(result)
        not_checked.append("integrals, sites and single rows, which were not kept")
    else:
        warned += [*_warn_of_rank(result), *_warn_of_clipping(result, not_checked)]
        warned += [*_warn_of_quadrature(result, not_checked), *_warn_of_rows(result)]
    return Summary(_facts(result), parameters, warned, not_checked)


# What it was, and how it ended ------------------------------------------------------------------------

_ENERGIES = {
    "vfe": "variational free energy, −ELBO",
    "laplace": "Laplace approximation of −log p(y)",
    "pep": "power EP energy, an approximation of −log p(y)",
}

_METHODS = {
    "newton": "Newton's method (Laplace)",
    "taylor": "Taylor linearisation",
    "vi": "VI",
    "pl": "posterior linearisation",
    "pl2": "posterior linearisation of second order",
}

_SEARCHES = {
    Status.CONVERGED: "The search converged: no hyperparameter can be moved to lower the energy any further.",
    Status.MAX_STEPS: (
        "The search for hyperparameters ran out of iterations before it converged: raise max_steps, or go on with "
        "fit(result.model, ...)."
    ),
    Status.STEP_TOO_SMALL: (
        "The search for hyperparameters got stuck before it converged: energies and gradients disagree, most often "
        "because inference did not converge on the way. Raise inference_steps, use a cubature with more nodes or "
        "another method, or try restarts."
    ),
    Status.NON_FINITE: (
        "The search for hyperparameters could not start where it was to: the best that was seen is kept. Give "
        "Free(start=...) to the parameters that matter, or try restarts."
    ),
    Status.INTERRUPTED: (
        "The search for hyperparameters was interrupted: the best that was seen is kept. Go on with fit(result.model, "
        "...), or use checkpoint."
    ),
}


def _inference_status(result: Result) -> Status:
    return result.inference_status if isinstance(result, FitResult) else result.status


def _facts(result: Result) -> dict[str, Any]:
    method, ended = local_rule(result.method), _inference_status(result)
    data = result.data
    search = None
    if isinstance(result, FitResult):
        search = {
            "status": result.status.name.lower(),
            "sentence": _SEARCHES.get(result.status, result.status.sentence),
            "iterations": len(result.fit_history),
            "evaluations": int(result.evaluations),
            "seconds": _plain(result.seconds),
            "penalty": _plain(result.penalty),
        }
    what = "Inference" if search is None else "Fit"
    return {
        "title": f"{what} of {_model_words(result)} by {_method_words(result.method)}",
        "fit": search,
        "inference": {
            "status": ended.name.lower(),
            "sentence": ended.sentence,
            "steps": int(result.steps),
            "residual": _plain(result.residual),
        },
        "energy": {"name": _ENERGIES[method.target.energy], "value": _plain(result.energy)},
        "rows": None if data is None else _count_rows(data),
    }


def _count_rows(data: Data) -> dict[str, int]:
    observed = int(np.sum(data.observed))
    whole = observed if data.seen is None else int(np.sum(np.all(data.seen, axis=1)))
    return {"observed": observed, "missing": data.observed.size - observed, "partly_observed": observed - whole}


def _model_words(result: Result) -> str:
    prior = result.model.prior
    kernel = getattr(prior, "kernel", None)
    inside = "" if kernel is None else f"({_kernel_words(kernel)})"
    return f"{type(prior).__name__}{inside} with {type(result.model.likelihood).__name__}"


def _kernel_words(kernel: Any) -> str:
    parts = getattr(kernel, "kernels", None) or getattr(kernel, "parts", None)
    if not parts:
        return type(kernel).__name__
    joint = {"Sum": " + ", "Product": " × "}.get(type(kernel).__name__, ", ")
    return joint.join(_kernel_words(part) for part in parts)


def _method_words(method: Method | FirstOrderVI) -> str:
    if isinstance(method, FirstOrderVI):
        return "first-order VI"
    words = _METHODS.get(method.target.name, type(method.target).__name__)
    if method.target.name == "power_ep":
        words = f"power EP with α = {method.target.power:g}"
    own = {"taylor": "gauss_newton", "pl": "gauss_newton"}.get(method.target.name, "exact")
    if method.curvature.name != own:
        words += f", {type(method.curvature).__name__}"
    return words if method.safeguard is None else f"{words}, {type(method.safeguard).__name__}"


def _lines(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The facts in words, one line each."""
    search, inference, rows = facts["fit"], facts["inference"], facts["rows"]
    if search is not None:
        yield "fit", _in_words(search["status"])
        yield "", f"{search['iterations']} iterations, {search['evaluations']} evaluations, {search['seconds']:.1f} s"
    residual = "unknown" if inference["residual"] is None else f"{inference['residual']:.1e}"
    # A fit begins its last inference where the one before ended: its steps would say nothing of how hard it was.
    after = f" after {inference['steps']} steps" if search is None else ""
    yield "inference", f"{_in_words(inference['status'])}{after}, residual {residual}"
    value = "not finite" if facts["energy"]["value"] is None else f"{facts['energy']['value']:.4f}"
    yield "energy", f"{value} ({facts['energy']['name']})"
    if search is not None and abs(search["penalty"] or 0.0) >= 5e-5:
        yield "", f"and {search['penalty']:.4f} from priors on hyperparameters (minus their log density)"
    if rows is not None:
        partly = f", {rows['partly_observed']} in part" if rows["partly_observed"] else ""
        yield "rows", f"{rows['observed']} observed{partly}, {rows['missing']} missing"


def _in_words(status: str) -> str:
    return status.replace("_", " ")


# Hyperparameters --------------------------------------------------------------------------------------

_HEADINGS = ("hyperparameter", "value", "std. error", "unit", "how")


def _parameters(result: Result) -> Iterator[dict[str, Any]]:
    """Every hyperparameter, with what was done to it."""
    for each in hyperparameters(result.model):
        entry: dict[str, Any] = {
            "name": each.name,
            "value": _plain(each.value),
            "standard_error": None,
            "determined": None,
            "unit": _unit_words(each.unit, result),
            "treatment": "given",
            "tied_to": None,
            "prior": None,
        }
        if isinstance(result, FitResult):
            whose = result.tied.get(each.name, each.name)
            entry["treatment"] = "learned" if whose in result.learned else "fixed"
            if whose != each.name:
                entry["treatment"], entry["tied_to"] = "tied", whose
            error = result.standard_errors.get(whose)
            if error is not None:
                entry["standard_error"], entry["determined"] = _plain(error), bool(np.all(np.isfinite(error)))
            if whose in result.priors:
                entry["prior"] = _prior_words(result.priors[whose])
        yield entry


def _plain(value: Any) -> Any:
    """A number, or lists of them, with None for what is not finite."""
    if np.ndim(value) > 0:
        return [_plain(entry) for entry in np.asarray(value)]
    number = float(value)
    return number if np.isfinite(number) else None


_TIMES = {"D": "days", "h": "hours", "m": "minutes", "s": "seconds", "W": "weeks"}


def _unit_words(unit: str | None, result: Result) -> str | None:
    """The unit of a hyperparameter: of x (time in words where stamps are read), of y, or of the latents f."""
    if unit is None:
        return None
    clock = getattr(result.model.prior, "clock", None)
    words = unit.replace("2", "²").replace("3", "³")
    if clock is None:
        return words
    name, count = np.datetime_data(clock.unit.dtype)[0], int(clock.unit.astype(np.int64))
    time = _TIMES.get(name, name) if count == 1 else f"{count} {_TIMES.get(name, name)}"
    return words.replace("x", time if unit == "x" else f"({time})")


_WEAK = "weak prior outside"


def _prior_words(prior: Any) -> str:
    if isinstance(prior, Plausible):
        return f"{_WEAK} {_range_words(prior)}"
    names = {
        LogNormal: ("log-normal", "median", "spread"),
        Normal: ("normal", "mean", "deviation"),
        Gamma: ("gamma", "shape", "rate"),
    }
    if type(prior) in names:
        name, *fields = names[type(prior)]
        return f"{name} prior, " + ", ".join(f"{field} {_shown(getattr(prior, field))}" for field in fields)
    return f"prior of your own, {getattr(prior, '__name__', type(prior).__name__)}"


def _range_words(prior: Plausible) -> str:
    if np.ptp(prior.lower) == 0.0 and np.ptp(prior.upper) == 0.0:
        return f"{_number(np.min(prior.lower))} to {_number(np.max(prior.upper))}"
    return f"{_shown(prior.lower)} to {_shown(prior.upper)}"


_FEW = 6


def _shown(value: Any, otherwise: str = "not finite") -> str:
    """A number, a few, or the range of many."""
    numbers = np.ravel(np.array(value, dtype=float))
    if numbers.size == 1 or (np.size(numbers) <= _FEW and np.ndim(value) < 2):
        words = [_number(number) if np.isfinite(number) else otherwise for number in numbers]
        return words[0] if len(set(words)) == 1 and not np.all(np.isfinite(numbers)) else ", ".join(words)
    shape = " × ".join(str(size) for size in np.shape(value))
    finite = numbers[np.isfinite(numbers)]
    if finite.size == 0:
        return otherwise
    return f"{shape} values, {_number(finite.min())} to {_number(finite.max())}"


def _number(value: Any) -> str:
    return f"{float(value):.4g}"


def _cells(entry: dict[str, Any]) -> list[str]:
    error = "-"
    if entry["determined"] is not None:
        error = _shown(entry["standard_error"], "not determined")
    how = f"tied to {entry['tied_to']}" if entry["treatment"] == "tied" else entry["treatment"]
    if entry["prior"] and entry["treatment"] != "tied":
        # The ranges of weak priors are in `as_dict()`: two long numbers a line would push the values off the page.
        how += ", weak prior" if entry["prior"].startswith(_WEAK) else f", {entry['prior']}"
    return [entry["name"], _shown(entry["value"]), error, entry["unit"] or "", how]


# Warnings of the search and of hyperparameters ---------------------------------------------------------


def _warn_of_endings(result: Result) -> Iterator[Warned]:
    if isinstance(result, FitResult) and not result.status.ok:
        yield Warned("fit", _SEARCHES.get(result.status, result.status.sentence))
    ended = _inference_status(result)
    if not ended.ok:
        yield Warned("inference", f"Inference ended with {_in_words(ended.name.lower())}. {ended.sentence}")


_RANGES = 10.0
"""A lengthscale of so many ranges of x is a constant for all that the data can say."""


def _warn_of_parameters(result: Result) -> Iterator[Warned]:
    bounds = result.at_bound if isinstance(result, FitResult) else []
    priors = result.priors if isinstance(result, FitResult) else {}
    tied = result.tied if isinstance(result, FitResult) else {}
    for each in hyperparameters(result.model):
        if each.name in tied:
            continue
        if each.name in bounds:
            yield Warned(
                each.name,
                f"{each.name} ended at a bound that was set for it, {_shown(each.value)}: the data would move it "
                "further. Widen the bound in Free(lower, upper), or say Fixed() if the bound is what you know.",
            )
            continue
        found = _length_problem(each, result.data) if each.unit == "x" and result.data is not None else None
        prior = priors.get(each.name)
        if found is None and isinstance(prior, Plausible):
            found = _plausibility_problem(each, prior)
        if found is not None:
            yield Warned(each.name, found)


def _plausibility_problem(each: Parameter, prior: Plausible) -> str | None:
    if np.all((each.value >= prior.lower) & (each.value <= prior.upper)):
        return None
    return (
        f"{each.name} is {_shown(each.value)}, beyond its plausible range of {_range_words(prior)}: nothing but a weak "
        "prior holds it there. Fix it, give it a prior of its own in Free(prior=...), or leave out the part of the "
        "model that it belongs to."
    )


def _length_problem(each: Parameter, data: Data) -> str | None:
    """What is wrong with a lengthscale, seen from where the data are."""
    columns = data.x.shape[1]
    ranges = np.ptp(data.x, axis=0)
    spacings = np.array([_spacing(column) for column in data.x.T])
    if each.value.shape != (columns,):
        # Which columns it is for is not known here: no false alarm for any of them.
        ranges, spacings = np.max(ranges), np.min(spacings)
    with np.errstate(divide="ignore", invalid="ignore"):
        in_ranges, in_spacings = np.max(each.value / ranges), np.min(each.value / spacings)
    if columns > 1 and each.value.shape == (columns,) and in_ranges > _RANGES:
        flat = ", ".join(str(column) for column in np.flatnonzero(each.value / ranges > _RANGES))
        return (
            f"{each.name} is {_shown(each.value)}, up to {in_ranges:.3g} times the range of x: the model hardly "
            f"changes with column {flat}, which may be left out."
        )
    if in_ranges > _RANGES and np.any(ranges > 0.0):
        return (
            f"{each.name} is {_shown(each.value)}, {in_ranges:.3g} times the range of x: this part of the model "
            "hardly changes over the data, which say little about its lengthscale and variance, while forecasts rest "
            "on both. Fix the lengthscale, give it a prior, or use a constant mean in place of this part."
        )
    if in_spacings < 1.0:
        return (
            f"{each.name} is {_shown(each.value)}, {in_spacings:.2g} of the typical distance between neighbouring "
            "inputs: rows tell each other next to nothing, and it acts as noise. Check whether the likelihood has "
            "enough noise of its own, give the lengthscale a prior or a lower bound, or try restarts."
        )
    return None


def _spacing(column: np.ndarray) -> float:
    gaps = np.diff(np.unique(column))
    return float(np.median(gaps)) if gaps.size else 0.0


# Warnings of the posterior -----------------------------------------------------------------------------


def _warn_of_rank(result: Result) -> Iterator[Warned]:
    if not isinstance(result.model.prior, SparseGP):
        return
    posterior = result.posterior
    assert isinstance(posterior, SparsePosterior)
    for latent, (rank, inputs) in enumerate(zip(posterior.rank, posterior.inducing, strict=True)):
        if rank < inputs.shape[0]:
            whose = f" of latent {latent}" if len(posterior.inducing) > 1 else ""
            yield Warned(
                "inducing",
                f"Of the {inputs.shape[0]} inducing inputs{whose} only {rank} directions are above rounding; the "
                "others were left out. Nothing is wrong, but as good a posterior can be had for less: use fewer "
                "inducing inputs, and check that the lengthscale is not far too large.",
            )


class _Rows(NamedTuple):
    """What is known of rows, as a method sees them one by one."""

    likelihood: Likelihood
    y: np.ndarray
    observed: np.ndarray
    marginal: Any
    site: Any
    extra: Any

    @classmethod
    def of(cls, result: Result, rows: np.ndarray) -> "_Rows":
        """These rows of a result."""
        data, likelihood = result.data, result.model.likelihood
        own = {name: np.asarray(likelihood.row_parameter(name))[rows] for name in rows_given(likelihood)}
        seen = None if data.seen is None else data.seen[rows]
        taken = Data(data.x[rows], data.y[rows], data.observed[rows], seen)
        extra = None
        if result.site_marginals is not result.marginals:
            extra = (result.marginals.covariance - result.site_marginals.covariance)[rows]
        marginal, site = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], (result.site_marginals, result.sites))
        own_likelihood = taken.likelihood(with_row_parameters(likelihood, **own))
        return cls(own_likelihood, taken.y, taken.observed, marginal, site, extra)


def _warn_of_clipping(result: Result, not_checked: list[str]) -> Iterator[Warned]:
    method = result.method
    if not isinstance(method, Method) or not isinstance(method.safeguard, Heuristic):
        return
    if isinstance(method.curvature, QuasiNewton):
        not_checked.append("where the heuristic clips, since quasi-Newton's matrices were not kept")
        return
    bare = Method(method.target, method.curvature, None, method.cubature)
    lowest = np.asarray(_lowest_precisions(bare, _Rows.of(result, np.arange(result.data.observed.size))))
    clipped = _worst_first(lowest < 0.0, -lowest)
    if clipped.size:
        yield Warned(
            "safeguard",
            f"The heuristic clips {clipped.size} of {int(np.sum(result.data.observed))} rows, "
            f"{_list_rows(clipped)}: the precision that the method asks for is negative there, and "
            f"{_number(method.safeguard.floor)} takes its place, so that this is no fixed point of the method itself. "
            "Compare with the method without a safeguard, whose steps are controlled instead, or with QuasiNewton().",
            tuple(clipped[:_LISTED].tolist()),
        )


@in_double
@jax.jit
def _lowest_precisions(method: Method, rows: _Rows) -> Float[Array, " N"]:
    """The smallest diagonal entry of the precision that every row asks for."""

    def row(likelihood, y, observed, marginal, site, extra):
        view, _ = evaluate(method, likelihood, y, observed, marginal, site, extra)
        proposed, _ = propose(method, view, observed, site, None, jnp.zeros(()))
        return jnp.min(jnp.diagonal(proposed.precision))

    return over_rows(row, rows.likelihood, tuple(rows[1:]))


_MOST_NODES = 20_000
_MOST_VALUES = 4e6
"""Log densities that a check may take: with more, a part of the rows stands for all."""
_LARGEST_ORDER = 200
_TOLERATED, _TOLERATED_SHARE = 1e-3, 1e-4
_LISTED = 5
"""Row numbers in a warning, at most."""


def _warn_of_quadrature(result: Result, not_checked: list[str]) -> Iterator[Warned]:
    """The energy at the same sites with twice the nodes a latent: all but the rows' integrals stays the same."""
    method = local_rule(result.method)
    if method.target.energy == "laplace":
        return
    power = None if method.target.energy == "vfe" else method.energy_power
    rule, count = _rule_of(result.model.likelihood, method.cubature, power)
    if count == 0:
        return
    finer = _finer(rule, count)
    if finer is None:
        not_checked.append(
            f"integrals over {count} latent(s), for which there is no finer rule than {_rule_words(rule)}"
        )
        return
    rows = np.flatnonzero(result.data.observed)
    rows = rows[:: max(1, round(rows.size * finer.order**count / _MOST_VALUES))]
    if rows.size == 0:
        return
    changes = np.asarray(_energy_changes(method.cubature, finer, power, _Rows.of(result, rows)))
    changes = np.where(np.isfinite(changes), changes, 0.0)
    change = float(np.sum(changes)) * float(np.sum(result.data.observed)) / rows.size
    if abs(change) > max(_TOLERATED, _TOLERATED_SHARE * abs(result.energy)):
        worst = rows[np.argsort(-np.abs(changes))[:_LISTED]]
        yield Warned(
            "cubature",
            f"With GaussHermite({finer.order}) in place of {_rule_words(rule)} the energy of this posterior changes by "
            f"{change:+.3g}, most in {_list_rows(worst)}: the nodes are too coarse for the likelihood. "
            f"Repeat it with cubature=GaussHermite({finer.order}) in the method, and see what changes.",
            tuple(worst.tolist()),
        )


@in_double
def _rule_of(likelihood: Likelihood, cubature: Cubature | None, power: float | None) -> tuple[Cubature, int]:
    """The rule that a method uses, and for how many latents."""
    count = likelihood.num_latents
    nodes = place_nodes(likelihood, Gaussian(jnp.zeros(count), jnp.eye(count)), cubature, power is not None)
    return nodes.rule, len(nodes.split.others)


def _finer(rule: Cubature, count: int) -> GaussHermite | None:
    """A product rule with twice the nodes in each of so many latents, or as many more as is possible."""
    if not isinstance(rule, (GaussHermite, Unscented)):
        return None
    before, wanted = (rule.order, 2 * rule.order) if isinstance(rule, GaussHermite) else (3, 20)
    order = min(wanted, int(_MOST_NODES ** (1.0 / count) + 1e-9), _LARGEST_ORDER)
    return GaussHermite(order) if order > before else None


def _rule_words(rule: Cubature) -> str:
    return f"{type(rule).__name__}({getattr(rule, 'order', '')})"


@in_double
@functools.partial(jax.jit, static_argnums=(1, 2))
def _energy_changes(cubature: Cubature | None, finer: Cubature, power: float | None, rows: _Rows) -> Float[Array, " N"]:
    """What every row's share of the energy changes by with a finer rule: of the VFE, or of power EP's energy."""

    def row(likelihood, y, observed, marginal, site, extra):
        if power is None:
            around = widened(marginal, extra)
            closed = row_expected_log_prob(likelihood, y, around.mean, around.covariance)
        else:
            around = widened(cavity(marginal, site, power).gaussian, extra)
            closed = row_log_expected_power(likelihood, y, around.mean, around.covariance, power)
        if cubature is None and closed is not None:
            return jnp.zeros(())
        nodes = place_nodes(likelihood, around, cubature, power is not None)
        return _integral(likelihood, y, nodes, power) - _integral(likelihood, y, _at_other(nodes, around, finer), power)

    return over_rows(row, rows.likelihood, tuple(rows[1:]))


def _at_other(nodes: Nodes, around: Gaussian, rule: Cubature) -> Nodes:
    """The same latents at the nodes of another rule."""
    standard, weights = (jnp.asarray(part) for part in rule.rule(len(nodes.split.others)))
    points = nodes.split.arrange(around).mean[None, :] + standard @ nodes.root[:, : standard.shape[1]].T
    return nodes._replace(points=points, weights=weights, standard=standard, rule=rule)


def _integral(likelihood: Likelihood, y: Float[Array, " P"], nodes: Nodes, power: float | None) -> Float[Array, ""]:
    """E[log p], or (1/α) log E[p^α]."""
    if power is None:
        return nodes.weights @ jax.vmap(expected_at(likelihood, y, nodes).value)(nodes.points)
    values = jax.vmap(powered_at(likelihood, y, nodes, power).value)(nodes.points)
    return jax.scipy.special.logsumexp(values, b=nodes.weights) / power


_FAR = 5.0
"""Posterior standard deviations that a row may move the mean at its own input by."""
_SURPRISING = 3.0
"""And standard deviations of what the other rows predict there: data with little noise move every mean far."""
_BELOW = 10.0
"""Nats that a row may be less likely than a typical one, given all others."""


def _warn_of_rows(result: Result) -> Iterator[Warned]:
    """Rows that stand out: by what was observed in them, or by how far they move the posterior against the others."""
    unlikely, below = _unlikely_rows(result.leave_one_out())
    overruling, moves = _overruling_rows(result)
    sentences = []
    if unlikely.size:
        sentences.append(
            f"What was observed in {_list_rows(unlikely)} is not what the other rows predict: its log density is up to "
            f"{below[unlikely[0]]:.3g} below that of a typical row."
        )
    if overruling.size:
        sentences.append(
            f"What the other rows say is overruled at {_list_rows(overruling)}: without the row itself the posterior "
            f"mean there would move by up to {moves[overruling[0]]:.3g} posterior standard deviations."
        )
    if sentences:
        listed = dict.fromkeys([*unlikely[:_LISTED].tolist(), *overruling[:_LISTED].tolist()])
        yield Warned("rows", " ".join([*sentences, _LOOK]), tuple(listed))


def _unlikely_rows(densities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose log density given all others is far below that of most, the worst first; and how far below each is."""
    known = np.isfinite(densities)
    if np.sum(known) < _ENOUGH:
        return np.zeros(0, dtype=int), np.zeros(densities.shape)
    low, middle, high = np.quantile(densities[known], [0.25, 0.5, 0.75])
    below = middle - np.where(known, densities, np.inf)
    return _worst_first(below > max(_BELOW, 6.0 * (high - low)), below), below


def _overruling_rows(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Rows that move the mean at their own input far from what the others predict, the worst first; and how far."""
    latent, usable = left_out(result, "summary", "checks=False")
    gap = np.abs(latent.mean - result.marginals.mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        moves, surprises = gap / np.sqrt(result.marginals.variance), gap / np.sqrt(latent.variance)
    moves = np.max(np.where(surprises > _SURPRISING, moves, 0.0), axis=1)
    return _worst_first(usable & (moves > _FAR), moves), moves


def _worst_first(chosen: np.ndarray, size: np.ndarray) -> np.ndarray:
    found = np.flatnonzero(chosen)
    return found[np.argsort(-size[found])]


_LOOK = (
    "Check these data; if they are right, a likelihood with heavier tails (StudentT in place of Gaussian, "
    "NegativeBinomial in place of Poisson) gives them less weight."
)
_ENOUGH = 8
"""Rows from which on it makes sense to speak of a typical one."""


def _list_rows(rows: np.ndarray) -> str:
    """The first row numbers in words, with how many there are besides."""
    numbers = ", ".join(str(row) for row in rows[:_LISTED])
    rest = f" and {rows.size - _LISTED} more" if rows.size > _LISTED else ""
    return f"{'row' if rows.size == 1 else 'rows'} {numbers}{rest}"
