"""The likelihood base class: p(y | f) for one row of data, independent of inference algorithms.

A likelihood with one latent works on scalars (`f` has shape `()`), one with several on vectors (`f` has shape
`(num_latents,)`); the same holds for `y` and `num_outputs`. The row functions below hide that difference, so that the
rest of the package always uses vectors and matrices.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._runtime.double import to_host
from ..numerics.size_classes import STEP, fill_rows, first_rows, size_class
from ..validation.arguments import one_number, traced
from ..validation.numbers import parameter
from . import support as supports


class Likelihood(eqx.Module):
    """p(y | f) for one row of data.

    `log_prob` alone is enough for Newton, variational and power EP methods. `mean` and `covariance` (of y given f) add
    posterior linearisation, Taylor, Gauss-Newton and predictions of y; `cdf` adds quantiles and `sample` adds draws.

    >>> import jax.numpy as jnp
    >>> class Cauchy(Likelihood):
    ...     def log_prob(self, y, f):
    ...         return -jnp.log(jnp.pi) - jnp.log1p((y - f) ** 2)
    >>> float(Cauchy().log_prob(0.0, 0.0)) < 0
    True
    """

    num_latents: ClassVar[int] = 1
    num_outputs: ClassVar[int] = 1
    support: ClassVar[supports.Support] = supports.real
    gaussian_form: ClassVar[bool] = False
    """True if p(y | f) = N(y | mean(f), covariance(f)), `eq:gn_lik`."""
    log_concave: ClassVar[Any] = False
    """True if log p(y | f) is concave in f for every y, so that site precisions are PSD."""
    row_parameters: ClassVar[tuple[str, ...]] = ()
    """Fields that may be given one value per row: an exposure, a number of trials, a known variance.

    In models of tables, they may be names of columns (`rows_or_column`).
    One that is declared with `newtongp.learned` is a hyperparameter where it is a single number.
    """
    linear_latents: ClassVar[Any] = ()
    """Latents that enter linearly, given the others (`linear_form`): they are integrated without nodes."""
    log_prob_degree: ClassVar[int | None] = None
    """The degree of log p(y | f) if it is a polynomial in f, so that a few nodes integrate it exactly."""
    long_formulas: ClassVar[bool] = False
    """Whether closed forms of expectations take about as long as sums over nodes."""
    latent_names: ClassVar[Any] = ()
    """The names of the latents, for models that say by name which terms belong to which; () if they have none."""
    shift: ClassVar[str | None] = None
    """The field that changes p(y | f) as a constant added to f does, if there is one."""
    contrasts: ClassVar[Any] = None
    """A matrix A with orthonormal rows, fewer than latents, if p(y | f) depends on Af alone: only Af needs nodes."""

    @abc.abstractmethod
    def log_prob(self, y, f):
        """log p(y | f)."""

    def partial_log_prob(self, y, seen, f) -> Any:
        """log p(observed outputs of y | f), for non-Gaussian likelihoods with several outputs.

        `seen` has one truth value per output; `y` is 0 where it is false.
        """
        raise NotImplementedError(_missing(self, "partial_log_prob"))

    def mean(self, f) -> Any:
        """E[y | f]."""
        raise NotImplementedError(_missing(self, "mean"))

    def covariance(self, f) -> Any:
        """Cov[y | f]: a scalar for one output, a matrix for several."""
        raise NotImplementedError(_missing(self, "covariance"))

    def probabilities(self, f) -> Any:
        """P(y = k | f) of every class or level k, for likelihoods of classes."""
        raise NotImplementedError(_missing(self, "probabilities"))

    def cdf(self, y, f) -> Any:
        """P(Y <= y | f); if there are several outputs, one probability per output."""
        raise NotImplementedError(_missing(self, "cdf"))

    def sample(self, key, f) -> Any:
        """A draw of y given f."""
        raise NotImplementedError(_missing(self, "sample"))

    def linear_form(self, others) -> tuple[Any, Any, Any]:
        """The matrix A, offset b and noise covariance Σ with p(y | f) = N(y | A l + b, Σ), for l = f[linear_latents].

        `others` is the vector of all other latents, in their order. A is (P, K) for P outputs and K linear latents, b
        (P,) and Σ (P, P).
        """
        raise NotImplementedError(_missing(self, "linear_form"))

    def log_prob_derivatives(self, y, f) -> tuple[Any, Any, Any, Any] | None:
        """log p(y | f), its gradient, and d and F with ∇² log p = diag(d) + FFᵀ; None to differentiate `log_prob`.

        For several latents: d is (D,) and F is (D, R). Sums of Hessians over nodes then take D² R operations per node.
        """
        return None

    def log_prob_at_nodes(self, y, f) -> tuple[Any, Any, Any] | None:
        """log p(y | f), its gradient and its Hessian at many points; None to differentiate `log_prob`.

        f and the gradient are (D, S) for S points, and the Hessian is (D, D, S).
        """
        return None

    def partial_log_prob_at_nodes(self, y, seen, f) -> tuple[Any, Any, Any] | None:
        """`log_prob_at_nodes` of the observed outputs alone, which are those where `seen`; None to differentiate."""
        return None

    def expected_log_prob(self, y, mean, covariance) -> Any:
        """E[log p(y | f)] under f ~ N(mean, covariance) in closed form, or None if there is none."""
        return None

    def log_expected_power(self, y, mean, covariance, power: Any) -> Any:
        """log E[p(y | f)^power] under f ~ N(mean, covariance) in closed form, or None if there is none.

        `power` is a number, or traced if rows have weights.
        """
        return None

    def peak(self, y) -> Any:
        """The position and the width of the peak of p(y | f) as a function of f; None if unknown.

        For one latent. The width is 1 / √(−∂² log p / ∂f²) at the peak. If it is None, the peak is searched for.
        """
        return None

    def check_support(self, y: np.ndarray) -> None:
        """Raise ValueError, naming row and value, if an observed row of y cannot occur.

        `y` has shape (N, num_outputs); missing values are NaN.
        """
        self.support.check(y)

    def moments_problem(self) -> str | None:
        """A message if `mean` and `covariance` are not available, or None.

        Called before tracing, while hyperparameters have values.
        """
        missing = [name for name in ("mean", "covariance") if getattr(type(self), name) is getattr(Likelihood, name)]
        return _missing(self, *missing) if missing else None

    def row_parameter(self, name: str) -> Any:
        """The row parameter of that name, also of a wrapped likelihood."""
        return getattr(self, name)

    def check_row_parameter(self, name: str, value: Any) -> Any:
        """`value`, converted for the row parameter `name`; ValueError if it is invalid."""
        return parameter(value, name, max_ndim=1)


def _missing(likelihood: Likelihood, *names: str) -> str:
    lacks = " and no ".join(f"`{name}`" for name in names)
    them = "it" if len(names) == 1 else "them"
    return f"{type(likelihood).__name__} has no {lacks}: define {them} to use this method or prediction"


def rows_or_column(check: Callable[[Any, str], Any], value: Any, name: str) -> Any:
    """A row parameter as `check` converts it, or the name of the column of a table that holds it.

    >>> rows_or_column(lambda value, name: parameter(value, name, max_ndim=1), "population", "exposure")
    'population'
    """
    return value if isinstance(value, str) and not _is_written_number(value) else check(value, name)


def _is_written_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text.strip()
    return True


def named_columns(likelihood: Likelihood) -> dict[str, str]:
    """The row parameters that are names of columns, and these names.

    >>> from newtongp import likelihoods
    >>> named_columns(likelihoods.Poisson(exposure="population"))
    {'exposure': 'population'}
    """
    given = {name: likelihood.row_parameter(name) for name in likelihood.row_parameters}
    return {name: value for name, value in given.items() if isinstance(value, str)}


# One row, as vectors and matrices -------------------------------------------------------------


def _latent(likelihood: Likelihood, f: Float[Array, " D"]):
    return f[0] if likelihood.num_latents == 1 else f


def _output(likelihood: Likelihood, y: Float[Array, " P"]):
    return y[0] if likelihood.num_outputs == 1 else y


def _returned(likelihood: Likelihood, method: str, *arguments: Any) -> Any:
    """Call a method of a likelihood, which may be custom, and return an array."""
    with traced(_name(likelihood, method)):
        return jnp.asarray(getattr(likelihood, method)(*arguments))


def _name(likelihood: Likelihood, method: str) -> str:
    return f"`{method}` of {type(likelihood).__name__}"


def _reshaped(likelihood: Likelihood, method: str, value: Any, shape: tuple[int, ...]) -> Any:
    if value.size != np.prod(shape):
        expected = "one number" if np.prod(shape) == 1 else f"an array of shape {shape}"
        raise ValueError(
            f"{_name(likelihood, method)} must return {expected} for one row of data, got shape {value.shape}: "
            f"num_outputs is {likelihood.num_outputs}"
        )
    return jnp.reshape(value, shape)


def row_log_prob(likelihood: Likelihood, y: Float[Array, " P"], f: Float[Array, " D"]) -> Float[Array, ""]:
    """log p(y | f), vectors in."""
    value = _returned(likelihood, "log_prob", _output(likelihood, y), _latent(likelihood, f))
    advice = "it is called for one row of data, so return the log density of that row, summed over its outputs"
    return one_number(value, _name(likelihood, "log_prob"), advice)


def row_mean(likelihood: Likelihood, f: Float[Array, " D"]) -> Float[Array, " P"]:
    """E[y | f] as a vector."""
    value = _returned(likelihood, "mean", _latent(likelihood, f))
    return _reshaped(likelihood, "mean", value, (likelihood.num_outputs,))


def row_covariance(likelihood: Likelihood, f: Float[Array, " D"]) -> Float[Array, "P P"]:
    """Cov[y | f] as a matrix."""
    shape = (likelihood.num_outputs, likelihood.num_outputs)
    return _reshaped(likelihood, "covariance", _returned(likelihood, "covariance", _latent(likelihood, f)), shape)


def row_probabilities(likelihood: Likelihood, f: Float[Array, " D"]) -> Float[Array, " K"]:
    """P(y = k | f) of every class."""
    return _returned(likelihood, "probabilities", _latent(likelihood, f))


def row_cdf(likelihood: Likelihood, y: Float[Array, "*P"], f: Float[Array, " D"]) -> Float[Array, "*P"]:
    """P(Y <= y | f); if there are several outputs, one probability per output."""
    probability = _returned(likelihood, "cdf", y, _latent(likelihood, f))
    if likelihood.num_outputs > 1:
        return _reshaped(likelihood, "cdf", probability, (likelihood.num_outputs,))
    advice = "it is called for one value of y, so return its probability"
    return one_number(probability, _name(likelihood, "cdf"), advice)


def row_sample(likelihood: Likelihood, key, f: Float[Array, " D"]) -> Float[Array, " P"]:
    """A draw of y given f, as a vector."""
    draw = _returned(likelihood, "sample", key, _latent(likelihood, f)).astype(f.dtype)
    return _reshaped(likelihood, "sample", draw, (likelihood.num_outputs,))


def row_log_prob_derivatives(likelihood: Likelihood, y, f):
    """log p(y | f), its gradient, and d and F with ∇² log p = diag(d) + FFᵀ, vectors in, or None."""
    if likelihood.num_latents == 1:
        return None
    return likelihood.log_prob_derivatives(_output(likelihood, y), f)


def row_log_prob_at_nodes(likelihood: Likelihood, y, f):
    """log p(y | f), its gradient and its Hessian at many points, y a vector."""
    return likelihood.log_prob_at_nodes(_output(likelihood, y), f)


def row_expected_log_prob(likelihood: Likelihood, y, mean, covariance):
    """The closed form of E[log p(y | f)], vectors in, or None."""
    variance = covariance[0, 0] if likelihood.num_latents == 1 else covariance
    return likelihood.expected_log_prob(_output(likelihood, y), _latent(likelihood, mean), variance)


def row_log_expected_power(likelihood: Likelihood, y, mean, covariance, power: Any):
    """The closed form of log E[p(y | f)^power], vectors in, or None."""
    variance = covariance[0, 0] if likelihood.num_latents == 1 else covariance
    return likelihood.log_expected_power(_output(likelihood, y), _latent(likelihood, mean), variance, power)


def row_peak(likelihood: Likelihood, y, mean, scale):
    """The peak of p(y | f) and its width in units of this mean and scale, or None."""
    peak = likelihood.peak(_output(likelihood, y)) if likelihood.num_latents == 1 else None
    if peak is None:
        return None
    safe = jnp.where(scale > 0.0, scale, 1.0)
    return (jnp.asarray(peak[0]) - mean[0]) / safe, jnp.asarray(peak[1]) / safe


# Many rows ------------------------------------------------------------------------------------


def row_axes(likelihood: Likelihood) -> Any:
    """The `in_axes` with which `jax.vmap` gives each row its own exposure, trials, ..."""
    axes = jax.tree.map(lambda _: None, likelihood)
    for name in likelihood.row_parameters:
        if np.ndim(likelihood.row_parameter(name)) > 0:
            axes = eqx.tree_at(lambda a, n=name: a.row_parameter(n), axes, 0, is_leaf=lambda leaf: leaf is None)
    return axes


def one_row(likelihood: Likelihood, row: Any) -> Likelihood:
    """The likelihood of one row, with its own exposure, trials, ..."""
    return jax.tree.map(lambda leaf, axis: leaf if axis is None else leaf[row], likelihood, row_axes(likelihood))


def rows_given(likelihood: Likelihood) -> dict[str, int]:
    """The row parameters that were given one value per row, with the number of their rows."""
    shapes = {name: np.shape(likelihood.row_parameter(name)) for name in likelihood.row_parameters}
    return {name: shape[0] for name, shape in shapes.items() if shape}


def row_parameters_of(likelihood: Likelihood, rows: np.ndarray) -> dict[str, np.ndarray]:
    """The row parameters that were given one value per row, at these rows."""
    return {name: np.asarray(likelihood.row_parameter(name))[rows] for name in rows_given(likelihood)}


def map_row_parameters(function: Callable[[Any], Any], likelihood: Likelihood) -> Likelihood:
    """The likelihood with `function(values)` for every row parameter that was given one value per row."""
    for name in rows_given(likelihood):
        likelihood = _replaced(likelihood, name, function(likelihood.row_parameter(name)))
    return likelihood


def at_rows(likelihood: Likelihood, rows: Any) -> Likelihood:
    """The likelihood with the row parameters of these rows, in their order; single numbers for one row."""
    return map_row_parameters(lambda values: np.asarray(values)[rows], likelihood)


def has_distribution(likelihood: Likelihood) -> bool:
    """Whether y has one output with a distribution function.

    >>> from newtongp import likelihoods
    >>> has_distribution(likelihoods.Poisson(exposure=[1.0, 2.0])), has_distribution(likelihoods.Softmax(3))
    (True, False)
    """
    if likelihood.num_outputs != 1:
        return False
    one = at_rows(likelihood, 0)
    try:
        jax.eval_shape(lambda f: row_cdf(one, jnp.asarray(one.support.example), f), jnp.zeros(one.num_latents))
    except NotImplementedError:
        return False
    return True


def with_row_parameters(likelihood: Likelihood, **values: Any) -> Likelihood:
    """`likelihood` with other row parameters, for other rows."""
    for name, value in values.items():
        if name not in likelihood.row_parameters:
            known = ", ".join(likelihood.row_parameters) or "none"
            raise ValueError(f"{name} is not a row parameter of {type(likelihood).__name__} (it has: {known})")
        likelihood = _replaced(likelihood, name, likelihood.check_row_parameter(name, value))
    return likelihood


def _replaced(likelihood: Likelihood, name: str, value: Any) -> Likelihood:
    return eqx.tree_at(lambda tree: tree.row_parameter(name), likelihood, value)


def in_size_class(function: Callable, likelihood: Likelihood, *rows: Any, step: int = STEP) -> Any:
    """`function(likelihood, *rows)`, compiled, with one entry per row, for rows that are filled up to a size class."""
    count = jax.tree.leaves(rows)[0].shape[0]
    size = size_class(count, step=step)
    filled = map_row_parameters(lambda values: fill_rows(values, size), likelihood)
    return first_rows(to_host(function(filled, *fill_rows(rows, size))), count)


def over_rows(function: Any, likelihood: Likelihood, rows: tuple[Any, ...], block: int | None = None) -> Any:
    """`function(likelihood, *row)` for every row, each with its own exposure, trials, ...

    With `block`, this many rows are processed at a time, which limits the memory for intermediate results.
    """
    axes = row_axes(likelihood)
    if block is None:
        return jax.vmap(function, in_axes=(axes, *(0 for _ in rows)))(likelihood, *rows)
    own, shared = eqx.partition(likelihood, jax.tree.map(lambda axis: axis == 0, axes, is_leaf=lambda a: a is None))
    return jax.lax.map(lambda row: function(eqx.combine(row[0], shared), *row[1]), (own, rows), batch_size=block)
