"""Predictions of results at new inputs and of their own rows: y, f, log densities and draws."""

import warnings
from typing import Any

import jax
import numpy as np

from .._runtime.compilation import compiled
from .._runtime.double import in_double, to_host
from ..inputs.data import check_indexes, read_data, read_inputs
from ..inputs.tables import outputs_of, row_values
from ..likelihoods.base import Likelihood, rows_given, with_row_parameters
from ..model import Model
from ..numerics.cubature import Cubature, PointRule
from ..numerics.gaussian import Gaussian, Sites, add_covariance, cavity
from ..numerics.size_classes import fill_rows, first_rows, size_class
from ..priors.temporal import TemporalPosterior
from ..results.result import Result
from ..results.status import ConvergenceWarning
from ..validation.arguments import as_key, whole
from ..validation.frames import index_of, library_of
from .integrals import draw_outputs, explained, log_densities
from .prediction import Prediction


def predict(
    result: Result, x_new: Any, without: Any = (), new_levels: str = "integrate", **row_parameters: Any
) -> Prediction:
    """Predictions of y and f at new inputs; for a model of terms, possibly without some of them."""
    x, likelihood = new_rows(result, x_new, row_parameters)
    if without or new_levels != "integrate":
        # Models without terms do not need them, whose import takes time.
        from .terms import latent_without, without_new_levels

        x = without_new_levels(result, x, new_levels)
        latent = latent_without(result, x, without) if without else _latent(result, x)
    else:
        latent = _latent(result, x)
    return Prediction(likelihood, latent, cubature_for(result), library_of(x_new), index_of(x_new))


def new_rows(
    result: Result, x_new: Any, row_parameters: dict[str, Any], name: str = "x_new"
) -> tuple[np.ndarray, Likelihood]:
    """New inputs, and the likelihood with its row parameters there: those given, or columns of the table."""
    x = new_inputs(result, x_new, row_parameters, name)
    given = row_values(result.model.likelihood, result.columns, x_new, row_parameters, name)
    return x, likelihood_at(result.model, x.shape[0], given)


def predict_at(result: Result, x: np.ndarray, **row_parameters: Any) -> Prediction:
    """Predictions at inputs that have already been read: numbers, with columns in the order of x."""
    likelihood = likelihood_at(result.model, x.shape[0], row_parameters)
    return Prediction(likelihood, _latent(result, x), cubature_for(result))


