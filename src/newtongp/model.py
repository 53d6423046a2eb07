"""A model: a prior and a likelihood that fit together."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx

from . import likelihoods
from .likelihoods.base import Likelihood
from .priors.additive import Additive
from .priors.base import Prior
from .priors.by_name import for_latents
from .terms.base import Term, Terms
from .terms.formula import Formula, is_formula, read_formulas
from .validation.names import find


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
        if isinstance(prior, (Term, Terms, Mapping, Formula)) or (isinstance(prior, str) and "~" in prior):
            prior = Additive(prior)
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a prior such as GP(kernels.Matern32()), got {prior!r}")
        if not isinstance(likelihood, Likelihood):
            raise ValueError(f"likelihood must be one such as likelihoods.Poisson(), got {likelihood!r}")
        prior = for_latents(prior, likelihood.num_latents)
        if prior.num_latents != likelihood.num_latents:
            raise ValueError(
                f"the likelihood {type(likelihood).__name__} has {likelihood.num_latents} latent(s), but the "
                f"prior has {prior.num_latents}: give one kernel per latent with kernels.Independent([...]), or "
                "num_latents= to a LinearModel"
            )
        self.prior = prior
        self.likelihood = likelihood


def from_formulas(model: Any, y: Any, effects: Any = None) -> tuple[Any, Any]:
    """The model and y that a user gave; of a formula, which is followed by a likelihood, the model and y's column."""
    if not is_formula(model):
        if effects is not None:
            raise ValueError(
                "effects= is the prior of fixed effects of a formula: write Linear(..., prior=...) instead"
            )
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
