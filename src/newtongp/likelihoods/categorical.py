"""Likelihoods of classes."""

from typing import ClassVar, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..parameters.constraints import Between, Positive, Real, learned
from ..validation.arguments import whole
from ..validation.numbers import parameter
from . import links
from . import support as supports
from .base import Likelihood
from .special import ndtr


@final
class Bernoulli(Likelihood):
    """Two classes: y is 1 with probability p = lapse + (1 - 2 lapse) link(f), else 0.

    `lapse` is the probability of a wrong label even for large |f|, and makes the likelihood robust.

    >>> float(Bernoulli(lapse=0.25).mean(0.0))
    0.5
    """

    link: str = eqx.field(static=True)
    support: ClassVar[supports.Support] = supports.binary
    lapse: jax.Array | np.ndarray | None = learned(Between(0.0, 0.5))

    def __init__(self, link="probit", lapse=0.0):
        """`link` is "probit" or "logit"; 0 <= `lapse` < 1/2."""
        self.link = links.check(link, links.PROBABILITY)
        self.lapse = links.lapse_rate(lapse)

    @property
    def log_concave(self) -> bool:
        """True without lapses."""
        return self.lapse is None

    def log_prob(self, y, f):
        """log p if y is 1, log(1 - p) if it is 0."""
        # 1 - p(f) = p(-f), so that only one branch is computed.
        return links.log_probability(self.link, (2.0 * y - 1.0) * f, self.lapse)

    def mean(self, f):
        """E[y | f] = p."""
        return links.probability(self.link, f, self.lapse)

    def covariance(self, f):
        """Var[y | f] = p (1 - p)."""
        return self.mean(f) * self.mean(-f)

    def probabilities(self, f):
        """P(y = 0 | f) and P(y = 1 | f)."""
        return jnp.stack([self.mean(-f), self.mean(f)])

    def cdf(self, y, f):
        return jnp.where(y < 0.0, 0.0, jnp.where(y < 1.0, self.mean(-f), 1.0))

    def sample(self, key, f):
        return jnp.asarray(jax.random.bernoulli(key, self.mean(f)), jnp.result_type(float))

    def log_expected_power(self, y, mean, covariance, power):
        """log E[p(y | f)] for f ~ N(mean, covariance), with the probit link and power 1."""
        if self.link != "probit" or power != 1.0:
            return None
        return self.log_prob(y, mean / jnp.sqrt(1.0 + covariance))


