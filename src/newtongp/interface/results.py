"""The methods of `Result` and `FitResult`. Each calls the room that does the work.

Results are created by rooms that cannot import prediction, diagnostics, plotting or storage. `attach_all` adds these
methods to their classes when newtongp is imported. Each method imports its room when it is first called.
"""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._runtime import spare_time
from ..numerics.gaussian import Gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..diagnostics import Calibration
    from ..diagnostics.summary import Summary
    from ..fitting.covariances import NamedCovariance
    from ..prediction.predict import Prediction


class ResultMethods:
    """The methods of every `Result`."""

    def predict(
        self: Any, x_new: Any, *, without: Any = (), new_levels: str = "integrate", **row_parameters: Any
    ) -> "Prediction":
        """Predictions of y (and f) at new inputs; see `Prediction`.

        `row_parameters` are the likelihood's per-row values at the new inputs, such as `exposure`. If x was a data
        frame and `x_new` is one too, columns are matched by name; otherwise by position.

        For models of terms, `without` names terms that are left out, by their labels or by the columns of groups and
        smooth terms, as in `without=["patient"]`. Effects of levels that the data did not have are integrated over
        their prior, or are zero with `new_levels="zero"`.
        """
        from ..prediction import predict

        return predict.predict(self, x_new, without, new_levels, **row_parameters)

    def log_density(self: Any, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
        """log E_q[p(y* | f*)], one value per row; NaN in `y_new` gives NaN."""
        from ..prediction import predict

        return predict.log_density(self, x_new, y_new, **row_parameters)

    def joint(self: Any, x_new: Any) -> Gaussian:
        """The joint normal distribution of f at M new inputs: `mean` (M·D,) and `covariance` (M·D, M·D).

        Entries are in the order of the rows, and within a row in that of the D latents.
        """
        from ..prediction import predict

        return predict.joint(self, x_new)

    def sample(self: Any, key: Any, x_new: Any, n: int) -> np.ndarray:
        """n joint draws of f at new inputs, shape (n, M, D). `key` is a JAX key or an integer seed."""
        from ..prediction import predict

        return predict.sample(self, key, x_new, n)

    def sample_y(self: Any, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
        """n draws of y at new inputs, each given a joint draw of f; shape (n, M) or (n, M, P)."""
        from ..prediction import predict

        return predict.sample_y(self, key, x_new, n, **row_parameters)

    def terms(
        self: Any,
        table: Any = None,
        only: Any = None,
        *,
        sum: bool = False,
        level: float = 0.95,
        new_levels: str = "integrate",
    ) -> Any:
        """The posterior of every term of a model of terms, at the rows of a table or of the data: a data frame.

        There is one line per term and row, with the mean, the standard deviation and the central interval on the scale
        of the latent, given the hyperparameters. Means add up to that of the latent. `only` chooses terms, by their
        labels or by the columns of groups and smooth terms. With `sum=True` there is one line per row, for the sum of
        the chosen terms and its own standard deviation. The frame is of the library of the table.
        """
        from ..prediction import terms
        from ..validation.arguments import flag

        return terms.terms(self, table, only, flag(sum, "sum"), level, new_levels)

    def effects(self: Any, term: Any = None, *, level: float = 0.95, including_learned: bool = False) -> Any:
        """The effects of a model of terms, with standard errors and intervals: a data frame.

        Without `term`, these are the coefficients of fixed effects (of columns as they are) with z, standard deviations
        and correlations of groups, and other hyperparameters. With the label of a term, or the column of a group, they
        are that term's coefficients, the effects of its levels, or its values at the inputs of the data.

        Effects are conditional on the learned hyperparameters; with `including_learned=True`, standard errors include
        the uncertainty of these, which takes two inferences per learned number. Standard errors of hyperparameters are
        those of `fit`. Their intervals are symmetric on the scale on which they are learned (logarithms of variances).
        If the standard error of any positive value is larger than the value, or infinite, as that of a variance that
        ended at 0, this interval and others that the data leave wide are profile intervals, unless that would take more
        than a few seconds: they end where the energy, with all other values at their best, has risen by half a
        chi-squared quantile.
        """
        from ..diagnostics import effects
        from ..validation.arguments import flag

        carried = None
        if flag(including_learned, "including_learned"):
            from ..fitting import covariances

            if not hasattr(self, "learned"):
                raise ValueError("including_learned is for results of fit: infer learns nothing")
            carried = covariances.carried_variances
        return effects.effects(self, term, level, carried)

    def contrast(
        self: Any,
        table_a: Any,
        table_b: Any,
        *,
        average: bool = False,
        without: Any = (),
        new_levels: str = "integrate",
        level: float = 0.95,
        n: int = 2000,
        key: Any = 0,
        **row_parameters: Any,
    ) -> Any:
        """E[y] at the rows of `table_a` minus E[y] at those of `table_b`, row by row: a data frame.

        Standard deviations and intervals of E[y | f] come from n joint draws of f at both rows, with `key`, a JAX key
        or an integer seed. With `average=True` there is one line, for the average over all rows. `without` and
        `new_levels` are as in `predict`.
        """
        from ..prediction import contrasts

        return contrasts.contrast(self, table_a, table_b, average, without, new_levels, level, n, key, row_parameters)

    def leave_one_out(self: Any) -> np.ndarray:
        """log p(yₙ | all other rows), from the cavity of every row; NaN where y is missing or the cavity improper.

        Its `np.nansum` is the score of a model; `compare` compares several models. It warns if inference has not
        converged (`settled`), because a cavity is then not the posterior without the row.
        """
        from ..prediction import predict

        return predict.leave_one_out(self)

    def calibration(
        self: Any, x_new: Any = None, y_new: Any = None, key: Any = 0, **row_parameters: Any
    ) -> "Calibration":
        """Calibration of the predictions: PIT values, and coverage of central intervals.

        It uses new data or, without any, the data itself, with each row predicted from all others (`leave_one_out`).
        `key`, a JAX key or an integer seed, randomises the PIT values of discrete y.
        """
        from .. import diagnostics

        return diagnostics.calibration(self, x_new, y_new, key, **row_parameters)

    def summary(self: Any, checks: bool = True, names: Any = None) -> "Summary":
        """A summary on one page: status, hyperparameters, and warnings.

        `checks=False` skips the checks that take some computation: the accuracy of integrals, unusual rows, and effects
        of safeguards and rounding. For a `LinearModel` it includes the coefficients, under the `names` of the columns
        of x if these are given, or if x was a data frame.
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

    def plot_terms(
        self: Any, axes: Any = None, only: Any = None, *, level: float = 0.95, places: Any = None
    ) -> "Figure":
        """Draw every term of a model of terms, with intervals; see `plotting.plot_terms`."""
        from .. import plotting

        return plotting.plot_terms(self, axes, only, level, places)

    def plot_maps(
        self: Any, times: Any = None, places: Any = None, *, what: str = "mean", axes: Any = None, **row_parameters: Any
    ) -> "Figure":
        """Maps of a model in space and time at some times; see `plotting.plot_maps`."""
        from .. import plotting

        return plotting.plot_maps(self, times, places, what=what, axes=axes, **row_parameters)

    def plot_places(
        self: Any,
        places: Any = None,
        *,
        until: Any = None,
        names: Any = None,
        levels: Any = (0.5, 0.95),
        axes: Any = None,
        **row_parameters: Any,
    ) -> "Figure":
        """The series of places of a model in space and time, with bands; see `plotting.plot_places`."""
        from .. import plotting

        return plotting.plot_places(self, places, until=until, names=names, levels=levels, axes=axes, **row_parameters)

    def plot_convergence(self: Any, axes: Any = None) -> "Figure":
        """Plot the energy and the distance from convergence over the steps."""
        from .. import plotting

        return plotting.plot_convergence(self, axes)

    def report(self: Any, folder: Any, title: str | None = None) -> Path:
        """Write a web page with figures and the saved result to a folder; returns the path of `index.html`.

        This needs matplotlib. The page opens in any browser, without a server. For several results, see
        `report.write_report`.
        """
        from .. import report

        folder = report.folder_name(folder)  # checked before anything is drawn
        section = report.section_of(self, title)
        return report.write_report(folder, [section], section.title)

    def to_arviz(self: Any, draws: int = 1000, chains: int = 4, key: Any = 0) -> Any:
        """Draws at the rows of the data as ArviZ data, an `xarray.DataTree`; this needs arviz-base.

        The groups are `posterior` (f at every row), `posterior_predictive` and `observed_data` (y at the rows where it
        was observed) and `log_likelihood`. Draws are joint over rows and independent of each other, given the
        hyperparameters, so chains are only a layout. `key` is a JAX key or an integer seed.
        """
        from ..prediction import arviz

        return arviz.to_arviz(self, draws, chains, key)

    def one_step_ahead(self: Any) -> np.ndarray:
        """log p(yₙ | rows before it in time), for priors in time; NaN where y is missing (use `np.nansum`).

        Rows at the same time are treated as consecutive, and those of a `SpaceTimeGP` as simultaneous: all of them are
        predicted from earlier times alone.
        """
        from ..prediction import predict

        return predict.one_step_ahead(self)

    def states(self: Any, x: Any) -> Gaussian:
        """The smoothed states at any inputs, for priors in time: mean (M, d), covariance (M, d, d).

        For a `MarkovGP` these are the latents and, for example, their derivatives, as deviations from the prior mean;
        for a `StateSpaceModel` its own states; for a `SpaceTimeGP` those in time at the place of each row.
        """
        from ..prediction import predict

        return predict.states(self, x)

    def save(self: Any, path: Any) -> None:
        """Save the result with its model and data in one file, which `newtongp.load` reads in any process.

        An existing file is replaced in one step, when the new one is complete. Files contain no code: custom classes
        are saved by name and passed to `load`, and lambdas cannot be saved.
        """
        from .. import storage

        storage.save(self, path)

    def __reduce__(self: Any) -> Any:
        """For pickle and copy: the same parts as in a file, with custom classes by their names, as pickle does it."""
        from ..storage.saved_results import contents_of_result, restored

        return restored, (type(self), contents_of_result(self))


class FitResultMethods:
    """The additional methods of a `FitResult`."""

    @property
    def covariance(self: Any) -> "NamedCovariance":
        """The covariance of the learned values, from the curvature of the energy.

        Rows are in the order of `learned`, with one row per entry of an array, named as in `likelihood.gaps[0]`. For
        positive parameters with large standard errors, `unconstrained_covariance`, which is that of their logarithms,
        is more accurate.
        """
        from ..fitting.covariances import covariance

        return covariance(self)

    @property
    def unconstrained_covariance(self: Any) -> "NamedCovariance":
        """The covariance of the unconstrained numbers: logarithms of positive parameters, log odds of those between two
        bounds, and other values unchanged."""
        from ..fitting.covariances import unconstrained_covariance

        return unconstrained_covariance(self)

    def joint_covariance(self: Any) -> "NamedCovariance":
        """The joint covariance of a linear model's weights and the learned values.

        `posterior.weights` is conditional on the learned hyperparameters. This adds their uncertainty: Cov[w] ≈ Cov[w |
        θ] + J Cov[θ] Jᵀ with J = dE[w]/dθ. Weights come first, where `weight[0]` is that of the first column
        (`weight[1, 0]` with several latents), followed by the learned values, as in `covariance`. It takes two
        inferences per learned number.
        """
        from ..fitting.covariances import joint_covariance

        return joint_covariance(self)


_NEXT = ("scipy.special", "newtongp.prediction.predict", "newtongp.diagnostics.summary", "rich.console", "rich.table")
"""What predictions, summaries and their tables import."""


def attach_all() -> None:
    """Add the methods to the result classes."""
    spare_time.expect(*_NEXT)
    from ..results.fit_result import FitResult
    from ..results.result import Result

    for methods, cls in ((ResultMethods, Result), (FitResultMethods, FitResult)):
        for name, member in vars(methods).items():
            if inspect.isfunction(member) or isinstance(member, property):
                setattr(cls, name, member)
