"""One step of the filter, of the smoother, and of a filter that starts from a known state.

Sites are scalar here: the site of a row with D latents is split into D independent scalar sites, each on a direction h
of the state, exp(a hᵀx − ½ w (hᵀx)²). With s = hᵀPh, only 1 / (1 + w s) is needed, so that zero and negative w need no
special treatment, and no system is solved.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from .algebra import Form, Matrix, Number, Vector


class Step(NamedTuple):
    """The inputs of one step: a position's transition, noise, observation weights and scalar sites."""

    transition: Any
    noise: Any
    weights: Any
    rotation: Any
    """Vᵢₖ, the share of latent i in scalar site k; None for one latent."""
    precision: Any
    """w, one per scalar site."""
    linear: Any
    """a, one per scalar site."""


class Update(NamedTuple):
    """The terms of conditioning on one scalar site: P h, 1 / (1 + w hᵀPh) and the innovation's weight e."""

    column: Vector
    shrink: Number
    innovation: Number | None
    """None in the smoother's inputs: computing it again is faster than storing one more number per position."""
    rounding: Number | None = None
    """A bound on the rounding error of hᵀPh after the site; None if h is a single state, where it is negligible."""


class Filtered(NamedTuple):
    """The smoother's inputs at a position: its updates, the predicted mean of f and the columns P Hⱼᵀ."""

    updates: tuple[Update, ...]
    predicted: tuple[Number, ...]
    columns: Any
    """Filtered covariance between the state and each latent; None for one latent, where it is `column · shrink`."""


def directions(form: Form, step: Step) -> tuple[list[Vector], list[Vector]]:
    """The observation's rows Hⱼ, and the direction of every scalar site."""
    rows = form.observation(step.weights)
    if step.rotation is None:
        return rows, rows
    sites = []
    for share in step.rotation:
        direction = form.scale(share[0], rows[0])
        for j in range(1, len(rows)):
            direction = form.combine(direction, share[j], rows[j])
        sites.append(direction)
    return rows, sites


def filter_step(form: Form, state: tuple[Vector, Matrix], step: Step) -> tuple[tuple[Vector, Matrix], Filtered]:
    """Predict the state, then condition on the position's sites."""
    return update_step(form, predict_step(form, state, step)[0], step)


def predict_step(form: Form, state: tuple[Vector, Matrix], step: Step) -> tuple[tuple[Vector, Matrix], list[Vector]]:
    """The predicted state, before conditioning on the position's sites, and the observation's rows."""
    mean, covariance = state
    transition = form.matrix(step.transition)
    mean = form.apply(transition, mean)
    covariance = form.add(form.congruence(transition, covariance), form.symmetric(step.noise))
    return (mean, covariance), form.observation(step.weights)


def update_step(form: Form, state: tuple[Vector, Matrix], step: Step) -> tuple[tuple[Vector, Matrix], Filtered]:
    """Condition on the position's sites one after the other."""
    mean, covariance = state
    rows, sites = directions(form, step)
    predicted = tuple(form.dot(row, mean) for row in rows)
    updates = []
    for k, direction in enumerate(sites):
        mean, covariance, update = condition(form, mean, covariance, direction, step.precision[k], step.linear[k])
        updates.append(update._replace(innovation=None))
    covariance, columns = settle(form, covariance, step, updates)
    if all(form.single(row) is not None for row in rows):
        updates = [update._replace(rounding=None) for update in updates]
    return (mean, covariance), Filtered(tuple(updates), predicted, columns)


def settle(
    form: Form, covariance: Matrix, step: Step, updates: list[Update]
) -> tuple[Matrix, tuple[Vector, ...] | None]:
    """The covariance after all of a position's sites, and its columns P Hⱼᵀ; None for one latent.

    Computed from P, they would be small differences of large numbers if sites are precise. The columns along the
    sites' own directions, P hₖ = (1 + wₖsₖ)⁻¹ P₋hₖ updated with later sites of the position, are not, and P Hⱼᵀ is a
    sum of them. If a latent is one of the states, they are rows and columns of P.
    """
    if step.rotation is None:
        return covariance, None
    rows, sites = directions(form, step)
    along: list[Vector] = []
    for direction, precision, update in zip(sites, step.precision, updates, strict=True):
        gain = precision * update.shrink
        along = [form.combine(column, -gain * form.dot(direction, column), update.column) for column in along]
        along.append(form.scale(update.shrink, update.column))
    columns = []
    for j, row in enumerate(rows):
        total = form.scale(step.rotation[0][j], along[0])
        for share, column in zip(step.rotation[1:], along[1:], strict=True):
            total = form.combine(total, share[j], column)
        columns.append(form.valued(total, form.times(covariance, row)))
    for row, column in zip(rows, columns, strict=True):
        covariance = form.with_column(covariance, row, column)
    return covariance, tuple(columns)


