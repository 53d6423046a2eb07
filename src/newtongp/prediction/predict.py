"""From q(f) to y: moments, quantiles, log densities and draws at new inputs."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.double import in_double, to_host
from ..inputs.data import check_indexes, read_data, read_inputs
from ..likelihoods import host
from ..likelihoods.base import (
    Likelihood,
    over_rows,
    row_covariance,
    row_mean,
    row_probabilities,
    row_sample,
    rows_given,
    with_row_parameters,
)
from ..methods.expectation import log_expected_density
from ..methods.nodes import moment_rule, place_nodes
from ..model import Model
from ..numerics.cubature import Cubature, PointRule, QuasiRandom, has_negative_weights, nodes_and_weights
from ..numerics.gaussian import Gaussian, Sites, add_covariance, cavity
from ..numerics.small import outer
from ..priors.temporal import TemporalPosterior
from ..results.result import Result
from ..results.status import ConvergenceWarning
from ..validation.arguments import as_key, whole
from ..validation.numbers import NotRealError, as_real
from . import densities, distribution, quantiles
from .distribution import Points
from .rows import Rows, warn_of_error

if TYPE_CHECKING:
    from pandas import DataFrame


class Prediction:
    """The predictive distribution of y at new inputs, in y's own units; `.latent` is that of f.

    `mean`, `variance` and `std` have shape (M,), or (M, P) for likelihoods with P outputs (then `covariance`
    is (M, P, P)). They are computed on first use.

    >>> import newtongp as ng
    >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Poisson())
    >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [4, 6, 5]).predict([0.5, 1.5])
    >>> bool((prediction.quantile(0.05) <= prediction.mean).all())
    True
    """

    def __init__(self, likelihood: Likelihood, latent: Gaussian, cubature: Cubature | None):
        self.likelihood = likelihood
        self.latent = latent
        self._cubature = cubature

    @property
    def mean(self) -> np.ndarray:
        """E[y]."""
        return self._outputs(self._moments()[0])

    @property
    def covariance(self) -> np.ndarray:
        """Cov[y] between the outputs of each row, (M, P, P)."""
        return self._moments()[1]

    @property
    def variance(self) -> np.ndarray:
        """Var[y]."""
        return self._outputs(np.diagonal(self._moments()[1], axis1=1, axis2=2))

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y."""
        return np.sqrt(self.variance)

    @property
    def probabilities(self) -> np.ndarray:
        """P(y = k) of every class or level k, (M, K), for likelihoods of classes."""
        with _explained():
            if self.likelihood.num_latents > 1:
                return np.asarray(in_double(_class_probabilities)(self.likelihood, self._cubature, self.latent))
            return _in_blocks(densities.probabilities, Rows(self.likelihood, self.latent))

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ p, for each output by itself; inf where no number is large enough.

        It is accurate to 1e-6 in probability; otherwise a warning states the accuracy. The shape is that of `mean`,
        with a leading axis of len(p) for several p.
        """
        probabilities = _probabilities(p)
        levels = probabilities.reshape(-1)
        rows, outputs = self.latent.mean.shape[0], self.likelihood.num_outputs
        level, row, output = (part.ravel() for part in np.indices((levels.size, rows, outputs)))
        found = self._at_points(quantiles.quantiles, Points(row, output, levels[level]), "quantiles of y")
        shape = (levels.size, rows) if outputs == 1 else (levels.size, rows, outputs)
        found = found.reshape(shape)
        return found[0] if probabilities.ndim == 0 else found

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the central interval: the quantiles at (1 − level)/2 and (1 + level)/2.

        >>> import newtongp as ng
        >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Gaussian(0.1))
        >>> lower, upper = ng.infer(model, [0.0, 1.0], [0.4, 0.6]).predict([0.5]).interval(0.95)
        >>> bool(lower[0] < 0.5 < upper[0])
        True
        """
        half = 0.5 * _level(level)
        lower, upper = self.quantile([0.5 - half, 0.5 + half])
        return lower, upper

    def cdf(self, y: Any) -> np.ndarray:
        """P(Y ≤ y) in every row, for each output by itself; `y` is a number, or one value per row and output.

        NaN gives NaN.

        >>> import newtongp as ng
        >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Exponential())
        >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [0.4, 0.6, 1.5]).predict([0.5, 1.5])
        >>> prediction.cdf(prediction.quantile(0.9)).round(6).tolist(), prediction.cdf(-1.0).tolist()
        ([0.9, 0.9], [0.0, 0.0])
        """
        rows, outputs = self.latent.mean.shape[0], self.likelihood.num_outputs
        values = _one_per_row(y, rows, outputs)
        finite = np.isfinite(values)
        inside = np.where(finite, values, self.likelihood.support.example)
        row, output = (part.ravel() for part in np.indices((rows, outputs)))
        points = Points(row, output, inside.ravel())
        found = self._at_points(distribution.distribution, points, "values of P(Y ≤ y)").reshape(rows, outputs)
        return self._outputs(np.where(finite, found, np.clip(values, 0.0, 1.0)))

    def _at_points(self, function: Callable, points: Points, what: str) -> np.ndarray:
        """`function` at all points, block by block, with a warning where it is not accurate."""
        rows = Rows(self.likelihood, self.latent)
        found, errors = np.empty(points.y.shape), np.empty(points.y.shape)
        with _explained():
            for block in _blocks(points.y.size, _POINTS.get(rows.nodal, _POINTS[2])):
                found[block], errors[block] = function(rows, points.take(block))
        _warn_of_errors(what, errors, points.rows)
        return found

    def to_frame(self, level: float = 0.95) -> "DataFrame":
        """A pandas DataFrame with one row per new input: `mean`, `std`, the interval's `lower` and `upper`.

        `latent_mean` and `latent_std` are those of f. For several outputs or latents, names include an index, as in
        `mean_0`; classes have columns `probability_0` and so on. Columns that the likelihood does not provide are left
        out.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_frame needs pandas: install it with `pip install pandas`") from None
        columns: dict[str, np.ndarray] = {}
        _level(level)
        if self.likelihood.moments_problem() is None:
            columns |= _numbered("mean", self.mean) | _numbered("std", self.std)
        with contextlib.suppress(ValueError):
            lower, upper = self.interval(level)
            columns |= _numbered("lower", lower) | _numbered("upper", upper)
        with contextlib.suppress(ValueError):
            columns |= _numbered("probability", self.probabilities)
        mean, std = (part[:, 0] if part.shape[1] == 1 else part for part in (self.latent.mean, self._latent_std()))
        return pandas.DataFrame(columns | _numbered("latent_mean", mean) | _numbered("latent_std", std))

    def _latent_std(self) -> np.ndarray:
        return np.sqrt(np.maximum(self.latent.variance, 0.0))

    def __repr__(self) -> str:
        rows, name = self.latent.mean.shape[0], type(self.likelihood).__name__
        shown = min(rows, _SHOWN_ROWS)
        few = Rows(self.likelihood, self.latent).at(np.arange(shown))
        first = Prediction(few, Gaussian(self.latent.mean[:shown], self.latent.covariance[:shown]), self._cubature)
        if self.likelihood.moments_problem() is None:
            what, means, deviations = "y", first.mean, first.std
        else:
            what, means, deviations = "f", first.latent.mean, first._latent_std()
        pairs = [_plus_minus(mean, std) for mean, std in zip(means, deviations, strict=True)]
        more = ", ..." if rows > shown else ""
        return f"Prediction of {rows} row(s), {name}: {what} = {', '.join(pairs)}{more}"

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(self, "_cached_moments"):
            problem = self.likelihood.moments_problem()
            if problem is not None:
                raise ValueError(
                    f"the mean and covariance of y need `mean` and `covariance` of the likelihood: {problem}"
                )
            self._cached_moments = _predictive_moments(self.likelihood, self._cubature, self.latent)
        return self._cached_moments

    def _outputs(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self.likelihood.num_outputs == 1 else array


def predict(result: Result, x_new: Any, **row_parameters: Any) -> Prediction:
    """Predictions of y and f at new inputs."""
    return predict_at(result, new_inputs(result, x_new, row_parameters), **row_parameters)


def predict_at(result: Result, x: np.ndarray, **row_parameters: Any) -> Prediction:
    """Predictions at inputs that have already been read: numbers, with columns in the order of x."""
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    return Prediction(likelihood, _latent(result, x), cubature_for(result))


@in_double
def log_density(result: Result, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
    """log E_q[p(y* | f*)] for each row."""
    check_indexes(x_new, y_new, ("x_new", "y_new"))
    x = new_inputs(result, x_new, row_parameters)
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    model = Model(result.model.prior, likelihood)
    read = read_data(x, y_new, model, ("x_new", "y_new"))
    values = _log_densities(read.likelihood(likelihood), cubature_for(result), _latent(result, x), read.y)
    return np.where(read.observed, np.asarray(values), np.nan)


@in_double
def sample(result: Result, key: Any, x_new: Any, n: int) -> np.ndarray:
    """n joint draws of f at new inputs."""
    x = new_inputs(result, x_new)
    return np.asarray(_draw_latents(result, as_key(key), x, whole(n, "n")))


@in_double
def sample_y(result: Result, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
    """n draws of y at new inputs, each given a joint draw of f."""
    x = new_inputs(result, x_new, row_parameters)
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    key_f, key_y = jax.random.split(as_key(key))
    latents = _draw_latents(result, key_f, x, whole(n, "n"))
    with _explained():
        draws = np.asarray(_draw_outputs(likelihood, key_y, latents))
    return draws[:, :, 0] if likelihood.num_outputs == 1 else draws


@in_double
def leave_one_out(result: Result) -> np.ndarray:
    """log E[p(yₙ | fₙ)] under q without its own site."""
    latent, usable = left_out(result, "leave_one_out", "log_density at rows that were left out")
    likelihood = result.data.likelihood(result.model.likelihood)
    values = _log_densities(likelihood, cubature_for(result), latent, result.data.y)
    return np.where(usable, np.asarray(values), np.nan)


@in_double
def left_out(result: Result, asked: str, otherwise: str) -> tuple[Gaussian, np.ndarray]:
    """f at each row given all others, from its cavity, and which rows have one; the others keep their marginals."""
    if result.data is None or result.sites is None:
        raise ValueError(
            f"{asked} needs the rows and their sites, which were not kept: use arrays in memory and "
            f'storage="full", or {otherwise}'
        )
    if not result.settled:
        warnings.warn(
            f"{asked} of a run that has not converged (residual {result.residual:.1e}): without its own site, a row is "
            "not predicted by the other rows alone. Run inference to convergence, or use cross_validate.",
            ConvergenceWarning,
            stacklevel=4,
        )
    cavities, proper = to_host(_cavities(result.site_marginals, result.sites))
    if result.site_marginals is not result.marginals:
        cavities = add_covariance(cavities, result.marginals.covariance - result.site_marginals.covariance)
    usable = result.data.observed & proper
    return jax.tree.map(lambda a, b: np.where(_like(usable, a), a, b), cavities, result.marginals), usable


def _like(mask: np.ndarray, array: np.ndarray) -> np.ndarray:
    return mask.reshape(mask.shape + (1,) * (array.ndim - 1))


@jax.jit
def _cavities(marginals: Gaussian, sites: Sites) -> Any:
    found = jax.vmap(lambda marginal, site: cavity(marginal, site, 1.0))(marginals, sites)
    return found.gaussian, found.proper


@in_double
def one_step_ahead(result: Result) -> np.ndarray:
    """log E[p(yₙ | fₙ)] under the prediction from the previous rows."""
    latent = to_host(_in_time(result, "one_step_ahead").one_step_ahead())
    likelihood = result.data.likelihood(result.model.likelihood)
    values = _log_densities(likelihood, cubature_for(result), latent, result.data.y)
    return np.where(result.data.observed, np.asarray(values), np.nan)


def states(result: Result, x: Any) -> Gaussian:
    """The smoothed states at any inputs."""
    posterior = _in_time(result, "states")
    inputs = new_inputs(result, x, name="x")
    with _explained("x"):
        return posterior.states(inputs)


def _in_time(result: Result, asked: str) -> TemporalPosterior:
    posterior = result.posterior
    if not isinstance(posterior, TemporalPosterior):
        raise ValueError(
            f"{asked} needs a prior in time, MarkovGP or StateSpaceModel, got {type(result.model.prior).__name__}"
        )
    return posterior


def _probabilities(p: Any) -> np.ndarray:
    try:
        probabilities = as_real(p)
    except NotRealError:
        raise ValueError(f"p must hold numbers between 0 and 1, got {p!r}: write 0.95 for 95 %") from None
    if probabilities.ndim > 1 or probabilities.size == 0:
        raise ValueError(f"p must be a number or a vector, got shape {probabilities.shape}")
    if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
        raise ValueError(f"p must lie strictly between 0 and 1, got {p!r}: write 0.95 for 95 %")
    return probabilities


def _level(level: Any) -> float:
    try:
        given = as_real(level)
    except NotRealError:
        given = np.array(np.nan)
    if given.ndim != 0 or not 0.0 < given < 1.0:
        raise ValueError(f"level must be a number strictly between 0 and 1, as in interval(0.95), got {level!r}")
    return float(given)


def _one_per_row(y: Any, rows: int, outputs: int) -> np.ndarray:
    """`y` as one value per row and output, (rows, outputs)."""
    wanted = "one number per row" if outputs == 1 else f"one number per row and output, ({rows}, {outputs})"
    try:
        values = as_real(y)
    except NotRealError:
        raise ValueError(f"y must be a number or {wanted}, got {y!r}") from None
    if outputs == 1 and values.shape == (rows,):
        values = values[:, None]
    if values.shape not in ((), (outputs,) if outputs > 1 else (), (rows, outputs)):
        raise ValueError(f"y must be a number or {wanted}, {rows} of them, got shape {values.shape}")
    return np.broadcast_to(values, (rows, outputs))


def _numbered(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """One column, or one per output."""
    return {name: values} if values.ndim == 1 else {f"{name}_{k}": column for k, column in enumerate(values.T)}


_SHOWN_ROWS = 3


def _plus_minus(mean: Any, std: Any) -> str:
    if np.ndim(mean) == 0:
        return f"{mean:.4g} ± {std:.2g}"
    return "(" + ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(mean, std, strict=True)) + ")"


@contextlib.contextmanager
def _explained(name: str | None = None) -> Iterator[None]:
    """A context that turns errors about missing methods and shapes into ValueErrors."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from None