@final
class Softmax(Likelihood):
    """Several classes, one latent each: y is the class c with probability exp(f_c) / Σⱼ exp(fⱼ).

    Classes are labels from 0 and have no order, so y has no mean, covariance or quantiles; use `probabilities`.

    >>> Softmax(4).probabilities([0.0, 0.0, 0.0, 0.0]).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    num_classes: int = eqx.field(static=True)
    log_concave: ClassVar[bool] = True

    def __init__(self, num_classes):
        """`num_classes` is at least 2."""
        self.num_classes = whole(num_classes, "num_classes", 2)

    @property
    def num_latents(self) -> int:
        """The number of classes."""
        return self.num_classes

    @property
    def support(self) -> supports.Support:
        """The classes 0, 1, ..."""
        return supports.levels(self.num_classes)

    def moments_problem(self):
        """A message: labels have no moments."""
        return (
            "the classes of Softmax are labels, without a mean or covariance: use Newton(), VI() or "
            "PowerEP() with exact curvature, and the `probabilities` of the classes"
        )

    def log_prob(self, y, f):
        """f_y - log Σⱼ exp(fⱼ)."""
        chosen = jnp.arange(self.num_classes) == y
        return jnp.sum(jnp.where(chosen, jax.nn.log_softmax(jnp.asarray(f)), 0.0))

    @property
    def contrasts(self) -> np.ndarray:
        """Differences between classes: a number that is added to all latents changes nothing."""
        count = np.arange(1, self.num_classes)
        rows = np.tril(np.ones((self.num_classes - 1, self.num_classes))) - np.diag(count, 1)[:-1]
        return rows / np.sqrt(count * (count + 1.0))[:, None]

    def log_prob_derivatives(self, y, f):
        """log p, with gradient 1_y − π and Hessian −diag(π) + ππᵀ, where π are the probabilities."""
        chosen = jnp.arange(self.num_classes) == y
        shifted = f - jax.lax.stop_gradient(jnp.max(f))
        powers = jnp.exp(shifted)
        total = jnp.sum(powers)
        probabilities = powers / total
        value = jnp.sum(jnp.where(chosen, shifted, 0.0)) - jnp.log(total)
        return value, chosen - probabilities, -probabilities, probabilities[:, None]

    def probabilities(self, f):
        """P(y = c | f) of every class c."""
        return jax.nn.softmax(jnp.asarray(f))

    def cdf(self, y, f):
        """Classes have no order."""
        raise NotImplementedError("the classes of Softmax have no order, and hence no quantiles: use `probabilities`")

    def sample(self, key, f):
        return jnp.asarray(jax.random.categorical(key, jnp.asarray(f)), jnp.result_type(float))


@final
class Ordinal(Likelihood):
    """Ordered levels 0, 1, ...: y counts the thresholds below f + scale * noise, with normal or logistic noise.

    P(y <= k | f) = s((t_k - f) / scale) for the thresholds t_0 < t_1 < ..., one fewer than levels. With the link
    "probit", s is the normal distribution function Phi; with "logit", the logistic one (proportional odds).
    Thresholds are stored as the first one and the `gaps`, so that any positive gaps are valid. In a model of terms with
    an intercept, `fit` does not learn the first one, since only its difference from the intercept is determined.

    >>> stars = Ordinal(thresholds=[-1.0, 0.0, 1.0])
    >>> float(stars.mean(0.0)), float(stars.cdf(1, 0.0))
    (1.5, 0.5)
    """

    log_concave: ClassVar[bool] = True
    shift: ClassVar[str | None] = "first"
    first: jax.Array | np.ndarray = learned(Real())
    gaps: jax.Array | np.ndarray | None = learned(Positive())
    # The scale is redundant with the scale of f and the thresholds.
    scale: jax.Array | np.ndarray = learned(Positive(), by_default=False)
    link: str = eqx.field(static=True, default="probit")

    def __init__(self, thresholds, scale=1.0, link="probit"):
        """`thresholds` is an increasing vector, one fewer than levels; `scale` > 0 is in the units of f."""
        self.link = links.check(link, links.PROBABILITY)
        vector = parameter(thresholds, "thresholds", max_ndim=1).reshape(-1)
        gaps = vector[1:] - vector[:-1]
        if not isinstance(vector, Tracer) and np.any(gaps <= 0.0):
            place = int(np.flatnonzero(gaps <= 0.0)[0])
            raise ValueError(
                f"thresholds must increase, but threshold {place + 1}, {vector[place + 1]:g}, is not above threshold "
                f"{place}, {vector[place]:g}"
            )
        self.first, self.gaps = vector[:1].reshape(()), gaps if gaps.size else None
        self.scale = parameter(scale, "scale", lower=0.0)

    @property
    def thresholds(self):
        """All thresholds."""
        first = jnp.reshape(self.first, (1,))
        return first if self.gaps is None else jnp.concatenate([first, self.first + jnp.cumsum(self.gaps)])

    @property
    def num_levels(self) -> int:
        """The number of levels, one more than thresholds."""
        return 2 if self.gaps is None else self.gaps.shape[0] + 2

    @property
    def support(self) -> supports.Support:
        """The levels 0, 1, ..."""
        return supports.levels(self.num_levels)

    def log_prob(self, y, f):
        """log [s((t_y - f) / scale) - s((t_{y-1} - f) / scale)]."""
        return self._log_prob(y, f, self.scale)

    def _log_prob(self, y, f, scale):
        thresholds, last = self.thresholds, self.num_levels - 1
        level = jnp.asarray(y, int)
        upper = (thresholds[jnp.clip(level, 0, last - 1)] - f) / scale
        lower = (thresholds[jnp.clip(level - 1, 0, last - 1)] - f) / scale
        # The interval is reflected to the side where s is small; `near` is the end closer to zero.
        inside = (level > 0) & (level < last)
        reflected = jnp.where(inside, lower + upper > 0.0, level > 0)
        near = links.log_probability(self.link, jnp.where(reflected, -lower, upper), None)
        if self.gaps is None:
            return near
        far = links.log_probability(self.link, jnp.where(reflected, -upper, lower), None)
        gap = jnp.where(inside, near - far, 1.0)
        return near + jnp.where(inside, jnp.log(-jnp.expm1(-gap)), 0.0)

    def _share_below(self, distance):
        return ndtr(distance) if self.link == "probit" else jax.nn.sigmoid(distance)

    def _above(self, f):
        """P(y > k | f) and P(y <= k | f) for every threshold."""
        distance = (self.thresholds - f) / self.scale
        return self._share_below(-distance), self._share_below(distance)

    def probabilities(self, f):
        """P(y = k | f) of every level k."""
        return jnp.exp(jax.vmap(lambda y: self.log_prob(y, f))(jnp.arange(self.num_levels)))

    def mean(self, f):
        """E[y | f] = Σₖ P(y > k | f)."""
        return jnp.sum(self._above(f)[0])

    def covariance(self, f):
        """Var[y | f] = Σⱼₖ P(y > max(j, k) | f) P(y <= min(j, k) | f)."""
        above, below = self._above(f)
        number = jnp.arange(above.shape[0])
        larger = jnp.maximum(number[:, None], number[None, :])
        smaller = jnp.minimum(number[:, None], number[None, :])
        return jnp.sum(above[larger] * below[smaller])

    def cdf(self, y, f):
        last = self.num_levels - 1
        level = jnp.clip(jnp.floor(jnp.asarray(y, float)), 0, last - 1).astype(int)
        inside = self._share_below((self.thresholds[level] - f) / self.scale)
        return jnp.where(y < 0.0, 0.0, jnp.where(y >= last, 1.0, inside))

    def sample(self, key, f):
        noise = jax.random.normal(key) if self.link == "probit" else jax.random.logistic(key)
        noisy = f + self.scale * noise
        return jnp.sum(jnp.where(noisy > self.thresholds, 1.0, 0.0))

    def log_expected_power(self, y, mean, covariance, power):
        """log E[p(y | f)] for f ~ N(mean, covariance), with the probit link and power 1."""
        if power != 1.0 or self.link != "probit":
            return None
        return self._log_prob(y, mean, jnp.sqrt(self.scale**2 + covariance))
