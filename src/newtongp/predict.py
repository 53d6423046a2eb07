"""From q(f) to y: moments, quantiles, log densities and draws at new inputs."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import data as data_room
from .arguments import as_key, whole
from .cubature import Cubature, PointRule, QuasiRandom, has_negative_weights, nodes_and_weights
from .gaussian import Gaussian, Sites, cavity, widened
from .likelihoods.base import (
    Likelihood,
    row_axes,
    row_cdf,
    row_covariance,
    row_log_prob,
    row_mean,
    row_probabilities,
    row_sample,
    rows_given,
    with_row_parameters,
)
from .likelihoods.special import ndtr
from .linalg import outer
from .methods.expectation import log_expected_density
from .methods.nodes import Nodes, moment_rule, place_nodes
from .model import Model
from .precision import NotRealError, as_real, in_double, to_host
from .priors.temporal import TemporalPosterior
from .results import ConvergenceWarning, Result


class Prediction:
    """The predictive distribution of y at new inputs, in y's own units; `.latent` is that of f.

    `mean`, `variance` and `std` have shape (M,), or (M, P) for likelihoods with P outputs (then `covariance`
    is (M, P, P)). They are computed when first asked for.

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
            return np.asarray(in_double(_class_probabilities)(self.likelihood, self._cubature, self.latent))

    def quantile(self, p: Any) -> np.ndarray:
        """The smallest y with P(Y ≤ y) ≥ p, for one output; shape (M,), or (len(p), M) for several p."""
        probabilities = _probabilities(p)
        self._check_one_output("quantiles are", "take quantiles of the draws")
        with _explained():
            rows = in_double(_quantiles)(self.likelihood, self._cubature, self.latent, probabilities.reshape(-1))
        found = np.asarray(rows)
        return found[0] if probabilities.ndim == 0 else found

    def cdf(self, y: Any) -> np.ndarray:
        """P(Y ≤ y) in every row, for one output; `y` is a number, or one value a row (NaN gives NaN).

        >>> import newtongp as ng
        >>> model = ng.Model(ng.GP(ng.kernels.RBF()), ng.likelihoods.Exponential())
        >>> prediction = ng.infer(model, [0.0, 1.0, 2.0], [0.4, 0.6, 1.5]).predict([0.5, 1.5])
        >>> prediction.cdf(prediction.quantile(0.9)).round(6).tolist(), prediction.cdf(-1.0).tolist()
        ([0.9, 0.9], [0.0, 0.0])
        """
        rows = self.latent.mean.shape[0]
        values = _one_a_row(y, rows)
        self._check_one_output("a distribution function is", "count the draws below y")
        finite = np.isfinite(values)
        inside = np.where(finite, values, self.likelihood.support.example)
        with _explained():
            found = in_double(_distribution_functions)(self.likelihood, self._cubature, self.latent, inside)
        # Weights that sum to one up to rounding, or that are negative, can leave [0, 1] a little.
        return np.clip(np.where(finite, np.asarray(found), values), 0.0, 1.0)

    def _check_one_output(self, what: str, advice: str) -> None:
        if self.likelihood.num_outputs != 1:
            raise ValueError(
                f"{what} defined for one output, and {type(self.likelihood).__name__} has "
                f"{self.likelihood.num_outputs}: use sample_y and {advice}"
            )

    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        if not hasattr(self, "_cached_moments"):
            problem = self.likelihood.moments_problem()
            if problem is not None:
                raise ValueError(f"the mean and covariance of y need those of y given f: {problem}")
            moments = in_double(_predictive_moments)(self.likelihood, self._cubature, self.latent)
            self._cached_moments = to_host(moments)
        return self._cached_moments

    def _outputs(self, array: np.ndarray) -> np.ndarray:
        return array[:, 0] if self.likelihood.num_outputs == 1 else array