def cubature_for(result: Result) -> Cubature | None:
    """The rule for several latents: the method's own, unless it has only one node."""
    rule = result.method.cubature
    return None if isinstance(rule, PointRule) else rule


def _without_negative_weights(rule: Cubature, dimension: int) -> Cubature:
    """Replace a rule with negative weights, because probabilities might be negative."""
    return QuasiRandom() if has_negative_weights(rule, dimension) else rule


def _moment_rule(cubature: Cubature | None, likelihood: Likelihood) -> Cubature:
    rule = moment_rule(likelihood, cubature)
    # For polynomials it is exact, whatever its weights.
    exact = cubature is None and likelihood.log_prob_degree is not None
    return rule if exact else _without_negative_weights(rule, likelihood.num_latents)


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


def _likelihood_at(model: Model, n: int, given: dict[str, Any]) -> Likelihood:
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
    there = with_row_parameters(likelihood, **given)
    for name, rows in rows_given(there).items():
        if rows != n:
            raise ValueError(
                f"{name} must be a number or one value per new row, got {rows} value(s) for {n} row(s) of x_new"
            )
    return there


def _latent(result: Result, x: np.ndarray) -> Gaussian:
    with _explained("x_new"):
        return to_host(result.posterior.predict(x))


def _draw_latents(result: Result, key: Any, x: np.ndarray, n: int) -> Any:
    with _explained("x_new"):
        return jnp.asarray(result.posterior.draw(key, x, n))


