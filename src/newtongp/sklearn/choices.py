"""What the arguments of an estimator stand for: methods by name, and the prior for the size of the data."""

from typing import Any, NamedTuple

import numpy as np

from .. import means
from ..inference.minibatch.checks import state_per_row
from ..kernels import Independent, Kernel
from ..kernels import inducing as inducing_inputs
from ..likelihoods import Softmax
from ..likelihoods.base import Likelihood
from ..methods import presets
from ..methods.presets import VI
from ..methods.rule import Method
from ..model import Model
from ..priors.base import Prior
from ..priors.by_name import named
from ..priors.dense import GP
from ..priors.markov import MarkovGP
from ..priors.sparse import SparseGP
from ..validation.arguments import is_whole, tolerance, whole
from ..validation.names import find

PRIORS = ("auto", "dense", "sparse", "markov")

_METHODS = ("VI", "Newton", "PowerEP", "PosteriorLinearisation", "Taylor")
_SYNONYMS = {"laplace": "Newton", "ep": "PowerEP"}

DENSE_GAUSSIAN, DENSE_OTHERS = 1000, 500
"""The largest number of rows of a dense GP, with which a fit takes some ten seconds."""
_FEWEST_INDUCING = 16
ALL_AT_ONCE = 20_000
"""The largest number of rows that a sparse GP processes without batches."""
_BATCH = 4096

MANY_LENGTHSCALES = 50
"""The largest number of classes times columns with which every class has a kernel of its own."""
_COSTLY = 3e8
"""N M² D² above which hyperparameters are learned from fewer rows and inducing inputs."""
_LEARN_INDUCING = 50


def method_for(method: Any) -> Method:
    """A method, also by its name; variational inference if it is None.

    >>> method_for("laplace").target.name
    'newton'
    """
    if method is None:
        return VI()
    if isinstance(method, str):
        known = find(_SYNONYMS.get(method.lower(), method), _METHODS, "method")
        return getattr(presets, known)()
    if not isinstance(method, Method):
        raise ValueError(f'method must be a method such as newtongp.VI(), or its name, "vi", got {method!r}')
    return method


class Size(NamedTuple):
    """The size of a problem."""

    rows: int
    columns: int
    latents: int
    gaussian: bool
    """Whether noise is Gaussian, so that nothing iterates."""


class Choice(NamedTuple):
    """A prior, what it is called, and the number of rows in a batch (None for all at once)."""

    name: str
    prior: Prior
    batch_size: int | None = None


def prior_for(
    kernel: Any, prior: Any, size: Size, max_dense: Any, inducing: Any, batch_size: Any, method: Method, seed: int
) -> Choice:
    """The prior that an estimator uses, by the rule in its documentation. `inducing` is as in `SparseGP`."""
    if isinstance(prior, Prior):
        return Choice(type(prior).__name__, prior, _batches(batch_size, size, prior, method))
    if not (isinstance(prior, str) and prior in PRIORS):
        names = ", ".join(map(repr, PRIORS))
        raise ValueError(f"prior must be one of {names}, or a prior such as newtongp.GP(kernel), got {prior!r}")
    kernel, mean = _for_latents(kernel, size.latents)
    if prior == "auto":
        prior = _by_size(kernel, size, max_dense)
    if prior == "markov":
        return Choice(prior, MarkovGP(kernel, mean))
    if prior == "dense":
        return Choice(prior, GP(kernel, mean))
    sparse = SparseGP(kernel, inducing, mean, seed=seed)
    return Choice(prior, sparse, _batches(batch_size, size, sparse, method))


def shares_kernel(kernel: Any, prior: Any, likelihood: Likelihood, columns: int) -> bool:
    """Whether all classes have one kernel in common, by the rule in the documentation of the estimators.

    >>> [shares_kernel("matern52", "auto", Softmax(3), columns) for columns in (16, 17)]
    [False, True]
    """
    if not isinstance(kernel, str) or isinstance(prior, Prior) or not isinstance(likelihood, Softmax):
        return False
    return likelihood.num_classes * columns > MANY_LENGTHSCALES


def rows_to_learn_from(
    choice: Choice, size: Size, max_learn: int | None, random: np.random.RandomState
) -> np.ndarray | None:
    """Random rows from which the hyperparameters of a sparse GP are learned; None for all."""
    if max_learn is None or not isinstance(choice.prior, SparseGP):
        return None
    if size.rows <= whole(max_learn, "max_learn", such_as=10_000):
        return None
    return np.sort(random.permutation(size.rows)[:max_learn])