def condition(
    form: Form, mean: Vector, covariance: Matrix, direction: Vector, precision: Number, linear: Number
) -> tuple[Vector, Matrix, Update]:
    """N(m, P) times exp(a hᵀx − ½ w (hᵀx)²)."""
    column = form.times(covariance, direction)
    spread, rounding = form.spread(covariance, direction, column)
    shrink = 1.0 / (1.0 + precision * spread)
    innovation = (linear - precision * form.dot(direction, mean)) * shrink
    mean = form.combine(mean, innovation, column)
    covariance = form.downdate(covariance, precision * shrink, shrink, column, direction)
    rounding = None if rounding is None else rounding * jnp.abs(shrink)
    return mean, covariance, Update(column, shrink, innovation, rounding)


def replayed(form: Form, step: Step, rows: list[Vector], filtered: Filtered) -> tuple[list[Number], list[Number]]:
    """The filtered mean of f and the weight e of every site's innovation, as computed by `condition`."""
    mean, innovations = list(filtered.predicted), []
    for k, update in enumerate(filtered.updates):
        if step.rotation is None:
            along = mean[0]
        else:
            along = sum(share * latent for share, latent in zip(step.rotation[k], mean, strict=True))
        innovations.append((step.linear[k] - step.precision[k] * along) * update.shrink)
        mean = [latent + innovations[k] * form.dot(row, update.column) for latent, row in zip(mean, rows, strict=True)]
    return mean, innovations


class Marginal(NamedTuple):
    """The posterior of a position's latents: deviation of the mean, covariance (rows of numbers), and K⁻¹(m − μ)."""

    mean: tuple[Number, ...]
    covariance: tuple[tuple[Number, ...], ...]
    weight: tuple[Number, ...]


def smoother_step(
    form: Form, adjoint: tuple[Vector, Matrix], step: Step, filtered: Filtered
) -> tuple[tuple[Vector, Matrix], tuple[Vector, Matrix], Marginal]:
    """One step of the smoother, from the (r, L) of later positions to the marginal of this one.

    The smoothed state is N(m + P r, P − P L P) with the filtered m and P (Bryson and Frazier's form, which has no
    inverse). Returns (r, L) for the position before, (r, L) here with the position's own sites, and the marginal.
    """
    vector, matrix = adjoint
    rows, sites = directions(form, step)
    if filtered.columns is None:
        columns = [form.scale(filtered.updates[0].shrink, filtered.updates[0].column)]
    else:
        columns = list(filtered.columns)
    products = [form.times(matrix, column) for column in columns]
    means, innovations = replayed(form, step, rows, filtered)
    mean = tuple(m + form.dot(column, vector) for m, column in zip(means, columns, strict=True))
    covariance = tuple(
        tuple(form.dot(row, column) - form.dot(product, column) for column in columns)
        for row, product in zip(rows, products, strict=True)
    )
    weights = []
    for k in reversed(range(len(sites))):
        precision, update = step.precision[k], filtered.updates[k]
        gain = precision * update.shrink
        if filtered.columns is None:
            gain_column, carried = form.scale(precision, columns[0]), form.scale(precision, products[0])
        else:
            gain_column = form.scale(gain, update.column)
            carried = form.times(matrix, gain_column)
        weight = innovations[k] - form.dot(gain_column, vector)
        vector = form.combine(vector, weight, sites[k])
        matrix = form.rank_two(matrix, sites[k], carried, form.dot(gain_column, carried) + gain)
        weights.append(weight)
    weights.reverse()
    transition = form.matrix(step.transition)
    earlier = form.apply_transposed(transition, vector), form.congruence_transposed(transition, matrix)
    return earlier, (vector, matrix), Marginal(mean, covariance, _back(step.rotation, weights))


def _back(rotation: Any, weights: list[Number]) -> tuple[Number, ...]:
    """From scalar sites to latents."""
    if rotation is None:
        return tuple(weights)
    latents = len(weights)
    return tuple(sum(rotation[k][j] * weights[k] for k in range(latents)) for j in range(latents))


class Element(NamedTuple):
    """A segment of the chain: x_end = F x_start + N(b, P), and the information about x_start in its sites."""

    sensitivity: Matrix
    mean: Vector
    covariance: Matrix
    information_vector: Vector
    information: Matrix


def element_step(form: Form, element: Element, step: Step) -> Element:
    """Extend a segment by one position: a filter that starts from a known state, and its derivative in that state."""
    sensitivity, mean, covariance, vector, information = element
    sensitivity = form.propagate(form.matrix(step.transition), sensitivity)
    (mean, covariance), _ = predict_step(form, (mean, covariance), step)
    _, sites = directions(form, step)
    for k, direction in enumerate(sites):
        mean, covariance, update = condition(form, mean, covariance, direction, step.precision[k], step.linear[k])
        gain = step.precision[k] * update.shrink
        slope = form.times_left(direction, sensitivity)
        sensitivity = form.rank_one_general(sensitivity, -gain, update.column, slope)
        vector = form.combine(vector, update.innovation, slope)
        information = form.rank_one(information, gain, slope)
    return Element(sensitivity, mean, covariance, vector, information)
