"""Likelihoods of real, positive and fractional outputs."""

from typing import Any, ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..numerics.small import LOG_2PI, normal_log_density
from ..parameters.constraints import Between, Positive, learned
from ..validation.numbers import parameter
from . import links
from . import support as supports
from .base import Likelihood, rows_or_column
from .log_distance import expected_log_square
from .special import gammaln, incomplete_beta, log_rising_factorial, lower_gamma, ndtr


def _normal_log_expected_power(residual, noise, variance, power: Any):
    """log E[N(y | f, noise)^power] for f ~ N(mean, variance), with residual = y - mean."""
    determinants = -0.5 * power * (LOG_2PI + jnp.log(noise)) - 0.5 * jnp.log1p(power * variance / noise)
    return determinants - 0.5 * power * residual**2 / (noise + power * variance)


def _ratio(y, log_scale):
    """y / scale for y >= 0, also if the scale underflows: 0 at y = 0, without infinity times 0."""
    return jnp.exp(jnp.log(y) - log_scale)


def _smallest_positive():
    return jnp.finfo(jnp.result_type(float)).tiny


def _positive_rows(value, name: str):
    return parameter(value, name, lower=0.0, max_ndim=1)


@final
class Gaussian(Likelihood):
    """Real outputs with normal noise: p(y | f) = N(y | f, variance).

    `variance` is one number, which `fit` learns, or one known variance per row (squared standard errors), which it does
    not; in models of tables, it may be the name of a column.

    >>> float(Gaussian(variance=0.25).covariance(1.0))
    0.25
    """

    support: ClassVar[supports.Support] = supports.real
    log_concave: ClassVar[bool] = True
    gaussian_form: ClassVar[bool] = True
    linear_latents: ClassVar[tuple[int, ...]] = (0,)
    row_parameters: ClassVar[tuple[str, ...]] = ("variance",)
    variance: jax.Array | np.ndarray = learned(Positive(), unit="y2")

    def __init__(self, variance=1.0):
        """`variance` > 0 is the variance of the noise: a number, or one per row."""
        self.variance = rows_or_column(_positive_rows, variance, "variance")

    def check_row_parameter(self, name, value):
        """Variances must be positive."""
        return _positive_rows(value, name)

    def log_prob(self, y, f):
        """log N(y | f, variance)."""
        return normal_log_density(y - f, self.variance)

    def mean(self, f):
        """E[y | f] = f."""
        return jnp.asarray(f)

    def covariance(self, f):
        """Var[y | f] = variance."""
        return jnp.asarray(self.variance)

    def cdf(self, y, f):
        return ndtr((y - f) / jnp.sqrt(self.variance))

    def linear_form(self, others):
        """y ~ N(f, variance), linear in f."""
        return jnp.ones((1, 1)), jnp.zeros(1), jnp.reshape(self.variance, (1, 1))

    def sample(self, key, f):
        return f + jnp.sqrt(self.variance) * jax.random.normal(key)

    def expected_log_prob(self, y, mean, covariance):
        return self.log_prob(y, mean) - 0.5 * covariance / self.variance

    def log_expected_power(self, y, mean, covariance, power):
        return _normal_log_expected_power(y - mean, self.variance, covariance, power)


