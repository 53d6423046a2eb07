"""How inference ended, in words, and everything it found."""

import enum
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import Columns
from .data import Data
from .gaussian import Gaussian, Sites
from .model import Model
from .priors.base import Posterior

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .checking import Calibration
    from .predict import Prediction
    from .summary import Summary


class Status(enum.IntEnum):
    """How inference ended. Every ending has a name and a sentence; printed, it shows both.

    >>> print(Status.SINGLE_PASS)
    SINGLE_PASS: One sweep forward and one back, ...
    >>> Status.CONVERGED.ok
    True
    >>> "step" in Status.MAX_STEPS.sentence
    True
    """

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    STEP_TOO_SMALL = 3
    IMPROPER_POSTERIOR = 4
    IMPROPER_CAVITY = 5
    NON_FINITE = 6
    SINGLE_PASS = 7
    INTERRUPTED = 8
    BOUNDED_SUPPORT = 9
    STALLED = 10

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def ok(self) -> bool:
        """Whether the fixed point was reached."""
        return self is Status.CONVERGED

    @property
    def failed(self) -> bool:
        """Whether the run broke down, so that only its last good step is left."""
        return self in (
            Status.IMPROPER_POSTERIOR,
            Status.IMPROPER_CAVITY,
            Status.NON_FINITE,
            Status.BOUNDED_SUPPORT,
        )

    @property
    def sentence(self) -> str:
        """What happened, and what to try next."""
        return _SENTENCES[self]


_SENTENCES = {
    Status.RUNNING: "Inference has not ended yet.",
    Status.CONVERGED: "Converged to within the tolerance: no update would still move the result by more.",
    Status.MAX_STEPS: (
        "The number of steps ran out before convergence: raise max_steps, or continue with infer(..., "
        "sites=result.sites) or, after a fit, with fit(result.model, ...)."
    ),
    Status.SINGLE_PASS: (
        "One sweep forward and one back, each row expanded around what the rows before it predict. For the fixed "
        "point, try infer(..., sites=result.sites)."
    ),
    Status.INTERRUPTED: (
        "It was interrupted, and the best that had been found until then is kept. To go on, try fit with result.model."
    ),
    Status.STEP_TOO_SMALL: (
        "No step, however short, was acceptable. With a small residual the answer is as good as rounding and "
        "cubature allow; with a large one try a cubature with more nodes, a smaller power, or another method."
    ),
    Status.STALLED: (
        "The steps do not come to rest: the residual has not fallen for a hundred of them. For power EP try "
        "step=DoubleLoop(), slow but sure; else a smaller power, a cubature with more nodes, or another method."
    ),
    Status.IMPROPER_POSTERIOR: (
        "A step led to a posterior that is not a distribution; the last good step was kept. Use the default "
        "step, a smaller rho, or a method with PSD sites (GaussNewton, QuasiNewton, Heuristic)."
    ),
    Status.IMPROPER_CAVITY: (
        "A step led to a cavity that is not a distribution; the last good step was kept. Use the default "
        "step, a smaller rho, or a smaller power."
    ),
    Status.NON_FINITE: (
        "A step led to infinite or undefined values; the last good step was kept. Use the default step or a "
        "smaller rho, and check the scale of the data against the prior's variance."
    ),
    Status.BOUNDED_SUPPORT: (
        "The density of y is zero beyond a bound on f, and the posterior reaches that bound. VI cannot be used there, "
        "since E_q[log p(y | f)] is minus infinity, and Newton's method only if the mode is inside the bound. Use "
        "PowerEP(1.0), which integrates the density itself."
    ),
}


class ConvergenceWarning(UserWarning):
    """Inference ended with a usable answer that is not a fixed point."""


class FitWarning(UserWarning):
    """What `fit` has learned, or has not, deserves a second look."""


class InferenceError(RuntimeError):
    """Inference broke down. `result` has the last good step."""

    def __init__(self, result: "Result", detail: str | None = None):
        no_start = result.steps == 0 and result.status is not Status.BOUNDED_SUPPORT
        sentence = _NO_START if no_start else result.status.sentence
        super().__init__(f"{result.status.name.lower()}: {sentence}" + (f" {detail}" if detail else ""))
        self.result = result


_NO_START = (
    "Inference could not start: the likelihood is not finite anywhere near the prior mean. Check the scale of the data "
    "against the prior's mean and variance, or start where log p(y | f) is finite: "
    "sites=Sites(100 * f0, Sites.constant(N, D, 100).precision) holds N rows of D latents at f0 (N, D)."
)


_SETTLED = 1e-3


class History:
    """One entry a step: the energy, what the step controls, and the step size."""

    def __init__(self, energy: np.ndarray, objective: np.ndarray, step_size: np.ndarray):
        self.energy = energy
        self.objective = objective
        self.step_size = step_size

    def __len__(self) -> int:
        return len(self.energy)

    def __repr__(self) -> str:
        return f"History of {len(self)} step(s)"


