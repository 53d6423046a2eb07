"""The backward information filter, and a test whether a posterior with negative sites is proper.

Filtered covariances may be indefinite although the posterior is proper, so they cannot decide this. If all positive
sites are included first, negative ones can be added one by one in order of time, and the posterior is proper exactly
when det(I + ΛK) stays positive throughout. That determinant is the product of the filter's 1 + w s so far times
det(I + P J), where J is the information about the state in later positive sites. None of this is needed if every
1 + w s of the filter is positive, as it is for most negative sites: then the posterior is proper after every site.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..small import determinant_sign
from . import loops
from .algebra import Form, Matrix, Vector
from .chain import Chain, in_time
from .recursions import Filtered, Step, directions


def is_proper(chain: Chain, steps: Step, filtered: Filtered, psd: bool = False) -> Bool[Array, ""]:
    """Whether the product of prior and sites can be normalised; cheap unless a filtered covariance is indefinite.

    With `psd`, any negative site makes the posterior improper by definition.
    """
    finite = functools.reduce(jnp.logical_and, (jnp.all(jnp.isfinite(precision)) for precision in steps.precision))
    if psd:
        return functools.reduce(jnp.logical_and, (jnp.all(precision >= 0.0) for precision in steps.precision), finite)
    # These are 1 / (1 + w s), and infinite where the site takes out all of the precision.
    shrinks = [update.shrink for update in filtered.updates]
    usual = functools.reduce(jnp.logical_and, (jnp.all((shrink > 0.0) & (shrink < jnp.inf)) for shrink in shrinks))
    return finite & jax.lax.cond(usual, lambda: jnp.ones((), dtype=bool), lambda: _stays_positive(chain, steps))


def _stays_positive(chain: Chain, steps: Step) -> Bool[Array, ""]:
    if chain.pieces > 1:
        steps = jax.tree.map(loops.time_axis_first, steps)
        chain = in_time(chain)
    form = chain.form
    positive = steps._replace(precision=tuple(jnp.maximum(precision, 0.0) for precision in steps.precision))
    _, (_, later) = backward(chain, positive)

    def body(state, step):
        covariance, sign = state
        transition = form.matrix(step.transition)
        covariance = form.add(form.congruence(transition, covariance), form.symmetric(step.noise))
        passed = []
        for direction, precision in zip(directions(form, step)[1], step.precision, strict=True):
            column = form.times(covariance, direction)
            shrink = 1.0 / (1.0 + precision * form.spread(covariance, direction, column)[0])
            covariance = form.downdate(covariance, precision * shrink, shrink, column, direction)
            sign = jnp.where(shrink < 0.0, -sign, sign)
            passed.append((sign, covariance))
        return (covariance, sign), passed

    start = form.split(chain.initial), jnp.ones(())
    _, passed = loops.scan(body, start, steps._replace(linear=None), whole=chain.is_whole)
    later = form.join(later)
    fine = jnp.ones((), dtype=bool)
    for precision, (sign, covariance) in zip(steps.precision, passed, strict=True):
        total = sign * determinant_sign(form.join(covariance), later)
        # Only a negative site can make the determinant negative.
        fine = fine & jnp.all((total > 0.0) | (precision >= 0.0))
    return fine


def backward(chain: Chain, steps: Step) -> tuple[Any, Any]:
    """Information in later sites, exp(νᵀx − ½ xᵀJx), about the state before the chain and after each position.

    For a chain of one piece. The noise enters one column of its root at a time, so that no system is solved.
    """
    form = chain.form
    roots = form.root_steps(steps.noise)

    def body(later, step):
        step, roots = step
        vector, matrix = later
        for k, direction in enumerate(directions(form, step)[1]):
            vector = form.combine(vector, step.linear[k], direction)
            matrix = form.rank_one(matrix, step.precision[k], direction)
        vector, matrix = absorb_noise(form, vector, matrix, roots)
        transition = form.matrix(step.transition)
        earlier = form.apply_transposed(transition, vector), form.congruence_transposed(transition, matrix)
        return earlier, later

    nothing = form.split_vector(jnp.zeros(form.dimension)), form.split(jnp.zeros((form.dimension,) * 2))
    return loops.scan(body, nothing, (steps._replace(noise=None), roots), reverse=True, whole=chain.is_whole)


def absorb_noise(form: Form, vector: Vector, matrix: Matrix, roots: Any) -> tuple[Vector, Matrix]:
    """E over x' = x + Σ qₖ εₖ of exp(νᵀx' − ½ x'ᵀJx'), as a function of x."""
    for column in form.root_columns(roots):
        product = form.times(matrix, column)
        shrink = 1.0 / (1.0 + form.dot(column, product))
        vector = form.combine(vector, -shrink * form.dot(column, vector), product)
        matrix = form.rank_one(matrix, -shrink, product)
    return vector, matrix
