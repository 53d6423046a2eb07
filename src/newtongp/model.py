"""A model: a prior and a likelihood that fit together."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from . import likelihoods
from .likelihoods.base import Likelihood
from .likelihoods.weighted import Weighted, unweighted
from .priors.base import Prior
from .priors.by_name import for_latents
from .validation.names import find
from .validation.text import short


class Model(eqx.Module):
    """A Gaussian prior over latent functions and a likelihood of the data given them (`eq:model`).

    `prior` may also be a sum of terms over the columns of a table (`newtongp.terms`), or a mapping from the names of
    the likelihood's latents to sums of terms. A likelihood that needs no arguments may be given by its name: "poisson",
    "bernoulli", "student_t".

    >>> from newtongp import GP, kernels, likelihoods
    >>> Model(GP(kernels.RBF()), likelihoods.Poisson()).prior.num_latents
    1
    """

    prior: Prior
    likelihood: Likelihood

    def __init__(self, prior: Any, likelihood: Any):
        if isinstance(likelihood, str):
            likelihood = likelihood_named(likelihood)
        if not isinstance(likelihood, Likelihood):
            swapped = (
                ": the prior comes first, Model(prior, likelihood)" if isinstance(prior, (Likelihood, str)) else ""
            )
            raise ValueError(f"likelihood must be one such as likelihoods.Poisson(), got {short(likelihood)}{swapped}")
        if not isinstance(prior, Prior):
            prior = _additive(prior, likelihood)
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a prior such as GP(kernels.Matern32()), got {short(prior)}")
        prior = for_latents(prior, likelihood.num_latents)
        if prior.num_latents != likelihood.num_latents:
            raise ValueError(
                f"the likelihood {type(likelihood).__name__} has {likelihood.num_latents} latent(s), but the "
                f"prior has {prior.num_latents}: give one kernel per latent with kernels.Independent([...]), or "
                "num_latents= to a LinearModel"
            )
        self.prior = prior
        self.likelihood = likelihood


def _additive(prior: Any, likelihood: Likelihood) -> Any:
    """The prior that terms or formulas stand for; anything else as it is. (Other models do without their import.)"""
    from .priors.additive import Additive
    from .terms import Formula, Term, Terms

    if isinstance(prior, (Term, Terms, Mapping, Formula)) or (isinstance(prior, str) and "~" in prior):
        return Additive(_by_latent(prior, likelihood))
    return prior


def weighted_model(model: Model, weights: Any) -> Model:
    """The model with weights of rows, unless they are None."""
    return model if weights is None else Model(model.prior, Weighted(model.likelihood, weights))


def without_weights(model: Model) -> Model:
    """The model of one row: weights belong to data, and say nothing about new rows."""
    bare = unweighted(model.likelihood)
    return model if bare is model.likelihood else Model(model.prior, bare)


_ALIASES = {"mean": "location", "mu": "location"}


def _by_latent(terms: Any, likelihood: Likelihood) -> Any:
    """Terms in the order of the latents; ValueError if they are not given for all of them."""
    known, latents = tuple(likelihood.latent_names), likelihood.num_latents
    given = {_ALIASES.get(name, name): own for name, own in terms.items()} if isinstance(terms, Mapping) else None
    if given is not None and known and latents > 1 and set(given) == set(known):
        return {name: given[name] for name in known}
    count = 1 if given is None else len(given)
    if count == latents and (not known or latents == 1):
        return terms
    kind = type(likelihood).__name__
    names = known or tuple(f"f{latent}" for latent in range(latents))
    wanted = ", ".join(f"{name!r}: ..." for name in names)
    what = "one sum of terms" if given is None else f"terms of {', '.join(map(repr, terms)) or 'none'}"
    instead = f"write Model({{{wanted}}}, likelihood)" if latents > 1 else "write Model(terms, likelihood)"
    raise ValueError(f"{kind} has {latents} latent(s){_called(known)}, got {what}: {instead}")


def _called(names: tuple[str, ...]) -> str:
    return f", {' and '.join(map(repr, names))}" if names else ""


def from_formulas(model: Any, y: Any, effects: Any = None) -> tuple[Any, Any]:
    """The model and y that a user gave; of a formula, which is followed by a likelihood, the model and y's column."""
    if isinstance(model, Model):
        if effects is not None:
            raise ValueError(
                "effects= is the prior of fixed effects of a formula: write Linear(..., prior=...) instead"
            )
        return model, y
    from .terms.formula import is_formula, read_formulas

    if not is_formula(model):
        return model, y
    terms, output = read_formulas(model, effects)
    if not isinstance(y, (str, Likelihood)):
        given = "none" if y is None else f"a {type(y).__name__}"
        raise ValueError(
            f"a formula is followed by the table and a likelihood, got {given} as the third argument: write "
            "fit(formula, table, likelihoods.Poisson()), or a name such as 'poisson'"
        )
    return Model(terms, y), output


_WITHOUT_ARGUMENTS = (
    "Gaussian",
    "StudentT",
    "Bernoulli",
    "Poisson",
    "NegativeBinomial",
    "Gamma",
    "Exponential",
    "Beta",
    "LogNormal",
    "HeteroscedasticGaussian",
    "HeteroscedasticStudentT",
)


_CLASSES = "likelihoods.Softmax(num_classes=3) for y = 0, 1, 2"
_INSTEAD = {
    "binomial": "likelihoods.Binomial(trials=10), with the number of trials of each row",
    "betabinomial": "likelihoods.BetaBinomial(trials=10), with the number of trials of each row",
    "ordinal": "likelihoods.Ordinal(thresholds=[-1.0, 0.0, 1.0]), with one threshold between every two levels",
    "softmax": _CLASSES,
    "categorical": _CLASSES,
    "multinomial": _CLASSES,
    "normal": '"gaussian"',
    "logistic": 'likelihoods.Bernoulli("logit") for y = 0 and 1',
    "logit": 'likelihoods.Bernoulli("logit") for y = 0 and 1',
    "probit": 'likelihoods.Bernoulli("probit") for y = 0 and 1',
    "weighted": "a likelihood such as likelihoods.Poisson(), and weights= of infer or fit",
    "zeroinflated": "likelihoods.ZeroInflated(likelihoods.Poisson())",
    "chained": 'likelihoods.Chained(likelihoods.StudentT(), scale="softplus")',
    "multivariategaussian": "likelihoods.MultivariateGaussian([1.0, 1.0]), with one variance per output",
    "product": "likelihoods.Product()",
    "regressionnetwork": "likelihoods.RegressionNetwork(outputs=2, nodes=1, covariance=0.1)",
    "amplitudedemodulation": "likelihoods.AmplitudeDemodulation(num_subbands=2)",
    "linearcoregionalisation": "likelihoods.LinearCoregionalisation(mixing, covariance)",
}
"""What to write instead of names that are not those of a likelihood with default arguments."""


def likelihood_named(name: str) -> Likelihood:
    """The likelihood with this name and its default arguments.

    >>> likelihood_named("negative_binomial").num_latents
    1
    """
    return getattr(likelihoods, find(name, _WITHOUT_ARGUMENTS, "likelihood", _INSTEAD))()