class Coarse(NamedTuple):
    """With what the hyperparameters of many classes are learned: a number of inducing inputs, and of rows."""

    inducing: int
    rows: int


def coarse_for(choice: Choice, size: Size, inducing: Any, max_learn: int | None) -> Coarse | None:
    """Fewer rows and inducing inputs to learn from, where steps with all of them would take long; otherwise None."""
    if not isinstance(choice.prior, SparseGP) or not is_whole(inducing):
        return None
    if size.rows * (inducing * size.latents) ** 2 <= _COSTLY:
        return None
    most = size.rows if max_learn is None else whole(max_learn, "max_learn", such_as=10_000) // size.latents
    return Coarse(min(inducing, _LEARN_INDUCING), min(size.rows, max(most, 1)))


def with_inducing_of(choice: Choice, learned: Model) -> Model:
    """A model with learned hyperparameters, and the inducing inputs of this choice of a prior, if it has any."""
    inducing = choice.prior.inducing if isinstance(choice.prior, SparseGP) else None
    if inducing is None:
        return learned
    prior: Any = learned.prior
    return Model(prior.with_inducing(inducing), learned.likelihood)


def per_row(tol: Any, rows: int) -> float:
    """The slope at which a search ends if `tol` is that of ten rows."""
    return tolerance(tol, strict=True) * max(1.0, rows / 10.0)


def centres_of(x: np.ndarray, count: Any, kernel: str, seed: int) -> Any:
    """The centres of clusters of rows as inducing inputs; all rows, or what is given, as in `all_rows_inducing`.

    Rows that are repeated count once, so that the centres are the same with weights in place of repeated rows.
    """
    if not is_whole(count) or x.shape[0] <= count:
        return all_rows_inducing(x, count)
    sample = inducing_inputs.Sample(seed)
    sample.see(np.unique(x, axis=0))
    return inducing_inputs.choose((named(kernel),), sample.rows, count, "kmeans", seed)[0]


def _by_size(kernel: Any, size: Size, max_dense: Any) -> str:
    usual = DENSE_GAUSSIAN if size.gaussian else DENSE_OTHERS
    max_dense = usual if max_dense is None else whole(max_dense, "max_dense", 0, such_as=1000)
    if size.columns == 1 and _has_state_space_form(kernel):
        return "markov"
    # With D latents, a dense GP takes D³ times as long, and a sparse one D². For few rows the latter is exact.
    return "dense" if size.latents == 1 and size.rows <= max_dense else "sparse"


def all_rows_inducing(x: np.ndarray, inducing: Any) -> Any:
    """All rows as inducing inputs, unless there are more than `inducing`, which is then returned.

    The first row is repeated, which changes nothing, so that one compiled program serves several numbers of rows.

    >>> all_rows_inducing(np.arange(20.0)[:, None], 100).shape, all_rows_inducing(np.arange(20.0)[:, None], 10)
    ((32, 1), 10)
    """
    if not is_whole(inducing) or x.shape[0] > inducing:
        return inducing
    size = min(inducing, max(_FEWEST_INDUCING, 2 ** int(np.ceil(np.log2(x.shape[0])))))
    return np.concatenate([x, np.repeat(x[:1], size - x.shape[0], axis=0)])


def _has_state_space_form(kernel: Any) -> bool:
    try:
        MarkovGP(kernel)
    except (ValueError, NotImplementedError):
        return False
    return True


def _for_latents(kernel: Any, latents: int) -> tuple[Any, Any]:
    """The kernel and a constant mean for every latent; kernels given by name have them anyway."""
    if not isinstance(kernel, Kernel):
        return kernel, means.Independent([means.Constant(0.0)] * latents) if isinstance(kernel, Independent) else None
    if latents == 1:
        return kernel, means.Constant(0.0)
    return Independent([kernel] * latents), means.Independent([means.Constant(0.0)] * latents)


def _batches(batch_size: Any, size: Size, prior: Prior, method: Method) -> int | None:
    if batch_size != "auto":
        return None if batch_size is None else whole(batch_size, "batch_size", such_as=1000)
    many = isinstance(prior, SparseGP) and size.rows > ALL_AT_ONCE
    return _BATCH if many and _learns_in_batches(method) else None


def _learns_in_batches(method: Method) -> bool:
    """Whether hyperparameters can be learned with a method in batches."""
    return method.energy is not None and method.energy.integrates and state_per_row(method) is None


def as_seed(random: np.random.RandomState) -> int:
    """An integer seed, for JAX's keys."""
    return int(random.randint(np.iinfo(np.int32).max))