def predict(result: Result, x_new: Any, **row_parameters: Any) -> Prediction:
    """Predictions of y and f at new inputs."""
    x = _new_inputs(result, x_new, row_parameters)
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    return Prediction(likelihood, _latent(result, x), cubature_for(result))


@in_double
def log_density(result: Result, x_new: Any, y_new: Any, **row_parameters: Any) -> np.ndarray:
    """log E_q[p(y* | f*)] for each row."""
    data_room.check_indexes(x_new, y_new, ("x_new", "y_new"))
    x = _new_inputs(result, x_new, row_parameters)
    likelihood = _likelihood_at(result.model, x.shape[0], row_parameters)
    model = Model(result.model.prior, likelihood)
    read = data_room.read_data(x, y_new, model, ("x_new", "y_new"))
    values = _log_densities(read.likelihood(likelihood), cubature_for(result), _latent(result, x), read.y)
    return np.where(read.observed, np.asarray(values), np.nan)


@in_double
def sample(result: Result, key: Any, x_new: Any, n: int) -> np.ndarray:
    """n joint draws of f at new inputs."""
    x = _new_inputs(result, x_new)
    return np.asarray(_draw_latents(result, as_key(key), x, whole(n, "n")))


@in_double
def sample_y(result: Result, key: Any, x_new: Any, n: int, **row_parameters: Any) -> np.ndarray:
    """n draws of y at new inputs, each given a joint draw of f."""
    x = _new_inputs(result, x_new, row_parameters)
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
        cavities = widened(cavities, result.marginals.covariance - result.site_marginals.covariance)
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
    """log E[p(yₙ | fₙ)] under what the rows before predict."""
    latent = to_host(_in_time(result, "one_step_ahead").one_step_ahead())
    likelihood = result.data.likelihood(result.model.likelihood)
    values = _log_densities(likelihood, cubature_for(result), latent, result.data.y)
    return np.where(result.data.observed, np.asarray(values), np.nan)


def states(result: Result, x: Any) -> Gaussian:
    """The smoothed states at any inputs."""
    posterior = _in_time(result, "states")
    inputs = _new_inputs(result, x, name="x")
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


def _one_a_row(y: Any, rows: int) -> np.ndarray:
    try:
        values = as_real(y)
    except NotRealError:
        raise ValueError(f"y must be a number or one number a row, got {y!r}") from None
    if values.shape not in ((), (rows,), (rows, 1)):
        raise ValueError(f"y must be a number or one number a row, {rows} of them, got shape {values.shape}")
    return np.broadcast_to(values.reshape(-1), (rows,))


@contextlib.contextmanager
def _explained(name: str | None = None) -> Iterator[None]:
    """What a likelihood lacks, and shapes that do not fit, are errors of whoever asked for the prediction."""
    try:
        yield
    except NotImplementedError as error:
        raise ValueError(str(error)) from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}" if name else str(error)) from None


