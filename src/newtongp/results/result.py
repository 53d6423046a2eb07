"""The result of inference, and the error that is raised if it breaks down."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..inputs.columns import Columns
from ..inputs.data import Data
from ..model import Model
from ..numerics.gaussian import Gaussian, Sites
from ..priors.base import Posterior
from ..terms.columns import TableColumns
from .status import Status

if TYPE_CHECKING:
    from ..interface.results import ResultMethods
else:
    ResultMethods = object


class InferenceError(RuntimeError):
    """Inference broke down. `result` holds the last good step."""

    def __init__(self, result: "Result", detail: str | None = None):
        no_start = result.steps == 0 and result.status is not Status.BOUNDED_SUPPORT
        sentence = _NO_START if no_start else result.status.sentence
        super().__init__(f"{result.status.name.lower()}: {sentence}" + (f" {detail}" if detail else ""))
        self.result = result


_NO_START = (
    "Inference could not start: the likelihood is not finite anywhere near the prior mean. Check the scale of the data "
    "against the prior's mean and variance, or start at values where log p(y | f) is finite: "
    "sites=Sites(100 * f0, Sites.constant(N, D, 100).precision) holds N rows of D latents at f0 (N, D)."
)


_SETTLED = 1e-3


class History:
    """One entry per step: the energy, the quantity that the step controls, and the step size."""

    def __init__(self, energy: np.ndarray, objective: np.ndarray, step_size: np.ndarray):
        self.energy = energy
        self.objective = objective
        self.step_size = step_size

    def __len__(self) -> int:
        return len(self.energy)

    def __repr__(self) -> str:
        return f"History of {len(self)} step(s)"


class Result(ResultMethods):
    """The result of inference: q(f), its energy, status and history, and predictions from it.

    `sites` and `marginals` have one entry per row of the data. So does `site_marginals`, the marginals of the variable
    on which the sites act: f itself, or for a `SparseGP` its projection on the inducing variables. They are None if no
    single rows were kept (a `SparseGP` with `storage="tied"`), and `data` is None if it was read in chunks. `columns`
    holds the names of the columns of x, if it was a data frame: new data frames are matched by name, other inputs by
    position.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> result = ng.infer(model, [0.0, 1.0, 2.0], [1, 0, 3])
    >>> result.status.name
    'CONVERGED'
    >>> result.predict([0.5]).mean.shape
    (1,)
    """

    def __init__(
        self,
        *,
        model: Model,
        method: Any,
        data: Any,
        status: Status,
        energy: float,
        residual: float,
        steps: int,
        history: History,
        sites: Any,
        marginals: Any,
        condition: Callable[[], Posterior],
        site_marginals: Gaussian | None = None,
        columns: Columns | TableColumns | None = None,
    ):
        self.model = model
        self.method = method
        # Only results of minibatches have None here; the types describe all others.
        self.data: Data = data
        self.status = status
        self.energy = energy
        self.residual = residual
        self.steps = steps
        self.history = history
        self.sites: Sites = sites
        self.marginals: Gaussian = marginals
        self.site_marginals: Gaussian = marginals if site_marginals is None else site_marginals
        self.columns = columns
        self._condition = condition

    def __repr__(self) -> str:
        return (
            f"Result: {self.status.name.lower()} after {self.steps} step(s), energy {self.energy:.6g}, "
            f"residual {self.residual:.1e}"
        )

    @property
    def settled(self) -> bool:
        """Whether the sites are at their fixed point: inference converged, or its residual is at most 1e-3.

        Only then is a cavity, the posterior without the site of a row, equal to the posterior without the row.
        """
        status = getattr(self, "inference_status", self.status)
        return status.ok or (not status.failed and self.residual <= _SETTLED)

    @functools.cached_property
    def posterior(self) -> Posterior:
        """q(f): marginals at the data, in the order of its rows, and everything needed for prediction."""
        return self._condition()
