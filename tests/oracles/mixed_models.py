"""The mixed models of `data/r/mixed_*.json` as models of tables, and how to read their estimates as R prints them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

import newtongp as ng
from newtongp.inputs.tables import bind

DATA = Path(__file__).parent / "data" / "r"


def load(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers of a case, and its table."""
    case = json.loads((DATA / f"{name}.json").read_text())
    rows = np.genfromtxt(DATA / case["data"], delimiter=",", names=True, dtype=None, encoding=None)
    return case, {column: rows[column] for column in rows.dtype.names}


class Mixed(NamedTuple):
    """A mixed model: y, fixed effects, groups, and the likelihood with the parameter that the file calls dispersion."""

    y: str
    effects: tuple[Any, ...]
    groups: tuple[str, ...]
    likelihood: Callable[[Any, Any], ng.Likelihood]
    offset: str | None = None
    slope: tuple[str, ...] = ()
    intercept: bool = True
    shift: Callable[[Any], Any] = lambda likelihood: 0.0
    """What R's linear predictor has in addition to our latent."""

    def model(self, table: Any, prior: Any, covariances: Any = (), dispersion: Any = None) -> ng.Model:
        """The model with this prior of its fixed effects, and (co)variances of its groups, in their order."""
        given = list(covariances) or [None] * len(self.groups)
        terms = ng.terms.Linear(*self.effects, prior=prior, intercept=self.intercept)
        for group, covariance in zip(self.groups, given, strict=True):
            terms = terms + ng.terms.Group(group, slope=self.slope, covariance=covariance)
        if self.offset is not None:
            terms = terms + ng.terms.Offset(self.offset)
        return ng.Model(terms, self.likelihood(table, dispersion))


Factor = ng.terms.Factor


def _negative_binomial(table, sigma):
    return ng.likelihoods.NegativeBinomial(*([] if sigma is None else [1.0 / sigma]))


def _wine(table, thresholds):
    return ng.likelihoods.Ordinal([-1.0, 0.0, 1.0, 2.0] if thresholds is None else thresholds, link="logit")


def _log_shape(likelihood):
    """A gamma's latent is the log of its scale, and R's that of its mean."""
    return float(np.log(likelihood.shape))


SALAMANDERS = (Factor("spp", reference="GP"), Factor("mined", reference="yes"))
MODELS = {
    "mixed_cbpp_binomial": Mixed(
        "incidence", (Factor("period"),), ("herd",), lambda table, _: ng.likelihoods.Binomial(table["size"])
    ),
    "mixed_epil_poisson": Mixed(
        "y", ("lbase", "trt", "lage", "V4", "lbase:trt"), ("subject",), lambda *_: ng.likelihoods.Poisson()
    ),
    "mixed_grouseticks_poisson": Mixed(
        "TICKS", (Factor("YEAR"), "cHEIGHT"), ("INDEX", "BROOD", "LOCATION"), lambda *_: ng.likelihoods.Poisson()
    ),
    "mixed_seeds_binomial": Mixed(
        "r", ("seed73", "cucumber", "seed73:cucumber"), ("plate",), lambda table, _: ng.likelihoods.Binomial(table["n"])
    ),
    "mixed_verbagg_crossed": Mixed(
        "yes",
        ("anger", "Gender", "btype", "situ", Factor("mode", reference="want")),
        ("id", "item"),
        lambda *_: ng.likelihoods.Bernoulli("logit"),
    ),
    "mixed_owls_nbinom2_offset": Mixed(
        "SiblingNegotiation",
        ("FoodTreatment", "SexParent", "FoodTreatment:SexParent"),
        ("Nest",),
        _negative_binomial,
        offset="logBroodSize",
    ),
    "mixed_salamanders_nbinom2": Mixed("count", SALAMANDERS, ("site",), _negative_binomial),
    "mixed_salamanders_zip": Mixed(
        "count",
        SALAMANDERS,
        ("site",),
        lambda table, p: ng.likelihoods.ZeroInflated(ng.likelihoods.Poisson(), *([] if p is None else [p])),
    ),
    "mixed_petrol_beta": Mixed(
        "y", ("ep",), ("No",), lambda table, sigma: ng.likelihoods.Beta(100.0 if sigma is None else sigma, "logit")
    ),
    "mixed_sleepstudy_gamma": Mixed(
        "y",
        ("Days",),
        ("Subject",),
        lambda table, sigma: ng.likelihoods.Gamma(10.0 if sigma is None else 1.0 / sigma**2),
        shift=_log_shape,
    ),
    "mixed_wine_ordinal": Mixed("level", ("tempwarm", "contactyes"), ("judge",), _wine, intercept=False),
    "mixed_penicillin_crossed": Mixed(
        "diameter", (), ("plate", "sample"), lambda table, variance: ng.likelihoods.Gaussian(variance or 1.0)
    ),
    "mixed_sleepstudy_slopes": Mixed(
        "Reaction",
        ("Days",),
        ("Subject",),
        lambda table, variance: ng.likelihoods.Gaussian(variance or 100.0),
        slope=("Days",),
    ),
}