_MANY = 2**14
"""The number of rows from which they are processed in blocks, to limit the memory for nodes."""
_BLOCK = 2**12


def _over_rows(likelihood: Likelihood, function, *rows):
    many = jax.tree.leaves(rows)[0].shape[0] >= _MANY
    return over_rows(function, likelihood, rows, block=_BLOCK if many else None)


_ROWS = 2048
"""Rows, or values of y, per block of adaptive integrals."""
_POINTS = {0: 2**16, 1: _ROWS, 2: 64}
"""Values of y per block, by the number of latents that need nodes."""


def _blocks(count: int, size: int) -> Iterator[np.ndarray]:
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))


def _in_blocks(function: Callable, rows: Rows, *arrays: np.ndarray) -> Any:
    """`function(rows, *arrays)` for blocks of rows."""
    found = [function(rows.some(block), *(array[block] for array in arrays)) for block in _blocks(rows.count, _ROWS)]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *found)


def _warn_of_errors(what: str, errors: np.ndarray, rows: np.ndarray) -> None:
    wrong = errors > distribution.ACCURACY
    if np.any(wrong):
        warn_of_error(what, float(np.max(errors[wrong])), np.unique(rows[wrong]).size, stacklevel=4)


def _predictive_moments(likelihood, cubature, latent: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """E[y] = E[E[y|f]] (M, P) and Cov[y] = E[Cov[y|f]] + Cov[E[y|f]] (M, P, P)."""
    if likelihood.num_outputs == 1:
        one_per_row = np.asarray(latent.mean).T, np.moveaxis(np.asarray(latent.covariance), 0, 2)
        found = host.expected_moments(to_host(likelihood), *one_per_row)
        if found is None and likelihood.num_latents - len(likelihood.linear_latents) == 1:
            found = _in_blocks(densities.moments, Rows(likelihood, latent))
        if found is not None:
            mean, variance = (np.broadcast_to(part, latent.mean.shape[:1]) for part in found)
            return mean[:, None], variance[:, None, None]
    mean, covariance = to_host(in_double(_moments_at_nodes)(likelihood, cubature, latent))
    # If a mean overflows, so does the spread around it.
    lost = np.isinf(mean)[:, :, None] | np.isinf(mean)[:, None, :]
    return mean, np.where(lost & np.isnan(covariance), np.inf, covariance)


@jax.jit
def _moments_at_nodes(likelihood, cubature, latent: Gaussian):
    def row(likelihood, gaussian):
        rule = _moment_rule(cubature, likelihood)
        nodes, weights, _, _ = nodes_and_weights(rule, gaussian)
        means = jax.vmap(lambda f: row_mean(likelihood, f))(nodes)
        noises = jax.vmap(lambda f: row_covariance(likelihood, f))(nodes)
        mean = weights @ means
        centred = means - mean[None, :]
        spread = jnp.tensordot(weights, jax.vmap(outer)(centred, centred), axes=1)
        return mean, jnp.tensordot(weights, noises, axes=1) + spread

    return _over_rows(likelihood, row, latent)


@jax.jit
def _class_probabilities(likelihood, cubature, latent: Gaussian) -> Float[Array, "M K"]:
    def row(likelihood, gaussian):
        nodes = place_nodes(likelihood, gaussian, cubature, True, _without_negative_weights)
        found = nodes.weights @ jax.vmap(lambda f: row_probabilities(likelihood, f))(nodes.points)
        # They sum to 1 up to rounding.
        return found / jnp.sum(found)

    return _over_rows(likelihood, row, latent)


def _log_densities(likelihood, cubature, latent: Gaussian, y: np.ndarray) -> np.ndarray:
    """log E[p(y | f)] of each row: exact for up to two latents that need nodes, by the method's rule for more."""
    rows = Rows(likelihood, to_host(latent))
    if rows.nodal > 2:
        return np.asarray(_log_densities_at_nodes(likelihood, cubature, latent, y))
    found, errors = _in_blocks(densities.log_densities, rows, np.asarray(y))
    _warn_of_errors("densities of y", errors, np.arange(rows.count))
    return found


@jax.jit
def _log_densities_at_nodes(likelihood, cubature, latent: Gaussian, y: Float[Array, "M P"]) -> Float[Array, " M"]:
    def row(likelihood, gaussian, y):
        return log_expected_density(likelihood, y, gaussian, cubature, refine=_without_negative_weights)

    return _over_rows(likelihood, row, latent, y)


@jax.jit
def _draw_outputs(likelihood, key: Any, latents: Float[Array, "n M D"]) -> Float[Array, "n M P"]:
    keys = jax.random.split(key, latents.shape[:2])

    def row(likelihood, keys, f):
        return jax.vmap(lambda k, g: row_sample(likelihood, k, g))(keys, f)

    columns = _over_rows(likelihood, row, jnp.swapaxes(keys, 0, 1), jnp.swapaxes(latents, 0, 1))
    return jnp.swapaxes(columns, 0, 1)
