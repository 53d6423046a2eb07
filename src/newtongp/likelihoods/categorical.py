"""Likelihoods of classes."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import links
from . import support as supports
from .base import Likelihood


@final
class Bernoulli(Likelihood):
    """Two classes: y is 1 with probability p = lapse + (1 - 2 lapse) link(f), else 0.

    `lapse` is the probability of a wrong label however clear the case, and makes the likelihood robust.

    >>> float(Bernoulli(lapse=0.25).mean(0.0))
    0.5
    """

    lapse: jax.Array | np.ndarray | None
    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.binary

    def __init__(self, link="probit", lapse=0.0):
        """`link` is "probit" or "logit"; 0 <= `lapse` < 1/2."""
        self.link = links.check(link, links.PROBABILITY)
        self.lapse = links.lapse_rate(lapse)

    @property
    def log_concave(self) -> bool:
        """Without lapses."""
        return self.lapse is None

    def log_prob(self, y, f):
        """log p if y is 1, log(1 - p) if it is 0."""
        # 1 - p(f) = p(-f), so that only the branch that occurs is computed.
        return links.log_probability(self.link, (2.0 * y - 1.0) * f, self.lapse)

    def mean(self, f):
        """E[y | f] = p."""
        return links.probability(self.link, f, self.lapse)

    def covariance(self, f):
        """Var[y | f] = p (1 - p)."""
        return self.mean(f) * self.mean(-f)

    def cdf(self, y, f):
        """P(Y <= y | f)."""
        return jnp.where(y < 0.0, 0.0, jnp.where(y < 1.0, self.mean(-f), 1.0))

    def sample(self, key, f):
        """A draw of y given f."""
        return jnp.asarray(jax.random.bernoulli(key, self.mean(f)), jnp.result_type(float))

    def log_expected_power(self, y, mean, covariance, power):
        """log E[p(y | f)] for f ~ N(mean, covariance), with the probit link and power 1."""
        if self.link != "probit" or power != 1.0:
            return None
        return self.log_prob(y, mean / jnp.sqrt(1.0 + covariance))