def read(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray], Mixed]:
    """A case, its table with labels of groups as text, and its model."""
    (case, table), mixed = load(name), MODELS[name]
    table |= {group: table[group].astype(str) for group in mixed.groups}
    if name == "mixed_wine_ordinal":
        indicators = {"tempwarm": table["temp"] == "warm", "contactyes": table["contact"] == "yes"}
        table |= {"level": table["rating"] - 1, **{key: value.astype(float) for key, value in indicators.items()}}
    return case, table, mixed


# Fixed effects ------------------------------------------------------------------------------------------------------


def linear_of(model: ng.Model) -> Any:
    """The fixed effects of a bound model."""
    return model.prior.latents[0].terms[0]  # pyright: ignore[reportAttributeAccessIssue]


def r_names(result: Any) -> list[str]:
    """The names of the coefficients as R writes them."""
    return _as_in_r(result.columns.encoders[0][0].names)


def r_names_of(model: ng.Model, table: Any, y: str) -> list[str]:
    """The same of a model and a table."""
    _, encoded, _ = bind(model, table, y)
    return _as_in_r(encoded.encoding.encoders[0][0].names)


def _as_in_r(names: tuple[str, ...]) -> list[str]:
    return [re.sub(r"[\[\]]", "", "(Intercept)" if name == "intercept" else name) for name in names]


def with_coefficients(model: ng.Model, table: Any, y: str, beta: Any) -> ng.Model:
    """The model bound to the table, with these coefficients, in the order of the model's own names."""
    bound, _, _ = bind(model, table, y)
    centred = np.linalg.solve(linear_of(bound).at_zero(), np.asarray(beta, dtype=float))
    return eqx.tree_at(lambda m: linear_of(m).coefficients, bound, centred)


def maximised(result: Any, shift: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Estimates and standard errors of coefficients that were learned, with `shift` added to the intercept."""
    back, named = linear_of(result.model).at_zero(), result.covariance
    own = [place for place, name in enumerate(named.names) if ".coefficients" in name]
    slopes = np.zeros((len(own), len(named.names)))
    slopes[:, own] = back
    if "likelihood.shape" in named.names:  # the shift is its logarithm
        slopes[0, named.names.index("likelihood.shape")] = 1.0 / float(result.model.likelihood.shape)
    estimates = back @ linear_of(result.model).coefficients
    estimates[0] += shift(result.model.likelihood)
    return estimates, np.sqrt(np.diagonal(slopes @ named.matrix @ slopes.T))


def integrated(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """Means and the covariance of coefficients that were integrated, from the fixed part of f at unit vectors."""
    linear, prior = linear_of(result.model), result.model.prior
    size, width = linear.size, sum(term.width for term in prior.latents[0].terms)
    rows = np.zeros((size, width))
    rows[:, :size] = np.eye(size)
    rows[:, 0] = 1.0 if linear.intercept else rows[:, 0]
    chosen = [[1.0] + [0.0] * (len(prior.latents[0].terms) - 1)]
    found = result.posterior.joint_of_terms(rows, chosen)
    contrast = np.eye(size)
    contrast[1:, 0] = -1.0 if linear.intercept else 0.0
    return contrast @ np.ravel(found.mean), contrast @ np.asarray(found.covariance) @ contrast.T


# Groups -------------------------------------------------------------------------------------------------------------


def random_effects(result: Any) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Mean and standard deviation by group, level and coefficient, named as R names them."""
    prior, found = result.model.prior, {}
    terms, encoders, places = prior.latents[0].terms, result.columns.encoders[0], prior.places[0]
    for number, (term, encoder, place) in enumerate(zip(terms, encoders, places, strict=True)):
        if not isinstance(term, ng.terms.Group):
            continue
        chosen = [[float(other == number) for other in range(len(terms))]]
        for coefficient, name in enumerate(encoder.names):
            rows = np.zeros((len(encoder.levels), places[-1].stop))
            rows[:, place.start] = np.arange(len(encoder.levels))
            rows[:, place.start + 1 + coefficient] = 1.0
            part = result.posterior.of_terms(rows, chosen)
            sds = np.sqrt(np.ravel(part.covariance))
            label = "(Intercept)" if name == "intercept" else name
            for level, mean, sd in zip(encoder.levels, np.ravel(part.mean), sds, strict=True):
                found[":".join(term.columns), level, label] = (float(mean), float(sd))
    return found


def variances(result: Any) -> dict[str, np.ndarray]:
    """The (co)variances of all groups."""
    terms = result.model.prior.latents[0].terms
    return {term.columns[0]: np.asarray(term.covariance) for term in terms if isinstance(term, ng.terms.Group)}
