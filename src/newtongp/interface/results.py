"""The methods of `Result` and `FitResult`, each a call into the room that does the work.

Results are made by rooms that know nothing of predictions, summaries, plots or files. `attach_all` puts these methods
on their classes when newtongp is imported; the rooms behind them are imported when a method is first called.
"""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..numerics.gaussian import Gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..diagnostics import Calibration
    from ..diagnostics.summary import Summary
    from ..fitting.covariances import NamedCovariance
    from ..prediction.predict import Prediction


class ResultMethods:
    """What every `Result` offers."""

    def predict(self: Any, x_new: Any, **row_parameters: Any) -> "Prediction":
        """Predictions of y (and f) at new inputs; see `Prediction`.

        `row_parameters` are the likelihood's per-row numbers at the new inputs, such as `exposure`. Where x was a data
        frame and `x_new` is one, its columns are matched by name; an array is taken by position.
        """
        from ..prediction import predict

        return predict.predict(self, x_new, **row_parameters)

    def log_density(self: Any, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
        """log E_q[p(y* | f*)], one value a row; NaN in `y_new` gives NaN."""
        from ..prediction import predict

        return predict.log_density(self, x_new, y_new, **row_parameters)

    def sample(self: Any, key: Any, x_new: Any, n: int) -> np.ndarray:
        """n joint draws of f at new inputs, shape (n, M, D). `key` is a JAX key or an integer seed."""
        from ..prediction import predict

        return predict.sample(self, key, x_new, n)

    def sample_y(self: Any, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
        """n draws of y at new inputs, each given a joint draw of f; shape (n, M) or (n, M, P)."""
        from ..prediction import predict

        return predict.sample_y(self, key, x_new, n, **row_parameters)

    def leave_one_out(self: Any) -> np.ndarray:
        """log p(yₙ | all other rows), from the cavity of every row; NaN where y is missing or the cavity improper.

        `np.nansum` of it is the score of a model; `compare` puts those of several models side by side.
        It warns if inference has not converged (`settled`): then a cavity is not the posterior without the row.
        """
        from ..prediction import predict

        return predict.leave_one_out(self)

    def calibration(
        self: Any, x_new: Any = None, y_new: Any = None, key: Any = 0, **row_parameters: Any
    ) -> "Calibration":
        """Whether data fall where they were predicted to: PIT values, and coverage of central intervals.

        On new data or, without any, on the rows themselves, each predicted from all others (`leave_one_out`). `key`, a
        JAX key or an integer seed, randomises the PIT values of discrete y.
        """
        from .. import diagnostics

        return diagnostics.calibration(self, x_new, y_new, key, **row_parameters)

    def summary(self: Any, checks: bool = True, names: Any = None) -> "Summary":
        """On one page: how it ended, all hyperparameters, and warnings of what deserves a second look.

        `checks=False` leaves out those that take some computing: whether the integrals are exact enough, which rows
        stand out, what a safeguard or rounding has changed. For a `LinearModel` the coefficients are part of it, by the
        `names` of the columns of x where they are given, or x was a data frame.
        """
        from ..diagnostics import summary

        return summary.summarise(self, checks, names)

    def plot(
        self: Any,
        axes: Any = None,
        grid: Any = None,
        *,
        latents: bool = False,
        levels: Any = (0.5, 0.95),
        **row_parameters: Any,
    ) -> "Figure":
        """The data and the predictions of y, over one input or as a map over two; see `plotting.plot_result`."""
        from .. import plotting

        return plotting.plot_result(self, axes, grid, latents=latents, levels=levels, **row_parameters)

    def plot_convergence(self: Any, axes: Any = None) -> "Figure":
        """The energy over the steps, and how far each was from the end."""
        from .. import plotting

        return plotting.plot_convergence(self, axes)

    def report(self: Any, folder: Any, title: str | None = None) -> Path:
        """Write a page about it to a folder: `index.html`, its figures, and the result itself; returns its path.

        It needs matplotlib, and opens in any browser, from the disk. See `report.write_report` for several results.
        """
        from .. import report

        folder = report.folder_name(folder)  # asked before anything is drawn
        section = report.section_of(self, title)
        return report.write_report(folder, [section], section.title)

    def one_step_ahead(self: Any) -> np.ndarray:
        """log p(yₙ | rows before it in time), for priors in time; NaN where y is missing (`np.nansum` leaves it out).

        Rows at the same time count as coming one after the other.
        """
        from ..prediction import predict

        return predict.one_step_ahead(self)

    def states(self: Any, x: Any) -> Gaussian:
        """The smoothed states at any inputs, for priors in time: mean (M, d), covariance (M, d, d).

        A `MarkovGP` has the latents with their derivatives, or the like, as deviations from the prior mean; a
        `StateSpaceModel` has its own states.
        """
        from ..prediction import predict

        return predict.states(self, x)

    def save(self: Any, path: Any) -> None:
        """Write it to one file, with its model and data, from which `newtongp.load` has it again in any process.

        A file of that name is replaced, at once and only when the new one is complete. Files hold no code: classes of
        your own are kept by name and given to `load`, and lambdas cannot be kept.
        """
        from .. import storage

        storage.save(self, path)


class FitResultMethods:
    """What a `FitResult` offers in addition."""

    @property
    def covariance(self: Any) -> "NamedCovariance":
        """The covariance of what was learned, from the curvature of the energy.

        Rows are in the order of `learned`, with one row for each entry of an array, named as in `likelihood.gaps[0]`.
        For positive parameters with large standard errors `unconstrained_covariance`, that of their logarithms, is
        nearer to the truth.
        """
        from ..fitting.covariances import covariance

        return covariance(self)

    @property
    def unconstrained_covariance(self: Any) -> "NamedCovariance":
        """The covariance of the free numbers of what was learned: logarithms of positive parameters, log odds of those
        between two numbers, and others as they are."""
        from ..fitting.covariances import unconstrained_covariance

        return unconstrained_covariance(self)

    def joint_covariance(self: Any) -> "NamedCovariance":
        """The covariance of a linear model's weights together with that of what was learned.

        `posterior.weights` is what is known of the weights if the learned hyperparameters are right. Here the
        uncertainty of those is added: Cov[w] ≈ Cov[w | θ] + J Cov[θ] Jᵀ with J = dE[w]/dθ. Weights come first,
        `weight[0]` being that of the first column (`weight[1, 0]` with several latents), then what was learned, as in
        `covariance`. It takes two inferences for each number that was learned.
        """
        from ..fitting.covariances import joint_covariance

        return joint_covariance(self)


def attach_all() -> None:
    """Put the methods on the classes of results."""
    from ..results.fit_result import FitResult
    from ..results.result import Result

    for methods, cls in ((ResultMethods, Result), (FitResultMethods, FitResult)):
        for name, member in vars(methods).items():
            if inspect.isfunction(member) or isinstance(member, property):
                setattr(cls, name, member)