@final
class StudentT(Likelihood):
    """Real outputs with outliers: (y - f) / scale has Student's t distribution with `df` degrees of freedom.

    The variance of y is scale^2 df / (df - 2), which needs df > 2. `scale` is one number, which `fit` learns, or one
    known scale per row, or the name of a column of the table, which it does not.

    >>> float(StudentT(df=4.0, scale=3.0).covariance(0.0))
    18.0
    """

    support: ClassVar[supports.Support] = supports.real
    long_formulas: ClassVar[bool] = True
    row_parameters: ClassVar[tuple[str, ...]] = ("scale",)
    df: jax.Array | np.ndarray = learned(Positive())
    scale: jax.Array | np.ndarray = learned(Positive(), unit="y")

    def __init__(self, df=4.0, scale=1.0):
        """`df` > 0; `scale` > 0 is in the units of y, not squared: a number, or one per row."""
        self.df = parameter(df, "df", lower=0.0)
        self.scale = rows_or_column(_positive_rows, scale, "scale")

    def check_row_parameter(self, name, value):
        """Scales must be positive."""
        return _positive_rows(value, name)

    def moments_problem(self):
        """A message if df <= 2, where the variance is infinite, or None."""
        if isinstance(self.df, Tracer) or self.df > 2.0:
            return None
        return f"StudentT with df = {float(self.df):g} has no covariance: use df > 2, or quantiles of predictions"

    def log_prob(self, y, f):
        # One division for all nodes and rows.
        z = (y - f) * (1.0 / self.scale)
        return self._log_normaliser() - 0.5 * (self.df + 1.0) * jnp.log1p(z**2 * (1.0 / self.df))

    def _log_normaliser(self):
        # If df is large, both gamma functions are huge, but their ratio is not.
        normaliser = log_rising_factorial(0.5 * self.df, 0.5) - 0.5 * jnp.log(jnp.pi * self.df)
        return normaliser - jnp.log(self.scale)

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), from the Faddeeva function."""
        width = self.scale * jnp.sqrt(self.df)
        expected = expected_log_square((y - mean) * (1.0 / width), covariance * (1.0 / width**2))
        return self._log_normaliser() - 0.5 * (self.df + 1.0) * expected

    def peak(self, y):
        """At f = y, of width scale √(df / (df + 1))."""
        return y, self.scale * jnp.sqrt(self.df / (self.df + 1.0))

    def mean(self, f):
        """E[y | f] = f. (With df <= 1, where there is no mean, this is the median.)"""
        return jnp.asarray(f)

    def covariance(self, f):
        """Var[y | f] = scale^2 df / (df - 2); ValueError if df <= 2."""
        problem = self.moments_problem()
        if problem is not None:
            raise ValueError(problem)
        # A traced df cannot be checked here: the variance is infinite, where the formula would be negative.
        finite = self.df > 2.0
        excess = jnp.where(finite, self.df - 2.0, 1.0)
        return jnp.where(finite, self.scale**2 * self.df / excess, jnp.inf)

    def cdf(self, y, f):
        squared = ((y - f) / self.scale) ** 2
        inner, outer = squared / (self.df + squared), self.df / (self.df + squared)
        # Computed from the smaller argument: near y = f, the other one has lost half of its digits.
        near = squared < self.df
        small = jnp.where(near, inner, outer)
        first, second = jnp.where(near, 0.5, 0.5 * self.df), jnp.where(near, 0.5 * self.df, 0.5)
        part = incomplete_beta(first, second, small, 1.0 - small)
        tail = 0.5 * jnp.where(near, 1.0 - part, part)
        return jnp.where(y < f, tail, 1.0 - tail)

    def sample(self, key, f):
        return f + self.scale * jax.random.t(key, self.df)


@final
class Gamma(Likelihood):
    """Positive outputs of a fixed shape: y ~ Gamma(shape, scale = link(f)), with mean shape * link(f).

    link(f) is the scale and not the mean: with the exponential link, log E[y | f] = f + log(shape).

    >>> float(Gamma(shape=2.0).mean(0.0))
    2.0
    """

    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.positive
    shape: jax.Array | np.ndarray = learned(Positive())

    def __init__(self, shape=1.0, link="exp"):
        """`shape` > 0; `link` is "exp" or "softplus"."""
        self.shape = parameter(shape, "shape", lower=0.0)
        self.link = links.check(link, links.POSITIVE)

    @property
    def log_concave(self) -> bool:
        """Known for the exponential link."""
        return self.link == "exp"

    def log_prob(self, y, f):
        """-log Gamma(a) - a log s + (a - 1) log y - y / s, with a the shape and s = link(f)."""
        log_scale = links.log_positive(self.link, f)
        return self._normaliser(y) - self.shape * log_scale - _ratio(y, log_scale)

    def _normaliser(self, y):
        return (self.shape - 1.0) * jnp.log(y) - gammaln(self.shape)

    def mean(self, f):
        """E[y | f] = shape * link(f)."""
        return self.shape * links.positive(self.link, f)

    def covariance(self, f):
        """Var[y | f] = shape * link(f)^2."""
        return self.shape * links.positive(self.link, f) ** 2

    def cdf(self, y, f):
        return lower_gamma(self.shape, _ratio(jnp.maximum(y, 0.0), links.log_positive(self.link, f)))

    def sample(self, key, f):
        # With a small shape, draws can underflow to zero, which is not in the support.
        unit = jnp.maximum(jax.random.gamma(key, self.shape), _smallest_positive())
        return links.positive(self.link, f) * unit

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), with the exponential link."""
        if self.link != "exp":
            return None
        return self._normaliser(y) - self.shape * mean - _ratio(y, mean - 0.5 * covariance)