class Result:
    """What inference found: q(f), its energy, how it got there, and predictions from it.

    `sites` and `marginals` have one entry a row of the data, as have `site_marginals`, those of what the sites act on:
    f itself, but for a `SparseGP` its projection on the inducing variables. Where nothing of single rows was kept (a
    `SparseGP` with `storage="tied"`) they are None, and so is `data` where it was read in chunks. `columns` has the
    names of the columns of x, where it was a data frame: new inputs that are one are matched with it by name, others
    by position.

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
        columns: Columns | None = None,
    ):
        self.model = model
        self.method = method
        # None is for results of batches only, which say so: types are those of all others.
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

        Only then is a cavity, the posterior without the site of a row, the posterior without the row.
        """
        status = getattr(self, "inference_status", self.status)
        return status.ok or (not status.failed and self.residual <= _SETTLED)

    def predict(self, x_new: Any, **row_parameters: Any) -> "Prediction":
        """Predictions of y (and f) at new inputs; see `Prediction`.

        `row_parameters` are the likelihood's per-row numbers at the new inputs, such as `exposure`. Where x was a data
        frame and `x_new` is one, its columns are matched by name; an array is taken by position.
        """
        from . import predict

        return predict.predict(self, x_new, **row_parameters)

    def log_density(self, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
        """log E_q[p(y* | f*)], one value a row; NaN in `y_new` gives NaN."""
        from . import predict

        return predict.log_density(self, x_new, y_new, **row_parameters)

    def sample(self, key: Any, x_new: Any, n: int) -> np.ndarray:
        """n joint draws of f at new inputs, shape (n, M, D). `key` is a JAX key or an integer seed."""
        from . import predict

        return predict.sample(self, key, x_new, n)

    def sample_y(self, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
        """n draws of y at new inputs, each given a joint draw of f; shape (n, M) or (n, M, P)."""
        from . import predict

        return predict.sample_y(self, key, x_new, n, **row_parameters)

    def leave_one_out(self) -> np.ndarray:
        """log p(yₙ | all other rows), from the cavity of every row; NaN where y is missing or the cavity improper.

        `np.nansum` of it is the score of a model; `compare` puts those of several models side by side.
        It warns if inference has not converged (`settled`): then a cavity is not the posterior without the row.
        """
        from . import predict

        return predict.leave_one_out(self)

    def calibration(self, x_new: Any = None, y_new: Any = None, key: Any = 0, **row_parameters: Any) -> "Calibration":
        """Whether data fall where they were predicted to: PIT values, and coverage of central intervals.

        On new data or, without any, on the rows themselves, each predicted from all others (`leave_one_out`). `key`, a
        JAX key or an integer seed, randomises the PIT values of discrete y.
        """
        from . import checking

        return checking.calibration(self, x_new, y_new, key, **row_parameters)

    def summary(self, checks: bool = True, names: Any = None) -> "Summary":
        """On one page: how it ended, all hyperparameters, and warnings of what deserves a second look.

        `checks=False` leaves out those that take some computing: whether the integrals are exact enough, which rows
        stand out, what a safeguard or rounding has changed. For a `LinearModel` the coefficients are part of it, by the
        `names` of the columns of x where they are given, or x was a data frame.
        """
        from . import summary

        return summary.summarise(self, checks, names)

    def plot(
        self,
        axes: Any = None,
        grid: Any = None,
        *,
        latents: bool = False,
        levels: Any = (0.5, 0.95),
        **row_parameters: Any,
    ) -> "Figure":
        """The data and the predictions of y, over one input or as a map over two; see `plotting.plot_result`."""
        from . import plotting

        return plotting.plot_result(self, axes, grid, latents=latents, levels=levels, **row_parameters)

    def plot_convergence(self, axes: Any = None) -> "Figure":
        """The energy over the steps, and how far each was from the end."""
        from . import plotting

        return plotting.plot_convergence(self, axes)

    def report(self, folder: Any, title: str | None = None) -> Path:
        """Write a page about it to a folder: `index.html`, its figures, and the result itself; returns its path.

        It needs matplotlib, and opens in any browser, from the disk. See `report.write_report` for several results.
        """
        from . import report

        folder = report.folder_name(folder)  # asked before anything is drawn
        section = report.section_of(self, title)
        return report.write_report(folder, [section], section.title)

    def one_step_ahead(self) -> np.ndarray:
        """log p(yₙ | rows before it in time), for priors in time; NaN where y is missing (`np.nansum` leaves it out).

        Rows at the same time count as coming one after the other.
        """
        from . import predict

        return predict.one_step_ahead(self)

    def states(self, x: Any) -> Gaussian:
        """The smoothed states at any inputs, for priors in time: mean (M, d), covariance (M, d, d).

        A `MarkovGP` has the latents with their derivatives, or the like, as deviations from the prior mean; a
        `StateSpaceModel` has its own states.
        """
        from . import predict

        return predict.states(self, x)

    def save(self, path: Any) -> None:
        """Write it to one file, with its model and data, from which `newtongp.load` has it again in any process.

        A file of that name is replaced, at once and only when the new one is complete. Files hold no code: classes of
        your own are kept by name and given to `load`, and lambdas cannot be kept.
        """
        from . import storage

        storage.save(self, path)

    @functools.cached_property
    def posterior(self) -> Posterior:
        """q(f): marginals at the data in the order of its rows, and what is needed to predict anywhere."""
        return self._condition()
