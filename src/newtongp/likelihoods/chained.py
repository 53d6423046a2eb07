"""Likelihoods that wrap others: parameters as functions of latents, and zero inflation."""

import dataclasses
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..parameters.constraints import Between, learned
from ..validation.numbers import parameter
from . import links
from .base import Likelihood
from .continuous import StudentT
from .weighted import refuse_weights
from .wrapper import Wrapper


@final
class Chained(Wrapper):
    """A likelihood with some of its parameters as functions: each gets its own latent, through a link.

    The latents are those of `base`, then one per parameter in the order of the arguments. The values of these
    parameters in `base` are ignored.

    >>> import newtongp as ng
    >>> counts = ng.likelihoods.Chained(ng.likelihoods.NegativeBinomial(), dispersion="softplus")
    >>> counts.num_latents
    2
    >>> kernel = ng.kernels.Independent([ng.kernels.RBF(), ng.kernels.Constant()])
    >>> model = ng.Model(ng.GP(kernel), counts)  # ready for ng.infer(model, x, y)
    """

    base: Likelihood
    names: tuple[str, ...] = eqx.field(static=True)
    link_names: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, base, /, **parameters):
        """`base` is a likelihood; `parameters` are links by the names of its parameters, as in scale="softplus".

        Links are "exp" and "softplus" to positive numbers, "logit" and "probit" to probabilities, and "identity".
        """
        if not isinstance(base, Likelihood):
            raise ValueError(f"base must be a likelihood such as StudentT(df=4), got {base!r}")
        refuse_weights(base, "Chained")
        known = _scalar_parameters(base)
        listed = f"{type(base).__name__} has {', '.join(known) or 'none'}"
        if not parameters:
            raise ValueError(f'name at least one parameter and its link, as in scale="softplus": {listed}')
        for name, link in parameters.items():
            if name in base.row_parameters and name not in known:
                raise ValueError(f"{name} is given per row with the data, and cannot be a latent: {listed}")
            if name not in known:
                raise ValueError(f"{name} is not a parameter that can be a latent: {listed}")
            links.check(link, links.ANY, f"the link of {name}")
        self.names, self.link_names = tuple(parameters), tuple(parameters.values())
        for name, link in parameters.items():
            _check_link(base, name, link)
        # The replaced parameters are no longer learned.
        self.base = eqx.tree_at(self._places, base, [None] * len(self.names))

    @property
    def row_parameters(self) -> tuple[str, ...]:
        """Those of the wrapped likelihood that are not latents."""
        return tuple(name for name in self.base.row_parameters if name not in self.names)

    @property
    def num_latents(self) -> int:
        """The number of latents of the wrapped likelihood, plus one per named parameter."""
        return self.base.num_latents + len(self.names)

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Those of the wrapped likelihood, then the named parameters."""
        own = ("location",) if self.base.num_latents == 1 else tuple(self.base.latent_names)
        return (*own, *self.names) if len(own) == self.base.num_latents else ()

    @property
    def num_outputs(self) -> int:
        return self.base.num_outputs

    @property
    def gaussian_form(self) -> bool:
        return self.base.gaussian_form

    @property
    def linear_latents(self) -> tuple[int, ...]:
        return self.base.linear_latents

    def _given(self, values):
        """The wrapped likelihood, with its parameters computed from these latents."""
        parameters = [_value(link, values[i]) for i, link in enumerate(self.link_names)]
        return eqx.tree_at(self._places, self.base, parameters, is_leaf=lambda leaf: leaf is None)

    def _places(self, base):
        return [getattr(base, name) for name in self.names]

    def _split(self, f):
        """The wrapped likelihood with its parameters, and its own latents."""
        f, count = jnp.asarray(f), self.base.num_latents
        return self._given(f[count:]), (f[0] if count == 1 else f[:count])

    def moments_problem(self):
        """A message if the wrapped likelihood has no moments for any values of the named parameters, or None."""
        problems = []

        def check(f):
            problems.append(self._split(f)[0].moments_problem())
            return f

        # Traced, so that the named parameters have no values.
        jax.eval_shape(check, jnp.zeros(self.num_latents))
        return problems[0]

    def log_prob(self, y, f):
        base, own = self._split(f)
        return base.log_prob(y, own)

    def mean(self, f):
        base, own = self._split(f)
        return base.mean(own)

    def covariance(self, f):
        base, own = self._split(f)
        return base.covariance(own)

    def cdf(self, y, f):
        base, own = self._split(f)
        return base.cdf(y, own)

    def sample(self, key, f):
        base, own = self._split(f)
        return base.sample(key, own)

    def linear_form(self, others):
        """The linear form of the wrapped likelihood, with parameters computed from the last latents."""
        count = self.base.num_latents - len(self.base.linear_latents)
        return self._given(others[count:]).linear_form(others[:count])


def HeteroscedasticStudentT(df=4.0, link="softplus") -> Chained:
    """Student-t noise whose scale is a latent: (y - f₀) / link(f₁) has Student's t distribution.

    >>> float(HeteroscedasticStudentT(df=4.0, link="exp").covariance([0.0, 0.0]))
    2.0
    """
    return Chained(StudentT(df), scale=links.check(link, links.POSITIVE))


@final
class ZeroInflated(Wrapper):
    """Zero-inflated counts: y is 0 with this probability, and otherwise follows `base`.

    >>> import newtongp as ng
    >>> visits = ZeroInflated(ng.likelihoods.Poisson(), probability=0.25)
    >>> float(visits.mean(0.0))
    0.75
    >>> float(visits.cdf(-1.0, 0.0))
    0.0
    """

    base: Likelihood
    probability: jax.Array | np.ndarray = learned(Between(0.0, 1.0))

    def __init__(self, base, probability=0.1):
        """`base` is a likelihood of counts; 0 < `probability` < 1."""
        if not isinstance(base, Likelihood):
            raise ValueError(f"base must be a likelihood such as Poisson(), got {base!r}")
        refuse_weights(base, "ZeroInflated")
        support = base.support
        if base.num_outputs != 1 or not (support.integer and support.lower == 0.0 and support.lower_included):
            raise ValueError(f"base must be a likelihood of counts from 0 on, such as Poisson(), got {base!r}")
        self.base = base
        self.probability = parameter(probability, "probability", lower=0.0, upper=1.0)

    @property
    def row_parameters(self) -> tuple[str, ...]:
        return self.base.row_parameters

    @property
    def num_latents(self) -> int:
        return self.base.num_latents

    def moments_problem(self):
        return self.base.moments_problem()

    def _log_probabilities(self):
        # A probability computed from a latent can round to 0 or 1. (Values outside [0, 1] are errors, and give NaN.)
        kind = jnp.finfo(jnp.result_type(float))
        some = jnp.where(self.probability == 0.0, kind.tiny, self.probability)
        most = jnp.where(some == 1.0, 1.0 - kind.epsneg, some)
        return jnp.log(most), jnp.log1p(-most)

    def log_prob(self, y, f):
        """log((1 - probability) p(y | f)), and for y = 0 log(probability + (1 - probability) p(0 | f))."""
        more, plain = self._log_probabilities()
        counted = plain + jnp.asarray(self.base.log_prob(y, f))
        return jnp.where(y == 0.0, jnp.logaddexp(more, counted), counted)

    def mean(self, f):
        """E[y | f] = (1 - probability) mu, with mu the mean of `base`."""
        return (1.0 - self.probability) * self.base.mean(f)

    def covariance(self, f):
        """Var[y | f] = (1 - probability) (v + probability mu^2), with mu and v the moments of `base`."""
        return (1.0 - self.probability) * (self.base.covariance(f) + self.probability * self.base.mean(f) ** 2)

    def cdf(self, y, f):
        inside = self.probability + (1.0 - self.probability) * self.base.cdf(y, f)
        return jnp.where(y < 0.0, 0.0, inside)

    def sample(self, key, f):
        key_zero, key_count = jax.random.split(key)
        zero = jax.random.bernoulli(key_zero, self.probability)
        return jnp.where(zero, 0.0, self.base.sample(key_count, f))


_SMALLEST = 1e-45


def _value(link: str, latent: Any) -> Any:
    """The parameter that a link computes from its latent.

    Positive parameters are at least `_SMALLEST`: second derivatives of narrower densities overflow.
    """
    value = links.value(link, latent)
    return jnp.maximum(value, _SMALLEST) if link in links.POSITIVE else value


# Checks of parameters and links -------------------------------------------------------------------


def _scalar_parameters(base: Likelihood) -> list[str]:
    """The names of the fields that are one number and not data, in the order of their declaration."""
    fields = [field for field in dataclasses.fields(base) if not field.metadata.get("static", False)]
    data = [field.name for field in fields if field.name in base.row_parameters and "constraint" not in field.metadata]
    return [field.name for field in fields if field.name not in data and _is_number(getattr(base, field.name))]


def _is_number(value: Any) -> bool:
    return isinstance(value, (float, np.ndarray, np.floating, jax.Array)) and np.ndim(value) == 0


def _check_link(base: Likelihood, name: str, link: str) -> None:
    """Raise ValueError if the link leaves the parameter's range, which shows as NaN in log densities."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(base)):
        return
    given = {row: base.row_parameter(row) for row in base.row_parameters}
    rows = {row: np.ravel(value)[0] for row, value in given.items() if np.ndim(value) > 0}
    rows |= {row: np.asarray(1.0) for row, value in given.items() if isinstance(value, str)}  # a column of a table
    for row, value in rows.items():
        base = eqx.tree_at(lambda inside, n=row: getattr(inside, n), base, value)
    y = np.full((base.num_outputs,), base.support.example)
    f = np.zeros(base.num_latents)
    for latent in (-3.0, 3.0):
        value = np.asarray(links.value(link, latent))
        changed = eqx.tree_at(lambda inside: getattr(inside, name), base, value)
        if np.isnan(changed.log_prob(y[0] if y.size == 1 else y, f[0] if f.size == 1 else f)):
            raise ValueError(
                f"the link {link!r} takes {name} to {float(value):.3g}, which {type(base).__name__} does not allow"
            )