@final
class Exponential(Likelihood):
    """Waiting times: p(y | f) = exp(-y / s) / s with mean s = link(f).

    >>> float(Exponential().log_prob(2.0, 0.0))
    -2.0
    """

    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.non_negative

    def __init__(self, link="exp"):
        """`link` is "exp" or "softplus"."""
        self.link = links.check(link, links.POSITIVE)

    @property
    def log_concave(self) -> bool:
        """Known for the exponential link."""
        return self.link == "exp"

    def log_prob(self, y, f):
        """-log s - y / s, with s = link(f)."""
        log_scale = links.log_positive(self.link, f)
        return -log_scale - _ratio(y, log_scale)

    def mean(self, f):
        """E[y | f] = link(f)."""
        return links.positive(self.link, f)

    def covariance(self, f):
        """Var[y | f] = link(f)^2."""
        return links.positive(self.link, f) ** 2

    def cdf(self, y, f):
        return -jnp.expm1(-_ratio(jnp.maximum(y, 0.0), links.log_positive(self.link, f)))

    def sample(self, key, f):
        return links.positive(self.link, f) * jax.random.exponential(key)

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), with the exponential link."""
        if self.link != "exp":
            return None
        return -mean - _ratio(y, mean - 0.5 * covariance)


@final
class Beta(Likelihood):
    """Fractions: y ~ Beta(c m, c (1 - m)) with concentration c and mean m = lapse + (1 - 2 lapse) link(f).

    >>> float(Beta(concentration=3.0).covariance(0.0))
    0.0625
    """

    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.unit_interval
    concentration: jax.Array | np.ndarray = learned(Positive())
    lapse: jax.Array | np.ndarray | None = learned(Between(0.0, 0.5))

    def __init__(self, concentration=1.0, link="probit", lapse=0.0):
        """`concentration` > 0; `link` is "probit" or "logit"; 0 <= `lapse` < 1/2."""
        self.concentration = parameter(concentration, "concentration", lower=0.0)
        self.link = links.check(link, links.PROBABILITY)
        self.lapse = links.lapse_rate(lapse)

    def log_prob(self, y, f):
        """(a - 1) log y + (b - 1) log(1 - y) - log B(a, b), with a = c m and b = c (1 - m)."""
        log_a = jnp.log(self.concentration) + links.log_probability(self.link, f, self.lapse)
        log_b = jnp.log(self.concentration) + links.log_probability(self.link, -f, self.lapse)
        a, b = jnp.exp(log_a), jnp.exp(log_b)
        # log Gamma(a) = log Gamma(1 + a) - log a stays finite where a underflows.
        log_beta = gammaln(1.0 + a) - log_a + gammaln(1.0 + b) - log_b - gammaln(self.concentration)
        return (a - 1.0) * jnp.log(y) + (b - 1.0) * jnp.log1p(-y) - log_beta

    def mean(self, f):
        """E[y | f] = m."""
        return links.probability(self.link, f, self.lapse)

    def covariance(self, f):
        """Var[y | f] = m (1 - m) / (c + 1)."""
        return self.mean(f) * self.mean(-f) / (self.concentration + 1.0)

    def _parameters(self, f):
        a, b = self.concentration * self.mean(f), self.concentration * self.mean(-f)
        return jnp.maximum(a, _smallest_positive()), jnp.maximum(b, _smallest_positive())

    def cdf(self, y, f):
        inside = jnp.clip(y, 0.0, 1.0)
        return incomplete_beta(*self._parameters(f), inside, 1.0 - inside)

    def sample(self, key, f):
        # Draws that round to 0 or 1 are moved to the nearest number in the support.
        last = 1.0 - jnp.finfo(jnp.result_type(float)).epsneg
        return jnp.clip(jax.random.beta(key, *self._parameters(f)), _smallest_positive(), last)


@final
class LogNormal(Likelihood):
    """Positive outputs with relative noise: log y ~ N(f, scale^2).

    `scale` is one number, which `fit` learns, or one known scale per row, or the name of a column of the table, which
    it does not.

    >>> float(LogNormal(scale=2.0).cdf(1.0, 0.0))
    0.5
    """

    support: ClassVar[supports.Support] = supports.positive
    log_concave: ClassVar[bool] = True
    row_parameters: ClassVar[tuple[str, ...]] = ("scale",)
    scale: jax.Array | np.ndarray = learned(Positive())

    def __init__(self, scale=1.0):
        """`scale` > 0 is the standard deviation of log y: a number, or one per row."""
        self.scale = rows_or_column(_positive_rows, scale, "scale")

    def check_row_parameter(self, name, value):
        """Scales must be positive."""
        return _positive_rows(value, name)

    def log_prob(self, y, f):
        """log N(log y | f, scale^2) - log y."""
        return normal_log_density(jnp.log(y) - f, self.scale**2) - jnp.log(y)

    def mean(self, f):
        """E[y | f] = exp(f + scale^2 / 2)."""
        return jnp.exp(f + 0.5 * self.scale**2)

    def covariance(self, f):
        """Var[y | f] = (exp(scale^2) - 1) E[y | f]^2."""
        return jnp.expm1(self.scale**2) * self.mean(f) ** 2

    def cdf(self, y, f):
        occurs = y > 0.0
        return jnp.where(occurs, ndtr((jnp.log(jnp.where(occurs, y, 1.0)) - f) / self.scale), 0.0)

    def sample(self, key, f):
        return jnp.exp(f + self.scale * jax.random.normal(key))

    def expected_log_prob(self, y, mean, covariance):
        return self.log_prob(y, mean) - 0.5 * covariance / self.scale**2

    def log_expected_power(self, y, mean, covariance, power):
        normal = _normal_log_expected_power(jnp.log(y) - mean, self.scale**2, covariance, power)
        return normal - power * jnp.log(y)
