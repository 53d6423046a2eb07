"""Likelihoods of counts."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..parameters.constraints import Between, Positive, learned
from ..validation.numbers import parameter
from . import links
from . import support as supports
from .base import Likelihood, rows_or_column
from .special import gammaln, incomplete_beta, log_rising_factorial, upper_gamma


def _positive_rows(value, name: str):
    return parameter(value, name, lower=0.0, max_ndim=1)


def _positive_integer_rows(value, name: str):
    array = _positive_rows(value, name)
    if not isinstance(array, Tracer) and np.any(array != np.round(array)):
        raise ValueError(f"{name} must be positive integers, got {value!r}: round them")
    return array


@final
class Poisson(Likelihood):
    """Counts: y ~ Poisson(exposure * link(f)).

    `exposure` (a bin's width, a population) is one number, one per row, or the name of a column of the table.

    >>> float(Poisson(exposure=10.0).mean(0.0))
    10.0
    """

    exposure: jax.Array | np.ndarray
    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.counts
    log_concave: ClassVar[bool] = True
    row_parameters: ClassVar[tuple[str, ...]] = ("exposure",)

    def __init__(self, link="exp", exposure=1.0):
        """`link` is "exp" or "softplus"; `exposure` > 0 is a number, one per row, or a column."""
        self.link = links.check(link, links.POSITIVE)
        self.exposure = rows_or_column(_positive_rows, exposure, "exposure")

    def check_row_parameter(self, name, value):
        """The exposure must be positive."""
        return _positive_rows(value, name)

    def log_prob(self, y, f):
        """y log(rate) - rate - log y!."""
        log_rate = jnp.log(self.exposure) + links.log_positive(self.link, f)
        return y * log_rate - self.mean(f) - gammaln(y + 1.0)

    def mean(self, f):
        """E[y | f] = exposure * link(f)."""
        return self.exposure * links.positive(self.link, f)

    def covariance(self, f):
        """Var[y | f] = E[y | f]."""
        return self.mean(f)

    def cdf(self, y, f):
        whole = jnp.floor(jnp.maximum(y, 0.0))
        return jnp.where(y < 0.0, 0.0, upper_gamma(whole + 1.0, self.mean(f)))

    def sample(self, key, f):
        return _poisson_draw(key, self.mean(f))

    def expected_log_prob(self, y, mean, covariance):
        """E[log p(y | f)] for f ~ N(mean, covariance), with the exponential link."""
        if self.link != "exp":
            return None
        expected_rate = self.exposure * jnp.exp(mean + 0.5 * covariance)
        return y * (jnp.log(self.exposure) + mean) - expected_rate - gammaln(y + 1.0)


_LARGE_RATE = 1e4


def _poisson_draw(key, rate):
    # jax.random.poisson computes in single precision: from rates of about 1e7 on, its draws have a wrong variance, and
    # none exceeds the largest integer. There the Cornish-Fisher expansion is accurate to 1e-4 standard deviations.
    large, root = rate > _LARGE_RATE, jnp.sqrt(rate)
    normal = jax.random.normal(key)
    expanded = jnp.floor(root * (root + normal) + (normal**2 - 1.0) / 6.0 + 0.5)
    moderate = jax.random.poisson(key, jnp.where(large, 1.0, rate))
    return jnp.where(large, expanded, jnp.asarray(moderate, jnp.result_type(float)))


@final
class NegativeBinomial(Likelihood):
    """Overdispersed counts: mean mu = exposure * link(f) and variance mu + dispersion * mu^2.

    A Poisson distribution whose rate has a gamma distribution with mean mu and shape r = 1 / dispersion; its limit as
    the dispersion tends to 0 is the Poisson distribution.

    >>> float(NegativeBinomial(dispersion=0.5, exposure=2.0).covariance(0.0))
    4.0
    """

    exposure: jax.Array | np.ndarray
    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.counts
    row_parameters: ClassVar[tuple[str, ...]] = ("exposure",)
    dispersion: jax.Array | np.ndarray = learned(Positive())

    def __init__(self, dispersion=1.0, link="exp", exposure=1.0):
        """`dispersion` > 0; `link` is "exp" or "softplus"; `exposure` > 0 as in `Poisson`."""
        self.dispersion = parameter(dispersion, "dispersion", lower=0.0)
        self.link = links.check(link, links.POSITIVE)
        self.exposure = rows_or_column(_positive_rows, exposure, "exposure")

    def check_row_parameter(self, name, value):
        """The exposure must be positive."""
        return _positive_rows(value, name)

    def _log_odds(self, f):
        return jnp.log(self.dispersion) + jnp.log(self.exposure) + links.log_positive(self.link, f)

    @property
    def log_concave(self) -> bool:
        """Known for the exponential link."""
        return self.link == "exp"

    def log_prob(self, y, f):
        """log [Gamma(y + r) / (Gamma(r) y!)] + y log sigma(u) + r log sigma(-u), u = log(dispersion * mu)."""
        shape, log_odds = 1.0 / self.dispersion, self._log_odds(f)
        choices = log_rising_factorial(shape, y) - gammaln(y + 1.0)
        return choices + y * links.log_sigmoid(log_odds) + shape * links.log_sigmoid(-log_odds)

    def mean(self, f):
        """E[y | f] = exposure * link(f)."""
        return self.exposure * links.positive(self.link, f)

    def covariance(self, f):
        """Var[y | f] = mu + dispersion * mu^2."""
        mean = self.mean(f)
        return mean + self.dispersion * mean**2

    def cdf(self, y, f):
        whole, log_odds = jnp.floor(jnp.maximum(y, 0.0)), self._log_odds(f)
        inside = incomplete_beta(
            1.0 / self.dispersion, whole + 1.0, jax.nn.sigmoid(-log_odds), jax.nn.sigmoid(log_odds)
        )
        return jnp.where(y < 0.0, 0.0, inside)

    def sample(self, key, f):
        key_rate, key_count = jax.random.split(key)
        rate = jax.random.gamma(key_rate, 1.0 / self.dispersion) * self.dispersion * self.mean(f)
        return _poisson_draw(key_count, rate)


def _check_trials(successes: np.ndarray, trials: np.ndarray) -> None:
    """Raise ValueError if there are more successes than trials in a row."""
    if trials.ndim == 1 and trials.shape != successes.shape:
        raise ValueError(f"trials has {trials.shape[0]} rows, but y has {successes.shape[0]}")
    trials = np.broadcast_to(trials, successes.shape)
    too_many = np.flatnonzero(successes > trials)
    if too_many.size:
        row = too_many[0]
        raise ValueError(
            f"y must be at most the number of trials, but row {row} is {successes[row]:g}, with {trials[row]:g} "
            "trials: correct one of them"
        )


def _log_choices(rest, y):
    """log (trials choose y), with rest = trials - y."""
    return log_rising_factorial(rest + 1.0, y) - gammaln(y + 1.0)


class _Successes(Likelihood):
    """Successes in a known number of trials, each with a probability of lapse + (1 - 2 lapse) link(f)."""

    support: ClassVar[supports.Support] = supports.counts
    row_parameters: ClassVar[tuple[str, ...]] = ("trials",)
    trials: eqx.AbstractVar[jax.Array | np.ndarray]
    link: eqx.AbstractVar[str]
    lapse: eqx.AbstractVar[jax.Array | np.ndarray | None]

    def check_row_parameter(self, name, value):
        """The number of trials must be a positive integer."""
        return _positive_integer_rows(value, name)

    def check_support(self, y):
        """Raise ValueError unless y are counts that do not exceed the trials of their row."""
        self.support.check(y)
        _check_trials(y[:, 0], np.asarray(self.trials))

    def mean(self, f):
        """E[y | f] = trials * p."""
        return self.trials * links.probability(self.link, f, self.lapse)


@final
class Binomial(_Successes):
    """Successes in a known number of trials: y ~ Binomial(trials, p), p = lapse + (1 - 2 lapse) link(f).

    `trials` is one number, one per row, or the name of a column of the table.

    >>> float(Binomial(trials=10).mean(0.0))
    5.0
    """

    trials: jax.Array | np.ndarray
    link: str = eqx.field(static=True)
    lapse: jax.Array | np.ndarray | None = learned(Between(0.0, 0.5))

    def __init__(self, trials, link="logit", lapse=0.0):
        """`trials` are positive integers; `link` is "probit" or "logit"; 0 <= `lapse` < 1/2."""
        self.trials = rows_or_column(_positive_integer_rows, trials, "trials")
        self.link = links.check(link, links.PROBABILITY)
        self.lapse = links.lapse_rate(lapse)

    def _log_probabilities(self, f):
        return links.log_probability(self.link, f, self.lapse), links.log_probability(self.link, -f, self.lapse)

    @property
    def log_concave(self) -> bool:
        """True without lapses."""
        return self.lapse is None

    def log_prob(self, y, f):
        """log (trials choose y) + y log p + (trials - y) log(1 - p)."""
        success, failure = self._log_probabilities(f)
        rest = self.trials - y
        return _log_choices(rest, y) + y * success + rest * failure

    def covariance(self, f):
        """Var[y | f] = trials * p (1 - p)."""
        return self.mean(f) * links.probability(self.link, -f, self.lapse)

    def cdf(self, y, f):
        whole = jnp.clip(jnp.floor(y), 0.0, self.trials - 1.0)
        success = links.probability(self.link, f, self.lapse)
        failure = links.probability(self.link, -f, self.lapse)
        inside = incomplete_beta(self.trials - whole, whole + 1.0, failure, success)
        return jnp.where(y < 0.0, 0.0, jnp.where(y >= self.trials, 1.0, inside))

    def sample(self, key, f):
        return jax.random.binomial(key, self.trials, links.probability(self.link, f, self.lapse))


@final
class BetaBinomial(_Successes):
    """Overdispersed successes in a known number of trials: a binomial whose probability varies from row to row.

    y ~ Binomial(trials, p) with p ~ Beta(c m, c (1 - m)), where c is the concentration and m = lapse + (1 - 2 lapse)
    link(f). Two trials of a row are correlated by 1 / (c + 1); the limit as c tends to infinity is the binomial
    distribution. `trials` is one number, one per row, or the name of a column of the table.

    >>> float(BetaBinomial(trials=10, concentration=4.0).covariance(0.0))
    7.0
    """

    trials: jax.Array | np.ndarray
    link: str = eqx.field(static=True)
    concentration: jax.Array | np.ndarray = learned(Positive())
    lapse: jax.Array | np.ndarray | None = learned(Between(0.0, 0.5))

    def __init__(self, trials, concentration=10.0, link="logit", lapse=0.0):
        """`trials` as in `Binomial`; `concentration` > 0; `link` is "probit" or "logit"; 0 <= `lapse` < 1/2."""
        self.trials = rows_or_column(_positive_integer_rows, trials, "trials")
        self.concentration = parameter(concentration, "concentration", lower=0.0)
        self.link = links.check(link, links.PROBABILITY)
        self.lapse = links.lapse_rate(lapse)

    def log_prob(self, y, f):
        """log (trials choose y) + log B(a + y, b + trials - y) - log B(a, b), with a = c m and b = c (1 - m)."""
        rest = self.trials - y
        successes = self._log_rising(links.log_probability(self.link, f, self.lapse), y)
        failures = self._log_rising(links.log_probability(self.link, -f, self.lapse), rest)
        return _log_choices(rest, y) + successes + failures - log_rising_factorial(self.concentration, self.trials)

    def _log_rising(self, log_share, count):
        """log Gamma(r + count) - log Gamma(r) for r = c * share, also where r underflows."""
        log_r = jnp.log(self.concentration) + log_share
        rising = log_r + log_rising_factorial(1.0 + jnp.exp(log_r), jnp.maximum(count - 1.0, 0.0))
        return jnp.where(count > 0.0, rising, 0.0)

    def covariance(self, f):
        """Var[y | f] = trials * m (1 - m) (c + trials) / (c + 1)."""
        c = self.concentration
        return self.mean(f) * links.probability(self.link, -f, self.lapse) * (c + self.trials) / (c + 1.0)

    def _parameters(self, f):
        shares = links.probability(self.link, f, self.lapse), links.probability(self.link, -f, self.lapse)
        least = jnp.finfo(jnp.result_type(float)).tiny
        return tuple(jnp.maximum(self.concentration * share, least) for share in shares)

    def cdf(self, y, f):
        """A sum over the counts on the side of y that is farther from the mean."""
        whole = jnp.clip(jnp.floor(y), 0.0, self.trials - 1.0)
        a, b = self._parameters(f)
        lower = whole < self.mean(f)
        first = jnp.where(lower, whole, self.trials - whole - 1.0)
        a, b = jnp.where(lower, a, b), jnp.where(lower, b, a)
        start = jnp.exp(self.log_prob(jnp.where(lower, whole, whole + 1.0), f))
        tail = _sum_downwards(start, first, self.trials, a, b)
        inside = jnp.clip(jnp.where(lower, tail, 1.0 - tail), 0.0, 1.0)
        return jnp.where(y < 0.0, 0.0, jnp.where(y >= self.trials, 1.0, inside))

    def sample(self, key, f):
        key_probability, key_count = jax.random.split(key)
        a, b = self._parameters(f)
        return jax.random.binomial(key_count, self.trials, jax.random.beta(key_probability, a, b))


def _sum_downwards(start, count, trials, a, b):
    """P(Y = count) + P(Y = count - 1) + ... + P(Y = 0) for a beta-binomial Y, given the first term."""

    def unfinished(state):
        k, term, total = state
        # Terms decrease at least geometrically where they are this small.
        return (k > 0.0) & (term > _NEGLIGIBLE * total)

    def add(state):
        k, term, total = state
        term = term * (k / (trials - k + 1.0)) * ((b + trials - k) / (a + k - 1.0))
        return k - 1.0, term, total + term

    return jax.lax.while_loop(unfinished, add, (count, start, start))[2]


_NEGLIGIBLE = 1e-20