class _FineRule(Cubature):
    """The trapezoidal rule, for one latent: unlike Gauss-Hermite it resolves p(y | f) far narrower than q(f)."""

    spacing: float = eqx.field(static=True)
    reach: float = eqx.field(static=True)

    def rule(self, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        half = np.arange(self.spacing, self.reach, self.spacing)
        nodes = np.concatenate([-half[::-1], [0.0], half])
        weights = np.exp(-0.5 * nodes**2)
        return nodes[:, None], weights / weights.sum()


_FOR_DENSITIES = _FineRule(0.05, 12.0)
# A kink of P(Y ≤ y | f) as narrow as a hundredth of the latent's standard deviation is seen to two digits.
_FOR_DISTRIBUTIONS = _FineRule(0.05, 7.0)
# A search for a quantile asks for many of them, and they are dear.
_FOR_QUANTILES = _FineRule(0.2, 7.0)


def cubature_for(result: Result) -> Cubature | None:
    """The rule for several latents: the method's own, unless its one node is no predictive distribution."""
    rule = result.method.cubature
    return None if isinstance(rule, PointRule) else rule


def _refined(fine: _FineRule) -> Callable[[Cubature, int], Cubature]:
    """Our own rule where one latent needs nodes; and none with negative weights, by which a probability may be one."""

    def refine(rule: Cubature, dimension: int) -> Cubature:
        if dimension == 1:
            return fine
        return QuasiRandom() if has_negative_weights(rule, dimension) else rule

    return refine


def _moment_rule(cubature: Cubature | None, likelihood: Likelihood) -> Cubature:
    rule = moment_rule(likelihood, cubature)
    # For polynomials it is exact, whatever its weights are.
    exact = cubature is None and likelihood.log_prob_degree is not None and likelihood.num_latents > 1
    return rule if exact else _refined(_FOR_DENSITIES)(rule, likelihood.num_latents)


def _new_inputs(
    result: Result, x_new: Any, row_parameters: dict[str, Any] | None = None, name: str = "x_new"
) -> np.ndarray:
    """New inputs, with the columns of those that the model has seen."""
    for other, values in (row_parameters or {}).items():
        data_room.check_indexes(x_new, values, (name, other))
    x = data_room.read_inputs(x_new, result.model, name)
    # Of data that were read in chunks nothing is kept: their posterior knows the columns.
    columns = x.shape[1] if result.data is None else result.data.x.shape[1]
    if x.shape[1] != columns:
        raise ValueError(
            f"x and {name} must have as many columns as each other, got {columns} and {x.shape[1]}: give {name} the "
            "columns of x, in the same order"
        )
    return x


def _likelihood_at(model: Model, n: int, given: dict[str, Any]) -> Likelihood:
    """The likelihood with its row parameters at n new rows."""
    likelihood = model.likelihood
    unknown = sorted(set(given) - set(likelihood.row_parameters))
    if unknown:
        known = ", ".join(likelihood.row_parameters) or "none"
        raise ValueError(f"{type(likelihood).__name__} has no parameter a row called {unknown[0]!r}; it has: {known}")
    needed = [name for name in rows_given(likelihood) if name not in given]
    if needed:
        raise ValueError(
            f"the model was given one {needed[0]} a row: pass {needed[0]}= (a number, or one value a new row)"
        )
    there = with_row_parameters(likelihood, **given)
    for name, rows in rows_given(there).items():
        if rows != n:
            raise ValueError(
                f"{name} must be a number or one value a new row, got {rows} value(s) for {n} row(s) of x_new"
            )
    return there


def _latent(result: Result, x: np.ndarray) -> Gaussian:
    with _explained("x_new"):
        return to_host(result.posterior.predict(x))


def _draw_latents(result: Result, key: Any, x: np.ndarray, n: int) -> Any:
    with _explained("x_new"):
        return jnp.asarray(result.posterior.draw(key, x, n))


_MANY = 2**14
"""Rows from which on they are taken in blocks, so that nodes for all of them are never there at once."""
_BLOCK = 2**12


def _over_rows(likelihood: Likelihood, function, *rows):
    axes = row_axes(likelihood)
    if jax.tree.leaves(rows)[0].shape[0] < _MANY:
        return jax.vmap(function, in_axes=(axes, *(0 for _ in rows)))(likelihood, *rows)
    own, shared = eqx.partition(likelihood, jax.tree.map(lambda axis: axis == 0, axes, is_leaf=lambda a: a is None))
    return jax.lax.map(lambda row: function(eqx.combine(row[0], shared), *row[1]), (own, rows), batch_size=_BLOCK)


@jax.jit
def _predictive_moments(likelihood, cubature, latent: Gaussian):
    """E[y] = E[E[y|f]] and Cov[y] = E[Cov[y|f]] + Cov[E[y|f]]."""

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
        rule = cubature if likelihood.num_latents > 1 else None
        nodes = place_nodes(likelihood, gaussian, rule, True, _refined(_FOR_DENSITIES))
        found = nodes.weights @ jax.vmap(lambda f: row_probabilities(likelihood, f))(nodes.points)
        # They sum to 1 up to rounding.
        return found / jnp.sum(found)

    return _over_rows(likelihood, row, latent)


@jax.jit
def _log_densities(likelihood, cubature, latent: Gaussian, y: Float[Array, "M P"]) -> Float[Array, " M"]:
    def row(likelihood, gaussian, y):
        # Where only one latent needs nodes, our own rule is finer than the method's.
        few = likelihood.num_latents - len(likelihood.linear_latents) <= 1
        rule = None if few else cubature
        return log_expected_density(likelihood, y, gaussian, rule, refine=_refined(_FOR_DENSITIES))

    return _over_rows(likelihood, row, latent, y)


@jax.jit
def _draw_outputs(likelihood, key: Any, latents: Float[Array, "n M D"]) -> Float[Array, "n M P"]:
    keys = jax.random.split(key, latents.shape[:2])

    def row(likelihood, keys, f):
        return jax.vmap(lambda k, g: row_sample(likelihood, k, g))(keys, f)

    columns = _over_rows(likelihood, row, jnp.swapaxes(keys, 0, 1), jnp.swapaxes(latents, 0, 1))
    return jnp.swapaxes(columns, 0, 1)


# Distribution functions, and quantiles: a search on them ------------------------------------------


class _Mixture(NamedTuple):
    """The distribution of y in one row, for one output, as an average over nodes."""

    nodes: Nodes
    cdf: Callable
    density: Callable


def _mixture(likelihood: Likelihood, cubature: Cubature | None, gaussian: Gaussian, fine: _FineRule) -> _Mixture:
    """Given the other latents, y is Gaussian where some enter linearly: those need no nodes, and would need many.

    A method's own rule is for all latents at once, and is used where there are no linear ones.
    """
    count = likelihood.num_latents - len(likelihood.linear_latents)
    by_default = count <= 1 or count < likelihood.num_latents
    nodes = place_nodes(likelihood, gaussian, None if by_default else cubature, True, _refined(fine))

    def standardised(y, f):
        matrix, offset, noise = (jnp.asarray(part) for part in likelihood.linear_form(f[:count]))
        spread = matrix @ nodes.free_root
        scale = jnp.sqrt((noise + spread @ spread.T)[0, 0])
        return (y - (offset + matrix @ f[count:])[0]) / scale, scale

    def below(y, f):
        return ndtr(standardised(y, f)[0]) if nodes.split.linear else row_cdf(likelihood, y, f)

    def density(y, f):
        if not nodes.split.linear:
            return jnp.exp(row_log_prob(likelihood, y[None], f))
        miss, scale = standardised(y, f)
        return jnp.exp(-0.5 * miss**2) / (np.sqrt(2.0 * np.pi) * scale)

    def averaged(function):
        return lambda y: nodes.weights @ jax.vmap(lambda f: function(y, f))(nodes.points)

    return _Mixture(nodes, averaged(below), averaged(density))


@jax.jit
def _distribution_functions(likelihood, cubature, latent: Gaussian, y: Float[Array, " M"]) -> Float[Array, " M"]:
    """P(Y ≤ y) of each row."""

    def row(likelihood, gaussian, y):
        return _mixture(likelihood, cubature, gaussian, _FOR_DISTRIBUTIONS).cdf(y)

    return _over_rows(likelihood, row, latent, y)


_MOST_TRIALS = 120
_REACH = 700.0
"""exp of more overflows."""
_LARGEST_COUNT = 2.0**52


@jax.jit
def _quantiles(likelihood, cubature, latent, probabilities) -> Float[Array, "Q M"]:
    support = likelihood.support

    def row(likelihood, gaussian):
        nodes, cdf, density = _mixture(likelihood, cubature, gaussian, _FOR_QUANTILES)
        if support.integer:
            centre, spread = _centre_and_spread(likelihood, nodes.points, nodes.weights)
            return jax.vmap(lambda p: _integer_quantile(cdf, p, support, centre, spread))(probabilities)
        return jax.vmap(lambda p: _real_quantile(cdf, density, p, support))(probabilities)

    return _over_rows(likelihood, row, latent).T


def _centre_and_spread(likelihood, nodes, weights):
    """The mean and standard deviation of y, or NaN where the likelihood does not know its moments."""
    if likelihood.moments_problem() is not None:
        return jnp.asarray(jnp.nan), jnp.asarray(jnp.nan)
    means = jax.vmap(lambda f: row_mean(likelihood, f)[0])(nodes)
    noises = jax.vmap(lambda f: row_covariance(likelihood, f)[0, 0])(nodes)
    centre = weights @ means
    return centre, jnp.sqrt(weights @ (noises + (means - centre) ** 2))


def _real_quantile(cdf, density, p, support):
    """Newton's method kept inside a bracket, in a coordinate u in which the whole support is within reach.

    Where a Newton step would leave the bracket, or shrink it too little, the bracket is halved instead. Many
    distribution functions are dear, and this asks for some twelve values of each where bisection needs fifty.
    """
    lower, width = support.lower, support.upper - support.lower

    def to_y(u):
        if np.isfinite(width):
            return lower + width * jax.nn.sigmoid(u)
        return lower + jnp.exp(u) if np.isfinite(lower) else jnp.sinh(u)

    def unfinished(state):
        low, high, u, step, count = state
        # A Newton step this short squares to below rounding; asking for less only chases noise in the cdf.
        return (jnp.abs(step) > 1e-9 * (1.0 + jnp.abs(u))) & (high - low > 1e-15) & (count < _MOST_TRIALS)

    def refine(state):
        low, high, u, last, count = state
        y, stretch = jax.jvp(to_y, (u,), (jnp.ones_like(u),))
        excess = cdf(y) - p
        above = excess >= 0.0
        low, high = jnp.where(above, low, u), jnp.where(above, u, high)
        slope = density(y) * stretch
        newton = u - excess / jnp.where(slope > 0.0, slope, 1.0)
        good = (slope > 0.0) & (newton > low) & (newton < high) & (jnp.abs(newton - u) < 0.5 * jnp.abs(last))
        new = jnp.where(good, newton, 0.5 * (low + high))
        return low, high, new, new - u, count + 1

    start = (jnp.asarray(-_REACH), jnp.asarray(_REACH), jnp.zeros(()), jnp.asarray(2.0 * _REACH), jnp.asarray(0))
    return to_y(jax.lax.while_loop(unfinished, refine, start)[2])


def _integer_quantile(cdf, p, support, centre, spread):
    """The smallest integer with cdf ≥ p, by bisection.

    It is within spread · √(p/(1−p)) above the mean and spread · √((1−p)/p) below it (Cantelli's inequality), which
    leaves a few integers to search; where the moments are not good enough for that, all of the support.
    """
    lowest, highest = support.lower - 1.0, min(support.upper, _LARGEST_COUNT)
    guess = jnp.floor(centre - 1.1 * spread * jnp.sqrt((1.0 - p) / p)) - 2.0
    low = jnp.where(jnp.isfinite(guess), jnp.clip(guess, lowest, highest), lowest)
    low = jnp.where(cdf(low) < p, low, lowest)
    guess = jnp.ceil(centre + 1.1 * spread * jnp.sqrt(p / (1.0 - p))) + 2.0
    high = jnp.where(jnp.isfinite(guess), jnp.clip(guess, lowest, highest), highest)
    high = jnp.where(cdf(high) >= p, high, highest)

    def halve(bounds):
        low, high = bounds
        middle = jnp.floor(0.5 * (low + high))
        above = cdf(middle) >= p
        return jnp.where(above, low, middle), jnp.where(above, middle, high)

    return jax.lax.while_loop(lambda bounds: bounds[1] - bounds[0] > 1.0, halve, (low, high))[1]