@in_double
def log_density(result: Result, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
    """log E_q[p(y* | f*)] for each row."""
    y_new = outputs_of(result.columns, x_new, y_new, ("x_new", "y_new"))
    check_indexes(x_new, y_new, ("x_new", "y_new"))
    x, likelihood = new_rows(result, x_new, row_parameters)
    model = Model(result.model.prior, likelihood)
    read = read_data(x, y_new, model, ("x_new", "y_new"))
    values = log_densities(read.likelihood(likelihood), cubature_for(result), _latent(result, x), read.y)
    return np.where(read.observed, np.asarray(values), np.nan)


@in_double
def joint(result: Result, x_new: Any) -> Gaussian:
    """The joint distribution of f at new inputs."""
    x = new_inputs(result, x_new)
    with explained("x_new"):
        return to_host(result.posterior.joint(x))


@in_double
def sample(result: Result, key: Any, x_new: Any, n: int) -> np.ndarray:
    """n joint draws of f at new inputs."""
    x = new_inputs(result, x_new)
    return _draw_latents(result, as_key(key), x, whole(n, "n"))


@in_double
def sample_y(result: Result, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
    """n draws of y at new inputs, each given a joint draw of f."""
    x, likelihood = new_rows(result, x_new, row_parameters)
    key_f, key_y = jax.random.split(as_key(key))
    latents = _draw_latents(result, key_f, x, whole(n, "n"))
    with explained():
        draws = draw_outputs(likelihood, key_y, latents)
    return draws[:, :, 0] if likelihood.num_outputs == 1 else draws


@in_double
def leave_one_out(result: Result) -> np.ndarray:
    """log E[p(yₙ | fₙ)] under q without its own site."""
    latent, usable = left_out(result, "leave_one_out", "log_density at rows that were left out")
    likelihood = result.data.likelihood(result.model.likelihood)
    values = log_densities(likelihood, cubature_for(result), latent, result.data.y)
    return np.where(usable, np.asarray(values), np.nan)


@in_double
def left_out(result: Result, what: str, otherwise: str) -> tuple[Gaussian, np.ndarray]:
    """f at each row given all others, from its cavity, and which rows have one; the others keep their marginals."""
    if result.data is None or result.sites is None:
        raise ValueError(
            f"{what} needs the rows and their sites, which were not kept: use arrays in memory and "
            f'storage="full", or {otherwise}'
        )
    if not result.settled:
        warnings.warn(
            f"{what} of a run that has not converged (residual {result.residual:.1e}): without its own site, a row is "
            "not predicted by the other rows alone. Run inference to convergence, or use cross_validate.",
            ConvergenceWarning,
            stacklevel=4,
        )
    rows = result.sites.linear.shape[0]
    filled = fill_rows((result.site_marginals, result.sites), size_class(rows))
    cavities, proper = first_rows(to_host(_cavities(*filled)), rows)
    if result.site_marginals is not result.marginals:
        cavities = add_covariance(cavities, result.marginals.covariance - result.site_marginals.covariance)
    usable = result.data.observed & proper
    return jax.tree.map(lambda a, b: np.where(_like(usable, a), a, b), cavities, result.marginals), usable


def _like(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    return mask.reshape(mask.shape + (1,) * (array.ndim - 1))


@compiled
def _cavities(marginals: Gaussian, sites: Sites) -> Any:
    cavities = jax.vmap(lambda marginal, site: cavity(marginal, site, 1.0))(marginals, sites)
    return cavities.gaussian, cavities.proper


@in_double
def one_step_ahead(result: Result) -> np.ndarray:
    """log E[p(yₙ | fₙ)] under the prediction from the previous rows."""
    latent = to_host(_in_time(result, "one_step_ahead").one_step_ahead())
    likelihood = result.data.likelihood(result.model.likelihood)
    values = log_densities(likelihood, cubature_for(result), latent, result.data.y)
    return np.where(result.data.observed, np.asarray(values), np.nan)


def states(result: Result, x: Any) -> Gaussian:
    """The smoothed states at any inputs."""
    posterior = _in_time(result, "states")
    inputs = new_inputs(result, x, name="x")
    with explained("x"):
        return posterior.states(inputs)


def _in_time(result: Result, what: str) -> TemporalPosterior:
    posterior = result.posterior
    if not isinstance(posterior, TemporalPosterior):
        raise ValueError(
            f"{what} needs a prior in time, MarkovGP, StateSpaceModel or SpaceTimeGP, got "
            f"{type(result.model.prior).__name__}"
        )
    return posterior


def cubature_for(result: Result) -> Cubature | None:
    """The rule for several latents: the method's own, unless it has only one node."""
    rule = result.method.cubature
    return None if isinstance(rule, PointRule) else rule


def new_inputs(
    result: Result, x_new: Any, row_parameters: dict[str, Any] | None = None, name: str = "x_new"
) -> np.ndarray:
    """New inputs, with the columns of x."""
    for other, values in (row_parameters or {}).items():
        check_indexes(x_new, values, (name, other))
    x = read_inputs(x_new, result.model, name, result.columns)
    # Data that were read in chunks are not kept, but the posterior knows the columns.
    columns = x.shape[1] if result.data is None else result.data.x.shape[1]
    if x.shape[1] != columns:
        raise ValueError(
            f"x and {name} must have the same number of columns, got {columns} and {x.shape[1]}: give {name} the "
            "columns of x, in the same order"
        )
    return x


def likelihood_at(model: Model, n: int, given: dict[str, Any]) -> Likelihood:
    """The likelihood with its row parameters at n new rows."""
    likelihood = model.likelihood
    unknown = sorted(set(given) - set(likelihood.row_parameters))
    if unknown:
        known = ", ".join(likelihood.row_parameters) or "none"
        raise ValueError(f"{type(likelihood).__name__} has no row parameter called {unknown[0]!r}; it has: {known}")
    needed = [name for name in rows_given(likelihood) if name not in given]
    if needed:
        raise ValueError(
            f"the model was given one {needed[0]} per row: pass {needed[0]}= (a number, or one value per new row)"
        )
    likelihood = with_row_parameters(likelihood, **given)
    for name, rows in rows_given(likelihood).items():
        if rows != n:
            raise ValueError(
                f"{name} must be a number or one value per new row, got {rows} value(s) for {n} row(s) of x_new"
            )
    return likelihood


def _latent(result: Result, x: np.ndarray) -> Gaussian:
    with explained("x_new"):
        return to_host(result.posterior.predict(x))


def _draw_latents(result: Result, key: Any, x: np.ndarray, n: int) -> np.ndarray:
    with explained("x_new"):
        return np.asarray(result.posterior.draw(key, x, n))
